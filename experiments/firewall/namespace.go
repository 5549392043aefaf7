package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace of the calling thread: what is loaded in it, and the removal of
// what is ours.
type namespace struct {
	opts     Options
	settings Settings // which have a table and hooks of their own
}

// How the inventory names things: by what made them, then as the kernel does.
const (
	nftPrefix    = "nftables "
	legacyPrefix = "iptables-legacy "
	ipsetPrefix  = "ipset "

	ourTable     = nftPrefix + "ip " + tableName
	tuningTable  = nftPrefix + "ip " + settingsTable
	nftFilter    = nftPrefix + "ip filter" // of iptables-nft
	legacyFilter = legacyPrefix + "ip filter"
	ourIpset     = ipsetPrefix + setName
)

// inventory names every table of every family and every ipset of the namespace.
func (namespace) inventory() ([]string, error) {
	var all []string
	for _, source := range []struct {
		prefix string
		list   func() ([]string, error)
	}{{nftPrefix, nftTables}, {legacyPrefix, legacyTables}, {ipsetPrefix, ipsetNames}} {
		names, err := source.list()
		if errors.Is(err, unix.EINVAL) {
			continue // a kernel without the subsystem has nothing loaded in it
		}
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, source.prefix+name)
		}
	}
	return all, nil
}

// check holds the namespace to exactly what an engine makes: the given names and no others, but for
// what the settings have made, if they are in force; hooks at input, forward and output with priority 0
// where there are names, the settings' hooks, and no others. fallback are the hooks as the tables tell
// them, for a kernel that cannot list its hooks.
func (ns namespace) check(names []string, fallback []hook) ([]Check, error) {
	all, err := ns.inventory()
	if err != nil {
		return nil, err
	}
	inForce := slices.Contains(all, tuningTable) && ns.settings.hasTable()
	others := slices.DeleteFunc(all, func(name string) bool {
		return slices.Contains(names, name) || inForce && name == tuningTable
	})
	nothingElse := facts("nothing else loaded", nil, others, hint(others))

	hooks, err := ipv4Hooks()
	detail := ""
	switch {
	case errors.Is(err, errNoHookList) && len(names) == 0:
		// No table could tell of a hook either: a check would have nothing to look at.
		nothingElse.Detail = strings.TrimPrefix(nothingElse.Detail+"; "+err.Error(), "; ")
		return []Check{nothingElse}, nil
	case errors.Is(err, errNoHookList):
		hooks, detail = fallback, "by the tables that are loaded: "+err.Error()
	case err != nil:
		return nil, err
	}
	hooks, security := withoutSecurity(hooks)
	if len(security) > 0 {
		detail = "not counted, since they are there for every engine: " + strings.Join(security, ", ")
	}
	var want []hook
	if len(names) > 0 {
		want = []hook{{number: unix.NF_INET_LOCAL_IN}, {number: unix.NF_INET_FORWARD}, {number: unix.NF_INET_LOCAL_OUT}}
	}
	if inForce && errors.Is(err, errNoHookList) {
		// The tables that were looked at are the engine's.
		detail += "; those of the settings left out"
	} else if inForce {
		want = append(want, ns.settings.hooks()...)
	}
	return []Check{facts("hooks", describe(want), describe(hooks), detail), nothingElse}, nil
}

// hint is the next step for what should not be there.
func hint(others []string) string {
	switch {
	case len(others) == 0:
		return ""
	case slices.ContainsFunc(others, func(name string) bool { return strings.HasPrefix(name, legacyPrefix) }):
		return "legacy tables and their hooks stay as long as the network namespace: renew the node"
	}
	return "remove it, or give rampart a network namespace or VM of its own"
}

// withoutSecurity takes out the hooks that a security module of the host has in every namespace.
func withoutSecurity(hooks []hook) (rest []hook, security []string) {
	for _, h := range hooks {
		module, _, _ := strings.Cut(h.function, "_")
		if slices.Contains([]string{"selinux", "smack", "apparmor"}, module) {
			security = append(security, h.function)
		} else {
			rest = append(rest, h)
		}
	}
	return rest, security
}

// describe names hooks as "forward 0": the place and the priority, which every engine must share, in
// the order in which a packet meets them.
func describe(hooks []hook) []string {
	places := []string{"prerouting", "input", "forward", "output", "postrouting"}
	slices.SortStableFunc(hooks, func(a, b hook) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.priority, b.priority))
	})
	var names []string
	for _, h := range hooks {
		place := fmt.Sprintf("hook %d", h.number)
		if int(h.number) < len(places) {
			place = places[h.number]
		}
		names = append(names, fmt.Sprintf("%s %d", place, h.priority))
	}
	return names
}

// sweep removes what rampart, of whatever engine, left in the namespace. It is idempotent.
func (ns namespace) sweep(ctx context.Context) error {
	all, err := ns.inventory()
	if err != nil {
		return err
	}
	// The rules go before the ipset that they look up.
	for _, step := range []struct {
		name   string
		remove func(context.Context) error
	}{
		{ourTable, func(context.Context) error { return deleteTable(tableName) }},
		{tuningTable, func(context.Context) error { return deleteTable(settingsTable) }},
		{nftFilter, func(ctx context.Context) error { return ns.removeOurs(ctx, tool{IptablesNFT}) }},
		{legacyFilter, func(ctx context.Context) error { return ns.removeOurs(ctx, tool{IptablesLegacy}) }},
		{ourIpset, destroyIpset},
	} {
		if !slices.Contains(all, step.name) {
			continue
		}
		if err := step.remove(ctx); err != nil {
			return fmt.Errorf("remove %s: %w", step.name, err)
		}
	}
	return nil
}

// removeOurs removes the filter table of an iptables if it holds nothing but what rampart loads.
func (ns namespace) removeOurs(ctx context.Context, t tool) error {
	if t.name == IptablesLegacy {
		if table, err := readLegacy(); err == nil && table.isPristine {
			return ns.removeModules()
		}
	}
	listing, err := t.listing(ctx)
	if err != nil || !isOurs(listing) {
		return nil // not ours, so neither is its removal; Verify reports the table
	}
	return ns.remove(ctx, t)
}

// remove removes the filter table of an iptables.
func (ns namespace) remove(ctx context.Context, t tool) error {
	if t.name == IptablesNFT {
		return deleteTable("filter")
	}
	if err := t.reset(); err != nil {
		return err
	}
	return ns.removeModules()
}

// removeModules unloads the modules of iptables-legacy, and with them its hooks. Modules that are
// built in, in use or not there stay as they are: Residue says whether that matters.
func (ns namespace) removeModules() error {
	if !ns.opts.DedicatedKernel {
		return nil
	}
	for _, module := range []string{"iptable_filter", "ip_tables"} {
		err := unix.DeleteModule(module, unix.O_NONBLOCK)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.EBUSY), errors.Is(err, unix.EAGAIN):
		default:
			return fmt.Errorf("remove module %s: %w", module, err)
		}
	}
	return nil
}

// isOurs reports whether the output of iptables -S holds nothing but what rampart loads.
func isOurs(listing []string) bool {
	for _, line := range listing {
		switch line {
		case "-P INPUT ACCEPT", "-P FORWARD ACCEPT", "-P FORWARD DROP", "-P OUTPUT ACCEPT", setRule:
			continue
		}
		source, ok := strings.CutPrefix(line, "-A FORWARD -s ")
		if !ok || !strings.HasSuffix(source, "/32 -j ACCEPT") || strings.Count(source, " ") != 2 {
			return false
		}
	}
	return true
}
