package firewall

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// chainOf is three namespaces in a chain, joined by veth. The test's thread is in the middle one.
type chainOf struct {
	sender, receiver netns.NsHandle
	tag              byte
}

// intruder is an address of the sender's network that no entry accepts.
var intruder = netip.MustParseAddr("10.77.1.9")

const port = 5001

func newChain(t *testing.T) *chainOf {
	t.Helper()
	isolate(t)
	middle, err := netns.Get()
	must(t, err)
	t.Cleanup(func() { middle.Close() })
	end := func() netns.NsHandle {
		ns, err := netns.New()
		must(t, err)
		t.Cleanup(func() { ns.Close() })
		must(t, netns.Set(middle))
		return ns
	}
	c := &chainOf{sender: end(), receiver: end()}
	must(t, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)) // of this thread's namespace
	here, err := netlink.NewHandle()
	must(t, err)
	join(t, here, c.sender, "inside", []string{"10.77.1.1/24", intruder.String() + "/24"}, "10.77.1.2/24")
	join(t, here, c.receiver, "outside", []string{"10.77.2.2/24"}, "10.77.2.1/24")
	return c
}

// join makes a veth pair between here and far, which reaches everything else through here.
func join(t *testing.T, here *netlink.Handle, far netns.NsHandle, name string, farAddrs []string, hereAddr string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(t, here.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(far)}))
	there, err := netlink.NewHandleAt(far)
	must(t, err)
	defer there.Close()
	up := func(h *netlink.Handle, name string, addrs ...string) netlink.Link {
		link, err := h.LinkByName(name)
		must(t, err)
		for _, a := range addrs {
			addr, err := netlink.ParseAddr(a)
			must(t, err)
			must(t, h.AddrAdd(link, addr))
		}
		must(t, h.LinkSetUp(link))
		return link
	}
	up(here, name, hereAddr)
	link := up(there, "eth0", farAddrs...)
	gateway := netip.MustParsePrefix(hereAddr).Addr()
	must(t, there.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}))
}

// socket opens a UDP socket in a namespace.
func (c *chainOf) socket(t *testing.T, ns netns.NsHandle, addr netip.Addr) *net.UDPConn {
	t.Helper()
	before, err := netns.Get()
	must(t, err)
	defer before.Close()
	must(t, netns.Set(ns))
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
	must(t, netns.Set(before))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const payload = 100 // bytes of UDP payload; 128 of IP

// pass sends n datagrams and returns how many arrive, of which it waits longer for those it wants.
func (c *chainOf) pass(t *testing.T, from, to *net.UDPConn, n, want int) (arrived int) {
	t.Helper()
	patience := 5 * time.Second
	if want == 0 {
		patience = 200 * time.Millisecond
	}
	c.tag++ // so that late ones of before do not count
	content := make([]byte, payload)
	content[0] = c.tag
	target := to.LocalAddr().(*net.UDPAddr).AddrPort()
	for range n {
		_, err := from.WriteToUDPAddrPort(content, target)
		must(t, err)
	}
	must(t, to.SetReadDeadline(time.Now().Add(patience)))
	for buf := make([]byte, 2048); arrived < n; {
		_, _, err := to.ReadFromUDPAddrPort(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		must(t, err)
		if buf[0] == c.tag {
			arrived++
		}
	}
	return arrived
}

// settle waits until new links carry packets both ways.
func (c *chainOf) settle(t *testing.T, a, b *net.UDPConn) {
	t.Helper()
	for start := time.Now(); c.pass(t, a, b, 1, 0) == 0 || c.pass(t, b, a, 1, 0) == 0; {
		if time.Since(start) > 10*time.Second {
			t.Fatal("packets are lost without a firewall")
		}
	}
}

// TestPackets sends real packets through every engine: those of sender and receiver pass and are
// counted, in number and bytes, those of another address do not.
func TestPackets(t *testing.T) {
	for _, arm := range arms {
		t.Run(arm.engine+"-"+arm.lookup, func(t *testing.T) {
			c := newChain(t)
			from, to := c.socket(t, c.sender, sender), c.socket(t, c.receiver, receiver)
			other := c.socket(t, c.sender, intruder)
			c.settle(t, from, to)
			c.settle(t, other, to)
			e := mustNew(t, arm.engine, arm.lookup)
			for _, position := range []string{Last, First, Uniform} {
				rules := ruleSet(100, position)
				mustLoad(t, e, rules)
				for _, step := range []struct {
					from, to   *net.UDPConn
					send, want int
				}{{from, to, 7, 7}, {to, from, 5, 5}, {other, to, 3, 0}} {
					if got := c.pass(t, step.from, step.to, step.send, step.want); got != step.want {
						t.Errorf("%s: %d of %d packets from %s arrived, want %d", position, got, step.send, step.from.LocalAddr(), step.want)
					}
				}
				got, err := e.(Counter).Counters(t.Context(), rules)
				must(t, err)
				want := Counters{FromSender: Count{7, 7 * 128}, FromReceiver: Count{5, 5 * 128}}
				if arm.lookup == Indexed {
					want = Counters{FromSender: Count{12, 12 * 128}, Combined: true}
				}
				if got != want {
					t.Errorf("%s: counters %+v, want %+v", position, got, want)
				}
				wantClean(t, mustVerify(t, e, rules), nil) // counters change nothing
			}
			must(t, e.Unload(t.Context()))
			if c.pass(t, other, to, 3, 3) != 3 {
				t.Error("packets are dropped after unloading")
			}
		})
	}
}

// TestControlPackets: the controls let everything pass.
func TestControlPackets(t *testing.T) {
	for _, engine := range []string{None, Empty} {
		t.Run(engine, func(t *testing.T) {
			c := newChain(t)
			other, to := c.socket(t, c.sender, intruder), c.socket(t, c.receiver, receiver)
			e := mustNew(t, engine, "")
			c.settle(t, other, to)
			mustLoad(t, e, RuleSet{})
			if c.pass(t, other, to, 3, 3) != 3 {
				t.Error("packets are lost")
			}
		})
	}
}
