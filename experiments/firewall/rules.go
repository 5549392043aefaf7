package firewall

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules of a linear look-up are sent by the code in this file. google/nftables makes their
// expressions, once; its own AddRule makes the kernel echo every rule, and with that 10,000 rules took
// half as long again as nft -f (measured), and need a receive buffer that an ordinary user cannot get.

// mostBytes is the size of a transaction where the socket's buffer may be that large: about 10,000
// rules. The kernel copies the whole chain at every commit, so fewer and larger ones are better.
const mostBytes = 2 << 20

// loadRules appends one rule an entry to the forward chain, in transactions that fit the socket.
func loadRules(ctx context.Context, entries []uint32) error {
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	room, err := growSendBuffer(fd)
	if err != nil {
		return err
	}
	attrs, hole, err := ruleTemplate()
	if err != nil {
		return err
	}
	size := max(1, room/(unix.NLMSG_HDRLEN+4+len(attrs))-2)
	done := 0
	for chunk := range slices.Chunk(entries, size) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := send(fd, ruleBatch(chunk, attrs, hole)); err != nil {
			return fmt.Errorf("send rules %d to %d: %w", done+1, done+len(chunk), err)
		}
		// Nothing is answered but errors, and the acknowledgement of the last rule.
		if err := receive(fd, func(uint8, []byte) error { return nil }); err != nil {
			return fmt.Errorf("load rules %d to %d: %w", done+1, done+len(chunk), err)
		}
		done += len(chunk)
	}
	return nil
}

// growSendBuffer returns how many bytes may be sent at once. Without CAP_NET_ADMIN in the initial user
// namespace the limit is net.core.wmem_max.
func growSendBuffer(fd int) (int, error) {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, mostBytes)
	if errors.Is(err, unix.EPERM) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, mostBytes)
	}
	if err != nil {
		return 0, fmt.Errorf("enlarge netlink buffer: %w", err)
	}
	granted, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		return 0, fmt.Errorf("read size of netlink buffer: %w", err)
	}
	return granted / 2, nil // the kernel reports twice what it was asked for (socket(7))
}

// ruleTemplate is the attributes of one rule, and where in them its address belongs.
func ruleTemplate() (attrs []byte, hole int, err error) {
	mark := []byte{0xde, 0xad, 0xbe, 0xef}
	var list []byte
	for _, e := range acceptSource(&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: mark}) {
		data, err := expr.Marshal(unix.NFPROTO_IPV4, e)
		if err != nil {
			return nil, 0, fmt.Errorf("encode rule: %w", err)
		}
		list = appendAttribute(list, unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
	}
	attrs = appendString(nil, unix.NFTA_RULE_TABLE, tableName)
	attrs = appendString(attrs, unix.NFTA_RULE_CHAIN, "forward")
	attrs = appendAttribute(attrs, unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, list)
	return attrs, bytes.Index(attrs, mark), nil
}

// ruleBatch is one transaction. Its last rule asks for an acknowledgement.
func ruleBatch(entries []uint32, attrs []byte, hole int) []byte {
	const newRule = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE
	b := make([]byte, 0, (unix.NLMSG_HDRLEN+4+len(attrs))*(len(entries)+1))
	b = appendMessage(b, unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	for i, e := range entries {
		flags := unix.NLM_F_CREATE | unix.NLM_F_APPEND
		if i == len(entries)-1 {
			flags |= unix.NLM_F_ACK
		}
		start := len(b) + unix.NLMSG_HDRLEN + 4
		b = appendMessage(b, newRule, flags, i+1, unix.NFPROTO_IPV4, 0, attrs)
		binary.BigEndian.PutUint32(b[start+hole:], e)
	}
	return appendMessage(b, unix.NFNL_MSG_BATCH_END, 0, len(entries)+1, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
}
