package netns

import (
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/testbed"
)

func TestNames(t *testing.T) {
	// The tag must never change: Down of a new version finds the testbeds of an old one by it.
	if got, want := namespaceName("rampart", testbed.Firewall), "rampart-b1fb9b-firewall"; got != want {
		t.Errorf("namespace is called %s, want %s", got, want)
	}
	for _, name := range []string{"rampart", "a", "a-b", "sixteen-letters1", "x-firewall", "rampart-b1fb9b"} {
		for _, role := range testbed.Roles() {
			gotName, gotRole, ok := parseNamespace(namespaceName(name, role))
			if !ok || gotName != name || gotRole != role {
				t.Errorf("%s parses as %q, %q, %v", namespaceName(name, role), gotName, gotRole, ok)
			}
		}
		if got, ok := parseFolder(folderName(name)); !ok || got != name {
			t.Errorf("%s parses as %q, %v", folderName(name), got, ok)
		}
	}
	for _, other := range []string{"", "firewall", "-firewall", "rampart-firewall", "rampart-000000-firewall", "rampart-b1fb9b-router", "Rampart-b1fb9b-sender", "../rampart-b1fb9b-sender"} {
		if name, _, ok := parseNamespace(other); ok {
			t.Errorf("%q is taken for a namespace of testbed %q", other, name)
		}
	}
}

// FuzzParseNamespace: whatever the name of a namespace is, it is taken for ours only if it is exactly
// what we would call one.
func FuzzParseNamespace(f *testing.F) {
	f.Add("rampart-b1fb9b-firewall")
	f.Add("a-b-c")
	f.Add("cni-0123-sender")
	f.Fuzz(func(t *testing.T, s string) {
		if name, role, ok := parseNamespace(s); ok && namespaceName(name, role) != s {
			t.Errorf("%q is taken for %q", s, namespaceName(name, role))
		}
		if name, ok := parseFolder(s); ok && folderName(name) != s {
			t.Errorf("%q is taken for %q", s, folderName(name))
		}
	})
}

func TestEnds(t *testing.T) {
	spec := testbed.Default()
	describe := func(e end) string {
		text := e.link.Name + " " + e.addr.String() + " " + e.mac.String()
		for _, n := range e.neighbour {
			text += ", " + n.ip.String() + " at " + n.mac.String()
		}
		return text
	}
	for role, want := range map[testbed.Role]string{
		testbed.Sender: "inside 10.77.1.1/24 02:00:00:00:01:01, 10.77.1.2 at 02:00:00:00:01:02",
		testbed.Firewall: "inside 10.77.1.2/24 02:00:00:00:01:02, 10.77.1.1 at 02:00:00:00:01:01, 10.77.1.3 at 02:00:00:00:01:01; " +
			"outside 10.77.2.1/24 02:00:00:00:02:01, 10.77.2.2 at 02:00:00:00:02:02, 10.77.2.3 at 02:00:00:00:02:02",
		testbed.Receiver: "outside 10.77.2.2/24 02:00:00:00:02:02, 10.77.2.1 at 02:00:00:00:02:01",
	} {
		var got []string
		for _, e := range ends(spec, role) {
			got = append(got, describe(e))
		}
		if text := strings.Join(got, "; "); text != want {
			t.Errorf("%s has\n%s, want\n%s", role, text, want)
		}
	}
}

func TestIsOffload(t *testing.T) {
	for feature, want := range map[string]bool{
		"rx-checksum": true, "tx-checksum-ip-generic": true, "tx-checksum-ipv4": true, "tx-checksum-sctp": true,
		"rx-gro": true, "rx-gro-list": true, "rx-gro-hw": true, "rx-lro": true, "rx-udp-gro-forwarding": true,
		"tx-generic-segmentation": true, "tx-tcp-segmentation": true, "tx-tcp6-segmentation": true,
		"tx-tcp-mangleid-segmentation": true, "tx-udp-segmentation": true, "tx-udp_tnl-csum-segmentation": true,
		"tx-gso-partial": true, "tx-gso-list": true, "tx-scatter-gather": true, "tx-scatter-gather-fraglist": true,
		"rx-vlan-hw-parse": false, "tx-vlan-hw-insert": false, "highdma": false, "tx-nocache-copy": false,
		"rx-hashing": false, "loopback": false, "hw-tc-offload": false, "rx-all": false, "rx-fcs": false,
	} {
		if got := isOffload(feature); got != want {
			t.Errorf("isOffload(%q) = %v", feature, got)
		}
	}
}
