// Package render turns a document into what people and programs read: one HTML page, Markdown,
// LaTeX tables and CSV. Each renderer knows the document and how its own format escapes text, and
// nothing of measurements.
package render

import (
	"strings"

	"github.com/rampart-bench/rampart/report/document"
)

// Paths of what stands beside the page and the Markdown file, relative to them.
func figureFile(id, extension string) string { return "figures/" + id + "." + extension }
func tableFile(id, extension string) string  { return "tables/" + id + "." + extension }

// numeric reports whether a column's values line up at the right.
func numeric(v document.Value) bool {
	switch v.(type) {
	case document.Count, document.Number, document.Estimate, document.Range, document.Probability:
		return true
	}
	return false
}

// columnNumeric looks at the first row; every column holds one kind of value.
func columnNumeric(t *document.Table, column int) bool {
	return len(t.Rows) > 0 && numeric(t.Rows[0].Values[column])
}

// title of a column with its unit.
func title(c document.Column) string {
	if c.Unit.Printed == "" {
		return c.Title
	}
	return c.Title + ", " + c.Unit.Printed
}

// text prints a value for readers, with a true minus sign in numbers.
func text(v document.Value, c document.Column) string {
	s := document.Print(v, c.Unit)
	if numeric(v) {
		s = strings.ReplaceAll(s, "-", "−")
	}
	return s
}
