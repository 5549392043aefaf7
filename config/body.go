package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/rampart-bench/rampart/testbed"
)

// A body is a block being read. A block that is not there is a body without attributes: everything in
// it has its default.
type body struct {
	r          *reader
	schema     *schema
	label      string
	rng        hcl.Range // of the header; of the block around it where this one is not there
	attributes hclsyntax.Attributes
	blocks     hclsyntax.Blocks
}

// at is a value with its place.
type at[T any] struct {
	value T
	rng   hcl.Range
}

// open checks what is in a block against its schema.
func (r *reader) open(s *schema, block *hclsyntax.Block) *body {
	b := &body{r: r, schema: s, rng: block.DefRange(), attributes: block.Body.Attributes, blocks: block.Body.Blocks}
	if len(block.Labels) > 0 {
		b.label = block.Labels[0]
	}
	b.check("Block " + block.Type)
	return b
}

// check reports attributes and blocks that the schema does not know.
func (b *body) check(where string) {
	attributes, blocks := b.schema.attributeNames(), b.schema.blockNames()
	for _, a := range b.sortedAttributes() {
		switch {
		case b.schema.anything || slices.Contains(attributes, a.Name):
		case slices.Contains(blocks, a.Name):
			b.r.fail(a.NameRange, fmt.Sprintf("%s is a block", a.Name), "Write it without the equals sign: %s { … }.", a.Name)
		default:
			b.r.fail(a.NameRange, fmt.Sprintf("%s has no attribute %q", where, a.Name), "%s", b.inside(a.Name))
		}
	}
	for _, block := range b.blocks {
		switch {
		case slices.Contains(blocks, block.Type):
		case slices.Contains(attributes, block.Type):
			b.r.fail(block.TypeRange, fmt.Sprintf("%s is an attribute", block.Type), "Write it with an equals sign: %s = ….", block.Type)
		default:
			b.r.fail(block.DefRange(), fmt.Sprintf("%s has no block %q", where, block.Type), "%s", b.inside(block.Type))
		}
	}
}

// inside is the nearest name to the one given, and all that may stand in this block.
func (b *body) inside(given string) string {
	attributes, blocks := b.schema.attributeNames(), b.schema.blockNames()
	text := didYouMean(given, append(slices.Clone(attributes), blocks...))
	if len(attributes) > 0 {
		text += fmt.Sprintf("Its attributes are %s. ", list(attributes))
	}
	if len(blocks) > 0 {
		text += fmt.Sprintf("Its blocks are %s. ", list(blocks))
	}
	if len(attributes)+len(blocks) == 0 {
		text += "There is nothing in it. "
	}
	return text[:len(text)-1]
}

// sortedAttributes are the attributes as they stand in the text.
func (b *body) sortedAttributes() []*hclsyntax.Attribute {
	sorted := make([]*hclsyntax.Attribute, 0, len(b.attributes))
	for _, a := range b.attributes {
		sorted = append(sorted, a)
	}
	slices.SortFunc(sorted, func(x, y *hclsyntax.Attribute) int {
		return cmp.Or(cmp.Compare(x.NameRange.Filename, y.NameRange.Filename), cmp.Compare(x.NameRange.Start.Byte, y.NameRange.Start.Byte))
	})
	return sorted
}

// children opens the blocks called name whose labels are right; of duplicates only the first.
func (b *body) children(name string) []*body {
	var found []*body
	first := map[string]hcl.Range{}
	for _, block := range b.blocks {
		if block.Type != name {
			continue
		}
		s, ok := b.r.label(b.schema, block)
		if !ok {
			continue
		}
		key := ""
		if s.occurs == perLabel {
			key = block.Labels[0]
		}
		if before, ok := first[key]; ok && s.occurs != often {
			b.r.duplicate(s, block, before)
			continue
		}
		first[key] = block.DefRange()
		found = append(found, b.r.open(s, block))
	}
	return found
}

// child opens the one block called name, or stands for it with its defaults.
func (b *body) child(name string) *body {
	if found := b.children(name); len(found) > 0 {
		return found[0]
	}
	for _, s := range b.schema.blocks {
		if s.name == name {
			return &body{r: b.r, schema: s, label: firstOf(s.labels), rng: b.rng}
		}
	}
	panic("config: block " + b.schema.name + " has no block " + name + " in its table")
}

func firstOf(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

func (r *reader) duplicate(s *schema, block *hclsyntax.Block, first hcl.Range) {
	if s.labels != nil && s.occurs == perLabel {
		r.fail(block.LabelRanges[0], fmt.Sprintf("There are two blocks %s %q", block.Type, block.Labels[0]), "The first is at %s:%d; write everything in that one.", first.Filename, first.Start.Line)
		return
	}
	if s.occurs == once {
		r.fail(block.DefRange(), fmt.Sprintf("There is more than one block %s", block.Type), "The first is at %s:%d; write everything in that one.", first.Filename, first.Start.Line)
		return
	}
	r.fail(block.LabelRanges[0], fmt.Sprintf("There are two blocks %s %q", block.Type, block.Labels[0]), "The first is at %s:%d; give this one another name.", first.Filename, first.Start.Line)
}

// name of a block: it becomes part of references, file names and table headings.
var blockName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]{0,62}$`)

// label finds the schema for a block by its type and label.
func (r *reader) label(parent *schema, block *hclsyntax.Block) (*schema, bool) {
	var labels []string
	var what string
	for _, s := range parent.blocks {
		if s.name != block.Type {
			continue
		}
		if n := len(block.Labels); s.label == "" && n > 0 || s.label != "" && n != 1 {
			r.wrongLabels(s, block)
			return nil, false
		}
		if s.label == "" || s.labels != nil && slices.Contains(s.labels, block.Labels[0]) {
			return s, true
		}
		if s.labels == nil {
			if !blockName.MatchString(block.Labels[0]) {
				r.fail(block.LabelRanges[0], fmt.Sprintf("%q cannot be a name", cut(block.Labels[0], 40)), "A name begins with a letter and has at most 63 letters, digits, dashes and underscores.")
				return nil, false
			}
			return s, true
		}
		labels, what = append(labels, s.labels...), s.label
	}
	given := block.Labels[0]
	r.fail(block.LabelRanges[0], fmt.Sprintf("There is no %s %s %q", block.Type, what, cut(given, 40)), "%s", unknown(given, labels, "It can be"))
	return nil, false
}

func (r *reader) wrongLabels(s *schema, block *hclsyntax.Block) {
	if s.label == "" {
		r.fail(block.DefRange(), fmt.Sprintf("Block %s takes no label", s.name), "Write %s { … }.", s.name)
		return
	}
	example := s.label
	if s.labels != nil {
		example = s.labels[0]
	}
	r.fail(block.DefRange(), fmt.Sprintf("Block %s needs one label, its %s", s.name, s.label), "Write %s %q { … }.", s.name, example)
}

// has reports whether the attribute is written in the block.
func (b *body) has(name string) bool { return b.attributes[name] != nil }

// rangeOf is where the attribute's value stands, or the header of the block.
func (b *body) rangeOf(name string) hcl.Range {
	if a := b.attributes[name]; a != nil {
		return a.Expr.Range()
	}
	return b.rng
}

// wrong reports a mistake in the value of the attribute.
func (b *body) wrong(name string, m *mistake) {
	b.r.fail(b.rangeOf(name), name+" "+m.summary, "%s", m.right)
}

// value is the value of the attribute, or its default where it is not written or null. It is false where
// there is neither, and where a mistake was reported.
func (b *body) value(name string) (v cty.Value, ok bool) {
	a := b.schema.attribute(name)
	if written := b.attributes[name]; written != nil {
		v, ok := b.r.evaluate(written.Expr)
		if !ok {
			return cty.NilVal, false
		}
		if !v.IsNull() {
			return v, true
		}
	}
	if a.required {
		b.r.fail(b.rng, fmt.Sprintf("%s is missing", name), "%s", a.needed())
	}
	if a.def == "" {
		return cty.NilVal, false
	}
	return constant(a.def), true
}

// needed says how to write an attribute that must be there.
func (a attribute) needed() string {
	right := fmt.Sprintf("Write %s = %s, for example.", a.name, a.example)
	if a.oneOf != nil {
		right += fmt.Sprintf(" It can be %s.", oneOf(a.oneOf))
	}
	return right
}

// read gives the attribute's value through parse. Where that is wrong the default stands in, or zero, so
// that reading can go on.
func read[T any](b *body, name string, parse func(attribute, cty.Value) (T, *mistake)) T {
	a := b.schema.attribute(name)
	if v, ok := b.value(name); ok {
		parsed, wrong := parse(a, v)
		if wrong == nil {
			return parsed
		}
		b.wrong(name, wrong)
	}
	var zero T
	if a.def == "" {
		return zero
	}
	standIn, _ := parse(a, constant(a.def))
	return standIn
}

func (b *body) text(name string) string    { return read(b, name, attribute.text) }
func (b *body) truth(name string) bool     { return read(b, name, attribute.truth) }
func (b *body) number(name string) float64 { return read(b, name, attribute.number) }
func (b *body) amount(name string) int64   { return read(b, name, attribute.amount) }
func (b *body) whole(name string) int      { return int(b.amount(name)) }

func (b *body) cpus(name string) testbed.CPUs { return read(b, name, attribute.cpus) }

func (a attribute) truth(v cty.Value) (bool, *mistake)        { return parseTruth(v) }
func (a attribute) cpus(v cty.Value) (testbed.CPUs, *mistake) { return parseCPUs(v) }

// text holds a text to the list of what it can be.
func (a attribute) text(v cty.Value) (string, *mistake) {
	s, wrong := parseText(v)
	switch {
	case wrong != nil:
	case a.oneOf != nil && !slices.Contains(a.oneOf, s):
		wrong = &mistake{fmt.Sprintf("cannot be %q", cut(s, 40)), unknown(s, a.oneOf, "It can be")}
	case s == "":
		wrong = &mistake{"is empty", a.instead()}
	}
	return s, wrong
}

// instead says what to write in the place of an empty text. Empty is not the same as not given: that is said by
// leaving the attribute out, or by null.
func (a attribute) instead() string {
	switch {
	case a.kind != text:
		return "Write a name, or remove it."
	case a.required:
		return fmt.Sprintf("Write a text, such as %s.", a.example)
	case a.example != "":
		return fmt.Sprintf("Write a text, such as %s, or leave it out.", a.example)
	case a.def != "":
		return fmt.Sprintf("Write a text, or leave it out for the default, %s.", a.def)
	}
	return "Write a text, or leave it out."
}

// amount holds an amount to its limits.
func (a attribute) amount(v cty.Value) (int64, *mistake) {
	n, wrong := a.kind.amount(v)
	if wrong != nil || a.min == "" {
		return n, wrong
	}
	lowest, _ := a.kind.amount(constant(a.min))
	highest, _ := a.kind.amount(constant(a.max))
	if n < lowest {
		return n, &mistake{"is too small: " + show(v), a.limits()}
	}
	if n > highest {
		return n, &mistake{"is too large: " + show(v), a.limits()}
	}
	return n, nil
}

// number holds a number to its limits, which are themselves excluded.
func (a attribute) number(v cty.Value) (float64, *mistake) {
	f, wrong := parseNumber(v)
	if wrong != nil || a.min == "" {
		return f, wrong
	}
	lowest, _ := parseNumber(constant(a.min))
	highest, _ := parseNumber(constant(a.max))
	if f <= lowest || f >= highest {
		return f, &mistake{"is out of range: " + show(v), fmt.Sprintf("Use a number between %s and %s.", a.min, a.max)}
	}
	return f, nil
}

func (a attribute) limits() string { return fmt.Sprintf("Use %s to %s.", a.min, a.max) }

// elements are the elements of a list, each with its place where the list is written out, or the one name
// where that is allowed. They are nil where a mistake was reported, and where there is no list.
func (b *body) elements(name string) []at[cty.Value] {
	if a := b.attributes[name]; a != nil {
		if exprs, diags := hcl.ExprList(a.Expr); !diags.HasErrors() {
			return b.r.evaluateAll(exprs)
		}
	}
	v, ok := b.value(name)
	if !ok {
		return nil
	}
	if !isList(v) && b.schema.attribute(name).kind == names {
		return []at[cty.Value]{{v, b.rangeOf(name)}}
	}
	if !isList(v) {
		b.wrong(name, &mistake{"is not a list", fmt.Sprintf("Write it in brackets, such as %s.", b.schema.attribute(name).listExample())})
		return nil
	}
	elements := []at[cty.Value]{}
	for _, element := range v.AsValueSlice() {
		elements = append(elements, at[cty.Value]{element, b.rangeOf(name)})
	}
	return elements
}

func (a attribute) listExample() string {
	if a.example != "" {
		return a.example
	}
	return a.def
}

func isList(v cty.Value) bool {
	ty := v.Type()
	return ty.IsTupleType() || ty.IsListType() || ty.IsSetType()
}

// readEach reads every element through parse and puts mistakes down to the element: hcl would put the
// blame on the opening bracket.
func readEach[T any](b *body, name string, parse func(attribute, cty.Value) (T, *mistake)) []at[T] {
	a := b.schema.attribute(name)
	before := len(b.r.diags)
	elements := b.elements(name)
	if elements != nil && len(elements) == 0 && len(b.r.diags) == before {
		b.wrong(name, &mistake{"is an empty list", "Give at least one element, or leave the attribute out to get the default."})
	}
	var list []at[T]
	for _, element := range elements {
		v, wrong := parse(a, element.value)
		if wrong != nil {
			b.r.fail(element.rng, fmt.Sprintf("An element of %s %s", name, wrong.summary), "%s", wrong.right)
			continue
		}
		list = append(list, at[T]{v, element.rng})
	}
	return list
}

// distinct reports the elements that are there twice, and leaves them out.
func distinct[T comparable](b *body, name string, list []at[T]) []at[T] {
	var kept []at[T]
	seen := map[T]bool{}
	for _, e := range list {
		if seen[e.value] {
			b.r.fail(e.rng, fmt.Sprintf("%v is in %s twice", e.value, name), "Every element counts once; remove this one.")
			continue
		}
		seen[e.value] = true
		kept = append(kept, e)
	}
	return kept
}

func (b *body) texts(name string) []at[string] {
	return distinct(b, name, readEach(b, name, attribute.text))
}

func (b *body) wholes(name string) []at[int] {
	return distinct(b, name, readEach(b, name, func(a attribute, v cty.Value) (int, *mistake) {
		n, wrong := a.amount(v)
		return int(n), wrong
	}))
}

// values drops the places.
func values[T any](list []at[T]) []T {
	plain := make([]T, 0, len(list))
	for _, e := range list {
		plain = append(plain, e.value)
	}
	return plain
}
