package main_test

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/rampart-bench/rampart/experiments/record"
)

// TestExact runs the program with provider exact. Its scripts need QEMU, and the tools that build an
// image unless one is there; they need neither root nor KVM.
func TestExact(t *testing.T) {
	for _, program := range []string{"qemu-system-x86_64", "mmdebstrap"} {
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
			t.Fatalf("%s is needed, and this run may not skip", program)
		}
		t.Skipf("%s is needed", program)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/exact",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
			examples, err := filepath.Abs("../../examples")
			if err != nil {
				return err
			}
			env.Setenv("EXAMPLES", examples)
			// The user's own store of images: a script has no home.
			for _, name := range []string{"HOME", "XDG_CACHE_HOME"} {
				env.Setenv(name, os.Getenv(name))
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":    exitsWith,
			"faultless": faultless,
			"spawn":     spawn,
			"signal":    signalJob,
			"await":     await,
			"steady":    steady,
			"dearer":    dearer,
		},
	})
}

// steady runs `steady DIR`: the median of each treatment, counted from that of the arm `none` at the same
// frame size in the same block, is the same number of instructions in most blocks.
func steady(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: steady DIR")
	}
	for treatment, extra := range beyondNone(ts, args[0]) {
		ts.Logf("%+v: %v instructions more than none", treatment, extra)
	}
}

// dearer runs `dearer BEFORE AFTER FIREWALL N`: a round trip through the firewall costs N instructions
// more after than before, at every size.
func dearer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: dearer BEFORE AFTER FIREWALL N")
	}
	want, err := strconv.ParseFloat(args[3], 64)
	ts.Check(err)
	before, after := beyondNone(ts, args[0]), beyondNone(ts, args[1])
	compared := 0
	for treatment, extra := range before {
		if treatment.Firewall != args[2] {
			continue
		}
		compared++
		if got := after[treatment] - extra; got != want {
			ts.Fatalf("%+v costs %v instructions more than before, want %v", treatment, got, want)
		}
	}
	if compared == 0 {
		ts.Fatalf("%s has no runs of %s", args[0], args[2])
	}
}

// beyondNone is how many instructions the median of each treatment is above that of the arm `none` at the
// same frame size in the same block, which must be as many in all blocks but a few: where things lie in the
// memory of one machine can have made it a few instructions more or less.
func beyondNone(ts *testscript.TestScript, dir string) map[record.Treatment]float64 {
	type place struct{ block, size int }
	base := map[place]float64{}
	medians := map[record.Treatment]map[int]float64{}
	for rec, err := range record.ReadDir(ts.MkAbs(dir), record.Options{SkipSamples: true}) {
		ts.Check(err)
		median := rec.Metrics["rtt_median"].Value * 1e3
		if rec.Treatment.Firewall == "none" {
			base[place{rec.Block, rec.Treatment.FrameSize}] = median
			continue
		}
		if medians[rec.Treatment] == nil {
			medians[rec.Treatment] = map[int]float64{}
		}
		medians[rec.Treatment][rec.Block] = median
	}
	if len(base) < 2 {
		ts.Fatalf("%s has %d runs of the arm none, want one in each of two blocks", dir, len(base))
	}
	beyond := map[record.Treatment]float64{}
	for treatment, blocks := range medians {
		agree := map[float64]int{} // blocks by what they say
		for block, median := range blocks {
			agree[math.Round(median-base[place{block, treatment.FrameSize}])]++
		}
		for extra, count := range agree {
			if 2*count > len(blocks) {
				beyond[treatment] = extra
			}
		}
		if _, ok := beyond[treatment]; !ok {
			ts.Fatalf("%+v costs more than none by these instructions in so many blocks: %v", treatment, agree)
		}
	}
	return beyond
}
