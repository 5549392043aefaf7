package images

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpenDisk holds the reader of headers to files that qemu-img makes.
func TestOpenDisk(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		skip(t, "qemu-img is not installed: apt-get install qemu-utils")
	}
	dir := t.TempDir()
	create := func(name string, arguments ...string) string {
		path := filepath.Join(dir, name)
		if out, err := exec.Command("qemu-img", append(append([]string{"create", "-q"}, arguments...), path, "96M")...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return path
	}
	open := func(path, sum string) (Image, error) {
		return OpenDisk(t.Context(), Spec{Name: "x", Disk: path, SHA256: sum})
	}
	sumOf := func(path string) string {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		return hex.EncodeToString(sum[:])
	}
	for _, options := range []string{"compat=1.1", "compat=0.10", "compression_type=zstd"} {
		path := create("good", "-f", "qcow2", "-o", options)
		image, err := open(path, sumOf(path))
		if err != nil || image.DiskSize != 96<<20 || image.Disk() != path || !image.FromDisk() || image.Digest != "sha256:"+sumOf(path) {
			t.Errorf("%s: %+v, %v", options, image, err)
		}
	}
	good := filepath.Join(dir, "good")
	if err := os.WriteFile(filepath.Join(dir, "short"), []byte("QFI\xfb\x00\x00\x00\x03"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, path := range map[string]string{
		"no such file":                  filepath.Join(dir, "none"),
		"it is not a file":              dir,
		"it is not a qcow2 file":        create("raw", "-f", "raw"),
		"not a qcow2 file":              filepath.Join(dir, "short"),
		"it has a backing file":         create("backed", "-f", "qcow2", "-b", good, "-F", "qcow2"),
		"content is in another":         create("outside", "-f", "qcow2", "-o", "data_file="+filepath.Join(dir, "data")),
		"its SHA-256 is " + sumOf(good): good,
	} {
		_, err := open(path, strings.Repeat("0", 64))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(told(err), "\nhint: ") {
			t.Errorf("%s: %v; want %q", filepath.Base(path), err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenDisk(ctx, Spec{Disk: good, SHA256: sumOf(good)}); !errors.Is(err, context.Canceled) {
		t.Errorf("when nobody waits for it: %v", err)
	}
}

func FuzzParseQcow2(f *testing.F) {
	header := make([]byte, qcow2HeaderLength)
	copy(header, qcow2Magic)
	binary.BigEndian.PutUint32(header[qcow2Version:], 3)
	binary.BigEndian.PutUint64(header[qcow2Size:], 1<<30)
	f.Add(header)
	f.Add(header[:qcow2MinLength])
	f.Fuzz(func(t *testing.T, header []byte) {
		size, err := parseQcow2(header)
		if err == nil && (size <= 0 || binary.BigEndian.Uint64(header[qcow2BackingFile:]) != 0) {
			t.Fatalf("%d bytes from %x", size, header)
		}
	})
}

// told is an error as a user sees it: with what to do next.
func told(err error) string {
	if advised, ok := errors.AsType[*Advised](err); ok {
		return err.Error() + "\nhint: " + advised.Next
	}
	return err.Error()
}
