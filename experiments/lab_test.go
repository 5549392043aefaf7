package experiments

import (
	"testing"

	"github.com/rampart-bench/rampart/experiments/firewall"
)

// What an earlier firewall left in the kernel counts for those that it would slow, and for no other.
func TestBurden(t *testing.T) {
	rules := firewall.Spec{Engine: firewall.Nftables}
	legacy := firewall.Spec{Engine: firewall.IptablesLegacy}
	routed := firewall.Spec{Engine: firewall.None, Settings: firewall.Settings{RoutingRules: 1}}
	for _, c := range []struct {
		name string
		lab  Lab
		fw   firewall.Spec
		is   bool
	}{
		{"fresh", Lab{}, rules, false},
		{"hooks of another", Lab{residue: "hooks", residueOf: firewall.IptablesLegacy}, rules, true},
		{"its own hooks", Lab{residue: "hooks", residueOf: firewall.IptablesLegacy}, legacy, false},
		{"the long way", Lab{routing: "the long way"}, rules, true},
		{"the long way, which it goes itself", Lab{routing: "the long way"}, routed, false},
		{"both", Lab{residue: "hooks", residueOf: firewall.IptablesLegacy, routing: "the long way"}, routed, true},
	} {
		if got := c.lab.burden(c.fw); (got != "") != c.is {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
