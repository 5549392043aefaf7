// Package experiments runs a plan on a testbed and writes one record per run.
//
// A run goes through the protocol of METHOD §3: load the rule-set and time it, read it back, show
// that it drops what it must and passes what it must, warm up, measure in silence, hold the counters
// of the rules against what was sent and received, unload, and look that nothing is left. Every step
// that proves something leaves a check in the record.
package experiments

import (
	"fmt"
	"time"

	"github.com/rampart-bench/rampart/experiments/design"
	"github.com/rampart-bench/rampart/experiments/firewall"
)

// The kinds of measurement.
const (
	ICMPRTT    = "icmp_rtt"
	UDPIperf3  = "udp_iperf3"
	UDPNetperf = "udp_netperf"
)

// Measurement says what is measured in each run. Fields that do not belong to Kind are zero.
type Measurement struct {
	Kind string `json:"kind"`

	// icmp_rtt
	Count    int           `json:"count,omitempty"`       // probes a run
	Interval time.Duration `json:"interval_ns,omitempty"` // between probes
	Warmup   int           `json:"warmup,omitempty"`      // probes thrown away first

	// udp_iperf3 and udp_netperf, which has neither Omit nor Rate
	Duration time.Duration `json:"duration_ns,omitempty"`
	Omit     time.Duration `json:"omit_ns,omitempty"` // warm-up: iperf3 --omit, whole seconds
	Rate     int64         `json:"rate,omitempty"`    // offered load, payload bit/s; 0: as fast as the sender can
	// Datagrams ends a run after so many, in the place of Duration and Omit, which are then zero.
	Datagrams int `json:"datagrams,omitempty"`
}

// Spec is one experiment, resolved: names looked up, defaults filled in, controls added.
type Spec struct {
	Name        string          `json:"name"`
	Measurement Measurement     `json:"measurement"`
	Images      []string        `json:"images,omitempty"` // levels of that factor; none: the image of the testbed
	Firewalls   []firewall.Spec `json:"firewalls"`        // in the order of the matrix, controls included
	Rules       []int           `json:"rules"`
	FrameSizes  []int           `json:"frame_sizes"`
	Repetitions int             `json:"repetitions"`
	Boots       int             `json:"boots"`
	Seed        uint64          `json:"seed"`
	Grouped     bool            `json:"grouped,omitempty"`
}

// Design is the experiment's matrix: every firewall at every number of rules and every frame size,
// with one number of rules, 0, for a firewall that has none; all of it with every image.
func (s Spec) Design() design.Spec {
	d := design.Spec{Repetitions: s.Repetitions, Boots: s.Boots, Seed: s.Seed, Grouped: s.Grouped}
	images := s.Images
	if len(images) == 0 {
		images = []string{""}
	}
	for _, image := range images {
		for _, t := range s.treatments() {
			t.Image = image
			d.Treatments = append(d.Treatments, t)
		}
	}
	return d
}

// treatments are those of one image.
func (s Spec) treatments() (all []design.Treatment) {
	for _, fw := range s.Firewalls {
		rules := s.Rules
		if !fw.HasRules() {
			rules = []int{0}
		}
		for _, n := range rules {
			for _, size := range s.FrameSizes {
				all = append(all, design.Treatment{Firewall: fw.Name, Rules: n, FrameSize: size})
			}
		}
	}
	return all
}

// Firewall returns the firewall called name.
func (s Spec) Firewall(name string) (firewall.Spec, error) {
	for _, fw := range s.Firewalls {
		if fw.Name == name {
			return fw, nil
		}
	}
	return firewall.Spec{}, fmt.Errorf("experiment %s has no firewall %q", s.Name, name)
}

// datagramTime is about what a datagram takes from end to end on one processor with few rules.
const datagramTime = 20 * time.Microsecond

// MeasuringTime is how long the measured part of one run takes, warm-up left out. For a number of
// datagrams it is an estimate.
func (m Measurement) MeasuringTime() time.Duration {
	switch {
	case m.Kind == ICMPRTT:
		return time.Duration(m.Count) * m.Interval
	case m.Datagrams > 0:
		return time.Duration(m.Datagrams) * datagramTime
	}
	return m.Duration
}

// WarmupTime is how long a run's warm-up takes.
func (m Measurement) WarmupTime() time.Duration {
	if m.Kind == ICMPRTT {
		return time.Duration(m.Warmup) * m.Interval
	}
	return m.Omit
}
