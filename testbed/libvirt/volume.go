package libvirt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	rpc "github.com/digitalocean/go-libvirt"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/images"
)

// DefaultPool is the storage pool that everything of ours is in: a transient pool over a folder, so
// that nothing is left of it but the folder when libvirt stops.
const DefaultPool = "rampart"

// DefaultPoolDir is where a system libvirt's pool has its folder, below the one that libvirt's own
// security policies expect images in.
const DefaultPoolDir = "/var/lib/libvirt/images/rampart"

// Access to volumes. QEMU runs as another user. What nodes share is readable by all, so that it
// never matters whom libvirt gives a file to when one of its users stops; what holds a host key or a
// node's disk is not.
const (
	modeShared  = "0644"
	modePrivate = "0600"
)

// openPool returns the pool, and makes and starts it if necessary.
func (p *Provider) openPool(ctx context.Context, c *conn) (rpc.StoragePool, error) {
	name, dir := p.options.Pool, p.options.PoolDir
	pool, err := p.lookupPool(ctx, c)
	if isCode(err, rpc.ErrNoStoragePool) {
		return p.createPool(ctx, c)
	}
	if err != nil {
		return pool, err
	}
	doc, err := ask(ctx, c, "describe storage pool "+name, func(l *rpc.Libvirt) (string, error) {
		return l.StoragePoolGetXMLDesc(pool, 0)
	})
	if err != nil {
		return pool, err
	}
	var x libvirtxml.StoragePool
	if err := x.Unmarshal(doc); err != nil {
		return pool, fmt.Errorf("describe storage pool %s: %w", name, err)
	}
	if x.Target == nil || filepath.Clean(x.Target.Path) != filepath.Clean(dir) {
		return pool, fmt.Errorf("open storage pool %s: it is not in %s: remove it (virsh pool-destroy %s) or configure its folder", name, dir, name)
	}
	return pool, nil
}

func (p *Provider) lookupPool(ctx context.Context, c *conn) (rpc.StoragePool, error) {
	name := p.options.Pool
	return ask(ctx, c, "find storage pool "+name, func(l *rpc.Libvirt) (rpc.StoragePool, error) {
		return l.StoragePoolLookupByName(name)
	})
}

func (p *Provider) createPool(ctx context.Context, c *conn) (rpc.StoragePool, error) {
	name, dir := p.options.Pool, p.options.PoolDir
	doc, err := poolXML(name, dir).Marshal()
	if err != nil {
		return rpc.StoragePool{}, fmt.Errorf("write storage pool %s: %w", name, err)
	}
	pool, err := ask(ctx, c, "create storage pool "+name+" in "+dir, func(l *rpc.Libvirt) (rpc.StoragePool, error) {
		return l.StoragePoolCreateXML(doc, rpc.StoragePoolCreateWithBuild)
	})
	if err == nil {
		return pool, nil
	}
	// Another testbed may have been faster.
	if found, again := p.lookupPool(ctx, c); again == nil {
		return found, nil
	}
	return pool, err
}

func poolXML(name, dir string) *libvirtxml.StoragePool {
	return &libvirtxml.StoragePool{
		Type: "dir",
		Name: name,
		Target: &libvirtxml.StoragePoolTarget{
			Path:        dir,
			Permissions: &libvirtxml.StoragePoolTargetPermissions{Mode: "0711"},
		},
	}
}

// rawVolume is a volume of that many bytes, to be filled by an upload.
func rawVolume(name, mode string, size int64) *libvirtxml.StorageVolume {
	return &libvirtxml.StorageVolume{
		Name:       name,
		Capacity:   &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: uint64(size)},
		Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: 0},
		Target: &libvirtxml.StorageVolumeTarget{
			Format:      &libvirtxml.StorageVolumeTargetFormat{Type: "raw"},
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: mode},
		},
	}
}

// overlayVolume is what a node writes over the disk at that path. It is as large as that disk is.
func overlayVolume(name, backing string) *libvirtxml.StorageVolume {
	return &libvirtxml.StorageVolume{
		Name: name,
		Target: &libvirtxml.StorageVolumeTarget{
			Format:      &libvirtxml.StorageVolumeTargetFormat{Type: "qcow2"},
			Permissions: &libvirtxml.StorageVolumeTargetPermissions{Mode: modePrivate},
		},
		BackingStore: &libvirtxml.StorageVolumeBackingStore{
			Path:   backing,
			Format: &libvirtxml.StorageVolumeTargetFormat{Type: "qcow2"},
		},
	}
}

// volume is one that exists, with its path on the host.
type volume struct {
	rpc.StorageVol
	path string
}

func createVolume(ctx context.Context, c *conn, pool rpc.StoragePool, v *libvirtxml.StorageVolume) (volume, error) {
	doc, err := v.Marshal()
	if err != nil {
		return volume{}, fmt.Errorf("write volume %s: %w", v.Name, err)
	}
	vol, err := ask(ctx, c, "create volume "+v.Name, func(l *rpc.Libvirt) (rpc.StorageVol, error) {
		return l.StorageVolCreateXML(pool, doc, 0)
	})
	if err != nil {
		return volume{}, err
	}
	// For a folder the key of a volume is its path (virStorageBackendDir).
	return volume{vol, vol.Key}, nil
}

func lookupVolume(ctx context.Context, c *conn, pool rpc.StoragePool, name string) (volume, error) {
	vol, err := ask(ctx, c, "find volume "+name, func(l *rpc.Libvirt) (rpc.StorageVol, error) {
		return l.StorageVolLookupByName(pool, name)
	})
	return volume{vol, vol.Key}, err
}

func listVolumes(ctx context.Context, c *conn, pool rpc.StoragePool) ([]rpc.StorageVol, error) {
	return ask(ctx, c, "list volumes", func(l *rpc.Libvirt) ([]rpc.StorageVol, error) {
		vols, _, err := l.StoragePoolListAllVolumes(pool, 1, 0)
		return vols, err
	})
}

func deleteVolume(ctx context.Context, c *conn, v rpc.StorageVol) error {
	return ignoreMissing(c.do(ctx, callLimit, "remove volume "+v.Name, func(l *rpc.Libvirt) error {
		return l.StorageVolDelete(v, 0)
	}))
}

// explainSpace makes of an error that quotes the kernel's "no space left on device" one that says where, and
// what to do.
func (p *Provider) explainSpace(err error) error {
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), unix.ENOSPC.Error()) {
		return err
	}
	return &UnavailableError{
		Problem: fmt.Sprintf("there is no space left in storage pool %s, in %s: %v", p.options.Pool, p.options.PoolDir, err),
		Mend:    "rampart image ls and rampart image rm, or move other files out of it: virsh vol-list " + p.options.Pool,
		err:     err,
	}
}

// uploadLimit allows for a disk that writes 4 MB/s.
func uploadLimit(size int64) time.Duration {
	return callLimit + time.Duration(size/4e6)*time.Second
}

// upload fills a volume. It has a connection of its own: a stream that goes wrong blocks every later
// call of its connection.
func upload(ctx context.Context, e endpoint, v volume, content io.Reader, size int64) error {
	c, err := dial(ctx, e)
	if err != nil {
		return err
	}
	defer c.close()
	in := &countingReader{r: content}
	err = c.do(ctx, uploadLimit(size), "upload volume "+v.Name, func(l *rpc.Libvirt) error {
		return l.StorageVolUpload(v.StorageVol, in, 0, uint64(size), 0)
	})
	if err != nil {
		return err
	}
	if in.n != size {
		return fmt.Errorf("upload volume %s: %d of %d bytes were there to read: the file changed meanwhile", v.Name, in.n, size)
	}
	return nil
}

type countingReader struct {
	r io.Reader
	n int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.n += int64(n)
	return n, err
}

// source is what a shared volume is filled from.
type source struct {
	path   string // of the file behind it
	sha256 string // of the content, in hexadecimal digits
	size   int64  // of the content, bytes
	open   func() (io.ReadCloser, error)
}

// source is the file as it is.
func (f File) source() (source, error) {
	info, err := os.Stat(f.Path)
	if err != nil {
		return source{}, fmt.Errorf("read image: %w", err)
	}
	s := source{path: f.Path, sha256: f.SHA256, size: info.Size(), open: func() (io.ReadCloser, error) { return os.Open(f.Path) }}
	if s.sha256 == "" {
		s.sha256, err = s.digest()
	}
	return s, err
}

// digest is the SHA-256 of the file in hexadecimal digits.
func (f File) digest() (string, error) {
	s, err := f.source()
	return s.sha256, err
}

// programSource is a disk with a program on it.
func programSource(path string) (source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return source{}, fmt.Errorf("read program: %w", err)
	}
	_, length, err := images.ProgramDisk(nil, info.Size())
	if err != nil {
		return source{}, err
	}
	s := source{path: path, size: length, open: func() (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		disk, _, err := images.ProgramDisk(f, info.Size())
		return struct {
			io.Reader
			io.Closer
		}{disk, f}, err
	}}
	s.sha256, err = s.digest()
	return s, err
}

// digest reads the content to find its digest.
func (s source) digest() (string, error) {
	r, err := s.open()
	if err != nil {
		return "", fmt.Errorf("hash %s: %w", s.path, err)
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return "", fmt.Errorf("hash %s: %w", s.path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Kinds of shared volumes, as they stand in their names.
const (
	kindKernel  = "kernel"
	kindInitrd  = "initrd"
	kindDisk    = "disk"
	kindProgram = "program"
)

// sharedName is the name of the volume of that kind whose content has that digest.
func sharedName(kind, sha256 string) string { return "rampart-" + kind + "-" + sha256[:24] }

// sharedVolume returns the volume that holds what is in the file; see [Provider.sharedContent].
func (p *Provider) sharedVolume(ctx context.Context, c *conn, pool rpc.StoragePool, kind string, file File) (volume, error) {
	content, err := file.source()
	if err != nil {
		return volume{}, err
	}
	return p.sharedContent(ctx, c, pool, kind, content)
}

// sharedContent returns the volume that holds the content, under a name that the content decides. It is
// uploaded when it is not there yet.
//
// A volume cannot be renamed, so that one is complete is said by a second, empty one, made last.
func (p *Provider) sharedContent(ctx context.Context, c *conn, pool rpc.StoragePool, kind string, content source) (volume, error) {
	name := sharedName(kind, content.sha256)
	unlock, err := p.lock(ctx, name, exclusive)
	if err != nil {
		return volume{}, err
	}
	defer unlock()

	for {
		_, errMark := lookupVolume(ctx, c, pool, name+completeSuffix)
		vol, err := lookupVolume(ctx, c, pool, name)
		switch {
		case isCode(err, rpc.ErrNoStorageVol):
			return p.uploadShared(ctx, c, pool, name, content)
		case err != nil:
			return volume{}, err
		case errMark == nil:
			return vol, nil
		}
		// An upload that was interrupted, or one that somebody with another state folder is at:
		// libvirt refuses to delete what is being written.
		if err := deleteVolume(ctx, c, vol.StorageVol); err != nil && !isCode(err, rpc.ErrOperationInvalid) {
			return volume{}, err
		}
		select {
		case <-ctx.Done():
			return volume{}, fmt.Errorf("wait for the upload of %s: %w", name, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

const completeSuffix = ".complete"

func (p *Provider) uploadShared(ctx context.Context, c *conn, pool rpc.StoragePool, name string, content source) (_ volume, err error) {
	in, err := content.open()
	if err != nil {
		return volume{}, fmt.Errorf("upload %s: %w", name, err)
	}
	defer in.Close()
	p.log.Info("uploading to storage pool", "file", content.path, "volume", name, "bytes", content.size)
	// The upload is raw: a qcow2 file is its bytes, and brings its own header.
	vol, err := createVolume(ctx, c, pool, rawVolume(name, modeShared, content.size))
	if err != nil {
		return volume{}, err
	}
	h := sha256.New()
	if err := upload(ctx, p.endpoint, vol, io.TeeReader(in, h), content.size); err != nil {
		return volume{}, errors.Join(err, p.discard(ctx, c, vol))
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != content.sha256 {
		return volume{}, errors.Join(fmt.Errorf("upload %s: %s has digest %s, not %s: it was changed or damaged: build the image again", name, content.path, got, content.sha256), p.discard(ctx, c, vol))
	}
	_, err = createVolume(ctx, c, pool, rawVolume(name+completeSuffix, modeShared, 0))
	return vol, err
}

// discard removes a volume even when ctx is over.
func (p *Provider) discard(ctx context.Context, c *conn, v volume) error {
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	return deleteVolume(ctx, c, v.StorageVol)
}

// privateVolume makes a raw volume with that content.
func (p *Provider) privateVolume(ctx context.Context, c *conn, pool rpc.StoragePool, name string, content []byte) (volume, error) {
	vol, err := createVolume(ctx, c, pool, rawVolume(name, modePrivate, int64(len(content))))
	if err != nil {
		return volume{}, err
	}
	return vol, upload(ctx, p.endpoint, vol, bytes.NewReader(content), int64(len(content)))
}
