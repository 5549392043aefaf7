package testbed

import (
	"fmt"
	"math/bits"
	"regexp"
	"slices"
)

// Tuning is what makes the times of a virtual machine steadier. Other providers than libvirt ignore
// it. What is zero is left to QEMU; what is not is read back before the node counts as up.
type Tuning struct {
	// Pin has, for each virtual CPU in order, the CPUs of the host that it may run on.
	Pin []CPUs `json:"pin,omitempty"`
	// EmulatorPin has the CPUs of the host that the other threads of QEMU may run on.
	EmulatorPin CPUs `json:"emulator_pin,omitempty"`
	// HugePages is the size in bytes of the pages that all memory is made of.
	HugePages int64 `json:"hugepages,omitempty"`
	// RxQueueSize and TxQueueSize are the descriptors in each ring of a network card on a link.
	RxQueueSize int `json:"rx_queue_size,omitempty"`
	TxQueueSize int `json:"tx_queue_size,omitempty"`
}

// Machine is what all virtual machines of a testbed have in common. What is zero is left to the
// provider.
type Machine struct {
	Type string `json:"type,omitempty"` // of QEMU: pc, q35, or one of their versions, such as pc-q35-7.2
	// CPU is a mode or a model of libvirt: host-passthrough, host-model, maximum, or such as Nehalem.
	CPU string `json:"cpu,omitempty"`
	// VHost says whether the host's kernel carries the frames: [VHostOn], [VHostOff] or empty.
	VHost string `json:"vhost,omitempty"`
}

// The values of [Machine.VHost] beside empty, which is on where the host can and KVM is used.
const (
	VHostOn  = "true"
	VHostOff = "false"
)

// Limits of virtio-net's rings in QEMU (hw/net/virtio-net.c: VIRTIO_NET_RX_QUEUE_MIN_SIZE and its like).
// It cuts longer transmit rings down without a word unless the other end is vhost-user or vDPA.
const (
	MinQueueSize   = 256
	MaxRxQueueSize = 1024
	MaxTxQueueSize = 256
)

// MinHugePage is the smallest page of x86-64 that is huge.
const MinHugePage = 2 << 20

// hugePages are the sizes in bytes that huge pages of x86-64 have (arch/x86/mm/hugetlbpage.c,
// arch_hugetlb_valid_size).
var hugePages = []int64{MinHugePage, 1 << 30}

// MemoryUnit is what memory is a multiple of, in bytes: libvirt rounds what is not up to it
// (qemuDomainGetMemorySizeAlignment), and the machine is then another than was asked for.
const MemoryUnit = 1 << 20

var (
	machineType = regexp.MustCompile(`^(q35|pc|pc-(q35|i440fx)-[a-z0-9.-]+)$`)
	cpuModel    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
)

// ValidMachineType reports whether a machine type is one of the two families of PCs that nodes boot as.
func ValidMachineType(s string) bool { return machineType.MatchString(s) }

// ValidCPU reports whether s can be the name of a CPU model.
func ValidCPU(s string) bool { return cpuModel.MatchString(s) }

// ValidHugePage reports whether there are huge pages of that size in bytes.
func ValidHugePage(size int64) bool { return slices.Contains(hugePages, size) }

// ValidQueueSize reports whether a ring may have n descriptors, at most limit.
func ValidQueueSize(n, limit int) bool {
	return n >= MinQueueSize && n <= limit && bits.OnesCount(uint(n)) == 1
}

// Tuned reports whether anything of what only virtual machines have is asked for.
func (s Spec) Tuned() bool {
	return s.Machine != Machine{} || slices.ContainsFunc(s.Nodes, func(n NodeSpec) bool { return !n.Tuning.isZero() })
}

func (t Tuning) isZero() bool {
	return t.Pin == nil && t.EmulatorPin == nil && t.HugePages == 0 && t.RxQueueSize == 0 && t.TxQueueSize == 0
}

// Crowded are two virtual CPUs that can run on nothing but the same one CPU of the host; ok is false if
// there are none.
func (t Tuning) Crowded() (a, b int, ok bool) {
	only := map[int]int{}
	for i, set := range t.Pin {
		if len(set) != 1 {
			continue
		}
		if first, taken := only[set[0]]; taken {
			return first, i, true
		}
		only[set[0]] = i
	}
	return 0, 0, false
}

// tuningMistakes are what is wrong with a node's tuning by itself; what the host has is for the
// provider to see.
func (n NodeSpec) tuningMistakes() (mistakes []string) {
	bad := func(format string, args ...any) { mistakes = append(mistakes, fmt.Sprintf(format, args...)) }
	if n.Pin != nil && len(n.Pin) != n.VCPUs {
		bad("pin has %d lists: use one for each of the %d vcpus", len(n.Pin), n.VCPUs)
	}
	for i, set := range n.Pin {
		if len(set) == 0 {
			bad("pin of virtual CPU %d is empty", i)
		}
	}
	if a, b, ok := n.Crowded(); ok {
		bad("virtual CPUs %d and %d are both pinned to CPU %s: they would take turns", a, b, n.Pin[a])
	}
	if p := n.HugePages; p != 0 && (!ValidHugePage(p) || n.Memory%p != 0) {
		bad("hugepages = %d bytes: use 2 MiB or 1 GiB, of which the memory must be a multiple", p)
	}
	if s := n.RxQueueSize; s != 0 && !ValidQueueSize(s, MaxRxQueueSize) {
		bad("rx_queue_size = %d: use 256, 512 or 1024", s)
	}
	if s := n.TxQueueSize; s != 0 && !ValidQueueSize(s, MaxTxQueueSize) {
		bad("tx_queue_size = %d: QEMU has 256 for this kind of network card", s)
	}
	return mistakes
}

func (m Machine) mistakes() (mistakes []string) {
	if m.Type != "" && !ValidMachineType(m.Type) {
		mistakes = append(mistakes, fmt.Sprintf("machine type %q: use q35, pc, or one of their versions such as pc-q35-7.2", m.Type))
	}
	if m.CPU != "" && !ValidCPU(m.CPU) {
		mistakes = append(mistakes, fmt.Sprintf("cpu %q: use a mode or model of libvirt, such as host-passthrough or Nehalem", m.CPU))
	}
	if !slices.Contains([]string{"", VHostOn, VHostOff}, m.VHost) {
		mistakes = append(mistakes, fmt.Sprintf("vhost %q: use true or false", m.VHost))
	}
	return mistakes
}
