package analysis

import (
	"cmp"
	"fmt"
	"math"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/stats"
)

// claim tests a claim over its region: the mean over its cells of the mean log ratio A/B of runs of the
// same block, with an interval over blocks.
//
// The runs are paired by block, so what drifts from block to block cancels. The mean was chosen after simulation:
// with ten blocks a bootstrap of Hodges and Lehmann's shift gives intervals that are too wide (99 %).
func (a *analyzer) claim(c *Claim, d *data, r *resampler) ClaimResult {
	m, _ := LookupMetric(c.Metric)
	out := ClaimResult{Claim: *c, Metric: c.Metric, Verdict: Inconclusive, Noise: a.noise(c)}
	out.Effect, out.Cells, out.Warnings = a.regionEffect(c, m, d, r)
	switch {
	case out.Cells == 0:
		out.Warnings = append(out.Warnings, a.warnings.add(fmt.Sprintf("claim %s: no cell of the region has runs of both %ss in one block", c.Name, c.noun()),
			"widen the region or measure the cells it asks for"))
	case c.Expect == Mixed:
		out.Differences = a.differences(c)
		out.Verdict = out.Differences.verdict(c.Within)
	default:
		out.Verdict = claimVerdict(c.Expect, out.Effect, m, a.study.Margin)
	}
	if size := max(out.Effect.Value, 1/out.Effect.Value); out.Cells > 0 && c.Expect != Similar && c.Expect != Mixed && out.Verdict != Inconclusive && size < out.Noise {
		out.Warnings = append(out.Warnings, a.warnings.add(fmt.Sprintf("claim %s: the effect is smaller than the noise floor of a single cell", c.Name),
			"read it as a statement about the mean of many cells only"))
	}
	out.Sentence = out.sentence(m, a.study.Margin)
	return out
}

// noise is the floor of the claim's metric as a ratio, 1 where there is no A/A pair. Images without one of
// their own have that of the firewalls.
func (a *analyzer) noise(c *Claim) float64 {
	floor := 1.0
	for _, f := range a.findings.NoiseFloors {
		if f.Experiment == c.Experiment && f.Metric == c.Metric && (f.Factor == "" || f.Factor == c.Factor) {
			floor = max(floor, f.Ratio)
		}
	}
	return floor
}

// noun is what the claim compares.
func (c *Claim) noun() string {
	return cmp.Or(c.Factor, "firewall")
}

// regionEffect is the mean ratio over the region's cells and their number.
func (a *analyzer) regionEffect(c *Claim, m Metric, d *data, r *resampler) (effect Interval, cells int, warned []int) {
	var statistic stats.Mean
	sum := 0.0
	for _, place := range d.experiment.meetings(newVersus(c.Factor, c.Compare, false)) {
		sx, sy := d.series(place.a, m.Name), d.series(place.b, m.Name)
		if !c.contains(place.at) || sx == nil || sy == nil {
			continue
		}
		if differences := logDifferences(sx, sy); len(differences) > 0 {
			cellMean, each := r.mean(differences)
			sum += cellMean
			statistic = append(statistic, each)
		}
	}
	if len(statistic) == 0 {
		return Interval{}, 0, nil
	}
	mean := sum / float64(len(statistic))
	effect = Interval{Value: stats.Exp(mean)}
	level := 1 - a.study.Alpha
	lo, hi, err := r.boot.Estimate(mean, statistic).Interval(level)
	if few := d.tooFewBoots(c.Factor, level); few != nil {
		err = few
	}
	if err != nil {
		return effect, len(statistic), []int{a.warnings.tooFew(err)}
	}
	return Interval{Value: effect.Value, Lo: stats.Exp(lo), Hi: stats.Exp(hi), Level: level}, len(statistic), nil
}

// logDifferences are log x - log y in the blocks that have both, in the order of blocks.
func logDifferences(x, y *series) (out []observation) {
	other := make(map[int]float64, len(y.observations))
	for _, o := range y.observations {
		other[o.block] = o.value
	}
	for _, o := range x.observations {
		if v := other[o.block]; v > 0 && o.value > 0 {
			out = append(out, observation{o.block, stats.Log(o.value) - stats.Log(v)})
		}
	}
	return out
}

// claimVerdict holds the interval of the ratio A/B against what was expected.
func claimVerdict(expect string, effect Interval, m Metric, margin float64) string {
	if effect.Level == 0 {
		return Inconclusive
	}
	if expect == Similar {
		switch {
		case withinMargin(effect, margin):
			return Agrees
		case effect.Lo > 1+margin || effect.Hi < 1/(1+margin):
			return Disagrees
		}
		return Inconclusive
	}
	if effect.Lo <= 1 && effect.Hi >= 1 {
		return Inconclusive
	}
	if worseOrBetter(effect.Value, m) == expect {
		return Agrees
	}
	return Disagrees
}

// differences counts the significant cells of a region each way.
func (a *analyzer) differences(c *Claim) *Differences {
	m, _ := LookupMetric(c.Metric)
	out := &Differences{Largest: 1}
	for i := range a.findings.Comparisons {
		k := &a.findings.Comparisons[i]
		straight := k.A == c.Compare[0] && k.B == c.Compare[1]
		crossed := k.A == c.Compare[1] && k.B == c.Compare[0]
		at := record.Treatment{Image: k.Image, Firewall: k.Firewall, Rules: k.Rules, FrameSize: k.FrameSize}
		if k.Experiment != c.Experiment || k.Metric != c.Metric || k.Factor != c.Factor || !(straight || crossed) || !c.contains(at) {
			continue
		}
		size := math.Max(k.Ratio.Value, 1/k.Ratio.Value)
		out.Largest = math.Max(out.Largest, size)
		if k.HolmP >= a.study.Alpha {
			continue
		}
		if (worseOrBetter(k.Ratio.Value, m) == Slower) == straight {
			out.Slower++
		} else {
			out.Faster++
		}
		if bound := 1 + c.Within; k.Ratio.Level > 0 && (k.Ratio.Lo > bound || k.Ratio.Hi < 1/bound) {
			out.Beyond++
		}
	}
	return out
}

// verdict on "some cells differ significantly, in both directions, and by little".
func (d *Differences) verdict(within float64) string {
	switch {
	case d.Beyond > 0:
		return Disagrees
	case d.Slower > 0 && d.Faster > 0 && d.Largest <= 1+within:
		return Agrees
	}
	return Inconclusive
}
