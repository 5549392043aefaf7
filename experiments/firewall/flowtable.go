package firewall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// What the settings make in nftables.
const (
	settingsTable = "rampart-settings"
	trackingChain = "tracking"
	offloadChain  = "offload"
	flowtableName = "fast"
	// offloadPriority is behind the rules of every engine: what they drop is not offloaded.
	offloadPriority = 10
)

// SettingsScript is what the settings load, as text for nft -f. The program itself speaks netlink; this
// is for the reader, and for the test that holds the program to it.
func SettingsScript(s Settings, interfaces [2]string) string {
	if !s.Conntrack {
		return ""
	}
	text := "table ip " + settingsTable + " {\n"
	if s.Flowtable {
		text += fmt.Sprintf("\tflowtable %s {\n\t\thook ingress priority 0; devices = { %s, %s };\n\t}\n", flowtableName, interfaces[0], interfaces[1])
	}
	text += "\tchain " + trackingChain + " {\n\t\tct state established counter\n\t}\n"
	if s.Flowtable {
		text += fmt.Sprintf("\tchain %s {\n\t\ttype filter hook forward priority %d; policy accept;\n\t\tip protocol udp counter ct state established flow add @%s\n\t}\n", offloadChain, offloadPriority, flowtableName)
	}
	return text + "}\n"
}

// track has the kernel track connections, from an empty table on. The rule that asks for it stands in
// a chain that no packet passes: the kernel registers the hooks of connection tracking for a namespace
// when any rule there speaks of it (nf_ct_netns_get), so that nothing is measured but tracking itself.
func (t *Tuning) track(ctx context.Context) error {
	if err := forgetConnections(ctx); err != nil {
		return trackingUnavailable(err)
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables connection: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: settingsTable})
	tracking := conn.AddChain(&nftables.Chain{Name: trackingChain, Table: table})
	conn.AddRule(&nftables.Rule{Table: table, Chain: tracking, Exprs: append(established(), &expr.Counter{})})
	if err := conn.Flush(); err != nil {
		return trackingUnavailable(fmt.Errorf("make table ip %s: %w", settingsTable, err))
	}
	if t.settings.Flowtable {
		return t.offload(ctx)
	}
	return nil
}

// established is "ct state established", expression by expression as nft writes it.
func established() []expr.Any {
	bit := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED)
	zero := make([]byte, 4)
	return []expr.Any{
		&expr.Ct{Register: unix.NFT_REG_1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: unix.NFT_REG_1, DestRegister: unix.NFT_REG_1, Len: 4, Mask: bit, Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: unix.NFT_REG_1, Data: zero},
	}
}

func trackingUnavailable(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return &UnavailableError{Setting: "conntrack", Reason: "the kernel lacks nft_ct or nf_conntrack_netlink: try modprobe -a nft_ct nf_conntrack_netlink, or use another kernel (" + err.Error() + ")"}
	case errors.Is(err, unix.EPERM):
		return &UnavailableError{Setting: "conntrack", Reason: "the kernel refuses access to this network namespace: run as root, or in a user namespace that owns it"}
	}
	return err
}

// offload makes the flowtable and the one rule that fills it. It offloads UDP only: what is measured,
// and not the control connection of the program that measures. A flow must be established, which is to say
// that an answer was seen. The kernel itself does not insist on that: without the condition, Linux 6.1
// took a one-way flow into the table with its third packet (seen).
func (t *Tuning) offload(ctx context.Context) error {
	if t.opts.DedicatedKernel {
		// The kernel asks for both by itself on most systems. Whether they are there is seen right below.
		_ = loadModule(ctx, "nf_flow_table_inet")
		_ = loadModule(ctx, "nft_flow_offload")
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables connection: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: settingsTable}
	conn.AddFlowtable(&nftables.Flowtable{Table: table, Name: flowtableName, Devices: t.opts.Interfaces[:]})
	accept := nftables.ChainPolicyAccept
	chain := conn.AddChain(&nftables.Chain{
		Name: offloadChain, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(offloadPriority), Policy: &accept,
	})
	udp := []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: protocolOffset, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{unix.IPPROTO_UDP}},
		&expr.Counter{},
	}
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: slices.Concat(udp, established(), []expr.Any{&expr.FlowOffload{Name: flowtableName}})})
	err = conn.Flush()
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return &UnavailableError{Setting: "flowtable", Reason: "this kernel has no flowtable (CONFIG_NF_FLOW_TABLE, CONFIG_NF_FLOW_TABLE_INET and CONFIG_NFT_FLOW_OFFLOAD): try modprobe -a nf_flow_table_inet nft_flow_offload, or measure in virtual machines (" + err.Error() + ")"}
	case err != nil:
		return fmt.Errorf("make flowtable: %w", err)
	}
	return nil
}

// protocolOffset is where the protocol stands in the IPv4 header (RFC 791 §3.1).
const protocolOffset = 9

// untrack removes the table and waits until the kernel has stopped tracking; then it empties the
// connection table, so that no later flow meets an entry of this one.
func (t *Tuning) untrack(ctx context.Context) error {
	if err := deleteTable(settingsTable); err != nil {
		return err
	}
	for deadline := time.Now().Add(restoreTime); ; {
		tracking, err := isTracking()
		if err != nil {
			return err
		}
		// One who goes on tracking is not us. The checks say so.
		if !tracking || time.Now().After(deadline) {
			break
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return forgetConnections(ctx)
}

// offloadCounter reads the counter of the rule that offloads.
func offloadCounter() (packets uint64, err error) {
	request := appendString(nil, unix.NFTA_RULE_TABLE, settingsTable)
	request = appendString(request, unix.NFTA_RULE_CHAIN, offloadChain)
	found := false
	err = dump(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, unix.NFPROTO_IPV4, request, func(_ uint8, attrs []byte) error {
		for _, expression := range attributes(attribute(attrs, unix.NFTA_RULE_EXPRESSIONS)) {
			if isText(attribute(expression, unix.NFTA_EXPR_NAME), "counter") {
				packets += be64(attribute(expression, unix.NFTA_EXPR_DATA, unix.NFTA_COUNTER_PACKETS))
				found = true
			}
		}
		return nil
	})
	if err == nil && !found {
		err = unix.ENOENT
	}
	if err != nil {
		return 0, fmt.Errorf("read counter of chain ip %s %s: %w", settingsTable, offloadChain, err)
	}
	return packets, nil
}

// Attributes of NFT_MSG_GETFLOWTABLE, linux/netfilter/nf_tables.h, which x/sys/unix does not have.
const (
	flowtableAttrTable   = 1
	flowtableAttrHook    = 3
	flowtableHookDevices = 3
)

// flowtableDevices are the interfaces that our flowtable takes packets from, in the order of their names.
func flowtableDevices() ([]string, error) {
	var names []string
	err := dump(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETFLOWTABLE, unix.NFPROTO_IPV4, nil, func(_ uint8, attrs []byte) error {
		if isText(attribute(attrs, flowtableAttrTable), settingsTable) {
			for _, device := range attributes(attribute(attrs, flowtableAttrHook, flowtableHookDevices)) {
				names = append(names, text(device))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read flowtable: %w", err)
	}
	slices.Sort(names)
	return names, nil
}
