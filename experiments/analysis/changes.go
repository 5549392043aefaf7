package analysis

import (
	"math"

	"github.com/rampart-bench/rampart/experiments/stats"
)

// Clock of records whose time is counted in instructions (testbed.ClockVirtual).
const virtualClock = "virtual"

// Changes is what became of a study that was measured twice. Cells are in the order of Findings.Cells.
type Changes struct {
	Schema      int           `json:"schema"`
	Clock       string        `json:"clock"`
	Alpha       float64       `json:"alpha"`  // of the study before
	Margin      float64       `json:"margin"` // of the study before
	Threshold   float64       `json:"threshold"`
	Cells       []Change      `json:"cells"`
	Counts      []ChangeCount `json:"counts"` // one an experiment and metric
	NoiseFloors []NoiseFloor  `json:"noise_floors"`
	Missing     []Missing     `json:"missing"`
	Warnings    []Warning     `json:"warnings"`
}

// A Change is one metric of one cell, before and after. "slower" means that after is worse, whichever way
// the metric points.
type Change struct {
	Experiment string   `json:"experiment"`
	Metric     string   `json:"metric"`
	Unit       string   `json:"unit"`
	Firewall   string   `json:"firewall"`
	Rules      int      `json:"rules"`
	FrameSize  int      `json:"frame_size"`
	Before     Interval `json:"before"` // median
	After      Interval `json:"after"`
	NBefore    int      `json:"n_before"`
	NAfter     int      `json:"n_after"`
	// Ratio is after/before of the metric as measured: exp(Hodges–Lehmann shift of logs) with its interval,
	// or under the virtual clock the median ratio of a block, without one.
	Ratio    Interval `json:"ratio"`
	Verdict  string   `json:"verdict"`
	Minor    bool     `json:"minor,omitempty"`  // equivalent, and yet a change
	Test     *Test    `json:"test,omitempty"`   // under clocks that run with noise
	Blocks   *Blocks  `json:"blocks,omitempty"` // under the virtual clock
	Warnings []int    `json:"warnings,omitempty"`
}

// A Test holds the numbers behind a verdict where there is noise; see [Comparison].
type Test struct {
	Ratio90 Interval `json:"ratio_90"`
	P       float64  `json:"p"`
	Exact   bool     `json:"exact"`
	HolmP   float64  `json:"holm_p"`
	Family  int      `json:"family"` // all cells of the experiment and metric
}

// Blocks holds the ratios after/before of runs of the same block, which under the virtual clock differ in
// nothing but what was changed.
type Blocks struct {
	Paired int     `json:"paired"` // blocks with a run that counts on both sides
	Up     int     `json:"up"`     // of these, with a ratio above 1
	Down   int     `json:"down"`   // with a ratio below 1
	Least  float64 `json:"least"`  // the smallest ratio
	Most   float64 `json:"most"`   // the largest
}

// A ChangeCount counts the verdicts of an experiment and metric.
type ChangeCount struct {
	Experiment   string `json:"experiment"`
	Metric       string `json:"metric"`
	Slower       int    `json:"slower"`
	Faster       int    `json:"faster"`
	Equivalent   int    `json:"equivalent"`
	Minor        int    `json:"minor"` // among the equivalent ones
	Inconclusive int    `json:"inconclusive"`
}

// Missing counts cells of a firewall that had a run that counts before and have none after, although both
// studies ask for it.
type Missing struct {
	Experiment string `json:"experiment"`
	Firewall   string `json:"firewall"`
	Metric     string `json:"metric,omitempty"` // the only one that is missing; empty: all are
	Cells      int    `json:"cells"`
	Reason     string `json:"reason"` // what the most runs of this firewall that do not count say
}

// Regressed counts the cells that are worse, and those that are missing.
func (c *Changes) Regressed() (worse, missing int) {
	for _, n := range c.Counts {
		worse += n.Slower
	}
	for _, m := range c.Missing {
		missing += m.Cells
	}
	return worse, missing
}

// Worsening is the ratio after/before turned so that more than 1 is worse.
func (c *Change) Worsening() float64 {
	if m, _ := LookupMetric(c.Metric); m.HigherIsBetter {
		return 1 / c.Ratio.Value
	}
	return c.Ratio.Value
}

// Changed reports whether the cell became slower or faster.
func (c *Change) Changed() bool { return c.Verdict == Slower || c.Verdict == Faster }

// newBlocks pairs the runs of two series by block; blocks without a positive value on both sides are left
// out. It returns the median ratio, too.
func newBlocks(before, after *series) (Blocks, float64) {
	b := Blocks{Least: math.Inf(1), Most: math.Inf(-1)}
	earlier := map[int]float64{}
	for _, o := range before.observations {
		earlier[o.block] = o.value
	}
	var ratios []float64
	for _, o := range after.observations {
		was := earlier[o.block]
		if !(was > 0 && o.value > 0) {
			continue
		}
		ratio := o.value / was
		ratios = append(ratios, ratio)
		b.Paired++
		b.Least, b.Most = min(b.Least, ratio), max(b.Most, ratio)
		switch {
		case ratio > 1:
			b.Up++
		case ratio < 1:
			b.Down++
		}
	}
	return b, stats.Median(ratios)
}

// verdict of a cell under the virtual clock: a change when every block moved the same way, and by more
// than the threshold. Minor says that something moved, within the threshold.
func (b *Blocks) verdict(m Metric, threshold float64) (verdict string, minor bool) {
	most, least := 1+threshold, 1/(1+threshold)
	switch {
	case b.Least > most || b.Most < least:
		return worseOrBetter(b.Least, m), false
	case b.Least >= least && b.Most <= most:
		return Equivalent, b.Up+b.Down > 0
	}
	return Inconclusive, false
}
