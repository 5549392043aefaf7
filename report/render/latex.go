package render

import (
	"fmt"
	"strings"

	"github.com/rampart-bench/rampart/report/document"
)

// longTable is the number of rows beyond which a LaTeX table may break over pages.
const longTable = 40

// LaTeX writes a table for \input. Short ones are a tabular, to be put into a table environment with
// a caption of the author's; long ones are a longtable. Both need \usepackage{booktabs}.
func LaTeX(t *document.Table) []byte {
	var b strings.Builder
	environment, packages := "tabular", "booktabs"
	if len(t.Rows) > longTable {
		environment, packages = "longtable", "booktabs,longtable"
	}
	fmt.Fprintf(&b, "%% %s. %s\n%% \\usepackage{%s}\n", comment(t.Title), comment(t.Caption), packages)
	var align, head strings.Builder
	for i, c := range t.Columns {
		if columnNumeric(t, i) {
			align.WriteByte('r')
		} else {
			align.WriteByte('l')
		}
		if i > 0 {
			head.WriteString(" & ")
		}
		head.WriteString(latex(title(c)))
	}
	fmt.Fprintf(&b, "\\begin{%s}{%s}\n\\toprule\n%s \\\\\n\\midrule\n", environment, align.String(), head.String())
	if environment == "longtable" {
		b.WriteString("\\endhead\n\\bottomrule\n\\endfoot\n")
	}
	for _, r := range t.Rows {
		for i, v := range r.Values {
			if i > 0 {
				b.WriteString(" & ")
			}
			b.WriteString(latexValue(v, t.Columns[i]))
		}
		b.WriteString(" \\\\\n")
	}
	if environment == "tabular" {
		b.WriteString("\\bottomrule\n")
	}
	fmt.Fprintf(&b, "\\end{%s}\n", environment)
	return []byte(b.String())
}

func latexValue(v document.Value, c document.Column) string {
	if verdict, ok := v.(document.Verdict); ok {
		return latex(verdict.String())
	}
	s := document.Print(v, c.Unit)
	if !numeric(v) {
		return latex(s)
	}
	// Square brackets at the start of a row would be read as an argument of \\; braces prevent it.
	s = strings.ReplaceAll(s, ",", "{,}")
	s = strings.ReplaceAll(s, "{,} ", ", ")
	for _, p := range [][2]string{{"<", "$<$"}, {"-", "$-$"}, {"–", "--"}} {
		s = strings.ReplaceAll(s, p[0], p[1])
	}
	return "{" + s + "}"
}

// latex escapes text. LaTeX reads UTF-8 but stops at a letter that its fonts lack, so that only those stay
// which a document without a package can set; signs become mathematics, and the others their code point.
func latex(s string) string {
	var b strings.Builder
	for _, r := range document.Clean(s, false) {
		switch r {
		case '\\':
			b.WriteString(`\textbackslash{}`)
		case '{', '}', '$', '&', '#', '%', '_':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '^':
			b.WriteString(`\textasciicircum{}`)
		case '~':
			b.WriteString(`\textasciitilde{}`)
		case '<':
			b.WriteString(`\textless{}`)
		case '>':
			b.WriteString(`\textgreater{}`)
		case '|':
			b.WriteString(`\textbar{}`)
		case '"':
			b.WriteString(`{\ttfamily\char34}`) // \textquotedbl needs another encoding of fonts
		case '\'':
			b.WriteString(`\textquotesingle{}`)
		case '`':
			b.WriteString(`\textasciigrave{}`)
		case '-':
			b.WriteString(`-{}`) // two hyphens stay two, as in an option's name
		case '[', ']':
			b.WriteString("{" + string(r) + "}")
		case '–':
			b.WriteString(`--`)
		default:
			if sign := mathematics(r); sign != "" {
				b.WriteString("$" + sign + "$")
			} else if settable(r) {
				b.WriteRune(r)
			} else {
				fmt.Fprintf(&b, "{[}U+%04X{]}", r)
			}
		}
	}
	return b.String()
}

// mathematics gives the signs of reports, marks of verdicts among them, as plain LaTeX has them; else "".
func mathematics(r rune) string {
	switch r {
	case '−':
		return "-"
	case '×', '✗':
		return `\times`
	case '≥':
		return `\geq`
	case '≤':
		return `\leq`
	case '≠':
		return `\neq`
	case '≈':
		return `\approx`
	case '±':
		return `\pm`
	case 'µ', 'μ':
		return `\mu`
	case 'α':
		return `\alpha`
	case 'δ':
		return `\delta`
	case '▲':
		return `\bigtriangleup`
	case '▼':
		return `\bigtriangledown`
	case '○':
		return `\circ`
	case '✓':
		return `\surd`
	}
	return ""
}

// settable reports whether LaTeX of 2022 sets the letter in its oldest encoding of fonts (OT1): ASCII, most of
// the Latin letters up to U+017E, and the punctuation of Windows-1252. Found by having it set each of them.
func settable(r rune) bool {
	switch {
	case r < 0x80:
		return true
	case r >= 0xa0 && r <= 0x17e:
		return !strings.ContainsRune("«»ÐðÞþĄąĐđĘęĦħĮįĸĿŀŉŊŋŦŧŲų", r)
	}
	return strings.ContainsRune("‘’‚“”„†‡•…‰€™", r)
}

// comment is text after a percent sign: one line, no control characters.
func comment(s string) string { return document.Clean(s, false) }
