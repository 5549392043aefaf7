package record

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

func schema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	s, err := c.Compile(filepath.Join("..", "..", "docs", "schema", name))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

// full is a record in which no field is left out.
func full() Record {
	r := run(7)
	r.Treatment.Image = "trixie"
	r.Status, r.Error = Failed, "rules loaded: want 1000, got 904"
	r.Samples = map[string][]int64{"rtt_ns": {12412, 12380}}
	r.Checks = []Check{{Name: "rules loaded", Want: 1000, Got: "none", Detail: "set a"}, {Name: "probe dropped", Want: true, Got: true, OK: true}, {Name: "hooks", Want: []any{"forward 0"}, Got: []any{}}}
	r.Prober, r.Ends = &Prober{Late: 1, Realtime: true}, map[string]End{"sender": {CPUPercent: 98.5, Preferred: true}}
	r.PhasesS = map[string]float64{"renew": 1, "load": 0.1, "verify": 0.1, "control": 0.1, "warm_up": 0.1, "measure": 0.4, "unload": 0}
	return r
}

func TestRecordSchema(t *testing.T) {
	s := schema(t, "record.schema.json")
	for _, rec := range []Record{run(1), full()} {
		if err := validate(t, s, line(t, rec)); err != nil {
			t.Error(err)
		}
	}
	sameFields(t, s, reflect.TypeFor[Record]())
	// Schema and Validate refuse the same.
	good := line(t, run(1))
	for old, new := range map[string]string{
		`"schema":1`:    `"schema":2`,
		`"sequence":1`:  `"sequence":0`,
		`"boot":1`:      `"boot":1,"colour":2`,
		`"status":"ok"`: `"status":"failed"`,
		`"ok","metr`:    `"fine","metr`,
		`"latency"`:     `""`,
	} {
		text := strings.Replace(good, old, new, 1)
		if text == good {
			t.Fatalf("%q is not in the record", old)
		}
		if validate(t, s, text) == nil {
			t.Errorf("schema allows %s", new)
		}
		if _, err := decode([]byte(text), Options{}); err == nil {
			t.Errorf("decode allows %s", new)
		}
	}
}

func TestManifestSchema(t *testing.T) {
	s := schema(t, "manifest.schema.json")
	dir := t.TempDir()
	if err := WriteManifest(dir, manifest()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(t, s, string(text)); err != nil {
		t.Error(err)
	}
	sameFields(t, s, reflect.TypeFor[Manifest]())
}

// sameFields holds the properties of a schema to the fields of the Go type, all the way down.
func sameFields(t *testing.T, s *jsonschema.Schema, typ reflect.Type) {
	t.Helper()
	for s != nil && s.Ref != nil {
		s = s.Ref
	}
	switch {
	case s == nil:
		t.Errorf("%v has no schema", typ)
	case typ.PkgPath() != reflect.TypeFor[Record]().PkgPath():
		container(t, s, typ)
	case typ.Kind() == reflect.Struct:
		structure(t, s, typ)
	}
}

func container(t *testing.T, s *jsonschema.Schema, typ reflect.Type) {
	t.Helper()
	switch {
	case typ.Kind() == reflect.Map:
		values, _ := s.AdditionalProperties.(*jsonschema.Schema)
		sameFields(t, values, typ.Elem())
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() != reflect.Uint8: // not json.RawMessage
		sameFields(t, s.Items2020, typ.Elem())
	}
}

func structure(t *testing.T, s *jsonschema.Schema, typ reflect.Type) {
	t.Helper()
	required := map[string]bool{}
	for _, name := range s.Required {
		required[name] = true
	}
	for i := range typ.NumField() {
		field := typ.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		property, ok := s.Properties[name]
		if !ok {
			t.Errorf("%v.%s: the schema has no property %q", typ, field.Name, name)
			continue
		}
		if optional := strings.Contains(options, "omit"); optional == required[name] {
			t.Errorf("%v.%s: optional in Go: %v, required in the schema: %v", typ, field.Name, optional, required[name])
		}
		sameFields(t, property, field.Type)
	}
	if len(s.Properties) != typ.NumField() {
		t.Errorf("%v: %d properties in the schema, %d fields", typ, len(s.Properties), typ.NumField())
	}
}
