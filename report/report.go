// Package report renders findings: Markdown, one self-contained HTML page, figures and tables. It
// decides nothing and computes nothing that a reader could dispute; all of that is in analysis.
package report

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
