package stats

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"sync"
)

// exactBelow is the sample size from which the normal approximation replaces the exact distribution
// (R's wilcox.test, and METHOD).
const exactBelow = 50

// RankSums compares samples by Wilcoxon's rank-sum test, and keeps the exact distributions it has
// worked out. The zero value is ready; it may be used by several goroutines.
type RankSums struct {
	mu    sync.Mutex
	tails map[[2]int][]float64
}

// A RankSum is the comparison of two samples. Build it with [RankSums.Compare].
type RankSum struct {
	U     float64 // pairs with x > y, ties counting half; R calls it W
	P     float64 // two-sided
	Exact bool    // by the exact distribution: no ties, and fewer than 50 values on each side
	Shift float64 // Hodges and Lehmann's: the median of all differences x - y

	differences *pairs
	m, n        int
	tail        []float64  // when Exact: P(U ≤ u) for u from 0 to m·n
	ties        tieWeights // when not Exact
}

// Compare tests whether x and y come from one distribution, and estimates by how much x lies above y
// (Hodges and Lehmann 1963). It agrees with wilcox.test of R 4.2, its estimate in the presence of ties
// apart, where R's is a root-finder's and this one is the exact median of differences. Both samples
// need at least one value; there must be no NaN.
func (r *RankSums) Compare(x, y []float64) *RankSum {
	xs, ys := slices.Sorted(slices.Values(x)), slices.Sorted(slices.Values(y))
	s := &RankSum{m: len(xs), n: len(ys), differences: newPairs(grid{high: xs, low: ys, by: 1})}
	s.U = countAbove(xs, ys)
	s.Shift = s.differences.median()
	var tied bool
	s.ties, tied = weighTies(xs, ys)
	if s.Exact = !tied && s.m < exactBelow && s.n < exactBelow; s.Exact {
		s.tail = r.distribution(s.m, s.n)
		s.P = s.exactP()
	} else {
		s.P = s.normalP()
	}
	return s
}

// Interval is the confidence interval of the shift. In the exact case its ends are order statistics of
// the differences (Bauer 1972); otherwise they are where the test with continuity correction stops
// rejecting, which R finds to about 1e-4 and this finds exactly. When even the widest interval would
// not reach the level, the error is a [*TooFewError].
func (s *RankSum) Interval(level float64) (lo, hi float64, err error) {
	alpha := 1 - level
	if smallestP(s.m, s.n) > alpha+slack {
		return 0, 0, &TooFewError{What: "runs of each", Have: min(s.m, s.n), Need: minRuns(alpha), Level: level}
	}
	if !s.Exact {
		lo, hi = s.normalInterval(alpha)
		return lo, hi, nil
	}
	k := max(1, s.quantile(alpha/2))
	return s.differences.kth(k), s.differences.kth(s.m*s.n + 1 - k), nil
}

// minRuns is the smallest n for which n against n values have an interval of level 1 - alpha.
func minRuns(alpha float64) int {
	n := 1
	for smallestP(n, n) > alpha+slack {
		n++
	}
	return n
}

// quantile is the smallest u with P(U ≤ u) ≥ p, with the allowance for rounding that R makes.
func (s *RankSum) quantile(p float64) int {
	fuzz := p * (1 - 10*0x1p-52)
	u, _ := slices.BinarySearch(s.tail, fuzz)
	return u
}

func (s *RankSum) exactP() float64 {
	u := int(s.U)
	if 2*u > s.m*s.n {
		u = s.m*s.n - u // by symmetry P(U ≥ u) = P(U ≤ m·n - u)
	}
	return min(1, 2*s.tail[u])
}

func (s *RankSum) normalP() float64 {
	return s.normalPAt(math.Abs(s.U - float64(float64(s.m*s.n)/2)))
}

// normalPAt is the two-sided p when U deviates that much from its mean.
func (s *RankSum) normalPAt(deviation float64) float64 {
	if deviation > 0 {
		deviation -= 0.5
	}
	sigma := s.sigma(s.ties.pooled)
	if sigma == 0 {
		return 1 // all values are one value
	}
	return min(1, 2*NormalTail(deviation/sigma))
}

// SmallestP is the p that these samples would have had if all of one were above all of the other: no
// arrangement of such values gives a smaller one. Where there are ties it is larger than without.
func (s *RankSum) SmallestP() float64 {
	if s.Exact {
		return smallestP(s.m, s.n)
	}
	return s.normalPAt(float64(s.m*s.n) / 2)
}

// sigma is the standard deviation of U where groups of t equal values add up t³-t to ties.
func (s *RankSum) sigma(ties float64) float64 {
	m, n := float64(s.m), float64(s.n)
	return math.Sqrt(m * n / 12 * ((m + n + 1) - ties/((m+n)*(m+n-1))))
}

// normalInterval moves x down by d and asks when the test rejects. The statistic falls in steps at the
// differences, so the ends are differences: those at which it passes the critical value. Moved by
// anything between two differences, the samples have no ties with each other, only among themselves.
func (s *RankSum) normalInterval(alpha float64) (lo, hi float64) {
	z := NormalQuantile(alpha / 2)
	sigma := s.sigma(s.ties.apart)
	all := s.m * s.n
	if sigma == 0 { // two constants
		return s.Shift, s.Shift
	}
	// With c differences at or below d, U just above d is all - c.
	standard := func(c int) float64 {
		deviation := float64(all-c) - float64(float64(all)/2)
		switch {
		case deviation > 0:
			deviation -= 0.5
		case deviation < 0:
			deviation += 0.5
		}
		return deviation / sigma
	}
	lower := 1 + sort.Search(all-1, func(i int) bool { return standard(i+1) <= z })
	upper := 1 + sort.Search(all-1, func(i int) bool { return standard(i+1) < -z })
	return s.differences.kth(lower), s.differences.kth(upper)
}

// distribution gives P(U ≤ u) for u from 0 to m·n when every order of the m + n values is equally
// likely (Mann and Whitney 1947).
func (r *RankSums) distribution(m, n int) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	size := [2]int{min(m, n), max(m, n)} // symmetric in m and n
	if tail, ok := r.tails[size]; ok {
		return tail
	}
	if r.tails == nil {
		r.tails = make(map[[2]int][]float64)
	}
	tail := rankSumTail(size[0], size[1])
	r.tails[size] = tail
	return tail
}

// rankSumTail counts the choices of m of the ranks 1 … m+n by their sum, adding one rank at a time:
// a choice of k ranks with sum s either has the newest rank or not. Counts are only ever added, so
// their rounding stays at the size of 1e-16.
func rankSumTail(m, n int) []float64 {
	// counts[k][u]: choices of k ranks whose sum exceeds the smallest possible by u.
	counts := make([][]float64, m+1)
	for k := range counts {
		counts[k] = make([]float64, m*n+1)
	}
	counts[0][0] = 1
	for rank := 1; rank <= m+n; rank++ {
		for k := min(rank, m); k >= 1; k-- {
			excess := rank - k // of the newest rank over the k-th, which is the least it can be
			if excess > n {
				continue
			}
			for u := min(m*n, k*(rank-k)); u >= excess; u-- { // k ranks up to rank exceed by no more
				counts[k][u] += counts[k-1][u-excess]
			}
		}
	}
	tail := counts[m]
	for u := 1; u < len(tail); u++ {
		tail[u] += tail[u-1]
	}
	all := tail[len(tail)-1]
	for u := range tail {
		tail[u] /= all
	}
	return tail
}

// countAbove counts the pairs with x > y, ties half. Both must be sorted.
func countAbove(xs, ys []float64) float64 {
	twice, below, atMost := 0, 0, 0
	for _, x := range xs {
		for below < len(ys) && ys[below] < x {
			below++
		}
		for atMost < len(ys) && ys[atMost] <= x {
			atMost++
		}
		twice += below + atMost
	}
	return float64(twice) / 2
}

// tieWeights are the sums of t³-t over groups of t equal values.
type tieWeights struct {
	pooled float64 // groups in both samples together
	apart  float64 // groups in each by itself
}

func weighTies(xs, ys []float64) (w tieWeights, tied bool) {
	both := slices.Concat(xs, ys)
	slices.SortFunc(both, cmp.Compare[float64])
	w = tieWeights{pooled: tieWeight(both), apart: tieWeight(xs) + tieWeight(ys)}
	return w, w.pooled > 0
}

func tieWeight(sorted []float64) float64 {
	sum := 0.0
	for i := 0; i < len(sorted); {
		j := i
		for j < len(sorted) && sorted[j] == sorted[i] {
			j++
		}
		t := float64(j - i)
		sum += float64(t*t*t) - t
		i = j
	}
	return sum
}
