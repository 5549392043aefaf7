package config

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
)

// shown is how many mistakes are written out; the rest is only counted. Nobody reads on after that
// many, and a file made of nothing but mistakes must not fill a terminal for minutes.
const shown = 100

// An Error is every mistake of a configuration. Nothing was made or changed when it is returned.
type Error struct {
	diagnostics hcl.Diagnostics
	files       map[string]*hcl.File // for the excerpts
	unread      error                // why a file could not be read; nil: all were
}

// Unwrap returns why a file could not be read, or nil: what is wrong then is what the files say.
func (e *Error) Unwrap() error { return e.unread }

// A Diagnostic is one mistake as plain values.
type Diagnostic struct {
	Summary string `json:"summary"`          // the mistake
	Detail  string `json:"detail,omitempty"` // what would be right
	File    string `json:"file,omitempty"`   // empty where the mistake is in no file
	Line    int    `json:"line,omitempty"`   // from 1
	Column  int    `json:"column,omitempty"` // from 1, in characters
	Excerpt string `json:"excerpt,omitempty"`
}

// error returns nil when there is no mistake: an empty list of diagnostics in an error would not be nil.
func (r *reader) error() error {
	if len(r.diags) == 0 {
		return nil
	}
	return &Error{diagnostics: inOrder(r.diags), files: r.files, unread: r.unread}
}

// inOrder are the mistakes in the order of the text, whatever order they were found in.
func inOrder(diags hcl.Diagnostics) hcl.Diagnostics {
	sorted := slices.Clone(diags)
	slices.SortStableFunc(sorted, func(a, b *hcl.Diagnostic) int {
		x, y := subject(a), subject(b)
		return cmp.Or(cmp.Compare(x.Filename, y.Filename), cmp.Compare(x.Start.Byte, y.Start.Byte))
	})
	return sorted
}

func subject(d *hcl.Diagnostic) hcl.Range {
	if d.Subject == nil {
		return hcl.Range{}
	}
	return *d.Subject
}

// Error is the text of all mistakes, each with its place, an excerpt and what would be right.
func (e *Error) Error() string {
	var text strings.Builder
	e.Render(&text, 0, false) // a Builder takes everything
	return strings.TrimRight(text.String(), "\n")
}

// WriteTo writes the text of [Error.Error] and a line end.
func (e *Error) WriteTo(w io.Writer) (int64, error) {
	n, err := io.WriteString(w, e.Error()+"\n")
	return int64(n), err
}

// Render writes the mistakes for a terminal that is width characters wide (0: do not wrap).
func (e *Error) Render(w io.Writer, width int, color bool) error {
	writer := hcl.NewDiagnosticTextWriter(w, e.files, uint(max(width, 0)), color)
	for i, d := range e.diagnostics {
		if i == shown {
			_, err := fmt.Fprintf(w, "%d more mistakes follow; mend these first.\n", len(e.diagnostics)-shown)
			return err
		}
		if err := writer.WriteDiagnostic(e.presentable(d)); err != nil {
			return fmt.Errorf("write diagnostics: %w", err)
		}
	}
	return nil
}

// An excerpt is at most so long: hcl's writer would print every line of a list that spans a thousand,
// and a line of a megabyte whole.
const (
	excerptLines = 8
	excerptBytes = 400
)

// presentable is the diagnostic with a place that can be printed: only the first line of a long range,
// and for a very long line its position in words.
func (e *Error) presentable(d *hcl.Diagnostic) *hcl.Diagnostic {
	rng := subject(d)
	file := e.files[rng.Filename]
	if file == nil || rng.Start.Byte > len(file.Bytes) {
		return d
	}
	begin, end := lineAt(file.Bytes, rng.Start.Byte)
	short := *d
	switch {
	case end-begin > excerptBytes:
		short.Subject, short.Context, short.Expression = nil, nil, nil
		short.Detail = fmt.Sprintf("On %s line %d, column %d, a line too long to be shown.\n\n%s", rng.Filename, rng.Start.Line, rng.Start.Column, d.Detail)
	case rng.End.Line-rng.Start.Line > excerptLines || d.Context != nil && d.Context.End.Line-d.Context.Start.Line > excerptLines:
		rng.End = hcl.Pos{Line: rng.Start.Line, Column: rng.Start.Column + 1, Byte: max(end, rng.Start.Byte)}
		short.Subject, short.Context = &rng, nil
	}
	return &short
}

// lineAt gives the bytes between which the line around offset stands, without its line end.
func lineAt(text []byte, offset int) (begin, end int) {
	begin = bytes.LastIndexByte(text[:offset], '\n') + 1
	if i := bytes.IndexByte(text[offset:], '\n'); i >= 0 {
		return begin, offset + i
	}
	return begin, len(text)
}

// Diagnostics returns every mistake, ordered by file and place.
func (e *Error) Diagnostics() []Diagnostic {
	list := make([]Diagnostic, 0, len(e.diagnostics))
	for _, d := range e.diagnostics {
		plain := Diagnostic{Summary: d.Summary, Detail: d.Detail}
		if d.Subject != nil {
			plain.File = d.Subject.Filename
			plain.Line = d.Subject.Start.Line
			plain.Column = d.Subject.Start.Column
			plain.Excerpt = e.excerpt(*d.Subject)
		}
		list = append(list, plain)
	}
	return list
}

// excerpt is the line on which the range begins, cut where it is very long.
func (e *Error) excerpt(rng hcl.Range) string {
	file := e.files[rng.Filename]
	if file == nil || rng.Start.Byte > len(file.Bytes) {
		return ""
	}
	begin, end := lineAt(file.Bytes, rng.Start.Byte)
	return cut(strings.TrimRight(string(file.Bytes[begin:end]), "\r"), excerptBytes)
}

// cut shortens a text to at most n bytes, marking that it did.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
