package analysis

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/stats"
)

// The defaults of a Study.
const (
	DefaultAlpha     = 0.05
	DefaultMargin    = 0.03
	DefaultBootstrap = 10_000
	DefaultWithin    = 0.10 // of a claim that expects "mixed"
)

// Analyze turns the records of a study into findings. It reads the records once, in any order, and
// keeps a few numbers of each, never its samples; a torn last line becomes a warning. Records that do
// not belong to the study, or of more than one clock, are an error, and so is an error of the sequence.
func Analyze(study Study, records iter.Seq2[record.Record, error]) (Findings, error) {
	study = study.withDefaults()
	if err := study.check(); err != nil {
		return Findings{}, err
	}
	a := analyzer{study: &study}
	a.findings = Findings{
		Schema: record.Schema, Study: study,
		Runs: []RunCount{}, Excluded: []Exclusion{}, Checks: []CheckCount{}, Cells: []Cell{}, Comparisons: []Comparison{},
		NoiseFloors: []NoiseFloor{}, RuleCosts: []RuleCost{}, CostRatios: []CostRatio{}, Claims: []ClaimResult{}, Warnings: []Warning{},
	}
	c := newCollector(&study)
	if err := c.collect(records, &a.warnings); err != nil {
		return Findings{}, err
	}
	a.findings.Clock = c.clock
	for _, name := range slices.Sorted(maps.Keys(c.checks)) {
		a.findings.Checks = append(a.findings.Checks, c.checks[name])
	}
	results := make([]ClaimResult, len(study.Claims))
	for i := range study.Experiments {
		e := &study.Experiments[i]
		a.experiment(c.experiments[e.Name])
		resampler := newResampler(c.experiments[e.Name], &study)
		a.ruleCosts(c.experiments[e.Name], resampler)
		for j := range study.Claims {
			if study.Claims[j].Experiment == e.Name {
				results[j] = a.claim(&study.Claims[j], c.experiments[e.Name], resampler)
			}
		}
	}
	a.findings.Claims = append(a.findings.Claims, results...)
	a.findings.Warnings = append(a.findings.Warnings, a.warnings.list...)
	return a.findings, nil
}

// analyzer holds what an analysis has found so far.
type analyzer struct {
	study    *Study
	findings Findings
	warnings warnings
	sums     stats.RankSums
}

// experiment adds counts, cells, comparisons and noise floors.
func (a *analyzer) experiment(d *data) {
	a.findings.Runs = append(a.findings.Runs, d.count)
	a.findings.Excluded = append(a.findings.Excluded, d.exclusions()...)
	for _, name := range d.metricNames() {
		a.cells(d, name)
	}
	for _, name := range d.metricNames() {
		if m, known := LookupMetric(name); known && m.Compared {
			a.compareMetric(d, m)
		}
	}
	if boots := d.bootCount(); boots > 1 && boots < len(d.boots) {
		a.warnings.add(fmt.Sprintf("%s: intervals and p of single cells speak of the %d boots that were measured; claims and costs of a rule speak of boots in general", d.experiment.Name, boots),
			"judge by the claims")
	}
	if p := d.probers; p.lateRuns > 0 {
		a.warnings.add(fmt.Sprintf("%s: %s sent late in %s, since the machine had something else to do; the schedule moved by as much", d.experiment.Name, areProbes(p.lateProbes), plural(p.lateRuns, "run")),
			"measure on a machine that does nothing else")
	}
	if p := d.probers; p.ordinary > 0 {
		a.warnings.add(fmt.Sprintf("%s: in %s the prober was not allowed to run before other processes, which widens the figures", d.experiment.Name, plural(p.ordinary, "run")),
			"run as root, or give the program CAP_SYS_NICE")
	}
	if primary := PrimaryMetric(d.experiment.Measurement); d.count.OK > 0 && !slices.Contains(d.metricNames(), primary) {
		a.warnings.add(fmt.Sprintf("%s: no run has the metric %s", d.experiment.Name, primary), "see what the agents logged")
	}
}

func areProbes(n int) string {
	if n == 1 {
		return "1 probe was"
	}
	return plural(n, "probe") + " were"
}

func (a *analyzer) cells(d *data, metric string) {
	for _, t := range d.experiment.treatments() {
		if s := d.series(t, metric); s != nil {
			a.findings.Cells = append(a.findings.Cells, a.newCell(d.experiment, metric, t, s))
		}
	}
}

func (a *analyzer) newCell(e *Experiment, metric string, t record.Treatment, s *series) Cell {
	cell := Cell{
		Experiment: e.Name, Metric: metric, Unit: s.unit,
		Image: t.Image, Firewall: t.Firewall, Rules: t.Rules, FrameSize: t.FrameSize, N: len(s.observations),
	}
	level := 1 - a.study.Alpha
	m, err := stats.MedianInterval(s.values(), level)
	if err != nil {
		cell.Median = Interval{Value: m.Value}
		cell.Warnings = append(cell.Warnings, a.warnings.tooFew(err))
		return cell
	}
	cell.Median = Interval{Value: m.Value, Lo: m.Lo, Hi: m.Hi, Level: level}
	return cell
}

// withDefaults returns a copy with zero values replaced and levels ascending; findings and schema know
// no null.
func (s Study) withDefaults() Study {
	if s.Alpha == 0 {
		s.Alpha = DefaultAlpha
	}
	if s.Margin == 0 {
		s.Margin = DefaultMargin
	}
	if s.Bootstrap == 0 {
		s.Bootstrap = DefaultBootstrap
	}
	s.Claims = append([]Claim{}, s.Claims...)
	for i, c := range s.Claims {
		if c.Metric == "" {
			if j := s.experimentIndex(c.Experiment); j >= 0 {
				s.Claims[i].Metric = PrimaryMetric(s.Experiments[j].Measurement)
			}
		}
		if c.Expect == Mixed && c.Within == 0 {
			s.Claims[i].Within = DefaultWithin
		}
	}
	s.Experiments = append([]Experiment{}, s.Experiments...)
	for i := range s.Experiments {
		e := &s.Experiments[i]
		e.Firewalls = append([]Firewall{}, e.Firewalls...)
		e.Rules = slices.Sorted(slices.Values(append([]int{}, e.Rules...)))
		e.FrameSizes = slices.Sorted(slices.Values(append([]int{}, e.FrameSizes...)))
		e.Compare = append([][2]string{}, e.Compare...)
		e.Controls = append([][2]string{}, e.Controls...)
		if e.Rules == nil {
			e.Rules = []int{}
		}
		if e.FrameSizes == nil {
			e.FrameSizes = []int{}
		}
		if e.Parameters == nil {
			e.Parameters = map[string]string{}
		}
	}
	return s
}

func (s *Study) experimentIndex(name string) int {
	return slices.IndexFunc(s.Experiments, func(e Experiment) bool { return e.Name == name })
}

// check reports everything in the study that the analysis could not follow.
func (s *Study) check() error {
	var errs []error
	if s.Alpha <= 0 || s.Alpha >= 0.5 {
		errs = append(errs, fmt.Errorf("study: alpha = %g: use a value between 0 and 0.5", s.Alpha))
	}
	if s.Margin < 0 {
		errs = append(errs, fmt.Errorf("study: margin = %g: use a positive value such as 0.03", s.Margin))
	}
	if s.Bootstrap < 100 || s.Bootstrap > 1_000_000 {
		errs = append(errs, fmt.Errorf("study: bootstrap = %d: use from 100 to 1000000 replicates", s.Bootstrap))
	}
	for i := range s.Claims {
		errs = append(errs, s.checkClaim(&s.Claims[i]))
	}
	for i := range s.Experiments {
		e := &s.Experiments[i]
		if s.experimentIndex(e.Name) != i {
			errs = append(errs, fmt.Errorf("study: two experiments are called %q", e.Name))
		}
		for _, factor := range factors() {
			for _, v := range e.pairs(factor) {
				errs = append(errs, e.checkPair("experiment "+e.Name, v))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *Study) checkClaim(c *Claim) error {
	i := s.experimentIndex(c.Experiment)
	if i < 0 {
		return fmt.Errorf("claim %s: there is no experiment %q", c.Name, c.Experiment)
	}
	if m, known := LookupMetric(c.Metric); !known || !m.Compared {
		return fmt.Errorf("claim %s: metric %q cannot be compared; use one of %v", c.Name, c.Metric, comparedNames())
	}
	if !slices.Contains([]string{Slower, Faster, Similar, Mixed}, c.Expect) {
		return fmt.Errorf("claim %s: expect = %q: use slower, faster, similar or mixed", c.Name, c.Expect)
	}
	if c.Factor != "" && c.Factor != FactorImage {
		return fmt.Errorf("claim %s: factor = %q: only firewalls and images are compared", c.Name, c.Factor)
	}
	return s.Experiments[i].checkPair("claim "+c.Name, newVersus(c.Factor, c.Compare, false))
}

func (e *Experiment) checkPair(where string, v versus) error {
	noun, has := "firewall", e.names()
	if v.betweenImages() {
		noun, has = "image", e.imageNames()
	}
	if v.a == v.b {
		return fmt.Errorf("%s: compares %s with itself: an A/A pair is one %s under two names", where, v.a, noun)
	}
	for _, name := range []string{v.a, v.b} {
		if !slices.Contains(has, name) {
			return fmt.Errorf("%s: experiment %s has no %s %q", where, e.Name, noun, name)
		}
	}
	return nil
}

func comparedNames() (names []string) {
	for _, m := range metrics() {
		if m.Compared {
			names = append(names, m.Name)
		}
	}
	return names
}

// parallel calls f for 0 … n-1, on all processors. What f does for one must not depend on another.
func parallel(n int, f func(int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	wg.Wait()
}
