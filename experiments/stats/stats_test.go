package stats_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rampart-bench/rampart/experiments/stats"
)

func TestLogAndExpAgreeWithMath(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200_000 {
		x := math.Exp(rng.NormFloat64() * 20)
		if rng.IntN(2) == 0 {
			x = 1 + rng.NormFloat64()*0.01 // where cancellation would show
		}
		if got, want := stats.Log(x), math.Log(x); math.Abs(got-want) > 4e-16*math.Abs(want) {
			t.Fatalf("Log(%v) = %v, want %v", x, got, want)
		}
		y := rng.NormFloat64() * 100
		if got, want := stats.Exp(y), math.Exp(y); math.Abs(got-want) > 4e-16*want {
			t.Fatalf("Exp(%v) = %v, want %v", y, got, want)
		}
	}
	if !math.IsNaN(stats.Log(-1)) || !math.IsInf(stats.Log(0), -1) || stats.Exp(-1000) != 0 || !math.IsInf(stats.Exp(1000), 1) {
		t.Error("limits of Log and Exp")
	}
}

func TestNormal(t *testing.T) {
	for z := -6.0; z <= 20; z += 0.01 {
		near(t, "tail", stats.NormalTail(z), math.Erfc(z/math.Sqrt2)/2)
	}
	near(t, "quantile", stats.NormalQuantile(0.025), 1.959963984540054)
}

// Values of R's qt.
func TestStudentQuantile(t *testing.T) {
	for _, c := range []struct {
		tail float64
		df   int
		want float64
	}{
		{0.025, 1, 12.7062047361747}, {0.025, 2, 4.30265272974946}, {0.025, 4, 2.77644510519779},
		{0.025, 9, 2.2621571627982}, {0.05, 9, 1.83311293265624}, {0.025, 19, 2.09302405440831},
		{0.025, 29, 2.04522964213270}, {0.005, 63, 2.65614502509987},
	} {
		near(t, "t", stats.StudentQuantile(c.tail, c.df), c.want)
	}
}

func TestMedianIntervalSizes(t *testing.T) {
	for _, c := range []struct {
		n, k     int // the interval goes from the k-th smallest to the k-th largest
		coverage float64
	}{
		{6, 1, 1 - 2.0/64}, {9, 2, 1 - 20.0/512}, {10, 2, 1 - 22.0/1024}, {20, 6, 0.958610534667969}, {30, 10, 0.957226},
	} {
		x := make([]float64, c.n)
		for i := range x {
			x[i] = float64(i + 1)
		}
		e, err := stats.MedianInterval(x, 0.95)
		if err != nil || e.Lo != float64(c.k) || e.Hi != float64(c.n+1-c.k) || math.Abs(e.Coverage-c.coverage) > 1e-6 {
			t.Errorf("n = %d: %+v, %v; want from %d with coverage %g", c.n, e, err, c.k, c.coverage)
		}
	}
	e, err := stats.MedianInterval([]float64{3, 1, 2, 5, 4}, 0.95)
	var few *stats.TooFewError
	if !errors.As(err, &few) || few.Need != 6 || few.Have != 5 || e.Value != 3 || e.Lo != 0 {
		t.Errorf("n = 5: %+v, %v", e, err)
	}
	big := make([]float64, 5001)
	for i := range big {
		big[i] = float64(i)
	}
	if e, err := stats.MedianInterval(big, 0.95); err != nil || math.Abs(e.Coverage-0.951) > 0.002 {
		t.Errorf("n = 5001: %+v, %v", e, err) // normal: 2500 ± 1.96·35.4, half-widths in whole ranks
	}
}

// The exact distribution is symmetric, and its tails are those of R's pwilcox.
func TestExactPValues(t *testing.T) {
	var sums stats.RankSums
	for _, c := range []struct {
		x, y []float64
		p    float64
	}{
		{[]float64{1}, []float64{2}, 1},
		{[]float64{1, 2}, []float64{3, 4}, 2.0 / 6},
		{[]float64{1, 2, 3, 4, 5}, []float64{6, 7, 8, 9, 10}, 2.0 / 252},
		{[]float64{1, 2, 4}, []float64{3, 5, 6, 7}, 4.0 / 35},
		{[]float64{3, 5, 6, 7}, []float64{1, 2, 4}, 4.0 / 35},
	} {
		near(t, "p", sums.Compare(c.x, c.y).P, c.p)
	}
}

// For 50 and more the approximation takes over; at 49 against 49 both must nearly agree.
func TestExactAndNormalMeet(t *testing.T) {
	var sums stats.RankSums
	rng := rand.New(rand.NewPCG(2, 2))
	x, y := make([]float64, 50), make([]float64, 50)
	for i := range x {
		x[i], y[i] = rng.NormFloat64()+0.5, rng.NormFloat64()
	}
	exact, normal := sums.Compare(x[:49], y[:49]), sums.Compare(x, y[:49])
	if !exact.Exact || normal.Exact {
		t.Fatal("49 must be exact and 50 not")
	}
	tied := slices.Sorted(slices.Values(x[:49]))
	tied[25] = tied[24] // one tie: nearly the same data by the other method
	a, b := sums.Compare(tied, y[:49]), exact
	if a.Exact || math.Abs(a.P-b.P) > 0.1*b.P {
		t.Errorf("p exact %g, normal with one tie %g", b.P, a.P)
	}
	aLo, aHi, _ := a.Interval(0.95)
	bLo, bHi, _ := b.Interval(0.95)
	if math.Abs(aLo-bLo) > 0.05 || math.Abs(aHi-bHi) > 0.05 {
		t.Errorf("intervals [%g, %g] and [%g, %g]", aLo, aHi, bLo, bHi)
	}
}

func TestConstantsDoNotPanic(t *testing.T) {
	var sums stats.RankSums
	same := []float64{7, 7, 7, 7, 7}
	s := sums.Compare(same, same)
	lo, hi, err := s.Interval(0.95)
	if s.P != 1 || s.Shift != 0 || lo != 0 || hi != 0 || err != nil {
		t.Errorf("constants: %+v [%g, %g] %v", s, lo, hi, err)
	}
	other := []float64{9, 9, 9, 9, 9}
	s = sums.Compare(other, same)
	lo, hi, err = s.Interval(0.95)
	if s.P > 0.05 || s.Shift != 2 || lo != 2 || hi != 2 || err != nil {
		t.Errorf("two constants: %+v [%g, %g] %v", s, lo, hi, err)
	}
}

// Selection among pairs that are never written out gives what sorting them all gives.
func TestLargeSamplesSelectExactly(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var sums stats.RankSums
	for _, round := range []float64{0, 1, 1000} { // with many, some and no ties
		x, y := make([]float64, 300), make([]float64, 157)
		for _, v := range [][]float64{x, y} {
			for i := range v {
				v[i] = rng.NormFloat64()
				if round > 0 {
					v[i] = math.Round(v[i]*round) / round
				}
			}
		}
		var all []float64
		for _, a := range x {
			for _, b := range y {
				all = append(all, a-b)
			}
		}
		if got, want := sums.Compare(x, y).Shift, stats.Median(all); got != want {
			t.Errorf("shift %v, sorting gives %v", got, want)
		}
	}
}

func TestTheilSenOfManyPoints(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var points []stats.Point
	for range 60 {
		for _, x := range []float64{10, 20, 50, 100, 1000} {
			points = append(points, stats.Point{X: x, Y: 3 + 2*x + rng.NormFloat64()})
		}
	}
	var slopes []float64
	for i, a := range points {
		for _, b := range points[:i] {
			if a.X > b.X {
				slopes = append(slopes, (a.Y-b.Y)/(a.X-b.X))
			} else if a.X < b.X {
				slopes = append(slopes, (b.Y-a.Y)/(b.X-a.X))
			}
		}
	}
	if got, want := stats.TheilSen(points).Slope, stats.Median(slopes); got != want {
		t.Errorf("slope %v, sorting gives %v", got, want)
	}
	if got := stats.TheilSen(points[:1]).Slope; !math.IsNaN(got) {
		t.Errorf("slope of one point is %v", got)
	}
}

// Whole clusters are drawn, each with all its units, and as many as there are.
func TestDrawsAreOfWholeClusters(t *testing.T) {
	b := stats.NewBootstrap([]int{0, 0, 0, 1, 2, 2}, 300, rand.New(rand.NewPCG(5, 5)))
	b.Estimate(0, statistic(func(d stats.Draw) float64 {
		w := d.Weights
		if w[0] != w[1] || w[1] != w[2] || w[4] != w[5] || w[0]+w[3]+w[4] != 3 {
			t.Errorf("drew %v", w)
		}
		return 0
	}))
}

// Units without a value are left out, and so are statistics without one.
func TestMeansLeaveOutWhatIsMissing(t *testing.T) {
	none := math.NaN()
	each := stats.Each{1, none, 4}
	for _, c := range []struct {
		weights []int32
		want    float64
	}{{[]int32{1, 1, 1}, 2.5}, {[]int32{2, 0, 1}, 2}, {[]int32{0, 2, 1}, 4}, {[]int32{0, 3, 0}, none}} {
		got := stats.Mean{each, stats.Each{none, 7, none}}.At(stats.Draw{Weights: c.weights})
		alone := each.At(stats.Draw{Weights: c.weights})
		if alone != c.want && !(math.IsNaN(alone) && math.IsNaN(c.want)) {
			t.Errorf("%v: %v, want %v", c.weights, alone, c.want)
		}
		if c.weights[1] == 0 && got != c.want {
			t.Errorf("%v: mean %v, want %v", c.weights, got, c.want)
		}
	}
}

type statistic func(stats.Draw) float64

func (f statistic) At(d stats.Draw) float64 { return f(d) }
func (f statistic) Has(int) bool            { return true }

// For a mean of blocks the interval is Student's.
func TestIntervalOfAMeanIsStudents(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	values := stats.Each{2.1, 2.4, 1.9, 2.2, 2.8, 2.0}
	b := stats.NewBootstrap([]int{0, 1, 2, 3, 4, 5}, 200_000, rng)
	lo, hi, err := b.Estimate(13.4/6, values).Interval(0.95)
	if err != nil {
		t.Fatal(err)
	}
	// R: t.test(c(2.1, 2.4, 1.9, 2.2, 2.8, 2.0))$conf.int
	if math.Abs(lo-1.88819) > 0.003 || math.Abs(hi-2.57848) > 0.003 {
		t.Errorf("[%g, %g]", lo, hi)
	}
	two := stats.NewBootstrap([]int{0, 0, 0, 1, 1, 1}, 10, rng)
	if _, _, err := two.Estimate(2, values).Interval(0.95); err == nil {
		t.Error("an interval from two boots")
	}
	// Units without a value do not count: this is the interval of the three that have one.
	none := math.NaN()
	lo, hi, err = b.Estimate(2, stats.Each{1, none, 2, none, none, 3}).Interval(0.95)
	if err != nil || hi-lo < 2*2.48 {
		t.Errorf("three of six: [%g, %g], %v; Student's half-width is 2.48", lo, hi, err)
	}
}

// Fieller's interval of paired values, and its refusal where the denominator may be 0.
func TestRatioInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	b := stats.NewBootstrap([]int{0, 1, 2, 3, 4, 5}, 20_000, rng)
	y := stats.Each{1.0, 1.1, 0.9, 1.2, 0.8, 1.0}
	x := stats.Each{2.0, 2.2, 1.8, 2.4, 1.6, 2.0} // always twice
	lo, hi, ok, err := stats.RatioInterval(b.Estimate(2, x), b.Estimate(1, y), 0.95)
	if err != nil || !ok || math.Abs(lo-2) > 1e-6 || math.Abs(hi-2) > 1e-6 {
		t.Errorf("[%g, %g] %v %v, want 2 alone", lo, hi, ok, err)
	}
	about0 := stats.Each{1, -1, 1, -1, 1, -0.9}
	if _, _, ok, err := stats.RatioInterval(b.Estimate(2, x), b.Estimate(0.1/6, about0), 0.95); ok || err != nil {
		t.Errorf("a ratio to what may be 0: ok = %v, %v", ok, err)
	}
}

func TestMinRunsForHolm(t *testing.T) {
	for _, c := range []struct{ family, want int }{{1, 4}, {6, 5}, {7, 6}, {70, 7}, {280, 8}, {10_000, 11}} {
		if got := stats.MinRunsForHolm(c.family, 0.05); got != c.want {
			t.Errorf("family of %d: %d runs, want %d", c.family, got, c.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	x := []float64{5, 1, 4, 2, 3}
	for _, c := range []struct{ p, want float64 }{{0, 1}, {0.5, 3}, {0.95, 4.8}, {1, 5}} {
		near(t, "percentile", stats.Percentile(x, c.p), c.want)
	}
	if !math.IsNaN(stats.Median(nil)) {
		t.Error("median of nothing")
	}
}
