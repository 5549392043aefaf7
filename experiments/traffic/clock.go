package traffic

import (
	"fmt"
	"time"
)

// stepTolerance is by how much the distance between CLOCK_REALTIME and CLOCK_MONOTONIC may seem to
// change because they are read one after the other. NTP slews both alike; only a step parts them.
const stepTolerance = 5 * time.Microsecond

// A stepDetector notices that CLOCK_REALTIME, in which the kernel stamps packets, was set while it
// was measured with.
type stepDetector struct {
	read   func() (wall, mono int64) // nanoseconds
	offset int64
}

func newStepDetector(read func() (wall, mono int64)) *stepDetector {
	wall, mono := read()
	d := &stepDetector{read: read, offset: wall - mono}
	for range 20 { // the smallest offset is that of the pair with the least time between
		wall, mono := read()
		d.offset = max(d.offset, wall-mono)
	}
	return d
}

// check returns an error when the clock was stepped. A pair of readings that seem apart is read
// again: the process may have been interrupted between the two.
func (d *stepDetector) check(wall, mono int64) error {
	step := wall - mono - d.offset
	for range 20 {
		if abs(step) <= int64(stepTolerance) {
			return nil
		}
		wall, mono = d.read()
		if again := wall - mono - d.offset; abs(again) < abs(step) {
			step = again
		}
	}
	if abs(step) <= int64(stepTolerance) {
		return nil
	}
	return &ClockStepError{Step: time.Duration(step)}
}

func abs(n int64) int64 { return max(n, -n) }

// A ClockStepError says that the time of day was set during a measurement.
type ClockStepError struct{ Step time.Duration }

func (e *ClockStepError) Error() string {
	return fmt.Sprintf("the clock of this node was set by %v during the measurement, so its packet time-stamps cannot be compared: stop what sets it (chronyd, systemd-timesyncd, a hypervisor's agent) while measuring", e.Step)
}

// clocks reads the time of day and the monotonic time by the vDSO, as close together as can be.
func (p *prober) clocks() (wall, mono int64) {
	now := time.Now()
	return now.UnixNano(), int64(now.Sub(p.base))
}
