package analysis_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

func analyze(t testing.TB, s analysis.Study, records iter.Seq2[record.Record, error]) analysis.Findings {
	t.Helper()
	f, err := analysis.Analyze(s, records)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func sequence(records []record.Record) iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func list(records iter.Seq2[record.Record, error]) (out []record.Record) {
	for r := range records {
		out = append(out, r)
	}
	return out
}

func comparison(t *testing.T, f analysis.Findings, metric, a string, rules, size int) analysis.Comparison {
	t.Helper()
	for _, c := range f.Comparisons {
		if c.Metric == metric && c.A == a && c.Rules == rules && c.FrameSize == size {
			return c
		}
	}
	t.Fatalf("no comparison of %s, %s, %d rules, %d bytes", metric, a, rules, size)
	return analysis.Comparison{}
}

func hasWarning(f analysis.Findings, part string) bool {
	return slices.ContainsFunc(f.Warnings, func(w analysis.Warning) bool { return strings.Contains(w.Text, part) })
}

func TestKnownWorld(t *testing.T) {
	s := jonsson(10)
	s.Bootstrap = 2000
	f := analyze(t, s, truth{noise: 0.01, drift: 0.02, seed: 1}.records(s))

	if got := f.Runs[0]; got.OK != 364*10 || got.Planned != 364*10 || got.MeasuringS != 364*10*0.5 {
		t.Errorf("runs %+v", got)
	}
	if got := len(f.Cells); got != 364*3+364*4 {
		t.Errorf("%d cells", got)
	}
	// 12.13 + 0.03·5000 against 12.13 + 0.02·5000.
	c := comparison(t, f, "rtt_median", "nftables-linear", 5000, 64)
	want := (12.128 + 150) / (12.128 + 100)
	if c.Verdict != analysis.Slower || c.Ratio.Lo > want || c.Ratio.Hi < want || c.Family != 70 || !c.Exact || c.Control {
		t.Errorf("5000 rules: %+v, want a ratio of %g", c, want)
	}
	if c := comparison(t, f, "receiver_bit_rate", "nftables-linear", 5000, 64); c.Verdict != analysis.Slower || c.Ratio.Value > 0.8 {
		t.Errorf("throughput: %+v, want slower with a ratio below 1", c)
	}
	for _, c := range f.Comparisons {
		if c.HolmP < c.P {
			t.Errorf("%+v: adjusted p below p", c)
		}
	}
	for _, floor := range f.NoiseFloors {
		if floor.Metric == "rtt_median" && (floor.Ratio < 1.004 || floor.Ratio > 1.02 || floor.Cells != 70) {
			t.Errorf("%+v: expected about 1 %%", floor)
		}
	}
	for _, cost := range f.RuleCosts {
		want := map[string]float64{"iptables-linear": 20, "nftables-linear": 30, "iptables-linear-again": 20}[cost.Firewall]
		if math.Abs(cost.Slope.Value-want) > 0.9 || cost.Unit != "ns" || cost.Slope.Level != 0.95 {
			t.Errorf("%+v: want %g ns a rule", cost, want)
		}
	}
	if len(f.RuleCosts) != 2*5*7 || len(f.CostRatios) != 2*2*7 {
		t.Errorf("%d costs, %d ratios", len(f.RuleCosts), len(f.CostRatios))
	}
	for _, r := range f.CostRatios {
		if r.A == "nftables-linear" && (r.Ratio.Lo > 1.5 || r.Ratio.Hi < 1.5) && math.Abs(r.Ratio.Value-1.5) > 0.03 {
			t.Errorf("%+v: want 1.5", r)
		}
		if r.A == "nftables-indexed" && (r.Ratio.Level != 0 && r.Ratio.Hi-r.Ratio.Lo < 0.1) {
			t.Errorf("%+v: a ratio of two slopes of 0", r)
		}
	}
	for i, want := range []string{"agrees", "agrees", "disagrees", "agrees", "inconclusive"} {
		for _, j := range []int{i, i + 5} {
			if got := f.Claims[j]; got.Verdict != want || !strings.HasPrefix(strings.ToLower(got.Sentence), want) {
				t.Errorf("%s: %s, want %s: %s", got.Claim.Name, got.Verdict, want, got.Sentence)
			}
		}
	}
	t.Log(f.Claims[0].Sentence)
	t.Log(f.Claims[7].Sentence)
	t.Log(f.Claims[3].Sentence)
	t.Log(f.Claims[4].Sentence)
	t.Log(f.Warnings)
}

// Some cells faster, some slower, all by little: J5.
func TestMixedClaim(t *testing.T) {
	s := small(10)
	s.Claims = []analysis.Claim{{Name: "J5", Experiment: "latency", Compare: [2]string{"nftables-linear", "iptables-linear"}, Expect: "mixed"}}
	world := truth{noise: 0.005, seed: 3, rtt: func(firewall string, rules, size int) float64 {
		switch {
		case firewall == "nftables-linear" && size == 64:
			return 21
		case firewall == "nftables-linear":
			return 19
		}
		return 20
	}}
	got := analyze(t, s, world.records(s)).Claims[0]
	if got.Verdict != analysis.Agrees || got.Differences.Slower != 3 || got.Differences.Faster != 3 {
		t.Errorf("%s %+v", got.Sentence, got.Differences)
	}
	s.Claims[0].Within = 0.02
	if got := analyze(t, s, world.records(s)).Claims[0]; got.Verdict != analysis.Disagrees || got.Differences.Beyond != 6 {
		t.Errorf("within 2 %%: %s %+v", got.Sentence, got.Differences)
	}
}

// The same records in any order, on any number of processors, give the same bytes.
func TestSameRecordsSameBytes(t *testing.T) {
	s := small(10)
	records := list(truth{noise: 0.01, drift: 0.05, seed: 2}.records(s))
	encode := func(records []record.Record) []byte {
		f := analyze(t, s, sequence(records))
		f.Runs = nil // elapsed time follows the order of runs
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := encode(records)
	slices.Reverse(records)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if !bytes.Equal(first, encode(records)) {
		t.Error("findings depend on the order of records or on processors")
	}
}

// A prober that was late, or could be interrupted, fails no run, and its reader is told; one that kept its time is
// nobody's concern.
func TestHowTheProberFared(t *testing.T) {
	s := small(6)
	records := list(truth{noise: 0.01, seed: 1}.records(s))
	for i := range records {
		records[i].Prober = &record.Prober{Realtime: true}
	}
	if f := analyze(t, s, sequence(records)); hasWarning(f, "prober") || hasWarning(f, "late") {
		t.Errorf("a prober that did well is in %v", f.Warnings)
	}
	records[0].Prober = &record.Prober{Late: 1, Realtime: true}
	records[1].Prober = &record.Prober{Late: 2}
	records[2].Status, records[2].Error, records[2].Prober = record.Failed, "it broke", &record.Prober{Late: 9}
	f := analyze(t, s, sequence(records))
	for _, want := range []string{"latency: 3 probes were sent late in 2 runs", "latency: in 1 run the prober was not allowed"} {
		if !hasWarning(f, want) {
			t.Errorf("no warning %q in %v", want, f.Warnings)
		}
	}
}

func TestTooFewRunsSayHowMany(t *testing.T) {
	s := small(3)
	f := analyze(t, s, truth{noise: 0.01, seed: 1}.records(s))
	for _, want := range []string{
		"a 95 % interval needs 6 runs; has 3",
		"a 95 % interval needs 4 runs of each; has 3",
		"latency, rtt_median, nftables-linear against iptables-linear: needs 5 runs a cell for Holm over 6; has 3",
	} {
		if !hasWarning(f, want) {
			t.Errorf("no warning %q in %v", want, f.Warnings)
		}
	}
	for _, c := range f.Cells {
		if c.Median.Level != 0 || c.Median.Lo != 0 || c.Median.Value == 0 || len(c.Warnings) != 1 {
			t.Fatalf("%+v: an interval from three runs", c)
		}
	}
	for _, c := range f.Comparisons {
		if c.Ratio.Level != 0 || c.Ratio90.Level != 0.9 {
			t.Fatalf("%+v: 95 %% from three and three, which reach 90 %%", c)
		}
	}
	if one := small(1); len(analyze(t, one, truth{seed: 1}.records(one)).RuleCosts) != 10 {
		t.Error("one run a cell")
	}
}

// Eight runs are enough for a family of 70 by the exact test, but not where all cells hold equal values.
func TestTiesTakeMoreRuns(t *testing.T) {
	s := jonsson(8)
	s.Bootstrap = 100
	s.Experiments, s.Claims = s.Experiments[:1], nil
	records := list(truth{noise: 0.01, seed: 1}.records(s))
	if f := analyze(t, s, sequence(records)); hasWarning(f, "Holm") {
		t.Errorf("without ties: %v", f.Warnings)
	}
	for _, r := range records {
		step := truth{}.latency(r.Treatment.Firewall, r.Treatment.Rules, r.Treatment.FrameSize) / 200
		m := r.Metrics["rtt_median"]
		r.Metrics["rtt_median"] = record.Metric{Value: math.Round(m.Value/step) * step, Unit: m.Unit}
	}
	f := analyze(t, s, sequence(records))
	if !hasWarning(f, "rtt_median, nftables-linear against iptables-linear: some cells hold equal values") || hasWarning(f, "needs") {
		t.Errorf("%v", f.Warnings)
	}
	for _, c := range f.Comparisons {
		if c.HolmP < 0.05 && len(c.Warnings) > 0 {
			t.Fatalf("%+v: passed what it was warned that it cannot pass", c)
		}
	}
}

func TestBadRunsAreCountedNotUsed(t *testing.T) {
	s := small(6)
	records := list(truth{noise: 0.01, seed: 1}.records(s))
	clean := analyze(t, s, sequence(records))
	for i, status := range []record.Status{record.Failed, record.SenderBound, record.Unavailable, record.Unavailable} {
		r := records[5]
		r.Status, r.Error, r.Block = status, "because", 100+i
		r.Metrics = map[string]record.Metric{"rtt_median": {Value: 1e9, Unit: "us"}}
		records = append(records, r)
	}
	f := analyze(t, s, sequence(records))
	if got := f.Runs[0]; got.Failed != 1 || got.SenderBound != 1 || got.Unavailable != 2 {
		t.Errorf("%+v", got)
	}
	if len(f.Excluded) != 3 || f.Excluded[2].Runs != 2 || f.Excluded[2].Reason != "because" {
		t.Errorf("%+v", f.Excluded)
	}
	a, _ := json.Marshal(clean.Comparisons)
	b, _ := json.Marshal(f.Comparisons)
	if !bytes.Equal(a, b) {
		t.Error("runs that do not count changed a comparison")
	}
}

func TestMissingCells(t *testing.T) {
	s := small(6)
	var records []record.Record
	for r := range (truth{noise: 0.01, seed: 1}).records(s) {
		if r.Treatment.Firewall != "nftables-linear" || r.Treatment.Rules != 5000 {
			records = append(records, r)
		}
	}
	f := analyze(t, s, sequence(records))
	if got := comparison(t, f, "rtt_median", "nftables-linear", 1000, 64); got.Family != 4 {
		t.Errorf("family of %d, want the 4 cells that are there", got.Family)
	}
	if !hasWarning(f, "cannot be compared in 2 of 6 cells") {
		t.Errorf("%v", f.Warnings)
	}
	if f.Claims[1].Cells != 2 {
		t.Errorf("claim over %d cells", f.Claims[1].Cells)
	}
	empty := analyze(t, s, sequence(nil))
	if empty.Claims[0].Verdict != analysis.Inconclusive || !strings.HasPrefix(empty.Claims[0].Sentence, "Nothing can be said") {
		t.Errorf("without records: %+v", empty.Claims[0])
	}
}

// A firewall without rules meets every number of rules of the other, at the same frame size.
func TestControlArmMeetsEveryNumberOfRules(t *testing.T) {
	s := small(6)
	s.Experiments[0].Compare = [][2]string{{"iptables-linear", "none"}, {"empty", "none"}}
	f := analyze(t, s, truth{noise: 0.001, seed: 1}.records(s))
	c := comparison(t, f, "rtt_median", "iptables-linear", 1000, 64)
	if want := (12.128 + 20) / 12.128; math.Abs(c.Ratio.Value-want) > 0.01 || c.Family != 6 {
		t.Errorf("%+v, want %g", c, want)
	}
	if c := comparison(t, f, "rtt_median", "empty", 0, 64); c.Family != 2 {
		t.Errorf("%+v", c)
	}
}

func TestValuesWithoutALogarithm(t *testing.T) {
	s := small(6)
	records := list(truth{noise: 0.01, seed: 1}.records(s))
	for i := range records {
		if i%3 == 0 {
			records[i].Metrics["rtt_median"] = record.Metric{Value: 0, Unit: "us"}
		}
		if records[i].Treatment.Rules == 10 {
			records[i].Metrics["rtt_p99"] = record.Metric{Value: -1, Unit: "us"}
		}
	}
	if f := analyze(t, s, sequence(records)); !hasWarning(f, "are not positive") {
		t.Errorf("%v", f.Warnings)
	}
}

func TestWhatCannotBeAnalysed(t *testing.T) {
	s := small(2)
	for _, c := range []struct {
		name, want string
		change     func(*record.Record)
	}{
		{"clock", "cannot be pooled", func(r *record.Record) { r.Clock = "tcg" }},
		{"experiment", "not in the study", func(r *record.Record) { r.Experiment = "other" }},
		{"firewall", "no firewall", func(r *record.Record) { r.Treatment.Firewall = "other" }},
		{"rules", "not in the matrix", func(r *record.Record) { r.Treatment.Rules = 11 }},
		{"unit", `unit "ms", not "us"`, func(r *record.Record) { r.Metrics["rtt_median"] = record.Metric{Value: 1, Unit: "ms"} }},
		{"size", "1e+300 us, which nothing", func(r *record.Record) { r.Metrics["rtt_median"] = record.Metric{Value: 1e300, Unit: "us"} }},
		{"dust", "5e-324 us, which nothing", func(r *record.Record) { r.Metrics["rtt_median"] = record.Metric{Value: 5e-324, Unit: "us"} }},
		{"infinity", "-Inf us, which nothing", func(r *record.Record) { r.Metrics["rtt_median"] = record.Metric{Value: math.Inf(-1), Unit: "us"} }},
		{"not a number", "NaN us, which nothing", func(r *record.Record) { r.Metrics["rtt_median"] = record.Metric{Value: math.NaN(), Unit: "us"} }},
		{"status", "unknown", func(r *record.Record) { r.Status = "great" }},
		{"twice", "two runs", func(r *record.Record) { r.Block = 1 }},
	} {
		records := list(truth{seed: 1}.records(s))
		c.change(&records[len(records)-1])
		if _, err := analysis.Analyze(s, sequence(records)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
	broken := errors.New("disk on fire")
	_, err := analysis.Analyze(s, func(yield func(record.Record, error) bool) { yield(record.Record{}, broken) })
	if !errors.Is(err, broken) {
		t.Errorf("error of the sequence: %v", err)
	}
	s.Experiments[0].Compare = [][2]string{{"none", "none"}}
	if _, err := analysis.Analyze(s, sequence(nil)); err == nil || !strings.Contains(err.Error(), "none with itself") {
		t.Errorf("a firewall against itself: %v", err)
	}
	s.Bootstrap, s.Experiments = 2_000_000, append(s.Experiments, s.Experiments[0])
	if _, err := analysis.Analyze(s, sequence(nil)); err == nil || !strings.Contains(err.Error(), "bootstrap = 2000000") || !strings.Contains(err.Error(), "two experiments") {
		t.Errorf("a study of impossible size and an experiment twice: %v", err)
	}
	s = small(2)
	s.Claims[0].Compare[0], s.Claims[1].Expect = "other", "better"
	if _, err := analysis.Analyze(s, sequence(nil)); err == nil || !strings.Contains(err.Error(), "claim J1") || !strings.Contains(err.Error(), "claim J2") {
		t.Errorf("both claims should be refused: %v", err)
	}
}

func TestTornLastLineIsAWarning(t *testing.T) {
	s := small(6)
	records := truth{noise: 0.01, seed: 1}.records(s)
	f := analyze(t, s, func(yield func(record.Record, error) bool) {
		for r := range records {
			if !yield(r, nil) {
				return
			}
		}
		yield(record.Record{}, &record.TornError{Line: 99})
	})
	if !hasWarning(f, "torn") || f.Runs[0].OK != f.Runs[0].Planned {
		t.Errorf("%v %+v", f.Warnings, f.Runs[0])
	}
}

// Pauses between sessions are not part of an experiment's time.
func TestElapsedLeavesPausesOut(t *testing.T) {
	s := small(2)
	records := list(truth{seed: 1}.records(s)) // a run of 0.75 s each second
	for i := range records {
		if i >= 20 {
			records[i].Started = records[i].Started.Add(8 * time.Hour)
		}
	}
	got := analyze(t, s, sequence(records)).Runs[0].ElapsedS
	if want := float64(len(records)) - 0.5; math.Abs(got-want) > 1e-6 {
		t.Errorf("elapsed %g s, want %g", got, want)
	}
}

// Boots that differ widen the interval of a claim: they are what is drawn.
func TestBootsAreALevelOfVariance(t *testing.T) {
	s := small(12)
	s.Experiments[0].Boots = 4
	records := list(truth{noise: 0.002, seed: 5}.records(s))
	for i := range records {
		if r := &records[i]; r.Treatment.Firewall == "nftables-linear" { // this firewall is placed anew in memory by each boot
			m := r.Metrics["rtt_median"]
			m.Value *= []float64{0.9, 1.1, 0.95, 1.05}[r.Boot-1]
			r.Metrics["rtt_median"] = m
		}
	}
	f := analyze(t, s, sequence(records))
	if !hasWarning(f, "speak of the 4 boots") {
		t.Errorf("%v", f.Warnings)
	}
	byBoots := f.Claims[0].Effect
	for i := range records {
		records[i].Boot = 1
	}
	byBlocks := analyze(t, s, sequence(records)).Claims[0].Effect
	if byBoots.Value != byBlocks.Value || byBoots.Hi-byBoots.Lo < 1.5*(byBlocks.Hi-byBlocks.Lo) {
		t.Errorf("over boots %+v, over blocks %+v", byBoots, byBlocks)
	}
}

// More blocks than are drawn one by one give an interval of the same kind.
func TestManyBlocks(t *testing.T) {
	s := small(200)
	f := analyze(t, s, truth{noise: 0.01, drift: 0.01, seed: 6}.records(s))
	for _, cost := range f.RuleCosts {
		want := map[string]float64{"iptables-linear": 20, "nftables-linear": 30, "iptables-linear-again": 20}[cost.Firewall]
		width := cost.Slope.Hi - cost.Slope.Lo
		if math.Abs(cost.Slope.Value-want) > 0.1 || (want > 0 && (width > 0.2 || width < 0.02)) {
			t.Errorf("%+v, want %g", cost, want)
		}
	}
	if f.Claims[0].Verdict != analysis.Agrees || f.Claims[0].Effect.Hi-f.Claims[0].Effect.Lo > 0.005 {
		t.Errorf("%+v", f.Claims[0])
	}
}
