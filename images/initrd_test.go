package images

import (
	"bytes"
	"compress/gzip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"
)

const modulesDep = `kernel/drivers/virtio/virtio.ko: kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/virtio/virtio_pci_modern_dev.ko:
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio_pci_modern_dev.ko kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/block/virtio_blk.ko.xz: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/drivers/char/hw_random/virtio-rng.ko: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
`

func TestModulesAreLoadedAfterWhatTheyNeed(t *testing.T) {
	index := parseModulesDep([]byte(modulesDep))
	var got []string
	for _, f := range index.order("virtio_pci", "virtio_blk", "ext4", "virtio_rng") {
		got = append(got, moduleName(f))
	}
	want := []string{"virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk", "virtio_rng"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzModulesDep(f *testing.F) {
	f.Add([]byte(modulesDep), "virtio_blk")
	f.Add([]byte("a.ko: a.ko b.ko\nb.ko: a.ko\n:\n: x\n"), "a")
	f.Fuzz(func(t *testing.T, text []byte, name string) {
		files := parseModulesDep(text).order(name, name)
		if sorted := sortedSet(files); len(sorted) != len(files) {
			t.Fatalf("a module is loaded twice: %q", files)
		}
	})
}

func TestUnpackModule(t *testing.T) {
	want := []byte("\x7fELF module")
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, _ = w.Write(want)
	_ = w.Close()
	packed := map[string][]byte{"a/virtio-rng.ko": want, "virtio-rng.ko.gz": zipped.Bytes()}
	if xz, err := exec.LookPath("xz"); err == nil {
		cmd := exec.Command(xz, "-c")
		cmd.Stdin = bytes.NewReader(want)
		if packed["virtio-rng.ko.xz"], err = cmd.Output(); err != nil {
			t.Fatal(err)
		}
	}
	for file, content := range packed {
		m, err := unpackModule(t.Context(), file, content)
		if err != nil || m.name != "virtio_rng" || !bytes.Equal(m.content, want) {
			t.Errorf("%s: %q %q %v", file, m.name, m.content, err)
		}
	}
	for _, file := range []string{"x.ko.xz", "x.ko.gz", "x.ko.lzma"} {
		if _, err := unpackModule(t.Context(), file, []byte("damaged")); err == nil {
			t.Errorf("%s: damage was not noticed", file)
		}
	}
}

func TestInitrd(t *testing.T) {
	write := func() []byte {
		var b bytes.Buffer
		if err := writeInitrd(&b, []byte("busybox"), []module{{"virtio", []byte("1")}, {"virtio_blk", []byte("22")}}); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	archive := write()
	if !bytes.Equal(archive, write()) {
		t.Error("two archives of the same differ")
	}
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(archive)))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]cpio.Record{}
	for _, r := range records {
		if dir := filepath.Dir(r.Name); dir != "." && found[dir].Mode == 0 {
			t.Errorf("%s comes before its folder", r.Name)
		}
		found[r.Name] = r
	}
	order := make([]byte, found["modules/order"].FileSize)
	if _, err := found["modules/order"].ReadAt(order, 0); err != nil || string(order) != "virtio.ko\nvirtio_blk.ko\n" {
		t.Errorf("order: %q, %v", order, err)
	}
	if m := found["init"].Mode; m != cpio.S_IFREG|0o755 {
		t.Errorf("init has mode %o", m)
	}
	if c := found["dev/console"]; c.Mode != cpio.S_IFCHR|0o600 || c.Rmajor != 5 || c.Rminor != 1 {
		t.Errorf("console: %v", c)
	}
	if program, err := exec.LookPath("cpio"); err == nil {
		cmd := exec.Command(program, "-t", "--quiet")
		cmd.Stdin = bytes.NewReader(archive)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "modules/virtio_blk.ko\n") {
			t.Errorf("cpio reads %q, %v", out, err)
		}
	}
}
