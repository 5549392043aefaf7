package stats

import "math"

// ln 2 in two parts: the first has 32 trailing zero bits, so that its product with any exponent of a
// float64 is exact.
const (
	ln2High = 6.93147180369123816490e-01
	ln2Low  = 1.90821492927058770002e-10
)

// Log is the natural logarithm of x > 0, to about one unit in the last place, and the same on every
// machine. It is NaN for x < 0 and -Inf for 0.
//
// x = 2^k·(1+f) with 1+f in [√½, √2), and log(1+f) = 2·artanh s, s = f/(2+f), as a series; 2s is written as
// f - f²/2 + s·f²/2 because f is exact and s is not (as in FreeBSD's libm, e_log.c).
func Log(x float64) float64 {
	switch {
	case x < 0 || math.IsNaN(x):
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	case math.IsInf(x, 1):
		return x
	}
	f, exponent := math.Frexp(x)
	if f < math.Sqrt2/2 {
		f *= 2
		exponent--
	}
	k := float64(exponent)
	f -= 1
	s := f / (2 + f)
	s2 := float64(s * s)
	series := 0.0
	for n := 25; n >= 3; n -= 2 {
		series = float64((series + 2/float64(n)) * s2)
	}
	half := float64(0.5 * float64(f*f))
	return float64(k*ln2High) - ((half - (float64(s*(half+series)) + float64(k*ln2Low))) - f)
}

// Exp is e to the power x, to about one unit in the last place, and the same on every machine.
//
// x = k·ln 2 + r with |r| ≤ ½·ln 2, and e^r as its Taylor series.
func Exp(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x > 709.7:
		return math.Inf(1)
	case x < -745:
		return 0
	}
	k := math.Floor(float64(x/math.Ln2) + 0.5)
	r := (x - float64(k*ln2High)) - float64(k*ln2Low)
	series := 1.0
	for n := 14; n >= 1; n-- {
		series = 1 + float64(float64(series*r)/float64(n))
	}
	return math.Ldexp(series, int(k))
}

// atan is the arc tangent of x ≥ 0. Three halvings of the angle, atan x = 2·atan(x/(1+√(1+x²))),
// bring any x below tan(π/16), where the series is short.
func atan(x float64) float64 {
	if math.IsInf(x, 1) {
		return math.Pi / 2
	}
	for range 3 {
		x /= 1 + math.Sqrt(1+float64(x*x))
	}
	x2 := float64(x * x)
	series := 0.0
	for n := 25; n >= 1; n -= 2 {
		series = 1/float64(n) - float64(x2*series)
	}
	return float64(8 * float64(x*series))
}
