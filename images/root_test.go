package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDropped(t *testing.T) {
	for name, want := range map[string]bool{
		"dev": false, "dev/console": true, "boot": false, "boot/vmlinuz-6.1": true, "var/log": false, "var/log/apt/term.log": true,
		"etc/machine-id": true, "etc/ssh/ssh_host_rsa_key": true, "etc/ssh/sshd_config": false, "etc/ssh": false,
		"usr/share/doc/x/copyright": true, "usr/share/documents": false, "var/lib/dpkg/status": false, "var/lib/dpkg/status-old": true,
		"usr/lib/modules/6.1/modules.dep": false, "usr/bin/nft": false, "etc/passwd": false, "etc/passwd-": true,
	} {
		if got := isDropped(name); got != want {
			t.Errorf("%s: dropped %v, want %v", name, got, want)
		}
	}
}

// tinyRoot is a tar in the form that mmdebstrap writes, with the little that a build looks for.
func tinyRoot(t testing.TB, when time.Time) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, content string) {
		h.Size, h.ModTime, h.Format = int64(len(content)), when, tar.FormatPAX
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	dirs := []string{
		"./", "./boot/", "./dev/", "./etc/", "./etc/ssh/", "./usr/", "./usr/bin/", "./usr/sbin/", "./usr/lib/", "./usr/lib/modules/",
		"./usr/lib/modules/6.1.0/", "./usr/lib/modules/6.1.0/kernel/", "./var/", "./var/lib/", "./var/lib/dpkg/", "./var/log/",
	}
	for _, d := range dirs {
		add(tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755}, "")
	}
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "./lib", Linkname: "usr/lib", Mode: 0o777}, "")
	add(tar.Header{Typeflag: tar.TypeChar, Name: "./dev/console", Devmajor: 5, Devminor: 1}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./boot/vmlinuz-6.1.0"}, "kernel")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./etc/machine-id"}, "random\n")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./etc/passwd"}, "root:x:0:0:root:/root:/bin/bash\n")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./etc/ssh/sshd_config"}, "UsePAM yes\n")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./etc/mine", Uid: 1000, Gid: 1001, Mode: 0o4750}, "x")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./usr/bin/busybox", Mode: 0o755}, "busybox")
	add(tar.Header{Typeflag: tar.TypeLink, Name: "./usr/bin/hard", Linkname: "./usr/bin/busybox", Mode: 0o755}, "")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./usr/lib/modules/6.1.0/modules.dep"}, "kernel/virtio_pci.ko:\n")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./usr/lib/modules/6.1.0/kernel/virtio_pci.ko"}, "module")
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./var/lib/dpkg/status"}, tinyStatus())
	add(tar.Header{Typeflag: tar.TypeReg, Name: "./var/log/dpkg.log"}, when.String())
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// tinyPackages are what [tinyRoot] says that it has: what every image is asked to have.
func tinyPackages() []string {
	return append([]string{"base-files", "linux-image-cloud-amd64"}, nodePackages()...)
}

// tinyStatus is dpkg's status file for them, all of version 1.
func tinyStatus() string {
	var b strings.Builder
	for _, name := range tinyPackages() {
		fmt.Fprintf(&b, "Package: %s\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n\n", name)
	}
	return b.String()
}

func TestNormalise(t *testing.T) {
	make := func(when time.Time) (rootArchive, []byte, []byte) {
		var plain, zipped bytes.Buffer
		root, err := normalise(bytes.NewReader(tinyRoot(t, when)), &plain, &zipped)
		if err != nil {
			t.Fatal(err)
		}
		return root, plain.Bytes(), zipped.Bytes()
	}
	root, plain, zipped := make(epoch.Add(time.Hour))
	later, laterPlain, laterZipped := make(epoch.Add(1000*time.Hour + time.Millisecond))
	if root != later || !bytes.Equal(plain, laterPlain) || !bytes.Equal(zipped, laterZipped) {
		t.Error("the result depends on when the files were made")
	}
	gz, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		t.Fatal(err)
	}
	if unzipped, err := io.ReadAll(gz); err != nil || !bytes.Equal(unzipped, plain) {
		t.Errorf("the compressed archive is another: %v", err)
	}
	entries := map[string]tar.Header{}
	contents := map[string]string{}
	if err := eachEntry(bytes.NewReader(plain), func(h *tar.Header, r io.Reader) error {
		if _, ok := entries[h.Name]; ok {
			t.Errorf("%s is there twice", h.Name)
		}
		b, err := io.ReadAll(r)
		entries[h.Name], contents[h.Name] = *h, string(b)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(entries) != root.entries {
		t.Errorf("%d entries, counted %d", len(entries), root.entries)
	}
	for _, name := range []string{"etc/machine-id", "dev/console", "boot/vmlinuz-6.1.0", "var/log/dpkg.log"} {
		if _, ok := entries[name]; ok {
			t.Errorf("%s is still there", name)
		}
	}
	for name, want := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/hostname": "node\n", "usr/bin/busybox": "busybox",
	} {
		if contents[name] != want {
			t.Errorf("%s: %q, want %q", name, contents[name], want)
		}
	}
	if !strings.Contains(contents["etc/ssh/sshd_config"], "UsePAM no") || !strings.HasPrefix(contents["usr/sbin/rampart-init"], "#!/bin/busybox sh") {
		t.Error("our own files are not in it")
	}
	if h := entries["etc/mine"]; h.Uid != 1000 || h.Gid != 1001 || h.Mode != 0o4750 {
		t.Errorf("owner or mode was lost: %+v", h)
	}
	if h := entries["usr/bin/hard"]; h.Typeflag != tar.TypeLink || h.Linkname != "usr/bin/busybox" {
		t.Errorf("hard link: %+v", h)
	}
}

func TestSeed(t *testing.T) {
	files := []File{
		{Name: SeedNetwork, Mode: 0o644, Content: []byte("ip link\n")},
		{Name: SeedHostKey, Mode: 0o600, Content: []byte("key")},
		{Name: SeedAuthorizedKeys, Mode: 0o600, Content: bytes.Repeat([]byte("x"), 1000)},
	}
	seed, err := Seed(files)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(files)
	if again, err := Seed(files); err != nil || !bytes.Equal(seed, again) {
		t.Errorf("the order of files matters: %v", err)
	}
	if len(seed)%512 != 0 {
		t.Errorf("%d bytes are no number of sectors", len(seed))
	}
	file := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(file, seed, 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := readFiles(file, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if got := found[f.Name[1:]]; !bytes.Equal(got, f.Content) {
			t.Errorf("%s: %q", f.Name, got)
		}
	}
	for _, bad := range []string{"relative", "/", "", "/a/../b", "/a/", "/a\x00b"} {
		if _, err := Seed([]File{{Name: bad}}); err == nil {
			t.Errorf("file name %q was accepted", bad)
		}
	}
	if _, err := Seed([]File{{Name: "/a"}, {Name: "/a"}}); err == nil {
		t.Error("a file twice was accepted")
	}
}
