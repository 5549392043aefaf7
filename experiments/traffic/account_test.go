package traffic

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// firewall loads an nftables table with a rule that counts for each direction, or one for both.
func (l *lab) firewall(combined bool) {
	l.t.Helper()
	rules := `ip saddr 10.78.2.2 counter accept; ip saddr 10.78.1.1 counter accept;`
	if combined {
		rules = `ip saddr { 10.78.2.2, 10.78.1.1 } counter accept;`
	}
	l.in("d", "nft", "table ip t { chain c { type filter hook forward priority 0; policy drop; "+rules+" }; }")
}

// ruleCounters reads the counters of the rules, in their order.
func (l *lab) ruleCounters(combined bool) Rule {
	l.t.Helper()
	var ruleset struct {
		Nftables []struct {
			Rule *struct {
				Expr []struct {
					Counter *Count
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(l.in("d", "nft", "-j", "list", "table", "ip", "t")), &ruleset); err != nil {
		l.t.Fatal(err)
	}
	var counts []Count
	for _, o := range ruleset.Nftables {
		if o.Rule == nil {
			continue
		}
		for _, e := range o.Rule.Expr {
			if e.Counter != nil {
				counts = append(counts, *e.Counter)
			}
		}
	}
	if combined {
		return Rule{FromSender: counts[0], Combined: true}
	}
	return Rule{FromSender: counts[1], FromReceiver: counts[0]}
}

// bench is a lab with a node in each namespace.
type bench struct {
	*lab
	s, d, r  *node
	combined bool
}

func newBench(t testing.TB, combined bool) *bench {
	l := newLab(t)
	b := &bench{lab: l, combined: combined, s: l.node("s"), d: l.node("d"), r: l.node("r")}
	l.firewall(combined)
	return b
}

// counted does something between two snapshots of everything.
func (b *bench) counted(frame int, do func()) Account {
	b.t.Helper()
	snap := func() [3]Snapshot {
		return [3]Snapshot{must[Snapshot](b.s, "snap", nil), must[Snapshot](b.d, "snap", nil), must[Snapshot](b.r, "snap", nil)}
	}
	before, rulesBefore := snap(), b.ruleCounters(b.combined)
	do()
	after, rules := snap(), b.ruleCounters(b.combined)
	var diff [3]Snapshot
	for i := range after {
		var err error
		if diff[i], err = after[i].Since(before[i]); err != nil {
			b.t.Fatal(err)
		}
	}
	for _, c := range []struct{ now, was *Count }{{&rules.FromSender, &rulesBefore.FromSender}, {&rules.FromReceiver, &rulesBefore.FromReceiver}} {
		c.now.Packets -= c.was.Packets
		c.now.Bytes -= c.was.Bytes
	}
	return Account{FrameSize: frame, Inside: "inside", Outside: "outside", Sender: diff[0], DUT: diff[1], Receiver: diff[2], Rule: &rules}
}

// stream sends a stream and joins both ends' reports.
func (b *bench) stream(send Send) Stream {
	b.t.Helper()
	send.Target = receiverAddr
	must[any](b.r, "serve", Serve{Tool: send.Tool, Address: receiverAddr})
	sender := must[Report](b.s, "send", send)
	receiver := must[Report](b.r, "served", nil)
	s, err := NewStream(sender, receiver)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// allOK fails the test unless there are checks and all hold.
func allOK(t testing.TB, checks []Check) {
	t.Helper()
	if len(checks) == 0 {
		t.Error("no checks")
	}
	for _, c := range checks {
		if !c.OK {
			t.Errorf("%s: want %v, got %v (%s)", c.Name, c.Want, c.Got, c.Detail)
		}
	}
}

func failed(checks []Check) (names []string) {
	for _, c := range checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestLatencyAccount(t *testing.T) {
	for _, combined := range []bool{false, true} {
		b := newBench(t, combined)
		for _, frame := range []int{64, 1518} {
			t.Run(fmt.Sprintf("combined %v frame %d", combined, frame), func(t *testing.T) {
				p := probe(50)
				p.FrameSize = frame
				var trips RoundTrips
				a := b.counted(frame, func() { trips = must[RoundTrips](b.s, "probe", p) })
				allOK(t, a.Latency(trips))
				if n := a.DUT.Interfaces["inside"].RxPackets; n != 70 {
					t.Errorf("%d frames for 70 probes", n)
				}
			})
		}
	}
}

// Loss that the prober reports is found by the counters, and every other discrepancy is refused.
func TestLatencyAccountWithLoss(t *testing.T) {
	b := newBench(t, false)
	b.in("d", "nft", "insert rule ip t c ip saddr 10.78.2.2 numgen inc mod 10 == 3 drop")
	p := probe(80)
	p.Timeout = 200 * time.Millisecond
	var trips RoundTrips
	a := b.counted(64, func() { trips = must[RoundTrips](b.s, "probe", p) })
	// The last rule counts for the sender, the second for the receiver, and the first drops.
	if trips.Lost() != 8 || trips.WarmupReceived != 18 {
		t.Fatalf("lost %d of %d, %d of %d in the warm-up", trips.Lost(), trips.Sent, 20-trips.WarmupReceived, 20)
	}
	allOK(t, a.Latency(trips))

	for name, change := range map[string]func(*Account, *RoundTrips){
		"frames lost on the way are the probes lost":           func(a *Account, r *RoundTrips) { r.Received++ },
		"sender sent every probe":                              func(a *Account, r *RoundTrips) { r.Sent++ },
		"sender sent nothing but probes":                       func(a *Account, r *RoundTrips) { edit(&a.Sender, "inside", func(i *Interface) { i.TxPackets++ }) },
		"bytes of the probes at the DUT (frame size - 4 each)": func(a *Account, r *RoundTrips) { edit(&a.DUT, "inside", func(i *Interface) { i.RxBytes++ }) },
		"sender's frames reached the DUT":                      func(a *Account, r *RoundTrips) { edit(&a.DUT, "inside", func(i *Interface) { i.RxPackets += 2 }) },
		"receiver got what the DUT sent": func(a *Account, r *RoundTrips) {
			edit(&a.Receiver, "outside", func(i *Interface) { i.RxPackets -= 11 })
		},
		"matching rule counted what the DUT got from the sender":   func(a *Account, r *RoundTrips) { a.Rule.FromSender.Packets = 0 },
		"bytes of what the DUT got from the receiver at the rule":  func(a *Account, r *RoundTrips) { a.Rule.FromReceiver.Bytes *= 2 },
		"no softnet drops unaccounted for":                         func(a *Account, r *RoundTrips) { a.DUT.Kernel = "other"; a.DUT.Softnet[0].Dropped = 11 },
		"no interface drops unaccounted for":                       func(a *Account, r *RoundTrips) { edit(&a.DUT, "outside", func(i *Interface) { i.QueueDropped = 11 }) },
		"receiver answered every probe it got":                     func(a *Account, r *RoundTrips) { edit(&a.Receiver, "outside", func(i *Interface) { i.TxPackets++ }) },
		"sender got every answer that was counted":                 func(a *Account, r *RoundTrips) { r.Duplicates++ },
		"DUT forwarded the sender's frames":                        func(a *Account, r *RoundTrips) { edit(&a.DUT, "outside", func(i *Interface) { i.TxPackets++ }) },
		"receiver's frames reached the DUT":                        func(a *Account, r *RoundTrips) { edit(&a.DUT, "outside", func(i *Interface) { i.RxPackets++ }) },
		"sender got what the DUT sent":                             func(a *Account, r *RoundTrips) { edit(&a.Sender, "inside", func(i *Interface) { i.RxPackets += 200 }) },
		"DUT forwarded the receiver's frames":                      func(a *Account, r *RoundTrips) { edit(&a.DUT, "inside", func(i *Interface) { i.TxPackets += 200 }) },
		"matching rule counted what the DUT got from the receiver": func(a *Account, r *RoundTrips) { a.Rule.FromReceiver.Packets += 11 },
	} {
		bad, r := clone(t, a), trips
		change(&bad, &r)
		if names := strings.Join(failed(bad.Latency(r)), "; "); !strings.Contains(names, name) {
			t.Errorf("%q held although it is not so (failed: %s)", name, names)
		}
	}
}

// An answer that came when nobody waited for it any more is a probe lost, without a frame lost.
func TestLatencyAccountWithLateAnswer(t *testing.T) {
	b := newBench(t, false)
	var trips RoundTrips
	a := b.counted(64, func() { trips = must[RoundTrips](b.s, "probe", probe(50)) })
	trips.Received--
	allOK(t, a.Latency(trips))
	trips.Received, trips.Duplicates = trips.Received+1, -1
	if names := failed(a.Latency(trips)); len(names) == 0 {
		t.Error("an answer that no probe lacks went unnoticed")
	}
}

// edit changes an interface of a snapshot.
func edit(s *Snapshot, name string, change func(*Interface)) {
	i := s.Interfaces[name]
	change(&i)
	s.Interfaces[name] = i
}

func clone(t *testing.T, a Account) (c Account) {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStreamAccount(t *testing.T) {
	for _, combined := range []bool{false, true} {
		b := newBench(t, combined)
		for _, send := range []Send{
			{FrameSize: 64, Duration: time.Second, Rate: 2e6},
			{FrameSize: 64, Duration: time.Second, Omit: time.Second},
			{FrameSize: 1518, Duration: time.Second},
		} {
			t.Run(fmt.Sprintf("combined %v frame %d rate %d omit %v", combined, send.FrameSize, send.Rate, send.Omit), func(t *testing.T) {
				var s Stream
				a := b.counted(send.FrameSize, func() { s = b.stream(send) })
				allOK(t, a.Stream(s))
				t.Logf("%.3f of %.3f Mbit/s, %d of %d frames, %d lost, %.0f/s, %v", s.ReceiverBitRate/1e6, s.SenderBitRate/1e6, s.ReceiverFrames, s.SenderFrames, s.Lost, s.FramesPerS, s.DurationS)
				bound, why := SenderBound(s, a.DUT, a.Receiver)
				t.Logf("sender bound: %v %s", bound, why)
				if send.Rate > 0 {
					if !bound {
						t.Error("a rate that the DUT easily carries is not sender-bound")
					}
					if s.ReceiverBitRate < 0.9*float64(send.Rate) || s.ReceiverBitRate > 1.1*float64(send.Rate) {
						t.Errorf("%v bit/s asked for, %v received", send.Rate, s.ReceiverBitRate)
					}
				}
				if s.DurationS < 0.9 || s.DurationS > 1.5 || s.OmittedS < send.Omit.Seconds()*0.9 {
					t.Errorf("measured %v s, omitted %v s", s.DurationS, s.OmittedS)
				}
			})
		}
	}
}

// Whatever does not add up is refused: frames of another size, loss that was not reported, datagrams
// that nobody sent.
func TestStreamAccountRefuses(t *testing.T) {
	b := newBench(t, false)
	var s Stream
	a := b.counted(64, func() { s = b.stream(Send{FrameSize: 64, Duration: time.Second, Rate: 1e6}) })
	allOK(t, a.Stream(s))
	n := uint64(s.Sender.All.Datagrams)
	count := func(s *Snapshot, protocol, counter string, by int64) { s.Protocols[protocol][counter] += by }
	for name, change := range map[string]func(*Account, *Stream){
		"sender's kernel sent what iperf3 reports":                      func(a *Account, s *Stream) { count(&a.Sender, "Udp", "OutDatagrams", 2) },
		"sender's frames are datagrams and control connection":          func(a *Account, s *Stream) { count(&a.Sender, "Tcp", "OutSegs", -1) },
		"receiver's frames are hand-shake, control connection and ICMP": func(a *Account, s *Stream) { count(&a.Receiver, "Tcp", "OutSegs", 1) },
		"iperf3 reports what the receiver's kernel gave it":             func(a *Account, s *Stream) { count(&a.Receiver, "Udp", "InDatagrams", -2) },
		"loss counted is the loss reported": func(a *Account, s *Stream) {
			s.Receiver.All.Lost += 3 + s.Sender.All.Datagrams - s.Receiver.All.Datagrams
		},
		"bytes of a datagram's frame at the DUT (frame size - 4)": func(a *Account, s *Stream) { edit(&a.DUT, "inside", func(i *Interface) { i.RxBytes += n }) },
		"receiver got what the DUT sent":                          func(a *Account, s *Stream) { edit(&a.Receiver, "outside", func(i *Interface) { i.RxPackets -= n / 2 }) },
		"matching rule counted what the DUT got from the sender":  func(a *Account, s *Stream) { a.Rule.FromSender.Packets /= 2 },
		"bytes of what the DUT got from the sender at the rule":   func(a *Account, s *Stream) { a.Rule.FromSender.Bytes *= 2 },
	} {
		bad, r := clone(t, a), s
		change(&bad, &r)
		if names := strings.Join(failed(bad.Stream(r)), "; "); !strings.Contains(names, name) {
			t.Errorf("%q held although it is not so (failed: %s)", name, names)
		}
	}
}

// A node that is managed over SSH sends segments that are not on the links. They are not taken for the
// stream's, and do not hide frames that nobody sent.
func TestStreamAccountOfManagedNodes(t *testing.T) {
	b := newBench(t, false)
	var s Stream
	a := b.counted(64, func() { s = b.stream(Send{FrameSize: 64, Duration: time.Second, Rate: 1e6}) })
	for _, node := range []*Snapshot{&a.Sender, &a.Receiver} {
		node.Protocols["Tcp"]["OutSegs"] += 5
		node.Interfaces["mgmt"] = Interface{TxPackets: 5, TxBytes: 5000}
	}
	allOK(t, a.Stream(s))
	edit(&a.Receiver, "outside", func(i *Interface) { i.TxPackets += 6 })
	if names := strings.Join(failed(a.Stream(s)), "; "); !strings.Contains(names, "receiver's frames are hand-shake") {
		t.Errorf("frames that nobody sent were not seen (failed: %s)", names)
	}
}
