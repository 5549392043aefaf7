package ssh

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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

// server is an sshd of the test's own on loopback.
type server struct {
	addr   string
	host   Key
	client Key
	user   string
}

func startServer(t *testing.T) server {
	t.Helper()
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		sshd, err = exec.LookPath("/usr/sbin/sshd")
	}
	if err != nil {
		skip(t, "sshd is not installed: apt-get install openssh-server")
	}
	if os.Geteuid() == 0 {
		// sshd's empty folder for what runs without privileges; its service makes it too.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := server{host: newTestKey(t), client: newTestKey(t), user: me.Username}
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	hostKey, authorized := write("host", s.host.Private), write("authorized", s.client.Authorized)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = listener.Addr().String()
	listener.Close()
	_, port, _ := net.SplitHostPort(s.addr)
	config := write("config", fmt.Appendf(nil, `
ListenAddress 127.0.0.1:%s
HostKey %s
AuthorizedKeysFile %s
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
MaxSessions 100
`, port, hostKey, authorized))
	var log bytes.Buffer
	cmd := exec.Command(sshd, "-D", "-e", "-f", config)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd:\n%s", &log)
		}
	})
	for range 100 {
		if conn, err := net.Dial("tcp", s.addr); err == nil {
			conn.Close()
			return s
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("sshd does not answer")
	return server{}
}

func newTestKey(t testing.TB) Key {
	t.Helper()
	key, err := NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (s server) config(t testing.TB) Config {
	return Config{Addr: s.addr, User: s.user, Key: s.client.Signer, HostKey: s.host.Signer.PublicKey(), Scratch: filepath.Join(t.TempDir(), "scratch")}
}

func dial(t testing.TB, config Config) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := Dial(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// run runs a command to its end and returns its standard output.
func run(t testing.TB, c *Client, argv ...string) (string, error) {
	t.Helper()
	conn, err := c.Start(t.Context(), argv...)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), conn.Wait()
}

func TestArgumentsArriveAsTheyAre(t *testing.T) {
	c := dial(t, startServer(t).config(t))
	every := make([]byte, 0, 255)
	for b := 1; b < 256; b++ {
		every = append(every, byte(b))
	}
	args := []string{"", " ", "a b", "'", "''", `"`, `\`, `\'`, "$HOME", "`id`", "$(id)", "*", "~", "-n", "!", "a\nb", "\xff\xfe", "é", string(every)}
	got, err := run(t, c, append([]string{"printf", `%s\0`}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(args, "\x00") + "\x00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := c.Start(t.Context(), "echo", "a\x00b"); !errors.Is(err, errNUL) {
		t.Errorf("NUL in an argument: %v", err)
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a b", "it's", "'\\''", "$x`y`", "\n", "\xff", "a\x00b", "-e"} {
		f.Add(s, "x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		line, err := Quote([]string{"printf", `%s\0%s\0`, a, b})
		if strings.ContainsRune(a+b, 0) {
			if err == nil {
				t.Fatal("NUL was quoted")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("sh", "-c", line).Output()
		if err != nil {
			t.Fatal(err)
		}
		if want := a + "\x00" + b + "\x00"; string(out) != want {
			t.Fatalf("%s printed %q, want %q", line, out, want)
		}
	})
}

func TestExitStatus(t *testing.T) {
	var log bytes.Buffer
	config := startServer(t).config(t)
	config.Log = &log
	c := dial(t, config)
	for _, test := range []struct {
		script string
		code   int
		text   string
	}{
		{"exit 0", 0, ""},
		{"echo trouble >&2; exit 3", 3, "exit status 3: trouble"},
		{"kill -KILL $$", 137, "signal KILL"},
		{"i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done >&2; exit 1", 1, "line 2999"},
	} {
		_, err := run(t, c, "sh", "-c", test.script)
		if test.code == 0 {
			if err != nil {
				t.Errorf("%s: %v", test.script, err)
			}
			continue
		}
		var exit interface{ ExitCode() int }
		if !errors.As(err, &exit) || exit.ExitCode() != test.code || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: got %v, want code %d and %q", test.script, err, test.code, test.text)
		}
		if err != nil && len(err.Error()) > stderrTail+200 {
			t.Errorf("%s: error of %d bytes", test.script, len(err.Error()))
		}
	}
	if _, err := run(t, c, "/no/such/program"); err == nil || !strings.Contains(err.Error(), "127") {
		t.Errorf("missing program: %v", err)
	}
	if !strings.Contains(log.String(), "line 0\n") || !strings.Contains(log.String(), "line 2999\n") {
		t.Error("standard error is not in the log")
	}
}

func TestStandardInputAndOutput(t *testing.T) {
	c := dial(t, startServer(t).config(t))
	conn, err := c.Start(t.Context(), "cat")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(line))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != line {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); len(rest) > 0 || err != nil {
		t.Fatalf("after close: %q, %v", rest, err)
	}
	for range 2 {
		if err := conn.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOutputOutlivesCommand holds that what a command printed can be read after it has ended.
func TestOutputOutlivesCommand(t *testing.T) {
	c := dial(t, startServer(t).config(t))
	conn, err := c.Start(t.Context(), "printf", "result")
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); string(got) != "result" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestPut(t *testing.T) {
	config := startServer(t).config(t)
	c := dial(t, config)
	big := make([]byte, 20<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(big)
	elsewhere := filepath.Join(t.TempDir(), "with space", "it's")
	for _, test := range []struct {
		name    string
		mode    fs.FileMode
		content []byte
		file    string
	}{
		{"a", 0o644, []byte("first"), filepath.Join(config.Scratch, "a")},
		{"a", 0o600, []byte("second, over the first"), filepath.Join(config.Scratch, "a")},
		{"empty", 0o444, nil, filepath.Join(config.Scratch, "empty")},
		{"./sub/dir/program", 0o755, []byte("#!/bin/sh\necho \"$0 $1\"\n"), filepath.Join(config.Scratch, "sub/dir/program")},
		{elsewhere, 0o640, []byte("x"), elsewhere},
		{"big", 0o755, big, filepath.Join(config.Scratch, "big")},
	} {
		if err := c.Put(t.Context(), test.name, test.mode, bytes.NewReader(test.content)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(test.file)
		if err != nil {
			t.Fatal(err)
		}
		if sha256.Sum256(got) != sha256.Sum256(test.content) {
			t.Errorf("%s: got %d bytes, want %d", test.name, len(got), len(test.content))
		}
		if info, err := os.Stat(test.file); err != nil || info.Mode() != test.mode {
			t.Errorf("%s: mode %v, want %v", test.name, info.Mode(), test.mode)
		}
	}
	out, err := run(t, c, "./sub/dir/program", "arg")
	if want := filepath.Join(config.Scratch, "sub/dir/program") + " arg\n"; out != want || err != nil {
		t.Errorf("run what was put: %q, %v; want %q", out, err, want)
	}
	for _, bad := range []string{"", "../x", "a/../../x", "x/", "."} {
		if err := c.Put(t.Context(), bad, 0o644, strings.NewReader("x")); err == nil {
			t.Errorf("put %q was accepted", bad)
		}
	}
	if left := temporaries(t, config.Scratch); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// temporaries lists what an unfinished Put has left in dir, once no process on the node works there.
func temporaries(t *testing.T, dir string) []string {
	t.Helper()
	busy := func() bool {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		return slices.ContainsFunc(all, func(file string) bool {
			text, _ := os.ReadFile(file)
			return bytes.Contains(text, []byte(dir+"/.put-"))
		})
	}
	for range 200 {
		if !busy() {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".put-*"))
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// endless gives zeros, slowly.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	time.Sleep(time.Millisecond)
	clear(p)
	return len(p), nil
}

// arrived waits until the node has written to a temporary file in dir.
func arrived(dir string) {
	for range 200 {
		files, _ := filepath.Glob(filepath.Join(dir, ".put-*"))
		if len(files) > 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// failing gives a little, and an error once the node has begun to write.
type failing struct {
	dir string
	err error
}

func (f failing) Read([]byte) (int, error) { arrived(f.dir); return 0, f.err }

func TestInterruptedPutChangesNothing(t *testing.T) {
	s := startServer(t)
	boom := errors.New("boom")
	for _, test := range []struct {
		name string
		put  func(ctx context.Context, c *Client, dir string) error
	}{
		{"reader fails", func(ctx context.Context, c *Client, dir string) error {
			err := c.Put(ctx, "file", 0o644, io.MultiReader(strings.NewReader("new"), failing{dir, boom}))
			if !errors.Is(err, boom) {
				return fmt.Errorf("the reader's error is lost: %w", err)
			}
			return nil
		}},
		{"context ends", func(ctx context.Context, c *Client, dir string) error {
			ctx, cancel := context.WithCancel(ctx)
			go func() { arrived(dir); cancel() }()
			if err := c.Put(ctx, "file", 0o644, endless{}); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("not the context's error: %w", err)
			}
			return nil
		}},
		{"connection is lost", func(ctx context.Context, c *Client, dir string) error {
			go func() { arrived(dir); c.Close() }()
			if err := c.Put(ctx, "file", 0o644, endless{}); err == nil {
				return errors.New("no error")
			}
			return nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := s.config(t)
			c := dial(t, config)
			if err := c.Put(t.Context(), "file", 0o644, strings.NewReader("old")); err != nil {
				t.Fatal(err)
			}
			if err := test.put(t.Context(), c, config.Scratch); err != nil {
				t.Fatal(err)
			}
			if left := temporaries(t, config.Scratch); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if got, err := os.ReadFile(filepath.Join(config.Scratch, "file")); string(got) != "old" || err != nil {
				t.Errorf("the old file is now %q, %v", got, err)
			}
		})
	}
}

func TestPutSaysWhyTheNodeRefused(t *testing.T) {
	config := startServer(t).config(t)
	c := dial(t, config)
	if err := c.Put(t.Context(), "file", 0o644, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	err := c.Put(t.Context(), "file/below", 0o644, bytes.NewReader(make([]byte, 8<<20)))
	if err == nil || !strings.Contains(err.Error(), "exists") && !strings.Contains(err.Error(), "Not a directory") {
		t.Errorf("got %v", err)
	}
}

// TestSilentHost is the trap that goph's own time limit falls into.
func TestSilentHost(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	key := newTestKey(t)
	_, err = Dial(ctx, Config{Addr: listener.Addr().String(), Key: key.Signer, HostKey: key.Signer.PublicKey()})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
		t.Errorf("got %v after %v", err, time.Since(began))
	}
}

func TestOtherHostKeyIsRefused(t *testing.T) {
	config := startServer(t).config(t)
	config.HostKey = newTestKey(t).Signer.PublicKey()
	if _, err := Dial(t.Context(), config); !errors.Is(err, ErrHostKey) {
		t.Errorf("got %v", err)
	} else {
		t.Log(err)
	}
}

func TestOtherClientKeyIsRefused(t *testing.T) {
	config := startServer(t).config(t)
	config.Key = newTestKey(t).Signer
	if _, err := Dial(t.Context(), config); err == nil || !strings.Contains(err.Error(), "log in to") {
		t.Errorf("got %v", err)
	}
}

func FuzzReadPID(f *testing.F) {
	f.Add("123\nrest")
	f.Add("sh: not found\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := strings.NewReader(text)
		pid, ok := readPID(r)
		if !ok {
			return
		}
		line, rest, _ := strings.Cut(text, "\n")
		if left, _ := io.ReadAll(r); string(left) != rest || strings.TrimLeft(line, "0") != strconv.Itoa(pid) {
			t.Errorf("%q: got %d and %q", text, pid, left)
		}
	})
}

// A command that neither reads nor writes would not notice that its session is closed.
func TestCancelEndsTheCommand(t *testing.T) {
	c := dial(t, startServer(t).config(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	conn, err := c.Start(ctx, "sh", "-c", "echo $$; exec sleep 300")
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanln(conn, &pid); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := conn.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := run(t, c, "kill", "-0", strconv.Itoa(pid)); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", pid)
		}
	}
}

func TestCancelLeavesNoGoroutine(t *testing.T) {
	c := dial(t, startServer(t).config(t))
	if _, err := run(t, c, "true"); err != nil {
		t.Fatal(err)
	}
	before := settle(0, time.Second)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := c.Start(ctx, "cat")
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := conn.Wait(); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v", err)
		}
		if _, err := io.ReadAll(conn); err != nil {
			t.Fatal(err)
		}
	}
	if after := settle(before, 15*time.Second); after > before {
		t.Errorf("%d goroutines before, %d after 20 cancels", before, after)
	}
	if _, err := run(t, c, "true"); err != nil {
		t.Errorf("the connection is of no more use: %v", err)
	}
}

// settle waits until no more than want goroutines are left, or so long, and returns their number. On a
// busy machine it takes seconds until sshd has closed every channel.
func settle(want int, within time.Duration) int {
	for end := time.Now().Add(within); runtime.NumGoroutine() > want && time.Now().Before(end); {
		time.Sleep(25 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}

// frozen is a connection whose host can be made to fall silent, as a machine that is paused does.
type frozen struct {
	net.Conn
	silent atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (f *frozen) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if f.silent.Load() {
		<-f.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (f *frozen) Write(p []byte) (int, error) {
	if f.silent.Load() {
		<-f.closed
		return 0, net.ErrClosed
	}
	return f.Conn.Write(p)
}

func (f *frozen) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

func TestHostThatFallsSilent(t *testing.T) {
	config := startServer(t).config(t)
	var wire *frozen
	config.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		wire = &frozen{Conn: conn, closed: make(chan struct{})}
		return wire, err
	}
	before := settle(0, time.Second)
	c := dial(t, config)
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := c.Start(ctx, "cat")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Answers(t.Context()); err != nil {
		t.Errorf("a host that is well: %v", err)
	}
	wire.silent.Store(true)
	time.AfterFunc(100*time.Millisecond, cancel)
	calls := map[string]func() error{
		"Wait":    conn.Wait,
		"Read":    func() error { _, err := io.Copy(io.Discard, conn); return err },
		"Write":   func() error { _, err := io.Copy(conn, endless{}); return err },
		"Start":   func() error { _, err := c.Start(ctx, "true"); return err },
		"Put":     func() error { return c.Put(ctx, "x", 0o644, endless{}) },
		"Answers": func() error { return c.Answers(ctx) },
	}
	type result struct {
		name string
		err  error
	}
	results := make(chan result)
	began := time.Now()
	for name, call := range calls {
		go func() { results <- result{name, call()} }()
	}
	for range calls {
		select {
		case r := <-results:
			t.Logf("%s returned after %v: %v", r.name, time.Since(began).Round(time.Millisecond), r.err)
			if r.err == nil && r.name != "Read" {
				t.Errorf("%s: no error", r.name)
			}
		case <-time.After(defaultGrace + 5*time.Second):
			t.Fatal("a call hangs")
		}
	}
	_ = c.Close()
	if after := settle(before, 15*time.Second); after > before {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}

func TestCloseEndsCommands(t *testing.T) {
	c := dial(t, startServer(t).config(t))
	conn, err := c.Start(t.Context(), "cat")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Wait(); err == nil || !strings.Contains(err.Error(), "connection ended") {
		t.Errorf("got %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if _, err := c.Start(t.Context(), "true"); err == nil {
		t.Error("a command started on a closed connection")
	}
}

func TestManyAtOnce(t *testing.T) {
	config := startServer(t).config(t)
	c := dial(t, config)
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			name := fmt.Sprint("file", i)
			if err := c.Put(t.Context(), name, 0o600, strings.NewReader(name)); err != nil {
				t.Error(err)
				return
			}
			if got, err := run(t, c, "cat", filepath.Join(config.Scratch, name)); got != name || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	group.Wait()
}

func TestKeysAreOpenSSHs(t *testing.T) {
	program, err := exec.LookPath("ssh-keygen")
	if err != nil {
		skip(t, "ssh-keygen is not installed: apt-get install openssh-client")
	}
	key := newTestKey(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, key.Private, 0o600); err != nil {
		t.Fatal(err)
	}
	public, err := exec.Command(program, "-y", "-f", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(public, key.Authorized) {
		t.Errorf("ssh-keygen reads %q, we say %q", public, key.Authorized)
	}
	again, err := ParseKey(key.Private)
	if err != nil || !bytes.Equal(again.Signer.PublicKey().Marshal(), key.Signer.PublicKey().Marshal()) {
		t.Errorf("parse: %v", err)
	}
	if other := newTestKey(t); slices.Equal(other.Private, key.Private) {
		t.Error("two keys are the same")
	}
}
