package images

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// skip skips a test that this machine cannot run, with the reason; where skips are not allowed, as
// in CI, it fails the test.
func skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// TestSourcesAreThoseOfApt asks the real apt about sources in both of its formats.
func TestSourcesAreThoseOfApt(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		skip(t, "apt is not installed")
	}
	oneLine := `
deb [signed-by=/usr/share/keyrings/debian.gpg] http://mirror.example/debian bookworm main contrib
deb http://mirror.example/debian bookworm-updates main
deb-src http://mirror.example/debian sid main
deb http://security.example/debian-security bookworm-security main
deb http://mirror.example/debian bookworm-backports main
deb http://other.example/tool bookworm stable
deb http://mirror.example/debian trixie main
`
	deb822 := `
Types: deb deb-src
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://security.example/debian-security/
Suites: bookworm-security
Components: main

Types: deb
URIs: http://off.example/debian/
Suites: bookworm
Components: main
Enabled: no
`
	for _, test := range []struct {
		name, file, text string
		spec             Spec
		want             []string
	}{
		{"one line", "a.list", oneLine, Spec{}, []string{
			"http://mirror.example/debian/ bookworm main", "http://mirror.example/debian/ bookworm-updates main",
			"http://security.example/debian-security/ bookworm-security main",
		}},
		{"deb822", "a.sources", deb822, Spec{}, []string{
			"http://mirror.example/debian/ bookworm main", "http://mirror.example/debian/ bookworm-updates main",
			"http://security.example/debian-security/ bookworm-security main",
		}},
		{"other suite", "a.list", oneLine, Spec{Suite: "trixie"}, []string{"http://mirror.example/debian/ trixie main"}},
		{"more components", "a.sources", deb822, Spec{Components: []string{"main", "non-free"}}, []string{
			"http://mirror.example/debian/ bookworm main non-free", "http://mirror.example/debian/ bookworm-updates main non-free",
			"http://security.example/debian-security/ bookworm-security main non-free",
		}},
		{"suite that apt does not know", "a.list", oneLine, Spec{Suite: "sid"}, nil},
		{"no sources", "a.list", "", Spec{}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, test.file), []byte(test.text), 0o644); err != nil {
				t.Fatal(err)
			}
			found, err := aptSources(t.Context(), test.spec.withDefaults(), "-o", "Dir::Etc::sourcelist=/dev/null",
				"-o", "Dir::Etc::sourceparts="+dir, "-o", "Dir::State::lists="+t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range found {
				line := strings.TrimPrefix(s.String(), "deb ")
				got = append(got, strings.TrimPrefix(line, "[signed-by=/usr/share/keyrings/debian.gpg] "))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestSourcesOfOthersDoNotCount(t *testing.T) {
	target := func(origin, codename, release, uri string) string {
		return "Origin: " + origin + "\nCodename: " + codename + "\nRelease: " + release + "\nRepo-URI: " + uri + "\nComponent: main\nTarget-Of: deb\n\n"
	}
	got := matchTargets([]byte(
		target("Tool", "bookworm", "bookworm", "http://tool.example/")+
			target("Debian", "bookworm", "oldstable", "http://mirror.example/")+ // a release by its other name
			target("Debian", "trixie", "stable", "http://mirror.example/")), Spec{}.withDefaults())
	if len(got) != 1 || got[0].String() != "deb http://mirror.example/ oldstable main" {
		t.Errorf("got %v", got)
	}
}

func TestNamedMirrorIsTheOnlySource(t *testing.T) {
	got, err := sources(t.Context(), Spec{Mirror: "http://mirror.example/debian"}.withDefaults())
	if err != nil || len(got) != 1 || got[0].String() != "deb http://mirror.example/debian bookworm main" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestDatedArchives(t *testing.T) {
	for _, test := range []struct {
		spec Spec
		want []string
	}{
		{Spec{Snapshot: "2026-01-31"}, []string{
			"deb [check-valid-until=no] http://snapshot.debian.org/archive/debian/20260131T000000Z/ bookworm main",
			"deb [check-valid-until=no] http://snapshot.debian.org/archive/debian/20260131T000000Z/ bookworm-updates main",
			"deb [check-valid-until=no] http://snapshot.debian.org/archive/debian-security/20260131T000000Z/ bookworm-security main",
		}},
		{Spec{Snapshot: "20260131T120000Z", Mirror: "http://mirror.example/dated/debian/"}, []string{
			"deb [check-valid-until=no] http://mirror.example/dated/debian/20260131T120000Z/ bookworm main",
		}},
	} {
		found, err := sources(t.Context(), test.spec.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range found {
			got = append(got, s.String())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestInstalledPackages(t *testing.T) {
	got := installed([]byte(`Package: b
Status: install ok installed
Architecture: amd64
Version: 2:1.0-1
Description: text
 with: a colon in its continuation

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: a
Status: install ok installed
Architecture: all
Version: 3
`))
	want := []Package{{"a", "3", "all", ""}, {"b", "2:1.0-1", "amd64", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzStanzas(f *testing.F) {
	f.Add([]byte("A: b\nC:d\n e: f\n\nG: h"))
	f.Add([]byte("\n\n:x\nno colon\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, s := range stanzas(text) {
			if len(s) == 0 {
				t.Fatal("an empty paragraph")
			}
			for field, value := range s {
				if strings.ContainsAny(field+value, "\n") || strings.Contains(field, ":") {
					t.Fatalf("%q: %q", field, value)
				}
			}
		}
		matchTargets(text, Spec{}.withDefaults())
		installed(text)
	})
}
