package stats

import (
	"cmp"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
)

// A Statistic is an estimate that can be worked out again when some units count several times and
// others not at all. It is NaN where the units drawn do not determine it.
type Statistic interface {
	At(*Draw) float64
}

// A Bootstrap draws units (blocks) with replacement, again and again. One set of draws serves every
// statistic of an experiment, so that statistics of the same blocks stay paired.
type Bootstrap struct {
	units    int
	clusters int
	weights  []int32 // replicate after replicate, how often each unit was drawn
}

// A Draw says how often each unit was drawn in one replicate.
type Draw struct {
	Weights []int32
	// products of two weights, for every pair of units g ≤ h in the order of pairIndex.
	products []int64
}

// NewBootstrap draws that many replicates. cluster gives the cluster of each unit, numbered from 0:
// whole clusters are drawn, each with all its units. Where every unit is a cluster of its own this is
// the ordinary bootstrap. (Drawing units anew inside a drawn cluster would count their spread twice:
// it is in the spread of the clusters already. Davison and Hinkley 1997, §3.8.)
func NewBootstrap(cluster []int, replicates int, rng *rand.Rand) *Bootstrap {
	b := &Bootstrap{units: len(cluster), weights: make([]int32, len(cluster)*replicates)}
	for _, c := range cluster {
		b.clusters = max(b.clusters, c+1)
	}
	times := make([]int32, b.clusters)
	for r := range replicates {
		clear(times)
		for range times {
			times[rng.IntN(len(times))]++
		}
		row := b.weights[r*b.units : (r+1)*b.units]
		for unit, c := range cluster {
			row[unit] = times[c]
		}
	}
	return b
}

// Replicates works the statistic out for every draw, on all processors; the order is the draws'.
func (b *Bootstrap) Replicates(s Statistic) []float64 {
	if b.units == 0 {
		return nil
	}
	out := make([]float64, len(b.weights)/b.units)
	workers := min(runtime.GOMAXPROCS(0), len(out))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			d := Draw{products: make([]int64, pairIndex(b.units-1, b.units-1)+1)}
			for r := w * len(out) / workers; r < (w+1)*len(out)/workers; r++ {
				d.set(b.weights[r*b.units : (r+1)*b.units])
				out[r] = s.At(&d)
			}
		})
	}
	wg.Wait()
	return out
}

func (d *Draw) set(weights []int32) {
	d.Weights = weights
	i := 0
	for h, w := range weights {
		for _, v := range weights[:h+1] {
			d.products[i] = int64(v) * int64(w)
			i++
		}
	}
}

// pairIndex numbers the pairs of units g ≤ h.
func pairIndex(g, h int) int { return h*(h+1)/2 + g }

// minClusters is the fewest clusters that say anything about their own spread.
const minClusters = 3

// Interval is value ± t·se, where se is the spread of the replicates, enlarged by √(G/(G-1)) because
// G clusters drawn from themselves spread too little, and t is Student's with G-1 degrees of freedom.
// For a mean this is Student's interval; unlike percentiles of the replicates it keeps its level with ten blocks
// (the simulation among this package's tests holds it to that). Fewer than three clusters give a
// [*TooFewError].
func (b *Bootstrap) Interval(value float64, replicates []float64, level float64) (lo, hi float64, err error) {
	if err := b.enough(level); err != nil {
		return 0, 0, err
	}
	half := float64(b.student(level) * math.Sqrt(b.covariance(replicates, replicates)))
	return value - half, value + half, nil
}

// RatioInterval is the interval of the ratio of two values whose replicates are paired, by Fieller's
// theorem (1954, Journal of the Royal Statistical Society B 16): all r for which x - r·y does not
// differ from 0. ok is false when y itself may be 0, for then no ratio can be excluded.
func (b *Bootstrap) RatioInterval(x, y float64, xs, ys []float64, level float64) (lo, hi float64, ok bool, err error) {
	if err := b.enough(level); err != nil {
		return 0, 0, false, err
	}
	t := b.student(level)
	t2 := float64(t * t)
	// (x - r·y)² = t²·(vx - 2·r·c + r²·vy), a quadratic in r.
	qa := float64(y*y) - float64(t2*b.covariance(ys, ys))
	qb := float64(x*y) - float64(t2*b.covariance(xs, ys))
	qc := float64(x*x) - float64(t2*b.covariance(xs, xs))
	root := float64(qb*qb) - float64(qa*qc)
	if !(qa > 0) || !(root >= 0) {
		return 0, 0, false, nil
	}
	return (qb - math.Sqrt(root)) / qa, (qb + math.Sqrt(root)) / qa, true, nil
}

func (b *Bootstrap) enough(level float64) error {
	if b.clusters < minClusters {
		return &TooFewError{What: "blocks or boots", Have: b.clusters, Need: minClusters, Level: level}
	}
	return nil
}

func (b *Bootstrap) student(level float64) float64 {
	return StudentQuantile((1-level)/2, b.clusters-1)
}

// covariance of paired replicates, enlarged for the number of clusters; replicates that are not a
// number on either side are left out.
func (b *Bootstrap) covariance(xs, ys []float64) float64 {
	n, meanX, meanY := 0.0, 0.0, 0.0
	for i := range xs {
		if !math.IsNaN(xs[i]) && !math.IsNaN(ys[i]) {
			n, meanX, meanY = n+1, meanX+xs[i], meanY+ys[i]
		}
	}
	meanX, meanY = meanX/n, meanY/n
	sum := 0.0
	for i := range xs {
		if !math.IsNaN(xs[i]) && !math.IsNaN(ys[i]) {
			sum += float64((xs[i] - meanX) * (ys[i] - meanY))
		}
	}
	g := float64(b.clusters)
	return sum / (n - 1) * (g / (g - 1))
}

// A PairMedian is the median of a value over pairs of observations, each pair counting as often as its
// two units were drawn, one number times the other. Hodges and Lehmann's shift is one, and so is Theil and Sen's slope.
type PairMedian struct {
	values []float64 // of all pairs, sorted
	units  []int32   // pairIndex of the units of each
	step   int
	// before holds, for every step-th pair and at the end, how many pairs of each pairIndex come
	// before it: the weight before a step is then a sum over pairs of units, not of observations.
	before [][]int32
}

var _ Statistic = (*PairMedian)(nil)

// NewShift is Hodges and Lehmann's shift of x over y as a statistic of the units. Only Y and Unit of
// the points count.
func NewShift(x, y []Point) *PairMedian {
	list := make([]unitPair, 0, len(x)*len(y))
	for _, a := range x {
		for _, b := range y {
			list = append(list, newUnitPair(a.Y-b.Y, a, b))
		}
	}
	return newPairMedian(list)
}

// NewSlope is Theil and Sen's slope as a statistic of the units.
func NewSlope(points []Point) *PairMedian {
	var list []unitPair
	for i, a := range points {
		for _, b := range points[:i] {
			if dx := a.X - b.X; dx != 0 {
				list = append(list, newUnitPair((a.Y-b.Y)/dx, a, b))
			}
		}
	}
	return newPairMedian(list)
}

type unitPair struct {
	value float64
	units int32
}

func newUnitPair(value float64, a, b Point) unitPair {
	return unitPair{value, int32(pairIndex(min(a.Unit, b.Unit), max(a.Unit, b.Unit)))}
}

func newPairMedian(list []unitPair) *PairMedian {
	slices.SortFunc(list, func(a, b unitPair) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.units, b.units))
	})
	m := &PairMedian{values: make([]float64, len(list)), units: make([]int32, len(list))}
	size := 0
	for i, p := range list {
		m.values[i], m.units[i] = p.value, p.units
		size = max(size, int(p.units)+1)
	}
	m.step = max(32, size)
	counts := make([]int32, size)
	for i, u := range m.units {
		if i%m.step == 0 {
			m.before = append(m.before, slices.Clone(counts))
		}
		counts[u]++
	}
	m.before = append(m.before, counts)
	return m
}

// At is the weighted median of the pairs, NaN when none was drawn.
func (m *PairMedian) At(d *Draw) float64 {
	last := len(m.before) - 1
	total := m.weightBefore(last, d)
	if total == 0 {
		return math.NaN()
	}
	lower, upper := (total+1)/2, total/2+1 // the same when total is odd
	// The last step with less than lower before it; the first always qualifies.
	lo, hi := 0, last
	for hi-lo > 1 {
		if middle := (lo + hi) / 2; m.weightBefore(middle, d) < lower {
			lo = middle
		} else {
			hi = middle
		}
	}
	i := lo * m.step
	sum := m.weightBefore(lo, d) + d.products[m.units[i]]
	for ; sum < lower; sum += d.products[m.units[i]] {
		i++
	}
	value := m.values[i]
	for ; sum < upper; sum += d.products[m.units[i]] {
		i++
	}
	return (value + m.values[i]) / 2
}

func (m *PairMedian) weightBefore(step int, d *Draw) int64 {
	sum := int64(0)
	for i, count := range m.before[step] {
		sum += int64(count) * d.products[i]
	}
	return sum
}

// Each is the mean of one value a unit, each counting as often as its unit was drawn; NaN marks a unit
// that has none.
type Each []float64

var _ Statistic = Each(nil)

// At is the weighted mean.
func (e Each) At(d *Draw) float64 {
	sum, n := 0.0, 0.0
	for unit, v := range e {
		if w := float64(d.Weights[unit]); w > 0 && !math.IsNaN(v) {
			sum += float64(w * v)
			n += w
		}
	}
	return sum / n
}

// A Mean is the mean of several statistics, those without a value in a draw left out.
type Mean []Statistic

var _ Statistic = Mean(nil)

// At is the mean of the statistics' values.
func (m Mean) At(d *Draw) float64 {
	sum, n := 0.0, 0.0
	for _, s := range m {
		if v := s.At(d); !math.IsNaN(v) {
			sum, n = sum+v, n+1
		}
	}
	return sum / n
}
