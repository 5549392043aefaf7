package libvirt

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed"
)

// managementName is the interface that the host reaches a node by. No link may be called so.
const managementName = "mgmt"

// offloadFeatures are the features, as ethtool -K and -k name them, that would make a frame on the
// link differ from the frame that was sent: merged, split, or with a checksum left to others.
var offloadFeatures = []struct{ flag, name string }{
	{"gro", "generic-receive-offload"},
	{"gso", "generic-segmentation-offload"},
	{"tso", "tcp-segmentation-offload"},
	{"lro", "large-receive-offload"},
	{"rx", rxChecksumming},
	{"tx", "tx-checksumming"},
}

const rxChecksumming = "rx-checksumming"

// offloadBits are the same as a virtio device offers them (virtio 1.2 §5.1.3). A device that did not
// offer them cannot do them, whatever a driver says of itself.
var offloadBits = []struct {
	bit  int
	name string
}{
	{0, "VIRTIO_NET_F_CSUM"},
	{1, "VIRTIO_NET_F_GUEST_CSUM"},
	{7, "VIRTIO_NET_F_GUEST_TSO4"},
	{8, "VIRTIO_NET_F_GUEST_TSO6"},
	{9, "VIRTIO_NET_F_GUEST_ECN"},
	{10, "VIRTIO_NET_F_GUEST_UFO"},
	{11, "VIRTIO_NET_F_HOST_TSO4"},
	{12, "VIRTIO_NET_F_HOST_TSO6"},
	{13, "VIRTIO_NET_F_HOST_ECN"},
	{14, "VIRTIO_NET_F_HOST_UFO"},
}

// guestNIC is one interface of a node, as the guest will know it.
type guestNIC struct {
	mac, name string
	mtu       int
}

// guestNICs are the interfaces of role: management first, then its links.
func (s state) guestNICs(role testbed.Role) []guestNIC {
	nics := []guestNIC{{s.Ident.mac(role, 0), managementName, 1500}}
	for i, l := range s.Spec.Links {
		if l.Address(role).IsValid() {
			nics = append(nics, guestNIC{s.Ident.mac(role, 1+i), l.Name, l.MTU})
		}
	}
	return nics
}

// networkScript configures the interfaces of role, as process 1 of the image runs it. The management
// interface comes first: whatever fails after it can be looked at over SSH.
func (s state) networkScript(role testbed.Role) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	b.WriteString(networkPreamble)
	line("set_kernel kernel/hostname %s", role)
	nics := s.guestNICs(role)
	for i, n := range nics {
		line("adopt %s rampart%d", n.mac, i) // first away from names that a link may have
	}
	for i, n := range nics {
		line("ip link set dev rampart%d name %s mtu %d", i, n.name, n.mtu)
		line("set_kernel net/ipv4/conf/%s/rp_filter 0", n.name)
	}
	line("ip address add %s dev %s", managementAddress(s.Management, role), managementName)
	line("ip link set dev %s up", managementName)
	for i, l := range s.Spec.Links {
		if l.Address(role).IsValid() {
			s.linkLines(line, role, i, l)
		}
	}
	for _, r := range s.Spec.Routes(role) {
		line("ip route add %s via %s", r.Destination, r.Via)
	}
	if role == testbed.Firewall {
		line("set_kernel net/ipv4/ip_forward 1")
	}
	return b.String()
}

func (s state) linkLines(line func(string, ...any), role testbed.Role, index int, l testbed.LinkSpec) {
	if q := s.Spec.Node(role).Queues; q > 1 {
		line("ethtool -L %s combined %d", l.Name, q)
	}
	if !l.Offloads {
		for _, f := range offloadFeatures {
			// A feature that the device does not have is fixed, to off. What counts is the read-back.
			line("ethtool -K %s %s off >/dev/null 2>&1 || :", l.Name, f.flag)
		}
	}
	line("ip address add %s dev %s", l.Address(role), l.Name)
	line("ip link set dev %s up", l.Name)
	peer := l.Nodes[0]
	if peer == role {
		peer = l.Nodes[1]
	}
	line("ip neighbour replace %s lladdr %s dev %s nud permanent", l.Address(peer).Addr(), s.Ident.mac(peer, 1+index), l.Name)
}

// networkPreamble stops at the first command that fails, and finds interfaces by their address: the
// order in which the kernel numbers them is nobody's promise.
const networkPreamble = `set -eu
set_kernel() { echo "$2" >"/proc/sys/$1"; }
adopt() {
	for dir in /sys/class/net/*; do
		read -r mac <"$dir/address"
		if [ "$mac" = "$1" ]; then
			ip link set dev "${dir##*/}" name "$2"
			return
		fi
	done
	echo "no network interface has the address $1" >&2
	return 1
}
for conf in all default; do
	set_kernel "net/ipv4/conf/$conf/rp_filter" 0
	[ ! -d /proc/sys/net/ipv6 ] || set_kernel "net/ipv6/conf/$conf/disable_ipv6" 1
done
ip link set dev lo up
`

// seed is the content of the node's second disk.
func (s state) seed(role testbed.Role, hostKey, authorized []byte) ([]byte, error) {
	return images.Seed([]images.File{
		{Name: images.SeedHostKey, Mode: 0o600, Content: hostKey},
		{Name: images.SeedAuthorizedKeys, Mode: 0o600, Content: authorized},
		{Name: images.SeedNetwork, Mode: 0o644, Content: []byte(s.networkScript(role))},
	})
}

// readLink is the command whose output [checkLink] understands.
const readLink = `cat "/sys/class/net/$1/mtu" "/sys/class/net/$1/device/features" && ethtool -k "$1"`

// checkLink compares what a node says of a link with what was asked for. The output's first line is
// the MTU, the second the negotiated virtio features as zeros and ones from bit 0 on, the rest is of
// ethtool -k.
func checkLink(l testbed.LinkSpec, output string) error {
	mtu, rest, _ := strings.Cut(output, "\n")
	bits, features, ok := strings.Cut(rest, "\n")
	if !ok {
		return fmt.Errorf("read it back: output of %d bytes is too short", len(output))
	}
	if got, err := strconv.Atoi(mtu); err != nil || got != l.MTU {
		return fmt.Errorf("mtu is %q, not %d", mtu, l.MTU)
	}
	if l.Offloads {
		return nil
	}
	on, err := offloadsOn(bits, parseFeatures(features))
	if err != nil {
		return err
	}
	if len(on) > 0 {
		return fmt.Errorf("offloads stay on: %s: a frame at the firewall is then not a frame that was sent", strings.Join(on, ", "))
	}
	return nil
}

// offloadsOn are the names of the offloads that are on.
func offloadsOn(bits string, features map[string]string) (on []string, err error) {
	for _, f := range offloadBits {
		if f.bit >= len(bits) {
			return nil, fmt.Errorf("read virtio features: %q is too short", bits)
		}
		if bits[f.bit] != '0' {
			on = append(on, f.name)
		}
	}
	for _, f := range offloadFeatures {
		switch value := features[f.name]; {
		case value == "":
			return nil, fmt.Errorf("read offloads: ethtool says nothing of %s", f.name)
		case value == "off", value == "off [fixed]":
		case f.name == rxChecksumming && value == "on [fixed]":
			// Newer kernels say this where the device offers nothing
			// (drivers/net/virtio_net.c); bit 1 tells.
		default:
			on = append(on, f.name)
		}
	}
	return on, nil
}

// parseFeatures reads the lines "name: on" or "name: off [fixed]" of ethtool -k.
func parseFeatures(output string) map[string]string {
	features := map[string]string{}
	for line := range strings.Lines(output) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			features[name] = strings.TrimSpace(value)
		}
	}
	return features
}
