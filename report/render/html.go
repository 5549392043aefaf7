package render

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"strings"

	"github.com/rampart-bench/rampart/report/document"
	"github.com/rampart-bench/rampart/report/figure"
)

//go:embed page.tmpl
var pageTemplate string

//go:embed style.css
var styleSheet string

// HTML writes the document as one page: no script, no request, figures and style inside. All text
// goes through html/template, which escapes by context; only the style sheet and the pictures that
// package figure draws, with their texts escaped there, are taken as they are.
func HTML(d *document.Document) ([]byte, error) {
	t, err := template.New("page").Funcs(functions(d)).Parse(pageTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse page template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, d); err != nil {
		return nil, fmt.Errorf("render page: %w", err)
	}
	return b.Bytes(), nil
}

func functions(d *document.Document) template.FuncMap {
	numbers := captions(d)
	return template.FuncMap{
		"style":   style,
		"kind":    kind,
		"clean":   func(s string) string { return document.Clean(s, false) },
		"lines":   func(s string) string { return document.Clean(s, true) },
		"title":   title,
		"text":    text,
		"class":   class,
		"numeric": columnNumeric,
		"column":  func(t *document.Table, i int) document.Column { return t.Columns[i] },
		"last":    func(r document.Row, i int) bool { return i == len(r.Values)-1 },
		"number":  func(id string) int { return numbers[id] },
		"inc":     func(i int) int { return i + 1 },
		"inline": func(f *document.Figure, i int) template.HTML {
			return template.HTML(figure.Inline(f.Panels[i], fmt.Sprintf("f-%s-%d", f.ID, i)))
		},
		"sample": func(s document.Style) template.HTML { return template.HTML(figure.Sample(s)) },
		"figfile": func(f *document.Figure, extension string) string {
			return figureFile(f.ID, extension)
		},
		"tabfile": func(t *document.Table, extension string) string { return tableFile(t.ID, extension) },
	}
}

// captions numbers figures and tables, each from 1.
func captions(d *document.Document) map[string]int {
	numbers := map[string]int{}
	figures, tables := 0, 0
	for _, s := range d.Sections {
		for _, b := range s.Blocks {
			switch b := b.(type) {
			case *document.Figure:
				figures++
				numbers["figure "+b.ID] = figures
			case *document.Table:
				tables++
				numbers["table "+b.ID] = tables
			}
		}
	}
	return numbers
}

func style() template.CSS {
	light, dark := figure.Variables(false), figure.Variables(true)
	sheet := strings.NewReplacer("/*light*/", light, "/*dark*/", dark).Replace(styleSheet)
	return template.CSS(sheet)
}

func kind(b document.Block) string {
	switch b.(type) {
	case document.Paragraph:
		return "paragraph"
	case document.Heading:
		return "heading"
	case document.List:
		return "list"
	case document.Code:
		return "code"
	case document.Definitions:
		return "definitions"
	case *document.Table:
		return "table"
	case *document.Figure:
		return "figure"
	}
	return ""
}

// class is the style class of a verdict, and none for other values.
func class(v document.Value) string {
	switch v {
	case document.Slower, document.Disagrees:
		return "bad"
	case document.Faster, document.Agrees:
		return "good"
	case document.Inconclusive:
		return "open"
	}
	return ""
}
