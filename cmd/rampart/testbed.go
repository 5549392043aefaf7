package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/exact"
	"github.com/rampart-bench/rampart/testbed/libvirt"
)

// cleanupTime bounds removing a testbed after an interrupt.
const cleanupTime = 20 * time.Second

func (c *cli) upCommand() *cobra.Command {
	var flags configFlags
	var image string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the testbed up and leave it up",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.up(cmd.Context(), flags, image)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&image, "image", "", "boot the image of this `NAME` (default: that of the testbed block)")
	return cmd
}

func (c *cli) up(ctx context.Context, flags configFlags, image string) error {
	cfg, err := flags.load(ctx, config.Booting)
	if err != nil {
		return err
	}
	if cfg.Image, err = imageToBoot(cfg, image); err != nil {
		return err
	}
	chosen, err := c.chooseProvider(ctx, cfg, keepTestbed)
	if err != nil {
		return err
	}
	defer chosen.close()
	c.sayUntuned(chosen.name, cfg.Testbed)
	held, err := holdTestbed(cfg.Testbed.Name)
	if err != nil {
		return err
	}
	defer held.release()
	if tb, ok := c.attachKept(ctx, chosen, cfg.Testbed); ok {
		c.sayf("testbed %s is up already", tb.Name())
		return tb.Close()
	}
	tb, err := c.bringUp(ctx, chosen, cfg.Testbed)
	if err != nil {
		return err
	}
	defer tb.Close()
	if err := markKept(chosen, cfg.Testbed); err != nil {
		return errors.Join(fmt.Errorf("up: %w", err), c.takeDown(ctx, chosen, cfg.Testbed.Name))
	}
	c.sayf("testbed %s is up; now: rampart ssh firewall, rampart run, rampart down", tb.Name())
	return nil
}

// imageToBoot is the image called name, or the only one that there is. A testbed by hand boots one, and a
// configuration may have several; namespaces boot none.
func imageToBoot(cfg *config.Config, name string) (images.Spec, error) {
	if name == "" && cfg.Provider == "netns" {
		return cfg.Image, nil
	}
	var names []string
	for _, level := range cfg.ImageLevels() {
		spec := cfg.ImageCalled(level)
		if name == spec.Name || name == "" && level == "" {
			return spec, nil
		}
		names = append(names, spec.Name)
	}
	if name == "" {
		return images.Spec{}, withHint(usagef("up: the configuration boots several images, and a testbed by hand boots one"), "rampart up --image NAME; there is %s", strings.Join(names, ", "))
	}
	return images.Spec{}, withHint(usagef("up: the configuration boots no image %q", name), "there is %s", strings.Join(names, ", "))
}

// bringUp removes what an earlier process left of this testbed, then makes it anew.
func (c *cli) bringUp(ctx context.Context, provider testbed.Provider, spec testbed.Spec) (testbed.Testbed, error) {
	if err := provider.Down(ctx, spec.Name); err != nil {
		return nil, err
	}
	if err := forgetKept(spec.Name); err != nil {
		return nil, fmt.Errorf("up: %w", err)
	}
	return provider.Up(ctx, spec)
}

// attachKept returns the testbed that was left up on purpose. Nodes that no longer run are replaced; the
// others go on.
func (c *cli) attachKept(ctx context.Context, provider chosenProvider, spec testbed.Spec) (testbed.Testbed, bool) {
	attacher, ok := provider.Provider.(testbed.Attacher)
	if !ok {
		return nil, false
	}
	switch keptFor(provider, spec) {
	case notKept:
		return nil, false
	case keptOther:
		c.sayf("testbed %s was made from another configuration, image or provider: it is made anew", spec.Name)
		return nil, false
	}
	tb, err := attacher.Attach(ctx, spec.Name)
	if err == nil {
		if err = c.mend(ctx, provider.Provider, tb); err == nil {
			return tb, true
		}
		err = errors.Join(err, tb.Close())
	}
	c.log.Warn("the testbed that was left up cannot be used and is made anew", "cause", err)
	return nil, false
}

// mend replaces the nodes of a testbed that do not run.
func (c *cli) mend(ctx context.Context, provider testbed.Provider, tb testbed.Testbed) error {
	renewer, _ := tb.(testbed.Renewer)
	for _, role := range testbed.Roles() {
		err := checkRuns(ctx, provider, tb.Name(), role)
		if err == nil {
			continue
		}
		if renewer == nil {
			return err
		}
		c.sayf("%v: it is replaced", err)
		if err := renewer.Renew(ctx, role); err != nil {
			return err
		}
	}
	return nil
}

// checkRuns returns an error unless these nodes of a testbed run.
func checkRuns(ctx context.Context, provider testbed.Provider, name string, roles ...testbed.Role) error {
	lister, ok := provider.(testbed.Lister)
	if !ok {
		return nil
	}
	all, err := lister.List(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(info testbed.Info) bool { return info.Name == name })
	if i < 0 {
		return fmt.Errorf("testbed %s: %w", name, fs.ErrNotExist)
	}
	for _, role := range roles {
		if state := all[i].Nodes[role]; state != "running" {
			return fmt.Errorf("testbed %s: node %s is %s", name, role, state)
		}
	}
	return nil
}

// takeDown removes a testbed even when the context has ended.
func (c *cli) takeDown(ctx context.Context, provider testbed.Provider, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	err := errors.Join(provider.Down(ctx, name), forgetKept(name))
	return withHint(err, "rampart down %s removes what is left", name)
}

func (c *cli) downCommand() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "down [NAME]",
		Short: "Remove the testbed, or what is left of it",
		Long:  "Remove the testbed of the configuration, or the one called NAME, with every provider that works here.\nIt needs no state: a testbed whose process was killed is found by its name.",
		Args:  arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.down(cmd.Context(), flags, args)
		},
	}
	flags.add(cmd)
	return cmd
}

func (c *cli) down(ctx context.Context, flags configFlags, args []string) error {
	cfg, err := c.configOrDefault(ctx, flags)
	if err != nil && len(args) == 0 {
		return err
	}
	var name string
	switch {
	case len(args) == 0:
		name = cfg.Testbed.Name
	case err != nil:
		// A configuration that is not right must not be in the way of removing what has a name.
		cfg, name = &config.Config{}, args[0]
	default:
		name = args[0]
	}
	if err := testbed.ValidateName(name); err != nil {
		return withHint(usagef("down: %w", err), "rampart status lists the testbeds that there are")
	}
	held, err := holdTestbed(name)
	if err != nil {
		return err
	}
	defer held.release()
	errs := []error{forgetKept(name)}
	for _, provider := range c.everyProvider(cfg) {
		err := errors.Join(provider.Down(ctx, name), provider.close())
		if err != nil && isOptional(provider, cfg, err) {
			c.sayNotAsked(provider, cfg, err)
			continue
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.sayf("nothing is left of testbed %s", name)
	return nil
}

// isOptional reports whether a verb can do without a provider that gave this error: most machines have
// no libvirt, and who named provider netns has nothing there. Namespaces are everywhere; what cannot
// be done with them is in the way.
func isOptional(provider chosenProvider, cfg *config.Config, err error) bool {
	return isUnable(err) && provider.name == libvirt.Name && cfg.Provider != libvirt.Name
}

// sayNotAsked says which provider may have more than was found. Who chose namespaces need not hear of
// libvirt.
func (c *cli) sayNotAsked(provider chosenProvider, cfg *config.Config, err error) {
	if cfg.Provider != "netns" {
		c.sayf("provider %s was not asked: %s", provider.name, brief(err))
	}
}

// brief is what an error says without the way that led there.
func brief(err error) string {
	var unavailable *libvirt.UnavailableError
	if errors.As(err, &unavailable) {
		return unavailable.Problem
	}
	return err.Error()
}

func (c *cli) statusCommand() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the testbeds on this machine",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.status(cmd.Context(), flags)
		},
	}
	flags.add(cmd)
	c.jsonFlag(cmd)
	return cmd
}

func (c *cli) status(ctx context.Context, flags configFlags) error {
	cfg, err := c.configOrDefault(ctx, flags)
	if err != nil {
		// A configuration that is not right yet must not hide what is up.
		cfg = &config.Config{}
	}
	infos := []testbed.Info{}
	for _, provider := range c.everyProvider(cfg) {
		defer provider.close()
		lister, ok := provider.Provider.(testbed.Lister)
		if !ok {
			continue
		}
		found, err := lister.List(ctx)
		if err != nil && isOptional(provider, cfg, err) {
			c.sayNotAsked(provider, cfg, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("status %s: %w", provider.name, err)
		}
		infos = append(infos, found...)
	}
	if c.json {
		return c.printJSON(infos)
	}
	if len(infos) == 0 {
		c.sayf("no testbed is up; rampart up makes one")
		return nil
	}
	table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tPROVIDER\tSENDER\tFIREWALL\tRECEIVER\tLEFT OVER")
	for _, info := range infos {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", info.Name, info.Provider,
			orDash(info.Nodes[testbed.Sender]), orDash(info.Nodes[testbed.Firewall]), orDash(info.Nodes[testbed.Receiver]),
			orDash(strings.Join(info.Leftovers, ", ")))
	}
	return table.Flush()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (c *cli) sshCommand() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "ssh NODE [-- COMMAND [ARG...]]",
		Short: "Open a shell on a node, or run a command there",
		Long:  "Open a shell on a node, or run a command there, whose exit status is then that of rampart.",
		Args:  nodeAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.ssh(cmd.Context(), flags, testbed.Role(args[0]), args[1:])
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return withHint(&usageError{err}, "rampart ssh --help lists the flags; those of a command on the node follow two dashes: rampart ssh NODE -- COMMAND [ARG...]")
	})
	flags.add(cmd)
	return cmd
}

// nodeAndCommand wants two dashes before a command. Else its flags would be taken for those of this program, and be
// wrong or, worse, not be wrong.
func nodeAndCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
		return withHint(usagef("ssh %s: a command follows two dashes", args[0]), "rampart ssh %s -- COMMAND [ARG...]", args[0])
	}
	return arguments(1, unlimited)(cmd, args)
}

func (c *cli) ssh(ctx context.Context, flags configFlags, role testbed.Role, command []string) error {
	if !slices.Contains(testbed.Roles(), role) {
		return usagef("ssh %s: a node is sender, firewall or receiver", role)
	}
	cfg, err := c.configOrDefault(ctx, flags)
	if err != nil {
		return err
	}
	if cfg.Provider == exact.Name {
		return noTestbed("ssh")
	}
	for _, provider := range c.everyProvider(cfg) {
		defer provider.close()
		attacher, ok := provider.Provider.(testbed.Attacher)
		if !ok {
			continue
		}
		tb, err := attacher.Attach(ctx, cfg.Testbed.Name)
		if errors.Is(err, fs.ErrNotExist) && !isUnable(err) || err != nil && isOptional(provider, cfg, err) {
			continue
		}
		if err == nil {
			err = becomeTerminal(ctx, provider.Provider, tb, role, command)
		}
		return fmt.Errorf("ssh %s: %w", role, err)
	}
	return withHint(fmt.Errorf("ssh %s: testbed %s is not up", role, cfg.Testbed.Name), "rampart up")
}

// becomeTerminal replaces this program by what opens a shell on a node: Ctrl-C and the exit status are
// then the shell's business alone. It returns only if that fails.
func becomeTerminal(ctx context.Context, provider testbed.Provider, tb testbed.Testbed, role testbed.Role, command []string) error {
	defer tb.Close()
	if err := checkRuns(ctx, provider, tb.Name(), role); err != nil {
		return withHint(err, "rampart down, then rampart up")
	}
	terminal, ok := tb.(testbed.Terminal)
	if !ok {
		return fmt.Errorf("provider %s has no terminal on its nodes", tb.Features().Provider)
	}
	argv, err := terminal.Terminal(role, command...)
	if err != nil {
		return err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if err := unix.Exec(program, argv, os.Environ()); err != nil {
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}

// isUnable reports whether a provider cannot work on this machine or for this user at all.
func isUnable(err error) bool {
	var unable *testbed.UnableError
	return errors.As(err, &unable) || errors.Is(err, libvirt.ErrUnavailable) || errors.Is(err, fs.ErrPermission)
}
