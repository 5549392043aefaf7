package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultDir is the results folder when the user names none: results/<name>-<UTC time>.
func DefaultDir(name string, now time.Time) string {
	return filepath.Join("results", name+"-"+now.UTC().Format("20060102T150405Z"))
}

// A Key names a run within a results folder.
type Key struct {
	Experiment string
	Sequence   int
}

// A Folder is a results folder that a run works on, locked against a second one. It is for one
// goroutine. Readers need none: see [ReadManifest] and [ReadDir].
type Folder struct {
	dir      string
	writer   *Writer
	manifest Manifest
	done     map[Key]int // to the line
	torn     *TornError
}

// ErrLocked says that another process works on the folder.
var ErrLocked = errors.New("another rampart works on this folder: wait until it is done, or stop it")

// ErrNotEmpty says that a folder to be made already holds something.
var ErrNotEmpty = errors.New("the folder is not empty: `rampart run --out` on a results folder resumes it, else name another")

// ErrMoved says that the records are no longer where they were opened.
var ErrMoved = errors.New("the results folder was moved or removed while it is being written to")

// A Reservation is a results folder that has no manifest yet: it is known to be ours and writable
// before a testbed, which takes minutes, can say what it is. Its end is Create or Cancel.
type Reservation struct {
	dir  string
	file *os.File // the records, empty and locked
	made []string // folders that were not there before, the deepest first
}

// Reserve makes a results folder, with its parents, and locks it. A folder that is there must be
// empty, or hold no more than what a Reserve that was killed leaves behind.
func Reserve(dir string) (*Reservation, error) {
	made := missing(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create results folder: %w", err)
	}
	// Before the lock, which would make a records file in a folder that is not ours; and again
	// behind it, when nobody else can change it any more.
	if err := checkEmpty(dir); err != nil {
		return nil, fmt.Errorf("create results folder %s: %w", dir, err)
	}
	f, err := lock(dir)
	if err != nil {
		return nil, fmt.Errorf("create results folder %s: %w", dir, err)
	}
	if err := errors.Join(checkEmpty(dir), syncDir(filepath.Dir(dir))); err != nil {
		f.Close()
		return nil, fmt.Errorf("create results folder %s: %w", dir, err)
	}
	return &Reservation{dir, f, made}, nil
}

// missing lists dir and its parents as far as they are not there, the deepest first.
func missing(dir string) []string {
	var all []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			return all
		}
		all = append(all, at)
	}
}

// Create makes the folder what it was reserved for.
func (r *Reservation) Create(m Manifest) (*Folder, error) {
	m.Schema = Schema
	if err := WriteManifest(r.dir, m); err != nil {
		return nil, errors.Join(err, r.Cancel())
	}
	return &Folder{dir: r.dir, writer: &Writer{file: r.file}, manifest: m, done: map[Key]int{}}, nil
}

// Cancel removes what Reserve made.
func (r *Reservation) Cancel() error {
	err := errors.Join(os.Remove(r.file.Name()), r.file.Close())
	for _, dir := range r.made {
		_ = os.Remove(dir) // somebody may have put something into it
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove unused results folder: %w", err)
	}
	return nil
}

// checkEmpty returns ErrNotEmpty unless dir is empty or holds what a Reserve that was killed leaves:
// records without a byte, and temporary files of a manifest that was never renamed into place.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return err
		}
		left := e.Name() == RecordsName && info.Size() == 0 || strings.HasPrefix(e.Name(), "."+ManifestName)
		if !left {
			return fmt.Errorf("%w (it holds %s)", ErrNotEmpty, e.Name())
		}
	}
	return nil
}

// lock opens the records of dir and takes the lock, which is a flock(2) on that file and goes with
// the process, however it ends.
func lock(dir string) (*os.File, error) {
	f, err := openAppend(filepath.Join(dir, RecordsName))
	if err != nil {
		return nil, err
	}
	err = Lock(f)
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrLocked
	}
	return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
}

// Open locks a results folder in order to continue it. It reads what is done, cuts off a torn last
// line (see [Folder.Torn]), and refuses a folder whose records are damaged or name a run twice.
func Open(dir string) (*Folder, error) {
	// Before the lock, as in Reserve; open reads it again behind it.
	if _, err := ReadManifest(dir); err != nil {
		return nil, err
	}
	f, err := lock(dir)
	if err != nil {
		return nil, fmt.Errorf("open results folder %s: %w", dir, err)
	}
	folder, err := open(dir, f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return folder, nil
}

func open(dir string, f *os.File) (*Folder, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return nil, err
	}
	done := map[Key]int{}
	w, torn, err := appendTo(f, func(rec *Record, line int) error {
		key := Key{rec.Experiment, rec.Sequence}
		if first, ok := done[key]; ok {
			return fmt.Errorf("run %s/%d is there twice, first in line %d", key.Experiment, key.Sequence, first)
		}
		done[key] = line
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &Folder{dir: dir, writer: w, manifest: m, done: done, torn: torn}, nil
}

// Dir is the path of the folder.
func (f *Folder) Dir() string { return f.dir }

// Manifest is the manifest as it stands on disk.
func (f *Folder) Manifest() Manifest { return f.manifest }

// SetManifest replaces the manifest.
func (f *Folder) SetManifest(m Manifest) error {
	if err := f.inPlace(); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	m.Schema = Schema
	if err := WriteManifest(f.dir, m); err != nil {
		return err
	}
	f.manifest = m
	return nil
}

// Torn is the torn last line that [Open] cut off, or nil. The user should be told.
func (f *Folder) Torn() *TornError { return f.torn }

// Done reports whether the run has a record, whatever its status.
func (f *Folder) Done(experiment string, sequence int) bool {
	_, ok := f.done[Key{experiment, sequence}]
	return ok
}

// Runs lists the runs that have a record, by experiment, then sequence.
func (f *Folder) Runs() []Key {
	return slices.SortedFunc(maps.Keys(f.done), func(a, b Key) int {
		if c := strings.Compare(a.Experiment, b.Experiment); c != 0 {
			return c
		}
		return a.Sequence - b.Sequence
	})
}

// inPlace returns ErrMoved unless the records that are written are those in the folder.
func (f *Folder) inPlace() error {
	ours, err := f.writer.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(f.writer.file.Name())
	if err != nil || !os.SameFile(ours, there) {
		return fmt.Errorf("%w: %s is not there any more", ErrMoved, f.writer.file.Name())
	}
	return nil
}

// Append adds the record of a run that has none, durably; see [Writer.Append]. An error that wraps
// ErrMoved says that the record was written, to wherever the file is now.
func (f *Folder) Append(rec Record) error {
	key := Key{rec.Experiment, rec.Sequence}
	if f.Done(key.Experiment, key.Sequence) {
		return fmt.Errorf("append record: run %s/%d already has one in %s", key.Experiment, key.Sequence, f.dir)
	}
	if err := f.writer.Append(rec); err != nil {
		return err
	}
	f.done[key] = len(f.done) + 1
	if err := f.inPlace(); err != nil {
		return fmt.Errorf("append record %s/%d: %w", key.Experiment, key.Sequence, err)
	}
	return nil
}

// A PlanError says that a results folder belongs to another plan.
type PlanError struct {
	Dir        string
	Experiment string
	Recorded   string // digest in the manifest; empty: the experiment is not in it
	Wanted     string // empty: the experiment is only in the manifest
}

func (e *PlanError) Error() string {
	what := "its plan is another one"
	switch {
	case e.Recorded == "":
		what = "the folder does not have it"
	case e.Wanted == "":
		what = "the configuration no longer has it"
	}
	return fmt.Sprintf("resume %s: experiment %q: %s (recorded %s, now %s): runs of different plans cannot be mixed; restore the configuration that %s holds, or start a new folder with --out",
		e.Dir, e.Experiment, what, digestOr(e.Recorded), digestOr(e.Wanted), ManifestName)
}

func digestOr(d string) string {
	if d == "" {
		return "none"
	}
	return d
}

// CheckPlans returns a [*PlanError] unless the manifest's plans are exactly those of digests
// (experiment to digest).
func (f *Folder) CheckPlans(digests map[string]string) error {
	all := maps.Clone(f.manifest.PlanDigests)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, digests)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		recorded, wanted := f.manifest.PlanDigests[name], digests[name]
		if recorded != wanted {
			return &PlanError{Dir: f.dir, Experiment: name, Recorded: recorded, Wanted: wanted}
		}
	}
	return nil
}

// Digest is the SHA-256 of the records: two people who ran the same thing where the clock is virtual
// compare one line.
func (f *Folder) Digest() (string, error) { return Digest(f.dir) }

// Digest is the SHA-256 of the records of a results folder, as "sha256:" and hexadecimal digits.
func Digest(dir string) (string, error) {
	file, err := os.Open(filepath.Join(dir, RecordsName))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("digest records: %w (is %s a results folder?)", err, dir)
		}
		return "", fmt.Errorf("digest records: %w", err)
	}
	defer file.Close()
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", fmt.Errorf("digest records: %w", err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// Close lets go of the folder.
func (f *Folder) Close() error { return f.writer.Close() }

// lockPatience is how long a lock may be held by nobody in particular: a process that was killed while it
// started a command leaves a child that holds its locks until it is executed.
const lockPatience = time.Second

// Lock takes the exclusive lock of an open file (flock(2)), which goes with the last process that holds
// the file. The error is unix.EWOULDBLOCK when another process has it, and keeps it.
func Lock(f *os.File) error {
	deadline := time.Now().Add(lockPatience)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
