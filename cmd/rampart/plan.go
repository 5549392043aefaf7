package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/stats"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/exact"
	"github.com/rampart-bench/rampart/testbed/libvirt"
)

func (c *cli) planCommand() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print what run would do, without touching anything",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := flags.load(cmd.Context(), config.Booting)
			if err != nil {
				return err
			}
			return c.plan(cfg)
		},
	}
	flags.add(cmd)
	c.jsonFlag(cmd)
	return cmd
}

// A planned experiment, as plan prints it.
type planned struct {
	Experiment  string   `json:"experiment"`
	Measurement string   `json:"measurement"`
	Images      []string `json:"images,omitempty"`
	Firewalls   []string `json:"firewalls"`
	Rules       []int    `json:"rules"`
	FrameSizes  []int    `json:"frame_sizes"`
	Treatments  int      `json:"treatments"`
	Repetitions int      `json:"repetitions"`
	Boots       int      `json:"boots"` // of each image
	Runs        int      `json:"runs"`
	Order       string   `json:"order"`
	Seed        uint64   `json:"seed"`
	Digest      string   `json:"digest"`
	Clock       string   `json:"clock"`
	EstimateS   float64  `json:"estimate_s"` // under that clock, booting left out
	EstimateB   int64    `json:"estimate_bytes"`
	Warnings    []string `json:"warnings"`

	emulated time.Duration // the estimate if machines are emulated
}

// schedulesOf plans the experiments of a configuration for a verb that needs one.
func schedulesOf(verb string, cfg *config.Config) ([]experiments.Schedule, error) {
	if len(cfg.Experiments) == 0 {
		return nil, withHint(usagef("%s: the configuration has no experiment", verb),
			`write one, such as: experiment "latency" {}; for a testbed alone: rampart up`)
	}
	return experiments.Schedules(cfg.Experiments)
}

func (c *cli) plan(cfg *config.Config) error {
	schedules, err := schedulesOf("plan", cfg)
	if err != nil {
		return err
	}
	on := c.foresee(cfg)
	list := []planned{}
	for _, s := range schedules {
		p := planned{
			Experiment: s.Spec.Name, Measurement: s.Spec.Measurement.Kind,
			Images: s.Spec.Images, Rules: s.Spec.Rules, FrameSizes: s.Spec.FrameSizes,
			Treatments:  len(s.Plan.Runs) / s.Spec.Repetitions,
			Repetitions: s.Spec.Repetitions, Boots: s.Spec.Boots, Runs: len(s.Plan.Runs),
			Seed: s.Spec.Seed, Digest: s.Plan.Digest,
			EstimateS: s.EstimateTime(on.clock).Seconds(), EstimateB: s.EstimateBytes(),
			Clock: string(on.clock), emulated: s.EstimateTime(testbed.ClockTCG),
			Order: "shuffled in blocks", Warnings: []string{},
		}
		if s.Spec.Grouped {
			p.Order = "by rule-set in every block"
		}
		if len(s.Spec.Images) > 1 {
			p.Order = wholePlots(s.Spec)
		}
		for _, fw := range s.Spec.Firewalls {
			p.Firewalls = append(p.Firewalls, fw.Name)
		}
		for _, w := range []string{tooFewRuns(s.Spec, cfg.Study.Alpha, on.provider), tooFewBoots(s.Spec, cfg.Study.Alpha)} {
			if w != "" {
				p.Warnings = append(p.Warnings, w)
			}
		}
		list = append(list, p)
	}
	if c.json {
		return c.printJSON(list)
	}
	return c.printPlan(list, on)
}

// A prospect is what a study will probably be measured on.
type prospect struct {
	provider string
	clock    testbed.Clock
	unsure   bool // it may come to emulation
}

// foresee says so from what is known of this machine already: plan tries nothing.
func (c *cli) foresee(cfg *config.Config) prospect {
	switch cfg.Provider {
	case "netns":
		return prospect{provider: "netns", clock: testbed.ClockHost}
	case exact.Name:
		return prospect{provider: exact.Name, clock: testbed.ClockVirtual}
	}
	kvm, known := c.rememberedKVM(cfg)
	switch {
	case cfg.Provider == "auto" && !kvm && len(cfg.Images) == 0:
		return prospect{provider: "netns", clock: testbed.ClockHost}
	case cfg.Provider == libvirt.Name && known && !kvm:
		return prospect{provider: libvirt.Name, clock: testbed.ClockTCG}
	}
	return prospect{provider: libvirt.Name, clock: testbed.ClockKVM, unsure: cfg.Provider == libvirt.Name && !known}
}

// rememberedKVM reports whether machines will run under KVM, and whether that is known.
func (c *cli) rememberedKVM(cfg *config.Config) (kvm, known bool) {
	if asked := libvirt.Accelerator(cfg.Libvirt.Accelerator); asked != libvirt.Auto {
		return asked == libvirt.KVM, true
	}
	provider, err := c.libvirtProvider(cfg, libvirt.Image{}, destroyTestbed)
	if err != nil {
		return false, false
	}
	return provider.Remembered()
}

// tooFewRuns says, before anything is measured, when no p-value could pass Holm's correction. Under a clock
// without noise a few repetitions are right, and most findings do not rest on p-values.
func tooFewRuns(spec experiments.Spec, alpha float64, provider string) string {
	family := len(spec.Rules) * len(spec.FrameSizes) * max(1, len(spec.Images))
	need := stats.MinRunsForHolm(family, alpha)
	if spec.Repetitions >= need {
		return ""
	}
	compared := plural(family, "comparison") + " a pair need"
	if family == 1 {
		compared = "the one comparison of a pair needs"
	}
	what := "no difference can be significant"
	if provider == exact.Name {
		what = "claims, costs of a rule and rampart compare hold blocks against each other, but no single cell can be called slower or faster"
	}
	return fmt.Sprintf("%s: %s %d repetitions to pass Holm's correction, and there %s", what, compared, need, areRepetitions(spec.Repetitions))
}

func areRepetitions(n int) string {
	if n == 1 {
		return "is 1"
	}
	return fmt.Sprintf("are %d", n)
}

// tooFewBoots says the same of images, which are compared by boots.
func tooFewBoots(spec experiments.Spec, alpha float64) string {
	if len(spec.Images) < 2 {
		return ""
	}
	family := len(spec.Design().Treatments) / len(spec.Images)
	need := stats.MinRunsForHolm(family, alpha)
	if spec.Boots >= need {
		return ""
	}
	text := fmt.Sprintf("no difference between images can be significant in a single cell: %s a pair need %d boots of each image to pass Holm's correction, and there are %d",
		plural(family, "comparison"), need, spec.Boots)
	if spec.Boots < stats.MinClusters {
		text += fmt.Sprintf("; claims on images need %d", stats.MinClusters)
	}
	return text
}

// wholePlots is the order of runs where image is a factor.
func wholePlots(spec experiments.Spec) string {
	if spec.Grouped {
		return "image by image in every boot, all treatments of an image while its machines are up (split plot)"
	}
	return "images shuffled in every boot, and while the machines of one are up all its treatments, shuffled in blocks (split plot)"
}

func (c *cli) printPlan(list []planned, on prospect) error {
	var seconds float64
	var emulated time.Duration
	var bytes int64
	runs := 0
	for _, p := range list {
		table := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintf(table, "experiment\t%s (%s)\n", p.Experiment, p.Measurement)
		if len(p.Images) > 0 {
			fmt.Fprintf(table, "images\t%s\n", strings.Join(p.Images, ", "))
		}
		fmt.Fprintf(table, "firewalls\t%s\n", strings.Join(p.Firewalls, ", "))
		fmt.Fprintf(table, "rules\t%s\n", join(p.Rules))
		fmt.Fprintf(table, "frame sizes\t%s bytes\n", join(p.FrameSizes))
		boots := plural(p.Boots, "boot")
		if len(p.Images) > 1 {
			boots += fmt.Sprintf(" of each image, %d in all", p.Boots*len(p.Images))
		}
		fmt.Fprintf(table, "runs\t%d = %s x %s, over %s\n", p.Runs, plural(p.Treatments, "treatment"), plural(p.Repetitions, "repetition"), boots)
		fmt.Fprintf(table, "order\t%s, seed %d, %s\n", p.Order, p.Seed, p.Digest)
		for _, w := range p.Warnings {
			fmt.Fprintf(table, "note\t%s\n", w)
		}
		if err := table.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(c.stdout)
		seconds += p.EstimateS
		emulated += p.emulated
		bytes += p.EstimateB
		runs += p.Runs
	}
	with := on.provider
	switch {
	case on.unsure:
		with += fmt.Sprintf(" under KVM (%s if it has to emulate, which rampart doctor finds out)", short(emulated))
	case on.clock == testbed.ClockKVM:
		with += " under KVM"
	case on.clock == testbed.ClockTCG:
		with += ", whose machines are emulated"
	}
	_, err := fmt.Fprintf(c.stdout, "%s, about %s with provider %s, about %s of records\n",
		plural(runs, "run"), short(time.Duration(seconds*float64(time.Second))), with, diskSpace(bytes))
	return err
}

// diskSpace is a number of bytes in the unit that leaves a figure to read.
func diskSpace(bytes int64) string {
	if bytes < 1e6 {
		return fmt.Sprintf("%.0f kB", max(1, float64(bytes)/1e3))
	}
	return fmt.Sprintf("%.0f MB", float64(bytes)/1e6)
}

func join(values []int) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, ", ")
}
