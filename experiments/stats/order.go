package stats

import (
	"math"
	"slices"
)

// Median is the middle value of x, or the mean of the two in the middle. It is NaN for no values.
func Median(x []float64) float64 { return Percentile(x, 0.5) }

// Percentile is the p-quantile of x, 0 ≤ p ≤ 1, linear between order statistics (Hyndman and Fan's
// type 7, R's default). It is NaN for no values.
func Percentile(x []float64, p float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(x))
	at := float64(p * float64(len(s)-1))
	below := int(at)
	part := at - float64(below)
	if part == 0 {
		return s[below]
	}
	return float64((1-part)*s[below]) + float64(part*s[below+1])
}

// A MedianEstimate is a median with its order-statistic interval.
type MedianEstimate struct {
	Value    float64
	Lo, Hi   float64 // the k-th smallest and k-th largest value
	Coverage float64 // exact chance that the interval holds the median of a continuous distribution
}

// MedianInterval is the median of x with the smallest interval between the k-th smallest and the k-th
// largest value that holds the true median with chance ≥ level. The number of values below the median
// is binomial with p = ½, so the chance is 1 - 2·P(B < k) whatever the distribution (David and
// Nagaraja, Order Statistics, 3rd ed., §7.1). With too few values the error is a [*TooFewError] and
// only Value is set.
func MedianInterval(x []float64, level float64) (MedianEstimate, error) {
	e := MedianEstimate{Value: Median(x)}
	below := binomialHalf(len(x))
	k := 0
	for k < len(below) && 1-2*below[k] >= level-slack {
		k++
	}
	if k == 0 {
		need := 1
		for 1-math.Ldexp(2, -need) < level-slack {
			need++
		}
		return e, &TooFewError{What: "runs", Have: len(x), Need: need, Level: level}
	}
	s := slices.Sorted(slices.Values(x))
	e.Lo, e.Hi, e.Coverage = s[k-1], s[len(s)-k], 1-2*below[k-1]
	return e, nil
}

// binomialHalf gives P(B ≤ k) for k below n/2 and B the number of heads in n throws. The terms are
// worked out from the middle outwards, relative to the largest, so that no n underflows.
func binomialHalf(n int) []float64 {
	terms := make([]float64, n+1)
	terms[n/2] = 1
	for i := n / 2; i > 0; i-- {
		terms[i-1] = terms[i] * float64(i) / float64(n-i+1)
	}
	for i := n / 2; i < n; i++ {
		terms[i+1] = terms[i] * float64(n-i) / float64(i+1)
	}
	total := 0.0
	for i := 0; i <= n/2; i++ { // smallest first
		total += terms[i]
		if i != n-i {
			total += terms[n-i]
		}
	}
	var cumulative []float64
	sum := 0.0
	for i := 0; 2*i < n; i++ {
		sum += terms[i]
		cumulative = append(cumulative, sum/total)
	}
	return cumulative
}
