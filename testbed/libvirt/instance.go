package libvirt

import (
	"context"
	"errors"
	"fmt"
	"time"

	rpc "github.com/digitalocean/go-libvirt"
)

// instance is a domain that we started, with its console.
type instance struct {
	rpc.Domain
	control     func(context.Context) (*conn, error)
	keeper      *conn // holds the domain alive; nil when the domain outlives us
	console     *console
	stopConsole func()
}

// createGrace is how long a domain that is just being created may go on with it when ctx ends: so
// long that it can usually be removed by its name, and short enough for somebody who pressed Ctrl-C.
const createGrace = 3 * time.Second

// startDomain creates a transient domain, opens its console before its first instruction, and lets
// it run. With autodestroy libvirt removes the domain when the connection it was created on ends,
// which it does when this process does. That connection is the domain's own: no call that goes
// wrong elsewhere, and no other domain, can take it down.
func (p *Provider) startDomain(ctx context.Context, m machine, autodestroy bool) (_ *instance, err error) {
	doc, err := m.xml().Marshal()
	if err != nil {
		return nil, fmt.Errorf("write domain %s: %w", m.name, err)
	}
	keeper, err := dial(ctx, p.endpoint)
	if err != nil {
		return nil, err
	}
	d := &instance{control: p.control, keeper: keeper}
	flags := rpc.DomainStartPaused
	if autodestroy {
		flags |= rpc.DomainStartAutodestroy
	}
	patient, cancel := outlast(ctx, createGrace)
	defer cancel()
	err = keeper.do(patient, createLimit, "start domain "+m.name, func(l *rpc.Libvirt) (err error) {
		d.Domain, err = l.DomainCreateXML(doc, flags)
		return err
	})
	if err != nil {
		keeper.sock.Close()
		return nil, p.explainStart(ctx, err)
	}
	if d.console, d.stopConsole, err = openConsole(ctx, p.endpoint, d.Domain); err == nil {
		err = keeper.do(ctx, callLimit, "resume domain "+m.name, func(l *rpc.Libvirt) error { return l.DomainResume(d.Domain) })
	}
	if err != nil {
		return nil, errors.Join(err, d.discard(ctx))
	}
	if !autodestroy {
		keeper.close()
		d.keeper = nil
	}
	return d, nil
}

// outlast returns a context that ends that much after ctx does.
func outlast(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) })
	})
	return longer, func() { stop(); cancel(nil) }
}

// release lets go of the connections; a domain with autodestroy ends with them.
func (d *instance) release() {
	if d.stopConsole != nil {
		d.stopConsole()
	}
	if d.keeper != nil {
		d.keeper.close()
	}
}

// discard removes the domain, even when ctx is over.
func (d *instance) discard(ctx context.Context) error {
	ctx, cancel := cleanupContext(ctx)
	defer cancel()
	defer d.release()
	c, err := d.control(ctx)
	if err != nil {
		return err
	}
	return destroyDomain(ctx, c, d.Domain)
}

// destroyDomain stops a domain at once; a transient one is then gone.
func destroyDomain(ctx context.Context, c *conn, d rpc.Domain) error {
	err := c.do(ctx, callLimit, "remove domain "+d.Name, func(l *rpc.Libvirt) error {
		err := l.DomainDestroyFlags(d, rpc.DomainDestroyRemoveLogs)
		if isCode(err, rpc.ErrInvalidArg) { // before libvirt 8.3
			return l.DomainDestroy(d)
		}
		return err
	})
	if isCode(err, rpc.ErrOperationInvalid) { // it stopped by itself meanwhile
		return nil
	}
	return ignoreMissing(err)
}

// domainState is what a domain does, in a word.
func domainState(ctx context.Context, c *conn, d rpc.Domain) (string, error) {
	n, err := ask(ctx, c, "ask for the state of "+d.Name, func(l *rpc.Libvirt) (now [2]int32, err error) {
		now[0], now[1], err = l.DomainGetState(d, 0)
		return now, err
	})
	if isCode(err, rpc.ErrNoDomain) {
		return stateGone, nil
	}
	if err != nil {
		return "", err
	}
	state, reason := rpc.DomainState(n[0]), rpc.DomainPausedReason(n[1])
	if state == rpc.DomainPaused && reason == rpc.DomainPausedIoerror {
		return stateHalted, nil
	}
	if word, ok := stateWords[state]; ok {
		return word, nil
	}
	return fmt.Sprintf("state %d", state), nil
}

const (
	stateRunning = "running"
	statePaused  = "paused"
	stateGone    = "gone"
	// stateHalted is what QEMU makes of a machine whose write to its disk finds no space.
	stateHalted = "halted, because its disk cannot be written (is the storage pool full?)"
)

var stateWords = map[rpc.DomainState]string{
	rpc.DomainRunning:     stateRunning,
	rpc.DomainBlocked:     stateRunning,
	rpc.DomainPaused:      statePaused,
	rpc.DomainShutdown:    "stopping",
	rpc.DomainShutoff:     stateGone,
	rpc.DomainCrashed:     "crashed",
	rpc.DomainPmsuspended: "suspended",
}

func listDomains(ctx context.Context, c *conn) ([]rpc.Domain, error) {
	return ask(ctx, c, "list domains", func(l *rpc.Libvirt) ([]rpc.Domain, error) {
		domains, _, err := l.ConnectListAllDomains(1, 0)
		return domains, err
	})
}

// cleanupLimit is how long removing what was made may take.
const cleanupLimit = 60 * time.Second

// cleanupContext is for removal, which must be done most of all when ctx is over.
func cleanupContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
}
