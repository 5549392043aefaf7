package analysis

// Findings is the result of an analysis, as findings.json holds it. Slices are in a fixed order:
// experiments as in the study, then metrics, then images, then firewalls or pairs as in the study, then
// rules, then frame sizes, ascending. Image is empty where that is no factor.
type Findings struct {
	Schema      int           `json:"schema"`
	Study       Study         `json:"study"`
	Clock       string        `json:"clock"`
	Runs        []RunCount    `json:"runs"` // one an experiment
	Excluded    []Exclusion   `json:"excluded"`
	Checks      []CheckCount  `json:"checks"`
	Cells       []Cell        `json:"cells"`
	Comparisons []Comparison  `json:"comparisons"`
	NoiseFloors []NoiseFloor  `json:"noise_floors"`
	RuleCosts   []RuleCost    `json:"rule_costs"`
	CostRatios  []CostRatio   `json:"cost_ratios"`
	Claims      []ClaimResult `json:"claims"`
	Warnings    []Warning     `json:"warnings"`
}

// An Interval is an estimate with its confidence interval. Level 0 means that no interval could be
// given; Warning then says why.
type Interval struct {
	Value float64 `json:"value"`
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
	Level float64 `json:"level"` // nominal, such as 0.95
}

// A Warning says what limits a number and what to do. Others refer to it by index.
type Warning struct {
	Text string `json:"text"`
	Next string `json:"next,omitempty"` // what to do, such as "set repetitions = 9"
}

// RunCount counts the runs of an experiment by status, and the time they took.
type RunCount struct {
	Experiment  string  `json:"experiment"`
	Planned     int     `json:"planned"`
	OK          int     `json:"ok"`
	Failed      int     `json:"failed"`
	SenderBound int     `json:"sender_bound"`
	Unavailable int     `json:"unavailable"`
	ElapsedS    float64 `json:"elapsed_s"`   // from the first run's start to the last one's end, pauses between sessions left out
	MeasuringS  float64 `json:"measuring_s"` // in the phase "measure"
}

// An Exclusion is a group of runs that did not enter the statistics.
type Exclusion struct {
	Experiment string `json:"experiment"`
	Image      string `json:"image,omitempty"`
	Firewall   string `json:"firewall"`
	Status     string `json:"status"`
	Reason     string `json:"reason"`
	Runs       int    `json:"runs"`
}

// CheckCount says how often a check was made and how often it held.
type CheckCount struct {
	Name   string `json:"name"`
	Made   int    `json:"made"`
	Failed int    `json:"failed"`
}

// A Cell is the location of one metric at one treatment.
type Cell struct {
	Experiment string   `json:"experiment"`
	Metric     string   `json:"metric"`
	Unit       string   `json:"unit"`
	Image      string   `json:"image,omitempty"`
	Firewall   string   `json:"firewall"`
	Rules      int      `json:"rules"`
	FrameSize  int      `json:"frame_size"`
	N          int      `json:"n"`
	Median     Interval `json:"median"`
	Warnings   []int    `json:"warnings,omitempty"`
}

// Verdicts of a comparison (METHOD §5).
const (
	Equivalent   = "equivalent"
	Slower       = "slower"
	Faster       = "faster"
	Inconclusive = "inconclusive"
)

// A Comparison holds firewall A against B in one cell, or image A against B. Ratio is A/B of the metric as
// measured; "slower" means that A is worse, whichever way the metric points.
//
// Firewalls are compared by runs, images by boots: of each boot the mean of the logs counts.
type Comparison struct {
	Experiment string   `json:"experiment"`
	Metric     string   `json:"metric"`
	Factor     string   `json:"factor,omitempty"` // [FactorImage] where A and B are images
	A          string   `json:"a"`
	B          string   `json:"b"`
	Control    bool     `json:"control,omitempty"`  // an A/A pair
	Image      string   `json:"image,omitempty"`    // with which A and B were measured
	Firewall   string   `json:"firewall,omitempty"` // with which images were compared
	Rules      int      `json:"rules"`
	FrameSize  int      `json:"frame_size"`
	NA         int      `json:"n_a"`      // runs, or boots
	NB         int      `json:"n_b"`      // likewise
	Ratio      Interval `json:"ratio"`    // exp(Hodges–Lehmann shift of logs), 1 - alpha
	Ratio90    Interval `json:"ratio_90"` // for equivalence, 1 - 2 alpha
	P          float64  `json:"p"`        // Wilcoxon rank sum, two-sided
	Exact      bool     `json:"exact"`    // P and intervals by the exact distribution, not the normal one (ties, or 50 runs and more)
	HolmP      float64  `json:"holm_p"`
	Family     int      `json:"family"` // comparisons that Holm corrects for
	Verdict    string   `json:"verdict"`
	Minor      bool     `json:"minor,omitempty"` // equivalent, yet significant
	Warnings   []int    `json:"warnings,omitempty"`
}

// A NoiseFloor is what the method calls a difference where there is none: the 95th percentile of
// |log ratio| over the A/A cells, as a ratio.
type NoiseFloor struct {
	Experiment string  `json:"experiment"`
	Metric     string  `json:"metric"`
	Factor     string  `json:"factor,omitempty"` // [FactorImage]: of comparisons between images
	Ratio      float64 `json:"ratio"`            // exp of the percentile, at least 1
	Cells      int     `json:"cells"`
}

// A RuleCost is how much time a rule adds, by Theil and Sen in each block and the mean over blocks: to a round trip for rtt_median, to the time
// a frame occupies the device (1/rate) for receiver_frame_rate.
type RuleCost struct {
	Experiment string   `json:"experiment"`
	Metric     string   `json:"metric"`
	Image      string   `json:"image,omitempty"`
	Firewall   string   `json:"firewall"`
	FrameSize  int      `json:"frame_size"`
	Slope      Interval `json:"slope"`     // Unit a rule
	Intercept  Interval `json:"intercept"` // Unit
	Unit       string   `json:"unit"`      // ns
	// Traversals is how often the list is walked in the time that Slope is added to: 2 in a round trip.
	Traversals int   `json:"traversals"`
	Warnings   []int `json:"warnings,omitempty"`
}

// A CostRatio holds the slopes of two firewalls, or of one firewall with two images, against each other.
type CostRatio struct {
	Experiment string   `json:"experiment"`
	Metric     string   `json:"metric"`
	Factor     string   `json:"factor,omitempty"`
	A          string   `json:"a"`
	B          string   `json:"b"`
	Image      string   `json:"image,omitempty"`
	Firewall   string   `json:"firewall,omitempty"`
	FrameSize  int      `json:"frame_size"`
	Ratio      Interval `json:"ratio"` // of the slopes, A/B; Value is 0, for none, where B's may be 0
	Warnings   []int    `json:"warnings,omitempty"`
}

// Verdicts on a claim.
const (
	Agrees    = "agrees"
	Disagrees = "disagrees"
	// Inconclusive serves here too.
)

// A ClaimResult is the verdict on a claim with the effect over its region.
type ClaimResult struct {
	Claim   Claim    `json:"claim"`
	Metric  string   `json:"metric"`
	Verdict string   `json:"verdict"`
	Effect  Interval `json:"effect"` // mean ratio A/B over the region's cells
	Cells   int      `json:"cells"`
	Noise   float64  `json:"noise"` // the floor it is to be seen against, as a ratio; 1 without an A/A pair
	// Differences is there when the claim expects "mixed".
	Differences *Differences `json:"differences,omitempty"`
	// Sentence says it all in one line for a reader in a hurry.
	Sentence string `json:"sentence"`
	Warnings []int  `json:"warnings,omitempty"`
}

// Differences counts the cells of a region that differ significantly, by Holm, and how much.
type Differences struct {
	Slower  int     `json:"slower"`
	Faster  int     `json:"faster"`
	Beyond  int     `json:"beyond"`  // of these, with the whole interval outside the claim's bound
	Largest float64 `json:"largest"` // ratio of the cell that differs most, at least 1
}
