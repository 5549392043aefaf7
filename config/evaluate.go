package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"
)

// A reader reads one configuration and collects its mistakes.
type reader struct {
	purpose Purpose
	files   map[string]*hcl.File
	diags   hcl.Diagnostics
	// unread is why a file could not be read; nil: all were.
	unread error

	// names are what references can name, by root: var, local, image, experiment, firewall.
	names map[string][]string
	scope *hcl.EvalContext
	// frameLimit is the largest frame that every link of the testbed carries.
	frameLimit int
	// disks are the right blocks of images that are disks, by the name of the image.
	disks map[string]*body
	// unprivileged says that machines are made by a libvirt without privileges.
	unprivileged bool
}

// roots are the words that references begin with.
func roots() []string { return []string{"var", "local", "image", "firewall", "experiment"} }

func newReader() *reader {
	return &reader{
		files: map[string]*hcl.File{},
		names: map[string][]string{},
		scope: &hcl.EvalContext{Variables: map[string]cty.Value{}, Functions: functions()},
	}
}

// fail reports a mistake: what is wrong at the place, and what would be right.
func (r *reader) fail(rng hcl.Range, summary, right string, args ...any) {
	d := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(right, args...)}
	if rng.Filename != "" {
		d.Subject = &rng
	}
	r.diags = append(r.diags, d)
}

// failedSince reports whether mistakes were added since there were before of them.
func (r *reader) failedSince(before int) bool { return len(r.diags) > before }

// evaluate gives the value of an expression. It is false where a mistake was reported, here or for a
// value that the expression needs.
func (r *reader) evaluate(expr hcl.Expression) (cty.Value, bool) {
	return r.evaluateIn(r.scope, expr)
}

func (r *reader) evaluateIn(scope *hcl.EvalContext, expr hcl.Expression) (cty.Value, bool) {
	before := len(r.diags)
	for _, reference := range expr.Variables() {
		r.checkReference(reference)
	}
	if r.failedSince(before) {
		return cty.NilVal, false
	}
	v, diags := expr.Value(scope)
	if diags.HasErrors() {
		r.diags = append(r.diags, diags...)
		return cty.NilVal, false
	}
	return v, v.IsWhollyKnown()
}

// evaluateAll evaluates each expression and leaves out those with mistakes.
func (r *reader) evaluateAll(exprs []hcl.Expression) []at[cty.Value] {
	elements := []at[cty.Value]{}
	for _, expr := range exprs {
		if v, ok := r.evaluate(expr); ok {
			elements = append(elements, at[cty.Value]{v, expr.Range()})
		}
	}
	return elements
}

// checkReference reports a reference to something that does not exist. It knows more than hcl, which
// would say that an object lacks an attribute.
func (r *reader) checkReference(t hcl.Traversal) {
	root := t.RootName()
	names, ok := r.names[root]
	if !ok {
		r.fail(t.SourceRange(), fmt.Sprintf("%q refers to nothing", cut(root, 40)), "%s", r.rightRoot(root))
		return
	}
	name, ok := referenceName(t)
	if !ok {
		r.fail(t.SourceRange(), fmt.Sprintf("%q alone is not a value", root), "Say which: %s.NAME. %s", root, existing(root, names))
		return
	}
	if !slices.Contains(names, name) {
		r.fail(t.SourceRange(), fmt.Sprintf("There is no %s %q", noun(root), cut(name, 40)), "%s%s", didYouMean(name, names), existing(root, names))
	}
}

func (r *reader) rightRoot(root string) string {
	if len(r.names) == 0 {
		return "This must be a plain value: it is read before anything that could be referred to."
	}
	return fmt.Sprintf("%sWrite it in quotes if the text is meant; references begin with %s.", didYouMean(root, roots()), list(roots()))
}

// referenceName is the second part of a reference: image.NAME or image["NAME"].
func referenceName(t hcl.Traversal) (string, bool) {
	if len(t) < 2 {
		return "", false
	}
	switch step := t[1].(type) {
	case hcl.TraverseAttr:
		return step.Name, true
	case hcl.TraverseIndex:
		if step.Key.Type() == cty.String && step.Key.IsKnown() && !step.Key.IsNull() {
			return step.Key.AsString(), true
		}
	}
	return "", false
}

func noun(root string) string {
	switch root {
	case "var":
		return "variable"
	case "local":
		return "local value"
	}
	return root
}

func existing(root string, names []string) string {
	if len(names) == 0 {
		return fmt.Sprintf("This configuration has no block %s.", strings.Replace(strings.Replace(root, "local", "locals", 1), "var", "variable", 1))
	}
	return fmt.Sprintf("There is %s.", oneOf(names))
}

// declare makes names available to references. What a reference to a block gives is its name.
func (r *reader) declare(root string, names []string) {
	object := make(map[string]cty.Value, len(names))
	for _, n := range names {
		object[n] = cty.StringVal(n)
	}
	r.declareValues(root, object)
}

func (r *reader) declareValues(root string, object map[string]cty.Value) {
	r.names[root] = slices.Sorted(maps.Keys(object))
	r.scope.Variables[root] = cty.ObjectVal(object)
}
