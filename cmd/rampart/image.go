package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed/libvirt"
)

func (c *cli) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Build, list and remove the images that virtual machines boot from",
		Args:  arguments(0, 0),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var flags configFlags
	var update bool
	build := &cobra.Command{
		Use:   "build [NAME...]",
		Short: "Build the images of the configuration, unless they are there",
		Long: "Build the images of the configuration, or those called NAME, unless they are there. Where nothing says\n" +
			"which of several is booted, all are built.\n\n" +
			"The first build writes down what an image is made of in " + config.LockName + ", beside the\n" +
			"configuration; every later one, anywhere, takes exactly that. --update moves it.",
		Args: arguments(0, unlimited),
		RunE: func(cmd *cobra.Command, names []string) error {
			purpose := config.Building
			if update {
				purpose = config.Relocking
			}
			cfg, err := flags.load(cmd.Context(), purpose, names...)
			if err != nil {
				return err
			}
			return c.buildImages(cmd.Context(), cfg, update)
		},
	}
	flags.add(build)
	build.Flags().BoolVar(&update, "update", false, "lock the images to what their archives have now, and build that")
	c.jsonFlag(build)
	list := &cobra.Command{
		Use:   "ls",
		Short: "List the images",
		Args:  arguments(0, 0),
		RunE:  func(*cobra.Command, []string) error { return c.listImages() },
	}
	c.jsonFlag(list)
	remove := &cobra.Command{
		Use:   "rm DIGEST...",
		Short: "Remove images, each named by its digest or the first six digits of that",
		Args:  arguments(1, unlimited),
		RunE:  func(cmd *cobra.Command, digests []string) error { return c.removeImages(cmd.Context(), digests) },
	}
	cmd.AddCommand(build, list, remove)
	return cmd
}

// buildImages builds every image that the configuration boots. Of several, each line begins with the name.
func (c *cli) buildImages(ctx context.Context, cfg *config.Config, update bool) error {
	var specs []images.Spec
	for _, level := range cfg.ImageLevels() {
		specs = append(specs, cfg.ImageCalled(level))
	}
	change := c.tidy
	if update {
		change = c.move
	}
	if err := change(ctx, cfg, specs); err != nil {
		return err
	}
	var built []images.Image
	for _, spec := range specs {
		image, err := c.image(ctx, cfg, spec)
		if err != nil {
			return fmt.Errorf("build image %s: %w", spec.Name, err)
		}
		built = append(built, image)
	}
	switch {
	case c.json && len(built) == 1:
		return c.printJSON(built[0])
	case c.json:
		return c.printJSON(built)
	case len(built) == 1:
		fmt.Fprintln(c.stdout, built[0].Digest)
		return nil
	}
	for _, image := range built {
		fmt.Fprintln(c.stdout, image.Spec.Name, image.Digest)
	}
	return nil
}

// openStore opens the image store of this user.
func openStore() (*images.Store, error) {
	dir, err := images.DefaultDir()
	if err != nil {
		return nil, err
	}
	store, err := images.Open(dir)
	return store, withHint(err, "set XDG_CACHE_HOME to a folder that this user may write to")
}

// image returns the image of a block of a configuration, building it where it is not there yet from what
// the configuration's lock file says.
func (c *cli) image(ctx context.Context, cfg *config.Config, spec images.Spec) (images.Image, error) {
	if spec.Disk != "" {
		return images.OpenDisk(ctx, spec)
	}
	store, err := openStore()
	if err != nil {
		return images.Image{}, err
	}
	if file := lockFileOf(cfg); file.path != "" {
		if spec, err = c.pin(ctx, store, file, spec); err != nil {
			return images.Image{}, err
		}
	}
	if image, err := lookUp(store, spec); !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	step := 0
	return store.Build(ctx, spec, func(p images.Progress) {
		if p.Step != step {
			step = p.Step
			c.sayf("image: step %d of %d: %s", p.Step, p.Steps, p.Name)
		}
	})
}

// findImage is image without building or writing anything. The error wraps fs.ErrNotExist when it was not built
// yet.
func (c *cli) findImage(ctx context.Context, cfg *config.Config, spec images.Spec) (images.Image, error) {
	if spec.Disk != "" {
		return images.OpenDisk(ctx, spec)
	}
	spec, _, err := lockFileOf(cfg).apply(spec)
	if err != nil {
		return images.Image{}, err
	}
	store, err := openStore()
	if err != nil {
		return images.Image{}, err
	}
	return lookUp(store, spec)
}

// lookUp looks among this user's images, then among root's, which anybody may read.
func lookUp(store *images.Store, spec images.Spec) (images.Image, error) {
	image, err := store.Lookup(spec)
	if !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	if system, openErr := images.Open(images.SystemDir); openErr == nil {
		return system.Lookup(spec)
	}
	return images.Image{}, err
}

func (c *cli) listImages() error {
	store, err := openStore()
	if err != nil {
		return err
	}
	list, err := store.List()
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(append([]images.Image{}, list...))
	}
	if len(list) == 0 {
		c.sayf("no image is there; rampart image build makes one")
		return nil
	}
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DIGEST\tSUITE\tKERNEL\tPACKAGES\tSIZE")
	for _, image := range list {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%.0f MB\n", shortDigest(image.Digest), image.Spec.Suite, image.KernelVersion, len(image.Packages), float64(image.Size)/1e6)
	}
	return table.Flush()
}

// removeImages removes images named by their digest or the beginning of it.
func (c *cli) removeImages(ctx context.Context, digests []string) error {
	store, err := openStore()
	if err != nil {
		return err
	}
	for _, digest := range digests {
		err := store.Remove(digest)
		if wrong, ok := errors.AsType[*images.DigestError](err); ok {
			return withHint(usagef("image rm: %w", wrong), "rampart image ls lists the images; the beginning of a digest is enough where only one begins so")
		}
		if err != nil {
			return err
		}
		c.sayf("removed image %s", digest)
	}
	return c.pruneVolumes(ctx)
}

// pruneVolumes removes what libvirt's storage pool has of images that were removed. Where there is no
// libvirt there is nothing to remove.
func (c *cli) pruneVolumes(ctx context.Context) error {
	cfg, err := c.configOrDefault(ctx, configFlags{path: "."})
	if err != nil {
		cfg = &config.Config{} // one that is not right must not be in the way
	}
	provider, err := c.libvirtProvider(cfg, libvirt.Image{}, keepTestbed)
	if err != nil {
		return err
	}
	defer provider.Close()
	if err := provider.Prune(ctx); err != nil && !isUnable(err) {
		return withHint(err, "rampart down tries again")
	}
	return nil
}

// shortDigest is enough of a digest to name an image by.
func shortDigest(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(12, len(hex))]
}
