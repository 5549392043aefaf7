// Package report renders findings: Markdown, one self-contained HTML page, figures and tables. It
// decides nothing and computes nothing that a reader could dispute; all of that is in analysis.
//
// What is said is built once, as a [document.Document]; how it looks is the business of the packages
// below this one: figure draws, render writes HTML, Markdown, LaTeX and CSV.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report/document"
	"github.com/rampart-bench/rampart/report/figure"
	"github.com/rampart-bench/rampart/report/render"
)

// Formats that can be asked for.
const (
	HTML     = "html"
	Markdown = "markdown"
)

// Spec is the report block of the configuration.
type Spec struct {
	Title   string   `json:"title"`
	Formats []string `json:"formats"` // default: both
}

// Input is all that a report is made of.
type Input struct {
	Manifest record.Manifest
	Findings analysis.Findings
	// RecordsDigest is that of records.jsonl, such as sha256:…
	RecordsDigest string
}

// Render writes the report into a results folder and returns the paths of what it wrote, the page
// and the Markdown file first: index.html, report.md, findings.json, figures/ (SVG and PDF) and
// tables/ (CSV and LaTeX). Every file appears whole or not at all, and the same input gives the same
// bytes.
func Render(dir string, in Input, spec Spec) ([]string, error) {
	files, err := files(in, spec)
	if err != nil {
		return nil, err
	}
	return write(dir, files)
}

// write puts the files into the folder, one by one.
func write(dir string, files []file) ([]string, error) {
	for _, sub := range []string{"figures", "tables"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("create folder for the report: %w", err)
		}
	}
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = filepath.Join(dir, f.path)
		if err := renameio.WriteFile(paths[i], f.data, 0o644); err != nil {
			return nil, fmt.Errorf("write %s: %w (is there space, and may you write to %s?)", f.path, err, dir)
		}
	}
	return paths, nil
}

// A file is a part of the report, by its path in the results folder.
type file struct {
	path string
	data []byte
}

// Names of the main files.
const (
	pageFile     = "index.html"
	textFile     = "report.md"
	findingsFile = "findings.json"
)

// files makes the whole report in memory.
func files(in Input, spec Spec) ([]file, error) {
	formats, err := formatsOf(spec)
	if err != nil {
		return nil, err
	}
	doc := build(in, spec)
	doc.Beside = append(others(formats), document.File{Path: findingsFile, For: "programs"})
	out, err := formatted(doc, formats)
	if err != nil {
		return nil, err
	}
	findings, err := json.MarshalIndent(in.Findings, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode findings: %w", err)
	}
	out = append(out, file{findingsFile, append(findings, '\n')})
	return beside(out, doc)
}

// formatsOf are those asked for, both by default.
func formatsOf(spec Spec) ([]string, error) {
	if len(spec.Formats) == 0 {
		return []string{HTML, Markdown}, nil
	}
	for _, name := range spec.Formats {
		if name != HTML && name != Markdown {
			return nil, fmt.Errorf("render report: no format %q: use %q or %q", name, HTML, Markdown)
		}
	}
	return spec.Formats, nil
}

// others are the forms that the page points to.
func others(formats []string) []document.File {
	if !slices.Contains(formats, Markdown) {
		return nil
	}
	return []document.File{{Path: textFile, For: "plain text"}}
}

// formatted renders the document in the formats asked for, the page first.
func formatted(doc *document.Document, formats []string) ([]file, error) {
	var out []file
	if slices.Contains(formats, HTML) {
		html, err := render.HTML(doc)
		if err != nil {
			return nil, err
		}
		out = append(out, file{pageFile, html})
	}
	if slices.Contains(formats, Markdown) {
		out = append(out, file{textFile, render.Markdown(doc)})
	}
	return out, nil
}

// beside appends the files of figures and tables.
func beside(out []file, doc *document.Document) ([]file, error) {
	for _, s := range doc.Sections {
		for _, b := range s.Blocks {
			switch b := b.(type) {
			case *document.Figure:
				pdf, err := figure.PDF(b)
				if err != nil {
					return nil, err
				}
				stem := filepath.Join("figures", b.ID)
				out = append(out, file{stem + ".svg", figure.SVG(b)}, file{stem + ".pdf", pdf})
			case *document.Table:
				stem := filepath.Join("tables", b.ID)
				out = append(out, file{stem + ".csv", render.CSV(b, doc.Notes)}, file{stem + ".tex", render.LaTeX(b)})
			}
		}
	}
	return out, nil
}
