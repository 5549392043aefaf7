package firewall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// skip skips a test that this machine cannot run; where nothing may be skipped, it fails.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Fatalf("may not skip: "+format, args...)
	}
	t.Skipf(format, args...)
}

// isolate gives the test a network namespace of its own until it ends. The test's thread is in it, and
// with it every program that the test starts.
func isolate(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "network namespaces need root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	inside, err := netns.New()
	if err != nil {
		skip(t, "make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Fatal(err)
		}
		before.Close()
		inside.Close()
		runtime.UnlockOSThread()
	})
}

func mustNew(t testing.TB, engine, lookup string) Engine {
	t.Helper()
	e, err := New(Spec{Engine: engine, Lookup: lookup}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// mustLoad loads, and skips where the engine is not available.
func mustLoad(t testing.TB, e Engine, rules RuleSet) {
	t.Helper()
	err := e.Load(t.Context(), rules)
	var missing *UnavailableError
	if errors.As(err, &missing) {
		skip(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func mustVerify(t testing.TB, e Engine, rules RuleSet) []Check {
	t.Helper()
	checks, err := e.Verify(t.Context(), rules)
	if err != nil {
		t.Fatal(err)
	}
	return checks
}

// failed names the checks that are false.
func failed(checks []Check) []string {
	names := []string{}
	for _, c := range checks {
		if !c.OK {
			names = append(names, fmt.Sprintf("%s: want %v, got %v (%s)", c.Name, c.Want, c.Got, c.Detail))
		}
	}
	return names
}

func wantClean(t testing.TB, checks []Check, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if bad := failed(checks); len(bad) > 0 {
		t.Errorf("checks failed: %q", bad)
	}
	if len(checks) == 0 {
		t.Error("nothing was checked")
	}
}

// program runs a program in the test's namespace.
func program(t testing.TB, stdin []byte, argv ...string) string {
	t.Helper()
	out, err := run(t.Context(), stdin, argv...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// arms are the engines that have rules, with each look-up.
var arms = []struct{ engine, lookup string }{
	{IptablesLegacy, Linear}, {IptablesLegacy, Indexed},
	{IptablesNFT, Linear}, {IptablesNFT, Indexed},
	{Nftables, Linear}, {Nftables, Indexed},
}

// eachArm runs a test in a namespace of its own for every arm, as many at once as there are processors.
func eachArm(t *testing.T, test func(t *testing.T, engine, lookup string)) {
	for _, arm := range arms {
		t.Run(arm.engine+"-"+arm.lookup, func(t *testing.T) {
			t.Parallel()
			isolate(t)
			test(t, arm.engine, arm.lookup)
		})
	}
}

func TestLoadVerifyUnload(t *testing.T) {
	eachArm(t, func(t *testing.T, engine, lookup string) {
		e := mustNew(t, engine, lookup)
		for _, n := range []int{2, 3, 10, 1000} { // the first three without unloading between
			for _, position := range []string{Last, First, Uniform} {
				rules := ruleSet(n, position)
				mustLoad(t, e, rules)
				checks := mustVerify(t, e, rules)
				wantClean(t, checks, nil)
				names := map[string]bool{}
				for _, c := range checks {
					if names[c.Name] {
						t.Errorf("check %q is there twice", c.Name)
					}
					names[c.Name] = true
				}
				if !names["rules loaded"] || !names["nothing else loaded"] || !names["forward policy"] || !names["hooks"] {
					t.Errorf("checks are missing: %v", names)
				}
			}
		}
		for range 2 {
			if err := e.Unload(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		checks, err := e.(Cleaner).Clean(t.Context())
		wantClean(t, checks, err)
		residue := ""
		if r, ok := e.(Resident); ok {
			residue, _ = r.Residue(t.Context())
		}
		if (residue != "") != (engine == IptablesLegacy) {
			t.Errorf("residue %q", residue)
		}
		if len(failed(mustVerify(t, e, ruleSet(10, Last)))) == 0 {
			t.Error("verified after it was unloaded")
		}
	})
}

func TestControls(t *testing.T) {
	for _, engine := range []string{None, Empty} {
		t.Run(engine, func(t *testing.T) {
			isolate(t)
			e := mustNew(t, engine, "")
			for range 2 {
				mustLoad(t, e, RuleSet{})
				wantClean(t, mustVerify(t, e, RuleSet{}), nil)
			}
			if out := program(t, nil, "nft", "list", "ruleset"); (out == "") != (engine == None) || strings.Contains(out, "accept counter") {
				t.Errorf("loaded:\n%s", out)
			}
			if err := e.Unload(t.Context()); err != nil {
				t.Fatal(err)
			}
			checks, err := e.(Cleaner).Clean(t.Context())
			wantClean(t, checks, err)
			if engine == Empty && len(failed(mustVerify(t, e, RuleSet{}))) == 0 {
				t.Error("verified after it was unloaded")
			}
		})
	}
}

// TestSameAsText is the differential test: what an engine loads is what the tools load from text.
func TestSameAsText(t *testing.T) {
	ctx := context.Background()
	eachArm(t, func(t *testing.T, engine, lookup string) {
		e := mustNew(t, engine, lookup)
		for _, n := range []int{2, 3, 10, 1000} {
			for _, position := range []string{Last, First, Uniform} {
				rules := ruleSet(n, position)
				mustLoad(t, e, rules)
				ours := listing(t, engine)
				if err := e.Unload(ctx); err != nil {
					t.Fatal(err)
				}
				loadText(t, engine, lookup, rules)
				theirs := listing(t, engine)
				if !reflect.DeepEqual(ours, theirs) {
					t.Errorf("%d rules, %s:\nours   %.2000v\ntheirs %.2000v", n, position, ours, theirs)
				}
				// The reader of the engine must see the same in what the tool loaded.
				wantClean(t, mustVerify(t, e, rules), nil)
				if err := e.Unload(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// loadText loads the rule-set by the tools.
func loadText(t testing.TB, engine, lookup string, rules RuleSet) {
	t.Helper()
	spec := Spec{Engine: engine, Lookup: lookup}
	if engine == Nftables {
		script, err := NFTScript(rules, spec)
		if err != nil {
			t.Fatal(err)
		}
		program(t, script, "nft", "-f", "-")
		return
	}
	if lookup == Indexed {
		script, err := IpsetRestore(rules)
		if err != nil {
			t.Fatal(err)
		}
		program(t, script, "ipset", "restore")
	}
	script, err := IptablesRestore(rules, spec)
	if err != nil {
		t.Fatal(err)
	}
	program(t, script, engine+"-restore")
}

// listing is all that the tools say is loaded, without what differs between two identical loads.
func listing(t testing.TB, engine string) []any {
	t.Helper()
	var ruleset map[string][]map[string]any
	if err := json.Unmarshal([]byte(program(t, nil, "nft", "-j", "list", "ruleset")), &ruleset); err != nil {
		t.Fatal(err)
	}
	var all []any
	for _, object := range ruleset["nftables"] {
		for _, properties := range object {
			delete(properties.(map[string]any), "handle")
			if elements, ok := properties.(map[string]any)["elem"].([]any); ok {
				slices.SortFunc(elements, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
			}
		}
		all = append(all, object)
	}
	// What nft does not say: the expressions themselves, and the type of a set's key.
	all = append(all, rulesOnly(program(t, nil, "nft", "--debug=netlink", "list", "ruleset")))
	if engine != Nftables {
		for line := range strings.Lines(program(t, nil, engine+"-save")) {
			if !strings.HasPrefix(line, "#") { // the time
				all = append(all, line)
			}
		}
		members := program(t, nil, "ipset", "save", "-sorted")
		all = append(all, hashSeed.ReplaceAllString(members, ""))
	}
	return all
}

// hashSeed is what the kernel draws anew for every ipset.
var hashSeed = regexp.MustCompile(` initval 0x[0-9a-f]+`)

// rulesOnly keeps the lines of expressions: those of set elements come in the order of the hash.
func rulesOnly(netlink string) string {
	var b strings.Builder
	for line := range strings.Lines(netlink) {
		if strings.HasPrefix(line, "  [ ") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestVerifyFinds changes what is loaded behind the engine's back, by the tools.
func TestVerifyFinds(t *testing.T) {
	type change struct {
		name    string
		command string // a shell command
		want    string // the check that must fail
	}
	xtables := func(ipt string) []change {
		return []change{
			{"a rule is missing", ipt + " -D FORWARD 5", "rules loaded"},
			{"a rule is added", ipt + " -A FORWARD -s 1.2.3.4 -j ACCEPT", "rules loaded"},
			{"a rule has another target", ipt + " -R FORWARD 5 -s 1.2.3.4 -j DROP", "rules loaded"},
			{"a rule has a network", ipt + " -R FORWARD 5 -s 1.2.3.0/24 -j ACCEPT", "rules loaded"},
			{"a rule has a destination", ipt + " -R FORWARD 5 -d 1.2.3.4 -j ACCEPT", "rules loaded"},
			{"a rule is inverted", ipt + " -R FORWARD 5 ! -s 1.2.3.4 -j ACCEPT", "rules loaded"},
			{"a rule has a protocol", ipt + " -R FORWARD 5 -s 1.2.3.4 -p tcp -j ACCEPT", "rules loaded"},
			{"a rule has an interface", ipt + " -R FORWARD 5 -s 1.2.3.4 -i lo -j ACCEPT", "rules loaded"},
			{"a rule has another address", ipt + " -R FORWARD 5 -s 1.2.3.4 -j ACCEPT", "rules in order"},
			{"two rules are swapped", "a=$(" + ipt + " -S FORWARD 5); " + ipt + " -D FORWARD 5; " + ipt + " ${a#-A FORWARD} -I FORWARD 2", "rules in order"},
			{"the policy is accept", ipt + " -P FORWARD ACCEPT", "forward policy"},
			{"another policy is drop", ipt + " -P INPUT DROP", "other chains"},
			{"another chain has a rule", ipt + " -A OUTPUT -j ACCEPT", "other chains"},
			{"there is another chain", ipt + " -N more", "other chains"},
			{"there is another table", ipt + " -t mangle -A FORWARD -j ACCEPT", "nothing else loaded"},
		}
	}
	both := []change{
		{"there is a table of nft", "nft add table inet other", "nothing else loaded"},
		{"there is a table for IPv6", "nft add table ip6 rampart", "nothing else loaded"},
		{"there is an ipset", "ipset create other hash:ip", "nothing else loaded"},
		{"there is iptables-legacy", "iptables-legacy -t raw -S", "nothing else loaded"},
		{"there is ip6tables-legacy", "ip6tables-legacy -S", "nothing else loaded"},
	}
	set := []change{
		{"a member is missing", "ipset del accepted 10.77.2.2", "set elements"},
		{"a member is added", "ipset destroy other; ipset create other hash:ip; ipset list accepted | grep -E '^[0-9]' | sed 's/^/add other /' | ipset restore; ipset add other 1.2.3.4; ipset swap other accepted; ipset destroy other", "set elements"},
		{"a member is another", "ipset del accepted 10.77.2.2; ipset add accepted 1.2.3.4", "set members"},
		{"the set is another", "ipset create other hash:ip; ipset swap other accepted; ipset destroy other", "set members"},
	}
	handle := "$(nft -a list chain ip rampart forward | sed -n '/saddr/s/.*handle //p' | head -1)"
	changes := map[string][]change{
		IptablesLegacy + Linear: slices.Concat(xtables("iptables-legacy"), both[:3]),
		IptablesNFT + Linear:    slices.Concat(xtables("iptables-nft"), both),
		IptablesLegacy + Indexed: append(slices.Clone(set),
			change{"the rule looks at the destination", "iptables-legacy -R FORWARD 1 -m set --match-set accepted dst -j ACCEPT", "rules loaded"}),
		IptablesNFT + Indexed: append(slices.Clone(set),
			change{"the rule is inverted", "iptables-nft -R FORWARD 1 -m set ! --match-set accepted src -j ACCEPT", "rules loaded"}),
		Nftables + Linear: append(slices.Clone(both),
			change{"a rule is missing", "nft delete rule ip rampart forward handle " + handle, "rules loaded"},
			change{"a rule is added", "nft insert rule ip rampart forward ip saddr 1.2.3.4 counter accept", "rules loaded"},
			change{"a rule has no counter", "nft replace rule ip rampart forward handle " + handle + " ip saddr 1.2.3.4 accept", "rules loaded"},
			change{"a rule drops", "nft replace rule ip rampart forward handle " + handle + " ip saddr 1.2.3.4 counter drop", "rules loaded"},
			change{"a rule has a network", "nft replace rule ip rampart forward handle " + handle + " ip saddr 1.2.3.0/24 counter accept", "rules loaded"},
			change{"a rule has a destination", "nft replace rule ip rampart forward handle " + handle + " ip daddr 1.2.3.4 counter accept", "rules loaded"},
			change{"a rule is inverted", "nft replace rule ip rampart forward handle " + handle + " ip saddr != 1.2.3.4 counter accept", "rules loaded"},
			change{"a rule has a comment", "nft replace rule ip rampart forward handle " + handle + " ip saddr 1.2.3.4 counter accept comment x", "rules in order"},
			change{"the policy is accept", "nft chain ip rampart forward '{ policy accept; }'", "forward policy"},
			change{"another policy is drop", "nft chain ip rampart input '{ policy drop; }'", "other chains"},
			change{"another chain has a rule", "nft add rule ip rampart output counter", "other chains"},
			change{"there is another chain", "nft add chain ip rampart more", "other chains"},
			change{"there is another hook", "nft add chain ip rampart more '{ type filter hook prerouting priority -5; }'", "hooks"}),
		Nftables + Indexed: {
			{"an element is missing", "nft delete element ip rampart accepted '{ 10.77.2.2 }'", "set elements"},
			{"an element is added", "nft add element ip rampart accepted '{ 1.2.3.4 }'", "set elements"},
			{"an element is another", "nft delete element ip rampart accepted '{ 10.77.2.2 }'; nft add element ip rampart accepted '{ 1.2.3.4 }'", "set members"},
			{"the rule is inverted", "nft replace rule ip rampart forward handle " + handle + " ip saddr != @accepted counter accept", "rules loaded"},
			{"the rule looks at the destination", "nft replace rule ip rampart forward handle " + handle + " ip daddr @accepted counter accept", "rules loaded"},
			{"the set is another", "nft add set ip rampart other '{ type ipv4_addr; }'; nft replace rule ip rampart forward handle " + handle + " ip saddr @other counter accept", "rules loaded"},
		},
	}
	for _, arm := range arms {
		for _, c := range changes[arm.engine+arm.lookup] {
			t.Run(arm.engine+"-"+arm.lookup+"/"+c.name, func(t *testing.T) {
				isolate(t)
				rules := ruleSet(10, Last)
				e := mustNew(t, arm.engine, arm.lookup)
				mustLoad(t, e, rules)
				program(t, nil, "sh", "-c", c.command)
				bad := failed(mustVerify(t, e, rules))
				if !slices.ContainsFunc(bad, func(s string) bool { return strings.HasPrefix(s, c.want+":") }) {
					t.Errorf("%q is not among the failed checks %q", c.want, bad)
				}
			})
		}
	}
}

// TestResidueIsFound: the hooks of iptables-legacy are in the way of every other engine's packets, so
// those must not verify in a namespace where it ran.
func TestResidueIsFound(t *testing.T) {
	isolate(t)
	rules := ruleSet(10, Last)
	legacy := mustNew(t, IptablesLegacy, Linear)
	mustLoad(t, legacy, rules)
	if err := legacy.Unload(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, engine := range []string{None, Empty, IptablesNFT, Nftables} {
		e := mustNew(t, engine, Linear)
		mustLoad(t, e, rules)
		bad := failed(mustVerify(t, e, rules))
		if len(bad) == 0 || !strings.Contains(strings.Join(bad, " "), "renew the node") {
			t.Errorf("%s: failed checks %q", engine, bad)
		}
		if err := e.Unload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	mustLoad(t, legacy, rules) // itself does not mind
	wantClean(t, mustVerify(t, legacy, rules), nil)
}

// TestKilledHelper kills a process with SIGKILL at moments of loading. Whatever engine comes next, in
// another process, must load as if nothing had been.
func TestKilledHelper(t *testing.T) {
	if spec := os.Getenv("FIREWALL_TEST_LOAD"); spec != "" {
		engine, lookup, _ := strings.Cut(spec, " ")
		e := mustNew(t, engine, lookup)
		for {
			if err := e.Load(t.Context(), ruleSet(20_000, Last)); err != nil {
				t.Fatal(err)
			}
		}
	}
	eachArm(t, func(t *testing.T, engine, lookup string) {
		next := []string{Nftables, IptablesNFT, IptablesLegacy, None}
		if engine == IptablesLegacy {
			next = []string{IptablesLegacy}
		}
		for i, after := range next {
			helper := exec.Command("/proc/self/exe", "-test.run=^TestKilledHelper$")
			helper.Env = append(os.Environ(), "FIREWALL_TEST_LOAD="+engine+" "+lookup)
			if err := helper.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(60+45*i) * time.Millisecond)
			if err := helper.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := helper.Wait(); err == nil {
				t.Fatal("the helper was not killed")
			}
			rules := ruleSet(100, Last)
			e := mustNew(t, after, lookup)
			mustLoad(t, e, rules)
			wantClean(t, mustVerify(t, e, rules), nil)
			if after == IptablesLegacy {
				return // its hooks would be in the way of what follows
			}
			if err := e.Unload(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestForeignRulesStay: what somebody else loaded is reported, and never removed or replaced.
func TestForeignRulesStay(t *testing.T) {
	foreign := map[string]string{
		IptablesLegacy: "iptables-legacy -A FORWARD -p tcp --dport 22 -j ACCEPT",
		IptablesNFT:    "iptables-nft -N DOCKER && iptables-nft -A FORWARD -j DOCKER",
		Nftables:       "nft add table ip mine && nft add chain ip mine forward '{ type filter hook forward priority 0; }'",
	}
	for owner, command := range foreign {
		t.Run(owner, func(t *testing.T) {
			isolate(t)
			program(t, nil, "sh", "-c", command)
			before := listing(t, IptablesLegacy)
			for _, engine := range Engines() {
				if owner != IptablesLegacy && engine == IptablesLegacy {
					continue // would leave its hooks
				}
				e := mustNew(t, engine, Linear)
				rules := ruleSet(10, Last)
				err := e.Load(t.Context(), rules)
				if engine == owner && owner != Nftables {
					if err == nil || !strings.Contains(err.Error(), "not rampart's") {
						t.Errorf("%s: got error %v", engine, err)
					}
				} else if err != nil {
					t.Errorf("%s: %v", engine, err)
				} else if len(failed(mustVerify(t, e, rules))) == 0 {
					t.Errorf("%s does not see what %s loaded", engine, owner)
				}
				if err := e.Unload(t.Context()); err != nil {
					t.Errorf("%s: %v", engine, err)
				}
			}
			if after := listing(t, IptablesLegacy); !reflect.DeepEqual(before, after) {
				t.Errorf("before: %v\nafter: %v", before, after)
			}
		})
	}
}

func TestCancelledLoad(t *testing.T) {
	eachArm(t, func(t *testing.T, engine, lookup string) {
		e := mustNew(t, engine, lookup)
		mustLoad(t, e, ruleSet(2, Last)) // available at all?
		if err := e.Unload(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := e.Load(ctx, ruleSet(200_000, Last)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v", err)
		}
		checks, err := e.(Cleaner).Clean(t.Context())
		wantClean(t, checks, err)
	})
}

func TestUnavailable(t *testing.T) {
	t.Run("no capability", func(t *testing.T) {
		isolate(t)
		withoutNetAdmin(t)
		for _, engine := range Engines() {
			err := mustNew(t, engine, Linear).Load(t.Context(), ruleSet(2, Last))
			var missing *UnavailableError
			if !errors.As(err, &missing) || missing.Engine != engine || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
				t.Errorf("%s: got error %v", engine, err)
			}
		}
	})
	t.Run("no program", func(t *testing.T) {
		_, err := find(IptablesLegacy, "iptables-legacy-of-no-system")
		var missing *UnavailableError
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), "install the package iptables") {
			t.Errorf("got error %v", err)
		}
	})
}

// withoutNetAdmin takes the capability from this thread until the test ends.
func withoutNetAdmin(t *testing.T) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	before := data
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Capset(&header, &before[0]); err != nil {
			t.Fatal(err)
		}
	})
}

// TestUserNamespace loads where only a user namespace grants CAP_NET_ADMIN and socket buffers are
// limited: PITFALLS saw batches too large for them lose data.
func TestUserNamespace(t *testing.T) {
	if os.Getenv("FIREWALL_TEST_USERNS") != "" {
		for _, lookup := range []string{Linear, Indexed} {
			rules := ruleSet(50_000, Last)
			e := mustNew(t, Nftables, lookup)
			if err := e.Load(t.Context(), rules); err != nil {
				t.Fatal(err)
			}
			wantClean(t, mustVerify(t, e, rules), nil)
		}
		return
	}
	child := exec.Command("/proc/self/exe", "-test.run=^TestUserNamespace$", "-test.v")
	child.Env = append(os.Environ(), "FIREWALL_TEST_USERNS=1")
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	switch err := child.Start(); {
	case err != nil:
		skip(t, "user namespaces: %v", err)
	case child.Wait() != nil:
		t.Errorf("in a user namespace:\n%s", &out)
	}
}

// TestLarge loads what issue 2 asks for.
func TestLarge(t *testing.T) {
	eachArm(t, func(t *testing.T, engine, lookup string) {
		n := 100_000
		if lookup == Indexed {
			n = 1_000_000
		}
		rules := ruleSet(n, Last)
		e := mustNew(t, engine, lookup)
		start := time.Now()
		mustLoad(t, e, rules)
		loaded := time.Now()
		wantClean(t, mustVerify(t, e, rules), nil)
		verified := time.Now()
		if _, err := e.(Counter).Counters(t.Context(), rules); err != nil {
			t.Error(err)
		}
		counted := time.Now()
		if err := e.Unload(t.Context()); err != nil {
			t.Error(err)
		}
		t.Logf("%d entries: loaded in %v, verified in %v, counters in %v, unloaded in %v", n,
			loaded.Sub(start), verified.Sub(loaded), counted.Sub(verified), time.Since(counted))
	})
}

// TestDedicatedKernel unloads modules, which would take the rules of everybody else on this kernel: it
// runs only where a VM of its own says so. There nothing of iptables-legacy may be left.
func TestDedicatedKernel(t *testing.T) {
	if os.Getenv("FIREWALL_TEST_DEDICATED_KERNEL") == "" {
		t.Skip("unloads kernel modules: set FIREWALL_TEST_DEDICATED_KERNEL in a VM that nobody else uses")
	}
	for _, lookup := range []string{Linear, Indexed} {
		e, err := New(Spec{Engine: IptablesLegacy, Lookup: lookup}, Options{DedicatedKernel: true})
		must(t, err)
		mustLoad(t, e, ruleSet(10, Last))
		wantClean(t, mustVerify(t, e, ruleSet(10, Last)), nil)
		must(t, e.Unload(t.Context()))
		if residue, err := e.(Resident).Residue(t.Context()); residue != "" || err != nil {
			t.Errorf("left: %q, %v", residue, err)
		}
		none := mustNew(t, None, "")
		mustLoad(t, none, RuleSet{})
		wantClean(t, mustVerify(t, none, RuleSet{}), nil)
	}
}
