package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// nftEngine is nftables by netlink. What it loads is what nft loads from [NFTScript].
type nftEngine struct {
	ns     namespace
	lookup string
	// counting are the handles of the rules that the traffic matches, once they were looked for.
	counting []uint64
}

// emptyEngine is the control with nftables' base chains, and no rule in them.
type emptyEngine struct{ ns namespace }

var (
	_ Engine  = (*nftEngine)(nil)
	_ Counter = (*nftEngine)(nil)
	_ Cleaner = (*nftEngine)(nil)

	_ Engine  = (*emptyEngine)(nil)
	_ Cleaner = (*emptyEngine)(nil)
)

func (e *nftEngine) Name() string   { return Nftables }
func (e *emptyEngine) Name() string { return Empty }

// Load implements [Engine]. Rules and elements go in several transactions of bounded size; until the
// last of them is in, the policy drops what the missing ones would accept.
func (e *nftEngine) Load(ctx context.Context, rules RuleSet) error {
	e.counting = nil
	entries, err := rules.entries()
	if err != nil {
		return err
	}
	return e.ns.loadTable(ctx, Nftables, func() error {
		set, err := makeChains(nftables.ChainPolicyDrop, e.lookup)
		if err != nil {
			return err
		}
		if e.lookup == Indexed {
			return loadElements(ctx, set, entries)
		}
		return loadRules(ctx, entries)
	})
}

// Load implements [Engine].
func (e *emptyEngine) Load(ctx context.Context, _ RuleSet) error {
	return e.ns.loadTable(ctx, Empty, func() error {
		_, err := makeChains(nftables.ChainPolicyAccept, Linear)
		return err
	})
}

// loadTable removes what is left of earlier loads and calls load; what a load that fails has made is
// gone again.
func (ns namespace) loadTable(ctx context.Context, engine string, load func() error) error {
	if err := requireNetAdmin(engine); err != nil {
		return err
	}
	if _, err := nftTables(); err != nil {
		return nftUnavailable(engine, err)
	}
	if err := ns.sweep(ctx); err != nil {
		return err
	}
	if err := load(); err != nil {
		return errors.Join(fmt.Errorf("load %s: %w", engine, nftUnavailable(engine, err)), ns.sweep(context.WithoutCancel(ctx)))
	}
	return nil
}

// nftUnavailable turns what a kernel without nf_tables answers into an *UnavailableError.
func nftUnavailable(engine string, err error) error {
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL):
		return &UnavailableError{Engine: engine, Reason: "the kernel has no nf_tables (CONFIG_NF_TABLES and CONFIG_NF_TABLES_IPV4): try modprobe nf_tables, or use another kernel"}
	case errors.Is(err, unix.EPERM):
		return &UnavailableError{Engine: engine, Reason: "the kernel refuses access to this network namespace: run as root, or in a user namespace that owns it"}
	}
	return err
}

// makeChains makes the table, its base chains and, for an indexed look-up, the set with its one rule.
func makeChains(policy nftables.ChainPolicy, lookup string) (set *nftables.Set, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables connection: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName})
	var forward *nftables.Chain
	accept := nftables.ChainPolicyAccept
	for _, c := range []struct {
		name   string
		hook   *nftables.ChainHook
		policy *nftables.ChainPolicy
	}{
		{"input", nftables.ChainHookInput, &accept},
		{"forward", nftables.ChainHookForward, &policy},
		{"output", nftables.ChainHookOutput, &accept},
	} {
		added := conn.AddChain(&nftables.Chain{
			Name: c.name, Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: c.hook, Priority: nftables.ChainPriorityFilter, Policy: c.policy,
		})
		if c.name == "forward" {
			forward = added
		}
	}
	if lookup == Indexed {
		set = &nftables.Set{Table: table, Name: setName, KeyType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.BigEndian}
		if err := conn.AddSet(set, nil); err != nil {
			return nil, fmt.Errorf("make set %s: %w", setName, err)
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: acceptSource(
			&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID})})
	}
	if err := conn.Flush(); err != nil {
		return nil, fmt.Errorf("make table ip %s: %w", tableName, err)
	}
	return set, nil
}

// acceptSource is "ip saddr MATCH counter accept", expression by expression as nft writes it. In a
// table of family ip the protocol needs no match of its own.
func acceptSource(match expr.Any) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: addressLength},
		match,
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// elementsPerFlush keeps one transaction below the smallest usual limit of a send buffer (net.core.
// wmem_max, 212,992 bytes), with 20 bytes an element. Committing elements costs nothing but their own time.
const elementsPerFlush = 10_000

// loadElements opens a connection for each transaction: one that is kept open can read the
// acknowledgements of an earlier transaction.
func loadElements(ctx context.Context, set *nftables.Set, entries []uint32) error {
	done := 0
	for chunk := range slices.Chunk(entries, elementsPerFlush) {
		if err := ctx.Err(); err != nil {
			return err
		}
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables connection: %w", err)
		}
		elements := make([]nftables.SetElement, len(chunk))
		for i, e := range chunk {
			elements[i].Key = binary.BigEndian.AppendUint32(nil, e)
		}
		if err := conn.SetAddElements(set, elements); err != nil {
			return fmt.Errorf("add elements from %d on: %w", done+1, err)
		}
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("send elements %d to %d: %w", done+1, done+len(chunk), err)
		}
		done += len(chunk)
	}
	return nil
}

// Verify implements [Engine].
func (e *nftEngine) Verify(ctx context.Context, rules RuleSet) ([]Check, error) {
	entries, err := rules.entries()
	if err != nil {
		return nil, err
	}
	seen, hooks, err := observeChains(tableName, "input", "forward", "output")
	if err != nil {
		return nil, err
	}
	if e.lookup == Indexed {
		if seen.elements, err = nftElements(ctx, len(entries)); err != nil {
			return nil, err
		}
	}
	rest, err := e.ns.check([]string{ourTable}, hooks)
	return append(seen.checks(e.lookup, entries), rest...), err
}

// Verify implements [Engine].
func (e *emptyEngine) Verify(context.Context, RuleSet) ([]Check, error) {
	seen, hooks, err := observeChains(tableName, "input", "forward", "output")
	if err != nil {
		return nil, err
	}
	rest, err := e.ns.check([]string{ourTable}, hooks)
	return append(seen.emptyChecks(""), rest...), err
}

// observeChains reads a table of family ip with the three base chains of the given names, of nftables
// itself or of iptables-nft.
func observeChains(table, input, forward, output string) (seen observed, hooks []hook, err error) {
	list, err := chains(table)
	if err != nil {
		return seen, nil, err
	}
	seen.elsewhere = quiet
	for _, c := range list {
		if c.base {
			hooks = append(hooks, hook{number: c.hook, priority: c.priority})
		}
		switch c.name {
		case forward:
			seen.drop = c.drop
		case input, output:
			rules, _, err := forwardRules(table, c.name)
			if err != nil {
				return seen, nil, err
			}
			if len(rules) > 0 || c.drop {
				seen.elsewhere = fmt.Sprintf("%s: %d rules, policy drop: %t", c.name, len(rules), c.drop)
			}
		default:
			seen.elsewhere = "there is a chain " + c.name
		}
	}
	seen.rules, seen.others, err = forwardRules(table, forward)
	return seen, hooks, err
}

// Counters implements [Counter]. It reads every rule only once.
func (e *nftEngine) Counters(_ context.Context, rules RuleSet) (Counters, error) {
	if e.counting != nil {
		loaded, err := readRules(tableName, "forward", e.counting)
		if err != nil {
			return Counters{}, err
		}
		return counters(rules, e.lookup, loaded)
	}
	loaded, _, err := forwardRules(tableName, "forward")
	if err != nil {
		return Counters{}, err
	}
	found, err := counters(rules, e.lookup, loaded)
	if err == nil {
		e.counting = counting(rules, loaded)
	}
	return found, err
}

// counting are the handles of the rules that count what sender and receiver send.
func counting(rules RuleSet, loaded []matchRule) (handles []uint64) {
	for _, r := range loaded {
		if r.set != "" || r.source == key(rules.Sender) || r.source == key(rules.Receiver) {
			handles = append(handles, r.handle)
		}
	}
	return handles
}

// Unload implements [Engine].
func (e *nftEngine) Unload(ctx context.Context) error {
	e.counting = nil
	return e.ns.sweep(ctx)
}

// Unload implements [Engine].
func (e *emptyEngine) Unload(ctx context.Context) error { return e.ns.sweep(ctx) }

// Clean implements [Cleaner].
func (e *nftEngine) Clean(context.Context) ([]Check, error) { return e.ns.check(nil, nil) }

// Clean implements [Cleaner].
func (e *emptyEngine) Clean(context.Context) ([]Check, error) { return e.ns.check(nil, nil) }

// deleteTable deletes a table of family ip with everything in it.
func deleteTable(name string) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables connection: %w", err)
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete table ip %s: %w", name, err)
	}
	return nil
}
