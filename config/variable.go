package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

func variableSchema() *schema {
	return &schema{
		name: "variable", label: "name", occurs: perLabel,
		doc: "A value that can be given from outside with `--var name=value` or in a file named by `--var-file`. Referred to as `var.name`.",
		attributes: []attribute{
			{name: "default", kind: anyValue, doc: "The value when none is given. A variable without a default must be given one. It is a plain value: functions may be called, references may not stand in it."},
			{name: "type", kind: typeOf, doc: "What values are allowed: `string`, `number`, `bool`, `list(number)` and so on. Without it, the type of the default."},
			{name: "description", kind: text, doc: "For the reader of the file."},
		},
	}
}

// A variable as declared.
type variable struct {
	body *body
	def  cty.Value // NilVal: none
	want cty.Type  // DynamicPseudoType: any
}

// given is a value from outside: from a file, where it is an expression, or from the command line,
// where it is a text to be read according to the type of the variable.
type given struct {
	expr hcl.Expression // nil for the command line
	text string
	rng  hcl.Range
}

// readVariables gives the value of each variable, and keeps those that came from outside as texts.
func (r *reader) readVariables(blocks []*body, outside map[string]given, cfg *Config) map[string]cty.Value {
	values := map[string]cty.Value{}
	cfg.Variables = map[string]string{}
	for _, b := range blocks {
		v := r.readVariable(b)
		g, ok := outside[b.label]
		switch {
		case ok:
			values[b.label] = r.receive(v, g)
			cfg.Variables[b.label] = g.text
		case v.def != cty.NilVal:
			values[b.label] = v.def
		default:
			values[b.label] = cty.DynamicVal
			r.fail(b.rng, fmt.Sprintf("Variable %q has no value", b.label), "Give it one with --var %s=VALUE, or a default here.", b.label)
		}
	}
	r.checkDeclared(outside, values)
	return values
}

func (r *reader) checkDeclared(outside map[string]given, declared map[string]cty.Value) {
	names := slices.Sorted(maps.Keys(declared))
	for name, g := range outside {
		if _, ok := declared[name]; !ok {
			r.fail(g.rng, fmt.Sprintf("There is no variable %q", cut(name, 40)), "%s", unknown(name, names, "The variables of this configuration are"))
		}
	}
}

func (r *reader) readVariable(b *body) variable {
	v := variable{body: b, want: cty.DynamicPseudoType}
	b.text("description")
	if a := b.attributes["type"]; a != nil {
		ty, diags := typeexpr.TypeConstraint(a.Expr)
		r.diags = append(r.diags, diags...)
		if !diags.HasErrors() {
			v.want = ty
		}
	}
	if !b.has("default") {
		return v
	}
	value, ok := r.evaluate(b.attributes["default"].Expr)
	switch {
	case !ok:
		v.def = cty.DynamicVal
		return v
	case value.IsNull():
		return v // null is no default
	}
	converted, err := convert.Convert(value, v.want)
	if err != nil {
		b.wrong("default", &mistake{"is not of the variable's type", fmt.Sprintf("Write %s.", typeName(v.want))})
		converted = cty.DynamicVal
	}
	v.def = converted
	return v
}

// receive reads a value from outside as Terraform does: on the command line a value for a list or an
// object is an expression, and for everything else the text as it stands.
func (r *reader) receive(v variable, g given) cty.Value {
	expr := g.expr
	if expr == nil {
		if v.isPlain() {
			return r.conform(v, g, cty.StringVal(g.text))
		}
		parsed, ok := r.parseExpression(g.rng.Filename, []byte(g.text))
		if !ok {
			return cty.DynamicVal
		}
		expr = parsed
	}
	value, ok := r.evaluate(expr)
	if !ok {
		return cty.DynamicVal
	}
	return r.conform(v, g, value)
}

// isPlain reports whether the command line gives the variable's text as it stands.
func (v variable) isPlain() bool {
	if v.want != cty.DynamicPseudoType {
		return v.want.IsPrimitiveType()
	}
	return v.def == cty.NilVal || v.def.Type().IsPrimitiveType()
}

// conform holds a value from outside to the variable's type or, without one, to the kind of its
// default: another number for a number, another list, of any length, for a list.
func (r *reader) conform(v variable, g given, value cty.Value) cty.Value {
	want := v.want
	if want == cty.DynamicPseudoType && v.def != cty.NilVal && v.def.Type().IsPrimitiveType() {
		want = v.def.Type()
	}
	converted, err := convert.Convert(value, want)
	if err == nil && huge(converted) {
		r.fail(g.rng, fmt.Sprintf("The value of variable %q is out of any range", v.body.label), "No number here needs an exponent of more than three digits.")
		return cty.DynamicVal
	}
	if err == nil && (want != cty.DynamicPseudoType || v.def == cty.NilVal || alike(v.def, converted)) {
		return converted
	}
	if err == nil {
		want = v.def.Type()
	}
	r.fail(g.rng, fmt.Sprintf("The value of variable %q is of the wrong type", v.body.label), "Give %s, as declared at %s:%d.", typeName(want), v.body.rng.Filename, v.body.rng.Start.Line)
	return cty.DynamicVal
}

// typeName is a type with its article.
func typeName(ty cty.Type) string {
	switch {
	case ty.IsTupleType():
		return "a list"
	case ty.IsObjectType():
		return "an object"
	}
	return "a " + ty.FriendlyName()
}

// alike reports whether two values that are no primitives are both lists or both objects.
func alike(a, b cty.Value) bool {
	isObject := func(v cty.Value) bool { return v.Type().IsObjectType() || v.Type().IsMapType() }
	return a.Type() == cty.DynamicPseudoType || isList(a) && isList(b) || isObject(a) && isObject(b)
}

// commandLine reads the assignments of --var, in order; the last one for a name counts.
func (r *reader) commandLine(assignments []string, into map[string]given) {
	for _, assignment := range assignments {
		name, value, ok := strings.Cut(assignment, "=")
		name = strings.TrimSpace(name)
		if !ok || !hclsyntax.ValidIdentifier(name) {
			r.fail(hcl.Range{}, fmt.Sprintf("--var %s is not an assignment", cut(assignment, 40)), "Write --var NAME=VALUE.")
			continue
		}
		file := "--var " + name
		r.files[file] = &hcl.File{Bytes: []byte(value)}
		rng := hcl.Range{Filename: file, Start: hcl.InitialPos, End: hcl.Pos{Line: 1, Column: len(value) + 1, Byte: len(value)}}
		into[name] = given{text: value, rng: rng}
	}
}

// variableFiles reads the files of --var-file in order; the last value for a name counts.
func (r *reader) variableFiles(paths []string) map[string]given {
	all := map[string]given{}
	for _, path := range paths {
		text, err := readFile(path)
		if err != nil {
			r.fail(hcl.Range{}, fmt.Sprintf("Cannot read the variables in %s: %v", path, reason(err)), "Name a file of lines NAME = VALUE with --var-file.")
			continue
		}
		r.variableFile(path, text, all)
	}
	return all
}

// variableFile reads a file of assignments.
func (r *reader) variableFile(name string, source []byte, into map[string]given) {
	parsed, ok := r.parse(name, source)
	if !ok {
		return
	}
	for _, block := range parsed.Blocks {
		r.fail(block.DefRange(), fmt.Sprintf("A file of variables has no blocks, and this is %q", block.Type), "Write only NAME = VALUE in it.")
	}
	for _, a := range parsed.Attributes {
		text := string(a.Expr.Range().SliceBytes(source))
		into[a.Name] = given{expr: a.Expr, text: text, rng: a.Expr.Range()}
	}
}
