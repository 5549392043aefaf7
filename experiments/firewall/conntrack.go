package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Messages, attributes and status bits of linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h,
// which x/sys/unix does not have.
const (
	ctMsgGet    = 1
	ctMsgDelete = 2

	ctAttrTupleOrig = 1
	ctAttrStatus    = 3
	ctTupleIP       = 1
	ctTupleProto    = 2
	ctIPv4Source    = 1
	ctIPv4Target    = 2
	ctProtoNumber   = 1
	ctProtoSource   = 2 // port
	ctProtoTarget   = 3

	statusOffload = 1 << 14 // IPS_OFFLOAD
)

// A tracked connection, as the packet that began it: addresses, and ports where it has some.
type tracked struct {
	source, target         uint32
	protocol               uint8
	sourcePort, targetPort uint16
	offloaded              bool // it is, or was, in a flowtable
}

// isTrackable reports whether the kernel has connection tracking in it. Where it does not, there is
// nothing to ask, and asking would load it.
func isTrackable() bool {
	_, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count")
	return err == nil
}

// connections calls each with every tracked IPv4 connection of this network namespace.
func connections(each func(tracked)) error {
	if !isTrackable() {
		return nil
	}
	err := dump(unix.NFNL_SUBSYS_CTNETLINK, ctMsgGet, unix.NFPROTO_IPV4, nil, func(_ uint8, attrs []byte) error {
		if c, ok := parseTracked(attrs); ok {
			each(c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list tracked connections: %w", err)
	}
	return nil
}

// parseTracked reads one connection, and reports whether it is one of IPv4.
func parseTracked(attrs []byte) (c tracked, ok bool) {
	tuple := attribute(attrs, ctAttrTupleOrig)
	source, target := attribute(tuple, ctTupleIP, ctIPv4Source), attribute(tuple, ctTupleIP, ctIPv4Target)
	number := attribute(tuple, ctTupleProto, ctProtoNumber)
	if len(source) != addressLength || len(target) != addressLength || len(number) != 1 {
		return tracked{}, false
	}
	port := func(kind int) uint16 {
		if b := attribute(tuple, ctTupleProto, kind); len(b) == 2 {
			return binary.BigEndian.Uint16(b)
		}
		return 0
	}
	c = tracked{
		source: binary.BigEndian.Uint32(source), target: binary.BigEndian.Uint32(target), protocol: number[0],
		sourcePort: port(ctProtoSource), targetPort: port(ctProtoTarget),
	}
	if status := attribute(attrs, ctAttrStatus); len(status) == 4 {
		c.offloaded = binary.BigEndian.Uint32(status)&statusOffload != 0
	}
	return c, true
}

// between counts the tracked connections between two addresses, and how many of them are offloaded.
func between(a, b netip.Addr) (all, offloaded int, err error) {
	err = connections(func(c tracked) {
		if c.source == key(a) && c.target == key(b) || c.source == key(b) && c.target == key(a) {
			all++
			if c.offloaded {
				offloaded++
			}
		}
	})
	return all, offloaded, err
}

// forgetConnections empties the connection table of this network namespace. The kernel skips those that
// are in a flowtable; where that was just deleted they are let go within moments, and are asked for again.
func forgetConnections(ctx context.Context) error {
	for deadline := time.Now().Add(2 * time.Second); ; {
		if !isTrackable() {
			return nil
		}
		if err := request(unix.NFNL_SUBSYS_CTNETLINK, ctMsgDelete, unix.NFPROTO_IPV4, nil); err != nil {
			return fmt.Errorf("empty table of tracked connections: %w", err)
		}
		left := 0
		if err := connections(func(c tracked) {
			if c.offloaded {
				left++
			}
		}); err != nil || left == 0 || time.Now().After(deadline) {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// request sends one nfnetlink request that is answered by an acknowledgement only.
func request(subsystem, message int, family uint8, attrs []byte) error {
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := send(fd, appendMessage(nil, subsystem<<8|message, unix.NLM_F_ACK, 0, family, 0, attrs)); err != nil {
		return err
	}
	return receive(fd, func(uint8, []byte) error { return nil })
}

// isTracking finds out whether connections of this network namespace are tracked: it sends a datagram
// to itself and looks whether the kernel took note. That works on every kernel, also on those that
// cannot list their hooks.
func isTracking() (bool, error) {
	if !isTrackable() {
		return false, nil
	}
	before, err := trackedCount()
	if err != nil {
		return false, err
	}
	// Nothing has to listen at the port: tracking comes first.
	conn, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: discardPort})
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte{0})
	}
	if err != nil {
		return false, fmt.Errorf("send a datagram over lo, to see whether it is tracked: %w", err)
	}
	port := uint16(conn.LocalAddr().(*net.UDPAddr).Port)
	found := false
	err = connections(func(c tracked) {
		found = found || c.protocol == unix.IPPROTO_UDP && c.sourcePort == port && c.targetPort == discardPort
	})
	if errors.Is(err, unix.EINVAL) { // a kernel that tracks and cannot tell what
		after, err := trackedCount()
		return after > before, err
	}
	return found, err
}

// discardPort is the port of RFC 863.
const discardPort = 9

func trackedCount() (int, error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return 0, fmt.Errorf("count tracked connections: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
