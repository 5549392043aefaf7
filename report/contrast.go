package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report/document"
	"github.com/rampart-bench/rampart/report/render"
)

// How many changed cells are listed, the worst first. JSON has all.
const (
	textRows     = 25
	markdownRows = 60
)

// A Side is one of two results folders that hold the same study.
type Side struct {
	Folder        string          `json:"folder"`
	RecordsDigest string          `json:"records_digest"`
	Manifest      record.Manifest `json:"-"`
}

// A Contrast is a study measured twice: what changed, and what else differs between the two.
type Contrast struct {
	Before      Side             `json:"before"`
	After       Side             `json:"after"`
	Identical   bool             `json:"identical"` // the records are, to the byte
	Regressed   bool             `json:"regressed"`
	Differences []Difference     `json:"differences"`
	Changes     analysis.Changes `json:"changes"`
}

// NewContrast puts together what is known of both sides.
func NewContrast(before, after Side, changes analysis.Changes) Contrast {
	worse, missing := changes.Regressed()
	return Contrast{
		Before: before, After: after, Changes: changes,
		Identical:   before.RecordsDigest == after.RecordsDigest,
		Regressed:   worse+missing > 0,
		Differences: differences(before.Manifest, after.Manifest),
	}
}

// Text is the contrast for a terminal.
func (c Contrast) Text() string { return string(render.Text(c.document(textRows))) }

// Markdown is the contrast for the summary of a CI job. It refers to no other file.
func (c Contrast) Markdown() string { return string(render.MarkdownSummary(c.document(markdownRows))) }

func (c Contrast) document(rows int) *document.Document {
	d := &document.Document{Title: "What changed", Lede: []string{c.Outcome() + ".", c.meaning()}}
	add := func(id, title string, blocks ...document.Block) {
		d.Sections = append(d.Sections, document.Section{ID: id, Title: title, Blocks: blocks})
	}
	if changed := c.changed(); len(changed) > 0 {
		add("cells", "Cells that changed", c.cells(changed, rows))
	}
	if len(c.Changes.Missing) > 0 {
		add("missing", "Cells without a run that counts", c.missing())
	}
	if len(c.Changes.Counts) > 0 {
		add("counts", "All cells", c.counts())
	}
	if len(c.Differences) > 0 {
		add("differences", "What else differs", c.differences())
	}
	add("records", "Records", c.records())
	for _, w := range c.Changes.Warnings {
		d.Notes = append(d.Notes, document.Note{Text: w.Text, Next: w.Next})
	}
	return d
}

// Outcome says in a few words whether something got worse.
func (c Contrast) Outcome() string {
	worse, missing := c.Changes.Regressed()
	all, better := len(c.Changes.Cells), 0
	for _, n := range c.Changes.Counts {
		better += n.Faster
	}
	s := fmt.Sprintf("No regression: of %s none is worse", plural(all, "compared value"))
	if c.Regressed {
		s = fmt.Sprintf("Regression: of %s %s", plural(all, "compared value"), areWorse(worse))
	}
	if better > 0 {
		s += fmt.Sprintf(", %s better", numberWords(better))
	}
	if missing > 0 {
		s += fmt.Sprintf("; %s no run that counts any more", haveWords(missing))
	}
	return s
}

func areWorse(n int) string { return numberWords(n) + " worse" }

func numberWords(n int) string {
	if n == 1 {
		return "1 is"
	}
	return document.Print(document.Count(n), document.Unit{}) + " are"
}

func haveWords(cells int) string {
	if cells == 1 {
		return "1 cell has"
	}
	return plural(cells, "cell") + " have"
}

// meaning says what a change is here.
func (c Contrast) meaning() string {
	threshold := ""
	if c.Changes.Threshold > 0 {
		threshold = " and by more than " + percentWords(c.Changes.Threshold)
	}
	if c.virtual() {
		return "Clock virtual: values are exact, and one nanosecond is one instruction. A value has changed when every block moved the same way" + threshold + c.reference() + "."
	}
	return fmt.Sprintf("Clock %s. A value has changed when the change is significant after Holm's correction over its experiment and metric, exceeds the noise floor%s, and is not equivalent within %s.",
		c.Changes.Clock, threshold, percentWords(c.Changes.Margin))
}

// reference says what the moves are held against under the virtual clock.
func (c Contrast) reference() string {
	for _, cell := range c.Changes.Cells {
		if cell.Blocks != nil && cell.Blocks.Reference != "" {
			return ", counted from " + cell.Blocks.Reference + " in the same block; " + cell.Blocks.Reference + " itself, and what it has no value for, by more than blocks differ among themselves"
		}
	}
	return ", by more than blocks differ among themselves"
}

func (c Contrast) virtual() bool { return c.Changes.Clock == "virtual" }

// changed are the cells that changed, the worst first.
func (c Contrast) changed() (out []analysis.Change) {
	for _, cell := range c.Changes.Cells {
		if cell.Changed() {
			out = append(out, cell)
		}
	}
	slices.SortStableFunc(out, func(a, b analysis.Change) int { return cmp.Compare(b.Worsening(), a.Worsening()) })
	return out
}

func (c Contrast) cells(changed []analysis.Change, rows int) *document.Table {
	t := &document.Table{ID: "cells", Title: "Cells that changed", Caption: "The worst first."}
	if len(changed) > rows {
		t.Caption = fmt.Sprintf("The first %d of %d, the worst first; --json has all.", rows, len(changed))
		changed = changed[:rows]
	}
	evidence := document.Column{Key: "holm_p", Title: "p (Holm)"}
	if c.virtual() {
		evidence = document.Column{Key: "blocks", Title: "blocks"}
	}
	t.Columns = []document.Column{
		{Key: "verdict", Title: "verdict"}, {Key: "metric", Title: "metric"}, {Key: "experiment", Title: "experiment", Head: true},
		imageColumn, firewallColumn, rulesColumn, frameColumn,
		{Key: "before", Title: "before"}, {Key: "after", Title: "after"}, {Key: "change", Title: "change"}, evidence,
	}
	for _, cell := range changed {
		values := []document.Value{
			verdict(cell.Verdict, cell.Minor), document.Text(cell.Metric), document.Text(cell.Experiment), document.Text(cell.Image), document.Text(cell.Firewall),
			document.Count(cell.Rules), document.Count(cell.FrameSize),
		}
		t.Rows = append(t.Rows, document.Row{Values: append(values, c.effect(cell)...)})
	}
	return withoutEmpty(t, "image")
}

// effect is before, after, the change, and what it rests on.
func (c Contrast) effect(cell analysis.Change) []document.Value {
	if b := cell.Blocks; b != nil {
		return []document.Value{
			exactValue(cell.Before.Value, cell.Unit), exactValue(cell.After.Value, cell.Unit),
			document.Text(exactPercent(cell.Ratio.Value)), document.Text(fmt.Sprintf("%d of %d", max(b.Up, b.Down), b.Paired)),
		}
	}
	unit := document.ScaleUnit(cell.Unit, max(cell.Before.Value, cell.After.Value))
	short := func(i analysis.Interval) document.Text {
		return document.Text(estimate(i).In(unit).Short() + " " + unit.Printed)
	}
	return []document.Value{short(cell.Before), short(cell.After), document.Text(document.Percent(estimate(cell.Ratio))), document.Probability(cell.Test.HolmP)}
}

// exactValue prints every digit there is, but not what is left of decimal fractions in binary.
func exactValue(x float64, unit string) document.Text {
	if rounded, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', 11, 64), 64); err == nil {
		x = rounded
	}
	return document.Text(strconv.FormatFloat(x, 'f', -1, 64) + " " + unit)
}

// exactPercent prints a ratio as a difference with four significant digits, however small it is.
func exactPercent(ratio float64) string {
	percent := 100 * (ratio - 1)
	digits := 4
	if size := math.Abs(percent); size > 0 {
		digits = min(max(digits-1-int(math.Floor(math.Log10(size))), 0), 12)
	}
	return fmt.Sprintf("%+.*f %%", digits, percent)
}

func (c Contrast) missing() document.List {
	var out document.List
	for _, m := range c.Changes.Missing {
		s := fmt.Sprintf("%s, %s: %s", m.Experiment, m.Firewall, plural(m.Cells, "cell"))
		if m.Metric != "" {
			s += " without " + m.Metric
		}
		out = append(out, s+" ("+m.Reason+")")
	}
	return out
}

// counts has a row for every experiment and metric.
func (c Contrast) counts() *document.Table {
	t := &document.Table{ID: "counts", Title: "All cells", Columns: []document.Column{
		{Key: "metric", Title: "metric", Head: true}, {Key: "experiment", Title: "experiment", Head: true},
		{Key: "slower", Title: "slower"}, {Key: "faster", Title: "faster"}, {Key: "equivalent", Title: "equivalent"},
		{Key: "minor", Title: "of them changed"}, {Key: "inconclusive", Title: "inconclusive"}, {Key: "noise_floor", Title: "noise floor"},
	}}
	if c.virtual() {
		t.Columns = t.Columns[:7]
	}
	for _, n := range c.Changes.Counts {
		values := []document.Value{
			document.Text(n.Metric), document.Text(n.Experiment), document.Count(n.Slower), document.Count(n.Faster),
			document.Count(n.Equivalent), document.Count(n.Minor), document.Count(n.Inconclusive), document.Text(c.noiseFloor(n)),
		}
		t.Rows = append(t.Rows, document.Row{Values: values[:len(t.Columns)]})
	}
	return t
}

func (c Contrast) noiseFloor(n analysis.ChangeCount) string {
	for _, f := range c.Changes.NoiseFloors {
		if f.Experiment == n.Experiment && f.Metric == n.Metric {
			return ratioWords(f.Ratio)
		}
	}
	return "none"
}

func (c Contrast) differences() document.List {
	var out document.List
	for _, d := range c.Differences {
		out = append(out, fmt.Sprintf("%s: %s → %s", d.What, cmp.Or(d.Before, "(none)"), cmp.Or(d.After, "(none)")))
	}
	return out
}

func (c Contrast) records() document.List {
	same := "The records differ."
	if c.Identical {
		same = "The records are identical, to the byte."
	}
	return document.List{
		fmt.Sprintf("before %s: %s", c.Before.Folder, c.Before.RecordsDigest),
		fmt.Sprintf("after %s: %s", c.After.Folder, c.After.RecordsDigest),
		same,
	}
}
