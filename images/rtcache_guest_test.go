package images

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// This file is what runs in the virtual machine of TestRtcache: this test binary as a driver that
// loads the module, makes traffic through it, takes away what it holds, and says on the console, a
// line each, what became of every trial.

// The lines of the driver on the console.
const (
	guestPrefix = "rtcache trial: "
	guestOK     = "ok: "
	guestFailed = "failed: "
	guestDone   = "done"
)

// guestArgument as the first argument makes the test binary the driver. What follows are the module's
// file, how often to load and unload it, and whether the kernel is Debian's, so that nothing may be left out.
const guestArgument = "rtcache-guest"

// A trial does one thing to the module and returns a figure, or fails with a guestError.
type trial struct {
	name string
	run  func(*guest) string
}

type guestError struct{ error }

func fail(format string, args ...any) { panic(guestError{fmt.Errorf(format, args...)}) }

func must(err error) {
	if err != nil {
		fail("%w", err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

// guest is the machine.
type guest struct {
	module string // file
	cycles int    // of loading and unloading
	debian bool   // everything must be tried
	home   netns.NsHandle
	log    *kernelLog
	routes int // in use before anything was done
}

// guestMain runs all trials and returns the process's exit status.
func guestMain(args []string) int {
	say := func(line string) { fmt.Println(guestPrefix + line) }
	g := &guest{}
	prepare := trial{"prepare", func(*guest) string {
		if len(args) != 3 {
			fail("want a module, a number of cycles and whether the kernel is Debian's, got %q", args)
		}
		g.module, g.cycles, g.debian = args[0], get(strconv.Atoi(args[1])), get(strconv.ParseBool(args[2]))
		g.home = get(netns.Get())
		g.log = readKernelLog()
		g.routes = settledRoutes()
		return fmt.Sprintf("%d CPUs, %d routes in use", runtime.NumCPU(), g.routes)
	}}
	for _, t := range append([]trial{prepare}, trials()...) {
		began := time.Now()
		figure, err := t.try(g)
		if err != nil {
			say(guestFailed + t.name + ": " + strings.ReplaceAll(err.Error(), "\n", "; "))
			continue
		}
		say(fmt.Sprintf("%s%s: %s (%.1f s)", guestOK, t.name, figure, time.Since(began).Seconds()))
	}
	say(guestDone)
	return 0
}

func (t trial) try(g *guest) (figure string, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case guestError:
			err = r.error
			_ = unix.DeleteModule("rtcache", 0) // for the next trial
		default:
			panic(r)
		}
	}()
	return t.run(g), nil
}

func trials() []trial {
	return []trial{
		{"a one-way flow is served", oneWay},
		{"both ways with address translation", translated},
		{"a flow older than the module is served", older},
		{"nothing without conntrack", untracked},
		{"nothing while switched off", switchedOff},
		{"IP options are left alone", optionsAlone},
		{"a way back out is left alone", wayBack},
		{"several next hops are left alone", severalHops},
		{"a VRF is left alone", vrf},
		{"bridged packets are left alone", bridged},
		{"IPsec is left alone", ipsec},
		{"a blackhole route takes effect at once", blackhole},
		{"a deleted route takes effect at once", deletedRoute},
		{"a policy rule takes effect at once", policyRule},
		{"a mark takes effect at once", marked},
		{"rp_filter takes effect at once", spoofed},
		{"an interface address takes effect at once", localAddress},
		{"forwarding switched off takes effect at once", notForwarding},
		{"an invalid route is let go", letGo},
		{"flood of flows larger than the table", flood},
		{"route flaps under load", flaps},
		{"device down under load", deviceDown},
		{"device removed under load", deviceRemoved},
		{"namespace exit with live entries", namespaceExit},
		{"load and unload under load", loadUnload},
		{"no route left in the slab", noRouteLeft},
		{"no leak (kmemleak)", noLeak},
		{"no warning in the kernel log", noWarning},
	}
}

// A space is a network namespace. It lives until close.
type space struct {
	home, ns netns.NsHandle
	link     *netlink.Handle
}

func (g *guest) space() *space {
	s := &space{home: g.home}
	s.enter(g.home, func() {
		s.ns = get(netns.New())
		s.link = get(netlink.NewHandle())
	})
	lo := get(s.link.LinkByName("lo"))
	must(s.link.LinkSetUp(lo))
	return s
}

// enter runs f on a thread in a namespace, and brings the thread home.
func (s *space) enter(ns netns.NsHandle, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(netns.Set(ns))
	defer func() {
		if err := netns.Set(s.home); err != nil {
			panic(err)
		}
	}()
	f()
}

func (s *space) do(f func()) { s.enter(s.ns, f) }

func (s *space) close() {
	s.link.Close()
	must(s.ns.Close())
}

// try runs a command in the namespace.
func (s *space) try(argv ...string) (err error) {
	s.do(func() {
		if out, failed := exec.Command(argv[0], argv[1:]...).CombinedOutput(); failed != nil {
			err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), failed, out)
		}
	})
	return err
}

func (s *space) command(argv ...string) { must(s.try(argv...)) }

// rules has nft read a rule-set.
func (s *space) rules(text string) { s.command("nft", text) }

func (s *space) sysctl(name, value string) {
	s.do(func() { must(os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0)) })
}

// stats reads /proc/net/rtcache.
func (s *space) stats() map[string]int {
	stats := map[string]int{}
	s.do(func() {
		text := get(os.ReadFile("/proc/thread-self/net/rtcache"))
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			stats[name] = get(strconv.Atoi(value))
		}
	})
	return stats
}

// A lab is a sender and a receiver with a firewall that forwards and tracks between them.
type lab struct {
	sender, firewall, receiver *space
	sink                       *sink
}

const (
	senderAddr   = "10.0.1.1"
	insideAddr   = "10.0.1.2"
	outsideAddr  = "10.0.2.2"
	receiverAddr = "10.0.2.1"
	sinkPort     = 5000
	tracking     = "table ip track { chain c { type filter hook forward priority 0; ct state invalid counter; }; }"
)

// lab makes the namespaces; rules is what nft loads in the firewall.
func (g *guest) lab(rules string) *lab {
	l := &lab{sender: g.space(), firewall: g.space(), receiver: g.space()}
	connect(l.sender, "s0", senderAddr, l.firewall, "f0", insideAddr)
	connect(l.receiver, "r0", receiverAddr, l.firewall, "f1", outsideAddr)
	gateway(l.sender, insideAddr)
	gateway(l.receiver, outsideAddr)
	l.firewall.sysctl("net.ipv4.ip_forward", "1")
	if rules != "" {
		l.firewall.rules(rules)
	}
	l.sink = l.receiver.sink(sinkPort)
	return l
}

func (l *lab) close() {
	l.sink.close()
	for _, s := range []*space{l.firewall, l.sender, l.receiver} {
		s.close()
	}
}

// connect joins two namespaces with a veth pair.
func connect(a *space, aName, aAddr string, b *space, bName, bAddr string) {
	must(a.link.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: aName}, PeerName: bName, PeerNamespace: netlink.NsFd(b.ns),
	}))
	for _, end := range []struct {
		s          *space
		name, addr string
	}{{a, aName, aAddr}, {b, bName, bAddr}} {
		link := get(end.s.link.LinkByName(end.name))
		must(end.s.link.AddrAdd(link, get(netlink.ParseAddr(end.addr+"/24"))))
		must(end.s.link.LinkSetUp(link))
	}
}

func gateway(s *space, addr string) {
	must(s.link.RouteAdd(&netlink.Route{Gw: net.ParseIP(addr)}))
}

func host(addr string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(addr), Mask: net.CIDRMask(32, 32)}
}

// A sink counts datagrams.
type sink struct {
	conn *net.UDPConn
	got  atomic.Int64
	echo atomic.Bool
}

func (s *space) sink(port uint16) *sink {
	k := &sink{}
	s.do(func() { k.conn = get(net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})) })
	must(k.conn.SetReadBuffer(1 << 20))
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := k.conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			k.got.Add(1)
			if k.echo.Load() {
				_, _ = k.conn.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	}()
	return k
}

func (k *sink) close() { _ = k.conn.Close() }

// flow opens a flow from one end to another.
func (s *space) flow(from, to string, port uint16) *net.UDPConn {
	var c *net.UDPConn
	s.do(func() {
		c = get(net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), port))))
	})
	return c
}

// pass sends n datagrams and waits for as many.
func (l *lab) pass(c *net.UDPConn, n int) {
	before := l.sink.got.Load()
	for range n {
		_, err := c.Write([]byte("rtcache"))
		must(err)
	}
	for end := time.Now().Add(10 * time.Second); l.sink.got.Load() < before+int64(n); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			fail("%d of %d packets arrived; %v", l.sink.got.Load()-before, n, l.firewall.stats())
		}
	}
}

// stop sends n datagrams and sees that none arrives.
func (l *lab) stop(c *net.UDPConn, n int) {
	before := l.sink.got.Load()
	for range n {
		_, _ = c.Write([]byte("rtcache")) // what was refused may be reported here
	}
	time.Sleep(100 * time.Millisecond)
	if got := l.sink.got.Load() - before; got != 0 {
		fail("%d of %d packets arrived that nothing allows; %v", got, n, l.firewall.stats())
	}
}

// cached sends on a flow until it is served from the cache.
func (l *lab) cached(c *net.UDPConn) {
	before := l.firewall.stats()["hits"]
	for range 100 {
		l.pass(c, 20)
		if l.firewall.stats()["hits"] > before+10 {
			return
		}
	}
	fail("a flow is not served; %v", l.firewall.stats())
}

// bypassed sends on a flow and sees that nothing of it is served or kept.
func (l *lab) bypassed(send func()) {
	before := l.firewall.stats()
	send()
	after := l.firewall.stats()
	if after["hits"] != before["hits"] || after["entries"] != before["entries"] {
		fail("the cache took part: %v, then %v", before, after)
	}
}

// load loads the module.
func (g *guest) load(params string) {
	f := get(os.Open(g.module))
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), params, 0); err != nil {
		fail("load %s: %w", g.module, err)
	}
}

func (g *guest) unload() {
	if err := unix.DeleteModule("rtcache", unix.O_NONBLOCK); err != nil {
		fail("unload: %w", err)
	}
}

// with makes a lab with the cache on, runs f and takes all away.
func (g *guest) with(rules string, f func(*lab) string) string {
	g.load("")
	l := g.lab(rules)
	defer l.close()
	l.firewall.sysctl("net.rtcache.enabled", "1")
	figure := f(l)
	balanced(l.firewall)
	g.unload()
	return figure
}

// balanced sees that no entry is unaccounted for. Traffic has stopped; ageing may be at work.
func balanced(s *space) {
	for range 10 {
		n := s.stats()
		if n["entries"] == n["learned"]-n["replaced"]-n["aged"]-n["dropped"] {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	fail("entries do not add up: %v", s.stats())
}

func oneWay(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		l.pass(c, 200)
		n := l.firewall.stats()
		// The first packet has no confirmed connection yet.
		if n["hits"] < 100 || n["hits"]+n["misses"] != 199 || n["entries"] != 1 || n["learned"] != 1 {
			fail("%v", n)
		}
		return fmt.Sprintf("%d of 200 packets", n["hits"])
	})
}

func translated(g *guest) string {
	return g.with(tracking+`
table ip nat {
	chain pre { type nat hook prerouting priority -100; udp dport 7000 dnat to `+receiverAddr+`:5000; }
	chain post { type nat hook postrouting priority 100; oifname "f1" masquerade; }
}`, func(l *lab) string {
		l.sink.echo.Store(true)
		c := l.sender.flow(senderAddr, insideAddr, 7000)
		defer c.Close()
		buf := make([]byte, 100)
		for range 100 {
			get(c.Write([]byte("rtcache")))
			must(c.SetReadDeadline(time.Now().Add(5 * time.Second)))
			get(c.Read(buf))
		}
		n := l.firewall.stats()
		if n["hits"] < 100 || n["entries"] != 2 {
			fail("%v", n)
		}
		return fmt.Sprintf("%d of 200 packets", n["hits"])
	})
}

func older(g *guest) string {
	l := g.lab(tracking)
	defer l.close()
	c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
	defer c.Close()
	l.pass(c, 10)
	g.load("")
	l.firewall.sysctl("net.rtcache.enabled", "1")
	l.cached(c)
	g.unload()
	l.pass(c, 10)
	return "served"
}

func untracked(g *guest) string {
	return g.with("", func(l *lab) string {
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		l.pass(c, 100)
		if n := l.firewall.stats(); n["hits"] != 0 || n["misses"] != 0 {
			fail("%v", n)
		}
		l.firewall.do(func() {
			count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
			if err == nil && strings.TrimSpace(string(count)) != "0" {
				fail("connections are tracked: %s", count)
			}
		})
		return "no connection, no entry"
	})
}

func switchedOff(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		for range 20 {
			l.cached(c)
			l.firewall.sysctl("net.rtcache.enabled", "0")
			l.pass(c, 10)
			if n := l.firewall.stats(); n["enabled"] != 0 || n["hits"] != 0 {
				fail("%v", n)
			}
			l.firewall.sysctl("net.rtcache.enabled", "1")
		}
		if n := l.sender.stats(); n["enabled"] != 0 {
			fail("another namespace was switched on: %v", n)
		}
		return "20 times off and on"
	})
}

func optionsAlone(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		raw := get(c.SyscallConn())
		must(raw.Control(func(fd uintptr) {
			must(unix.SetsockoptString(int(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x00"))
		}))
		l.bypassed(func() { l.pass(c, 50) })
		return "50 packets"
	})
}

func wayBack(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		f0 := get(l.firewall.link.LinkByName("f0"))
		must(l.firewall.link.RouteAdd(&netlink.Route{Dst: host("10.9.9.9"), LinkIndex: f0.Attrs().Index, Gw: net.ParseIP(senderAddr)}))
		c := l.sender.flow(senderAddr, "10.9.9.9", sinkPort)
		defer c.Close()
		l.bypassed(func() {
			for range 50 {
				_, _ = c.Write([]byte("rtcache"))
			}
			time.Sleep(50 * time.Millisecond)
		})
		if n := l.firewall.stats(); n["misses"] == 0 {
			fail("the packets did not come this way: %v", n)
		}
		return "50 packets"
	})
}

func severalHops(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		f1 := get(l.firewall.link.LinkByName("f1")).Attrs().Index
		must(l.firewall.link.RouteAdd(&netlink.Route{Dst: host("10.8.8.8"), MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: f1, Gw: net.ParseIP(receiverAddr)}, {LinkIndex: f1, Gw: net.ParseIP("10.0.2.3")},
		}}))
		c := l.sender.flow(senderAddr, "10.8.8.8", sinkPort)
		defer c.Close()
		l.bypassed(func() {
			for range 50 {
				_, _ = c.Write([]byte("rtcache"))
			}
			time.Sleep(50 * time.Millisecond)
		})
		if n := l.firewall.stats(); n["misses"] == 0 {
			fail("the packets did not come this way: %v", n)
		}
		return "50 packets"
	})
}

// untried says that the kernel lacks what a trial needs, which one of Debian's may not.
func (g *guest) untried(err error) string {
	if g.debian {
		fail("%w", err)
	}
	return "not tried: " + err.Error()
}

func vrf(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		blue := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "blue"}, Table: 10}
		if err := l.firewall.link.LinkAdd(blue); err != nil {
			return g.untried(fmt.Errorf("add VRF: %w", err))
		}
		must(l.firewall.link.LinkSetUp(blue))
		for _, name := range []string{"f0", "f1"} {
			must(l.firewall.link.LinkSetMaster(get(l.firewall.link.LinkByName(name)), blue))
		}
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		l.bypassed(func() { l.pass(c, 50) })
		// A VRF that ends with its namespace warns that its devices do not come up again.
		for _, name := range []string{"f0", "f1"} {
			must(l.firewall.link.LinkSetNoMaster(get(l.firewall.link.LinkByName(name))))
		}
		return "50 packets"
	})
}

// bridged makes the firewall a bridge that shows its packets to the rules for IP.
func bridged(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		_ = exec.Command("modprobe", "br_netfilter").Run()
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}}
		must(l.firewall.link.LinkAdd(br))
		for _, name := range []string{"f0", "f1"} {
			port := get(l.firewall.link.LinkByName(name))
			must(l.firewall.link.AddrDel(port, &get(l.firewall.link.AddrList(port, netlink.FAMILY_V4))[0]))
			must(l.firewall.link.LinkSetMaster(port, br))
		}
		must(l.firewall.link.LinkSetUp(br))
		l.firewall.sysctl("net.bridge.bridge-nf-call-iptables", "1")
		// Both ends believe that the other is on their wire.
		must(l.sender.link.RouteAdd(&netlink.Route{Dst: host(receiverAddr), LinkIndex: get(l.sender.link.LinkByName("s0")).Attrs().Index}))
		must(l.receiver.link.RouteAdd(&netlink.Route{Dst: host(senderAddr), LinkIndex: get(l.receiver.link.LinkByName("r0")).Attrs().Index}))
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		l.bypassed(func() { l.pass(c, 50) })
		l.firewall.do(func() {
			if count := get(os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")); strings.TrimSpace(string(count)) == "0" {
				fail("the bridge does not show its packets to connection tracking")
			}
		})
		return "50 packets"
	})
}

// ipsec has the firewall encrypt what it forwards; nobody decrypts it.
func ipsec(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		l.firewall.command("ip", "xfrm", "policy", "add", "src", "10.0.1.0/24", "dst", "10.0.2.0/24", "dir", "out",
			"tmpl", "src", outsideAddr, "dst", receiverAddr, "proto", "esp", "mode", "tunnel")
		if err := l.firewall.try("ip", "xfrm", "state", "add", "src", outsideAddr, "dst", receiverAddr, "proto", "esp", "spi", "1", "mode", "tunnel",
			"aead", "rfc4106(gcm(aes))", "0x"+strings.Repeat("01", 20), "128"); err != nil {
			return g.untried(err)
		}
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		l.bypassed(func() { l.stop(c, 50) })
		if n := l.firewall.stats(); n["misses"] == 0 {
			fail("the packets did not come this way: %v", n)
		}
		return "50 packets"
	})
}

// atOnce caches a flow, closes its way, sees that nothing passes, opens it, and sees that it is cached again.
func atOnce(g *guest, rules, from string, before, shut, open func(*lab)) string {
	return g.with(rules, func(l *lab) string {
		if before != nil {
			before(l)
		}
		c := l.sender.flow(from, receiverAddr, sinkPort)
		defer c.Close()
		for range 10 {
			l.cached(c)
			shut(l)
			l.stop(c, 20)
			open(l)
		}
		l.cached(c)
		return fmt.Sprintf("10 times; %d hits", l.firewall.stats()["hits"])
	})
}

func blackhole(g *guest) string {
	r := &netlink.Route{Dst: host(receiverAddr), Type: unix.RTN_BLACKHOLE}
	return atOnce(g, tracking, senderAddr, nil,
		func(l *lab) { must(l.firewall.link.RouteAdd(r)) },
		func(l *lab) { must(l.firewall.link.RouteDel(r)) })
}

func deletedRoute(g *guest) string {
	route := func(l *lab) *netlink.Route {
		f1 := get(l.firewall.link.LinkByName("f1"))
		return &netlink.Route{
			Dst: &net.IPNet{IP: net.ParseIP("10.0.2.0"), Mask: net.CIDRMask(24, 32)}, LinkIndex: f1.Attrs().Index, Scope: netlink.SCOPE_LINK,
		}
	}
	return atOnce(g, tracking, senderAddr, nil,
		func(l *lab) { must(l.firewall.link.RouteDel(route(l))) },
		func(l *lab) { must(l.firewall.link.RouteAdd(route(l))) })
}

func policyRule(g *guest) string {
	return atOnce(g, tracking, senderAddr, nil,
		func(l *lab) {
			l.firewall.command("ip", "rule", "add", "pref", "100", "from", senderAddr, "blackhole")
		},
		func(l *lab) { l.firewall.command("ip", "rule", "del", "pref", "100") })
}

// marked changes the mark of a flow's packets by a rule, which invalidates no route.
func marked(g *guest) string {
	return atOnce(g, tracking+`
table ip mangle { chain c { type filter hook prerouting priority -150; }; }`, senderAddr,
		func(l *lab) {
			l.firewall.command("ip", "rule", "add", "pref", "100", "fwmark", "7", "blackhole")
		},
		func(l *lab) { l.firewall.rules("add rule ip mangle c meta mark set 7") },
		func(l *lab) { l.firewall.rules("flush chain ip mangle c") })
}

// spoofed sends from an address that belongs elsewhere.
func spoofed(g *guest) string {
	return atOnce(g, tracking, "10.66.0.1",
		func(l *lab) {
			s0 := get(l.sender.link.LinkByName("s0"))
			must(l.sender.link.AddrAdd(s0, get(netlink.ParseAddr("10.66.0.1/32"))))
			must(l.firewall.link.RouteAdd(&netlink.Route{Dst: host("10.66.0.1"), Gw: net.ParseIP(receiverAddr)}))
		},
		func(l *lab) { l.firewall.sysctl("net.ipv4.conf.f0.rp_filter", "1") },
		func(l *lab) { l.firewall.sysctl("net.ipv4.conf.f0.rp_filter", "0") })
}

// localAddress makes the receiver's address one of the firewall's.
func localAddress(g *guest) string {
	addr := get(netlink.ParseAddr(receiverAddr + "/32"))
	return atOnce(g, tracking, senderAddr, nil,
		func(l *lab) { must(l.firewall.link.AddrAdd(get(l.firewall.link.LinkByName("lo")), addr)) },
		func(l *lab) { must(l.firewall.link.AddrDel(get(l.firewall.link.LinkByName("lo")), addr)) })
}

func notForwarding(g *guest) string {
	return atOnce(g, tracking, senderAddr, nil,
		func(l *lab) { l.firewall.sysctl("net.ipv4.ip_forward", "0") },
		func(l *lab) { l.firewall.sysctl("net.ipv4.ip_forward", "1") })
}

// letGo invalidates the route of a flow that has ended, and waits for the sweep.
func letGo(g *guest) string {
	return g.with(tracking, func(l *lab) string {
		c := l.sender.flow(senderAddr, receiverAddr, sinkPort)
		defer c.Close()
		l.cached(c)
		r := &netlink.Route{Dst: host("192.0.2.1"), Type: unix.RTN_BLACKHOLE}
		must(l.firewall.link.RouteAdd(r))
		began := time.Now()
		for l.firewall.stats()["aged"] == 0 {
			if time.Since(began) > 20*time.Second {
				fail("the entry stays: %v", l.firewall.stats())
			}
			time.Sleep(100 * time.Millisecond)
		}
		if n := l.firewall.stats(); n["entries"] != 0 {
			fail("%v", n)
		}
		return fmt.Sprintf("after %.0f s", time.Since(began).Seconds())
	})
}

// Streams send as fast as they can, one from each end, until stopped.
type streams struct {
	stopping atomic.Bool
	sending  sync.WaitGroup
	conns    []*net.UDPConn
}

func (l *lab) streams() *streams {
	s := &streams{conns: []*net.UDPConn{
		l.sender.flow(senderAddr, receiverAddr, sinkPort),
		l.receiver.flow(receiverAddr, senderAddr, sinkPort),
	}}
	for _, c := range s.conns {
		s.sending.Go(func() {
			for !s.stopping.Load() {
				for range 20 {
					_, _ = c.Write([]byte("rtcache")) // what is refused is reported here
				}
				time.Sleep(50 * time.Microsecond) // the other side of the trial wants to run too
			}
		})
	}
	return s
}

func (s *streams) stop() {
	s.stopping.Store(true)
	s.sending.Wait()
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// served waits until the cache of a firewall serves more than it did.
func served(s *space, hits int) {
	for end := time.Now().Add(20 * time.Second); s.stats()["hits"] <= hits; time.Sleep(500 * time.Microsecond) {
		if time.Now().After(end) {
			fail("nothing is served any more: %v", s.stats())
		}
	}
}

// underLoad repeats a step while both streams pass the firewall.
func underLoad(g *guest, cycles int, step func(l *lab)) string {
	return g.with(tracking, func(l *lab) string {
		s := l.streams()
		defer s.stop()
		before := l.sink.got.Load()
		for range cycles {
			step(l)
		}
		s.stop()
		n := l.firewall.stats()
		return fmt.Sprintf("%d cycles, %d packets arrived, %d hits, %d learned, %d renewed", cycles, l.sink.got.Load()-before, n["hits"], n["learned"], n["renewed"])
	})
}

func flaps(g *guest) string {
	const cycles = 1000
	r := &netlink.Route{Dst: host(receiverAddr), Type: unix.RTN_BLACKHOLE}
	learned := 0
	figure := underLoad(g, cycles, func(l *lab) {
		must(l.firewall.link.RouteAdd(r))
		must(l.firewall.link.RouteDel(r))
		n := l.firewall.stats()
		served(l.firewall, n["hits"])
		learned = n["learned"] + n["renewed"]
	})
	// A flow is served again only after its route was learned anew.
	if learned < cycles-1 {
		fail("routes were learned %d times in %d flaps", learned, cycles)
	}
	return figure
}

func deviceDown(g *guest) string {
	return underLoad(g, 100, func(l *lab) {
		f1 := get(l.firewall.link.LinkByName("f1"))
		must(l.firewall.link.LinkSetDown(f1))
		if n := l.firewall.stats(); n["entries"] != 0 {
			fail("entries stayed: %v", n)
		}
		must(l.firewall.link.LinkSetUp(f1))
		served(l.firewall, l.firewall.stats()["hits"])
	})
}

func deviceRemoved(g *guest) string {
	return underLoad(g, 25, func(l *lab) {
		must(l.receiver.link.LinkDel(get(l.receiver.link.LinkByName("r0"))))
		if n := l.firewall.stats(); n["entries"] != 0 {
			fail("entries stayed: %v", n)
		}
		connect(l.receiver, "r0", receiverAddr, l.firewall, "f1", outsideAddr)
		gateway(l.receiver, outsideAddr)
		served(l.firewall, l.firewall.stats()["hits"])
	})
}

func namespaceExit(g *guest) string {
	const cycles = 20
	g.load("")
	entries := 0
	for range cycles {
		l := g.lab(tracking)
		l.firewall.sysctl("net.rtcache.enabled", "1")
		s := l.streams()
		served(l.firewall, 0)
		entries += l.firewall.stats()["entries"]
		// The firewall goes first, while packets are on their way.
		l.firewall.close()
		s.stop()
		l.sink.close()
		l.sender.close()
		l.receiver.close()
	}
	if entries < cycles {
		fail("%d entries were alive in %d namespaces", entries, cycles)
	}
	g.unload()
	return fmt.Sprintf("%d namespaces with %d entries", cycles, entries)
}

func loadUnload(g *guest) string {
	l := g.lab(tracking)
	defer l.close()
	s := l.streams()
	defer s.stop()
	hits := 0
	for range g.cycles {
		g.load("")
		l.firewall.sysctl("net.rtcache.enabled", "1")
		served(l.firewall, 0)
		hits += l.firewall.stats()["hits"]
		g.unload()
	}
	return fmt.Sprintf("%d cycles, %d hits", g.cycles, hits)
}

// flood sends many flows through a small table while one flow goes on.
func flood(g *guest) string {
	const capacity, flows, batch, rounds = 64, 2500, 250, 8
	g.load("entries=" + strconv.Itoa(capacity))
	l := g.lab(tracking)
	defer l.close()
	l.firewall.sysctl("net.rtcache.enabled", "1")
	elephant := l.sender.flow(senderAddr, receiverAddr, sinkPort)
	defer elephant.Close()
	l.cached(elephant)

	var mice *net.UDPConn
	l.sender.do(func() { mice = get(net.ListenUDP("udp4", nil)) })
	defer mice.Close()
	kept, sent := 0, 0
	send := func(flow int) {
		to := netip.AddrPortFrom(netip.MustParseAddr(receiverAddr), uint16(10000+flow))
		_, _ = mice.WriteToUDPAddrPort([]byte("rtcache"), to) // nobody listens there
		if sent++; sent%50 != 0 {
			return
		}
		before := l.firewall.stats()
		l.pass(elephant, 1)
		after := l.firewall.stats()
		if after["entries"] > capacity {
			fail("more entries than the table has: %v", after)
		}
		kept += min(1, after["hits"]-before["hits"])
	}
	// In batches, so that no connection is forgotten between two of its packets.
	for first := 0; first < flows; first += batch {
		for range rounds {
			for flow := range batch {
				send(first + flow)
			}
		}
	}
	n := l.firewall.stats()
	if n["refused"] == 0 || n["capacity"] != capacity {
		fail("the table was never full: %v", n)
	}
	if tried := sent / 50; kept < tried*9/10 {
		fail("the flow that was there first was served %d times of %d: %v", kept, tried, n)
	}
	balanced(l.firewall)
	g.unload()
	return fmt.Sprintf("%d flows, %d at most kept, %d learned, %d refused, %d replaced", flows, capacity, n["learned"], n["refused"], n["replaced"])
}

// settledRoutes is the number of IPv4 routes in use, once it has not changed for a while.
func settledRoutes() int {
	last, same := -1, 0
	for end := time.Now().Add(30 * time.Second); same < 10 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if n := routesInUse(); n != last {
			last, same = n, 0
		} else {
			same++
		}
	}
	return last
}

// routesInUse is the first column of the first line, and in every line the same: a sum over all CPUs.
func routesInUse() int {
	text := get(os.ReadFile("/proc/net/stat/rt_cache"))
	_, text, _ = bytes.Cut(text, []byte("\n"))
	first, _, _ := strings.Cut(string(text), " ")
	return int(get(strconv.ParseInt(first, 16, 32)))
}

// noRouteLeft asks the kernel's own count and the slab allocator.
func noRouteLeft(g *guest) string {
	routes := settledRoutes()
	if routes > g.routes {
		fail("%d routes are in use, %d were before", routes, g.routes)
	}
	slab := "ip_dst_cache"
	if _, err := os.Stat("/sys/kernel/slab/" + slab); err != nil {
		slab = "rtable" // as newer kernels call it
	}
	must(os.WriteFile("/sys/kernel/slab/"+slab+"/shrink", []byte("1"), 0))
	text := get(os.ReadFile("/sys/kernel/slab/" + slab + "/objects"))
	objects := get(strconv.Atoi(strings.Fields(string(text))[0]))
	if objects > g.routes {
		fail("%d objects in %s, want at most %d", objects, slab, g.routes)
	}
	return fmt.Sprintf("%d routes in use, %d objects in %s", routes, objects, slab)
}

// noLeak has a kernel that can look for unreferenced memory do so.
func noLeak(*guest) string {
	const file = "/sys/kernel/debug/kmemleak"
	_ = unix.Mount("debugfs", "/sys/kernel/debug", "debugfs", 0, "")
	if _, err := os.Stat(file); err != nil {
		return "not tried: this kernel cannot"
	}
	for range 2 { // what is new in the first scan is suspected in the second
		must(os.WriteFile(file, []byte("scan"), 0))
		time.Sleep(6 * time.Second)
	}
	if text := get(os.ReadFile(file)); len(text) != 0 {
		fail("%s", text)
	}
	return "nothing found"
}

// kernelLog collects what the kernel says from now on.
type kernelLog struct {
	mu   sync.Mutex
	bad  []string
	read int
}

func readKernelLog() *kernelLog {
	f := get(os.Open("/dev/kmsg"))
	get(f.Seek(0, io.SeekEnd))
	k := &kernelLog{}
	go func() {
		record := make([]byte, 8192)
		for {
			n, err := unix.Read(int(f.Fd()), record)
			if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.EINTR) {
				return
			}
			k.add(string(record[:max(0, n)]), errors.Is(err, unix.EPIPE))
		}
	}()
	return k
}

// add takes a record: `priority,sequence,time,flags;text`.
func (k *kernelLog) add(record string, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read++
	if lost {
		k.bad = append(k.bad, "records were overwritten before they were read")
		return
	}
	head, text, _ := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	priority, _, _ := strings.Cut(head, ",")
	level, err := strconv.Atoi(priority)
	if err != nil || level&7 <= 4 && !harmless(text) {
		k.bad = append(k.bad, text)
	}
}

// harmless says whether a warning is about something else: that the module is not the distribution's,
// and that an emulated machine's clock is not steady.
func harmless(text string) bool {
	for _, known := range []string{
		"loading out-of-tree module taints kernel", "module verification failed", "clocksource: ", "hrtimer: interrupt took", "sched: RT throttling",
	} {
		if strings.Contains(text, known) {
			return true
		}
	}
	return false
}

func noWarning(g *guest) string {
	time.Sleep(time.Second)
	g.log.mu.Lock()
	defer g.log.mu.Unlock()
	if len(g.log.bad) > 0 {
		fail("%s", strings.Join(g.log.bad[:min(40, len(g.log.bad))], "\n"))
	}
	// Only what an unsigned module from outside leaves: TAINT_OOT_MODULE and TAINT_UNSIGNED_MODULE.
	tainted := get(strconv.Atoi(strings.TrimSpace(string(get(os.ReadFile("/proc/sys/kernel/tainted"))))))
	if other := tainted &^ (1<<12 | 1<<13); other != 0 {
		fail("the kernel is tainted: %d", other)
	}
	return fmt.Sprintf("%d records", g.log.read)
}

// guestLines reads the driver's lines from a console.
func guestLines(console io.Reader, each func(line string), all io.Writer) error {
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text := strings.TrimRight(lines.Text(), "\r")
		fmt.Fprintln(all, text)
		if _, line, ok := strings.Cut(text, guestPrefix); ok {
			each(line)
		}
	}
	return lines.Err()
}
