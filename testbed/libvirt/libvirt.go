// Package libvirt makes testbeds of three virtual machines, with libvirt and QEMU.
//
// # What is made
//
// Every name on the host begins with rampart-NAME-ID, where ID is new at each Up, so that whatever is
// left of a testbed can be found and removed by its name alone:
//
//   - three transient domains, booted directly from the image's kernel, with virtio devices only;
//   - one isolated network a link: a bridge on which the host has no address;
//   - one management network on a free subnet, on which the host reaches the nodes by SSH and the
//     nodes do not reach each other;
//   - in a storage pool, an overlay and a seed disk a node. The image itself is there
//     once, under names that its content decides, shared by all testbeds, and stays.
//   - a folder in the state folder with the key to the nodes, so that another process can attach.
//
// # How things go wrong
//
// Domains die with the process that made them, by libvirt's autodestroy, unless they are to be kept.
// Every call to libvirt has a deadline. When a node's machine stops, connections to it end with an
// error that wraps [ErrGone]; [testbed.Renewer] puts a fresh one in its place. When the machine or
// its libvirt cannot do what is asked, errors wrap [ErrUnavailable] and say what would help.
package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	rpc "github.com/digitalocean/go-libvirt"

	"golang.org/x/sync/errgroup"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed"
)

// File is a file on this machine.
type File struct {
	Path string
	// SHA256 is its digest in hexadecimal digits; if empty, the file is read to find it.
	SHA256 string
}

// Image is what nodes boot from; see the boot contract of package images.
type Image struct {
	Kernel, Initrd File
	Disk           File   // qcow2 with a root file system
	CommandLine    string // of the kernel
	Digest         string // for the record

	// Cloud says that the disk boots by itself, through its own boot loader, and that cloud-init is on it.
	// There is then no initrd, and the kernel only serves to find out whether guests boot under KVM.
	Cloud bool
}

// FromStore is the Image for one in an image store.
func FromStore(i images.Image) Image {
	if i.FromDisk() {
		return Image{Disk: File{i.Disk(), i.Spec.SHA256}, Digest: i.Digest, Cloud: true}
	}
	sums := map[string]string{}
	for _, f := range i.Files {
		sums[f.Name] = f.SHA256
	}
	file := func(path string) File { return File{path, sums[filepath.Base(path)]} }
	return Image{
		Kernel:      file(i.Kernel()),
		Initrd:      file(i.Initrd()),
		Disk:        file(i.Disk()),
		CommandLine: images.CommandLine,
		Digest:      i.Digest,
	}
}

func (i Image) check() error {
	if i.Disk.Path == "" || !i.Cloud && (i.Kernel.Path == "" || i.Initrd.Path == "") {
		return errNoImage
	}
	return nil
}

var errNoImage = errors.New("no image is given: build one with rampart image build")

// Options configure a Provider. The zero value is usable for all but Up and ProbeKVM, which need an
// image.
type Options struct {
	URI         string      // default qemu:///system
	Accelerator Accelerator // default Auto
	Image       Image
	// StateDir is where what other processes must know is kept, and locks; default
	// [DefaultStateDir].
	StateDir string
	// Pool is the name of the storage pool, default [DefaultPool], and PoolDir its folder on
	// libvirt's host, default [DefaultPoolDir], or one like it in the home of a user with a libvirt
	// of their own. The pool is made when it is not there.
	Pool, PoolDir string
	// KeepAfterClose makes domains that outlive this process. Without it they end when the process
	// ends or [Provider.Close] is called, however it ends.
	KeepAfterClose bool
	// Program is a file that nodes are given a disk with, so that nobody has to copy it to them; see
	// [testbed.Features].
	Program string
	// Stored are the images that may be booted again. What the pool has of others is removed by
	// [Provider.Down] and [Provider.Prune], unless a testbed uses it. nil: all of it stays.
	Stored func() ([]Image, error)
	Log    *slog.Logger // default: discarded
}

// DefaultStateDir is /var/lib/rampart for root and rampart in the user's state folder
// ($XDG_STATE_HOME, ~/.local/state) for others.
func DefaultStateDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/rampart", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "rampart"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find state folder: %w", err)
	}
	return filepath.Join(home, ".local", "state", "rampart"), nil
}

// Provider makes testbeds of virtual machines. It is safe for use by several goroutines at once.
type Provider struct {
	options  Options
	endpoint endpoint
	log      *slog.Logger

	calling sync.Mutex
	calls   *conn // for everything but creating domains and streams

	keeping sync.Mutex
	kept    map[string]*instance // by name: the domains that this process holds alive
}

var (
	_ testbed.Provider = (*Provider)(nil)
	_ testbed.Attacher = (*Provider)(nil)
	_ testbed.Lister   = (*Provider)(nil)
)

// New checks the options. It does not connect: whether there is a libvirt is found out when it is
// needed.
func New(o Options) (*Provider, error) {
	o.URI = cmp.Or(o.URI, "qemu:///system")
	o.Accelerator = cmp.Or(o.Accelerator, Auto)
	o.Pool = cmp.Or(o.Pool, DefaultPool)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.StateDir == "" {
		dir, err := DefaultStateDir()
		if err != nil {
			return nil, err
		}
		o.StateDir = dir
	}
	if !slices.Contains([]Accelerator{Auto, KVM, TCG}, o.Accelerator) {
		return nil, fmt.Errorf("accelerator %q: use auto, kvm or tcg", o.Accelerator)
	}
	e, err := parseURI(o.URI)
	if err != nil {
		return nil, err
	}
	o.PoolDir = cmp.Or(o.PoolDir, e.poolDir)
	// What is known of one libvirt is not of another: each has a folder of its own.
	o.StateDir = filepath.Join(o.StateDir, e.folder)
	return &Provider{options: o, endpoint: e, log: o.Log, kept: map[string]*instance{}}, nil
}

// Close lets go of libvirt. Domains that were not to be kept end; what else there is of their
// testbeds is removed by [Provider.Down].
func (p *Provider) Close() error {
	p.forget(func(string) bool { return true })
	p.calling.Lock()
	defer p.calling.Unlock()
	if p.calls != nil {
		p.calls.close()
		p.calls = nil
	}
	return p.endpoint.host.close()
}

// control returns the connection for ordinary calls, a new one if the last was lost: libvirt may have
// been started anew since.
func (p *Provider) control(ctx context.Context) (*conn, error) {
	p.calling.Lock()
	defer p.calling.Unlock()
	if p.calls != nil {
		err := p.calls.do(ctx, dialLimit, "ask for a sign of life", func(l *rpc.Libvirt) error {
			_, err := l.ConnectGetLibVersion()
			return err
		})
		if err == nil {
			return p.calls, nil
		}
		p.calls.sock.Close()
		p.calls = nil
	}
	c, err := dial(ctx, p.endpoint)
	if err != nil {
		return nil, err
	}
	p.calls = c
	return c, nil
}

// Reach returns an error that wraps [ErrUnavailable] unless libvirt answers.
func (p *Provider) Reach(ctx context.Context) error {
	_, err := p.control(ctx)
	return err
}

// keep holds on to a domain in place of an earlier one of that name.
func (p *Provider) keep(d *instance) {
	p.keeping.Lock()
	defer p.keeping.Unlock()
	p.kept[d.Name] = d
}

// forget lets go of the domains of which ours says true.
func (p *Provider) forget(ours func(name string) bool) {
	p.keeping.Lock()
	var gone []*instance
	for name, d := range p.kept {
		if ours(name) {
			gone = append(gone, d)
			delete(p.kept, name)
		}
	}
	p.keeping.Unlock()
	for _, d := range gone {
		d.release()
	}
}

// inventory is everything on the host that carries our names, by testbed.
type inventory struct {
	domains  []rpc.Domain
	networks []rpc.Network
	volumes  []rpc.StorageVol
	states   []ident
}

// take lists what there is of the testbeds of which want says true.
func (p *Provider) take(ctx context.Context, c *conn, want func(ident) bool) (inv inventory, err error) {
	ours := func(name string) bool {
		id, _, ok := parseName(name)
		return ok && want(id)
	}
	domains, err := listDomains(ctx, c)
	if err != nil {
		return inv, err
	}
	inv.domains = slices.DeleteFunc(domains, func(d rpc.Domain) bool { return !ours(d.Name) })
	networks, err := listNetworks(ctx, c)
	if err != nil {
		return inv, err
	}
	inv.networks = slices.DeleteFunc(networks, func(n rpc.Network) bool { return !ours(n.Name) })
	if inv.volumes, err = p.takeVolumes(ctx, c, ours); err != nil {
		return inv, err
	}
	states, err := p.stateIdents()
	if err != nil {
		return inv, err
	}
	inv.states = slices.DeleteFunc(states, func(id ident) bool { return !want(id) })
	return inv, nil
}

// takeVolumes lists volumes. After the host or libvirt was started anew, the pool is no more but its
// folder may be there with leftovers in it.
func (p *Provider) takeVolumes(ctx context.Context, c *conn, ours func(string) bool) ([]rpc.StorageVol, error) {
	pool, err := p.lookupPool(ctx, c)
	if isCode(err, rpc.ErrNoStoragePool) {
		if !exists(ctx, p.endpoint.host, p.options.PoolDir) {
			return nil, nil
		}
		pool, err = p.createPool(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	volumes, err := listVolumes(ctx, c, pool)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(volumes, func(v rpc.StorageVol) bool { return !ours(v.Name) }), nil
}

func (inv inventory) empty() bool {
	return len(inv.domains)+len(inv.networks)+len(inv.volumes)+len(inv.states) == 0
}

// remove removes all of it and goes on after errors.
func (p *Provider) remove(ctx context.Context, c *conn, inv inventory) error {
	var stops errgroup.Group // stopping a busy machine takes libvirt seconds
	for _, d := range inv.domains {
		stops.Go(func() error { return destroyDomain(ctx, c, d) })
	}
	errs := []error{stops.Wait()}
	var networks errgroup.Group // each takes the host's packet filter a while; volumes go meanwhile
	for _, n := range inv.networks {
		networks.Go(func() error { return destroyNetwork(ctx, c, n) })
	}
	for _, v := range inv.volumes {
		errs = append(errs, deleteVolume(ctx, c, v))
	}
	if err := errors.Join(append(errs, networks.Wait())...); err != nil {
		return err // the state stays: it says that there is something left
	}
	errs = nil
	for _, id := range inv.states {
		errs = append(errs, os.RemoveAll(p.stateFolder(id)))
	}
	return errors.Join(errs...)
}

// Down implements [testbed.Provider].
func (p *Provider) Down(ctx context.Context, name string) error {
	unlock, err := p.lock(ctx, lockName(name), exclusive)
	if err != nil {
		return fmt.Errorf("remove testbed %s: %w", name, err)
	}
	defer unlock()
	if err := p.down(ctx, func(id ident) bool { return id.Name == name }); err != nil {
		return fmt.Errorf("remove testbed %s: %w", name, err)
	}
	if err := p.Prune(ctx); err != nil {
		p.log.Warn("space in the storage pool is not given back", "cause", err) // the testbed is gone all the same
	}
	return nil
}

func lockName(testbed string) string { return "testbed-" + testbed }

// down removes the testbeds of which want says true.
func (p *Provider) down(ctx context.Context, want func(ident) bool) error {
	c, err := p.control(ctx)
	if err != nil {
		return err
	}
	inv, err := p.take(ctx, c, want)
	if err != nil {
		return err
	}
	err = p.remove(ctx, c, inv)
	p.forget(func(name string) bool { id, _, ok := parseName(name); return ok && want(id) })
	return err
}

// List implements [testbed.Lister].
func (p *Provider) List(ctx context.Context) ([]testbed.Info, error) {
	c, err := p.control(ctx)
	if err != nil {
		return nil, err
	}
	inv, err := p.take(ctx, c, func(ident) bool { return true })
	if err != nil {
		return nil, fmt.Errorf("list testbeds: %w", err)
	}
	infos := map[string]*testbed.Info{}
	info := func(name string) *testbed.Info {
		if infos[name] == nil {
			infos[name] = &testbed.Info{Name: name, Provider: Name, Nodes: map[testbed.Role]string{}}
			for _, role := range testbed.Roles() {
				infos[name].Nodes[role] = stateGone
			}
		}
		return infos[name]
	}
	alive := map[string]bool{}
	for _, d := range inv.domains {
		id, part, _ := parseName(d.Name)
		word, err := domainState(ctx, c, d)
		if err != nil {
			return nil, fmt.Errorf("list testbeds: %w", err)
		}
		info(id.Name).Nodes[testbed.Role(part)] = word
		alive[id.String()] = alive[id.String()] || word != stateGone
	}
	leftover := func(id ident, what string) {
		if i := info(id.Name); !alive[id.String()] {
			i.Leftovers = append(i.Leftovers, what)
		}
	}
	for _, n := range inv.networks {
		id, _, _ := parseName(n.Name)
		leftover(id, "network "+n.Name)
	}
	for _, v := range inv.volumes {
		id, _, _ := parseName(v.Name)
		leftover(id, "volume "+v.Name)
	}
	for _, id := range inv.states {
		leftover(id, "folder "+p.stateFolder(id))
	}
	out := make([]testbed.Info, 0, len(infos))
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		out = append(out, *infos[name])
	}
	return out, nil
}

// Name is the provider's name, as configurations have it.
const Name = "libvirt"

// logWriter makes debug lines of what nodes write to standard error.
type logWriter struct {
	log *slog.Logger
}

var _ io.Writer = logWriter{}

func (w logWriter) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		w.log.Debug(strings.TrimRight(line, "\n"))
	}
	return len(p), nil
}
