package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	sender   = netip.MustParseAddr("10.77.1.1")
	receiver = netip.MustParseAddr("10.77.2.2")
)

func ruleSet(n int, position string) RuleSet {
	return RuleSet{Rules: n, Seed: 1, Position: position, Sender: sender, Receiver: receiver}
}

func mustEntries(t testing.TB, r RuleSet) []netip.Addr {
	t.Helper()
	entries, err := r.Entries()
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestEntriesPositions(t *testing.T) {
	for _, n := range []int{2, 3, 10, 1000} {
		last := mustEntries(t, ruleSet(n, Last))
		if len(last) != n || last[n-2] != receiver || last[n-1] != sender {
			t.Errorf("last of %d ends in %v", n, last[n-2:])
		}
		if !slices.Equal(last, mustEntries(t, ruleSet(n, ""))) {
			t.Errorf("the default position of %d rules is not last", n)
		}
		first := mustEntries(t, ruleSet(n, First))
		if first[0] != sender || first[1] != receiver || !slices.Equal(first[2:], last[:n-2]) {
			t.Errorf("first of %d begins with %v", n, first[:2])
		}
		uniform := mustEntries(t, ruleSet(n, Uniform))
		rest := slices.DeleteFunc(slices.Clone(uniform), func(a netip.Addr) bool { return a == sender || a == receiver })
		if len(uniform) != n || !slices.Equal(rest, last[:n-2]) {
			t.Errorf("uniform of %d rules has other fillers than last", n)
		}
	}
}

// TestEntriesUniform draws many rule-sets: the sender must be found at every place, about as often.
func TestEntriesUniform(t *testing.T) {
	const n, draws = 10, 2000
	var senders, receivers [n]int
	for seed := range uint64(draws) {
		r := ruleSet(n, Uniform)
		r.Seed = seed
		entries := mustEntries(t, r)
		senders[slices.Index(entries, sender)]++
		receivers[slices.Index(entries, receiver)]++
	}
	for place := range n {
		// 200 are expected with a standard deviation of 13; six of those.
		for _, got := range []int{senders[place], receivers[place]} {
			if got < 120 || got > 280 {
				t.Errorf("place %d: sender %d and receiver %d times of %d", place, senders[place], receivers[place], draws)
			}
		}
	}
}

func TestEntriesAreDrawn(t *testing.T) {
	for _, n := range []int{1000, 131_074, 131_075, 200_000} {
		entries := mustEntries(t, ruleSet(n, Last))
		seen := map[netip.Addr]bool{}
		beyond := 0
		for _, a := range entries[:n-2] {
			if seen[a] {
				t.Fatalf("%d rules: %s is there twice", n, a)
			}
			seen[a] = true
			switch {
			case benchmarking.Contains(a):
			case reserved.Contains(a):
				beyond++
			default:
				t.Fatalf("%d rules: filler %s", n, a)
			}
		}
		if want := max(0, n-2-1<<17); beyond != want {
			t.Errorf("%d rules: %d fillers from %s, want %d", n, beyond, reserved, want)
		}
		if slices.IsSortedFunc(entries, netip.Addr.Compare) {
			t.Errorf("%d rules are sorted", n)
		}
		other := ruleSet(n, Last)
		other.Seed = 2
		if slices.Equal(entries, mustEntries(t, other)) {
			t.Errorf("%d rules: two seeds give the same entries", n)
		}
	}
}

// TestEntriesStay holds the generator to what it gave once: records of different versions of rampart
// stay comparable only while the same seed gives the same rules.
func TestEntriesStay(t *testing.T) {
	for _, c := range []struct {
		rules    int
		position string
		want     string
	}{
		{10, Last, "1981117e95de6cbd"},
		{1000, Uniform, "2ce743e09a51ee1b"},
		{140_000, Last, "fea97abf0df58ff3"},
	} {
		h := sha256.New()
		for _, a := range mustEntries(t, ruleSet(c.rules, c.position)) {
			b := a.As4()
			h.Write(b[:])
		}
		if got := hex.EncodeToString(h.Sum(nil)[:8]); got != c.want {
			t.Errorf("%d rules, %s: digest %s, want %s", c.rules, c.position, got, c.want)
		}
	}
}

func TestEntriesMillion(t *testing.T) {
	start := time.Now()
	entries := mustEntries(t, ruleSet(1_000_000, Last))
	if len(entries) != 1_000_000 {
		t.Fatalf("%d entries", len(entries))
	}
	t.Logf("1,000,000 entries in %v", time.Since(start))
}

func TestEntriesErrors(t *testing.T) {
	for want, change := range map[string]func(*RuleSet){
		"rules = 1: use 2":          func(r *RuleSet) { r.Rules = 1 },
		"rules = 16908291: use 2":   func(r *RuleSet) { r.Rules = MaxRules + 1 },
		`position "middle": use`:    func(r *RuleSet) { r.Position = "middle" },
		"use an IPv4 address":       func(r *RuleSet) { r.Sender = netip.MustParseAddr("fd00::1") },
		"receiver address invalid":  func(r *RuleSet) { r.Receiver = netip.Addr{} },
		"fillers are drawn from":    func(r *RuleSet) { r.Receiver = netip.MustParseAddr("198.19.0.1") },
		"give them different addre": func(r *RuleSet) { r.Receiver = r.Sender },
	} {
		r := ruleSet(10, Last)
		change(&r)
		if _, err := r.Entries(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}

func TestNewErrors(t *testing.T) {
	for want, spec := range map[string]Spec{
		`engine "iptables": use one of`:       {Engine: "iptables", Lookup: Linear},
		`lookup "": use linear or indexed`:    {Engine: Nftables},
		`position "middle": use last, first `: {Engine: Nftables, Lookup: Linear, Position: "middle"},
	} {
		if _, err := New(spec, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
	}
}
