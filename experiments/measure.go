package experiments

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/rampart-bench/rampart/experiments/design"
	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/traffic"
	"github.com/rampart-bench/rampart/provision"
	"github.com/rampart-bench/rampart/testbed"
)

// The phases of a run, as they stand in its record.
const (
	phaseRenew   = "renew"
	phaseLoad    = "load"
	phaseVerify  = "verify"
	phaseControl = "control"
	phaseWarmUp  = "warm_up"
	phaseMeasure = "measure" // the load alone
	phaseAccount = "account" // what is read and checked around it
	phaseUnload  = "unload"
)

// A trial is one run under way.
type trial struct {
	lab      *Lab
	spec     Spec
	firewall firewall.Spec
	request  loadRequest
	rec      record.Record
	inner    time.Duration // of steps inside the one that is being timed
}

// Measure performs one run. The record says what became of it, also when it failed; an error means
// that a helper or its node is gone, or ctx ended, and that the run is to be redone.
func (l *Lab) Measure(ctx context.Context, spec Spec, run design.Run) (record.Record, error) {
	fw, err := spec.Firewall(run.Treatment.Firewall)
	if err != nil {
		return record.Record{}, err
	}
	t := &trial{
		lab: l, spec: spec, firewall: fw,
		request: l.request(fw, run.Treatment.Rules, spec.Seed),
		rec:     newRecord(spec, run, l.testbed.Features().Clock),
	}
	l.quiet = quietTime + spec.Measurement.MeasuringTime() + spec.Measurement.WarmupTime()
	started := time.Now()
	err = t.run(ctx)
	if err != nil && (isLost(err) || ctx.Err() != nil) {
		return record.Record{}, err
	}
	t.rec.ElapsedS = seconds(time.Since(started))
	t.judge(err)
	return t.rec, nil
}

// run is the protocol of METHOD §3, step by step.
func (t *trial) run(ctx context.Context) error {
	for _, step := range []struct {
		phase string
		do    func(context.Context) error
	}{
		{phaseRenew, t.prepare},
		{phaseLoad, t.load},
		{phaseVerify, t.verify},
		{phaseControl, t.control},
		{phaseWarmUp, t.warmUp},
		{phaseAccount, t.measure},
	} {
		if err := t.timed(step.phase, func() error { return step.do(ctx) }); err != nil {
			if isLost(err) {
				return err
			}
			// What was loaded goes, whatever became of the run.
			return errors.Join(err, t.timed(phaseUnload, func() error { return t.unload(ctx) }))
		}
	}
	if t.spec.Grouped {
		return nil // the next run may want the same rule-set
	}
	return t.timed(phaseUnload, func() error { return t.unload(ctx) })
}

// timed adds what a step took to its phase, without the steps inside it, which have phases of their own.
func (t *trial) timed(phase string, do func() error) error {
	started, before := time.Now(), t.inner
	t.inner = 0
	err := do()
	took := time.Since(started)
	t.rec.PhasesS[phase] = seconds(took-t.inner) + t.rec.PhasesS[phase]
	t.inner = before + took
	return err
}

// seconds is a duration in seconds, to the microsecond: more digits would only be noise on disk.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e6 }

// judge turns the outcome of the protocol into the record's status.
func (t *trial) judge(err error) {
	var remote *provision.RemoteError
	switch {
	case t.rec.Status == record.SenderBound && err == nil:
	case err == nil:
		t.rec.Status = record.OK
	case errors.As(err, &remote) && remote.Code == provision.CodeUnavailable:
		t.rec.Status, t.rec.Error = record.Unavailable, remote.Message
	default:
		t.rec.Status, t.rec.Error = record.Failed, err.Error()
	}
	if t.rec.Status != record.OK && t.rec.Status != record.SenderBound {
		t.rec.Metrics, t.rec.Samples = nil, nil // half a measurement is none
	}
}

// prepare makes sure that nothing of an earlier run burdens this one.
func (t *trial) prepare(ctx context.Context) error {
	if t.lab.loaded != (loadRequest{}) && !t.isLoaded() {
		if err := t.unload(ctx); err != nil {
			return err
		}
	}
	return t.lab.renewIfBurdened(ctx, t.firewall)
}

// isLoaded reports whether the firewall already holds what this run wants, from a run of its group.
func (t *trial) isLoaded() bool {
	return t.spec.Grouped && t.lab.loaded == t.request
}

func (t *trial) load(ctx context.Context) error {
	if t.isLoaded() {
		return nil
	}
	took, err := t.lab.load(ctx, t.request)
	if err != nil {
		return err
	}
	if t.firewall.HasRules() {
		t.metric("rule_load", took.Seconds(), "s")
	}
	return nil
}

func (t *trial) verify(ctx context.Context) error {
	checks, err := call[[]record.Check](ctx, t.lab, testbed.Firewall, methodVerify, none{})
	if err != nil {
		return err
	}
	return t.check(checks)
}

func (t *trial) unload(ctx context.Context) error {
	checks, err := t.lab.unload(ctx)
	if err != nil {
		return err
	}
	return t.check(checks)
}

// target is the address that the load goes to.
func (t *trial) target() netip.Addr { return t.request.Rules.Receiver }

// controlProbes is how many probes show that the rule-set passes or drops.
const controlProbes = 3

// control shows that the rule-set is at work: what must pass passes, and what no entry accepts is
// dropped. Without rules everything passes.
func (t *trial) control(ctx context.Context) error {
	probe := traffic.Probe{
		Target: t.target(), FrameSize: traffic.MinFrame, Count: controlProbes,
		Interval: t.lab.pace(), Timeout: answerTime,
	}
	passed, err := call[traffic.RoundTrips](ctx, t.lab, testbed.Sender, methodProbe, probe)
	if err != nil {
		return err
	}
	if err := t.check(trafficChecks(passed.Passed())); err != nil {
		return err
	}
	inside := t.lab.spec.Inside()
	probe.Source = inside.Intruder()
	if t.firewall.HasRules() {
		probe.Timeout = t.patience()
	}
	var trips traffic.RoundTrips
	seen, err := t.lab.counting(ctx, testbed.Firewall, func() (err error) {
		trips, err = call[traffic.RoundTrips](ctx, t.lab, testbed.Sender, methodIntrude, traffic.Intrusion{Probe: probe, Interface: inside.Name})
		return err
	})
	if err != nil {
		return err
	}
	checks := trips.Dropped(seen.Snapshot, inside.Name)
	if !t.firewall.HasRules() {
		checks = trips.Passed()
	}
	if err := t.check(trafficChecks(checks)); err != nil || t.firewall.RPFilter == 0 {
		return err
	}
	return t.controlSource(ctx, probe)
}

// controlSource shows that the reverse-path filter is at work: it drops what comes from an address that
// the DUT has no route to.
func (t *trial) controlSource(ctx context.Context, probe traffic.Probe) error {
	inside := t.lab.spec.Inside()
	probe.Source, probe.Timeout = unroutable(t.lab.spec), t.patience()
	var trips traffic.RoundTrips
	seen, err := t.lab.counted(ctx, testbed.Firewall, func() (err error) {
		trips, err = call[traffic.RoundTrips](ctx, t.lab, testbed.Sender, methodIntrude, traffic.Intrusion{Probe: probe, Interface: inside.Name})
		return err
	})
	if err != nil {
		return err
	}
	return t.check(trafficChecks(trips.Spoofed(seen, inside.Name)))
}

// unroutable is an address of the networks for documentation (RFC 5737) that no link uses.
func unroutable(spec testbed.Spec) netip.Addr {
	var addr netip.Addr
	for _, text := range []string{"192.0.2.1", "198.51.100.1", "203.0.113.1"} {
		addr = netip.MustParseAddr(text)
		if !slices.ContainsFunc(spec.Links, func(l testbed.LinkSpec) bool { return l.Network.Contains(addr) }) {
			break
		}
	}
	return addr
}

// pace is the time between two probes of the control. A machine that is slow takes several frames from its
// NIC at once, and the kernel then takes all of them through connection tracking before it confirms the
// first: of echoes with one identifier it confirms one entry and drops the others (__nf_conntrack_confirm
// in net/netfilter/nf_conntrack_core.c resolves such a clash for UDP only). Seen: two of three probes lost.
func (l *Lab) pace() time.Duration {
	if l.testbed.Features().Clock == testbed.ClockTCG {
		return 250 * time.Millisecond
	}
	return time.Millisecond
}

// answerTime is how long probes wait for answers that should come: on an emulated machine that has much
// else to do, a quarter of a second was too short (seen). Where all is well they wait for none of it.
const answerTime = 3 * time.Second

// patience is how long the control waits for answers that should not come. That they do not come is
// also seen in the counters of the DUT, so the time only has to be long against a round trip.
func (t *trial) patience() time.Duration {
	if t.lab.testbed.Features().Clock == testbed.ClockTCG {
		return 200 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// watchedFrames is how many frames of the load have their length looked at.
const watchedFrames = 200

// warmUp sends the load as it will be measured while the DUT looks at the lengths of its frames.
// iperf3 warms up by itself (omit); there the first frames of the stream are looked at.
func (t *trial) warmUp(ctx context.Context) error {
	watch := traffic.Watch{Interface: t.lab.spec.Inside().Name, Protocol: traffic.UDP, Max: watchedFrames}
	if t.spec.Measurement.Kind == ICMPRTT {
		watch.Protocol = traffic.ICMP
	}
	if _, err := call[none](ctx, t.lab, testbed.Firewall, methodWatch, watch); err != nil {
		return err
	}
	if t.spec.Measurement.Kind != ICMPRTT {
		return t.prepareStream(ctx)
	}
	probe := t.probe()
	probe.Count = max(1, t.spec.Measurement.Warmup)
	if _, err := call[traffic.RoundTrips](ctx, t.lab, testbed.Sender, methodProbe, probe); err != nil {
		return err
	}
	return t.lengths(ctx)
}

// tool is the program that makes the stream.
func (t *trial) tool() string {
	if t.spec.Measurement.Kind == UDPNetperf {
		return traffic.Netperf
	}
	return traffic.Iperf3
}

// primings is how often a flow goes to and fro before it is measured.
const primings = 2

// prepareStream starts the receiving end. Before that it lets the kernel see both directions of the flow,
// unless the firewall asks for the other case. iperf3 does so by itself, with its hand-shake.
func (t *trial) prepareStream(ctx context.Context) error {
	if t.tool() == traffic.Netperf && !t.firewall.Unprimed {
		if err := t.prime(ctx); err != nil {
			return err
		}
	}
	serve := traffic.Serve{Tool: t.tool(), Address: t.target(), Apart: !t.lab.testbed.Features().DedicatedKernel}
	_, err := call[none](ctx, t.lab, testbed.Receiver, methodServe, serve)
	return err
}

func (t *trial) prime(ctx context.Context) error {
	from, to := traffic.NetperfFlow(t.request.Rules.Sender, t.target())
	answer := traffic.Answer{At: to, Count: primings}
	if _, err := call[none](ctx, t.lab, testbed.Receiver, methodAnswer, answer); err != nil {
		return err
	}
	prime := traffic.Prime{From: from, To: to, FrameSize: t.rec.Treatment.FrameSize, Count: primings}
	if _, err := call[none](ctx, t.lab, testbed.Sender, methodPrime, prime); err != nil {
		return err
	}
	_, err := call[none](ctx, t.lab, testbed.Receiver, methodAnswered, none{})
	return err
}

// lengths ends the look at frames and checks them.
func (t *trial) lengths(ctx context.Context) error {
	lengths, err := call[traffic.Lengths](ctx, t.lab, testbed.Firewall, methodWatched, none{})
	if err != nil {
		return err
	}
	return t.check([]record.Check{record.Check(lengths.Check(t.rec.Treatment.FrameSize))})
}

// probe is the load of icmp_rtt without its warm-up.
func (t *trial) probe() traffic.Probe {
	m := t.spec.Measurement
	return traffic.Probe{Target: t.target(), FrameSize: t.rec.Treatment.FrameSize, Count: m.Count, Interval: m.Interval, Timeout: answerTime}
}

// measure measures, between two readings of every counter, and holds the one against the other.
func (t *trial) measure(ctx context.Context) error {
	if t.spec.Measurement.Kind == ICMPRTT {
		return t.measureLatency(ctx)
	}
	return t.measureStream(ctx)
}

func (t *trial) measureLatency(ctx context.Context) error {
	probe := t.probe()
	probe.Warmup = t.spec.Measurement.Warmup
	var trips traffic.RoundTrips
	account, did, err := t.account(ctx, func() (err error) {
		trips, err = call[traffic.RoundTrips](ctx, t.lab, testbed.Sender, methodProbe, probe)
		return err
	})
	if err != nil {
		return err
	}
	if len(trips.SamplesNS) == 0 {
		return fmt.Errorf("none of %d probes was answered", trips.Sent)
	}
	t.latency(trips)
	t.rec.Prober = &record.Prober{Late: trips.Late, Realtime: trips.Realtime}
	// A driver that does not stamp what it sends would make samples of another kind, which are never
	// to be mixed with these; veth and virtio-net both do.
	stamps := record.Check{Name: "kernel time-stamps at both ends", Want: true, Got: trips.KernelStamps, OK: trips.KernelStamps}
	checks := append([]record.Check{stamps}, trafficChecks(account.Latency(trips))...)
	packets := account.DUT.Interfaces[account.Inside].RxPackets + account.DUT.Interfaces[account.Outside].RxPackets
	return t.check(append(checks, firewallChecks(t.firewall.Proof(did, packets, 0))...))
}

func (t *trial) measureStream(ctx context.Context) error {
	m := t.spec.Measurement
	send := traffic.Send{Tool: t.tool(), Target: t.target(), FrameSize: t.rec.Treatment.FrameSize, Duration: m.Duration, Omit: m.Omit, Rate: m.Rate, Datagrams: m.Datagrams, Apart: !t.lab.testbed.Features().DedicatedKernel}
	var sent, received traffic.Report
	account, did, err := t.account(ctx, func() (err error) {
		if sent, err = call[traffic.Report](ctx, t.lab, testbed.Sender, methodSend, send); err != nil {
			return err
		}
		received, err = call[traffic.Report](ctx, t.lab, testbed.Receiver, methodReceived, none{})
		return err
	})
	if err != nil {
		return err
	}
	stream, err := traffic.NewStream(sent, received)
	if err != nil {
		return err
	}
	t.throughput(stream, account)
	packets, datagrams := account.Load()
	return errors.Join(
		t.check(trafficChecks(account.Stream(stream))),
		t.check(firewallChecks(t.firewall.Proof(did, packets, datagrams))),
		t.lengths(ctx))
}

// throughput sets the metrics of a stream: what the receiver got.
func (t *trial) throughput(s traffic.Stream, a traffic.Account) {
	t.metric("receiver_bit_rate", s.ReceiverBitRate, "bit/s")
	t.metric("receiver_frame_rate", s.FramesPerS, "1/s")
	t.metric("sender_bit_rate", s.SenderBitRate, "bit/s")
	t.metric("loss", float64(s.Lost)/float64(s.Lost+s.ReceiverFrames), "1")
	if s.Sender.Tool == traffic.Iperf3 { // netperf measures none
		t.metric("jitter", s.JitterMS*1e3, "us")
	}
	t.rec.Ends = map[string]record.End{
		string(testbed.Sender):   {CPUPercent: s.Sender.CPU, Preferred: s.Sender.Preferred},
		string(testbed.Receiver): {CPUPercent: s.Receiver.CPU, Preferred: s.Receiver.Preferred},
	}
	if bound, reason := traffic.SenderBound(s, a.DUT, a.Receiver); bound {
		t.rec.Status, t.rec.Error = record.SenderBound, reason
	}
}

// account reads every counter of every node before and after a load, and what the settings of the
// firewall did meanwhile.
func (t *trial) account(ctx context.Context, load func() error) (traffic.Account, firewall.Activity, error) {
	a := traffic.Account{
		FrameSize: t.rec.Treatment.FrameSize,
		Inside:    t.lab.spec.Inside().Name,
		Outside:   t.lab.spec.Outside().Name,
		Lag:       t.lab.testbed.Features().SentCountLag,
	}
	var err error
	var dut counted
	a.Sender, err = t.lab.counted(ctx, testbed.Sender, func() (err error) {
		a.Receiver, err = t.lab.counted(ctx, testbed.Receiver, func() (err error) {
			dut, err = t.lab.counting(ctx, testbed.Firewall, func() error { return t.timed(phaseMeasure, load) })
			return err
		})
		return err
	})
	a.DUT = dut.Snapshot
	// What a flowtable takes skips the rules and their counters; its own proof is in the settings'.
	if skipsRules := t.firewall.Flowtable && !t.firewall.Unprimed; dut.Rule != nil && !skipsRules {
		a.Rule = &traffic.Rule{
			FromSender:   traffic.Count(dut.Rule.FromSender),
			FromReceiver: traffic.Count(dut.Rule.FromReceiver),
			Combined:     dut.Rule.Combined,
		}
	}
	return a, dut.Activity, err
}

func (t *trial) metric(name string, value float64, unit string) {
	t.rec.Metrics[name] = record.Metric{Value: value, Unit: unit}
}

// check keeps checks in the record and fails the run on the first that does not hold.
func (t *trial) check(checks []record.Check) error {
	t.rec.Checks = append(t.rec.Checks, checks...)
	return firstFailure(checks)
}

// quantile is the q-quantile of sorted values by linear interpolation (R's type 7).
func quantile(sorted []int64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	if low+1 >= len(sorted) {
		return float64(sorted[len(sorted)-1])
	}
	return float64(sorted[low]) + (at-float64(low))*float64(sorted[low+1]-sorted[low])
}

// latency sets the metrics of round trips, of which there is at least one.
func (t *trial) latency(trips traffic.RoundTrips) {
	t.rec.Samples = map[string][]int64{"rtt_ns": trips.SamplesNS}
	sorted := slices.Sorted(slices.Values(trips.SamplesNS))
	t.metric("rtt_median", quantile(sorted, 0.5)/1e3, "us")
	t.metric("rtt_p99", quantile(sorted, 0.99)/1e3, "us")
	t.metric("loss", float64(trips.Lost())/float64(trips.Sent), "1")
}

func trafficChecks(checks []traffic.Check) []record.Check {
	all := make([]record.Check, len(checks))
	for i, c := range checks {
		all[i] = record.Check(c)
	}
	return all
}
