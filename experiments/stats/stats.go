// Package stats is the arithmetic behind a comparison: order statistics, the rank-sum test with its
// exact interval, Theil and Sen's slope, Holm's correction, and a bootstrap over blocks.
//
// It is pure, and portable to the bit: the same numbers give the same results on every machine. The
// language lets a compiler fuse x*y + z into one instruction that rounds once, and the functions of
// package math are assembly on some machines, so in this package every product that is added to
// something is first rounded by an explicit conversion, and logarithm and exponential are our own.
// docs/statistics.md explains each method with its formula and source.
package stats

import "fmt"

// A TooFewError says that no interval of the level exists for so few values, and how many it takes.
type TooFewError struct {
	What  string  // what is counted, such as "runs"
	Have  int     // how many there are; of two samples, the smaller
	Need  int     // how many would do
	Level float64 // that was asked for
}

func (e *TooFewError) Error() string {
	return fmt.Sprintf("a %g %% interval needs %d %s; has %d", float64(e.Level*100), e.Need, e.What, e.Have)
}

// slack absorbs the rounding of levels such as 1-0.05 when they are held against exact chances.
const slack = 1e-12
