package render

import (
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/report/document"
)

// LaTeX stops at a letter that it cannot set, so no table may hold one, whatever a firewall is called.
func TestLaTeXHoldsOnlyWhatItCanSet(t *testing.T) {
	var all strings.Builder
	for r := rune(0x20); r < 0x3000; r++ {
		all.WriteRune(r)
	}
	all.WriteString("方火墙 \U0001f600")
	for _, r := range latex(all.String()) {
		if !settable(r) {
			t.Errorf("%c (%U) is left as it is", r, r)
		}
	}
	table := &document.Table{
		Columns: []document.Column{{Title: "▲ slower"}, {Title: "≈ minor"}},
		Rows:    []document.Row{{Values: []document.Value{document.Text(`Größe "x" 墙`), document.Text("łąć")}}},
	}
	text := string(LaTeX(table))
	for _, want := range []string{
		`$\bigtriangleup$ slower & $\approx$ minor`,
		`Größe {\ttfamily\char34}x{\ttfamily\char34} {[}U+5899{]} & ł{[}U+0105{]}ć`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %s:\n%s", want, text)
		}
	}
}
