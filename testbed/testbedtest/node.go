package testbedtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/testbed"
)

// run runs a command to its end and returns what it wrote.
func run(ctx context.Context, node testbed.Node, argv ...string) (string, error) {
	conn, err := node.Start(ctx, argv...)
	if err != nil {
		return "", err
	}
	conn.Close()
	out, readErr := io.ReadAll(conn)
	return strings.TrimSpace(string(out)), errors.Join(conn.Wait(), readErr)
}

// output is run for a command that must succeed.
func output(t *testing.T, node testbed.Node, argv ...string) string {
	t.Helper()
	out, err := run(t.Context(), node, argv...)
	if err != nil {
		t.Fatalf("%q: %v", argv, err)
	}
	return out
}

// exitCode is the exit status that Wait's error carries.
func exitCode(err error) (int, bool) {
	if err == nil {
		return 0, true
	}
	var coder interface{ ExitCode() int }
	if !errors.As(err, &coder) {
		return 0, false
	}
	return coder.ExitCode(), true
}

// waitFor waits for the end of a command that should be near.
func waitFor(t *testing.T, conn testbed.Conn, limit time.Duration) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- conn.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		t.Fatalf("the command had not ended after %v", limit)
		return nil
	}
}

func putFile(t *testing.T, node testbed.Node, path, content string) {
	t.Helper()
	if err := node.Put(t.Context(), path, 0o644, strings.NewReader(content)); err != nil {
		t.Fatalf("put %s: %v", path, err)
	}
}

// put holds Put to its contract.
func put(t *testing.T, node testbed.Node) {
	putFile(t, node, "plain.txt", "first\n")
	putFile(t, node, "plain.txt", "second\n")
	if got := output(t, node, "cat", "plain.txt"); got != "second" {
		t.Errorf("file written twice holds %q", got)
	}
	putFile(t, node, "folder/below/deep.txt", "deep\n")
	if got := output(t, node, "cat", "folder/below/deep.txt"); got != "deep" {
		t.Errorf("file in a folder holds %q", got)
	}
	putFile(t, node, "empty", "")
	if got := output(t, node, "stat", "-c", "%s %a", "empty"); got != "0 644" {
		t.Errorf("empty file has size and mode %q", got)
	}

	if err := node.Put(t.Context(), "script", 0o755, strings.NewReader("#!/bin/sh\necho \"$0 ran\"\n")); err != nil {
		t.Fatal(err)
	}
	if got := output(t, node, "./script"); !strings.HasSuffix(got, "/script ran") {
		t.Errorf("script said %q", got)
	}
	if err := node.Put(t.Context(), "secret", 0o600, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	if got := output(t, node, "stat", "-c", "%a", "secret"); got != "600" {
		t.Errorf("mode is %s, want 600", got)
	}

	big := make([]byte, 5<<20+1)
	random := rand.NewChaCha8([32]byte{})
	random.Read(big)
	if err := node.Put(t.Context(), "big", 0o644, bytes.NewReader(big)); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%x", sha256.Sum256(big))
	if got := output(t, node, "sha256sum", "big"); !strings.HasPrefix(got, want+" ") {
		t.Errorf("big file has the hash %s, want %s", got, want)
	}
	putAtomic(t, node)
}

// putAtomic: a Put that fails leaves the file as it was, and nothing beside it.
func putAtomic(t *testing.T, node testbed.Node) {
	putFile(t, node, "atomic/file", "whole\n")
	broken := io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) {
		return 0, errors.New("the source broke")
	}))
	if err := node.Put(t.Context(), "atomic/file", 0o644, broken); err == nil || !strings.Contains(err.Error(), "the source broke") {
		t.Errorf("put from a broken source: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancelling := io.MultiReader(strings.NewReader("half"), readerFunc(func(p []byte) (int, error) {
		cancel()
		return copy(p, "more"), nil
	}))
	if err := node.Put(ctx, "atomic/file", 0o644, cancelling); !errors.Is(err, context.Canceled) {
		t.Errorf("put that was cancelled: %v", err)
	}
	// The node may clean up by itself, once it has noticed; a slow one takes its time.
	var got string
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if got = output(t, node, "sh", "-c", "cat atomic/file; ls -A atomic"); got == "whole\nfile" {
			return
		}
	}
	t.Errorf("after two broken puts: %q", got)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// start holds Start and Conn to their contract.
func start(t *testing.T, node testbed.Node) {
	t.Run("Arguments", func(t *testing.T) {
		args := []string{"plain", "two words", "", "$HOME", "*", `"double"`, "'single'", `back\slash`, "semi;colon", "new\nline", "-n", "ünïcödé"}
		got := output(t, node, append([]string{"printf", "[%s]"}, args...)...)
		if want := "[" + strings.Join(args, "][") + "]"; got != want {
			t.Errorf("the command saw\n%s\nwant\n%s", got, want)
		}
	})
	t.Run("ExitStatus", func(t *testing.T) {
		_, err := run(t.Context(), node, "sh", "-c", "echo what went wrong >&2; exit 7")
		if code, ok := exitCode(err); !ok || code != 7 {
			t.Errorf("exit status %d of %v, want 7", code, err)
		}
		if err == nil || !strings.Contains(err.Error(), "what went wrong") {
			t.Errorf("error lacks what the command said: %v", err)
		}
		if _, err := run(t.Context(), node, "/nonexistent/command"); err == nil {
			t.Error("a command that does not exist ran")
		}
	})
	t.Run("Input", func(t *testing.T) { input(t, node) })
	t.Run("Cancel", func(t *testing.T) { cancelled(t, node) })
	t.Run("AtOnce", func(t *testing.T) {
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				want := fmt.Sprint("command ", i)
				if got, err := run(t.Context(), node, "sh", "-c", "sleep 0.1; echo "+want); err != nil || got != want {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
			})
		}
		all.Wait()
	})
}

// input: what is written arrives, in both directions at once, and closing ends the command.
func input(t *testing.T, node testbed.Node) {
	conn, err := node.Start(t.Context(), "cat")
	if err != nil {
		t.Fatal(err)
	}
	line := []byte("answer me\n")
	if _, err := conn.Write(line); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(line))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, line) {
		t.Fatalf("got %q, %v", got, err)
	}
	stream := bytes.Repeat([]byte("0123456789abcde\n"), 1<<17) // 2 MiB
	go func() {
		conn.Write(stream)
		conn.Close()
	}()
	back, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(back, stream) {
		t.Errorf("got %d of %d bytes back, %v", len(back), len(stream), err)
	}
	if err := waitFor(t, conn, 10*time.Second); err != nil {
		t.Errorf("wait: %v", err)
	}
}

// cancelled: a cancelled context ends the command, on the node too.
func cancelled(t *testing.T, node testbed.Node) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	conn, err := node.Start(ctx, "sh", "-c", "echo $$; exec sleep 300")
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanln(conn, &pid); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t.Context(), node, "sh", "-c", fmt.Sprintf("kill -0 %d", pid)); err != nil {
		t.Fatalf("process %d does not run: %v", pid, err)
	}
	cancel()
	if err := waitFor(t, conn, 5*time.Second); err == nil {
		t.Error("a cancelled command ended without an error")
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := run(t.Context(), node, "sh", "-c", fmt.Sprintf("kill -0 %d", pid)); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("process %d still runs on the node", pid)
			break
		}
	}
	if _, err := run(ctx, node, "true"); err == nil {
		t.Error("started a command under a cancelled context")
	}
}

// closing: closing the testbed ends what was started through it.
func closing(t *testing.T, bed testbed.Testbed) {
	conn, err := bed.Node(testbed.Receiver).Start(t.Context(), "sleep", "300")
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := waitFor(t, conn, 10*time.Second); err == nil {
		t.Error("the command ended as if nothing had happened")
	}
	if _, err := run(t.Context(), bed.Node(testbed.Receiver), "true"); err == nil {
		t.Error("started a command on a closed testbed")
	}
}

func features(t *testing.T, bed testbed.Testbed) {
	f := bed.Features()
	clocks := []testbed.Clock{testbed.ClockHost, testbed.ClockKVM, testbed.ClockTCG, testbed.ClockVirtual}
	if f.Provider == "" || !slices.Contains(clocks, f.Clock) {
		t.Errorf("got %+v", f)
	}
}

// linksOf lists the links of a role.
func linksOf(spec testbed.Spec, role testbed.Role) []testbed.LinkSpec {
	var list []testbed.LinkSpec
	for _, l := range spec.Links {
		if slices.Contains(l.Nodes[:], role) {
			list = append(list, l)
		}
	}
	return list
}

// links: every node has the interfaces of its links, up, with the address and MTU of the Spec, and no
// two ends have the same hardware address.
func links(t *testing.T, bed testbed.Testbed, spec testbed.Spec) {
	hardware := regexp.MustCompile(`link/ether ([0-9a-f:]{17})`)
	seen := map[string]string{}
	for _, role := range testbed.Roles() {
		node := bed.Node(role)
		for _, l := range linksOf(spec, role) {
			where := fmt.Sprintf("%s of %s", l.Name, role)
			show := output(t, node, "ip", "-o", "link", "show", "dev", l.Name)
			if !strings.Contains(show, fmt.Sprintf(" mtu %d ", l.MTU)) || !strings.Contains(show, ",LOWER_UP") {
				t.Errorf("%s should be up with mtu %d: %s", where, l.MTU, show)
			}
			if m := hardware.FindStringSubmatch(show); m == nil {
				t.Errorf("%s has no hardware address: %s", where, show)
			} else if other := seen[m[1]]; other != "" {
				t.Errorf("%s has the hardware address of %s: %s", where, other, m[1])
			} else {
				seen[m[1]] = where
			}
			addresses := output(t, node, "ip", "-o", "addr", "show", "dev", l.Name)
			if want := " inet " + l.Address(role).String() + " "; !strings.Contains(addresses, want) || strings.Count(addresses, "inet") != 1 {
				t.Errorf("%s has the addresses %q, want only %s", where, addresses, want)
			}
		}
	}
}

// offloads: every offload of the Spec reads as off at both ends.
func offloads(t *testing.T, bed testbed.Testbed, spec testbed.Spec) {
	for _, role := range testbed.Roles() {
		for _, l := range linksOf(spec, role) {
			if l.Offloads {
				continue
			}
			features := output(t, bed.Node(role), "ethtool", "-k", l.Name)
			if offersNoChecksums(bed.Node(role), l.Name) {
				features = strings.Replace(features, "\nrx-checksumming: on [fixed]", "\nrx-checksumming: off", 1)
			}
			for _, feature := range []string{
				"rx-checksumming", "tx-checksumming", "tcp-segmentation-offload",
				"generic-segmentation-offload", "generic-receive-offload", "large-receive-offload",
			} {
				if !strings.Contains(features, "\n"+feature+": off") {
					t.Errorf("%s of %s: %s is not off:\n%s", l.Name, role, feature, features)
				}
			}
		}
	}
}

// offersNoChecksums: is this a virtio device without VIRTIO_NET_F_GUEST_CSUM (bit 1)? For such a one
// newer kernels report rx-checksumming as fixed to on, though it then
// only ever gets frames with complete checksums (drivers/net/virtio_net.c, virtnet_probe).
func offersNoChecksums(node testbed.Node, link string) bool {
	bits, err := run(context.Background(), node, "cat", "/sys/class/net/"+link+"/device/features")
	return err == nil && len(bits) >= 2 && bits[1] == '0'
}

// ping sends echo requests from sender to receiver and holds whether they come back.
func ping(t *testing.T, bed testbed.Testbed, spec testbed.Spec, want bool) string {
	t.Helper()
	wait := "1"
	if want {
		wait = "5" // an emulated node may be slow to answer the first
	}
	out, err := run(t.Context(), bed.Node(testbed.Sender), "ping", "-n", "-c", "2", "-i", "0.2", "-W", wait,
		spec.Outside().Address(testbed.Receiver).Addr().String())
	if (err == nil) != want {
		t.Errorf("ping from sender to receiver: passes = %v, want %v: %v\n%s", err == nil, want, err, out)
	}
	return out
}

func setForwarding(t *testing.T, bed testbed.Testbed, on bool) {
	t.Helper()
	value := map[bool]string{false: "0", true: "1"}[on]
	output(t, bed.Node(testbed.Firewall), "sh", "-c", "echo "+value+" >/proc/sys/net/ipv4/ip_forward")
}

// path: sender and receiver reach each other through the firewall and no other way.
func path(t *testing.T, bed testbed.Testbed, spec testbed.Spec) {
	for _, hop := range []struct {
		from, to testbed.Role
		by       testbed.LinkSpec
		target   testbed.LinkSpec
	}{
		{testbed.Sender, testbed.Receiver, spec.Inside(), spec.Outside()},
		{testbed.Receiver, testbed.Sender, spec.Outside(), spec.Inside()},
	} {
		target := hop.target.Address(hop.to).Addr()
		got := output(t, bed.Node(hop.from), "ip", "-o", "route", "get", target.String())
		want := fmt.Sprintf("%s via %s dev %s ", target, hop.by.Address(testbed.Firewall).Addr(), hop.by.Name)
		if !strings.HasPrefix(got, want) {
			t.Errorf("route of %s: %q, want %q", hop.from, got, want)
		}
	}
	// One router on the way takes one off the time to live, of the answer too.
	if out := ping(t, bed, spec, true); !strings.Contains(out, " ttl=63 ") {
		t.Errorf("want one router on the way, so ttl=63:\n%s", out)
	}
	setForwarding(t, bed, false)
	ping(t, bed, spec, false)
	setForwarding(t, bed, true)
	ping(t, bed, spec, true)
}

// mtu: the largest packet of the narrower link passes whole, one byte more does not.
func mtu(t *testing.T, bed testbed.Testbed, spec testbed.Spec) {
	const headers = 20 + 8 // IPv4, ICMP
	largest := min(spec.Inside().MTU, spec.Outside().MTU) - headers
	target := spec.Outside().Address(testbed.Receiver).Addr().String()
	for size, want := range map[int]bool{largest: true, largest + 1: false} {
		out, err := run(t.Context(), bed.Node(testbed.Sender), "ping", "-n", "-c", "1", "-W", "5", "-M", "do", "-s", fmt.Sprint(size), target)
		if (err == nil) != want {
			t.Errorf("unfragmented packet of %d bytes passes = %v, want %v: %v\n%s", size+headers, err == nil, want, err, out)
		}
	}
}
