package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/report/document"
	"github.com/rampart-bench/rampart/report/render"
)

// Summary is the outcome in a few lines for a terminal: each claim with its verdict, then the runs
// that do not count, if any. It ends in a newline and holds no control character from outside.
func Summary(f analysis.Findings) string {
	width := 0
	for _, c := range f.Claims {
		width = max(width, len([]rune(c.Claim.Name)))
	}
	var b strings.Builder
	for _, c := range f.Claims {
		fmt.Fprintf(&b, "%-*s  %s %s\n", width, document.Clean(c.Claim.Name, false),
			verdict(c.Verdict, false).Mark(), document.Clean(cmp.Or(c.Sentence, c.Verdict+": "+c.Claim.Statement), false))
	}
	if len(f.Claims) == 0 {
		b.WriteString("The study makes no claim; see the tables of the report.\n")
	}
	for _, r := range f.Runs {
		if r.OK < r.Planned {
			fmt.Fprintf(&b, "%s: %d of %s count (%s)\n", document.Clean(r.Experiment, false), r.OK, plural(r.Planned, "planned run"), leftOut(r))
		}
	}
	return b.String()
}

// leftOut names the runs that do not count, by kind.
func leftOut(r analysis.RunCount) string {
	var parts []string
	for _, kind := range []struct {
		runs int
		name string
	}{{r.Failed, "failed"}, {r.SenderBound, "sender-bound"}, {r.Unavailable, "unavailable"}, {missing(r), "not made"}} {
		if kind.runs > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", kind.runs, kind.name))
		}
	}
	return strings.Join(parts, ", ")
}

// MarkdownSummary is the same for the summary page of a CI job.
func MarkdownSummary(f analysis.Findings) string {
	b := &builder{f: f}
	return string(render.MarkdownSummary(&document.Document{
		Title:  cmp.Or(f.Study.Title, "Firewall measurement"),
		Lede:   b.lede(),
		Claims: claims(f),
	}))
}
