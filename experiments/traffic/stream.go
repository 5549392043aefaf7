package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// A Report is what one end of a stream says about it.
type Report struct {
	Tool    string `json:"tool"`    // [Iperf3] or [Netperf]
	Version string `json:"version"` // such as "iperf 3.12"
	Sender  bool   `json:"sender"`  // which end
	Payload int    `json:"payload"` // bytes a datagram
	Rate    int64  `json:"rate"`    // payload bit/s asked for; 0: as fast as the sender can
	// Measured is without the warm-up, All with it.
	Measured Tally   `json:"measured"`
	All      Tally   `json:"all"`
	JitterMS float64 `json:"jitter_ms"`
	// CPU is the share of one processor, in percent, that this end's process used.
	CPU float64 `json:"cpu_percent"`
	// Preferred is true when the process was allowed to be scheduled before others.
	Preferred bool `json:"preferred"`
	// Remote is what the sending end was told by the receiving one, where that says nothing itself.
	Remote *Report `json:"remote,omitempty"`
}

// A Tally counts the datagrams of a stream. At the receiver Datagrams are those up to the last one that
// came, and Lost those among them that did not come. Bytes are payload, that did come.
type Tally struct {
	Datagrams int64   `json:"datagrams"`
	Lost      int64   `json:"lost"`
	Bytes     int64   `json:"bytes"`
	Seconds   float64 `json:"seconds"`
}

// Arrived is the number of datagrams that came.
func (t Tally) Arrived() int64 { return t.Datagrams - t.Lost }

// iperfError is an error that iperf3 reports in its own words.
type iperfError struct{ text string }

func (e *iperfError) Error() string { return "iperf3: " + e.text }

// iperfOutput is the part that we use of what `iperf3 --json` prints. The figures of the end block
// are wrong in places: with --omit the client's lost packets are not those of the measured time,
// and the server's sum_sent counts below zero (both seen in 3.12). The intervals are right, and their
// bytes agree with end.sum_received, which is checked.
type iperfOutput struct {
	Error string `json:"error"`
	Start struct {
		Version   string `json:"version"`
		TestStart *struct {
			Protocol string `json:"protocol"`
			Streams  int    `json:"num_streams"`
			Block    int    `json:"blksize"`
			Reverse  int    `json:"reverse"`
			Rate     int64  `json:"target_bitrate"`
		} `json:"test_start"`
	} `json:"start"`
	Intervals []struct {
		Sum struct {
			Seconds float64 `json:"seconds"`
			Bytes   float64 `json:"bytes"`
			Packets float64 `json:"packets"`
			Lost    float64 `json:"lost_packets"`
			Omitted bool    `json:"omitted"`
			Sender  bool    `json:"sender"`
		} `json:"sum"`
	} `json:"intervals"`
	End struct {
		Received *struct {
			Bytes    float64 `json:"bytes"`
			JitterMS float64 `json:"jitter_ms"`
		} `json:"sum_received"`
		Sent *struct {
			Bytes float64 `json:"bytes"`
		} `json:"sum_sent"`
		CPU struct {
			Host float64 `json:"host_total"`
		} `json:"cpu_utilization_percent"`
	} `json:"end"`
}

// parseReport reads what either end printed.
func parseReport(text []byte) (Report, error) {
	var out iperfOutput
	if err := json.Unmarshal(text, &out); err != nil {
		return Report{}, fmt.Errorf("parse iperf3's report: %w", err)
	}
	start := out.Start.TestStart
	switch {
	case out.Error != "":
		return Report{}, &iperfError{out.Error}
	case start == nil || len(out.Intervals) == 0 || out.End.Received == nil || out.End.Sent == nil:
		return Report{}, errors.New("parse iperf3's report: it is not whole")
	case start.Protocol != "UDP" || start.Streams != 1 || start.Reverse != 0 || start.Block < minPayload || start.Block > MaxFrame:
		return Report{}, fmt.Errorf("parse iperf3's report: not one UDP stream from client to server: %+v", *start)
	}
	r := Report{
		Tool: iperf3, Version: out.Start.Version, Sender: out.Intervals[0].Sum.Sender, Payload: start.Block, Rate: start.Rate,
		JitterMS: out.End.Received.JitterMS, CPU: out.End.CPU.Host,
	}
	for _, i := range out.Intervals {
		t, err := newTally(i.Sum.Packets, i.Sum.Lost, i.Sum.Bytes, i.Sum.Seconds)
		if err != nil {
			return Report{}, err
		}
		r.All.add(t)
		if !i.Sum.Omitted {
			r.Measured.add(t)
		}
	}
	total := out.End.Received.Bytes
	if r.Sender {
		total = out.End.Sent.Bytes
	}
	return r, r.check(total)
}

func newTally(datagrams, lost, bytes, seconds float64) (Tally, error) {
	for _, n := range []float64{datagrams, bytes, seconds, lost} {
		if math.Abs(n) > 1<<53 || math.IsNaN(n) {
			return Tally{}, fmt.Errorf("parse iperf3's report: %v is no count", n)
		}
	}
	return Tally{int64(datagrams), int64(lost), int64(bytes), seconds}, nil
}

func (t *Tally) add(o Tally) {
	t.Datagrams += o.Datagrams
	t.Lost += o.Lost
	t.Bytes += o.Bytes
	t.Seconds += o.Seconds
}

// slack is by how many datagrams counts of one report may be apart, because versions since 3.16 read
// them in another thread than the one that counts.
const slack = 8

// check holds the report against itself: bytes are whole datagrams, and the intervals' sum is the
// program's own, total.
func (r Report) check(total float64) error {
	for _, t := range []Tally{r.All, r.Measured} {
		off := t.Bytes - t.Arrived()*int64(r.Payload)
		if abs(off) > slack*int64(r.Payload) || t.Arrived() < 0 || t.Datagrams < 0 {
			return fmt.Errorf("iperf3's report contradicts itself: %d of %d datagrams of %d bytes lost, but %d bytes arrived", t.Lost, t.Datagrams, r.Payload, t.Bytes)
		}
	}
	if r.Measured.Seconds <= 0 {
		return fmt.Errorf("iperf3's report contradicts itself: it measured for %v s", r.Measured.Seconds)
	}
	if off := math.Abs(total - float64(r.Measured.Bytes)); off > 1e-3*float64(r.Measured.Bytes) {
		return fmt.Errorf("iperf3's report contradicts itself: %d bytes in its intervals, %.0f in its sum", r.Measured.Bytes, total)
	}
	return nil
}

// A Stream is the result of one UDP stream, of what both ends say. Rates are of payload, in bit/s.
type Stream struct {
	SenderBitRate   float64 `json:"sender_bit_rate"`
	ReceiverBitRate float64 `json:"receiver_bit_rate"`
	SenderFrames    int64   `json:"sender_frames"`
	ReceiverFrames  int64   `json:"receiver_frames"`
	Lost            int64   `json:"lost"` // as the receiver saw it (iperf3: gaps in the numbers), or what did not come (netperf)
	FramesPerS      float64 `json:"frames_per_s"`
	DurationS       float64 `json:"duration_s"` // of the receiver
	OmittedS        float64 `json:"omitted_s"`  // of the receiver
	JitterMS        float64 `json:"jitter_ms"`
	// Sender and Receiver are the reports themselves, which [Account] needs.
	Sender   Report `json:"sender"`
	Receiver Report `json:"receiver"`
}

// NewStream joins the reports of both ends. It returns an error when they are not of one stream.
func NewStream(sender, receiver Report) (Stream, error) {
	if sender.Tool != receiver.Tool {
		return Stream{}, fmt.Errorf("join reports: %q sent, but %q received", sender.Tool, receiver.Tool)
	}
	if sender.Remote != nil && !receiver.Sender {
		preferred := receiver.Preferred
		receiver = *sender.Remote
		receiver.Preferred, sender.Remote = preferred, nil
	}
	switch {
	case !sender.Sender || receiver.Sender:
		return Stream{}, errors.New("join reports: one of a sender and one of a receiver are needed")
	case sender.Payload != receiver.Payload:
		return Stream{}, fmt.Errorf("join reports: datagrams of %d bytes were sent, but of %d received", sender.Payload, receiver.Payload)
	case receiver.All.Datagrams > sender.All.Datagrams+slack:
		return Stream{}, fmt.Errorf("join reports: %d datagrams were sent, but %d received", sender.All.Datagrams, receiver.All.Datagrams)
	}
	s, r := sender.Measured, receiver.Measured
	return Stream{
		SenderBitRate:   float64(s.Bytes) * 8 / s.Seconds,
		ReceiverBitRate: float64(r.Bytes) * 8 / r.Seconds,
		SenderFrames:    s.Datagrams,
		ReceiverFrames:  r.Arrived(),
		Lost:            r.Lost,
		FramesPerS:      float64(r.Arrived()) / r.Seconds,
		DurationS:       r.Seconds,
		OmittedS:        receiver.All.Seconds - r.Seconds,
		JitterMS:        receiver.JitterMS,
		Sender:          sender,
		Receiver:        receiver,
	}, nil
}
