package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/provision"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/exact"
	"github.com/rampart-bench/rampart/testbed/libvirt"
	"github.com/rampart-bench/rampart/testbed/netns"
)

// fate says what becomes of a testbed when this process ends.
type fate bool

const (
	destroyTestbed fate = false
	keepTestbed    fate = true
)

// A chosenProvider is a provider with its name and the image that its nodes boot from, if any.
type chosenProvider struct {
	testbed.Provider
	name  string
	image images.Image
}

// close lets go of what the provider holds, such as its connection to libvirt.
func (p chosenProvider) close() error {
	if closer, ok := p.Provider.(interface{ Close() error }); ok {
		return closer.Close()
	}
	return nil
}

// chosenProviders are a provider for each image that a study boots.
type chosenProviders struct {
	name    string
	byImage map[string]chosenProvider // by level of the factor; empty: the image of the testbed
}

// of is the provider that boots an image.
func (p chosenProviders) of(image string) chosenProvider { return p.byImage[image] }

// close lets go of what all of them hold.
func (p chosenProviders) close() error {
	var errs []error
	for _, one := range p.byImage {
		errs = append(errs, one.close())
	}
	return errors.Join(errs...)
}

// chooseProviders makes the providers of a study. All images are there when it returns, so that none is found
// impossible after hours of measuring with another.
func (c *cli) chooseProviders(ctx context.Context, cfg *config.Config, after fate) (chosenProviders, error) {
	all := chosenProviders{name: cfg.Provider, byImage: map[string]chosenProvider{}}
	for _, level := range cfg.ImageLevels() {
		one := *cfg
		one.Provider, one.Image = all.name, cfg.ImageCalled(level)
		chosen, err := c.chooseProvider(ctx, &one, after)
		if err != nil {
			return chosenProviders{}, errors.Join(err, all.close())
		}
		all.name, all.byImage[level] = chosen.name, chosen
	}
	return all, nil
}

// chooseProvider makes the provider that the configuration names. For auto it says which and why.
func (c *cli) chooseProvider(ctx context.Context, cfg *config.Config, after fate) (chosenProvider, error) {
	switch cfg.Provider {
	case "netns":
		return chosenProvider{Provider: c.netnsProvider(), name: "netns"}, nil
	case "libvirt":
		return c.libvirtWithImage(ctx, cfg, after)
	case exact.Name:
		return chosenProvider{}, noTestbed("up")
	case "auto":
		return c.chooseAutomatically(ctx, cfg, after)
	}
	return chosenProvider{}, &testbed.UnableError{Provider: cfg.Provider, Reason: "this version of rampart does not have it", Mend: "use provider libvirt, netns or auto"}
}

// chooseAutomatically takes libvirt where a guest was seen to boot under KVM, else netns: emulated
// machines measure the emulator, and nobody should get that unasked.
func (c *cli) chooseAutomatically(ctx context.Context, cfg *config.Config, after fate) (chosenProvider, error) {
	chosen, reason, err := c.tryKVM(ctx, cfg, after)
	if ctx.Err() != nil {
		return chosenProvider{}, context.Cause(ctx)
	}
	if err != nil {
		reason = err.Error()
	}
	if chosen.Provider == nil && len(cfg.Images) > 0 {
		return chosenProvider{}, nothingBoots(reason)
	}
	if chosen.Provider == nil {
		c.sayf("provider auto: netns, because virtual machines cannot be measured here: %s", reason)
		return chosenProvider{Provider: c.netnsProvider(), name: "netns"}, nil
	}
	c.sayf("provider auto: libvirt, because %s", reason)
	return chosen, nil
}

// nothingBoots says that provider auto finds nobody to boot the images that are asked for.
func nothingBoots(reason string) error {
	return &testbed.UnableError{Provider: "auto",
		Reason: "the configuration names images, which only virtual machines boot, and they cannot be measured here: " + reason,
		Mend:   "use --provider exact, which counts instructions, or --provider libvirt, which then measures the emulator"}
}

// tryKVM returns the libvirt provider where KVM is usable, and the reason either way.
func (c *cli) tryKVM(ctx context.Context, cfg *config.Config, after fate) (chosenProvider, string, error) {
	// Whether there is anything to boot an image with is found out before one is built.
	bare, err := c.libvirtProvider(cfg, libvirt.Image{}, after)
	if err != nil {
		return chosenProvider{}, "", err
	}
	verdict, err := bare.ProbeKVM(ctx)
	_ = bare.Close()
	if errors.Is(err, libvirt.ErrUnavailable) || err == nil && !verdict.Usable {
		return chosenProvider{}, verdict.Reason, err
	}
	chosen, err := c.libvirtWithImage(ctx, cfg, after)
	if err != nil {
		return chosenProvider{}, "", err
	}
	verdict, err = chosen.Provider.(*libvirt.Provider).ProbeKVM(ctx)
	if err != nil || !verdict.Usable {
		return chosenProvider{}, verdict.Reason, errors.Join(err, chosen.close())
	}
	return chosen, verdict.Reason, nil
}

// sayUntuned tells who tuned virtual machines and gets none: what is not done must not be believed in.
func (c *cli) sayUntuned(provider string, spec testbed.Spec) {
	if provider != libvirt.Name && spec.Tuned() {
		c.sayf("provider %s makes no virtual machines that could be tuned: pins, huge pages, queue sizes, machine type, CPU model and vhost of the configuration do nothing here", provider)
	}
}

func (c *cli) netnsProvider() *netns.Provider { return netns.New(netns.Options{Log: c.log}) }

func (c *cli) libvirtProvider(cfg *config.Config, image libvirt.Image, after fate) (*libvirt.Provider, error) {
	program, err := os.Executable()
	if err != nil || provision.CheckStatic(program) != nil {
		program = "" // whoever pushes it says what is wrong with it
	}
	return libvirt.New(libvirt.Options{
		Program:        program,
		Stored:         storedImages,
		URI:            cfg.Libvirt.URI,
		Accelerator:    libvirt.Accelerator(cfg.Libvirt.Accelerator),
		Image:          image,
		KeepAfterClose: bool(after),
		Log:            c.log,
	})
}

// isRemote reports whether virtual machines are made on another host, and nothing is measured on this.
func (c *cli) isRemote(cfg *config.Config) bool {
	provider, err := c.libvirtProvider(cfg, libvirt.Image{}, destroyTestbed)
	return err == nil && provider.Remote() && cfg.Provider == libvirt.Name
}

// storedImages are the images that virtual machines may be booted from again: this user's and, as in lookUp, root's.
func storedImages() ([]libvirt.Image, error) {
	store, err := openStore()
	if err != nil {
		return nil, err
	}
	list, err := store.List()
	if system, openErr := images.Open(images.SystemDir); openErr == nil && system.Dir() != store.Dir() {
		roots, listErr := system.List()
		list, err = append(list, roots...), errors.Join(err, listErr)
	}
	var all []libvirt.Image
	for _, image := range list {
		all = append(all, libvirt.FromStore(image))
	}
	return all, err
}

// libvirtWithImage is the libvirt provider, ready to bring testbeds up.
func (c *cli) libvirtWithImage(ctx context.Context, cfg *config.Config, after fate) (chosenProvider, error) {
	// Whether libvirt answers at all is found out before an image is built for it.
	bare, err := c.libvirtProvider(cfg, libvirt.Image{}, after)
	if err != nil {
		return chosenProvider{}, err
	}
	if err := errors.Join(bare.Reach(ctx), bare.Close()); err != nil {
		return chosenProvider{}, err
	}
	image, err := c.image(ctx, cfg, cfg.Image)
	if err != nil {
		return chosenProvider{}, fmt.Errorf("build image %s: %w", cfg.Image.Name, err)
	}
	boot, err := c.bootable(ctx, cfg, image, c.image)
	if err != nil {
		return chosenProvider{}, fmt.Errorf("build image to try KVM with: %w", err)
	}
	provider, err := c.libvirtProvider(cfg, boot, after)
	if err != nil {
		return chosenProvider{}, err
	}
	return chosenProvider{Provider: provider, name: libvirt.Name, image: image}, nil
}

// bootable is an image as machines boot it. A disk brings no kernel to try KVM with: the default image's is
// taken, where that is to be tried at all. get makes or finds that image; one that was not built is done without.
func (c *cli) bootable(ctx context.Context, cfg *config.Config, image images.Image, get func(context.Context, *config.Config, images.Spec) (images.Image, error)) (libvirt.Image, error) {
	boot := libvirt.FromStore(image)
	if _, err := os.Stat("/dev/kvm"); err != nil || !boot.Cloud || cfg.Libvirt.Accelerator == string(libvirt.TCG) {
		return boot, nil
	}
	usual, err := get(ctx, &config.Config{}, images.Spec{Name: "default"})
	if errors.Is(err, fs.ErrNotExist) {
		return boot, nil
	}
	if err != nil {
		return libvirt.Image{}, err
	}
	boot.Kernel = libvirt.FromStore(usual).Kernel
	return boot, nil
}

// everyProvider lists the providers that testbeds may have come from, for verbs that find testbeds
// rather than make them: that of the configuration first.
func (c *cli) everyProvider(cfg *config.Config) []chosenProvider {
	all := []chosenProvider{{Provider: c.netnsProvider(), name: "netns"}}
	provider, err := c.libvirtProvider(cfg, libvirt.Image{}, keepTestbed)
	if err != nil {
		c.log.Debug("libvirt cannot be asked", "cause", err)
		return all
	}
	machines := []chosenProvider{{Provider: provider, name: libvirt.Name}}
	if own, err := c.ownMachines(cfg); err == nil && own != nil {
		machines = append(machines, chosenProvider{Provider: own, name: libvirt.Name})
	}
	if cfg.Provider == libvirt.Name {
		return append(machines, all...)
	}
	return append(all, machines...)
}

// ownMachines is the libvirt of this user where it has testbeds though the configuration names another.
func (c *cli) ownMachines(cfg *config.Config) (*libvirt.Provider, error) {
	if cfg.Libvirt.URI == libvirt.SessionURI {
		return nil, nil
	}
	own := *cfg
	own.Libvirt.URI = libvirt.SessionURI
	provider, err := c.libvirtProvider(&own, libvirt.Image{}, keepTestbed)
	if err != nil || !provider.Remembers() {
		return nil, err
	}
	return provider, nil
}

// imageFinding looks for an image of a configuration.
func (c *cli) imageFinding(ctx context.Context, cfg *config.Config, level string) (images.Image, finding) {
	f := finding{Subject: strings.TrimSpace("image " + level), Grade: good}
	spec := cfg.ImageCalled(level)
	image, err := c.findImage(ctx, cfg, spec)
	_, wrong := errors.AsType[*config.Error](err)
	switch {
	case err == nil:
		f.Found = shortDigest(image.Digest)
	case errors.Is(err, fs.ErrNotExist) && !wrong && spec.Disk == "":
		f.Grade, f.Found, f.Mend = worse, "not built yet, so no machine was tried with it", "rampart image build"
	default:
		f = failedFinding(f.Subject, err)
	}
	return image, f
}

// imagesFindings looks for all images of a configuration, and gives one as machines boot it, if there is one.
func (c *cli) imagesFindings(ctx context.Context, cfg *config.Config) (all []finding, boot libvirt.Image) {
	for _, level := range cfg.ImageLevels() {
		image, f := c.imageFinding(ctx, cfg, level)
		if f.Grade == good {
			var err error
			if boot, err = c.bootable(ctx, cfg, image, c.findImage); err != nil {
				f = failedFinding(f.Subject, err)
			}
		}
		all = append(all, f)
	}
	return all, boot
}

// libvirtFindings asks the provider what is in its way.
func (c *cli) libvirtFindings(ctx context.Context, cfg *config.Config, image libvirt.Image) []finding {
	broken := func(err error) []finding { return []finding{failedFinding("libvirt", err)} }
	var all []finding
	provider, err := c.libvirtProvider(cfg, image, destroyTestbed)
	if err != nil {
		return broken(err)
	}
	defer provider.Close()
	problems, err := provider.Diagnose(ctx)
	if err != nil {
		return broken(err)
	}
	if cfg.Testbed.Tuned() && provider.Reach(ctx) == nil {
		lacks, err := provider.DiagnoseTuning(ctx, cfg.Testbed)
		if err != nil {
			return broken(err)
		}
		problems = append(problems, lacks...)
	}
	for _, p := range problems {
		f := finding{Subject: "libvirt", Grade: worse, Found: p.Problem, Mend: p.Mend}
		if p.Blocks {
			f.Grade = bad
		}
		all = append(all, f)
	}
	if cfg.Provider == "auto" && len(cfg.Images) > 0 {
		if v, err := provider.ProbeKVM(ctx); err == nil && !v.Usable {
			all = append(all, failedFinding("provider auto", nothingBoots(v.Reason)))
		}
	}
	if len(problems) == 0 {
		all = append(all, finding{Subject: "libvirt", Grade: good, Found: "nothing is in its way"})
	}
	return all
}
