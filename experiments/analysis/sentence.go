package analysis

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// sentence says the verdict and the effect in one line.
func (c *ClaimResult) sentence(m Metric, margin float64) string {
	a, b, of := c.Claim.Compare[0], c.Claim.Compare[1], "of"
	if c.Claim.Factor == FactorImage {
		of = "with image"
	}
	if c.Cells == 0 {
		return fmt.Sprintf("Nothing can be said about the %s %s %s and %s here: no cell has runs of both.", m.Noun, of, a, b)
	}
	effect := fmt.Sprintf("the %s %s %s is %s that %s %s (%s, %s)",
		m.Noun, of, a, describe(c.Effect), of, b, c.interval(), over(c.Cells))
	switch {
	case c.Claim.Expect == Mixed:
		effect += fmt.Sprintf("; %s slower and %s faster after Holm's correction, the largest difference is %s",
			plural(c.Differences.Slower, "cell"), plural(c.Differences.Faster, "cell"), apart(c.Differences.Largest))
	case c.Claim.Expect == Similar:
		effect += fmt.Sprintf("; the margin is %s", percent(margin))
	case c.Noise > 1:
		effect += fmt.Sprintf("; the noise floor, what identical firewalls differ by, is %s", apart(c.Noise))
	}
	if r := c.Claim.Reference; r != nil {
		effect += fmt.Sprintf("; the ratio is %.3f here, and %.3f was published (%s)", c.Effect.Value, r.Ratio, r.Source)
	}
	lead := map[string]string{Agrees: "Agrees", Disagrees: "Disagrees", Inconclusive: "Inconclusive"}[c.Verdict]
	return lead + ": " + effect + "."
}

// interval is that of the effect, or why there is none.
func (c *ClaimResult) interval() string {
	if c.Effect.Level == 0 && c.Claim.Factor == FactorImage {
		return "no interval: too few boots"
	}
	return interval(c.Effect)
}

// over says how many cells an effect is the mean of.
func over(cells int) string {
	if cells == 1 {
		return "in one cell"
	}
	return fmt.Sprintf("mean of %d cells", cells)
}

// describe words a ratio: as a percentage up to a factor of two, as a factor beyond.
func describe(in Interval) string {
	difference := strings.TrimLeft(scaleOf(in).print(in.Value), "+−")
	switch {
	case isFactor(in):
		return difference + " times"
	case in.Value > 1:
		return difference + " above"
	case in.Value < 1:
		return difference + " below"
	}
	return "equal to"
}

// interval gives both ends with the digits of the effect.
func interval(in Interval) string {
	if in.Level == 0 {
		return "no interval: too few blocks"
	}
	s := scaleOf(in)
	text := fmt.Sprintf("%.4g %% interval %s to %s", in.Level*100, s.print(in.Lo), s.print(in.Hi))
	if isFactor(in) {
		text += " times"
	}
	return text
}

// apart words how far a ratio, at least 1, is from no difference.
func apart(ratio float64) string {
	if ratio >= 2 {
		return fmt.Sprintf("a factor of %.3g", ratio)
	}
	return percent(ratio - 1)
}

func isFactor(in Interval) bool { return in.Value >= 2 || in.Value <= 0.5 }

// A scale is how the numbers of one effect are printed: as factors, or as signed percentages.
type scale struct {
	factor   bool
	decimals int
}

// scaleOf prints two significant digits of the interval's width, and more where a factor would be rounded to
// nothing, or an end onto "no difference" although it is not there.
func scaleOf(in Interval) scale {
	s := scale{factor: isFactor(in)}
	if in.Level == 0 {
		s.decimals = places(s.of(in.Value))
		return s
	}
	s.decimals = places(s.of(in.Hi) - s.of(in.Lo))
	if s.factor {
		s.decimals = max(s.decimals, places(in.Value)-1)
	}
	for more := 0; more < 3 && (s.hides(in.Lo) || s.hides(in.Hi)); more++ {
		s.decimals++
	}
	return s
}

// of is the number that is printed.
func (s scale) of(ratio float64) float64 {
	if s.factor {
		return ratio
	}
	return (ratio - 1) * 100
}

// hides reports whether a ratio other than 1 would look like 1.
func (s scale) hides(ratio float64) bool {
	return ratio != 1 && s.print(ratio) == s.print(1)
}

func (s scale) print(ratio float64) string {
	if s.factor {
		return strconv.FormatFloat(ratio, 'f', s.decimals, 64)
	}
	text := strconv.FormatFloat(math.Abs(s.of(ratio)), 'f', s.decimals, 64)
	switch {
	case strings.Trim(text, "0.") == "":
		return "0 %"
	case ratio < 1:
		return "−" + text + " %"
	}
	return "+" + text + " %"
}

// places is the number of decimals that shows two significant digits of x.
func places(x float64) int {
	d := 0
	for limit := 10.0; d < 9 && math.Abs(x) < limit && x != 0; d++ {
		limit /= 10
	}
	return d
}

// percent prints a share with two significant digits, and no zeros behind them.
func percent(share float64) string {
	text := strconv.FormatFloat(share*100, 'f', places(share*100), 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " %"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
