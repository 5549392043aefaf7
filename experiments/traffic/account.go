package traffic

import "fmt"

// An Account is everything that was counted while a load ran, from before its warm-up to after its
// end, and holds it against what the load's own ends say. Because neighbours are permanent and IPv6 is
// off on the links, nothing else is on them, and every frame has to be accounted for:
//
//	sender ─ inside ─→ DUT ─ rule ─→ DUT ─ outside ─→ receiver
//	       h0      h1        h2           h3        h4
//
// h0 to h4 are counted by five counters that know nothing of each other; the answers (or the
// acknowledgements of a stream's control connection) come back by five more. Without loss all are
// equal. With loss, the sum of the differences is the loss.
type Account struct {
	FrameSize int    `json:"frame_size"`
	Inside    string `json:"inside"` // interface at both ends of the link between sender and DUT
	Outside   string `json:"outside"`
	// Lag is by how many frames an interface's count of what it sent may be behind: virtio-net counts a
	// frame when it gives its buffer back, which can be as late as at the next frame
	// (free_old_xmit and virtqueue_enable_cb_delayed in drivers/net/virtio_net.c). veth has none.
	Lag int64 `json:"lag,omitempty"`
	// What was counted in between; see [Snapshot.Since].
	Sender   Snapshot `json:"sender"`
	DUT      Snapshot `json:"dut"`
	Receiver Snapshot `json:"receiver"`
	// Rule is nil where the firewall has no rule that counts.
	Rule *Rule `json:"rule,omitempty"`
}

// Rule is what the entries that match the load counted in between. Bytes are those of IP packets.
type Rule struct {
	FromSender   Count `json:"from_sender"`
	FromReceiver Count `json:"from_receiver"`
	// Combined is true where one rule serves both directions, and FromSender then counts both.
	Combined bool `json:"combined,omitempty"`
}

// Count is packets and their bytes.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// A ledger collects checks. lag is the [Account]'s.
type ledger struct {
	checks []Check
	lag    int64
}

// exact adds a check of two counts that must be equal.
func (l *ledger) exact(name string, want, got int64, detail string) {
	l.within(name, want, got, 0, detail)
}

// within adds a check of two counts that may be apart by up to slack, either way.
func (l *ledger) within(name string, want, got, slack int64, detail string) {
	l.checks = append(l.checks, Check{Name: name, Want: want, Got: got, OK: abs(want-got) <= slack, Detail: detail})
}

// hop adds a check of a count that may fall behind the one before it by up to loss. One of the two is
// of frames sent.
func (l *ledger) hop(name string, before, after, loss int64) {
	l.checks = append(l.checks, Check{
		Name: name, Want: before, Got: after, OK: after <= before+l.lag && before-after <= loss+l.lag,
		Detail: lossDetail(loss),
	})
}

// sent adds a check of two counts that must be equal, one of which is of frames sent.
func (l *ledger) sent(name string, want, got int64) { l.within(name, want, got, l.lag, "") }

// atMost adds a check of a count that has a limit.
func (l *ledger) atMost(name string, limit, got int64, detail string) {
	l.checks = append(l.checks, Check{Name: name, Want: limit, Got: got, OK: got <= limit, Detail: detail})
}

// answers adds the check of the answers that the prober counted against those that its kernel got, and
// returns how many came late: when nobody waited for them any more, so that the probe counts as lost
// though none of its frames was. On a machine that has much else to do they do come.
func (l *ledger) answers(counted, got, loss int64) (late int64) {
	late = max(0, got-counted)
	l.checks = append(l.checks, Check{
		Name: "sender got every answer that was counted", Want: counted, Got: got, OK: got >= counted && late <= loss,
		Detail: lateDetail(late),
	})
	return late
}

func lateDetail(late int64) string {
	if late == 0 {
		return ""
	}
	return fmt.Sprintf("%d answers came when nobody waited for them any more", late)
}

func lossDetail(loss int64) string {
	if loss == 0 {
		return ""
	}
	return fmt.Sprintf("may be apart by the loss of %d", loss)
}

func (s Snapshot) protocol(protocol, counter string) int64 { return s.Protocols[protocol][counter] }

// segments is how many segments of a stream's control connection a node sent into a link, those sent
// again included. TCP counts for the node as a whole, so where a node is also managed over the
// network, by SSH, its count holds the segments of that too: the link's are then what is left of its
// frames without datagrams and ICMP, and TCP's count is only their limit.
func (a Account) segments(s Snapshot, link string) int64 {
	counted := s.protocol("Tcp", "OutSegs") + s.protocol("Tcp", "RetransSegs")
	if !a.managed(s) {
		return counted
	}
	rest := int64(s.Interfaces[link].TxPackets) - s.protocol("Udp", "OutDatagrams") - s.protocol("Icmp", "OutMsgs")
	return min(counted, max(0, rest))
}

// managed reports whether a node sent anything over an interface that is not on a link.
func (a Account) managed(s Snapshot) bool {
	for name, i := range s.Interfaces {
		if name != "lo" && name != a.Inside && name != a.Outside && i.TxPackets > 0 {
			return true
		}
	}
	return false
}

// path adds the checks that hold for every load, given how many frames it says it lost, and returns
// how many the counters say were lost on the way there and back.
func (a Account) path(l *ledger, loss int64) (there, back int64) {
	sIn, dIn := a.Sender.Interfaces[a.Inside], a.DUT.Interfaces[a.Inside]
	dOut, rOut := a.DUT.Interfaces[a.Outside], a.Receiver.Interfaces[a.Outside]
	n := func(u uint64) int64 { return int64(u) }

	l.hop("sender's frames reached the DUT", n(sIn.TxPackets), n(dIn.RxPackets), loss)
	a.rule(l, loss)
	l.hop("DUT forwarded the sender's frames", n(dIn.RxPackets), n(dOut.TxPackets), loss)
	l.hop("receiver got what the DUT sent", n(dOut.TxPackets), n(rOut.RxPackets), loss)
	l.hop("receiver's frames reached the DUT", n(rOut.TxPackets), n(dOut.RxPackets), loss)
	l.hop("DUT forwarded the receiver's frames", n(dOut.RxPackets), n(dIn.TxPackets), loss)
	l.hop("sender got what the DUT sent", n(dIn.TxPackets), n(sIn.RxPackets), loss)

	drops := sIn.Drops() + dIn.Drops() + dOut.Drops() + rOut.Drops()
	l.atMost("no interface drops unaccounted for", loss, n(drops), lossDetail(loss))
	l.atMost("no softnet drops unaccounted for", loss, a.softnetDropped(), lossDetail(loss))
	return n(sIn.TxPackets) - n(rOut.RxPackets), n(rOut.TxPackets) - n(sIn.RxPackets)
}

// rule adds the checks of the matching rule: it counted the packets that the DUT got, and their bytes
// less the Ethernet headers.
func (a Account) rule(l *ledger, loss int64) {
	if a.Rule == nil {
		return
	}
	in, out := a.DUT.Interfaces[a.Inside], a.DUT.Interfaces[a.Outside]
	one := func(of string, rule Count, packets, bytes uint64) {
		l.hop("matching rule counted "+of, int64(packets), int64(rule.Packets), loss)
		l.within("bytes of "+of+" at the rule", int64(bytes-EthernetHeader*packets), int64(rule.Bytes),
			loss*int64(a.FrameSize), lossDetail(loss))
	}
	if a.Rule.Combined {
		one("what the DUT got", a.Rule.FromSender, in.RxPackets+out.RxPackets, in.RxBytes+out.RxBytes)
		return
	}
	one("what the DUT got from the sender", a.Rule.FromSender, in.RxPackets, in.RxBytes)
	one("what the DUT got from the receiver", a.Rule.FromReceiver, out.RxPackets, out.RxBytes)
}

// softnetDropped counts each kernel once, however many nodes it runs.
func (a Account) softnetDropped() (n int64) {
	seen := map[string]bool{}
	for _, s := range []Snapshot{a.Sender, a.DUT, a.Receiver} {
		if !seen[s.Kernel] {
			n += int64(s.SoftnetDropped())
		}
		seen[s.Kernel] = true
	}
	return n
}

// Latency holds the counters against a [Probe]'s round trips.
func (a Account) Latency(r RoundTrips) []Check {
	l := ledger{lag: a.Lag}
	sent := int64(r.Sent + r.WarmupSent)
	answered := int64(r.Received + r.WarmupReceived)
	loss := sent - answered
	frames := int64(a.DUT.Interfaces[a.Inside].RxPackets)

	l.exact("sender sent every probe", sent, a.Sender.protocol("Icmp", "OutEchos"), "")
	l.sent("sender sent nothing but probes", sent, int64(a.Sender.Interfaces[a.Inside].TxPackets)+int64(a.Sender.Interfaces[a.Inside].TxDropped))
	there, back := a.path(&l, loss)
	l.sent("receiver answered every probe it got", int64(a.Receiver.Interfaces[a.Outside].RxPackets), int64(a.Receiver.Interfaces[a.Outside].TxPackets))
	l.exact("bytes of the probes at the DUT (frame size - 4 each)", frames*int64(a.FrameSize-FCS), int64(a.DUT.Interfaces[a.Inside].RxBytes), "")
	late := l.answers(answered+int64(r.Duplicates), a.Sender.protocol("Icmp", "InEchoReps"), loss)
	l.within("frames lost on the way are the probes lost", loss-late, there+back+int64(a.Sender.Interfaces[a.Inside].TxDropped), 2*a.Lag, lateDetail(late))
	return l.checks
}

// Stream holds the counters against a [Stream].
//
// Three things are on the links beside the datagrams that are reported: the program's own datagrams
// ([extras]), its control connection (as many segments as TCP counts), and at the end a few
// datagrams that the receiver's socket got but the program no longer read. These last ones the receiver
// cannot report as lost, since no later one came: they are what was sent beyond its last number.
func (a Account) Stream(s Stream) []Check {
	l := ledger{lag: a.Lag}
	x := extrasOf(s.Sender.Tool)
	sent, seen := s.Sender.All.Datagrams, s.Receiver.All
	loss, unread := max(0, sent-seen.Arrived())+x.most-x.least, max(0, sent-seen.Datagrams)
	sender, receiver := a.Sender.Interfaces[a.Inside], a.Receiver.Interfaces[a.Outside]
	var refused int64
	if x.countsRefused {
		refused = a.Sender.protocol("Udp", "SndbufErrors")
	}
	again := a.Sender.protocol("Tcp", "RetransSegs") + a.Receiver.protocol("Tcp", "RetransSegs")

	l.within("sender's kernel sent what "+x.tool+" reports", sent+(x.least+x.most)/2, a.Sender.protocol("Udp", "OutDatagrams")+refused,
		uncounted+(x.most-x.least)/2, x.what+" included")
	l.hop("sender's frames are datagrams and control connection",
		a.Sender.protocol("Udp", "OutDatagrams")+a.segments(a.Sender, a.Inside), int64(sender.TxPackets), loss)
	there, _ := a.path(&l, loss+again)
	l.sent("receiver's frames are hand-shake, control connection and ICMP",
		a.Receiver.protocol("Udp", "OutDatagrams")+a.segments(a.Receiver, a.Outside)+a.Receiver.protocol("Icmp", "OutMsgs"), int64(receiver.TxPackets))
	a.datagramBytes(&l, x, a.Sender.protocol("Udp", "OutDatagrams")+refused-sent)
	l.within(x.tool+" reports what the receiver's kernel gave it", a.Receiver.protocol("Udp", "InDatagrams"), seen.Arrived()+1, uncounted, x.what+" included")
	counted := there + refused + a.queueLoss() + a.Receiver.protocol("Udp", "InErrors")
	l.within("loss counted is the loss reported", seen.Lost, counted, unread+again+uncounted+x.most-x.least+2*a.Lag,
		fmt.Sprintf("%d lost in the receiver's socket; %d sent after the last one that it read", a.Receiver.protocol("Udp", "RcvbufErrors"), unread))
	return l.checks
}

// extras are the datagrams that a program sends beside those that it reports. The receiving end reads
// one of them.
type extras struct {
	tool        string
	what        string
	least, most int64
	payload     int64 // bytes of each
	// countsRefused is true where the program's count of what it sent includes what the kernel refused.
	countsRefused bool
}

// extrasOf is what is known of a program: iperf3's hand-shake, and the empty datagrams with which netperf
// ends, of which it sends three unless the receiver's kernel has answered the first that nobody listens.
func extrasOf(tool string) extras {
	if tool == netperf {
		return extras{tool: netperf, what: "empty datagrams at the end", least: 1, most: 3}
	}
	return extras{tool: iperf3, what: "hand-shake", least: 1, most: 1, payload: handshakePayload, countsRefused: true}
}

// uncounted is how many datagrams a program may handle and not count: since 3.16 iperf3 stops the thread that
// does so, which can be between the one and the other; and netperf's last datagrams may be lost.
const uncounted = 1

// queueLoss is what the sender's queueing discipline dropped behind the back of the socket.
func (a Account) queueLoss() int64 {
	sent := a.Sender.protocol("Udp", "OutDatagrams") + a.segments(a.Sender, a.Inside)
	return sent - int64(a.Sender.Interfaces[a.Inside].TxPackets)
}

// A segment of the control connection has headers of this many bytes in a frame without FCS, TCP options
// among them or not, and all segments together carry no more than controlPayload: names of
// parameters and results in JSON, about 1,000 bytes in iperf3 3.12; one message of 656 bytes in netperf 2.7.
const (
	minSegment     = EthernetHeader + IPv4Header + 20
	maxHeaders     = minSegment + 40
	controlPayload = 4096
)

// datagramBytes adds the check of the frame size at the DUT, given how many extra datagrams were sent. What remains of the bytes when every
// datagram is taken to have the size must be what so many segments can have: with 5,000 datagrams or
// more, one byte more or less in each shows.
func (a Account) datagramBytes(l *ledger, x extras, extra int64) {
	in := a.DUT.Interfaces[a.Inside]
	segments := a.segments(a.Sender, a.Inside)
	extra = min(max(extra, x.least), x.most)
	datagrams := int64(in.RxPackets) - segments - extra
	size := int64(a.FrameSize - FCS)
	rest := int64(in.RxBytes) - datagrams*size - extra*(x.payload+PayloadOverhead-FCS)
	got := any(size)
	// A segment that was lost before the DUT, and sent again, is among the segments twice.
	again := a.Sender.protocol("Tcp", "RetransSegs") + a.Lag + x.most - x.least
	least, most := segments*minSegment, segments*maxHeaders+controlPayload
	ok := datagrams > 0 && rest >= least-again*maxHeaders && rest <= most+again*size
	if !ok {
		got = float64(in.RxBytes) / float64(max(in.RxPackets, 1))
	}
	l.checks = append(l.checks, Check{
		Name: "bytes of a datagram's frame at the DUT (frame size - 4)", Want: size, Got: got, OK: ok,
		Detail: fmt.Sprintf("%d datagrams; %d bytes are left for %d segments of the control connection", datagrams, rest, segments),
	})
}

// Dropped is the positive control of a rule-set: the probes of an [Intrusion] reached the DUT and none
// was answered. firewall is what the DUT counted meanwhile, and inside the interface they came by.
func (r RoundTrips) Dropped(firewall Snapshot, inside string) []Check {
	var l ledger
	l.exact("probes from an address that no entry accepts reached the DUT", int64(r.Sent+r.WarmupSent), int64(firewall.Interfaces[inside].RxPackets), "")
	l.exact("probes from an address that no entry accepts were dropped", 0, int64(r.Received+r.WarmupReceived+r.Duplicates), "")
	return l.checks
}

// Passed is the other half of the control: every probe that should pass was answered.
func (r RoundTrips) Passed() []Check {
	var l ledger
	l.exact("probes that should pass passed", int64(r.Sent+r.WarmupSent), int64(r.Received+r.WarmupReceived), "")
	return l.checks
}

// Load is how many packets of a stream the DUT got, from both sides, and how many of them were datagrams.
func (a Account) Load() (packets, datagrams uint64) {
	packets = a.DUT.Interfaces[a.Inside].RxPackets + a.DUT.Interfaces[a.Outside].RxPackets
	others := a.segments(a.Sender, a.Inside) + a.segments(a.Receiver, a.Outside) +
		a.Sender.protocol("Icmp", "OutMsgs") + a.Receiver.protocol("Icmp", "OutMsgs")
	return packets, packets - min(packets, uint64(max(0, others)))
}

// Spoofed is the positive control of a reverse-path filter: probes from an address that the DUT has no
// route to reached it, and the filter dropped every one. firewall is what the DUT counted meanwhile, and
// inside the interface they came by.
func (r RoundTrips) Spoofed(firewall Snapshot, inside string) []Check {
	var l ledger
	sent := int64(r.Sent + r.WarmupSent)
	l.exact("probes with a spoofed source reached the DUT", sent, int64(firewall.Interfaces[inside].RxPackets), "")
	l.exact("reverse-path filter dropped the probes with a spoofed source", sent, firewall.protocol("TcpExt", "IPReversePathFilter"), "")
	return l.checks
}
