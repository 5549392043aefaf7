package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	rpc "github.com/digitalocean/go-libvirt"

	"github.com/rampart-bench/rampart/testbed"
)

// sockets is the wiring of a libvirt that may not make bridges. A link is two Unix datagram sockets, one
// that each QEMU reads and the other writes to: every frame is a datagram, so that none is merged, split
// or torn, and none is lost while its reader is slow. On management, QEMU itself speaks TCP for the node
// (user-mode networking): a port of loopback is the node's port 22, and the node reaches nobody.
//
// Against UDP over loopback, which libvirt does know, a datagram costs a third of the processor time, and
// nothing is lost where UDP lost 18 to 53 % of a burst (60 and 1,514 bytes, on Linux 6.18). A Unix stream, with the
// length before each frame, costs a fifth less still; but QEMU 7.2 does not connect one again when the
// machine at the other end was renewed. libvirt 9.0 knows neither kind, nor how to forward a port without
// passt, so all this is QEMU's own options in the domain.
type sockets struct{}

var _ wiring = sockets{}

func (sockets) taps() bool { return false }

// maxSocketPath is what fits into an address of a Unix socket (unix(7)), in bytes.
const maxSocketPath = 107

func (w sockets) prepare(_ context.Context, p *Provider, _ *conn, s *state) error {
	subnet, ok := freeSubnet(s.Ident, linkPrefixes(s.Spec))
	if !ok {
		return fmt.Errorf("choose management network: the links cover all of %v: give one of them another network", managementPools)
	}
	s.Management = subnet
	if path := w.path(p, *s, 0, testbed.Sender); len(path) > maxSocketPath {
		return &UnavailableError{"the address of a socket has room for " + fmt.Sprint(maxSocketPath) + " bytes, and this one has more: " + path,
			"set XDG_STATE_HOME to a folder with a shorter name", nil}
	}
	return nil
}

// path is the socket from which role reads the frames of that link.
func (sockets) path(p *Provider, s state, link int, role testbed.Role) string {
	return filepath.Join(p.stateFolder(s.Ident), fmt.Sprint("l", link, "n", roleNumber(role)))
}

func (w sockets) plug(p *Provider, s state, role testbed.Role, index int) plug {
	if index == 0 {
		return plug{netdev: managementNetdev(s, role)}
	}
	l := s.Spec.Links[index-1]
	peer := l.Nodes[0]
	if peer == role {
		peer = l.Nodes[1]
	}
	return plug{netdev: fmt.Sprintf("dgram,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s",
		escapeComma(w.path(p, s, index-1, role)), escapeComma(w.path(p, s, index-1, peer)))}
}

// escapeComma writes a value as QEMU's options want it.
func escapeComma(value string) string { return strings.ReplaceAll(value, ",", ",,") }

// managementNetdev has QEMU choose the port: it alone can do that without a race.
func managementNetdev(s state, role testbed.Role) string {
	first := s.Management.Masked().Addr().Next()
	node := managementAddress(s.Management, role).Addr()
	last := managementAddress(s.Management, testbed.Receiver).Addr().Next()
	return fmt.Sprintf("user,restrict=on,ipv6=off,net=%s,host=%s,dns=%s,dhcpstart=%s,hostfwd=tcp:127.0.0.1:0-%s:22", s.Management.Masked(), first, last, node, node)
}

func (sockets) address(ctx context.Context, c *conn, s state, role testbed.Role) (string, error) {
	name := s.Ident.domain(role)
	text, err := ask(ctx, c, "ask QEMU for the port of "+name, func(l *rpc.Libvirt) (string, error) {
		d, err := l.DomainLookupByName(name)
		if err != nil {
			return "", err
		}
		return l.QEMUDomainMonitorCommand(d, "info usernet", monitorHuman)
	})
	if err != nil {
		return "", err
	}
	port, err := parseForward(text)
	if err != nil {
		return "", fmt.Errorf("ask QEMU for the port of %s: %w", name, err)
	}
	return net.JoinHostPort("127.0.0.1", port), nil
}

// monitorHuman is VIR_DOMAIN_QEMU_MONITOR_COMMAND_HMP: the command is one for people.
const monitorHuman = 1

// parseForward finds the port that is forwarded to a node in what QEMU says of its user-mode network
// (slirp_connection_info of libslirp).
func parseForward(text string) (port string, err error) {
	for line := range strings.Lines(text) {
		// Protocol[State] FD Source-Address Port …
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[0] != "TCP[HOST_FORWARD]" {
			continue
		}
		port, err := strconv.ParseUint(fields[3], 10, 16)
		if err != nil || port == 0 {
			return "", fmt.Errorf("it forwards %q", fields[3])
		}
		return strconv.FormatUint(port, 10), nil
	}
	return "", errors.New("it forwards none")
}
