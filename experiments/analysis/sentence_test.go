package analysis

import "testing"

func TestEffectsInWords(t *testing.T) {
	for _, tt := range []struct {
		in                 Interval
		described, between string
	}{
		{Interval{1.1969, 1.1948, 1.1990, 0.95}, "19.69 % above", "95 % interval +19.48 % to +19.90 %"},
		{Interval{1.08, 0.98, 1.19, 0.95}, "8 % above", "95 % interval −2 % to +19 %"},
		{Interval{0.874, 0.768, 0.9957, 0.95}, "12.6 % below", "95 % interval −23.2 % to −0.4 %"},
		{Interval{1.02, 0.9999, 1.4, 0.9}, "2.00 % above", "90 % interval −0.01 % to +40.00 %"},
		{Interval{1, 1, 1, 0.95}, "equal to", "95 % interval 0 % to 0 %"},
		{Interval{1.0804, 0, 0, 0}, "8.0 % above", "no interval: too few blocks"},
		{Interval{2.5, 2.41, 2.62, 0.997}, "2.50 times", "99.7 % interval 2.41 to 2.62 times"},
		{Interval{0.4, 0.3, 0.999, 0.95}, "0.400 times", "95 % interval 0.300 to 0.999 times"},
		{Interval{123456.7, 98000, 140000, 0.95}, "123457 times", "95 % interval 98000 to 140000 times"},
		{Interval{0.04, 0.002, 20, 0.95}, "0.04 times", "95 % interval 0.00 to 20.00 times"},
		{Interval{1e-4, 0.9e-4, 1.1e-4, 0.95}, "0.000100 times", "95 % interval 0.000090 to 0.000110 times"},
	} {
		if got := describe(tt.in); got != tt.described {
			t.Errorf("%+v is %q, want %q", tt.in, got, tt.described)
		}
		if got := interval(tt.in); got != tt.between {
			t.Errorf("%+v: %q, want %q", tt.in, got, tt.between)
		}
	}
	for ratio, want := range map[float64]string{1.064: "6.4 %", 1.3205: "32 %", 2.5: "a factor of 2.5", 1042215.32: "a factor of 1.04e+06"} {
		if got := apart(ratio); got != want {
			t.Errorf("%g is %q, want %q", ratio, got, want)
		}
	}
	for share, want := range map[float64]string{0.03: "3 %", 0.0640: "6.4 %", 0.0108: "1.1 %", 0.3205: "32 %", 0.00096: "0.096 %", 0.07: "7 %", 0.1: "10 %", 0: "0 %", 4.2: "420 %"} {
		if got := percent(share); got != want {
			t.Errorf("%g is %q, want %q", share, got, want)
		}
	}
}
