package images

import (
	"strings"
	"testing"
)

func TestDigestNamesWhatIsAskedFor(t *testing.T) {
	base := Spec{Name: "a"}
	same := []Spec{
		{Name: "b"},
		{Suite: "bookworm", Kernel: "linux-image-cloud-amd64", Components: []string{"main"}},
		{Components: []string{"main", "main"}},
	}
	for _, s := range same {
		if s.Digest() != base.Digest() {
			t.Errorf("%+v has another digest than %+v", s, base)
		}
	}
	seen := map[string]Spec{base.Digest(): base}
	for _, s := range []Spec{
		{Suite: "trixie"}, {Kernel: "linux-image-amd64"}, {Mirror: "http://mirror.example/debian"},
		{Components: []string{"main", "non-free"}}, {Packages: []string{"tcpdump"}}, {Packages: []string{"tcpdump", "strace"}},
		{Modules: []string{"rtcache"}},
	} {
		if other, ok := seen[s.Digest()]; ok {
			t.Errorf("%+v and %+v have the same digest", s, other)
		}
		seen[s.Digest()] = s
	}
	if (Spec{Packages: []string{"a1", "b1"}}).Digest() != (Spec{Packages: []string{"b1", "a1", "b1"}}).Digest() {
		t.Error("the order of packages is part of the digest")
	}
}

func TestValidateNamesEveryMistake(t *testing.T) {
	if err := (Spec{Name: "ok"}).Validate(); err != nil {
		t.Fatal(err)
	}
	if err := (Spec{Suite: "trixie", Mirror: "https://mirror.example/debian", Components: []string{"main", "non-free-firmware"}, Packages: []string{"g++", "libstdc++6"}}).Validate(); err != nil {
		t.Error(err)
	}
	for _, mirror := range []string{"ftp://mirror.example/debian", "https:", "/srv/debian", "https://mirror.example/a b"} {
		if err := (Spec{Mirror: mirror}).Validate(); err == nil || !strings.Contains(err.Error(), "use the address of a Debian archive") {
			t.Errorf("mirror %q: %v", mirror, err)
		}
	}
	err := Spec{
		Name: "x", Suite: "--bad", Kernel: "-o", Mirror: "not an address", Components: []string{"main universe"},
		Packages: []string{"a b", "?exact-name(x)", "pkg=1.0"},
		Modules:  []string{"../files"},
		Snapshot: "yesterday",
		Lock:     &Lock{Suite: "bookworm", Architecture: "arm64"},
	}.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, text := range []string{`"--bad"`, `"-o"`, `"not an address"`, `"main universe"`, `"a b"`, `"?exact-name(x)"`, `"pkg=1.0"`, `"../files"`, "linux-image-…", `"yesterday"`, `"arm64"`, "no packages"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s is not named in:\n%v", text, err)
		}
	}
}
