package document

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Value is what a table holds: Text, Count, Estimate, Range, Probability, Number or Verdict.
type Value interface{ value() }

// Text is words from anywhere, the outside included.
type Text string

// Count is a whole number, such as of runs, rules or bytes.
type Count int

// Number is a measured quantity that has no interval by its nature, such as elapsed time.
type Number float64

// Probability is a p value.
type Probability float64

// An Estimate is a value with its confidence interval. Level 0 means that there is no interval.
type Estimate struct {
	Value, Lo, Hi float64
	Level         float64
}

// Range is an estimate of which only the interval is of interest.
type Range Estimate

// Verdict is the outcome of a comparison or of a claim.
type Verdict int

// The verdicts; None is that of a cell that was not compared.
const (
	None Verdict = iota
	Equivalent
	EquivalentMinor // equivalent, and yet significantly different
	Slower
	Faster
	Inconclusive
	Agrees
	Disagrees
	Differing // verdicts on one claim by several studies are not all the same
)

func (Text) value()        {}
func (Count) value()       {}
func (Number) value()      {}
func (Probability) value() {}
func (Estimate) value()    {}
func (Range) value()       {}
func (Verdict) value()     {}

func (v Verdict) String() string {
	switch v {
	case Equivalent:
		return "equivalent"
	case EquivalentMinor:
		return "equivalent (minor)"
	case Slower:
		return "slower"
	case Faster:
		return "faster"
	case Inconclusive:
		return "inconclusive"
	case Agrees:
		return "agrees"
	case Disagrees:
		return "disagrees"
	case Differing:
		return "verdicts differ"
	}
	return "not compared"
}

// Mark is a sign that tells the verdicts apart without colour.
func (v Verdict) Mark() string {
	switch v {
	case Equivalent:
		return "="
	case EquivalentMinor:
		return "≈"
	case Slower:
		return "▲"
	case Faster:
		return "▼"
	case Inconclusive:
		return "○"
	case Agrees:
		return "✓"
	case Disagrees:
		return "✗"
	case Differing:
		return "≠"
	}
	return "–"
}

// A Unit is how a column's values are measured (Name) and how they are printed for readers.
type Unit struct {
	Name    string  // as recorded, such as us
	Printed string  // such as µs
	Factor  float64 // from Name to Printed; 0 means 1
}

// scales lists, for each unit that records use, the units to print it in, from the largest.
func scales(name string) []Unit {
	switch name {
	case "s":
		return []Unit{{name, "s", 1}, {name, "ms", 1e3}, {name, "µs", 1e6}, {name, "ns", 1e9}}
	case "ms":
		return []Unit{{name, "s", 1e-3}, {name, "ms", 1}, {name, "µs", 1e3}, {name, "ns", 1e6}}
	case "us":
		return []Unit{{name, "s", 1e-6}, {name, "ms", 1e-3}, {name, "µs", 1}, {name, "ns", 1e3}}
	case "ns":
		return []Unit{{name, "s", 1e-9}, {name, "ms", 1e-6}, {name, "µs", 1e-3}, {name, "ns", 1}}
	case "bit/s":
		return []Unit{{name, "Gbit/s", 1e-9}, {name, "Mbit/s", 1e-6}, {name, "kbit/s", 1e-3}, {name, "bit/s", 1}}
	case "1/s":
		return []Unit{{name, "frames/s", 1}}
	case "1": // a share
		return []Unit{{name, "%", 100}}
	}
	return []Unit{{name, name, 1}}
}

// ScaleUnit chooses the unit in which a typical value of the given size reads best: the largest in
// which it is at least 1.
func ScaleUnit(name string, typical float64) Unit {
	list := scales(name)
	for _, u := range list {
		if math.Abs(typical)*u.Factor >= 1 {
			return u
		}
	}
	return list[len(list)-1]
}

func (u Unit) factor() float64 {
	if u.Factor == 0 {
		return 1
	}
	return u.Factor
}

// In returns the estimate in the printed unit.
func (e Estimate) In(u Unit) Estimate {
	f := u.factor()
	return Estimate{e.Value * f, e.Lo * f, e.Hi * f, e.Level}
}

// Print is the value as readers see it, in the printed unit.
func Print(v Value, u Unit) string {
	switch v := v.(type) {
	case Text:
		return string(v)
	case Count:
		return group(strconv.Itoa(int(v)))
	case Number:
		return significant(float64(v)*u.factor(), 3)
	case Probability:
		return v.String()
	case Estimate:
		return v.In(u).String()
	case Range:
		return v.print(u)
	case Verdict:
		return v.Mark() + " " + v.String()
	}
	return ""
}

func (r Range) print(u Unit) string {
	if r.Level == 0 {
		return "no interval"
	}
	e := Estimate(r).In(u)
	d := e.decimals()
	return "[" + decimal(e.Lo, d) + ", " + decimal(e.Hi, d) + "]"
}

// String is the value followed by its interval, such as "12.41 [12.30, 12.55]". The digits follow
// the interval: its half width has two significant ones, and nothing is printed beyond them unless a value
// or an end would be printed as the 0 or the 1 that it is not. What is no number is a dash.
func (e Estimate) String() string {
	if math.IsNaN(e.Value) {
		return decimal(e.Value, 0)
	}
	if e.Level == 0 {
		return significant(e.Value, 3) + " (no interval)"
	}
	d := e.decimals()
	return decimal(e.Value, d) + " [" + decimal(e.Lo, d) + ", " + decimal(e.Hi, d) + "]"
}

// Short is the value alone, with the digits that its interval allows.
func (e Estimate) Short() string {
	if e.Level == 0 {
		return significant(e.Value, 3)
	}
	return decimal(e.Value, e.decimals())
}

// decimals counts the digits after the point; negative counts zeros before it.
func (e Estimate) decimals() int {
	half := (e.Hi - e.Lo) / 2
	if half <= 0 || math.IsInf(half, 0) || math.IsNaN(half) {
		_, fraction, _ := strings.Cut(strings.TrimRight(decimal(e.Value, max(0, places(e.Value, 6))), "0"), ".")
		return len(fraction)
	}
	d := places(half, 2)
	if e.Lo > 0 || e.Hi < 0 {
		// Far from symmetric: the long side must not round the value, or an end that is not 0, down to 0.
		d = max(d, places(e.Value, 2), places(min(math.Abs(e.Lo), math.Abs(e.Hi)), 1))
	}
	// An interval far narrower than the value must not run away with the digits.
	d = min(d, places(e.Value, 9))
	for more := 0; more < 3 && (seemsNeutral(e.Lo, d) || seemsNeutral(e.Hi, d)); more++ {
		d++
	}
	return d
}

// seemsNeutral reports whether x is printed as the 0 or the 1 that it is not: no difference, no effect.
func seemsNeutral(x float64, decimals int) bool {
	if decimals < 0 {
		return false
	}
	printed := decimal(x, decimals)
	return x != 0 && printed == decimal(0, decimals) || x != 1 && printed == decimal(1, decimals)
}

// places is the number of decimals that gives x the significant digits wanted.
func places(x float64, digits int) int {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return digits - 1
	}
	// By way of the formatted number, since 0.0999 rounds up to the next power of ten.
	s := strconv.FormatFloat(math.Abs(x), 'e', digits-1, 64)
	exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	return min(digits-1-exp, 12)
}

func significant(x float64, digits int) string { return decimal(x, places(x, digits)) }

// decimal prints x with d decimals, whole thousands grouped; a negative d rounds to tens, hundreds…
func decimal(x float64, d int) string {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "–"
	}
	if d < 0 {
		unit := math.Pow(10, float64(-d))
		x, d = math.Round(x/unit)*unit, 0
	}
	s := strconv.FormatFloat(x, 'f', d, 64)
	if strings.Trim(s, "-0.") == "" {
		s = strings.TrimPrefix(s, "-") // no negative zero
	}
	return group(s)
}

// group puts commas between the thousands of a printed number of five digits or more.
func group(s string) string {
	sign, rest := "", s
	if strings.HasPrefix(rest, "-") {
		sign, rest = "-", rest[1:]
	}
	whole, fraction, point := strings.Cut(rest, ".")
	if len(whole) < 5 {
		return s
	}
	var b strings.Builder
	for i, c := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	if point {
		b.WriteString("." + fraction)
	}
	return sign + b.String()
}

// String prints two significant digits, and never a bare zero.
func (p Probability) String() string {
	switch {
	case math.IsNaN(float64(p)):
		return "–"
	case p < 0.0001:
		return "< 0.0001"
	case p > 0.99:
		return "1"
	}
	return significant(float64(p), 2)
}

// Percent prints a ratio as a signed difference, such as "+4.3 % [+3.1, +5.6]".
func Percent(ratio Estimate) string {
	e := Estimate{100 * (ratio.Value - 1), 100 * (ratio.Lo - 1), 100 * (ratio.Hi - 1), ratio.Level}
	if e.Level == 0 {
		return plus(significant(e.Value, 2)) + " % (no interval)"
	}
	d := min(e.decimals(), 4)
	return fmt.Sprintf("%s %% [%s, %s]", plus(decimal(e.Value, d)), plus(decimal(e.Lo, d)), plus(decimal(e.Hi, d)))
}

// ShortPercent prints a ratio as a signed difference without interval or unit, for narrow places.
func ShortPercent(ratio Estimate) string {
	x := 100 * (ratio.Value - 1)
	switch {
	case math.Abs(x) >= 1000:
		return "×" + significant(ratio.Value, 2)
	case math.Abs(x) >= 10:
		return plus(decimal(x, 0))
	}
	return plus(decimal(x, 1))
}

func plus(s string) string {
	if strings.HasPrefix(s, "-") || s == "–" || strings.Trim(s, "0.") == "" {
		return s
	}
	return "+" + s
}

// Clean makes text from the outside safe to look at in any rendering: characters that move the
// cursor, hide text or turn its direction become visible escapes. Tab and newline stay where lines
// is set and become spaces elsewhere.
func Clean(s string, lines bool) string {
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '\n' || r == '\t':
			if lines {
				b.WriteRune(r)
			} else {
				b.WriteByte(' ')
			}
		case r == '\r' && lines:
			// The line feed that follows is enough.
		case r < 0x20 || r >= 0x7f && r < 0xa0 || invisible(r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// invisible reports marks of direction and of zero width, with which one text can pose as another
// (CVE-2021-42574), and line ends that only some programs see.
func invisible(r rune) bool {
	switch {
	case r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x2069, r == 0xfeff:
		return true
	}
	return false
}

// Inert keeps a spreadsheet from taking text for a formula: an apostrophe before it (OWASP, CSV
// injection). It is for text only; a negative number must stay a number.
func Inert(s string) string {
	first, _ := utf8.DecodeRuneInString(strings.TrimLeft(s, " \u00a0"))
	if strings.ContainsRune("=+-@|\t\r\n＝＋－＠", first) {
		return "'" + s
	}
	return s
}
