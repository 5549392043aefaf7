package report

import (
	"iter"
	"maps"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

// contrastOf a synthetic study and the same with every round trip 10 % longer and its third firewall gone.
func contrastOf(t *testing.T, s shape, edit func(*record.Manifest)) Contrast {
	t.Helper()
	worse := func(records iter.Seq2[record.Record, error]) iter.Seq2[record.Record, error] {
		return func(yield func(record.Record, error) bool) {
			for r, err := range records {
				if m, ok := r.Metrics["rtt_median"]; ok {
					m.Value *= 1.1
					r.Metrics["rtt_median"] = m
				}
				if strings.Contains(r.Treatment.Firewall, "iptables-indexed") {
					r.Status, r.Error, r.Metrics = record.Failed, s.names("it broke"), nil
				}
				if !yield(r, err) {
					return
				}
			}
		}
	}
	changes, err := analysis.Against(analysis.Measured{Study: s.study(), Records: s.records()},
		analysis.Measured{Study: s.study(), Records: worse(s.records())}, analysis.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	before := Side{Folder: s.names("one"), RecordsDigest: "sha256:1", Manifest: s.manifest()}
	after := Side{Folder: s.names("two"), RecordsDigest: "sha256:2", Manifest: s.manifest()}
	edit(&after.Manifest)
	return NewContrast(before, after, changes)
}

func TestContrastNamesWhatElseDiffers(t *testing.T) {
	c := contrastOf(t, small(), func(m *record.Manifest) {
		m.Host.Hostname = "elsewhere"
		m.Host.Kernel += "-new"
		// Namespaces have the kernel of the host, which is said once.
		m.Nodes = map[string]record.Environment{"sender": m.Nodes["sender"], "firewall": m.Nodes["firewall"], "receiver": m.Host}
		m.Rampart.Revision = "0123456"
		m.Variables = maps.Clone(m.Variables)
		m.Variables["rate"] = "7"
		m.Features = []byte(`{"parameters": {"flags": "-smp 1"}}`)
	})
	got := map[string]Difference{}
	for _, d := range c.Differences {
		got[d.What] = d
	}
	for _, what := range []string{"host, kernel", "rampart", "variable rate", "testbed flags"} {
		if d, ok := got[what]; !ok || d.Before == d.After {
			t.Errorf("%s is not among %v", what, c.Differences)
		}
		delete(got, what)
	}
	for what := range got {
		if strings.Contains(what, "host name") || !strings.HasPrefix(what, "testbed ") {
			t.Errorf("%s was not changed", what)
		}
	}
	if c.Identical || !c.Regressed {
		t.Errorf("identical %t, regressed %t", c.Identical, c.Regressed)
	}
}

func TestContrastIsForPeople(t *testing.T) {
	c := contrastOf(t, jonsson(), func(*record.Manifest) {})
	text := c.Text()
	for _, want := range []string{"Regression: of ", "The first 25 of ", "▲ slower", "iptables-indexed: 70 cells"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	markdown := c.Markdown()
	for _, bad := range []string{".csv", ".tex", "](#notes)", "\n# "} {
		if strings.Contains(markdown, bad) {
			t.Errorf("the Markdown refers to what is not there: %q", bad)
		}
	}
	if n := strings.Count(markdown, "▲"); n != markdownRows {
		t.Errorf("%d rows, want %d", n, markdownRows)
	}
}

func TestHostileTextIsInertInContrast(t *testing.T) {
	c := contrastOf(t, hostileShape(), func(m *record.Manifest) { m.Host.Kernel = hostile })
	for name, text := range map[string]string{"text": c.Text(), "markdown": c.Markdown()} {
		for _, bad := range []string{"\x1b", "\x00", "\u202e", "\u200b"} {
			if strings.Contains(text, bad) {
				t.Errorf("the %s holds %q", name, bad)
			}
		}
		if !strings.Contains(text, "script") {
			t.Errorf("the hostile text is nowhere in the %s: the test tests nothing", name)
		}
	}
	markdown := c.Markdown()
	for _, bad := range []string{"<script", "<!--", "[x](", "@evil", "www.evil", "http://evil", "$x", ":bomb:"} {
		if strings.Contains(unescaped(markdown), bad) {
			t.Errorf("the Markdown holds %q", bad)
		}
	}
	for _, table := range tablesOf(markdown) {
		want := strings.Count(unescaped(table[0]), "|")
		for _, line := range table {
			if got := strings.Count(unescaped(line), "|"); got != want {
				t.Errorf("row has %d borders, want %d: %.120s", got, want, line)
			}
		}
	}
}

func TestExactValue(t *testing.T) {
	for x, want := range map[float64]string{28.442420000000002: "28.44242 us", 13.175: "13.175 us", 940123456.5: "940123456.5 us"} {
		if got := string(exactValue(x, "us")); got != want {
			t.Errorf("%g: %q, want %q", x, got, want)
		}
	}
}

func TestExactPercent(t *testing.T) {
	for ratio, want := range map[float64]string{1.000087: "+0.008700 %", 1.5: "+50.00 %", 0.75: "-25.00 %", 3: "+200.0 %", 1: "+0.0000 %"} {
		if got := exactPercent(ratio); got != want {
			t.Errorf("%g: %q, want %q", ratio, got, want)
		}
	}
}
