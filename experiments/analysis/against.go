package analysis

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rampart-bench/rampart/experiments/record"
)

// Measured is a study with the records of one time that it was measured.
type Measured struct {
	Study   Study
	Records iter.Seq2[record.Record, error]
}

// Limits say what counts as a change.
type Limits struct {
	// Threshold is a change too small to matter, as a share: 0.02 is 2 %. At least 0.
	Threshold float64
	// Metrics are those to compare; empty: all that can be, but tails not under the virtual clock.
	Metrics []string
}

// An IncomparableError says why two measured studies, or the limits, allow no comparison, and what to do.
type IncomparableError struct{ Reason, Next string }

func (e *IncomparableError) Error() string { return e.Reason }

// Against compares a study with itself, measured before and after a change: every cell that both have, each
// firewall against itself. It reads each sequence once, in any order.
//
// Under a clock with noise a cell is judged as two firewalls would be (METHOD §5), with the alpha and margin of
// the study before, the A/A pairs of both, and Holm's correction over all cells of an experiment and metric;
// an effect must also exceed the threshold. Under the virtual clock there is no noise, and a cell has
// changed when all blocks moved the same way, by more than the threshold and otherwise than the arm without
// a firewall; see [Blocks].
//
// What only one of the two has is left out with a warning. Studies of different clocks, or without a cell in
// common, are an [*IncomparableError]; other errors are those of [Analyze].
func Against(before, after Measured, limits Limits) (Changes, error) {
	if err := limits.check(); err != nil {
		return Changes{}, err
	}
	var w warnings
	b, err := collectSide("before", before, &w)
	if err != nil {
		return Changes{}, err
	}
	a, err := collectSide("after", after, &w)
	if err != nil {
		return Changes{}, err
	}
	clock := cmp.Or(b.clock, a.clock)
	if a.clock != "" && a.clock != clock {
		return Changes{}, &IncomparableError{fmt.Sprintf("clock %q before and %q after: times of different clocks cannot be compared", b.clock, a.clock),
			"measure both with the same provider"}
	}
	c := contrast{
		analyzer: analyzer{study: &b.study, warnings: w}, before: b, after: a, limits: limits,
		out: Changes{
			Schema: record.Schema, Clock: clock, Alpha: b.study.Alpha, Margin: b.study.Margin, Threshold: limits.Threshold,
			Cells: []Change{}, Counts: []ChangeCount{}, NoiseFloors: []NoiseFloor{}, Missing: []Missing{}, Warnings: []Warning{},
		},
	}
	c.studies()
	if len(c.out.Cells) == 0 && len(c.out.Missing) == 0 {
		return Changes{}, &IncomparableError{"no cell that both ask for has a run that counts before", "name two results folders of one study"}
	}
	c.out.Warnings = append(c.out.Warnings, c.analyzer.warnings.list...)
	return c.out, nil
}

func (l Limits) check() error {
	if !(l.Threshold >= 0) {
		return &IncomparableError{fmt.Sprintf("threshold %g is negative", l.Threshold), "use 0 or more"}
	}
	for _, name := range l.Metrics {
		if m, known := LookupMetric(name); !known || !m.Compared {
			return &IncomparableError{fmt.Sprintf("metric %q cannot be compared", name), "use " + strings.Join(comparedNames(), ", ")}
		}
	}
	return nil
}

// A side is one of the two times that a study was measured.
type side struct {
	study Study
	*collector
}

func collectSide(name string, m Measured, w *warnings) (*side, error) {
	s := &side{study: m.Study.withDefaults()}
	if err := s.study.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.collector = newCollector(&s.study)
	var own warnings
	if err := s.collect(m.Records, &own); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, warning := range own.list {
		w.add(name+": "+warning.Text, warning.Next)
	}
	return s, nil
}

// contrast holds what a comparison of two sides has found so far.
type contrast struct {
	analyzer      analyzer // for its tests and warnings
	before, after *side
	limits        Limits
	out           Changes
}

func (c *contrast) studies() {
	if before, after := c.before.study, c.after.study; before.Alpha != after.Alpha || before.Margin != after.Margin {
		c.warn(fmt.Sprintf("alpha and margin were %g and %g before and are %g and %g after; those before hold here",
			before.Alpha, before.Margin, after.Alpha, after.Margin), "")
	}
	if c.out.Clock != virtualClock {
		c.warn("the two were measured at different times: whatever else changed on the machine in between counts as a change of the firewall",
			"measure the same thing twice to see by how much, and set --threshold above that")
	}
	for i := range c.before.study.Experiments {
		name := c.before.study.Experiments[i].Name
		before, after := c.before.experiments[name], c.after.experiments[name]
		switch {
		case after == nil:
			c.leftOut("experiment %s is not in the study after", name)
		case before.experiment.Measurement != after.experiment.Measurement:
			c.leftOut("experiment %s measured %s before and %s after", name, before.experiment.Measurement, after.experiment.Measurement)
		default:
			c.experiment(before, after)
		}
	}
	for _, e := range c.after.study.Experiments {
		if c.before.experiments[e.Name] == nil {
			c.leftOut("experiment %s is not in the study before", e.Name)
		}
	}
}

func (c *contrast) warn(text, next string) { c.analyzer.warnings.add(text, next) }

func (c *contrast) leftOut(format string, args ...any) {
	c.warn(fmt.Sprintf(format, args...)+": left out", "")
}

// experiment compares all that both sides ask for.
func (c *contrast) experiment(before, after *data) {
	c.designs(before.experiment, after.experiment)
	if was, is := before.count.excluded(), after.count.excluded(); is > was {
		c.warn(fmt.Sprintf("%s: %s after do not count, %d before", before.experiment.Name, plural(is, "run"), was),
			"rampart report names their reasons")
	}
	places := c.places(before, after)
	for _, m := range metrics() {
		if !m.Compared || len(c.limits.Metrics) > 0 && !slices.Contains(c.limits.Metrics, m.Name) {
			continue
		}
		if m.Tail && c.out.Clock == virtualClock && len(c.limits.Metrics) == 0 {
			if slices.Contains(before.metricNames(), m.Name) {
				c.warn(m.Name+" is left out: which samples meet a timer interrupt decides it, and that changes with the layout of memory", "--metric "+m.Name+" compares it")
			}
			continue
		}
		if pairs := c.pairs(before, after, m, places); len(pairs) > 0 {
			var cells []Change
			if c.out.Clock == virtualClock {
				cells = c.exactly(before, after, m, pairs)
			} else {
				cells = c.statistically(before, after, m, pairs)
			}
			c.out.Cells = append(c.out.Cells, cells...)
			c.out.Counts = append(c.out.Counts, countChanges(before.experiment.Name, m, cells))
		}
	}
}

// designs warns of what differs between the two plans of an experiment.
func (c *contrast) designs(before, after *Experiment) {
	name := before.Name
	c.onlyIn(name+": rules", before.Rules, after.Rules)
	c.onlyIn(name+": frame size", before.FrameSizes, after.FrameSizes)
	c.onlyInNames(name+": image", before.imageNames(), after.imageNames())
	c.onlyInNames(name+": firewall", before.names(), after.names())
	for _, f := range before.Firewalls {
		if g, ok := after.firewall(f.Name); ok && (f.Engine != g.Engine || f.Lookup != g.Lookup) {
			c.warn(fmt.Sprintf("%s: firewall %s was %s %s before and is %s %s after", name, f.Name, f.Engine, f.Lookup, g.Engine, g.Lookup), "")
		}
	}
	all := maps.Clone(before.Parameters)
	maps.Copy(all, after.Parameters)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if was, is := before.Parameters[key], after.Parameters[key]; was != is {
			c.warn(fmt.Sprintf("%s: %s of the measurement was %q before and is %q after", name, key, was, is), "measure both in the same way")
		}
	}
	if before.Seed != after.Seed {
		c.warn(fmt.Sprintf("%s: seed %d before and %d after: the rule-sets hold other addresses, in another order", name, before.Seed, after.Seed),
			"use the same seed, so that nothing differs but what you changed")
	}
}

func (e *Experiment) names() (out []string) {
	for _, f := range e.Firewalls {
		out = append(out, f.Name)
	}
	return out
}

// onlyIn warns of levels that only one of the plans has.
func (c *contrast) onlyIn(what string, before, after []int) {
	words := func(levels []int) (out []string) {
		for _, level := range levels {
			out = append(out, strconv.Itoa(level))
		}
		return out
	}
	c.onlyInNames(what, words(before), words(after))
}

func (c *contrast) onlyInNames(what string, before, after []string) {
	for _, one := range []struct {
		name        string
		have, other []string
	}{{"before", before, after}, {"after", after, before}} {
		only := slices.DeleteFunc(slices.Clone(one.have), func(x string) bool { return slices.Contains(one.other, x) })
		if len(only) > 0 {
			c.leftOut("%s %s only %s", what, strings.Join(only, ", "), one.name)
		}
	}
}

// places are the treatments that both studies ask for and both have runs of. Those that no longer have any
// become Missing.
func (c *contrast) places(before, after *data) (out []record.Treatment) {
	onlyAfter := 0
	asked := after.experiment.treatments()
	for _, t := range before.experiment.treatments() {
		if !slices.Contains(asked, t) {
			continue
		}
		was, is := before.cells[t] != nil, after.cells[t] != nil
		switch {
		case was && is:
			out = append(out, t)
		case was:
			c.missing(after, t.Firewall, "")
		case is:
			onlyAfter++
		}
	}
	if onlyAfter > 0 {
		c.leftOut("%s: %s had no run that counts before", before.experiment.Name, plural(onlyAfter, "cell"))
	}
	return out
}

// missing counts a cell that no longer has a run that counts, or none with the metric.
func (c *contrast) missing(after *data, firewall, metric string) {
	name := after.experiment.Name
	i := slices.IndexFunc(c.out.Missing, func(m Missing) bool {
		return m.Experiment == name && m.Firewall == firewall && m.Metric == metric
	})
	if i < 0 {
		i = len(c.out.Missing)
		c.out.Missing = append(c.out.Missing, Missing{Experiment: name, Firewall: firewall, Metric: metric, Reason: after.mainReason(firewall)})
	}
	c.out.Missing[i].Cells++
}

// mainReason is what the most runs of a firewall that do not count say.
func (d *data) mainReason(firewall string) string {
	reason, most := "not measured", 0
	for _, e := range d.exclusions() {
		if e.Firewall == firewall && e.Runs > most {
			reason, most = fmt.Sprintf("%s: %s", e.Status, e.Reason), e.Runs
		}
	}
	return reason
}

// A pairing is one metric of a cell on both sides.
type pairing struct {
	change        Change
	before, after *series
}

// pairs are the values of a metric at the places that have it on both sides.
func (c *contrast) pairs(before, after *data, m Metric, places []record.Treatment) (out []pairing) {
	for _, t := range places {
		was, is := before.series(t, m.Name), after.series(t, m.Name)
		switch {
		case was != nil && is == nil:
			c.missing(after, t.Firewall, m.Name)
		case was == nil || is == nil:
		case was.unit != is.unit:
			c.leftOut("%s: %s has unit %q before and %q after", before.experiment.Name, m.Name, was.unit, is.unit)
		default:
			out = append(out, pairing{c.newChange(before.experiment, m, t, was, is), was, is})
		}
	}
	return out
}

// newChange holds what a cell gives by itself on each side. Medians without an interval need no warning
// here: the ratio is what is judged.
func (c *contrast) newChange(e *Experiment, m Metric, t record.Treatment, before, after *series) Change {
	silent := analyzer{study: c.analyzer.study}
	was, is := silent.newCell(e, m.Name, t, before), silent.newCell(e, m.Name, t, after)
	return Change{
		Experiment: e.Name, Metric: m.Name, Unit: before.unit, Image: t.Image, Firewall: t.Firewall, Rules: t.Rules, FrameSize: t.FrameSize,
		Before: was.Median, After: is.Median, NBefore: was.N, NAfter: is.N, Verdict: Inconclusive,
	}
}

// exactly compares block by block under the virtual clock.
//
// Whatever changes a byte of the machine also moves its memory about, and with that every value of a block by
// the same few nanoseconds, whichever firewall is measured. The arm without any hook shows by how much.
func (c *contrast) exactly(before, after *data, m Metric, pairs []pairing) (out []Change) {
	reference, there := referenceOf(before.experiment, after.experiment)
	moved := false
	for _, p := range pairs {
		var moves map[int]float64
		if there && p.change.Firewall != reference.Name && !m.HigherIsBetter {
			moves = movesOf(before, after, reference.at(p.change.Image, 0, p.change.FrameSize), m.Name)
		}
		blocks, ratio := newBlocks(p.before, p.after, moves)
		if blocks.Paired == 0 {
			c.missing(after, p.change.Firewall, m.Name)
			continue
		}
		if moves != nil {
			blocks.Reference = reference.Name
		}
		if blocks.tooFew(c.limits.Threshold) {
			c.warn(fmt.Sprintf("%s: %s moved, and %d or more must move alike to say that something changed", p.change.Experiment, plural(blocks.Paired, "block"), leastBlocks),
				fmt.Sprintf("set repetitions = %d or more, or give a --threshold", leastBlocks))
		}
		moved = moved || blocks.Up+blocks.Down > 0
		p.change.Ratio, p.change.Blocks = Interval{Value: ratio}, &blocks
		p.change.Verdict, p.change.Minor = blocks.verdict(m, c.limits.Threshold)
		out = append(out, p.change)
	}
	if moved && !there {
		c.warn(before.experiment.Name+": no firewall of engine none was measured on both sides, so a small change cannot be told from a new layout of memory, which moves all values of a block alike",
			"measure the control none, too: leave controls on")
	}
	return out
}

// referenceOf finds the arm without a hook that both sides have.
func referenceOf(before, after *Experiment) (Firewall, bool) {
	for _, f := range before.Firewalls {
		if g, ok := after.firewall(f.Name); ok && f.Engine == "none" && g.Engine == "none" {
			return f, true
		}
	}
	return Firewall{}, false
}

// movesOf says by how much a metric of a treatment moved in each block, nil without a block in common.
func movesOf(before, after *data, t record.Treatment, metric string) map[int]float64 {
	was, is := before.series(t, metric), after.series(t, metric)
	if was == nil || is == nil {
		return nil
	}
	var out map[int]float64
	for _, pair := range pairBlocks(was, is) {
		if out == nil {
			out = map[int]float64{}
		}
		out[pair.block] = pair.after - pair.before
	}
	return out
}

// statistically compares as two firewalls would be.
func (c *contrast) statistically(before, after *data, m Metric, pairs []pairing) (out []Change) {
	var samples []sample
	for _, p := range pairs {
		x, droppedX := logs(p.after)
		y, droppedY := logs(p.before)
		if droppedX+droppedY > 0 {
			c.warn(fmt.Sprintf("%s: some values of %s of %s are not positive and were left out of ratios", p.change.Experiment, m.Name, p.change.Firewall),
				"look at the records of those runs")
		}
		if len(x) == 0 || len(y) == 0 {
			c.missing(after, p.change.Firewall, m.Name)
			continue
		}
		samples = append(samples, sample{record.Treatment{Image: p.change.Image, Firewall: p.change.Firewall, Rules: p.change.Rules, FrameSize: p.change.FrameSize}, x, y})
		out = append(out, p.change)
	}
	floor := max(c.noiseFloor(before, after, m), 1+c.limits.Threshold)
	for i, k := range c.analyzer.compareFamily(Comparison{Experiment: before.experiment.Name, Metric: m.Name, A: "after", B: "before"}, samples) {
		k.judge(m, c.analyzer.study, floor)
		out[i].Ratio, out[i].Verdict, out[i].Minor, out[i].Warnings = k.Ratio, k.Verdict, k.Minor, k.Warnings
		out[i].Test = &Test{Ratio90: k.Ratio90, P: k.P, Exact: k.Exact, HolmP: k.HolmP, Family: k.Family}
	}
	return out
}

// noiseFloor is that of the A/A pairs of both sides together, 1 without any.
func (c *contrast) noiseFloor(before, after *data, m Metric) float64 {
	own := analyzer{study: c.analyzer.study} // whose warnings would speak of one side only
	var controls []Comparison
	for _, d := range []*data{before, after} {
		for _, pair := range d.experiment.Controls {
			controls = append(controls, own.family(d, m, newVersus("", pair, true))...)
		}
	}
	if len(controls) == 0 {
		c.warn(before.experiment.Name+": there is no A/A pair, so nothing shows what the method calls a difference where there is none",
			"measure one firewall under two names")
		return 1
	}
	f := newNoiseFloor(before.experiment, m, controls)
	c.out.NoiseFloors = append(c.out.NoiseFloors, f)
	return f.Ratio
}

// excluded counts the runs that were made and do not count.
func (n *RunCount) excluded() int { return n.Failed + n.SenderBound + n.Unavailable }

func countChanges(experiment string, m Metric, cells []Change) ChangeCount {
	n := ChangeCount{Experiment: experiment, Metric: m.Name}
	for _, c := range cells {
		switch c.Verdict {
		case Slower:
			n.Slower++
		case Faster:
			n.Faster++
		case Equivalent:
			n.Equivalent++
		default:
			n.Inconclusive++
		}
		if c.Minor {
			n.Minor++
		}
	}
	return n
}
