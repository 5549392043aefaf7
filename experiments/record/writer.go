package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A Writer appends records to a file. Each record is one write and one fsync, so that a crash costs
// at most the record being written. It is for one goroutine.
type Writer struct {
	file   *os.File
	size   int64
	broken error // why nothing more may be written
}

// appendTo continues f, which must be open for reading and appending. It calls seen with every
// record that is there, and cuts a torn last line off, which it returns.
func appendTo(f *os.File, seen func(rec *Record, line int) error) (*Writer, *TornError, error) {
	s := newScanner(f, f.Name())
	for s.next(Options{SkipSamples: true}) {
		if err := seen(&s.record, s.line); err != nil {
			return nil, nil, &DamageError{Path: f.Name(), Line: s.line, Err: err}
		}
	}
	var torn *TornError
	if s.err != nil && !errors.As(s.err, &torn) {
		return nil, nil, s.err
	}
	if torn != nil {
		if err := cut(f, s.offset); err != nil {
			return nil, nil, fmt.Errorf("drop torn line %d of %s: %w", torn.Line, f.Name(), err)
		}
	}
	return &Writer{file: f, size: s.offset}, torn, nil
}

func cut(f *os.File, size int64) error {
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

// openAppend opens path, and makes it and its entry in the folder durable if it is new.
func openAppend(path string) (*os.File, error) {
	_, err := os.Stat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	if fresh {
		if err := syncDir(filepath.Dir(path)); err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync folder %s: %w", dir, err)
	}
	return nil
}

// Append writes one record durably. When it returns an error the file holds exactly the records that
// it held before: what was written of the line is cut off again. After a full disk (syscall.ENOSPC)
// it can be called again; after a failed fsync it cannot, because the kernel may have dropped pages
// that it had accepted.
func (w *Writer) Append(rec Record) error {
	if w.broken != nil {
		return fmt.Errorf("append record: an earlier write failed: %w", w.broken)
	}
	line, err := encode(rec)
	if err != nil {
		return fmt.Errorf("encode record %s/%d: %w", rec.Experiment, rec.Sequence, err)
	}
	n, err := w.file.Write(line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if err == nil {
		if err = w.file.Sync(); err == nil {
			w.size += int64(len(line))
			return nil
		}
		w.broken = err
	}
	if back := cut(w.file, w.size); back != nil {
		w.broken = errors.Join(err, back)
		err = w.broken
	}
	return fmt.Errorf("append record %s/%d to %s: %w (the records before it are safe; free some space, then run again to resume)",
		rec.Experiment, rec.Sequence, w.file.Name(), err)
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }
