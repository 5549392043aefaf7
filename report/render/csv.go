package render

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rampart-bench/rampart/report/document"
)

// CSV writes a table for programs: full precision, units as recorded and named in the header, an
// estimate as three columns. A number is a number; a text that a spreadsheet would run as a formula
// gets an apostrophe before it (OWASP, CSV injection).
func CSV(t *document.Table, notes []document.Note) []byte {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	noted := len(t.Notes) > 0
	for _, r := range t.Rows {
		noted = noted || len(r.Notes) > 0
	}
	w.Write(header(t, noted)) // a bytes.Buffer never fails
	for _, r := range t.Rows {
		var fields []string
		for _, v := range r.Values {
			fields = append(fields, cells(v)...)
		}
		if noted {
			fields = append(fields, document.Inert(noteText(append(append([]int(nil), t.Notes...), r.Notes...), notes)))
		}
		w.Write(fields)
	}
	w.Flush()
	return b.Bytes()
}

func header(t *document.Table, noted bool) []string {
	var names []string
	for i, c := range t.Columns {
		unit := ""
		if c.Unit.Name != "" && c.Unit.Name != "1" {
			unit = "_" + strings.NewReplacer("1/s", "per_s", "/", "_per_", " a ", "_per_", " ", "_").Replace(c.Unit.Name)
		}
		for _, suffix := range suffixes(t, i) {
			names = append(names, document.Inert(c.Key+suffix+unit))
		}
	}
	if noted {
		names = append(names, "notes")
	}
	return names
}

// suffixes name the fields that a column's values take.
func suffixes(t *document.Table, column int) []string {
	if len(t.Rows) > 0 {
		switch t.Rows[0].Values[column].(type) {
		case document.Estimate:
			return []string{"", "_lo", "_hi"}
		case document.Range:
			return []string{"_lo", "_hi"}
		}
	}
	return []string{""}
}

// cells are the fields that a value takes.
func cells(v document.Value) []string {
	switch v := v.(type) {
	case document.Estimate:
		return append([]string{float(v.Value)}, bounds(v)...)
	case document.Range:
		return bounds(document.Estimate(v))
	case document.Text:
		return []string{document.Inert(string(v))}
	case document.Count:
		return []string{strconv.Itoa(int(v))}
	case document.Number:
		return []string{float(float64(v))}
	case document.Probability:
		return []string{float(float64(v))}
	case document.Verdict:
		return []string{v.String()}
	}
	return []string{""}
}

// bounds are empty where there is no interval.
func bounds(e document.Estimate) []string {
	if e.Level == 0 {
		return []string{"", ""}
	}
	return []string{float(e.Lo), float(e.Hi)}
}

// float is empty for what is no number.
func float(x float64) string {
	if math.IsNaN(x) {
		return ""
	}
	return strconv.FormatFloat(x, 'g', -1, 64)
}

func noteText(refs []int, notes []document.Note) string {
	var parts []string
	for _, n := range refs {
		if n < 1 || n > len(notes) {
			continue
		}
		s := notes[n-1].Text
		if notes[n-1].Next != "" {
			s = fmt.Sprintf("%s (%s)", s, notes[n-1].Next)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}
