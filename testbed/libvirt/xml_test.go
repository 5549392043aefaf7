package libvirt

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/testbed"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden holds text to the file of that name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it anew); got:\n%s", path, got)
	}
}

// exampleState is a testbed in which everything that can differ from the default does.
func exampleState() state {
	spec := testbed.Default()
	spec.Nodes[1].VCPUs, spec.Nodes[1].Queues = 4, 2
	spec.Links[1].MTU, spec.Links[1].Offloads = 9000, true
	return state{
		Ident:       ident{"rampart", "0a1b2c"},
		Spec:        spec,
		Management:  netip.MustParsePrefix("10.254.3.16/28"),
		Kernel:      "/pool/kernel",
		Initrd:      "/pool/initrd",
		Base:        "/pool/base",
		CommandLine: "root=/dev/vda console=ttyS0",
	}
}

func TestDomainXML(t *testing.T) {
	s := exampleState()
	for name, kvm := range map[string]bool{"firewall-tcg.xml": false, "firewall-kvm.xml": true} {
		s.KVM, s.VHost = kvm, kvm
		p := newProvider(t, Options{StateDir: "/state"})
		m, err := p.nodeMachine(s, testbed.Firewall, "/pool/overlay", "/pool/seed")
		if err != nil {
			t.Fatal(err)
		}
		doc, err := m.xml().Marshal()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, doc+"\n")
	}
}

func TestNetworkXML(t *testing.T) {
	s := exampleState()
	for name, n := range map[string]*libvirtxml.Network{
		"link.xml":       linkNetwork(s.Ident, 1, s.Spec.Links[1]),
		"management.xml": managementNetwork(s.Ident, s.Management),
	} {
		doc, err := n.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, doc+"\n")
	}
}

func TestVolumeXML(t *testing.T) {
	for name, v := range map[string]*libvirtxml.StorageVolume{
		"raw.xml":     rawVolume("seed", modePrivate, 5120),
		"overlay.xml": overlayVolume("overlay", "/pool/base"),
	} {
		doc, err := v.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, doc+"\n")
	}
}

func TestNetworkScript(t *testing.T) {
	s := exampleState()
	for _, role := range testbed.Roles() {
		golden(t, "network-"+string(role)+".sh", s.networkScript(role))
	}
}

// A link may be called what another interface is called before it is renamed.
func TestScriptRenamesInTwoSteps(t *testing.T) {
	s := exampleState()
	s.Spec.Links[0].Name, s.Spec.Links[1].Name = "eth2", "eth0"
	script := s.networkScript(testbed.Firewall)
	last := strings.LastIndex(script, "link set dev $nic")
	first := strings.Index(script, " name eth")
	if last < 0 || first < last {
		t.Errorf("an interface gets its name before all have lost their old ones:\n%s", script)
	}
}

func TestNamesComeApart(t *testing.T) {
	for _, name := range []string{"a", "rampart", "a-b", "x-0a1b2c", "sender", "mgmt-link0", "0a1b2c-sender"} {
		id := ident{name, "ffee00"}
		for part, made := range map[string]string{
			"sender":            id.domain(testbed.Sender),
			"receiver.qcow2":    id.overlay(testbed.Receiver),
			"firewall-seed.img": id.seed(testbed.Firewall),
			"mgmt":              id.management(),
			"link12":            id.link(12),
		} {
			got, gotPart, ok := parseName(made)
			if !ok || got != id || gotPart != part {
				t.Errorf("parseName(%q) = %v, %q, %v; want %v, %q", made, got, gotPart, ok, id, part)
			}
		}
	}
	for _, other := range []string{"", "default", "rampart", "rampart-disk-27b2581a54cd9c948f6f2f1e", "rampart-kernel-27b2581a54cd9c948f6f2f1e.complete",
		"rampart-x-0A1B2C-sender", "rampart-x-0a1b2c-sender2", "xrampart-x-0a1b2c-sender", "rampart-probe-0a1b2c"} {
		if id, part, ok := parseName(other); ok {
			t.Errorf("parseName(%q) = %v, %q: that is not a testbed's", other, id, part)
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("rampart-a-b-0a1b2c-link1")
	f.Add("rampart-rampart-0a1b2c-sender.qcow2")
	f.Fuzz(func(t *testing.T, name string) {
		if id, part, ok := parseName(name); ok && id.part(part) != name {
			t.Errorf("%q came apart into %v and %q, which make %q", name, id, part, id.part(part))
		}
	})
}

func TestNamesFitTheKernel(t *testing.T) {
	id := newIdent("sixteen-letters-")
	for _, bridge := range []string{id.bridge(partManagement), linkNetwork(id, 1, testbed.LinkSpec{}).Bridge.Name} {
		if len(bridge) > 15 {
			t.Errorf("bridge %q is longer than IFNAMSIZ allows", bridge)
		}
	}
}

func TestHardwareAddresses(t *testing.T) {
	seen := map[string]string{}
	for _, id := range []ident{{"a", "000001"}, {"a", "000002"}, {"b", "000001"}} {
		for _, role := range testbed.Roles() {
			for index := range 3 {
				mac := id.mac(role, index)
				if mac != id.mac(role, index) {
					t.Error("an address changes from call to call")
				}
				if seen[mac] != "" {
					t.Errorf("%s is the address of two interfaces", mac)
				}
				seen[mac] = id.String()
			}
		}
	}
}

func TestFreeSubnet(t *testing.T) {
	id := ident{"rampart", "0a1b2c"}
	first, ok := freeSubnet(id, nil)
	if !ok || !managementPools[0].Contains(first.Addr()) || first.Bits() != managementBits || first != first.Masked() {
		t.Fatalf("got %v, %v", first, ok)
	}
	if other, _ := freeSubnet(ident{"rampart", "0a1b2d"}, nil); other == first {
		t.Error("two testbeds begin to look at the same place")
	}
	second, ok := freeSubnet(id, []netip.Prefix{first})
	if !ok || second.Overlaps(first) {
		t.Errorf("got %v beside %v, %v", second, first, ok)
	}
	ten := netip.MustParsePrefix("10.0.0.0/8")
	if third, ok := freeSubnet(id, []netip.Prefix{ten}); !ok || third.Overlaps(ten) {
		t.Errorf("got %v, %v where a route covers %v", third, ok, ten)
	}
	if none, ok := freeSubnet(id, managementPools); ok {
		t.Errorf("got %v where nothing is free", none)
	}
	// One subnet is left, wherever it is.
	var used []netip.Prefix
	for n := range uint32(1) << (managementBits - managementPools[0].Bits()) {
		if s := nthSubnet(managementPools[0], n); s != second {
			used = append(used, s)
		}
	}
	if got, ok := freeSubnet(id, append(used, managementPools[1:]...)); !ok || got != second {
		t.Errorf("got %v, %v; want %v, the only one left", got, ok, second)
	}
}

func TestManagementAddressesAreInTheSubnet(t *testing.T) {
	subnet := netip.MustParsePrefix("10.254.3.16/28")
	want := map[testbed.Role]string{testbed.Sender: "10.254.3.18/28", testbed.Firewall: "10.254.3.19/28", testbed.Receiver: "10.254.3.20/28"}
	for role, address := range want {
		if got := managementAddress(subnet, role); got.String() != address {
			t.Errorf("%s has %s, want %s", role, got, address)
		}
	}
}

func TestNetworkPrefixes(t *testing.T) {
	const doc = `<network><name>x</name><ip address='192.168.122.1' netmask='255.255.255.0'/><ip family='ipv6' address='fd00::1' prefix='64'/><ip address='10.1.2.3' prefix='20'/></network>`
	got, err := parseNetworkPrefixes(doc)
	if err != nil || len(got) != 2 || got[0].String() != "192.168.122.0/24" || got[1].String() != "10.1.0.0/20" {
		t.Errorf("got %v, %v", got, err)
	}
}

func FuzzParseNetworkPrefixes(f *testing.F) {
	f.Add(`<network><ip address='192.168.122.1' netmask='255.255.255.0'/></network>`)
	f.Add(`<network><ip address='10.1.2.3' prefix='99'/></network>`)
	f.Fuzz(func(t *testing.T, doc string) {
		got, _ := parseNetworkPrefixes(doc)
		for _, p := range got {
			if !p.IsValid() || p.Bits() == 0 {
				t.Errorf("%q gives %v", doc, p)
			}
		}
	})
}
