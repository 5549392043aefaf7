package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
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
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "rampart"), ".")
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
// real namespaces.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts found: %v", err)
	}
	var files []string
	for _, file := range scripts {
		if strings.HasPrefix(filepath.Base(file), "root-") && os.Geteuid() != 0 {
			unprivileged(t, file)
			continue
		}
		files = append(files, file)
	}
	testscript.Run(t, testscript.Params{
		Files: files,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
			// Every script has a testbed of its own name, so that they can run side by side.
			bed := fmt.Sprintf("t%d-%s", os.Getpid()%100000, strconv.FormatInt(time.Now().UnixNano()%1e6, 36))
			env.Setenv("BED", bed)
			env.Defer(func() { removeTestbed(t, bed) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":    exitsWith,
			"spawn":     spawn,
			"signal":    signalJob,
			"await":     await,
			"synthetic": synthetic,
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

// unprivileged skips a script, or fails where nothing may be skipped.
func unprivileged(t *testing.T, what string) {
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Errorf("%s: root is needed, and this run may not skip", what)
		return
	}
	t.Logf("%s: skipped: root is needed", what)
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

// signalJob runs `signal NAME INT|KILL [WITHIN]`: the job must then end within that time.
func signalJob(ts *testscript.TestScript, neg bool, args []string) {
	signals := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}
	if neg || len(args) != 3 || signals[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME INT|TERM|KILL WITHIN")
	}
	within, err := time.ParseDuration(args[2])
	ts.Check(err)
	j := jobs.get(ts, args[0])
	started := time.Now()
	ts.Check(j.cmd.Process.Signal(signals[args[1]]))
	select {
	case err := <-j.done:
		ts.Logf("%s ended after %s: %v", args[0], time.Since(started).Round(time.Millisecond), err)
	case <-time.After(within):
		ts.Fatalf("%s did not end within %s of the signal", args[0], within)
	}
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
