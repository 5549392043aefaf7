package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/report/document"
)

// longTable is the number of rows beyond which a table is folded away.
const longTable = 16

// build says everything once. The order is that of a reader with one minute, who stops anywhere.
func build(in Input, spec Spec) *document.Document {
	in.Findings.Clock = cmp.Or(in.Findings.Clock, in.Manifest.Clock) // without a record there is only what was planned
	b := &builder{in: in, f: in.Findings, ids: map[string]bool{}}
	doc := &document.Document{
		Title:  cmp.Or(spec.Title, b.f.Study.Title, "Firewall measurement"),
		Lede:   b.lede(),
		Claims: claims(b.f),
	}
	tables := b.tables()
	doc.Sections = []document.Section{
		{ID: "results", Title: "Results", Blocks: b.questions()},
		{ID: "tables", Title: "Tables", Blocks: tables},
		{ID: "runs", Title: "Runs that do not count, and checks", Blocks: b.runs()},
		{ID: "method", Title: "Method", Blocks: b.method()},
		{ID: "environment", Title: "Environment", Blocks: b.environment()},
		{ID: "threats", Title: "Threats to validity", Blocks: b.threats()},
		{ID: "reproduce", Title: "How to reproduce", Blocks: b.reproduce()},
		{ID: "cite", Title: "How to cite", Blocks: b.cite(doc.Title)},
	}
	for _, w := range b.f.Warnings {
		doc.Notes = append(doc.Notes, document.Note{Text: w.Text, Next: w.Next})
	}
	return doc
}

// builder carries what every part needs.
type builder struct {
	in  Input
	f   analysis.Findings
	ids map[string]bool // taken

	// dataIDs remembers which table holds the numbers of a figure.
	dataIDs map[string]string
}

// id makes a file name that is not taken.
func (b *builder) id(words ...string) string {
	base := cmp.Or(slug(words...), "item")
	id := base
	for n := 2; b.ids[id]; n++ {
		id = base + "-" + strconv.Itoa(n)
	}
	b.ids[id] = true
	return id
}

func (b *builder) clock() string { return "Clock: " + clockWords(b.f.Clock) + "." }

// A series is one metric of one experiment.
type series struct{ experiment, metric string }

// seriesOf lists the metrics in the order of the findings.
func (b *builder) seriesOf() []series {
	var out []series
	for _, c := range b.f.Cells {
		if s := (series{c.Experiment, c.Metric}); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// primary is the metric of an experiment that the figures show: the one that answers its question,
// else the first there is. It is empty when no run has any.
func (b *builder) primary(e analysis.Experiment) string {
	first := ""
	for _, s := range b.seriesOf() {
		if s.experiment != e.Name {
			continue
		}
		if s.metric == analysis.PrimaryMetric(e.Measurement) {
			return s.metric
		}
		first = cmp.Or(first, s.metric)
	}
	return first
}

// cells of a series, in the order of the findings.
func (b *builder) cells(s series) []analysis.Cell {
	var out []analysis.Cell
	for _, c := range b.f.Cells {
		if c.Experiment == s.experiment && c.Metric == s.metric {
			out = append(out, c)
		}
	}
	return out
}

// unit is how the values of a series are printed: by the size of the smaller ones.
func (b *builder) unit(s series) document.Unit {
	var values []float64
	name := ""
	for _, c := range b.cells(s) {
		values, name = append(values, math.Abs(c.Median.Value)), c.Unit
	}
	if len(values) == 0 {
		return document.Unit{}
	}
	slices.Sort(values)
	return document.ScaleUnit(name, values[len(values)/4])
}

// floor is the noise floor that the levels of a factor are held against: images without an A/A pair of their
// own against that of the firewalls.
func (b *builder) floor(s series, factor string) (floor analysis.NoiseFloor, found bool) {
	for _, n := range b.f.NoiseFloors {
		if n.Experiment == s.experiment && n.Metric == s.metric && (n.Factor == "" || n.Factor == factor) {
			floor, found = n, true
		}
	}
	return floor, found
}

// floorWords says what the noise floor of a series is.
func (b *builder) floorWords(s series, factor string) string {
	n, ok := b.floor(s, factor)
	switch {
	case !ok || n.Cells == 0:
		return "No A/A pair was measured, so there is no noise floor."
	case n.Factor != factor:
		return fmt.Sprintf("A/A noise floor, of firewalls as no image was measured under two names: a ratio of %s (%s).", ratioWords(n.Ratio), plural(n.Cells, "cell"))
	}
	return fmt.Sprintf("A/A noise floor: a ratio of %s (%s).", ratioWords(n.Ratio), plural(n.Cells, "cell"))
}

func ratioWords(r float64) string { return strconv.FormatFloat(r, 'f', 4, 64) }

// A pair is two levels of one factor that were compared.
type pair struct {
	factor  string // empty: firewall
	a, b    string
	control bool // an A/A pair
}

func pairOf(c analysis.Comparison) pair { return pair{c.Factor, c.A, c.B, c.Control} }

func (p pair) ofImages() bool { return p.factor == analysis.FactorImage }

// noun is what the pair is of.
func (p pair) noun() string { return cmp.Or(p.factor, "firewall") }

// named is a level of the pair's factor, with the factor where that is not the usual one.
func (p pair) named(level string) string {
	if p.ofImages() {
		return "image " + level
	}
	return level
}

// pairs lists what was compared in a series, A/A pairs apart.
func (b *builder) pairs(s series, control bool) []pair {
	var out []pair
	for _, c := range b.f.Comparisons {
		if c.Experiment == s.experiment && c.Metric == s.metric && c.Control == control && !slices.Contains(out, pairOf(c)) {
			out = append(out, pairOf(c))
		}
	}
	return out
}

func (b *builder) comparisons(s series, p pair) []analysis.Comparison {
	var out []analysis.Comparison
	for _, c := range b.f.Comparisons {
		if c.Experiment == s.experiment && c.Metric == s.metric && pairOf(c) == p {
			out = append(out, c)
		}
	}
	return out
}

// imagesOf are the levels of image; one that is empty where it is no factor.
func imagesOf(e analysis.Experiment) []string {
	if len(e.Images) == 0 {
		return []string{""}
	}
	var names []string
	for _, image := range e.Images {
		names = append(names, image.Name)
	}
	return names
}

// withImage puts the name of an image, where there is one, before words.
func withImage(image, words string) string {
	if image == "" {
		return words
	}
	return image + ", " + words
}

// lede is the study in two sentences.
func (b *builder) lede() []string {
	planned, ok, treatments := 0, 0, 0
	for _, r := range b.f.Runs {
		planned, ok = planned+r.Planned, ok+r.OK
	}
	for _, e := range b.f.Study.Experiments {
		treatments += treatmentsOf(e)
	}
	counted := fmt.Sprintf("All %s are in the statistics.", plural(planned, "planned run"))
	if ok < planned {
		counted = fmt.Sprintf("%s of %s are in the statistics; the others are counted and named below.",
			document.Print(document.Count(ok), document.Unit{}), plural(planned, "planned run"))
	}
	return []string{
		fmt.Sprintf("%s, %s. %s", plural(len(b.f.Study.Experiments), "experiment"), plural(treatments, "treatment"), counted),
		b.clock(),
	}
}

func treatmentsOf(e analysis.Experiment) int {
	n := 0
	for _, fw := range e.Firewalls { // of one image
		if fw.Rules {
			n += len(e.Rules) * len(e.FrameSizes)
		} else {
			n += len(e.FrameSizes)
		}
	}
	return n * len(imagesOf(e))
}

// claims are the verdicts, in the order of the study.
func claims(f analysis.Findings) []document.Claim {
	var out []document.Claim
	for _, c := range f.Claims {
		out = append(out, document.Claim{
			Name:      c.Claim.Name,
			Statement: c.Claim.Statement,
			Region:    region(c.Claim),
			Verdict:   verdict(c.Verdict, false),
			Sentence:  effectWords(c),
			Notes:     notes(c.Warnings),
		})
	}
	return out
}
