package config

import "github.com/rampart-bench/rampart/report"

func reportSchema() *schema {
	return &schema{
		name: "report",
		doc:  "What is written at the end.",
		attributes: []attribute{
			{name: "title", kind: text, def: `"Firewall performance"`, doc: "Title of the report."},
			{name: "formats", kind: texts, def: `["html", "markdown"]`, oneOf: []string{report.HTML, report.Markdown}, doc: "Formats to write."},
		},
	}
}

func readReport(b *body) report.Spec {
	return report.Spec{Title: b.text("title"), Formats: values(b.texts("formats"))}
}
