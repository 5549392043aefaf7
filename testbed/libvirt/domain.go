package libvirt

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/testbed"
)

// machine is everything that a domain's XML is made of: a table of values, folded by [machine.xml].
type machine struct {
	name     string
	metadata string // XML, or empty
	kvm      bool
	vcpus    int
	memory   int64  // bytes
	kernel   string // paths on libvirt's host; no kernel: the boot loader of the disk
	initrd   string
	cmdline  string
	overlay  string // path of the qcow2 that is /dev/vda
	seed     string // path of the raw image that is /dev/vdb
	program  string // path of the raw image that is /dev/vdc, or empty
	nics     []nic
	kind     string // QEMU's machine type; empty: [machineType]
	cpu      string // mode or model; empty: all that the accelerator can
	tuning   testbed.Tuning
}

// nic is one virtio-net interface of a machine.
type nic struct {
	plug
	mac      string
	queues   int // pairs
	rx, tx   int // descriptors in each ring; 0: as many as QEMU has
	offloads bool
	vhost    bool
	isolated bool // reaches the host but no other machine on the same bridge
}

// machineType is QEMU's; libvirt turns the alias into the newest version of it, which is recorded.
const machineType = "q35"

// domainMetadata is our own element in a domain's XML. It says whose domain it is, for people who find
// it with virsh.
type domainMetadata struct {
	XMLName xml.Name     `xml:"https://github.com/rampart-bench/rampart node"`
	Testbed string       `xml:"testbed,attr"`
	ID      string       `xml:"id,attr"`
	Role    testbed.Role `xml:"role,attr"`
}

// Slots of a machine's devices on its root bus. Where libvirt places devices itself, each gets a PCIe port of
// its own to be plugged into, which the firmware and the kernel look after at every boot: under emulation that
// takes a tenth of the time to the initrd. QEMU's own devices take the slots 0, 1 and 31.
const (
	firstDiskSlot = 0x02
	rngSlot       = 0x08
	firstNICSlot  = 0x10
)

// slot is the address of a device on the root bus, which has the same number on every machine type.
func slot(n int) *libvirtxml.DomainAddress {
	zero, at := uint(0), uint(n)
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: &zero, Bus: &zero, Slot: &at, Function: &zero}}
}

// xml is the domain: nothing that the study does not need, for every device costs boot time and may
// interrupt the guest.
func (m machine) xml() *libvirtxml.Domain {
	d := &libvirtxml.Domain{
		Type:       "qemu",
		Name:       m.name,
		Memory:     &libvirtxml.DomainMemory{Unit: "bytes", Value: uint(m.memory)},
		VCPU:       &libvirtxml.DomainVCPU{Placement: "static", Value: uint(m.vcpus)},
		OS:         m.os(),
		Features:   &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}, APIC: &libvirtxml.DomainFeatureAPIC{}},
		CPU:        m.cpuXML(),
		Clock:      &libvirtxml.DomainClock{Offset: "utc"},
		OnPoweroff: "destroy",
		OnReboot:   "destroy", // panic=-1 makes a panic a reboot: a node that died stays dead
		OnCrash:    "destroy",
		Devices:    m.devices(),
	}
	if m.kvm {
		d.Type = "kvm"
	}
	m.tune(d)
	if args := m.passed(); len(args) > 0 {
		d.QEMUCommandline = &libvirtxml.DomainQEMUCommandline{Args: args}
	}
	if m.metadata != "" {
		d.Metadata = &libvirtxml.DomainMetadata{XML: m.metadata}
	}
	return d
}

// cpuModel is what QEMU is asked for, in its own words, or what libvirt was asked for.
func (m machine) cpuModel() string {
	switch {
	case m.cpu != "":
		return m.cpu
	case m.kvm:
		return "host"
	}
	return "max"
}

func (m machine) os() *libvirtxml.DomainOS {
	return &libvirtxml.DomainOS{
		Type:    &libvirtxml.DomainOSType{Arch: "x86_64", Machine: cmp.Or(m.kind, machineType), Type: "hvm"},
		Kernel:  m.kernel,
		Initrd:  m.initrd,
		Cmdline: m.cmdline,
	}
}

func (m machine) devices() *libvirtxml.DomainDeviceList {
	zero := uint(0)
	d := &libvirtxml.DomainDeviceList{
		// Without these two libvirt adds a USB controller and a memory balloon by itself.
		Controllers: []libvirtxml.DomainController{{Type: "usb", Index: &zero, Model: "none"}},
		MemBalloon:  &libvirtxml.DomainMemBalloon{Model: "none"},
		Serials: []libvirtxml.DomainSerial{{
			Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
			Target: &libvirtxml.DomainSerialTarget{Port: &zero},
		}},
		RNGs: []libvirtxml.DomainRNG{{
			Model:   "virtio",
			Backend: &libvirtxml.DomainRNGBackend{Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"}},
			Address: slot(rngSlot),
		}},
	}
	for i, n := range m.nics {
		if n.netdev == "" {
			d.Interfaces = append(d.Interfaces, n.xml(firstNICSlot+i))
		}
	}
	if m.overlay != "" {
		root := virtioDisk("vda", m.overlay, "qcow2", false)
		if m.kernel == "" {
			root.Boot = &libvirtxml.DomainDeviceBoot{Order: 1}
		}
		d.Disks = append(d.Disks, root)
	}
	if m.seed != "" {
		d.Disks = append(d.Disks, virtioDisk("vdb", m.seed, "raw", true))
	}
	if m.program != "" {
		d.Disks = append(d.Disks, virtioDisk("vdc", m.program, "raw", true))
	}
	for i := range d.Disks {
		d.Disks[i].Address = slot(firstDiskSlot + i)
	}
	return d
}

// passed are the options that QEMU gets as they are, for the interfaces that libvirt does not know.
func (m machine) passed() (args []libvirtxml.DomainQEMUCommandlineArg) {
	for i, n := range m.nics {
		if n.netdev == "" {
			continue
		}
		id := fmt.Sprint("rampart", i)
		for _, arg := range []string{"-netdev", n.netdev + ",id=" + id, "-device", n.device(m.rootBus(), firstNICSlot+i, id)} {
			args = append(args, libvirtxml.DomainQEMUCommandlineArg{Value: arg})
		}
	}
	return args
}

// virtioDisk is a disk that is thrown away with its testbed: writes need not reach the platter.
func virtioDisk(dev, path, format string, readOnly bool) libvirtxml.DomainDisk {
	d := libvirtxml.DomainDisk{
		Device: "disk",
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: format, Cache: "unsafe"},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: path}},
		Target: &libvirtxml.DomainDiskTarget{Dev: dev, Bus: "virtio"},
	}
	if readOnly {
		d.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
	}
	return d
}

func (n nic) xml(at int) libvirtxml.DomainInterface {
	driver := &libvirtxml.DomainInterfaceDriver{Name: "qemu"}
	if n.vhost {
		driver.Name = "vhost"
	}
	if n.queues > 1 {
		driver.Queues = uint(n.queues)
	}
	driver.RXQueueSize, driver.TXQueueSize = uint(n.rx), uint(n.tx)
	if !n.offloads {
		// What the device does not offer, no driver in the guest can switch on. mrg_rxbuf stays: it
		// is how frames are buffered, and large MTUs need it.
		driver.Host = &libvirtxml.DomainInterfaceDriverHost{CSum: "off", GSO: "off", TSO4: "off", TSO6: "off", ECN: "off", UFO: "off"}
		driver.Guest = &libvirtxml.DomainInterfaceDriverGuest{CSum: "off", TSO4: "off", TSO6: "off", ECN: "off", UFO: "off"}
	}
	x := libvirtxml.DomainInterface{
		MAC:    &libvirtxml.DomainInterfaceMAC{Address: n.mac},
		Source: &libvirtxml.DomainInterfaceSource{Network: &libvirtxml.DomainInterfaceSourceNetwork{Network: n.network}},
		Model:  &libvirtxml.DomainInterfaceModel{Type: "virtio"},
		Driver: driver,
		// Nodes do not boot from the network, so the firmware need not load what could.
		ROM:     &libvirtxml.DomainROM{Enabled: "no"},
		Address: slot(at),
	}
	if n.isolated {
		x.PortOptions = &libvirtxml.DomainInterfacePortOptions{Isolated: "yes"}
	}
	return x
}

// rootBus is what QEMU calls the first bus of a machine type.
func (m machine) rootBus() string {
	if m.kind == "pc" || strings.HasPrefix(m.kind, "pc-i440fx-") {
		return "pci.0"
	}
	return "pcie.0"
}

// device is what QEMU's option -device says of the interface.
func (n nic) device(bus string, slot int, netdev string) string {
	d := fmt.Sprintf("virtio-net-pci,bus=%s,addr=%#x,netdev=%s,mac=%s,romfile=", bus, slot, netdev, n.mac)
	if n.rx != 0 {
		d += fmt.Sprint(",rx_queue_size=", n.rx)
	}
	if n.tx != 0 {
		d += fmt.Sprint(",tx_queue_size=", n.tx)
	}
	if !n.offloads {
		d += ",csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
	}
	return d
}

// backend is the name of what carries a nic's frames on the host.
func (n nic) backend() string {
	switch {
	case n.vhost:
		return "vhost-net"
	case n.netdev != "":
		kind, _, _ := strings.Cut(n.netdev, ",")
		return "qemu, " + kind
	}
	return "qemu"
}

// nodeMachine is the machine of a node.
func (p *Provider) nodeMachine(s state, role testbed.Role, overlay, seed string) (machine, error) {
	meta, err := xml.Marshal(domainMetadata{Testbed: s.Ident.Name, ID: s.Ident.ID, Role: role})
	if err != nil {
		return machine{}, fmt.Errorf("write metadata of node %s: %w", role, err)
	}
	node := s.Spec.Node(role)
	m := machine{
		name:     s.Ident.domain(role),
		metadata: string(meta),
		kvm:      s.KVM,
		vcpus:    node.VCPUs,
		memory:   node.Memory,
		kernel:   s.Kernel,
		initrd:   s.Initrd,
		cmdline:  s.CommandLine,
		overlay:  overlay,
		seed:     seed,
		program:  s.Program,
		kind:     s.Spec.Machine.Type,
		cpu:      s.Spec.Machine.CPU,
		tuning:   node.Tuning,
		nics:     []nic{{plug: p.endpoint.wiring.plug(p, s, role, 0), mac: s.Ident.mac(role, 0), queues: 1, offloads: true, vhost: s.VHost, isolated: true}},
	}
	for i, link := range s.Spec.Links {
		if link.Address(role).IsValid() {
			m.nics = append(m.nics, nic{plug: p.endpoint.wiring.plug(p, s, role, 1+i), mac: s.Ident.mac(role, 1+i), queues: node.Queues, rx: node.RxQueueSize, tx: node.TxQueueSize, offloads: link.Offloads, vhost: s.VHost})
		}
	}
	return m, nil
}
