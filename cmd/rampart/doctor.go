package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/exact"
	"github.com/rampart-bench/rampart/testbed/host"
)

// Grades of a finding.
const (
	good  = "ok"
	worse = "warning" // the study runs, its figures suffer
	bad   = "missing" // the study, or a part of it, cannot run
)

// A finding is one thing that was looked at.
type finding struct {
	Subject string `json:"subject"`
	Grade   string `json:"grade"`
	Found   string `json:"found"`
	Mend    string `json:"mend,omitempty"` // the command or step that mends it
}

func (c *cli) doctorCommand() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine for what the configuration needs",
		Long:  "Check this machine for what the configuration needs, or the default configuration where there is none.\nEvery finding comes with the command that mends it. Exit status 4: something is missing.",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.doctor(cmd.Context(), flags)
		},
	}
	flags.add(cmd)
	c.jsonFlag(cmd)
	return cmd
}

func (c *cli) doctor(ctx context.Context, flags configFlags) error {
	cfg, err := c.configOrDefault(ctx, flags)
	if err != nil {
		return err
	}
	findings := []finding{spaceFinding(".")}
	if !c.isRemote(cfg) { // then this machine only holds the results
		findings = append(machineFindings(), findings...)
	}
	findings = append(findings, c.providerFindings(ctx, cfg)...)
	if c.json {
		if err := c.printJSON(findings); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			fmt.Fprintf(c.stdout, "%-8s %s: %s\n", f.Grade, f.Subject, f.Found)
			if f.Mend != "" {
				fmt.Fprintf(c.stdout, "         mend: %s\n", f.Mend)
			}
		}
	}
	missing := 0
	for _, f := range findings {
		if f.Grade == bad {
			missing++
		}
	}
	if missing > 0 {
		return &testbed.UnableError{Provider: cfg.Provider, Reason: plural(missing, "finding") + " in the way",
			Mend: "each finding above has the command that mends it"}
	}
	return nil
}

// configOrDefault reads the configuration, or takes preset quick where there is none at all.
func (c *cli) configOrDefault(ctx context.Context, flags configFlags) (*config.Config, error) {
	if found, err := filepath.Glob("*.hcl"); err != nil || len(found) > 0 || flags.path != "." {
		return flags.load(ctx, config.Reading)
	}
	preset, _ := config.FindPreset("quick")
	return config.Load(config.Source{
		Files: map[string]string{"quick.hcl": string(preset.Text)},
		Vars:  flags.vars, VarFiles: flags.varFiles, Provider: flags.provider,
	})
}

// machineFindings looks at what makes real-time figures worse on any provider.
func machineFindings() []finding {
	var all []finding
	cpus := runtime.NumCPU()
	f := finding{Subject: "processors", Grade: good, Found: fmt.Sprintf("%d", cpus)}
	if cpus < 2 {
		f.Grade, f.Mend = worse, "measure on a machine with two or more, or with provider exact"
	}
	all = append(all, f)

	var load unix.Sysinfo_t
	if unix.Sysinfo(&load) == nil {
		average := float64(load.Loads[0]) / (1 << unix.SI_LOAD_SHIFT)
		f := finding{Subject: "load", Grade: good, Found: fmt.Sprintf("%.1f over the last minute", average)}
		if average > 0.5*float64(cpus) {
			f.Grade, f.Mend = worse, "end what else is running: it will be in the figures"
		}
		all = append(all, f)
	}
	return append(all, hostFindings(host.Read(os.DirFS("/")).Findings())...)
}

// hostFindings are what package host found, with its grade: it is in the way of nothing.
func hostFindings(found []host.Finding) (all []finding) {
	for _, f := range found {
		grade := good
		if f.Mend != "" {
			grade = worse
		}
		all = append(all, finding{Subject: f.Subject, Grade: grade, Found: f.Found, Mend: f.Mend})
	}
	return all
}

// spaceFinding looks at the room for results.
func spaceFinding(dir string) finding {
	var fs unix.Statfs_t
	f := finding{Subject: "disk space here", Grade: good}
	if err := unix.Statfs(dir, &fs); err != nil {
		f.Grade, f.Found = worse, err.Error()
		return f
	}
	free := fs.Bavail * uint64(fs.Bsize)
	f.Found = fmt.Sprintf("%.1f GB free", float64(free)/1e9)
	if free < 1<<30 {
		f.Grade, f.Mend = worse, "free some, or give --out a folder on another disk"
	}
	return f
}

// providerFindings looks at what the configured provider needs, or at both where it is auto.
func (c *cli) providerFindings(ctx context.Context, cfg *config.Config) []finding {
	var all []finding
	if cfg.Provider == exact.Name {
		all = append(all, c.exactFindings(ctx, cfg)...)
	}
	replaceable := cfg.Provider == "auto" && len(cfg.Images) == 0 // by namespaces, which boot nothing
	if cfg.Provider == "netns" || replaceable {
		all = append(all, c.netnsFindings(ctx, cfg)...)
	}
	if cfg.Provider == "libvirt" || cfg.Provider == "auto" {
		if !c.isRemote(cfg) {
			all = append(all, hostFindings(host.Read(os.DirFS("/")).PinFindings(cfg.Testbed))...)
		}
		found, boot := c.imagesFindings(ctx, cfg)
		all = append(all, found...)
		for _, f := range c.libvirtFindings(ctx, cfg, boot) {
			if replaceable && f.Grade == bad {
				f.Grade = worse
			}
			all = append(all, f)
		}
	}
	return all
}

// failedFinding is an error as a finding: what it says in a line, and what mends it.
func failedFinding(subject string, err error) finding {
	f := finding{Subject: subject, Grade: bad, Found: err.Error(), Mend: mendOf(err)}
	if hints := hintsOf(err); f.Mend == "" && len(hints) > 0 {
		f.Mend = hints[0]
	}
	if unable, ok := errors.AsType[*testbed.UnableError](err); ok {
		f.Found = unable.Reason
	}
	if wrong, ok := errors.AsType[*config.Error](err); ok {
		all := wrong.Diagnostics()
		f.Found, f.Mend = all[0].Summary, "rampart validate shows what would be right"
		if all[0].Line > 0 {
			f.Found = fmt.Sprintf("%s line %d: %s", all[0].File, all[0].Line, f.Found)
		}
		if more := len(all) - 1; more > 0 {
			f.Found += ", and " + plural(more, "mistake") + " more"
		}
	}
	return f
}

// netnsFindings tries the real thing: it makes three namespaces and loads two rules with every
// firewall of the configuration.
func (c *cli) netnsFindings(ctx context.Context, cfg *config.Config) []finding {
	failed := func(subject string, err error) []finding { return []finding{failedFinding(subject, err)} }
	spec := cfg.Testbed
	spec.Name = fmt.Sprintf("doctor-%d", os.Getpid())
	provider := c.netnsProvider()
	tb, err := provider.Up(ctx, spec)
	if err != nil {
		return failed("namespaces", err)
	}
	defer c.takeDown(ctx, chosenProvider{Provider: provider, name: "netns"}, spec.Name)
	defer tb.Close()
	exe, err := os.Executable()
	if err != nil {
		return failed("this program", err)
	}
	lab, err := experiments.Connect(ctx, tb, spec, exe)
	if err != nil {
		return failed("firewall helper", err)
	}
	defer lab.Close()
	all := []finding{{Subject: "namespaces", Grade: good, Found: "three namespaces come up and the helper answers in each"}}
	for _, fw := range firewallsOf(cfg) {
		f := finding{Subject: "firewall " + fw.Name, Grade: good, Found: "two rules load and verify"}
		if err := lab.Try(ctx, fw); err != nil {
			f.Grade, f.Found = bad, err.Error()
			f.Mend = "install what is named, or leave the firewall out: its runs will be recorded as unavailable"
		}
		all = append(all, f)
	}
	return append(all, toolFindings(cfg)...)
}

// firewallsOf lists the firewalls with rules or settings that the experiments use, each once.
func firewallsOf(cfg *config.Config) []firewall.Spec {
	var all []firewall.Spec
	for _, e := range cfg.Experiments {
		for _, fw := range e.Firewalls {
			if fw != (firewall.Spec{Name: fw.Name, Engine: fw.Engine}) && !slices.Contains(all, fw) {
				all = append(all, fw)
			}
		}
	}
	return all
}

// toolFindings look for the programs that the experiments' measurements run.
func toolFindings(cfg *config.Config) (all []finding) {
	for _, tool := range []struct{ measurement, program, mend string }{
		{experiments.UDPIperf3, "iperf3", "apt install iperf3"},
		{experiments.UDPNetperf, "netperf", "add component non-free to apt's sources, then apt install netperf; without it its runs are recorded as unavailable"},
	} {
		uses := func(e experiments.Spec) bool { return e.Measurement.Kind == tool.measurement }
		if !slices.ContainsFunc(cfg.Experiments, uses) {
			continue
		}
		f := finding{Subject: tool.program, Grade: good, Found: "there"}
		if _, err := exec.LookPath(tool.program); err != nil {
			f.Grade, f.Found, f.Mend = bad, "not there", tool.mend
		}
		all = append(all, f)
	}
	return all
}
