package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	rpc "github.com/digitalocean/go-libvirt"
	"golang.org/x/sync/errgroup"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/provision/ssh"
	"github.com/rampart-bench/rampart/testbed"
)

// Up implements [testbed.Provider]. What a crashed process left of a testbed of that name is removed
// first; a testbed that lives is an error that wraps fs.ErrExist.
func (p *Provider) Up(ctx context.Context, spec testbed.Spec) (testbed.Testbed, error) {
	tb, err := p.up(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("bring up testbed %s: %w", spec.Name, err)
	}
	return tb, nil
}

func (p *Provider) up(ctx context.Context, spec testbed.Spec) (_ *running, err error) {
	if err := errors.Join(spec.Validate(), p.checkQueues(spec), p.options.Image.check()); err != nil {
		return nil, err
	}
	unlock, err := p.tryLock(lockName(spec.Name), exclusive)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c, err := p.control(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.clearLeftovers(ctx, c, spec.Name); err != nil {
		return nil, err
	}
	if err := blocked(p.findSpace(ctx, c)); err != nil {
		return nil, err
	}
	kvm, reason, err := p.choose(ctx)
	if err != nil {
		return nil, err
	}
	if !kvm {
		p.log.Warn("no KVM: QEMU emulates the processors of the nodes (TCG): times are those of an emulator, ten times and more those of hardware", "reason", reason)
	}
	if lacks := p.lacks(ctx, c, spec, kvm); len(lacks) > 0 {
		return nil, lacks[0] // rampart doctor tells all
	}
	tb, err := p.newRunning(state{Ident: newIdent(spec.Name), Spec: spec, KVM: kvm, VHost: useVHost(spec.Machine, kvm, p.hasVHost(ctx)), Autodestroy: !p.options.KeepAfterClose})
	if err != nil {
		return nil, err
	}
	if err := tb.bringUp(ctx, c, reason); err != nil {
		return nil, errors.Join(p.explainSpace(err), tb.abandon(ctx))
	}
	return tb, nil
}

// checkQueues refuses what a device without a tap cannot have.
func (p *Provider) checkQueues(spec testbed.Spec) error {
	if p.endpoint.wiring.taps() {
		return nil
	}
	for _, n := range spec.Nodes {
		if n.Queues > 1 {
			return fmt.Errorf(`node %q: queues = %d: without privileges a network card has one: use queues = 1, or uri = "qemu:///system"`, n.Role, n.Queues)
		}
	}
	return nil
}

// clearLeftovers makes room for a testbed. Its lock is held, so what exists without a living domain
// belongs to nobody.
func (p *Provider) clearLeftovers(ctx context.Context, c *conn, name string) error {
	inv, err := p.take(ctx, c, func(id ident) bool { return id.Name == name })
	if err != nil || inv.empty() {
		return err
	}
	for _, d := range inv.domains {
		word, err := domainState(ctx, c, d)
		if err != nil {
			return err
		}
		if word != stateGone {
			return fmt.Errorf("it is up already (domain %s is %s): %w: remove it first with rampart down, or use another name", d.Name, word, fs.ErrExist)
		}
	}
	p.log.Info("removing what an earlier testbed of this name left", "testbed", name, "networks", len(inv.networks), "volumes", len(inv.volumes))
	return p.remove(ctx, c, inv)
}

// bringUp makes everything. What it has made when it fails, [running.abandon] finds by name.
func (tb *running) bringUp(ctx context.Context, c *conn, reason string) error {
	p, s := tb.provider, &tb.state
	unlock, err := p.lock(ctx, imagesLock, shared)
	if err != nil {
		return err
	}
	defer unlock()
	pool, err := p.prepareImage(ctx, c, s)
	if err != nil {
		return err
	}
	if s.Features, err = p.features(ctx, c, *s, reason); err != nil {
		return err
	}
	hostKeys, err := tb.makeKeys()
	if err != nil {
		return err
	}
	if err := p.endpoint.wiring.prepare(ctx, p, c, s); err != nil {
		return err
	}
	if err := p.saveState(*s, tb.key.Private); err != nil {
		return err
	}
	tb.watch()
	boots, bctx := errgroup.WithContext(ctx)
	for _, role := range testbed.Roles() {
		boots.Go(func() error {
			content, err := s.seed(role, hostKeys[role], tb.key.Authorized)
			if err != nil {
				return err
			}
			if _, err := p.privateVolume(bctx, c, pool, s.Ident.seed(role), content); err != nil {
				return err
			}
			return tb.node(role).boot(bctx, c, pool)
		})
	}
	if err := boots.Wait(); err != nil {
		return err
	}
	if err := tb.checkPath(ctx); err != nil {
		return err
	}
	if !slices.ContainsFunc(tb.nodes, func(n *node) bool { return !n.program }) {
		s.Features.Program = programFolder + "/" + images.ProgramName
	}
	for _, n := range tb.nodes {
		maps.Copy(s.Features.Parameters, n.facts)
	}
	return p.saveState(*s, tb.key.Private)
}

// abandon removes what a failed Up has made.
func (tb *running) abandon(ctx context.Context) error {
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	tb.Close()
	if err := tb.provider.down(ctx, func(id ident) bool { return id == tb.state.Ident }); err != nil {
		return fmt.Errorf("and clean up: %w: rampart down removes what is left", err)
	}
	return nil
}

// emulatedOptions keep a kernel from testing its clocks on a busy host, where an emulated processor stands
// still for a tenth of a second now and then. Without the first it panics when its timer ticks too late
// (arch/x86/kernel/apic/io_apic.c). Without the second it takes its time-stamp counter for unstable, in the
// middle of a run or not, and reads the time from the HPET, a device whose emulation takes microseconds and more
// (kernel/time/clocksource.c): then nodes of one testbed have clocks of different cost. The third leaves out that
// ciphers are tried at every boot (crypto/testmgr.c), which takes an emulated processor a quarter of a second.
const emulatedOptions = "no_timer_check tsc=reliable cryptomgr.notests"

// prepareImage puts the image and the program into the pool, where QEMU's user can read them, unless they
// are there.
func (p *Provider) prepareImage(ctx context.Context, c *conn, s *state) (rpc.StoragePool, error) {
	pool, err := p.openPool(ctx, c)
	if err != nil {
		return pool, err
	}
	type part struct {
		kind string
		file File
		path *string
	}
	image := p.options.Image
	parts := []part{{kindDisk, image.Disk, &s.Base}}
	if s.Cloud = image.Cloud; !s.Cloud {
		parts = append(parts, part{kindKernel, image.Kernel, &s.Kernel}, part{kindInitrd, image.Initrd, &s.Initrd})
		s.CommandLine = image.CommandLine
		if !s.KVM {
			s.CommandLine += " " + emulatedOptions
		}
	}
	for _, part := range parts {
		vol, err := p.sharedVolume(ctx, c, pool, part.kind, part.file)
		if err != nil {
			return pool, err
		}
		*part.path = vol.path
	}
	if p.options.Program == "" {
		return pool, nil
	}
	program, err := programSource(p.options.Program)
	if err != nil {
		return pool, err
	}
	vol, err := p.sharedContent(ctx, c, pool, kindProgram, program)
	s.Program = vol.path
	return pool, err
}

// virtioLag is by how many frames the counters of virtio-net are taken to be behind at most: the driver
// counts a frame when it gives its buffer back. Seen were two; with thousands of frames a run, sixteen
// hide nothing.
const virtioLag = 16

// features are the provider's facts for the manifest.
func (p *Provider) features(ctx context.Context, c *conn, s state, reason string) (testbed.Features, error) {
	v, err := askVersions(ctx, c)
	if err != nil {
		return testbed.Features{}, err
	}
	f := testbed.Features{
		Provider:        Name,
		Clock:           clockOf(s.KVM),
		DedicatedKernel: true,
		SentCountLag:    virtioLag,
		Parameters: map[string]string{
			"libvirt":            v.libvirt,
			"qemu":               v.qemu,
			"uri":                p.options.URI,
			"accelerator":        string(clockOf(s.KVM)),
			"accelerator_reason": reason,
			"cpu_model":          machine{kvm: s.KVM, cpu: s.Spec.Machine.CPU}.cpuModel(),
			"network_backend":    nic{vhost: s.VHost, plug: p.endpoint.wiring.plug(p, s, testbed.Firewall, 1)}.backend(),
			"kernel_command":     s.CommandLine,
			"image":              p.options.Image.Digest,
		},
	}
	if p.endpoint.wiring.taps() {
		f.Parameters["bridge_netfilter"] = bridgeNetfilter(ctx, p.endpoint.host)
	}
	return f, nil
}

// makeKeys makes the key to the nodes, and a host key for each: nobody has to be trusted at first
// sight.
func (tb *running) makeKeys() (map[testbed.Role]ssh.Key, error) {
	s := &tb.state
	var err error
	if tb.key, err = ssh.NewKey("rampart " + s.Ident.String()); err != nil {
		return nil, err
	}
	s.HostKeys = map[testbed.Role]string{}
	keys := map[testbed.Role]ssh.Key{}
	for _, role := range testbed.Roles() {
		if keys[role], err = ssh.NewKey(s.Ident.domain(role)); err != nil {
			return nil, err
		}
		s.HostKeys[role] = string(keys[role].Authorized)
	}
	return keys, nil
}

// Attach implements [testbed.Attacher]. It does not change how long the testbed lives.
func (p *Provider) Attach(ctx context.Context, name string) (testbed.Testbed, error) {
	tb, err := p.attach(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("attach to testbed %s: %w", name, err)
	}
	return tb, nil
}

func (p *Provider) attach(ctx context.Context, name string) (*running, error) {
	c, err := p.control(ctx)
	if err != nil {
		return nil, err
	}
	inv, err := p.take(ctx, c, func(id ident) bool { return id.Name == name })
	if err != nil {
		return nil, err
	}
	if len(inv.domains) > 0 {
		return p.attachBy(inv.domains[0])
	}
	if !inv.empty() {
		return nil, fmt.Errorf("none of its nodes runs: %w: remove what is left with rampart down", fs.ErrNotExist)
	}
	return nil, fmt.Errorf("no machine of it is there: %w: bring it up with rampart up", fs.ErrNotExist)
}

// checkProgram forgets the program that the nodes have where it is not this one but an earlier version.
func (p *Provider) checkProgram(s *state) error {
	if p.options.Program == "" || s.Program == "" {
		return nil
	}
	program, err := programSource(p.options.Program)
	if err == nil && filepath.Base(s.Program) != sharedName(kindProgram, program.sha256) {
		s.Features.Program = ""
	}
	return err
}

// attachBy takes over the testbed that a domain belongs to.
func (p *Provider) attachBy(d rpc.Domain) (*running, error) {
	id, _, _ := parseName(d.Name)
	s, key, err := p.loadState(id)
	if err != nil {
		return nil, err
	}
	tb, err := p.newRunning(s)
	if err != nil {
		return nil, err
	}
	if tb.key, err = ssh.ParseKey(key); err != nil {
		return nil, err
	}
	if err := p.checkProgram(&tb.state); err != nil {
		return nil, err
	}
	tb.watch()
	return tb, nil
}
