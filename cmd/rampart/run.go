package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/exact"
)

// runFlags are the flags of run.
type runFlags struct {
	configFlags
	out   string
	keep  bool
	fresh bool
	jobs  int
}

func (c *cli) runCommand() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Bring the testbed up, measure, report, take it down",
		Long: "Bring the testbed up, measure every run of the plan, write the report, and take the testbed down.\n\n" +
			"A run that was interrupted goes on where it stopped: in the folder given with --out, else in the\n" +
			"newest unfinished folder of the same plan below results/. A testbed that `rampart up` left up is\n" +
			"used and left up.",
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("jobs") && flags.jobs < 1 {
				return usagef("run: --jobs %d: at least one machine is needed", flags.jobs)
			}
			return c.runStudy(cmd.Context(), flags)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVarP(&flags.out, "out", "o", "", "the results folder (default results/NAME-TIME)")
	cmd.Flags().BoolVar(&flags.keep, "keep", false, "leave the testbed up")
	cmd.Flags().BoolVar(&flags.fresh, "fresh", false, "begin a new folder even where an unfinished one could go on")
	cmd.Flags().IntVarP(&flags.jobs, "jobs", "j", 0, "with provider exact: machines side by side (default: one a processor)")
	c.gateFlag(cmd)
	c.jsonFlag(cmd)
	return cmd
}

// runStudy is one study from configuration to report.
func (c *cli) runStudy(ctx context.Context, flags runFlags) (err error) {
	cfg, err := flags.load(ctx, config.Booting)
	if err != nil {
		return err
	}
	if err := c.gate.check(len(cfg.Study.Claims)); err != nil {
		return err
	}
	schedules, err := schedulesOf("run", cfg)
	if err != nil {
		return err
	}
	dir, resuming, err := c.resultsFolder(cfg, schedules, flags)
	if err != nil {
		return err
	}
	study := &study{cli: c, cfg: cfg, schedules: schedules, dir: dir, resuming: resuming}
	if err := study.claim(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, study.letGo()) }()
	measure := c.runOnTestbed
	switch {
	case study.isComplete():
		measure = c.runNothing
	case cfg.Provider == exact.Name:
		measure = c.runExact
	case flags.jobs != 0:
		return usagef("run: --jobs %d: only provider exact measures several things at a time and gets the same figures", flags.jobs)
	}
	if err := measure(ctx, study, flags); err != nil {
		return err
	}
	return withHint(c.render(ctx, dir, cfg.Report), "the records are whole: rampart report %s renders them", dir)
}

// runNothing ends a study of which every run is there already, and only the report may not be.
func (c *cli) runNothing(_ context.Context, s *study, _ runFlags) error {
	c.sayf("every run of the plan is in %s already", s.dir)
	if isFinished(s.folder.Manifest()) {
		return nil
	}
	now := time.Now().UTC().Truncate(time.Second)
	return endSession(s.folder, record.Session{Started: now, Ended: now, Outcome: outcomeComplete})
}

// runOnTestbed measures a study on a testbed of this machine.
func (c *cli) runOnTestbed(ctx context.Context, study *study, flags runFlags) (err error) {
	cfg := study.cfg
	mode := destroyTestbed
	if flags.keep {
		mode = keepTestbed
	}
	chosen, err := c.chooseProviders(ctx, cfg, mode)
	if err != nil {
		return err
	}
	defer chosen.close()
	if err := study.checkProvider(chosen.name); err != nil {
		return err
	}
	c.sayUntuned(chosen.name, cfg.Testbed)
	held, err := holdTestbed(cfg.Testbed.Name)
	if err != nil {
		return err
	}
	defer held.release()

	first := experiments.NextImage(study.schedules, study.isDone)
	tb, kept, err := c.testbedForRun(ctx, chosen.of(first), cfg.Testbed)
	if err != nil {
		return err
	}
	if kept {
		// Should the testbed break, its successor is to stay up as well.
		lasting := *cfg
		lasting.Provider = chosen.name
		if chosen, err = c.chooseProviders(ctx, &lasting, keepTestbed); err != nil {
			return errors.Join(err, tb.Close())
		}
		defer chosen.close()
	}
	bench := &bench{cli: c, provider: chosen.of, spec: cfg.Testbed, current: tb, image: first}
	defer func() {
		ending := bench.finish(ctx, kept || flags.keep)
		if ending != nil && isUnable(err) && isUnable(ending) {
			// The same again: only the way to what is left is news.
			c.sayf("rampart down %s removes what is left", cfg.Testbed.Name)
			return
		}
		err = errors.Join(err, ending)
	}()
	if !kept && !flags.keep {
		defer context.AfterFunc(ctx, bench.cut)()
	}
	study.bench = bench
	return study.measure(ctx)
}

// testbedForRun takes the testbed that was left up on purpose, or makes one.
func (c *cli) testbedForRun(ctx context.Context, chosen chosenProvider, spec testbed.Spec) (tb testbed.Testbed, kept bool, err error) {
	if tb, ok := c.attachKept(ctx, chosen, spec); ok {
		c.sayf("measuring on testbed %s, which is up already", spec.Name)
		return tb, true, nil
	}
	c.sayf("bringing up testbed %s with provider %s", spec.Name, chosen.name)
	tb, err = c.bringUp(ctx, chosen, spec)
	return tb, false, err
}

// bench is the testbed in use, which is replaced when it breaks or when the plan asks for a boot or for
// another image.
type bench struct {
	*cli
	provider func(image string) chosenProvider
	spec     testbed.Spec

	mu      sync.Mutex
	current testbed.Testbed // nil: there is none
	image   string          // of current; empty where it is no factor
}

// replace closes the testbed in use and takes another, or none, in its place.
func (b *bench) replace(tb testbed.Testbed) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var err error
	if b.current != nil {
		err = b.current.Close()
	}
	b.current = tb
	return err
}

// cut ends the connections to machines that an interrupt is about to destroy: nothing in them needs to
// be put back first. Where nodes share the kernel of this machine, their helpers do that.
func (b *bench) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil && b.current.Features().DedicatedKernel {
		_ = b.current.Close()
	}
}

// fresh replaces the testbed by a newly booted one of an image.
func (b *bench) fresh(ctx context.Context, image string) (testbed.Testbed, error) {
	_ = b.replace(nil) // what broke may not close well; Down below removes it by its name
	var tb testbed.Testbed
	var err error
	for try := 1; ; try++ {
		tb, err = b.bringUp(ctx, b.provider(image), b.spec)
		// A daemon that is started anew comes back within seconds, and on a busy host within half a minute.
		if try == freshTries || !isUnable(err) {
			break
		}
		b.log.Warn("the provider cannot be used at the moment; trying again", "in", freshPause, "cause", err)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(freshPause):
		}
	}
	if err != nil {
		return nil, err
	}
	b.image = image
	return tb, b.replace(tb)
}

// How often a fresh testbed is tried while the provider cannot be used, and how long after the last
// try.
const (
	freshTries = 13
	freshPause = 5 * time.Second
)

// finish closes the testbed, and removes it unless it is to stay.
func (b *bench) finish(ctx context.Context, keep bool) error {
	isUp := b.current != nil
	closing := b.replace(nil)
	if keep && isUp {
		b.sayf("testbed %s stays up; rampart down removes it", b.spec.Name)
		return errors.Join(closing, markKept(b.provider(b.image), b.spec))
	}
	if err := b.takeDown(ctx, b.provider(b.image), b.spec.Name); err != nil {
		return errors.Join(closing, err)
	}
	return nil
}

// study is the measuring part of a run.
type study struct {
	*cli
	cfg       *config.Config
	schedules []experiments.Schedule
	dir       string
	resuming  bool
	bench     *bench

	// The results folder is ours from claim on: as folder where it has been begun, else as reserved.
	folder   *record.Folder
	reserved *record.Reservation
}

// claim opens or reserves the results folder, so that one that cannot be used, or that another
// process works on, is found out before anything is brought up.
func (s *study) claim() (err error) {
	if s.resuming {
		s.folder, err = record.Open(s.dir)
	} else {
		s.reserved, err = record.Reserve(s.dir)
	}
	if err != nil {
		return withHint(fmt.Errorf("run: %w", err), "name another results folder with --out DIR")
	}
	return nil
}

// letGo gives the results folder back, and removes it if nothing was begun in it.
func (s *study) letGo() error {
	switch {
	case s.folder != nil:
		return s.folder.Close()
	case s.reserved != nil:
		return s.reserved.Cancel()
	}
	return nil
}

// isComplete reports whether every run of the plan has its record.
func (s *study) isComplete() bool {
	if s.folder == nil {
		return false
	}
	total, done := s.count(s.folder)
	return total == done
}

// isDone reports whether a run has its record.
func (s *study) isDone(experiment string, sequence int) bool {
	return s.folder != nil && s.folder.Done(experiment, sequence)
}

// checkProvider refuses to go on with another provider than a folder was begun with.
func (s *study) checkProvider(name string) error {
	if s.folder == nil || s.folder.Manifest().Provider == name {
		return nil
	}
	then := s.folder.Manifest().Provider
	return withHint(fmt.Errorf("resume %s: it was measured with provider %s, now it is %s", s.dir, then, name),
		"use --provider %s, or begin a new folder with --fresh or --out DIR", then)
}

// measure fills the results folder with a record for every run of the plan.
func (s *study) measure(ctx context.Context) (err error) {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's own file: %w", err)
	}
	manifest, err := s.manifest(ctx, exe)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("the testbed broke before the first run", "cause", err)
		if _, err := s.bench.fresh(ctx, s.bench.image); err != nil {
			return fmt.Errorf("make a fresh testbed: %w", err)
		}
		manifest, err = s.manifest(ctx, exe)
	}
	if err != nil {
		return withHint(err, "the same command tries again; --verbose shows each step")
	}
	return s.fill(ctx, manifest, func(folder *record.Folder, observe func(experiments.Progress)) error {
		execution := &experiments.Execution{
			Schedules:  s.schedules,
			Testbed:    s.cfg.Testbed,
			Fresh:      s.bench.fresh,
			Executable: exe,
			Done:       folder.Done,
			Append:     folder.Append,
			Booted:     s.booted(folder),
			Observe:    observe,
			Log:        s.log,
		}
		return execution.Run(ctx, s.bench.current)
	})
}

// fill opens the results folder and lets work fill it. Whatever becomes of that, the manifest says so.
func (s *study) fill(ctx context.Context, manifest record.Manifest, work func(folder *record.Folder, observe func(experiments.Progress)) error) error {
	folder, err := s.beginFolder(manifest)
	if err != nil {
		return withHint(fmt.Errorf("run: %w", err), "name another results folder with --out DIR")
	}
	started := time.Now().UTC().Truncate(time.Second)
	total, already := s.count(folder)
	if s.resuming {
		s.sayf("going on in %s: %d of %d runs are there", s.dir, already, total)
	} else {
		s.sayf("measuring %d runs into %s", total, s.dir)
	}
	loadStart := experiments.LoadAverage()
	show := s.newDisplay(total, already)
	measured := 0
	err = work(folder, func(p experiments.Progress) {
		measured++
		if p.Record.Status == record.Failed {
			s.log.Warn("run failed", "experiment", p.Record.Experiment, "sequence", p.Record.Sequence,
				"firewall", p.Record.Treatment.Firewall, "rules", p.Record.Treatment.Rules, "cause", p.Record.Error)
		}
		show.show(p)
	})
	show.done()
	outcome := outcomeComplete
	switch {
	case ctx.Err() != nil:
		outcome = "interrupted"
	case err != nil:
		outcome = "failed"
	}
	ending := record.Session{Started: started, Ended: time.Now().UTC().Truncate(time.Second), Runs: measured, Outcome: outcome,
		LoadStart: loadStart, LoadEnd: experiments.LoadAverage()}
	if errors.Is(err, record.ErrMoved) {
		return withHint(fmt.Errorf("run %s: %w", s.cfg.Testbed.Name, err),
			"if it was moved, --out DIR goes on from there; if it was removed, its records are lost")
	}
	err = errors.Join(err, endSession(folder, ending))
	if err != nil {
		return withHint(fmt.Errorf("run %s: %w", s.cfg.Testbed.Name, err),
			"%d of %d runs are kept in %s; the same command goes on from there", already+measured, total, s.dir)
	}
	return nil
}

// beginFolder returns the folder that was claimed, with a manifest.
func (s *study) beginFolder(manifest record.Manifest) (_ *record.Folder, err error) {
	if s.folder == nil {
		s.folder, err = s.reserved.Create(manifest)
		s.reserved = nil
		return s.folder, err
	}
	if torn := s.folder.Torn(); torn != nil {
		s.log.Warn("the last record was cut short and is measured again", "cause", torn)
	}
	return s.folder, sameTime(s.folder, manifest)
}

// sameTime refuses to mix clocks, providers or images in one folder.
func sameTime(folder *record.Folder, now record.Manifest) error {
	then := folder.Manifest()
	if then.Clock == now.Clock && then.Provider == now.Provider {
		return sameImages(folder.Dir(), then, now)
	}
	return withHint(fmt.Errorf("resume %s: it was measured with provider %s and clock %s, now %s and %s",
		folder.Dir(), then.Provider, then.Clock, now.Provider, now.Clock), "begin a new folder with --out DIR, or use --provider %s", then.Provider)
}

// sameImages refuses to go on with images that hold something else than when the folder was begun.
func sameImages(dir string, then, now record.Manifest) error {
	other := func(what, was, is string) error {
		return withHint(fmt.Errorf("resume %s: %s was %s and is %s now: runs of both cannot be mixed", dir, what, shortDigest(was), shortDigest(is)),
			"begin a new folder with --fresh, or bring back the image that measured the first runs")
	}
	if then.Image != now.Image {
		return other("the image", then.Image, now.Image)
	}
	for name, image := range now.Images {
		if was := then.Images[name].Digest; was != image.Digest {
			return other("image "+name, was, image.Digest)
		}
	}
	return nil
}

// outcomeComplete is the outcome of the session that measured the last run of the plan.
const outcomeComplete = "complete"

// isFinished reports whether a session completed the plan.
func isFinished(m record.Manifest) bool {
	return slices.ContainsFunc(m.Sessions, func(s record.Session) bool { return s.Outcome == outcomeComplete })
}

// endSession adds this stretch of work to the manifest.
func endSession(folder *record.Folder, ending record.Session) error {
	manifest := folder.Manifest()
	manifest.Sessions = append(manifest.Sessions, ending)
	return folder.SetManifest(manifest)
}

// count says how many runs the plan has and how many of them are done.
func (s *study) count(folder *record.Folder) (total, done int) {
	for _, schedule := range s.schedules {
		for _, run := range schedule.Plan.Runs {
			total++
			if folder.Done(schedule.Spec.Name, run.Sequence) {
				done++
			}
		}
	}
	return total, done
}

// resultsFolder is the folder to write into, and whether it holds the beginning of this very plan.
// A folder of another plan is refused here, before anything is brought up.
func (c *cli) resultsFolder(cfg *config.Config, schedules []experiments.Schedule, flags runFlags) (dir string, resuming bool, err error) {
	if flags.out == "" {
		if dir, ok := unfinished(cfg, schedules); ok && !flags.fresh {
			return dir, true, nil
		}
		return record.DefaultDir(cfg.Testbed.Name, time.Now()), false, nil
	}
	manifest, err := record.ReadManifest(flags.out)
	if errors.Is(err, fs.ErrNotExist) {
		return flags.out, false, nil
	}
	if err != nil {
		return "", false, withHint(fmt.Errorf("run: %w", err), "name another folder with --out DIR, or restore %s from a copy: the records beside it are untouched", record.ManifestName)
	}
	if !samePlan(manifest, cfg, schedules) {
		return "", false, withHint(fmt.Errorf("run: %s holds the runs of another configuration, and runs of different plans cannot be mixed", flags.out),
			"begin a new folder with --out DIR; %s has the configuration of the old one", filepath.Join(flags.out, record.ManifestName))
	}
	return flags.out, true, nil
}

// samePlan reports whether a folder was begun with this configuration and these plans.
func samePlan(manifest record.Manifest, cfg *config.Config, schedules []experiments.Schedule) bool {
	return manifest.ConfigDigest == cfg.Digest && maps.Equal(manifest.PlanDigests, planDigests(schedules))
}

func planDigests(schedules []experiments.Schedule) map[string]string {
	digests := map[string]string{}
	for _, s := range schedules {
		digests[s.Spec.Name] = s.Plan.Digest
	}
	return digests
}

// unfinished finds the newest folder below results/ of the same configuration and plan that no
// session completed.
func unfinished(cfg *config.Config, schedules []experiments.Schedule) (string, bool) {
	dirs, err := filepath.Glob(filepath.Join("results", cfg.Testbed.Name+"-*"))
	if err != nil {
		return "", false
	}
	slices.Sort(dirs)
	for _, dir := range slices.Backward(dirs) {
		manifest, err := record.ReadManifest(dir)
		if err != nil || !samePlan(manifest, cfg, schedules) {
			continue
		}
		if !isFinished(manifest) {
			return dir, true
		}
	}
	return "", false
}
