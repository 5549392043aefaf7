package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

// victimVariable names the testbed that a child of the test process works on until it is killed.
const victimVariable = "NETNS_TEST_VICTIM"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "agent" {
		os.Exit(agent(os.Args[2]))
	}
	if name := os.Getenv(victimVariable); name != "" {
		if err := victim(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// victim brings a testbed up, runs commands on every node, renews the nodes and takes it down, again
// and again, until it is killed or its standard input ends because the test process was.
func victim(name string) error {
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	ctx := context.Background()
	p := New(Options{})
	spec := testbed.Default()
	spec.Name = name
	for {
		b, err := p.Up(ctx, spec)
		if err != nil {
			return err
		}
		for _, role := range testbed.Roles() {
			for range 2 {
				if _, err := b.Node(role).Start(ctx, "sleep", "300"); err != nil {
					return err
				}
			}
			if err := b.(testbed.Renewer).Renew(ctx, role); err != nil {
				return err
			}
			if _, err := b.Node(role).Start(ctx, "sleep", "300"); err != nil {
				return err
			}
		}
		b.Close()
		if err := p.Down(ctx, name); err != nil {
			return err
		}
	}
}

// Killed at any moment, a process leaves nothing that Down does not find, and no command running.
func TestKilled(t *testing.T) {
	needsRoot(t)
	spec := testSpec(t, "k")
	random := rand.New(rand.NewPCG(1, 2))
	states := map[string]int{}
	begin := time.Now()
	kills := 0
	for ; kills < 40 && time.Since(begin) < 15*time.Second; kills++ {
		killVictim(t, spec.Name, time.Duration(random.IntN(120))*time.Millisecond)
		if left := commandsIn(t, spec.Name); left > 0 {
			t.Fatalf("%d commands outlived the process that started them", left)
		}
		states[fmt.Sprint(len(traces(t, spec.Name)), " traces")]++
		if err := New(Options{}).Down(t.Context(), spec.Name); err != nil {
			t.Fatal(err)
		}
		if left := traces(t, spec.Name); len(left) > 0 {
			t.Fatalf("after down: %v", left)
		}
	}
	links, err := exec.Command("ip", "-o", "link").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(links), "side@") {
		t.Errorf("links on the host:\n%s", links)
	}
	t.Logf("%d kills found %v", kills, states)
}

// killVictim starts a victim and kills it after a delay from its start.
func killVictim(t *testing.T, name string, after time.Duration) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimVariable+"="+name)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	cmd.Process.Kill()
	cmd.Wait()
	if stderr.Len() > 0 {
		t.Fatalf("victim: %s", stderr.String())
	}
}

// commandsIn counts the processes that work in the scratch folder of the testbed, once those that are
// being killed had the time to die.
func commandsIn(t *testing.T, name string) int {
	t.Helper()
	var left int
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left = 0
		folders, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			t.Fatal(err)
		}
		for _, cwd := range folders {
			if target, err := os.Readlink(cwd); err == nil && strings.Contains(target, "/"+folderName(name)+"/") {
				left++
			}
		}
		if left == 0 {
			break
		}
	}
	return left
}

// A second process cannot take the name of a testbed, but can attach to it.
func TestSecondProcess(t *testing.T) {
	needsRoot(t)
	spec := testSpec(t, "h")
	b := upBed(t, spec)
	b.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimVariable+"="+spec.Name)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "rampart down") {
		t.Errorf("second process with the same name: %v\n%s", err, out)
	}
	other, err := New(Options{}).Attach(t.Context(), spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if got := onNode(t, other, testbed.Sender, "pwd"); got != other.(*bed).folder(testbed.Sender) {
		t.Errorf("commands run in %s", got)
	}
}

// asNobody runs this test binary as an ordinary user, with or without a user namespace around it.
func asNobody(t *testing.T, run string, wrap ...string) string {
	t.Helper()
	const nobody = 65534
	folder, err := os.MkdirTemp("/tmp", "netns-test-") // t.TempDir is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	exe := filepath.Join(folder, "test")
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(folder, 0o755), os.WriteFile(exe, data, 0o755)); err != nil {
		t.Fatal(err)
	}
	argv := append(wrap, exe, "-test.v", "-test.run", run)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "RAMPART_TEST_NO_SKIP=0", "HOME=/")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

// An ordinary user is told what to do.
func TestUnprivileged(t *testing.T) {
	if checkCapabilities() == nil {
		if out := asNobody(t, "^TestUnprivileged$"); !strings.Contains(out, "--- PASS: TestUnprivileged") {
			t.Errorf("as nobody:\n%s", out)
		}
		return
	}
	_, err := New(Options{}).Up(t.Context(), testbed.Default())
	unable, ok := errors.AsType[*testbed.UnableError](err)
	if !ok || !strings.Contains(unable.Reason, "CAP_NET_ADMIN") || !strings.Contains(unable.Mend, "sudo") || !strings.Contains(unable.Mend, "unshare --map-root-user") {
		t.Errorf("up: %#v", err)
	}
	if err := New(Options{}).Down(t.Context(), "netns-nothing"); err != nil {
		t.Errorf("down of nothing: %v", err)
	}
	if _, err := New(Options{}).List(t.Context()); err != nil {
		t.Errorf("list: %v", err)
	}
}

// An ordinary user has it all in a user namespace of his own.
func TestUserNamespace(t *testing.T) {
	needsRoot(t)
	if isUserNamespace() {
		t.Skip("is in a user namespace already")
	}
	before := len(traces(t, "netns"))
	out := asNobody(t, "^(TestConformance|TestRenew|TestDown)$", "unshare", "--map-root-user", "--net", "--mount")
	for _, want := range []string{"--- PASS: TestConformance", "--- PASS: TestRenew", "--- PASS: TestDown"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output of the user namespace:\n%s", want, out)
			break
		}
	}
	if after := len(traces(t, "netns")); after > before {
		t.Errorf("the host sees %d traces of it", after-before)
	}
}

// A user namespace without a mount namespace is told what it lacks.
func TestUserNamespaceWithoutMounts(t *testing.T) {
	needsRoot(t)
	if isUserNamespace() {
		_, err := New(Options{}).Up(t.Context(), testSpec(t, ""))
		if unable, ok := errors.AsType[*testbed.UnableError](err); !ok || !strings.Contains(unable.Mend, "--mount") {
			t.Errorf("up: %v", err)
		}
		return
	}
	out := asNobody(t, "^TestUserNamespaceWithoutMounts$", "unshare", "--map-root-user", "--net")
	if !strings.Contains(out, "--- PASS: TestUserNamespaceWithoutMounts") {
		t.Errorf("got\n%s", out)
	}
}

// Where /run does not allow programs to start, the scratch folder is elsewhere.
func TestNoexecRun(t *testing.T) {
	needsRoot(t)
	var stat unix.Statfs_t
	if err := unix.Statfs(runFolder, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Flags&unix.ST_NOEXEC == 0 {
		if isUserNamespace() {
			t.Skip("has no other folder to go to")
		}
		script := "mount -t tmpfs -o noexec tmpfs /run && exec /proc/self/fd/3 -test.v -test.run '^TestNoexecRun$'"
		exe, err := os.Open("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		defer exe.Close()
		cmd := exec.Command("unshare", "--mount", "sh", "-c", script)
		cmd.ExtraFiles = []*os.File{exe}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestNoexecRun") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	b := upBed(t, testSpec(t, "n"))
	if err := b.Node(testbed.Sender).Put(t.Context(), "script", 0o755, strings.NewReader("#!/bin/sh\npwd\n")); err != nil {
		t.Fatal(err)
	}
	if got := onNode(t, b, testbed.Sender, "./script"); !strings.HasPrefix(got, scratchRoots[1]+"/") {
		t.Errorf("scratch folder is %s", got)
	}
}

// Output is read as it comes, not when the command ends.
func TestOutputAsItComes(t *testing.T) {
	needsRoot(t)
	b := upBed(t, testSpec(t, ""))
	conn, err := b.Node(testbed.Sender).Start(t.Context(), "sh", "-c", "echo one; read line; echo $line; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	if !lines.Scan() || lines.Text() != "one" {
		t.Fatalf("first line: %q", lines.Text())
	}
	fmt.Fprintln(conn, "two")
	if err := conn.Wait(); err == nil {
		t.Error("exit status 3 is no error")
	}
	if !lines.Scan() || lines.Text() != "two" { // still there after the end
		t.Errorf("second line: %q", lines.Text())
	}
}
