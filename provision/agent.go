package provision

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLost says that the helper is gone or no longer understood: the node died, the connection broke,
// or a call was cancelled. The error that wraps it has the cause and the end of the helper's log.
// Every later call fails with it too; a new [Connect] is the way on.
var ErrLost = errors.New("helper lost")

const (
	// abandonGrace is how long a helper whose call was cancelled may take to undo its job.
	abandonGrace = 700 * time.Millisecond
	// closeGrace is how long a helper may take to undo and exit after an orderly [Agent.Close].
	closeGrace = 10 * time.Second
	// reapGrace is how long a killed helper may take to be gone.
	reapGrace = 250 * time.Millisecond
)

// An Agent is a running helper, seen from its caller. Its methods may be used from several
// goroutines; calls are served one at a time.
type Agent struct {
	conn    Conn
	kill    context.CancelFunc
	turn    chan struct{} // holds one token: the right to call
	lines   chan []byte   // answers; closed when the helper's output ends
	done    chan struct{} // closed when the helper has exited
	quit    func()        // stops handing over answers
	ended   error         // why reading ended; read after lines is closed
	exit    error         // result of Wait; read after done is closed
	lost    error         // guarded by turn
	next    uint64        // guarded by turn
	close   func() error  // once
	givenUp atomic.Bool   // it was told to end once, and then killed
}

// Connect starts a helper on the node and greets it. The context bounds only the greeting: the
// helper lives until [Agent.Close], a cancelled call, or the end of this process.
func Connect(ctx context.Context, node Node, argv ...string) (*Agent, error) {
	life, kill := context.WithCancel(context.WithoutCancel(ctx))
	conn, err := startWithin(ctx, life, node, argv)
	if err != nil {
		kill()
		return nil, fmt.Errorf("start helper: %w", err)
	}
	a := newAgent(conn, kill)
	var peer hello
	if err := a.Call(ctx, helloMethod, hello{Protocol}, &peer); err != nil {
		a.abandon(0)
		return nil, fmt.Errorf("greet helper: %w", err)
	}
	if peer.Protocol != Protocol {
		a.abandon(0)
		return nil, fmt.Errorf("greet helper: it speaks protocol %d, not %d", peer.Protocol, Protocol)
	}
	return a, nil
}

// startWithin starts a command that lives as long as life, and gives up when ctx ends before it has
// started.
func startWithin(ctx, life context.Context, node Node, argv []string) (Conn, error) {
	starting, cancel := context.WithCancel(life)
	stop := context.AfterFunc(ctx, cancel)
	conn, err := node.Start(starting, argv...)
	if !stop() {
		if err == nil {
			go conn.Wait()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		cancel()
	}
	return conn, err
}

func newAgent(conn Conn, kill context.CancelFunc) *Agent {
	stopped := make(chan struct{})
	a := &Agent{
		conn: conn, kill: kill,
		turn:  make(chan struct{}, 1),
		lines: make(chan []byte),
		done:  make(chan struct{}),
		quit:  sync.OnceFunc(func() { close(stopped) }),
	}
	a.close = sync.OnceValue(a.shutdown)
	a.turn <- struct{}{}
	go a.read(stopped)
	return a
}

// read hands over one line after the other, drains what nobody wants any more so that the helper
// never blocks in a write, and then waits for the helper's end.
func (a *Agent) read(stopped <-chan struct{}) {
	r := bufio.NewReader(a.conn)
	for a.ended == nil {
		var line []byte
		if line, a.ended = readLine(r, MaxLine); a.ended != nil {
			break
		}
		select {
		case a.lines <- line:
		case <-stopped:
			a.ended = errors.New("connection given up")
		}
	}
	close(a.lines)
	io.Copy(io.Discard, r)
	a.exit = a.conn.Wait()
	close(a.done)
	a.kill()
}

// Call asks the helper to do one job and waits for its answer. The result is stored where result
// points to, unless it is nil. An error of the job is a [*RemoteError]; everything else that goes
// wrong after the request was written loses the helper, a cancelled ctx included: it gets a moment
// to undo the job and is killed, all within a second.
func (a *Agent) Call(ctx context.Context, method string, params, result any) error {
	select {
	case <-a.turn:
	case <-ctx.Done():
		return fmt.Errorf("call %s: %w", method, context.Cause(ctx))
	}
	defer func() { a.turn <- struct{}{} }()
	if a.lost != nil {
		return fmt.Errorf("call %s: %w", method, a.lost)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("call %s: %w", method, context.Cause(ctx))
	}
	encoded, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("call %s: encode parameters: %w", method, err)
	}
	a.next++
	ans, err := a.exchange(ctx, request{ID: a.next, Method: method, Params: encoded})
	if err != nil {
		a.lost = err
		return fmt.Errorf("call %s: %w", method, err)
	}
	if ans.Error != nil {
		return fmt.Errorf("call %s: %w", method, ans.Error)
	}
	if result == nil {
		return nil
	}
	if err := decode(ans.Result, result); err != nil {
		return fmt.Errorf("call %s: decode result: %w", method, err)
	}
	return nil
}

// exchange sends a request and waits for its answer. Its errors wrap ErrLost.
func (a *Agent) exchange(ctx context.Context, req request) (answer, error) {
	written := make(chan error, 1)
	go func() { written <- writeLine(a.conn, req) }() // a full pipe must not outlive ctx
	for {
		select {
		case <-ctx.Done():
			a.abandon(abandonGrace)
			return answer{}, fmt.Errorf("%w: %w", ErrLost, context.Cause(ctx))
		case err := <-written:
			if err != nil {
				return answer{}, a.loss(fmt.Errorf("write request: %w", err))
			}
			written = nil
		case line, ok := <-a.lines:
			if !ok {
				return answer{}, a.loss(a.ended)
			}
			ans, err := decodeAnswer(line)
			if err == nil && ans.ID != req.ID {
				err = fmt.Errorf("answer to request %d came for request %d", ans.ID, req.ID)
			}
			if err != nil {
				return answer{}, a.loss(err)
			}
			return ans, nil
		}
	}
}

// loss gives the helper up and says why, with what its end says.
func (a *Agent) loss(cause error) error {
	a.abandon(reapGrace)
	if errors.Is(cause, io.EOF) {
		cause = errors.New("it ended without an answer")
	}
	select {
	case <-a.done:
		if a.exit != nil {
			return fmt.Errorf("%w: %w: %w", ErrLost, cause, a.exit)
		}
	default:
	}
	return fmt.Errorf("%w: %w", ErrLost, cause)
}

// abandon closes the helper's input, waits for it to end, and kills it when it does not.
func (a *Agent) abandon(grace time.Duration) (killed bool) {
	if a.givenUp.Swap(true) {
		grace = min(grace, reapGrace) // it had its time
	}
	a.quit()
	go a.conn.Close() // may block where the connection is stuck; killing frees it
	if grace > 0 && a.gone(grace) {
		return false
	}
	a.kill()
	a.gone(reapGrace)
	return true
}

// gone reports whether the helper has exited, within the given time.
func (a *Agent) gone(within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-a.done:
		return true
	case <-timer.C:
		return false
	}
}

// Close closes the helper's input, which tells it to undo what it changed, and waits for its end.
// After a deadline it is killed and Close returns an error. Later calls return the same result.
func (a *Agent) Close() error { return a.close() }

func (a *Agent) shutdown() error {
	if a.abandon(closeGrace) {
		return fmt.Errorf("close helper: it did not end within %v and was killed; what it changed on the node may still be there", closeGrace)
	}
	if a.exit != nil {
		return fmt.Errorf("close helper: %w", a.exit)
	}
	return nil
}
