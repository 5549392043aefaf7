package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Bad input that no archive can hold: each gives one mistake that names the file and the next step,
// and no byte of the input that could harm a terminal.
func TestBadInput(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "rampart.hcl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, test := range map[string]struct {
		path string
		want []string
	}{
		"no such file":          {filepath.Join(t.TempDir(), "none.hcl"), []string{"none.hcl: no such file", "rampart init"}},
		"folder without files":  {t.TempDir(), []string{"no file in it is named *.hcl", "rampart init"}},
		"binary":                {write("\x7fELF\x02\x01\x01\x00\x00"), []string{"is not a text: byte 0x7f on line 1"}},
		"binary further on":     {write("# a\n# \xff\xfe\n"), []string{"is not a text: byte 0xff on line 2"}},
		"escape sequence":       {write("report {\n title = \"\x1b]0;x\x07\"\n}\n"), []string{"is not a text: byte 0x1b on line 2"}},
		"UTF-16":                {write("e\x00x\x00p\x00"), []string{"is not a text: byte 0x00", "UTF-8"}},
		"byte order mark":       {write("\ufeffexperiment \"x\" {}\n"), []string{"byte order mark"}},
		"ten megabytes":         {write(strings.Repeat("# nothing\n", 1e6)), []string{"larger than 1 MiB", "is this the right file"}},
		"endless":               {"/dev/zero", []string{"larger than 1 MiB"}},
		"empty":                 {write(""), []string{"The configuration is empty", `experiment "latency" {}`, "rampart init"}},
		"comments and a local":  {write("# nothing\nlocals {\n  a = 1\n}\n"), []string{"The configuration is empty"}},
		"folder instead of HCL": {filepath.Join(write(""), "x"), []string{"not a directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(Source{Path: test.path})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in:\n%s", want, err)
				}
			}
			if n := strings.Count(err.Error(), "Error: "); n != 1 {
				t.Errorf("%d mistakes instead of one:\n%s", n, err)
			}
			if strings.ContainsAny(err.Error(), "\x00\x1b\x07") {
				t.Errorf("control characters in %q", err)
			}
		})
	}
}

// hcl's parser calls itself for each of these; without a bound a file of 1 MiB ends the program, which
// no recover can prevent.
func TestNesting(t *testing.T) {
	for _, unit := range []string{"[", "(", "{", "{a=", "!", "-", "a?", "a?a:", "\"${", "\"%{if a}", "a(", "a[", "[for a in ", "<<A\n${", "-\n", "(a?\n", "a{\n", "a.*.", "a||", "a==", "\"${a}"} {
		const length = 256 << 10 // enough to end the program at 9 KiB of stack a level
		text := "a=" + strings.Repeat(unit, length/len(unit))
		if strings.HasPrefix(unit, "a{") {
			text = strings.Repeat(unit, length/len(unit))
		}
		start := time.Now()
		_, err := Load(Source{Files: map[string]string{"a.hcl": text}})
		if err == nil || len(err.Error()) > 200_000 {
			t.Errorf("%q again and again is no configuration, and no reason for an error of %d bytes", unit, len(err.Error()))
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%q: refused only after %v", unit, took)
		}
	}
	const deep = "[[[[[[[[[[1]]]]]]]]]]"
	if _, err := Format("a.hcl", []byte("a = "+deep+"\n")); err != nil {
		t.Error("ten brackets are too many:", err)
	}
}

func TestFormat(t *testing.T) {
	got, err := Format("a.hcl", []byte("experiment \"x\"   {\nseed=1\n    repetitions    = 2 # two\n}\n"))
	want := "experiment \"x\" {\n  seed        = 1\n  repetitions = 2 # two\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
	if got, err := Format("a.hcl", []byte("experiment {")); err == nil || got != nil {
		t.Errorf("a broken text was formatted: %q", got)
	}
	for _, preset := range Presets() {
		if got, err := Format(preset.Name, preset.Text); err != nil || !bytes.Equal(got, preset.Text) {
			t.Errorf("preset %s is not in the canonical layout: %v\n%s", preset.Name, err, got)
		}
	}
}
