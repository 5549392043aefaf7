package config

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/testbed"
)

func sprint(v any) string { return fmt.Sprint(v) }

// walk calls f for every kind of block.
func walk(s *schema, f func(*schema)) {
	f(s)
	for _, b := range s.blocks {
		walk(b, f)
	}
}

// Every default is a value of its kind within its own limits; names stand once; everything is said to
// the reader.
func TestGrammar(t *testing.T) {
	walk(grammar(), func(s *schema) {
		names := append(s.attributeNames(), s.blockNames()...)
		slices.Sort(names)
		if len(slices.Compact(names)) != len(s.attributes)+len(s.blockNames()) {
			t.Errorf("block %s has a name twice: %v", s.name, names)
		}
		if s.doc == "" && s.name != "configuration" {
			t.Errorf("block %s has no description", s.name)
		}
		for _, a := range s.attributes {
			checkAttribute(t, s, a)
		}
	})
}

func checkAttribute(t *testing.T, s *schema, a attribute) {
	where := s.name + "." + a.name
	if a.doc == "" {
		t.Errorf("%s has no description", where)
	}
	if a.required && (a.def != "" || a.example == "") {
		t.Errorf("%s is required: it needs an example and no default", where)
	}
	if (a.min == "") != (a.max == "") {
		t.Errorf("%s has one limit", where)
	}
	if a.def == "" {
		return
	}
	var wrong *mistake
	switch v := constant(a.def); a.kind {
	case text, reference:
		_, wrong = a.text(v)
	case truth:
		_, wrong = a.truth(v)
	case number:
		_, wrong = a.number(v)
	case whole, duration, size, rate:
		_, wrong = a.amount(v)
	case names:
		_, wrong = a.text(v)
	case texts, wholes:
		for _, e := range v.AsValueSlice() {
			if a.kind == wholes {
				_, wrong = a.amount(e)
			} else {
				_, wrong = a.text(e)
			}
		}
	default:
		t.Errorf("%s has a default of a kind that this test does not know", where)
	}
	if wrong != nil {
		t.Errorf("%s: its default %s", where, wrong.summary)
	}
}

// What other packages call default is the same here.
func TestDefaults(t *testing.T) {
	cfg, err := Load(Source{Files: map[string]string{"a.hcl": "experiment \"x\" {}\ntestbed {\n  node \"sender\" {}\n  link \"inside\" {}\n}\n"}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sprint(cfg.Testbed), sprint(testbed.Default()); got != want {
		t.Errorf("testbed %s, want %s", got, want)
	}
	s := cfg.Study
	if s.Alpha != analysis.DefaultAlpha || s.Margin != analysis.DefaultMargin || s.Bootstrap != analysis.DefaultBootstrap {
		t.Errorf("analysis: %+v", s)
	}
	if within := claimSchema().attribute("within").def; within != sprint(analysis.DefaultWithin) {
		t.Errorf("within = %s", within)
	}
}

// The metrics that a claim may name can be compared, and the first is the primary one.
func TestMetrics(t *testing.T) {
	for _, kind := range []string{experiments.ICMPRTT, experiments.UDPIperf3} {
		metrics := metricsOf(kind)
		if metrics[0] != analysis.PrimaryMetric(kind) {
			t.Errorf("%s: the first metric is %s, the primary one %s", kind, metrics[0], analysis.PrimaryMetric(kind))
		}
		for _, name := range metrics {
			if m, ok := analysis.LookupMetric(name); !ok || !m.Compared {
				t.Errorf("%s: metric %s cannot be compared", kind, name)
			}
		}
	}
}
