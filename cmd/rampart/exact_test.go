package main_test

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
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
		},
	})
}

// steady runs `steady DIR`: the median of each treatment, counted from that of the arm `none` at the same
// frame size in the same block, is the same number of instructions in every block.
func steady(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: steady DIR")
	}
	type place struct{ block, size int }
	base := map[place]float64{}
	medians := map[record.Treatment]map[int]float64{}
	for rec, err := range record.ReadDir(ts.MkAbs(args[0]), record.Options{SkipSamples: true}) {
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
		ts.Fatalf("%s has %d runs of the arm none, want one in each of two blocks", args[0], len(base))
	}
	for treatment, blocks := range medians {
		first := math.Round(blocks[1] - base[place{1, treatment.FrameSize}])
		for block, median := range blocks {
			if extra := math.Round(median - base[place{block, treatment.FrameSize}]); extra != first {
				ts.Fatalf("%+v costs %v instructions more than none in block 1, %v in block %d", treatment, first, extra, block)
			}
		}
		ts.Logf("%+v: %v instructions more than none", treatment, first)
	}
}
