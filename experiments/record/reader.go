package record

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxLine is the longest line of records.jsonl, in bytes: room for some five million samples. It
// bounds the memory that a damaged file can cost.
const MaxLine = 64 << 20

// Options of reading.
type Options struct {
	// SkipSamples leaves Record.Samples nil without decoding them.
	SkipSamples bool
}

// A TornError says that a file ends in a line that was not completely written: a run was killed, or
// the machine stopped, while it was being appended. Everything before it is intact.
type TornError struct {
	Path   string // empty when not read from a file
	Line   int    // from 1
	Offset int64  // of the first byte of the torn line
	Bytes  int64  // length of the torn line
}

func (e *TornError) Error() string {
	return fmt.Sprintf("read %s: line %d is torn (%d bytes, not a whole record): the run it belonged to is lost and will be measured again on resume",
		pathOr(e.Path), e.Line, e.Bytes)
}

// A DamageError says that a line which is not the last one, or is complete, is not a record.
type DamageError struct {
	Path string // empty when not read from a file
	Line int    // from 1
	Err  error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("read %s: line %d: %v (restore the file from a copy, or delete that line: its run will be measured again on resume)",
		pathOr(e.Path), e.Line, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// A SchemaError says that a file was written in another version of the format.
type SchemaError struct{ Got int }

func (e *SchemaError) Error() string {
	next := "use the older rampart that wrote it"
	if e.Got > Schema {
		next = "use a newer rampart"
	}
	return fmt.Sprintf("format %d, but this rampart reads format %d: %s", e.Got, Schema, next)
}

func pathOr(path string) string {
	if path == "" {
		return "records"
	}
	return path
}

// Read yields the records of r in order. It stops after the first error, which is a [*DamageError],
// a [*TornError] (all records before it were yielded, and a reader that only analyses may go on with
// them), or an error of r.
//
// Records own their memory. The decoder is github.com/go-json-experiment/json, the prototype of the
// standard library's next encoding/json: it reads records about twice as fast, refuses unknown and
// repeated fields by itself, and skips samples without building them.
func Read(r io.Reader, opt Options) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		s := newScanner(r, "")
		for s.next(opt) {
			if !yield(s.record, nil) {
				return
			}
		}
		if s.err != nil {
			yield(Record{}, s.err)
		}
	}
}

// ReadFile yields the records of a file as [Read] does.
func ReadFile(path string, opt Options) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		f, err := os.Open(path)
		if err != nil {
			yield(Record{}, fmt.Errorf("read records: %w", err))
			return
		}
		defer f.Close()
		for rec, err := range Read(f, opt) {
			if !yield(rec, withPath(err, path)) {
				return
			}
		}
	}
}

// ReadDir yields the records of a results folder as [Read] does. It takes no lock: a folder that is
// being measured can be read, and may end in a torn line.
func ReadDir(dir string, opt Options) iter.Seq2[Record, error] {
	return ReadFile(filepath.Join(dir, RecordsName), opt)
}

func withPath(err error, path string) error {
	var torn *TornError
	var damage *DamageError
	switch {
	case errors.As(err, &torn):
		torn.Path = path
	case errors.As(err, &damage):
		damage.Path = path
	}
	return err
}

// A scanner reads one record after another and knows where it is.
type scanner struct {
	r      *bufio.Reader
	path   string
	line   int   // of record, from 1
	offset int64 // behind record
	record Record
	err    error
	long   []byte // a line that did not fit the buffer of r
}

func newScanner(r io.Reader, path string) *scanner {
	return &scanner{r: bufio.NewReaderSize(r, 256<<10), path: path}
}

// next decodes the next line into s.record, or returns false at the end or with s.err.
func (s *scanner) next(opt Options) bool {
	text, size, err := s.readLine()
	switch {
	case err == io.EOF && size == 0:
		return false
	case err == io.EOF:
		s.err = &TornError{Path: s.path, Line: s.line + 1, Offset: s.offset, Bytes: size}
		return false
	case err != nil && err != errLongLine:
		s.err = fmt.Errorf("read %s: line %d: %w", pathOr(s.path), s.line+1, err)
		return false
	}
	if err == nil {
		s.record, err = decode(text, opt)
	}
	if err != nil {
		s.err = s.judge(text, size, err)
		return false
	}
	s.line++
	s.offset += size
	return true
}

// judge tells a torn last line from damage. A complete line that is JSON was written on purpose and
// is never torn, even when it is no record.
func (s *scanner) judge(text []byte, size int64, err error) error {
	_, peek := s.r.Peek(1)
	if peek == io.EOF && err != errLongLine && !jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true)) {
		return &TornError{Path: s.path, Line: s.line + 1, Offset: s.offset, Bytes: size}
	}
	return &DamageError{Path: s.path, Line: s.line + 1, Err: err}
}

var errLongLine = fmt.Errorf("line longer than %d MiB", MaxLine>>20)

// readLine returns the next line without its newline, valid until the next call, and the bytes it
// takes in the file. The error is io.EOF when the newline is missing, or errLongLine, without text.
func (s *scanner) readLine() (text []byte, size int64, err error) {
	text, err = s.r.ReadSlice('\n')
	size = int64(len(text))
	if err == nil {
		return text[:len(text)-1], size, nil
	}
	s.long = append(s.long[:0], text...)
	for err == bufio.ErrBufferFull {
		text, err = s.r.ReadSlice('\n')
		size += int64(len(text))
		if size <= MaxLine {
			s.long = append(s.long, text...)
		}
	}
	switch {
	case err != nil:
		return nil, size, err
	case size > MaxLine:
		return nil, size, errLongLine
	}
	return s.long[:len(s.long)-1], size, nil
}

// strict is how records and manifests are read: nothing may be there that would be lost.
var strict = json.RejectUnknownMembers(true)

// noSamples has Record's fields, but decodes Samples to nothing.
type noSamples struct {
	Record
	Samples skipped `json:"samples"`
}

// skipped is a JSON value that nobody wants.
type skipped struct{}

var _ json.UnmarshalerFrom = (*skipped)(nil)

// UnmarshalJSONFrom moves the decoder past the value.
func (*skipped) UnmarshalJSONFrom(dec *jsontext.Decoder) error { return dec.SkipValue() }

func decode(text []byte, opt Options) (Record, error) {
	var into noSamples
	var err error
	if opt.SkipSamples {
		err = json.Unmarshal(text, &into, strict)
	} else {
		err = json.Unmarshal(text, &into.Record, strict)
	}
	if err != nil {
		// A record of another format may well have other fields: say that, not which field.
		if other := otherSchema(text); other != nil {
			return Record{}, other
		}
		return Record{}, fmt.Errorf("not a record: %w", err)
	}
	if err := checkNulls(text); err != nil {
		return Record{}, err
	}
	if err := checkValues(text, len(into.Metrics)); err != nil {
		return Record{}, err
	}
	return into.Record, into.Validate()
}

// checkValues refuses a metric without a value, which decoding takes for 0. Nearly always it is enough to count
// the numbers that are called so.
func checkValues(text []byte, metrics int) error {
	for rest, found := text, true; found; {
		_, rest, found = bytes.Cut(rest, []byte(`"value":`))
		if found && len(rest) > 0 && (rest[0] == '-' || rest[0] >= '0' && rest[0] <= '9') {
			metrics--
		}
	}
	if metrics == 0 {
		return nil
	}
	var exact struct {
		Metrics map[string]struct {
			Value *float64 `json:"value"`
		} `json:"metrics"`
	}
	if err := json.Unmarshal(text, &exact); err != nil {
		return fmt.Errorf("not a record: %w", err)
	}
	for name, m := range exact.Metrics {
		if m.Value == nil {
			return fmt.Errorf("not a record: metric %q has no value", name)
		}
	}
	return nil
}

// checkNulls refuses a null in the place of a value, which decoding takes for 0. Only what a check wanted and
// got may be null.
func checkNulls(text []byte) error {
	if !bytes.Contains(text, []byte("null")) {
		return nil // as good as every record
	}
	for dec := jsontext.NewDecoder(bytes.NewReader(text)); ; {
		token, err := dec.ReadToken()
		if err != nil {
			return nil // the end: it was decoded before
		}
		at := dec.StackPointer()
		ofCheck := at.Parent().Parent() == "/checks" && (at.LastToken() == "want" || at.LastToken() == "got")
		if token.Kind() == 'n' && !ofCheck {
			return fmt.Errorf("not a record: null at %s", at)
		}
	}
}

// otherSchema returns a *SchemaError when the text says that it is of another format.
func otherSchema(text []byte) error {
	var head struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(text, &head); err != nil || head.Schema == nil || *head.Schema == Schema {
		return nil
	}
	return &SchemaError{Got: *head.Schema}
}

// Validate returns what makes a record impossible, or nil. Reader and writer both hold records to it.
func (r *Record) Validate() error {
	switch {
	case r.Schema != Schema:
		return &SchemaError{Got: r.Schema}
	case r.Experiment == "":
		return errors.New("record has no experiment")
	case r.Sequence < 1 || r.Block < 1 || r.Boot < 1:
		return fmt.Errorf("sequence %d, block %d, boot %d: each counts from 1", r.Sequence, r.Block, r.Boot)
	case r.Treatment.Firewall == "" || r.Treatment.Rules < 0 || r.Treatment.FrameSize < 1:
		return fmt.Errorf("treatment %+v is not a treatment", r.Treatment)
	case r.Clock == "":
		return errors.New("record has no clock")
	case r.Started.IsZero():
		return errors.New("record has no start")
	case r.ElapsedS < 0:
		return fmt.Errorf("elapsed_s = %v is negative", r.ElapsedS)
	}
	switch r.Status {
	case OK, SenderBound:
	case Failed, Unavailable:
		if r.Error == "" {
			return fmt.Errorf("status %q without an error that says why", r.Status)
		}
	default:
		return fmt.Errorf("status %q is none of ok, failed, sender_bound, unavailable", r.Status)
	}
	return nil
}

// encode is the line of a record, newline included. Times are UTC, to the millisecond.
func encode(rec Record) ([]byte, error) {
	rec.Started = rec.Started.UTC().Truncate(time.Millisecond)
	if err := rec.Validate(); err != nil {
		return nil, err
	}
	var line bytes.Buffer
	if err := json.MarshalWrite(&line, rec, json.Deterministic(true)); err != nil {
		return nil, err
	}
	line.WriteByte('\n')
	if line.Len() > MaxLine {
		return nil, errLongLine
	}
	return line.Bytes(), nil
}
