package stats

import (
	"cmp"
	"slices"
)

// Holm adjusts the p-values of one family so that, when those below alpha are called differences,
// the chance of one or more false ones is at most alpha, however the tests depend on each other
// (Holm 1979, Scandinavian Journal of Statistics 6).
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(p[i], p[j]) })
	adjusted := make([]float64, len(p))
	highest := 0.0
	for rank, i := range order {
		highest = max(highest, min(1, float64(len(p)-rank)*p[i]))
		adjusted[i] = highest
	}
	return adjusted
}

// MinRunsForHolm is the smallest number of runs of each firewall in each cell with which the most
// extreme outcome of the exact rank-sum test, p = 2/C(2n, n), passes Holm's correction in a family of
// that many comparisons. With fewer, no data whatever could be called a difference.
func MinRunsForHolm(family int, alpha float64) int {
	n := 1
	for float64(max(family, 1))*smallestP(n, n) >= alpha {
		n++
	}
	return n
}

// smallestP is the smallest two-sided p that the exact rank-sum test of m and n values can give.
func smallestP(m, n int) float64 {
	choose := 1.0
	for i := 1; i <= m; i++ {
		choose *= float64(n+i) / float64(i)
	}
	return min(1, 2/choose)
}
