package provision_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/provision"
)

// TestMain makes the test binary its own helper, as the real program is.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "agent" {
		os.Exit(agent(os.Args[2]))
	}
	os.Exit(m.Run())
}

// agent serves requests and leaves a file where it was told to when it got to undo its work.
func agent(undone string) int {
	signal.Ignore(syscall.SIGPIPE)
	err := provision.Serve(context.Background(), os.Stdin, os.Stdout, handlers())
	os.WriteFile(undone, nil, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type sum struct {
	A int `json:"a"`
	B int `json:"b"`
}

func handlers() provision.Handlers {
	return provision.Handlers{
		"add": provision.Handle(func(_ context.Context, p sum) (int, error) { return p.A + p.B, nil }),
		"fail": provision.Handle(func(context.Context, struct{}) (int, error) {
			return 0, errors.New("load rules: out of luck")
		}),
		"unavailable": provision.Handle(func(context.Context, struct{}) (int, error) {
			return 0, fmt.Errorf("load rules: %w", &provision.RemoteError{Code: provision.CodeUnavailable, Message: "no such engine"})
		}),
		"panic":   provision.Handle(func(context.Context, struct{}) (int, error) { panic("at the disco") }),
		"nan":     provision.Handle(func(context.Context, struct{}) (float64, error) { return math.NaN(), nil }),
		"samples": provision.Handle(func(_ context.Context, n int) ([]int64, error) { return samples(n), nil }),
		"huge": provision.Handle(func(context.Context, struct{}) (string, error) {
			return strings.Repeat("x", provision.MaxLine), nil
		}),
		"wait": provision.Handle(func(ctx context.Context, _ struct{}) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}),
		"stuck": provision.Handle(func(context.Context, struct{}) (int, error) { time.Sleep(time.Hour); return 0, nil }),
		"die": provision.Handle(func(context.Context, struct{}) (int, error) {
			fmt.Fprintln(os.Stderr, "famous last words")
			os.Exit(7)
			return 0, nil
		}),
		"garble": provision.Handle(func(context.Context, struct{}) (int, error) {
			fmt.Println("this is not JSON")
			return 0, nil
		}),
	}
}

func samples(n int) []int64 {
	s := make([]int64, n)
	for i := range s {
		s[i] = math.MaxInt64 - int64(i)
	}
	return s
}

// folder is a node made of a folder and ordinary processes.
type folder struct {
	dir  string
	puts int
}

func (f *folder) Put(_ context.Context, path string, mode fs.FileMode, content io.Reader) error {
	f.puts++
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.dir, path), data, mode)
}

func (f *folder) Start(ctx context.Context, argv ...string) (provision.Conn, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = f.dir
	p := &process{cmd: cmd}
	cmd.Stderr = &p.log
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.WriteCloser, p.Reader = in, out
	return p, cmd.Start()
}

type process struct {
	io.Reader
	io.WriteCloser
	cmd *exec.Cmd
	log bytes.Buffer
}

func (p *process) Wait() error {
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, p.log.String())
	}
	return nil
}

// connect starts the test binary as a helper; undone names the file it leaves when it could undo.
func connect(t *testing.T) (a *provision.Agent, undone string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	undone = filepath.Join(t.TempDir(), "undone")
	a, err = provision.Connect(t.Context(), &folder{dir: t.TempDir()}, exe, "agent", undone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a, undone
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestCall(t *testing.T) {
	a, undone := connect(t)
	for i := range 100 {
		var got int
		if err := a.Call(t.Context(), "add", sum{i, 1}, &got); err != nil || got != i+1 {
			t.Fatalf("add %d and 1 = %d, %v", i, got, err)
		}
	}
	if err := a.Call(t.Context(), "add", sum{1, 2}, nil); err != nil {
		t.Errorf("call whose result nobody wants: %v", err)
	}
	if exists(undone) {
		t.Error("the helper undid its work before it was closed")
	}
	if err := a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if !exists(undone) {
		t.Error("the helper did not undo its work")
	}
	if err := a.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if err := a.Call(t.Context(), "add", sum{1, 2}, nil); !errors.Is(err, provision.ErrLost) {
		t.Errorf("call after close: %v", err)
	}
}

// Errors of a job keep their code, and the helper stays usable.
func TestRemoteErrors(t *testing.T) {
	a, _ := connect(t)
	for _, test := range []struct {
		method  string
		params  any
		code    string
		message string
	}{
		{"fail", struct{}{}, provision.CodeFailed, "load rules: out of luck"},
		{"unavailable", struct{}{}, provision.CodeUnavailable, "load rules: no such engine"},
		{"panic", nil, provision.CodePanic, "panic panicked: at the disco\ngoroutine"},
		{"nan", nil, provision.CodeFailed, "unsupported value: NaN"},
		{"huge", nil, provision.CodeFailed, "longer than 67108864 bytes"},
		{"nonesuch", nil, provision.CodeUnknownMethod, `no method "nonesuch"`},
		{"add", map[string]int{"a": 1, "c": 2}, provision.CodeBadRequest, `unknown field "c"`},
		{"add", "one and one", provision.CodeBadRequest, "decode parameters"},
	} {
		err := a.Call(t.Context(), test.method, test.params, nil)
		remote, ok := errors.AsType[*provision.RemoteError](err)
		if !ok || remote.Code != test.code || !strings.Contains(remote.Message, test.message) {
			t.Errorf("%s: got %#v, want code %s, message with %q", test.method, err, test.code, test.message)
		}
		if errors.Is(err, provision.ErrLost) {
			t.Errorf("%s: %v: an error of the job lost the helper", test.method, err)
		}
	}
	var got int
	if err := a.Call(t.Context(), "add", sum{20, 22}, &got); err != nil || got != 42 {
		t.Errorf("after all these errors add = %d, %v", got, err)
	}
}

func TestMillionSamples(t *testing.T) {
	a, _ := connect(t)
	var got []int64
	if err := a.Call(t.Context(), "samples", 1_000_000, &got); err != nil {
		t.Fatal(err)
	}
	want := samples(1_000_000)
	if len(got) != len(want) || got[0] != want[0] || got[999_999] != want[999_999] {
		t.Errorf("got %d samples, from %d to %d", len(got), got[0], got[len(got)-1])
	}
}

// A cancelled call ends the helper within a second, whether or not the job listens.
func TestCancel(t *testing.T) {
	for _, test := range []struct {
		method string
		undone bool
	}{{"wait", true}, {"stuck", false}} {
		t.Run(test.method, func(t *testing.T) {
			t.Parallel()
			a, undone := connect(t)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			start := time.Now()
			err := a.Call(ctx, test.method, nil, nil)
			if took := time.Since(start); took > 1100*time.Millisecond {
				t.Errorf("call returned %v after it was cancelled", took-100*time.Millisecond)
			}
			if !errors.Is(err, provision.ErrLost) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got error %v", err)
			}
			if exists(undone) != test.undone {
				t.Errorf("work undone: %v", exists(undone))
			}
			if err := a.Call(t.Context(), "add", sum{}, nil); !errors.Is(err, provision.ErrLost) {
				t.Errorf("next call: %v", err)
			}
		})
	}
}

// A context that is cancelled before a call is sent costs nothing.
func TestCancelledBefore(t *testing.T) {
	a, _ := connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Call(ctx, "add", sum{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := a.Call(t.Context(), "add", sum{}, nil); err != nil {
		t.Errorf("next call: %v", err)
	}
}

func TestLost(t *testing.T) {
	for _, test := range []struct{ method, want string }{
		{"die", "it ended without an answer: exit status 7: famous last words"},
		{"garble", "decode answer: invalid character"},
	} {
		a, _ := connect(t)
		err := a.Call(t.Context(), test.method, nil, nil)
		if !errors.Is(err, provision.ErrLost) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.method, err, test.want)
		}
		if err := a.Call(t.Context(), "add", sum{}, nil); !errors.Is(err, provision.ErrLost) {
			t.Errorf("next call: %v", err)
		}
	}
}

// The context of Connect bounds the greeting, not the helper.
func TestConnect(t *testing.T) {
	node := &folder{dir: t.TempDir()}
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := provision.Connect(ctx, node, "sleep", "60"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("program that does not greet: %v", err)
	}
	if took := time.Since(start); took > 1500*time.Millisecond {
		t.Errorf("gave up after %v", took)
	}
	if _, err := provision.Connect(t.Context(), node, "/nonexistent"); err == nil {
		t.Error("connected to a program that does not exist")
	}
	if _, err := provision.Connect(t.Context(), node, "sh", "-c", "echo no such verb >&2; exit 2"); !errors.Is(err, provision.ErrLost) || !strings.Contains(err.Error(), "no such verb") {
		t.Errorf("program that fails: %v", err)
	}
	if _, err := provision.Connect(t.Context(), node, "sh", "-c", `echo '{"id":1,"result":{"protocol":999}}'; cat`); err == nil || !strings.Contains(err.Error(), "protocol 999") {
		t.Errorf("another protocol: %v", err)
	}

	exe, _ := os.Executable()
	ctx, cancel = context.WithCancel(t.Context())
	a, err := provision.Connect(ctx, node, exe, "agent", filepath.Join(t.TempDir(), "undone"))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := a.Call(t.Context(), "add", sum{}, nil); err != nil {
		t.Errorf("the helper died with the context of Connect: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// A helper whose caller is killed notices, stops its job and undoes its work.
func TestServeEndOfInput(t *testing.T) {
	in, caller := io.Pipe()
	served := make(chan error)
	var out bytes.Buffer
	go func() { served <- provision.Serve(t.Context(), in, &out, handlers()) }()
	io.WriteString(caller, `{"id":1,"method":"wait"}`+"\n")
	caller.Close()
	if err := <-served; err != nil || out.Len() != 0 {
		t.Errorf("serve = %v, wrote %q", err, out.String())
	}
}

func TestServeRefuses(t *testing.T) {
	for _, test := range []struct{ input, want string }{
		{"not json\n", "decode request: invalid character"},
		{`{"id":1}` + "\n", "names no method"},
		{`{"id":1,"method":"add","priority":"high"}` + "\n", `unknown field "priority"`},
		{`{"id":1,"method":"add"} {}` + "\n", "more than one JSON value"},
		{`{"id":1,"method":"add"`, "unexpected EOF"},
		{strings.Repeat(" ", provision.MaxLine+2) + "\n", "longer than 67108864 bytes"},
	} {
		in, caller := io.Pipe()
		go func() {
			io.WriteString(caller, test.input)
			if !strings.HasSuffix(test.input, "\n") {
				caller.Close()
			}
		}()
		err := provision.Serve(t.Context(), in, io.Discard, handlers())
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("serve %.40q: %v, want %q", test.input, err, test.want)
		}
		in.Close()
	}
}

func TestServeCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, caller := io.Pipe()
	defer caller.Close()
	cancel()
	if err := provision.Serve(ctx, in, io.Discard, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func build(t *testing.T, cgo bool) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "program")
	if !cgo {
		dir := t.TempDir()
		os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\nfunc main() {}\n"), 0o644)
		cmd := exec.Command("go", "build", "-o", exe, filepath.Join(dir, "main.go"))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return exe
	}
	data, err := os.ReadFile("/bin/sh") // dynamic on every distribution that this is tested on
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(exe, data, 0o755)
	return exe
}

func TestPush(t *testing.T) {
	exe := build(t, false)
	node := &folder{dir: t.TempDir()}
	path, copied, err := provision.Push(t.Context(), node, exe)
	if err != nil || !copied || !strings.HasPrefix(path, "./rampart-") {
		t.Fatalf("push = %q, %v, %v", path, copied, err)
	}
	again, copied, err := provision.Push(t.Context(), node, exe)
	if err != nil || copied || again != path || node.puts != 1 {
		t.Errorf("push again = %q, %v, %v", again, copied, err)
	}
	conn, err := node.Start(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Wait(); err != nil {
		t.Errorf("run what was pushed: %v", err)
	}
	want, _ := os.ReadFile(exe)
	if got, _ := os.ReadFile(filepath.Join(node.dir, path)); !bytes.Equal(got, want) {
		t.Error("the copy differs")
	}
}

func TestPushRefuses(t *testing.T) {
	node := &folder{dir: t.TempDir()}
	if _, _, err := provision.Push(t.Context(), node, build(t, true)); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("dynamic program: %v", err)
	}
	text := filepath.Join(t.TempDir(), "text")
	os.WriteFile(text, []byte("#!/bin/sh\n"), 0o755)
	if _, _, err := provision.Push(t.Context(), node, text); err == nil || !strings.Contains(err.Error(), "not a Linux program") {
		t.Errorf("script: %v", err)
	}
	if _, _, err := provision.Push(t.Context(), node, filepath.Join(node.dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
	if node.puts != 0 {
		t.Errorf("%d files put", node.puts)
	}
}

// FuzzServe feeds a helper what a broken caller could send: it answers every line that is a request,
// in order, stops with an error at the first that is not, and never panics.
func FuzzServe(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"method":"hello","params":{"protocol":1}}`,
		`{"id":2,"method":"add","params":{"a":1,"b":2}}` + "\n" + `{"id":3,"method":"panic"}`,
		`{"id":2,"method":"add","params":[]}`, `{"id":-1,"method":"x"}`, `null`, `{}`, "\n", "\xff", `{"id":1,"method":"fail"}{}`,
	} {
		f.Add([]byte(seed))
	}
	jobs := handlers()
	for _, method := range []string{"die", "stuck", "wait", "huge", "garble", "samples"} {
		delete(jobs, method)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		in, caller := io.Pipe()
		answers, out := io.Pipe()
		served := make(chan error, 1)
		go func() {
			served <- provision.Serve(t.Context(), in, out, jobs)
			in.Close()
			out.Close()
		}()
		answered := bufio.NewScanner(answers)
		answered.Buffer(nil, 1<<20)
		for line := range bytes.Lines(append(input, '\n')) {
			if _, err := caller.Write(line); err != nil {
				break
			}
			if !answered.Scan() {
				break
			}
		}
		caller.Close()
		go io.Copy(io.Discard, answers)
		<-served
	})
}

// scripted is a helper that says what it is told to, whatever it is asked.
type scripted struct {
	output io.Reader
}

func (s *scripted) Put(context.Context, string, fs.FileMode, io.Reader) error { return nil }
func (s *scripted) Start(context.Context, ...string) (provision.Conn, error)  { return s, nil }
func (s *scripted) Read(p []byte) (int, error)                                { return s.output.Read(p) }
func (s *scripted) Write(p []byte) (int, error)                               { return len(p), nil }
func (s *scripted) Close() error                                              { return nil }
func (s *scripted) Wait() error                                               { return nil }

// FuzzCall feeds a caller what a broken helper could say: every call ends, and with a result only
// when the line was an answer to it.
func FuzzCall(f *testing.F) {
	greeting := `{"id":1,"result":{"protocol":1}}` + "\n"
	for _, seed := range []string{
		`{"id":2,"result":3}`, `{"id":2,"error":{"code":"failed","message":"no"}}`, `{"id":2}`, `{"id":3,"result":3}`,
		`{"id":2,"result":3,"error":{"code":"","message":""}}`, `{"id":2,"result":null}`, `null`, "\xff", `{"id":2,"result":"three"}`, "\n\n",
	} {
		f.Add([]byte(seed + "\n"))
	}
	f.Fuzz(func(t *testing.T, output []byte) {
		a, err := provision.Connect(t.Context(), &scripted{output: io.MultiReader(strings.NewReader(greeting), bytes.NewReader(output))})
		if err != nil {
			t.Fatal(err)
		}
		var got int
		err = a.Call(t.Context(), "add", sum{1, 2}, &got)
		if err == nil && !bytes.Contains(output, []byte("\n")) {
			t.Errorf("result %d came out of %q", got, output)
		}
		a.Close()
	})
}
