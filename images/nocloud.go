package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/filesystem/fat12"
)

// A CloudSeed is what a disk with cloud-init on it is told when it boots for the first time, by the data
// source NoCloud. See https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html.
type CloudSeed struct {
	Instance      string // another one makes cloud-init do everything anew
	Hostname      string
	AuthorizedKey []byte // public key of root, as in authorized_keys
	HostKey       []byte // OpenSSH private key, Ed25519
	HostKeyPublic []byte // the same, as in authorized_keys
	Interfaces    []CloudInterface
	Script        []byte // for sh, run as root after everything else
}

// A CloudInterface is one network card, known by its address.
type CloudInterface struct {
	MAC       string
	Name      string // that it gets
	Addresses []netip.Prefix
	MTU       int // bytes
}

// cloudScript is where the script is on the node.
const cloudScript = "/etc/rampart/setup"

// NoCloud packs a seed as a disk: a FAT file system called cidata, which is how cloud-init finds it. The same
// seed gives the same bytes.
func NoCloud(s CloudSeed) ([]byte, error) {
	user, err1 := s.userData()
	meta, err2 := encode(map[string]any{"instance-id": s.Instance, "local-hostname": s.Hostname})
	network, err3 := s.networkConfig()
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("pack cloud-init seed: %w", err)
	}
	disk, err := fatDisk("cidata", []File{
		{Name: "/meta-data", Content: meta},
		{Name: "/network-config", Content: network},
		{Name: "/user-data", Content: append([]byte("#cloud-config\n"), user...)},
	})
	if err != nil {
		return nil, fmt.Errorf("pack cloud-init seed: %w", err)
	}
	return disk, nil
}

// userData is the #cloud-config. cloud-init reads YAML, of which JSON is a part.
func (s CloudSeed) userData() ([]byte, error) {
	return encode(map[string]any{
		"disable_root":   false, // root logs in, with its key alone
		"ssh_pwauth":     false,
		"users":          []any{map[string]any{"name": "root", "lock_passwd": true, "ssh_authorized_keys": []string{text(s.AuthorizedKey)}}},
		"ssh_deletekeys": true,
		"ssh_keys":       map[string]string{"ed25519_private": string(s.HostKey), "ed25519_public": text(s.HostKeyPublic)},
		// What takes time or would run while something is measured.
		"growpart":        map[string]any{"mode": "off"},
		"resize_rootfs":   false,
		"package_update":  false,
		"package_upgrade": false,
		"write_files":     []any{map[string]any{"path": cloudScript, "permissions": "0700", "content": string(s.Script)}},
		"runcmd":          []any{[]string{"sh", cloudScript}},
	})
}

// networkConfig is a network configuration of version 2.
func (s CloudSeed) networkConfig() ([]byte, error) {
	cards := map[string]any{}
	for _, i := range s.Interfaces {
		cards[i.Name] = map[string]any{
			"match":     map[string]string{"macaddress": i.MAC},
			"set-name":  i.Name,
			"dhcp4":     false,
			"dhcp6":     false,
			"addresses": i.Addresses,
			"mtu":       i.MTU,
		}
	}
	return encode(map[string]any{"version": 2, "ethernets": cards})
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// text is a line without its end.
func text(line []byte) string { return string(bytes.TrimSpace(line)) }

// fatSize is enough for a seed, in bytes.
const fatSize = 1 << 20

// fatDisk makes a FAT12 file system with files in its root folder.
func fatDisk(label string, files []File) ([]byte, error) {
	disk := &memory{content: make([]byte, fatSize)}
	const reproducible = true
	system, err := fat12.Create(disk, fatSize, 0, 0, label, reproducible)
	if err != nil {
		return nil, fmt.Errorf("make file system: %w", err)
	}
	for _, f := range files {
		out, err := system.OpenFile(f.Name, os.O_CREATE|os.O_RDWR)
		if err != nil {
			return nil, fmt.Errorf("make file %s: %w", f.Name, err)
		}
		if _, err := out.Write(f.Content); err != nil {
			return nil, fmt.Errorf("write file %s: %w", f.Name, err)
		}
		if err := out.Close(); err != nil {
			return nil, fmt.Errorf("write file %s: %w", f.Name, err)
		}
		if err := system.Chtimes(f.Name, epoch, epoch, epoch); err != nil {
			return nil, fmt.Errorf("set times of file %s: %w", f.Name, err)
		}
	}
	return disk.content, nil
}

// memory is a disk that is nowhere but here.
type memory struct {
	content []byte
	at      int64
}

var _ backend.Storage = (*memory)(nil)

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m.content).ReadAt(p, off)
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > int64(len(m.content)) {
		return 0, fs.ErrInvalid
	}
	n := copy(m.content[off:], p)
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func (m *memory) Read(p []byte) (int, error) {
	n, err := m.ReadAt(p, m.at)
	m.at += int64(n)
	return n, err
}

func (m *memory) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += m.at
	case io.SeekEnd:
		offset += int64(len(m.content))
	}
	if offset < 0 {
		return m.at, fs.ErrInvalid
	}
	m.at = offset
	return offset, nil
}

func (m *memory) Stat() (fs.FileInfo, error)              { return memoryInfo(len(m.content)), nil }
func (m *memory) Close() error                            { return nil }
func (m *memory) Sys() (*os.File, error)                  { return nil, backend.ErrNotSuitable }
func (m *memory) Writable() (backend.WritableFile, error) { return m, nil }
func (m *memory) Path() string                            { return "" }

// memoryInfo is what there is to say about a [memory]: its size.
type memoryInfo int64

func (i memoryInfo) Name() string       { return "memory" }
func (i memoryInfo) Size() int64        { return int64(i) }
func (i memoryInfo) Mode() fs.FileMode  { return 0o600 }
func (i memoryInfo) ModTime() time.Time { return epoch }
func (i memoryInfo) IsDir() bool        { return false }
func (i memoryInfo) Sys() any           { return nil }
