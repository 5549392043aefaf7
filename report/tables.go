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
func ratiosKey(s series, p [2]string) string      { return fmt.Sprintf("ratios %q %q", s, p) }
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
				out = append(out, b.ratiosTable(s, p, control))
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

var (
	rulesColumn = document.Column{Key: "rules", Title: "rules", Head: true}
	frameColumn = document.Column{Key: "frame_size", Title: "frame size", Unit: document.Unit{Name: "bytes", Printed: "bytes"}, Head: true}
)

func (b *builder) claimsTable() *document.Table {
	t := &document.Table{
		ID:      b.remember("claims", b.id("claims")),
		Title:   "Claims and their effects",
		Caption: "The effect is the mean ratio A/B of the metric over the cells of the region, with its " + b.level() + " interval over blocks. " + b.clock(),
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
		where := region(c.Claim.Where)
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
			{Key: "firewall", Title: "firewall", Head: true}, rulesColumn, frameColumn,
			{Key: "n", Title: "n"},
			{Key: "median", Title: "median [interval]", Unit: b.unit(s)},
		},
	}
	for _, c := range b.cells(s) {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Firewall), document.Count(c.Rules), document.Count(c.FrameSize), document.Count(c.N), estimate(c.Median),
		}})
	}
	return finish(t)
}

// level prints 1 − α as "95 %".
func (b *builder) level() string { return percentWords(1 - b.f.Study.Alpha) }

func (b *builder) ratiosTable(s series, p [2]string, control bool) *document.Table {
	what := "A is " + p[0] + ", B is " + p[1]
	if control {
		what = "A/A pair: " + p[0] + " and " + p[1] + " are the same firewall"
	}
	t := &document.Table{
		ID:    b.remember(ratiosKey(s, p), b.id("ratios", s.experiment, s.metric, p[0], p[1])),
		Title: fmt.Sprintf("Ratios %s / %s", p[0], p[1]),
		Caption: fmt.Sprintf("%s: ratio A/B by Hodges and Lehmann with its %s interval from the rank-sum test (%s), exact or by the normal approximation (ties, 50 runs and more); p corrected by Holm over the family. %s. %s %s",
			capital(metricWords(s.metric)), b.level(), betterWords(s.metric), what, b.floorWords(s), b.clock()),
		Columns: []document.Column{
			rulesColumn, frameColumn,
			{Key: "n_a", Title: "n A"},
			{Key: "n_b", Title: "n B"},
			{Key: "ratio", Title: "ratio A/B [interval]"},
			{Key: "ratio_equivalence", Title: percentWords(1-2*b.f.Study.Alpha) + " interval"},
			{Key: "p_holm", Title: "p (Holm)"},
			{Key: "p_unadjusted", Title: "p (unadjusted)"},
			{Key: "family", Title: "family"},
			{Key: "test", Title: "test"},
			{Key: "verdict", Title: "A is"},
		},
	}
	for _, c := range b.comparisons(s, p, control) {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Count(c.Rules), document.Count(c.FrameSize), document.Count(c.NA), document.Count(c.NB),
			estimate(c.Ratio), document.Range(estimate(c.Ratio90)), document.Probability(c.HolmP), document.Probability(c.P),
			document.Count(c.Family), document.Text(testWords(c.Exact)), verdict(c.Verdict, c.Minor),
		}})
	}
	return finish(t)
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
			{Key: "firewall", Title: "firewall", Head: true}, frameColumn,
			{Key: "slope", Title: "slope [interval]", Unit: costUnit(costs)},
			{Key: "intercept", Title: "at no rule [interval]", Unit: document.ScaleUnit(costs[0].Unit, costs[0].Intercept.Value)},
		},
	}
	for _, c := range costs {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Firewall), document.Count(c.FrameSize), estimate(c.Slope), estimate(c.Intercept),
		}})
	}
	return finish(t)
}

func (b *builder) costRatioTable(s series) *document.Table {
	t := &document.Table{
		Title:   "Cost of a rule, A against B",
		Caption: fmt.Sprintf("Ratio of the slopes with its %s interval over blocks. %s", b.level(), b.clock()),
		Columns: []document.Column{
			{Key: "a", Title: "A", Head: true}, {Key: "b", Title: "B", Head: true}, frameColumn,
			{Key: "ratio", Title: "ratio of slopes [interval]"},
		},
	}
	for _, c := range b.f.CostRatios {
		if c.Experiment == s.experiment && c.Metric == s.metric {
			t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
				document.Text(c.A), document.Text(c.B), document.Count(c.FrameSize), ratio(c.Ratio),
			}})
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	t.ID = b.id("cost-ratios", s.experiment, s.metric)
	return finish(t)
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
			{Key: "a", Title: "A", Head: true}, {Key: "b", Title: "B", Head: true},
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
				t.Rows = append(t.Rows, b.shortRow(s, p, control))
			}
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	t.ID = b.id("verdicts")
	return t
}

func (b *builder) shortRow(s series, p [2]string, control bool) document.Row {
	n := map[string]int{}
	minor := 0
	cells := b.comparisons(s, p, control)
	for _, c := range cells {
		n[c.Verdict]++
		if c.Minor {
			minor++
		}
	}
	name := p[1]
	if control {
		name += " (A/A)"
	}
	floor := "none"
	if f, ok := b.floor(s); ok && f.Cells > 0 {
		floor = ratioWords(f.Ratio)
	}
	return document.Row{Values: []document.Value{
		document.Text(s.experiment), document.Text(s.metric), document.Text(p[0]), document.Text(name),
		document.Count(len(cells)), document.Count(n[analysis.Slower]), document.Count(n[analysis.Faster]),
		document.Count(n[analysis.Equivalent]), document.Count(minor), document.Count(n[analysis.Inconclusive]),
		document.Text(floor),
	}}
}
