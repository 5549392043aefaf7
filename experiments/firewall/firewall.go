// Package firewall loads, verifies and unloads rule-sets on the device under test.
//
// A [Spec] names an engine and a way of looking up; a [RuleSet] is the same N entries for every
// engine. An [Engine] is the live object that holds the rules; beside it stands a [Tuning], which holds
// the [Settings]: connection tracking, reverse-path filtering, flowtable, route cache. Whatever either
// changes it can put back, and nothing counts as loaded until it was read back from the kernel.
package firewall

import (
	"context"
	"net/netip"
)

// The engines. A bare "iptables" never appears in data: it would hide which kernel code ran.
const (
	None           = "none"  // no hook registered
	Empty          = "empty" // nftables' base chains, policy accept, no rule: a forwarded packet passes one
	IptablesLegacy = "iptables-legacy"
	IptablesNFT    = "iptables-nft"
	Nftables       = "nftables"
)

// The ways of looking up.
const (
	Linear  = "linear"  // one rule an entry
	Indexed = "indexed" // one rule and one set of all entries
)

// Positions of the entries that match the traffic.
const (
	Last    = "last"
	First   = "first"
	Uniform = "uniform"
)

// Spec is a named configuration of the device under test. Two Specs that differ only in Name are an
// A/A pair.
type Spec struct {
	Name     string `json:"name"`
	Engine   string `json:"engine"`
	Lookup   string `json:"lookup,omitempty"`
	Position string `json:"position,omitempty"`
	Settings
}

// HasRules reports whether the number of rules means anything to the firewall.
func (s Spec) HasRules() bool { return s.Engine != None && s.Engine != Empty }

// RuleSet is N entries, the same for every engine (METHOD §2).
type RuleSet struct {
	Rules    int    `json:"rules"` // N, at least 2
	Seed     uint64 `json:"seed"`
	Position string `json:"position"`
	// Sender and Receiver are the addresses that the entries for the traffic accept.
	Sender   netip.Addr `json:"sender"`
	Receiver netip.Addr `json:"receiver"`
}

// A Check is one fact read back; record.Check is the identical type.
type Check struct {
	Name   string `json:"name"`
	Want   any    `json:"want"`
	Got    any    `json:"got"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// An Engine loads one kind of firewall into the network namespace of the calling process. It may
// also be a [Counter] or a [Resident].
type Engine interface {
	Name() string
	// Load replaces whatever this engine had loaded. It returns an *UnavailableError where the
	// kernel or the system lacks the engine.
	Load(ctx context.Context, rules RuleSet) error
	// Verify reads back from the kernel: the rules and elements that are there, and that nothing
	// else is. A false Check is not an error; an error means that nothing could be read.
	Verify(ctx context.Context, rules RuleSet) ([]Check, error)
	// Unload removes what Load made. It is idempotent.
	Unload(ctx context.Context) error
}

// Counters are the packets and bytes (IP length) that matched the entries for the traffic.
type Counters struct {
	FromSender   Count `json:"from_sender"`
	FromReceiver Count `json:"from_receiver"`
	// Combined is true where one rule serves both directions (indexed), and FromSender then
	// counts both.
	Combined bool `json:"combined,omitempty"`
}

// Count is packets and their bytes.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// A Counter reads the counters of the rules that match the traffic.
type Counter interface {
	Counters(ctx context.Context, rules RuleSet) (Counters, error)
}

// A Resident engine leaves something in the kernel that Unload cannot remove while the namespace
// lives: iptables-legacy registers its hooks at first use and keeps them. Residue names what is left
// now, or is empty.
type Resident interface {
	Residue(ctx context.Context) (string, error)
}

// A Preparer makes ready what a load would otherwise find missing once and later loads would not, such
// as a module of the kernel, so that the time of a load is that of the rules.
type Preparer interface {
	Prepare(ctx context.Context) error
}

// A Cleaner says, after Unload, whether anything of the engine is left.
type Cleaner interface {
	Clean(ctx context.Context) ([]Check, error)
}

// UnavailableError says that this system cannot run an engine, or lacks a setting.
type UnavailableError struct {
	Engine  string
	Setting string // in the place of an engine
	Reason  string // with the next step
}

func (e *UnavailableError) Error() string {
	what := "engine " + e.Engine
	if e.Setting != "" {
		what = "setting " + e.Setting
	}
	return what + ": unavailable: " + e.Reason
}
