package stats

import (
	"math"
	"slices"
)

// gatherLimit is how many pair values are put into memory and sorted at a time.
const gatherLimit = 1 << 13

// A grid is the set of values (h - l)/by for all h in high and l in low. It is never written out whole:
// in sorted samples the values at or below a bound are counted in one pass.
type grid struct {
	high, low []float64 // sorted
	by        float64   // > 0
}

func (g grid) value(i, j int) float64 { return (g.high[i] - g.low[j]) / g.by }

// pairs is a union of grids with the order statistics of all their values.
type pairs struct {
	grids []grid
	total int
	// sorted holds every value when there are at most gatherLimit.
	sorted []float64
}

func newPairs(grids ...grid) *pairs {
	p := &pairs{grids: grids}
	for _, g := range grids {
		p.total += len(g.high) * len(g.low)
	}
	if p.total <= gatherLimit {
		p.sorted = p.gather(math.Inf(-1), math.Inf(1))
	}
	return p
}

// median of all values; NaN when there is none.
func (p *pairs) median() float64 {
	if p.total == 0 {
		return math.NaN()
	}
	low := p.kth((p.total + 1) / 2)
	if p.total%2 == 1 {
		return low
	}
	return (low + p.kth(p.total/2+1)) / 2
}

// kth is the k-th smallest value, k from 1. Bounds around it are halved, counting the values between
// in each pass, until few enough are left to sort.
func (p *pairs) kth(k int) float64 {
	if p.sorted != nil {
		return p.sorted[k-1]
	}
	lo, hi := math.Inf(-1), math.Inf(1)
	below, upTo := 0, p.total // values ≤ lo and ≤ hi
	for upTo-below > gatherLimit {
		middle := between(lo, hi)
		if middle == hi {
			return hi // a run of equal values
		}
		if count := p.count(middle); count < k {
			lo, below = middle, count
		} else {
			hi, upTo = middle, count
		}
	}
	return p.gather(lo, hi)[k-below-1]
}

// count is the number of values ≤ bound.
func (p *pairs) count(bound float64) int {
	count := 0
	for _, g := range p.grids {
		j := 0 // first low that is large enough; grows with high
		for i := range g.high {
			for j < len(g.low) && g.value(i, j) > bound {
				j++
			}
			count += len(g.low) - j
		}
	}
	return count
}

// gather returns the values in (lo, hi], sorted.
func (p *pairs) gather(lo, hi float64) []float64 {
	values := make([]float64, 0, min(p.total, gatherLimit))
	for _, g := range p.grids {
		first := 0
		for i := range g.high {
			for first < len(g.low) && g.value(i, first) > hi {
				first++
			}
			for j := first; j < len(g.low); j++ {
				v := g.value(i, j)
				if v <= lo {
					break
				}
				values = append(values, v)
			}
		}
	}
	slices.Sort(values)
	return values
}

// between is the number half-way from lo to hi in the order of floating-point numbers, so that no
// interval takes more than 64 halvings. It is hi when there is none between.
func between(lo, hi float64) float64 {
	a, b := rank(lo), rank(hi)
	return unrank(a + int64((uint64(b)-uint64(a)+1)/2))
}

// rank numbers the floating-point numbers in ascending order.
func rank(x float64) int64 {
	bits := int64(math.Float64bits(x))
	if bits < 0 {
		return math.MinInt64 - bits
	}
	return bits
}

func unrank(r int64) float64 {
	if r < 0 {
		r = math.MinInt64 - r
	}
	return math.Float64frombits(uint64(r))
}
