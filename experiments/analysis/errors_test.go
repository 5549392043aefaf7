package analysis_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/stats"
)

// binomialUpper is the number of events in n trials that chance exceeds, once in a thousand, when each
// has probability p.
func binomialUpper(n int, p float64) int {
	term := math.Pow(1-p, float64(n))
	k := 0
	for sum := term; 1-sum > 0.001; sum += term {
		k++
		term *= float64(n-k+1) / float64(k) * p / (1 - p)
	}
	return k
}

// In families of 280 comparisons of identical firewalls at most 5 % may contain a difference. With
// n = 10 the exact rate follows from the distribution: the largest p below 0.05/280 that ten and ten
// values can give is 24/C(20,10), so the rate is 1-(1-24/184756)^280 = 3.6 %.
func TestFamilyWiseFalseAlarms(t *testing.T) {
	const families, cells, runs, alpha = 1500, 280, 10, 0.05
	var sums stats.RankSums
	rng := rand.New(rand.NewPCG(280, 1))
	alarms := 0
	x, y, p := make([]float64, runs), make([]float64, runs), make([]float64, cells)
	for range families {
		for c := range p {
			for i := range runs {
				x[i], y[i] = rng.NormFloat64(), rng.NormFloat64()
			}
			p[c] = sums.Compare(x, y).P
		}
		for _, adjusted := range stats.Holm(p) {
			if adjusted < alpha {
				alarms++
				break
			}
		}
	}
	bound := binomialUpper(families, alpha)
	exact := 1 - math.Pow(1-24.0/184756, cells)
	t.Logf("%d of %d families of %d A/A cells with a false alarm: %.2f %% (expected %.2f %%); a rate of 5 %% exceeds %d once in a thousand",
		alarms, families, cells, 100*float64(alarms)/families, 100*exact, bound)
	if alarms > bound || float64(alarms)/families > alpha {
		t.Errorf("false alarms in %d of %d families", alarms, families)
	}
	if upper := binomialUpper(families, exact); alarms > upper || alarms < families/100 {
		t.Errorf("%d alarms, expected %.1f: the simulation does not see what it should", alarms, exact*families)
	}
}

// wide is a study of 280 cells of two firewalls.
func wide(runs int) analysis.Study {
	e := analysis.Experiment{
		Name: "latency", Measurement: "icmp_rtt", Repetitions: runs, Boots: 1, Rules: []int{10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000},
		Firewalls: []analysis.Firewall{{Name: "a", Rules: true}, {Name: "b", Rules: true}}, Compare: [][2]string{{"a", "b"}},
	}
	for i := range 28 {
		e.FrameSizes = append(e.FrameSizes, 64+i)
	}
	return analysis.Study{Bootstrap: 100, Experiments: []analysis.Experiment{e}}
}

// shifted gives records in which a is slower than b by the ratio that belongs to the cell.
func shifted(s analysis.Study, noise float64, rng *rand.Rand, ratio func(rules, frame int) float64) []record.Record {
	e := s.Experiments[0]
	var out []record.Record
	for block := 1; block <= e.Repetitions; block++ {
		for _, f := range e.Firewalls {
			for _, rules := range e.Rules {
				for _, size := range e.FrameSizes {
					value := 20 * math.Exp(noise*rng.NormFloat64())
					if f.Name == "a" {
						value *= ratio(rules, size)
					}
					out = append(out, record.Record{
						Experiment: e.Name, Block: block, Boot: 1, Clock: "host", Status: record.OK,
						Treatment: record.Treatment{Firewall: f.Name, Rules: rules, FrameSize: size},
						Metrics:   map[string]record.Metric{"rtt_median": {Value: value, Unit: "us"}},
					})
				}
			}
		}
	}
	return out
}

// A tenth of 280 cells differ by 3 % at 1 % noise, with 12 runs a cell.
func TestPower(t *testing.T) {
	const studies = 40
	s := wide(12)
	rng := rand.New(rand.NewPCG(12, 3))
	significant, slower, cells := 0, 0, 0
	for range studies {
		f := analyze(t, s, sequence(shifted(s, 0.01, rng, func(rules, _ int) float64 {
			if rules == 1000 {
				return 1.03
			}
			return 1
		})))
		for _, c := range f.Comparisons {
			if c.Family != 280 {
				t.Fatalf("family of %d", c.Family)
			}
			if c.Rules != 1000 {
				continue
			}
			cells++
			if c.HolmP < 0.05 {
				significant++
			}
			if c.Verdict == analysis.Slower {
				slower++
			}
		}
	}
	power, verdict := float64(significant)/float64(cells), float64(slower)/float64(cells)
	t.Logf("3 %% at 1 %% noise, n = 12, Holm over 280: significant in %.1f %% of %d cells, verdict slower in %.1f %% (a true 3 %% lies on the margin, so that up to 5 %% are equivalent and minor)",
		100*power, cells, 100*verdict)
	if power < 0.90 || verdict < 0.90 {
		t.Errorf("power %.3f, verdict %.3f, want 0.90 and more", power, verdict)
	}
}

// A true difference of 5 % is never called equivalent at a margin of 3 % more often than in 5 % of cells,
// whatever the noise; nor is one that lies on the margin, where the test is at its level; and equal
// firewalls are called equivalent.
func TestEquivalence(t *testing.T) {
	share := func(runs int, noise, ratio float64) float64 {
		s := wide(runs)
		rng := rand.New(rand.NewPCG(uint64(runs), math.Float64bits(noise*ratio)))
		equivalent, cells := 0, 0
		for range 5 {
			f := analyze(t, s, sequence(shifted(s, noise, rng, func(int, int) float64 { return ratio })))
			for _, c := range f.Comparisons {
				cells++
				if c.Verdict == analysis.Equivalent {
					equivalent++
				}
			}
		}
		return float64(equivalent) / float64(cells)
	}
	const cells = 5 * 280
	bound := float64(binomialUpper(cells, 0.05)) / cells
	for _, noise := range []float64{0.005, 0.01, 0.02, 0.04} {
		for _, runs := range []int{5, 12} {
			five, edge := share(runs, noise, 1.05), share(runs, noise, 1.03)
			t.Logf("noise %.1f %%, n = %2d: a true 5 %% is called equivalent in %.2f %%, a true 3 %% in %.2f %% of %d cells (bound %.2f %%)",
				noise*100, runs, five*100, edge*100, cells, bound*100)
			if five > 0.05 || edge > bound {
				t.Errorf("noise %g, n = %d: %.3f and %.3f called equivalent", noise, runs, five, edge)
			}
		}
	}
	if same := share(12, 0.01, 1); same < 0.9 {
		t.Errorf("equal firewalls are called equivalent in only %.3f", same)
	}
}
