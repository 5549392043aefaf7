package traffic

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// netperf's UDP_STREAM is the test of the older studies. netperf tells netserver over a control
// connection (TCP) what to receive, sends, and is told over it what came. At the end it sends up to three
// empty datagrams, so that the other end need not wait (disconnect_data_socket in nettest_omni.c).
const (
	netperf   = "netperf"
	netserver = "netserver"

	netperfPort = 12865 // of the control connection
	// netperfData is the port of the stream at both ends. It is fixed, so that a flow can be prepared
	// before it is measured: see [Prime].
	netperfData = 12867
)

// netperfArgv is the command line. `-R 1` lets the datagrams be routed: UDP_STREAM sets SO_DONTROUTE
// otherwise, and through a router fails with "Network is unreachable".
func (s Send) netperfArgv() []string {
	size := s.FrameSize - PayloadOverhead
	length := int(s.Duration / time.Second)
	if s.Datagrams > 0 {
		length = -s.Datagrams * size // bytes, not seconds
	}
	return []string{netperf,
		"-4", "-H", s.Target.String(), "-p", strconv.Itoa(int(s.port())),
		"-t", "UDP_STREAM", "-l", strconv.Itoa(length),
		"-P", "0", "-f", "k", // rates in 10^3 bit/s: with more digits than the default
		"--",
		"-m", strconv.Itoa(size), "-R", "1",
		"-P", fmt.Sprintf("%d,%d", netperfData, netperfData),
		"-k", strings.Join(netperfKeys(), ","),
	}
}

// netserverArgv is the command line of the other end: in the foreground, serving one client after the
// other in one process, with no file left in /tmp.
func (s Serve) netserverArgv() []string {
	return []string{netserver, "-D", "-f", "-N", "-4", "-L", s.Address.String(), "-p", strconv.Itoa(int(s.port()))}
}

func netperfKeys() []string {
	return []string{"PROTOCOL", "DIRECTION", "ELAPSED_TIME", "LOCAL_SEND_SIZE", "LOCAL_SEND_CALLS", "LOCAL_BYTES_SENT", "LOCAL_SEND_THROUGHPUT",
		"REMOTE_RECV_CALLS", "REMOTE_BYTES_RECVD", "REMOTE_RECV_THROUGHPUT"}
}

// parseNetperf reads what netperf printed: a line KEY=VALUE for every key asked for. The report is the
// sender's, with what it was told of the receiver in it.
func parseNetperf(text []byte) (Report, error) {
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = value
		}
	}
	if values["PROTOCOL"] != "UDP" || values["DIRECTION"] != "Send" {
		return Report{}, fmt.Errorf("parse netperf's report: not a UDP stream from client to server: PROTOCOL=%q, DIRECTION=%q", values["PROTOCOL"], values["DIRECTION"])
	}
	numbers := map[string]float64{}
	for _, key := range netperfKeys()[2:] {
		n, err := strconv.ParseFloat(values[key], 64)
		if err != nil || n < 0 || n > 1<<53 || math.IsNaN(n) {
			return Report{}, fmt.Errorf("parse netperf's report: %s=%q is no count", key, values[key])
		}
		numbers[key] = n
	}
	sent, received := int64(numbers["LOCAL_SEND_CALLS"]), int64(numbers["REMOTE_RECV_CALLS"])
	size, seconds := numbers["LOCAL_SEND_SIZE"], numbers["ELAPSED_TIME"]
	// The time is printed to a hundredth of a second; the rate it was divided by says it better.
	if rate := numbers["LOCAL_SEND_THROUGHPUT"]; rate > 0 {
		seconds = numbers["LOCAL_BYTES_SENT"] * 8 / (rate * 1e3)
	}
	switch {
	case size < 1 || size > MaxFrame || seconds <= 0:
		return Report{}, fmt.Errorf("parse netperf's report: %v bytes a message for %v s", size, seconds)
	case math.Abs(seconds-numbers["ELAPSED_TIME"]) > 0.01+1e-3*seconds,
		numbers["LOCAL_BYTES_SENT"] != float64(sent)*size, numbers["REMOTE_BYTES_RECVD"] != float64(received)*size, received > sent:
		return Report{}, fmt.Errorf("netperf's report contradicts itself: %v", values)
	}
	rate := float64(received) * size * 8 / seconds / 1e3
	if off := math.Abs(rate - numbers["REMOTE_RECV_THROUGHPUT"]); off > 0.01+1e-3*rate {
		return Report{}, fmt.Errorf("netperf's report contradicts itself: %v bytes in %v s are not %v kbit/s", numbers["REMOTE_BYTES_RECVD"], seconds, numbers["REMOTE_RECV_THROUGHPUT"])
	}
	r := Report{Tool: netperf, Version: netperf, Payload: int(size)}
	there := r
	r.Sender = true
	r.Measured = Tally{Datagrams: sent, Bytes: sent * int64(size), Seconds: seconds}
	there.Measured = Tally{Datagrams: sent, Lost: sent - received, Bytes: received * int64(size), Seconds: seconds}
	r.All, there.All = r.Measured, there.Measured
	r.Remote = &there
	return r, nil
}

// concludeNetperf makes a report of what netperf wrote, or the most telling error.
func concludeNetperf(out *output, err error) (Report, error) {
	if err != nil {
		return Report{}, fmt.Errorf("run netperf: %w: %s", err, tail(out.stderr.String()+out.stdout.String()))
	}
	report, err := parseNetperf(out.stdout.Bytes())
	if err != nil {
		return Report{}, fmt.Errorf("%w: %s", err, tail(out.stderr.String()+out.stdout.String()))
	}
	return report, nil
}

// validateNetperf returns every mistake that netperf would make something else of.
func (s Send) validateNetperf() error {
	var errs []error
	if s.Omit != 0 {
		errs = append(errs, fmt.Errorf("omit = %v: netperf has no warm-up", s.Omit))
	}
	if s.Rate != 0 {
		errs = append(errs, fmt.Errorf("rate = %d bit/s: netperf sends as fast as it can", s.Rate))
	}
	return errors.Join(errs...)
}

// endNetserver waits until its client has gone, and ends it: it would serve for ever.
func (s *Server) endNetserver(ctx context.Context) (Report, error) {
	select {
	case <-s.done:
		return Report{}, fmt.Errorf("receive stream: netserver ended early: %w: %s", s.err, tail(s.out.stderr.String()+s.out.stdout.String()))
	default:
	}
	if err := awaitQuiet(ctx, s.at); err != nil {
		return Report{}, err
	}
	return Report{Tool: netperf, Version: netperf, Preferred: s.preferred}, s.Close()
}

// NetperfFlow is the flow of a netperf stream: the port at both ends.
func NetperfFlow(sender, receiver netip.Addr) (from, to netip.AddrPort) {
	return netip.AddrPortFrom(sender, netperfData), netip.AddrPortFrom(receiver, netperfData)
}
