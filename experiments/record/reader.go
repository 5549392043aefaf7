package record

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
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
// them), or an error of r. It reads ahead of what it yields, and no more once it has returned.
//
// Records own their memory. The decoder is github.com/go-json-experiment/json, the prototype of the
// standard library's next encoding/json: it reads records about twice as fast, refuses unknown and
// repeated fields by itself, and skips samples without building them. Lines are read one after the
// other and decoded on all processors, since decoding is nearly all of the work.
func Read(r io.Reader, opt Options) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		batches, stop := make(chan *batch, runtime.GOMAXPROCS(0)), make(chan struct{})
		var reading sync.WaitGroup
		reading.Go(func() { readBatches(newScanner(r), opt, batches, stop) })
		defer reading.Wait()
		defer close(stop)
		for b := range batches {
			<-b.decoded
			for _, rec := range b.records {
				if !yield(rec, nil) {
					return
				}
			}
			if b.err != nil {
				yield(Record{}, b.err)
				return
			}
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

// batchSize is about how many bytes of lines are decoded at a time.
const batchSize = 256 << 10

// A batch is some lines that follow each other.
type batch struct {
	text    []byte // the lines, without newlines
	ends    []int  // of each line in text
	first   int    // number of the first line, from 1
	offset  int64  // of the first line
	last    bool   // nothing follows
	decoded chan struct{}
	records []Record // of the lines before err, once decoded is closed
	err     error
}

// readBatches sends batches in order, each while it is still being decoded, and ends behind the last or when
// stop is closed.
func readBatches(s *scanner, opt Options, batches chan<- *batch, stop <-chan struct{}) {
	defer close(batches)
	for {
		b := s.batch()
		if len(b.ends) == 0 && b.err == nil {
			return
		}
		go b.decode(opt)
		select {
		case batches <- b:
		case <-stop:
			return
		}
		if b.last {
			return
		}
	}
}

// decode decodes the lines up to the first that is wrong.
func (b *batch) decode(opt Options) {
	defer close(b.decoded)
	b.records = make([]Record, 0, len(b.ends))
	start := 0
	for i, end := range b.ends {
		text := b.text[start:end]
		rec, err := decode(text, opt)
		if err != nil {
			b.err = b.judge(i, start, text, err)
			return
		}
		b.records = append(b.records, rec)
		start = end
	}
}

// judge tells a torn last line from damage. A complete line that is JSON was written on purpose and
// is never torn, even when it is no record.
func (b *batch) judge(i, start int, text []byte, err error) error {
	line := b.first + i
	if b.last && b.err == nil && i == len(b.ends)-1 && !jsontext.Value(text).IsValid(jsontext.AllowDuplicateNames(true)) {
		return &TornError{Line: line, Offset: b.offset + int64(start+i), Bytes: int64(len(text) + 1)}
	}
	return &DamageError{Line: line, Err: err}
}

// A scanner reads one line after another and knows where it is.
type scanner struct {
	r      *bufio.Reader
	line   int    // that was read last, from 1
	offset int64  // behind it
	long   []byte // a line that did not fit the buffer of r
}

func newScanner(r io.Reader) *scanner {
	return &scanner{r: bufio.NewReaderSize(r, batchSize)}
}

// batch reads the next lines. At the end it is empty; where no further line can be read it is the last, and
// its err says why.
func (s *scanner) batch() *batch {
	b := &batch{first: s.line + 1, offset: s.offset, decoded: make(chan struct{})}
	for len(b.text) < batchSize && !b.last {
		text, size, err := s.readLine()
		if err != nil {
			b.last, b.err = true, s.refuse(size, err)
			break
		}
		s.line++
		s.offset += size
		b.text = append(b.text, text...)
		b.ends = append(b.ends, len(b.text))
		_, err = s.r.Peek(1)
		b.last = err == io.EOF
	}
	return b
}

// refuse says why the next line cannot be read; nil: there is none.
func (s *scanner) refuse(size int64, err error) error {
	switch {
	case err == io.EOF && size == 0:
		return nil
	case err == io.EOF:
		return &TornError{Line: s.line + 1, Offset: s.offset, Bytes: size}
	case err == errLongLine:
		return &DamageError{Line: s.line + 1, Err: err}
	}
	return fmt.Errorf("read records: line %d: %w", s.line+1, err)
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

var _ json.UnmarshalerFrom = (*Metric)(nil)

// UnmarshalJSONFrom reads a metric, whose value must be there: 0 would be a measurement like any other.
func (m *Metric) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain Metric
	read := plain{Value: math.NaN()} // which JSON cannot hold
	if err := json.UnmarshalDecode(dec, &read); err != nil {
		return err
	}
	if math.IsNaN(read.Value) {
		return errors.New("a metric has no value")
	}
	*m = Metric(read)
	return nil
}

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
	return into.Record, into.Validate()
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
