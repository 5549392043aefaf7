package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rampart-bench/rampart/testbed"
)

// searchPath is where commands are looked for, whatever the user's own PATH is: on Debian that of an
// ordinary user lacks the folders that ip, ethtool and nft are in.
var searchPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// pipeGrace is how long standard error may stay open after a command has ended, because a child of
// it still holds it.
const pipeGrace = 500 * time.Millisecond

// busyPatience is how long a program that was just written may be called busy. A command that this process
// starts at the same moment holds, until its own exec, whatever is open for writing here (golang/go#22315).
const busyPatience = time.Second

// start runs a command on the thread, in the folder dir. A program that is still being written to it waits
// for.
func start(ctx context.Context, t *thread, dir string, log *slog.Logger, argv []string) (*process, error) {
	deadline := time.Now().Add(busyPatience)
	for pause := time.Millisecond; ; pause *= 2 {
		p, err := launch(ctx, t, dir, log, argv)
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(deadline) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// launch runs a command on the thread, in the folder dir.
//
// The command leads a process group of its own, so that Ctrl-C on a terminal reaches only us and
// cancelling reaches its children too. Should this process be killed, the kernel kills the command:
// its parent-death signal follows the thread, which lives as long as the node.
func launch(ctx context.Context, t *thread, dir string, log *slog.Logger, argv []string) (*process, error) {
	if len(argv) == 0 {
		return nil, errors.New("start command: no command given")
	}
	program, err := lookUp(dir, argv[0])
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + strings.Join(searchPath, ":"), "LC_ALL=C", "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = pipeGrace
	said := &tail{log: log.With("command", filepath.Base(argv[0]))}
	cmd.Stderr = said

	p := &process{name: argv[0], ended: make(chan struct{})}
	if err := p.pipes(cmd, func() error { return t.do(cmd.Start) }); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		p.err = exitError(ctx, argv[0], cmd.Wait(), said)
		close(p.ended)
	}()
	return p, nil
}

// lookUp finds the program that argv0 names.
func lookUp(dir, argv0 string) (string, error) {
	if strings.HasPrefix(argv0, "./") {
		return filepath.Join(dir, argv0), nil
	}
	if strings.ContainsRune(argv0, '/') {
		return argv0, nil
	}
	for _, folder := range searchPath {
		if path, err := exec.LookPath(filepath.Join(folder, argv0)); err == nil {
			return path, nil
		}
	}
	return "", &exec.Error{Name: argv0, Err: fmt.Errorf("%w in %s", exec.ErrNotFound, strings.Join(searchPath, ":"))}
}

// A process is a command that runs on a node.
type process struct {
	name   string
	stdin  *os.File
	stdout *os.File
	close  func() error
	ended  chan struct{}
	err    error // read after ended is closed
}

var _ testbed.Conn = (*process)(nil)

// pipes connects the command's standard input and output and starts it. The pipes are ours and not
// those of package exec, so that output can still be read after the command has ended.
func (p *process) pipes(cmd *exec.Cmd, start func() error) error {
	theirIn, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirIn.Close()
	stdout, theirOut, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return err
	}
	defer theirOut.Close()
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	if err := start(); err != nil {
		stdin.Close()
		stdout.Close()
		return err
	}
	p.stdin, p.stdout = stdin, stdout
	p.close = sync.OnceValue(stdin.Close)
	return nil
}

// Read reads standard output. The pipe is closed at its end.
func (p *process) Read(b []byte) (int, error) {
	n, err := p.stdout.Read(b)
	switch {
	case errors.Is(err, os.ErrClosed): // read again after the end
		err = io.EOF
	case err != nil:
		p.stdout.Close()
	}
	return n, err
}

func (p *process) Write(b []byte) (int, error) { return p.stdin.Write(b) }

// Close closes standard input.
func (p *process) Close() error { return p.close() }

// Wait waits for the command to end. It may be called more than once.
func (p *process) Wait() error {
	<-p.ended
	return p.err
}

// exitError is what Wait returns for what exec's Wait returned.
func exitError(ctx context.Context, name string, err error, said *tail) error {
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	code := -1
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	}
	if cause := context.Cause(ctx); cause != nil && code < 0 && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	return &ExitError{Command: name, Code: code, Stderr: said.String(), Err: err}
}

// tailSize is how much of the end of standard error an error quotes, in bytes.
const tailSize = 2048

// A tail logs what a command writes to standard error line by line, and keeps the end of it.
type tail struct {
	log  *slog.Logger
	mu   sync.Mutex
	end  []byte
	line []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if cut := len(t.end) - tailSize; cut > 0 {
		t.end = append(t.end[:0], t.end[cut:]...)
	}
	t.line = append(t.line, b...)
	for {
		line, rest, found := bytes.Cut(t.line, []byte("\n"))
		if !found && len(t.line) < tailSize {
			break
		}
		t.log.Debug(string(line))
		t.line = rest
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
