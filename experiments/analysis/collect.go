package analysis

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/rampart-bench/rampart/experiments/record"
)

// pause is the gap between two runs from which it counts as a pause between sessions, not as part of
// the experiment. Booting fresh nodes between two runs is part of it, and takes minutes under emulation.
const (
	pause     = time.Minute
	bootPause = 15 * time.Minute
)

// An observation is the value of a metric in one run.
type observation struct {
	block int
	value float64
}

// A series is one metric at one treatment: one value a run.
type series struct {
	unit         string
	observations []observation // by block, once sealed
}

// data is what is kept of an experiment's records.
type data struct {
	experiment *Experiment
	firewalls  map[string]Firewall
	cells      map[record.Treatment]map[string]*series
	units      map[string]string // metric -> unit
	boots      map[int]int       // block -> boot, of runs that count; the same number for all images
	count      RunCount
	excluded   map[Exclusion]int // with Runs = 0 -> runs
	probers    probers
	lastEnd    time.Time
	lastBoot   bootOf
}

// bootOf names a boot of the nodes: of each image they are counted by themselves.
type bootOf struct {
	image  string
	number int
}

// probers counts the runs that count by how their prober fared.
type probers struct {
	lateRuns, lateProbes int
	ordinary             int // runs in which other processes could come between a probe and its answer
}

func (p *probers) add(fared *record.Prober) {
	if fared == nil {
		return
	}
	if fared.Late > 0 {
		p.lateRuns++
		p.lateProbes += fared.Late
	}
	if !fared.Realtime {
		p.ordinary++
	}
}

// A collector takes records one by one and keeps of each only its values.
type collector struct {
	experiments map[string]*data
	checks      map[string]CheckCount
	clock       string
}

func newCollector(study *Study) *collector {
	c := &collector{experiments: map[string]*data{}, checks: map[string]CheckCount{}}
	for i := range study.Experiments {
		e := &study.Experiments[i]
		d := &data{
			experiment: e,
			firewalls:  map[string]Firewall{},
			cells:      map[record.Treatment]map[string]*series{},
			units:      map[string]string{},
			boots:      map[int]int{},
			excluded:   map[Exclusion]int{},
			count:      RunCount{Experiment: e.Name, Planned: len(e.treatments()) * e.Repetitions},
		}
		for _, f := range e.Firewalls {
			d.firewalls[f.Name] = f
		}
		c.experiments[e.Name] = d
	}
	return c
}

// collect reads all records. A torn last line is a warning: the run it belonged to never counted.
func (c *collector) collect(records iter.Seq2[record.Record, error], w *warnings) error {
	line := 0
	for r, err := range records {
		line++
		var torn *record.TornError
		if errors.As(err, &torn) {
			w.add("the last record is torn: a run was interrupted while it was being written", "run again to measure it")
			break
		}
		if err != nil {
			return err
		}
		if err := c.add(&r); err != nil {
			return fmt.Errorf("analyse record %d: %w", line, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.experiments)) {
		if err := c.experiments[name].seal(); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) add(r *record.Record) error {
	d, ok := c.experiments[r.Experiment]
	if !ok {
		return fmt.Errorf("experiment %q is not in the study: are manifest and records from one folder?", r.Experiment)
	}
	if c.clock == "" {
		c.clock = r.Clock
	}
	if r.Clock != c.clock {
		return fmt.Errorf("clock %q after %q: times of different clocks cannot be pooled; keep them in results folders of their own", r.Clock, c.clock)
	}
	for _, check := range r.Checks {
		n := c.checks[check.Name]
		n.Name = check.Name
		n.Made++
		if !check.OK {
			n.Failed++
		}
		c.checks[check.Name] = n
	}
	return d.add(r)
}

func (d *data) add(r *record.Record) error {
	f, ok := d.firewalls[r.Treatment.Firewall]
	if !ok {
		return fmt.Errorf("experiment %s has no firewall %q in the study", r.Experiment, r.Treatment.Firewall)
	}
	if rules := d.experiment.levels(f); !slices.Contains(rules, r.Treatment.Rules) || !slices.Contains(d.experiment.images(), r.Treatment.Image) || !slices.Contains(d.experiment.FrameSizes, r.Treatment.FrameSize) {
		return fmt.Errorf("treatment %+v is not in the matrix of experiment %s", r.Treatment, r.Experiment)
	}
	d.countTime(r)
	switch r.Status {
	case record.OK:
		d.count.OK++
		d.boots[r.Block] = r.Boot
		d.probers.add(r.Prober)
		return d.keep(r)
	case record.Failed:
		d.count.Failed++
	case record.SenderBound:
		d.count.SenderBound++
	case record.Unavailable:
		d.count.Unavailable++
	default:
		return fmt.Errorf("status %q is unknown", r.Status)
	}
	d.excluded[Exclusion{Experiment: r.Experiment, Image: r.Treatment.Image, Firewall: r.Treatment.Firewall, Status: string(r.Status), Reason: r.Error}]++
	return nil
}

// countTime adds the run and the gap before it, unless that was a pause. Runs that overlap, as on
// parallel virtual machines, have no gap.
func (d *data) countTime(r *record.Record) {
	d.count.ElapsedS += r.ElapsedS
	d.count.MeasuringS += r.PhasesS["measure"]
	limit, boot := pause, bootOf{r.Treatment.Image, r.Boot}
	if boot != d.lastBoot {
		limit = bootPause
	}
	if gap := r.Started.Sub(d.lastEnd); !d.lastEnd.IsZero() && gap > 0 && gap < limit {
		d.count.ElapsedS += gap.Seconds()
	}
	d.lastEnd = r.Started.Add(time.Duration(r.ElapsedS * float64(time.Second)))
	d.lastBoot = boot
}

func (d *data) keep(r *record.Record) error {
	cell := d.cells[r.Treatment]
	if cell == nil {
		cell = map[string]*series{}
		d.cells[r.Treatment] = cell
	}
	for name, m := range r.Metrics {
		if err := d.checkMetric(name, m); err != nil {
			return err
		}
		s := cell[name]
		if s == nil {
			s = &series{unit: m.Unit}
			cell[name] = s
		}
		s.observations = append(s.observations, observation{block: r.Block, value: m.Value})
	}
	return nil
}

// Values beyond these are not those of anything that was measured, and would overflow in ratios and squares.
const smallest, largest = 1e-30, 1e30

// checkMetric refuses a value that cannot be, and a unit other than that of the metric elsewhere: its values
// would be compared all the same.
func (d *data) checkMetric(name string, m record.Metric) error {
	if size := math.Abs(m.Value); !(size <= largest) || size > 0 && size < smallest {
		return fmt.Errorf("metric %s is %g %s, which nothing measured can be: is the file damaged?", name, m.Value, m.Unit)
	}
	unit, seen := d.units[name]
	if !seen {
		unit = m.Unit
		if known, ok := LookupMetric(name); ok {
			unit = known.Unit
		}
		d.units[name] = unit
	}
	if m.Unit != unit {
		return fmt.Errorf("metric %s has unit %q, not %q", name, m.Unit, unit)
	}
	return nil
}

// seal brings the values into the order of blocks, so that nothing depends on the order of records,
// and refuses a run that is there twice: it would count as two.
func (d *data) seal() error {
	for t, cell := range d.cells {
		for name, s := range cell {
			slices.SortFunc(s.observations, func(a, b observation) int { return cmp.Compare(a.block, b.block) })
			for i, o := range s.observations {
				if i > 0 && o.block == s.observations[i-1].block {
					return fmt.Errorf("experiment %s: %+v has two runs with %s in block %d: delete the repeated record", d.experiment.Name, t, name, o.block)
				}
			}
		}
	}
	return nil
}

// series of the metric at the treatment, nil when there is none.
func (d *data) series(t record.Treatment, metric string) *series { return d.cells[t][metric] }

// metricNames are the metrics that occur: the known ones in their order, then the others by name.
func (d *data) metricNames() []string {
	found := map[string]bool{}
	for _, cell := range d.cells {
		for name := range cell {
			found[name] = true
		}
	}
	var names []string
	for _, m := range metrics() {
		if found[m.Name] {
			names = append(names, m.Name)
			delete(found, m.Name)
		}
	}
	return append(names, slices.Sorted(maps.Keys(found))...)
}

func (d *data) exclusions() []Exclusion {
	var out []Exclusion
	for e, runs := range d.excluded {
		e.Runs = runs
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Exclusion) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Firewall, b.Firewall), cmp.Compare(a.Status, b.Status), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

// values in the order of blocks.
func (s *series) values() []float64 {
	out := make([]float64, len(s.observations))
	for i, o := range s.observations {
		out[i] = o.value
	}
	return out
}

// bootCount is how many boots have a run that counts.
func (d *data) bootCount() int {
	return len(slices.Compact(slices.Sorted(maps.Values(d.boots))))
}
