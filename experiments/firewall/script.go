package firewall

import (
	"math/bits"
	"strconv"
)

// The names of what is made in the kernel. "accept" would be a better name for the set, but it is a
// word of nft's grammar: nft can list such a set and cannot load its own listing.
const (
	tableName = "rampart"
	setName   = "accepted"
)

// setRule is the one rule of an indexed iptables firewall, as iptables prints it.
const setRule = "-A FORWARD -m set --match-set " + setName + " src -j ACCEPT"

// NFTScript is what the nftables engine loads, as text for nft -f. The engine itself speaks netlink;
// this is for the reader, and for the test that holds the engine to it.
func NFTScript(rules RuleSet, spec Spec) ([]byte, error) {
	entries, err := rules.entries()
	if err != nil {
		return nil, err
	}
	b := []byte("table ip " + tableName + " {\n")
	if spec.Lookup == Indexed {
		b = append(b, "\tset "+setName+" {\n\t\ttype ipv4_addr\n\t\telements = {\n"...)
		for _, e := range entries {
			b = append(appendAddress(append(b, "\t\t\t"...), e), ",\n"...)
		}
		b = append(b, "\t\t}\n\t}\n"...)
	}
	b = append(b, "\tchain input {\n\t\ttype filter hook input priority 0; policy accept;\n\t}\n"+
		"\tchain forward {\n\t\ttype filter hook forward priority 0; policy drop;\n"...)
	if spec.Lookup == Indexed {
		b = append(b, "\t\tip saddr @"+setName+" counter accept\n"...)
	} else {
		for _, e := range entries {
			b = append(appendAddress(append(b, "\t\tip saddr "...), e), " counter accept\n"...)
		}
	}
	b = append(b, "\t}\n\tchain output {\n\t\ttype filter hook output priority 0; policy accept;\n\t}\n}\n"...)
	return b, nil
}

// IptablesRestore is what both iptables engines load, for iptables-restore. Of an indexed firewall it
// is the rule only; [IpsetRestore] must be loaded before it.
func IptablesRestore(rules RuleSet, spec Spec) ([]byte, error) {
	entries, err := rules.entries()
	if err != nil {
		return nil, err
	}
	const perRule = len("-A FORWARD -s 255.255.255.255/32 -j ACCEPT\n")
	b := make([]byte, 0, 128+perRule*len(entries))
	b = append(b, "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n"...)
	if spec.Lookup == Indexed {
		b = append(b, setRule+"\n"...)
	} else {
		for _, e := range entries {
			b = append(appendAddress(append(b, "-A FORWARD -s "...), e), "/32 -j ACCEPT\n"...)
		}
	}
	return append(b, "COMMIT\n"...), nil
}

// IpsetRestore is the set of an indexed iptables firewall, for ipset restore.
//
// maxelem is N, since the default of 65,536 would refuse more. hashsize keeps the hash at most three
// quarters full, which is what nftables' hash (the kernel's rhashtable) does by growing; ipset's own
// growing starts only when a bucket holds twelve entries.
func IpsetRestore(rules RuleSet) ([]byte, error) {
	entries, err := rules.entries()
	if err != nil {
		return nil, err
	}
	const perEntry = len("add " + setName + " 255.255.255.255\n")
	b := make([]byte, 0, 128+perEntry*len(entries))
	b = append(b, "create "+setName+" hash:ip family inet hashsize "...)
	b = strconv.AppendInt(b, int64(hashSize(len(entries))), 10)
	b = append(b, " maxelem "...)
	b = strconv.AppendInt(b, int64(len(entries)), 10)
	b = append(b, '\n')
	for _, e := range entries {
		b = append(appendAddress(append(b, "add "+setName+" "...), e), '\n')
	}
	return b, nil
}

// hashSize is the smallest power of two that n entries fill to at most three quarters, and not below
// 64, the smallest that ipset makes.
func hashSize(n int) int {
	return max(64, 1<<bits.Len(uint(n*4/3)))
}

func appendAddress(b []byte, key uint32) []byte {
	for shift := 24; shift >= 0; shift -= 8 {
		octet := byte(key >> shift)
		if octet >= 100 {
			b = append(b, '0'+octet/100)
		}
		if octet >= 10 {
			b = append(b, '0'+octet/10%10)
		}
		b = append(b, '0'+octet%10)
		if shift > 0 {
			b = append(b, '.')
		}
	}
	return b
}
