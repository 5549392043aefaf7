package netns

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"path"
	"strings"

	"github.com/rampart-bench/rampart/testbed"
)

// Everything on the host that belongs to a testbed is named after it in a way that can be computed
// and recognised without a state file: the testbed's name, a tag derived from that name, the role.
// The tag makes it next to impossible that somebody else's namespace is taken for ours, and ends the
// doubt where a name itself has dashes.

// tag is six hexadecimal digits derived from the name of a testbed.
func tag(name string) string {
	sum := sha256.Sum256([]byte("rampart netns testbed " + name))
	return hex.EncodeToString(sum[:3])
}

// folderName is the name of a testbed's scratch folder.
func folderName(name string) string { return name + "-" + tag(name) }

// namespaceName is the name of a node's namespace, as `ip netns` shows it.
func namespaceName(name string, role testbed.Role) string {
	return folderName(name) + "-" + string(role)
}

// parseFolder is the inverse of folderName; ok is false for a name that is not ours.
func parseFolder(s string) (name string, ok bool) {
	i := strings.LastIndexByte(s, '-')
	if i < 0 || testbed.ValidateName(s[:i]) != nil || s[i+1:] != tag(s[:i]) {
		return "", false
	}
	return s[:i], true
}

// parseNamespace is the inverse of namespaceName; ok is false for a name that is not ours.
func parseNamespace(s string) (name string, role testbed.Role, ok bool) {
	for _, role := range testbed.Roles() {
		if prefix, found := strings.CutSuffix(s, "-"+string(role)); found {
			name, ok := parseFolder(prefix)
			return name, role, ok
		}
	}
	return "", "", false
}

// mac is the hardware address of role's end of the i-th link. It is locally administered and the same
// in every testbed: links are isolated from one another, and what a frame holds must not depend on
// when or where the testbed was made.
func mac(spec testbed.Spec, i int, role testbed.Role) net.HardwareAddr {
	end := byte(1)
	if spec.Links[i].Nodes[1] == role {
		end = 2
	}
	return net.HardwareAddr{0x02, 0x00, 0x00, 0x00, byte(i + 1), end}
}

// An end is one end of a link as a node has it.
type end struct {
	link      testbed.LinkSpec
	mac       net.HardwareAddr
	addr      netip.Prefix
	neighbour []neighbour
}

// A neighbour is a permanent entry of the neighbour table, so that no ARP ever flows.
type neighbour struct {
	ip  netip.Addr
	mac net.HardwareAddr
}

// ends lists the ends of role in the order of the Spec's links. The firewall also knows the
// [testbed.LinkSpec.Intruder], who lives at the other end: were it asked for by ARP, the answer to a
// probe that a rule-set wrongly let through would look like a drop.
func ends(spec testbed.Spec, role testbed.Role) []end {
	var list []end
	for i, l := range spec.Links {
		peer, ok := peerOf(l, role)
		if !ok {
			continue
		}
		e := end{link: l, mac: mac(spec, i, role), addr: l.Address(role)}
		there := mac(spec, i, peer)
		e.neighbour = append(e.neighbour, neighbour{l.Address(peer).Addr(), there})
		if role == testbed.Firewall {
			e.neighbour = append(e.neighbour, neighbour{l.Intruder(), there})
		}
		list = append(list, e)
	}
	return list
}

func peerOf(l testbed.LinkSpec, role testbed.Role) (testbed.Role, bool) {
	switch role {
	case l.Nodes[0]:
		return l.Nodes[1], true
	case l.Nodes[1]:
		return l.Nodes[0], true
	}
	return "", false
}

// txQueueLen is the kernel's own default, set so that it does not depend on it. veth has no queue
// (qdisc noqueue), so it is a number for the record only.
const txQueueLen = 1000

// A sysctl is one setting below /proc/sys/net and the value it must have.
type sysctl struct {
	path, value string
	// optional settings do not exist on a kernel that lacks the feature they switch off.
	optional bool
}

// namespaceSysctls are set before the namespace has any link, because a link copies conf/default at
// the moment it arrives. The IPv4 ones must be set although most are the kernel's defaults: a new
// namespace inherits conf/all and conf/default from the host (Documentation/admin-guide/sysctl/
// net.rst, devconf_inherit_init_net).
func namespaceSysctls(role testbed.Role) []sysctl {
	forward := "0"
	if role == testbed.Firewall {
		forward = "1"
	}
	list := []sysctl{{path: "ipv4/ip_forward", value: forward}}
	for _, scope := range []string{"all", "default"} {
		list = append(list, linkSysctls(scope)...)
	}
	return list
}

// linkSysctls are the settings of one link, or of conf/all or conf/default.
func linkSysctls(link string) []sysctl {
	return []sysctl{
		// Reverse-path filtering is a cost of its own: a firewall switches it on, the testbed does not.
		{path: "ipv4/conf/" + link + "/rp_filter", value: "0"},
		// Frames that nobody asked for.
		{path: "ipv4/conf/" + link + "/send_redirects", value: "0"},
		{path: "ipv4/conf/" + link + "/accept_redirects", value: "0"},
		{path: "ipv4/conf/" + link + "/arp_notify", value: "0"},
		// Work and noise on a packet that is dropped.
		{path: "ipv4/conf/" + link + "/log_martians", value: "0"},
		// No router solicitation, no MLD report, no duplicate address detection.
		{path: "ipv6/conf/" + link + "/disable_ipv6", value: "1", optional: true},
	}
}

// offloadPatterns match the kernel's names (net/ethtool/common.c, netdev_features_strings) of the
// features that let one packet stand for many, or let a checksum go uncomputed.
var offloadPatterns = []string{
	"rx-checksum",
	"rx-gro", "rx-gro-*", "rx-lro", "rx-udp-gro-forwarding",
	"tx-checksum-*",
	"tx-scatter-gather", "tx-scatter-gather-fraglist", // only there to serve the other two
	"tx-*-segmentation", "tx-gso-*",
}

// isOffload reports whether the kernel's feature is one that offloads = false switches off.
func isOffload(feature string) bool {
	for _, pattern := range offloadPatterns {
		if ok, _ := path.Match(pattern, feature); ok {
			return true
		}
	}
	return false
}
