package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rampart-bench/rampart/testbed"
)

// needsRoot skips a test that this process may not run, or fails it where no skip is allowed.
func needsRoot(t *testing.T) {
	t.Helper()
	if err := checkCapabilities(); err != nil {
		if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// testSpec is the default testbed under a name that no other test has.
func testSpec(t *testing.T, suffix string) testbed.Spec {
	spec := testbed.Default()
	spec.Name = fmt.Sprintf("netns-%d%s", os.Getpid()%10000, suffix)
	t.Cleanup(func() {
		if err := New(Options{}).Down(context.Background(), spec.Name); err != nil {
			t.Error(err)
		}
	})
	return spec
}

// upBed brings up a testbed for one test.
func upBed(t *testing.T, spec testbed.Spec) *bed {
	t.Helper()
	tb, err := New(Options{}).Up(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tb.Close() })
	return tb.(*bed)
}

func onNode(t *testing.T, b testbed.Testbed, role testbed.Role, argv ...string) string {
	t.Helper()
	conn, err := b.Node(role).Start(t.Context(), argv...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	if err := errors.Join(err, conn.Wait()); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func traces(t *testing.T, name string) []string {
	t.Helper()
	var left []string
	for _, folder := range append([]string{namespaceFolder}, scratchRoots...) {
		found, err := filepath.Glob(filepath.Join(folder, name+"-*"))
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, found...)
	}
	return left
}

// Whichever step Up fails at, it undoes those before.
func TestUpFailsAtEachStep(t *testing.T) {
	needsRoot(t)
	spec := testSpec(t, "")
	b := newBed(spec, New(Options{}).options)
	steps := len(upSteps(t.Context(), b))
	if steps < 10 {
		t.Fatalf("Up has %d steps", steps)
	}
	for n := range steps {
		b := newBed(spec, New(Options{}).options)
		all := upSteps(t.Context(), b)
		failing := append(all[:n:n], step{name: "broken", do: func() error { return io.ErrNoProgress }})
		err := runSteps(t.Context(), failing)
		b.Close()
		if !errors.Is(err, io.ErrNoProgress) || strings.Contains(err.Error(), "undo") {
			t.Errorf("failing before step %d: %v", n, err)
		}
		if left := traces(t, spec.Name); len(left) > 0 {
			t.Fatalf("failing before step %d (%s) left %v", n, all[n].name, left)
		}
	}
}

// Steps that fail because something of theirs is there already do not touch it.
func TestUpCollides(t *testing.T) {
	needsRoot(t)
	spec := testSpec(t, "")
	for _, role := range testbed.Roles() {
		name := namespaceName(spec.Name, role)
		if err := exec.Command("ip", "netns", "add", name).Run(); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{}).Up(t.Context(), spec)
		if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "namespace of "+string(role)) {
			t.Errorf("up beside %s: %v", name, err)
		}
		if left := traces(t, spec.Name); len(left) != 1 || filepath.Base(left[0]) != name {
			t.Errorf("left %v, want only %s", left, name)
		}
		if err := New(Options{}).Down(t.Context(), spec.Name); err != nil {
			t.Error(err)
		}
	}
}

// What was changed behind our back is found by reading back.
func TestVerify(t *testing.T) {
	needsRoot(t)
	spec := testSpec(t, "")
	b := upBed(t, spec)
	for _, test := range []struct {
		role       testbed.Role
		spoil      string
		want, mend string
	}{
		{testbed.Sender, "ip link set inside mtu 1400", "inside mtu is 1400, want 1500", "ip link set inside mtu 1500"},
		{testbed.Sender, "ethtool -K inside gro on", "inside offloads is [rx-gro], want []", "ethtool -K inside gro off"},
		{testbed.Sender, "ethtool -K inside tx on", "tx-checksum-ip-generic", "ethtool -K inside tx off"},
		{testbed.Firewall, "ip neigh change 10.77.1.1 lladdr 02:00:00:00:01:01 dev inside nud reachable", "permanent=false", "ip neigh change 10.77.1.1 lladdr 02:00:00:00:01:01 dev inside nud permanent"},
		{testbed.Firewall, "ip neigh del 10.77.2.3 dev outside", "outside neighbour 10.77.2.3 is not there", "ip neigh add 10.77.2.3 lladdr 02:00:00:00:02:02 dev outside nud permanent"},
		{testbed.Firewall, "echo 0 >/proc/sys/net/ipv4/ip_forward", "net/ipv4/ip_forward is 0, want 1", "echo 1 >/proc/sys/net/ipv4/ip_forward"},
		{testbed.Firewall, "echo 1 >/proc/sys/net/ipv4/conf/inside/rp_filter", "net/ipv4/conf/inside/rp_filter is 1, want 0", "echo 0 >/proc/sys/net/ipv4/conf/inside/rp_filter"},
		{testbed.Receiver, "ip addr add 10.9.9.9/32 dev outside", "outside addresses is [10.77.2.2/24 10.9.9.9/32], want [10.77.2.2/24]", "ip addr del 10.9.9.9/32 dev outside"},
		{testbed.Receiver, "ip route add 10.8.0.0/16 via 10.77.2.1", "routes is [10.77.1.0/24 via 10.77.2.1 10.77.2.0/24 10.8.0.0/16 via 10.77.2.1]", "ip route del 10.8.0.0/16"},
		{testbed.Receiver, "ip link add extra type veth peer name other && ip link set extra up", "the set of links that are up is [extra lo outside], want [lo outside]", "ip link del extra"},
		{testbed.Receiver, "tc qdisc add dev outside root pfifo", "outside queueing disciplines is [pfifo], want [noqueue]", "tc qdisc del dev outside root"},
		{testbed.Receiver, "ip link set outside address 02:00:00:00:07:07", "outside hardware address is 02:00:00:00:07:07", "ip link set outside address 02:00:00:00:02:02; ip neigh add 10.77.2.1 lladdr 02:00:00:00:02:01 dev outside nud permanent"},
	} {
		onNode(t, b, test.role, "sh", "-c", test.spoil)
		wrong, err := differences(b.nodes[test.role].thread, spec, test.role)
		if err != nil || len(wrong) == 0 || !strings.Contains(wrong[0], test.want) {
			t.Errorf("%s: found %q, %v, want %q", test.spoil, wrong, err, test.want)
		}
		onNode(t, b, test.role, "sh", "-c", test.mend)
		if wrong, err := differences(b.nodes[test.role].thread, spec, test.role); err != nil || len(wrong) > 0 {
			t.Fatalf("%s did not mend: %q, %v", test.mend, wrong, err)
		}
	}
}

// Renew replaces any node, and all three read back as after Up.
func TestRenew(t *testing.T) {
	needsRoot(t)
	spec := testSpec(t, "")
	b := upBed(t, spec)
	same := func(after string) {
		t.Helper()
		for _, role := range testbed.Roles() {
			if err := verify(t.Context(), b.nodes[role].thread, spec, role); err != nil {
				t.Fatalf("after %s: %v", after, err)
			}
		}
		onNode(t, b, testbed.Sender, "ping", "-c", "1", "-W", "1", "10.77.2.2")
	}
	var slowest time.Duration
	for range 5 {
		for _, role := range testbed.Roles() {
			before, _ := identify(filepath.Join(namespaceFolder, namespaceName(spec.Name, role)))
			begin := time.Now()
			if err := b.Renew(t.Context(), role); err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(begin))
			if after, ok := identify(filepath.Join(namespaceFolder, namespaceName(spec.Name, role))); !ok || after == before {
				t.Errorf("%s has the namespace %v, had %v", role, after, before)
			}
			same("renewing " + string(role))
		}
	}
	t.Logf("the slowest of 15 renewals took %v", slowest)

	// A node whose links are gone gets new ones.
	onNode(t, b, testbed.Firewall, "ip", "link", "del", "inside")
	for _, role := range []testbed.Role{testbed.Firewall, testbed.Sender} {
		if err := b.Renew(t.Context(), role); err != nil {
			t.Fatal(err)
		}
	}
	same("deleting a link")
	// A node whose namespace lost its name gets a new one.
	if err := exec.Command("ip", "netns", "del", namespaceName(spec.Name, testbed.Receiver)).Run(); err != nil {
		t.Fatal(err)
	}
	if err := b.Renew(t.Context(), testbed.Receiver); err != nil {
		t.Fatal(err)
	}
	same("deleting a namespace")
}

// The reason for Renew: what iptables-legacy registered goes with the namespace only.
func TestRenewEndsLegacyHooks(t *testing.T) {
	needsRoot(t)
	const legacy = "/usr/sbin/iptables-legacy"
	if _, err := os.Stat(legacy); err != nil {
		if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	b := upBed(t, testSpec(t, ""))
	tables := func() string { return onNode(t, b, testbed.Firewall, "cat", "/proc/net/ip_tables_names") }
	onNode(t, b, testbed.Firewall, legacy, "-A", "FORWARD", "-s", "198.18.0.1", "-j", "DROP")
	onNode(t, b, testbed.Firewall, legacy, "-F")
	if got := tables(); got != "filter" {
		t.Errorf("after a rule came and went the tables are %q; if they are empty, Renew has lost its reason", got)
	}
	if err := b.Renew(t.Context(), testbed.Firewall); err != nil {
		t.Fatal(err)
	}
	if got := tables(); got != "" {
		t.Errorf("after Renew the tables are %q", got)
	}
}

// Nothing flows on the links that nobody sent.
func TestSilence(t *testing.T) {
	needsRoot(t)
	b := upBed(t, testSpec(t, ""))
	time.Sleep(1500 * time.Millisecond) // duplicate address detection and MLD would have spoken
	onNode(t, b, testbed.Sender, "ping", "-c", "5", "-i", "0.01", "10.77.2.2")
	for role, link := range map[testbed.Role]string{testbed.Sender: "inside", testbed.Receiver: "outside"} {
		for _, counter := range []string{"rx_packets", "tx_packets"} {
			if got := onNode(t, b, role, "cat", "/sys/class/net/"+link+"/statistics/"+counter); got != "5" {
				t.Errorf("%s of %s counts %s for 5 echo requests and replies", counter, role, got)
			}
		}
	}
}

// Two testbeds are alike in all that a frame or a look-up could depend on.
func TestSameEveryTime(t *testing.T) {
	needsRoot(t)
	look := func(suffix string) string {
		b := upBed(t, testSpec(t, suffix))
		defer b.Close()
		text := ""
		for _, role := range testbed.Roles() {
			text += onNode(t, b, role, "sh", "-c", "ip -o addr; ip route; ip neigh | sort; cat /proc/sys/net/ipv4/conf/*/rp_filter; ls /sys/class/net")
		}
		return text
	}
	if first, second := look("x"), look("y"); first != second {
		t.Errorf("one testbed has\n%s\nanother\n%s", first, second)
	}
}

// Down ends what runs in the namespaces, whoever started it, and finds what was left half-made.
func TestDown(t *testing.T) {
	needsRoot(t)
	spec := testSpec(t, "")
	name := namespaceName(spec.Name, testbed.Firewall)
	path := filepath.Join(namespaceFolder, name)
	p := New(Options{})
	down := func(t *testing.T) {
		t.Helper()
		if err := p.Down(t.Context(), spec.Name); err != nil {
			t.Fatal(err)
		}
		if left := traces(t, spec.Name); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	}
	t.Run("StrangersProcess", func(t *testing.T) {
		upBed(t, spec).Close()
		cmd := exec.Command("ip", "netns", "exec", name, "sh", "-c", "sleep 300 & sleep 300")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		down(t)
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("the process ended by itself")
			}
		case <-time.After(2 * time.Second):
			cmd.Process.Kill()
			t.Error("the process goes on")
		}
	})
	t.Run("FileOnly", func(t *testing.T) {
		if err := os.WriteFile(path, nil, 0o444); err != nil {
			t.Fatal(err)
		}
		list, err := p.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, info := range list {
			if info.Name == spec.Name {
				found = len(info.Leftovers) == 1 && info.Leftovers[0] == path && info.Nodes[testbed.Firewall] == "gone"
			}
		}
		if !found {
			t.Errorf("the list is %+v, want %s among the leftovers", list, path)
		}
		if _, err := p.Attach(t.Context(), spec.Name); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("attach: %v", err)
		}
		down(t)
	})
	t.Run("ScratchOnly", func(t *testing.T) {
		for _, root := range scratchRoots {
			err := os.MkdirAll(filepath.Join(root, folderName(spec.Name), "sender"), 0o755)
			if err != nil && !isUserNamespace() { // there only the first is ours
				t.Fatal(err)
			}
		}
		if _, err := p.Up(t.Context(), spec); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "rampart down") {
			t.Errorf("up: %v", err)
		}
		down(t)
	})
	t.Run("MountedTwice", func(t *testing.T) {
		if err := exec.Command("ip", "netns", "add", name).Run(); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command("mount", "--bind", path, path).Run(); err != nil {
			t.Fatal(err)
		}
		down(t)
	})
	t.Run("HeldByAnother", func(t *testing.T) {
		b := upBed(t, spec) // and not closed
		down(t)
		err := b.nodes[testbed.Firewall].thread.withNetlink(func(h *netlink.Handle) error {
			links, err := h.LinkList()
			if len(links) != 1 {
				t.Errorf("a testbed that is held open still has %d links", len(links))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("OthersAreLeftAlone", func(t *testing.T) {
		other := spec.Name + "-000000-firewall" // the tag is wrong
		if err := exec.Command("ip", "netns", "add", other).Run(); err != nil {
			t.Fatal(err)
		}
		defer exec.Command("ip", "netns", "del", other).Run()
		if err := p.Down(t.Context(), spec.Name); err != nil {
			t.Fatal(err)
		}
		if left := traces(t, spec.Name); len(left) != 1 {
			t.Errorf("left %v, want only %s", left, other)
		}
	})
}

// No thread of a node is the first thread of the process, and closed testbeds leave no thread behind.
func TestThreads(t *testing.T) {
	needsRoot(t)
	host, _ := identify("/proc/self/ns/net")
	for range 200 {
		th, err := newNamespace()
		if err != nil {
			t.Fatal(err)
		}
		if id, _ := identify("/proc/self/ns/net"); id != host {
			t.Fatal("the first thread of the process left the host's namespace")
		}
		th.close()
	}
	deadline := time.Now().Add(2 * time.Second)
	for {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		away := 0
		for _, task := range tasks {
			if id, ok := identify(task); ok && id != host {
				away++
			}
		}
		if away == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d threads are still in namespaces", away)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Cancelling ends the children of a command too.
func TestCancelEndsChildren(t *testing.T) {
	needsRoot(t)
	b := upBed(t, testSpec(t, ""))
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := b.Node(testbed.Sender).Start(ctx, "sh", "-c", "sleep 300 & echo started; wait")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	cancel()
	err = conn.Wait()
	exit, ok := errors.AsType[*ExitError](err)
	if !ok || exit.ExitCode() != -1 || !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	id, _ := identify(filepath.Join(namespaceFolder, namespaceName(b.Name(), testbed.Sender)))
	deadline := time.Now().Add(time.Second)
	for {
		pids, err := processesIn(id)
		if err != nil {
			t.Fatal(err)
		}
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("processes %v are still there", pids)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestPutStaysInside(t *testing.T) {
	needsRoot(t)
	b := upBed(t, testSpec(t, ""))
	outside := t.TempDir()
	onNode(t, b, testbed.Sender, "ln", "-s", outside, "link")
	for _, path := range []string{"/etc/rampart-test", "../escape", "a/../../escape", "link/escape", ""} {
		if err := b.Node(testbed.Sender).Put(t.Context(), path, 0o644, strings.NewReader("")); err == nil {
			t.Errorf("put %q went through", path)
		}
	}
	if found, _ := filepath.Glob(outside + "/*"); len(found) > 0 {
		t.Errorf("put wrote %v", found)
	}
}
