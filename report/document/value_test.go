package document

import (
	"math"
	"testing"
)

func TestEstimatePrintsWhatItsIntervalAllows(t *testing.T) {
	tests := []struct {
		e    Estimate
		want string
	}{
		{Estimate{12.4083, 12.3022, 12.5471, 0.95}, "12.41 [12.30, 12.55]"},
		{Estimate{1.04312, 1.03121, 1.05638, 0.95}, "1.043 [1.031, 1.056]"},
		{Estimate{123456.7, 120000, 126000, 0.95}, "123,500 [120,000, 126,000]"},
		{Estimate{-0.00012, -0.0009, 0.0007, 0.95}, "-0.00012 [-0.00090, 0.00070]"},
		{Estimate{2.483, 1.76, 904.03, 0.95}, "2.5 [1.8, 904.0]"},
		{Estimate{0.28, 0.0019, 0.73, 0.95}, "0.280 [0.002, 0.730]"},
		{Estimate{3, 3, 3, 0.95}, "3 [3, 3]"},
		{Estimate{23.017, 23.017, 23.017, 0.95}, "23.017 [23.017, 23.017]"},
		{Estimate{0, 0, 0, 0.95}, "0 [0, 0]"},
		{Estimate{1200, 1200, 1200, 0.95}, "1200 [1200, 1200]"},
		{Estimate{2.5, 2.0, 3.0, 0}, "2.50 (no interval)"},
		{Estimate{9.999, 9.0, 11.0, 0.95}, "10.0 [9.0, 11.0]"},
		{Estimate{0, -0.0999, 0.0999, 0.95}, "0.00 [-0.10, 0.10]"},
		{Estimate{0.874, 0.768, 0.9957, 0.95}, "0.874 [0.768, 0.996]"},
		{Estimate{0.95, 0.9, 1, 0.95}, "0.950 [0.900, 1.000]"},
		{Estimate{4.1, -0.02, 8.3, 0.95}, "4.10 [-0.02, 8.30]"},
		{Estimate{4.1, -1e-9, 8.3, 0.95}, "4.1000 [0.0000, 8.3000]"},
	}
	for _, tt := range tests {
		if got := tt.e.String(); got != tt.want {
			t.Errorf("%+v prints as %q, want %q", tt.e, got, tt.want)
		}
	}
}

func TestPrint(t *testing.T) {
	tests := []struct {
		v    Value
		u    Unit
		want string
	}{
		{Count(1518), Unit{}, "1518"},
		{Count(1234567), Unit{}, "1,234,567"},
		{Count(-12345), Unit{}, "-12,345"},
		{Probability(0.0123), Unit{}, "0.012"},
		{Probability(1e-9), Unit{}, "< 0.0001"},
		{Probability(1), Unit{}, "1"},
		{Number(0.0312), Unit{}, "0.0312"},
		{Number(0.02), ScaleUnit("s", 0.02), "20.0"},
		{Estimate{0.0131, 0.0129, 0.0133, 0.95}, ScaleUnit("us", 0.0131), "13.10 [12.90, 13.30]"},
		{Estimate{947e6, 940e6, 954e6, 0.95}, ScaleUnit("bit/s", 947e6), "947.0 [940.0, 954.0]"},
		{Range{1, 0.98, 1.02, 0.9}, Unit{}, "[0.980, 1.020]"},
		{Range{1, 0, 0, 0}, Unit{}, "no interval"},
		{Slower, Unit{}, "▲ slower"},
		{Estimate{math.NaN(), 0, 0, 0}, Unit{}, "–"},
	}
	for _, tt := range tests {
		if got := Print(tt.v, tt.u); got != tt.want {
			t.Errorf("%#v prints as %q, want %q", tt.v, got, tt.want)
		}
	}
}

func TestShortPercent(t *testing.T) {
	tests := map[float64]string{1: "0.0", 1.00004: "0.0", 0.99996: "0.0", 1.043: "+4.3", 0.96: "-4.0", 1.36: "+36", 0.5: "-50", 25: "×25"}
	for ratio, want := range tests {
		if got := ShortPercent(Estimate{Value: ratio}); got != want {
			t.Errorf("ratio %v prints as %q, want %q", ratio, got, want)
		}
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\tb\nc\r\n\x1b[31m\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, lines := range []bool{false, true} {
			once := Clean(s, lines)
			for _, r := range once {
				if r < 0x20 && !(lines && (r == '\n' || r == '\t')) || r >= 0x7f && r < 0xa0 || invisible(r) {
					t.Fatalf("Clean(%q, %v) holds %U", s, lines, r)
				}
			}
			if twice := Clean(once, lines); twice != once {
				t.Fatalf("Clean is not idempotent on %q", s)
			}
		}
	})
}

func FuzzEstimate(f *testing.F) {
	f.Add(1.0, 0.5, 1.5)
	f.Add(-1e300, math.Inf(-1), 1e-300)
	f.Fuzz(func(t *testing.T, value, lo, hi float64) {
		e := Estimate{value, lo, hi, 0.95}
		if got := len(e.String()); got > 1100 {
			t.Fatalf("%+v prints %d letters", e, got)
		}
		_ = Percent(e) + ShortPercent(e) + e.Short()
	})
}
