package provision

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Protocol is the version of the wire. Both ends are the same binary in normal use, so a difference
// means that somebody started another program by hand: it is refused, never negotiated.
const Protocol = 1

// MaxLine is the longest line, in bytes, that either end accepts. A million samples of up to twenty
// digits are 20 MiB; the limit exists so that a broken peer cannot make us eat all memory.
const MaxLine = 64 << 20

// helloMethod is answered by Serve itself.
const helloMethod = "hello"

type hello struct {
	Protocol int `json:"protocol"`
}

type request struct {
	ID     uint64          `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// An answer has either a result or an error.
type answer struct {
	ID     uint64          `json:"id"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *RemoteError    `json:"error,omitempty"`
}

// The codes of a [RemoteError] that this package itself gives.
const (
	CodeFailed        = "failed"         // the handler returned an ordinary error
	CodeUnavailable   = "unavailable"    // this system lacks what the job needs
	CodePanic         = "panic"          // the handler panicked: a mistake in this program
	CodeBadRequest    = "bad_request"    // the parameters do not fit the method
	CodeUnknownMethod = "unknown_method" // no such handler
	CodeProtocol      = "protocol"       // the peers speak different versions
)

// RemoteError is an error that crossed the wire. A handler that returns one, or an error that wraps
// one, decides the code that the caller sees; every other error arrives as [CodeFailed].
type RemoteError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *RemoteError) Error() string { return e.Message }

// remoteError is err as it crosses the wire.
func remoteError(err error) *RemoteError {
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		return &RemoteError{Code: remote.Code, Message: err.Error()}
	}
	return &RemoteError{Code: CodeFailed, Message: err.Error()}
}

var errLineTooLong = fmt.Errorf("line is longer than %d bytes", MaxLine)

// readLine returns the next line without its end. A last line that has no end is an error: the peer
// died while it wrote.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit+1 {
			return nil, errLineTooLong
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// writeLine writes v as one line in one Write.
func writeLine(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	if len(line) > MaxLine {
		return fmt.Errorf("encode line of %d bytes: %w", len(line), errLineTooLong)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// decode reads exactly one JSON value and refuses fields that it does not know.
func decode(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

func decodeRequest(line []byte) (request, error) {
	var r request
	if err := decode(line, &r); err != nil {
		return request{}, fmt.Errorf("decode request: %w", err)
	}
	if r.Method == "" {
		return request{}, errors.New("decode request: it names no method")
	}
	return r, nil
}

func decodeAnswer(line []byte) (answer, error) {
	var a answer
	if err := decode(line, &a); err != nil {
		return answer{}, fmt.Errorf("decode answer: %w", err)
	}
	if (a.Result == nil) == (a.Error == nil) {
		return answer{}, errors.New("decode answer: it needs either a result or an error")
	}
	return a, nil
}
