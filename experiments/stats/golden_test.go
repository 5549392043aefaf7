package stats_test

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/rampart-bench/rampart/experiments/stats"
)

// golden holds reference values that R 4.2 worked out. Its "bh" is not used: we correct by Holm.
type golden struct {
	TwoSample []struct {
		Name   string
		X, Y   []float64
		Ties   bool
		W      float64
		P      float64    `json:"p_two_sided"`
		Shift  float64    `json:"hl_log_shift_exact"`
		Ratio  float64    `json:"ratio"`
		CI95   [2]float64 `json:"ci95_log"`
		CI90   [2]float64 `json:"ci90_log"`
		Ratio9 [2]float64 `json:"ci95_ratio"`
	} `json:"two_sample"`
	Adjust   struct{ P, Holm []float64 }
	TheilSen struct {
		X, Y             []float64
		Slope, Intercept float64
	} `json:"theil_sen"`
	MedianCI struct {
		X      []float64
		Median float64
		CI95   struct{ Lo, Hi, Coverage float64 }
	} `json:"median_ci"`
}

func readGolden(t *testing.T) golden {
	t.Helper()
	text, err := os.ReadFile("testdata/statistics.json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

const relative = 1e-9

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= relative*math.Abs(want)) {
		t.Errorf("%s = %.15g, want %.15g", what, got, want)
	}
}

func logs(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = stats.Log(v)
	}
	return out
}

func TestRankSumAgainstR(t *testing.T) {
	var sums stats.RankSums
	for _, c := range readGolden(t).TwoSample {
		t.Run(c.Name, func(t *testing.T) {
			s := sums.Compare(logs(c.X), logs(c.Y))
			near(t, "W", s.U, c.W)
			near(t, "p", s.P, c.P)
			near(t, "shift", s.Shift, c.Shift)
			near(t, "ratio", stats.Exp(s.Shift), c.Ratio)
			if s.Exact == c.Ties {
				t.Errorf("exact = %v with ties = %v", s.Exact, c.Ties)
			}
			checkInterval(t, s, 0.90, c.CI90, c.Ties)
			if len(c.X) == 3 {
				checkRefusal(t, s)
				return
			}
			checkInterval(t, s, 0.95, c.CI95, c.Ties)
		})
	}
}

func checkInterval(t *testing.T, s *stats.RankSum, level float64, want [2]float64, ties bool) {
	t.Helper()
	lo, hi, err := s.Interval(level)
	if err != nil {
		t.Fatal(err)
	}
	if !ties {
		near(t, "lo", lo, want[0])
		near(t, "hi", hi, want[1])
		return
	}
	// R's ends come from a root-finder with a tolerance of 1e-4.
	if math.Abs(lo-want[0]) > 1e-4 || math.Abs(hi-want[1]) > 1e-4 {
		t.Errorf("interval [%g, %g], want %v", lo, hi, want)
	}
}

// Three against three reach 90 %; R prints the same interval as 95 % with a warning.
func checkRefusal(t *testing.T, s *stats.RankSum) {
	t.Helper()
	_, _, err := s.Interval(0.95)
	var few *stats.TooFewError
	if !errors.As(err, &few) || few.Have != 3 || few.Need != 4 {
		t.Errorf("95 %% interval of 3 and 3: error %v, want a refusal that asks for 4", err)
	}
}

func TestHolmAgainstR(t *testing.T) {
	g := readGolden(t)
	for i, p := range stats.Holm(g.Adjust.P) {
		near(t, "holm", p, g.Adjust.Holm[i])
	}
}

func TestTheilSenAgainstR(t *testing.T) {
	g := readGolden(t).TheilSen
	points := make([]stats.Point, len(g.X))
	for i := range g.X {
		points[i] = stats.Point{X: g.X[i], Y: g.Y[i]}
	}
	line := stats.TheilSen(points)
	near(t, "slope", line.Slope, g.Slope)
	near(t, "intercept", line.Intercept, g.Intercept)
}

func TestMedianIntervalAgainstR(t *testing.T) {
	g := readGolden(t).MedianCI
	got, err := stats.MedianInterval(g.X, 0.95)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "median", got.Value, g.Median)
	near(t, "lo", got.Lo, g.CI95.Lo)
	near(t, "hi", got.Hi, g.CI95.Hi)
	near(t, "coverage", got.Coverage, g.CI95.Coverage)
}
