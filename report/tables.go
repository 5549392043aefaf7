package report

import (
	"fmt"
	"slices"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/report/document"
)

// Keys under which figures find the table with their numbers.
func mediansKey(s series) string                  { return fmt.Sprintf("medians %q", s) }
func ratiosKey(s series, p [2]string) string      { return fmt.Sprintf("ratios %q %q", s, p) }
func costKey(s series) string                     { return fmt.Sprintf("cost %q", s) }
func (b *builder) data(key string) string         { return b.dataIDs[key] }
func (b *builder) remember(key, id string) string { b.dataIDs[key] = id; return id }

// tables are all numbers: claims, medians, ratios, costs.
func (b *builder) tables() []document.Block {
	b.dataIDs = map[string]string{}
	var out []document.Block
	if len(b.f.Claims) > 0 {
		out = append(out, b.claimsTable())
	}
	for _, s := range b.seriesOf() {
		out = append(out, document.Heading(fmt.Sprintf("%s: %s", s.experiment, metricWords(s.metric))), b.mediansTable(s))
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
		Caption: "Claims with their effects over the region: the mean ratio A/B of the metric. " + b.clock(),
		Columns: []document.Column{
			{Key: "claim", Title: "claim", Head: true},
			{Key: "experiment", Title: "experiment"},
			{Key: "metric", Title: "metric"},
			{Key: "a", Title: "A"},
			{Key: "b", Title: "B"},
			{Key: "region", Title: "region"},
			{Key: "expected", Title: "A expected"},
			{Key: "verdict", Title: "verdict"},
			{Key: "ratio", Title: "ratio A/B"},
			{Key: "noise_floor", Title: "noise floor"},
			{Key: "cells", Title: "cells"},
		},
	}
	for _, c := range b.f.Claims {
		where := region(c.Claim.Where)
		if where == "" {
			where = "everywhere"
		}
		var floor document.Value = document.Text("none")
		if c.Noise > 0 {
			floor = document.Text(ratioWords(c.Noise))
		}
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Claim.Name), document.Text(c.Claim.Experiment), document.Text(c.Metric),
			document.Text(c.Claim.Compare[0]), document.Text(c.Claim.Compare[1]), document.Text(where),
			document.Text(c.Claim.Expect), verdict(c.Verdict, false), estimate(c.Effect), floor, document.Count(c.Cells),
		}})
	}
	return finish(t)
}

func (b *builder) mediansTable(s series) *document.Table {
	t := &document.Table{
		ID: b.remember(mediansKey(s), b.id("medians", s.experiment, s.metric)),
		Caption: fmt.Sprintf("%s: median over runs with its %s interval from order statistics; n runs. %s",
			metricWords(s.metric), b.level(), b.clock()),
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
		ID: b.remember(ratiosKey(s, p), b.id("ratios", s.experiment, s.metric, p[0], p[1])),
		Caption: fmt.Sprintf("%s: ratio A/B by Hodges and Lehmann with its %s interval from the exact rank-sum test; p corrected by Holm over the family. %s. %s %s",
			metricWords(s.metric), b.level(), what, b.floorWords(s), b.clock()),
		Columns: []document.Column{
			rulesColumn, frameColumn,
			{Key: "n_a", Title: "n A"},
			{Key: "n_b", Title: "n B"},
			{Key: "ratio", Title: "ratio A/B [interval]"},
			{Key: "ratio_equivalence", Title: percentWords(1-2*b.f.Study.Alpha) + " interval"},
			{Key: "p_holm", Title: "p (Holm)"},
			{Key: "p_unadjusted", Title: "p (unadjusted)"},
			{Key: "family", Title: "family"},
			{Key: "verdict", Title: "A is"},
		},
	}
	for _, c := range b.comparisons(s, p, control) {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Count(c.Rules), document.Count(c.FrameSize), document.Count(c.NA), document.Count(c.NB),
			estimate(c.Ratio), document.Range(estimate(c.Ratio90)), document.Probability(c.HolmP), document.Probability(c.P),
			document.Count(c.Family), verdict(c.Verdict, c.Minor),
		}})
	}
	return finish(t)
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

func (b *builder) costTable(s series) *document.Table {
	costs := b.costs(s)
	if len(costs) == 0 {
		return nil
	}
	t := &document.Table{
		ID: b.remember(costKey(s), b.id("cost", s.experiment, s.metric)),
		Caption: fmt.Sprintf("Cost of a rule in %s: slope against the number of rules by Theil and Sen, with its %s bootstrap interval over blocks. %s",
			metricWords(s.metric), b.level(), b.clock()),
		Columns: []document.Column{
			{Key: "firewall", Title: "firewall", Head: true}, frameColumn,
			{Key: "slope", Title: "slope [interval]", Unit: costUnit(costs)},
			{Key: "intercept", Title: "at no rule", Unit: b.unit(s)},
		},
	}
	for _, c := range costs {
		t.Rows = append(t.Rows, document.Row{Notes: notes(c.Warnings), Values: []document.Value{
			document.Text(c.Firewall), document.Count(c.FrameSize), estimate(c.Slope), document.Number(c.Intercept),
		}})
	}
	return finish(t)
}

func (b *builder) costRatioTable(s series) *document.Table {
	t := &document.Table{
		Caption: fmt.Sprintf("Cost of a rule in %s, A against B: ratio of the slopes with its %s bootstrap interval over blocks. %s",
			metricWords(s.metric), b.level(), b.clock()),
		Columns: []document.Column{
			{Key: "a", Title: "A", Head: true}, {Key: "b", Title: "B", Head: true}, frameColumn,
			{Key: "ratio", Title: "ratio of slopes [interval]"},
		},
	}
	for _, c := range b.f.CostRatios {
		if c.Experiment == s.experiment && c.Metric == s.metric {
			t.Rows = append(t.Rows, document.Row{Values: []document.Value{
				document.Text(c.A), document.Text(c.B), document.Count(c.FrameSize), estimate(c.Ratio),
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
		Caption: fmt.Sprintf("Verdicts of all comparisons, by pair. A cell is one number of rules at one frame size; equivalent means that the %s interval of the ratio lies within ±%s; minor, that it is significant all the same. %s",
			percentWords(1-2*b.f.Study.Alpha), percentWords(b.f.Study.Margin), b.clock()),
		Columns: []document.Column{
			{Key: "experiment", Title: "experiment", Head: true},
			{Key: "metric", Title: "metric", Head: true},
			{Key: "a", Title: "A", Head: true}, {Key: "b", Title: "B", Head: true},
			{Key: "cells", Title: "cells"},
			{Key: "slower", Title: "▲ A slower"},
			{Key: "faster", Title: "▼ A faster"},
			{Key: "equivalent", Title: "= equivalent"},
			{Key: "minor", Title: "≈ of them minor"},
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
