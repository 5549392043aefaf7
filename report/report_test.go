package report

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/experiments/analysis"
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
	files, err := files(full(), Spec{})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, f := range files {
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
