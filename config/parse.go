package config

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// Format lays a configuration out in the canonical way: indentation, and equals signs one below the
// other. A text with mistakes of syntax is not touched; name is for the error.
func Format(name string, text []byte) ([]byte, error) {
	r := newReader()
	if _, ok := r.parse(name, text); !ok {
		return nil, r.error()
	}
	return hclwrite.Format(text), nil
}

// parse reads a file as hcl. It is false, and the reasons are reported, where it is not.
func (r *reader) parse(name string, text []byte) (*hclsyntax.Body, bool) {
	if !r.checkText(name, text) {
		return nil, false
	}
	r.files[name] = &hcl.File{Bytes: text}
	tokens, _ := hclsyntax.LexConfig(text, name, hcl.InitialPos)
	if !r.checkNesting(tokens) || !r.checkNumbers(tokens) {
		return nil, false
	}
	file, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
	r.files[name] = file
	r.diags = append(r.diags, diags...)
	return file.Body.(*hclsyntax.Body), !diags.HasErrors()
}

// parseExpression reads a text that is one expression.
func (r *reader) parseExpression(name string, text []byte) (hclsyntax.Expression, bool) {
	tokens, _ := hclsyntax.LexExpression(text, name, hcl.InitialPos)
	if !r.checkNesting(tokens) || !r.checkNumbers(tokens) {
		return nil, false
	}
	expr, diags := hclsyntax.ParseExpression(text, name, hcl.InitialPos)
	r.diags = append(r.diags, diags...)
	return expr, !diags.HasErrors()
}

// checkText refuses what is no text, without an excerpt: its bytes could do harm in a terminal.
func (r *reader) checkText(name string, text []byte) bool {
	line := 1
	for i := 0; i < len(text); {
		c, width := utf8.DecodeRune(text[i:])
		if c == utf8.RuneError && width == 1 || c != '\n' && c != '\r' && c != '\t' && unicode.IsControl(c) {
			r.fail(hcl.Range{}, fmt.Sprintf("File %s is not a text: byte %#02x on line %d", name, text[i], line), "A configuration is a text in UTF-8; is this the right file?")
			return false
		}
		if c == '\n' {
			line++
		}
		i += width
	}
	if bytes.HasPrefix(text, []byte("\ufeff")) {
		r.fail(hcl.Range{}, fmt.Sprintf("File %s begins with a byte order mark", name), "Save it as UTF-8 without one.")
		return false
	}
	return true
}

// maxNesting bounds both brackets in brackets and operators in a row. hcl's parser calls itself for
// each, about 9 KiB of stack a level, and the Go runtime ends a program whose stack reaches 1 GiB: a
// file of 1 MiB that holds nothing but "[" would end this one.
const maxNesting = 100

// checkNesting reports the first place that is nested too deeply to be read.
func (r *reader) checkNesting(tokens hclsyntax.Tokens) bool {
	var open []hclsyntax.TokenType
	operators := 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote,
			hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			open = append(open, t.Type)
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote,
			hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			open = open[:max(len(open)-1, 0)]
		case hclsyntax.TokenBang, hclsyntax.TokenMinus, hclsyntax.TokenQuestion:
			operators++
		case hclsyntax.TokenComma:
			operators = 0
		case hclsyntax.TokenNewline:
			if n := len(open); n == 0 || open[n-1] == hclsyntax.TokenOBrace {
				operators = 0 // elsewhere a line end does not end an expression
			}
		}
		if len(open) > maxNesting || operators > maxNesting {
			r.fail(t.Range, "This is nested too deeply", "At most %d brackets may be open, and as many operators stand in one expression.", maxNesting)
			return false
		}
	}
	return true
}

// checkNumbers reports numbers with more than three digits of exponent. 1e99999999 is read at once, and
// then written out as a text of a hundred million digits wherever a message or a template needs one.
func (r *reader) checkNumbers(tokens hclsyntax.Tokens) bool {
	before := len(r.diags)
	for _, t := range tokens {
		if t.Type == hclsyntax.TokenNumberLit && hugeExponent(string(t.Bytes)) {
			r.fail(t.Range, "This number is out of any range", "No number here needs an exponent of more than three digits.")
		}
	}
	return !r.failedSince(before)
}

func hugeExponent(number string) bool {
	i := strings.IndexAny(number, "eE")
	return i >= 0 && len(strings.TrimLeft(number[i+1:], "+-0")) > 3
}
