package report

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

func published(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "docs", "schema", name))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The published schema and what we write must say the same.
func TestFindingsFollowTheirSchema(t *testing.T) {
	schema := published(t, "findings.schema.json")
	mixed := small().study()
	mixed.Claims[3].Expect = analysis.Mixed
	f, err := analysis.Analyze(mixed, small().records())
	if err != nil {
		t.Fatal(err)
	}
	empty, err := analysis.Analyze(small().study(), func(func(record.Record, error) bool) {})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]analysis.Findings{"small": small().input().Findings, "released": released().input().Findings, "hostile": hostileInput().Findings, "mixed": f, "empty": empty} {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := validates(schema, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := json.Marshal(small().input().Findings)
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, schema, text, map[string]string{
		`"verdict":"slower"`: `"verdict":"worse"`,
		`"clock":"host"`:     `"clock":"sundial"`,
		`"noise_floors":[`:   `"noise":[`,
		`"holm_p":`:          `"q":1,"holm_p":`,
		`"control":true`:     `"control":"yes"`,
		`"text":"`:           `"txt":"`,
		`"statement":`:       `"says":`,
	})
	sameFields(t, schema, reflect.TypeFor[analysis.Findings]())
}

// What compare prints under a clock with noise and under one without.
func TestContrastFollowsItsSchema(t *testing.T) {
	schema := published(t, "compare.schema.json")
	virtual := small()
	virtual.clock = "virtual"
	var text []byte
	for _, s := range []shape{virtual, small()} {
		c := contrastOf(t, s, func(m *record.Manifest) { m.Host.Kernel, m.Nodes = "another", nil })
		var err error
		if text, err = json.Marshal(c); err != nil {
			t.Fatal(err)
		}
		if err := validates(schema, text); err != nil {
			t.Errorf("clock %s: %v", s.clock, err)
		}
	}
	refuses(t, schema, text, map[string]string{
		`"verdict":"slower"`:          `"verdict":"worse"`,
		`"clock":"host"`:              `"clock":"sundial"`,
		`"regressed":true`:            `"regressed":"yes"`,
		`"missing":[`:                 `"gone":[`,
		`"what":"`:                    `"which":"`,
		`"holm_p":`:                   `"q":1,"holm_p":`,
		`"folder":"one"`:              `"folder":1`,
		`"records_digest":"sha256:1"`: `"records_digest":"1"`,
	})
	sameFields(t, schema, reflect.TypeFor[Contrast]())
}

// refuses changes the text, which is right, and wants the schema to notice.
func refuses(t *testing.T, schema *jsonschema.Schema, text []byte, changes map[string]string) {
	t.Helper()
	for old, new := range changes {
		changed := bytes.Replace(text, []byte(old), []byte(new), 1)
		if bytes.Equal(changed, text) {
			t.Errorf("there is no %s to change: the test tests nothing", old)
		} else if validates(schema, changed) == nil {
			t.Errorf("the schema accepts %s for %s", new, old)
		}
	}
}

func validates(s *jsonschema.Schema, text []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// sameFields holds the properties of a schema to the fields of a type, all the way down.
func sameFields(t *testing.T, s *jsonschema.Schema, typ reflect.Type) {
	t.Helper()
	for s != nil && s.Ref != nil {
		s = s.Ref
	}
	if s == nil {
		t.Errorf("%v has no schema", typ)
		return
	}
	switch typ.Kind() {
	case reflect.Pointer:
		sameFields(t, s, typ.Elem())
	case reflect.Slice, reflect.Array:
		items := s.Items2020
		sameFields(t, items, typ.Elem())
	case reflect.Struct:
		want := map[string]reflect.Type{}
		for f := range structFields(typ) {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
				want[name] = f.Type
			}
		}
		if got, want := slices.Sorted(maps.Keys(s.Properties)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
			t.Errorf("%v: the schema has %v, the type %v", typ, got, want)
		}
		for name, typ := range want {
			sameFields(t, s.Properties[name], typ)
		}
	}
}

func structFields(typ reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range typ.NumField() {
			if !yield(typ.Field(i)) {
				return
			}
		}
	}
}
