package design_test

import (
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
