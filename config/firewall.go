package config

import (
	"fmt"
	"strconv"
	"strings"

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
			{name: "conntrack", kind: truth, def: "false", doc: "Have the kernel track connections. It is asked to by a rule that no packet passes, so nothing but tracking is added."},
			{name: "rp_filter", kind: whole, def: "0", min: "0", max: "2", doc: "Reverse-path filter of every interface on a link: 0 off, 1 strict, 2 loose."},
			{name: "flowtable", kind: truth, def: "false", doc: "Let tracked UDP flows between the two links skip forwarding by a flowtable of nftables. Needs `conntrack`."},
			{name: "prime", kind: truth, def: "true", doc: "Show the kernel both directions of a netperf flow before it is measured: a flowtable takes no other. `false` is for firewalls with `flowtable`, and shows what happens then."},
			{name: "rtcache", kind: truth, def: "false", doc: "Switch on the route cache of the kernel module rtcache, which an image gets by `modules`. Needs `conntrack`."},
			{name: "routing_rules", kind: whole, def: "0", min: "0", max: strconv.Itoa(firewall.MaxRoutingRules), doc: "Policy routing rules (`ip rule`) that no packet matches: the kernel tries each before it looks up a route."},
			{name: "sysctl", kind: settings, example: `{ "net.ipv4.conf.all.log_martians" = 0 }`, doc: "Other settings of the network, by the names of sysctl. They are put back afterwards. Provider `netns` has those that belong to a network namespace."},
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
		spec := r.readFirewall(b)
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

func (r *reader) readFirewall(b *body) firewall.Spec {
	spec := firewall.Spec{
		Name: b.label, Engine: b.text("engine"), Lookup: b.text("lookup"), Position: b.text("position"),
		Settings: firewall.Settings{
			Conntrack: b.truth("conntrack"),
			RPFilter:  b.whole("rp_filter"),
			Flowtable: b.truth("flowtable"),
			Unprimed:  !b.truth("prime"),
			RTCache:   b.truth("rtcache"),

			RoutingRules: b.whole("routing_rules"),
			Sysctl:       r.readSysctls(b),
		},
	}
	for _, needs := range []struct {
		name, other string
		wrong       bool
	}{
		{"flowtable", "conntrack", spec.Flowtable && !spec.Conntrack},
		{"rtcache", "conntrack", spec.RTCache && !spec.Conntrack},
		{"prime", "flowtable", spec.Unprimed && !spec.Flowtable},
	} {
		if needs.wrong {
			b.wrong(needs.name, &mistake{"means nothing here", fmt.Sprintf("It needs %s = true: add that, or remove this line.", needs.other)})
		}
	}
	if spec.HasRules() {
		return spec
	}
	for _, name := range []string{"lookup", "position"} {
		if b.has(name) {
			b.wrong(name, &mistake{"means nothing here", fmt.Sprintf("Engine %q has no rules; remove this line.", spec.Engine)})
		}
	}
	spec.Lookup, spec.Position = "", ""
	return spec
}

// readSysctls reads names and values, and puts each mistake down to its own line.
func (r *reader) readSysctls(b *body) firewall.Sysctls {
	if !b.has("sysctl") {
		return ""
	}
	values := map[string]string{}
	for _, entry := range r.entries(b, "sysctl") {
		value, wrong := parseText(entry.value)
		if wrong == nil && strings.ContainsAny(value, "\n\r") {
			wrong = &mistake{"has more than one line", "Write the value in one line."}
		}
		if wrong != nil {
			r.fail(entry.rng, fmt.Sprintf("sysctl %s %s", cut(entry.key, 60), wrong.summary), "%s", wrong.right)
			continue
		}
		one := firewall.NewSysctls(map[string]string{entry.key: value})
		if err := (firewall.Settings{Sysctl: one}).Validate(); err != nil {
			r.fail(entry.rng, "A sysctl cannot be set", "%s.", err)
			continue
		}
		values[entry.key] = value
	}
	return firewall.NewSysctls(values)
}

func describe(spec firewall.Spec) string {
	text := fmt.Sprintf("engine = %q", spec.Engine)
	if spec.HasRules() {
		text += fmt.Sprintf(", lookup = %q, position = %q", spec.Lookup, spec.Position)
	}
	if settings := spec.Settings.Describe(); settings != "" {
		text += ", " + settings
	}
	return text
}
