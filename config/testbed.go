package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rampart-bench/rampart/testbed"
)

// The providers that a configuration can ask for. Auto is libvirt where a guest has been seen to boot
// under KVM, else netns.
func providers() []string { return []string{"auto", "libvirt", "netns", "exact"} }

func testbedSchema() *schema {
	return &schema{
		name: "testbed",
		doc:  "Three nodes in a chain, sender – firewall – receiver, and the two links between them.",
		attributes: []attribute{
			{name: "name", kind: text, def: `"rampart"`, doc: "Part of every name on the host, so two testbeds of different names run side by side: at most 16 lower-case letters, digits and dashes."},
			{name: "provider", kind: text, def: `"auto"`, oneOf: providers(), doc: "What makes the nodes: `libvirt` three virtual machines, `netns` three network namespaces on this kernel, `exact` three namespaces in one virtual machine whose clock counts instructions; `auto` is libvirt where a guest has been seen to boot under KVM, else netns. `--provider` overrides it."},
			{name: "image", kind: reference, example: "image.bookworm", doc: "What virtual machines boot from. Default: the only image block, or Debian with the defaults of one."},
		},
		blocks: []*schema{nodeSchema(), linkSchema(), libvirtSchema()},
	}
}

func nodeSchema() *schema {
	return &schema{
		name: "node", label: "role", occurs: perLabel,
		labels: []string{string(testbed.Sender), string(testbed.Firewall), string(testbed.Receiver)},
		doc:    "The size of one virtual machine, and its tuning. Provider `netns` ignores it: its nodes share the host. What is tuned is read back before anything is measured; [libvirt.md](libvirt.md#tuning) says how.",
		attributes: []attribute{
			{name: "vcpus", kind: whole, def: "1", min: "1", max: "64", doc: "Virtual CPUs."},
			{name: "memory", kind: size, def: `"256MiB"`, min: `"128MiB"`, max: `"1TiB"`, doc: "Memory, in whole MiB."},
			{name: "queues", kind: whole, def: "1", min: "1", max: "64", doc: "Queue pairs of each virtio network card, at most one a virtual CPU."},
			{name: "pin", kind: cpuSets, example: `[2, "3,7"]`, doc: "The host's CPUs that each virtual CPU may run on: one list a virtual CPU, in order. Default: any."},
			{name: "emulator_pin", kind: cpus, example: `"0-1"`, doc: "The host's CPUs for what QEMU does beside the virtual CPUs. Default: any."},
			{name: "hugepages", kind: size, min: `"2MiB"`, max: `"1GiB"`, example: `"2MiB"`, doc: "Make all memory of huge pages of this size, `2MiB` or `1GiB`, which divides it and which the host has reserved. Default: ordinary memory."},
			{name: "rx_queue_size", kind: whole, min: "256", max: "1024", doc: "Descriptors in each receive ring of the network cards on links: 256, 512 or 1024. Default: what QEMU has, 256."},
			{name: "tx_queue_size", kind: whole, min: "256", max: "1024", doc: "Descriptors in each transmit ring. QEMU has 256 for these cards; longer ones need vhost-user, which is not used here."},
		},
	}
}

func linkSchema() *schema {
	return &schema{
		name: "link", label: "name", occurs: perLabel,
		doc: "One link of the chain. Its name is also that of the interface at both ends: at most 15 lower-case letters, digits, dashes and underscores. A block replaces the link between the same two nodes; the other stays as it is by default.",
		attributes: []attribute{
			{name: "nodes", kind: texts, oneOf: nodeSchema().labels, example: `["sender", "firewall"]`, doc: "The two ends. The first gets the network's first address and the second the next. Default, for links named inside and outside: sender and firewall, firewall and receiver."},
			{name: "network", kind: text, example: `"10.77.1.0/24"`, doc: "IPv4 network of at least 8 addresses. Default: `\"10.77.1.0/24\"` between sender and firewall, `\"10.77.2.0/24\"` between firewall and receiver."},
			{name: "mtu", kind: whole, def: "1500", min: "576", max: "9216", doc: "Largest IP packet in bytes. A frame is 18 bytes longer: header and FCS."},
			{name: "offloads", kind: truth, def: "false", doc: "Whether GRO, GSO, TSO, LRO and checksum offloads stay on. With offloads one frame at the firewall may be many on the wire, and \"frame size\" means nothing."},
		},
	}
}

func libvirtSchema() *schema {
	return &schema{
		name: "libvirt",
		doc:  "How provider `libvirt` makes virtual machines.",
		attributes: []attribute{
			{name: "uri", kind: text, def: `"qemu:///system"`, doc: "Which libvirt: `qemu:///system` of this host, `qemu:///session` of this user and without root, `qemu+ssh://USER@HOST/system` of another host. See libvirt.md."},
			{name: "accelerator", kind: text, def: `"auto"`, oneOf: []string{"auto", "kvm", "tcg"}, doc: "`kvm`, or QEMU's emulation `tcg`; `auto` is KVM where a guest has been seen to boot under it."},
			{name: "machine", kind: text, def: `"q35"`, doc: "Machine type of QEMU: `q35`, `pc`, or one of their versions, such as `pc-q35-7.2`."},
			{name: "cpu", kind: text, def: `"auto"`, doc: "CPU model that guests see: `host-passthrough`, `host-model`, `maximum`, or a model of libvirt's, such as `Nehalem`; `auto` is `host-passthrough` under KVM and `maximum` under emulation."},
			{name: "vhost", kind: text, def: `"auto"`, oneOf: []string{"auto", testbed.VHostOn, testbed.VHostOff}, doc: "Whether the host's kernel carries frames between network cards and bridges (vhost-net) or QEMU does; `auto` is `true` where the host has vhost-net and KVM is used."},
		},
	}
}

// readLibvirt gives how to reach libvirt, and what machines to ask it for.
func (r *reader) readLibvirt(bed *body) (Libvirt, testbed.Machine) {
	b := bed.child("libvirt")
	uri := b.text("uri")
	hypervisor, err := testbed.ParseHypervisor(uri)
	if err != nil {
		b.wrong("uri", &mistake{fmt.Sprintf("cannot be %q", cut(uri, 80)), sentence(err.Error())})
	}
	r.unprivileged = hypervisor.Session
	machine := testbed.Machine{Type: b.unless("machine"), CPU: b.unless("cpu"), VHost: b.unless("vhost")}
	if machine.Type != "" && !testbed.ValidMachineType(machine.Type) {
		b.wrong("machine", &mistake{fmt.Sprintf("cannot be %q", cut(machine.Type, 40)), "Write \"q35\", \"pc\", or one of their versions, such as \"pc-q35-7.2\"; virsh capabilities lists them."})
		machine.Type = ""
	}
	if machine.CPU != "" && !testbed.ValidCPU(machine.CPU) {
		b.wrong("cpu", &mistake{fmt.Sprintf("cannot be %q", cut(machine.CPU, 40)), "Write the name of a mode or model, such as \"host-passthrough\" or \"Nehalem\"; virsh domcapabilities lists them."})
		machine.CPU = ""
	}
	if machine.VHost == testbed.VHostOn && r.unprivileged {
		b.wrong("vhost", &mistake{"cannot be true", `Without privileges (uri = "qemu:///session") the kernel carries no frames for a machine: leave vhost out, or use uri = "qemu:///system".`})
		machine.VHost = ""
	}
	return Libvirt{URI: uri, Accelerator: b.text("accelerator")}, machine
}

// unless is a text, empty where it is the attribute's default: a default that is written out changes
// nothing.
func (b *body) unless(name string) string {
	value := b.text(name)
	if standIn, _ := parseText(constant(b.schema.attribute(name).def)); value == standIn {
		return ""
	}
	return value
}

// readTestbed gives the testbed's specification and sets the frame limit that its links impose.
func (r *reader) readTestbed(b *body, machine testbed.Machine) testbed.Spec {
	before := len(r.diags)
	spec := testbed.Default()
	spec.Name = b.text("name")
	if !testbedName(spec.Name) {
		b.wrong("name", &mistake{fmt.Sprintf("cannot be %q", cut(spec.Name, 40)), "Use at most 16 lower-case letters, digits and dashes, a letter or digit at both ends."})
	}
	for _, n := range b.children("node") {
		readNode(n, &spec)
	}
	r.readLinks(b.children("link"), &spec)
	spec.Machine = machine
	if err := spec.Validate(); err != nil && !r.failedSince(before) {
		r.fail(b.rng, "The testbed cannot be made", "%s.", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	r.frameLimit = min(spec.Links[0].MTU, spec.Links[1].MTU) + frameOverhead
	return spec
}

func testbedName(name string) bool {
	inner := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' }
	return name != "" && len(name) <= 16 && strings.IndexFunc(name, func(c rune) bool { return !inner(c) }) < 0 &&
		!strings.HasPrefix(name, "-") && !strings.HasSuffix(name, "-")
}

func readNode(b *body, spec *testbed.Spec) {
	node := testbed.NodeSpec{Role: testbed.Role(b.label), VCPUs: b.whole("vcpus"), Memory: b.amount("memory"), Queues: b.whole("queues")}
	if node.Memory%testbed.MemoryUnit != 0 {
		more := (node.Memory/testbed.MemoryUnit + 1) * testbed.MemoryUnit
		b.wrong("memory", &mistake{"is not a whole number of MiB", fmt.Sprintf("libvirt would round it up: use \"%dMiB\".", more>>20)})
		node.Memory = more
	}
	if node.Queues > node.VCPUs {
		b.wrong("queues", &mistake{"is more than the virtual CPUs", fmt.Sprintf("A queue pair is served by one CPU: use 1 to %d, or raise vcpus.", node.VCPUs)})
	}
	if node.Queues > 1 && b.r.unprivileged {
		b.wrong("queues", &mistake{"cannot be more than 1", `Without privileges (uri = "qemu:///session") a network card has one queue pair: leave queues out, or use uri = "qemu:///system".`})
		node.Queues = 1
	}
	node.Tuning = readTuning(b, node)
	for i, n := range spec.Nodes {
		if n.Role == node.Role {
			spec.Nodes[i] = node
		}
	}
}

// readTuning leaves out what is wrong.
func readTuning(b *body, node testbed.NodeSpec) testbed.Tuning {
	t := testbed.Tuning{
		EmulatorPin: b.cpus("emulator_pin"),
		HugePages:   b.amount("hugepages"),
		RxQueueSize: b.queueSize("rx_queue_size", testbed.MaxRxQueueSize, "Use 256, 512 or 1024."),
		TxQueueSize: b.queueSize("tx_queue_size", testbed.MaxTxQueueSize, "Use 256: QEMU has longer ones only for vhost-user, which is not used here."),
	}
	switch size := t.HugePages; {
	case size == 0:
	case !testbed.ValidHugePage(size):
		b.wrong("hugepages", &mistake{"are not of a size that there is", `x86-64 has huge pages of "2MiB" and "1GiB".`})
		t.HugePages = 0
	case node.Memory%size != 0:
		b.wrong("hugepages", &mistake{"do not divide the memory", fmt.Sprintf("Of \"2MiB\" and \"1GiB\", the sizes that x86-64 has, use one of which %d MiB of memory are a multiple.", node.Memory>>20)})
		t.HugePages = 0
	}
	if b.has("pin") {
		t.Pin = readPin(b, node.VCPUs)
	}
	return t
}

// queueSize is the size of a ring, or 0.
func (b *body) queueSize(name string, limit int, right string) int {
	size := b.whole(name)
	if size >= testbed.MinQueueSize && !testbed.ValidQueueSize(size, limit) {
		b.wrong(name, &mistake{fmt.Sprintf("cannot be %d", size), right})
		return 0
	}
	return size
}

func readPin(b *body, vcpus int) []testbed.CPUs {
	before := len(b.r.diags)
	pin := values(readEach(b, "pin", attribute.cpus))
	if len(pin) == 0 || b.r.failedSince(before) {
		return nil
	}
	if len(pin) != vcpus {
		b.wrong("pin", &mistake{fmt.Sprintf("does not fit the virtual CPUs: %d for %d", len(pin), vcpus), "Give one CPU list for each virtual CPU, in order."})
		return nil
	}
	if first, second, ok := (testbed.Tuning{Pin: pin}).Crowded(); ok {
		b.wrong("pin", &mistake{fmt.Sprintf("puts virtual CPUs %d and %d on the same CPU %s", first, second, pin[first]), "They would take turns: give each a CPU of its own."})
		return nil
	}
	return pin
}

// readLinks puts the links that are written out in place of the default ones.
func (r *reader) readLinks(blocks []*body, spec *testbed.Spec) {
	written := [2]*body{}
	for _, b := range blocks {
		var unplaced testbed.LinkSpec // read all the same, for its mistakes
		i, ok := r.linkPlace(b, spec)
		if !ok {
			r.readLink(b, &unplaced)
			continue
		}
		if first := written[i]; first != nil {
			r.fail(b.rng, fmt.Sprintf("Two links join %s and %s", spec.Links[i].Nodes[0], spec.Links[i].Nodes[1]), "The first is at %s:%d; the chain has one between sender and firewall and one between firewall and receiver.", first.rng.Filename, first.rng.Start.Line)
			r.readLink(b, &unplaced)
			continue
		}
		written[i] = b
		r.readLink(b, &spec.Links[i])
	}
	if spec.Links[0].Network.Overlaps(spec.Links[1].Network) {
		i := 1
		if written[1] == nil || written[0] != nil && written[1].rng.Start.Byte < written[0].rng.Start.Byte {
			i = 0
		}
		r.overlap(written[i], spec.Links[1-i], written[1-i])
	}
	if spec.Links[0].Name == spec.Links[1].Name {
		for _, b := range written {
			if b != nil {
				r.fail(b.rng, fmt.Sprintf("Both links are named %q", b.label), "The link between the other two nodes has this name by default; choose another.")
				return
			}
		}
	}
}

// linkPlace tells which of the two links a block describes, and sets its ends.
func (r *reader) linkPlace(b *body, spec *testbed.Spec) (int, bool) {
	if !b.has("nodes") {
		i := slices.IndexFunc(spec.Links, func(l testbed.LinkSpec) bool { return l.Name == b.label })
		if i < 0 {
			r.fail(b.rng, "nodes is missing", `Write nodes = ["sender", "firewall"] or nodes = ["firewall", "receiver"].`)
		}
		return i, i >= 0
	}
	before := len(r.diags)
	nodes := values(b.texts("nodes"))
	if r.failedSince(before) {
		return 0, false
	}
	if len(nodes) == 2 {
		ends := [2]testbed.Role{testbed.Role(nodes[0]), testbed.Role(nodes[1])}
		for i, l := range testbed.Default().Links {
			if l.Nodes == ends || l.Nodes == [2]testbed.Role{ends[1], ends[0]} {
				spec.Links[i].Nodes = ends
				return i, true
			}
		}
	}
	b.wrong("nodes", &mistake{"is no link of the chain", `A link joins two nodes: ["sender", "firewall"] or ["firewall", "receiver"]. Nothing but the firewall may join sender and receiver.`})
	return 0, false
}

func (r *reader) readLink(b *body, link *testbed.LinkSpec) {
	if b.label != strings.ToLower(b.label) || len(b.label) > 15 || b.label == "lo" || b.label == "mgmt" {
		r.fail(b.rng, fmt.Sprintf("%q cannot be the name of an interface", b.label), "The link's name is also that: use at most 15 lower-case letters, digits, dashes and underscores, and not lo or mgmt, which every node has.")
	}
	link.Name = b.label
	link.MTU = b.whole("mtu")
	link.Offloads = b.truth("offloads")
	if b.has("network") {
		if network, ok := readNetwork(b); ok {
			link.Network = network
		}
	}
}

func readNetwork(b *body) (netip.Prefix, bool) {
	before := len(b.r.diags)
	text := b.text("network")
	if b.r.failedSince(before) {
		return netip.Prefix{}, false
	}
	network, wrong := parseNetwork(text)
	if wrong != nil {
		b.wrong("network", wrong)
	}
	return network, wrong == nil
}

func (r *reader) overlap(b *body, other testbed.LinkSpec, otherBody *body) {
	where := "which it has by default"
	if otherBody != nil {
		where = fmt.Sprintf("at %s:%d", otherBody.rangeOf("network").Filename, otherBody.rangeOf("network").Start.Line)
	}
	b.wrong("network", &mistake{"overlaps that of link " + other.Name, fmt.Sprintf("Link %s has %s, %s. Frames are forwarded between two networks: choose another for this one.", other.Name, other.Network, where)})
}
