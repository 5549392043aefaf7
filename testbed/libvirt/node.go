package libvirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	rpc "github.com/digitalocean/go-libvirt"
	xssh "golang.org/x/crypto/ssh"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/provision/ssh"
	"github.com/rampart-bench/rampart/testbed"
)

// running is a testbed that is up.
type running struct {
	provider *Provider
	state    state
	key      ssh.Key
	nodes    []*node // by roleNumber

	stop    context.CancelFunc // ends the watch
	watched sync.WaitGroup
}

var (
	_ testbed.Testbed = (*running)(nil)
	_ testbed.Renewer = (*running)(nil)
)

func (p *Provider) newRunning(s state) (*running, error) {
	tb := &running{provider: p, state: s, stop: func() {}}
	for _, role := range testbed.Roles() {
		tb.nodes = append(tb.nodes, &node{tb: tb, role: role})
	}
	return tb, nil
}

// Name implements [testbed.Testbed].
func (tb *running) Name() string { return tb.state.Ident.Name }

// Features implements [testbed.Testbed].
func (tb *running) Features() testbed.Features { return tb.state.Features }

// Node implements [testbed.Testbed].
func (tb *running) Node(role testbed.Role) testbed.Node { return tb.node(role) }

func (tb *running) node(role testbed.Role) *node { return tb.nodes[roleNumber(role)] }

// Close implements [testbed.Testbed]. The domains stay: the provider holds them.
func (tb *running) Close() error {
	tb.stop()
	tb.watched.Wait()
	for _, n := range tb.nodes {
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
		n.disconnect()
	}
	return nil
}

// Renew implements [testbed.Renewer].
func (tb *running) Renew(ctx context.Context, role testbed.Role) error {
	if err := tb.renew(ctx, role); err != nil {
		return fmt.Errorf("renew node %s of testbed %s: %w", role, tb.Name(), err)
	}
	return nil
}

func (tb *running) renew(ctx context.Context, role testbed.Role) error {
	p := tb.provider
	// Nodes may be renewed side by side, but not while the testbed comes or goes.
	unlock, err := p.lock(ctx, lockName(tb.Name()), shared)
	if err != nil {
		return err
	}
	defer unlock()
	unlockNode, err := p.lock(ctx, "node-"+tb.Name()+"-"+string(role), exclusive)
	if err != nil {
		return err
	}
	defer unlockNode()
	c, err := p.control(ctx)
	if err != nil {
		return err
	}
	n := tb.node(role)
	n.disconnect()
	name := tb.state.Ident.domain(role)
	if err := destroyByName(ctx, c, name); err != nil {
		return err
	}
	p.forget(func(kept string) bool { return kept == name })
	pool, err := p.openPool(ctx, c)
	if err != nil {
		return err
	}
	overlay, err := lookupVolume(ctx, c, pool, tb.state.Ident.overlay(role))
	if err == nil {
		err = deleteVolume(ctx, c, overlay.StorageVol)
	}
	if ignoreMissing(err) != nil {
		return err
	}
	return p.explainSpace(n.boot(ctx, c, pool))
}

func destroyByName(ctx context.Context, c *conn, name string) error {
	d, err := ask(ctx, c, "find domain "+name, func(l *rpc.Libvirt) (rpc.Domain, error) { return l.DomainLookupByName(name) })
	if err != nil {
		return ignoreMissing(err)
	}
	return destroyDomain(ctx, c, d)
}

// node is one virtual machine of a testbed.
type node struct {
	tb   *running
	role testbed.Role

	program bool // the node has this program; known once it was booted

	dialing sync.Mutex // one dials, the others wait for it

	mu     sync.Mutex
	client *ssh.Client
	keeper *conn                   // keeps the machine alive, if something does
	closed bool                    // the testbed was let go of
	giveUp context.CancelCauseFunc // while it boots

	facts map[string]string // what its machine is, as read back when it booted; for the manifest
}

var (
	_ testbed.Node     = (*node)(nil)
	_ testbed.Answerer = (*node)(nil)
)

// boot makes the node's overlay from the base, starts its domain with what was made for it before,
// and waits until it can be used as it should be.
func (n *node) boot(ctx context.Context, c *conn, pool rpc.StoragePool) error {
	p, s := n.tb.provider, n.tb.state
	seed, err := lookupVolume(ctx, c, pool, s.Ident.seed(n.role))
	if err != nil {
		return err
	}
	overlay, err := createVolume(ctx, c, pool, overlayVolume(s.Ident.overlay(n.role), s.Base))
	if err != nil {
		return err
	}
	m, err := p.nodeMachine(s, n.role, overlay.path, seed.path)
	if err != nil {
		return err
	}
	started := time.Now()
	d, err := p.startDomain(ctx, m, s.Autodestroy)
	if err != nil {
		return fmt.Errorf("start node %s: %w", n.role, err)
	}
	p.keep(d)
	n.tie(d.keeper)
	config, err := n.sshConfig(ctx)
	if err != nil {
		return err
	}
	waiting, done := n.whileRunning(ctx)
	defer done()
	var client *ssh.Client
	if err := meet(waiting, p.log, n.role, d.console, p.requirements(s, n.role, d, config, &client)); err != nil {
		return err
	}
	n.use(client)
	if err := n.gone(ctx); err != nil {
		return err
	}
	p.log.Info("node is up", "testbed", n.tb.Name(), "node", string(n.role), "took", time.Since(started).Round(time.Millisecond))
	if err := n.verify(ctx); err != nil {
		return err
	}
	// Since the boot began, the connection may have been given up and made anew.
	if c, err = p.control(ctx); err != nil {
		return err
	}
	return n.readBack(ctx, c, m, d.Domain)
}

// whileRunning returns a context that also ends when the machine, which boots, is halted.
func (n *node) whileRunning(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.giveUp = cancel
	return ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.giveUp = nil
		cancel(nil)
	}
}

// tie ends the connection to the node when libvirt lets go of the connection that keeps its machine
// alive: libvirt then ends the machine, and may not be there to say so.
func (n *node) tie(keeper *conn) {
	n.mu.Lock()
	n.keeper = keeper
	n.mu.Unlock()
	if keeper == nil {
		return
	}
	go func() {
		<-keeper.lost()
		n.mu.Lock()
		current := n.keeper == keeper
		n.mu.Unlock()
		if current {
			n.disconnect()
		}
	}()
}

// errUntied is why a node counts as gone though nobody has looked.
var errUntied = fmt.Errorf("%w: libvirt closed the connection that kept it alive: was libvirt stopped, or its host?", ErrGone)

// letGo is closed once libvirt has closed the connection that keeps the machine alive; nil if there is none.
func (n *node) letGo() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keeper == nil {
		return nil
	}
	return n.keeper.lost()
}

func (n *node) untied() bool {
	select {
	case <-n.letGo():
		return true
	default:
		return false
	}
}

func (n *node) sshConfig(ctx context.Context) (ssh.Config, error) {
	p, s := n.tb.provider, n.tb.state
	hostKey, _, _, _, err := xssh.ParseAuthorizedKey([]byte(s.HostKeys[n.role]))
	if err != nil {
		return ssh.Config{}, fmt.Errorf("read host key of node %s: %w", n.role, err)
	}
	c, err := p.control(ctx)
	if err != nil {
		return ssh.Config{}, err
	}
	addr, err := p.endpoint.wiring.address(ctx, c, s, n.role)
	if err != nil {
		return ssh.Config{}, err
	}
	return ssh.Config{
		Addr:        addr,
		Key:         n.tb.key.Signer,
		HostKey:     hostKey,
		Grace:       time.Duration(pace(s.KVM)) * 5 * time.Second,
		Log:         logWriter{p.log.With("testbed", n.tb.Name(), "node", string(n.role))},
		DialContext: p.endpoint.host.dial,
	}, nil
}

// verify reads back from the node what its links are like, and whether it has the program. It asks once:
// under emulation every command costs a tenth of a second and more.
func (n *node) verify(ctx context.Context) error {
	argv := []string{"sh", "-c", readNode, programFolder + "/" + images.ProgramName}
	var links []testbed.LinkSpec
	for _, l := range n.tb.state.Spec.Links {
		if l.Address(n.role).IsValid() {
			links = append(links, l)
			argv = append(argv, l.Name)
		}
	}
	out, err := n.patientOutput(ctx, argv...)
	if err != nil {
		return fmt.Errorf("check node %s: %w", n.role, err)
	}
	parts := strings.Split(out, nodePart)
	if len(parts) != len(links)+1 {
		return fmt.Errorf("check node %s: it told of %d links, not of %d", n.role, len(parts)-1, len(links))
	}
	for i, l := range links {
		if err := checkLink(l, parts[i]); err != nil {
			return fmt.Errorf("check node %s: link %s: %w", n.role, l.Name, err)
		}
	}
	n.program = strings.TrimSpace(parts[len(links)]) == hasProgram
	return nil
}

// outputTries is how often a command of our own is started on a node whose connection breaks.
const outputTries = 3

// patientOutput is output that tries again on a new connection when one breaks though the machine runs:
// seen right after a boot, at a load of twenty. The command must be one that can be run twice.
func (n *node) patientOutput(ctx context.Context, argv ...string) (string, error) {
	for try := 1; ; try++ {
		out, err := n.output(ctx, argv...)
		var status interface{ ExitCode() int }
		if err == nil || try == outputTries || errors.As(err, &status) || errors.Is(err, ErrGone) || ctx.Err() != nil {
			return out, err
		}
		n.tb.provider.log.Warn("the connection to a node broke; trying again", "testbed", n.tb.Name(), "node", string(n.role), "cause", err)
		n.disconnect()
	}
}

// output runs a command and returns what it writes.
func (n *node) output(ctx context.Context, argv ...string) (string, error) {
	return output(ctx, n, argv...)
}

// A starter runs commands: a node, or the connection to one.
type starter interface {
	Start(ctx context.Context, argv ...string) (testbed.Conn, error)
}

func output(ctx context.Context, on starter, argv ...string) (string, error) {
	c, err := on.Start(ctx, argv...)
	if err != nil {
		return "", err
	}
	if err := c.Close(); err != nil {
		return "", errors.Join(err, c.Wait())
	}
	var out bytes.Buffer
	_, err = io.Copy(&out, c)
	if err := errors.Join(c.Wait(), err); err != nil {
		return "", fmt.Errorf("run %s: %w", strings.Join(argv, " "), err)
	}
	return out.String(), nil
}

// connection returns the client, and makes one if there is none: after Attach, and after one broke.
func (n *node) connection(ctx context.Context) (*ssh.Client, error) {
	if client, err := n.current(); client != nil || err != nil {
		return client, err
	}
	if err := n.gone(ctx); err != nil { // dialling a machine that is not there only times out
		return nil, err
	}
	n.dialing.Lock()
	defer n.dialing.Unlock()
	if client, err := n.current(); client != nil || err != nil {
		return client, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTry)
	defer cancel()
	config, err := n.sshConfig(ctx)
	if err != nil {
		return nil, err
	}
	client, err := ssh.Dial(ctx, config)
	if err != nil {
		return nil, err
	}
	n.use(client)
	return client, nil
}

// use makes client the connection to the node until it ends; the next one who needs it then dials.
func (n *node) use(client *ssh.Client) {
	n.mu.Lock()
	n.client = client
	n.mu.Unlock()
	go func() {
		client.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.client == client {
			n.client = nil
		}
	}()
}

// current is the client if there is one.
func (n *node) current() (*ssh.Client, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, testbed.ErrClosed
	}
	return n.client, nil
}

// disconnect ends the connection, and with it every command that runs over it.
func (n *node) disconnect() {
	n.mu.Lock()
	client := n.client
	n.client = nil
	n.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// Put implements [testbed.Node].
func (n *node) Put(ctx context.Context, path string, mode fs.FileMode, content io.Reader) error {
	client, err := n.connection(ctx)
	if err == nil {
		err = client.Put(ctx, path, mode, content)
	}
	return n.explain(ctx, err)
}

// Start implements [testbed.Node].
func (n *node) Start(ctx context.Context, argv ...string) (testbed.Conn, error) {
	client, err := n.connection(ctx)
	if err != nil {
		return nil, n.explain(ctx, err)
	}
	c, err := client.Start(ctx, argv...)
	if err != nil {
		return nil, n.explain(ctx, err)
	}
	return &command{Conn: c, node: n}, nil
}

// Answers implements [testbed.Answerer].
func (n *node) Answers(ctx context.Context) error {
	client, err := n.connection(ctx)
	if err == nil {
		err = client.Answers(ctx)
	}
	return n.explain(ctx, err)
}

// command is a running command whose end may be that of its machine.
type command struct {
	testbed.Conn
	node *node
}

// Wait returns an error that wraps ErrGone when the command ended with its machine.
func (c *command) Wait() error {
	err := c.Conn.Wait()
	var status interface{ ExitCode() int }
	if err == nil || errors.As(err, &status) {
		return err
	}
	return c.node.explain(context.Background(), err)
}

// goneLimit is how long finding out why something failed may take. When it passes, the connection that
// others use too is closed, so it is long for a host that has much else to do.
const goneLimit = 15 * time.Second

// explain adds to an error of the connection that its machine is gone, if it is.
func (n *node) explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrGone) || errors.Is(err, testbed.ErrClosed) {
		return fmt.Errorf("node %s: %w", n.role, err)
	}
	if _, closed := n.current(); closed != nil {
		return fmt.Errorf("node %s: %w", n.role, closed)
	}
	if gone := n.gone(ctx); gone != nil {
		return fmt.Errorf("node %s: %w (%w)", n.role, gone, err)
	}
	return fmt.Errorf("node %s: %w", n.role, err)
}

// gone returns an error that wraps ErrGone if the node's machine does not run. When the host falls silent,
// connections end one after the other: that the machine is not kept alive any more may turn out while somebody
// tries to ask.
func (n *node) gone(ctx context.Context) error {
	if n.untied() {
		return errUntied
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goneLimit)
	defer cancel()
	go func() {
		select {
		case <-n.letGo():
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := n.look(ctx); err != nil || !n.untied() {
		return err
	}
	return errUntied
}

// look asks libvirt, and returns an error that wraps ErrGone if it says that the machine does not run.
func (n *node) look(ctx context.Context) error {
	name := n.tb.state.Ident.domain(n.role)
	c, err := n.tb.provider.control(ctx)
	if err != nil {
		return nil // not known; the error that led here is the better one
	}
	d, err := ask(ctx, c, "find domain "+name, func(l *rpc.Libvirt) (rpc.Domain, error) { return l.DomainLookupByName(name) })
	if isCode(err, rpc.ErrNoDomain) {
		return fmt.Errorf("%w: there is no domain %s: was it destroyed, or did its kernel panic?", ErrGone, name)
	}
	if err != nil {
		return nil
	}
	switch word, err := domainState(ctx, c, d); {
	case err != nil || word == stateRunning:
		return nil
	case word == statePaused || word == stateHalted:
		return fmt.Errorf("%w: %w: domain %s is %s", ErrGone, errHalted, name, word)
	default:
		return fmt.Errorf("%w: domain %s is %s", ErrGone, name, word)
	}
}

// errHalted says that a machine is there and does not run, so that it will not end by itself either.
var errHalted = errors.New("it stands still")

// watch ends the connections to a node as soon as its machine stops: a machine that is destroyed
// says nothing on its connections, and those who read from them would wait for ever.
func (tb *running) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	tb.stop = cancel
	tb.watched.Go(func() {
		for ctx.Err() == nil {
			if err := tb.watchOnce(ctx); err != nil && ctx.Err() == nil {
				tb.provider.log.Debug("watching nodes", "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(watchPause):
			}
		}
	})
}

// watchPause lies between losing the connection for events and trying again.
const watchPause = 2 * time.Second

// watchOnce follows events on a connection of their own until ctx ends or the connection does.
func (tb *running) watchOnce(ctx context.Context) error {
	c, err := dial(ctx, tb.provider.endpoint)
	if err != nil {
		return err
	}
	defer c.close()
	events, err := ask(ctx, c, "subscribe to events", func(l *rpc.Libvirt) (<-chan rpc.DomainEventLifecycleMsg, error) {
		return l.LifecycleEvents(context.WithoutCancel(ctx))
	})
	if err != nil {
		return err
	}
	// Whatever stopped before the subscription is found by looking.
	for _, n := range tb.nodes {
		n.dropIfGone(ctx)
	}
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return errDisconnected
			}
			tb.handle(ctx, e)
		case <-ctx.Done():
			c.sock.Close()
			for range events { // the library's sender blocks until somebody reads
			}
			return nil
		}
	}
}

func (tb *running) handle(ctx context.Context, e rpc.DomainEventLifecycleMsg) {
	id, part, ok := parseName(e.Dom.Name)
	if !ok || id != tb.state.Ident {
		return
	}
	switch rpc.DomainEventType(e.Event) {
	case rpc.DomainEventStopped, rpc.DomainEventCrashed, rpc.DomainEventShutdown, rpc.DomainEventSuspended:
		for _, n := range tb.nodes {
			if string(n.role) == part {
				n.dropIfGone(ctx)
			}
		}
	}
}

// dropIfGone ends the connection to a machine that does not run, or the wait for one. It asks, for the
// event may be that of a machine that was replaced meanwhile.
func (n *node) dropIfGone(ctx context.Context) {
	n.mu.Lock()
	connected, giveUp := n.client != nil, n.giveUp
	n.mu.Unlock()
	if !connected && giveUp == nil {
		return
	}
	err := n.gone(ctx)
	if err == nil || ctx.Err() != nil {
		return
	}
	n.tb.provider.log.Warn("lost a node", "testbed", n.tb.Name(), "node", string(n.role), "error", err)
	if giveUp != nil && errors.Is(err, errHalted) { // one that ended also ends its console
		giveUp(err)
	}
	n.disconnect()
}
