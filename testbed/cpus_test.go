package testbed

import (
	"slices"
	"testing"
)

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string]string{ // want: the canonical text, or "error"
		"":              "",
		" 0-1\n":        "0-1",
		"3":             "3",
		"8,0-3,2":       "0-3,8",
		"1,0":           "0-1",
		"0,2,4":         "0,2,4",
		"8190-8191":     "8190-8191",
		"8192":          "error",
		"3-1":           "error",
		"0-3:1/2":       "error",
		"1,":            "error",
		"-1":            "error",
		"a":             "error",
		"0-99999999999": "error",
		"+1":            "error",
	} {
		got, err := ParseCPUs(text)
		if (err != nil) != (want == "error") || err == nil && got.String() != want {
			t.Errorf("%q gives %v, %v; want %q", text, got, err, want)
		}
	}
}

func TestCPUSets(t *testing.T) {
	a, b := CPUs{0, 1, 2, 8}, CPUs{1, 8, 9}
	if got := a.Minus(b); !slices.Equal(got, CPUs{0, 2}) {
		t.Errorf("minus: %v", got)
	}
	if got := a.And(b); !slices.Equal(got, CPUs{1, 8}) {
		t.Errorf("and: %v", got)
	}
	if got := a.Or(b); !slices.Equal(got, CPUs{0, 1, 2, 8, 9}) {
		t.Errorf("or: %v", got)
	}
	if !slices.Equal(a, CPUs{0, 1, 2, 8}) {
		t.Errorf("the set itself is now %v", a)
	}
}

// FuzzParseCPUs: what is read is a set, and its text is read as the same set.
func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8")
	f.Add("1,1,0-0")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := ParseCPUs(text)
		if err != nil {
			return
		}
		again, err := ParseCPUs(set.String())
		if err != nil || !slices.Equal(again, set) || !slices.IsSorted(set) {
			t.Errorf("%q: %v, then %v (%v)", text, set, again, err)
		}
	})
}
