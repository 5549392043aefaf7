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
	// products of two weights, for every pair of units g ≤ h in the order of pairIndex; worked out when
	// a statistic first asks for them.
	products []int64
	fresh    bool
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
			var d Draw
			for r := w * len(out) / workers; r < (w+1)*len(out)/workers; r++ {
				d.Weights, d.fresh = b.weights[r*b.units:(r+1)*b.units], false
				out[r] = s.At(&d)
			}
		})
	}
	wg.Wait()
	return out
}

func (d *Draw) pairs() []int64 {
	if d.fresh {
		return d.products
	}
	d.products, d.fresh = d.products[:0], true
	for h, w := range d.Weights {
		for _, v := range d.Weights[:h+1] {
			d.products = append(d.products, int64(v)*int64(w))
		}
	}
	return d.products
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

// A Slope is Theil and Sen's slope as a statistic of the units: the median over pairs of points, each
// pair counting as often as its two units were drawn, one number times the other.
type Slope struct {
	values []float64 // slopes of all pairs, sorted
	units  []int32   // pairIndex of the units of each
	step   int
	// before holds, for every step-th pair and at the end, how many pairs of each pairIndex come
	// before it: the weight before a step is then a sum over pairs of units, not of points.
	before [][]int32
}

var _ Statistic = (*Slope)(nil)

// NewSlope prepares the slope of the points.
func NewSlope(points []Point) *Slope {
	type pair struct {
		slope float64
		units int32
	}
	var list []pair
	for i, a := range points {
		for _, b := range points[:i] {
			if dx := a.X - b.X; dx != 0 {
				list = append(list, pair{(a.Y - b.Y) / dx, int32(pairIndex(min(a.Unit, b.Unit), max(a.Unit, b.Unit)))})
			}
		}
	}
	slices.SortFunc(list, func(a, b pair) int { return cmp.Compare(a.slope, b.slope) })
	s := &Slope{values: make([]float64, len(list)), units: make([]int32, len(list))}
	size := 0
	for i, p := range list {
		s.values[i], s.units[i] = p.slope, p.units
		size = max(size, int(p.units)+1)
	}
	s.step = max(32, size)
	counts := make([]int32, size)
	for i, u := range s.units {
		if i%s.step == 0 {
			s.before = append(s.before, slices.Clone(counts))
		}
		counts[u]++
	}
	s.before = append(s.before, counts)
	return s
}

// At is the weighted median of the pairs, NaN when none was drawn.
func (s *Slope) At(d *Draw) float64 {
	products := d.pairs()
	last := len(s.before) - 1
	total := s.weightBefore(last, products)
	if total == 0 {
		return math.NaN()
	}
	lower, upper := (total+1)/2, total/2+1 // the same when total is odd
	// The last step with less than lower before it; the first always qualifies. Drawing moves most
	// pairs' share of the weight alike, so the distance left says where to look next.
	lo, hi, guess := 0, last, last/2
	sum := int64(0)
	for hi-lo > 1 {
		before := s.weightBefore(guess, products)
		if before < lower {
			lo, sum = guess, before
		} else {
			hi = guess
		}
		guess += int((lower - before) * int64(last) / total)
		guess = min(max(guess, lo+1), hi-1)
	}
	i := lo * s.step
	sum += products[s.units[i]]
	for ; sum < lower; sum += products[s.units[i]] {
		i++
	}
	value := s.values[i]
	for ; sum < upper; sum += products[s.units[i]] {
		i++
	}
	return (value + s.values[i]) / 2
}

func (s *Slope) weightBefore(step int, products []int64) int64 {
	counts := s.before[step]
	products = products[:len(counts)]
	sum := int64(0)
	for i, count := range counts {
		sum += int64(count) * products[i]
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
