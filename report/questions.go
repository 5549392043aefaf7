package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report/document"
	"github.com/rampart-bench/rampart/report/figure"
)

// questions are one figure each, after a table that counts the verdicts.
func (b *builder) questions() []document.Block {
	var out []document.Block
	if t := b.shortTable(); t != nil {
		out = append(out, t)
	}
	if f := b.claimsFigure(); f != nil {
		out = append(out, f)
	}
	for _, e := range b.f.Study.Experiments {
		s := series{e.Name, b.primary(e)}
		if s.metric == "" {
			continue
		}
		out = append(out, document.Heading(e.Name))
		if b.allZero(s) {
			out = append(out, document.Paragraph(fmt.Sprintf("Every %s was 0: there is nothing to draw.", metricWords(s.metric))))
			continue
		}
		out = append(out, b.valuesFigure(e, s))
		for _, factor := range []string{"", analysis.FactorImage} {
			if f := b.heatFigure(e, s, factor); f != nil {
				out = append(out, f)
			}
		}
		if f := b.controlFigure(s); f != nil {
			out = append(out, f)
		}
		if f := b.costFigure(e); f != nil {
			out = append(out, f)
		}
	}
	return out
}

// offered reminds of RFC 2285 where a rate was measured.
func offered(e analysis.Experiment) string {
	if isRate(e.Measurement) {
		return " Forwarding rate at offered load (RFC 2285), not the throughput of RFC 2544."
	}
	return ""
}

func frameTitle(size int) string { return fmt.Sprintf("%d-byte frames", size) }

// twins are the second names of A/A pairs, which figures leave out: they would lie on the first.
func twins(e analysis.Experiment) []string {
	var out []string
	for _, p := range e.Controls {
		out = append(out, p[1])
	}
	return out
}

// shown lists the firewalls with rules that figures show, and those without.
func shown(e analysis.Experiment) (ruled, flat []string) {
	skip := twins(e)
	for _, fw := range e.Firewalls {
		switch {
		case slices.Contains(skip, fw.Name):
		case fw.Rules:
			ruled = append(ruled, fw.Name)
		default:
			flat = append(flat, fw.Name)
		}
	}
	return ruled, flat
}

// looks is how many firewalls can be drawn so that each looks otherwise.
const looks = 8

// look is how a firewall of an experiment is drawn: in every figure of the report alike, in whatever order the
// experiments name it. Where the whole study has too many for that, each experiment starts anew.
func (b *builder) look(e analysis.Experiment, name string) document.Style {
	ruled, flat := shown(e)
	var allRuled, allFlat []string
	for _, other := range b.f.Study.Experiments {
		r, f := shown(other)
		allRuled, allFlat = union(allRuled, r), union(allFlat, f)
	}
	if len(allRuled) <= looks && len(allFlat) <= looks {
		ruled, flat = allRuled, allFlat
	}
	if i := slices.Index(ruled, name); i >= 0 {
		return document.Style{Kind: document.Series, Index: i}
	}
	return document.Style{Kind: document.Reference, Index: slices.Index(flat, name)}
}

// union appends to a list what it lacks of another.
func union(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// valuesFigure shows the medians: against the number of rules, or beside each other in a study whose
// firewalls have none.
func (b *builder) valuesFigure(e analysis.Experiment, s series) *document.Figure {
	if ruled, _ := shown(e); len(ruled) == 0 {
		return b.levelsFigure(e, s)
	}
	return b.linesFigure(e, s)
}

func (b *builder) levelsFigure(e analysis.Experiment, s series) *document.Figure {
	unit := b.unit(s)
	_, flat := shown(e)
	f := &document.Figure{
		ID:    b.id("values", s.experiment, s.metric),
		Title: fmt.Sprintf("What is the %s of each firewall?", axisWords(s.metric)),
		Data:  b.data(mediansKey(s)),
		Caption: fmt.Sprintf("%s in %s (%s), one panel a frame size. Bars are medians over runs, whiskers their %s intervals.%s %s",
			capital(metricWords(s.metric)), unit.Printed, betterWords(s.metric), b.level(), offered(e), b.clock()),
		Alt: fmt.Sprintf("Bars of the %s of %s, one panel a frame size.", metricWords(s.metric), enumerate(flat)),
	}
	panels := map[int][]document.Bar{}
	for _, name := range flat {
		for _, c := range b.cells(s) {
			if c.Firewall == name {
				style := document.Style{Kind: document.Series, Index: b.look(e, name).Index}
				panels[c.FrameSize] = append(panels[c.FrameSize], document.Bar{Label: withImage(c.Image, name), Style: style, Value: estimate(c.Median).In(unit)})
			}
		}
	}
	f.Panels = barPanels(e, panels, axisWords(s.metric)+", "+unit.Printed, 0, 0)
	return f
}

// barPanels makes a panel of every frame size that has bars.
func barPanels(e analysis.Experiment, bars map[int][]document.Bar, label string, lo, hi float64) []document.Panel {
	var out []document.Panel
	for _, size := range e.FrameSizes {
		rows := bars[size]
		if len(rows) == 0 {
			continue
		}
		alt := label + ". "
		for _, r := range rows {
			alt += r.Label + ": " + r.Value.String() + ". "
		}
		out = append(out, document.Panel{Title: frameTitle(size), Alt: alt,
			Plot: document.Bars{X: document.Axis{Label: label, Lo: lo, Hi: hi}, Rows: rows}})
	}
	return out
}

func (b *builder) linesFigure(e analysis.Experiment, s series) *document.Figure {
	unit := b.unit(s)
	ruled, flat := shown(e)
	f := &document.Figure{
		ID:    b.id("rules", s.experiment, s.metric),
		Title: fmt.Sprintf("How does the %s change with the number of rules?", axisWords(s.metric)),
		Data:  b.data(mediansKey(s)),
		Caption: fmt.Sprintf("%s in %s (%s) against the number of rules, one panel %s, both axes logarithmic. Points are medians over runs, bands their %s intervals.%s %s",
			capital(metricWords(s.metric)), unit.Printed, betterWords(s.metric), panelsOf(e), b.level(), offered(e), b.clock()),
		Alt: fmt.Sprintf("Line charts of %s against the number of rules for %s, one for each of %s.",
			metricWords(s.metric), enumerate(append(slices.Clone(ruled), flat...)), plural(len(e.FrameSizes), "frame size")),
	}
	if t := twins(e); len(t) > 0 {
		f.Caption += " Left out, as it is another under a second name: " + enumerate(t) + "."
	}
	for _, name := range ruled {
		f.Legend = append(f.Legend, document.Key{Name: name, Style: b.look(e, name)})
	}
	for _, name := range flat {
		f.Legend = append(f.Legend, document.Key{Name: name + " (no rules)", Style: b.look(e, name)})
	}
	at := map[record.Treatment]document.Estimate{}
	extents := map[int]extent{}
	for _, c := range b.cells(s) {
		est := estimate(c.Median).In(unit)
		at[record.Treatment{Image: c.Image, Firewall: c.Firewall, Rules: c.Rules, FrameSize: c.FrameSize}] = est
		extents[c.FrameSize] = extents[c.FrameSize].with(est)
	}
	whole, same := shared(extents)
	if !same {
		f.Caption += " The vertical axes differ, as values depend on the frame size more than on anything else."
	}
	for _, size := range e.FrameSizes {
		y := document.Axis{Label: axisWords(s.metric) + ", " + unit.Printed, Lo: whole.lo, Hi: whole.hi}
		if !same {
			y.Lo, y.Hi = extents[size].lo, extents[size].hi
		}
		for _, image := range imagesOf(e) { // those of one frame size beside each other
			f.Panels = append(f.Panels, b.linesPanel(e, image, size, ruled, flat, at, y))
		}
	}
	return f
}

// An extent is a range of positive numbers; zero is that of none.
type extent struct{ lo, hi float64 }

func (x extent) with(e document.Estimate) extent {
	if bottom(e) <= 0 {
		return x
	}
	if x.hi == 0 {
		return extent{bottom(e), top(e)}
	}
	return extent{min(x.lo, bottom(e)), max(x.hi, top(e))}
}

// shared is the range of all panels, and whether they should have it in common: not where it would
// flatten every one of them.
func shared(extents map[int]extent) (whole extent, same bool) {
	widest := 0.0
	for _, x := range extents {
		if x.hi == 0 {
			continue
		}
		widest = max(widest, math.Log(x.hi/x.lo))
		if whole.hi == 0 {
			whole = x
		}
		whole = extent{min(whole.lo, x.lo), max(whole.hi, x.hi)}
	}
	return whole, whole.hi == 0 || math.Log(whole.hi/whole.lo) <= 1.6*widest
}

func bottom(e document.Estimate) float64 {
	if e.Level > 0 {
		return e.Lo
	}
	return e.Value
}

func top(e document.Estimate) float64 {
	if e.Level > 0 {
		return e.Hi
	}
	return e.Value
}

// panelsOf says what has a panel of its own.
func panelsOf(e analysis.Experiment) string {
	if len(e.Images) > 0 {
		return "a frame size and image"
	}
	return "a frame size"
}

func (b *builder) linesPanel(e analysis.Experiment, image string, size int, ruled, flat []string, at map[record.Treatment]document.Estimate, y document.Axis) document.Panel {
	d := document.Lines{X: document.Axis{Label: "rules"}, Y: y}
	for _, r := range e.Rules {
		d.X.Levels = append(d.X.Levels, float64(r))
	}
	alt := ""
	for _, name := range ruled {
		line := document.Line{Name: name, Style: b.look(e, name)}
		for _, r := range e.Rules {
			if est, ok := at[record.Treatment{Image: image, Firewall: name, Rules: r, FrameSize: size}]; ok {
				line.Points = append(line.Points, document.Point{X: float64(r), Y: est})
			}
		}
		if n := len(line.Points); n > 0 {
			first, last := line.Points[0], line.Points[n-1]
			alt += fmt.Sprintf("%s: %s at %g rules, %s at %g. ", name, first.Y.Short(), first.X, last.Y.Short(), last.X)
			d.Series = append(d.Series, line)
		}
	}
	for _, name := range flat {
		if est, ok := at[record.Treatment{Image: image, Firewall: name, FrameSize: size}]; ok {
			d.Levels = append(d.Levels, document.Level{Name: name, Style: b.look(e, name), Y: est})
			alt += fmt.Sprintf("%s: %s. ", name, est.Short())
		}
	}
	return document.Panel{Title: withImage(image, frameTitle(size)), Plot: d, Alt: y.Label + ". " + alt}
}

// marksLegend explains the marks of verdicts, those that occur only.
func marksLegend(seen map[document.Verdict]bool, a string) []document.Key {
	words := map[document.Verdict]string{
		document.Slower: a + " slower", document.Faster: a + " faster",
		document.Equivalent: "equivalent", document.EquivalentMinor: "equivalent, difference significant but minor",
		document.Inconclusive: "inconclusive", document.Agrees: "claim agrees", document.Disagrees: "claim disagrees",
	}
	var out []document.Key
	for v := document.Equivalent; v <= document.Disagrees; v++ {
		if seen[v] {
			out = append(out, document.Key{Name: words[v], Style: document.Style{Kind: document.Mark, Index: int(v)}})
		}
	}
	return out
}

// heatFigure has a panel for each pair of levels of a factor at each level of the other, all of one scale of
// colours.
func (b *builder) heatFigure(e analysis.Experiment, s series, factor string) *document.Figure {
	f := &document.Figure{
		Title: fmt.Sprintf("Where does the first %s of a pair differ from the second, and by how much?", pair{factor: factor}.noun()),
		Caption: fmt.Sprintf("Difference in %s, in percent (%s), for A against B. Orange: A is worse; blue: A is better. The mark is the verdict after Holm's correction over the family. %s%s %s",
			metricWords(s.metric), betterWords(s.metric), b.floorWords(s, factor), offered(e), b.clock()),
	}
	seen := map[document.Verdict]bool{}
	// So that noise does not look like a finding, the deepest colour is never below 10 %.
	limit := math.Log(1.1)
	for _, p := range b.pairs(s, false) {
		if p.factor != factor {
			continue
		}
		for _, part := range b.heatParts(e, s, p) {
			panel := heatPanel(e, s, p, part, seen)
			limit = max(limit, panel.Plot.(document.HeatMap).Limit)
			f.Panels = append(f.Panels, panel)
			f.Alt += panel.Alt
		}
		f.Data = append(f.Data, b.data(ratiosKey(s, p))...)
	}
	if len(f.Panels) == 0 {
		return nil
	}
	for i := range f.Panels {
		d := f.Panels[i].Plot.(document.HeatMap)
		d.Limit = limit
		f.Panels[i].Plot = d
	}
	f.Legend = marksLegend(seen, "A")
	if factor == analysis.FactorImage {
		f.ID = b.id("heat", "images", s.experiment, s.metric)
	} else {
		f.ID = b.id("heat", s.experiment, s.metric)
	}
	return f
}

// A heatPart is what one panel of a pair shows: the cells at one level of the other factor.
type heatPart struct {
	level string
	cells []analysis.Comparison
}

// heatParts splits the comparisons of a pair. The second name of an A/A pair of firewalls is left out.
func (b *builder) heatParts(e analysis.Experiment, s series, p pair) (parts []heatPart) {
	skip := twins(e)
	for _, c := range b.comparisons(s, p) {
		level := c.Image
		if p.ofImages() {
			level = c.Firewall
		}
		i := slices.IndexFunc(parts, func(part heatPart) bool { return part.level == level })
		switch {
		case p.ofImages() && slices.Contains(skip, level):
		case i < 0:
			parts = append(parts, heatPart{level, []analysis.Comparison{c}})
		default:
			parts[i].cells = append(parts[i].cells, c)
		}
	}
	return parts
}

func heatPanel(e analysis.Experiment, s series, p pair, part heatPart, seen map[document.Verdict]bool) document.Panel {
	worse := 1.0
	if m, _ := analysis.LookupMetric(s.metric); m.HigherIsBetter {
		worse = -1
	}
	var levels []int
	for _, c := range part.cells {
		if !slices.Contains(levels, c.Rules) {
			levels = append(levels, c.Rules)
		}
	}
	slices.Sort(levels)
	d := document.HeatMap{X: "frame size, bytes", Y: "rules"}
	for _, size := range e.FrameSizes {
		d.Columns = append(d.Columns, strconv.Itoa(size))
	}
	for _, r := range levels {
		d.Rows = append(d.Rows, strconv.Itoa(r))
	}
	d.Cells = make([]document.HeatCell, len(d.Rows)*len(d.Columns))
	count := map[document.Verdict]int{}
	for _, c := range part.cells {
		row, col := slices.Index(levels, c.Rules), slices.Index(e.FrameSizes, c.FrameSize)
		if col < 0 || c.Ratio.Value <= 0 {
			continue
		}
		v := verdict(c.Verdict, c.Minor)
		shade := worse * math.Log(c.Ratio.Value)
		d.Cells[row*len(d.Columns)+col] = document.HeatCell{Text: document.ShortPercent(estimate(c.Ratio)), Shade: shade, Verdict: v}
		d.Limit = max(d.Limit, math.Abs(shade))
		seen[v] = true
		count[v]++
	}
	var words []string
	for v := document.Equivalent; v <= document.Inconclusive; v++ {
		if count[v] > 0 {
			words = append(words, fmt.Sprintf("%s in %s", v, plural(count[v], "cell")))
		}
	}
	return document.Panel{
		Title: withImage(part.level, "A "+p.a+", B "+p.b),
		Alt:   withImage(part.level, fmt.Sprintf("A is %s, B is %s. A is %s. ", p.a, p.b, enumerate(words))),
		Plot:  d,
	}
}

func (b *builder) controlFigure(s series) *document.Figure {
	pairs := b.pairs(s, true)
	if len(pairs) == 0 {
		return nil
	}
	f := &document.Figure{
		ID:    b.id("control", s.experiment, s.metric),
		Title: "What does the method call a difference where there is none?",
		Caption: fmt.Sprintf("The A/A pair: one firewall under two names, every cell compared as all others are; ratio of %s with its %s interval, sorted. Dashed: the noise floor, below which 95 %% of the cells lie, whichever way they differ. %s %s",
			metricWords(s.metric), b.level(), b.floorWords(s, pairs[0].factor), b.clock()),
		Alt: fmt.Sprintf("Ratios of the A/A cells around 1. %s", b.floorWords(s, pairs[0].factor)),
	}
	f.Legend = []document.Key{{Name: "not called different", Style: document.Style{Kind: document.Plain}}}
	seen := map[document.Verdict]bool{}
	for _, p := range pairs {
		f.Data = append(f.Data, b.data(ratiosKey(s, p))...)
		floor, _ := b.floor(s, p.factor)
		d := document.Dots{X: document.Axis{Label: "ratio"}, Middle: 1, Floor: floor.Ratio, Margin: b.f.Study.Margin, Compact: true}
		cells := b.comparisons(s, p)
		slices.SortStableFunc(cells, func(x, y analysis.Comparison) int { return compare(x.Ratio.Value, y.Ratio.Value) })
		for _, c := range cells {
			v := verdict(c.Verdict, false)
			seen[v] = v == document.Slower || v == document.Faster
			d.Rows = append(d.Rows, document.Dot{Label: withImage(c.Image+c.Firewall, fmt.Sprintf("%d rules, %d bytes", c.Rules, c.FrameSize)), Value: estimate(c.Ratio), Verdict: v})
		}
		f.Panels = append(f.Panels, document.Panel{Title: p.named(p.a) + " against itself", Alt: f.Alt, Plot: d})
	}
	f.Legend = append(append(f.Legend, marksLegend(seen, "first name")...),
		document.Key{Name: "noise floor", Style: document.Style{Kind: document.Band}},
		document.Key{Name: "margin of equivalence, ±" + percentWords(b.f.Study.Margin), Style: document.Style{Kind: document.Margin}})
	return f
}

func compare(x, y float64) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// costFigure shows the slopes, whichever metric they were read off.
func (b *builder) costFigure(e analysis.Experiment) *document.Figure {
	var costs []analysis.RuleCost
	for _, s := range b.seriesOf() {
		if s.experiment == e.Name && len(costs) == 0 {
			costs = b.costs(s)
		}
	}
	if len(costs) == 0 {
		return nil
	}
	s := series{e.Name, costs[0].Metric}
	unit := costUnit(costs)
	ruled, _ := shown(e)
	var all []document.Bar
	panels := map[int][]document.Bar{}
	for _, name := range ruled {
		for _, c := range costs {
			if c.Firewall != name {
				continue
			}
			bar := document.Bar{Label: withImage(c.Image, name), Style: b.look(e, name), Value: estimate(c.Slope).In(unit)}
			panels[c.FrameSize] = append(panels[c.FrameSize], bar)
			all = append(all, bar)
		}
	}
	lo, hi := figure.BarsExtent(all)
	return &document.Figure{
		ID:    b.id("rule-cost", s.experiment, s.metric),
		Title: "What does one rule cost?",
		Data:  b.data(costKey(s)),
		Caption: fmt.Sprintf("%s; Theil–Sen slope, mean over blocks, in %s, one panel a frame size; whiskers are %s intervals over blocks. %s",
			b.costWords(costs[0]), unit.Printed, b.level(), b.clock()),
		Alt:    "Bars of the cost of one rule for " + enumerate(ruled) + ", one panel a frame size.",
		Panels: barPanels(e, panels, unit.Printed, lo, hi),
	}
}

// claimsFigure shows the effects of all claims beside each other, one panel a metric.
func (b *builder) claimsFigure() *document.Figure {
	f := &document.Figure{
		ID:    b.id("effects"),
		Title: "How large are the effects behind the claims?",
		Data:  b.data("claims"),
		Caption: fmt.Sprintf("Mean ratio A/B of each claim's metric over its region with its %s interval over blocks%s; a ratio of 1 is no difference. Shaded: the margin of equivalence, ±%s. %s",
			b.level(), b.orBoots(), percentWords(b.f.Study.Margin), b.clock()),
	}
	type place struct {
		series
		factor string
	}
	index := map[place]int{}
	seen := map[document.Verdict]bool{}
	for _, c := range b.f.Claims {
		if c.Effect.Value <= 0 {
			continue
		}
		s := series{c.Claim.Experiment, c.Metric}
		key := place{s, c.Claim.Factor}
		i, ok := index[key]
		if !ok {
			i = len(f.Panels)
			index[key] = i
			floor, _ := b.floor(s, c.Claim.Factor)
			f.Panels = append(f.Panels, document.Panel{
				Title: s.experiment + inImages(c.Claim.Factor) + " (" + betterWords(s.metric) + ")",
				Plot:  document.Dots{X: document.Axis{Label: "ratio A/B, " + axisWords(s.metric)}, Middle: 1, Margin: b.f.Study.Margin, Floor: floor.Ratio},
			})
		}
		d := f.Panels[i].Plot.(document.Dots)
		v := verdict(c.Verdict, false)
		seen[v] = true
		d.Rows = append(d.Rows, document.Dot{Label: c.Claim.Name, Value: estimate(c.Effect), Verdict: v})
		f.Panels[i].Plot = d
		f.Panels[i].Alt += fmt.Sprintf("%s: %s, %s. ", c.Claim.Name, estimate(c.Effect), v)
	}
	if len(f.Panels) == 0 {
		return nil
	}
	for _, p := range f.Panels {
		f.Alt += p.Title + ": " + p.Alt
	}
	f.Legend = append(marksLegend(seen, "A"),
		document.Key{Name: "noise floor", Style: document.Style{Kind: document.Band}},
		document.Key{Name: "margin of equivalence", Style: document.Style{Kind: document.Margin}})
	return f
}

// inImages tells claims on images from those on firewalls.
func inImages(factor string) string {
	if factor == analysis.FactorImage {
		return ", between images"
	}
	return ""
}

// capital makes the first letter of a sentence large.
func capital(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
