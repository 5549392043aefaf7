package firewall

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// The rule-set that the texts below spell out: two fillers, then the traffic.
const (
	linearNFT = `table ip rampart {
	chain input {
		type filter hook input priority 0; policy accept;
	}
	chain forward {
		type filter hook forward priority 0; policy drop;
		ip saddr FILLER1 counter accept
		ip saddr FILLER2 counter accept
		ip saddr 10.77.2.2 counter accept
		ip saddr 10.77.1.1 counter accept
	}
	chain output {
		type filter hook output priority 0; policy accept;
	}
}
`
	indexedNFT = `table ip rampart {
	set accepted {
		type ipv4_addr
		elements = {
			FILLER1,
			FILLER2,
			10.77.2.2,
			10.77.1.1,
		}
	}
	chain input {
		type filter hook input priority 0; policy accept;
	}
	chain forward {
		type filter hook forward priority 0; policy drop;
		ip saddr @accepted counter accept
	}
	chain output {
		type filter hook output priority 0; policy accept;
	}
}
`
	linearIptables = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -s FILLER1/32 -j ACCEPT
-A FORWARD -s FILLER2/32 -j ACCEPT
-A FORWARD -s 10.77.2.2/32 -j ACCEPT
-A FORWARD -s 10.77.1.1/32 -j ACCEPT
COMMIT
`
	indexedIptables = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m set --match-set accepted src -j ACCEPT
COMMIT
`
	indexedIpset = `create accepted hash:ip family inet hashsize 64 maxelem 4
add accepted FILLER1
add accepted FILLER2
add accepted 10.77.2.2
add accepted 10.77.1.1
`
)

func TestScripts(t *testing.T) {
	rules := ruleSet(4, Last)
	entries := mustEntries(t, rules)
	fill := strings.NewReplacer("FILLER1", entries[0].String(), "FILLER2", entries[1].String())
	ipset := func(r RuleSet, _ Spec) ([]byte, error) { return IpsetRestore(r) }
	for _, c := range []struct {
		name, lookup string
		script       func(RuleSet, Spec) ([]byte, error)
		want         string
	}{
		{"nft", Linear, NFTScript, linearNFT},
		{"nft", Indexed, NFTScript, indexedNFT},
		{"iptables-restore", Linear, IptablesRestore, linearIptables},
		{"iptables-restore", Indexed, IptablesRestore, indexedIptables},
		{"ipset restore", Indexed, ipset, indexedIpset},
	} {
		got, err := c.script(rules, Spec{Lookup: c.lookup})
		if err != nil {
			t.Fatal(err)
		}
		if want := fill.Replace(c.want); string(got) != want {
			t.Errorf("%s, %s:\n%s\nwant\n%s", c.name, c.lookup, got, want)
		}
		if _, err := c.script(ruleSet(1, Last), Spec{Lookup: c.lookup}); err == nil {
			t.Errorf("%s makes a script of one rule", c.name)
		}
	}
}

func TestHashSize(t *testing.T) {
	for n, want := range map[int]int{2: 64, 48: 128, 47: 64, 100_000: 262_144, 1_000_000: 2_097_152} {
		if got := hashSize(n); got != want || 4*n > 3*got {
			t.Errorf("hash size of %d elements is %d, want %d", n, got, want)
		}
	}
}

// TestManual holds the texts in the manual to what is loaded.
func TestManual(t *testing.T) {
	manual, err := os.ReadFile("../../docs/firewalls.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := ruleSet(4, Last)
	var texts [][]byte
	for _, lookup := range []string{Linear, Indexed} {
		for _, script := range []func(RuleSet, Spec) ([]byte, error){NFTScript, IptablesRestore} {
			text, err := script(rules, Spec{Lookup: lookup})
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, text)
		}
	}
	text, err := IpsetRestore(rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, settings := range []Settings{{Conntrack: true}, {Conntrack: true, Flowtable: true}} {
		texts = append(texts, []byte(SettingsScript(settings, [2]string{"inside", "outside"})))
	}
	for _, text := range append(texts, text) {
		if !bytes.Contains(manual, append([]byte("```\n"), append(text, "```\n"...)...)) {
			t.Errorf("docs/firewalls.md does not show\n%s", text)
		}
	}
}
