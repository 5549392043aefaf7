package analysis

import (
	"fmt"
	"math"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/stats"
)

// compareMetric adds the comparisons of one metric, and its noise floors where there are A/A pairs.
func (a *analyzer) compareMetric(d *data, m Metric) {
	floor := a.compareLevels("", d, m, 1)
	if len(d.experiment.Images) > 0 {
		a.compareLevels(FactorImage, d, m, floor)
	}
}

// compareLevels adds the comparisons between the levels of one factor. It returns their noise floor, which is
// never below least: what identical firewalls differ by in one boot, two boots may differ by as well.
func (a *analyzer) compareLevels(factor string, d *data, m Metric, least float64) (floor float64) {
	var all, controls []Comparison
	for _, v := range a.study.pairs(factor, d.experiment) {
		family := a.family(d, m, v)
		all = append(all, family...)
		if v.control {
			controls = append(controls, family...)
		}
	}
	floor = least
	if len(controls) > 0 {
		f := newNoiseFloor(d.experiment, m, controls)
		floor = max(floor, f.Ratio)
		f.Factor, f.Ratio = factor, floor
		a.findings.NoiseFloors = append(a.findings.NoiseFloors, f)
	} else if len(all) > 0 {
		a.noControl(factor, d.experiment)
	}
	for i := range all {
		all[i].judge(m, a.study, floor)
	}
	a.findings.Comparisons = append(a.findings.Comparisons, all...)
	return floor
}

// noControl warns that there is no A/A pair.
func (a *analyzer) noControl(factor string, e *Experiment) {
	if factor == FactorImage {
		a.warnings.add(e.Name+": no image is there under two names, so nothing shows what the method calls a difference between images where there is none",
			"where that matters, give one image a second block of another name")
		return
	}
	a.warnings.add(e.Name+": there is no A/A pair, so nothing shows what the method calls a difference where there is none",
		"measure one firewall under two names")
}

// family compares two levels wherever both have runs, and corrects for the number of comparisons.
func (a *analyzer) family(d *data, m Metric, v versus) []Comparison {
	meetings := d.experiment.meetings(v)
	var samples []sample
	for _, place := range meetings {
		x, droppedX := d.logs(v, d.series(place.a, m.Name))
		y, droppedY := d.logs(v, d.series(place.b, m.Name))
		if droppedX+droppedY > 0 {
			a.warnings.add(fmt.Sprintf("%s: some values of %s of %s or %s are not positive and were left out of ratios", d.experiment.Name, m.Name, v.a, v.b),
				"look at the records of those runs")
		}
		if len(x) > 0 && len(y) > 0 {
			samples = append(samples, sample{place.at, x, y})
		}
	}
	if missing := len(meetings) - len(samples); missing > 0 {
		a.warnings.add(fmt.Sprintf("%s: %s of %s and %s cannot be compared in %d of %d cells, where one has no run that counts",
			d.experiment.Name, m.Name, v.a, v.b, missing, len(meetings)), "see the excluded runs")
	}
	return a.compareFamily(Comparison{Experiment: d.experiment.Name, Metric: m.Name, Factor: v.factor, A: v.a, B: v.b, Control: v.control}, samples)
}

// A sample holds the logs of A and B in one cell.
type sample struct {
	at   record.Treatment
	x, y []float64
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
		c.Experiment, c.Metric, c.Factor, c.A, c.B, c.Control = label.Experiment, label.Metric, label.Factor, label.A, label.B, label.Control
		c.Image, c.Firewall, c.Rules, c.FrameSize = s.at.Image, s.at.Firewall, s.at.Rules, s.at.FrameSize
		c.NA, c.NB = len(s.x), len(s.y)
	})
	for i, errs := range refusals {
		for _, err := range errs {
			out[i].Warnings = append(out[i].Warnings, a.warnings.tooFew(countedBy(label.Factor, err)))
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
	if has < need && c.Factor == FactorImage {
		return a.warnings.add(fmt.Sprintf("%s needs %d boots of each image for Holm over %d; has %d", where, need, c.Family, has), moreBoots(need))
	}
	if has < need {
		return a.warnings.add(fmt.Sprintf("%s needs %d runs a cell for Holm over %d; has %d", where, need, c.Family, has), moreRuns(need))
	}
	unit, raise := plural(has, "run")+" a cell", "raise repetitions by two or three"
	if c.Factor == FactorImage {
		unit, raise = plural(has, "boot")+" of each image", "raise boots and repetitions by two or three"
	}
	return a.warnings.add(fmt.Sprintf("%s some cells hold equal values, and by the normal approximation that these take %s are too few for Holm over %d",
		where, unit, c.Family), raise)
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

// logs are the values of a series that two levels are compared by, and how many values are not positive
// and were left out: of firewalls those of the runs, of images those of the boots.
func (d *data) logs(v versus, s *series) (out []float64, dropped int) {
	if v.betweenImages() {
		return bootLogs(s, d.boots)
	}
	return logs(s)
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

// bootLogs has for each boot the mean of the logs of its positive values, and how many were not positive. The
// blocks of a boot are neighbours, and so are its observations.
func bootLogs(s *series, boots map[int]int) (out []float64, dropped int) {
	if s == nil {
		return nil, 0
	}
	boot, sum, n := 0, 0.0, 0
	flush := func() {
		if n > 0 {
			out = append(out, sum/float64(n))
		}
		sum, n = 0, 0
	}
	for _, o := range s.observations {
		if o.value <= 0 {
			dropped++
			continue
		}
		if boots[o.block] != boot {
			flush()
			boot = boots[o.block]
		}
		sum += stats.Log(o.value)
		n++
	}
	flush()
	return out, dropped
}
