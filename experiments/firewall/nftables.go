package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// nftEngine is nftables by netlink. What it loads is what nft loads from [NFTScript].
type nftEngine struct {
	ns     namespace
	lookup string
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
	entries, err := rules.entries()
	if err != nil {
		return err
	}
	return e.ns.loadTable(ctx, Nftables, func() error {
		forward, set, err := makeChains(nftables.ChainPolicyDrop, e.lookup)
		if err != nil {
			return err
		}
		if e.lookup == Indexed {
			return loadElements(ctx, set, entries)
		}
		return loadRules(ctx, forward, entries)
	})
}

// Load implements [Engine].
func (e *emptyEngine) Load(ctx context.Context, _ RuleSet) error {
	return e.ns.loadTable(ctx, Empty, func() error {
		_, _, err := makeChains(nftables.ChainPolicyAccept, Linear)
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
		return &UnavailableError{engine, "the kernel has no nf_tables (CONFIG_NF_TABLES and CONFIG_NF_TABLES_IPV4): try modprobe nf_tables, or use another kernel"}
	case errors.Is(err, unix.EPERM):
		return &UnavailableError{engine, "the kernel refuses access to this network namespace: run as root, or in a user namespace that owns it"}
	}
	return err
}

// makeChains makes the table, its base chains and, for an indexed look-up, the set with its one rule.
func makeChains(policy nftables.ChainPolicy, lookup string) (forward *nftables.Chain, set *nftables.Set, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables connection: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName})
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
			return nil, nil, fmt.Errorf("make set %s: %w", setName, err)
		}
		conn.AddRule(acceptRule(forward, &expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID}))
	}
	if err := conn.Flush(); err != nil {
		return nil, nil, fmt.Errorf("make table ip %s: %w", tableName, err)
	}
	return forward, set, nil
}

// acceptRule is "ip saddr MATCH counter accept", expression by expression as nft writes it. In a table
// of family ip the protocol needs no match of its own.
func acceptRule(c *nftables.Chain, match expr.Any) *nftables.Rule {
	return &nftables.Rule{Table: c.Table, Chain: c, Exprs: []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: sourceOffset, Len: addressLength},
		match,
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}}
}

func loadRules(ctx context.Context, forward *nftables.Chain, entries []uint32) error {
	size, err := rulesPerFlush()
	if err != nil {
		return err
	}
	return inChunks(ctx, entries, size, func(conn *nftables.Conn, chunk []uint32) error {
		for _, e := range chunk {
			a := address(e).As4()
			conn.AddRule(acceptRule(forward, &expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: a[:]}))
		}
		return nil
	})
}

// elementsPerFlush keeps one transaction below the smallest usual limit of a send buffer (net.core.
// wmem_max, 212,992 bytes), with 20 bytes an element. Committing elements costs nothing but their own time.
const elementsPerFlush = 10_000

func loadElements(ctx context.Context, set *nftables.Set, entries []uint32) error {
	return inChunks(ctx, entries, elementsPerFlush, func(conn *nftables.Conn, chunk []uint32) error {
		elements := make([]nftables.SetElement, len(chunk))
		for i, e := range chunk {
			a := address(e).As4()
			elements[i].Key = a[:]
		}
		return conn.SetAddElements(set, elements)
	})
}

// inChunks sends entries in transactions of at most size, each over a connection of its own: one that
// is kept open can read the acknowledgements of an earlier transaction.
func inChunks(ctx context.Context, entries []uint32, size int, add func(*nftables.Conn, []uint32) error) error {
	done := 0
	for chunk := range slices.Chunk(entries, size) {
		if err := ctx.Err(); err != nil {
			return err
		}
		conn, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open nftables connection: %w", err)
		}
		if err := add(conn, chunk); err != nil {
			return fmt.Errorf("add entries from %d on: %w", done+1, err)
		}
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("send entries %d to %d: %w", done+1, done+len(chunk), err)
		}
		done += len(chunk)
	}
	return nil
}

// rulesPerFlush is how many rules fit into one transaction. Large ones are better, since the kernel
// copies the whole chain at every commit, but the kernel echoes each rule, and what does not fit
// into the receive buffer is lost (ENOBUFS). CAP_NET_ADMIN of the initial user namespace may make the
// buffer as large as it likes; others get net.core.rmem_max.
func rulesPerFlush() (int, error) {
	const most, echo = 10_000, 1024 // bytes of buffer an echoed rule, as google/nftables counts
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, fmt.Errorf("open netlink connection: %w", err)
	}
	defer conn.Close()
	if err := conn.SetReadBuffer(most * echo); err != nil {
		return 0, fmt.Errorf("enlarge netlink buffer: %w", err)
	}
	granted, err := conn.ReadBuffer()
	if err != nil {
		return 0, fmt.Errorf("read size of netlink buffer: %w", err)
	}
	// The kernel reports twice what it was asked for (socket(7)).
	return max(1, min(most, granted/2/echo)), nil
}

// Verify implements [Engine].
func (e *nftEngine) Verify(_ context.Context, rules RuleSet) ([]Check, error) {
	entries, err := rules.entries()
	if err != nil {
		return nil, err
	}
	seen, hooks, err := observeChains(tableName, "input", "forward", "output")
	if err != nil {
		return nil, err
	}
	if e.lookup == Indexed {
		if seen.elements, err = nftElements(); err != nil {
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

// Counters implements [Counter].
func (e *nftEngine) Counters(_ context.Context, rules RuleSet) (Counters, error) {
	loaded, _, err := forwardRules(tableName, "forward")
	if err != nil {
		return Counters{}, err
	}
	return counters(rules, e.lookup, loaded)
}

// Unload implements [Engine].
func (e *nftEngine) Unload(ctx context.Context) error { return e.ns.sweep(ctx) }

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
