package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/rampart-bench/rampart/provision"
)

// stderrTail is how much of a command's standard error is in the error of Wait, in bytes.
const stderrTail = 4096

// ExitError is a command that ended with a status other than 0 or by a signal.
type ExitError struct {
	Command string // argv[0]
	Status  int    // 1 to 255; 128 + n when signal n ended it, as a shell counts
	Signal  string // such as KILL, else ""
	Stderr  string // the end of standard error
}

// ExitCode is the status.
func (e *ExitError) ExitCode() int { return e.Status }

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit status %d", e.Status)
	if e.Signal != "" {
		how = "ended by signal " + e.Signal
	}
	if e.Stderr == "" {
		return fmt.Sprintf("run %s: %s", e.Command, how)
	}
	return fmt.Sprintf("run %s: %s: %s", e.Command, how, strings.TrimSpace(e.Stderr))
}

// Start runs a command on the node, in the scratch folder if there is one. Arguments arrive as they
// are: no shell expands them. argv[0] that begins with "./" is below the scratch folder. When ctx ends, the command and those of its process
// group get SIGTERM and the session is closed, and so the command's standard input; Wait then returns
// ctx's error. Wait returns nil for exit status 0, else an error with ExitCode() int (an [*ExitError])
// that holds the end of standard error.
//
// The signal is needed because sshd does not kill a command whose session was closed: it sees the end
// of its standard input and a broken pipe, and one that uses neither goes on.
func (c *Client) Start(ctx context.Context, argv ...string) (provision.Conn, error) {
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("start command: no command")
	}
	if rest, ok := strings.CutPrefix(argv[0], "./"); ok {
		argv = append([]string{path.Join(c.config.Scratch, rest)}, argv[1:]...)
	}
	line, err := Quote(argv)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	scratch, err := Quote([]string{c.config.Scratch})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	// exec: no shell stays between sshd and the command, whose process id is that of the shell.
	// Before the first Put there may be no scratch folder to be in.
	s, err := c.start(ctx, argv[0], "cd "+scratch+" 2>/dev/null; echo $$; exec "+line)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], cause(ctx, err))
	}
	if pid, ok := readPID(s.stdout); ok {
		stop := context.AfterFunc(ctx, func() { c.terminate(s, pid) })
		go func() {
			<-s.gone
			if s.ended.Load() {
				stop()
			}
		}()
	}
	return s, nil
}

// readPID reads the line that a command's shell writes first, and not a byte more.
func readPID(r io.Reader) (pid int, ok bool) {
	var b [1]byte
	for {
		switch _, err := io.ReadFull(r, b[:]); {
		case err != nil:
			return 0, false
		case b[0] == '\n':
			return pid, pid > 1
		case b[0] < '0' || b[0] > '9' || pid > 1<<24:
			return 0, false
		}
		pid = 10*pid + int(b[0]-'0')
	}
}

// terminate sends SIGTERM to the process group of a command that did not end by itself: sshd makes
// one for each. (sshd could do so at our request, but refuses to for root.)
func (c *Client) terminate(s *session, pid int) {
	if s.ended.Load() {
		return
	}
	giveUp := time.AfterFunc(c.config.Grace, func() { _ = c.client.Close() })
	defer giveUp.Stop()
	session, err := c.client.NewSession()
	if err != nil {
		return // the connection is gone, and what there was goes with the node
	}
	defer session.Close()
	_ = session.Run(fmt.Sprintf("kill -s TERM -- -%d", pid)) // dash knows no other spelling; it may have ended meanwhile
}

// defaultGrace is enough for any host that is not emulated.
const defaultGrace = 3 * time.Second

// session is one running command.
type session struct {
	ctx    context.Context
	name   string
	client io.Closer
	grace  time.Duration
	stdin  io.WriteCloser
	stdout io.Reader
	stderr tail
	ended  atomic.Bool   // the command ended by itself
	gone   chan struct{} // closed when the command has ended or the session is closed; err is set then
	err    error
}

var _ provision.Conn = (*session)(nil)

// start runs line in the node's shell. It returns when ctx ends, whatever the host does.
func (c *Client) start(ctx context.Context, name, line string) (*session, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &session{ctx: ctx, name: name, client: c.client, grace: c.config.Grace, stderr: tail{log: c.config.Log}, gone: make(chan struct{})}
	started := make(chan error, 1)
	go s.run(c.client.NewSession, line, started)
	select {
	case err := <-started:
		if err != nil {
			return nil, err
		}
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// run opens a session, starts the command and waits for its end. It sends one value to started. When
// ctx ends it closes the session, and the connection if the host does not answer even that.
func (s *session) run(open func() (*ssh.Session, error), line string, started chan<- error) {
	defer close(s.gone)
	forgive := context.AfterFunc(s.ctx, func() {
		select {
		case <-s.gone:
		case <-time.After(s.grace):
			_ = s.client.Close()
		}
	})
	defer forgive()
	session, err := open()
	if err != nil {
		started <- err
		return
	}
	defer session.Close()
	keep := context.AfterFunc(s.ctx, func() { _ = session.Close() })
	defer keep()
	session.Stderr = &s.stderr
	if s.stdin, err = session.StdinPipe(); err == nil {
		s.stdout, err = session.StdoutPipe()
	}
	if err == nil {
		err = session.Start(line)
	}
	started <- err
	if err == nil {
		err := session.Wait()
		s.ended.Store(s.ctx.Err() == nil) // not merely let go of
		s.err = s.explain(err)
	}
}

// explain says how the command ended.
func (s *session) explain(err error) error {
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case err == nil:
		return nil
	case s.ctx.Err() != nil: // and the status is what it made of losing its standard input
		return fmt.Errorf("run %s: %w", s.name, context.Cause(s.ctx))
	case errors.As(err, &exit):
		return &ExitError{Command: s.name, Status: exit.ExitStatus(), Signal: exit.Signal(), Stderr: s.stderr.String()}
	case errors.As(err, &missing):
		return fmt.Errorf("run %s: the connection ended before the command: %w", s.name, err)
	}
	return fmt.Errorf("run %s: %w", s.name, err)
}

func (s *session) Read(p []byte) (int, error)  { return s.stdout.Read(p) }
func (s *session) Write(p []byte) (int, error) { return s.stdin.Write(p) }

// Close closes the command's standard input.
func (s *session) Close() error {
	if err := s.stdin.Close(); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("close standard input of %s: %w", s.name, err)
	}
	return nil
}

// Wait may be called more than once. It returns when the context that was given to Start ends.
func (s *session) Wait() error {
	select {
	case <-s.gone:
		return s.err
	case <-s.ctx.Done():
	}
	select {
	case <-s.gone: // both: the command was first as far as anybody can tell
		return s.err
	default:
		return fmt.Errorf("run %s: %w", s.name, context.Cause(s.ctx))
	}
}

// tail keeps the end of what is written to it and passes everything on.
type tail struct {
	log  io.Writer
	mu   sync.Mutex
	kept []byte
}

// Write never fails: a log that cannot be written must not break the session.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.kept = append(t.kept, p...)
	if extra := len(t.kept) - stderrTail; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	t.mu.Unlock()
	if t.log != nil {
		_, _ = t.log.Write(p)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
