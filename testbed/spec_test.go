package testbed

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

func TestDefault(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	if !reflect.DeepEqual(Default(), Default()) {
		t.Error("two default Specs differ")
	}
}

func TestAddressesAndRoutes(t *testing.T) {
	spec := Default()
	for _, test := range []struct {
		link LinkSpec
		role Role
		want string
	}{
		{spec.Inside(), Sender, "10.77.1.1/24"},
		{spec.Inside(), Firewall, "10.77.1.2/24"},
		{spec.Outside(), Firewall, "10.77.2.1/24"},
		{spec.Outside(), Receiver, "10.77.2.2/24"},
		{spec.Inside(), Receiver, "invalid Prefix"},
		{spec.Outside(), Sender, "invalid Prefix"},
	} {
		if got := test.link.Address(test.role).String(); got != test.want {
			t.Errorf("%s on %s has %s, want %s", test.role, test.link.Name, got, test.want)
		}
	}
	for role, want := range map[Role][]Route{
		Sender:   {{netip.MustParsePrefix("10.77.2.0/24"), netip.MustParseAddr("10.77.1.2")}},
		Firewall: nil,
		Receiver: {{netip.MustParsePrefix("10.77.1.0/24"), netip.MustParseAddr("10.77.2.1")}},
	} {
		if got := spec.Routes(role); !reflect.DeepEqual(got, want) {
			t.Errorf("routes of %s are %v, want %v", role, got, want)
		}
	}
}

// A link written the other way round, or with an address in place of its network, is the same link.
func TestLinkWrittenOtherwise(t *testing.T) {
	spec := Default()
	spec.Links[0].Nodes = [2]Role{Firewall, Sender}
	spec.Links[0].Network = netip.MustParsePrefix("10.77.1.99/24")
	if err := spec.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := spec.Inside().Address(Firewall).String(); got != "10.77.1.1/24" {
		t.Errorf("the first node has %s, want the first address", got)
	}
	if got, want := spec.Routes(Receiver)[0].Destination.String(), "10.77.1.0/24"; got != want {
		t.Errorf("route to %s, want %s", got, want)
	}
}

// In every network that Validate allows, both ends and the intruder have addresses of hosts in it, all
// different.
func TestSmallestNetwork(t *testing.T) {
	for _, network := range []string{"10.77.1.0/29", "10.77.1.248/29", "10.0.0.0/8", "192.168.255.0/24"} {
		l := Default().Links[0]
		l.Network = netip.MustParsePrefix(network)
		seen := map[netip.Addr]bool{}
		for _, addr := range []netip.Addr{l.Address(Sender).Addr(), l.Address(Firewall).Addr(), l.Intruder()} {
			if seen[addr] || !l.Network.Contains(addr) || addr == l.Network.Masked().Addr() {
				t.Errorf("%s: address %s", network, addr)
			}
			seen[addr] = true
			if !l.Network.Contains(addr.Next()) {
				t.Errorf("%s: %s is the broadcast address", network, addr)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	link := func(i int, change func(*LinkSpec)) func(*Spec) { return func(s *Spec) { change(&s.Links[i]) } }
	node := func(i int, change func(*NodeSpec)) func(*Spec) { return func(s *Spec) { change(&s.Nodes[i]) } }
	network := func(s string) func(*Spec) {
		return link(0, func(l *LinkSpec) { l.Network = netip.MustParsePrefix(s) })
	}
	for _, test := range []struct {
		spoil func(*Spec)
		want  string // empty: it is right
	}{
		{func(s *Spec) { s.Name = "a" }, ""},
		{func(s *Spec) { s.Name = "sixteen-letters1" }, ""},
		{func(s *Spec) { s.Name = "" }, "testbed name"},
		{func(s *Spec) { s.Name = "seventeen-letters" }, "testbed name"},
		{func(s *Spec) { s.Name = "-a" }, "testbed name"},
		{func(s *Spec) { s.Name = "a-" }, "testbed name"},
		{func(s *Spec) { s.Name = "Upper" }, "testbed name"},
		{func(s *Spec) { s.Name = "../etc" }, "testbed name"},
		{func(s *Spec) { s.Name = "two\nlines" }, "testbed name"},

		{node(0, func(n *NodeSpec) { n.Role = "router" }), "a node is sender, firewall or receiver"},
		{node(0, func(n *NodeSpec) { n.Role = Receiver }), `node "receiver" is there twice`},
		{func(s *Spec) { s.Nodes = s.Nodes[:2] }, `node "receiver" is missing`},
		{node(1, func(n *NodeSpec) { n.VCPUs = 0 }), "vcpus = 0"},
		{node(1, func(n *NodeSpec) { n.VCPUs, n.Queues = 64, 64 }), ""},
		{node(1, func(n *NodeSpec) { n.VCPUs = 65 }), "vcpus = 65"},
		{node(1, func(n *NodeSpec) { n.Memory = 127 << 20 }), "at least 128 MiB"},
		{node(1, func(n *NodeSpec) { n.Queues = 2 }), "queues = 2: use 1 to the number of vcpus (1)"},

		{node(1, func(n *NodeSpec) { n.VCPUs, n.Pin = 2, []CPUs{{2}, {3}} }), ""},
		{node(1, func(n *NodeSpec) { n.VCPUs, n.Pin = 2, []CPUs{{2, 3}, {2, 3}} }), ""},
		{node(1, func(n *NodeSpec) { n.Pin = []CPUs{{2}, {3}} }), "pin has 2 lists: use one for each of the 1 vcpus"},
		{node(1, func(n *NodeSpec) { n.Pin = []CPUs{} }), "pin has 0 lists"},
		{node(1, func(n *NodeSpec) { n.Pin = []CPUs{nil} }), "pin of virtual CPU 0 is empty"},
		{node(1, func(n *NodeSpec) { n.VCPUs, n.Pin = 3, []CPUs{{2}, {4}, {2}} }), "virtual CPUs 0 and 2 are both pinned to CPU 2"},
		{node(1, func(n *NodeSpec) { n.HugePages = 2 << 20 }), ""},
		{node(1, func(n *NodeSpec) { n.HugePages, n.Memory = 1<<30, 3<<30 }), ""},
		{node(1, func(n *NodeSpec) { n.HugePages = 1 << 30 }), "must be a multiple"},
		{node(1, func(n *NodeSpec) { n.HugePages = 4096 }), "use 2 MiB or 1 GiB"},
		{node(1, func(n *NodeSpec) { n.HugePages = -1 }), "use 2 MiB or 1 GiB"},
		{node(1, func(n *NodeSpec) { n.HugePages = 4 << 20 }), "use 2 MiB or 1 GiB"},
		{node(1, func(n *NodeSpec) { n.Memory += 512 << 10 }), "use a whole number of MiB"},
		{node(1, func(n *NodeSpec) { n.RxQueueSize, n.TxQueueSize = 1024, 256 }), ""},
		{node(1, func(n *NodeSpec) { n.RxQueueSize = 768 }), "rx_queue_size = 768: use 256, 512 or 1024"},
		{node(1, func(n *NodeSpec) { n.TxQueueSize = 512 }), "tx_queue_size = 512: QEMU has 256"},
		{func(s *Spec) { s.Machine = Machine{"pc-q35-7.2", "Skylake-Client-noTSX-IBRS", VHostOn} }, ""},
		{func(s *Spec) { s.Machine.Type = "microvm" }, `machine type "microvm"`},
		{func(s *Spec) { s.Machine.CPU = "a,b" }, `cpu "a,b"`},
		{func(s *Spec) { s.Machine.VHost = "yes" }, `vhost "yes": use true or false`},

		{func(s *Spec) { s.Links = s.Links[:1] }, "no link joins firewall and receiver"},
		{func(s *Spec) { s.Links = append(s.Links, LinkSpec{}) }, "testbed has 3 links"},
		{link(0, func(l *LinkSpec) { l.Nodes = [2]Role{Sender, Receiver} }), "no link joins sender and firewall"},
		{link(0, func(l *LinkSpec) { l.Name = "fifteen_letters" }), ""},
		{link(0, func(l *LinkSpec) { l.Name = "sixteen_letters1" }), "at most 15"},
		{link(0, func(l *LinkSpec) { l.Name = "lo" }), "not lo or mgmt"},
		{link(0, func(l *LinkSpec) { l.Name = "mgmt" }), "not lo or mgmt"},
		{link(0, func(l *LinkSpec) { l.Name = "in/side" }), `link "in/side"`},
		{link(0, func(l *LinkSpec) { l.Name = "outside" }), `link "outside" is there twice`},
		{link(0, func(l *LinkSpec) { l.MTU = 575 }), "mtu = 575"},
		{link(0, func(l *LinkSpec) { l.MTU = 9216 }), ""},
		{link(0, func(l *LinkSpec) { l.MTU = 9217 }), "mtu = 9217"},

		{network("10.77.1.0/29"), ""},
		{network("10.77.1.0/30"), "at least 8 addresses"},
		{network("fd00::/64"), "use an IPv4 network"},
		{link(0, func(l *LinkSpec) { l.Network = netip.Prefix{} }), "use an IPv4 network"},
		{network("10.0.0.0/8"), "networks 10.0.0.0/8 and 10.77.2.0/24 overlap"},
		{network("10.77.2.128/25"), "overlap"},
		{network("198.19.4.0/24"), "filler entries"},
		{network("127.0.0.0/24"), "loopback"},
		{network("239.1.1.0/24"), "multicast"},
		{network("0.0.0.0/0"), "this host"},
	} {
		spec := Default()
		test.spoil(&spec)
		err := spec.Validate()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%+v: %v", spec, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%+v: got %v, want %q", spec, err, test.want)
		}
	}
}

// Whether anything is tuned does not depend on what.
func TestTuned(t *testing.T) {
	if Default().Tuned() {
		t.Error("the default is tuned")
	}
	for i, tune := range []func(*Spec){
		func(s *Spec) { s.Nodes[2].Pin = []CPUs{{1}} },
		func(s *Spec) { s.Nodes[2].EmulatorPin = CPUs{1} },
		func(s *Spec) { s.Nodes[2].HugePages = MinHugePage },
		func(s *Spec) { s.Nodes[2].RxQueueSize = 512 },
		func(s *Spec) { s.Nodes[2].TxQueueSize = 256 },
		func(s *Spec) { s.Machine.VHost = VHostOff },
	} {
		spec := Default()
		if tune(&spec); !spec.Tuned() {
			t.Errorf("number %d is not tuned: %+v", i, spec)
		}
	}
}

// All mistakes are told at once.
func TestValidateCollects(t *testing.T) {
	spec := Default()
	spec.Name, spec.Nodes[2].VCPUs, spec.Links[0].MTU = "", -1, 0
	err := spec.Validate()
	for _, want := range []string{"testbed name", "vcpus = -1", "mtu = 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}

// FuzzSpec: a Spec that is valid has the addresses and routes of three nodes in a chain, and survives
// JSON.
func FuzzSpec(f *testing.F) {
	seed, err := json.Marshal(Default())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{"name":"x","links":[{"network":"10.0.0.0/33"}]}`))
	tuned := Default()
	tuned.Nodes[0].Tuning = Tuning{[]CPUs{{1, 2}}, CPUs{0}, 2 << 20, 512, 256}
	tuned.Machine = Machine{"pc", "Nehalem", VHostOff}
	if seed, err = json.Marshal(tuned); err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		var spec Spec
		if json.Unmarshal(data, &spec) != nil || spec.Validate() != nil {
			return
		}
		for _, l := range spec.Links {
			for _, role := range l.Nodes {
				if addr := l.Address(role); !l.Network.Contains(addr.Addr()) {
					t.Errorf("%s has %s on %s, which is not in %s", role, addr, l.Name, l.Network)
				}
			}
		}
		for _, role := range []Role{Sender, Receiver} {
			if routes := spec.Routes(role); len(routes) != 1 || !routes[0].Via.IsValid() {
				t.Errorf("routes of %s: %v", role, routes)
			}
		}
		encoded, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		var again Spec
		if err := json.Unmarshal(encoded, &again); err != nil || !reflect.DeepEqual(again, spec) {
			t.Errorf("JSON made %+v of %+v (%v)", again, spec, err)
		}
	})
}
