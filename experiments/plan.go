package experiments

import (
	"fmt"
	"time"

	"github.com/rampart-bench/rampart/experiments/design"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/testbed"
)

// A Schedule is the plan of one experiment.
type Schedule struct {
	Spec Spec
	Plan design.Plan
}

// Schedules plans every experiment, in the order of the configuration.
func Schedules(specs []Spec) ([]Schedule, error) {
	var all []Schedule
	for _, spec := range specs {
		plan, err := design.New(spec.Design())
		if err != nil {
			return nil, fmt.Errorf("plan experiment %s: %w", spec.Name, err)
		}
		all = append(all, Schedule{spec, plan})
	}
	return all, nil
}

// NextImage is the image of the first run that is not done, and so what the testbed is to boot first.
func NextImage(schedules []Schedule, done func(experiment string, sequence int) bool) string {
	for _, s := range schedules {
		for _, run := range s.Plan.Runs {
			if !done(s.Spec.Name, run.Sequence) {
				return run.Treatment.Image
			}
		}
	}
	return ""
}

// overheads is what a run costs beyond its measurement, in seconds: loading, reading back, controls and unloading.
// Read off whole studies, that of emulated machines off three on two processors that had other work, too; no study
// under KVM was at hand, and its figure stands between the others. `plan` uses it for nothing but its estimate.
var overheads = map[testbed.Clock]float64{testbed.ClockHost: 0.35, testbed.ClockKVM: 1.5, testbed.ClockTCG: 3.1, testbed.ClockVirtual: 0.35}

// EstimateTime is how long the runs of a schedule will take under a clock, booting left out.
func (s Schedule) EstimateTime(clock testbed.Clock) time.Duration {
	m := s.Spec.Measurement
	each := m.MeasuringTime() + m.WarmupTime() + time.Duration(overheads[clock]*float64(time.Second))
	return time.Duration(len(s.Plan.Runs)) * each
}

// EstimateBytes is how much the records of a schedule will take on disk.
func (s Schedule) EstimateBytes() int64 {
	const perRecord, perSample = 2500, 7
	return int64(len(s.Plan.Runs)) * int64(perRecord+perSample*s.Spec.Measurement.Count)
}

// Progress is one finished run among all.
type Progress struct {
	Done, Total int
	Record      record.Record
}

// Left estimates the time left from the time that the runs since already took.
func (p Progress) Left(elapsed time.Duration, already int) time.Duration {
	if p.Done <= already {
		return 0
	}
	return elapsed / time.Duration(p.Done-already) * time.Duration(p.Total-p.Done)
}
