package report

import (
	"bytes"
	"encoding/json"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report/document"
)

func TestRenderWritesEverything(t *testing.T) {
	dir, in := t.TempDir(), small().input()
	paths, err := Render(dir, in, Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			t.Error(err)
		} else if info.Size() == 0 {
			t.Errorf("%s is empty", p)
		}
	}
	for i, want := range []string{"index.html", "report.md", "findings.json"} {
		if got := filepath.Base(paths[i]); got != want {
			t.Errorf("path %d is %s, want %s", i, got, want)
		}
	}
	var back analysis.Findings
	data, err := os.ReadFile(filepath.Join(dir, "findings.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Cells) != len(in.Findings.Cells) {
		t.Errorf("findings.json has %d cells", len(back.Cells))
	}
}

// Everything that a page or the Markdown file points to must be there.
func TestLinksLeadSomewhere(t *testing.T) {
	list, err := files(full(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	leadSomewhere(t, list)
}

func leadSomewhere(t *testing.T, list []file) {
	t.Helper()
	have := map[string]string{}
	for _, f := range list {
		if _, twice := have[f.path]; twice {
			t.Errorf("%s is written twice", f.path)
		}
		have[f.path] = string(f.data)
	}
	for _, name := range []string{"index.html", "report.md"} {
		for _, link := range links(have[name]) {
			if id, ok := strings.CutPrefix(link, "#"); ok {
				if name == "index.html" && !strings.Contains(have[name], `id="`+id+`"`) {
					t.Errorf("%s points to #%s, which is not there", name, id)
				}
				continue
			}
			if _, ok := have[link]; !ok && !strings.HasPrefix(link, "data:") {
				t.Errorf("%s points to %q, which is not written", name, link)
			}
		}
	}
}

// links are the targets of href="…" and of ](…).
func links(s string) []string {
	var out []string
	for _, m := range [][2]string{{`href="`, `"`}, {"](", ")"}} {
		for _, part := range strings.Split(s, m[0])[1:] {
			target, _, _ := strings.Cut(part, m[1])
			out = append(out, target)
		}
	}
	return out
}

func TestSameBytes(t *testing.T) {
	a, err := files(small().input(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := files(small().input(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range a {
		if !bytes.Equal(a[i].data, b[i].data) {
			t.Errorf("%s differs between two renderings", a[i].path)
		}
	}
}

func TestFullStudyIsSmall(t *testing.T) {
	files, err := files(full(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		limit := map[string]int{"index.html": 2 << 20, "report.md": 512 << 10}[f.path]
		if limit > 0 {
			t.Logf("%s: %d bytes", f.path, len(f.data))
			if len(f.data) > limit {
				t.Errorf("%s has %d bytes, want at most %d", f.path, len(f.data), limit)
			}
		}
	}
}

func TestUnknownFormat(t *testing.T) {
	_, err := Render(t.TempDir(), small().input(), Spec{Formats: []string{"htm"}})
	if err == nil || !strings.Contains(err.Error(), `"html"`) {
		t.Errorf("error = %v, want one that names the formats", err)
	}
}

// A study may end before its first run, or compare firewalls that have no rules.
func TestOddStudies(t *testing.T) {
	studies := map[string]func(*shape, *analysis.Study){
		"no claims": func(_ *shape, s *analysis.Study) { s.Claims = nil },
		"no controls": func(_ *shape, s *analysis.Study) {
			for i := range s.Experiments {
				s.Experiments[i].Controls = nil
			}
		},
		"one run": func(s *shape, _ *analysis.Study) { s.repetitions = 1 },
		"one cell": func(s *shape, study *analysis.Study) {
			s.rules, s.sizes, study.Claims = s.rules[:1], s.sizes[:1], study.Claims[3:]
		},
	}
	for name, change := range studies {
		t.Run(name, func(t *testing.T) {
			s := small()
			study := s.study()
			change(&s, &study)
			for i := range study.Experiments {
				study.Experiments[i].Rules, study.Experiments[i].FrameSizes, study.Experiments[i].Repetitions = s.rules, s.sizes, s.repetitions
			}
			renders(t, s, study, s.records())
		})
	}
	t.Run("no record", func(t *testing.T) {
		page := renders(t, small(), small().study(), func(func(record.Record, error) bool) {})
		if !strings.Contains(page, "Clock: host (") || !strings.Contains(page, `<td class="n">–</td>`) || strings.Contains(page, "0.00 (no interval)") {
			t.Error("without a record the page should name the clock that was planned, and no ratio")
		}
	})
	t.Run("zeros", func(t *testing.T) {
		s := small()
		page := renders(t, s, s.study(), func(yield func(record.Record, error) bool) {
			for r := range s.records() {
				for name, m := range r.Metrics {
					r.Metrics[name] = record.Metric{Unit: m.Unit}
				}
				if !yield(r, nil) {
					return
				}
			}
		})
		if !strings.Contains(page, "Every round-trip time was 0: there is nothing to draw.") {
			t.Error("the page does not say why it has no figure")
		}
	})
	t.Run("no rules", func(t *testing.T) {
		s := small()
		study := s.study()
		study.Claims = nil
		for i := range study.Experiments {
			e := &study.Experiments[i]
			e.Firewalls, e.Controls, e.Compare = e.Firewalls[5:], nil, [][2]string{{"empty", "none"}}
		}
		page := renders(t, s, study, func(yield func(record.Record, error) bool) {
			for r := range s.records() {
				if r.Treatment.Rules == 0 && !yield(r, nil) {
					return
				}
			}
		})
		if !strings.Contains(page, "What is the round-trip time of each firewall?") {
			t.Error("there is no figure of the values")
		}
	})
}

// renders analyses records and returns the page.
func renders(t *testing.T, s shape, study analysis.Study, records iter.Seq2[record.Record, error]) string {
	t.Helper()
	f, err := analysis.Analyze(study, records)
	if err != nil {
		t.Fatal(err)
	}
	list, err := files(Input{Manifest: s.manifest(), Findings: f}, Spec{})
	if err != nil {
		t.Fatal(err)
	}
	leadSomewhere(t, list)
	if s := Summary(f); !strings.HasSuffix(s, "\n") || strings.Count(s, "\n") > 10 {
		t.Errorf("summary:\n%s", s)
	}
	return string(list[0].data)
}

// Where image is a factor, tables, figures and claims name it, and nothing names it where it is none.
func TestImagesAreNamed(t *testing.T) {
	list, err := files(released().input(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	leadSomewhere(t, list)
	text := map[string]string{}
	for _, f := range list {
		text[f.path] = string(f.data)
	}
	for path, wants := range map[string][]string{
		"report.md": {
			"The round-trip time with image trixie is", "firewalls nftables-linear and iptables-linear, rules ≥ 1000", "(image trixie)",
			"images are whole plots: the blocks were spread over 12 boots", "Images are compared by boots", "image bookworm-again (A/A)",
			"bookworm (suite, linux-image-cloud-amd64)", "Node firewall with image trixie", "An image is a kernel together with",
			"Where does the first image of a pair differ from the second, and by how much?",
		},
		"tables/medians-latency-rtt-median.csv":                {"image,firewall,rules", "trixie,nftables-linear,10,64"},
		"tables/ratios-latency-rtt-median-trixie-bookworm.csv": {"firewall,rules", "iptables-linear,10,64,12,12"},
		"tables/cost-latency-rtt-median.csv":                   {"image,firewall,frame"},
		"tables/cost-ratios-latency-rtt-median.csv":            {"image trixie,image bookworm,compared,nftables-linear,64", "nftables-linear,iptables-linear,trixie,compared,64"},
		"tables/verdicts.csv":                                  {"nftables-linear,iptables-linear,trixie,6", "image trixie,image bookworm,compared,"},
		"tables/excluded.csv":                                  {"trixie"},
		"figures/rules-latency-rtt-median.svg":                 {"trixie, 64-byte frames"},
		"figures/heat-images-latency-rtt-median.svg":           {"nftables-linear, A trixie, B bookworm"},
		"figures/rule-cost-latency-rtt-median.svg":             {"trixie, nftables-linear"},
	} {
		for _, want := range wants {
			if !strings.Contains(text[path], want) {
				t.Errorf("%s does not say %q", path, want)
			}
		}
	}
	plain, err := files(small().input(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range plain {
		if strings.HasPrefix(f.path, "tables/") && strings.Contains(strings.SplitN(string(f.data), "\n", 2)[0], "image") {
			t.Errorf("%s has a column for an image that is no factor", f.path)
		}
	}
}

// What the traffic walks of the list depends on the configuration, and so does what is said of it.
func TestThreatsNameThePosition(t *testing.T) {
	for want, positions := range map[string][]string{
		"matches the last entries":             {"last", "last"},
		"matches the first entries":            {"first", "first"},
		"that the seed drew once":              {"uniform", "uniform"},
		"which the method section names":       {"last", "first"},
		"depends on where in the list the tra": {"", ""},
	} {
		in := small().input()
		e := in.Findings.Study.Experiments[0]
		e.Firewalls = []analysis.Firewall{{Name: "none"}, {Name: "a", Rules: true, Position: positions[0]}, {Name: "b", Rules: true, Position: positions[1]}}
		in.Findings.Study.Experiments = []analysis.Experiment{e}
		list, err := files(in, Spec{Formats: []string{Markdown}})
		if err != nil {
			t.Fatal(err)
		}
		if text := string(list[0].data); !strings.Contains(text, want) || positions[1] != "" && !strings.Contains(text, "matching entries "+map[bool]string{true: "anywhere", false: positions[1]}[positions[1] == "uniform"]) {
			t.Errorf("%v: the report does not say %q", positions, want)
		}
	}
}

// A firewall has one look in all figures, though the experiments name it in another order.
func TestFirewallsLookAlikeEverywhere(t *testing.T) {
	in := small().input()
	study := &in.Findings.Study
	study.Experiments[1].Firewalls = slices.Clone(study.Experiments[1].Firewalls)
	slices.Reverse(study.Experiments[1].Firewalls)
	found := map[string]document.Style{}
	for _, s := range build(in, Spec{}).Sections {
		for _, block := range s.Blocks {
			f, ok := block.(*document.Figure)
			if !ok || !strings.HasPrefix(f.ID, "rules") {
				continue
			}
			for _, key := range f.Legend {
				if style, ok := found[key.Name]; ok && style != key.Style {
					t.Errorf("%s is %+v, and %+v in %s", key.Name, style, key.Style, f.ID)
				}
				found[key.Name] = key.Style
			}
		}
	}
	if len(found) != 6 {
		t.Errorf("legends explain %v", found)
	}
}

// Offloads change what a frame is, so that they were on is said where it matters, and not where they were off.
func TestThreatsNameOffloads(t *testing.T) {
	const want = "Offloads were left on (link inside)"
	for bed, said := range map[string]bool{
		`{"links":[{"name":"inside","offloads":true},{"name":"outside","offloads":false}]}`:  true,
		`{"links":[{"name":"inside","offloads":false},{"name":"outside","offloads":false}]}`: false,
		`{"name":"demo"}`: false,
	} {
		in := small().input()
		in.Manifest.Testbed = json.RawMessage(bed)
		list, err := files(in, Spec{Formats: []string{Markdown}})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(list[0].data), want); got != said {
			t.Errorf("%s: said %t", bed, got)
		}
	}
}

func TestReproduceWithWhatWasFound(t *testing.T) {
	m := small().manifest()
	m.Configuration = map[string]string{"my study.hcl": ""}
	m.Variables = map[string]string{"b": "it's", "a": "12"}
	if got, want := shell(again(m)), `rampart run --config 'my study.hcl' --provider netns --var a=12 --var 'b=it'\''s'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	m.Configuration["more.hcl"] = ""
	if got := shell(again(m)); strings.Contains(got, "--config") {
		t.Errorf("two files are the configuration of their folder: %s", got)
	}
}

func TestSummaries(t *testing.T) {
	f := small().input().Findings
	text := Summary(f)
	t.Log("\n" + text)
	for _, want := range []string{"J1  ✓ Agrees: the round-trip time", "latency: 406 of 408 planned runs count (2 failed)\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the summary does not say %q", want)
		}
	}
	if got := MarkdownSummary(f); !strings.Contains(got, "| **J4** With indexed") || strings.Contains(got, "![") {
		t.Errorf("Markdown summary:\n%s", got)
	}
}
