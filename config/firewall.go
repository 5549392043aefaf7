package config

import (
	"fmt"

	"github.com/rampart-bench/rampart/experiments/firewall"
)

func firewallSchema() *schema {
	return &schema{
		name: "firewall", label: "name", occurs: perLabel,
		doc: "A named configuration of the device under test. Referred to as `firewall.name`, or by its name in quotes.",
		attributes: []attribute{
			{name: "engine", kind: text, required: true, oneOf: []string{firewall.None, firewall.Empty, firewall.IptablesLegacy, firewall.IptablesNFT, firewall.Nftables}, example: `"nftables"`, doc: "Which kernel code runs: `none` no hook at all, `empty` one nftables base chain without a rule."},
			{name: "lookup", kind: text, def: `"linear"`, oneOf: []string{firewall.Linear, firewall.Indexed}, doc: "`linear`: one rule an entry. `indexed`: one rule and one set of all entries (ipset, or an nftables set)."},
			{name: "position", kind: text, def: `"last"`, oneOf: []string{firewall.Last, firewall.First, firewall.Uniform}, doc: "Where the two entries that match the traffic stand among the others. `last`: every frame walks the whole list."},
		},
	}
}

// predeclared are the firewalls that need no block.
func predeclared() []firewall.Spec {
	list := []firewall.Spec{{Name: "none", Engine: firewall.None}, {Name: "empty", Engine: firewall.Empty}}
	for _, e := range []struct{ prefix, engine string }{
		{"iptables", firewall.IptablesLegacy},
		{"iptables-nft", firewall.IptablesNFT},
		{"nftables", firewall.Nftables},
	} {
		for _, lookup := range []string{firewall.Linear, firewall.Indexed} {
			list = append(list, firewall.Spec{Name: e.prefix + "-" + lookup, Engine: e.engine, Lookup: lookup, Position: firewall.Last})
		}
	}
	return list
}

func predeclaredNames() []string {
	var names []string
	for _, spec := range predeclared() {
		names = append(names, spec.Name)
	}
	return names
}

// firewalls are all that a configuration can use, by name, and the names in order of declaration.
type firewalls struct {
	specs map[string]firewall.Spec
	names []string
}

// readFirewalls adds the blocks to the predeclared firewalls. A block may repeat a predeclared one,
// but not change it: a name in a report must mean the same everywhere.
func (r *reader) readFirewalls(blocks []*body) firewalls {
	all := firewalls{specs: map[string]firewall.Spec{}}
	for _, spec := range predeclared() {
		all.specs[spec.Name] = spec
		all.names = append(all.names, spec.Name)
	}
	for _, b := range blocks {
		before := len(r.diags)
		spec := readFirewall(b)
		known, ok := all.specs[spec.Name]
		if !ok {
			all.specs[spec.Name] = spec
			all.names = append(all.names, spec.Name)
		}
		if ok && known != spec && !r.failedSince(before) {
			r.fail(b.rng, fmt.Sprintf("Firewall %q is predeclared and is something else", spec.Name), "It has %s. Give this one another name.", describe(known))
		}
	}
	return all
}

func readFirewall(b *body) firewall.Spec {
	spec := firewall.Spec{Name: b.label, Engine: b.text("engine"), Lookup: b.text("lookup"), Position: b.text("position")}
	if spec.HasRules() {
		return spec
	}
	for _, name := range []string{"lookup", "position"} {
		if b.has(name) {
			b.wrong(name, &mistake{"means nothing here", fmt.Sprintf("Engine %q has no rules; remove this line.", spec.Engine)})
		}
	}
	return firewall.Spec{Name: spec.Name, Engine: spec.Engine}
}

func describe(spec firewall.Spec) string {
	if !spec.HasRules() {
		return fmt.Sprintf("engine = %q", spec.Engine)
	}
	return fmt.Sprintf("engine = %q, lookup = %q, position = %q", spec.Engine, spec.Lookup, spec.Position)
}
