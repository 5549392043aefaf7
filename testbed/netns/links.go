package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

// ipNet is p as package netlink wants it.
func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// withNetlink runs f on the thread with a netlink handle of its namespace.
func (t *thread) withNetlink(f func(*netlink.Handle) error) error {
	return t.do(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()
		return f(h)
	})
}

// prepare makes a new namespace ready for links.
func prepare(t *thread, role testbed.Role) error {
	return t.withNetlink(func(h *netlink.Handle) error {
		if err := setSysctls(namespaceSysctls(role)); err != nil {
			return err
		}
		lo, err := h.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("find lo: %w", err)
		}
		if err := h.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
		return nil
	})
}

// makeLink makes the i-th link of spec: a pair of veth with one end in each thread's namespace. No
// interface exists in the host's namespace at any moment, so that none can be left there.
func makeLink(spec testbed.Spec, i int, first, second *thread) error {
	l := spec.Links[i]
	far, err := second.open()
	if err != nil {
		return fmt.Errorf("make link %s: %w", l.Name, err)
	}
	defer far.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.Name
	attrs.MTU = l.MTU
	attrs.TxQLen = txQueueLen
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1 // the default is one for each CPU of the host
	attrs.HardwareAddr = mac(spec, i, l.Nodes[0])
	veth := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         l.Name,
		PeerHardwareAddr: mac(spec, i, l.Nodes[1]),
		PeerNamespace:    netlink.NsFd(int(far.Fd())),
		PeerTxQLen:       txQueueLen,
		PeerNumTxQueues:  1,
		PeerNumRxQueues:  1,
		PeerMTU:          uint32(l.MTU),
	}
	err = first.withNetlink(func(h *netlink.Handle) error { return h.LinkAdd(veth) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return unable("modprobe veth", "this kernel has no veth links, or may not load their module")
	}
	if err != nil {
		return fmt.Errorf("make link %s: %w", l.Name, err)
	}
	return nil
}

// moveLink moves the link called name from one namespace to another. It reports false when there is
// no such link.
func moveLink(name string, from *thread, to *os.File) (bool, error) {
	moved := false
	err := from.withNetlink(func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := h.LinkSetNsFd(link, int(to.Fd())); err != nil {
			return err
		}
		moved = true
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("move link %s: %w", name, err)
	}
	return moved, nil
}

// deleteLinks deletes every veth of the thread's namespace, and with each its other end. Without it
// they would live until the kernel gets round to the dead namespace, or for as long as somebody else
// keeps it alive.
func deleteLinks(t *thread) error {
	return t.withNetlink(func(h *netlink.Handle) error {
		links, err := h.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, link := range links {
			if link.Type() != "veth" {
				continue
			}
			if err := h.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("delete link %s: %w", link.Attrs().Name, err)
			}
		}
		return nil
	})
}

// configure brings the links of role into the state that the Spec asks for. It may be repeated.
func configure(t *thread, spec testbed.Spec, role testbed.Role) error {
	err := t.withNetlink(func(h *netlink.Handle) error {
		for _, e := range ends(spec, role) {
			if err := configureEnd(h, e); err != nil {
				return fmt.Errorf("configure link %s: %w", e.link.Name, err)
			}
		}
		for _, r := range spec.Routes(role) {
			route := &netlink.Route{Dst: ipNet(r.Destination), Gw: r.Via.AsSlice()}
			if err := h.RouteReplace(route); err != nil {
				return fmt.Errorf("add route to %s via %s: %w", r.Destination, r.Via, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", role, err)
	}
	return nil
}

func configureEnd(h *netlink.Handle, e end) error {
	link, err := h.LinkByName(e.link.Name)
	if err != nil {
		return err
	}
	if !e.link.Offloads {
		if err := offloadsOff(e.link.Name); err != nil {
			return err
		}
	}
	if err := h.AddrReplace(link, &netlink.Addr{IPNet: ipNet(e.addr)}); err != nil {
		return fmt.Errorf("add address %s: %w", e.addr, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	for _, n := range e.neighbour {
		entry := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT,
			IP: n.ip.AsSlice(), HardwareAddr: n.mac,
		}
		if err := h.NeighSet(entry); err != nil {
			return fmt.Errorf("add neighbour %s: %w", n.ip, err)
		}
	}
	return setSysctls(linkSysctls(e.link.Name))
}

// offloadsOff switches off every offload that can be switched. What stays on is found by [verify].
func offloadsOff(link string) error {
	tool, features, err := openFeatures(link)
	if err != nil {
		return err
	}
	defer tool.Close()
	off := map[string]bool{}
	for name, state := range features {
		if isOffload(name) && state.Available && (state.Active || state.Requested) {
			off[name] = false
		}
	}
	if len(off) == 0 {
		return nil
	}
	if err := tool.Change(link, off); err != nil {
		return fmt.Errorf("switch offloads off: %w", err)
	}
	return nil
}

// openFeatures reads the features of an interface and leaves the tool open to change them.
func openFeatures(link string) (*ethtool.Ethtool, map[string]ethtool.FeatureState, error) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return nil, nil, fmt.Errorf("open ethtool: %w", err)
	}
	features, err := tool.FeaturesWithState(link)
	if err != nil {
		tool.Close()
		return nil, nil, fmt.Errorf("read features: %w", err)
	}
	return tool, features, nil
}

// sysctlFolder is looked up by the kernel in the namespace of the thread that opens a file in it.
const sysctlFolder = "/proc/sys/net"

func setSysctls(list []sysctl) error {
	for _, s := range list {
		// Not os.WriteFile: it would make a file that does not exist, and fail in a confusing way.
		f, err := os.OpenFile(filepath.Join(sysctlFolder, s.path), os.O_WRONLY, 0)
		if errors.Is(err, fs.ErrNotExist) && s.optional {
			continue
		}
		if err == nil {
			_, err = f.WriteString(s.value)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("set net/%s = %s: %w", s.path, s.value, err)
		}
	}
	return nil
}
