package stats

import "math"

// NormalTail is the chance that a standard normal variable exceeds z.
//
// Up to 3 it is ½ - φ(z)·(z + z³/3 + z⁵/15 + …), beyond it Laplace's continued fraction
// φ(z)/(z + 1/(z + 2/(z + 3/…))) (Abramowitz and Stegun 26.2.11 and 26.2.14).
func NormalTail(z float64) float64 {
	if z < 0 {
		return 1 - NormalTail(-z)
	}
	density := Exp(-float64(z*z)/2) / math.Sqrt(2*math.Pi)
	if z <= 3 {
		sum, term := 0.0, z
		for n := 3.0; term > 1e-18; n += 2 {
			sum += term
			term = float64(term * (float64(z*z) / n))
		}
		return 0.5 - float64(density*sum)
	}
	fraction := z
	for k := 120; k >= 1; k-- {
		fraction = z + float64(k)/fraction
	}
	return density / fraction
}

// NormalQuantile is the z that a standard normal variable exceeds with chance tail ≤ ½.
func NormalQuantile(tail float64) float64 {
	return falling(tail, NormalTail)
}

// StudentQuantile is the t that a variable of Student's distribution with df degrees of freedom
// exceeds with chance tail ≤ ½.
func StudentQuantile(tail float64, df int) float64 {
	return falling(tail, func(t float64) float64 { return studentTail(t, df) })
}

// studentTail is the chance that Student's t with df ≥ 1 degrees of freedom exceeds t ≥ 0: the finite
// series for whole df of Abramowitz and Stegun 26.7.3 and 26.7.4, with θ = atan(t/√df).
func studentTail(t float64, df int) float64 {
	v := float64(df)
	hypotenuse := math.Sqrt(v + float64(t*t))
	sin := t / hypotenuse
	cos2 := v / (v + float64(t*t))
	odd := df % 2
	first := 1.0
	if odd == 1 {
		first = math.Sqrt(cos2)
	}
	sum, term := 0.0, first
	for j := 2 + odd; j <= df; j += 2 {
		sum += term
		term = float64(term * (float64(j-1) / float64(j) * cos2))
	}
	if odd == 0 {
		return (1 - float64(sin*sum)) / 2
	}
	return 0.5 - (atan(t/math.Sqrt(v))+float64(sin*sum))/math.Pi
}

// falling finds x ≥ 0 with f(x) = y for a falling f, by bisection down to neighbouring numbers.
func falling(y float64, f func(float64) float64) float64 {
	lo, hi := 0.0, 1.0
	for f(hi) > y {
		lo, hi = hi, 2*hi
	}
	for {
		middle := lo + float64((hi-lo)/2)
		if middle <= lo || middle >= hi {
			return hi
		}
		if f(middle) > y {
			lo = middle
		} else {
			hi = middle
		}
	}
}
