package analysis

import (
	"slices"

	"github.com/rampart-bench/rampart/experiments/record"
)

// levels of the factor rules at which the firewall was measured, ascending.
func (e *Experiment) levels(f Firewall) []int {
	if !f.Rules {
		return []int{0}
	}
	return e.Rules
}

// images are the levels of the factor image; one that is empty where it is no factor.
func (e *Experiment) images() []string {
	if len(e.Images) == 0 {
		return []string{""}
	}
	return e.imageNames()
}

func (e *Experiment) imageNames() (out []string) {
	for _, image := range e.Images {
		out = append(out, image.Name)
	}
	return out
}

// treatments are the cells of the matrix, in the order of findings.
func (e *Experiment) treatments() (out []record.Treatment) {
	for _, image := range e.images() {
		for _, f := range e.Firewalls {
			for _, rules := range e.levels(f) {
				for _, size := range e.FrameSizes {
					out = append(out, f.at(image, rules, size))
				}
			}
		}
	}
	return out
}

// lines are the places at which a cost over rules can be fitted: the treatments of firewalls that have rules,
// without their number.
func (e *Experiment) lines() (out []record.Treatment) {
	for _, image := range e.images() {
		for _, f := range e.Firewalls {
			for _, size := range e.FrameSizes {
				if f.Rules {
					out = append(out, record.Treatment{Image: image, Firewall: f.Name, FrameSize: size})
				}
			}
		}
	}
	return out
}

func (e *Experiment) firewall(name string) (Firewall, bool) {
	i := slices.IndexFunc(e.Firewalls, func(f Firewall) bool { return f.Name == name })
	if i < 0 {
		return Firewall{}, false
	}
	return e.Firewalls[i], true
}

// at is the firewall's treatment with so many rules, or with none where it has none.
func (f Firewall) at(image string, rules, frameSize int) record.Treatment {
	if !f.Rules {
		rules = 0
	}
	return record.Treatment{Image: image, Firewall: f.Name, Rules: rules, FrameSize: frameSize}
}

// A versus is two levels of one factor, the first to be judged against the second.
type versus struct {
	factor  string // empty: firewall
	a, b    string
	control bool // an A/A pair
}

func newVersus(factor string, pair [2]string, control bool) versus {
	return versus{factor: factor, a: pair[0], b: pair[1], control: control}
}

func (v versus) betweenImages() bool { return v.factor == FactorImage }

// level is that of the factor in a treatment.
func (v versus) level(t record.Treatment) string {
	if v.betweenImages() {
		return t.Image
	}
	return t.Firewall
}

// with is the treatment with another level of the factor.
func (v versus) with(t record.Treatment, level string) record.Treatment {
	if v.betweenImages() {
		t.Image = level
	} else {
		t.Firewall = level
	}
	return t
}

// A cellPair is a place in the matrix where two levels of a factor meet.
type cellPair struct {
	at   record.Treatment // what they have in common; the factor itself is empty
	a, b record.Treatment
}

// meetings are the places where the two levels can be compared.
func (e *Experiment) meetings(v versus) []cellPair {
	if v.betweenImages() {
		return e.meetingsOfImages(v)
	}
	return e.meetingsOfFirewalls(v)
}

// meetingsOfFirewalls are by image, rules and frame size. A firewall without rules has one cell a frame size,
// and meets every number of rules of the other there.
func (e *Experiment) meetingsOfFirewalls(v versus) (out []cellPair) {
	a, okA := e.firewall(v.a)
	b, okB := e.firewall(v.b)
	if !okA || !okB {
		return nil
	}
	levels := e.levels(a)
	if !a.Rules {
		levels = e.levels(b)
	}
	for _, image := range e.images() {
		for _, rules := range levels {
			for _, size := range e.FrameSizes {
				at := record.Treatment{Image: image, Rules: rules, FrameSize: size}
				out = append(out, cellPair{at, a.at(image, rules, size), b.at(image, rules, size)})
			}
		}
	}
	return out
}

// meetingsOfImages are by firewall, rules and frame size.
func (e *Experiment) meetingsOfImages(v versus) (out []cellPair) {
	for _, at := range e.treatments() {
		if at.Image == v.a {
			out = append(out, cellPair{v.with(at, ""), at, v.with(at, v.b)})
		}
	}
	return out
}

// pairs are those that the experiment itself compares, by factor; A/A pairs come last.
func (e *Experiment) pairs(factor string) (out []versus) {
	compare, controls := e.Compare, e.Controls
	if factor == FactorImage {
		compare, controls = e.CompareImages, e.ControlImages
	}
	for _, pair := range compare {
		out = append(out, newVersus(factor, pair, false))
	}
	for _, pair := range controls {
		out = append(out, newVersus(factor, pair, true))
	}
	return out
}

// pairs are those of the experiment and those that claims add, by factor; A/A pairs come last.
func (s *Study) pairs(factor string, e *Experiment) []versus {
	pairs := e.pairs(factor)
	controls := slices.IndexFunc(pairs, func(v versus) bool { return v.control })
	if controls < 0 {
		controls = len(pairs)
	}
	for _, c := range s.Claims {
		same := func(v versus) bool {
			return v.a == c.Compare[0] && v.b == c.Compare[1] || v.a == c.Compare[1] && v.b == c.Compare[0]
		}
		if c.Experiment == e.Name && c.Factor == factor && !slices.ContainsFunc(pairs, same) {
			pairs = slices.Insert(pairs, controls, newVersus(factor, c.Compare, false))
			controls++
		}
	}
	return pairs
}

// factors are those whose levels are compared.
func factors() []string { return []string{"", FactorImage} }

// contains reports whether the place is in the claim's region.
func (c *Claim) contains(at record.Treatment) bool {
	for _, w := range c.Where {
		level := at.Rules
		if w.Factor == "frame_size" {
			level = at.FrameSize
		}
		if !w.Holds(level) {
			return false
		}
	}
	return among(c.Images, at.Image) && among(c.Firewalls, at.Firewall)
}

// among reports whether a level is one of those listed; no list has all.
func among(listed []string, level string) bool {
	return len(listed) == 0 || slices.Contains(listed, level)
}
