package analysis

import (
	"math"

	"github.com/rampart-bench/rampart/experiments/stats"
)

// A line is the fit of one firewall at one frame size with the replicates of its slope.
type line struct {
	cost       RuleCost
	replicates []float64 // nil when there is no line
	refused    error     // why there is no interval
}

// ruleCosts adds the cost of a rule of every firewall and frame size, and the ratios of the pairs.
func (a *analyzer) ruleCosts(d *data, r *resampler) {
	model, ok := costModelOf(d.experiment.Measurement)
	if !ok {
		return
	}
	var firewalls []Firewall
	for _, f := range d.experiment.Firewalls {
		if f.Rules {
			firewalls = append(firewalls, f)
		}
	}
	sizes := d.experiment.FrameSizes
	lines := make([]line, len(firewalls)*len(sizes))
	parallel(len(lines), func(i int) {
		lines[i] = newLine(d, r, model, firewalls[i/len(sizes)], sizes[i%len(sizes)], 1-a.study.Alpha)
	})
	at := map[string][]line{}
	for i := range lines {
		l := &lines[i]
		if l.replicates == nil {
			continue
		}
		if l.refused != nil {
			l.cost.Warnings = append(l.cost.Warnings, a.warnings.tooFew(l.refused))
		}
		a.findings.RuleCosts = append(a.findings.RuleCosts, l.cost)
		name := firewalls[i/len(sizes)].Name
		at[name] = append(at[name], *l)
	}
	for _, pair := range a.study.comparedPairs(d.experiment) {
		for _, x := range at[pair[0]] {
			for _, y := range at[pair[1]] {
				if x.cost.FrameSize == y.cost.FrameSize {
					a.findings.CostRatios = append(a.findings.CostRatios, a.newCostRatio(r, x, y))
				}
			}
		}
	}
}

// newLine fits y = intercept + slope·rules, y in nanoseconds, over all runs of the firewall at the frame
// size. It is empty when fewer than two numbers of rules have runs.
func newLine(d *data, r *resampler, model costModel, f Firewall, size int, level float64) line {
	var points []stats.Point
	levels := 0
	for _, rules := range d.experiment.levels(f) {
		s := d.series(f.at(rules, size), model.metric)
		if s == nil {
			continue
		}
		levels++
		for _, o := range s.observations {
			if o.value > 0 {
				points = append(points, stats.Point{X: float64(rules), Y: model.nanoseconds(o.value), Unit: r.unit[o.block]})
			}
		}
	}
	fit := stats.TheilSen(points)
	if levels < 2 || math.IsNaN(fit.Slope) {
		return line{}
	}
	l := line{cost: RuleCost{
		Experiment: d.experiment.Name, Metric: model.metric, Firewall: f.Name, FrameSize: size,
		Slope: Interval{Value: fit.Slope}, Intercept: fit.Intercept, Unit: "ns", Traversals: model.traversals,
	}}
	l.replicates = r.boot.Replicates(r.slope(points))
	lo, hi, err := r.boot.Interval(fit.Slope, l.replicates, level)
	if err != nil {
		l.refused = err
		return l
	}
	l.cost.Slope = Interval{Value: fit.Slope, Lo: lo, Hi: hi, Level: level}
	return l
}

func (a *analyzer) newCostRatio(r *resampler, x, y line) CostRatio {
	c := CostRatio{
		Experiment: x.cost.Experiment, Metric: x.cost.Metric, A: x.cost.Firewall, B: y.cost.Firewall, FrameSize: x.cost.FrameSize,
	}
	level := 1 - a.study.Alpha
	if y.cost.Slope.Value != 0 {
		c.Ratio.Value = x.cost.Slope.Value / y.cost.Slope.Value
	}
	lo, hi, ok, err := r.boot.RatioInterval(x.cost.Slope.Value, y.cost.Slope.Value, x.replicates, y.replicates, level)
	switch {
	case err != nil:
		c.Warnings = append(c.Warnings, a.warnings.tooFew(err))
	case !ok:
		c.Warnings = append(c.Warnings, a.warnings.add("a ratio of costs has no interval where the cost of a rule of the second firewall may be 0", "compare the costs themselves"))
	default:
		c.Ratio.Lo, c.Ratio.Hi, c.Ratio.Level = lo, hi, level
	}
	return c
}
