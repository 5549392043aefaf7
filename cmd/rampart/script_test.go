package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/images"
)

// bin is the folder of the real binary, built once: static, as users get it, since it is also what
// goes to the nodes.
var bin string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rampart-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "rampart"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build rampart: %v\n%s", err, out)
		os.Exit(1)
	}
	bin = dir
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// TestScripts runs the program as its users do. Scripts whose name begins with "root-" need root and
// real namespaces, those with "libvirt-" root and a libvirt that answers, those with "session-" root to
// become somebody without privileges, and a libvirt that can be started.
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

// TestLongScripts runs those that build images of their own, or boot machines again and again.
func TestLongScripts(t *testing.T) {
	if os.Getenv("RAMPART_TEST_LONG") == "" {
		t.Skip("takes many minutes: make test-long")
	}
	runScripts(t, "testdata/long")
}

func runScripts(t *testing.T, folder string) {
	scripts, err := filepath.Glob(filepath.Join(folder, "*.txtar"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	var files []string
	for _, file := range scripts {
		if lacks := lacking(filepath.Base(file)); lacks != "" {
			unprivileged(t, file, lacks)
			continue
		}
		files = append(files, file)
	}
	testscript.Run(t, testscript.Params{
		Files: files,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
			apart, err := filepath.Abs("testdata/apart") // runs a command with a libvirt of its own
			if err != nil {
				return err
			}
			env.Setenv("APART", apart)
			// Every script has a testbed of its own name, so that they can run side by side.
			bed := fmt.Sprintf("t%d-%s", os.Getpid()%100000, strconv.FormatInt(time.Now().UnixNano()%1e6, 36))
			env.Setenv("BED", bed)
			env.Defer(func() { removeTestbed(t, bed) })
			if strings.HasPrefix(filepath.Base(env.WorkDir), "script-session-") {
				return becomeNobody(t, env)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":    exitsWith,
			"spawn":     spawn,
			"signal":    signalJob,
			"await":     await,
			"synthetic": synthetic,
			"strike":    strike,
			"tmpfs":     tmpfs,
			"faultless": faultless,
		},
	})
}

// removeTestbed removes what a script that failed left behind.
func removeTestbed(t *testing.T, name string) {
	if os.Geteuid() != 0 {
		return
	}
	down := exec.Command(filepath.Join(bin, "rampart"), "down", name)
	down.Dir = t.TempDir()
	if out, err := down.CombinedOutput(); err != nil {
		t.Errorf("rampart down %s: %v\n%s", name, err, out)
	}
}

// becomeNobody makes a home for the user nobody, with this program and root's images in it, and puts its
// path into $NOBODY. The path is short: libvirt puts sockets far below.
func becomeNobody(t *testing.T, env *testscript.Env) error {
	home, err := os.MkdirTemp("", "rn")
	if err != nil {
		return err
	}
	env.Setenv("NOBODY", home)
	env.Defer(func() {
		stopDaemons(t, filepath.Join(home, "run", "libvirt"))
		os.RemoveAll(home)
	})
	build := exec.Command(filepath.Join(bin, "rampart"), "image", "build", "--var", "bed=any")
	build.Dir = env.WorkDir
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build image: %w\n%s", err, out)
	}
	return sh(home, `
		mkdir -p run .cache/rampart/images && chmod 700 run
		cp "$1/rampart" rampart
		ln -s "$2/images" "$2/specs" .cache/rampart/images
		chown -R nobody:nogroup . && chmod 755 .`, bin, images.SystemDir)
}

// stopDaemons ends the daemons that listen in that folder; by themselves they would after two minutes.
func stopDaemons(t *testing.T, folder string) {
	files, _ := filepath.Glob(filepath.Join(folder, "*.pid"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || pid <= 1 {
			t.Errorf("%s holds %q", file, text)
			continue
		}
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
}

func sh(dir, script string, args ...string) error {
	cmd := exec.Command("sh", append([]string{"-euc", script, "sh"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// lacking is what a script needs and this machine does not have.
func lacking(script string) string {
	machines, session := strings.HasPrefix(script, "libvirt-"), strings.HasPrefix(script, "session-")
	switch {
	case (machines || session || strings.HasPrefix(script, "root-")) && os.Geteuid() != 0:
		return "root"
	case session && exec.Command("libvirtd", "--version").Run() != nil:
		return "libvirtd"
	case machines && exec.Command("virsh", "--connect", "qemu:///system", "version").Run() != nil:
		return "a libvirt that answers"
	}
	return ""
}

// unprivileged skips a test, or fails where nothing may be skipped.
func unprivileged(t *testing.T, what, lacks string) {
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Errorf("%s: %s is needed, and this run may not skip", what, lacks)
		return
	}
	t.Logf("%s: skipped: %s is needed", what, lacks)
}

// exitsWith runs `status N COMMAND...` and wants the exit status N.
func exitsWith(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND [ARG...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if err != nil {
		got = -1
		if exit, ok := err.(*exec.ExitError); ok {
			got = exit.ExitCode()
		}
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// job is a command that a script started with spawn.
type job struct {
	cmd  *exec.Cmd
	done chan error
}

// spawn runs `spawn NAME COMMAND...` in the background; its output goes to NAME.out.
func spawn(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: spawn NAME COMMAND [ARG...]")
	}
	out, err := os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	path := args[1]
	if path == "rampart" {
		path = filepath.Join(bin, path)
	}
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "PATH="+ts.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ts.Check(cmd.Start())
	j := &job{cmd, make(chan error, 1)}
	go func() { j.done <- cmd.Wait(); out.Close() }()
	jobs.put(ts, args[0], j)
	ts.Defer(func() { _ = cmd.Process.Kill() })
}

// signalJob runs `signal NAME INT|TERM|HUP|KILL|0 WITHIN`: the job must then end within that time. With 0
// it only waits for the end.
func signalJob(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL, "0": syscall.Signal(0),
	}
	if neg || len(args) != 3 {
		ts.Fatalf("usage: signal NAME INT|TERM|HUP|KILL|0 WITHIN")
	}
	sig, ok := signals[args[1]]
	if !ok {
		ts.Fatalf("there is no signal %s here", args[1])
	}
	within, err := time.ParseDuration(args[2])
	ts.Check(err)
	j := jobs.get(ts, args[0])
	started := time.Now()
	if err := j.cmd.Process.Signal(sig); sig != 0 {
		ts.Check(err)
	}
	select {
	case err := <-j.done:
		ts.Logf("%s ended after %s: %v", args[0], time.Since(started).Round(time.Millisecond), err)
	case <-time.After(within):
		ts.Fatalf("%s did not end within %s of the signal", args[0], within)
	}
}

// strike runs `strike NAME N`: it kills the job's Nth child that is an agent.
func strike(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: strike NAME N")
	}
	nth, err := strconv.Atoi(args[1])
	ts.Check(err)
	parent := jobs.get(ts, args[0]).cmd.Process.Pid
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	ts.Check(err)
	for _, path := range all {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		// pid (name) state ppid …: see proc(5).
		after := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if after[1] != strconv.Itoa(parent) || !strings.HasSuffix(string(line), "\x00agent\x00") {
			continue
		}
		if nth--; nth == 0 {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			ts.Check(err)
			ts.Check(syscall.Kill(pid, syscall.SIGKILL))
			return
		}
	}
	ts.Fatalf("%s does not have so many agents", args[0])
}

// tmpfs runs `tmpfs DIR SIZE`: the folder is a file system of that size, until the script ends.
func tmpfs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tmpfs DIR SIZE")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(syscall.Mount("none", dir, "tmpfs", 0, "size="+args[1]))
	ts.Defer(func() { _ = syscall.Unmount(dir, syscall.MNT_FORCE|2) }) // MNT_DETACH
}

// faultless runs `faultless RECORDS`: no run failed and no check, and what stands in the folder is what the
// published schemas say. It names what is not.
func faultless(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: faultless RECORDS")
	}
	file, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer file.Close()
	faults := offSchema(ts, filepath.Dir(file.Name()))
	for lines := json.NewDecoder(file); lines.More(); {
		var r record.Record
		ts.Check(lines.Decode(&r))
		if r.Status == record.Failed {
			faults = append(faults, fmt.Sprintf("run %d of %+v failed: %s (phases %v)", r.Sequence, r.Treatment, r.Error, r.PhasesS))
		}
		for _, c := range r.Checks {
			if !c.OK {
				faults = append(faults, fmt.Sprintf("run %d: check %q: want %v, got %v %s", r.Sequence, c.Name, c.Want, c.Got, c.Detail))
			}
		}
	}
	if len(faults) > 0 {
		ts.Fatalf("%s", strings.Join(faults, "\n"))
	}
}

// offSchema names what is not as the published schemas say in a results folder, of each kind the first.
func offSchema(ts *testscript.TestScript, folder string) (faults []string) {
	for file, schema := range map[string]string{
		record.RecordsName: "record.schema.json", record.ManifestName: "manifest.schema.json", "findings.json": "findings.schema.json",
	} {
		s, err := jsonschema.NewCompiler().Compile(filepath.Join("..", "..", "docs", "schema", schema))
		ts.Check(err)
		text, err := os.Open(filepath.Join(folder, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // of a run that goes on
		}
		ts.Check(err)
		defer text.Close()
		for values := json.NewDecoder(text); values.More(); {
			var raw json.RawMessage
			ts.Check(values.Decode(&raw))
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
			ts.Check(err)
			if err := s.Validate(value); err != nil {
				faults = append(faults, fmt.Sprintf("%s is not as docs/schema/%s says: %v", file, schema, err))
				break
			}
		}
	}
	return faults
}

// await runs `await FILE LINES WITHIN`: the file has at least so many lines within that time.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: await FILE LINES WITHIN")
	}
	lines, err := strconv.Atoi(args[1])
	ts.Check(err)
	within, err := time.ParseDuration(args[2])
	ts.Check(err)
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && strings.Count(string(text), "\n") >= lines {
			return
		}
	}
	ts.Fatalf("%s does not have %d lines after %s", args[0], lines, within)
}
