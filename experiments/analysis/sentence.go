package analysis

import "fmt"

// sentence says the verdict and the effect in one line.
func (c *ClaimResult) sentence(m Metric, margin float64) string {
	a, b := c.Claim.Compare[0], c.Claim.Compare[1]
	if c.Cells == 0 {
		return fmt.Sprintf("Nothing can be said about the %s of %s and %s here: no cell has runs of both.", m.Noun, a, b)
	}
	effect := fmt.Sprintf("the %s of %s is %s that of %s (%s; mean over %s)",
		m.Noun, a, describe(c.Effect), b, interval(c.Effect), plural(c.Cells, "cell"))
	switch {
	case c.Claim.Expect == Mixed:
		effect += fmt.Sprintf("; %s slower and %s faster after Holm's correction, the largest difference is %s",
			plural(c.Differences.Slower, "cell"), plural(c.Differences.Faster, "cell"), percent(c.Differences.Largest-1, 1))
	case c.Claim.Expect == Similar:
		effect += fmt.Sprintf("; the margin is %s", percent(margin, 1))
	case c.Noise > 1:
		effect += fmt.Sprintf("; identical firewalls differ by up to %s", percent(c.Noise-1, 2))
	}
	if r := c.Claim.Reference; r != nil {
		effect += fmt.Sprintf("; the ratio is %.3f here, and %.3f was published (%s)", c.Effect.Value, r.Ratio, r.Source)
	}
	lead := map[string]string{Agrees: "Agrees", Disagrees: "Disagrees", Inconclusive: "Inconclusive"}[c.Verdict]
	return lead + ": " + effect + "."
}

// describe words a ratio: as a percentage up to a factor of two, as a factor beyond.
func describe(in Interval) string {
	r := in.Value
	switch {
	case r >= 2:
		return fmt.Sprintf("%.2f times", r)
	case r <= 0.5:
		return fmt.Sprintf("%.2f of", r)
	case r >= 1:
		return percent(r-1, digits(in)) + " above"
	}
	return percent(1-r, digits(in)) + " below"
}

func interval(in Interval) string {
	if in.Level == 0 {
		return "no interval: too few blocks"
	}
	level := fmt.Sprintf("%.4g %% interval ", in.Level*100)
	if in.Value >= 2 || in.Value <= 0.5 {
		return level + fmt.Sprintf("%.2f to %.2f times", in.Lo, in.Hi)
	}
	d := digits(in)
	return level + fmt.Sprintf("%+.*f %% to %+.*f %%", d, (in.Lo-1)*100, d, (in.Hi-1)*100)
}

func percent(part float64, digits int) string { return fmt.Sprintf("%.*f %%", digits, part*100) }

// digits of a percentage, so that the width of the interval has two significant ones.
func digits(in Interval) int {
	width := (in.Hi - in.Lo) * 100
	if in.Level == 0 || !(width > 0) {
		return 1
	}
	d := 0
	for limit := 10.0; d < 4 && width < limit; d++ {
		limit /= 10
	}
	return d
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
