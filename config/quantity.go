package config

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"

	"github.com/rampart-bench/rampart/testbed"
)

// A mistake is what is wrong with a value: a summary that continues the attribute's name, such as
// "is not a whole number", and what would be right.
type mistake struct {
	summary string
	right   string
}

// sentence is the text of an error, or of an advice, as one.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:] + "."
}

// A unit is a suffix of an amount and its factor.
type unit struct {
	name   string
	factor int64
}

// sizeUnits are binary, because memory is.
func sizeUnits() []unit {
	return []unit{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}}
}

// rateUnits are decimal, because bit rates are, and written as iperf3 takes them.
func rateUnits() []unit {
	return []unit{{"", 1}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}}
}

// show writes a value for a message.
func show(v cty.Value) string {
	if v.IsNull() {
		return "null"
	}
	if huge(v) {
		return "a number out of any range"
	}
	s, err := convert.Convert(v, cty.String)
	switch {
	case err != nil:
		return "a value of type " + v.Type().FriendlyName()
	case v.Type() == cty.String:
		return strconv.Quote(cut(s.AsString(), 40))
	}
	return cut(s.AsString(), 40)
}

// huge reports whether a number is so large or so near zero that its decimal digits would fill a memory.
func huge(v cty.Value) bool {
	if v.Type() != cty.Number || v.IsNull() || !v.IsKnown() {
		return false
	}
	exponent := v.AsBigFloat().MantExp(nil)
	return exponent > 4096 || exponent < -4096
}

// parseText takes a string. Line breaks count as spaces, so that a statement may be a heredoc.
func parseText(v cty.Value) (string, *mistake) {
	wrong := &mistake{"is not a text", "Write it in quotes."}
	if huge(v) {
		return "", wrong
	}
	s, err := convert.Convert(v, cty.String)
	if err != nil || s.IsNull() {
		return "", wrong
	}
	text := strings.Join(strings.Fields(s.AsString()), " ")
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "", &mistake{"has a control character in it", "Leave it out: it could do harm in a terminal or a report."}
	}
	return text, nil
}

func parseTruth(v cty.Value) (bool, *mistake) {
	b, err := convert.Convert(v, cty.Bool)
	if err != nil || b.IsNull() {
		return false, &mistake{"is neither true nor false: " + show(v), "Write true or false, without quotes."}
	}
	return b.True(), nil
}

// parseNumber takes any finite number.
func parseNumber(v cty.Value) (float64, *mistake) {
	n, err := convert.Convert(v, cty.Number)
	if err != nil || n.IsNull() || n.AsBigFloat().IsInf() {
		return 0, &mistake{"is not a number: " + show(v), "Write a number, such as 0.05."}
	}
	f, _ := n.AsBigFloat().Float64()
	return f, nil
}

func parseWhole(v cty.Value) (int64, *mistake) {
	wrong := &mistake{"is not a whole number: " + show(v), "Write a whole number, such as 10."}
	n, err := convert.Convert(v, cty.Number)
	if err != nil || n.IsNull() || !n.AsBigFloat().IsInt() {
		return 0, wrong
	}
	whole, accuracy := n.AsBigFloat().Int64()
	if accuracy != big.Exact {
		return 0, &mistake{"is too large: " + show(v), "Write a whole number below 2^63."}
	}
	return whole, nil
}

// parseDuration takes what [time.ParseDuration] takes, and gives nanoseconds.
func parseDuration(v cty.Value) (int64, *mistake) {
	const units = "The units are ns, us, ms, s, m and h."
	text, wrong := parseText(v)
	if wrong != nil {
		return 0, &mistake{"is not a duration", `Write a number and its unit in quotes, such as "2ms". ` + units}
	}
	d, err := time.ParseDuration(text)
	switch {
	case err == nil && (d != 0 || strings.ContainsFunc(text, unicode.IsLetter)):
		return int64(d), nil
	case isNumber(text):
		return 0, &mistake{"has no unit", fmt.Sprintf(`Write "%sms" or "%ss", whichever is meant. %s`, cut(text, 20), cut(text, 20), units)}
	}
	return 0, &mistake{fmt.Sprintf("is not a duration: %q", cut(text, 40)), `Write a number and its unit, such as "2ms" or "10s". ` + units}
}

// parseCPUs takes a list of the host's CPUs in the kernel's format, or one number.
func parseCPUs(v cty.Value) (testbed.CPUs, *mistake) {
	const right = `Write the numbers of CPUs of the host, such as "2", "0-3" or "0-3,8"; lscpu --extended shows them.`
	text, wrong := parseText(v)
	if wrong != nil {
		return nil, &mistake{"is not a CPU list", right}
	}
	set, err := testbed.ParseCPUs(text)
	if err != nil || len(set) == 0 {
		return nil, &mistake{fmt.Sprintf("is not a CPU list: %q", cut(text, 40)), right}
	}
	return set, nil
}

// parseSize gives bytes.
func parseSize(v cty.Value) (int64, *mistake) {
	return parseAmount(v, "size", "512MiB", "The units are KiB, MiB, GiB and TiB, each 1024 of the one before.", sizeUnits())
}

// parseRate gives bit/s.
func parseRate(v cty.Value) (int64, *mistake) {
	return parseAmount(v, "bit rate", "100M", "The units are K, M and G, in powers of 1000 bit/s; 0 means as fast as the sender can.", rateUnits())
}

// parseAmount takes a decimal number with one of the units right behind it.
func parseAmount(v cty.Value, what, example, rule string, units []unit) (int64, *mistake) {
	text, wrong := parseText(v)
	if wrong != nil {
		return 0, &mistake{"is not a " + what, fmt.Sprintf("Write %q. %s", example, rule)}
	}
	number, suffix := splitUnit(text)
	rat, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, &mistake{fmt.Sprintf("is not a %s: %q", what, cut(text, 40)), fmt.Sprintf("Write a number and its unit, such as %q. %s", example, rule)}
	}
	for _, u := range units {
		if u.name != suffix {
			continue
		}
		rat.Mul(rat, new(big.Rat).SetInt64(u.factor))
		if !rat.IsInt() || !rat.Num().IsInt64() {
			return 0, &mistake{fmt.Sprintf("is not a whole number below 2^63 when multiplied out: %q", cut(text, 40)), rule}
		}
		return rat.Num().Int64(), nil
	}
	right := fmt.Sprintf("Write %q. %s", cut(number, 20)+nearUnit(suffix, units), rule)
	if suffix == "" {
		return 0, &mistake{"has no unit", right}
	}
	return 0, &mistake{fmt.Sprintf("has an unknown unit: %q", cut(suffix, 20)), right}
}

// splitUnit divides "512MiB" into "512" and "MiB".
func splitUnit(text string) (number, suffix string) {
	end := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end < 0 {
		return text, ""
	}
	return text[:end], strings.TrimSpace(text[end:])
}

// nearUnit is the unit that was probably meant: the one with the same first letter, else a mega.
func nearUnit(suffix string, units []unit) string {
	for _, u := range units {
		if suffix != "" && u.name != "" && strings.EqualFold(u.name[:1], suffix[:1]) {
			return u.name
		}
	}
	for _, u := range units {
		if strings.HasPrefix(u.name, "M") {
			return u.name
		}
	}
	return ""
}

// isNumber reports whether a text is a decimal number and nothing else.
func isNumber(text string) bool {
	number, suffix := splitUnit(strings.TrimLeft(text, "+-"))
	return number != "" && suffix == ""
}
