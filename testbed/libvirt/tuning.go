package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rpc "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/testbed"
)

// The modes in which libvirt makes a guest's CPU without a model's name.
const (
	hostPassthrough = "host-passthrough"
	hostModel       = "host-model"
	maximum         = "maximum"
)

// cpuXML is the CPU that a machine is asked to have.
func (m machine) cpuXML() *libvirtxml.DomainCPU {
	switch m.cpu {
	case "":
		if m.kvm {
			return &libvirtxml.DomainCPU{Mode: hostPassthrough, Migratable: "off"}
		}
		return &libvirtxml.DomainCPU{Mode: maximum}
	case hostPassthrough, maximum:
		return &libvirtxml.DomainCPU{Mode: m.cpu, Migratable: "off"}
	case hostModel:
		return &libvirtxml.DomainCPU{Mode: m.cpu}
	}
	return &libvirtxml.DomainCPU{Mode: "custom", Match: "exact", Model: &libvirtxml.DomainCPUModel{Fallback: "forbid", Value: m.cpu}}
}

// tune adds to a domain what its machine is tuned by. Of huge pages it takes memfd's: they need no
// hugetlbfs that was mounted before libvirt was started, and QEMU takes them all before the guest's
// first instruction or does not start.
func (m machine) tune(d *libvirtxml.Domain) {
	t := m.tuning
	if t.HugePages != 0 {
		d.MemoryBacking = &libvirtxml.DomainMemoryBacking{
			MemoryHugePages:  &libvirtxml.DomainMemoryHugepages{Hugepages: []libvirtxml.DomainMemoryHugepage{{Size: uint(t.HugePages >> 10), Unit: "KiB"}}},
			MemorySource:     &libvirtxml.DomainMemorySource{Type: "memfd"},
			MemoryAllocation: &libvirtxml.DomainMemoryAllocation{Mode: "immediate"},
		}
	}
	if t.Pin == nil && t.EmulatorPin == nil {
		return
	}
	d.CPUTune = &libvirtxml.DomainCPUTune{}
	for i, set := range t.Pin {
		d.CPUTune.VCPUPin = append(d.CPUTune.VCPUPin, libvirtxml.DomainCPUTuneVCPUPin{VCPU: uint(i), CPUSet: set.String()})
	}
	if t.EmulatorPin != nil {
		d.CPUTune.EmulatorPin = &libvirtxml.DomainCPUTuneEmulatorPin{CPUSet: t.EmulatorPin.String()}
	}
}

// DiagnoseTuning looks for what a testbed asks its machines to be tuned by and this host does not have:
// the same as Up looks for before it makes anything.
func (p *Provider) DiagnoseTuning(ctx context.Context, spec testbed.Spec) ([]Finding, error) {
	c, err := p.control(ctx)
	if err != nil {
		return []Finding{p.findingOf(err)}, ctx.Err()
	}
	kvm, err := p.expectKVM(ctx, c)
	if err != nil {
		return []Finding{p.findingOf(err)}, ctx.Err()
	}
	var found []Finding
	for _, err := range p.lacks(ctx, c, spec, kvm) {
		found = append(found, p.findingOf(err))
	}
	return found, ctx.Err()
}

// expectKVM is what [Provider.choose] would say, without an error where that refuses.
func (p *Provider) expectKVM(ctx context.Context, c *conn) (bool, error) {
	switch {
	case p.options.Accelerator != Auto:
		return p.options.Accelerator == KVM, nil
	case p.options.Image.Kernel.Path == "":
		v, err := offersKVM(ctx, c)
		return v.Usable, err
	}
	v, err := p.ProbeKVM(ctx)
	return v.Usable, err
}

// lacks are the reasons why the host cannot give machines what a testbed asks for.
func (p *Provider) lacks(ctx context.Context, c *conn, spec testbed.Spec, kvm bool) (errs []error) {
	for _, look := range []func(context.Context, *conn, testbed.Spec) error{lacksCPUs, lacksHugePages, p.lacksVHost} {
		if err := look(ctx, c, spec); err != nil {
			errs = append(errs, err)
		}
	}
	if err := lacksMachine(ctx, c, spec.Machine, kvm); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// lacksCPUs holds pins to the CPUs that are online.
func lacksCPUs(ctx context.Context, c *conn, spec testbed.Spec) error {
	var wanted testbed.CPUs
	for _, n := range spec.Nodes {
		wanted = wanted.Or(n.EmulatorPin)
		for _, set := range n.Pin {
			wanted = wanted.Or(set)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	online, err := onlineCPUs(ctx, c)
	if err != nil {
		return err
	}
	if missing := wanted.Minus(online); len(missing) > 0 {
		return &UnavailableError{
			fmt.Sprintf("nodes are pinned to CPU %s, which is not online on its host; %s is", missing, online),
			"pin to CPUs that lscpu --extended shows as online", nil}
	}
	return nil
}

// onlineCPUs are those of libvirt's host.
func onlineCPUs(ctx context.Context, c *conn) (testbed.CPUs, error) {
	bits, err := ask(ctx, c, "ask for the host's CPUs", func(l *rpc.Libvirt) ([]byte, error) {
		bits, _, _, err := l.NodeGetCPUMap(1, 1, 0)
		return bits, err
	})
	return cpusOf(bits), err
}

// cpusOf reads a CPU map of libvirt, whose first byte has CPU 0 in its lowest bit.
func cpusOf(bits []byte) (set testbed.CPUs) {
	for i := range 8 * len(bits) {
		if bits[i/8]>>(i%8)&1 == 1 {
			set = append(set, i)
		}
	}
	return set
}

// lacksHugePages holds the huge pages that all nodes need to those that are free.
func lacksHugePages(ctx context.Context, c *conn, spec testbed.Spec) error {
	needed := map[int64]uint64{}
	for _, n := range spec.Nodes {
		if n.HugePages != 0 {
			needed[n.HugePages] += uint64(n.Memory / n.HugePages)
		}
	}
	for size, pages := range needed {
		free, err := freePages(ctx, c, size)
		if err != nil {
			return err
		}
		if free < pages {
			file := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", size>>10)
			return &UnavailableError{
				fmt.Sprintf("the nodes need %d huge pages of %s, and %d are free on its host", pages, pageSize(size), free),
				fmt.Sprintf("echo $(($(cat %s) + %d)) > %s", file, pages-free, file), nil}
		}
	}
	return nil
}

// freePages counts the pages of a size in bytes that nothing uses, on all NUMA nodes of libvirt's host.
func freePages(ctx context.Context, c *conn, size int64) (uint64, error) {
	const wholeHost = -1
	counts, err := ask(ctx, c, "count free pages of "+pageSize(size), func(l *rpc.Libvirt) ([]uint64, error) {
		return l.NodeGetFreePages([]uint32{uint32(size >> 10)}, wholeHost, 1, 0)
	})
	switch {
	case isCode(err, rpc.ErrOperationFailed, rpc.ErrOperationInvalid, rpc.ErrInternalError):
		return 0, &UnavailableError{fmt.Sprintf("its host has no huge pages of %s: %v", pageSize(size), err), "use a size that ls /sys/kernel/mm/hugepages shows", err}
	case err != nil:
		return 0, err
	case len(counts) == 0:
		return 0, nil
	}
	return counts[0], nil
}

// pageSize is a size in bytes in words.
func pageSize(size int64) string {
	if size >= 1<<30 {
		return fmt.Sprintf("%d GiB", size>>30)
	}
	return fmt.Sprintf("%d MiB", size>>20)
}

// vhostDevice is what QEMU has frames carried by the kernel with.
const vhostDevice = "/dev/vhost-net"

// hasVHost reports whether the kernel of libvirt's host could carry frames.
func (p *Provider) hasVHost(ctx context.Context) bool {
	if !p.endpoint.wiring.taps() {
		return false
	}
	_, err := statFile(ctx, p.endpoint.host, vhostDevice)
	return err == nil
}

func (p *Provider) lacksVHost(ctx context.Context, _ *conn, spec testbed.Spec) error {
	switch {
	case spec.Machine.VHost != testbed.VHostOn || p.hasVHost(ctx):
		return nil
	case !p.endpoint.wiring.taps():
		return &UnavailableError{"vhost = true: without privileges the kernel carries no frames for a machine", `leave vhost to auto, or use uri = "qemu:///system"`, nil}
	}
	return &UnavailableError{"vhost = true: there is no " + vhostDevice, p.endpoint.at + "modprobe vhost_net; or leave vhost to auto", nil}
}

// useVHost decides whether the kernel carries frames; has is whether it could.
func useVHost(m testbed.Machine, kvm, has bool) bool {
	return m.VHost == testbed.VHostOn || m.VHost == "" && kvm && has
}

// lacksMachine asks libvirt whether QEMU has the machine type and the CPU model.
func lacksMachine(ctx context.Context, c *conn, m testbed.Machine, kvm bool) error {
	if m.Type == "" && m.CPU == "" {
		return nil
	}
	kind, virt := machineType, "qemu"
	if m.Type != "" {
		kind = m.Type
	}
	if kvm {
		virt = "kvm"
	}
	doc, err := ask(ctx, c, "ask for the capabilities of "+kind, func(l *rpc.Libvirt) (string, error) {
		return l.ConnectGetDomainCapabilities(nil, rpc.OptString{"x86_64"}, rpc.OptString{kind}, rpc.OptString{virt}, 0)
	})
	if isCode(err, rpc.ErrInvalidArg) {
		return &UnavailableError{fmt.Sprintf("its QEMU has no machine type %q", kind), "virsh capabilities lists the machine types of x86_64", err}
	}
	if err != nil || m.CPU == "" {
		return err
	}
	usable, err := usableCPUs(doc)
	if err != nil || slices.Contains(usable, m.CPU) {
		return err
	}
	return &UnavailableError{
		fmt.Sprintf("cpu = %q: guests of type %s cannot have that CPU here", m.CPU, virt),
		"use one of " + strings.Join(usable, ", "), nil}
}

// usableCPUs are the modes and models in a document of domain capabilities that guests can have whole.
func usableCPUs(doc string) (usable []string, err error) {
	var caps libvirtxml.DomainCaps
	if err := caps.Unmarshal(doc); err != nil {
		return nil, fmt.Errorf("read domain capabilities: %w", err)
	}
	if caps.CPU == nil {
		return nil, nil
	}
	for _, mode := range caps.CPU.Modes {
		switch {
		case mode.Supported != "yes":
		case mode.Name != "custom":
			usable = append(usable, mode.Name)
		default:
			for _, model := range mode.Models {
				if model.Usable == "yes" {
					usable = append(usable, model.Name)
				}
			}
		}
	}
	return usable, nil
}
