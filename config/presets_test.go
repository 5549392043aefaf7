package config

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/design"
)

// examples are the paths of all, without the lock file that who tries them gets.
func examples() ([]string, error) {
	paths, err := filepath.Glob("../examples/*.hcl")
	return slices.DeleteFunc(paths, func(path string) bool { return filepath.Base(path) == LockName }), err
}

// Every example loads and can be planned, and those that are presets are the same text.
func TestExamples(t *testing.T) {
	paths, err := examples()
	if err != nil || len(paths) < len(Presets()) {
		t.Fatal(paths, err)
	}
	for _, path := range append(paths, "../examples/several-files") {
		cfg, err := Load(Source{Path: path})
		if err != nil {
			t.Errorf("%s:\n%v", path, err)
			continue
		}
		checkConfig(t, cfg)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if formatted, err := Format(path, text); err != nil || !bytes.Equal(formatted, text) {
			t.Errorf("%s is not in the canonical layout (%v)", path, err)
		}
	}
}

func TestPresetsAreExamples(t *testing.T) {
	for _, preset := range Presets() {
		path := filepath.Join("../examples", preset.Name+".hcl")
		if *update {
			if err := os.WriteFile(path, preset.Text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if !bytes.Equal(text, preset.Text) {
			t.Errorf("%s is not preset %s; run go test ./config -update", path, preset.Name)
		}
		if found, ok := FindPreset(preset.Name); !ok || !bytes.Equal(found.Text, preset.Text) {
			t.Errorf("preset %s is not found", preset.Name)
		}
	}
	if _, ok := FindPreset("quik"); ok {
		t.Error("a preset that does not exist was found")
	}
}

// checkConfig holds what Load promises to the packages that go on with it.
func checkConfig(t *testing.T, cfg *Config) {
	t.Helper()
	if err := cfg.Testbed.Validate(); err != nil {
		t.Error(err)
	}
	if len(cfg.Experiments) != len(cfg.Study.Experiments) {
		t.Errorf("%d experiments to run, %d to analyse", len(cfg.Experiments), len(cfg.Study.Experiments))
	}
	cells := map[string][]design.Treatment{}
	for _, e := range cfg.Experiments {
		spec := e.Design()
		spec.Repetitions, spec.Boots = 1, 1 // the plan of a fuzzed configuration may be long
		plan, err := design.New(spec)
		if err != nil {
			t.Errorf("experiment %s: %v", e.Name, err)
		}
		for _, run := range plan.Runs {
			cells[e.Name] = append(cells[e.Name], run.Treatment)
		}
	}
	for _, claim := range cfg.Study.Claims {
		if !meets(claim, cells[claim.Experiment]) {
			t.Errorf("claim %s has no cell", claim.Name)
		}
	}
}

// meets reports whether both firewalls, or images, of the claim have a cell in its region; a firewall without
// rules has its cells at rules = 0, and meets another anywhere.
func meets(claim analysis.Claim, cells []design.Treatment) bool {
	for _, a := range cells {
		for _, b := range cells {
			rules := max(a.Rules, b.Rules)
			together := a.FrameSize == b.FrameSize && (a.Rules == b.Rules || a.Rules == 0 || b.Rules == 0)
			in := a.Firewall == claim.Compare[0] && b.Firewall == claim.Compare[1] && a.Image == b.Image && together &&
				(claim.Images == nil || slices.Contains(claim.Images, a.Image))
			if claim.Factor == analysis.FactorImage {
				in = a.Image == claim.Compare[0] && b.Image == claim.Compare[1] && a.Firewall == b.Firewall && a.Rules == b.Rules && together &&
					slices.Contains(claim.Firewalls, a.Firewall)
			}
			for _, where := range claim.Where {
				level := rules
				if where.Factor == "frame_size" {
					level = a.FrameSize
				}
				in = in && where.Holds(level)
			}
			if in {
				return true
			}
		}
	}
	return false
}

// The figures in the comments of the presets, from the same assumptions.
func TestPresetDurations(t *testing.T) {
	estimate := func(e experiments.Spec, overhead time.Duration) (total time.Duration, share float64) {
		runs := len(e.Design().Treatments) * e.Repetitions
		run := e.Measurement.MeasuringTime() + e.Measurement.WarmupTime() + overhead
		return time.Duration(runs) * run, float64(e.Measurement.MeasuringTime()) / float64(run)
	}
	load := func(name string) []experiments.Spec {
		preset, _ := FindPreset(name)
		cfg, err := Load(Source{Files: map[string]string{name: string(preset.Text)}})
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Experiments
	}

	quick := load("quick")
	latency, _ := estimate(quick[0], 250*time.Millisecond)
	throughput, _ := estimate(quick[1], 350*time.Millisecond)
	if total := latency + throughput; total > 150*time.Second || quick[0].Repetitions < 6 || quick[1].Repetitions < 6 {
		t.Errorf("quick takes %v with %d repetitions; its comment promises two and a half minutes and intervals", total, quick[0].Repetitions)
	}
	var total time.Duration
	for _, e := range load("jonsson-2018") {
		took, share := estimate(e, 300*time.Millisecond)
		total += took
		if share < 0.80 {
			t.Errorf("jonsson-2018 %s: %.2f of the time is measuring, 0.80 is promised", e.Name, share)
		}
		if n := len(e.Rules) * len(e.FrameSizes) * 4; n != 280 {
			t.Errorf("jonsson-2018 %s: %d combinations of the study", e.Name, n)
		}
	}
	if total.Round(15*time.Minute) != 5*time.Hour+45*time.Minute {
		t.Errorf("jonsson-2018 takes %v; its comment says five and three quarter hours", total)
	}
}
