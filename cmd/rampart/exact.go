package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/design"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/exact"
)

// planForExact gives a configuration the design that a clock without drift allows: every block has a
// machine of its own, which is the boot, and inside a block a rule-set is loaded once for all frame sizes.
func planForExact(cfg *config.Config) {
	for i := range cfg.Experiments {
		e := &cfg.Experiments[i]
		e.Grouped, e.Boots = true, e.Repetitions
		for j := range cfg.Study.Experiments {
			if s := &cfg.Study.Experiments[j]; s.Name == e.Name {
				s.Grouped, s.Boots = true, e.Boots
			}
		}
	}
}

// A unit is what one machine does: one block of one experiment, with one image. The plan alone fixes it, so
// that records do not depend on how many machines run side by side.
type unit struct {
	experiment string
	block      int
	image      string    // empty where it is no factor
	job        exact.Job // without Line
	runs       []record.Key
}

// patience is how long a machine may take over one run, in real time: an emulated second takes several
// on a computer that is busy with something else.
func patience(m experiments.Measurement) time.Duration {
	return 5*time.Minute + 20*(m.MeasuringTime()+m.WarmupTime())
}

// String names the unit in errors.
func (u unit) String() string {
	text := fmt.Sprintf("block %d of experiment %s", u.block, u.experiment)
	if u.image != "" {
		text += " with image " + u.image
	}
	return text
}

// console is the name of the file for what the machine's console said.
func (u unit) console() string {
	name := fmt.Sprintf("console-%s-%d", u.experiment, u.block)
	if u.image != "" {
		name += "-" + u.image
	}
	return name + ".log"
}

// salt tells the machines of a study apart, and makes replicates of what would else be copies. Two images
// get two, so that the luck of a boot is not theirs in common: boots are what they are compared by.
func (u unit) salt(spec experiments.Spec) string {
	text := fmt.Sprintf("%s/%d/%d", spec.Name, spec.Seed, u.block)
	if u.image != "" {
		text += "/" + u.image
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// unitsOf splits the plan.
func unitsOf(bed testbed.Spec, schedules []experiments.Schedule) ([]unit, error) {
	var all []unit
	for _, s := range schedules {
		for rest := s.Plan.Runs; len(rest) > 0; {
			n := 0
			for n < len(rest) && rest[n].Block == rest[0].Block && rest[n].Treatment.Image == rest[0].Treatment.Image {
				n++
			}
			u, err := newUnit(bed, s.Spec, rest[:n])
			if err != nil {
				return nil, err
			}
			all, rest = append(all, u), rest[n:]
		}
	}
	return all, nil
}

// newUnit makes the unit of some runs, all of one block and image.
func newUnit(bed testbed.Spec, spec experiments.Spec, runs []design.Run) (unit, error) {
	u := unit{experiment: spec.Name, block: runs[0].Block, image: runs[0].Treatment.Image}
	for _, run := range runs {
		u.runs = append(u.runs, record.Key{Experiment: spec.Name, Sequence: run.Sequence})
	}
	content, err := json.Marshal(guestJob{Testbed: bed, Schedule: experiments.Schedule{Spec: spec, Plan: design.Plan{Runs: runs}}})
	if err != nil {
		return unit{}, fmt.Errorf("encode job: %w", err)
	}
	u.job = exact.Job{Content: content, Salt: u.salt(spec), Patience: patience(spec.Measurement)}
	return u, nil
}

// runExact fills a results folder with provider exact.
func (c *cli) runExact(ctx context.Context, s *study, flags runFlags) error {
	switch {
	case flags.keep:
		return noTestbed("run --keep")
	case flags.jobs == 0:
		flags.jobs = runtime.NumCPU()
	}
	c.sayUntuned(exact.Name, s.cfg.Testbed)
	machines, booted, err := c.exactMachines(ctx, s.cfg)
	if err != nil {
		return err
	}
	parameters, err := parametersOf(machines)
	if err != nil {
		return err
	}
	features := testbed.Features{Provider: exact.Name, Clock: testbed.ClockVirtual, DedicatedKernel: true, Parameters: parameters}
	manifest, err := s.provenance(ctx, features, booted)
	if err != nil {
		return err
	}
	units, err := unitsOf(s.cfg.Testbed, s.schedules)
	if err != nil {
		return err
	}
	return s.fill(ctx, manifest, func(folder *record.Folder, observe func(experiments.Progress)) error {
		if err := sameMachine(folder, manifest); err != nil {
			return err
		}
		all, err := newCollector(folder, units, observe)
		if err != nil {
			return err
		}
		return all.measure(ctx, machines, flags.jobs)
	})
}

// sameMachine refuses to go on with a study on a machine that would give other figures.
func sameMachine(folder *record.Folder, now record.Manifest) error {
	var then, wanted testbed.Features
	if err := errors.Join(json.Unmarshal(folder.Manifest().Features, &then), json.Unmarshal(now.Features, &wanted)); err != nil {
		return fmt.Errorf("resume %s: decode features: %w", folder.Dir(), err)
	}
	for name, value := range wanted.Parameters {
		if then.Parameters[name] != value {
			return withHint(fmt.Errorf("resume %s: its runs were measured on another machine: %s was %q and is %q now",
				folder.Dir(), name, then.Parameters[name], value), "begin a new folder with --fresh, or use what measured the first runs")
		}
	}
	return nil
}

// A collector brings the records of machines that run side by side into the order of the plan, so that
// the file is the same whoever is first. What the first unfinished machine says is appended as it
// comes, the others' records wait for their turn. Safe for concurrent use.
type collector struct {
	folder  *record.Folder
	units   []unit
	observe func(experiments.Progress)

	mu      sync.Mutex
	turn    int               // the unit whose records are appended as they come
	waiting [][]record.Record // by unit
	ended   []bool            // by unit
	before  map[record.Key]record.Record
	total   int
	done    int
}

func newCollector(folder *record.Folder, units []unit, observe func(experiments.Progress)) (*collector, error) {
	c := &collector{
		folder: folder, units: units, observe: observe,
		waiting: make([][]record.Record, len(units)), ended: make([]bool, len(units)),
		before: map[record.Key]record.Record{},
	}
	for rec, err := range record.ReadDir(folder.Dir(), record.Options{}) {
		if err != nil {
			return nil, err
		}
		c.before[record.Key{Experiment: rec.Experiment, Sequence: rec.Sequence}] = rec
	}
	for i, u := range units {
		c.total += len(u.runs)
		c.ended[i] = !slices.ContainsFunc(u.runs, func(k record.Key) bool { return !folder.Done(k.Experiment, k.Sequence) })
		if c.ended[i] {
			c.done += len(u.runs)
		}
	}
	c.advance()
	return c, nil
}

// measure runs a machine for every unit that is not done, at most jobs at a time. The first error ends
// the others.
func (c *collector) measure(ctx context.Context, machines map[string]exact.Machine, jobs int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	todo := make(chan int)
	var workers sync.WaitGroup
	for range jobs {
		workers.Go(func() {
			for i := range todo {
				if err := c.run(ctx, machines[c.units[i].image], i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range c.units {
		if c.ended[i] {
			continue
		}
		select {
		case todo <- i:
		case <-ctx.Done():
		}
	}
	close(todo)
	workers.Wait()
	return context.Cause(ctx)
}

// run does unit i, and leaves the console of a machine that failed in the results folder.
func (c *collector) run(ctx context.Context, machine exact.Machine, i int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	u := c.units[i]
	job := u.job
	job.Line = func(line []byte) error { return c.take(i, line) }
	err := machine.Run(ctx, job)
	var failed *exact.GuestError
	if errors.As(err, &failed) {
		path := filepath.Join(c.folder.Dir(), u.console())
		if writeErr := os.WriteFile(path, failed.Console, 0o644); writeErr == nil {
			err = withHint(err, "all that its console printed is in %s", path)
		}
	}
	if err == nil {
		err = c.finish(i)
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%v: %w", u, err)
	}
	return err
}

// take takes a line of unit i.
func (c *collector) take(i int, text []byte) error {
	var line guestLine
	if err := json.Unmarshal(text, &line); err != nil {
		return fmt.Errorf("read what the guest says: %w: %.80q", err, text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case line.Record != nil:
		if i != c.turn {
			c.waiting[i] = append(c.waiting[i], *line.Record)
		} else if err := c.append(*line.Record); err != nil {
			return err
		}
		c.done++
		c.observe(experiments.Progress{Done: c.done, Total: c.total, Record: *line.Record})
	case line.Nodes != nil:
		return describeNodes(c.folder, c.units[i].image, line.Nodes.Environments)
	case line.Error != "":
		return errors.New(line.Error)
	}
	return nil
}

// append keeps a record whose turn it is. One that is there already, because its unit is being done
// again, must come out the same: that is what this provider promises.
func (c *collector) append(rec record.Record) error {
	key := record.Key{Experiment: rec.Experiment, Sequence: rec.Sequence}
	if before, ok := c.before[key]; ok {
		if same, err := equal(before, rec); err != nil || !same {
			return errors.Join(err, withHint(fmt.Errorf("run %s/%d came out otherwise than before, though nothing that should matter has changed", key.Experiment, key.Sequence),
				"begin a new folder with --fresh; docs/exact.md says what could make a difference"))
		}
		return nil
	}
	return c.folder.Append(rec)
}

// finish ends unit i and appends what has waited for that.
func (c *collector) finish(i int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[i] = true
	for c.turn < len(c.units) {
		for _, rec := range c.waiting[c.turn] {
			if err := c.append(rec); err != nil {
				return err
			}
		}
		c.waiting[c.turn] = nil
		if !c.ended[c.turn] {
			return nil
		}
		c.turn++
	}
	return nil
}

// advance finds the first unit that is not done.
func (c *collector) advance() {
	for c.turn < len(c.units) && c.ended[c.turn] {
		c.turn++
	}
}

// equal compares records as they stand on disk.
func equal(a, b record.Record) (bool, error) {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return bytes.Equal(x, y), errors.Join(errX, errY)
}

// exactMachines are the machines of a configuration and the digests of their images, by level of the factor
// image; empty: that of the testbed.
func (c *cli) exactMachines(ctx context.Context, cfg *config.Config) (map[string]exact.Machine, map[string]record.Image, error) {
	machines, booted := map[string]exact.Machine{}, map[string]record.Image{}
	for _, level := range cfg.ImageLevels() {
		machine, image, err := c.exactMachine(ctx, cfg, cfg.ImageCalled(level))
		if err != nil {
			return nil, nil, err
		}
		machines[level], booted[level] = machine, imageRecord(image)
	}
	return machines, booted, nil
}

// parametersOf are those of all machines. What comes from an image carries its name.
func parametersOf(machines map[string]exact.Machine) (map[string]string, error) {
	all := map[string]string{}
	for level, machine := range machines {
		parameters, err := machine.Parameters()
		if err != nil {
			return nil, err
		}
		for name, value := range parameters {
			if level != "" && (name == "kernel" || name == "base") {
				name += " of image " + level
			}
			all[name] = value
		}
	}
	return all, nil
}

// exactMachine is the machine of an image, with that.
func (c *cli) exactMachine(ctx context.Context, cfg *config.Config, spec images.Spec) (exact.Machine, images.Image, error) {
	// What is quick to find missing is looked for before an image is built.
	if _, err := exact.New(ctx, exact.Bundle{}); err != nil {
		return exact.Machine{}, images.Image{}, err
	}
	image, err := c.image(ctx, cfg, spec)
	if err != nil {
		return exact.Machine{}, images.Image{}, fmt.Errorf("build image %s: %w", spec.Name, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return exact.Machine{}, images.Image{}, fmt.Errorf("find this program's own file: %w", err)
	}
	store, err := openStore()
	if err != nil {
		return exact.Machine{}, images.Image{}, err
	}
	bundle, err := exact.NewBundle(image, exe, filepath.Join(filepath.Dir(store.Dir()), "exact"))
	if err != nil {
		return exact.Machine{}, images.Image{}, err
	}
	machine, err := exact.New(ctx, bundle)
	return machine, image, err
}

// noTestbed says why verbs that work on a testbed by hand do not know provider exact.
func noTestbed(verb string) error {
	return withHint(usagef("%s: with provider exact there is no testbed to work on by hand: each machine starts with its job, says what it measured, and is gone", verb),
		"rampart run measures; rampart %s works with provider netns or libvirt", verb)
}

// exactFindings boots a machine of every image and loads two rules with every firewall of the configuration in
// it.
func (c *cli) exactFindings(ctx context.Context, cfg *config.Config) []finding {
	if _, err := exact.New(ctx, exact.Bundle{}); err != nil {
		return exactFailed(err)
	}
	var all []finding
	for _, level := range cfg.ImageLevels() {
		if _, f := c.imageFinding(ctx, cfg, level); f.Grade != good {
			all = append(all, f)
			continue
		}
		all = append(all, c.exactTrial(ctx, cfg, level)...)
	}
	return all
}

// subjectOf names what is looked at, with the image where there are several.
func subjectOf(what, image string) string {
	if image == "" {
		return what
	}
	return what + " with image " + image
}

func exactFailed(err error) []finding { return []finding{failedFinding("exact", err)} }

// exactTrial is what one machine says.
func (c *cli) exactTrial(ctx context.Context, cfg *config.Config, level string) []finding {
	machine, _, err := c.exactMachine(ctx, cfg, cfg.ImageCalled(level))
	if err != nil {
		return exactFailed(err)
	}
	content, err := json.Marshal(guestJob{Testbed: cfg.Testbed, Try: firewallsOf(cfg)})
	if err != nil {
		return exactFailed(err)
	}
	started := time.Now()
	all := []finding{{Subject: subjectOf("exact", level), Grade: good}}
	err = machine.Run(ctx, exact.Job{Content: content, Salt: "doctor", Patience: time.Minute, Line: func(text []byte) error {
		var line guestLine
		if err := json.Unmarshal(text, &line); err != nil {
			return err
		}
		if line.Error != "" {
			return errors.New(line.Error)
		}
		if line.Tried != nil {
			f := finding{Subject: subjectOf("firewall "+line.Tried.Firewall, level), Grade: good, Found: "two rules load and verify"}
			if line.Tried.Error != "" {
				f.Grade, f.Found, f.Mend = bad, line.Tried.Error, "leave the firewall out, or take an image whose kernel has it: its runs will be recorded as unavailable"
			}
			all = append(all, f)
		}
		return nil
	}})
	if err != nil {
		return exactFailed(err)
	}
	all[0].Found = fmt.Sprintf("a machine does its job in %.1f s (%s)", time.Since(started).Seconds(), machine.Version)
	return all
}
