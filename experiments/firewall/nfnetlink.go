package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What is loaded is read back by the code in this file and in xtables.go, and by nothing that also
// loads: not by the programs, and not by the libraries that write. It reads the kernel's messages
// directly because the whole rule-set is compared after every load, and decoding 10,000 rules into
// expressions would cost more than loading them.

// Messages and attributes of linux/netfilter/ipset/ip_set.h and nfnetlink_hook.h, which x/sys/unix
// does not have.
const (
	ipsetCmdList  = 7
	ipsetProtocol = 6 // every kernel since 2.6.39 speaks it

	ipsetAttrProtocol = 1
	ipsetAttrSetName  = 2
	ipsetAttrTypeName = 3
	ipsetAttrFlags    = 6
	ipsetAttrData     = 7
	ipsetAttrADT      = 8
	ipsetAttrIP       = 1 // inside data
	ipsetAttrIPv4     = 1 // inside IP

	ipsetFlagListSetName = 1 << 1

	hookMsgGet       = 0
	hookAttrNum      = 1
	hookAttrPriority = 2
	hookAttrFunction = 4
)

// errInterrupted says that a dump is not one state of the kernel.
var errInterrupted = errors.New("the kernel's tables changed while they were read")

// open returns a netlink socket of netfilter that waits at most 30 seconds for an answer.
func open() (fd int, err error) {
	fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return -1, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	patience := unix.Timeval{Sec: 30}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("set time-out of netlink socket: %w", err)
	}
	return fd, nil
}

// appendMessage appends one nfnetlink message. resource is what nfgenmsg calls res_id.
func appendMessage(b []byte, kind, flags, sequence int, family uint8, resource uint16, attrs []byte) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.NLMSG_HDRLEN+4+len(attrs)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|uint16(flags))
	b = binary.NativeEndian.AppendUint32(b, uint32(sequence))
	b = append(b, 0, 0, 0, 0) // the kernel knows the port
	b = append(b, family, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, resource)
	return append(b, attrs...)
}

func send(fd int, messages []byte) error {
	if err := unix.Sendto(fd, messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send netlink messages: %w", err)
	}
	return nil
}

// dump sends one nfnetlink request and calls each with the address family and the attributes of every
// message of the answer. A kernel without the subsystem answers EINVAL, after trying to load it.
func dump(subsystem, message int, family uint8, request []byte, each func(family uint8, attrs []byte) error) error {
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := send(fd, appendMessage(nil, subsystem<<8|message, unix.NLM_F_DUMP, 0, family, 0, request)); err != nil {
		return err
	}
	return receive(fd, each)
}

// get sends several nfnetlink requests for one object each and calls each with every answer, in order.
func get(subsystem, message int, family uint8, requests [][]byte, each func(family uint8, attrs []byte) error) error {
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for i, request := range requests {
		// The acknowledgement ends the answer, as the end of a dump would.
		if err := send(fd, appendMessage(nil, subsystem<<8|message, unix.NLM_F_ACK, i, family, 0, request)); err != nil {
			return err
		}
		if err := receive(fd, each); err != nil {
			return err
		}
	}
	return nil
}

func receive(fd int, each func(family uint8, attrs []byte) error) error {
	buf := make([]byte, 1<<16) // a dump comes in pieces of at most 32 KiB (af_netlink.c)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive netlink answer: %w", err)
		}
		if n > len(buf) {
			return fmt.Errorf("receive netlink answer: %d bytes at once", n)
		}
		done, err := parseAnswer(buf[:n], each)
		if done || err != nil {
			return err
		}
	}
}

// parseAnswer walks the messages of one datagram. done is true after the last of the dump.
func parseAnswer(b []byte, each func(family uint8, attrs []byte) error) (done bool, err error) {
	for len(b) >= unix.NLMSG_HDRLEN {
		length := int(binary.NativeEndian.Uint32(b))
		if length < unix.NLMSG_HDRLEN || length > len(b) {
			return false, fmt.Errorf("parse netlink answer: message of %d bytes in %d", length, len(b))
		}
		kind, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
		body := b[unix.NLMSG_HDRLEN:length]
		b = b[min(align4(length), len(b)):]

		if flags&unix.NLM_F_DUMP_INTR != 0 {
			return true, errInterrupted
		}
		if len(body) < 4 {
			return false, fmt.Errorf("parse netlink answer: message without a body")
		}
		switch kind {
		case unix.NLMSG_ERROR, unix.NLMSG_DONE:
			if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
				return true, unix.Errno(-code)
			}
			return true, nil
		}
		if err := each(body[0], body[4:]); err != nil {
			return true, err
		}
	}
	return false, nil
}

// attributes yields the type, without its flag bits, and the value of each netlink attribute. It ends
// at the first that is malformed: what is then missing is not found by whoever looks for it.
func attributes(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(b))
			if length < unix.SizeofNlAttr || length > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(int(kind), b[unix.SizeofNlAttr:length]) {
				return
			}
			b = b[min(align4(length), len(b)):]
		}
	}
}

// attribute returns the value at a path of nested attributes, or nil.
func attribute(b []byte, path ...int) []byte {
	for _, want := range path {
		var found []byte
		for kind, value := range attributes(b) {
			if kind == want {
				found = value
				break
			}
		}
		b = found
	}
	return b
}

func appendAttribute(b []byte, kind int, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, value...)
	return append(b, make([]byte, align4(len(value))-len(value))...)
}

func appendString(b []byte, kind int, s string) []byte {
	return appendAttribute(b, kind, append([]byte(s), 0))
}

func align4(n int) int { return (n + 3) &^ 3 }

// text is the value of a string attribute.
func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// isText compares a string attribute without copying it.
func isText(b []byte, want string) bool {
	return len(b) == len(want)+1 && string(b[:len(want)]) == want && b[len(want)] == 0
}

// isBE32 and be64 read numbers in network order, as nf_tables writes all of its own.
func isBE32(b []byte, want uint32) bool { return len(b) == 4 && binary.BigEndian.Uint32(b) == want }

func be64(b []byte) uint64 {
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// A matchRule is one rule as read from the kernel.
type matchRule struct {
	source uint32 // the address it accepts, when set is empty
	set    string // the set it looks the source address up in
	count  Count
	handle uint64 // the kernel's name for it; 0: read from another interface than nf_tables
}

// forwardRules reads the rules of a chain of a table of family ip, in order. others counts the rules
// that are not exactly "ip saddr ADDRESS|@SET counter accept"; their places hold zero values.
func forwardRules(table, chain string) (rules []matchRule, others int, err error) {
	request := appendString(nil, unix.NFTA_RULE_TABLE, table)
	request = appendString(request, unix.NFTA_RULE_CHAIN, chain)
	var reader ruleReader
	err = dump(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, unix.NFPROTO_IPV4, request, func(_ uint8, attrs []byte) error {
		rule, ok := reader.read(attrs)
		if !ok {
			others++
		}
		rules = append(rules, rule)
		return nil
	})
	if errors.Is(err, unix.ENOENT) { // no such table or chain
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read rules of chain ip %s %s: %w", table, chain, err)
	}
	return rules, others, nil
}

// readRules reads rules of a chain of a table of family ip by their handles, in that order. To find a
// handle the kernel walks the chain, which is far cheaper than to write every rule of it down.
func readRules(table, chain string, handles []uint64) (rules []matchRule, err error) {
	var requests [][]byte
	for _, handle := range handles {
		request := appendString(nil, unix.NFTA_RULE_TABLE, table)
		request = appendString(request, unix.NFTA_RULE_CHAIN, chain)
		requests = append(requests, appendAttribute(request, unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle)))
	}
	var reader ruleReader
	err = get(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, unix.NFPROTO_IPV4, requests, func(_ uint8, attrs []byte) error {
		rule, _ := reader.read(attrs)
		rules = append(rules, rule)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read rules of chain ip %s %s: %w", table, chain, err)
	}
	return rules, nil
}

// A ruleReader reads rules one after the other. Rules of a chain are alike but for the address and the
// counters, so it goes through the attributes of one only, and then looks whether the others have the same
// bytes everywhere else.
type ruleReader struct {
	form  []byte    // expressions of a rule that was read attribute by attribute
	holes ruleHoles // where the others may differ
}

// ruleHoles are offsets of values in the expressions of a rule.
type ruleHoles struct{ source, packets, octets int }

func (r *ruleReader) read(attrs []byte) (matchRule, bool) {
	expressions, handle := attribute(attrs, unix.NFTA_RULE_EXPRESSIONS), be64(attribute(attrs, unix.NFTA_RULE_HANDLE))
	if r.isAlike(expressions) {
		return matchRule{
			source: binary.BigEndian.Uint32(expressions[r.holes.source:]),
			handle: handle,
			count:  Count{Packets: be64(expressions[r.holes.packets:][:8]), Bytes: be64(expressions[r.holes.octets:][:8])},
		}, true
	}
	rule, holes, ok := parseRule(expressions)
	if !ok {
		return matchRule{}, false
	}
	rule.handle = handle
	if rule.set == "" {
		r.form, r.holes = slices.Clone(expressions), holes
	}
	return rule, true
}

// isAlike reports whether expressions differ from the form in its holes only.
func (r *ruleReader) isAlike(expressions []byte) bool {
	if r.form == nil || len(expressions) != len(r.form) {
		return false
	}
	same := func(from, to int) bool { return bytes.Equal(expressions[from:to], r.form[from:to]) }
	h := r.holes
	first, second := min(h.packets, h.octets), max(h.packets, h.octets)
	return same(0, h.source) && same(h.source+addressLength, first) && same(first+8, second) && same(second+8, len(r.form))
}

// parseRule reads the expressions of a rule and reports whether they are exactly the four that nft makes of
// "ip saddr ADDRESS counter accept" or "ip saddr @SET counter accept". Holes are those of the former.
func parseRule(expressions []byte) (rule matchRule, holes ruleHoles, ok bool) {
	// A part of a slice ends where its memory ends, so their capacities tell where the part begins.
	offset := func(part []byte) int { return cap(expressions) - cap(part) }
	step := 0
	for _, expression := range attributes(expressions) {
		name, data := attribute(expression, unix.NFTA_EXPR_NAME), attribute(expression, unix.NFTA_EXPR_DATA)
		switch {
		case step == 0 && isText(name, "payload") && isSourceAddress(data):
		case step == 1 && isText(name, "cmp") && isEqual(data):
			value := attribute(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
			rule.source, holes.source = binary.BigEndian.Uint32(value), offset(value)
		case step == 1 && isText(name, "lookup") && isPlainLookup(data):
			rule.set = text(attribute(data, unix.NFTA_LOOKUP_SET))
		case step == 2 && isText(name, "counter"):
			octets, packets := attribute(data, unix.NFTA_COUNTER_BYTES), attribute(data, unix.NFTA_COUNTER_PACKETS)
			if len(octets) != 8 || len(packets) != 8 {
				return matchRule{}, ruleHoles{}, false
			}
			rule.count = Count{Packets: be64(packets), Bytes: be64(octets)}
			holes.packets, holes.octets = offset(packets), offset(octets)
		case step == 3 && isText(name, "immediate") && isAccept(data):
		default:
			return matchRule{}, ruleHoles{}, false
		}
		step++
	}
	if step != 4 {
		return matchRule{}, ruleHoles{}, false
	}
	return rule, holes, true
}

// isSourceAddress: load 4 bytes at offset 12 of the network header into register 1.
func isSourceAddress(payload []byte) bool {
	return isBE32(attribute(payload, unix.NFTA_PAYLOAD_DREG), unix.NFT_REG_1) &&
		isBE32(attribute(payload, unix.NFTA_PAYLOAD_BASE), unix.NFT_PAYLOAD_NETWORK_HEADER) &&
		isBE32(attribute(payload, unix.NFTA_PAYLOAD_OFFSET), sourceOffset) &&
		isBE32(attribute(payload, unix.NFTA_PAYLOAD_LEN), addressLength)
}

func isEqual(cmp []byte) bool {
	return isBE32(attribute(cmp, unix.NFTA_CMP_SREG), unix.NFT_REG_1) &&
		isBE32(attribute(cmp, unix.NFTA_CMP_OP), unix.NFT_CMP_EQ) &&
		len(attribute(cmp, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)) == addressLength
}

// isPlainLookup: of register 1, not inverted, not a map.
func isPlainLookup(lookup []byte) bool {
	flags := attribute(lookup, unix.NFTA_LOOKUP_FLAGS)
	return isBE32(attribute(lookup, unix.NFTA_LOOKUP_SREG), unix.NFT_REG_1) &&
		attribute(lookup, unix.NFTA_LOOKUP_DREG) == nil &&
		(flags == nil || isBE32(flags, 0))
}

func isAccept(immediate []byte) bool {
	return isBE32(attribute(immediate, unix.NFTA_IMMEDIATE_DREG), unix.NFT_REG_VERDICT) &&
		isBE32(attribute(immediate, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE), nfAccept)
}

// The IPv4 source address (RFC 791 §3.1), and netfilter's verdicts (linux/netfilter.h).
const (
	sourceOffset  = 12
	addressLength = 4

	nfDrop   = 0
	nfAccept = 1
)

// manyElements is from how many on a second dump takes longer than waiting before the first.
const manyElements = 10_000

// nftElements reads the elements of our nftables set, in the order of its hash, until it has read want
// different ones, for about a second and three times at least. The kernel grows the hash in the
// background while elements are added and after; a dump that meets this repeats some elements and
// leaves out others, without a mark of it.
//
// A dump that has to be repeated costs as much as loading, so the first one waits until that is over.
//
// The kernel walks the set from its beginning for each 32 KiB of a dump: 100,000 elements take 0.1 s,
// a million take 20 s, for nft list too.
func nftElements(ctx context.Context, want int) ([]uint32, error) {
	if want >= manyElements {
		if err := awaitElements(ctx); err != nil {
			return nil, err
		}
	}
	start := time.Now()
	for attempt := 1; ; attempt++ {
		elements, err := dumpElements(math.MaxInt)
		if err != nil || len(elements) == want && !hasDuplicates(elements) {
			return elements, err
		}
		if attempt >= 3 && time.Since(start) > time.Second {
			return elements, nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// awaitElements waits, for a second at most, until the first elements of a dump have stayed the same for a
// while. While the hash grows they do not: they move to the new one from the front of the old one on
// (rhashtable_rehash_table in lib/rhashtable.c).
func awaitElements(ctx context.Context) error {
	var before []uint32
	same := 0
	for start := time.Now(); time.Since(start) < time.Second; {
		first, err := dumpElements(1)
		if err != nil {
			return err
		}
		if same++; !slices.Equal(first, before) {
			same = 0
		}
		if same == 2 {
			return nil
		}
		before = first
		if err := pause(ctx, 4*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func hasDuplicates(elements []uint32) bool {
	seen := addressSet{}
	return slices.ContainsFunc(elements, func(e uint32) bool { return !seen.add(e) })
}

// errEnough ends a dump early.
var errEnough = errors.New("enough elements")

// dumpElements reads the set, or its beginning with at least so many elements.
func dumpElements(enough int) ([]uint32, error) {
	request := appendString(nil, unix.NFTA_SET_ELEM_LIST_TABLE, tableName)
	request = appendString(request, unix.NFTA_SET_ELEM_LIST_SET, setName)
	var elements []uint32
	err := dump(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETSETELEM, unix.NFPROTO_IPV4, request, func(_ uint8, attrs []byte) error {
		for _, element := range attributes(attribute(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			value := attribute(element, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)
			if len(value) != addressLength {
				return fmt.Errorf("an element has a key of %d bytes", len(value))
			}
			elements = append(elements, binary.BigEndian.Uint32(value))
		}
		if len(elements) >= enough {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil && err != errEnough {
		return nil, fmt.Errorf("read elements of set ip %s %s: %w", tableName, setName, err)
	}
	return elements, nil
}

// ipsetElements reads the members of our ipset, in the order of its hash, and its type.
func ipsetElements() (elements []uint32, typeName string, err error) {
	request := appendAttribute(nil, ipsetAttrProtocol, []byte{ipsetProtocol})
	request = appendString(request, ipsetAttrSetName, setName)
	err = dump(unix.NFNL_SUBSYS_IPSET, ipsetCmdList, unix.NFPROTO_IPV4, request, func(_ uint8, attrs []byte) error {
		if t := attribute(attrs, ipsetAttrTypeName); t != nil {
			typeName = text(t)
		}
		for _, member := range attributes(attribute(attrs, ipsetAttrADT)) {
			value := attribute(member, ipsetAttrIP, ipsetAttrIPv4)
			if len(value) != addressLength {
				return fmt.Errorf("a member is not an IPv4 address")
			}
			elements = append(elements, binary.BigEndian.Uint32(value))
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read members of ipset %s: %w", setName, err)
	}
	return elements, typeName, nil
}

// ipsetNames lists the ipsets of this network namespace.
func ipsetNames() ([]string, error) {
	request := appendAttribute(nil, ipsetAttrProtocol, []byte{ipsetProtocol})
	request = appendAttribute(request, ipsetAttrFlags, binary.BigEndian.AppendUint32(nil, ipsetFlagListSetName))
	var names []string
	err := dump(unix.NFNL_SUBSYS_IPSET, ipsetCmdList, unix.NFPROTO_IPV4, request, func(_ uint8, attrs []byte) error {
		names = append(names, text(attribute(attrs, ipsetAttrSetName)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	return names, nil
}

// nftTables lists the nftables tables of this network namespace, of all families, as "ip filter".
func nftTables() ([]string, error) {
	var tables []string
	err := dump(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, nil, func(family uint8, attrs []byte) error {
		tables = append(tables, familyName(family)+" "+text(attribute(attrs, unix.NFTA_TABLE_NAME)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	return tables, nil
}

func familyName(family uint8) string {
	switch family {
	case unix.NFPROTO_INET:
		return "inet"
	case unix.NFPROTO_IPV4:
		return "ip"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_NETDEV:
		return "netdev"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	case unix.NFPROTO_IPV6:
		return "ip6"
	}
	return fmt.Sprintf("family %d", family)
}

// A chain is an nftables chain as read from the kernel.
type chain struct {
	table, name, kind string
	base              bool // registered at a hook
	hook              uint32
	priority          int32
	drop              bool // the policy
}

// chains reads the chains of a table of family ip.
func chains(table string) ([]chain, error) {
	var list []chain
	err := dump(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, unix.NFPROTO_IPV4, nil, func(_ uint8, attrs []byte) error {
		if c := parseChain(attrs); c.table == table {
			list = append(list, c)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list chains of table ip %s: %w", table, err)
	}
	return list, nil
}

func parseChain(attrs []byte) chain {
	c := chain{
		table: text(attribute(attrs, unix.NFTA_CHAIN_TABLE)),
		name:  text(attribute(attrs, unix.NFTA_CHAIN_NAME)),
		kind:  text(attribute(attrs, unix.NFTA_CHAIN_TYPE)),
		drop:  isBE32(attribute(attrs, unix.NFTA_CHAIN_POLICY), nfDrop),
	}
	number := attribute(attrs, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_HOOKNUM)
	priority := attribute(attrs, unix.NFTA_CHAIN_HOOK, unix.NFTA_HOOK_PRIORITY)
	if len(number) == 4 && len(priority) == 4 {
		c.base = true
		c.hook, c.priority = binary.BigEndian.Uint32(number), int32(binary.BigEndian.Uint32(priority))
	}
	return c
}

// A hook is one function that the kernel calls for IPv4 packets.
type hook struct {
	number   uint32
	priority int32
	function string
}

// errNoHookList says that this kernel cannot list its hooks.
var errNoHookList = errors.New("this kernel cannot list hooks (CONFIG_NETFILTER_NETLINK_HOOK, Linux 5.14)")

// ipv4Hooks lists the hooks for IPv4 of this network namespace.
func ipv4Hooks() ([]hook, error) {
	var hooks []hook
	for number := range uint32(unix.NF_INET_NUMHOOKS) {
		request := appendAttribute(nil, hookAttrNum, binary.BigEndian.AppendUint32(nil, number))
		err := dump(unix.NFNL_SUBSYS_HOOK, hookMsgGet, unix.NFPROTO_IPV4, request, func(_ uint8, attrs []byte) error {
			priority := attribute(attrs, hookAttrPriority)
			if len(priority) != 4 {
				return fmt.Errorf("a hook has no priority")
			}
			hooks = append(hooks, hook{number, int32(binary.BigEndian.Uint32(priority)), text(attribute(attrs, hookAttrFunction))})
			return nil
		})
		if errors.Is(err, unix.EINVAL) {
			return nil, errNoHookList
		}
		if err != nil {
			return nil, fmt.Errorf("list hooks: %w", err)
		}
	}
	return hooks, nil
}
