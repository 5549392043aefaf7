package libvirt

import (
	"context"

	"github.com/rampart-bench/rampart/testbed"
)

// A wiring joins nodes to each other and to us: by bridges of the host, or by sockets of QEMU's own.
type wiring interface {
	// taps reports whether frames go through tap devices of the host's kernel. Only with them is
	// there vhost-net, more than one pair of queues, and a firewall of the host in the way.
	taps() bool
	// prepare chooses the management network and makes what machines will be plugged into.
	prepare(ctx context.Context, p *Provider, c *conn, s *state) error
	// plug is what an interface of a node is connected to: number 0 is management, links follow.
	plug(p *Provider, s state, role testbed.Role, index int) plug
	// address is where the sshd of a node that was started answers, as the host knows it.
	address(ctx context.Context, c *conn, s state, role testbed.Role) (string, error)
}

// A plug is one end of a wire. One field is set.
type plug struct {
	network string // of libvirt's
	netdev  string // what QEMU's option -netdev says of it, but for its id
}
