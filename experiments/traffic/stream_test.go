package traffic

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestStreamErrors(t *testing.T) {
	l := newLab(t)
	s, r := l.node("s"), l.node("r")
	send := Send{Target: receiverAddr, FrameSize: 64, Duration: time.Second}
	if err := s.ask("send", send, nil); err == nil || !strings.Contains(err.Error(), "Connection refused") {
		t.Errorf("no server: %v", err)
	}
	must[any](r, "serve", Serve{Address: receiverAddr})
	if err := l.node("r").ask("serve", Serve{Address: receiverAddr}, nil); err == nil || !strings.Contains(err.Error(), "use another port") {
		t.Errorf("port taken: %v", err)
	}
	must[any](r, "close", nil)
	if err := r.ask("served", nil, nil); err == nil {
		t.Error("a server that was killed gave a report")
	}
	if err := r.ask("serve", Serve{Address: netip.MustParseAddr("192.0.2.1")}, nil); err == nil || !strings.Contains(err.Error(), "Cannot assign") {
		t.Errorf("an address that is not here: %v", err)
	}
	for want, change := range map[string]func(*Send){
		"duration":    func(s *Send) { s.Duration = 1500 * time.Millisecond },
		"omit":        func(s *Send) { s.Omit = time.Millisecond },
		"rate":        func(s *Send) { s.Rate = -1 },
		"frame_size":  func(s *Send) { s.FrameSize = 40 },
		"IPv4 addres": func(s *Send) { s.Target = netip.Addr{} },
	} {
		bad := send
		change(&bad)
		if err := s.ask("send", bad, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// However a stream ends, no process is left in the namespaces.
func TestStreamCancelled(t *testing.T) {
	l := newLab(t)
	s, r := l.node("s"), l.node("r")
	pids := func(node string) int { return len(strings.Fields(l.run("ip", "netns", "pids", l.prefix+node))) }
	must[any](r, "serve", Serve{Address: receiverAddr})
	if n := pids("r"); n != 2 {
		t.Errorf("%d processes with a server running", n)
	}
	s.send("send", Send{Target: receiverAddr, FrameSize: 64, Duration: time.Minute, Rate: 1e6})
	time.Sleep(300 * time.Millisecond)
	began := time.Now()
	s.cancel()
	if err := s.answer(nil); err == nil || !strings.Contains(err.Error(), "canceled") || time.Since(began) > time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	must[any](r, "close", nil)
	if pids("s") != 1 || pids("r") != 1 {
		t.Errorf("%d and %d processes left", pids("s"), pids("r"))
	}
	// The node itself is killed: its server goes with it.
	must[any](r, "serve", Serve{Address: receiverAddr})
	r.cmd.Process.Kill()
	r.cmd.Wait()
	for began := time.Now(); pids("r") > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 2*time.Second {
			t.Fatal("iperf3 outlived the process that started it")
		}
	}
}

func TestWatch(t *testing.T) {
	l := newLab(t)
	s, d := l.node("s"), l.node("d")
	for _, frame := range []int{64, 1518} {
		must[any](d, "watch", Watch{Interface: "inside", Protocol: ICMP, Max: 15})
		p := probe(50)
		p.FrameSize = frame
		must[RoundTrips](s, "probe", p)
		got := must[Lengths](d, "watched", nil)
		if got.Count != 15 || got.Min != frame || got.Max != frame || got.Histogram[frame] != 15 || got.Missed != 0 {
			t.Errorf("frame %d: %+v", frame, got)
		}
		if c := got.Check(frame); !c.OK {
			t.Errorf("%+v", c)
		}
		if c := got.Check(frame + 1); c.OK {
			t.Errorf("%+v", c)
		}
	}
	if c := (Lengths{}).Check(64); c.OK {
		t.Error("no frame at all had the right length")
	}

	r := l.node("r")
	must[any](d, "watch", Watch{Interface: "inside", Protocol: UDP, Max: 1000})
	must[any](r, "serve", Serve{Address: receiverAddr})
	must[Report](s, "send", Send{Target: receiverAddr, FrameSize: 128, Duration: time.Second, Rate: 5e5})
	got := must[Lengths](d, "watched", nil)
	if c := got.Check(128); !c.OK || got.Histogram[handshakePayload+PayloadOverhead] != 1 {
		t.Errorf("%+v: %+v", c, got)
	}

	// An offload that makes one packet of ten frames is seen.
	l.in("s", "ethtool", "-K", "inside", "tx", "on", "gso", "on", "tx-udp-segmentation", "on")
	must[any](d, "watch", Watch{Interface: "inside", Protocol: UDP, Max: 1000})
	must[any](s, "superframe", nil)
	time.Sleep(50 * time.Millisecond)
	got = must[Lengths](d, "watched", nil)
	if c := got.Check(64); c.OK || got.Max != 180+PayloadOverhead || !strings.Contains(c.Detail, "offload") {
		t.Errorf("%+v: %+v", c, got)
	}

	for _, bad := range []Watch{{"inside", "tcp", 1}, {"inside", UDP, 0}, {"nowhere", UDP, 1}} {
		if err := d.ask("watch", bad, nil); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The reports are real ones of iperf3 3.12, of a stream with a warm-up and with loss in both parts.
func TestParseReport(t *testing.T) {
	sender, err := parseReport(testdata(t, "iperf3-client.json"))
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := parseReport(testdata(t, "iperf3-server.json"))
	if err != nil {
		t.Fatal(err)
	}
	if sender.Measured.Datagrams != 18610 || sender.All.Datagrams != 17460+18610 || sender.Payload != 18 || sender.Version != "iperf 3.12" {
		t.Errorf("%+v", sender)
	}
	if receiver.Measured.Lost != 5290 || receiver.All.Lost != 4996+5290 || receiver.Measured.Arrived() != 239796/18 {
		t.Errorf("%+v", receiver)
	}
	s, err := NewStream(sender, receiver)
	if err != nil {
		t.Fatal(err)
	}
	if want := 239796 * 8 / 0.961817; s.ReceiverBitRate < want*0.9999 || s.ReceiverBitRate > want*1.0001 || s.Lost != 5290 || s.ReceiverFrames != 13322 {
		t.Errorf("%+v", s)
	}
	for name, pair := range map[string][2]Report{
		"two senders":   {sender, sender},
		"two receivers": {receiver, receiver},
		"swapped":       {receiver, sender},
		"other size":    {sender, {Payload: 20, All: receiver.All, Measured: receiver.Measured}},
		"more received": {{Sender: true, Payload: 18}, receiver},
	} {
		if _, err := NewStream(pair[0], pair[1]); err == nil {
			t.Error(name)
		}
	}
}

func TestParseReportRefuses(t *testing.T) {
	good := string(testdata(t, "iperf3-server.json"))
	for want, change := range map[string][2]string{
		"not whole":          {`"intervals"`, `"other"`},
		"not one UDP stream": {`"protocol": "UDP"`, `"protocol": "TCP"`},
		"contradicts itself": {`"lost_packets": 4996`, `"lost_packets": 1`},
		"in its sum": {`"bytes": 239796,
   "bits_per_second": 1994524.9460136387,
   "jitter_ms": 0.05707810655762847,
   "lost_packets": 5290,
   "packets": 18612,
   "lost_percent": 28.422523103374168,
   "sender": false
  },
  "cpu`, `"bytes": 1, "sender": false
  },
  "cpu`},
		"the server is busy": {`"start"`, `"error": "the server is busy", "start"`},
		"parse":              {`{`, `{{`},
	} {
		text := strings.ReplaceAll(good, change[0], change[1])
		if text == good {
			t.Fatalf("%q is not in the report", change[0])
		}
		if _, err := parseReport([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add(testdata(f, "iperf3-client.json"))
	f.Add(testdata(f, "iperf3-server.json"))
	f.Add([]byte(`{"error":"unable to connect to server: Connection refused"}`))
	f.Add([]byte(`{"start":{"test_start":{"protocol":"UDP","num_streams":1,"blksize":16}},"intervals":[{"sum":{"packets":1e300}}],"end":{"sum_sent":{},"sum_received":{}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseReport(text)
		if err != nil {
			return
		}
		if r.Measured.Seconds <= 0 || r.All.Arrived() < 0 || r.Payload < minPayload {
			t.Fatalf("accepted %+v", r)
		}
		NewStream(r, r)
	})
}

func TestSenderBound(t *testing.T) {
	cpu := func(idle, softirq float64) Snapshot {
		return Snapshot{CPUs: []CPU{{Idle: 1}, {CPU: 1, Idle: idle, SoftIRQ: softirq, System: 1 - idle - softirq}}}
	}
	tally := func(n, lost int64) Report { return Report{All: Tally{Datagrams: n, Lost: lost}} }
	stream := Stream{SenderFrames: 1000, ReceiverFrames: 1000, Sender: tally(1000, 0)}
	lossy := Stream{SenderFrames: 1000, ReceiverFrames: 900, Sender: tally(1000, 0)}
	rated := stream
	rated.SenderBitRate, rated.Sender.Rate = 999, 1000
	socket := Snapshot{Protocols: map[string]map[string]int64{"Udp": {"RcvbufErrors": 50}}}
	for name, c := range map[string]struct {
		stream        Stream
		dut, receiver Snapshot
		bound         bool
	}{
		"DUT idle":              {stream, cpu(0.5, 0.3), Snapshot{}, true},
		"DUT saturated":         {stream, cpu(0.02, 0.6), Snapshot{}, false},
		"busy with other work":  {stream, cpu(0, 0.01), Snapshot{}, true},
		"loss":                  {lossy, cpu(0.5, 0.3), Snapshot{}, false},
		"all that was asked":    {rated, cpu(0, 0.9), Snapshot{}, true},
		"receiver's own socket": {lossy, cpu(0, 0.9), socket, true},
		"nothing sent":          {Stream{}, cpu(0, 0.9), Snapshot{}, true},
	} {
		if bound, why := SenderBound(c.stream, c.dut, c.receiver); bound != c.bound || bound != (why != "") {
			t.Errorf("%s: %v %q", name, bound, why)
		}
	}
}

// TestSaturatedShortly: a load of some ticks of the kernel's accounting begins and ends within one.
func TestSaturatedShortly(t *testing.T) {
	for _, c := range []struct {
		idle, busy float64 // seconds
		want       bool
	}{
		{0, 0.05, true},
		{0.02, 0.04, true},
		{0.03, 0.04, false},
		{0.3, 2.7, true},
		{0.33, 2.67, false},
	} {
		if _, got := Saturated(Snapshot{CPUs: []CPU{{SoftIRQ: c.busy, Idle: c.idle}}}); got != c.want {
			t.Errorf("%v s busy and %v s idle: got %t", c.busy, c.idle, got)
		}
	}
}
