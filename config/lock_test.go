package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rampart-bench/rampart/images"
)

func exampleLocks() Locks {
	p := func(name, version string) images.Package {
		return images.Package{Name: name, Version: version, Architecture: "amd64", SHA256: strings.Repeat("0f", 32)}
	}
	when := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	return Locks{
		"b": {Request: "sha256:" + strings.Repeat("1", 64), Locked: when, Lock: images.Lock{
			Suite: "trixie", Architecture: "amd64", Packages: []images.Package{p("dash", "0.5.12-2"), p("libstdc++6", "1:2~x+b1")}, Compiler: []images.Package{p("make", "4.3")},
		}},
		"a": {Request: "sha256:" + strings.Repeat("2", 64), Locked: when, Lock: images.Lock{Suite: "bookworm", Architecture: "amd64", Packages: []images.Package{p("dash", "1")}}},
	}
}

func TestLocksComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), LockName)
	if locks, err := ReadLocks(path); err != nil || len(locks) > 0 {
		t.Errorf("a file that is not there: %v, %v", locks, err)
	}
	text := exampleLocks().Format()
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	locks, err := ReadLocks(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(exampleLocks(), locks); diff != "" {
		t.Error(diff)
	}
	if again := locks.Format(); string(again) != string(text) {
		t.Errorf("%s\n%s", text, again)
	}
	if formatted, err := Format(LockName, text); err != nil || string(formatted) != string(text) {
		t.Errorf("rampart fmt would change it: %v\n%s", err, formatted)
	}
	if _, err := ReadLocks(t.TempDir()); err == nil || !errors.Is(err, syscall.EISDIR) {
		t.Error("a folder passes for a lock file:", err)
	}
	link := filepath.Join(t.TempDir(), LockName)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if followed, err := ReadLocks(link); err != nil || cmp.Diff(locks, followed) != "" {
		t.Error("a link is not followed:", followed, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLocks(link); err == nil || !strings.Contains(err.Error(), "what it leads to is not there") {
		t.Error("a link that leads nowhere passes for no lock file:", err)
	}
}

func TestDamagedLocks(t *testing.T) {
	good := string(exampleLocks().Format())
	for name, damage := range map[string][2]string{
		"cut off":            {good[len(good)-20:], ""},
		"no digest":          {"sha256:" + strings.Repeat("0f", 32), "sha256:0f"},
		"another format":     {"dash 0.5.12-2 amd64 sha256", "dash"},
		"a path for a name":  {"\"dash 0.5.12-2", "\"../dash 0.5.12-2"},
		"a package twice":    {"libstdc++6 1:2~x+b1", "dash 0.5.12-2"},
		"unknown attribute":  {"request ", "requests"},
		"other architecture": {"architecture = \"amd64\"", "architecture = \"riscv64\""},
		"request cut off":    {"sha256:" + strings.Repeat("2", 64), "sha256:2"},
		"request of words":   {"sha256:" + strings.Repeat("2", 64), "bookworm"},
		"no time":            {"2026-01-31T", "soon"},
		"conflict":           {"image \"a\"", "<<<<<<< ours\nimage \"a\""},
		"twice":              {"image \"a\"", "image \"b\""},
	} {
		text := strings.ReplaceAll(good, damage[0], damage[1])
		if text == good {
			t.Errorf("%s: nothing was damaged", name)
		}
		_, err := ParseLocks(LockName, []byte(text))
		if err == nil {
			t.Errorf("%s: passes", name)
			continue
		}
		if !strings.Contains(err.Error(), LockName+" line ") || strings.Count(err.Error(), "rampart image build --update") != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseLocks(f *testing.F) {
	f.Add(exampleLocks().Format())
	f.Add([]byte("image \"x\" {\n  packages = [\"a 1 amd64 sha256:0\"]\n}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		locks, err := ParseLocks(LockName, text)
		if err != nil {
			return
		}
		again, err := ParseLocks(LockName, locks.Format())
		if err != nil {
			t.Fatalf("%v\n%s", err, locks.Format())
		}
		if diff := cmp.Diff(locks, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
