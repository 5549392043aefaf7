package report

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/report/document"
)

// Keys under which figures find the table with their numbers.
func mediansKey(s series) string                  { return fmt.Sprintf("medians %q", s) }
func ratiosKey(s series, p pair) string           { return fmt.Sprintf("ratios %q %v", s, p) }
func costKey(s series) string                     { return fmt.Sprintf("cost %q", s) }
func (b *builder) remember(key, id string) string { b.dataIDs[key] = id; return id }

// data finds those tables, as far as there are any.
func (b *builder) data(keys ...string) []string {
	var ids []string
	for _, key := range keys {
		if id, ok := b.dataIDs[key]; ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// tables are all numbers: claims, medians, ratios, costs.
func (b *builder) tables() []document.Block {
	b.dataIDs = map[string]string{}
	var out []document.Block
	if len(b.f.Claims) > 0 {
		out = append(out, b.claimsTable())
	}
	for _, s := range b.seriesOf() {
		out = append(out, document.Heading(fmt.Sprintf("%s: %s", s.experiment, metricWords(s.metric))))
		if b.allZero(s) {
			out = append(out, document.Paragraph(fmt.Sprintf("The median, and the interval where there is one, is 0 in all %s. %s", plural(len(b.cells(s)), "cell"), b.clock())))
			continue
		}
		out = append(out, b.mediansTable(s))
		for _, control := range []bool{false, true} {
			for _, p := range b.pairs(s, control) {
				out = append(out, b.ratiosTable(s, p))
			}
		}
		if t := b.costTable(s); t != nil {
			out = append(out, t)
		}
		if t := b.costRatioTable(s); t != nil {
			out = append(out, t)
		}
	}
	return out
}

// allZero spares the reader hundreds of zeros, such as those of loss.
func (b *builder) allZero(s series) bool {
	return !slices.ContainsFunc(b.cells(s), func(c analysis.Cell) bool {
		return c.Median.Value != 0 || c.Median.Lo != 0 || c.Median.Hi != 0
	})
}

// finish folds a long table and moves notes that hold for every row to the caption.
func finish(t *document.Table) *document.Table {
	t.Fold = len(t.Rows) > longTable
	if len(t.Rows) < 2 {
		return t
	}
	for _, n := range slices.Clone(t.Rows[0].Notes) {
		everywhere := !slices.ContainsFunc(t.Rows, func(r document.Row) bool { return !slices.Contains(r.Notes, n) })
		if !everywhere {
			continue
		}
		t.Notes = append(t.Notes, n)
		for i := range t.Rows {
			t.Rows[i].Notes = slices.DeleteFunc(slices.Clone(t.Rows[i].Notes), func(m int) bool { return m == n })
		}
	}
	return t
}

// compared stands in the place of a level where A and B are levels of that factor.
const compared = "compared"

// withoutEmpty leaves out a column of texts in which every row has none.
func withoutEmpty(t *document.Table, key string) *document.Table {
	i := slices.IndexFunc(t.Columns, func(c document.Column) bool { return c.Key == key })
	if slices.ContainsFunc(t.Rows, func(r document.Row) bool { return r.Values[i] != document.Value(document.Text("")) }) {
		return t
	}
	t.Columns = slices.Delete(slices.Clone(t.Columns), i, i+1)
	for j, r := range t.Rows {
		t.Rows[j].Values = slices.Delete(slices.Clone(r.Values), i, i+1)
	}
	return t
}

var (
	imageColumn    = document.Column{Key: "image", Title: "image", Head: true}
	firewallColumn = document.Column{Key: "firewall", Title: "firewall", Head: true}

	rulesColumn = document.Column{Key: "rules", Title: "rules", Head: true}
	frameColumn = document.Column{Key: "frame_size", Title: "frame size", Unit: document.Unit{Name: "bytes", Printed: "bytes"}, Head: true}
)

func (b *builder) claimsTable() *document.Table {
	t := &document.Table{
		ID:      b.remember("claims", b.id("claims")),
		Title:   "Claims and their effects",
		Caption: "The effect is the mean ratio A/B of the metric over the cells of the region, with its " + b.level() + " interval over blocks" + b.orBoots() + ". " + b.clock(),
		Columns: []document.Column{
			{Key: "claim", Title: "claim", Head: true},
			{Key: "verdict", Title: "verdict"},
			{Key: "ratio", Title: "ratio A/B [interval]"},
			{Key: "noise_floor", Title: "noise floor"},
			{Key: "cells", Title: "cells"},
			{Key: "a", Title: "A"},
			{Key: "b", Title: "B"},
			{Key: "expected", Title: "expected"},
			{Key: "region", Title: "region"},
			{Key: "metric", Title: "metric"},
			{Key: "experiment", Title: "experiment"},
		},
	}
	published := slices.ContainsFunc(b.f.Claims, func(c analysis.ClaimResult) bool { return c.Claim.Reference != nil })
	if published {
		t.Caption += " " + anotherKernel
		t.Columns = append(t.Columns, document.Column{Key: "published", Title: "published ratio"}, document.Column{Key: "source", Title: "where"})
	}
	for _, c := range b.f.Claims {
		where := region(c.Claim)
		if where == "" {
			where = "everywhere"
		}
		var floor document.Value = document.Text("none")
		if c.Noise > 1 {
			floor = document.Text(ratioWords(c.Noise))
		}
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Claim.Name), verdict(c.Verdict, false), ratio(c.Effect), floor, document.Count(c.Cells),
			document.Text(c.Claim.Compare[0]), document.Text(c.Claim.Compare[1]), document.Text(c.Claim.Expect),
			document.Text(where), document.Text(c.Metric), document.Text(c.Claim.Experiment),
		}})
		if published {
			last := &t.Rows[len(t.Rows)-1]
			last.Values = append(last.Values, reference(c.Claim.Reference)...)
		}
	}
	return finish(t)
}

// orBoots is said of intervals over blocks where some of them are on images.
func (b *builder) orBoots() string {
	if slices.ContainsFunc(b.f.Claims, func(c analysis.ClaimResult) bool { return c.Claim.Factor == analysis.FactorImage }) {
		return ", or boots where images are compared"
	}
	return ""
}

// anotherKernel is said wherever a published ratio stands.
const anotherKernel = "A published ratio is of another kernel on another machine: it stands beside ours for the reader and decides nothing."

// reference is a published ratio and where it was published.
func reference(r *analysis.Reference) []document.Value {
	if r == nil {
		return []document.Value{document.Text("none"), document.Text("")}
	}
	return []document.Value{document.Text(strconv.FormatFloat(r.Ratio, 'f', 3, 64)), document.Text(r.Source)}
}

func (b *builder) mediansTable(s series) *document.Table {
	t := &document.Table{
		ID:    b.remember(mediansKey(s), b.id("medians", s.experiment, s.metric)),
		Title: "Medians of the " + metricWords(s.metric),
		Caption: fmt.Sprintf("Median over n runs with its %s interval from order statistics (%s). %s",
			b.level(), betterWords(s.metric), b.clock()),
		Columns: []document.Column{
			imageColumn, firewallColumn, rulesColumn, frameColumn,
			{Key: "n", Title: "n"},
			{Key: "median", Title: "median [interval]", Unit: b.unit(s)},
		},
	}
	for _, c := range b.cells(s) {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Image), document.Text(c.Firewall), document.Count(c.Rules), document.Count(c.FrameSize), document.Count(c.N), estimate(c.Median),
		}})
	}
	return finish(withoutEmpty(t, "image"))
}

// level prints 1 − α as "95 %".
func (b *builder) level() string { return percentWords(1 - b.f.Study.Alpha) }

func (b *builder) ratiosTable(s series, p pair) *document.Table {
	what := "A is " + p.named(p.a) + ", B is " + p.named(p.b)
	if p.control {
		what = "A/A pair: " + p.a + " and " + p.b + " are the same " + p.noun()
	}
	unit := "n"
	if p.ofImages() {
		unit = "boots"
		what += "; n counts boots, and of each boot the mean of the logs counts"
	}
	t := &document.Table{
		ID:    b.remember(ratiosKey(s, p), b.id("ratios", s.experiment, s.metric, p.a, p.b)),
		Title: fmt.Sprintf("Ratios %s / %s", p.a, p.b),
		Caption: fmt.Sprintf("%s: ratio A/B by Hodges and Lehmann with its %s interval from the rank-sum test (%s), exact or by the normal approximation (ties, 50 runs and more); p corrected by Holm over the family. %s. %s %s",
			capital(metricWords(s.metric)), b.level(), betterWords(s.metric), what, b.floorWords(s, p.factor), b.clock()),
		Columns: []document.Column{
			imageColumn, firewallColumn, rulesColumn, frameColumn,
			{Key: "n_a", Title: unit + " A"},
			{Key: "n_b", Title: unit + " B"},
			{Key: "ratio", Title: "ratio A/B [interval]"},
			{Key: "ratio_equivalence", Title: percentWords(1-2*b.f.Study.Alpha) + " interval"},
			{Key: "p_holm", Title: "p (Holm)"},
			{Key: "p_unadjusted", Title: "p (unadjusted)"},
			{Key: "family", Title: "family"},
			{Key: "test", Title: "test"},
			{Key: "verdict", Title: "A is"},
		},
	}
	for _, c := range b.comparisons(s, p) {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Image), document.Text(c.Firewall), document.Count(c.Rules), document.Count(c.FrameSize), document.Count(c.NA), document.Count(c.NB),
			estimate(c.Ratio), document.Range(estimate(c.Ratio90)), document.Probability(c.HolmP), document.Probability(c.P),
			document.Count(c.Family), document.Text(testWords(c.Exact)), verdict(c.Verdict, c.Minor),
		}})
	}
	return finish(withoutEmpty(withoutEmpty(t, "image"), "firewall"))
}

// testWords says which distribution p and the intervals come from.
func testWords(exact bool) string {
	if exact {
		return "exact"
	}
	return "normal"
}

// costs of a series.
func (b *builder) costs(s series) []analysis.RuleCost {
	var out []analysis.RuleCost
	for _, c := range b.f.RuleCosts {
		if c.Experiment == s.experiment && c.Metric == s.metric {
			out = append(out, c)
		}
	}
	return out
}

// costUnit prints slopes by the largest of them.
func costUnit(costs []analysis.RuleCost) document.Unit {
	largest := 0.0
	for _, c := range costs {
		largest = max(largest, c.Slope.Value, -c.Slope.Value)
	}
	u := document.ScaleUnit(costs[0].Unit, largest)
	u.Printed += " a rule"
	u.Name += " a rule"
	return u
}

// costWords says what a rule adds to.
func (b *builder) costWords(c analysis.RuleCost) string {
	what := "Time that a rule adds to what the " + metricWords(c.Metric) + " is made of"
	switch c.Metric {
	case "rtt_median":
		what = "Time that a rule adds to a round trip"
	case "receiver_frame_rate":
		what = "Time that a rule adds to a frame's stay in the firewall (1/frame rate)"
	}
	if c.Traversals > 1 {
		what += fmt.Sprintf(", in which the list is walked %d times", c.Traversals)
	}
	if b.f.Clock == "virtual" {
		what += "; a nanosecond is one instruction here, with no cache, branch prediction or contention, so this is not what a rule costs in time"
	}
	return what
}

func (b *builder) costTable(s series) *document.Table {
	costs := b.costs(s)
	if len(costs) == 0 {
		return nil
	}
	t := &document.Table{
		ID:      b.remember(costKey(s), b.id("cost", s.experiment, s.metric)),
		Title:   "Cost of a rule",
		Caption: fmt.Sprintf("%s; Theil–Sen slope and intercept, means over blocks, with %s intervals over blocks. %s", b.costWords(costs[0]), b.level(), b.clock()),
		Columns: []document.Column{
			imageColumn, firewallColumn, frameColumn,
			{Key: "slope", Title: "slope [interval]", Unit: costUnit(costs)},
			{Key: "intercept", Title: "at no rule [interval]", Unit: document.ScaleUnit(costs[0].Unit, costs[0].Intercept.Value)},
		},
	}
	for _, c := range costs {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Image), document.Text(c.Firewall), document.Count(c.FrameSize), estimate(c.Slope), estimate(c.Intercept),
		}})
	}
	return finish(withoutEmpty(t, "image"))
}

func (b *builder) costRatioTable(s series) *document.Table {
	t := &document.Table{
		Title:   "Cost of a rule, A against B",
		Caption: fmt.Sprintf("Ratio of the slopes with its %s interval over blocks. %s", b.level(), b.clock()),
		Columns: []document.Column{
			{Key: "a", Title: "A", Head: true}, {Key: "b", Title: "B", Head: true}, imageColumn, firewallColumn, frameColumn,
			{Key: "ratio", Title: "ratio of slopes [interval]"},
		},
	}
	for _, c := range b.f.CostRatios {
		if c.Experiment == s.experiment && c.Metric == s.metric {
			p := pair{factor: c.Factor}
			image, firewall := c.Image, c.Firewall
			switch {
			case p.ofImages():
				image = compared
			case image != "":
				firewall = compared
			}
			t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
				document.Text(p.named(c.A)), document.Text(p.named(c.B)), document.Text(image), document.Text(firewall), document.Count(c.FrameSize), ratio(c.Ratio),
			}})
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	t.ID = b.id("cost-ratios", s.experiment, s.metric)
	return finish(withoutEmpty(withoutEmpty(t, "image"), "firewall"))
}

// shortTable counts verdicts: the comparisons in a few lines.
func (b *builder) shortTable() *document.Table {
	t := &document.Table{
		Title: "Verdicts of all comparisons, A against B",
		Caption: fmt.Sprintf("A cell is one number of rules at one frame size; equivalent means that the %s interval of the ratio lies within ±%s; minor counts those of them whose difference is significant all the same. %s",
			percentWords(1-2*b.f.Study.Alpha), percentWords(b.f.Study.Margin), b.clock()),
		Columns: []document.Column{
			{Key: "experiment", Title: "experiment", Head: true},
			{Key: "metric", Title: "metric", Head: true},
			{Key: "a", Title: "A", Head: true}, {Key: "b", Title: "B", Head: true}, imageColumn,
			{Key: "cells", Title: "cells"},
			{Key: "slower", Title: "▲ slower"},
			{Key: "faster", Title: "▼ faster"},
			{Key: "equivalent", Title: "= equivalent"},
			{Key: "minor", Title: "≈ minor"},
			{Key: "inconclusive", Title: "○ inconclusive"},
			{Key: "noise_floor", Title: "noise floor"},
		},
	}
	for _, s := range b.seriesOf() {
		for _, control := range []bool{false, true} {
			for _, p := range b.pairs(s, control) {
				t.Rows = append(t.Rows, b.shortRows(s, p)...)
			}
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	t.ID = b.id("verdicts")
	return withoutEmpty(t, "image")
}

// shortRows are one for each image with which the pair was measured; one for a pair of images.
func (b *builder) shortRows(s series, p pair) (rows []document.Row) {
	var images []string
	byImage := map[string][]analysis.Comparison{}
	for _, c := range b.comparisons(s, p) {
		if byImage[c.Image] == nil {
			images = append(images, c.Image)
		}
		byImage[c.Image] = append(byImage[c.Image], c)
	}
	for _, image := range images {
		name := image
		if p.ofImages() {
			name = compared
		}
		rows = append(rows, b.shortRow(s, p, name, byImage[image]))
	}
	return rows
}

func (b *builder) shortRow(s series, p pair, image string, cells []analysis.Comparison) document.Row {
	n := map[string]int{}
	minor := 0
	for _, c := range cells {
		n[c.Verdict]++
		if c.Minor {
			minor++
		}
	}
	name := p.named(p.b)
	if p.control {
		name += " (A/A)"
	}
	floor := "none"
	if f, ok := b.floor(s, p.factor); ok && f.Cells > 0 {
		floor = ratioWords(f.Ratio)
	}
	return document.Row{Values: []document.Value{
		document.Text(s.experiment), document.Text(s.metric), document.Text(p.named(p.a)), document.Text(name), document.Text(image),
		document.Count(len(cells)), document.Count(n[analysis.Slower]), document.Count(n[analysis.Faster]),
		document.Count(n[analysis.Equivalent]), document.Count(minor), document.Count(n[analysis.Inconclusive]),
		document.Text(floor),
	}}
}
