package stats

import (
	"cmp"
	"slices"
)

// A Point is an observation y at x.
type Point struct{ X, Y float64 }

// A Line is y = Intercept + Slope·x.
type Line struct{ Slope, Intercept float64 }

// TheilSen fits a line by Theil and Sen: the slope is the median of the slopes of all pairs of points
// with different x (Sen 1968, Journal of the American Statistical Association 63), the intercept the
// median of y - slope·x. Up to 29 % of the points may be arbitrarily wrong. Without two different x the
// slope is NaN.
func TheilSen(points []Point) Line {
	levels := byLevel(points)
	var grids []grid
	for i, low := range levels {
		for _, high := range levels[i+1:] {
			grids = append(grids, grid{high: high.ys, low: low.ys, by: high.x - low.x})
		}
	}
	slope := newPairs(grids...).median()
	rest := make([]float64, len(points))
	for i, p := range points {
		rest[i] = p.Y - float64(slope*p.X)
	}
	return Line{Slope: slope, Intercept: Median(rest)}
}

type level struct {
	x  float64
	ys []float64 // sorted
}

// byLevel groups the points by x, ascending.
func byLevel(points []Point) []level {
	sorted := slices.SortedFunc(slices.Values(points), func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.X, b.X), cmp.Compare(a.Y, b.Y))
	})
	var levels []level
	for _, p := range sorted {
		if len(levels) == 0 || levels[len(levels)-1].x != p.X {
			levels = append(levels, level{x: p.X})
		}
		last := &levels[len(levels)-1]
		last.ys = append(last.ys, p.Y)
	}
	return levels
}
