package analysis

import (
	"maps"
	"slices"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/stats"
)

// A line is the fit of one firewall at one frame size, with one image.
type line struct {
	cost    RuleCost
	slope   stats.Estimate
	found   bool
	refused error // why there is no interval
}

// ruleCosts adds the cost of a rule of every image, firewall and frame size, and the ratios of the pairs.
func (a *analyzer) ruleCosts(d *data, r *resampler) {
	model, ok := costModelOf(d.experiment.Measurement)
	if !ok {
		return
	}
	places := d.experiment.lines()
	lines := make([]line, len(places))
	parallel(len(lines), func(i int) { lines[i] = newLine(d, r, model, places[i], 1-a.study.Alpha) })
	at := map[record.Treatment]*line{}
	for i := range lines {
		l := &lines[i]
		if !l.found {
			continue
		}
		if l.refused != nil {
			l.cost.Warnings = append(l.cost.Warnings, a.warnings.tooFew(l.refused))
		}
		a.findings.RuleCosts = append(a.findings.RuleCosts, l.cost)
		at[places[i]] = l
	}
	for _, factor := range factors() {
		for _, v := range a.study.pairs(factor, d.experiment) {
			if !v.control {
				a.costRatios(d, v, places, at)
			}
		}
	}
}

// costRatios adds the ratios of the costs of two levels wherever both have one.
func (a *analyzer) costRatios(d *data, v versus, places []record.Treatment, at map[record.Treatment]*line) {
	for _, place := range places {
		if v.level(place) != v.a {
			continue
		}
		if x, y := at[place], at[v.with(place, v.b)]; x != nil && y != nil {
			a.findings.CostRatios = append(a.findings.CostRatios, a.newCostRatio(d, v, v.with(place, ""), x, y))
		}
	}
}

// newLine fits y = intercept + slope·rules, y in nanoseconds, to each block by Theil and Sen, and takes the mean
// of both over blocks. It is empty when no block has enough.
//
// One slope over the runs of all blocks was tried. Where the machine drifts from block to block it is the less
// precise, since it then compares runs of different blocks; and its bootstrap holds 93 to 99 %
// where this one holds 94 to 97 % (docs/statistics.md).
func newLine(d *data, r *resampler, model costModel, at record.Treatment, level float64) line {
	points, blocks := costPoints(d, model, at)
	span := func(p []stats.Point) float64 { return p[len(p)-1].X - p[0].X }
	widest := 0.0
	for _, block := range blocks {
		widest = max(widest, span(points[block]))
	}
	var slopes, intercepts []observation
	for _, block := range blocks {
		// A block that was cut short, and spans only the small rule-sets, would shout down the others.
		if width := span(points[block]); width > 0 && 2*width >= widest {
			fit := stats.TheilSen(points[block])
			slopes = append(slopes, observation{block, fit.Slope})
			intercepts = append(intercepts, observation{block, fit.Intercept})
		}
	}
	if len(slopes) == 0 {
		return line{}
	}
	l := line{found: true, slope: r.estimate(slopes), cost: RuleCost{
		Experiment: d.experiment.Name, Metric: model.metric, Image: at.Image, Firewall: at.Firewall, FrameSize: at.FrameSize, Unit: "ns", Traversals: model.traversals,
	}}
	l.cost.Slope, l.refused = newInterval(l.slope, level)
	l.cost.Intercept, _ = newInterval(r.estimate(intercepts), level) // refused as the slope is: they have the same blocks
	return l
}

// newInterval is an estimate with its interval, or by itself when that is refused.
func newInterval(e stats.Estimate, level float64) (Interval, error) {
	lo, hi, err := e.Interval(level)
	if err != nil {
		return Interval{Value: e.Value}, err
	}
	return Interval{Value: e.Value, Lo: lo, Hi: hi, Level: level}, nil
}

// costPoints are the nanoseconds against the number of rules, ascending, in each block.
func costPoints(d *data, model costModel, at record.Treatment) (points map[int][]stats.Point, blocks []int) {
	points = map[int][]stats.Point{}
	for _, rules := range d.experiment.Rules {
		at.Rules = rules
		s := d.series(at, model.metric)
		if s == nil {
			continue
		}
		for _, o := range s.observations {
			if o.value > 0 {
				points[o.block] = append(points[o.block], stats.Point{X: float64(rules), Y: model.nanoseconds(o.value)})
			}
		}
	}
	return points, slices.Sorted(maps.Keys(points))
}

func (a *analyzer) newCostRatio(d *data, v versus, at record.Treatment, x, y *line) CostRatio {
	c := CostRatio{
		Experiment: x.cost.Experiment, Metric: x.cost.Metric, Factor: v.factor, A: v.a, B: v.b,
		Image: at.Image, Firewall: at.Firewall, FrameSize: at.FrameSize,
	}
	level := 1 - a.study.Alpha
	if y.cost.Slope.Value != 0 {
		c.Ratio.Value = x.cost.Slope.Value / y.cost.Slope.Value
	}
	lo, hi, ok, err := stats.RatioInterval(x.slope, y.slope, level)
	if few := d.tooFewBoots(v.factor, level); few != nil {
		err = few
	}
	switch {
	case err != nil:
		c.Warnings = append(c.Warnings, a.warnings.tooFew(err))
	case !ok:
		c.Ratio.Value = 0 // one number divided by nearly nothing
		c.Warnings = append(c.Warnings, a.warnings.add("there is no ratio of costs where the cost of a rule of the second firewall may be 0", "compare the costs themselves"))
	default:
		c.Ratio.Lo, c.Ratio.Hi, c.Ratio.Level = lo, hi, level
	}
	return c
}
