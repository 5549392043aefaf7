package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

func localsSchema() *schema {
	return &schema{
		name: "locals", occurs: often, anything: true,
		doc: "Names for values, in any order, one attribute each; there may be several such blocks. Referred to as `local.name`.",
	}
}

// locals are the local values while they are being evaluated. They may refer to each other in any
// order, so each is evaluated when it is first needed.
type locals struct {
	r          *reader
	attributes map[string]*hclsyntax.Attribute
	values     map[string]cty.Value
	path       []string // being evaluated, outermost first
}

// readLocals evaluates every local value and declares them.
func (r *reader) readLocals(blocks []*body) {
	l := &locals{r: r, attributes: map[string]*hclsyntax.Attribute{}, values: map[string]cty.Value{}}
	var order []string
	for _, b := range blocks {
		for _, a := range b.sortedAttributes() {
			if first := l.attributes[a.Name]; first != nil {
				r.fail(a.NameRange, fmt.Sprintf("There are two local values %q", a.Name), "The first is at %s:%d; give this one another name.", first.NameRange.Filename, first.NameRange.Start.Line)
				continue
			}
			l.attributes[a.Name] = a
			order = append(order, a.Name)
		}
	}
	r.names["local"] = slices.Sorted(slices.Values(order))
	for _, name := range order {
		l.value(name)
	}
	r.declareValues("local", l.values)
}

// value evaluates what the local value refers to, then the value itself. A value with a mistake is
// unknown, and what depends on it is not blamed again.
func (l *locals) value(name string) cty.Value {
	if v, ok := l.values[name]; ok {
		return v
	}
	if i := slices.Index(l.path, name); i >= 0 {
		l.cycle(append(slices.Clone(l.path[i:]), name))
		return cty.DynamicVal
	}
	l.path = append(l.path, name)
	defer func() { l.path = l.path[:len(l.path)-1] }()

	expr := l.attributes[name].Expr
	needed := map[string]cty.Value{}
	for _, reference := range expr.Variables() {
		other, ok := referenceName(reference)
		if ok && reference.RootName() == "local" && l.attributes[other] != nil {
			needed[other] = l.value(other)
		}
	}
	scope := l.r.scope.NewChild()
	scope.Variables = map[string]cty.Value{"local": cty.ObjectVal(needed)}
	v, ok := l.r.evaluateIn(scope, expr)
	if !ok {
		v = cty.DynamicVal
	}
	l.values[name] = v
	return v
}

func (l *locals) cycle(names []string) {
	var rng hcl.Range
	if a := l.attributes[names[0]]; a != nil {
		rng = a.NameRange
	}
	l.r.fail(rng, fmt.Sprintf("Local value %q needs itself", names[0]), "The circle is local.%s; give one of them a value of its own.", strings.Join(names, " → local."))
}
