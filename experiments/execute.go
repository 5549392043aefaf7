package experiments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rampart-bench/rampart/experiments/design"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/traffic"
	"github.com/rampart-bench/rampart/provision"
	"github.com/rampart-bench/rampart/testbed"
)

// An Execution measures every run of its schedules that is not done yet.
type Execution struct {
	Schedules []Schedule
	Testbed   testbed.Spec

	// Fresh replaces the testbed by a newly booted one of an image; it closes the one before. The image is
	// empty where it is no factor.
	Fresh func(ctx context.Context, image string) (testbed.Testbed, error)
	// Executable is this program's own file, which goes to the nodes.
	Executable string

	// Done reports whether a run has its record already.
	Done func(experiment string, sequence int) bool
	// Append writes a record so that it survives the machine's sudden end.
	Append func(record.Record) error
	// Booted, where somebody asks, is told what the nodes of an image say of themselves, once for each.
	Booted func(image string, nodes map[string]record.Environment) error
	// Observe is told of every finished run.
	Observe func(Progress)
	Log     *slog.Logger
}

// attempts is how often a run is tried when the testbed breaks under it; then it is recorded as
// failed and the study goes on.
const attempts = 3

// hopeless is how many runs in a row may fail with a broken testbed before the study stops: then it
// is not the run that breaks it.
const hopeless = 5

// Run measures on tb, which has the image that [NextImage] names, and on fresh testbeds where the plan asks
// for another boot or image, or tb breaks. When it returns an error, every finished run has its record.
func (e *Execution) Run(ctx context.Context, tb testbed.Testbed) (err error) {
	s := &session{Execution: e, features: tb.Features(), image: NextImage(e.Schedules, e.Done), described: map[string]bool{}}
	for _, schedule := range e.Schedules {
		s.total += len(schedule.Plan.Runs)
	}
	defer func() { err = errors.Join(err, s.disconnect()) }()
	if err := s.connect(ctx, tb); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.Log.Warn("the testbed broke before the first run", "cause", err)
		if err := s.refresh(ctx); err != nil {
			return err
		}
	}
	for _, schedule := range e.Schedules {
		for _, run := range schedule.Plan.Runs {
			if e.Done(schedule.Spec.Name, run.Sequence) {
				s.done++
				continue
			}
			if err := s.perform(ctx, schedule.Spec, run); err != nil {
				return err
			}
		}
	}
	return nil
}

// A session is an Execution under way.
type session struct {
	*Execution
	lab      *Lab
	features testbed.Features
	image    string // of the testbed that is up
	boot     int    // likewise; 0 before the first run
	total    int
	done     int
	broken   int // runs in a row that were lost with the testbed

	described map[string]bool // images of which Booted was told
}

// perform measures one run, redoing it on a fresh testbed when the testbed broke, and records it.
func (s *session) perform(ctx context.Context, spec Spec, run design.Run) error {
	another := s.boot != 0 && s.boot != run.Boot || s.image != run.Treatment.Image
	s.boot, s.image = run.Boot, run.Treatment.Image
	if another {
		if err := s.refresh(ctx); err != nil {
			return err
		}
	}
	var rec record.Record
	for attempt := 1; ; attempt++ {
		var err error
		rec, err = s.try(ctx, spec, run)
		if err == nil && (rec.Status == record.Failed || rec.Status == record.Unavailable) {
			// What broke under a run may look like something that this kernel lacks.
			if fault := s.lab.pathFault(ctx); fault != nil {
				err = fmt.Errorf("%w (what the run said first: %s)", fault, rec.Error)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			s.broken = 0
			break
		}
		s.Log.Warn("the testbed broke under a run", "experiment", spec.Name, "sequence", run.Sequence, "attempt", attempt, "cause", err)
		if err := s.refresh(ctx); err != nil {
			return err
		}
		if attempt == attempts {
			s.broken++
			rec = newRecord(spec, run, s.features.Clock)
			rec.Status, rec.Error = record.Failed, fmt.Sprintf("the testbed broke %d times under this run: %v", attempts, err)
			break
		}
	}
	if err := s.Append(rec); err != nil {
		return err
	}
	s.done++
	s.Observe(Progress{Done: s.done, Total: s.total, Record: rec})
	if s.broken == hopeless {
		return fmt.Errorf("measure %s: the testbed broke under %d runs in a row: %s", spec.Name, hopeless, rec.Error)
	}
	return nil
}

// try measures one run. An error means that the testbed is not to be trusted any more.
func (s *session) try(ctx context.Context, spec Spec, run design.Run) (record.Record, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runLimit(spec.Measurement),
		fmt.Errorf("the run took longer than %s", runLimit(spec.Measurement)))
	defer cancel()
	return s.lab.Measure(ctx, spec, run)
}

// runLimit is the watchdog of a run: loading a million elements under emulation is slow, a helper
// that answers never is not to stop the study.
func runLimit(m Measurement) time.Duration {
	return 3*time.Minute + 3*(m.MeasuringTime()+m.WarmupTime())
}

// refresh makes a fresh testbed of the image that is wanted and connects to it, twice if the first breaks at once.
func (s *session) refresh(ctx context.Context) error {
	var err error
	for range 2 {
		// The old helpers may be gone or hang: their farewell is of no interest.
		_ = s.disconnect()
		var tb testbed.Testbed
		if tb, err = s.Fresh(ctx, s.image); err != nil {
			return fmt.Errorf("make a fresh testbed: %w", err)
		}
		if err = s.connect(ctx, tb); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

func (s *session) connect(ctx context.Context, tb testbed.Testbed) error {
	lab, err := Connect(ctx, tb, s.Testbed, s.Executable)
	if err != nil {
		return err
	}
	s.lab = lab
	return s.describe(ctx)
}

// describe tells what the nodes of an image are when they are first up.
func (s *session) describe(ctx context.Context) error {
	if s.Booted == nil || s.described[s.image] {
		return nil
	}
	nodes, err := s.lab.Describe(ctx)
	if err != nil {
		return err
	}
	s.described[s.image] = true
	return s.Booted(s.image, nodes)
}

func (s *session) disconnect() error {
	if s.lab == nil {
		return nil
	}
	lab := s.lab
	s.lab = nil
	return lab.Close()
}

// pathFault is why the testbed is to blame for a run that failed or was not possible: without any rules,
// frames must pass from the sender to the receiver.
func (l *Lab) pathFault(ctx context.Context) error {
	if _, err := l.unload(ctx); err != nil {
		return err
	}
	probe := traffic.Probe{
		Target: l.spec.Outside().Address(testbed.Receiver).Addr(), FrameSize: traffic.MinFrame, Count: controlProbes,
		Interval: l.pace(), Timeout: answerTime,
	}
	trips, err := call[traffic.RoundTrips](ctx, l, testbed.Sender, methodProbe, probe)
	if err != nil {
		return fmt.Errorf("without any rules: %w", err)
	}
	if err := firstFailure(trafficChecks(trips.Passed())); err != nil {
		return fmt.Errorf("without any rules: %w", err)
	}
	return nil
}

// newRecord begins the record of a run. Times are kept to the millisecond.
func newRecord(spec Spec, run design.Run, clock testbed.Clock) record.Record {
	return record.Record{
		Schema:     record.Schema,
		Experiment: spec.Name,
		Block:      run.Block,
		Boot:       run.Boot,
		Sequence:   run.Sequence,
		Treatment:  record.Treatment(run.Treatment),
		Clock:      string(clock),
		Started:    time.Now().UTC().Truncate(time.Millisecond),
		Metrics:    map[string]record.Metric{},
		PhasesS:    map[string]float64{},
	}
}

// isLost reports whether a call failed because the helper or its node is gone, and not because the
// job could not be done.
func isLost(err error) bool {
	return errors.Is(err, provision.ErrLost) || errors.Is(err, context.DeadlineExceeded)
}
