package config

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const manual = "../docs/configuration.md"

// generated matches a part of the manual that is printed from the tables of this package.
var generated = regexp.MustCompile(`(?s)(<!-- generated: (\S+)[^>]*-->\n).*?(<!-- end -->)`)

// The tables of the manual are those of the reader. With -update they are printed anew.
func TestManualTables(t *testing.T) {
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{"functions": functionList(), "firewalls": firewallTable(), "presets": presetTable()}
	walk(grammar(), func(s *schema) { parts[key(s)] = blockTable(s) })
	used := map[string]bool{}
	printed := generated.ReplaceAllFunc(text, func(match []byte) []byte {
		groups := generated.FindSubmatch(match)
		name := string(groups[2])
		part, ok := parts[name]
		if !ok {
			t.Errorf("the manual asks for a part %q", name)
		}
		used[name] = true
		return slices.Concat(groups[1], []byte("\n"+part+"\n"), groups[3])
	})
	for name := range parts {
		if !used[name] && name != "configuration" {
			t.Errorf("the manual lacks the part %q", name)
		}
	}
	if bytes.Equal(text, printed) {
		return
	}
	if !*update {
		t.Errorf("%s does not say what the code does; run go test ./config -update", manual)
		return
	}
	if err := os.WriteFile(manual, printed, 0o644); err != nil {
		t.Fatal(err)
	}
}

// Every example in the manual loads, in the order in which they stand, each by itself.
func TestManualExamples(t *testing.T) {
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) == 0 {
		t.Fatal("the manual has no example")
	}
	for _, example := range examples {
		cfg, err := Load(Source{Files: map[string]string{"manual": string(example[1])}})
		if err != nil {
			t.Errorf("%s\n%v", example[1], err)
			continue
		}
		checkConfig(t, cfg)
	}
}

// key names the part of a block; blocks of one type and several schemas have their label in it.
func key(s *schema) string {
	if len(s.labels) == 1 {
		return s.name + "-" + s.labels[0]
	}
	return s.name
}

func blockTable(s *schema) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", s.doc)
	if len(s.attributes) == 0 {
		return out.String()
	}
	out.WriteString("\n| attribute | value | default | meaning |\n| --- | --- | --- | --- |\n")
	for _, a := range s.attributes {
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", a.name, valueText(a), defaultText(a), strings.ReplaceAll(a.doc, "|", "\\|"))
	}
	return out.String()
}

func valueText(a attribute) string {
	value := a.kind.String()
	switch {
	case len(a.oneOf) > 0 && a.kind == texts:
		value += " of `" + strings.Join(a.oneOf, "`, `") + "`"
	case len(a.oneOf) > 0:
		value = "`\"" + strings.Join(a.oneOf, "\"`, `\"") + "\"`"
	case a.kind == number && a.min != "":
		value += " between " + a.min + " and " + a.max
	case a.min != "":
		value += ", " + a.min + " to " + a.max
	}
	if a.example != "" && len(a.oneOf) == 0 {
		value += ", such as `" + a.example + "`"
	}
	return value
}

func defaultText(a attribute) string {
	switch {
	case a.required:
		return "must be given"
	case a.def == "":
		return "–"
	}
	return "`" + a.def + "`"
}

func functionList() string {
	return "`" + strings.Join(slices.Sorted(maps.Keys(functions())), "`, `") + "`\n"
}

func firewallTable() string {
	var out strings.Builder
	out.WriteString("| name | engine | lookup | position |\n| --- | --- | --- | --- |\n")
	for _, f := range predeclared() {
		fmt.Fprintf(&out, "| `%s` | `%s` | %s | %s |\n", f.Name, f.Engine, dash(f.Lookup), dash(f.Position))
	}
	return out.String()
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return "`" + s + "`"
}

func presetTable() string {
	var out strings.Builder
	out.WriteString("| preset | what it is |\n| --- | --- |\n")
	for _, p := range Presets() {
		fmt.Fprintf(&out, "| `%s` | %s |\n", p.Name, p.Summary)
	}
	return out.String()
}
