package libvirt

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	rpc "github.com/digitalocean/go-libvirt"
)

// consoleSize is how much of a console's end is kept, in bytes.
const consoleSize = 64 << 10

// console collects what a machine writes to its serial port. As the writer of a libvirt stream it
// never fails and never blocks: a writer that returns an error locks up the connection for ever.
type console struct {
	mu      sync.Mutex
	tail    []byte
	changed chan struct{} // closed and replaced at each change
	ended   bool
}

func newConsole() *console { return &console{changed: make(chan struct{})} }

// Write keeps the end of the text.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tail = append(c.tail, p...)
	if extra := len(c.tail) - consoleSize; extra > 0 {
		c.tail = append(c.tail[:0], c.tail[extra:]...)
	}
	c.wake()
	return len(p), nil
}

func (c *console) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.wake()
}

func (c *console) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *console) snapshot() (text string, ended bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.tail), c.ended, c.changed
}

// errStopped says that a machine that was to go on no longer runs.
var errStopped = errors.New("the machine stopped")

// wait returns when done, which gets the text so far, reports true or an error. It fails with
// errStopped when the text can no longer grow.
func (c *console) wait(ctx context.Context, done func(text string) (bool, error)) error {
	for {
		text, ended, changed := c.snapshot()
		if ok, err := done(text); ok || err != nil {
			return err
		}
		if ended {
			return errStopped
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lastLines returns the last n lines of text, without control characters and empty lines.
func lastLines(text string, n int) []string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' || r == 0x7f {
			return -1
		}
		return r
	}, text)
	var lines []string
	for line := range strings.Lines(clean) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}

// openConsole streams the console of a domain into a new [console] until the domain ends or stop is
// called. The stream has a connection of its own.
func openConsole(ctx context.Context, e endpoint, d rpc.Domain) (_ *console, stop func(), err error) {
	conn, err := dial(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	out := newConsole()
	first := make(chan error, 1)
	go func() {
		// Returns when the stream ends: the domain stopped, or the connection was closed.
		first <- conn.l.DomainOpenConsole(d, nil, out, uint32(rpc.DomainConsoleForce))
		out.end()
	}()
	// That the stream was accepted is not told apart from silence. A later call on the same
	// connection is answered after it, though, so its answer says that the console is open.
	if err := conn.do(ctx, callLimit, "open console of "+d.Name, func(l *rpc.Libvirt) error {
		_, _, err := l.DomainGetState(d, 0)
		return err
	}); err != nil {
		conn.sock.Close()
		return nil, nil, err
	}
	select {
	case err := <-first:
		conn.sock.Close()
		return nil, nil, fmt.Errorf("open console of %s: %w", d.Name, err)
	default:
	}
	var once sync.Once
	return out, func() { once.Do(func() { conn.sock.Close() }) }, nil
}
