package traffic

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// settle is how long after its start the prober sends first.
	settle = time.Millisecond
	// spin is how long before each probe, but at most a quarter of the interval, the processor is
	// kept busy with system calls, so that it is awake, at speed, and has the kernel's code in its
	// caches, as it would under load: leaving idle changes a round trip by more than a rule does.
	spin = 500 * time.Microsecond
	// attention is how often a long wait looks whether it was cancelled.
	attention = 200 * time.Millisecond
)

// Run sends the probes and waits for the answers. It returns a [*ClockStepError] when the time of
// day was set meanwhile, and ctx's error, without results, when cancelled.
//
// A sample is the time from the moment that the kernel hands the request to the driver to the moment
// that it gets the answer from it, by the kernel's software time-stamps (SO_TIMESTAMPING). Where the
// driver gives none when sending, it is the time of day read immediately before the send call, as in
// ping(8), for all samples of the run; KernelStamps tells.
//
// What widens the distribution is kept away: the thread is alone on its OS thread, under SCHED_FIFO
// where that is allowed, the garbage collector is off, sends are at absolute times, and the processor
// is woken shortly before each.
func (p Probe) Run(ctx context.Context) (RoundTrips, error) {
	if err := p.Validate(); err != nil {
		return RoundTrips{}, err
	}
	if p.Timeout == 0 {
		p.Timeout = time.Second
	}
	var nonce [8]byte
	rand.Read(nonce[:]) // never fails
	sock, err := openEcho(p, binary.BigEndian.Uint64(nonce[:]))
	if err != nil {
		return RoundTrips{}, err
	}
	defer sock.close()
	r := newProber(p, sock)
	if r.result.Source, err = sock.source(); err != nil {
		return RoundTrips{}, err
	}
	if err := awaitStamping(ctx); err != nil {
		return RoundTrips{}, fmt.Errorf("probe %v: %w", p.Target, err)
	}
	// One garbage collection now and none until the end: memory is all allocated.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var restore func()
		r.result.Realtime, restore = quietThread()
		err := r.run(ctx)
		restore()
		done <- err
	}()
	if err := <-done; err != nil {
		return RoundTrips{}, fmt.Errorf("probe %v: %w", p.Target, err)
	}
	return r.summary()
}

// quietThread gives the calling thread precise timers, and priority over every ordinary process,
// until restore is called. It reports whether the latter was allowed; without CAP_SYS_NICE it is not,
// which only widens the distribution. (Letting the thread end instead would kill the children that
// it happened to start with PR_SET_PDEATHSIG.)
func quietThread() (realtime bool, restore func()) {
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	realtime = setRealtime(0) == nil
	return realtime, func() {
		if realtime {
			unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
		}
		unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // the thread's default
	}
}

// A prober is one run of a [Probe]. Its slices are by number of the probe, the warm-up first.
type prober struct {
	Probe
	sock      *echoSocket
	base      time.Time // of the monotonic times
	steps     *stepDetector
	sentAt    []int64 // time of day before the send call; 0: not yet
	stampedAt []int64 // time of day when the driver got it; 0: not known
	gotAt     []int64 // time of day when the answer came; 0: not yet
	missing   int     // answers to probes that were sent
	lastAt    int64   // monotonic: the last answer was taken
	poll      [1]unix.PollFd
	result    RoundTrips
}

func newProber(p Probe, sock *echoSocket) *prober {
	total := p.Warmup + p.Count
	r := &prober{
		Probe: p, sock: sock, base: time.Now(),
		sentAt: make([]int64, total), stampedAt: make([]int64, total), gotAt: make([]int64, total),
		poll: [1]unix.PollFd{{Fd: int32(sock.fd), Events: unix.POLLIN}},
	}
	r.steps = newStepDetector(r.clocks)
	return r
}

func (p *prober) now() int64 { return int64(time.Since(p.base)) }

func (p *prober) run(ctx context.Context) error {
	next := p.now() + int64(settle)
	var began int64
	for n := range p.sentAt {
		p.sock.prepare(n)
		if err := p.waitUntil(ctx, next); err != nil {
			return err
		}
		mono, err := p.send(n)
		if err != nil {
			return err
		}
		if n == p.Warmup {
			began = mono
		}
		if late := mono - next; late > int64(p.Interval) && p.Interval > 0 {
			p.result.Late++
			next += late
		}
		next += int64(p.Interval)
	}
	if err := p.waitForRest(ctx); err != nil {
		return err
	}
	p.result.ElapsedNS = p.lastAt - began
	wall, mono := p.clocks()
	return p.steps.check(wall, mono)
}

// send sends probe n and returns the monotonic time at which it did.
func (p *prober) send(n int) (int64, error) {
	wall, mono := p.clocks()
	p.sentAt[n] = wall
	if err := p.sock.send(); err != nil {
		return 0, err
	}
	p.missing++
	return mono, p.steps.check(wall, mono)
}

// waitUntil takes answers until the monotonic time, the last moments of it without sleeping. With no
// interval, it waits for the answer to the probe before: back to back.
func (p *prober) waitUntil(ctx context.Context, until int64) error {
	if p.Interval == 0 && p.missing > 0 {
		return p.waitForRest(ctx)
	}
	awake := until - min(int64(spin), int64(p.Interval)/4)
	for {
		rest := awake - p.now()
		if rest <= 0 {
			break
		}
		if err := p.wait(ctx, rest); err != nil {
			return err
		}
	}
	for p.now() < until {
		if err := p.drain(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// waitForRest takes answers until none is missing or the time-out has passed.
func (p *prober) waitForRest(ctx context.Context) error {
	p.lastAt = p.now()
	until := p.lastAt + int64(p.Timeout)
	if err := p.drain(); err != nil {
		return err
	}
	for p.missing > 0 {
		rest := until - p.now()
		if rest <= 0 {
			p.missing = 0
			break
		}
		if err := p.wait(ctx, rest); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// wait sleeps until an answer comes, at most for rest nanoseconds, and takes it.
func (p *prober) wait(ctx context.Context, rest int64) error {
	timeout := unix.NsecToTimespec(min(rest, int64(attention)))
	n, err := unix.Ppoll(p.poll[:], &timeout, nil)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for answer: %w", err)
	}
	if n > 0 {
		if err := p.drain(); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// drain takes the time-stamps and the answers that are there.
func (p *prober) drain() error {
	for {
		number, at, ok, err := p.sock.sent()
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		p.stamp(number, at)
	}
	for {
		number, at, ok, err := p.sock.receive()
		if err != nil || !ok {
			return err
		}
		p.take(number, at)
	}
}

// stamp notes when a probe was handed to the driver. A time before its send call belongs to another
// one: some kernels count a send call that failed.
func (p *prober) stamp(number uint32, at int64) {
	if int(number) < len(p.sentAt) && p.sentAt[number] != 0 && at >= p.sentAt[number] {
		p.stampedAt[number] = at
	}
}

// take attributes an answer. A number that was never sent is not ours.
func (p *prober) take(number uint64, at int64) {
	if number >= uint64(len(p.gotAt)) || p.sentAt[number] == 0 {
		return
	}
	if p.gotAt[number] != 0 {
		p.result.Duplicates++
		return
	}
	p.gotAt[number] = at
	p.missing = max(0, p.missing-1)
	p.lastAt = p.now()
}

// summary counts what came back and subtracts, with one kind of time-stamp for all.
func (p *prober) summary() (RoundTrips, error) {
	r := p.result
	r.Sent, r.WarmupSent = p.Count, p.Warmup
	stamped := 0
	for n, at := range p.gotAt {
		if at == 0 {
			continue
		}
		if p.stampedAt[n] != 0 {
			stamped++
		}
		if n < p.Warmup {
			r.WarmupReceived++
		} else {
			r.Received++
		}
	}
	from := p.sentAt
	switch stamped {
	case r.WarmupReceived + r.Received:
		from, r.KernelStamps = p.stampedAt, stamped > 0
	case 0:
	default:
		return RoundTrips{}, fmt.Errorf("the kernel time-stamped the sending of only %d of %d answered probes: times of two kinds cannot be mixed", stamped, r.WarmupReceived+r.Received)
	}
	r.SamplesNS = make([]int64, 0, r.Received)
	for n := p.Warmup; n < len(p.gotAt); n++ {
		if p.gotAt[n] != 0 {
			r.SamplesNS = append(r.SamplesNS, p.gotAt[n]-from[n])
		}
	}
	return r, nil
}
