package config

import (
	"fmt"
	"slices"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/images"
)

// maxRuns bounds an experiment. A million runs take days; more is a slip in a range.
const maxRuns = 1_000_000

func experimentSchema() *schema {
	return &schema{
		name: "experiment", label: "name", occurs: perLabel,
		doc: "A measurement at every combination of the levels of a matrix. Referred to as `experiment.name`.",
		attributes: []attribute{
			{name: "repetitions", kind: whole, def: "10", min: "1", max: "10000", doc: "Runs of each combination. A median has a 95 % interval from 6 on."},
			{name: "boots", kind: whole, def: "1", min: "1", max: "10000", doc: "Fresh boots of the nodes that the repetitions are spread over; at most as many as those. Where the matrix names images, each is booted so often, and the default is as many as the repetitions: images are compared by boots, of which four of each are the least for an interval in a cell, and three for one of a claim."},
			{name: "seed", kind: whole, def: "1", min: "0", max: "9223372036854775807", doc: "Of the order of runs and of the rule-sets."},
			{name: "grouped", kind: truth, def: "false", doc: "Keep the runs of a block in the order of the matrix instead of shuffling them. Only where the clock cannot drift."},
			{name: "controls", kind: truth, def: "true", doc: "Add what shows whether the method can be believed: firewalls `none` and `empty`, and one firewall a second time under the name `NAME-aa` (an A/A pair: the same thing twice, so any difference is noise). The pair is of the first linear nftables firewall listed, else of the first that has rules or settings. What is listed already is not added again, and two firewalls listed with the same definition are an A/A pair."},
			{name: "compare", kind: pairs, example: `[["nftables-linear", "iptables-linear"]]`, doc: "Pairs of firewalls to compare, the first of each judged against the second. Default: every nftables firewall with every iptables one of the same lookup and position; where there is none such, every firewall with the first. Pairs of images can stand here, too; by default each image is compared with the one before it. Pairs that claims name are added."},
		},
		blocks: []*schema{icmpRTTSchema(), udpIperf3Schema(), udpNetperfSchema(), matrixSchema()},
	}
}

// An experiment as read: what is run, what is analysed, and whether it was free of mistakes, so that
// claims on it can be held to it.
type experiment struct {
	spec     experiments.Spec
	study    analysis.Experiment
	measured []firewall.Spec // as listed, without added controls
	images   []images.Spec   // levels of the factor
	crosses  bool            // images are a factor, though its levels may be mistakes
	set      imageSet        // all that there are
	clean    bool
}

func (r *reader) readExperiment(b *body, known firewalls, set imageSet, provider string) experiment {
	before := len(r.diags)
	measurement := b.child("measurement")
	e := experiment{set: set, spec: experiments.Spec{
		Name:        b.label,
		Measurement: readMeasurement(measurement),
		Repetitions: b.whole("repetitions"),
		Boots:       b.whole("boots"),
		Seed:        uint64(b.amount("seed")),
		Grouped:     b.truth("grouped"),
	}}
	matrix := b.child("matrix")
	if matrix.has("image") && !b.has("boots") {
		e.spec.Boots = e.spec.Repetitions
	}
	if e.spec.Boots > e.spec.Repetitions && !r.failedSince(before) {
		b.wrong("boots", &mistake{"is more than the repetitions", fmt.Sprintf("The repetitions are spread over the boots: use 1 to %d, or raise repetitions.", e.spec.Repetitions)})
	}
	r.readMatrix(matrix, measurement, known, &e)
	r.checkSettings(b, e)
	e.spec.Firewalls = e.measured
	if b.truth("controls") && !r.failedSince(before) {
		added, wrong := controls(e.measured, known)
		if wrong != nil {
			r.fail(b.rng, wrong.summary, "%s", wrong.right)
		}
		e.spec.Firewalls = append(e.measured[:len(e.measured):len(e.measured)], added...)
	}
	r.checkImages(matrix, e, provider)
	r.checkRuns(b, e.spec)
	e.clean = !r.failedSince(before)
	e.study = study(e.spec)
	for _, image := range e.images {
		e.study.Images = append(e.study.Images, analysis.Image{Name: image.Name, Suite: image.Suite, Kernel: image.Kernel})
	}
	e.study.Controls, e.study.ControlImages = twins(e.spec.Firewalls), imageTwins(e.images)
	e.study.Compare, e.study.CompareImages = r.readCompare(b, e)
	return e
}

// checkSettings refuses a firewall whose settings the measurement cannot show at work.
func (r *reader) checkSettings(b *body, e experiment) {
	kind := e.spec.Measurement.Kind
	for _, fw := range e.measured {
		switch {
		case fw.Flowtable && kind == experiments.ICMPRTT:
			r.fail(b.rng, fmt.Sprintf("Firewall %q cannot be measured by %s", fw.Name, kind), "Its flowtable takes UDP flows: measure with %s or %s.", experiments.UDPIperf3, experiments.UDPNetperf)
		case fw.Unprimed && kind != experiments.UDPNetperf:
			r.fail(b.rng, fmt.Sprintf("Firewall %q cannot be measured by %s", fw.Name, kind), "It has prime = false, and only the flow of %s goes one way: iperf3 begins with an answer from the receiver.", experiments.UDPNetperf)
		}
	}
}

// checkImages refuses images that nothing would boot, or that a pair could not tell from firewalls.
func (r *reader) checkImages(matrix *body, e experiment, provider string) {
	if len(e.images) > 0 && provider == "netns" {
		matrix.wrong("image", &mistake{"means nothing here", "Provider netns boots nothing: its nodes share the kernel of this machine. Use provider libvirt or exact, or remove this line."})
	}
	for _, name := range e.spec.Images {
		if slices.Contains(e.firewallNames(), name) {
			r.fail(matrix.rangeOf("image"), fmt.Sprintf("An image and a firewall are both called %q", name), "Comparisons could not tell them apart: give one of them another name.")
		}
	}
}

// checkRuns holds the number of runs to a bound without making the plan.
func (r *reader) checkRuns(b *body, spec experiments.Spec) {
	cells := 0
	for _, fw := range spec.Firewalls {
		rules := 1
		if fw.HasRules() {
			rules = len(spec.Rules)
		}
		cells += rules * len(spec.FrameSizes)
	}
	cells *= max(1, len(spec.Images))
	if cells > maxRuns/spec.Repetitions {
		r.fail(b.rng, fmt.Sprintf("Experiment %q has too many runs: %d combinations, %d times", b.label, cells, spec.Repetitions), "At most %d are possible; take fewer levels or repetitions.", maxRuns)
	}
}

// study is the experiment as analysis and report see it.
func study(spec experiments.Spec) analysis.Experiment {
	e := analysis.Experiment{
		Name:        spec.Name,
		Measurement: spec.Measurement.Kind,
		Parameters:  parameters(spec.Measurement),
		Rules:       spec.Rules,
		FrameSizes:  spec.FrameSizes,
		Repetitions: spec.Repetitions,
		Boots:       spec.Boots,
		Seed:        spec.Seed,
		Grouped:     spec.Grouped,
	}
	for _, fw := range spec.Firewalls {
		e.Firewalls = append(e.Firewalls, analysis.Firewall{Name: fw.Name, Engine: fw.Engine, Lookup: fw.Lookup, Position: fw.Position, Settings: fw.Settings.Describe(), Rules: fw.HasRules()})
	}
	return e
}
