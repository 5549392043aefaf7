package testbed

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CPUs is a set of a host's logical processors by number, ascending, each once. Its text is the list
// format of the kernel (lib/bitmap.c, bitmap_parselist), such as "0-3,8", which is also libvirt's.
type CPUs []int

// maxCPU is the highest number there can be (NR_CPUS in arch/x86/Kconfig is at most 8192).
const maxCPU = 8191

// ParseCPUs reads a list of processors. The empty text is the empty set.
func ParseCPUs(text string) (CPUs, error) {
	var set CPUs
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		first, errFirst := strconv.ParseUint(low, 10, 16)
		last, errLast := strconv.ParseUint(high, 10, 16)
		if errFirst != nil || errLast != nil || first > last || last > maxCPU {
			return nil, fmt.Errorf("CPU list %q: %q is neither a number nor a range such as 0-3, up to %d", text, part, maxCPU)
		}
		for n := first; n <= last; n++ {
			set = append(set, int(n))
		}
	}
	slices.Sort(set)
	return slices.Compact(set), nil
}

// String is the shortest list that [ParseCPUs] reads as the same set.
func (c CPUs) String() string {
	var parts []string
	for i := 0; i < len(c); {
		end := i
		for end+1 < len(c) && c[end+1] == c[end]+1 {
			end++
		}
		part := strconv.Itoa(c[i])
		if end > i {
			part += "-" + strconv.Itoa(c[end])
		}
		parts = append(parts, part)
		i = end + 1
	}
	return strings.Join(parts, ",")
}

// MarshalText implements encoding.TextMarshaler.
func (c CPUs) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *CPUs) UnmarshalText(text []byte) (err error) {
	*c, err = ParseCPUs(string(text))
	return err
}

// Minus is what is in c and not in other.
func (c CPUs) Minus(other CPUs) CPUs {
	return slices.DeleteFunc(slices.Clone(c), func(n int) bool { return slices.Contains(other, n) })
}

// And is what is in both.
func (c CPUs) And(other CPUs) CPUs {
	return slices.DeleteFunc(slices.Clone(c), func(n int) bool { return !slices.Contains(other, n) })
}

// Or is what is in either.
func (c CPUs) Or(other CPUs) CPUs {
	set := slices.Concat(c, other)
	slices.Sort(set)
	return slices.Compact(set)
}
