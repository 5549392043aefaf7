package exact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/u-root/u-root/pkg/cpio"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/images"
)

// A Bundle is what a guest finds in its memory, job and salt left out: a kernel, the base (programs and
// kernel modules of an image), and this program.
type Bundle struct {
	Kernel     string // path
	Base       string // path of a cpio archive
	BaseDigest string
	Program    string // path; it becomes /init
}

// Paths in the guest.
const (
	// Program is where this program is in the guest.
	Program = "/init"
	jobPath = "/job"
)

// subset is what the guest needs of an image: what helpers start, and the modules that the kernel
// loads for them.
func subset() images.Subset {
	return images.Subset{
		Programs: []string{
			"iptables-legacy", "iptables-legacy-restore", "iptables-legacy-save",
			"iptables-nft", "iptables-nft-restore", "iptables-nft-save",
			"ipset", "nft", "iperf3", "netperf", "netserver", "ip", "ethtool", "kmod", "modprobe", "test",
		},
		Plugins: []string{"usr/lib/x86_64-linux-gnu/xtables/*.so", "etc/protocols", "etc/services", "etc/os-release", "usr/lib/os-release"},
		Modules: []string{
			"kernel/drivers/net/veth.ko*", "kernel/drivers/net/dummy.ko*", "kernel/net/packet/*",
			"kernel/net/netfilter/*", "kernel/net/netfilter/ipset/*", "kernel/net/ipv4/netfilter/*",
			"updates/*", "updates/*/*", "extra/*",
			// libcrc32c, on which nf_tables stands, asks for it by name (a softdep, which modules.dep does not have).
			// The cloud kernels have it built in.
			"kernel/crypto/crc32c_generic.ko*",
		},
	}
}

// baseRecipe changes when [subset] or its form does.
const baseRecipe = "2"

// NewBundle makes the bundle of an image and a program. The base is made once an image and kept in the
// folder cache; of several processes that make it at once, the last one wins, with the same bytes.
func NewBundle(image images.Image, program, cache string) (Bundle, error) {
	b := Bundle{Kernel: image.Kernel(), Program: program}
	b.Base = filepath.Join(cache, strings.TrimPrefix(image.Digest, "sha256:")+"-"+baseRecipe+".cpio")
	content, err := os.ReadFile(b.Base)
	if errors.Is(err, os.ErrNotExist) {
		content, err = makeBase(image, b.Base)
	}
	if err != nil {
		return Bundle{}, fmt.Errorf("make bundle of image: %w", err)
	}
	b.BaseDigest = digest(content)
	return b, nil
}

func makeBase(image images.Image, path string) ([]byte, error) {
	var base bytes.Buffer
	err := images.WriteArchive(&base, []cpio.Record{
		cpio.Directory("dev", 0o755),
		// The kernel opens it for process 1 before that can mount anything.
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.Directory("proc", 0o755), cpio.Directory("sys", 0o755),
		cpio.Directory("run", 0o755), cpio.Directory("tmp", 0o1777), cpio.Directory("root", 0o700),
		cpio.Directory("var", 0o755), cpio.Directory("var/lib", 0o755),
	})
	if err != nil {
		return nil, err
	}
	if err := image.WriteSubset(&base, subset()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return base.Bytes(), renameio.WriteFile(path, base.Bytes(), 0o644)
}

// archive is the guest's first file system: base, program and job, in a file in memory that goes
// away with the last process that holds it.
func (b Bundle) archive(ctx context.Context, job []byte) (*os.File, error) {
	program, err := os.ReadFile(b.Program)
	if err != nil {
		return nil, err
	}
	base, err := os.Open(b.Base)
	if err != nil {
		return nil, err
	}
	defer base.Close()
	f, err := memoryFile("archive")
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(f, base); err == nil {
		err = images.WriteArchive(f, []cpio.Record{
			cpio.StaticFile(strings.TrimPrefix(Program, "/"), string(program), 0o755),
			cpio.StaticFile(strings.TrimPrefix(jobPath, "/"), string(job), 0o644),
		})
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// memoryFile makes a file that has no place on any disk.
func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("rampart-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
