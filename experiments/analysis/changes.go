package analysis

import (
	"math"
	"slices"

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
	Image      string   `json:"image,omitempty"` // empty where that is no factor
	Firewall   string   `json:"firewall"`
	Rules      int      `json:"rules"`
	FrameSize  int      `json:"frame_size"`
	Before     Interval `json:"before"` // median
	After      Interval `json:"after"`
	NBefore    int      `json:"n_before"`
	NAfter     int      `json:"n_after"`
	// Ratio is after/before of the metric as measured: exp(Hodges–Lehmann shift of logs) with its interval,
	// or under the virtual clock the median ratio over blocks, without one; see [Blocks].
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

// Blocks holds the ratios after/before of runs of the same block, under the virtual clock.
type Blocks struct {
	Paired int     `json:"paired"` // blocks with a run that counts on both sides
	Up     int     `json:"up"`     // of these, with a ratio above 1
	Down   int     `json:"down"`   // with a ratio below 1
	Least  float64 `json:"least"`  // the smallest ratio
	Most   float64 `json:"most"`   // the largest
	// Reference is the firewall whose move in the same block was taken off the value after, which leaves
	// what the machine as a whole did not share. Empty: none was.
	Reference string `json:"reference,omitempty"`
	// Spread is how far the blocks of one side lie apart, as a share. Without a reference, no smaller move
	// can be told from a new layout of memory.
	Spread float64 `json:"spread"`
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

// leastBlocks is how many blocks must move alike before that counts where no threshold is given. With
// fewer, a residue of one nanosecond would be called a change too often.
const leastBlocks = 3

// sameRatio is how close to 1 a ratio is 1: what is left of a difference of nanoseconds in binary.
const sameRatio = 1e-10

// newBlocks pairs the runs of two series by block; blocks without a positive value on both sides are left
// out. The moves of a reference, by block, are taken off the values after; nil: there is none. It returns
// the median ratio, too.
func newBlocks(before, after *series, moves map[int]float64) (Blocks, float64) {
	b := Blocks{Least: math.Inf(1), Most: math.Inf(-1)}
	var ratios, was, is []float64
	for _, pair := range pairBlocks(before, after) {
		move, known := moves[pair.block]
		if moves != nil && !known || !(pair.before > 0 && pair.after-move > 0) {
			continue
		}
		ratio := (pair.after - move) / pair.before
		if math.Abs(ratio-1) < sameRatio {
			ratio = 1
		}
		ratios, was, is = append(ratios, ratio), append(was, pair.before), append(is, pair.after)
		b.Paired++
		b.Least, b.Most = min(b.Least, ratio), max(b.Most, ratio)
		switch {
		case ratio > 1:
			b.Up++
		case ratio < 1:
			b.Down++
		}
	}
	if b.Paired > 0 {
		b.Spread = max(slices.Max(was)/slices.Min(was), slices.Max(is)/slices.Min(is)) - 1
	}
	return b, stats.Median(ratios)
}

// A blockPair holds the values of one block on both sides.
type blockPair struct {
	block         int
	before, after float64
}

func pairBlocks(before, after *series) (out []blockPair) {
	earlier := map[int]float64{}
	for _, o := range before.observations {
		earlier[o.block] = o.value
	}
	for _, o := range after.observations {
		if was, ok := earlier[o.block]; ok {
			out = append(out, blockPair{o.block, was, o.value})
		}
	}
	return out
}

// verdict of a cell under the virtual clock: a change when every block moved the same way, by more than the
// threshold, and without a reference also by more than the spread. Minor says that something moved, within
// the threshold.
func (b *Blocks) verdict(m Metric, threshold float64) (verdict string, minor bool) {
	limit := threshold
	if b.Reference == "" {
		limit = max(limit, b.Spread)
	}
	switch {
	case b.Least >= 1/(1+threshold) && b.Most <= 1+threshold:
		return Equivalent, b.Up+b.Down > 0
	case b.tooFew(threshold):
		return Inconclusive, false
	case b.Least > 1+limit || b.Most < 1/(1+limit):
		return worseOrBetter(b.Least, m), false
	}
	return Inconclusive, false
}

// tooFew reports that the blocks moved and are too few to say that this is a change.
func (b *Blocks) tooFew(threshold float64) bool {
	return threshold == 0 && b.Paired < leastBlocks && b.Up+b.Down > 0
}
