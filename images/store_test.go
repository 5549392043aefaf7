package images

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// standIn puts a program called mmdebstrap first on PATH that runs script, with the archive of
// [tinyRoot] as $ARCHIVE and its own arguments; everything after it is done by the real tools. It
// returns a file with a line for every run.
func standIn(t *testing.T, script string) (runs string) {
	t.Helper()
	if _, err := toolVersions(t.Context(), tools(os.Geteuid() == 0)); err != nil {
		skip(t, err.Error())
	}
	dir := reachable(t)
	archive := filepath.Join(dir, "root.tar")
	runs = filepath.Join(dir, "runs")
	program := "#!/bin/sh\n[ \"$1\" = --version ] && { echo stand-in 1; exit; }\nARCHIVE=" + archive + "\necho run >>" + runs + "\n" +
		"for arg; do case $arg in */bootstrap.tar) OUT=$arg ;; esac; done\n" + script + "\n"
	for file, content := range map[string][]byte{archive: tinyRoot(t, time.Now()), filepath.Join(dir, "mmdebstrap"): []byte(program)} {
		if err := os.WriteFile(file, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return runs
}

// reachable is a temporary folder that every user can reach.
func reachable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

const copyArchive = `echo "I: copying"; cp "$ARCHIVE" "$OUT"`

func openStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// left lists what builds left under tmp and images.
func left(t *testing.T, s *Store) (names []string) {
	t.Helper()
	for _, sub := range []string{"tmp", "images", "specs"} {
		entries, err := os.ReadDir(s.path(sub))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, sub+"/"+e.Name())
		}
	}
	return names
}

func TestStore(t *testing.T) {
	runs := standIn(t, copyArchive)
	mirror := newArchive(t).url
	s := openStore(t)
	spec := Spec{Name: "first", Mirror: mirror}
	if _, err := s.Lookup(spec); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("look up before the build: %v", err)
	}
	var steps []string
	image, err := s.Build(t.Context(), spec, func(p Progress) {
		if p.Detail == "" {
			steps = append(steps, p.Name)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(steps, buildSteps[:]) {
		t.Errorf("steps %q", steps)
	}
	for _, file := range []string{image.Kernel(), image.Initrd(), image.Disk(), image.Root()} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o444 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
	}
	if v, ok := image.Installed("nftables"); !ok || v != "1" || image.KernelVersion != "6.1.0" {
		t.Errorf("metadata: %+v", image)
	}
	if len(image.Notes) != 1 || !strings.Contains(image.Notes[0], netperf) {
		t.Errorf("notes: %q", image.Notes)
	}
	again, err := s.Build(t.Context(), Spec{Name: "second", Mirror: mirror}, nil)
	if err != nil || again.Digest != image.Digest || again.Spec.Name != "second" {
		t.Errorf("second build: %s, %v", again.Digest, err)
	}
	if n := lines(t, runs); n != 1 {
		t.Errorf("built %d times", n)
	}
	other, err := s.Build(t.Context(), Spec{Mirror: mirror, Components: []string{"main", "contrib"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.Digest != image.Digest {
		t.Errorf("the same content has digests %s and %s", image.Digest, other.Digest)
	}
	for _, ref := range []string{image.Digest, hexOf(image.Digest), hexOf(image.Digest)[:6]} {
		if got, err := s.resolve(ref); err != nil || got != hexOf(image.Digest) {
			t.Errorf("resolve %s: %s, %v", ref, got, err)
		}
	}
	for _, ref := range []string{"", "sha256:", "xyz"} {
		if _, err := s.resolve(ref); !isMissing(err) {
			t.Errorf("resolve %q: %v", ref, err)
		}
	}
	if all, err := s.List(); err != nil || len(all) != 1 {
		t.Errorf("list: %v, %v", all, err)
	}
	if err := s.Remove(hexOf(image.Digest)[:8]); err != nil {
		t.Fatal(err)
	}
	if l := left(t, s); len(l) > 0 {
		t.Errorf("after removal: %q", l)
	}
	if err := s.Remove(image.Digest); !isMissing(err) {
		t.Errorf("second removal: %v", err)
	}
}

func isMissing(err error) bool {
	missing, ok := errors.AsType[*DigestError](err)
	return ok && missing.Images == 0
}

func lines(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

func TestOneBuildsTheOthersWait(t *testing.T) {
	runs := standIn(t, "sleep 0.5; "+copyArchive)
	spec := Spec{Mirror: newArchive(t).url}
	dir := t.TempDir()
	var group sync.WaitGroup
	var mu sync.Mutex
	digests := map[string]int{}
	waited := 0
	for range 4 {
		group.Go(func() {
			s, err := Open(dir) // as another process would
			if err != nil {
				t.Error(err)
				return
			}
			image, err := s.Build(t.Context(), spec, func(p Progress) {
				mu.Lock()
				defer mu.Unlock()
				if p.Step == 0 {
					waited++
				}
			})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			digests[image.Digest]++
		})
	}
	group.Wait()
	if n := lines(t, runs); n != 1 || len(digests) != 1 || waited != 3 {
		t.Errorf("%d builds, %d waited, digests %v", n, waited, digests)
	}
}

func TestCancelledBuildLeavesNothing(t *testing.T) {
	for name, script := range map[string]string{
		"obeys":   "sleep 60",
		"ignores": "trap '' TERM; sleep 60 & wait; wait",
	} {
		t.Run(name, func(t *testing.T) {
			runs := standIn(t, script)
			spec := Spec{Mirror: newArchive(t).url}
			s := openStore(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			began := time.Now()
			_, err := s.Build(ctx, spec, func(p Progress) {
				if p.Name == "install packages" {
					go func() {
						for lines(t, runs) == 0 {
							time.Sleep(10 * time.Millisecond)
						}
						cancel()
					}()
				}
			})
			if !errors.Is(err, context.Canceled) || time.Since(began) > 10*time.Second {
				t.Errorf("got %v after %v", err, time.Since(began))
			}
			if l := left(t, s); len(l) > 0 {
				t.Errorf("left %q", l)
			}
		})
	}
}

func TestFailedBuildShowsTheLogAndAHint(t *testing.T) {
	standIn(t, `i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo "line $i"; done; echo "E: Unable to locate package nosuch" >&2; touch "$OUT.partial"; exit 25`)
	s := openStore(t)
	_, err := s.Build(t.Context(), Spec{Mirror: newArchive(t).url}, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range []string{"run mmdebstrap: exit status 25", "line 500\n", "Unable to locate package nosuch", "hint: check the names"} {
		if !strings.Contains(told(err), text) {
			t.Errorf("%q is not in:\n%v", text, err)
		}
	}
	if strings.Contains(err.Error(), "line 10\n") {
		t.Error("the whole log is in the error")
	}
	if l := left(t, s); len(l) > 0 {
		t.Errorf("left %q", l)
	}
}

func TestKilledBuildIsSweptByTheNext(t *testing.T) {
	standIn(t, copyArchive)
	spec := Spec{Mirror: newArchive(t).url}
	s := openStore(t)
	other := hexOf(Spec{Suite: "trixie"}.Digest())
	busy := hexOf(Spec{Suite: "sid"}.Digest())
	unlock, err := s.tryLock(busy)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for _, owner := range []string{hexOf(spec.Digest()), other, busy, removed} {
		if err := os.MkdirAll(s.path("tmp", owner+".123", "mmdebstrap.x", "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Build(t.Context(), spec, nil); err != nil {
		t.Fatal(err)
	}
	l := left(t, s) // beside the build under way: the image, and what points to it with and without its lock
	if len(l) != 4 || l[0] != "tmp/"+busy+".123" {
		t.Errorf("left %q", l)
	}
}

func TestFullDiskLeavesNothing(t *testing.T) {
	standIn(t, copyArchive+`; head -c 20000000 /dev/zero >"$OUT.more"`)
	dir := t.TempDir()
	if err := syscall.Mount("images-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		skip(t, "mounting a small tmpfs needs root: "+err.Error())
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Build(t.Context(), Spec{Mirror: newArchive(t).url}, nil)
	if err == nil || !strings.Contains(told(err), "hint: free some space") {
		t.Errorf("got %v", err)
	}
	if l := left(t, s); len(l) > 0 {
		t.Errorf("left %q", l)
	}
}

func TestDamagedImageIsNamed(t *testing.T) {
	standIn(t, copyArchive)
	spec := Spec{Mirror: newArchive(t).url}
	s := openStore(t)
	image, err := s.Build(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image.Disk(), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Build(t.Context(), spec, nil); err == nil || !strings.Contains(err.Error(), "disk.qcow2") {
		t.Errorf("build: %v", err)
	}
	if _, err := s.List(); err == nil {
		t.Error("list says nothing")
	}
	if err := s.Remove(image.Digest); err != nil {
		t.Error(err)
	}
	if _, err := s.Build(t.Context(), spec, nil); err != nil {
		t.Errorf("build after removal: %v", err)
	}
}

func TestMissingToolsAreNamedAtOnce(t *testing.T) {
	_, err := toolVersions(t.Context(), []tool{{"no-such-1", "package-b", nil}, {"no-such-2", "package-a", nil}})
	if err == nil || !strings.Contains(err.Error(), "apt-get install package-a package-b") {
		t.Errorf("got %v", err)
	}
}

func TestDefaultDir(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/cache")
	if dir, err := DefaultDir(); err != nil || dir != "/cache/rampart/images" {
		t.Errorf("got %s, %v", dir, err)
	}
}
