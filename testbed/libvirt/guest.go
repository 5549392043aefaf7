package libvirt

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/provision/ssh"
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
	address   netip.Prefix
	mtu       int
}

// guestNICs are the interfaces of role: management first, then its links.
func (s state) guestNICs(role testbed.Role) []guestNIC {
	nics := []guestNIC{{s.Ident.mac(role, 0), managementName, managementAddress(s.Management, role), 1500}}
	for i, l := range s.Spec.Links {
		if l.Address(role).IsValid() {
			nics = append(nics, guestNIC{s.Ident.mac(role, 1+i), l.Name, l.Address(role), l.MTU})
		}
	}
	return nics
}

// networkScript configures the interfaces of role, as process 1 of the image runs it. The management
// interface comes first: whatever fails after it can be looked at over SSH. Under emulation every
// program that is started costs a tenth of a second and more, so ip does all it can at once.
func (s state) networkScript(role testbed.Role) string {
	nics := s.guestNICs(role)
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	b.WriteString(networkPreamble)
	line("set_kernel kernel/hostname %s", role)
	for i, n := range nics {
		line("find_nic %s; nic%d=$found", n.mac, i)
	}
	line("%s -batch - <<END", ipProgram)
	line("link set dev lo up")
	for i := range nics {
		line("link set dev $nic%d name rampart%d", i, i) // first away from names that a link may have
	}
	for i, n := range nics {
		line("link set dev rampart%d name %s mtu %d", i, n.name, n.mtu)
	}
	line("address add %s dev %s", managementAddress(s.Management, role), managementName)
	line("link set dev %s up", managementName)
	line("END")
	b.WriteString(s.linkScript(role))
	return b.String()
}

// linkScript is the part of a node's script that follows once every interface has its name and MTU.
func (s state) linkScript(role testbed.Role) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, n := range s.guestNICs(role) {
		line("set_kernel net/ipv4/conf/%s/rp_filter 0", n.name)
	}
	for _, l := range s.Spec.Links {
		if l.Address(role).IsValid() {
			line("%s", driverLines(l, s.Spec.Node(role).Queues))
		}
	}
	line("%s -batch - <<END", ipProgram)
	for i, l := range s.Spec.Links {
		if l.Address(role).IsValid() {
			line("%s", s.addressLines(role, i, l))
		}
	}
	for _, r := range s.Spec.Routes(role) {
		line("route replace %s via %s", r.Destination, r.Via)
	}
	line("END")
	if role == testbed.Firewall {
		line("set_kernel net/ipv4/ip_forward 1")
	}
	if s.Program != "" {
		line(mountProgram)
	}
	return b.String()
}

// ipProgram is iproute2's: the shell of an image of ours has an ip of its own, which cannot do all of this.
const ipProgram = "/sbin/ip"

// programFolder is where a node has the disk with this program.
const programFolder = "/run/rampart-program"

// mountProgram does so. A kernel that cannot is no reason to stop: the program is then copied.
const mountProgram = "mkdir " + programFolder + " && mount -t iso9660 -o ro,nosuid,nodev,mode=0555 /dev/vdc " + programFolder + " || :"

// driverLines set up the driver of a link's interface. A feature that the device does not have is
// fixed, and ethtool complains of that one after it changed the others: what counts is what is read
// back.
func driverLines(l testbed.LinkSpec, queues int) string {
	lines := []string{"# " + l.Name}
	if queues > 1 {
		lines = append(lines, fmt.Sprintf("ethtool -L %s combined %d", l.Name, queues))
	}
	if !l.Offloads {
		command := "ethtool -K " + l.Name
		for _, f := range offloadFeatures {
			command += " " + f.flag + " off"
		}
		lines = append(lines, command+" >/dev/null 2>&1 || :")
	}
	return strings.Join(lines, "\n")
}

// addressLines are what ip is told of a link. Neighbours are permanent: no measurement waits for ARP, or
// has it among its frames. The firewall also knows the [testbed.LinkSpec.Intruder], who lives at the
// other end.
func (s state) addressLines(role testbed.Role, index int, l testbed.LinkSpec) string {
	peer := l.Nodes[0]
	if peer == role {
		peer = l.Nodes[1]
	}
	mac := s.Ident.mac(peer, 1+index)
	lines := fmt.Sprintf("address replace %[2]s dev %[1]s\nlink set dev %[1]s up\n", l.Name, l.Address(role))
	lines += neighbourLine(l, l.Address(peer).Addr(), mac)
	if role == testbed.Firewall {
		lines += "\n" + neighbourLine(l, l.Intruder(), mac)
	}
	return lines
}

func neighbourLine(l testbed.LinkSpec, address netip.Addr, mac string) string {
	return fmt.Sprintf("neighbour replace %s lladdr %s dev %s nud permanent", address, mac, l.Name)
}

// networkPreamble stops at the first command that fails, and finds interfaces by their address: the
// order in which the kernel numbers them is nobody's promise.
const networkPreamble = `set -eu
set_kernel() { echo "$2" >"/proc/sys/$1"; }
find_nic() {
	for dir in /sys/class/net/*; do
		read -r mac <"$dir/address"
		found=${dir##*/}
		[ "$mac" != "$1" ] || return 0
	done
	echo "no network interface has the address $1" >&2
	return 1
}
for conf in all default; do
	set_kernel "net/ipv4/conf/$conf/rp_filter" 0
	[ ! -d /proc/sys/net/ipv6 ] || set_kernel "net/ipv6/conf/$conf/disable_ipv6" 1
done
`

// cloudScript does on a disk with cloud-init what networkScript does on an image of ours. Whatever manages the
// network there has had its turn; this holds names, addresses and MTUs to what was asked for, and goes on.
// Timers are stopped: a mirror that is looked for in the middle of a measurement is part of the figures. What
// came of it is in [cloudOutcome].
func (s state) cloudScript(role testbed.Role) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("exec 2>/run/rampart-setup.log")
	line("trap '[ $? -eq 0 ] && echo done >%[1]s || { echo failed; tail -n 3 /run/rampart-setup.log; } >%[1]s' EXIT", cloudOutcome)
	line("if command -v systemctl >/dev/null; then systemctl stop '*.timer'; fi")
	b.WriteString(networkPreamble)
	for _, n := range s.guestNICs(role) {
		line("find_nic %s", n.mac)
		line("[ $found = %[1]s ] || { ip link set dev $found down; ip link set dev $found name %[1]s; }", n.name)
		line("ip link set dev %s mtu %d up", n.name, n.mtu)
	}
	line("ip address replace %s dev %s", managementAddress(s.Management, role), managementName)
	b.WriteString(s.linkScript(role))
	// Small and not executable, as some distributions mount /run, is no place for a helper.
	line("mkdir -p %[1]s\nmount -t tmpfs -o nosuid,nodev,mode=755 rampart %[1]s", images.Scratch)
	return b.String()
}

// cloudOutcome is the file on a node that says whether its cloudScript has ended: done, or failed and why.
const cloudOutcome = "/run/rampart-setup"

// seed is the content of the node's second disk.
func (s state) seed(role testbed.Role, host ssh.Key, authorized []byte) ([]byte, error) {
	if s.Cloud {
		return images.NoCloud(s.cloudSeed(role, host, authorized))
	}
	return images.Seed([]images.File{
		{Name: images.SeedHostKey, Mode: 0o600, Content: host.Private},
		{Name: images.SeedAuthorizedKeys, Mode: 0o600, Content: authorized},
		{Name: images.SeedNetwork, Mode: 0o644, Content: []byte(s.networkScript(role))},
	})
}

func (s state) cloudSeed(role testbed.Role, host ssh.Key, authorized []byte) images.CloudSeed {
	seed := images.CloudSeed{
		Instance: s.Ident.domain(role), Hostname: string(role),
		AuthorizedKey: authorized, HostKey: host.Private, HostKeyPublic: host.Authorized,
		Script: []byte(s.cloudScript(role)),
	}
	for _, n := range s.guestNICs(role) {
		seed.Interfaces = append(seed.Interfaces, images.CloudInterface{MAC: n.mac, Name: n.name, MTU: n.mtu, Addresses: []netip.Prefix{n.address}})
	}
	return seed
}

// readNode is the script whose output [node.verify] understands. Its name is the path of the program, its
// arguments are links; what [checkLink] wants of each ends with nodePart.
const readNode = `for link; do
	cd "/sys/class/net/$link" && read -r mtu <mtu && read -r features <device/features && echo "$mtu" && echo "$features" &&
		ethtool -k "$link" && echo "` + nodePart + `" || exit
done
[ ! -x "$0" ] || echo "` + hasProgram + `"`

// Marks in the output of readNode.
const (
	nodePart   = "-- end of link"
	hasProgram = "-- program"
)

// checkLink compares what a node says of a link with what was asked for. Of the output the first line is
// the MTU, the second the negotiated virtio features as zeros and ones from bit 0 on, the rest is of
// ethtool -k.
func checkLink(l testbed.LinkSpec, output string) error {
	mtu, rest, _ := strings.Cut(strings.TrimLeft(output, "\n"), "\n")
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
