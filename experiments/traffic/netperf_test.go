package traffic

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// needNetperf skips the test where netperf is not installed, also where nothing else may be skipped: it is
// not free software by Debian's guidelines, and a machine need not have it. What can be tested without it
// is tested on what it once printed and the kernel once counted.
func needNetperf(t testing.TB) {
	t.Helper()
	for _, program := range []string{netperf, netserver} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%v", absent(program, err))
		}
	}
}

func TestNetperfStream(t *testing.T) {
	needNetperf(t)
	b := newBench(t, false)
	for _, frame := range []int{64, 110, 1518} {
		send := Send{Tool: Netperf, FrameSize: frame, Duration: time.Second}
		var s Stream
		a := b.counted(frame, func() { s = b.stream(send) })
		allOK(t, a.Stream(s))
		t.Logf("frame %d: %.3f of %.3f Mbit/s, %d of %d frames, %d lost, %v s", frame, s.ReceiverBitRate/1e6, s.SenderBitRate/1e6, s.ReceiverFrames, s.SenderFrames, s.Lost, s.DurationS)
		if s.DurationS < 0.99 || s.DurationS > 1.1 || s.ReceiverFrames == 0 || s.Receiver.Payload != frame-PayloadOverhead {
			t.Errorf("%+v", s)
		}
		packets, datagrams := a.Load()
		if sent := uint64(s.Sender.All.Datagrams); datagrams < sent || datagrams > sent+4 || packets <= datagrams {
			t.Errorf("%d packets and %d datagrams for %d sent", packets, datagrams, sent)
		}
		if path := os.Getenv("RECORD_NETPERF"); path != "" && frame == 64 {
			recordNetperf(t, path, a, s)
		}
	}
	var s Stream
	a := b.counted(64, func() { s = b.stream(Send{Tool: Netperf, FrameSize: 64, Datagrams: 2000}) })
	allOK(t, a.Stream(s))
	if s.SenderFrames != 2000 {
		t.Errorf("%d datagrams instead of 2000", s.SenderFrames)
	}
	if left := strings.Fields(b.run("ip", "netns", "pids", b.prefix+"r")); len(left) != 1 {
		t.Errorf("%d processes at the receiver", len(left))
	}
	if files, _ := filepath.Glob("/tmp/netserver.debug_*"); len(files) > 0 {
		t.Errorf("netserver left %v", files)
	}
}

// a recorded netperf stream: what it reported and what the kernels counted.
type recordedStream struct {
	Account Account
	Stream  Stream
}

func recordNetperf(t *testing.T, path string, a Account, s Stream) {
	t.Helper()
	text, err := json.Marshal(recordedStream{a, s})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The record is of a real stream through a rule-set. It adds up, and nothing else does.
func TestNetperfAccount(t *testing.T) {
	var recorded recordedStream
	if err := json.Unmarshal(testdata(t, "netperf-account.json"), &recorded); err != nil {
		t.Fatal(err)
	}
	a, s := recorded.Account, recorded.Stream
	allOK(t, a.Stream(s))
	n := uint64(s.Sender.All.Datagrams)
	count := func(s *Snapshot, protocol, counter string, by int64) { s.Protocols[protocol][counter] += by }
	for name, change := range map[string]func(*Account, *Stream){
		"sender's kernel sent what netperf reports":                     func(a *Account, s *Stream) { count(&a.Sender, "Udp", "OutDatagrams", 3) },
		"sender's frames are datagrams and control connection":          func(a *Account, s *Stream) { count(&a.Sender, "Tcp", "OutSegs", -1) },
		"receiver's frames are hand-shake, control connection and ICMP": func(a *Account, s *Stream) { count(&a.Receiver, "Tcp", "OutSegs", 1) },
		"netperf reports what the receiver's kernel gave it":            func(a *Account, s *Stream) { count(&a.Receiver, "Udp", "InDatagrams", -3) },
		"loss counted is the loss reported":                             func(a *Account, s *Stream) { s.Receiver.All.Lost += 10 },
		"bytes of a datagram's frame at the DUT (frame size - 4)":       func(a *Account, s *Stream) { edit(&a.DUT, "inside", func(i *Interface) { i.RxBytes += n }) },
		"receiver got what the DUT sent":                                func(a *Account, s *Stream) { edit(&a.Receiver, "outside", func(i *Interface) { i.RxPackets = 1 }) },
		"matching rule counted what the DUT got from the sender":        func(a *Account, s *Stream) { a.Rule.FromSender.Packets = 1 },
	} {
		bad, r := clone(t, a), s
		change(&bad, &r)
		if names := strings.Join(failed(bad.Stream(r)), "; "); !strings.Contains(names, name) {
			t.Errorf("%q held although it is not so (failed: %s)", name, names)
		}
	}
}

func TestNetperfErrors(t *testing.T) {
	send := Send{Tool: Netperf, Target: receiverAddr, FrameSize: 64, Duration: time.Second}
	for want, change := range map[string]func(*Send){
		"no warm-up":    func(s *Send) { s.Omit = time.Second },
		"as fast as":    func(s *Send) { s.Rate = 1 },
		"whole seconds": func(s *Send) { s.Duration = time.Millisecond },
		"use iperf3 or": func(s *Send) { s.Tool = "netcat" },
	} {
		bad := send
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	needNetperf(t)
	l := newLab(t)
	s, r := l.node("s"), l.node("r")
	if err := s.ask("send", send, nil); err == nil || !strings.Contains(err.Error(), "netserver listening") {
		t.Errorf("no server: %v", err)
	}
	must[any](r, "serve", Serve{Tool: Netperf, Address: receiverAddr})
	s.send("send", Send{Tool: Netperf, Target: receiverAddr, FrameSize: 64, Duration: time.Minute})
	time.Sleep(300 * time.Millisecond)
	s.cancel()
	if err := s.answer(nil); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("cancelled: %v", err)
	}
	must[any](r, "close", nil)
	for _, n := range []string{"s", "r"} {
		if left := strings.Fields(l.run("ip", "netns", "pids", l.prefix+n)); len(left) != 1 {
			t.Errorf("%d processes left at %s", len(left), n)
		}
	}
}

// Without the program the error says how to get it, and can be told from others.
func TestProgramsAbsent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for tool, mend := range map[string]string{Netperf: "non-free", Iperf3: "apt-get install iperf3"} {
		var missing *UnavailableError
		_, err := Send{Tool: tool, Target: netip.MustParseAddr("127.0.0.1"), FrameSize: 64, Duration: time.Second}.Run(t.Context())
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), mend) {
			t.Errorf("send: %v", err)
		}
		_, err = Serve{Tool: tool, Address: netip.MustParseAddr("127.0.0.1"), Port: 40123}.Start(t.Context())
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), mend) {
			t.Errorf("serve: %v", err)
		}
	}
}

func TestParseNetperf(t *testing.T) {
	good := string(testdata(t, "netperf.txt"))
	r, err := parseNetperf([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if r.Measured.Datagrams != 64599 || r.Payload != 64 || !r.Sender || r.Remote == nil || r.Remote.Measured.Arrived() != 39205 {
		t.Errorf("%+v", r)
	}
	s, err := NewStream(r, Report{Tool: Netperf, Preferred: true})
	if err != nil {
		t.Fatal(err)
	}
	if off := s.ReceiverBitRate/20071790 - 1; off > 1e-4 || off < -1e-4 || s.Lost != 64599-39205 || !s.Receiver.Preferred || s.Sender.Remote != nil {
		t.Errorf("%+v", s)
	}
	if _, err := NewStream(r, Report{Tool: Iperf3}); err == nil {
		t.Error("a stream of two programs")
	}
	for want, change := range map[string][2]string{
		"not a UDP stream":        {"PROTOCOL=UDP", "PROTOCOL=TCP"},
		"is no count":             {"LOCAL_SEND_CALLS=64599", "LOCAL_SEND_CALLS=-1"},
		`RECVD="" is`:             {"REMOTE_BYTES_RECVD=2509120\n", ""},
		"contradicts itself":      {"REMOTE_RECV_CALLS=39205", "REMOTE_RECV_CALLS=39206"},
		"contradicts itself: m":   {"ELAPSED_TIME=1.00", "ELAPSED_TIME=2.00"},
		"are not 1 kbit/s":        {"REMOTE_RECV_THROUGHPUT=20071.79", "REMOTE_RECV_THROUGHPUT=1"},
		"0 bytes a message for 1": {"LOCAL_SEND_SIZE=64", "LOCAL_SEND_SIZE=0"},
	} {
		text := strings.ReplaceAll(good, change[0], change[1])
		if text == good {
			t.Fatalf("%q is not in the report", change[0])
		}
		if _, err := parseNetperf([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzParseNetperf(f *testing.F) {
	f.Add(testdata(f, "netperf.txt"))
	f.Add([]byte("PROTOCOL=UDP\nDIRECTION=Send\nELAPSED_TIME=1e300"))
	f.Add([]byte("establish control: are you sure there is a netserver listening?"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseNetperf(text)
		if err != nil {
			return
		}
		if r.Measured.Seconds <= 0 || r.Payload < 1 || r.Remote.All.Arrived() < 0 || r.Remote.All.Lost < 0 {
			t.Fatalf("accepted %+v", r)
		}
		if _, err := NewStream(r, Report{Tool: Netperf}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPrime(t *testing.T) {
	l := newLab(t)
	s, r, d := l.node("s"), l.node("r"), l.node("d")
	from, to := NetperfFlow(senderAddr, receiverAddr)
	must[any](d, "watch", Watch{Interface: "inside", Protocol: UDP, Max: 10})
	must[any](r, "answer", Answer{At: to, Count: 2})
	if err := r.ask("answer", Answer{At: to, Count: 2}, nil); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("port taken: %v", err)
	}
	// The failed one is not to be waited for: ask anew.
	r.close()
	r = l.node("r")
	must[any](r, "answer", Answer{At: to, Count: 2})
	must[any](s, "prime", Prime{From: from, To: to, FrameSize: 110, Count: 2})
	must[any](r, "answered", nil)
	got := must[Lengths](d, "watched", nil)
	if c := got.Check(110); !c.OK || got.Count != 2 {
		t.Errorf("%+v: %+v", c, got)
	}
	// Both ports are free again.
	must[any](r, "answer", Answer{At: to, Count: 1})
	must[any](s, "prime", Prime{From: from, To: to, FrameSize: 64, Count: 1})
	must[any](r, "answered", nil)
	if err := s.ask("prime", Prime{From: from, To: to, FrameSize: 64, Count: 1}, nil); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody answers: %v", err)
	}
}

// Reverse-path filtering is proved by the kernel's own counter.
func TestSpoofed(t *testing.T) {
	l := newLab(t)
	s, d := l.node("s"), l.node("d")
	p := probe(3)
	p.Source, p.Warmup, p.Timeout = netip.MustParseAddr("192.0.2.1"), 0, 20*time.Millisecond
	spoof := func() []Check {
		before := must[Snapshot](d, "snap", nil)
		trips := must[RoundTrips](s, "intrude", Intrusion{Probe: p, Interface: "inside"})
		diff, err := must[Snapshot](d, "snap", nil).Since(before)
		if err != nil {
			t.Fatal(err)
		}
		return trips.Spoofed(diff, "inside")
	}
	l.in("d", "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.inside.rp_filter=0")
	if bad := failed(spoof()); len(bad) != 1 {
		t.Errorf("without a filter: %q", bad)
	}
	l.in("d", "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=1")
	allOK(t, spoof())
}
