package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

// state is what another process must know of a testbed to use it. It is plain data, kept in a folder
// that only its owner can read, since the key to the nodes lies beside it.
type state struct {
	Ident       ident                   `json:"ident"`
	Spec        testbed.Spec            `json:"spec"`
	Management  netip.Prefix            `json:"management"`
	KVM         bool                    `json:"kvm"`
	VHost       bool                    `json:"vhost"`
	Autodestroy bool                    `json:"autodestroy"`
	Kernel      string                  `json:"kernel"` // paths on libvirt's host
	Initrd      string                  `json:"initrd"`
	Base        string                  `json:"base"`
	Cloud       bool                    `json:"cloud,omitempty"`   // [Image].Cloud
	Program     string                  `json:"program,omitempty"` // a disk with this program on it
	CommandLine string                  `json:"command_line"`
	HostKeys    map[testbed.Role]string `json:"host_keys"` // as in authorized_keys
	Features    testbed.Features        `json:"features"`
}

const (
	stateFile = "testbed.json"
	keyFile   = "client_key"
)

func (p *Provider) stateFolder(id ident) string {
	return filepath.Join(p.options.StateDir, id.String())
}

func (p *Provider) saveState(s state, clientKey []byte) error {
	dir := p.stateFolder(s.Ident)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep state: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyFile), clientKey, 0o600); err != nil {
		return fmt.Errorf("keep state: %w", err)
	}
	return writeJSON(filepath.Join(dir, stateFile), s)
}

func (p *Provider) loadState(id ident) (s state, clientKey []byte, err error) {
	dir := p.stateFolder(id)
	content, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return state{}, nil, fmt.Errorf("read state: %w", err)
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return state{}, nil, fmt.Errorf("read state %s: %w", filepath.Join(dir, stateFile), err)
	}
	clientKey, err = os.ReadFile(filepath.Join(dir, keyFile))
	if err != nil {
		return state{}, nil, fmt.Errorf("read state: %w", err)
	}
	return s, clientKey, nil
}

// Remembers reports whether there is a testbed of this libvirt that this user knows of. It asks nobody.
func (p *Provider) Remembers() bool {
	ids, err := p.stateIdents()
	return err == nil && len(ids) > 0
}

var stateName = regexp.MustCompile(`^([a-z0-9-]+)-([0-9a-f]{6})$`)

// stateIdents are the testbeds that have a folder.
func (p *Provider) stateIdents() ([]ident, error) {
	entries, err := os.ReadDir(p.options.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list states: %w", err)
	}
	var ids []ident
	for _, e := range entries {
		if m := stateName.FindStringSubmatch(e.Name()); m != nil && e.IsDir() {
			ids = append(ids, ident{m[1], m[2]})
		}
	}
	return ids, nil
}

func writeJSON(path string, v any) error {
	content, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := renameio.WriteFile(path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// errBusy says that another process works on the same thing.
var errBusy = errors.New("another rampart is at work on it")

// How a lock is held: alone, or with others who hold it so.
const (
	exclusive = unix.LOCK_EX
	shared    = unix.LOCK_SH
)

// tryLock takes the lock of that name among all processes with the same state folder. The kernel
// lets go of it when the process ends, however it ends.
func (p *Provider) tryLock(name string, how int) (unlock func(), err error) {
	dir := filepath.Join(p.options.StateDir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", name, errBusy)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

// lock is tryLock that waits while ctx lasts.
func (p *Provider) lock(ctx context.Context, name string, how int) (unlock func(), err error) {
	for {
		unlock, err := p.tryLock(name, how)
		if !errors.Is(err, errBusy) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
