package design_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/experiments/design"
)

func spec() design.Spec {
	s := design.Spec{Repetitions: 4, Boots: 2, Seed: 7}
	for _, fw := range []string{"a", "b", "c"} {
		for _, rules := range []int{10, 100} {
			s.Treatments = append(s.Treatments, design.Treatment{Firewall: fw, Rules: rules, FrameSize: 64})
		}
	}
	return s
}

func plan(t *testing.T, s design.Spec) design.Plan {
	t.Helper()
	p, err := design.New(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestBlocksAreComplete: every block has every treatment once, and boots take whole blocks in turn.
func TestBlocksAreComplete(t *testing.T) {
	s := spec()
	runs := plan(t, s).Runs
	if len(runs) != 24 {
		t.Fatalf("%d runs, want 24", len(runs))
	}
	for i, run := range runs {
		block, boot := i/6+1, i/12+1
		if run.Sequence != i+1 || run.Block != block || run.Boot != boot {
			t.Errorf("run %d is %+v, want sequence %d, block %d, boot %d", i, run, i+1, block, boot)
		}
	}
	for block := range slices.Chunk(runs, 6) {
		seen := map[design.Treatment]bool{}
		for _, run := range block {
			seen[run.Treatment] = true
		}
		if len(seen) != 6 {
			t.Errorf("block %d has %d treatments, want 6", block[0].Block, len(seen))
		}
	}
}

// TestPlanIsTheSameEverywhere pins the order and the digest: if they change, nobody can resume or
// repeat a study that was planned before.
func TestPlanIsTheSameEverywhere(t *testing.T) {
	p := plan(t, spec())
	var order []string
	for _, run := range p.Runs[:6] {
		order = append(order, run.Treatment.Firewall)
	}
	const digest, first = "sha256:8c63ac612bb4c8c5167113fb79e526b032c213c04e94e8568c79dafabbf6133a", "b a a c c b"
	if p.Digest != digest {
		t.Errorf("digest %s, want %s", p.Digest, digest)
	}
	if got := strings.Join(order, " "); got != first {
		t.Errorf("the first block is %s, want %s", got, first)
	}
}

// TestSeedDecidesTheOrder: another seed, another order; a longer plan begins like the shorter one.
func TestSeedDecidesTheOrder(t *testing.T) {
	one := spec()
	other := spec()
	other.Seed++
	if reflect.DeepEqual(plan(t, one).Runs, plan(t, other).Runs) {
		t.Error("two seeds give one order")
	}
	short, long := spec(), spec()
	short.Boots, long.Boots, long.Repetitions = 1, 1, 9
	if !reflect.DeepEqual(plan(t, short).Runs, plan(t, long).Runs[:24]) {
		t.Error("more repetitions change the blocks before them")
	}
	blocks := slices.Collect(slices.Chunk(plan(t, one).Runs, 6))
	if blocks[0][0].Treatment == blocks[1][0].Treatment && blocks[1][0].Treatment == blocks[2][0].Treatment && blocks[2][0].Treatment == blocks[3][0].Treatment {
		t.Error("every block begins with the same treatment: it is not shuffled anew")
	}
}

// across are three images, each with the treatments of spec.
func across() design.Spec {
	s := spec()
	var all []design.Treatment
	for _, image := range []string{"x", "y", "z"} {
		for _, t := range s.Treatments {
			t.Image = image
			all = append(all, t)
		}
	}
	s.Treatments = all
	return s
}

// TestImagesAreWholePlots: in every boot each image has one turn, in which all blocks of the boot are
// measured whole, and only then comes the next image.
func TestImagesAreWholePlots(t *testing.T) {
	runs := plan(t, across()).Runs
	if len(runs) != 72 {
		t.Fatalf("%d runs, want 72", len(runs))
	}
	turns := map[string]int{}
	for i, turn := range slices.Collect(slices.Chunk(runs, 12)) { // 6 treatments, 2 blocks a boot
		boot := i/3 + 1
		turns[fmt.Sprint(boot, turn[0].Treatment.Image)]++
		seen := map[design.Run]bool{}
		for j, run := range turn {
			if run.Sequence != i*12+j+1 || run.Boot != boot || run.Block != (boot-1)*2+j/6+1 || run.Treatment.Image != turn[0].Treatment.Image {
				t.Errorf("turn %d, place %d: %+v", i, j, run)
			}
			run.Sequence = 0
			seen[run] = true
		}
		if len(seen) != 12 {
			t.Errorf("turn %d has %d different runs, want 12", i, len(seen))
		}
	}
	if len(turns) != 6 {
		t.Errorf("turns %v, want each image once in each boot", turns)
	}
}

// TestImagesTakeTurnsFairly: over many boots each image is first about equally often (χ² at 0.1 %), and two
// images of a block are not measured in one order.
func TestImagesTakeTurnsFairly(t *testing.T) {
	s := across()
	s.Repetitions, s.Boots = 3000, 3000
	first, alike := map[string]float64{}, 0
	for boot := range slices.Chunk(plan(t, s).Runs, 18) {
		first[boot[0].Treatment.Image]++
		if boot[0].Treatment.Firewall == boot[6].Treatment.Firewall && boot[0].Treatment.Rules == boot[6].Treatment.Rules {
			alike++
		}
	}
	chi2 := 0.0
	for _, n := range first {
		chi2 += (n - 1000) * (n - 1000) / 1000
	}
	if len(first) != 3 || chi2 > 13.8 { // 0.999 quantile with 2 degrees of freedom
		t.Errorf("χ² = %.1f over %v", chi2, first)
	}
	if alike < 400 || alike > 600 { // a sixth of 3000, ± 5 standard deviations
		t.Errorf("%d of 3000 boots begin with the same treatment on two images, want about 500", alike)
	}
}

// TestGroupedKeepsTheImages: where the clock cannot drift, images come in the order given, too.
func TestGroupedKeepsTheImages(t *testing.T) {
	s := across()
	s.Grouped, s.Boots = true, s.Repetitions
	for block := range slices.Chunk(plan(t, s).Runs, 18) {
		for i, run := range block {
			if run.Treatment != s.Treatments[i] {
				t.Fatalf("block %d, place %d: %+v", run.Block, i, run.Treatment)
			}
		}
	}
}

// TestShuffleIsFair: over many blocks each treatment stands first about equally often (χ² at 0.1 %).
func TestShuffleIsFair(t *testing.T) {
	s := spec()
	s.Repetitions, s.Boots = 6000, 1
	first := map[design.Treatment]float64{}
	for block := range slices.Chunk(plan(t, s).Runs, 6) {
		first[block[0].Treatment]++
	}
	chi2 := 0.0
	for _, n := range first {
		chi2 += (n - 1000) * (n - 1000) / 1000
	}
	if len(first) != 6 || chi2 > 20.5 { // 0.999 quantile with 5 degrees of freedom
		t.Errorf("χ² = %.1f over %d treatments", chi2, len(first))
	}
}

// TestGroupedKeepsTheOrder: where the clock cannot drift, the order given is the order measured.
func TestGroupedKeepsTheOrder(t *testing.T) {
	s := spec()
	s.Grouped = true
	for block := range slices.Chunk(plan(t, s).Runs, 6) {
		for i, run := range block {
			if run.Treatment != s.Treatments[i] {
				t.Fatalf("block %d, place %d: %+v", run.Block, i, run.Treatment)
			}
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*design.Spec)
		want   string
	}{
		"no treatment":   {func(s *design.Spec) { s.Treatments = nil }, "no treatment"},
		"twice":          {func(s *design.Spec) { s.Treatments[1] = s.Treatments[0] }, "twice"},
		"no repetition":  {func(s *design.Spec) { s.Repetitions = 0 }, "repetitions = 0"},
		"too many boots": {func(s *design.Spec) { s.Boots = 5 }, "boots = 5"},
		"no boot":        {func(s *design.Spec) { s.Boots = 0 }, "boots = 0"},
	} {
		s := spec()
		c.change(&s)
		if _, err := design.New(s); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}
