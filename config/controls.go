package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/images"
)

// controls are the firewalls that belong to every study and are not listed: none, empty and the twin
// of an A/A pair (METHOD §2).
func controls(listed []firewall.Spec, known firewalls) ([]firewall.Spec, *mistake) {
	var added []firewall.Spec
	for _, engine := range []string{firewall.None, firewall.Empty} {
		if !slices.ContainsFunc(listed, func(s firewall.Spec) bool { return same(s, firewall.Spec{Engine: engine}) }) {
			added = append(added, firewall.Spec{Name: engine, Engine: engine})
		}
	}
	original, ok := controlled(listed)
	if !ok || hasTwins(listed) {
		return added, nil
	}
	twin := original
	twin.Name += "-aa"
	if taken, ok := known.specs[twin.Name]; ok && !same(taken, twin) {
		return added, &mistake{
			fmt.Sprintf("The name %q is taken by another firewall", twin.Name),
			fmt.Sprintf("It is needed for the second firewall of the A/A pair with %q: rename that firewall, or write controls = false.", original.Name),
		}
	}
	return append(added, twin), nil
}

// controlled chooses the firewall to measure twice.
func controlled(listed []firewall.Spec) (firewall.Spec, bool) {
	for _, s := range listed {
		if s.Engine == firewall.Nftables && s.Lookup == firewall.Linear {
			return s, true
		}
	}
	for _, s := range listed {
		if hasContent(s) {
			return s, true
		}
	}
	return firewall.Spec{}, false
}

// hasContent reports whether a firewall is more than a control: it has rules or settings.
func hasContent(s firewall.Spec) bool { return s.HasRules() || s.Settings != (firewall.Settings{}) }

// hasTwins reports whether two of the firewalls that are more than controls are an A/A pair.
func hasTwins(list []firewall.Spec) bool {
	return slices.ContainsFunc(twins(list), func(pair [2]string) bool {
		return slices.ContainsFunc(list, func(s firewall.Spec) bool { return s.Name == pair[0] && hasContent(s) })
	})
}

// twins lists the A/A pairs: each firewall with the first one of the same definition.
func twins(list []firewall.Spec) [][2]string {
	pairs := [][2]string{}
	for i, s := range list {
		if first := slices.IndexFunc(list, func(o firewall.Spec) bool { return same(o, s) }); first < i {
			pairs = append(pairs, [2]string{list[first].Name, s.Name})
		}
	}
	return pairs
}

// imageTwins lists the A/A pairs of images: each with the first one of the same definition.
func imageTwins(list []images.Spec) (pairs [][2]string) {
	for i, spec := range list {
		if first := slices.IndexFunc(list, func(o images.Spec) bool { return o.Digest() == spec.Digest() }); first < i {
			pairs = append(pairs, [2]string{list[first].Name, spec.Name})
		}
	}
	return pairs
}

// readCompare gives the pairs of firewalls and of images to compare: those written, else the default ones.
func (r *reader) readCompare(b *body, e experiment) (compare, compareImages [][2]string) {
	if !b.has("compare") {
		return defaultPairs(e.measured), defaultImagePairs(e.images)
	}
	compare = [][2]string{}
	for _, element := range b.elements("compare") {
		pair, wrong := parsePair(element.value)
		if wrong != nil {
			r.fail(element.rng, "An element of compare "+wrong.summary, "%s", wrong.right)
			continue
		}
		if slices.Contains(compare, pair) || slices.Contains(compareImages, pair) {
			r.fail(element.rng, "A pair is in compare twice", "Every pair counts once; remove this one.")
			continue
		}
		if wrong := e.checkPair(pair); wrong != nil {
			r.fail(element.rng, wrong.summary, "%s", wrong.right)
			continue
		}
		if e.factorOf(pair) == analysis.FactorImage {
			compareImages = append(compareImages, pair)
		} else {
			compare = append(compare, pair)
		}
	}
	return compare, compareImages
}

// defaultImagePairs are each image with the one before it. One that is the second of an A/A pair would only
// say again what the first one said.
func defaultImagePairs(listed []images.Spec) (pairs [][2]string) {
	var distinct []images.Spec
	for _, spec := range listed {
		if !slices.ContainsFunc(distinct, func(o images.Spec) bool { return o.Digest() == spec.Digest() }) {
			distinct = append(distinct, spec)
		}
	}
	for i := 1; i < len(distinct); i++ {
		pairs = append(pairs, [2]string{distinct[i].Name, distinct[i-1].Name})
	}
	return pairs
}

// factorOf tells a pair of images from one of firewalls. One of each is a pair of firewalls that are not all
// there.
func (e experiment) factorOf(pair [2]string) string {
	if slices.Contains(e.spec.Images, pair[0]) && slices.Contains(e.spec.Images, pair[1]) {
		return analysis.FactorImage
	}
	return ""
}

// defaultPairs are every nftables firewall with every iptables one that looks up in the same way. A
// firewall that is the second of an A/A pair would only say again what the first one said.
func defaultPairs(listed []firewall.Spec) [][2]string {
	var distinct []firewall.Spec
	for _, s := range listed {
		if hasContent(s) && !slices.ContainsFunc(distinct, func(o firewall.Spec) bool { return same(o, s) }) {
			distinct = append(distinct, s)
		}
	}
	pairs := [][2]string{}
	for _, a := range distinct {
		for _, b := range distinct {
			if a.Engine == firewall.Nftables && strings.HasPrefix(b.Engine, "iptables-") && a.Lookup == b.Lookup && a.Position == b.Position && a.Settings == b.Settings {
				pairs = append(pairs, [2]string{a.Name, b.Name})
			}
		}
	}
	if len(pairs) > 0 || len(distinct) < 2 {
		return pairs
	}
	for _, s := range distinct[1:] {
		pairs = append(pairs, [2]string{s.Name, distinct[0].Name})
	}
	return pairs
}

// checkPair reports whether the experiment can compare two firewalls or two images.
func (e experiment) checkPair(pair [2]string) *mistake {
	image := [2]bool{e.isImage(pair[0]), e.isImage(pair[1])}
	switch {
	case pair[0] == pair[1] && image[0]:
		return &mistake{fmt.Sprintf("Image %q is compared with itself", pair[0]), "Name two images. How much two boots of one differ is shown by a second block of another name."}
	case pair[0] == pair[1]:
		return &mistake{fmt.Sprintf("Firewall %q is compared with itself", pair[0]), "Name two firewalls. How much one differs from itself is shown by the A/A pair that controls = true adds."}
	case !e.clean:
		return nil // a level may be missing because its line has a mistake
	case image[0] != image[1]:
		return &mistake{fmt.Sprintf("%q and %q are not of one kind", cut(pair[0], 40), cut(pair[1], 40)), "Name two firewalls or two images."}
	}
	for i, name := range pair {
		if image[i] && !slices.Contains(e.spec.Images, name) {
			return e.noSuchImage(name)
		}
		if _, err := e.spec.Firewall(name); err != nil && !image[i] {
			return &mistake{fmt.Sprintf("Firewall %q is not in the matrix of experiment %q", cut(name, 40), e.spec.Name), unknown(name, e.firewallNames(), "It has")}
		}
	}
	return nil
}

// isImage reports whether a name is that of an image, and not of a firewall of the experiment.
func (e experiment) isImage(name string) bool {
	_, declared := e.set.called[name]
	return declared && !slices.Contains(e.firewallNames(), name)
}

func (e experiment) noSuchImage(name string) *mistake {
	if several := e.set.called[name]; len(several) > 1 {
		return &mistake{fmt.Sprintf("Image %q is several images", name), fmt.Sprintf("Say which: %s.", oneOf(namesOf(several)))}
	}
	return &mistake{fmt.Sprintf("Image %q is not in the matrix of experiment %q", name, e.spec.Name), unknown(name, e.spec.Images, "It has")}
}

func (e experiment) firewallNames() []string {
	var names []string
	for _, fw := range e.spec.Firewalls {
		names = append(names, fw.Name)
	}
	return names
}

// parsePair takes a list of two names.
func parsePair(v cty.Value) ([2]string, *mistake) {
	wrong := &mistake{"is not a pair", `Write two firewalls in brackets, such as ["nftables-linear", "iptables-linear"]; the first is judged against the second.`}
	if v.IsNull() || !isList(v) || v.LengthInt() != 2 {
		return [2]string{}, wrong
	}
	var pair [2]string
	for i, element := range v.AsValueSlice() {
		name, mistake := parseText(element)
		if mistake != nil {
			return pair, wrong
		}
		pair[i] = name
	}
	return pair, nil
}
