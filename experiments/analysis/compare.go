package analysis

import (
	"fmt"
	"math"

	"github.com/rampart-bench/rampart/experiments/stats"
)

// compareMetric adds the comparisons of one metric, and its noise floor when there is an A/A pair.
func (a *analyzer) compareMetric(d *data, m Metric) {
	var all []Comparison
	for _, pair := range a.study.comparedPairs(d.experiment) {
		all = append(all, a.family(d, m, pair, false)...)
	}
	var controls []Comparison
	for _, pair := range d.experiment.Controls {
		controls = append(controls, a.family(d, m, pair, true)...)
	}
	floor := 1.0
	if len(controls) > 0 {
		f := newNoiseFloor(d.experiment, m, controls)
		a.findings.NoiseFloors = append(a.findings.NoiseFloors, f)
		floor = f.Ratio
	} else if len(all) > 0 {
		a.warnings.add(d.experiment.Name+": there is no A/A pair, so nothing shows what the method calls a difference where there is none",
			"measure one firewall under two names")
	}
	all = append(all, controls...)
	for i := range all {
		all[i].judge(m, a.study, floor)
	}
	a.findings.Comparisons = append(a.findings.Comparisons, all...)
}

// family compares two firewalls wherever both have runs, and corrects for the number of comparisons.
func (a *analyzer) family(d *data, m Metric, pair [2]string, control bool) []Comparison {
	meetings := d.experiment.meetings(pair)
	var samples []sample
	for _, place := range meetings {
		x, droppedX := logs(d.series(place.a, m.Name))
		y, droppedY := logs(d.series(place.b, m.Name))
		if droppedX+droppedY > 0 {
			a.warnings.add(fmt.Sprintf("%s: some values of %s of %s or %s are not positive and were left out of ratios", d.experiment.Name, m.Name, pair[0], pair[1]),
				"look at the records of those runs")
		}
		if len(x) > 0 && len(y) > 0 {
			samples = append(samples, sample{place.rules, place.frameSize, x, y})
		}
	}
	if missing := len(meetings) - len(samples); missing > 0 {
		a.warnings.add(fmt.Sprintf("%s: %s of %s and %s cannot be compared in %d of %d cells, where one has no run that counts",
			d.experiment.Name, m.Name, pair[0], pair[1], missing, len(meetings)), "see the excluded runs")
	}
	return a.compareFamily(Comparison{Experiment: d.experiment.Name, Metric: m.Name, A: pair[0], B: pair[1], Control: control}, samples)
}

// A sample holds the logs of A and B in one cell.
type sample struct {
	rules, frameSize int
	x, y             []float64
}

// compareFamily compares each sample and corrects for their number. All carry the names in label.
func (a *analyzer) compareFamily(label Comparison, samples []sample) []Comparison {
	out := make([]Comparison, len(samples))
	smallest := make([]float64, len(samples))
	refusals := make([][]error, len(samples))
	parallel(len(samples), func(i int) {
		s := samples[i]
		ranks := a.sums.Compare(s.x, s.y)
		out[i], refusals[i] = newComparison(ranks, a.study.Alpha)
		smallest[i] = ranks.SmallestP()
		c := &out[i]
		c.Experiment, c.Metric, c.A, c.B, c.Control = label.Experiment, label.Metric, label.A, label.B, label.Control
		c.Rules, c.FrameSize, c.NA, c.NB = s.rules, s.frameSize, len(s.x), len(s.y)
	})
	for i, errs := range refusals {
		for _, err := range errs {
			out[i].Warnings = append(out[i].Warnings, a.warnings.tooFew(err))
		}
	}
	a.correct(out, smallest)
	return out
}

// newComparison holds all numbers that one cell gives by itself, with the refusals of its intervals.
func newComparison(s *stats.RankSum, alpha float64) (c Comparison, refused []error) {
	c = Comparison{P: s.P, Exact: s.Exact, Verdict: Inconclusive}
	ratio := func(level float64) Interval {
		in := Interval{Value: stats.Exp(s.Shift)}
		lo, hi, err := s.Interval(level)
		if err != nil {
			refused = append(refused, err)
			return in
		}
		in.Lo, in.Hi, in.Level = stats.Exp(lo), stats.Exp(hi), level
		return in
	}
	c.Ratio = ratio(1 - alpha)
	c.Ratio90 = ratio(1 - 2*alpha)
	return c, refused
}

// correct adjusts the p-values of a family. Where a cell would not pass even if every cell of the family
// had the smallest p that it can have, it says so.
func (a *analyzer) correct(family []Comparison, smallest []float64) {
	p := make([]float64, len(family))
	for i, c := range family {
		p[i] = c.P
	}
	adjusted, best := stats.Holm(p), stats.Holm(smallest)
	for i := range family {
		c := &family[i]
		c.HolmP, c.Family = adjusted[i], len(family)
		if best[i] >= a.study.Alpha {
			c.Warnings = append(c.Warnings, a.hopeless(c))
		}
	}
}

// hopeless warns that the cell has too few runs for any data to be called a difference, or too few for
// values with ties, whose p comes from the normal approximation.
func (a *analyzer) hopeless(c *Comparison) int {
	where := fmt.Sprintf("%s, %s, %s against %s:", c.Experiment, c.Metric, c.A, c.B)
	has, need := min(c.NA, c.NB), stats.MinRunsForHolm(c.Family, a.study.Alpha)
	if has < need {
		return a.warnings.add(fmt.Sprintf("%s needs %d runs a cell for Holm over %d; has %d", where, need, c.Family, has), moreRuns(need))
	}
	return a.warnings.add(fmt.Sprintf("%s some cells hold equal values, and by the normal approximation that these take %s a cell are too few for Holm over %d",
		where, plural(has, "run"), c.Family), "raise repetitions by two or three")
}

// newNoiseFloor is the 95th percentile of |log ratio| over the A/A cells.
func newNoiseFloor(e *Experiment, m Metric, controls []Comparison) NoiseFloor {
	size := make([]float64, len(controls))
	for i, c := range controls {
		size[i] = math.Abs(stats.Log(c.Ratio.Value))
	}
	return NoiseFloor{Experiment: e.Name, Metric: m.Name, Ratio: stats.Exp(stats.Percentile(size, 0.95)), Cells: len(controls)}
}

// judge gives the verdict of METHOD: equivalence first, then a difference that is both significant and
// larger than the noise floor.
func (c *Comparison) judge(m Metric, study *Study, floor float64) {
	significant := c.HolmP < study.Alpha
	size := max(c.Ratio.Value, 1/c.Ratio.Value)
	switch {
	case c.Ratio90.Level > 0 && withinMargin(c.Ratio90, study.Margin):
		c.Verdict, c.Minor = Equivalent, significant
	case significant && size > floor:
		c.Verdict = worseOrBetter(c.Ratio.Value, m)
	default:
		c.Verdict = Inconclusive
	}
}

// withinMargin reports whether the whole interval of a ratio lies in [1/(1+margin), 1+margin].
func withinMargin(in Interval, margin float64) bool {
	return in.Lo >= 1/(1+margin) && in.Hi <= 1+margin
}

// worseOrBetter words a ratio A/B other than 1.
func worseOrBetter(ratio float64, m Metric) string {
	if (ratio > 1) != m.HigherIsBetter {
		return Slower
	}
	return Faster
}

// logs of the positive values, and how many were not positive.
func logs(s *series) (out []float64, dropped int) {
	if s == nil {
		return nil, 0
	}
	for _, o := range s.observations {
		if o.value > 0 {
			out = append(out, stats.Log(o.value))
		}
	}
	return out, len(s.observations) - len(out)
}
