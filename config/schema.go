package config

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// A schema describes one kind of block. The reader holds configurations to it and the manual prints
// it, so neither can say what the other does not.
//
// It is a table of our own rather than the struct tags of gohcl, because every value needs its place
// in the file, its limits in the units of the user and a default that is not confused with zero.
type schema struct {
	name       string
	label      string   // what the label is, such as "name"; empty for a block without one
	labels     []string // the labels there are; nil: any name
	occurs     occurs
	attributes []attribute
	anything   bool // attributes of any name are allowed (locals)
	blocks     []*schema
	doc        string
}

// occurs says how often a kind of block may stand in one place.
type occurs int

const (
	once     occurs = iota // at most once, whatever its label
	perLabel               // once with each label
	often
)

// An attribute of a block. Default and limits are HCL text, read by the same code as the user's own.
type attribute struct {
	name     string
	kind     kind
	required bool
	def      string   // empty: none
	min, max string   // of an amount, or of each element; both or none
	oneOf    []string // of a text
	example  string   // HCL text; of attributes without a default
	doc      string
}

// A kind is what an attribute's value must be.
type kind int

const (
	text kind = iota
	truth
	whole
	number
	duration // nanoseconds
	size     // bytes
	rate     // bit/s
	texts
	names // one text, or a list of them
	wholes
	cpus      // a set of the host's CPUs
	cpuSets   // list of such sets
	pairs     // list of pairs of texts
	reference // the name of another block
	region    // factor = condition
	settings  // name = value
	anyValue
	typeOf // a type constraint, which is not a value
)

func (k kind) String() string {
	switch k {
	case text:
		return "text"
	case truth:
		return "true or false"
	case whole:
		return "whole number"
	case number:
		return "number"
	case duration:
		return "duration"
	case size:
		return "size"
	case rate:
		return "bit rate"
	case texts:
		return "list of names"
	case names:
		return "name, or list of names"
	case wholes:
		return "list of whole numbers"
	case cpus:
		return "CPU list"
	case cpuSets:
		return "list of CPU lists"
	case pairs:
		return "list of pairs of names"
	case reference:
		return "reference"
	case region:
		return "conditions"
	case settings:
		return "names and values"
	case typeOf:
		return "type"
	}
	return "any value"
}

// amount reads a value of a kind that is counted in whole units.
func (k kind) amount(v cty.Value) (int64, *mistake) {
	switch k {
	case duration:
		return parseDuration(v)
	case size:
		return parseSize(v)
	case rate:
		return parseRate(v)
	}
	return parseWhole(v)
}

// attribute returns the attribute called name. Asking for one that the table lacks is a mistake of
// the program, which the first test that reads such a block finds.
func (s *schema) attribute(name string) attribute {
	for _, a := range s.attributes {
		if a.name == name {
			return a
		}
	}
	panic("config: block " + s.name + " has no attribute " + name + " in its table")
}

func (s *schema) attributeNames() []string {
	names := make([]string, 0, len(s.attributes))
	for _, a := range s.attributes {
		names = append(names, a.name)
	}
	return names
}

// blockNames lists the kinds of block inside, each once.
func (s *schema) blockNames() []string {
	var names []string
	for _, b := range s.blocks {
		if len(names) == 0 || names[len(names)-1] != b.name {
			names = append(names, b.name)
		}
	}
	return names
}

// constant evaluates an HCL text that is part of this program.
func constant(source string) cty.Value {
	expr, diags := hclsyntax.ParseExpression([]byte(source), "default", hcl.InitialPos)
	if diags.HasErrors() {
		panic("config: default " + source + ": " + diags.Error())
	}
	v, diags := expr.Value(nil)
	if diags.HasErrors() {
		panic("config: default " + source + ": " + diags.Error())
	}
	return v
}
