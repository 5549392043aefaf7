package render

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rampart-bench/rampart/report/document"
)

// Text writes lede, sections and notes for a terminal: paragraphs, lists and tables, the numbers of which
// line up at the right. Figures, code and definitions are left out: they have no use there.
func Text(d *document.Document) []byte {
	t := &plain{}
	for _, p := range d.Lede {
		t.line("%s", clean(p))
	}
	for _, s := range d.Sections {
		t.line("\n%s", clean(s.Title))
		for _, b := range s.Blocks {
			t.block(b)
		}
	}
	if len(d.Notes) > 0 {
		t.line("\nNotes")
	}
	for _, n := range d.Notes {
		t.line("- %s", clean(n.Text))
		if n.Next != "" {
			t.line("  %s", clean(n.Next))
		}
	}
	return []byte(t.b.String())
}

type plain struct{ b strings.Builder }

func (t *plain) line(format string, args ...any) { fmt.Fprintf(&t.b, format+"\n", args...) }

func clean(s string) string { return document.Clean(s, false) }

func (t *plain) block(b document.Block) {
	switch b := b.(type) {
	case document.Paragraph:
		t.line("%s", clean(string(b)))
	case document.Heading:
		t.line("%s", clean(string(b)))
	case document.List:
		for _, item := range b {
			t.line("- %s", clean(item))
		}
	case *document.Table:
		t.table(b)
	}
}

func (t *plain) table(table *document.Table) {
	grid := [][]string{make([]string, len(table.Columns))}
	for i, c := range table.Columns {
		grid[0][i] = title(c)
	}
	for _, r := range table.Rows {
		cells := make([]string, len(r.Values))
		for i, v := range r.Values {
			cells[i] = clean(text(v, table.Columns[i]))
		}
		grid = append(grid, cells)
	}
	width := make([]int, len(table.Columns))
	for _, cells := range grid {
		for i, s := range cells {
			width[i] = max(width[i], utf8.RuneCountInString(s))
		}
	}
	for _, cells := range grid {
		var line strings.Builder
		for i, s := range cells {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(s))
			if columnNumeric(table, i) {
				line.WriteString("  " + pad + s)
			} else {
				line.WriteString("  " + s + pad)
			}
		}
		t.line("%s", strings.TrimRight(line.String(), " "))
	}
	if table.Caption != "" {
		t.line("%s", clean(table.Caption))
	}
}
