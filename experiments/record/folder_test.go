package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func manifest() Manifest {
	env := Environment{OS: "Debian GNU/Linux 12", Kernel: "6.1.0", CPU: "a CPU", CPUs: 2, MemoryBytes: 1 << 30,
		Mitigations: map[string]string{"spectre_v2": "off"}, Tools: map[string]string{"nft": "nftables v1.0.6"},
		Interfaces: map[string]map[string]string{"inside": {"mtu": "1500", "gro": "off"}}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return Manifest{
		Schema: Schema, Rampart: Build{Version: "0.1.0", Go: "go1.26"}, Created: at,
		Configuration: map[string]string{"rampart.hcl": "experiment \"latency\" {\n}\n"},
		ConfigDigest:  "sha256:00", PlanDigests: map[string]string{"latency": "sha256:aa", "throughput": "sha256:bb"},
		Study: json.RawMessage(`{"title":"<b>"}`), Testbed: json.RawMessage(`{}`), Features: json.RawMessage(`{}`),
		Clock: "host", Provider: "netns", Host: env, Nodes: map[string]Environment{"firewall": env},
		Images:  map[string]Image{"trixie": {Digest: "sha256:cc", Nodes: map[string]Environment{"firewall": env}}, "bookworm": {Digest: "sha256:dd"}},
		Command: []string{"rampart", "run"}, Sessions: []Session{{Started: at, Ended: at, Runs: 3, Outcome: "interrupted"}},
	}
}

// sameJSON compares raw JSON by meaning: indenting the manifest changes the spaces in it.
var sameJSON = cmp.Comparer(func(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && cmp.Equal(x, y)
})

// createIn makes a results folder as a run does.
func createIn(dir string) (*Folder, error) {
	reserved, err := Reserve(dir)
	if err != nil {
		return nil, err
	}
	return reserved.Create(manifest())
}

func create(t *testing.T) (*Folder, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "deep", "results")
	f, err := createIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, dir
}

func TestFolderResumes(t *testing.T) {
	f, dir := create(t)
	for i := 1; i <= 3; i++ {
		if err := f.Append(run(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Append(run(2)); err == nil {
		t.Error("the same run was recorded twice")
	}
	before, err := f.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("open a folder in use: %v", err)
	}
	f.Close()

	// kill -9 in the middle of a write
	torn := line(t, run(4))[:100]
	appendText(t, dir, torn)
	f, err = Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Torn() == nil || f.Torn().Line != 4 || f.Torn().Bytes != 100 {
		t.Errorf("torn line: %+v", f.Torn())
	}
	if after, _ := f.Digest(); after != before {
		t.Error("the torn line is still there")
	}
	want := []Key{{"latency", 1}, {"latency", 2}, {"latency", 3}}
	if d := cmp.Diff(want, f.Runs()); d != "" {
		t.Error(d)
	}
	if f.Done("latency", 4) || !f.Done("latency", 3) || f.Done("other", 3) {
		t.Error("wrong runs are done")
	}
	if d := cmp.Diff(manifest(), f.Manifest(), sameJSON); d != "" {
		t.Error(d)
	}
	if err := f.Append(run(4)); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, err := range ReadDir(dir, Options{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 4 {
		t.Errorf("%d records, want 4", n)
	}
}

func appendText(t *testing.T, dir, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, RecordsName), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefusesDamage(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		line int
	}{
		"garbage inside": {"garbage\n" + line(t, run(2)), 2},
		"run twice":      {line(t, run(2)) + line(t, run(1)), 3},
		"other format":   {strings.Replace(line(t, run(2)), `"schema":1`, `"schema":2`, 1), 2},
	} {
		t.Run(name, func(t *testing.T) {
			f, dir := create(t)
			if err := f.Append(run(1)); err != nil {
				t.Fatal(err)
			}
			f.Close()
			appendText(t, dir, c.text)
			before, _ := Digest(dir)
			_, err := Open(dir)
			var damage *DamageError
			if !errors.As(err, &damage) || damage.Line != c.line || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v", err)
			}
			if after, _ := Digest(dir); after != before {
				t.Error("a damaged file was changed")
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	f, dir := create(t)
	f.Close()
	if _, err := createIn(dir); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("create over results: %v", err)
	}
	other := t.TempDir()
	os.WriteFile(filepath.Join(other, "thesis.tex"), nil, 0o644)
	if _, err := createIn(other); !errors.Is(err, ErrNotEmpty) || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("create in a folder of something else: %v", err)
	}
	if _, err := os.Stat(filepath.Join(other, RecordsName)); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a refused folder was written to")
	}
	// What a Create that was killed leaves does not stand in the way.
	killed := t.TempDir()
	os.WriteFile(filepath.Join(killed, RecordsName), nil, 0o644)
	os.WriteFile(filepath.Join(killed, "."+ManifestName+"123"), []byte("{"), 0o644)
	again, err := createIn(killed)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestOpenWithoutManifest(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "rampart run") {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("a folder that is not ours got %v", entries)
	}
}

func TestCheckPlans(t *testing.T) {
	f, dir := create(t)
	same := map[string]string{"latency": "sha256:aa", "throughput": "sha256:bb"}
	if err := f.CheckPlans(same); err != nil {
		t.Error(err)
	}
	for want, digests := range map[string]map[string]string{
		"its plan is another one":             {"latency": "sha256:cc", "throughput": "sha256:bb"},
		"the configuration no longer has it":  {"latency": "sha256:aa"},
		"the folder does not have it":         {"latency": "sha256:aa", "throughput": "sha256:bb", "new": "sha256:dd"},
		"restore the configuration that mani": {},
	} {
		err := f.CheckPlans(digests)
		var plan *PlanError
		if !errors.As(err, &plan) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v: %v", digests, err)
		}
	}
}

func TestSetManifest(t *testing.T) {
	f, dir := create(t)
	m := f.Manifest()
	m.Sessions = append(m.Sessions, Session{Outcome: "complete"})
	if err := f.SetManifest(m); err != nil {
		t.Fatal(err)
	}
	got, err := ReadManifest(dir)
	if d := cmp.Diff(m, got, sameJSON); d != "" || err != nil {
		t.Error(d, err)
	}
	path := filepath.Join(dir, ManifestName)
	text, _ := os.ReadFile(path)
	os.WriteFile(path, []byte(strings.Replace(string(text), `"schema": 1`, `"schema": 9, "colour": 1`, 1)), 0o644)
	var schema *SchemaError
	if _, err := ReadManifest(dir); !errors.As(err, &schema) || schema.Got != 9 {
		t.Error(err)
	}
	os.WriteFile(path, []byte(strings.Replace(string(text), `"clock"`, `"colour": 1, "clock"`, 1)), 0o644)
	if _, err := ReadManifest(dir); err == nil || !strings.Contains(err.Error(), "colour") {
		t.Error(err)
	}
}

func TestDefaultDir(t *testing.T) {
	at := time.Date(2026, 1, 2, 4, 4, 5, 0, time.FixedZone("CET", 3600))
	if got := DefaultDir("rampart", at); got != "results/rampart-20260102T030405Z" {
		t.Error(got)
	}
}

// needRoot skips the test where it cannot run, and fails it where skipping is forbidden.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Fatal("needs root to mount a file system")
	}
	t.Skip("needs root to mount a file system")
}

// On a full disk nothing that was there is lost, no half line stays, and after room was made the
// run goes on.
func TestFullDisk(t *testing.T) {
	needRoot(t)
	mount := t.TempDir()
	if err := unix.Mount("record-test", mount, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(mount, unix.MNT_DETACH) })
	dir := filepath.Join(mount, "results")
	f, err := createIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ballast := filepath.Join(mount, "ballast")
	os.WriteFile(ballast, make([]byte, 8<<10), 0o644)
	last := 0
	for err == nil {
		last++
		rec := run(last)
		rec.Samples = map[string][]int64{"rtt_ns": make([]int64, 1500)}
		err = f.Append(rec)
	}
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free some space") {
		t.Fatalf("run %d: %v", last, err)
	}
	info, _ := os.Stat(filepath.Join(dir, RecordsName))
	n := 0
	for _, err := range ReadDir(dir, Options{}) {
		if err != nil {
			t.Fatalf("after a full disk: %v", err)
		}
		n++
	}
	if n != last-1 || n == 0 {
		t.Errorf("%d records in %d bytes, want %d", n, info.Size(), last-1)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := f.Append(run(last)); err != nil {
		t.Fatal(err)
	}
	f.Close()
	again, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Torn() != nil || !again.Done("latency", last) {
		t.Errorf("after room was made: torn %v, runs %v", again.Torn(), again.Runs())
	}
}

// A process that appends is killed at many moments: what Append had confirmed is there afterwards.
func TestKillWhileAppending(t *testing.T) {
	if dir := os.Getenv("RECORD_TEST_APPEND"); dir != "" {
		appendForEver(dir)
	}
	for i := range 8 {
		dir := filepath.Join(t.TempDir(), "results")
		f, err := createIn(dir)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		cmd := exec.Command(os.Args[0], "-test.run=^TestKillWhileAppending$")
		cmd.Env = append(os.Environ(), "RECORD_TEST_APPEND="+dir)
		out, _ := cmd.StdoutPipe()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		confirmed := 0
		time.AfterFunc(time.Duration(30+7*i)*time.Millisecond, func() { cmd.Process.Kill() })
		for {
			if _, err := fmt.Fscan(out, &confirmed); err != nil {
				break
			}
		}
		cmd.Wait()
		f, err = Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(f.Runs()); n < confirmed || n > confirmed+1 {
			t.Errorf("%d records, %d confirmed", n, confirmed)
		}
		f.Close()
	}
}

// appendForEver is the process that is killed. It prints the number of each confirmed run.
func appendForEver(dir string) {
	f, err := Open(dir)
	for i := 1; err == nil; i++ {
		rec := run(i)
		rec.Samples = map[string][]int64{"rtt_ns": make([]int64, 5000)}
		if err = f.Append(rec); err == nil {
			fmt.Println(i)
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestWriterRefuses(t *testing.T) {
	f, _ := create(t)
	bad := run(1)
	bad.Status = "fine"
	if err := f.Append(bad); err == nil || !strings.Contains(err.Error(), "latency/1") {
		t.Error(err)
	}
	if f.writer.size != 0 {
		t.Error("a refused record was written")
	}
}

func TestReservation(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "results", "study")
	reserved, err := Reserve(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Reserve(dir); !errors.Is(err, ErrLocked) {
		t.Errorf("a second reservation: %v", err)
	}
	if err := reserved.Cancel(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 0 {
		t.Errorf("%v is left, %v", entries, err)
	}
}

func TestMovedFolder(t *testing.T) {
	root := t.TempDir()
	dir, away := filepath.Join(root, "here"), filepath.Join(root, "away")
	folder, err := createIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	if err := folder.Append(run(1)); !errors.Is(err, ErrMoved) {
		t.Errorf("append: %v", err)
	}
	if err := folder.SetManifest(manifest()); !errors.Is(err, ErrMoved) {
		t.Errorf("set manifest: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(away, RecordsName)); err != nil || bytes.Count(text, []byte("\n")) != 1 {
		t.Errorf("the record did not go with the folder: %q, %v", text, err)
	}
}
