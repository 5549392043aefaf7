package config

import (
	"fmt"
	"net/netip"
)

// frameOverhead is what a frame has beyond the IP packet that the MTU limits: 14 bytes of Ethernet
// header and 4 of FCS (RFC 2544 counts both).
const frameOverhead = 18

// reservedNetworks are those that a link cannot have, with the reason.
func reservedNetworks() []struct{ network, reason string } {
	return []struct{ network, reason string }{
		{"0.0.0.0/8", "it means \"this network\" (RFC 1122)"},
		{"127.0.0.0/8", "it never leaves a host (RFC 1122)"},
		{"198.18.0.0/15", "the filler entries of the rule-sets are drawn from it, and must never match"},
		{"224.0.0.0/3", "it is for multicast, or reserved and the source of more filler entries (RFC 1112)"},
	}
}

// parseNetwork takes an IPv4 network that a link can have.
func parseNetwork(text string) (netip.Prefix, *mistake) {
	const example = `Write an IPv4 network of at least 8 addresses, such as "10.77.1.0/24".`
	network, err := netip.ParsePrefix(text)
	switch {
	case err != nil || !network.Addr().Is4():
		return network, &mistake{fmt.Sprintf("is not an IPv4 network: %q", cut(text, 40)), example}
	case network.Bits() > 29:
		return network, &mistake{fmt.Sprintf("has too few addresses: %s", network), example}
	case network != network.Masked():
		return network, &mistake{fmt.Sprintf("is an address in a network: %s", network), fmt.Sprintf("Write %q if that network is meant.", network.Masked())}
	}
	for _, r := range reservedNetworks() {
		if network.Overlaps(netip.MustParsePrefix(r.network)) {
			return network, &mistake{fmt.Sprintf("overlaps %s", r.network), fmt.Sprintf("That cannot be used: %s. %s", r.reason, example)}
		}
	}
	return network, nil
}
