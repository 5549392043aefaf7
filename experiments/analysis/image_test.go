package analysis_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

// released is a study of two images and one more under a second name, with so many boots of each.
func released(repetitions, boots int) analysis.Study {
	s := small(repetitions)
	s.Bootstrap = 200
	e := &s.Experiments[0]
	e.Boots = boots
	e.Images = []analysis.Image{{Name: "bookworm", Suite: "bookworm"}, {Name: "trixie", Suite: "trixie"}, {Name: "bookworm-again", Suite: "bookworm"}}
	e.CompareImages = [][2]string{{"trixie", "bookworm"}}
	e.ControlImages = [][2]string{{"bookworm", "bookworm-again"}}
	s.Claims = []analysis.Claim{
		{Name: "slower", Experiment: e.Name, Factor: analysis.FactorImage, Compare: [2]string{"trixie", "bookworm"}, Expect: "slower",
			Firewalls: []string{"nftables-linear", "iptables-linear"}, Where: []analysis.Condition{{Factor: "rules", Op: ">=", Value: 1000}}},
		{Name: "within", Experiment: e.Name, Compare: [2]string{"nftables-linear", "iptables-linear"}, Expect: "slower", Images: []string{"trixie"},
			Where: []analysis.Condition{{Factor: "rules", Op: ">=", Value: 1000}}},
	}
	return s
}

func TestImagesAreComparedByBoots(t *testing.T) {
	s := released(24, 12)
	f := analyze(t, s, truth{noise: 0.005, drift: 0.02, boot: 0.005, seed: 4, image: map[string]float64{"trixie": 1.1}}.records(s))

	cells, slower := 0, 0
	for _, c := range f.Comparisons {
		if c.Factor == "" {
			if c.Image == "" || c.Firewall != "" || c.NA != 24 || !c.Control && c.Family != 18 {
				t.Errorf("firewalls: %+v", c)
			}
			continue
		}
		if c.Image != "" || c.Firewall == "" || c.NA != 12 || c.NB != 12 || c.Family != 34 {
			t.Fatalf("images: %+v, want 12 boots of each and 34 cells of all firewalls", c)
		}
		if c.Control || c.Metric != "rtt_median" {
			continue
		}
		cells++
		if c.Verdict == analysis.Slower {
			slower++
		}
		if math.Abs(c.Ratio.Value-1.1) > 0.03 {
			t.Errorf("%+v: want 1.1", c)
		}
	}
	if cells != 34 || slower < 30 {
		t.Errorf("%d of %d cells are slower", slower, cells)
	}
	var floors []string
	for _, n := range f.NoiseFloors {
		if n.Metric == "rtt_median" {
			floors = append(floors, n.Factor)
		}
	}
	if strings.Join(floors, ",") != ",image" {
		t.Errorf("noise floors of factors %q, want one of firewalls and one of images", floors)
	}
	slowerClaim, within := f.Claims[0], f.Claims[1]
	if slowerClaim.Verdict != analysis.Agrees || slowerClaim.Cells != 8 || slowerClaim.Effect.Lo > 1.1 || slowerClaim.Effect.Hi < 1.1 ||
		!strings.Contains(slowerClaim.Sentence, "the round-trip time with image trixie is") || !strings.Contains(slowerClaim.Sentence, "above that with image bookworm") {
		t.Errorf("%d cells, %+v: %s", slowerClaim.Cells, slowerClaim.Effect, slowerClaim.Sentence)
	}
	if within.Verdict != analysis.Agrees || within.Cells != 4 {
		t.Errorf("%d cells, want those of one image: %s", within.Cells, within.Sentence)
	}
	ratios := 0
	for _, r := range f.CostRatios {
		if r.Factor == analysis.FactorImage && r.Firewall == "nftables-linear" && r.A == "trixie" {
			ratios++
			if r.Image != "" || r.Ratio.Level == 0 || r.Ratio.Lo > 1.1 || r.Ratio.Hi < 1.1 {
				t.Errorf("%+v: want 1.1", r)
			}
		}
	}
	if ratios != 2 || len(f.RuleCosts) != 3*5*2 {
		t.Errorf("%d ratios of costs of nftables between images and %d costs, want 2 and 30", ratios, len(f.RuleCosts))
	}
	if hasWarning(f, "no image is there under two names") || !hasWarning(f, "speak of the 12 boots") {
		t.Errorf("%v", f.Warnings)
	}
}

// TestBootsOfImagesAreTheUnit: where nothing but luck of the boots tells two images apart, as many blocks as you like
// in a boot make no finding of it.
func TestBootsOfImagesAreTheUnit(t *testing.T) {
	const studies = 300
	significant, disagree, held, byRuns := 0, 0, 0, 0
	for seed := range uint64(studies) {
		s := released(32, 8)
		s.Seed = seed
		e := &s.Experiments[0]
		e.Rules, e.FrameSizes, e.ControlImages, e.Compare, e.Controls = []int{1000}, []int{64}, nil, nil, nil
		e.Firewalls = e.Firewalls[2:4]
		s.Claims = s.Claims[:1]
		records := list(truth{noise: 0.002, boot: 0.02, seed: seed}.records(s))
		f := analyze(t, s, sequence(records))
		if hasDifference(f) {
			significant++
		}
		if f.Claims[0].Verdict != analysis.Inconclusive {
			disagree++
		}
		if in := f.Claims[0].Effect; in.Level == 0.95 && in.Lo <= 1 && 1 <= in.Hi {
			held++
		}
		for i := range records {
			records[i].Boot = records[i].Block // as if every block had been a boot
		}
		if hasDifference(analyze(t, s, sequence(records))) {
			byRuns++
		}
	}
	if byRuns < studies/4 {
		t.Errorf("by runs, %d of %d studies would have alarmed: this world does not test much", byRuns, studies)
	}
	// 5 % and three standard errors of the simulation: 26.
	if significant > 26 || disagree > 26 || held < studies-26 {
		t.Errorf("of %d studies of equal images %d have a significant cell, %d a verdict on the claim, %d an interval that holds the truth", studies, significant, disagree, held)
	}
	t.Logf("of %d studies of equal images %d have a significant cell, %d a verdict on the claim, %d an interval that holds the truth; by runs %d would have a significant cell",
		studies, significant, disagree, held, byRuns)
}

func hasDifference(f analysis.Findings) bool {
	return slices.ContainsFunc(f.Comparisons, func(c analysis.Comparison) bool { return c.Metric == "rtt_median" && c.HolmP < 0.05 })
}

func TestTooFewBootsOfImages(t *testing.T) {
	for _, boots := range []int{1, 2} {
		s := released(12, boots)
		s.Experiments[0].ControlImages = nil
		f := analyze(t, s, truth{noise: 0.001, seed: 1, image: map[string]float64{"trixie": 1.5}}.records(s))
		for _, c := range f.Comparisons {
			if c.Factor == analysis.FactorImage && (c.Ratio.Level != 0 || c.NA != boots || c.Verdict != analysis.Inconclusive) {
				t.Fatalf("%d boots: %+v", boots, c)
			}
		}
		if c := f.Claims[0]; c.Effect.Level != 0 || c.Verdict != analysis.Inconclusive || !strings.Contains(c.Sentence, "no interval: too few boots") {
			t.Errorf("%d boots: %s", boots, c.Sentence)
		}
		for _, r := range f.CostRatios {
			if r.Factor == analysis.FactorImage && r.Ratio.Level != 0 {
				t.Errorf("%d boots: %+v", boots, r)
			}
		}
		if c := f.Claims[1]; boots == 1 && c.Effect.Level == 0 {
			t.Errorf("firewalls inside one boot: %s", c.Sentence)
		}
		for _, want := range []string{"interval needs 3 boots of each image; has", "interval needs 4 boots of each image; has", "boots of each image for Holm over 34; has", "no image is there under two names"} {
			if !hasWarning(f, want) {
				t.Errorf("%d boots: no warning %q in %v", boots, want, f.Warnings)
			}
		}
	}
}

// One image was never up in two boots: what is left is compared, and the loss is named.
func TestImageWithLostBoots(t *testing.T) {
	s := released(8, 8)
	var kept []record.Record
	for r := range (truth{noise: 0.005, boot: 0.005, seed: 2, image: map[string]float64{"trixie": 1.1}}).records(s) {
		if r.Treatment.Image == "trixie" && r.Boot <= 2 {
			r.Status, r.Error, r.Metrics = record.Failed, "the testbed broke", nil
		}
		kept = append(kept, r)
	}
	f := analyze(t, s, sequence(kept))
	for _, c := range f.Comparisons {
		if c.Factor == analysis.FactorImage && !c.Control && (c.NA != 6 || c.NB != 8) {
			t.Fatalf("%+v: want 6 boots against 8", c)
		}
	}
	if f.Claims[0].Verdict != analysis.Agrees {
		t.Error(f.Claims[0].Sentence)
	}
	for _, x := range f.Excluded {
		if x.Image != "trixie" {
			t.Errorf("%+v", x)
		}
	}
	if len(f.Excluded) == 0 {
		t.Error("nothing says that runs were left out")
	}
}

func TestStudyOfUnknownImages(t *testing.T) {
	for want, change := range map[string]func(*analysis.Study){
		`has no image "sid"`:          func(s *analysis.Study) { s.Claims[0].Compare[0] = "sid" },
		"compares trixie with itself": func(s *analysis.Study) { s.Experiments[0].CompareImages[0][1] = "trixie" },
		`factor = "colour"`:           func(s *analysis.Study) { s.Claims[0].Factor = "colour" },
	} {
		s := released(4, 4)
		change(&s)
		if _, err := analysis.Analyze(s, sequence(nil)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	s := released(4, 4)
	record := list(truth{}.records(s))[:1]
	record[0].Treatment.Image = "sid"
	if _, err := analysis.Analyze(s, sequence(record)); err == nil || !strings.Contains(err.Error(), "is not in the matrix") {
		t.Errorf("a record of an image that is not in the study: %v", err)
	}
}

// A study of images measured twice compares each image with itself.
func TestAgainstKeepsImagesApart(t *testing.T) {
	s := released(8, 8)
	world := truth{noise: 0.005, boot: 0.002, seed: 3}
	slower := world
	slower.seed, slower.image = 4, map[string]float64{"trixie": 1.3}
	changes := against(t, measured(s, world), measured(s, slower), analysis.Limits{Metrics: []string{"rtt_median"}})
	for _, c := range changes.Cells {
		if want := map[bool]string{true: analysis.Slower, false: analysis.Faster}[c.Image == "trixie"]; (c.Verdict == want) != (c.Image == "trixie") {
			t.Errorf("%+v", c)
		}
	}
	if len(changes.Cells) != 3*34 {
		t.Errorf("%d cells, want %d", len(changes.Cells), 3*34)
	}
}
