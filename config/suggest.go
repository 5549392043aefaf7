package config

import (
	"fmt"
	"strings"

	"github.com/agext/levenshtein"
)

// didYouMean is a sentence that offers the candidate most like the name, or is empty.
func didYouMean(name string, candidates []string) string {
	if len(name) > 64 {
		return ""
	}
	for _, c := range candidates {
		if len(name) > 2 && strings.HasPrefix(c, name) {
			return fmt.Sprintf("Did you mean %q? ", c) // iptables is iptables-legacy sooner than nftables
		}
	}
	best, distance := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := levenshtein.Distance(strings.ToLower(name), strings.ToLower(c), nil); d < distance {
			best, distance = c, d
		}
	}
	if best == "" || distance >= len(name) {
		return ""
	}
	return fmt.Sprintf("Did you mean %q? ", best)
}

// oneOf lists what there is: "a", "b" or "c". Long lists are cut.
func oneOf(names []string) string {
	const most = 20
	quoted := make([]string, 0, most)
	for _, n := range names {
		if len(quoted) == most {
			return strings.Join(quoted, ", ") + fmt.Sprintf(" and %d more", len(names)-most)
		}
		quoted = append(quoted, fmt.Sprintf("%q", n))
	}
	switch n := len(quoted); n {
	case 0:
		return "nothing"
	case 1:
		return quoted[0]
	default:
		return strings.Join(quoted[:n-1], ", ") + " or " + quoted[n-1]
	}
}

// unknown is what to say of a name that is none of the candidates: the nearest of them, and all.
func unknown(name string, candidates []string, intro string) string {
	if len(candidates) == 0 {
		return intro + " none."
	}
	return didYouMean(name, candidates) + intro + " " + oneOf(candidates) + "."
}

// list joins names for a sentence: a, b and c.
func list(names []string) string {
	n := len(names)
	if n < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
}
