package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// File is a file to put into a node before it boots.
type File struct {
	Name    string      // absolute and clean path on the node
	Mode    fs.FileMode // permission bits
	Content []byte
}

// epoch is the time of everything in an image that has no better one: 2026-01-01 00:00 UTC.
var epoch = time.Unix(1767225600, 0)

// Seed packs files for /dev/vdb: a tar in which everything belongs to root. Its length is a multiple
// of 512 bytes, as a disk's must be, and the same files in any order give the same bytes. Folders
// that are missing on the node are made with mode 0755, except /root/.ssh (0700).
func Seed(files []File) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	var errs []error
	for i, f := range files {
		switch {
		case !path.IsAbs(f.Name) || path.Clean(f.Name) != f.Name || f.Name == "/" || strings.ContainsRune(f.Name, 0):
			errs = append(errs, fmt.Errorf("pack seed: file %q: use an absolute path without dots", f.Name))
			continue
		case i > 0 && files[i-1].Name == f.Name:
			errs = append(errs, fmt.Errorf("pack seed: file %q is there twice", f.Name))
			continue
		}
		if path.Dir(f.Name) == "/root/.ssh" {
			errs = append(errs, writeEntry(w, tar.Header{Typeflag: tar.TypeDir, Name: "root/.ssh/", Mode: 0o700}, nil))
		}
		errs = append(errs, writeEntry(w, tar.Header{
			Typeflag: tar.TypeReg, Name: f.Name[1:], Mode: int64(f.Mode.Perm()), Size: int64(len(f.Content)),
		}, f.Content))
	}
	if err := errors.Join(append(errs, w.Close())...); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func writeEntry(w *tar.Writer, h tar.Header, content []byte) error {
	h.ModTime, h.Uname, h.Gname = epoch, "root", "root"
	if err := w.WriteHeader(&h); err != nil {
		return fmt.Errorf("pack seed: file %q: %w", h.Name, err)
	}
	if _, err := w.Write(content); err != nil {
		return fmt.Errorf("pack seed: file %q: %w", h.Name, err)
	}
	return nil
}
