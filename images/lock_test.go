package images

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// archive is a Debian archive with tiny packages, served on this machine. The real apt reads it.
type archive struct {
	url string

	mu       sync.Mutex
	packages map[string]string // name -> version
	contents map[string]string // name_version -> what its file has, where that is not the name
}

// newArchive serves [tinyPackages] and tcpdump, all of version 1, unsigned: apt is told to accept that.
func newArchive(t *testing.T) *archive {
	t.Helper()
	a := &archive{packages: map[string]string{"tcpdump": "1"}, contents: map[string]string{}}
	for _, name := range tinyPackages() {
		a.packages[name] = "1"
	}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.url = server.URL + "/debian"
	conf := filepath.Join(reachable(t), "apt.conf")
	text := `Acquire::AllowInsecureRepositories "true"; APT::Get::AllowUnauthenticated "true"; Acquire::http::Proxy::127.0.0.1 "DIRECT";`
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("APT_CONFIG", conf)
	return a
}

// set puts a version of a package in the place of the one that is there. What its file has is its name and
// version unless content says otherwise.
func (a *archive) set(name, version, content string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.packages[name] = version
	if content != "" {
		a.contents[name+"_"+version] = content
	}
}

func (a *archive) drop(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.packages, name)
}

func (a *archive) content(file string) string {
	if content, ok := a.contents[file]; ok {
		return content
	}
	return file
}

// ServeHTTP answers for an archive whose folder is called debian, and for one of 31 January 2026 below it.
func (a *archive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/debian"), "/20260131T000000Z")
	switch {
	case path == "/dists/bookworm/Release":
		fmt.Fprint(w, "Origin: Debian\nSuite: oldstable\nCodename: bookworm\nArchitectures: amd64\nComponents: main contrib\nDate: Sat, 31 Jan 2026 00:00:00 UTC\nSHA256:\n")
		for _, component := range []string{"main", "contrib"} {
			text := a.index(component)
			fmt.Fprintf(w, " %x %d %s/binary-amd64/Packages\n", sha256.Sum256([]byte(text)), len(text), component)
		}
	case path == "/dists/bookworm/main/binary-amd64/Packages":
		fmt.Fprint(w, a.index("main"))
	case path == "/dists/bookworm/contrib/binary-amd64/Packages":
		fmt.Fprint(w, a.index("contrib"))
	case strings.HasPrefix(path, "/pool/"):
		fmt.Fprint(w, a.content(strings.TrimSuffix(strings.TrimPrefix(path, "/pool/"), ".deb")))
	default:
		http.NotFound(w, r)
	}
}

func (a *archive) index(component string) string {
	if component != "main" {
		return ""
	}
	var b strings.Builder
	for name, version := range a.packages {
		content := a.content(name + "_" + version)
		if name == "base-files" {
			b.WriteString("Essential: yes\n")
		}
		fmt.Fprintf(&b, "Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: nobody\nFilename: pool/%s_%s.deb\nSize: %d\nSHA256: %x\nDescription: test\n\n",
			name, version, name, version, len(content), sha256.Sum256([]byte(content)))
	}
	paragraphs := strings.SplitAfter(b.String(), "\n\n")
	slices.Sort(paragraphs)
	return strings.Join(paragraphs, "")
}

// TestResolve has the real apt choose from an archive that changes.
func TestResolve(t *testing.T) {
	standIn(t, "false")
	a := newArchive(t)
	s := openStore(t)
	spec := Spec{Name: "x", Mirror: a.url}
	first, err := s.Resolve(t.Context(), spec, Lock{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range first.Packages {
		got = append(got, p.Name)
	}
	if want := sortedSet(tinyPackages()); !slices.Equal(got, want) {
		t.Errorf("chose %q, want %q", got, want)
	}
	if sum := sha256.Sum256([]byte("nftables_1")); first.Packages[slices.Index(got, "nftables")] != (Package{"nftables", "1", "amd64", hex.EncodeToString(sum[:])}) {
		t.Errorf("nftables is locked as %+v", first.Packages[slices.Index(got, "nftables")])
	}

	a.set("kmod", "2:1.0-1", "")
	moved, err := s.Resolve(t.Context(), spec, Lock{})
	if p, _ := findPackage(moved.Packages, "kmod"); err != nil || p.Version != "2:1.0-1" || moved.Digest() == first.Digest() {
		t.Errorf("after an update of the archive: kmod %s, %v", p.Version, err)
	}
	spec.Packages = []string{"tcpdump"}
	_, err = s.Resolve(t.Context(), spec, first)
	if want := "kmod 1 is not there, 2:1.0-1 is"; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(told(err), "rampart image build --update") {
		t.Errorf("keeping a version that is gone: %v", err)
	}
	more, err := s.Resolve(t.Context(), spec, moved)
	if _, ok := findPackage(more.Packages, "tcpdump"); err != nil || !ok || len(more.Packages) != len(moved.Packages)+1 {
		t.Errorf("adding a package: %v, %v", more, err)
	}
	spec.Packages = nil
	less, err := s.Resolve(t.Context(), spec, more)
	if err != nil || less.Digest() != moved.Digest() {
		t.Errorf("removing a package again: %v, %v", less, err)
	}

	spec.Packages = []string{"nosuch"}
	if _, err := s.Resolve(t.Context(), spec, Lock{}); err == nil || !strings.Contains(told(err), "hint: check the names") {
		t.Errorf("a package that does not exist: %v", err)
	}
	if l := left(t, s); len(l) > 0 {
		t.Errorf("left %q", l)
	}
}

// TestSnapshot takes packages from a dated archive, and from one that is not there.
func TestSnapshot(t *testing.T) {
	standIn(t, copyArchive)
	a := newArchive(t)
	s := openStore(t)
	image, err := s.Build(t.Context(), Spec{Mirror: a.url, Snapshot: "2026-01-31"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := "deb [check-valid-until=no] " + a.url + "/20260131T000000Z/ bookworm main"; !slices.Equal(image.Sources, []string{want}) {
		t.Errorf("sources %q, want %q", image.Sources, want)
	}
	_, err = s.Build(t.Context(), Spec{Mirror: a.url, Snapshot: "2025-01-31"}, nil)
	for _, text := range []string{"snapshot 20250131T000000Z at " + a.url, "404", "hint: can this machine reach that address?"} {
		if err == nil || !strings.Contains(told(err), text) {
			t.Errorf("%q is not in: %v", text, err)
		}
	}
}

// TestLockIsObeyed builds the same lock again after the archive has moved in each of the ways that it can.
func TestLockIsObeyed(t *testing.T) {
	runs := standIn(t, copyArchive)
	a := newArchive(t)
	spec := Spec{Name: "x", Mirror: a.url}
	first, err := openStore(t).Build(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	lock := first.Lock()
	spec.Lock = &lock
	build := func(spec Spec) (Image, error) { return openStore(t).Build(t.Context(), spec, nil) }

	a.set("zz-new", "1", "") // what nobody asked for
	again, err := build(spec)
	if err != nil || again.Digest != first.Digest || again.LockDigest != first.LockDigest {
		t.Errorf("built again: %s, %v; want %s", again.Digest, err, first.Digest)
	}
	elsewhere := spec
	elsewhere.Mirror += "/"
	if elsewhere.Digest() != spec.Digest() {
		t.Error("where locked packages come from is part of what is asked for")
	}

	before := lines(t, runs)
	a.set("kmod", "1", "something else")
	_, err = build(spec)
	var refused *LockError
	if !errors.As(err, &refused) || len(refused.Changed) != 1 || !strings.Contains(told(err), "hint: a version never changes its content") {
		t.Errorf("a package with another content: %v", err)
	}
	a.set("kmod", "2", "")
	a.drop("ipset")
	_, err = build(spec)
	for _, text := range []string{"kmod 1 is not there, 2 is", "ipset 1 is not there, nor is another version", "hint: move the lock", "--update", "snapshot"} {
		if err == nil || !strings.Contains(told(err), text) {
			t.Errorf("%q is not in: %v", text, err)
		}
	}
	if lines(t, runs) != before {
		t.Error("something was installed before the lock was checked")
	}
	spec.Lock = &Lock{Suite: "bookworm", Architecture: "arm64", Packages: lock.Packages}
	if _, err := build(spec); err == nil || !strings.Contains(err.Error(), `"arm64"`) {
		t.Errorf("a lock for another architecture: %v", err)
	}
}

// TestTamperedPackageIsRefused serves another file than the one that the archive's index speaks of.
func TestTamperedPackageIsRefused(t *testing.T) {
	p := Package{"kmod", "1", "amd64", strings.Repeat("0", 64)}
	file := filepath.Join(t.TempDir(), p.file())
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	var refused *LockError
	if err := verify(file, p); !errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
	if err := verify(file+".x", p); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestInstalledMustBeWhatIsLocked(t *testing.T) {
	a, b, b2 := Package{Name: "a", Version: "1"}, Package{Name: "b", Version: "1"}, Package{Name: "b", Version: "2"}
	if err := sameAsLocked([]Package{a, b}, []Package{b, a}); err != nil {
		t.Error(err)
	}
	for _, got := range [][]Package{{a}, {a, b, b2}, {a, b2}} {
		if err := sameAsLocked(got, []Package{a, b}); err == nil {
			t.Errorf("%v passes", got)
		}
	}
}

func TestLockIsValidated(t *testing.T) {
	good := Package{"a1", "1:2.0-1+b2~x", "all", strings.Repeat("0f", 32)}
	lock := func(packages ...Package) Lock {
		return Lock{Suite: "bookworm", Architecture: "amd64", Packages: packages}
	}
	if err := lock(good).Validate(); err != nil {
		t.Error(err)
	}
	with := func(change func(*Package)) Package { p := good; change(&p); return p }
	for _, bad := range []Lock{
		lock(), lock(good, good), lock(with(func(p *Package) { p.Name = "../x" })), lock(with(func(p *Package) { p.Version = "1 -o x" })),
		lock(with(func(p *Package) { p.Architecture = "arm64" })), lock(with(func(p *Package) { p.SHA256 = "0f" })),
		{Suite: "-x", Architecture: "amd64", Packages: []Package{good}},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v passes", bad)
		}
	}
}

func FuzzParseURIs(f *testing.F) {
	f.Add("'http://mirror.example/pool/a_1%3a2_amd64.deb' a_1%3a2_amd64.deb 10 MD5Sum:x\n")
	f.Add("'' x\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseURIs(text)
		if err == nil && len(all) > strings.Count(text, "\n")+1 {
			t.Fatalf("%d packages in %q", len(all), text)
		}
	})
}
