package stats

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
)

// A Statistic is an estimate that can be worked out again when some units count several times and
// others not at all. It is NaN where the units drawn do not determine it.
type Statistic interface {
	At(Draw) float64
	// Has reports whether the unit contributes.
	Has(unit int) bool
}

// A Bootstrap draws units (blocks) with replacement, again and again. One set of draws serves every
// statistic of an experiment, so that statistics of the same blocks stay paired.
type Bootstrap struct {
	cluster []int   // of each unit
	weights []int32 // replicate after replicate, how often each unit was drawn
}

// A Draw says how often each unit was drawn in one replicate.
type Draw struct{ Weights []int32 }

// NewBootstrap draws that many replicates. cluster gives the cluster of each unit, numbered from 0:
// whole clusters are drawn, each with all its units. Where every unit is a cluster of its own this is
// the ordinary bootstrap. (Drawing units anew inside a drawn cluster would count their spread twice:
// it is in the spread of the clusters already. Davison and Hinkley 1997, §3.8.)
func NewBootstrap(cluster []int, replicates int, rng *rand.Rand) *Bootstrap {
	units, clusters := len(cluster), 0
	for _, c := range cluster {
		clusters = max(clusters, c+1)
	}
	b := &Bootstrap{cluster: cluster, weights: make([]int32, units*replicates)}
	times := make([]int32, clusters)
	for r := range replicates {
		clear(times)
		for range times {
			times[rng.IntN(clusters)]++
		}
		row := b.weights[r*units : (r+1)*units]
		for unit, c := range cluster {
			row[unit] = times[c]
		}
	}
	return b
}

// An Estimate is a value with its replicates.
type Estimate struct {
	Value      float64
	replicates []float64
	clusters   int // that contribute
}

// Estimate works the statistic out for every draw, on all processors, around the value that all units
// give together.
func (b *Bootstrap) Estimate(value float64, s Statistic) Estimate {
	contributes := map[int]bool{}
	for unit, c := range b.cluster {
		if s.Has(unit) {
			contributes[c] = true
		}
	}
	e := Estimate{Value: value, clusters: len(contributes)}
	units := len(b.cluster)
	if units == 0 {
		return e
	}
	e.replicates = make([]float64, len(b.weights)/units)
	workers := min(runtime.GOMAXPROCS(0), len(e.replicates))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := w * len(e.replicates) / workers; r < (w+1)*len(e.replicates)/workers; r++ {
				e.replicates[r] = s.At(Draw{b.weights[r*units : (r+1)*units]})
			}
		})
	}
	wg.Wait()
	return e
}

// MinClusters is the fewest clusters that say anything about their own spread.
const MinClusters = 3

// Interval is Value ± t·se, where se is the spread of the replicates, enlarged by √(G/(G-1)) because
// G clusters drawn from themselves spread too little, and t is Student's with G-1 degrees of freedom.
// For a mean this is Student's interval; unlike percentiles of the replicates it keeps its level with
// ten blocks (the simulation in package analysis holds it to that). Fewer than three clusters give a
// [*TooFewError].
func (e Estimate) Interval(level float64) (lo, hi float64, err error) {
	if e.clusters < MinClusters {
		return 0, 0, tooFewClusters(e.clusters, level)
	}
	half := float64(StudentQuantile((1-level)/2, e.clusters-1) * math.Sqrt(covariance(e, e, e.clusters)))
	return e.Value - half, e.Value + half, nil
}

// RatioInterval is the interval of x/y for estimates from the same draws, by Fieller's theorem (1954,
// Journal of the Royal Statistical Society B 16): all r for which x - r·y does not differ from 0. ok is
// false when y itself may be 0, for then no ratio can be excluded.
func RatioInterval(x, y Estimate, level float64) (lo, hi float64, ok bool, err error) {
	g := min(x.clusters, y.clusters)
	if g < MinClusters {
		return 0, 0, false, tooFewClusters(g, level)
	}
	t := StudentQuantile((1-level)/2, g-1)
	t2 := float64(t * t)
	// (x - r·y)² = t²·(vx - 2·r·c + r²·vy), a quadratic in r.
	qa := float64(y.Value*y.Value) - float64(t2*covariance(y, y, g))
	qb := float64(x.Value*y.Value) - float64(t2*covariance(x, y, g))
	qc := float64(x.Value*x.Value) - float64(t2*covariance(x, x, g))
	root := float64(qb*qb) - float64(qa*qc)
	if !(qa > 0) || !(root >= 0) {
		return 0, 0, false, nil
	}
	return (qb - math.Sqrt(root)) / qa, (qb + math.Sqrt(root)) / qa, true, nil
}

// Clusters is what a [TooFewError] counts when an interval over clusters is refused.
const Clusters = "blocks or boots"

func tooFewClusters(have int, level float64) error {
	return &TooFewError{What: Clusters, Have: have, Need: MinClusters, Level: level}
}

// covariance of paired replicates, enlarged for the number of clusters; replicates that are not a
// number on either side are left out.
func covariance(x, y Estimate, clusters int) float64 {
	n, meanX, meanY := 0.0, 0.0, 0.0
	for i, vx := range x.replicates {
		if vy := y.replicates[i]; !math.IsNaN(vx) && !math.IsNaN(vy) {
			n, meanX, meanY = n+1, meanX+vx, meanY+vy
		}
	}
	meanX, meanY = meanX/n, meanY/n
	sum := 0.0
	for i, vx := range x.replicates {
		if vy := y.replicates[i]; !math.IsNaN(vx) && !math.IsNaN(vy) {
			sum += float64((vx - meanX) * (vy - meanY))
		}
	}
	g := float64(clusters)
	return float64(sum / (n - 1) * (g / (g - 1)))
}

// Each is the mean of one value a unit, each counting as often as its unit was drawn; NaN marks a unit
// that has none.
type Each []float64

var _ Statistic = Each(nil)

// At is the weighted mean.
func (e Each) At(d Draw) float64 {
	sum, n := 0.0, 0.0
	for unit, v := range e {
		if w := float64(d.Weights[unit]); w > 0 && !math.IsNaN(v) {
			sum += float64(w * v)
			n += w
		}
	}
	return sum / n
}

// Has reports whether the unit has a value.
func (e Each) Has(unit int) bool { return !math.IsNaN(e[unit]) }

// A Mean is the mean of several statistics, those without a value in a draw left out.
type Mean []Statistic

var _ Statistic = Mean(nil)

// At is the mean of the statistics' values.
func (m Mean) At(d Draw) float64 {
	sum, n := 0.0, 0.0
	for _, s := range m {
		if v := s.At(d); !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	return sum / n
}

// Has reports whether the unit contributes to one of the statistics.
func (m Mean) Has(unit int) bool {
	return slices.ContainsFunc(m, func(s Statistic) bool { return s.Has(unit) })
}
