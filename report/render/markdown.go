package render

import (
	"fmt"
	"html"
	"regexp"
	"strings"

	"github.com/rampart-bench/rampart/report/document"
)

// markdownRows is the number of rows beyond which a table is left to its CSV file: GitHub shows no
// Markdown file above 512 KiB, and nobody reads hundreds of rows there.
const markdownRows = 80

// Markdown writes the document for GitHub: GFM tables, pictures beside it in figures/.
func Markdown(d *document.Document) []byte {
	m := &markdown{}
	m.line("# %s", md(d.Title))
	for _, p := range d.Lede {
		m.line("%s", paragraph(p))
	}
	m.claims(d.Claims)
	for _, s := range d.Sections {
		m.line("## %s", md(s.Title))
		for _, b := range s.Blocks {
			m.block(b)
		}
	}
	if len(d.Notes) > 0 {
		m.line("## Notes")
		m.notes(d.Notes)
	}
	return []byte(m.b.String())
}

// MarkdownSummary writes a short document for the summary of a CI job, where nothing stands beside it: no
// links to files, and headings that fit among those of others.
func MarkdownSummary(d *document.Document) []byte {
	m := &markdown{alone: true}
	m.line("### %s", md(d.Title))
	for _, p := range d.Lede {
		m.line("%s", paragraph(p))
	}
	m.claims(d.Claims)
	for _, s := range d.Sections {
		m.line("#### %s", md(s.Title))
		for _, b := range s.Blocks {
			m.block(b)
		}
	}
	if len(d.Notes) > 0 {
		m.line("#### Notes")
		m.notes(d.Notes)
	}
	return []byte(m.b.String())
}

type markdown struct {
	b     strings.Builder
	alone bool // there is no folder of tables and figures beside it
}

// line writes a block and the empty line after it.
func (m *markdown) line(format string, args ...any) { fmt.Fprintf(&m.b, format+"\n\n", args...) }

func (m *markdown) claims(claims []document.Claim) {
	if len(claims) == 0 {
		return
	}
	m.b.WriteString("| claim | verdict | effect |\n| --- | --- | --- |\n")
	for _, c := range claims {
		statement := md(c.Statement)
		if c.Region != "" {
			statement += " (" + md(c.Region) + ")"
		}
		fmt.Fprintf(&m.b, "| **%s** %s | %s&nbsp;**%s** | %s%s |\n", md(c.Name), statement, c.Verdict.Mark(), c.Verdict, md(c.Sentence), mdRefs(c.Notes))
	}
	m.b.WriteByte('\n')
}

func (m *markdown) block(b document.Block) {
	switch b := b.(type) {
	case document.Paragraph:
		m.line("%s", paragraph(string(b)))
	case document.Heading:
		m.line("### %s", md(string(b)))
	case document.List:
		for _, item := range b {
			fmt.Fprintf(&m.b, "- %s\n", md(item))
		}
		m.b.WriteByte('\n')
	case document.Code:
		m.code(b)
	case document.Definitions:
		m.definitions(b)
	case *document.Table:
		m.table(b)
	case *document.Figure:
		m.figure(b)
	}
}

func (m *markdown) code(c document.Code) {
	text := document.Clean(c.Text, true)
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	block := fence + "\n" + strings.TrimSuffix(text, "\n") + "\n" + fence
	if c.Fold {
		m.line("<details><summary>%s</summary>\n\n%s\n\n</details>", summary(c.Name), block)
		return
	}
	if c.Name != "" {
		m.line("%s:", md(c.Name))
	}
	m.line("%s", block)
}

func (m *markdown) definitions(d document.Definitions) {
	m.line("**%s**", md(d.Caption))
	m.b.WriteString("| | |\n| --- | --- |\n")
	for _, i := range d.Items {
		fmt.Fprintf(&m.b, "| %s | %s |\n", md(i.Term), md(i.Text))
	}
	m.b.WriteByte('\n')
}

func (m *markdown) table(t *document.Table) {
	csv := tableFile(t.ID, "csv")
	if len(t.Rows) > markdownRows && !m.alone {
		m.line("**%s.** %d rows: [%s](%s). %s%s", md(t.Title), len(t.Rows), csv, csv, md(t.Caption), mdRefs(t.Notes))
		return
	}
	switch {
	case t.Fold:
		m.line("<details><summary>%s</summary>", summary(t.Title))
	case !m.alone:
		m.line("**%s.**", md(t.Title))
	}
	if t.Caption != "" || len(t.Notes) > 0 {
		m.line("%s%s", paragraph(t.Caption), mdRefs(t.Notes))
	}
	var head, rule strings.Builder
	for i, c := range t.Columns {
		head.WriteString("| " + md(title(c)) + " ")
		if columnNumeric(t, i) {
			rule.WriteString("| ---: ")
		} else {
			rule.WriteString("| --- ")
		}
	}
	fmt.Fprintf(&m.b, "%s|\n%s|\n", head.String(), rule.String())
	for _, r := range t.Rows {
		for i, v := range r.Values {
			m.b.WriteString("| " + md(text(v, t.Columns[i])))
			if i == len(r.Values)-1 {
				m.b.WriteString(mdRefs(r.Notes))
			}
			m.b.WriteByte(' ')
		}
		m.b.WriteString("|\n")
	}
	m.b.WriteByte('\n')
	if !m.alone {
		m.line("<sub>[%s](%s) · [%s](%s)</sub>", "CSV", csv, "LaTeX", tableFile(t.ID, "tex"))
	}
	if t.Fold {
		m.line("</details>")
	}
}

func (m *markdown) figure(f *document.Figure) {
	m.line("**%s**", md(f.Title))
	m.line("![%s](%s)", md(f.Alt), figureFile(f.ID, "svg"))
	files := fmt.Sprintf("[PDF](%s)", figureFile(f.ID, "pdf"))
	for _, id := range f.Data {
		files += fmt.Sprintf(" · [data](%s)", tableFile(id, "csv"))
	}
	m.line("%s <sub>%s</sub>", md(f.Caption), files)
}

func (m *markdown) notes(notes []document.Note) {
	for i, n := range notes {
		fmt.Fprintf(&m.b, "%d. %s", i+1, md(n.Text))
		if n.Next != "" {
			fmt.Fprintf(&m.b, " *%s*", md(n.Next))
		}
		m.b.WriteByte('\n')
	}
	m.b.WriteByte('\n')
}

func mdRefs(notes []int) string {
	if len(notes) == 0 {
		return ""
	}
	parts := make([]string, len(notes))
	for i, n := range notes {
		parts[i] = fmt.Sprintf("[%d](#notes)", n)
	}
	return " <sup>" + strings.Join(parts, ",") + "</sup>"
}

// summary is text inside an HTML element, where Markdown is not read.
func summary(s string) string { return html.EscapeString(document.Clean(s, false)) }

// lineStart matches what opens a block at the beginning of a line: a list item or a rule.
var lineStart = regexp.MustCompile(`^(\d+)([.)])`)

// paragraph is running text that does not begin a list, a heading or a quotation by accident.
func paragraph(s string) string {
	s = md(s)
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") || strings.HasPrefix(s, "=") {
		return `\` + s
	}
	return lineStart.ReplaceAllString(s, `$1\$2`)
}

// md escapes text for GitHub's Markdown: markup, HTML, cell borders, mathematics, and also what GitHub
// links or replaces by itself while it reads (addresses, emoji), which backslashes do not stop.
func md(s string) string {
	var b strings.Builder
	runes := []rune(strings.TrimSpace(document.Clean(s, false)))
	for i, r := range runes {
		switch {
		case strings.ContainsRune("\\`*_[]#!$~", r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case r == '&':
			b.WriteString("&amp;")
		case r == '|':
			b.WriteString("&#124;")
		case r == '@':
			b.WriteString("&#64;")
		case r == ':' && i+1 < len(runes) && runes[i+1] != ' ':
			b.WriteString("&#58;")
		case r == '.' && i >= 3 && strings.EqualFold(string(runes[i-3:i]), "www"):
			b.WriteString("&#46;")
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
