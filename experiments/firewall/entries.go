package firewall

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
)

// Where the fillers come from: addresses that never occur as a source in a testbed.
//
// benchmarking is what METHOD §2 names. It has 131,072 addresses; a larger rule-set takes all of them
// and draws the rest from reserved, a part of the class E space that nobody has been given (RFC 1112
// §4) and that Linux matches like any other unicast address.
var (
	benchmarking = netip.MustParsePrefix("198.18.0.0/15") // RFC 2544 appendix C.2.2
	reserved     = netip.MustParsePrefix("240.0.0.0/8")
)

// MaxRules is the largest N: every filler there is, the sender and the receiver.
const MaxRules = 1<<17 + 1<<24 + 2

// The second half of the seed of each random stream. Fillers do not depend on the position, so two
// firewalls that differ only in the position of the matching entries have the same fillers.
const (
	fillerStream   = 1
	positionStream = 2
)

// Entries are the N source addresses of the rule-set, in order. The same RuleSet gives the same
// entries on every machine. Fillers are drawn without replacement and are not sorted.
//
// Position last puts the receiver's entry at N−1 and the sender's at N, so that the sender's frames
// walk the whole list; first puts the sender's at 1 and the receiver's at 2, so that they walk none of
// it; uniform draws both places by the seed.
func (r RuleSet) Entries() ([]netip.Addr, error) {
	keys, err := r.entries()
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, len(keys))
	for i, k := range keys {
		addrs[i] = address(k)
	}
	return addrs, nil
}

// entries is Entries with each address as a number in host order.
func (r RuleSet) entries() ([]uint32, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("make rule-set: %w", err)
	}
	entries := fillers(r.Rules-2, r.Seed)
	sender, receiver := key(r.Sender), key(r.Receiver)
	switch r.Position {
	case First:
		return append([]uint32{sender, receiver}, entries...), nil
	case Uniform:
		// Two different places of N, in either order, then the fillers around them.
		rng := rand.New(rand.NewPCG(r.Seed, positionStream))
		s, t := rng.IntN(r.Rules), rng.IntN(r.Rules-1)
		if t >= s {
			t++
		}
		all := make([]uint32, 0, r.Rules)
		for i := range r.Rules {
			switch i {
			case s:
				all = append(all, sender)
			case t:
				all = append(all, receiver)
			default:
				all, entries = append(all, entries[0]), entries[1:]
			}
		}
		return all, nil
	default:
		return append(entries, receiver, sender), nil
	}
}

func (r RuleSet) validate() error {
	if r.Rules < 2 || r.Rules > MaxRules {
		return fmt.Errorf("rules = %d: use 2 (the entries of sender and receiver) to %d", r.Rules, MaxRules)
	}
	if err := validPosition(r.Position); err != nil {
		return err
	}
	if r.Sender == r.Receiver {
		return fmt.Errorf("sender and receiver are both %s: give them different addresses", r.Sender)
	}
	for _, end := range []struct {
		role string
		addr netip.Addr
	}{{"sender", r.Sender}, {"receiver", r.Receiver}} {
		if !end.addr.Is4() {
			return fmt.Errorf("%s address %v: use an IPv4 address", end.role, end.addr)
		}
		if benchmarking.Contains(end.addr) || reserved.Contains(end.addr) {
			return fmt.Errorf("%s address %s: fillers are drawn from %s and %s: use another network",
				end.role, end.addr, benchmarking, reserved)
		}
	}
	return nil
}

func validPosition(position string) error {
	switch position {
	case "", Last, First, Uniform:
		return nil
	}
	return fmt.Errorf("position %q: use %s, %s or %s", position, Last, First, Uniform)
}

// fillers draws n different addresses in random order.
func fillers(n int, seed uint64) []uint32 {
	rng := rand.New(rand.NewPCG(seed, fillerStream))
	pool := make([]uint32, size(benchmarking), max(size(benchmarking), n))
	for i := range pool {
		pool[i] = key(benchmarking.Addr()) + uint32(i)
	}
	if n > len(pool) {
		pool = appendDrawn(pool, reserved, n-len(pool), rng)
	}
	for i := range n { // Fisher–Yates, as far as is needed
		j := i + rng.IntN(len(pool)-i)
		pool[i], pool[j] = pool[j], pool[i]
	}
	return pool[:n:n]
}

// appendDrawn appends n different addresses of p.
func appendDrawn(to []uint32, p netip.Prefix, n int, rng *rand.Rand) []uint32 {
	taken := addressSet{}
	for n > 0 {
		if k := key(p.Addr()) + rng.Uint32N(uint32(size(p))); taken.add(k) {
			to = append(to, k)
			n--
		}
	}
	return to
}

// addressSet is a set of IPv4 addresses: by their upper half, a bitmap of the lower one. Entries are
// dense in few networks, where this is ten times as fast as sorting or hashing them.
type addressSet map[uint16]*[1 << 16 / 64]uint64

// add reports whether the address is new.
func (s addressSet) add(key uint32) bool {
	page := s[uint16(key>>16)]
	if page == nil {
		page = new([1 << 16 / 64]uint64)
		s[uint16(key>>16)] = page
	}
	word, bit := uint16(key)/64, uint64(1)<<(key%64)
	if page[word]&bit != 0 {
		return false
	}
	page[word] |= bit
	return true
}

func (s addressSet) contains(key uint32) bool {
	page := s[uint16(key>>16)]
	return page != nil && page[uint16(key)/64]&(1<<(key%64)) != 0
}

func size(p netip.Prefix) int { return 1 << (32 - p.Bits()) }

func key(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func address(key uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, key)))
}
