package report

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report/document"
)

// A Folder is the input of one results folder under a name that tells it from the others.
type Folder struct {
	Name string
	Input
}

// RenderSeveral writes one report on several results folders: the same claims by each of them side by
// side. Nothing is pooled, since records of different clocks, machines or days are answers to different
// questions. It returns the paths of what it wrote, as [Render] does; there is no findings.json.
func RenderSeveral(dir string, folders []Folder, spec Spec) ([]string, error) {
	files, err := filesOfSeveral(folders, spec)
	if err != nil {
		return nil, err
	}
	return write(dir, files)
}

func filesOfSeveral(folders []Folder, spec Spec) ([]file, error) {
	if len(folders) < 2 {
		return nil, errors.New("render report: name at least two results folders to set side by side")
	}
	folders = slices.Clone(folders)
	seen := map[string]bool{}
	for i, f := range folders {
		folders[i].Findings.Clock = cmp.Or(f.Findings.Clock, f.Manifest.Clock)
		if seen[f.Name] {
			return nil, fmt.Errorf("render report: two results folders are called %q: give them different names", f.Name)
		}
		seen[f.Name] = true
	}
	formats, err := formatsOf(spec)
	if err != nil {
		return nil, err
	}
	doc := buildSeveral(folders, spec)
	doc.Beside = others(formats)
	out, err := formatted(doc, formats)
	if err != nil {
		return nil, err
	}
	return beside(out, doc)
}

// A sharing is a claim with the results on it, one a folder; nil where the folder's study does not make it.
type sharing struct {
	claim   analysis.Claim
	results []*analysis.ClaimResult
}

// share collects the claims that are the same but for their wording: name, experiment, metric, pair,
// region and expectation.
func share(folders []Folder) []sharing {
	var out []sharing
	for i, f := range folders {
		for j := range f.Findings.Claims {
			r := &f.Findings.Claims[j]
			at := slices.IndexFunc(out, func(s sharing) bool { return sameClaim(s.claim, r.Claim) })
			if at < 0 {
				at = len(out)
				out = append(out, sharing{r.Claim, make([]*analysis.ClaimResult, len(folders))})
			}
			out[at].results[i] = r
		}
	}
	return out
}

func sameClaim(a, b analysis.Claim) bool {
	a.Statement, b.Statement = "", ""
	return reflect.DeepEqual(a, b)
}

// several carries what the parts of the document need.
type several struct {
	folders []Folder
	shared  []sharing
	doc     *document.Document
	names   *builder // for the names of files
	offset  []int    // of each folder's footnotes in the document
}

func buildSeveral(folders []Folder, spec Spec) *document.Document {
	s := &several{folders: folders, shared: share(folders), names: &builder{ids: map[string]bool{}}, doc: &document.Document{}}
	for _, f := range folders {
		s.offset = append(s.offset, len(s.doc.Notes))
		for _, w := range f.Findings.Warnings {
			s.doc.Notes = append(s.doc.Notes, document.Note{Text: f.Name + ": " + w.Text, Next: w.Next})
		}
	}
	s.doc.Title = cmp.Or(spec.Title, folders[0].Findings.Study.Title, "Firewall measurement")
	s.doc.Lede = []string{fmt.Sprintf("%d studies side by side: %s. Nothing is pooled: each number is that of one of them.", len(folders), enumerate(s.folderNames()))}
	s.doc.Claims = s.claims()
	table := s.effects()
	s.doc.Sections = []document.Section{
		{ID: "results", Title: "Results", Blocks: s.results(table)},
		{ID: "studies", Title: "The studies", Blocks: s.studies()},
		{ID: "threats", Title: "Threats to validity", Blocks: s.threats()},
	}
	return s.doc
}

func (s *several) folderNames() []string {
	var out []string
	for _, f := range s.folders {
		out = append(out, f.Name+" (clock "+f.Findings.Clock+")")
	}
	return out
}

// claims say whether the studies agree, and what each found.
func (s *several) claims() []document.Claim {
	var out []document.Claim
	for _, c := range s.shared {
		claim := document.Claim{Name: c.claim.Name, Statement: c.claim.Statement, Region: region(c.claim)}
		for i, r := range c.results {
			if r == nil {
				continue
			}
			v := verdict(r.Verdict, false)
			if claim.Verdict != document.None && claim.Verdict != v {
				v = document.Differing
			}
			claim.Verdict = v
			claim.Sentence += fmt.Sprintf("%s %s: ratio %s. ", s.folders[i].Name, r.Verdict, ratio(r.Effect))
		}
		out = append(out, claim)
	}
	return out
}

// notes are a folder's footnotes, by their numbers in the document.
func (s *several) notes(folder int, warnings []int) []int {
	var out []int
	for _, n := range notes(warnings) {
		out = append(out, n+s.offset[folder])
	}
	return out
}

// effects has a row for every claim and study.
func (s *several) effects() *document.Table {
	t := &document.Table{
		ID:      s.names.id("claims"),
		Title:   "Claims by study",
		Caption: "The effect is the mean ratio A/B of the metric over the cells of the claim's region with its interval over blocks, each study by itself. The clock is in the table.",
		Columns: []document.Column{
			{Key: "claim", Title: "claim", Head: true}, {Key: "study", Title: "study", Head: true}, {Key: "clock", Title: "clock"},
			{Key: "verdict", Title: "verdict"}, {Key: "ratio", Title: "ratio A/B [interval]"}, {Key: "noise_floor", Title: "noise floor"},
			{Key: "cells", Title: "cells"}, {Key: "a", Title: "A"}, {Key: "b", Title: "B"}, {Key: "metric", Title: "metric"},
		},
	}
	for _, c := range s.shared {
		for i, r := range c.results {
			if r == nil {
				continue
			}
			floor := "none"
			if r.Noise > 1 {
				floor = ratioWords(r.Noise)
			}
			t.Rows = append(t.Rows, document.Row{Notes: s.notes(i, r.Warnings), Values: []document.Value{
				document.Text(c.claim.Name), document.Text(s.folders[i].Name), document.Text(s.folders[i].Findings.Clock),
				verdict(r.Verdict, false), ratio(r.Effect), document.Text(floor), document.Count(r.Cells),
				document.Text(c.claim.Compare[0]), document.Text(c.claim.Compare[1]), document.Text(r.Metric),
			}})
		}
	}
	return t
}

// results are the figure, the table and the costs.
func (s *several) results(table *document.Table) []document.Block {
	if len(table.Rows) == 0 {
		return []document.Block{document.Paragraph("The studies make no claim; look at the report of each.")}
	}
	f := &document.Figure{
		ID:    s.names.id("effects"),
		Title: "Do the studies find the same?",
		Data:  []string{table.ID},
		Caption: "Mean ratio A/B of each claim's metric over its region with its interval, one panel a claim, one row a study. The axes differ. " +
			"Clocks: " + enumerate(s.folderNames()) + ".",
		Alt: "Ratios with intervals by claim and study; the table has the numbers.",
	}
	seen := map[document.Verdict]bool{}
	for _, c := range s.shared {
		d := document.Dots{X: document.Axis{Label: "ratio A/B"}, Middle: 1}
		alt := ""
		for i, r := range c.results {
			if r == nil || r.Effect.Value <= 0 {
				continue
			}
			v := verdict(r.Verdict, false)
			seen[v] = true
			d.X.Label = "ratio A/B, " + axisWords(r.Metric)
			d.Rows = append(d.Rows, document.Dot{Label: s.folders[i].Name, Value: estimate(r.Effect), Verdict: v})
			alt += fmt.Sprintf("%s: %s, %s. ", s.folders[i].Name, estimate(r.Effect), v)
		}
		if len(d.Rows) > 0 {
			f.Panels = append(f.Panels, document.Panel{Title: c.claim.Name + ", expected " + c.claim.Expect, Alt: alt, Plot: d})
		}
	}
	f.Legend = marksLegend(seen, "A")
	out := []document.Block{}
	if len(f.Panels) > 0 {
		out = append(out, f)
	}
	out = append(out, finish(table))
	if t := s.costs(); t != nil {
		out = append(out, t)
	}
	return out
}

// costs are those of a rule, by study.
func (s *several) costs() *document.Table {
	t := &document.Table{
		Title:   "Cost of a rule by study",
		Caption: "Theil–Sen slope of time against the number of rules with its interval over blocks, each study by itself. Under the virtual clock a nanosecond is an instruction, and nothing else. The clock is in the table.",
		Columns: []document.Column{
			{Key: "experiment", Title: "experiment", Head: true}, {Key: "image", Title: "image"}, {Key: "firewall", Title: "firewall", Head: true}, frameColumn,
			{Key: "study", Title: "study", Head: true}, {Key: "clock", Title: "clock"}, {Key: "slope", Title: "slope [interval]"},
		},
	}
	var all []analysis.RuleCost
	type key struct {
		experiment, image, firewall string
		size                        int
	}
	rows := map[key][]document.Row{}
	var order []key
	for i, f := range s.folders {
		for _, c := range f.Findings.RuleCosts {
			k := key{c.Experiment, c.Image, c.Firewall, c.FrameSize}
			if rows[k] == nil {
				order = append(order, k)
			}
			rows[k] = append(rows[k], document.Row{Notes: s.notes(i, c.Warnings), Values: []document.Value{
				document.Text(c.Experiment), document.Text(c.Image), document.Text(c.Firewall), document.Count(c.FrameSize),
				document.Text(f.Name), document.Text(f.Findings.Clock), estimate(c.Slope),
			}})
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	t.ID = s.names.id("rule-costs")
	t.Columns[len(t.Columns)-1].Unit = costUnit(all)
	for _, k := range order {
		t.Rows = append(t.Rows, rows[k]...)
	}
	return finish(withoutEmpty(t, "image"))
}

// studies says what stands side by side.
func (s *several) studies() []document.Block {
	t := &document.Table{
		ID:      s.names.id("studies"),
		Title:   "The studies",
		Caption: "What each results folder was made on and from. The clock is in the table.",
		Columns: []document.Column{
			{Key: "study", Title: "study", Head: true}, {Key: "provider", Title: "provider"}, {Key: "clock", Title: "clock"},
			{Key: "runs", Title: "runs that count"}, {Key: "planned", Title: "planned"}, {Key: "kernel", Title: "kernel of the firewall"},
			{Key: "cpu", Title: "CPU"}, {Key: "rampart", Title: "rampart"}, {Key: "configuration", Title: "configuration"}, {Key: "records", Title: "records"},
		},
	}
	digests := map[string]bool{}
	for _, f := range s.folders {
		ok, planned := 0, 0
		for _, r := range f.Findings.Runs {
			ok, planned = ok+r.OK, planned+r.Planned
		}
		kernel, cpu := measuredOn(f.Manifest)
		digests[f.Manifest.ConfigDigest] = true
		t.Rows = append(t.Rows, document.Row{Values: []document.Value{
			document.Text(f.Name), document.Text(f.Manifest.Provider), document.Text(f.Findings.Clock), document.Count(ok), document.Count(planned),
			document.Text(kernel), document.Text(cpu), document.Text(buildWords(f.Manifest.Rampart)),
			document.Text(f.Manifest.ConfigDigest), document.Text(f.RecordsDigest),
		}})
	}
	same := "All were made from the same configuration."
	if len(digests) > 1 {
		same = "The configurations differ. Only claims with the same name, experiment, metric, pair, region and expectation stand side by side; margins, repetitions and levels may still differ."
	}
	return []document.Block{document.Paragraph(same), t,
		document.Paragraph("Method, environment, checks and the command that reproduces each are in its own report.")}
}

// measuredOn names the kernels and the processor of the firewall nodes.
func measuredOn(m record.Manifest) (kernel, cpu string) {
	var kernels []string
	for _, name := range sortedKeys(m.Images) {
		if dut, there := m.Images[name].Nodes["firewall"]; there {
			kernels, cpu = append(kernels, name+": "+dut.Kernel), dut.CPU
		}
	}
	dut, there := m.Nodes["firewall"]
	if !there && len(kernels) == 0 {
		dut, there = m.Host, true
	}
	if there {
		kernels, cpu = append(kernels, dut.Kernel), dut.CPU
	}
	return strings.Join(kernels, "; "), cpu
}

// threats are those of every clock, once.
func (s *several) threats() []document.Block {
	var out []document.Block
	seen := map[string]bool{}
	for _, f := range s.folders {
		if seen[f.Findings.Clock] {
			continue
		}
		seen[f.Findings.Clock] = true
		b := &builder{in: f.Input, f: f.Findings}
		out = append(out, document.Heading("Clock "+f.Findings.Clock))
		out = append(out, b.threats()...)
	}
	return out
}
