package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// iptablesEngine is iptables-legacy or iptables-nft: loaded by the program's own restore, which is
// the only way that takes milliseconds, and read back from the kernel without it.
type iptablesEngine struct {
	ns     namespace
	tool   tool
	lookup string
	loaded bool // by this engine: removing needs no look at what it is
	// prepared is true when what was left of earlier loads has just been removed.
	prepared bool
}

// legacyEngine is iptables-legacy, which leaves hooks behind.
type legacyEngine struct{ iptablesEngine }

var (
	_ Engine  = (*iptablesEngine)(nil)
	_ Counter = (*iptablesEngine)(nil)
	_ Cleaner = (*iptablesEngine)(nil)

	_ Engine   = (*legacyEngine)(nil)
	_ Resident = (*legacyEngine)(nil)
	_ Preparer = (*legacyEngine)(nil)
)

func (e *iptablesEngine) Name() string { return e.tool.name }

// table is what the engine's filter table is called in the inventory.
func (e *iptablesEngine) table() string {
	if e.tool.name == IptablesLegacy {
		return legacyFilter
	}
	return nftFilter
}

// Load implements [Engine]. It refuses to replace a filter table that rampart did not load.
func (e *iptablesEngine) Load(ctx context.Context, rules RuleSet) error {
	if err := requireNetAdmin(e.Name()); err != nil {
		return err
	}
	script, err := IptablesRestore(rules, Spec{Lookup: e.lookup})
	if err != nil {
		return err
	}
	if !e.prepared {
		if err := e.Unload(ctx); err != nil {
			return err
		}
	}
	e.prepared = false
	if err := e.refuseForeign(); err != nil {
		return err
	}
	if err := e.load(ctx, rules, script); err != nil {
		e.loaded = false
		return errors.Join(fmt.Errorf("load %s: %w", e.Name(), e.unavailable(err)), e.ns.sweep(context.WithoutCancel(ctx)))
	}
	e.loaded = true
	return nil
}

func (e *iptablesEngine) load(ctx context.Context, rules RuleSet, script []byte) error {
	if e.lookup == Indexed {
		set, err := IpsetRestore(rules)
		if err != nil {
			return err
		}
		if err := restoreIpset(ctx, e.Name(), set); err != nil {
			return err
		}
	}
	return e.tool.restore(ctx, script)
}

// refuseForeign looks after a sweep: a filter table that is still there, and is not just legacy's
// empty one, belongs to somebody else.
func (e *iptablesEngine) refuseForeign() error {
	all, err := e.ns.inventory()
	if err != nil || !slices.Contains(all, e.table()) {
		return err
	}
	if e.tool.name == IptablesLegacy {
		if table, err := readLegacy(); err != nil || table.isPristine {
			return err
		}
	}
	return fmt.Errorf("load %s: the filter table of this network namespace holds rules that are not rampart's: "+
		"remove them, or give rampart a network namespace or VM of its own", e.Name())
}

// unavailable finds out whether the kernel lacks what a failed load needed. Only a load shows it:
// modules are loaded on demand, and a program that is installed proves nothing.
func (e *iptablesEngine) unavailable(err error) error {
	lacks := func(format string, args ...any) error {
		return &UnavailableError{Engine: e.Name(), Reason: fmt.Sprintf(format, args...) + " (" + err.Error() + ")"}
	}
	var already *UnavailableError
	var failed *toolError
	if errors.As(err, &already) || !errors.As(err, &failed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if strings.Contains(failed.said, "lock file") {
		return lacks("the lock file of xtables cannot be opened: run as root")
	}
	if e.lookup == Indexed {
		if _, listErr := ipsetNames(); errors.Is(listErr, unix.EINVAL) {
			return lacks("the kernel has no ipset (CONFIG_IP_SET, CONFIG_IP_SET_HASH_IP): try modprobe ip_set_hash_ip, or use another kernel")
		}
		if _, typeName, listErr := ipsetElements(); listErr == nil && typeName == "" {
			return lacks("the kernel has no hash:ip ipset (CONFIG_IP_SET_HASH_IP): try modprobe ip_set_hash_ip, or use another kernel")
		}
	}
	if e.tool.name == IptablesLegacy {
		if _, readErr := readLegacy(); errors.Is(readErr, errNoLegacy) {
			return lacks("the kernel has no legacy iptables (CONFIG_IP_NF_IPTABLES_LEGACY, CONFIG_IP_NF_FILTER): try modprobe iptable_filter, or use %s", IptablesNFT)
		}
	} else if _, listErr := nftTables(); listErr != nil {
		return nftUnavailable(e.Name(), listErr)
	}
	if e.lookup == Indexed && strings.Contains(failed.said, "set") {
		return lacks("the kernel cannot match an ipset in a rule (CONFIG_NETFILTER_XT_SET, and CONFIG_NFT_COMPAT for %s): try modprobe xt_set", IptablesNFT)
	}
	return err
}

// Verify implements [Engine].
func (e *iptablesEngine) Verify(_ context.Context, rules RuleSet) ([]Check, error) {
	entries, err := rules.entries()
	if err != nil {
		return nil, err
	}
	seen, hooks, err := e.observe()
	if err != nil {
		return nil, err
	}
	list := seen.checks(e.lookup, entries)
	names := []string{e.table()}
	if e.lookup == Indexed {
		list = append(list, fact("set type", "hash:ip", seen.setType, ""))
		names = append(names, ourIpset)
	}
	rest, err := e.ns.check(names, hooks)
	return append(list, rest...), err
}

// observe reads the filter table and the ipset. Nothing of either is an observation, not an error.
func (e *iptablesEngine) observe() (seen observed, hooks []hook, err error) {
	all, err := e.ns.inventory()
	if err != nil || !slices.Contains(all, e.table()) {
		return seen, nil, err
	}
	if e.tool.name == IptablesLegacy {
		seen, hooks, err = observeLegacy()
	} else {
		seen, hooks, err = observeChains("filter", "INPUT", "FORWARD", "OUTPUT")
	}
	if err != nil || e.lookup != Indexed {
		return seen, hooks, err
	}
	if seen.rules, seen.others, err = e.tool.setRules(); err != nil {
		return seen, nil, err
	}
	seen.elements, seen.setType, err = ipsetElements()
	return seen, hooks, err
}

func observeLegacy() (seen observed, hooks []hook, err error) {
	table, err := readLegacy()
	if err != nil {
		return seen, nil, err
	}
	seen = observed{rules: table.rules, others: table.others, drop: table.forwardDrop, elsewhere: quiet}
	if table.strangers > 0 || !table.othersAccept {
		seen.elsewhere = fmt.Sprintf("%d rules or chains, policy accept: %t", table.strangers, table.othersAccept)
	}
	for _, number := range table.hooks {
		hooks = append(hooks, hook{number: number}) // priority NF_IP_PRI_FILTER, fixed in iptable_filter.c
	}
	return seen, hooks, nil
}

// Counters implements [Counter].
func (e *iptablesEngine) Counters(_ context.Context, rules RuleSet) (Counters, error) {
	loaded, err := e.rules()
	if err != nil {
		return Counters{}, err
	}
	return counters(rules, e.lookup, loaded)
}

// rules reads the rules of FORWARD.
func (e *iptablesEngine) rules() (loaded []matchRule, err error) {
	switch {
	case e.lookup == Indexed:
		loaded, _, err = e.tool.setRules()
	case e.tool.name == IptablesNFT:
		loaded, _, err = forwardRules("filter", "FORWARD")
	default:
		var table legacyTable
		table, err = readLegacy()
		loaded = table.rules
	}
	return loaded, err
}

// Unload implements [Engine].
func (e *iptablesEngine) Unload(ctx context.Context) error {
	if e.loaded {
		if err := e.ns.remove(ctx, e.tool); err != nil {
			return fmt.Errorf("unload %s: %w", e.Name(), err)
		}
		e.loaded = false
	}
	return e.ns.sweep(ctx)
}

// Clean implements [Cleaner].
func (e *iptablesEngine) Clean(context.Context) ([]Check, error) { return e.ns.check(nil, nil) }

// Clean implements [Cleaner]. The hooks of iptables-legacy may be left; its rules may not.
func (e *legacyEngine) Clean(ctx context.Context) ([]Check, error) {
	residue, err := e.Residue(ctx)
	if err != nil {
		return nil, err
	}
	if residue == "" {
		return e.ns.check(nil, nil)
	}
	seen, hooks, err := observeLegacy()
	if err != nil {
		return nil, err
	}
	rest, err := e.ns.check([]string{legacyFilter}, hooks)
	return append(seen.emptyChecks("left: "+residue), rest...), err
}

// Prepare implements [Preparer]. Where unloading removes the modules, listing the table makes the kernel load
// them again: under emulation that takes longer than the rules, and no other engine loads its own anew for
// every run. What cannot be prepared is for Load to report.
func (e *legacyEngine) Prepare(ctx context.Context) error {
	if err := e.Unload(ctx); err == nil {
		_, listErr := e.tool.listing(ctx)
		e.prepared = listErr == nil
	}
	return ctx.Err()
}

// Residue implements [Resident].
func (e *legacyEngine) Residue(context.Context) (string, error) {
	tables, err := legacyTables()
	if err != nil || !slices.Contains(tables, "ip filter") {
		return "", err
	}
	return "the table filter and its hooks at input, forward and output", nil
}
