package analysis_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

// Findings of fixed records have fixed bytes, on every machine and with every compiler option. A change
// of the method, or of a sentence, changes the digests: then say so in the commit.
func TestFindingsHaveTheSameBytesEverywhere(t *testing.T) {
	boots := small(12)
	boots.Experiments[0].Boots = 4
	mixed := jonsson(6)
	mixed.Bootstrap = 500
	for _, c := range []struct {
		name, want string
		study      analysis.Study
	}{
		{"boots", "f7c4493886c618d5", boots},
		{"two experiments, all claims", "f4e90156af1f6580", mixed},
		{"normal approximation, groups of blocks", "10a072a8f9fc761b", small(70)},
	} {
		records := list(truth{noise: 0.01, drift: 0.01, seed: 9}.records(c.study))
		for _, r := range records {
			for name, m := range r.Metrics { // as a prober reports, and what math.Exp differs in is gone
				r.Metrics[name] = record.Metric{Value: math.Round(m.Value*1000) / 1000, Unit: m.Unit}
			}
		}
		text, err := json.Marshal(analyze(t, c.study, sequence(records)))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(text)
		if got := hex.EncodeToString(sum[:8]); got != c.want {
			t.Errorf("%s: findings have digest %s, want %s", c.name, got, c.want)
		}
	}
}

// Fused multiply-add rounds once where the program says twice. No compiler may find a place for it in
// the arithmetic: on arm64 it would use every one there is.
func TestNoFusedProducts(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for another processor")
	}
	build := exec.Command("go", "build", "-gcflags=-S", "../stats", ".")
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	listing, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("compile for arm64: %v\n%s", err, listing)
	}
	if !regexp.MustCompile(`\tFMULD\t`).Match(listing) {
		t.Fatal("the listing has no product at all: is it a listing?")
	}
	for _, fused := range regexp.MustCompile(`.*\tFN?M(ADD|SUB)[SD]\t.*`).FindAll(listing, -1) {
		t.Errorf("write float64(x*y) around the product: %s", fused)
	}
}
