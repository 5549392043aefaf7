// Package traffic makes and counts the load: probers and generators on the sender, sinks on the
// receiver, and counters on every node. It runs inside the network namespace of the calling process
// and knows nothing of testbeds.
//
// Requests and answers are plain data, because they travel over the wire between the program that
// runs a study and its helper on a node:
//
//   - [Probe.Run] sends ICMP echo requests and gives back [RoundTrips]; [Intrusion.Run] does so from an
//     address that no rule-set accepts.
//   - [Serve.Start] starts the receiving end of a UDP stream, [Send.Run] the sending end, and
//     [NewStream] makes one result of what both ends say.
//   - [Watch] looks at the lengths of frames that come in, [Snap] reads every counter of a node, and
//     [Account] holds counters and results against each other.
package traffic

import (
	"errors"
	"fmt"
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
	// MinFrame is the smallest frame of Ethernet, and MaxFrame the largest that IPv4 can fill.
	MinFrame = 64
	MaxFrame = 65535 + EthernetHeader + FCS
)

// A Check is one fact that was verified; record.Check is the identical type.
type Check struct {
	Name   string `json:"name"`
	Want   any    `json:"want"`
	Got    any    `json:"got"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// Probe asks for ICMP echo round trips at a fixed interval.
type Probe struct {
	Target    netip.Addr    `json:"target"`
	Source    netip.Addr    `json:"source,omitzero"` // default: the kernel's choice
	FrameSize int           `json:"frame_size"`
	Warmup    int           `json:"warmup"` // probes sent first, whose times are thrown away
	Count     int           `json:"count"`
	Interval  time.Duration `json:"interval_ns"`
	Timeout   time.Duration `json:"timeout_ns"` // wait for the last answer; default 1 s
}

// MaxProbes bounds the memory of a [Probe], and the line of its record.
const MaxProbes = 2_000_000

// Validate returns every mistake in the request, joined.
func (p Probe) Validate() error {
	errs := []error{checkFrame(p.FrameSize)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !p.Target.Is4() {
		bad("target %v: an IPv4 address is needed", p.Target)
	}
	if p.Source.IsValid() && !p.Source.Is4() {
		bad("source %v: an IPv4 address is needed", p.Source)
	}
	if p.Warmup < 0 || p.Count < 1 || p.Count > MaxProbes-p.Warmup {
		bad("warmup = %d and count = %d: use 0 or more and 1 or more, together at most %d", p.Warmup, p.Count, MaxProbes)
	}
	if p.Interval < 0 || p.Timeout < 0 {
		bad("interval %v and timeout %v must not be negative", p.Interval, p.Timeout)
	}
	return errors.Join(errs...)
}

func checkFrame(size int) error {
	if size < MinFrame || size > MaxFrame {
		return fmt.Errorf("frame_size = %d: use %d to %d bytes", size, MinFrame, MaxFrame)
	}
	return nil
}

// RoundTrips is the answer to a [Probe]. Samples are in the order sent; a lost probe has none.
type RoundTrips struct {
	Sent           int     `json:"sent"` // without the warm-up
	Received       int     `json:"received"`
	Duplicates     int     `json:"duplicates,omitempty"` // further answers to a probe, warm-up included
	WarmupSent     int     `json:"warmup_sent"`
	WarmupReceived int     `json:"warmup_received"`
	SamplesNS      []int64 `json:"samples_ns"`
	ElapsedNS      int64   `json:"elapsed_ns"` // of the measured part
	// Late counts probes, warm-up included, that were sent more than one interval after their time
	// because the machine had something else to do. The schedule was moved by as much.
	Late int `json:"late,omitempty"`
	// Realtime is true when the prober ran under SCHED_FIFO, where no other process can come
	// between a probe and its answer.
	Realtime bool `json:"realtime"`
	// KernelStamps is true when both ends of each sample are the kernel's time-stamps, and false
	// when sending is timed by the program. Times of the two kinds are not comparable.
	KernelStamps bool `json:"kernel_stamps"`
	// Source is the address that the probes came from.
	Source netip.Addr `json:"source"`
}

// Lost is the number of measured probes that were not answered.
func (r RoundTrips) Lost() int { return r.Sent - r.Received }
