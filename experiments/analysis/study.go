// Package analysis turns records into findings: medians with intervals, comparisons with verdicts,
// cost of a rule, and verdicts on claims (METHOD §5). It is pure: the same records and the same
// [Study] give the same [Findings], to the byte, on any machine.
package analysis

// A Study is everything that analysis and report must know beyond the records. It is fixed before
// the first run and kept in the manifest, so that nobody can choose a margin after seeing data.
type Study struct {
	Title       string       `json:"title"`
	Experiments []Experiment `json:"experiments"`
	Claims      []Claim      `json:"claims"`
	Alpha       float64      `json:"alpha"`     // default 0.05
	Margin      float64      `json:"margin"`    // δ of equivalence, default 0.03
	Bootstrap   int          `json:"bootstrap"` // replicates, default 10000
	Seed        uint64       `json:"seed"`
}

// An Experiment as analysis and report see it.
type Experiment struct {
	Name        string            `json:"name"`
	Measurement string            `json:"measurement"`      // icmp_rtt, udp_iperf3 or udp_netperf
	Parameters  map[string]string `json:"parameters"`       // for the reader, such as count = 200
	Images      []Image           `json:"images,omitempty"` // none where image is no factor
	Firewalls   []Firewall        `json:"firewalls"`
	Rules       []int             `json:"rules"`
	FrameSizes  []int             `json:"frame_sizes"`
	Repetitions int               `json:"repetitions"`
	Boots       int               `json:"boots"`
	Seed        uint64            `json:"seed"`
	Grouped     bool              `json:"grouped,omitempty"`
	// Compare lists the pairs to compare; Controls the A/A pairs (one firewall, two names).
	Compare  [][2]string `json:"compare"`
	Controls [][2]string `json:"controls"`
	// CompareImages and ControlImages are the same for images.
	CompareImages [][2]string `json:"compare_images,omitempty"`
	ControlImages [][2]string `json:"control_images,omitempty"`
}

// An Image as the reader is told of it: what the nodes booted from.
type Image struct {
	Name   string `json:"name"`
	Suite  string `json:"suite,omitempty"`
	Kernel string `json:"kernel,omitempty"` // package
}

// FactorImage is the factor of a comparison between two images. The factor of all others, firewall, is left
// out wherever a factor is named.
const FactorImage = "image"

// A Firewall as the reader is told of it.
type Firewall struct {
	Name   string `json:"name"`
	Engine string `json:"engine"`
	Lookup string `json:"lookup,omitempty"`
	// Position of the entries that match the traffic: last, first or uniform.
	Position string `json:"position,omitempty"`
	// Settings are the kernel's, in words, such as "conntrack, rp_filter = 1".
	Settings string `json:"settings,omitempty"`
	// Rules is false for none and empty, whose cells have rules = 0.
	Rules bool `json:"rules"`
}

// A Claim is a statement about a region of the matrix, to be tested.
type Claim struct {
	Name       string      `json:"name"`
	Statement  string      `json:"statement"`
	Experiment string      `json:"experiment"`
	Metric     string      `json:"metric,omitempty"` // default: the measurement's primary metric
	Factor     string      `json:"factor,omitempty"` // [FactorImage] where Compare names images
	Compare    [2]string   `json:"compare"`
	Where      []Condition `json:"where,omitempty"`     // all must hold
	Images     []string    `json:"images,omitempty"`    // of the region, where firewalls are compared; none: all
	Firewalls  []string    `json:"firewalls,omitempty"` // of the region, where images are compared; none: all
	Expect     string      `json:"expect"`              // slower, faster, similar or mixed
	// Within bounds the cells of a claim that expects "mixed": 0.1 means that no cell differs by more
	// than 10 %. Default 0.1.
	Within float64 `json:"within,omitempty"`
	// Reference is what somebody else found, for the reader to see beside it. It decides nothing.
	Reference *Reference `json:"reference,omitempty"`
}

// A Reference is a published ratio of the metric, A/B.
type Reference struct {
	Ratio  float64 `json:"ratio"`
	Source string  `json:"source"` // where, and of which kernel and machine
}

// What a claim may expect of A against B, beside [Slower] and [Faster].
const (
	// Similar: the mean ratio over the region is within the margin.
	Similar = "similar"
	// Mixed: some cells differ significantly after Holm's correction, at least one in each direction,
	// and no cell of the region differs by more than Within.
	Mixed = "mixed"
)

// A Condition holds for a level of a factor, such as rules >= 1000.
type Condition struct {
	Factor string `json:"factor"` // rules or frame_size
	Op     string `json:"op"`     // one of == != < <= > >=
	Value  int    `json:"value"`
}

// Holds reports whether the level satisfies the condition.
func (c Condition) Holds(level int) bool {
	switch c.Op {
	case "==":
		return level == c.Value
	case "!=":
		return level != c.Value
	case "<":
		return level < c.Value
	case "<=":
		return level <= c.Value
	case ">":
		return level > c.Value
	case ">=":
		return level >= c.Value
	}
	return false
}
