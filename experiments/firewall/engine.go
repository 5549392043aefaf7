package firewall

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Options say what an engine may do to the system.
type Options struct {
	// DedicatedKernel is true where nobody else uses this kernel. Unloading iptables-legacy then also
	// removes its modules, and with them the hooks that otherwise stay as long as the namespace.
	DedicatedKernel bool
	// Interfaces are those towards the sender and the receiver. A flowtable takes packets from them.
	Interfaces [2]string
}

// New makes the engine that spec names. It touches nothing yet.
//
// An engine works on the network namespace of the thread that calls it. It takes that namespace for
// its own: what a rampart that was killed left there is removed by the next Load of any engine. What
// is not recognisably rampart's is never removed; Verify finds it.
func New(spec Spec, opts Options) (Engine, error) {
	if err := validPosition(spec.Position); err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	if spec.HasRules() && spec.Lookup != Linear && spec.Lookup != Indexed {
		return nil, fmt.Errorf("make engine: lookup %q: use %s or %s", spec.Lookup, Linear, Indexed)
	}
	if err := spec.Settings.Validate(); err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	ns := namespace{opts: opts, settings: spec.Settings}
	switch spec.Engine {
	case None:
		return &noEngine{ns: ns}, nil
	case Empty:
		return &emptyEngine{ns: ns}, nil
	case Nftables:
		return &nftEngine{ns: ns, lookup: spec.Lookup}, nil
	case IptablesNFT:
		return &iptablesEngine{ns: ns, tool: tool{spec.Engine}, lookup: spec.Lookup}, nil
	case IptablesLegacy:
		return &legacyEngine{iptablesEngine{ns: ns, tool: tool{spec.Engine}, lookup: spec.Lookup}}, nil
	}
	return nil, fmt.Errorf("make engine: engine %q: use one of %v", spec.Engine, Engines())
}

// Engines lists every engine, the controls first.
func Engines() []string { return []string{None, Empty, IptablesLegacy, IptablesNFT, Nftables} }

// noEngine is the control with no firewall at all.
type noEngine struct{ ns namespace }

var (
	_ Engine  = (*noEngine)(nil)
	_ Cleaner = (*noEngine)(nil)
)

func (e *noEngine) Name() string { return None }

func (e *noEngine) Load(ctx context.Context, _ RuleSet) error {
	if err := requireNetAdmin(None); err != nil {
		return err
	}
	return e.ns.sweep(ctx)
}

func (e *noEngine) Verify(context.Context, RuleSet) ([]Check, error) { return e.check() }

func (e *noEngine) Unload(ctx context.Context) error { return e.ns.sweep(ctx) }

func (e *noEngine) Clean(context.Context) ([]Check, error) { return e.check() }

func (e *noEngine) check() ([]Check, error) { return e.ns.check(nil, nil) }

// requireNetAdmin returns an *UnavailableError for a thread that may not change the firewall.
func requireNetAdmin(engine string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return &UnavailableError{Engine: engine, Reason: "the process lacks CAP_NET_ADMIN: run it as root, or in a user namespace of its own"}
	}
	return nil
}

// fact makes a Check of two values that can be compared.
func fact[T comparable](name string, want, got T, detail string) Check {
	return Check{Name: name, Want: want, Got: got, OK: want == got, Detail: detail}
}

// facts makes a Check of two lists that must be the same in the same order.
func facts(name string, want, got []string, detail string) Check {
	return Check{Name: name, Want: append([]string{}, want...), Got: append([]string{}, got...), OK: slices.Equal(want, got), Detail: detail}
}

// observed is what an engine with chains reads back from the kernel.
type observed struct {
	rules     []matchRule // of the forward chain
	others    int         // rules of the forward chain that have another form
	elements  []uint32    // of the set, when the look-up is indexed
	setType   string      // of an ipset
	drop      bool        // the policy of the forward chain
	elsewhere string      // the state of the other chains; quiet when nothing happens there
}

func (o observed) policy() string {
	if o.drop {
		return "drop"
	}
	return "accept"
}

// quiet is the state of input and output in every engine.
const quiet = "empty, policy accept"

// checks compares what was read back with what was to be loaded.
func (o observed) checks(lookup string, entries []uint32) []Check {
	var list []Check
	if lookup == Indexed {
		list = append(list,
			o.ruleCount(1, matchRule{set: setName}),
			fact("set elements", len(entries), len(o.elements), ""),
			members(entries, o.elements))
	} else {
		list = append(list, o.ruleCount(len(entries), matchRule{}), inOrder(entries, o.rules))
	}
	return append(list, fact("forward policy", "drop", o.policy(), ""), fact("other chains", quiet, o.elsewhere, ""))
}

// emptyChecks are the checks of chains without rules that let everything pass.
func (o observed) emptyChecks(detail string) []Check {
	return []Check{
		fact("rules loaded", 0, len(o.rules), detail),
		fact("forward policy", "accept", o.policy(), ""),
		fact("other chains", quiet, o.elsewhere, ""),
	}
}

// ruleCount counts the rules of the right form: with the right set, or with none.
func (o observed) ruleCount(want int, form matchRule) Check {
	got := -o.others
	for _, r := range o.rules {
		if r.set == form.set {
			got++
		}
	}
	c := fact("rules loaded", want, got, "")
	if wrong := len(o.rules) - got; wrong > 0 {
		c.OK, c.Detail = false, fmt.Sprintf("%d rules have another form", wrong)
	}
	return c
}

// inOrder counts the entries that stand at their place.
func inOrder(entries []uint32, rules []matchRule) Check {
	got, detail := 0, ""
	for i, want := range entries {
		switch {
		case i >= len(rules):
		case rules[i].source == want:
			got++
		case detail == "":
			detail = fmt.Sprintf("rule %d accepts %s, want %s", i+1, address(rules[i].source), address(want))
		}
	}
	return fact("rules in order", len(entries), got, detail)
}

// members counts the entries that the set contains: a set has no order.
func members(entries, elements []uint32) Check {
	have := addressSet{}
	for _, e := range elements {
		have.add(e)
	}
	got, detail := 0, ""
	for _, e := range entries {
		switch {
		case have.contains(e):
			got++
		case detail == "":
			detail = address(e).String() + " is missing"
		}
	}
	return fact("set members", len(entries), got, detail)
}

// counters finds the counters of the traffic's entries.
func counters(rules RuleSet, lookup string, loaded []matchRule) (Counters, error) {
	if lookup == Indexed {
		if len(loaded) != 1 || loaded[0].set != setName {
			return Counters{}, fmt.Errorf("read counters: the rule of set %s is not loaded: load the rule-set first", setName)
		}
		return Counters{FromSender: loaded[0].count, Combined: true}, nil
	}
	var c Counters
	found := 0
	for _, r := range loaded {
		switch {
		case r.set != "":
		case r.source == key(rules.Sender):
			c.FromSender = r.count
			found++
		case r.source == key(rules.Receiver):
			c.FromReceiver = r.count
			found++
		}
	}
	if found != 2 {
		return Counters{}, fmt.Errorf("read counters: %d rules accept %s or %s, want 2: load the rule-set first", found, rules.Sender, rules.Receiver)
	}
	return c, nil
}
