package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	l := newLab(t)
	s := l.node("s")
	for _, size := range []int{64, 65, 512, 1518} {
		p := probe(100)
		p.FrameSize = size
		got := must[RoundTrips](s, "probe", p)
		if got.Sent != 100 || got.Received != 100 || got.WarmupSent != 20 || got.WarmupReceived != 20 || got.Duplicates != 0 || len(got.SamplesNS) != 100 {
			t.Errorf("frame %d: %+v", size, got)
		}
		for _, rtt := range got.SamplesNS {
			if rtt <= 0 || rtt > int64(time.Second) {
				t.Errorf("frame %d: a round trip of %d ns", size, rtt)
			}
		}
		if e := time.Duration(got.ElapsedNS); e < 190*time.Millisecond || e > 2*time.Second {
			t.Errorf("frame %d: 100 probes at 2 ms took %v", size, e)
		}
		if got.Source != senderAddr {
			t.Errorf("source %v", got.Source)
		}
	}
	large := probe(1)
	large.FrameSize = 1519
	if err := s.ask("probe", large, nil); err == nil || !strings.Contains(err.Error(), "larger than the MTU") {
		t.Errorf("a frame beyond the MTU: %v", err)
	}
}

// Sequence numbers have 16 bits; more probes than that are told apart all the same.
func TestProbeBeyondSequence(t *testing.T) {
	s := newLab(t).node("s")
	p := Probe{Target: netip.MustParseAddr("127.0.0.1"), FrameSize: 64, Count: 70_000}
	got := must[RoundTrips](s, "probe", p)
	if got.Received != 70_000 || got.Duplicates != 0 {
		t.Errorf("%d of %d, %d duplicates", got.Received, got.Sent, got.Duplicates)
	}
}

func TestProbeUnderWay(t *testing.T) {
	l := newLab(t)
	s, r := l.node("s"), l.node("r")
	l.in("r", "sysctl", "-qw", "net.ipv4.icmp_echo_ignore_all=1")
	must[any](r, "reflect", reflector{Delay: 50 * time.Millisecond, Copies: 2})
	p := probe(100)
	got := must[RoundTrips](s, "probe", p)
	// Twenty-five probes are under way at any moment, and each is told apart.
	if got.Received != 100 || got.WarmupReceived != 20 {
		t.Errorf("%d of 100 and %d of 20 answered", got.Received, got.WarmupReceived)
	}
	for _, rtt := range got.SamplesNS {
		if rtt < int64(50*time.Millisecond) {
			t.Errorf("a round trip of %v through a delay of 50 ms", time.Duration(rtt))
		}
	}
	// The copies of the very last answer may come after the end.
	if got.Duplicates < 119 || got.Duplicates > 120 {
		t.Errorf("%d duplicates of 120", got.Duplicates)
	}

	p.Timeout = 20 * time.Millisecond // the last fifteen or more come too late
	got = must[RoundTrips](s, "probe", p)
	if lost := got.Lost(); lost < 5 || got.Received == 0 || len(got.SamplesNS) != got.Received {
		t.Errorf("%d of 100 lost", lost)
	}
}

func TestProbeLost(t *testing.T) {
	l := newLab(t)
	l.in("d", "nft", "table ip t { chain c { type filter hook forward priority 0; policy drop; }; }")
	s := l.node("s")
	p := probe(10)
	p.Timeout = 100 * time.Millisecond
	got := must[RoundTrips](s, "probe", p)
	if got.Sent != 10 || got.Received != 0 || len(got.SamplesNS) != 0 {
		t.Errorf("%+v", got)
	}
	// A firewall that rejects is not a failure of the prober either.
	l.in("d", "nft", "add rule ip t c reject with icmp type host-unreachable")
	got = must[RoundTrips](s, "probe", p)
	if got.Sent != 10 || got.Received != 0 {
		t.Errorf("rejected: %+v", got)
	}
}

func TestProbeErrors(t *testing.T) {
	s := newLab(t).node("s")
	for want, change := range map[string]func(*Probe){
		"is there a route?":                func(p *Probe) { p.Target = netip.MustParseAddr("192.0.2.1") },
		"does this node have the address?": func(p *Probe) { p.Source = netip.MustParseAddr("192.0.2.1") },
		"frame_size = 63":                  func(p *Probe) { p.FrameSize = 63 },
		"count = 0":                        func(p *Probe) { p.Count = 0 },
		"an IPv4 address":                  func(p *Probe) { p.Target = netip.MustParseAddr("::1") },
	} {
		p := probe(1)
		change(&p)
		if err := s.ask("probe", p, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestProbeCancelled(t *testing.T) {
	s := newLab(t).node("s")
	for _, interval := range []time.Duration{2 * time.Millisecond, 10 * time.Second} {
		p := probe(100_000)
		p.Interval = interval
		s.send("probe", p)
		time.Sleep(100 * time.Millisecond)
		began := time.Now()
		s.cancel()
		err := s.answer(nil)
		if err == nil || !strings.Contains(err.Error(), "canceled") || time.Since(began) > time.Second {
			t.Errorf("interval %v: %v after %v", interval, err, time.Since(began))
		}
		s = newLab(t).node("s")
	}
}

func TestIntrusion(t *testing.T) {
	b := newBench(t, false)
	i := Intrusion{Probe: probe(5), Interface: "inside"}
	i.Warmup, i.Timeout, i.Source = 0, 100*time.Millisecond, intruderAddr
	addresses := func() string { return b.in("s", "sh", "-c", "ip -4 -o addr show inside 2>/dev/null") }
	before := addresses()

	var trips RoundTrips
	a := b.counted(64, func() { trips = must[RoundTrips](b.s, "intrude", i) })
	allOK(t, trips.Dropped(a.DUT, "inside"))
	if addresses() != before {
		t.Errorf("addresses were\n%s\nand are\n%s", before, addresses())
	}
	if len(failed(RoundTrips{Sent: 5, Received: 1}.Dropped(a.DUT, "inside"))) == 0 {
		t.Error("a probe that came through counts as dropped")
	}
	if len(failed(trips.Dropped(a.Receiver, "inside"))) == 0 {
		t.Error("probes that did not reach the DUT count as dropped by it")
	}
	if len(failed(trips.Passed())) == 0 {
		t.Error("probes that were dropped count as passed")
	}

	// What a killed process left behind does not stand in the way.
	b.in("s", "ip", "addr", "add", intruderAddr.String()+"/32", "dev", "inside")
	b.in("d", "nft", "delete", "table", "ip", "t")
	trips = must[RoundTrips](b.s, "intrude", i)
	allOK(t, trips.Passed())
	if trips.Source != intruderAddr || addresses() != before {
		t.Errorf("source %v; addresses were\n%s\nand are\n%s", trips.Source, before, addresses())
	}

	i.Count, i.Interval = 1000, time.Second
	b.s.send("intrude", i)
	time.Sleep(100 * time.Millisecond)
	b.s.cancel()
	if err := b.s.answer(nil); err == nil || addresses() != before {
		t.Errorf("cancelled: %v; addresses are\n%s", err, addresses())
	}
}

func TestStepDetector(t *testing.T) {
	const ms = int64(time.Millisecond)
	var wall, mono int64 = 1000 * ms, 0
	d := newStepDetector(func() (int64, int64) { wall += 100; mono += 100; return wall, mono })
	if err := d.check(wall+500*ms, mono+500*ms); err != nil {
		t.Errorf("time went by: %v", err)
	}
	if err := d.check(wall, mono+3*ms); err != nil {
		t.Errorf("interrupted between the readings: %v", err)
	}
	for _, step := range []int64{7000, -7000, 3 * ms, -3600_000 * ms} {
		wall += step
		err := d.check(d.read())
		var stepped *ClockStepError
		if !errors.As(err, &stepped) || abs(int64(stepped.Step)-step) > 200 || !strings.Contains(err.Error(), "chronyd") {
			t.Errorf("set by %d ns: %v", step, err)
		}
		wall -= step
	}
}

func TestChecksum(t *testing.T) {
	// RFC 1071 §3: the sum of these is ddf2.
	if got := checksum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}); got != ^uint16(0xddf2) {
		t.Errorf("%04x", got)
	}
	if a, b := checksum([]byte{1, 2, 3}), checksum([]byte{1, 2, 3, 0}); a != b {
		t.Errorf("odd length: %04x, %04x", a, b)
	}
}

func FuzzEcho(f *testing.F) {
	f.Add([]byte{0x45, 20: 0, 28: 7, 35: 7, 43: 9})
	f.Add([]byte{0x4f})
	f.Fuzz(func(t *testing.T, packet []byte) {
		s := &echoSocket{nonce: 7}
		s.parse(packet)
		parseStamp(packet)
	})
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

// pingSamples runs the system's ping on the same path, and gives back its round trips in ns.
func (l *lab) pingSamples(count int) (samples []float64) {
	out := l.in("s", "ping", "-i", "0.002", "-c", fmt.Sprint(count), "-s", "18", receiverAddr.String())
	for _, m := range pingTime.FindAllStringSubmatch(out, -1) {
		ms, _ := strconv.ParseFloat(m[1], 64)
		samples = append(samples, ms*1e6)
	}
	return samples
}

func quantile(sorted []float64, q float64) float64 { return sorted[int(q*float64(len(sorted)-1))] }

func describe(samples []float64) (median, iqr, mad float64) {
	slices.Sort(samples)
	median = quantile(samples, 0.5)
	dev := make([]float64, len(samples))
	for i, s := range samples {
		dev[i] = max(s-median, median-s)
	}
	slices.Sort(dev)
	return median, quantile(samples, 0.75) - quantile(samples, 0.25), quantile(dev, 0.5)
}

// BenchmarkAgainstPing alternates our prober and ping(8) on the same path, and reports ours over
// theirs: of the medians, and of the spreads.
func BenchmarkAgainstPing(b *testing.B) {
	l := newLab(b)
	s := l.node("s")
	var ours, theirs []float64
	for b.Loop() {
		for range 5 {
			theirs = append(theirs, l.pingSamples(300)[20:]...)
			for _, ns := range must[RoundTrips](s, "probe", probe(280)).SamplesNS {
				ours = append(ours, float64(ns))
			}
		}
	}
	m1, q1, d1 := describe(ours)
	m2, q2, d2 := describe(theirs)
	b.ReportMetric(m1/m2, "median-ratio")
	b.ReportMetric(q1/q2, "iqr-ratio")
	b.ReportMetric(d1/d2, "mad-ratio")
	b.ReportMetric(m1, "ours-ns")
	b.ReportMetric(m2, "ping-ns")
	b.ReportMetric(quantile(ours, 0.99), "ours-p99-ns")
	b.ReportMetric(quantile(theirs, 0.99), "ping-p99-ns")
	b.ReportMetric(q1, "ours-iqr-ns")
	b.ReportMetric(q2, "ping-iqr-ns")
}
