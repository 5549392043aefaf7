package images

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// OpenDisk returns the image of a Spec that names a disk, after it has held it against its SHA-256. Nothing
// is copied: [Image.Disk] is the file itself. Such an image has no kernel and no initrd beside it. The error
// names the file and what is wrong with it.
func OpenDisk(ctx context.Context, spec Spec) (Image, error) {
	size, sum, length, err := inspectDisk(ctx, spec.Disk)
	if err == nil && sum != spec.SHA256 {
		err = advise(fmt.Errorf("its SHA-256 is %s, not %s", sum, spec.SHA256),
			"was it downloaded whole? If this is the disk that is meant, write its SHA-256 into the image block")
	}
	if err != nil {
		return Image{}, fmt.Errorf("%s: %w", spec.Disk, err)
	}
	return Image{
		Digest: "sha256:" + sum, SpecDigest: spec.Digest(), Spec: spec,
		Files:    []StoredFile{{Name: diskFile, Size: length, SHA256: sum}},
		DiskSize: size, Size: length,
	}, nil
}

// FromDisk says that the image is a disk of the user's, which boots by itself and is set up by cloud-init.
func (i Image) FromDisk() bool { return i.Spec.Disk != "" }

// inspectDisk returns the size of the disk that a qcow2 file holds, its SHA-256 and its length.
func inspectDisk(ctx context.Context, path string) (size int64, sum string, length int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		var cause *fs.PathError
		if errors.As(err, &cause) {
			err = cause.Err // the caller names the file
		}
		return 0, "", 0, advise(err, "disk is the path of a qcow2 file; a relative one begins at the configuration file that it stands in")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, "", 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, "", 0, advise(errors.New("it is not a file"), "disk is the path of a qcow2 file")
	}
	header := make([]byte, qcow2HeaderLength)
	n, err := io.ReadFull(f, header)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, "", 0, err
	}
	if size, err = parseQcow2(header[:n]); err != nil {
		return 0, "", 0, err
	}
	h := sha256.New()
	h.Write(header[:n])
	rest, err := io.Copy(h, contextReader{ctx, f})
	return size, hex.EncodeToString(h.Sum(nil)), rest + int64(n), err
}

// contextReader reads until its context ends: a disk has gigabytes.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// A qcow2 header as QEMU's docs/interop/qcow2.txt describes it: big-endian, at these places.
const (
	qcow2Magic        = "QFI\xfb"
	qcow2Version      = 4
	qcow2BackingFile  = 8
	qcow2Size         = 24
	qcow2Encryption   = 32
	qcow2Incompatible = 72 // from version 3 on
	qcow2MinLength    = 72
	qcow2HeaderLength = 104
)

// qcow2Refused are the bits of incompatible features that a disk that can be copied does not have.
var qcow2Refused = []struct {
	bit    int
	reason string
}{
	{1, "it is marked as damaged"},
	{2, "its content is in another file"},
}

// parseQcow2 returns the size of the disk that a qcow2 file with that header holds, in bytes, and refuses
// files that are not whole by themselves.
func parseQcow2(header []byte) (int64, error) {
	const mend = "make one that is: qemu-img convert -O qcow2 FILE NEW"
	if len(header) < qcow2MinLength || string(header[:4]) != qcow2Magic {
		return 0, advise(errors.New("it is not a qcow2 file"), mend)
	}
	version := binary.BigEndian.Uint32(header[qcow2Version:])
	if version != 2 && version != 3 {
		return 0, advise(fmt.Errorf("it is a qcow2 file of version %d, which is not known", version), mend)
	}
	if binary.BigEndian.Uint64(header[qcow2BackingFile:]) != 0 {
		return 0, advise(errors.New("it has a backing file, so it is not whole by itself"), mend)
	}
	if binary.BigEndian.Uint32(header[qcow2Encryption:]) != 0 {
		return 0, advise(errors.New("it is encrypted"), mend)
	}
	if version == 3 {
		if len(header) < qcow2Incompatible+8 {
			return 0, advise(errors.New("it is cut off"), "was it downloaded whole?")
		}
		features := binary.BigEndian.Uint64(header[qcow2Incompatible:])
		for _, f := range qcow2Refused {
			if features&(1<<f.bit) != 0 {
				return 0, advise(errors.New(f.reason), mend)
			}
		}
	}
	size := binary.BigEndian.Uint64(header[qcow2Size:])
	if size == 0 || size > 1<<62 {
		return 0, advise(fmt.Errorf("it holds a disk of %d bytes", size), "is this the right file?")
	}
	return int64(size), nil
}
