package testbed

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
)

// Spec describes a testbed. It is comparable in meaning: the same Spec gives the same testbed.
type Spec struct {
	// Name is part of every name on the host: lower-case letters, digits and dashes, at most 16.
	Name  string     `json:"name"`
	Nodes []NodeSpec `json:"nodes"`
	Links []LinkSpec `json:"links"`
	// Machine is for providers that make virtual machines.
	Machine Machine `json:"machine,omitzero"`
}

// NodeSpec describes one node. The netns provider ignores sizes: its nodes share the host.
type NodeSpec struct {
	Role   Role  `json:"role"`
	VCPUs  int   `json:"vcpus"`
	Memory int64 `json:"memory"` // bytes
	Queues int   `json:"queues"` // virtio queue pairs
	Tuning
}

// LinkSpec describes one link. Its name is also the name of the interface at both ends.
type LinkSpec struct {
	Name  string  `json:"name"` // at most 15 bytes (IFNAMSIZ - 1)
	Nodes [2]Role `json:"nodes"`
	// Network gives the first node its first host address and the second node the next one.
	Network netip.Prefix `json:"network"`
	MTU     int          `json:"mtu"` // bytes of IP packet
	// Offloads false turns GRO, GSO, TSO, LRO and checksum offloads off at both ends.
	Offloads bool `json:"offloads"`
}

// A Route is one static route of a node.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	Via         netip.Addr   `json:"via"`
}

// Default is the testbed that an empty configuration describes.
func Default() Spec {
	node := func(role Role) NodeSpec {
		return NodeSpec{Role: role, VCPUs: 1, Memory: 256 << 20, Queues: 1}
	}
	return Spec{
		Name:  "rampart",
		Nodes: []NodeSpec{node(Sender), node(Firewall), node(Receiver)},
		Links: []LinkSpec{
			{Name: "inside", Nodes: [2]Role{Sender, Firewall}, Network: netip.MustParsePrefix("10.77.1.0/24"), MTU: 1500},
			{Name: "outside", Nodes: [2]Role{Firewall, Receiver}, Network: netip.MustParsePrefix("10.77.2.0/24"), MTU: 1500},
		},
	}
}

// Link returns the link between two roles, in either order.
func (s Spec) Link(a, b Role) (LinkSpec, bool) {
	for _, l := range s.Links {
		if l.Nodes == [2]Role{a, b} || l.Nodes == [2]Role{b, a} {
			return l, true
		}
	}
	return LinkSpec{}, false
}

// Inside is the link between sender and firewall, Outside the one between firewall and receiver.
// Both exist in every Spec that passes [Spec.Validate].
func (s Spec) Inside() LinkSpec  { l, _ := s.Link(Sender, Firewall); return l }
func (s Spec) Outside() LinkSpec { l, _ := s.Link(Firewall, Receiver); return l }

// Address is the address of role on the link, with the length of the network's prefix. It is the
// zero Prefix when the link does not end at role.
func (l LinkSpec) Address(role Role) netip.Prefix {
	addr := l.Network.Masked().Addr().Next()
	switch role {
	case l.Nodes[0]:
		return netip.PrefixFrom(addr, l.Network.Bits())
	case l.Nodes[1]:
		return netip.PrefixFrom(addr.Next(), l.Network.Bits())
	}
	return netip.Prefix{}
}

// Intruder is an address of the link's network that no node has and no rule-set accepts: the source
// of the probe that a loaded rule-set must drop. It is the third host address.
func (l LinkSpec) Intruder() netip.Addr {
	return l.Network.Masked().Addr().Next().Next().Next()
}

// Node returns the description of role.
func (s Spec) Node(role Role) NodeSpec {
	for _, n := range s.Nodes {
		if n.Role == role {
			return n
		}
	}
	return NodeSpec{Role: role}
}

// Routes are the routes of role: each end reaches the other end's network through the firewall.
func (s Spec) Routes(role Role) []Route {
	in, out := s.Inside(), s.Outside()
	switch role {
	case Sender:
		return []Route{{out.Network.Masked(), in.Address(Firewall).Addr()}}
	case Receiver:
		return []Route{{in.Network.Masked(), out.Address(Firewall).Addr()}}
	}
	return nil
}

var (
	specName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?$`)
	linkName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,14}$`)
)

// reservedNetworks cannot be a link's.
var reservedNetworks = []struct {
	network netip.Prefix
	why     string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "it means this host (RFC 1122 §3.2.1.3)"},
	{netip.MustParsePrefix("127.0.0.0/8"), "it is the loopback network (RFC 1122 §3.2.1.3)"},
	{netip.MustParsePrefix("198.18.0.0/15"), "the filler entries of rule-sets are drawn from it and must never match (RFC 2544 appendix C.2.2)"},
	{netip.MustParsePrefix("224.0.0.0/3"), "it is for multicast and reserved (RFC 5771, RFC 1112 §4)"},
}

// ValidateName checks the name of a testbed. Providers check every name that they are given before
// they look for anything called so.
func ValidateName(name string) error {
	if !specName.MatchString(name) {
		return fmt.Errorf("testbed name %q: use 1 to 16 lower-case letters, digits and dashes, no dash at either end", name)
	}
	return nil
}

// Validate returns every mistake in the Spec, joined.
func (s Spec) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := ValidateName(s.Name); err != nil {
		errs = append(errs, err)
	}
	seen := map[Role]bool{}
	for _, n := range s.Nodes {
		if n.Role != Sender && n.Role != Firewall && n.Role != Receiver {
			bad("node %q: a node is sender, firewall or receiver", n.Role)
		}
		if seen[n.Role] {
			bad("node %q is there twice", n.Role)
		}
		seen[n.Role] = true
		if n.VCPUs < 1 || n.VCPUs > 64 {
			bad("node %q: vcpus = %d: use 1 to 64", n.Role, n.VCPUs)
		}
		if n.Memory < 128<<20 {
			bad("node %q: memory = %d bytes: a Debian kernel needs at least 128 MiB", n.Role, n.Memory)
		}
		if n.Memory%MemoryUnit != 0 {
			bad("node %q: memory = %d bytes: use a whole number of MiB", n.Role, n.Memory)
		}
		if n.Queues < 1 || n.Queues > n.VCPUs {
			bad("node %q: queues = %d: use 1 to the number of vcpus (%d)", n.Role, n.Queues, n.VCPUs)
		}
		for _, mistake := range n.tuningMistakes() {
			bad("node %q: %s", n.Role, mistake)
		}
	}
	for _, role := range Roles() {
		if !seen[role] {
			bad("node %q is missing: a testbed has all three", role)
		}
	}
	for _, mistake := range s.Machine.mistakes() {
		bad("%s", mistake)
	}
	if len(s.Links) != 2 {
		bad("testbed has %d links: a chain of three nodes has 2", len(s.Links))
	}
	for _, pair := range [][2]Role{{Sender, Firewall}, {Firewall, Receiver}} {
		if _, ok := s.Link(pair[0], pair[1]); !ok {
			bad("no link joins %s and %s", pair[0], pair[1])
		}
	}
	for i, l := range s.Links {
		if !linkName.MatchString(l.Name) || l.Name == "lo" || l.Name == "mgmt" {
			bad("link %q: the name is also an interface's: at most 15 lower-case letters, digits, dashes, and not lo or mgmt", l.Name)
		}
		if !l.Network.IsValid() || !l.Network.Addr().Is4() || l.Network.Bits() > 29 {
			bad("link %q: network %s: use an IPv4 network of at least 8 addresses, such as 10.77.1.0/24", l.Name, l.Network)
		}
		for _, taken := range reservedNetworks {
			if l.Network.IsValid() && l.Network.Overlaps(taken.network) {
				bad("link %q: network %s overlaps %s: %s", l.Name, l.Network, taken.network, taken.why)
			}
		}
		if l.MTU < 576 || l.MTU > 9216 {
			bad("link %q: mtu = %d: use 576 to 9216", l.Name, l.MTU)
		}
		for _, o := range s.Links[:i] {
			if o.Name == l.Name {
				bad("link %q is there twice", l.Name)
			}
			if o.Network.IsValid() && l.Network.IsValid() && o.Network.Overlaps(l.Network) {
				bad("links %q and %q: networks %s and %s overlap", o.Name, l.Name, o.Network, l.Network)
			}
		}
	}
	return errors.Join(errs...)
}
