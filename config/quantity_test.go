package config

import (
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
)

func TestAmounts(t *testing.T) {
	for _, test := range []struct {
		kind  kind
		value string // HCL
		want  int64
		wrong string // part of the mistake; empty: none
	}{
		{size, `"512MiB"`, 512 << 20, ""},
		{size, `"1.5 GiB"`, 3 << 29, ""},
		{size, `"1TiB"`, 1 << 40, ""},
		{size, `512`, 0, `has no unit; Write "512MiB"`},
		{size, `"512 mb"`, 0, `Write "512MiB"`},
		{size, `"2gb"`, 0, `Write "2GiB"`},
		{size, `"512é"`, 0, `Write "512MiB"`},
		{size, `"0.1KiB"`, 0, "not a whole number"},
		{size, `"9999999TiB"`, 0, "below 2^63"},
		{size, `"MiB"`, 0, "is not a size"},
		{size, `"-1MiB"`, 0, "is not a size"},
		{size, `["1MiB"]`, 0, `is not a size; Write "512MiB"`},
		{rate, `"100M"`, 100e6, ""},
		{rate, `"1G"`, 1e9, ""},
		{rate, `"0"`, 0, ""},
		{rate, `0`, 0, ""},
		{rate, `"2.5K"`, 2500, ""},
		{rate, `"100m"`, 0, `Write "100M"`},
		{rate, `"1Gbit/s"`, 0, `Write "1G"`},
		{rate, `"fast"`, 0, "is not a bit rate"},
		{rate, `"1..2M"`, 0, "is not a bit rate"},
		{duration, `"2ms"`, 2e6, ""},
		{duration, `"1m30s"`, 90e9, ""},
		{duration, `"0s"`, 0, ""},
		{duration, `"0"`, 0, "has no unit"},
		{duration, `"1.5"`, 0, `Write "1.5ms" or "1.5s"`},
		{duration, `2`, 0, "has no unit"},
		{duration, `"2sec"`, 0, "is not a duration"},
		{duration, `"1e999999999"`, 0, "is not a duration"},
		{duration, `{}`, 0, "is not a duration"},
		{whole, `10`, 10, ""},
		{whole, `"10"`, 10, ""},
		{whole, `-3`, -3, ""},
		{whole, `9223372036854775807`, 1<<63 - 1, ""},
		{whole, `9223372036854775808`, 0, "too large"},
		{whole, `0.5`, 0, "is not a whole number: 0.5"},
		{whole, `true`, 0, "is not a whole number: true"},
		{whole, `null`, 0, "is not a whole number: null"},
	} {
		got, wrong := test.kind.amount(constant(test.value))
		switch {
		case wrong == nil && (test.wrong != "" || got != test.want):
			t.Errorf("%v %s = %d, want %d, %q", test.kind, test.value, got, test.want, test.wrong)
		case wrong != nil && (test.wrong == "" || !strings.Contains(wrong.summary+"; "+wrong.right, test.wrong)):
			t.Errorf("%v %s: %s; %s; want %q", test.kind, test.value, wrong.summary, wrong.right, test.wrong)
		}
	}
}

func TestParseText(t *testing.T) {
	for value, want := range map[string]string{
		"a\n  b\tc ": "a b c",
		"":           "",
		"é":          "é",
	} {
		if got, wrong := parseText(cty.StringVal(value)); wrong != nil || got != want {
			t.Errorf("%q = %q, %v", value, got, wrong)
		}
	}
	if _, wrong := parseText(cty.StringVal("a\x1b[2J")); wrong == nil {
		t.Error("an escape sequence passes")
	}
}

func TestRateText(t *testing.T) {
	for rate, want := range map[int64]string{
		0:             "as fast as the sender can",
		1:             "1 bit/s",
		1_500_000_000: "1500 Mbit/s",
		2_000_000_000: "2 Gbit/s",
	} {
		if got := rateText(rate); got != want {
			t.Errorf("%d: %q, want %q", rate, got, want)
		}
	}
}

func TestConditions(t *testing.T) {
	for text, want := range map[string]string{
		"1000":              "[{rules == 1000}]",
		"== 5":              "[{rules == 5}]",
		">=100 and < 1000":  "[{rules >= 100} {rules < 1000}]",
		"!= 1  and  <= 007": "[{rules != 1} {rules <= 7}]",
	} {
		got, wrong := parseConditions("rules", cty.StringVal(text))
		if wrong != nil || sprint(got) != want {
			t.Errorf("%q = %v, %v; want %s", text, got, wrong, want)
		}
	}
	for _, text := range []string{"", ">", "=> 1", "> -1", "> 1 or < 3", "> 1 and", "> 1.5", "> 99999999999999999999"} {
		if got, wrong := parseConditions("rules", cty.StringVal(text)); wrong == nil {
			t.Errorf("%q = %v", text, got)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	names := []string{"nftables-linear", "iptables-legacy", "none", "frame_size"}
	for given, want := range map[string]string{
		"nftables-lnear":        `Did you mean "nftables-linear"? `,
		"iptables":              `Did you mean "iptables-legacy"? `,
		"NONE":                  `Did you mean "none"? `,
		"framesize":             `Did you mean "frame_size"? `,
		"xyz":                   "",
		"":                      "",
		strings.Repeat("n", 99): "",
	} {
		if got := didYouMean(given, names); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}
