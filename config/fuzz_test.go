package config

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// seeds gives every text of the examples and the golden tests.
func seeds(f *testing.F) [][]byte {
	var list [][]byte
	for _, preset := range Presets() {
		list = append(list, preset.Text)
	}
	paths, err := examples()
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		list = append(list, text)
	}
	archives, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			list = append(list, file.Data)
		}
	}
	return append(list, nil, []byte("\x00"), []byte("a = <<E\n${"), []byte("experiment \"x\" { seed = [for"))
}

// Whatever the text: an error with at least one mistake, or a configuration that every other package
// can go on with.
func FuzzLoad(f *testing.F) {
	for _, text := range seeds(f) {
		f.Add(text, "10")
	}
	f.Fuzz(func(t *testing.T, text []byte, value string) {
		cfg, err := Load(Source{Files: map[string]string{"fuzz.hcl": string(text)}, Vars: []string{"repetitions=" + value}})
		if err == nil {
			checkConfig(t, cfg)
			return
		}
		e := err.(*Error)
		if len(e.Diagnostics()) == 0 || e.Error() == "" {
			t.Error("an error without a mistake")
		}
		if err := e.Render(&bytes.Buffer{}, 60, true); err != nil {
			t.Error(err)
		}
	})
}

// What is formatted stays so, and means what it meant.
func FuzzFormat(f *testing.F) {
	for _, text := range seeds(f) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := Format("fuzz.hcl", text)
		if err != nil {
			return
		}
		twice, err := Format("fuzz.hcl", once)
		if err != nil {
			t.Fatalf("formatting broke the text: %v\n%s", err, once)
		}
		if !bytes.Equal(once, twice) {
			t.Errorf("formatting again gives something else:\n%q\n%q", once, twice)
		}
		if !bytes.Equal(withoutSpace(text), withoutSpace(once)) {
			t.Errorf("formatting changed more than space:\n%q\n%q", text, once)
		}
	})
}

func withoutSpace(text []byte) []byte { return bytes.Join(bytes.Fields(text), nil) }
