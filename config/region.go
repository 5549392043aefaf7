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

// factors are the axes of the matrix that a region can bound.
func factors() []string { return []string{"rules", "frame_size"} }

// readRegion reads an object of conditions, in the order of the factors.
func (r *reader) readRegion(b *body, name string) []analysis.Condition {
	if !b.has(name) {
		return nil
	}
	var conditions []analysis.Condition
	for _, entry := range r.entries(b, name) {
		if !slices.Contains(factors(), entry.key) {
			r.fail(entry.rng, fmt.Sprintf("There is no factor %q", cut(entry.key, 40)), "%s", unknown(entry.key, factors(), "It can be"))
			continue
		}
		parsed, wrong := parseConditions(entry.key, entry.value)
		if wrong != nil {
			r.fail(entry.rng, entry.key+" "+wrong.summary, "%s", wrong.right)
		}
		conditions = append(conditions, parsed...)
	}
	slices.SortStableFunc(conditions, func(x, y analysis.Condition) int {
		return slices.Index(factors(), x.Factor) - slices.Index(factors(), y.Factor)
	})
	return conditions
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
