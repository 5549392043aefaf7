package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options and layouts of linux/netfilter_ipv4/ip_tables.h and linux/netfilter/x_tables.h on 64-bit
// machines, offsets in bytes.
const (
	iptSoGetInfo    = 64
	iptSoGetEntries = 65

	// struct ipt_getinfo
	infoValidHooks = 32
	infoHookEntry  = 36 // [5]uint32: where each hook's chain begins
	infoUnderflow  = 56 // [5]uint32: where each hook's policy is
	infoEntries    = 76
	infoSize       = 80
	sizeofInfo     = 84

	entriesTable = 40 // struct ipt_get_entries: name, size, then the blob

	// struct ipt_entry
	entrySource       = 0
	entrySourceMask   = 8
	entryTargetOffset = 88
	entryNextOffset   = 90
	entryPackets      = 96
	entryBytes        = 104
	sizeofEntry       = 112

	// struct xt_entry_match and xt_entry_target
	extensionName   = 2
	extensionData   = 32
	sizeofVerdict   = 40 // struct xt_standard_target, aligned
	sizeofRule      = sizeofEntry + sizeofVerdict
	standardDrop    = -nfDrop - 1
	standardAccept  = -nfAccept - 1
	legacyTableName = "filter"
)

// errNoLegacy says that ip_tables or its filter table is not in the kernel now.
var errNoLegacy = errors.New("the kernel has no legacy filter table")

// A legacyTable is iptables-legacy's filter table as read from the kernel.
type legacyTable struct {
	rules  []matchRule // of FORWARD, in order; set holds the name of the match of an indexed rule
	others int         // rules of FORWARD that are neither; their places hold zero values
	// strangers counts rules of INPUT and OUTPUT, and chains that are not built in.
	strangers    int
	forwardDrop  bool
	othersAccept bool // the policies of INPUT and OUTPUT
	hooks        []uint32
	isPristine   bool // no rule, and every policy accept
}

// readLegacy reads the filter table. Asking registers the table and its hooks where they were not:
// only the iptables-legacy engine may call it.
func readLegacy() (legacyTable, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return legacyTable{}, fmt.Errorf("open raw socket: %w", err)
	}
	defer unix.Close(fd)

	info := make([]byte, sizeofInfo)
	copy(info, legacyTableName)
	if err := getsockopt(fd, iptSoGetInfo, info); err != nil {
		if errors.Is(err, unix.ENOPROTOOPT) || errors.Is(err, unix.ENOENT) {
			return legacyTable{}, errNoLegacy
		}
		return legacyTable{}, fmt.Errorf("read legacy filter table: %w", err)
	}
	size := binary.NativeEndian.Uint32(info[infoSize:])
	entries := make([]byte, entriesTable+size)
	copy(entries, legacyTableName)
	binary.NativeEndian.PutUint32(entries[32:], size)
	if err := getsockopt(fd, iptSoGetEntries, entries); err != nil {
		return legacyTable{}, fmt.Errorf("read entries of legacy filter table: %w", err)
	}
	return parseLegacy(info, entries[entriesTable:])
}

func getsockopt(fd, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_IP, uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// parseLegacy walks the blob that ip_tables keeps: entries one after the other, each chain ending in
// the entry that holds its policy.
func parseLegacy(info, blob []byte) (legacyTable, error) {
	if len(info) < sizeofInfo {
		return legacyTable{}, fmt.Errorf("parse legacy filter table: its description has %d bytes", len(info))
	}
	at := func(field, hook int) int { return int(binary.NativeEndian.Uint32(info[field+4*hook:])) }
	t := legacyTable{othersAccept: true, rules: make([]matchRule, 0, len(blob)/sizeofRule)}
	for number := range uint32(unix.NF_INET_NUMHOOKS) {
		if binary.NativeEndian.Uint32(info[infoValidHooks:])&(1<<number) != 0 {
			t.hooks = append(t.hooks, number)
		}
	}
	entries := 0
	for offset := 0; offset < len(blob); entries++ {
		entry := blob[offset:]
		if len(entry) < sizeofEntry {
			return legacyTable{}, fmt.Errorf("parse legacy filter table: %d bytes left at %d", len(entry), offset)
		}
		next := int(binary.NativeEndian.Uint16(entry[entryNextOffset:]))
		target := int(binary.NativeEndian.Uint16(entry[entryTargetOffset:]))
		if target < sizeofEntry || next < target+extensionData || next > len(entry) {
			return legacyTable{}, fmt.Errorf("parse legacy filter table: entry at %d has offsets %d and %d", offset, target, next)
		}
		t.add(entry[:next], target, offset, at)
		offset += next
	}
	if want := int(binary.NativeEndian.Uint32(info[infoEntries:])); entries != want {
		return legacyTable{}, fmt.Errorf("parse legacy filter table: %d entries of %d", entries, want)
	}
	t.isPristine = len(t.rules) == 0 && t.strangers == 0 && !t.forwardDrop && t.othersAccept
	return t, nil
}

// add puts one entry where it belongs by its offset.
func (t *legacyTable) add(entry []byte, target, offset int, at func(field, hook int) int) {
	verdict, standard := standardVerdict(entry[target:])
	switch {
	case offset == at(infoUnderflow, unix.NF_INET_FORWARD):
		t.forwardDrop = standard && verdict == standardDrop
	case offset == at(infoUnderflow, unix.NF_INET_LOCAL_IN), offset == at(infoUnderflow, unix.NF_INET_LOCAL_OUT):
		t.othersAccept = t.othersAccept && standard && verdict == standardAccept
	case offset >= at(infoHookEntry, unix.NF_INET_FORWARD) && offset < at(infoUnderflow, unix.NF_INET_FORWARD):
		rule, ok := parseLegacyRule(entry, target)
		if !ok || !standard || verdict != standardAccept {
			rule = matchRule{}
			t.others++
		}
		t.rules = append(t.rules, rule)
	case offset > at(infoUnderflow, unix.NF_INET_LOCAL_OUT) && isLast(entry, target):
		// The end of the table.
	default:
		t.strangers++
	}
}

// isLast tells the entry that ends the table from one that begins a chain of the user: both have the
// target ERROR, and its text is "ERROR" in the one and the chain's name in the other.
func isLast(entry []byte, target int) bool {
	return text(entry[target+extensionName:target+extensionData-1]) == "ERROR" && text(entry[target+extensionData:]) == "ERROR"
}

// standardVerdict reads a target that is a verdict: its name is empty.
func standardVerdict(target []byte) (verdict int32, ok bool) {
	if len(target) != sizeofVerdict || target[extensionName] != 0 {
		return 0, false
	}
	return int32(binary.NativeEndian.Uint32(target[extensionData:])), true
}

// parseLegacyRule reports whether the entry is exactly "-s ADDRESS/32", or nothing but one match; then
// set is the name of the match.
func parseLegacyRule(entry []byte, target int) (rule matchRule, ok bool) {
	rule.count.Packets = binary.NativeEndian.Uint64(entry[entryPackets:])
	rule.count.Bytes = binary.NativeEndian.Uint64(entry[entryBytes:])
	var ip [84]byte // struct ipt_ip: everything but the source is zero in our rules
	copy(ip[:], entry)
	source := ip[entrySource : entrySource+4]
	mask := ip[entrySourceMask : entrySourceMask+4]
	if target == sizeofEntry {
		rule.source = binary.BigEndian.Uint32(source)
		ok = bytes.Equal(mask, []byte{255, 255, 255, 255})
		clear(source)
		clear(mask)
	} else if len(entry) >= sizeofEntry+extensionData {
		size := int(binary.NativeEndian.Uint16(entry[sizeofEntry:]))
		rule.set = text(entry[sizeofEntry+extensionName : sizeofEntry+extensionData-1])
		ok = sizeofEntry+size == target
	}
	return rule, ok && ip == [84]byte{}
}

// legacyTables lists the tables that iptables-legacy and its siblings have registered in this network
// namespace, as "ip filter". Reading the list registers nothing.
func legacyTables() ([]string, error) {
	var tables []string
	for _, list := range []struct{ family, file string }{
		{"ip", "ip_tables_names"}, {"ip6", "ip6_tables_names"}, {"arp", "arp_tables_names"},
	} {
		// thread-self, since a namespace belongs to a thread and /proc/net to the main one.
		names, err := os.ReadFile("/proc/thread-self/net/" + list.file)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without these tables
		}
		if err != nil {
			return nil, fmt.Errorf("list legacy tables: %w", err)
		}
		for name := range strings.FieldsSeq(string(names)) {
			tables = append(tables, list.family+" "+name)
		}
	}
	return tables, nil
}
