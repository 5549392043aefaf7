package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	rpc "github.com/digitalocean/go-libvirt"
	"golang.org/x/sys/unix"
	"libvirt.org/go/libvirtxml"
)

// Finding is something about this machine that is not as this provider wants it.
type Finding struct {
	Problem string `json:"problem"`
	Mend    string `json:"mend"` // a command, or what to do
	// Blocks is true when no testbed can be brought up before it is mended; otherwise things work,
	// but slower or less like the study.
	Blocks bool `json:"blocks"`
}

// Diagnose looks for everything that could keep testbeds from working, or from working well. Whether
// guests boot under KVM is part of it when the options have an image. The error is that ctx ended;
// what could not be found out is itself a finding.
func (p *Provider) Diagnose(ctx context.Context) ([]Finding, error) {
	c, err := p.control(ctx)
	if err != nil {
		return []Finding{findingOf(err)}, ctx.Err()
	}
	var found []Finding
	for _, look := range []func(context.Context, *conn) (*Finding, error){
		p.findKVMPermission, p.findKVM, p.findBridgeNetfilter, p.findSubnet, p.findSpace, findDnsmasq,
	} {
		f, err := look(ctx, c)
		if ctx.Err() != nil {
			return found, ctx.Err()
		}
		if err != nil {
			f = new(Finding)
			*f = findingOf(err)
		}
		if f != nil {
			found = append(found, *f)
		}
	}
	return found, nil
}

func findingOf(err error) Finding {
	var u *UnavailableError
	if errors.As(err, &u) {
		return Finding{Problem: u.Problem, Mend: u.Mend, Blocks: true}
	}
	return Finding{Problem: err.Error(), Mend: "look at libvirt's log: journalctl -u libvirtd", Blocks: true}
}

// findDnsmasq looks for a program that our networks do not use: when libvirt is started while networks are
// up, and does not find it, libvirt 9.0 crashes (in dnsmasqCapsNewFromBinary's callers), at every start
// until the networks' files are removed by hand. Seen with Debian 12's.
func findDnsmasq(context.Context, *conn) (*Finding, error) {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		if _, err := os.Stat(filepath.Join(dir, "dnsmasq")); err == nil {
			return nil, nil
		}
	}
	return &Finding{
		Problem: "there is no dnsmasq: should libvirt be started anew while a testbed is up, libvirt 9.0 crashes",
		Mend:    "apt-get install dnsmasq-base",
	}, nil
}

const kvmDevice = "/dev/kvm"

// findKVMPermission looks whether the user that libvirt runs QEMU as may open /dev/kvm. If only root
// may, libvirt does not give up KVM: it examines QEMU anew at every look-up, and starting one domain
// takes more than a minute.
func (p *Provider) findKVMPermission(ctx context.Context, c *conn) (*Finding, error) {
	info, err := os.Stat(kvmDevice)
	if err != nil {
		return nil, nil // no KVM is what findKVM tells of
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, nil
	}
	uid, gid, err := qemuUser(ctx, c)
	if err != nil {
		return nil, err
	}
	if mayOpen(info.Mode(), stat.Uid, stat.Gid, uid, append(groupsOf(uid), gid)) {
		return nil, nil
	}
	return &Finding{
		Problem: fmt.Sprintf("libvirt runs QEMU as user %d, which may not open %s (mode %04o, owner %d:%d): no KVM, and every start of a machine takes more than a minute", uid, kvmDevice, info.Mode().Perm(), stat.Uid, stat.Gid),
		Mend:    "chgrp kvm /dev/kvm && chmod 0660 /dev/kvm (for good: a udev rule KERNEL==\"kvm\", GROUP=\"kvm\", MODE=\"0660\"), then systemctl restart libvirtd",
	}, nil
}

// qemuUser asks libvirt who its QEMU processes are: the base label of the dac security model.
func qemuUser(ctx context.Context, c *conn) (uid, gid uint32, err error) {
	doc, err := ask(ctx, c, "ask for capabilities", func(l *rpc.Libvirt) (string, error) {
		return l.ConnectGetCapabilities()
	})
	if err != nil {
		return 0, 0, err
	}
	return parseQEMUUser(doc)
}

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

// groupsOf are the further groups of a user; none if the user is not known.
func groupsOf(uid uint32) []uint32 {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}
	var out []uint32
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			out = append(out, uint32(n))
		}
	}
	return out
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
	v, err := offersKVM(ctx, c)
	if err == nil && v.Usable && p.options.Image.check() == nil {
		v, err = p.ProbeKVM(ctx)
	}
	if err != nil || v.Usable {
		return nil, err
	}
	return &Finding{Problem: "guests cannot run under KVM, only emulated, which is slow: " + v.Reason, Mend: mendKVM}, nil
}

// bridgeNetfilterFile says whether frames that cross a bridge walk the host's iptables rules.
const bridgeNetfilterFile = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// bridgeNetfilter is the setting: 0, 1, or absent.
func bridgeNetfilter() string {
	content, err := os.ReadFile(bridgeNetfilterFile)
	if err != nil {
		return "absent"
	}
	return strings.TrimSpace(string(content))
}

func (p *Provider) findBridgeNetfilter(context.Context, *conn) (*Finding, error) {
	if bridgeNetfilter() != "1" {
		return nil, nil
	}
	return &Finding{
		Problem: "br_netfilter sends what crosses a bridge through this host's own firewall: frames between nodes are slower, and Docker's policy drops them",
		Mend:    "sysctl -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 net.bridge.bridge-nf-call-arptables=0",
	}, nil
}

func (p *Provider) findSubnet(ctx context.Context, c *conn) (*Finding, error) {
	used, err := hostPrefixes()
	if err != nil {
		return nil, err
	}
	known, err := networkPrefixes(ctx, c)
	if err != nil {
		return nil, err
	}
	if _, ok := freeSubnet(ident{}, append(used, known...)); ok {
		return nil, nil
	}
	return &Finding{
		Problem: fmt.Sprintf("no subnet is free for reaching nodes: routes or libvirt networks of this host cover all of %v", managementPools),
		Mend:    "see ip route show table all and virsh net-list --all, and remove a route or network",
		Blocks:  true,
	}, nil
}

// overlaySpace is what a node is expected to write over its image, in bytes.
const overlaySpace = 256 << 20

func (p *Provider) findSpace(context.Context, *conn) (*Finding, error) {
	free, where, err := p.poolSpace()
	if err != nil {
		return nil, err
	}
	need := uint64(3 * overlaySpace)
	for _, f := range []File{p.options.Image.Kernel, p.options.Image.Initrd, p.options.Image.Disk} {
		if info, err := os.Stat(f.Path); err == nil {
			need += uint64(info.Size())
		}
	}
	if free >= need {
		return nil, nil
	}
	return &Finding{
		Problem: fmt.Sprintf("%s has %d MiB free; an image and three nodes need about %d MiB", where, free>>20, need>>20),
		Mend:    "remove files there, such as disks of other machines: virsh vol-list " + p.options.Pool,
		Blocks:  true,
	}, nil
}

// poolSpace is what is free where the pool is or would be, in bytes.
func (p *Provider) poolSpace() (free uint64, where string, err error) {
	dir := p.options.PoolDir
	for {
		var s unix.Statfs_t
		err := unix.Statfs(dir, &s)
		if err == nil {
			return s.Bavail * uint64(s.Bsize), dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return 0, "", fmt.Errorf("measure free space of %s: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
}
