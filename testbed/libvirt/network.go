package libvirt

import (
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	rpc "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/testbed"
)

// bridges is the wiring of a libvirt that may make bridges: a network of libvirt's for each link, and one
// on which the host reaches the nodes.
type bridges struct{}

var _ wiring = bridges{}

func (bridges) taps() bool { return true }

func (bridges) prepare(ctx context.Context, p *Provider, c *conn, s *state) (err error) {
	if err := ensureNetworkFolder(ctx, p.endpoint.host, c); err != nil {
		return err
	}
	if s.Management, err = createManagement(ctx, p, c, s.Ident, s.Spec); err != nil {
		return err
	}
	for i, link := range s.Spec.Links {
		if err := createNetwork(ctx, c, linkNetwork(s.Ident, i, link)); err != nil {
			return err
		}
	}
	return nil
}

func (bridges) plug(_ *Provider, s state, _ testbed.Role, index int) plug {
	if index == 0 {
		return plug{network: s.Ident.management()}
	}
	return plug{network: s.Ident.link(index - 1)}
}

func (bridges) address(_ context.Context, _ *conn, s state, role testbed.Role) (string, error) {
	return net.JoinHostPort(managementAddress(s.Management, role).Addr().String(), "22"), nil
}

// linkNetwork is a bridge that joins two nodes and on which the host itself has no address: no
// DHCP, no DNS, no dnsmasq, no forwarding.
func linkNetwork(id ident, index int, link testbed.LinkSpec) *libvirtxml.Network {
	return &libvirtxml.Network{
		Name:   id.link(index),
		Bridge: &libvirtxml.NetworkBridge{Name: id.bridge(fmt.Sprint("l", index)), STP: "off", Delay: "0"},
		MTU:    &libvirtxml.NetworkMTU{Size: uint(link.MTU)},
		DNS:    &libvirtxml.NetworkDNS{Enable: "no"},
	}
}

// managementNetwork is the bridge over which the host reaches the nodes. The host has its first
// address; nothing is forwarded or translated.
func managementNetwork(id ident, subnet netip.Prefix) *libvirtxml.Network {
	return &libvirtxml.Network{
		Name:   id.management(),
		Bridge: &libvirtxml.NetworkBridge{Name: id.bridge(partManagement), STP: "off", Delay: "0"},
		DNS:    &libvirtxml.NetworkDNS{Enable: "no"},
		IPs: []libvirtxml.NetworkIP{{
			Family:  "ipv4",
			Address: subnet.Masked().Addr().Next().String(),
			Prefix:  uint(subnet.Bits()),
		}},
	}
}

// managementAddress is the address of role in the management network: the host has the first.
func managementAddress(subnet netip.Prefix, role testbed.Role) netip.Prefix {
	addr := subnet.Masked().Addr().Next().Next()
	for range roleNumber(role) {
		addr = addr.Next()
	}
	return netip.PrefixFrom(addr, subnet.Bits())
}

// managementPools are where management subnets are taken from: corners of the private ranges
// (RFC 1918) that neither libvirt's default network, nor Docker, nor home routers use by default.
var managementPools = []netip.Prefix{
	netip.MustParsePrefix("10.254.0.0/16"),
	netip.MustParsePrefix("192.168.224.0/19"),
	netip.MustParsePrefix("172.31.240.0/20"),
}

// managementBits is the length of a management subnet's prefix: host and three nodes need five of
// fourteen addresses.
const managementBits = 28

// freeSubnet returns a management subnet that overlaps nothing in used. The search begins at a place
// that the id decides, so that two testbeds made at the same moment rarely want the same one.
func freeSubnet(id ident, used []netip.Prefix) (netip.Prefix, bool) {
	h := fnv.New32a()
	h.Write([]byte(id.String()))
	for _, pool := range managementPools {
		n := uint32(1) << (managementBits - pool.Bits())
		for i := range n {
			subnet := nthSubnet(pool, (h.Sum32()+i)%n)
			if !overlapsAny(subnet, used) {
				return subnet, true
			}
		}
	}
	return netip.Prefix{}, false
}

func nthSubnet(pool netip.Prefix, n uint32) netip.Prefix {
	a := pool.Masked().Addr().As4()
	v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
	v += n << (32 - managementBits)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), managementBits)
}

func overlapsAny(p netip.Prefix, used []netip.Prefix) bool {
	for _, u := range used {
		if p.Overlaps(u) {
			return true
		}
	}
	return false
}

// networkPrefixes are the IPv4 subnets of every network that libvirt knows, running or not.
func networkPrefixes(ctx context.Context, c *conn) ([]netip.Prefix, error) {
	nets, err := listNetworks(ctx, c)
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	for _, n := range nets {
		doc, err := ask(ctx, c, "describe network "+n.Name, func(l *rpc.Libvirt) (string, error) {
			return l.NetworkGetXMLDesc(n, 0)
		})
		if ignoreMissing(err) != nil {
			return nil, err
		}
		if err != nil {
			continue // gone since it was listed
		}
		prefixes, err := parseNetworkPrefixes(doc)
		if err != nil {
			return nil, fmt.Errorf("describe network %s: %w", n.Name, err)
		}
		used = append(used, prefixes...)
	}
	return used, nil
}

func parseNetworkPrefixes(doc string) ([]netip.Prefix, error) {
	var n libvirtxml.Network
	if err := n.Unmarshal(doc); err != nil {
		return nil, err
	}
	var out []netip.Prefix
	for _, ip := range n.IPs {
		addr, err := netip.ParseAddr(ip.Address)
		if err != nil || !addr.Is4() {
			continue
		}
		bits := int(ip.Prefix)
		if mask := net.ParseIP(ip.Netmask).To4(); bits == 0 && mask != nil {
			bits, _ = net.IPMask(mask).Size()
		}
		if bits > 0 && bits <= 32 {
			out = append(out, netip.PrefixFrom(addr, bits).Masked())
		}
	}
	return out, nil
}

func listNetworks(ctx context.Context, c *conn) ([]rpc.Network, error) {
	return ask(ctx, c, "list networks", func(l *rpc.Libvirt) ([]rpc.Network, error) {
		nets, _, err := l.ConnectListAllNetworks(1, 0)
		return nets, err
	})
}

// createNetwork starts a transient network.
func createNetwork(ctx context.Context, c *conn, n *libvirtxml.Network) error {
	doc, err := n.Marshal()
	if err != nil {
		return fmt.Errorf("write network %s: %w", n.Name, err)
	}
	_, err = ask(ctx, c, "create network "+n.Name, func(l *rpc.Libvirt) (rpc.Network, error) {
		return l.NetworkCreateXML(doc)
	})
	return err
}

// createManagement starts the management network on a free subnet. Between looking and taking
// somebody else may have taken it; libvirt then refuses, and the next is tried.
func createManagement(ctx context.Context, p *Provider, c *conn, id ident, spec testbed.Spec) (netip.Prefix, error) {
	used, err := usedPrefixes(ctx, p.endpoint.host, c)
	if err != nil {
		return netip.Prefix{}, err
	}
	used = append(used, linkPrefixes(spec)...)
	var last error
	for range 8 {
		subnet, ok := freeSubnet(id, used)
		if !ok {
			return netip.Prefix{}, fmt.Errorf("choose management network: %w", blocked(p.noSubnet(), nil))
		}
		if last = createNetwork(ctx, c, managementNetwork(id, subnet)); last == nil {
			return subnet, nil
		}
		if !isCode(last, rpc.ErrInternalError, rpc.ErrOperationFailed) {
			break
		}
		used = append(used, subnet)
	}
	return netip.Prefix{}, last
}

// usedPrefixes are the IPv4 networks that the host or its libvirt has any use for.
func usedPrefixes(ctx context.Context, h host, c *conn) ([]netip.Prefix, error) {
	used, err := hostPrefixes(ctx, h)
	if err != nil {
		return nil, err
	}
	known, err := networkPrefixes(ctx, c)
	return append(used, known...), err
}

func linkPrefixes(spec testbed.Spec) (used []netip.Prefix) {
	for _, l := range spec.Links {
		used = append(used, l.Network.Masked())
	}
	return used
}

// destroyNetwork stops a network; a transient one is then gone.
func destroyNetwork(ctx context.Context, c *conn, n rpc.Network) error {
	err := c.do(ctx, callLimit, "remove network "+n.Name, func(l *rpc.Libvirt) error { return l.NetworkDestroy(n) })
	return ignoreMissing(err)
}

// networkFolder is where libvirt notes the addresses on its bridges (bridge_driver.c). It makes the
// folder when it first starts a dnsmasq, and not for networks like ours, which need none: where no
// other network was ever started, the first machine then fails with "Failed to create file".
const networkFolder = "/var/lib/libvirt/dnsmasq"

// ensureNetworkFolder has libvirt make the folder, which a user who is not root could not: by
// building a storage pool there and forgetting it.
func ensureNetworkFolder(ctx context.Context, h host, c *conn) error {
	if exists(ctx, h, networkFolder) {
		return nil
	}
	x := poolXML("rampart-"+newIdent("folder").String(), networkFolder)
	x.Target.Permissions.Mode = "0755"
	doc, err := x.Marshal()
	if err != nil {
		return fmt.Errorf("make %s: %w", networkFolder, err)
	}
	err = c.do(ctx, callLimit, "make "+networkFolder, func(l *rpc.Libvirt) error {
		pool, err := l.StoragePoolCreateXML(doc, rpc.StoragePoolCreateWithBuild)
		if err != nil {
			return err
		}
		return l.StoragePoolDestroy(pool)
	})
	if err != nil {
		return fmt.Errorf("%w: make it: mkdir -p %s", err, networkFolder)
	}
	return nil
}
