// Package traffic makes and counts the load: probers and generators on the sender, sinks on the
// receiver, and counters on every node. It runs inside the network namespace of the calling process
// and knows nothing of testbeds.
package traffic

import (
	"net/netip"
	"time"
)

// Overheads of a frame as RFC 2544 counts it: FrameSize includes the FCS, which no counter of the
// kernel sees.
const (
	FCS            = 4
	EthernetHeader = 14
	IPv4Header     = 20
	UDPHeader      = 8 // and the header of an ICMP echo
	// PayloadOverhead is what a frame has beyond its UDP or ICMP payload: 46 bytes.
	PayloadOverhead = FCS + EthernetHeader + IPv4Header + UDPHeader
)

// Probe asks for ICMP echo round trips at a fixed interval.
type Probe struct {
	Target    netip.Addr    `json:"target"`
	Source    netip.Addr    `json:"source,omitzero"` // default: the kernel's choice
	FrameSize int           `json:"frame_size"`
	Warmup    int           `json:"warmup"` // probes sent first, whose times are thrown away
	Count     int           `json:"count"`
	Interval  time.Duration `json:"interval_ns"`
	Timeout   time.Duration `json:"timeout_ns"` // wait for the last answer
}

// RoundTrips is the answer to a [Probe]. Samples are in the order sent; a lost probe has none.
type RoundTrips struct {
	Sent       int     `json:"sent"` // without the warm-up
	Received   int     `json:"received"`
	Duplicates int     `json:"duplicates,omitempty"`
	WarmupSent int     `json:"warmup_sent"`
	SamplesNS  []int64 `json:"samples_ns"`
	ElapsedNS  int64   `json:"elapsed_ns"` // of the measured part
}
