// Package record is the result of a run as it stands on disk: one JSON object a line, appended and
// synced after each run. records.jsonl is the truth; everything after it can be made again.
package record

import (
	"encoding/json"
	"time"
)

// Schema is the version of the format of records, manifest and findings.
const Schema = 1

// A Status says what became of a run. Only OK runs enter statistics; the report counts the others.
type Status string

// The statuses of DESIGN §5.
const (
	OK          Status = "ok"
	Failed      Status = "failed"       // Error says why
	SenderBound Status = "sender_bound" // the generator, not the DUT, was the limit
	Unavailable Status = "unavailable"  // this kernel cannot run that engine; Error says why
)

// Treatment is the combination of levels that was measured; see design.Treatment, from which it
// converts.
type Treatment struct {
	Image     string `json:"image,omitempty"` // empty where it is no factor
	Firewall  string `json:"firewall"`
	Rules     int    `json:"rules"`
	FrameSize int    `json:"frame_size"` // bytes, FCS included
}

// A Metric is one value of a run.
type Metric struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// A Check is one fact that was verified during a run. Want and Got are numbers, strings,
// booleans, or lists of strings.
type Check struct {
	Name   string `json:"name"`
	Want   any    `json:"want"`
	Got    any    `json:"got"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// A Record is one run.
type Record struct {
	Schema     int               `json:"schema"`
	Experiment string            `json:"experiment"`
	Block      int               `json:"block"`
	Boot       int               `json:"boot"`
	Sequence   int               `json:"sequence"`
	Treatment  Treatment         `json:"treatment"`
	Clock      string            `json:"clock"`
	Started    time.Time         `json:"started"` // UTC, to the millisecond
	ElapsedS   float64           `json:"elapsed_s"`
	Status     Status            `json:"status"`
	Error      string            `json:"error,omitempty"`
	Metrics    map[string]Metric `json:"metrics,omitempty"`
	// Samples are values inside the run, such as rtt_ns: one round-trip time each, in the order
	// sent. They are never a unit of replication.
	Samples map[string][]int64 `json:"samples,omitempty"`
	Checks  []Check            `json:"checks,omitempty"`
	// Prober is how the prober fared, and Ends how each end of a stream did ("sender", "receiver"): what
	// fails no run, and yet is in its figures.
	Prober *Prober        `json:"prober,omitempty"`
	Ends   map[string]End `json:"ends,omitempty"`
	// PhasesS splits ElapsedS: renew, load, verify, control, warm_up, measure, account, unload; seconds.
	PhasesS map[string]float64 `json:"phases_s,omitempty"`
}

// A Prober is how well the prober of round trips could keep its time.
type Prober struct {
	// Late counts probes, warm-up included, that were sent more than an interval after their time: the
	// machine had something else to do.
	Late int `json:"late"`
	// Realtime is true when it ran before every ordinary process (SCHED_FIFO).
	Realtime bool `json:"realtime"`
}

// An End is the process at one end of a stream.
type End struct {
	// CPUPercent is its share of one processor, as it says itself: a sender near 100 could not have sent more.
	// netperf, which would have to look while it measures, is not asked.
	CPUPercent float64 `json:"cpu_percent,omitzero"`
	// Preferred is true when it was scheduled before others.
	Preferred bool `json:"preferred"`
}

// A Manifest says where the records came from. What other packages own is kept as they wrote it.
type Manifest struct {
	Schema        int                    `json:"schema"`
	Rampart       Build                  `json:"rampart"`
	Created       time.Time              `json:"created"`
	Configuration map[string]string      `json:"configuration"` // file name -> text, verbatim
	Variables     map[string]string      `json:"variables,omitempty"`
	ConfigDigest  string                 `json:"config_digest"`
	PlanDigests   map[string]string      `json:"plan_digests"` // experiment -> digest
	Study         json.RawMessage        `json:"study"`        // analysis.Study
	Testbed       json.RawMessage        `json:"testbed"`      // testbed.Spec
	Features      json.RawMessage        `json:"features"`     // testbed.Features
	Image         string                 `json:"image,omitempty"`
	ImageLock     string                 `json:"image_lock,omitempty"` // digest of the packages that Image was built from
	Images        map[string]Image       `json:"images,omitempty"`     // by name, where image is a factor
	Clock         string                 `json:"clock"`
	Provider      string                 `json:"provider"`
	Host          Environment            `json:"host"`
	Nodes         map[string]Environment `json:"nodes"`
	Command       []string               `json:"command"` // that made the folder, as typed
	// Sessions has an entry for each time `run` worked on this folder; resuming adds one.
	Sessions []Session `json:"sessions"`
}

// Image is one that a matrix names, with the nodes that booted from it.
type Image struct {
	Digest string                 `json:"digest"`
	Lock   string                 `json:"lock,omitempty"`  // digest of the packages that it was built from
	Nodes  map[string]Environment `json:"nodes,omitempty"` // once they have been up
}

// Build identifies the program.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	SHA256   string `json:"sha256,omitempty"`
}

// A Session is one stretch of work of `rampart run`.
type Session struct {
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Runs    int       `json:"runs"`
	Outcome string    `json:"outcome"` // complete, interrupted or failed
	// LoadStart and LoadEnd are the host's load averages over a minute (proc(5), loadavg) at both
	// ends: what else ran is in the figures of a real clock.
	LoadStart float64 `json:"load_start"`
	LoadEnd   float64 `json:"load_end"`
}

// Environment is what a machine said about itself.
type Environment struct {
	Hostname    string                       `json:"hostname,omitempty"`
	OS          string                       `json:"os"`
	Kernel      string                       `json:"kernel"`
	CPU         string                       `json:"cpu"`
	CPUs        int                          `json:"cpus"`
	MemoryBytes int64                        `json:"memory_bytes"`
	Hypervisor  string                       `json:"hypervisor,omitempty"`
	Governor    string                       `json:"governor,omitempty"`
	Clocksource string                       `json:"clocksource,omitempty"`
	Mitigations map[string]string            `json:"mitigations,omitempty"`
	Tools       map[string]string            `json:"tools,omitempty"` // name -> version line
	Sysctls     map[string]string            `json:"sysctls,omitempty"`
	Interfaces  map[string]map[string]string `json:"interfaces,omitempty"` // link -> mtu, driver, offloads as read back
}
