package traffic

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The tests run this package where it is used: in processes of their own, each inside one of three
// network namespaces joined by veth, told what to do by a line of JSON, as the helper is.

func TestMain(m *testing.M) {
	if os.Getenv("TRAFFIC_TEST_NODE") != "" {
		serveNode()
		return
	}
	os.Exit(m.Run())
}

// serveNode answers requests until the input ends.
func serveNode() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	var live nodeState
	for {
		text, err := in.ReadString('\n')
		if err != nil {
			live.close()
			return
		}
		op, body, _ := strings.Cut(text, " ")
		value, err := live.do(ctx, op, []byte(body))
		answer := map[string]any{"value": value}
		if err != nil {
			answer["error"] = err.Error()
		}
		if err := out.Encode(answer); err != nil {
			panic(err)
		}
	}
}

// nodeState is what lives between requests.
type nodeState struct {
	server   *Server
	watcher  *Watcher
	answerer *Answerer
}

func (s *nodeState) close() {
	if s.server != nil {
		s.server.Close()
	}
	if s.watcher != nil {
		s.watcher.Stop()
	}
}

func (s *nodeState) do(ctx context.Context, op string, body []byte) (any, error) {
	switch op {
	case "probe":
		return with(body, func(p Probe) (RoundTrips, error) { return p.Run(ctx) })
	case "intrude":
		return with(body, func(i Intrusion) (RoundTrips, error) { return i.Run(ctx) })
	case "send":
		return with(body, func(s Send) (Report, error) { return s.Run(ctx) })
	case "serve":
		return with(body, func(r Serve) (_ any, err error) { s.server, err = r.Start(ctx); return nil, err })
	case "served":
		return s.server.Wait(ctx)
	case "answer":
		return with(body, func(a Answer) (_ any, err error) { s.answerer, err = a.Start(); return nil, err })
	case "answered":
		return nil, s.answerer.Wait()
	case "prime":
		return with(body, func(p Prime) (any, error) { return nil, p.Run(ctx) })
	case "close":
		return nil, s.server.Close()
	case "watch":
		return with(body, func(w Watch) (_ any, err error) { s.watcher, err = w.Start(); return nil, err })
	case "watched":
		return s.watcher.Stop()
	case "snap":
		return Snap()
	case "reflect":
		return with(body, func(r reflector) (any, error) { return nil, r.start() })
	case "superframe":
		return nil, sendSuperframe()
	}
	return nil, fmt.Errorf("no operation %q", op)
}

func with[T, R any](body []byte, do func(T) (R, error)) (any, error) {
	var request T
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, err
	}
	return do(request)
}

// A reflector answers echo requests late, and more than once.
type reflector struct {
	Delay  time.Duration
	Copies int
}

func (r reflector) start() error {
	conn, err := net.ListenPacket("ip4:icmp", receiverAddr.String())
	if err != nil {
		return err
	}
	go func() {
		for {
			buf := make([]byte, 2000)
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if buf[0] != icmpEchoRequest {
				continue
			}
			time.AfterFunc(r.Delay, func() {
				buf[0], buf[2], buf[3] = icmpEchoReply, 0, 0
				binary.BigEndian.PutUint16(buf[2:], checksum(buf[:n]))
				for range r.Copies {
					conn.WriteTo(buf[:n], from)
				}
			})
		}
	}()
	return nil
}

// sendSuperframe sends ten datagrams of a 64-byte frame in one packet, as a sender with segmentation
// offload does.
func sendSuperframe() error {
	conn, err := net.Dial("udp4", netip.AddrPortFrom(receiverAddr, 9).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 18) })
	if err != nil {
		return err
	}
	_, err = conn.Write(make([]byte, 180))
	return err
}

// A lab is sender, firewall and receiver in namespaces, like the netns provider's.
type lab struct {
	t      testing.TB
	prefix string
}

var (
	senderAddr   = netip.MustParseAddr("10.78.1.1")
	intruderAddr = netip.MustParseAddr("10.78.1.3")
	receiverAddr = netip.MustParseAddr("10.78.2.2")
)

var labs atomic.Int32

// newLab makes the namespaces, or skips the test where that is not possible.
func newLab(t testing.TB) *lab {
	t.Helper()
	if reason := cannotLab(); reason != "" {
		if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	l := &lab{t: t, prefix: fmt.Sprintf("traffic-%d-%d-", os.Getpid(), labs.Add(1))}
	t.Cleanup(func() {
		for _, n := range []string{"s", "d", "r"} {
			exec.Command("ip", "netns", "del", l.prefix+n).Run()
		}
	})
	for _, n := range []string{"s", "d", "r"} {
		l.run("ip", "netns", "add", l.prefix+n)
		l.run("ip", "-n", l.prefix+n, "link", "set", "lo", "up")
	}
	l.link("inside", "s", "10.78.1.1/24", "d", "10.78.1.2/24")
	l.link("outside", "d", "10.78.2.1/24", "r", "10.78.2.2/24")
	l.run("ip", "-n", l.prefix+"s", "route", "add", "10.78.2.0/24", "via", "10.78.1.2")
	l.run("ip", "-n", l.prefix+"r", "route", "add", "10.78.1.0/24", "via", "10.78.2.1")
	l.in("d", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	return l
}

func cannotLab() string {
	if os.Geteuid() != 0 {
		return "needs root for network namespaces"
	}
	for _, tool := range []string{"ip", "iperf3", "nft", "ethtool", "ping"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "needs " + tool + " (apt-get install iproute2 iperf3 nftables ethtool iputils-ping)"
		}
	}
	return ""
}

// link joins two nodes: no IPv6, no offloads, permanent neighbours.
func (l *lab) link(name, a, addrA, b, addrB string) {
	l.run("ip", "link", "add", name, "netns", l.prefix+a, "type", "veth", "peer", "name", name, "netns", l.prefix+b)
	for n, addr := range map[string]string{a: addrA, b: addrB} {
		l.in(n, "sysctl", "-qw", "net.ipv6.conf."+name+".disable_ipv6=1")
		l.in(n, "ethtool", "-K", name, "gro", "off", "gso", "off", "tso", "off", "tx", "off")
		l.in(n, "ip", "addr", "add", addr, "dev", name)
		l.in(n, "ip", "link", "set", name, "up")
	}
	l.neighbour(name, a, b, addrB)
	l.neighbour(name, b, a, addrA)
}

func (l *lab) neighbour(link, on, of, addr string) {
	ip, _, _ := strings.Cut(addr, "/")
	mac := strings.TrimSpace(l.in(of, "cat", "/sys/class/net/"+link+"/address"))
	l.in(on, "ip", "neigh", "replace", ip, "lladdr", mac, "dev", link, "nud", "permanent")
}

func (l *lab) run(argv ...string) string {
	l.t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// in runs a command on a node.
func (l *lab) in(node string, argv ...string) string {
	l.t.Helper()
	return l.run(append([]string{"ip", "netns", "exec", l.prefix + node}, argv...)...)
}

// A node is a process of this package's in a namespace.
type node struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (l *lab) node(name string) *node {
	l.t.Helper()
	n := &node{t: l.t, cmd: exec.Command("ip", "netns", "exec", l.prefix+name, os.Args[0])}
	n.cmd.Env = append(os.Environ(), "TRAFFIC_TEST_NODE=1")
	n.cmd.Stderr = os.Stderr
	n.in, _ = n.cmd.StdinPipe()
	out, _ := n.cmd.StdoutPipe()
	n.out = bufio.NewReader(out)
	if err := n.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(n.close)
	return n
}

func (n *node) close() {
	n.in.Close()
	n.cmd.Wait()
}

// ask has the node do something and decodes the answer into value.
func (n *node) ask(op string, request, value any) error {
	n.t.Helper()
	n.send(op, request)
	return n.answer(value)
}

func (n *node) send(op string, request any) {
	n.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(n.in, "%s %s\n", op, body); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) answer(value any) error {
	n.t.Helper()
	text, err := n.out.ReadBytes('\n')
	if err != nil {
		n.t.Fatalf("node: %v", err)
	}
	var a struct {
		Value json.RawMessage
		Error string
	}
	if err := json.Unmarshal(text, &a); err != nil {
		n.t.Fatal(err)
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	if value != nil {
		if err := json.Unmarshal(a.Value, value); err != nil {
			n.t.Fatal(err)
		}
	}
	return nil
}

// must is ask for what has to work.
func must[T any](n *node, op string, request any) T {
	n.t.Helper()
	var value T
	if err := n.ask(op, request, &value); err != nil {
		n.t.Fatalf("%s: %v", op, err)
	}
	return value
}

// cancel cancels what the node does.
func (n *node) cancel() { n.cmd.Process.Signal(syscall.SIGUSR1) }

func probe(count int) Probe {
	return Probe{Target: receiverAddr, FrameSize: 64, Warmup: 20, Count: count, Interval: 2 * time.Millisecond}
}
