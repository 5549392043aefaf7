package experiments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/traffic"
	"github.com/rampart-bench/rampart/provision"
)

// The helper's methods. Each is one coarse job.
const (
	methodDescribe = "describe"
	methodLoad     = "firewall.load"
	methodVerify   = "firewall.verify"
	methodUnload   = "firewall.unload"
	methodCount    = "count"
	methodProbe    = "probe"
	methodIntrude  = "intrude"
	methodSend     = "send"
	methodServe    = "serve"
	methodReceived = "received"
	methodWatch    = "watch"
	methodWatched  = "watched"
	methodAnswer   = "answer"
	methodPrime    = "prime"
	methodAnswered = "answered"
)

// none is a job without parameters, or an answer without content.
type none struct{}

// loadRequest asks the firewall's helper for a rule-set. It is comparable.
type loadRequest struct {
	Firewall        firewall.Spec    `json:"firewall"`
	Rules           firewall.RuleSet `json:"rules"`
	DedicatedKernel bool             `json:"dedicated_kernel"`
	// Interfaces are the firewall's towards the sender and the receiver.
	Interfaces [2]string `json:"interfaces"`
}

type loadAnswer struct {
	Duration time.Duration `json:"duration_ns"`
}

type unloadAnswer struct {
	Checks []record.Check `json:"checks"`
	// Residue is what stays of the engine in the kernel of this node whatever one does, and
	// SettingsResidue what stays of the settings.
	Residue         string `json:"residue,omitempty"`
	SettingsResidue string `json:"settings_residue,omitempty"`
}

// A Helper is the node's side of the lab: it does the jobs of one node and remembers what to undo.
type Helper struct {
	log    *slog.Logger
	engine firewall.Engine // nil: nothing loaded
	tuning *firewall.Tuning
	rules  firewall.RuleSet

	server  *traffic.Server  // nil: no stream is awaited
	watcher *traffic.Watcher // nil: nothing is watched
	// answerer sends back what primes a flow; nil: nothing is to be sent back.
	answerer *traffic.Answerer
}

// NewHelper makes a helper that has changed nothing yet.
func NewHelper(log *slog.Logger) *Helper { return &Helper{log: log} }

// Handlers are the jobs that the helper does.
func (h *Helper) Handlers() provision.Handlers {
	return provision.Handlers{
		methodDescribe: provision.Handle(h.describe),
		methodLoad:     provision.Handle(h.load),
		methodVerify:   provision.Handle(h.verify),
		methodUnload:   provision.Handle(h.unload),
		methodCount:    provision.Handle(h.count),
		methodProbe:    provision.Handle(runProbe),
		methodIntrude:  provision.Handle(runIntrusion),
		methodSend:     provision.Handle(runSend),
		methodServe:    provision.Handle(h.serve),
		methodReceived: provision.Handle(h.received),
		methodWatch:    provision.Handle(h.watch),
		methodWatched:  provision.Handle(h.watched),
		methodAnswer:   provision.Handle(h.answer),
		methodPrime:    provision.Handle(runPrime),
		methodAnswered: provision.Handle(h.answered),
	}
}

// undoTime bounds what the helper does after its caller is gone.
const undoTime = 30 * time.Second

// Undo puts the node back as it was found.
func (h *Helper) Undo() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	_, err := h.unload(ctx, none{})
	h.stopAnswering()
	return errors.Join(err, h.stopServing(), h.stopWatching())
}

func (h *Helper) describe(ctx context.Context, interfaces []string) (record.Environment, error) {
	env := DescribeMachine(ctx)
	facts, err := DescribeInterfaces(interfaces...)
	env.Interfaces = facts
	return env, err
}

// load replaces what is loaded: first the rules, then the settings beside them. What failed half-way is
// unloaded again. The time is the engine's.
func (h *Helper) load(ctx context.Context, req loadRequest) (loadAnswer, error) {
	if _, err := h.unload(ctx, none{}); err != nil {
		return loadAnswer{}, err
	}
	opts := firewall.Options{DedicatedKernel: req.DedicatedKernel, Interfaces: req.Interfaces}
	engine, err := firewall.New(req.Firewall, opts)
	if err != nil {
		return loadAnswer{}, err
	}
	tuning, err := firewall.NewTuning(req.Firewall, opts)
	if err != nil {
		return loadAnswer{}, err
	}
	h.engine, h.tuning, h.rules = engine, tuning, req.Rules
	if preparer, ok := engine.(firewall.Preparer); ok {
		err = preparer.Prepare(ctx)
	}
	started := time.Now()
	if err == nil {
		err = engine.Load(ctx, req.Rules)
	}
	took := time.Since(started)
	if err == nil {
		err = tuning.Apply(ctx)
	}
	if err != nil {
		_, undo := h.unload(context.WithoutCancel(ctx), none{})
		return loadAnswer{}, unavailable(errors.Join(err, undo))
	}
	return loadAnswer{Duration: took}, nil
}

// unavailable lets the absence of an engine, a setting or a program cross the wire as what it is.
func unavailable(err error) error {
	var engine *firewall.UnavailableError
	var program *traffic.UnavailableError
	switch {
	case errors.As(err, &engine):
		return &provision.RemoteError{Code: provision.CodeUnavailable, Message: engine.Error()}
	case errors.As(err, &program):
		return &provision.RemoteError{Code: provision.CodeUnavailable, Message: program.Error()}
	}
	return err
}

var errNotLoaded = errors.New("no rule-set is loaded")

func (h *Helper) verify(ctx context.Context, _ none) ([]record.Check, error) {
	if h.engine == nil {
		return nil, errNotLoaded
	}
	checks, err := h.engine.Verify(ctx, h.rules)
	if err != nil {
		return nil, err
	}
	settings, err := h.tuning.Verify(ctx)
	return firewallChecks(append(checks, settings...)), err
}

// unload removes what is loaded, and does nothing when there is nothing.
func (h *Helper) unload(ctx context.Context, _ none) (unloadAnswer, error) {
	engine, tuning := h.engine, h.tuning
	if engine == nil {
		return unloadAnswer{}, nil
	}
	if err := errors.Join(tuning.Restore(ctx), engine.Unload(ctx)); err != nil {
		return unloadAnswer{}, err
	}
	h.engine, h.tuning = nil, nil
	checks, err := tuning.Clean(ctx)
	if cleaner, ok := engine.(firewall.Cleaner); ok && err == nil {
		var more []firewall.Check
		more, err = cleaner.Clean(ctx)
		checks = append(checks, more...)
	}
	if err != nil {
		return unloadAnswer{}, fmt.Errorf("look what is left: %w", err)
	}
	answer := unloadAnswer{Checks: firewallChecks(checks), SettingsResidue: tuning.Residue()}
	if resident, ok := engine.(firewall.Resident); ok {
		residue, err := resident.Residue(ctx)
		if err != nil {
			return unloadAnswer{}, fmt.Errorf("look what is left: %w", err)
		}
		answer.Residue = residue
	}
	return answer, nil
}

func firewallChecks(checks []firewall.Check) []record.Check {
	all := make([]record.Check, len(checks))
	for i, c := range checks {
		all[i] = record.Check(c)
	}
	return all
}

// counted is everything that a node has counted until now.
type counted struct {
	Snapshot traffic.Snapshot   `json:"snapshot"`
	Rule     *firewall.Counters `json:"rule,omitempty"` // nil: no rule that counts is loaded
	// Activity is of the firewall's settings. It is a reading, not a difference.
	Activity firewall.Activity `json:"activity,omitzero"`
}

func (h *Helper) count(ctx context.Context, _ none) (counted, error) {
	var c counted
	if counter, ok := h.engine.(firewall.Counter); ok {
		rule, err := counter.Counters(ctx, h.rules)
		if err != nil {
			return counted{}, err
		}
		c.Rule = &rule
	}
	var err error
	if h.tuning != nil {
		if c.Activity, err = h.tuning.Activity(h.rules); err != nil {
			return counted{}, err
		}
	}
	c.Snapshot, err = traffic.Snap()
	return c, err
}

func runProbe(ctx context.Context, p traffic.Probe) (traffic.RoundTrips, error) { return p.Run(ctx) }
func runIntrusion(ctx context.Context, i traffic.Intrusion) (traffic.RoundTrips, error) {
	return i.Run(ctx)
}
func runSend(ctx context.Context, s traffic.Send) (traffic.Report, error) {
	report, err := s.Run(ctx)
	return report, unavailable(err)
}
func runPrime(ctx context.Context, p traffic.Prime) (none, error) { return none{}, p.Run(ctx) }

// serve starts the receiving end of a stream, in the place of one that nobody asked for any more.
func (h *Helper) serve(ctx context.Context, s traffic.Serve) (none, error) {
	if err := h.stopServing(); err != nil {
		return none{}, err
	}
	server, err := s.Start(ctx)
	h.server = server
	return none{}, unavailable(err)
}

// received waits for the end of the stream and says what came.
func (h *Helper) received(ctx context.Context, _ none) (traffic.Report, error) {
	if h.server == nil {
		return traffic.Report{}, errors.New("no stream is awaited")
	}
	report, err := h.server.Wait(ctx)
	return report, errors.Join(err, h.stopServing())
}

func (h *Helper) stopServing() error {
	if h.server == nil {
		return nil
	}
	server := h.server
	h.server = nil
	return server.Close()
}

// watch starts looking at the lengths of frames.
func (h *Helper) watch(_ context.Context, w traffic.Watch) (none, error) {
	if err := h.stopWatching(); err != nil {
		return none{}, err
	}
	watcher, err := w.Start()
	h.watcher = watcher
	return none{}, err
}

// watched says what lengths were seen.
func (h *Helper) watched(context.Context, none) (traffic.Lengths, error) {
	if h.watcher == nil {
		return traffic.Lengths{}, errors.New("nothing is being watched")
	}
	watcher := h.watcher
	h.watcher = nil
	return watcher.Stop()
}

func (h *Helper) stopWatching() error {
	if h.watcher == nil {
		return nil
	}
	_, err := h.watched(context.Background(), none{})
	return err
}

// answer starts sending back what will prime a flow.
func (h *Helper) answer(_ context.Context, a traffic.Answer) (none, error) {
	h.stopAnswering()
	answerer, err := a.Start()
	h.answerer = answerer
	return none{}, err
}

// answered waits until everything was sent back, and the port is free.
func (h *Helper) answered(context.Context, none) (none, error) {
	if h.answerer == nil {
		return none{}, errors.New("nothing is to be answered")
	}
	answerer := h.answerer
	h.answerer = nil
	return none{}, answerer.Wait()
}

func (h *Helper) stopAnswering() {
	if h.answerer != nil {
		h.answerer.Close()
		h.answerer = nil
	}
}
