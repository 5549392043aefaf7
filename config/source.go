package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
)

// maxFile is the largest file that is read, in bytes. A configuration is written by people; a larger
// file is a mistake, such as a disk image named instead.
const maxFile = 1 << 20

// A Purpose is what a configuration is read for, and so what beside its texts has to be right.
type Purpose int

const (
	// Reading is for whoever boots nothing: neither the lock file nor disks are looked at.
	Reading Purpose = iota
	// Booting is for a testbed: where its provider boots something, the lock file and the disks must be right.
	Booting
	// Building is for images, whatever the provider. Where the testbed does not say which it boots, all count.
	Building
	// Relocking is Building for whoever is about to write the lock file anew.
	Relocking
)

// A Source says where a configuration is, and what for it is read.
type Source struct {
	For Purpose
	// Images, where there are any, are what counts of the images: blocks, or single images of blocks.
	Images []string

	// Path is a file, or a directory whose *.hcl files are one configuration. Empty is ".".
	Path string
	// Files, where not nil, are read instead of Path: texts by name, as [Config.Files] keeps them.
	Files map[string]string

	// VarFiles name files of "name = value", read in order; Vars are assignments "name=value", read
	// after them. The last value for a name counts.
	VarFiles []string
	Vars     []string

	// Provider, where not empty, is used instead of the one in the testbed block.
	Provider string
}

// folder is the folder that the configuration is in, and whether it is everything there.
func (src Source) folder() (dir string, whole bool) {
	if src.Files != nil {
		return "", false
	}
	path := cmp.Or(src.Path, ".")
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return path, true
	}
	return filepath.Dir(path), false
}

// An input is a text to be read: its name for the user and the shorter one that it is kept under.
type input struct {
	shown string
	name  string
	text  []byte
}

// inputs reads the texts of a Source, in the order of their names.
func (r *reader) inputs(src Source) []input {
	if src.Files != nil {
		var list []input
		for _, name := range slices.Sorted(maps.Keys(src.Files)) {
			list = append(list, input{name, name, []byte(src.Files[name])})
		}
		return list
	}
	path := cmp.Or(src.Path, ".")
	info, err := os.Stat(path)
	switch {
	case err != nil:
		r.unreadable(path, err)
		return nil
	case info.IsDir():
		return r.directory(path)
	}
	return r.file(path)
}

func (r *reader) directory(path string) []input {
	entries, err := os.ReadDir(path)
	if err != nil {
		r.unreadable(path, err)
		return nil
	}
	var list []input
	found := false
	for _, e := range entries {
		if isConfiguration(e) {
			found = true
			list = append(list, r.file(filepath.Join(path, e.Name()))...)
		}
	}
	if !found {
		where := "Directory " + path
		if path == "." {
			where = "This directory"
		}
		r.fail(hcl.Range{}, where+" has no configuration: no file in it is named *.hcl", "Write one with `rampart init`, or name another place with --config PATH.")
	}
	return list
}

// isConfiguration tells configurations from lock files, which are written by this program, and from
// what editors leave behind.
func isConfiguration(e fs.DirEntry) bool {
	name := e.Name()
	return !e.IsDir() && strings.HasSuffix(name, ".hcl") && !strings.HasSuffix(name, ".lock.hcl") && !strings.HasPrefix(name, ".")
}

func (r *reader) file(path string) []input {
	text, err := readFile(path)
	if err != nil {
		r.unreadable(path, err)
		return nil
	}
	return []input{{path, filepath.Base(path), text}}
}

// readFile reads at most [maxFile] bytes, so that neither a disk image nor /dev/zero does harm.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, errTooLarge
	}
	return text, nil
}

// errTooLarge is returned for a file of more than [maxFile] bytes.
var errTooLarge = errors.New("it is larger than 1 MiB")

func (r *reader) unreadable(path string, err error) {
	right := "Name the configuration with --config PATH."
	switch {
	case errors.Is(err, fs.ErrNotExist):
		right = "Write a configuration with `rampart init`, or name another with --config PATH."
	case errors.Is(err, errTooLarge):
		right = "A configuration is a text of a few kilobytes; is this the right file?"
	}
	r.failToRead(path, err, right)
}

func (r *reader) failToRead(path string, err error, right string) {
	r.unread = errors.Join(r.unread, err)
	r.fail(hcl.Range{}, fmt.Sprintf("Cannot read %s: %v", path, reason(err)), "%s", right)
}

// reason is an error without the operation and the path, which the message has already.
func reason(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}
