package provision

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
)

// A Handler does one job: parameters in, result out. Its context ends when the caller goes away.
type Handler func(ctx context.Context, params json.RawMessage) (any, error)

// Handlers are the jobs of a helper by method.
type Handlers map[string]Handler

// Handle makes a Handler of a function with parameters and result of its own types. Parameters with
// unknown fields are refused with [CodeBadRequest]; absent parameters are the zero P.
func Handle[P, R any](f func(context.Context, P) (R, error)) Handler {
	return func(ctx context.Context, params json.RawMessage) (any, error) {
		var p P
		if len(params) > 0 {
			if err := decode(params, &p); err != nil {
				return nil, &RemoteError{CodeBadRequest, fmt.Sprintf("decode parameters: %v", err)}
			}
		}
		return f(ctx, p)
	}
}

// Serve answers requests from in on out, one at a time and in order, until in ends. It then returns
// nil, so that the helper can undo what it changed and exit. When in ends during a job, the job's
// context is cancelled first: the caller is gone and nobody waits for the answer.
//
// Serve returns an error when ctx is cancelled, when a request cannot be read or when an answer
// cannot be written. A read of in may then still be blocked; the process is expected to exit.
//
// The process should ignore SIGPIPE: otherwise a word to a caller that has died, be it an answer or a
// log line, ends the helper before it can undo anything.
func Serve(ctx context.Context, in io.Reader, out io.Writer, handlers Handlers) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lines := make(chan []byte)
	go func() { cancel(readLines(ctx, in, lines)) }()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case line := <-lines:
			if err := serveLine(ctx, line, out, handlers); err != nil {
				return err
			}
		}
	}
	if cause := context.Cause(ctx); !errors.Is(cause, io.EOF) {
		return fmt.Errorf("serve requests: %w", cause)
	}
	return nil
}

// readLines hands over one line after the other until in or ctx ends, and says why it ended.
func readLines(ctx context.Context, in io.Reader, lines chan<- []byte) error {
	r := bufio.NewReader(in)
	for {
		line, err := readLine(r, MaxLine)
		if err != nil {
			return err
		}
		select {
		case lines <- line:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func serveLine(ctx context.Context, line []byte, out io.Writer, handlers Handlers) error {
	req, err := decodeRequest(line)
	if err != nil {
		// Without an id there is nobody to answer: the peer does not speak this protocol.
		return fmt.Errorf("serve requests: %w", err)
	}
	response := respond(ctx, req, handlers)
	if ctx.Err() != nil {
		return nil // nobody is there to read it; Serve's next look at ctx ends it
	}
	if err := writeLine(out, response); err != nil {
		return fmt.Errorf("answer %s: %w", req.Method, err)
	}
	return nil
}

// respond does the job and returns an answer that is sure to fit the wire.
func respond(ctx context.Context, req request, handlers Handlers) answer {
	result, err := call(ctx, req, handlers)
	if err != nil {
		return answer{ID: req.ID, Error: remoteError(err)}
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		return answer{ID: req.ID, Error: remoteError(fmt.Errorf("encode result of %s: %w", req.Method, err))}
	}
	const envelope = 64 // what an answer has around its result
	if len(encoded) > MaxLine-envelope {
		return answer{ID: req.ID, Error: remoteError(fmt.Errorf("encode result of %s: %d bytes: %w", req.Method, len(encoded), errLineTooLong))}
	}
	return answer{ID: req.ID, Result: encoded}
}

func call(ctx context.Context, req request, handlers Handlers) (result any, err error) {
	if req.Method == helloMethod {
		return greet(ctx, req.Params)
	}
	handler, ok := handlers[req.Method]
	if !ok {
		return nil, &RemoteError{CodeUnknownMethod, fmt.Sprintf("no method %q", req.Method)}
	}
	defer func() {
		if v := recover(); v != nil {
			result, err = nil, &RemoteError{CodePanic, fmt.Sprintf("%s panicked: %v\n%s", req.Method, v, debug.Stack())}
		}
	}()
	return handler(ctx, req.Params)
}

// greet answers the caller's hello.
func greet(ctx context.Context, params json.RawMessage) (any, error) {
	return Handle(func(_ context.Context, peer hello) (hello, error) {
		if peer.Protocol != Protocol {
			return hello{}, &RemoteError{CodeProtocol, fmt.Sprintf("helper speaks protocol %d, caller %d", Protocol, peer.Protocol)}
		}
		return hello{Protocol}, nil
	})(ctx, params)
}
