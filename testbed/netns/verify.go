package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

// settleTime is how long the kernel may take to report a link that was set up as running. It does so
// from a work queue (net/core/link_watch.c), at once for the first link in a second and within that second
// for others.
const settleTime = 2 * time.Second

// verify waits for the links of a node to come up, then reads back everything that was configured on it
// and returns an error that lists what is not as the Spec asks.
func verify(ctx context.Context, t *thread, spec testbed.Spec, role testbed.Role) error {
	if err := settle(ctx, t, ends(spec, role)); err != nil {
		return fmt.Errorf("wait for links of %s: %w", role, err)
	}
	wrong, err := differences(t, spec, role)
	if err != nil {
		return fmt.Errorf("read back %s: %w", role, err)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s is not as it was configured: %s", role, strings.Join(wrong, "; "))
	}
	return nil
}

// settle waits until the links are up, or until it is clear that they will not be. It looks less and less
// often: where an instruction takes a nanosecond, looking is what takes the time.
func settle(ctx context.Context, t *thread, list []end) error {
	deadline := time.Now().Add(settleTime)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		up, err := running(t, list)
		if err != nil || up || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// running reports whether the kernel calls all of the links up.
func running(t *thread, list []end) (up bool, err error) {
	up = true
	err = t.withNetlink(func(h *netlink.Handle) error {
		for _, e := range list {
			link, err := h.LinkByName(e.link.Name)
			if err != nil {
				return fmt.Errorf("link %s: %w", e.link.Name, err)
			}
			up = up && link.Attrs().OperState == netlink.OperUp
		}
		return nil
	})
	return up, err
}

// A report collects differences between what is and what should be.
type report []string

func (r *report) want(what string, got, want any) {
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		*r = append(*r, fmt.Sprintf("%s is %s, want %s", what, g, w))
	}
}

// differences compares a node with the Spec.
func differences(t *thread, spec testbed.Spec, role testbed.Role) ([]string, error) {
	var r report
	err := t.withNetlink(func(h *netlink.Handle) error {
		if err := compareSysctls(&r, namespaceSysctls(role)); err != nil {
			return err
		}
		list := ends(spec, role)
		if err := compareLinks(&r, h, list); err != nil {
			return err
		}
		for _, e := range list {
			if err := compareEnd(&r, h, e); err != nil {
				return fmt.Errorf("link %s: %w", e.link.Name, err)
			}
		}
		return compareRoutes(&r, h, spec, role)
	})
	return r, err
}

func compareSysctls(r *report, list []sysctl) error {
	for _, s := range list {
		got, err := os.ReadFile(filepath.Join(sysctlFolder, s.path))
		if errors.Is(err, fs.ErrNotExist) && s.optional {
			continue
		}
		if err != nil {
			return fmt.Errorf("read net/%s: %w", s.path, err)
		}
		r.want("net/"+s.path, string(bytes.TrimSpace(got)), s.value)
	}
	return nil
}

// compareLinks looks for links that should not be there. Some kernels give every namespace idle
// tunnel devices; a link that is down carries nothing.
func compareLinks(r *report, h *netlink.Handle, list []end) error {
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var got []string
	for _, link := range links {
		if link.Attrs().Flags&net.FlagUp != 0 {
			got = append(got, link.Attrs().Name)
		}
	}
	want := []string{"lo"}
	for _, e := range list {
		want = append(want, e.link.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	r.want("the set of links that are up", got, want)
	return nil
}

func compareEnd(r *report, h *netlink.Handle, e end) error {
	name := e.link.Name
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	attrs := link.Attrs()
	r.want(name+" mtu", attrs.MTU, e.link.MTU)
	r.want(name+" hardware address", attrs.HardwareAddr, e.mac)
	r.want(name+" carrier", attrs.RawFlags&unix.IFF_LOWER_UP != 0, true)
	r.want(name+" state", attrs.OperState, netlink.LinkOperState(netlink.OperUp))
	r.want(name+" transmit queues", attrs.NumTxQueues, 1)
	r.want(name+" receive queues", attrs.NumRxQueues, 1)
	r.want(name+" transmit queue length", attrs.TxQLen, txQueueLen)

	addrs, err := h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	var have []string
	for _, a := range addrs {
		have = append(have, a.IPNet.String())
	}
	r.want(name+" addresses", have, []string{e.addr.String()})

	if err := compareNeighbours(r, h, attrs.Index, e); err != nil {
		return err
	}
	if err := compareQdisc(r, h, link); err != nil {
		return err
	}
	if !e.link.Offloads {
		if err := compareOffloads(r, name); err != nil {
			return err
		}
	}
	return compareSysctls(r, linkSysctls(name))
}

func compareNeighbours(r *report, h *netlink.Handle, index int, e end) error {
	entries, err := h.NeighList(index, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list neighbours: %w", err)
	}
	for _, want := range e.neighbour {
		got := "not there"
		for _, n := range entries {
			if n.IP.Equal(want.ip.AsSlice()) {
				got = fmt.Sprintf("%v permanent=%v", n.HardwareAddr, n.State == netlink.NUD_PERMANENT)
			}
		}
		r.want(fmt.Sprintf("%s neighbour %s", e.link.Name, want.ip), got, fmt.Sprintf("%v permanent=true", want.mac))
	}
	return nil
}

// compareQdisc holds that a frame is handed to the other end at once: a queue would be part of what
// is measured.
func compareQdisc(r *report, h *netlink.Handle, link netlink.Link) error {
	qdiscs, err := h.QdiscList(link)
	if err != nil {
		return fmt.Errorf("list queueing disciplines: %w", err)
	}
	var have []string
	for _, q := range qdiscs {
		have = append(have, q.Type())
	}
	r.want(link.Attrs().Name+" queueing disciplines", have, []string{"noqueue"})
	return nil
}

func compareOffloads(r *report, link string) error {
	tool, features, err := openFeatures(link)
	if err != nil {
		return err
	}
	defer tool.Close()
	var on []string
	for name, state := range features {
		if isOffload(name) && state.Active {
			if !state.Available {
				name += " (fixed: this kernel cannot switch it off)"
			}
			on = append(on, name)
		}
	}
	slices.Sort(on)
	r.want(link+" offloads", on, []string(nil))
	return nil
}

func compareRoutes(r *report, h *netlink.Handle, spec testbed.Spec, role testbed.Role) error {
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	var got, want []string
	for _, route := range routes {
		text := route.Dst.String()
		if route.Gw != nil {
			text += " via " + route.Gw.String()
		}
		got = append(got, text)
	}
	for _, e := range ends(spec, role) {
		want = append(want, e.addr.Masked().String())
	}
	for _, route := range spec.Routes(role) {
		want = append(want, route.Destination.String()+" via "+route.Via.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	r.want("routes", got, want)
	return nil
}
