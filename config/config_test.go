package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write what was got into the expected files")

// TestGolden loads the configurations of testdata. In each archive the comment holds words for the
// command line (--config, --var, --var-file, --provider, each with its value after it), the files are
// laid out in a folder of their own, and the last one, "error" or "config", is what must come out.
func TestGolden(t *testing.T) {
	archives, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal("no archives:", err)
	}
	for _, path := range archives {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) { golden(t, path) })
	}
}

func golden(t *testing.T, path string) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	var want string
	for _, f := range archive.Files {
		if f.Name == "error" || f.Name == "config" {
			want = string(f.Data)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.Name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Name, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kind, got := outcome(t, sourceFrom(t, string(archive.Comment)))
	if wantKind := filepath.Base(filepath.Dir(path)); (kind == "error") != (wantKind == "errors") {
		t.Fatalf("this belongs to %s, and Load gave\n%s", wantKind, got)
	}
	if got == want {
		return
	}
	if !*update {
		t.Fatalf("got:\n%s\nwant:\n%s", got, want)
	}
	replace(archive, kind, got)
	if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
		t.Fatal(err)
	}
}

func replace(archive *txtar.Archive, name, text string) {
	var files []txtar.File
	for _, f := range archive.Files {
		if f.Name != "error" && f.Name != "config" {
			files = append(files, f)
		}
	}
	archive.Files = append(files, txtar.File{Name: name, Data: []byte(text)})
}

// outcome is the error as a user sees it, or the configuration as JSON without its texts.
func outcome(t *testing.T, src Source) (kind, text string) {
	cfg, err := Load(src)
	if err != nil {
		if _, ok := errors.AsType[*Error](err); !ok {
			t.Fatalf("error of type %T", err)
		}
		return "error", err.Error() + "\n"
	}
	cfg.Files, cfg.Digest = nil, ""
	encoded, err := json.MarshalIndent(cfg, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return "config", string(encoded) + "\n"
}

// sourceFrom reads command-line words from the comment of an archive; lines that begin with # explain.
func sourceFrom(t *testing.T, comment string) Source {
	var src Source
	for line := range strings.Lines(comment) {
		flag, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case flag == "" || strings.HasPrefix(flag, "#"):
		case flag == "--config":
			src.Path = value
		case flag == "--var":
			src.Vars = append(src.Vars, value)
		case flag == "--var-file":
			src.VarFiles = append(src.VarFiles, value)
		case flag == "--provider":
			src.Provider = value
		default:
			t.Fatalf("unknown word %q", flag)
		}
	}
	return src
}

func TestErrorAsValues(t *testing.T) {
	src := Source{Files: map[string]string{
		"b.hcl": "experiment \"x\" {\n  seeds = 1\n  boots = 0\n}\n",
		"a.hcl": "report {\n  title = 1 + \"x\"\n}\n",
	}}
	_, err := Load(src)
	var e *Error
	if !errors.As(err, &e) {
		t.Fatal("no *Error:", err)
	}
	list := e.Diagnostics()
	if len(list) != 3 {
		t.Fatalf("%d diagnostics: %+v", len(list), list)
	}
	if first := list[0]; first.File != "a.hcl" || first.Line != 2 || first.Excerpt != "  title = 1 + \"x\"" {
		t.Errorf("first: %+v", first)
	}
	want := Diagnostic{
		Summary: `boots is too small: 0`, Detail: "Use 1 to 10000.",
		File: "b.hcl", Line: 3, Column: 11, Excerpt: "  boots = 0",
	}
	if list[2] != want {
		t.Errorf("third: %+v", list[2])
	}

	var plain, colored bytes.Buffer
	if n, err := e.WriteTo(&plain); err != nil || n != int64(plain.Len()) {
		t.Error("WriteTo:", n, err)
	}
	if plain.String() != err.Error()+"\n" {
		t.Error("WriteTo and Error differ")
	}
	if err := e.Render(&colored, 40, true); err != nil {
		t.Error(err)
	}
	if !strings.Contains(colored.String(), "\x1b[31mError") || strings.Contains(plain.String(), "\x1b") {
		t.Error("colour is not where it was asked for")
	}
	for line := range strings.Lines(colored.String()) {
		if strings.HasPrefix(line, "Its attributes") && len(line) > 41 {
			t.Errorf("line is not wrapped: %q", line)
		}
	}
}

// A file of nothing but mistakes is cut short, and says so.
func TestManyMistakes(t *testing.T) {
	_, err := Load(Source{Files: map[string]string{"a.hcl": strings.Repeat("bad {}\n", 1000)}})
	if err == nil || !strings.HasSuffix(err.Error(), "900 more mistakes follow; mend these first.") {
		t.Error(err)
	}
}

func TestDigest(t *testing.T) {
	load := func(text string, vars ...string) string {
		cfg, err := Load(Source{Files: map[string]string{"a.hcl": text}, Vars: vars})
		if err != nil {
			t.Fatal(err)
		}
		return cfg.Digest
	}
	const text = "variable \"n\" {\n  default = 2\n}\nexperiment \"x\" {\n  repetitions = var.n\n}\n"
	first := load(text)
	if first != load(text) {
		t.Error("the digest changes from one reading to the next")
	}
	if first == load(text+"\n") || first == load(text, "n=2") || load(text, "n=2") == load(text, "n=3") {
		t.Error("the digest does not cover texts and variables")
	}
	if !strings.HasPrefix(first, "sha256:") || len(first) != len("sha256:")+64 {
		t.Error("digest:", first)
	}
}

// The texts kept in a manifest load again to the same configuration.
func TestReloadFromManifest(t *testing.T) {
	first, err := Load(Source{Path: "../examples/several-files", Vars: []string{"sizes=[7, 9]"}, VarFiles: []string{"../examples/several-files/night.vars"}})
	if err != nil {
		t.Fatal(err)
	}
	var vars []string
	for name, value := range first.Variables {
		vars = append(vars, name+"="+value)
	}
	second, err := Load(Source{Files: first.Files, Vars: vars})
	if err != nil {
		t.Fatal(err)
	}
	a, errA := json.Marshal(first)
	b, errB := json.Marshal(second)
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("%s\n%s\n%v %v", a, b, errA, errB)
	}
	if first.Experiments[0].Repetitions != 30 || first.Experiments[0].Rules[1] != 9 {
		t.Errorf("values from outside are not there: %+v", first.Experiments[0])
	}
}
