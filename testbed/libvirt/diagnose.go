package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	rpc "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"
)

// Finding is something about libvirt's host that is not as this provider wants it.
type Finding struct {
	Problem string `json:"problem"`
	Mend    string `json:"mend"` // a command, or what to do
	// Blocks is true when no testbed can be brought up before it is mended; otherwise things work,
	// but slower or less like the study.
	Blocks bool `json:"blocks"`
}

// A look finds one thing, or nothing.
type look func(context.Context, *conn) (*Finding, error)

// looks are in the order in which their findings are told. Only where frames go through the host's kernel
// can it be in their way.
func (p *Provider) looks() []look {
	all := []look{p.findKVMPermission, p.findKVM, p.findSpace, p.findTrial}
	if p.endpoint.wiring.taps() {
		all = append(all, p.findBridgeNetfilter, p.findSubnet, p.findDnsmasq)
	}
	return all
}

// Diagnose looks for everything that could keep testbeds from working, or from working well. Whether
// guests boot under KVM is part of it when the options have an image. The error is that ctx ended;
// what could not be found out is itself a finding.
func (p *Provider) Diagnose(ctx context.Context) ([]Finding, error) {
	c, err := p.control(ctx)
	if err != nil {
		return []Finding{p.findingOf(err)}, ctx.Err()
	}
	var found []Finding
	for _, look := range p.looks() {
		f, err := look(ctx, c)
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if err != nil {
			f = new(Finding)
			*f = p.findingOf(err)
		}
		if f != nil {
			found = append(found, *f)
		}
	}
	return found, nil
}

func (p *Provider) findingOf(err error) Finding {
	var u *UnavailableError
	if errors.As(err, &u) {
		return Finding{Problem: u.Problem, Mend: u.Mend, Blocks: true}
	}
	return Finding{Problem: err.Error(), Mend: p.endpoint.at + mendLog, Blocks: true}
}

const mendLog = "look at libvirt's log: journalctl -u libvirtd"

// blocked turns a finding that blocks into an error.
func blocked(f *Finding, err error) error {
	if err == nil && f != nil && f.Blocks {
		return &UnavailableError{f.Problem, f.Mend, nil}
	}
	return err
}

const kvmDevice = "/dev/kvm"

// findKVMPermission looks whether the user that libvirt runs QEMU as may open /dev/kvm. If only root
// may, libvirt does not give up KVM: it examines QEMU anew at every look-up, and starting one domain
// takes more than a minute.
func (p *Provider) findKVMPermission(ctx context.Context, c *conn) (*Finding, error) {
	stat, err := statFile(ctx, p.endpoint.host, kvmDevice)
	if err != nil {
		return nil, nil // no KVM is what findKVM tells of
	}
	uid, gid, err := p.qemuUser(ctx, c)
	if err != nil {
		return nil, err
	}
	if mayOpen(stat.perm, stat.uid, stat.gid, uid, append(groupsOf(ctx, p.endpoint.host, uid), gid)) {
		return nil, nil
	}
	f := &Finding{
		Problem: fmt.Sprintf("libvirt runs QEMU as user %d, which may not open %s (mode %04o, owner %d:%d): no KVM, and every start of a machine takes more than a minute", uid, kvmDevice, stat.perm, stat.uid, stat.gid),
		Mend:    p.endpoint.at + "chgrp kvm /dev/kvm && chmod 0660 /dev/kvm (for good: a udev rule KERNEL==\"kvm\", GROUP=\"kvm\", MODE=\"0660\"), then systemctl restart libvirtd",
	}
	if p.endpoint.uri == SessionURI {
		f.Problem = fmt.Sprintf("this user may not open %s (mode %04o, owner %d:%d): no KVM", kvmDevice, stat.perm, stat.uid, stat.gid)
		f.Mend = "sudo usermod -aG kvm $USER, then log in again"
	}
	return f, nil
}

// qemuUser asks who QEMU's processes are: libvirt has them be what it names, or as it is itself.
func (p *Provider) qemuUser(ctx context.Context, c *conn) (uid, gid uint32, err error) {
	if p.endpoint.uri == SessionURI {
		out, err := p.endpoint.host.output(ctx, "id", "-u")
		if err != nil {
			return 0, 0, err
		}
		n, err := strconv.ParseUint(strings.TrimSpace(out), 10, 32)
		return uint32(n), uint32(n), err
	}
	doc, err := ask(ctx, c, "ask for capabilities", (*rpc.Libvirt).ConnectGetCapabilities)
	if err != nil {
		return 0, 0, err
	}
	return parseQEMUUser(doc)
}

// parseQEMUUser reads the base label of the dac security model.
func parseQEMUUser(doc string) (uid, gid uint32, err error) {
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(doc); err != nil {
		return 0, 0, fmt.Errorf("read capabilities: %w", err)
	}
	for _, m := range caps.Host.SecModel {
		if m.Name != "dac" {
			continue
		}
		for _, label := range m.Labels {
			u, g, ok := strings.Cut(label.Value, ":")
			un, uerr := strconv.ParseUint(strings.TrimPrefix(u, "+"), 10, 32)
			gn, gerr := strconv.ParseUint(strings.TrimPrefix(g, "+"), 10, 32)
			if ok && uerr == nil && gerr == nil {
				return uint32(un), uint32(gn), nil
			}
		}
	}
	return 0, 0, nil // no such model: QEMU runs as libvirt does, as root
}

// groupsOf are the groups of a user; none if the user is not known.
func groupsOf(ctx context.Context, h host, uid uint32) (groups []uint32) {
	out, err := h.output(ctx, "sh", "-c", `id -G -- "$(id -nu -- "$1")"`, "sh", fmt.Sprint(uid))
	if err != nil {
		return nil
	}
	for _, id := range strings.Fields(out) {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			groups = append(groups, uint32(n))
		}
	}
	return groups
}

// mayOpen is the kernel's check of mode bits for reading and writing.
func mayOpen(mode fs.FileMode, owner, group, uid uint32, groups []uint32) bool {
	const readWrite = 0o6
	perm := mode.Perm()
	switch {
	case uid == 0:
		return true
	case uid == owner:
		return perm>>6&readWrite == readWrite
	}
	for _, g := range groups {
		if g == group {
			return perm>>3&readWrite == readWrite
		}
	}
	return perm&readWrite == readWrite
}

func (p *Provider) findKVM(ctx context.Context, c *conn) (*Finding, error) {
	if p.options.Accelerator == TCG {
		return nil, nil // nobody asks for it
	}
	v, err := offersKVM(ctx, c)
	if err == nil && v.Usable && p.options.Image.Kernel.Path != "" {
		v, err = p.ProbeKVM(ctx)
	}
	if err != nil || v.Usable {
		return nil, err
	}
	return &Finding{Problem: "guests cannot run under KVM, only emulated, which is slow: " + v.Reason, Mend: mendKVM}, nil
}
