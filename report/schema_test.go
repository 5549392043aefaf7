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

func findingsSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "docs", "schema", "findings.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The published schema and what we write must say the same.
func TestFindingsFollowTheirSchema(t *testing.T) {
	schema := findingsSchema(t)
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
	for name, f := range map[string]analysis.Findings{"small": small().input().Findings, "hostile": hostileInput().Findings, "mixed": f, "empty": empty} {
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
	for old, new := range map[string]string{
		`"verdict":"slower"`: `"verdict":"worse"`,
		`"clock":"host"`:     `"clock":"sundial"`,
		`"noise_floors":[`:   `"noise":[`,
		`"holm_p":`:          `"q":1,"holm_p":`,
		`"control":true`:     `"control":"yes"`,
		`"text":"`:           `"txt":"`,
		`"statement":`:       `"says":`,
	} {
		changed := bytes.Replace(text, []byte(old), []byte(new), 1)
		if bytes.Equal(changed, text) {
			t.Errorf("there is no %s to change: the test tests nothing", old)
		} else if validates(schema, changed) == nil {
			t.Errorf("the schema accepts %s for %s", new, old)
		}
	}
	sameFields(t, schema, reflect.TypeFor[analysis.Findings]())
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
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			want[name] = f.Type
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
