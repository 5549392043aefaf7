package firewall

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// loopback brings lo of the test's namespace up: a testbed's always is.
func loopback(t testing.TB) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
}

// tune makes the Tuning of settings between the interfaces of a chain.
func tune(t testing.TB, s Settings) *Tuning {
	t.Helper()
	tuning, err := NewTuning(Spec{Engine: None, Settings: s}, Options{Interfaces: [2]string{"inside", "outside"}})
	must(t, err)
	return tuning
}

// mustApply applies, and skips where this kernel lacks a setting.
func mustApply(t testing.TB, tuning *Tuning) {
	t.Helper()
	err := tuning.Apply(t.Context())
	var missing *UnavailableError
	if errors.As(err, &missing) {
		t.Skipf("%v", err)
	}
	must(t, err)
}

func settingsState(t testing.TB) string {
	t.Helper()
	var state strings.Builder
	for _, path := range []string{"all/rp_filter", "inside/rp_filter", "outside/rp_filter", "inside/log_martians"} {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + path)
		must(t, err)
		state.Write(text)
	}
	tables, err := nftTables()
	must(t, err)
	rules, err := routingRules()
	must(t, err)
	for range rules {
		state.WriteString("rule")
	}
	tracking, err := isTracking()
	must(t, err)
	if tracking {
		state.WriteString("tracking")
	}
	return state.String() + strings.Join(tables, " ")
}

// Every engine takes the settings that this kernel has, both verify, and everything is put back.
func TestSettings(t *testing.T) {
	all := Settings{Conntrack: true, RPFilter: 1, RoutingRules: 3, Sysctl: NewSysctls(map[string]string{"net.ipv4.conf.inside.log_martians": "1"})}
	for _, engine := range Engines() {
		for name, s := range map[string]Settings{"nothing": {}, "conntrack": {Conntrack: true}, "rp_filter": {RPFilter: 2}, "all": all} {
			t.Run(engine+"-"+name, func(t *testing.T) {
				t.Parallel()
				newChain(t)
				loopback(t)
				// What was there is not what is wanted, and comes back.
				must(t, os.WriteFile("/proc/sys/net/ipv4/conf/outside/rp_filter", []byte("1"), 0))
				before := settingsState(t)
				spec := Spec{Engine: engine, Lookup: Linear, Settings: s}
				e, err := New(spec, Options{})
				must(t, err)
				rules := ruleSet(4, Last)
				mustLoad(t, e, rules)
				tuning := tune(t, s)
				mustApply(t, tuning)
				wantClean(t, mustVerify(t, e, rules), nil)
				checks, err := tuning.Verify(t.Context())
				wantClean(t, checks, err)
				must(t, tuning.Restore(t.Context()))
				must(t, tuning.Restore(t.Context()))
				must(t, e.Unload(t.Context()))
				if after := settingsState(t); engine != IptablesLegacy && after != before {
					t.Errorf("after: %q, before: %q", after, before)
				}
				left, err := tuning.Clean(t.Context())
				must(t, err)
				if bad := failed(left); len(bad) > 0 {
					t.Errorf("left: %q", bad)
				}
				if c, ok := e.(Cleaner); ok && engine != IptablesLegacy {
					checks, err := c.Clean(t.Context())
					wantClean(t, checks, err)
				}
			})
		}
	}
}

// A check of a setting fails when the kernel has another.
func TestSettingsAreReadBack(t *testing.T) {
	newChain(t)
	loopback(t)
	tuning := tune(t, Settings{})
	mustApply(t, tuning)
	other := tune(t, Settings{Conntrack: true, RPFilter: 1, RoutingRules: 1})
	mustApply(t, other)
	checks, err := tuning.Verify(t.Context())
	must(t, err)
	if bad := failed(checks); len(bad) != 4 {
		t.Errorf("%q", bad)
	}
	none := mustNew(t, None, "")
	all, err := none.Verify(t.Context(), RuleSet{})
	must(t, err)
	if bad := failed(all); len(bad) == 0 || !strings.Contains(strings.Join(bad, " "), settingsTable) {
		t.Errorf("a table of settings that nobody asked for: %q", bad)
	}
	must(t, other.Restore(t.Context()))
	checks, err = tuning.Verify(t.Context())
	wantClean(t, checks, err)
}

// A helper that was killed left its settings' table; the next load removes it.
func TestSettingsLeftBehind(t *testing.T) {
	newChain(t)
	loopback(t)
	mustApply(t, tune(t, Settings{Conntrack: true}))
	none := mustNew(t, None, "")
	mustLoad(t, none, RuleSet{})
	wantClean(t, mustVerify(t, none, RuleSet{}), nil)
}

// Strict reverse-path filtering drops what comes from nowhere; connections are tracked when asked for,
// and an entry of one run is gone in the next.
func TestSettingsAtWork(t *testing.T) {
	c := newChain(t)
	loopback(t)
	rules := ruleSet(4, Last)
	from := c.socket(t, c.sender, rules.Sender)
	to := c.socket(t, c.receiver, rules.Receiver)
	for _, s := range []Settings{{}, {Conntrack: true}, {RPFilter: 1}, {Conntrack: true, RPFilter: 1}, {}} {
		tuning := tune(t, s)
		mustApply(t, tuning)
		before, err := tuning.Activity(rules)
		must(t, err)
		if before.Tracked != 0 {
			t.Errorf("%+v: an entry of an earlier run: %+v", s, before)
		}
		if n := c.pass(t, from, to, 50, 50); n != 50 {
			t.Errorf("%+v: %d passed", s, n)
		}
		after, err := tuning.Activity(rules)
		must(t, err)
		wantClean(t, s.Proof(after.Since(before), 50, 50), nil)
		wrong := s
		wrong.Conntrack = !wrong.Conntrack
		if len(failed(wrong.Proof(after.Since(before), 50, 50))) == 0 {
			t.Errorf("%+v: the proof does not tell", s)
		}
		must(t, tuning.Restore(t.Context()))
	}
}

// What the settings load is what nft loads from the text in the manual.
func TestSettingsScript(t *testing.T) {
	for name, s := range map[string]Settings{"conntrack": {Conntrack: true}, "flowtable": {Conntrack: true, Flowtable: true}} {
		t.Run(name, func(t *testing.T) {
			newChain(t)
			loopback(t)
			tuning := tune(t, s)
			mustApply(t, tuning)
			ours := program(t, nil, "nft", "-s", "list", "ruleset")
			must(t, tuning.Restore(t.Context()))
			program(t, []byte(SettingsScript(s, [2]string{"inside", "outside"})), "nft", "-f", "-")
			if theirs := program(t, nil, "nft", "-s", "list", "ruleset"); ours != theirs {
				t.Errorf("loaded:\n%s\nnft loads:\n%s", ours, theirs)
			}
		})
	}
}

// Where the kernel lacks a setting, that is said, and nothing is left of the others.
func TestSettingsUnavailable(t *testing.T) {
	newChain(t)
	loopback(t)
	before := settingsState(t)
	for name, s := range map[string]Settings{
		"rtcache":                 {Conntrack: true, RPFilter: 1, RTCache: true},
		"flowtable":               {Conntrack: true, RPFilter: 1, Flowtable: true},
		"sysctl net.ipv4.unknown": {Conntrack: true, RPFilter: 1, Sysctl: "net.ipv4.unknown=1"},
	} {
		tuning := tune(t, s)
		err := tuning.Apply(t.Context())
		if err == nil {
			must(t, tuning.Restore(t.Context()))
			continue // this kernel has it
		}
		var missing *UnavailableError
		if !errors.As(err, &missing) || missing.Setting != name || missing.Reason == "" {
			t.Errorf("%s: %v", name, err)
		}
		if after := settingsState(t); after != before {
			t.Errorf("%s: left %q of %q", name, after, before)
		}
	}
}

// An interface that is gone is a fault of the testbed and not something that the kernel lacks.
func TestSettingsOfAnInterfaceThatIsGone(t *testing.T) {
	newChain(t)
	tuning := tune(t, Settings{})
	inside, err := netlink.LinkByName("inside")
	must(t, err)
	must(t, netlink.LinkDel(inside))
	err = tuning.Apply(t.Context())
	var missing *UnavailableError
	if err == nil || errors.As(err, &missing) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "inside") {
		t.Errorf("got %v", err)
	}
}

func TestSettingsValidate(t *testing.T) {
	for want, s := range map[string]Settings{
		"rp_filter = 3":               {RPFilter: 3},
		"routing_rules = -1":          {RoutingRules: -1},
		"flowtable = true needs":      {Flowtable: true},
		"rtcache = true needs":        {RTCache: true},
		"primed":                      {Conntrack: true, Unprimed: true},
		"use rp_filter":               {Sysctl: "net.ipv4.conf.all.rp_filter=1"},
		"use rtcache":                 {Sysctl: "net.rtcache.enabled=1"},
		"settings, such as":           {Sysctl: "kernel.panic=1"},
		`"net/../../etc/passwd": use`: {Sysctl: "net/../../etc/passwd=1"},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
	all := Settings{Conntrack: true, Flowtable: true, Unprimed: true, RPFilter: 2, RTCache: true, RoutingRules: 2, Sysctl: "net/ipv4/conf/eth0.1/forwarding=1"}
	must(t, all.Validate())
	if got, want := all.Describe(), "conntrack, rp_filter = 2, rtcache, flowtable, not primed, 2 routing rules, net/ipv4/conf/eth0.1/forwarding = 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (Settings{}).Describe(); got != "" {
		t.Errorf("nothing is %q", got)
	}
}

func TestSysctls(t *testing.T) {
	in := map[string]string{"net.b": "2 3", "net.a": "x=y"}
	s := NewSysctls(in)
	if s != "net.a=x=y\nnet.b=2 3" || !maps.Equal(maps.Collect(s.All()), in) {
		t.Errorf("%q", s)
	}
	if len(slices.Collect(maps.Keys(maps.Collect(NewSysctls(nil).All())))) != 0 {
		t.Error("nothing is something")
	}
}

func TestProof(t *testing.T) {
	flow := Settings{Conntrack: true, Flowtable: true}
	unprimed, cached := flow, Settings{Conntrack: true, RTCache: true}
	unprimed.Unprimed = true
	for _, c := range []struct {
		name  string
		s     Settings
		after Activity
		fails int
	}{
		{"offloaded", flow, Activity{Tracked: 1, Forwarded: 102}, 0},
		{"not offloaded", flow, Activity{Tracked: 1, Forwarded: 10100}, 1},
		{"half offloaded", flow, Activity{Tracked: 1, Forwarded: 5100}, 1},
		{"never offloaded", unprimed, Activity{Tracked: 1, Forwarded: 10099}, 0},
		{"offloaded all the same", unprimed, Activity{Tracked: 1, Forwarded: 102}, 1},
		{"cached", cached, Activity{Tracked: 1, CacheHits: 19990}, 0},
		{"not cached", cached, Activity{Tracked: 1, CacheHits: 300}, 1},
		{"not tracked", cached, Activity{CacheHits: 20000}, 1},
		{"tracked", Settings{}, Activity{Tracked: 1}, 1},
	} {
		if bad := failed(c.s.Proof(c.after.Since(Activity{Forwarded: 100}), 20000, 10000)); len(bad) != c.fails {
			t.Errorf("%s: %q", c.name, bad)
		}
	}
	if len(failed(flow.Proof(Activity{Tracked: 1}, 0, 0))) != 1 {
		t.Error("nothing that arrived took the flowtable")
	}
}

func FuzzParseTracked(f *testing.F) {
	tuple := appendAttribute(nil, ctTupleIP, appendAttribute(appendAttribute(nil, ctIPv4Source, []byte{10, 0, 0, 1}), ctIPv4Target, []byte{10, 0, 0, 2}))
	tuple = appendAttribute(tuple, ctTupleProto, appendAttribute(appendAttribute(nil, ctProtoNumber, []byte{17}), ctProtoSource, []byte{1, 2}))
	f.Add(appendAttribute(appendAttribute(nil, ctAttrTupleOrig, tuple), ctAttrStatus, []byte{0, 0, 0x40, 0}))
	f.Add([]byte{4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, attrs []byte) {
		if c, ok := parseTracked(attrs); !ok && c != (tracked{}) {
			t.Errorf("%+v of what is none", c)
		}
	})
}

func FuzzParseCacheHits(f *testing.F) {
	f.Add("enabled 1\nhits 12\n")
	f.Add("hits x")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseCacheHits(text); err != nil && n != 0 && !errors.Is(err, errors.ErrUnsupported) && !strings.Contains(err.Error(), "range") {
			t.Errorf("%d with %v", n, err)
		}
	})
}
