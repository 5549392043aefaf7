package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/rampart-bench/rampart/experiments/analysis"
)

// numbers are the axes of the matrix with numbers for levels, in the order in which conditions are kept.
func numbers() []string { return []string{"rules", "frame_size"} }

// The axes with names for levels.
const (
	byImage    = "image"
	byFirewall = "firewall"
)

// bounds are the factors that the region of a claim can bound: not the one that it compares.
func (e experiment) bounds(claim *analysis.Claim) []string {
	switch {
	case claim.Factor == analysis.FactorImage:
		return append(numbers(), byFirewall)
	case len(e.images) > 0:
		return append(numbers(), byImage)
	}
	return numbers()
}

// readRegion reads the region of a claim: conditions in the order of the factors, and names.
func (r *reader) readRegion(b *body, e experiment, claim *analysis.Claim) {
	if claim.Factor == analysis.FactorImage {
		for _, fw := range e.measured {
			claim.Firewalls = append(claim.Firewalls, fw.Name)
		}
	}
	if !b.has("where") {
		return
	}
	bounds := e.bounds(claim)
	for _, entry := range r.entries(b, "where") {
		switch {
		case !e.clean && (entry.key == byImage || entry.key == byFirewall): // what it has is not known
		case !slices.Contains(bounds, entry.key):
			r.fail(entry.rng, fmt.Sprintf("There is no factor %q", cut(entry.key, 40)), "%s", unknown(entry.key, bounds, "It can be"))
		case entry.key == byImage:
			claim.Images = r.readNames(entry, e.spec.Images)
		case entry.key == byFirewall:
			claim.Firewalls = r.readNames(entry, e.firewallNames())
		default:
			parsed, wrong := parseConditions(entry.key, entry.value)
			if wrong != nil {
				r.fail(entry.rng, entry.key+" "+wrong.summary, "%s", wrong.right)
			}
			claim.Where = append(claim.Where, parsed...)
		}
	}
	slices.SortStableFunc(claim.Where, func(x, y analysis.Condition) int {
		return slices.Index(numbers(), x.Factor) - slices.Index(numbers(), y.Factor)
	})
}

// readNames reads the levels of a factor that has names: one, or a list.
func (r *reader) readNames(entry entry, levels []string) (names []string) {
	elements := []cty.Value{entry.value}
	if isList(entry.value) {
		elements = entry.value.AsValueSlice()
	}
	for _, element := range elements {
		name, wrong := parseText(element)
		switch {
		case wrong != nil:
			r.fail(entry.rng, entry.key+" is not a name", "Write one level of the matrix, such as %s = %q, or a list of them.", entry.key, levels[0])
		case !slices.Contains(levels, name):
			r.fail(entry.rng, fmt.Sprintf("The matrix has no %s %q", entry.key, cut(name, 40)), "%s", unknown(name, levels, "It has"))
		case slices.Contains(names, name):
			r.fail(entry.rng, fmt.Sprintf("%s is in %s twice", name, entry.key), "Every level counts once; remove this one.")
		default:
			names = append(names, name)
		}
	}
	if len(elements) == 0 {
		r.fail(entry.rng, entry.key+" is an empty list", "Give at least one level, or leave %s out to get all.", entry.key)
	}
	return names
}

// An entry of an object with its place.
type entry struct {
	key   string
	value cty.Value
	rng   hcl.Range
}

// entries are those of an object, each with its own place where the object is written out.
func (r *reader) entries(b *body, name string) []entry {
	var list []entry
	if pairs, diags := hcl.ExprMap(b.attributes[name].Expr); !diags.HasErrors() {
		for _, p := range pairs {
			key := hcl.ExprAsKeyword(p.Key)
			if key == "" {
				k, ok := r.evaluate(p.Key)
				if !ok {
					continue
				}
				key, _ = parseText(k)
			}
			if v, ok := r.evaluate(p.Value); ok {
				list = append(list, entry{key, v, p.Value.Range()})
			}
		}
		return list
	}
	v, ok := b.value(name)
	if !ok {
		return nil
	}
	if !v.Type().IsObjectType() && !v.Type().IsMapType() {
		a := b.schema.attribute(name)
		b.wrong(name, &mistake{"is no set of " + a.kind.String(), fmt.Sprintf("Write it in braces, such as %s.", a.example)})
		return nil
	}
	for it := v.ElementIterator(); it.Next(); {
		key, value := it.Element()
		list = append(list, entry{key.AsString(), value, b.rangeOf(name)})
	}
	return list
}

var condition = regexp.MustCompile(`^(==|!=|<=|>=|<|>)?\s*([0-9]+)$`)

// parseConditions takes a number, or conditions joined by "and", such as ">= 100 and < 1000".
func parseConditions(factor string, v cty.Value) ([]analysis.Condition, *mistake) {
	const example = `Write a number, or conditions such as ">= 1000" or ">= 100 and < 1000"; the comparisons are ==, !=, <, <=, > and >=.`
	text, wrong := parseText(v)
	if wrong != nil {
		return nil, &mistake{"is not a condition", example}
	}
	var conditions []analysis.Condition
	for part := range strings.SplitSeq(text, " and ") {
		match := condition.FindStringSubmatch(strings.TrimSpace(part))
		if match == nil {
			return nil, &mistake{fmt.Sprintf("has no condition in it that can be read: %q", cut(part, 40)), example}
		}
		value, err := strconv.Atoi(match[2])
		if err != nil {
			return nil, &mistake{fmt.Sprintf("has too large a number: %s", cut(match[2], 40)), example}
		}
		op := match[1]
		if op == "" {
			op = "=="
		}
		conditions = append(conditions, analysis.Condition{Factor: factor, Op: op, Value: value})
	}
	return conditions, nil
}
