package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// dropped are the parts of a bootstrapped Debian that the nodes have no use for, that differ from one
// build to the next, or that would give all nodes the same identity. A pattern that ends in / drops
// what is below a folder and keeps the folder; the others are as in [path.Match].
var dropped = [...]string{
	"dev/", // devtmpfs
	"run/", "tmp/", "var/log/", "var/cache/", "var/tmp/", "var/backups/", "var/lib/apt/",
	"boot/", "vmlinuz", "vmlinuz.old", "initrd.img", "initrd.img.old", // beside the disk
	"etc/apt/", // how the building machine reaches its archive
	"etc/machine-id", "etc/hostname", "etc/resolv.conf", "etc/ssh/ssh_host_*", "var/lib/dbus/machine-id",
	"var/lib/systemd/random-seed", "var/lib/urandom/random-seed",
	"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "etc/.pwd.lock",
	"var/lib/dpkg/*-old", "var/lib/dpkg/lock*", "var/lib/dpkg/triggers/Lock",
	"root/.bashrc", "root/.profile",
	"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/lintian/", "usr/share/bug/",
	"usr/share/bash-completion/", "usr/share/zsh/", "usr/share/pixmaps/", "usr/share/menu/", "usr/share/doc-base/",
}

// isDropped says whether the entry called name, a clean path with no leading slash, is left out.
func isDropped(name string) bool {
	for _, pattern := range dropped {
		if dir, ok := strings.CutSuffix(pattern, "/"); ok {
			if strings.HasPrefix(name, pattern) && name != dir {
				return true
			}
		} else if ok, _ := path.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

// addedFile is what an image has beyond its packages.
type addedFile struct {
	Name    string // no leading slash; a folder ends in /
	Mode    int64
	Link    string // target, for a symbolic link
	Content string
}

// addedFiles lists them in the order of the archive.
func addedFiles() []addedFile {
	content := func(name string) string {
		b, err := files.ReadFile("files/" + name)
		if err != nil {
			panic(err) // it is part of this program
		}
		return string(b)
	}
	return []addedFile{
		{Name: "etc/hostname", Mode: 0o644, Content: "node\n"},
		{Name: "etc/hosts", Mode: 0o644, Content: "127.0.0.1 localhost\n::1 localhost\n"},
		{Name: "etc/rampart/", Mode: 0o755},
		{Name: "etc/ssh/sshd_config", Mode: 0o644, Content: content("sshd_config")},
		// The kernel's own defaults, whatever a package brought along: the study sets what it studies.
		{Name: "etc/sysctl.conf", Mode: 0o644},
		{Name: "usr/sbin/halt", Link: "../bin/busybox"},
		{Name: "usr/sbin/poweroff", Link: "../bin/busybox"},
		{Name: "usr/sbin/rampart-init", Mode: 0o755, Content: content("rampart-init")},
		{Name: "usr/sbin/reboot", Link: "../bin/busybox"},
	}
}

// rootArchive is what became of a bootstrapped root file system.
type rootArchive struct {
	digest  string // of the uncompressed tar
	content int64  // bytes of all files
	entries int
}

// normalise copies the tar that the bootstrap tool made without what is dropped, with what is added,
// and with nothing in it that depends on when and where it was built: plain goes to unpacking, zipped
// to the store.
func normalise(in io.Reader, plain, zipped io.Writer) (rootArchive, error) {
	hash := sha256.New()
	gz, err := gzip.NewWriterLevel(zipped, gzip.BestSpeed)
	if err != nil {
		return rootArchive{}, err
	}
	out := tar.NewWriter(io.MultiWriter(plain, hash, gz))
	var root rootArchive
	replaced := map[string]bool{}
	for _, f := range addedFiles() {
		replaced[strings.TrimSuffix(f.Name, "/")] = true
	}
	write := func(h tar.Header, content io.Reader) error {
		root.entries++
		root.content += h.Size
		if err := out.WriteHeader(&h); err != nil {
			return fmt.Errorf("write %s: %w", h.Name, err)
		}
		if _, err := io.Copy(out, content); err != nil {
			return fmt.Errorf("write %s: %w", h.Name, err)
		}
		return nil
	}
	err = eachEntry(in, func(h *tar.Header, content io.Reader) error {
		name := path.Clean(h.Name)
		if isDropped(name) || replaced[name] {
			return nil
		}
		clean := tar.Header{
			Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode, Size: h.Size,
			Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime.Truncate(time.Second), Format: tar.FormatGNU,
		}
		if clean.ModTime.After(epoch) {
			clean.ModTime = epoch
		}
		switch h.Typeflag {
		case tar.TypeDir:
			clean.Name += "/"
		case tar.TypeReg, tar.TypeSymlink:
		case tar.TypeLink:
			clean.Linkname = path.Clean(h.Linkname)
		default:
			return fmt.Errorf("copy %s: a %q entry has no place in an image", name, h.Typeflag)
		}
		if name == "etc/passwd" {
			// dash starts in a third of the time that bash takes, which counts under emulation.
			b, err := io.ReadAll(content)
			if err != nil {
				return err
			}
			b = bytes.Replace(b, []byte("root:/root:/bin/bash"), []byte("root:/root:/bin/sh"), 1)
			clean.Size, content = int64(len(b)), bytes.NewReader(b)
		}
		return write(clean, content)
	})
	if err != nil {
		return rootArchive{}, err
	}
	for _, f := range addedFiles() {
		h := tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content)), ModTime: epoch, Format: tar.FormatGNU}
		switch {
		case strings.HasSuffix(f.Name, "/"):
			h.Typeflag = tar.TypeDir
		case f.Link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.Link, 0o777
		}
		if err := write(h, strings.NewReader(f.Content)); err != nil {
			return rootArchive{}, err
		}
	}
	if err := errors.Join(out.Close(), gz.Close()); err != nil {
		return rootArchive{}, err
	}
	root.digest = "sha256:" + hex.EncodeToString(hash.Sum(nil))
	return root, nil
}

// eachEntry calls do for every entry of a tar.
func eachEntry(r io.Reader, do func(*tar.Header, io.Reader) error) error {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := do(h, in); err != nil {
			return err
		}
	}
}

// readFiles returns the regular files of the tar in file whose clean names are wanted.
func readFiles(file string, wanted func(name string) bool) (map[string][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string][]byte{}
	err = eachEntry(f, func(h *tar.Header, content io.Reader) error {
		name := path.Clean(h.Name)
		if h.Typeflag != tar.TypeReg || !wanted(name) {
			return nil
		}
		b, err := io.ReadAll(content)
		found[name] = b
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path.Base(file), err)
	}
	return found, nil
}

// one returns the only entry of found whose name matches pattern.
func one(found map[string][]byte, pattern string) (name string, content []byte, err error) {
	var names []string
	for _, n := range slices.SortedFunc(maps.Keys(found), cmp.Compare[string]) {
		if ok, _ := path.Match(pattern, n); ok {
			names = append(names, n)
		}
	}
	switch len(names) {
	case 1:
		return names[0], found[names[0]], nil
	case 0:
		return "", nil, fmt.Errorf("find %s in the root file system: %w", pattern, fs.ErrNotExist)
	}
	return "", nil, fmt.Errorf("find %s in the root file system: there are %s: an image has one kernel", pattern, strings.Join(names, " and "))
}
