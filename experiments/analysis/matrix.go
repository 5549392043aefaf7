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

// treatments is the number of cells of the matrix.
func (e *Experiment) treatments() int {
	n := 0
	for _, f := range e.Firewalls {
		n += len(e.levels(f)) * len(e.FrameSizes)
	}
	return n
}

func (e *Experiment) firewall(name string) (Firewall, bool) {
	i := slices.IndexFunc(e.Firewalls, func(f Firewall) bool { return f.Name == name })
	if i < 0 {
		return Firewall{}, false
	}
	return e.Firewalls[i], true
}

// A cellPair is a place in the matrix where two firewalls meet.
type cellPair struct {
	rules, frameSize int
	a, b             record.Treatment
}

// meetings are the places where the two firewalls can be compared, by rules and frame size. A firewall
// without rules has one cell a frame size, and meets every number of rules of the other there.
func (e *Experiment) meetings(pair [2]string) []cellPair {
	a, okA := e.firewall(pair[0])
	b, okB := e.firewall(pair[1])
	if !okA || !okB {
		return nil
	}
	levels := e.levels(a)
	if !a.Rules {
		levels = e.levels(b)
	}
	var out []cellPair
	for _, rules := range levels {
		for _, size := range e.FrameSizes {
			out = append(out, cellPair{rules, size, a.at(rules, size), b.at(rules, size)})
		}
	}
	return out
}

func (f Firewall) at(rules, frameSize int) record.Treatment {
	if !f.Rules {
		rules = 0
	}
	return record.Treatment{Firewall: f.Name, Rules: rules, FrameSize: frameSize}
}

// comparedPairs are the pairs of the experiment and those that claims add, in that order.
func (s *Study) comparedPairs(e *Experiment) [][2]string {
	pairs := slices.Clone(e.Compare)
	for _, c := range s.Claims {
		if c.Experiment != e.Name {
			continue
		}
		reverse := [2]string{c.Compare[1], c.Compare[0]}
		all := slices.Concat(pairs, e.Controls)
		if !slices.Contains(all, c.Compare) && !slices.Contains(all, reverse) {
			pairs = append(pairs, c.Compare)
		}
	}
	return pairs
}

// contains reports whether the place is in the claim's region.
func (c *Claim) contains(p cellPair) bool {
	for _, w := range c.Where {
		level := p.rules
		if w.Factor == "frame_size" {
			level = p.frameSize
		}
		if !w.Holds(level) {
			return false
		}
	}
	return true
}
