package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rpc "github.com/digitalocean/go-libvirt"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

// smallPool is a pool of its own on a file system of that many bytes.
func (l *lab) smallPool(name string, size int64) {
	l.t.Helper()
	dir := filepath.Join(filepath.Dir(DefaultPoolDir), name)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		skip(l.t, err.Error())
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprint("size=", size)); err != nil {
		skip(l.t, fmt.Sprintf("mount: %v", err))
	}
	l.options.Pool, l.options.PoolDir = name, dir
	l.options.StateDir = l.t.TempDir()
	l.t.Cleanup(func() {
		if err := errors.Join(dropPool(l.t, l.options), unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			l.t.Error(err)
		}
	})
}

// fillPool leaves so many bytes in a small pool.
func (l *lab) fillPool(free int64) {
	l.t.Helper()
	var fs unix.Statfs_t
	err := unix.Statfs(l.options.PoolDir, &fs)
	var filler *os.File
	if err == nil {
		filler, err = os.Create(filepath.Join(l.options.PoolDir, "filler"))
	}
	if err == nil {
		err = errors.Join(unix.Fallocate(int(filler.Fd()), 0, 0, int64(fs.Bavail)*fs.Bsize-free), filler.Close())
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// dropPool makes libvirt forget the pool.
func dropPool(t testing.TB, o Options) error {
	p := newProvider(t, o)
	c, err := p.control(context.Background())
	if err != nil {
		return err
	}
	pool, err := p.lookupPool(context.Background(), c)
	if err != nil {
		return ignoreMissing(err)
	}
	return c.do(context.Background(), callLimit, "remove storage pool", func(l *rpc.Libvirt) error { return l.StoragePoolDestroy(pool) })
}

// An image that does not fit into the pool is one clear error that says what to do, and leaves nothing.
func TestPoolTooSmall(t *testing.T) {
	l := newLab(t)
	l.smallPool("rampart-small", 40<<20)
	_, err := l.provider().Up(t.Context(), l.spec("lv-small"))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "40 MiB free") {
		t.Errorf("got %v", err)
	}
	t.Log(err)
	left, err := os.ReadDir(l.options.PoolDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range left {
		if strings.Contains(file.Name(), kindDisk) {
			t.Errorf("half an image is left: %s", file.Name())
		}
	}
}

// A node that finds no space for its disk ends what runs on it with an error that says so.
func TestPoolRunsFull(t *testing.T) {
	l := newLab(t)
	info, err := os.Stat(l.options.Image.Disk.Path)
	if err != nil {
		t.Fatal(err)
	}
	l.smallPool("rampart-full", info.Size()+1<<30)
	bed, err := l.provider().Up(t.Context(), l.spec("lv-full"))
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	l.fillPool(100 << 20)
	_, err = bed.(*running).node(testbed.Receiver).output(t.Context(), "dd", "if=/dev/urandom", "of=/full", "bs=1M", "count=200", "conv=fsync")
	if !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), stateHalted) {
		t.Errorf("got %v", err)
	}
	t.Log(err)
}
