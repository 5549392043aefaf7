package netns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

const providerName = "netns"

// A bed is a live testbed.
type bed struct {
	spec    testbed.Spec
	options Options
	scratch string
	nodes   map[testbed.Role]*node
}

func newBed(spec testbed.Spec, options Options) *bed {
	b := &bed{spec: spec, options: options, nodes: map[testbed.Role]*node{}}
	for _, role := range testbed.Roles() {
		b.nodes[role] = &node{role: role, log: options.Log.With("node", role)}
	}
	return b
}

func (b *bed) Name() string { return b.spec.Name }

func (b *bed) Node(role testbed.Role) testbed.Node { return b.nodes[role] }

// folder is the scratch folder of a node.
func (b *bed) folder(role testbed.Role) string { return filepath.Join(b.scratch, string(role)) }

// Features of namespaces on this kernel. Parameters are facts of the links that do not depend on the
// Spec, and were read back when the testbed came up.
func (b *bed) Features() testbed.Features {
	parameters := map[string]string{
		"kernel": kernelRelease(),
		"link":   "veth, 1 queue, qdisc noqueue",
		"ipv6":   "disabled",
		"arp":    "permanent neighbour entries",
	}
	if _, err := os.Stat(filepath.Join(sysctlFolder, "ipv6")); errors.Is(err, fs.ErrNotExist) {
		parameters["ipv6"] = "not in this kernel"
	}
	for _, n := range b.nodes {
		if err := n.sysfs(); err != nil {
			parameters["sysfs"] = "the host's: " + err.Error()
		}
	}
	return testbed.Features{
		Provider:        providerName,
		Clock:           b.options.Clock,
		DedicatedKernel: b.options.DedicatedKernel,
		Program:         b.options.Program,
		Parameters:      parameters,
	}
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// Close ends every command that was started through this testbed and lets its nodes go.
func (b *bed) Close() error {
	for _, n := range b.nodes {
		n.leave()
	}
	return nil
}

// makeScratch makes the scratch folders of the testbed and its nodes.
func (b *bed) makeScratch() (err error) {
	b.scratch, err = makeScratch(b.Name())
	if err != nil {
		return err
	}
	for _, role := range testbed.Roles() {
		if err := os.Mkdir(b.folder(role), 0o755); err != nil {
			os.RemoveAll(b.scratch)
			return err
		}
		b.nodes[role].dir = b.folder(role)
	}
	return nil
}

// describe writes the Spec down for whoever attaches.
func (b *bed) describe(ctx context.Context) error {
	data, err := json.MarshalIndent(b.spec, "", "  ")
	if err != nil {
		return err
	}
	return atomicWrite(ctx, b.scratch, descriptionFile, 0o644, bytes.NewReader(append(data, '\n')))
}

// Renew gives role a network namespace that did not exist before, and moves its ends of the links
// there: kernel state that lives as long as a namespace is gone then. (Such as the hooks of
// iptables-legacy: once a table was used, they are called for every packet until the namespace dies,
// and would burden every firewall measured later.) The ends of the other nodes stay as they are, and so
// does the scratch folder. A link that is missing is made anew.
//
// A testbed that another process holds open does not notice: it keeps the old, now empty, namespace.
func (b *bed) Renew(ctx context.Context, role testbed.Role) error {
	n := b.nodes[role]
	if n == nil {
		return fmt.Errorf("renew node %q: there is none", role)
	}
	unlock, err := lock(ctx, scratchRoots[0])
	if err != nil {
		return fmt.Errorf("renew %s: %w", role, err)
	}
	defer unlock()
	if err := b.renew(ctx, n); err != nil {
		return fmt.Errorf("renew %s: %w", role, err)
	}
	return nil
}

func (b *bed) renew(ctx context.Context, n *node) error {
	name := namespaceName(b.Name(), n.role)
	path := filepath.Join(namespaceFolder, name)
	n.endCommands()
	if id, ok := identify(path); ok {
		if err := endProcesses(ctx, id); err != nil {
			return fmt.Errorf("end processes: %w", err)
		}
	}
	fresh, err := newNamespace()
	if err != nil {
		return err
	}
	if err := b.refit(n, fresh, name); err != nil {
		fresh.close()
		return err
	}
	n.replace(fresh)
	// All of them: while an end was away the other one had no carrier, and the kernel drops what is sent
	// there until its work queue has seen the carrier come back.
	for _, role := range testbed.Roles() {
		if err := verify(ctx, b.nodes[role].thread, b.spec, role); err != nil {
			return err
		}
	}
	return nil
}

// refit moves the node's links and name to a fresh namespace. Should this process be killed meanwhile,
// the fresh namespace dies with it, and the links in it.
func (b *bed) refit(n *node, fresh *thread, name string) error {
	if err := prepare(fresh, n.role); err != nil {
		return err
	}
	to, err := fresh.open()
	if err != nil {
		return err
	}
	defer to.Close()
	for i, l := range b.spec.Links {
		if _, ok := peerOf(l, n.role); !ok {
			continue
		}
		moved, err := moveLink(l.Name, n.thread, to)
		if err != nil {
			return err
		}
		if moved {
			continue
		}
		threads := map[testbed.Role]*thread{}
		for role, other := range b.nodes {
			threads[role] = other.thread
		}
		threads[n.role] = fresh
		if err := makeLink(b.spec, i, threads[l.Nodes[0]], threads[l.Nodes[1]]); err != nil {
			return err
		}
		peer, _ := peerOf(l, n.role)
		if err := configure(threads[peer], b.spec, peer); err != nil {
			return err
		}
	}
	if err := unbindNamespace(name); err != nil {
		return err
	}
	if err := bindNamespace(fresh, name); err != nil {
		return err
	}
	return configure(fresh, b.spec, n.role)
}

// A node is one namespace.
type node struct {
	role testbed.Role
	log  *slog.Logger
	dir  string // scratch folder

	mu       sync.Mutex
	thread   *thread
	life     context.Context // ends with the commands on the node
	end      context.CancelFunc
	commands sync.WaitGroup
}

// makeNamespace makes a namespace for the node and names it.
func (n *node) makeNamespace(name string) error {
	t, err := newNamespace()
	if err != nil {
		return err
	}
	err = prepare(t, n.role)
	if err == nil {
		err = bindNamespace(t, name)
	}
	if err != nil {
		t.close()
		return err
	}
	n.replace(t)
	return nil
}

// enter enters a namespace that somebody else made.
func (n *node) enter(path, dir string) error {
	t, err := enterNamespace(path)
	if err != nil {
		return err
	}
	n.dir = dir
	n.replace(t)
	return nil
}

// replace makes t the node's thread and lets the one before go.
func (n *node) replace(t *thread) {
	n.leave()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.thread = t
	n.life, n.end = context.WithCancel(context.Background())
}

// leave ends the node's commands and its thread.
func (n *node) leave() {
	n.endCommands()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.thread != nil {
		n.thread.close()
	}
}

// endCommands kills every command on the node and waits for their end. No more can be started.
func (n *node) endCommands() {
	n.mu.Lock()
	if n.end != nil {
		n.end()
	}
	n.mu.Unlock()
	n.commands.Wait()
}

func (n *node) sysfs() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.thread == nil {
		return nil
	}
	return n.thread.sysfs
}

// Put writes a file below the node's scratch folder. Nodes share the host's files, so a path that
// leads out of it is refused.
func (n *node) Put(ctx context.Context, path string, mode fs.FileMode, content io.Reader) error {
	if !filepath.IsLocal(path) {
		return fmt.Errorf("put %s on %s: a node of network namespaces shares the files of this machine, so only paths below its scratch folder are written", path, n.role)
	}
	if err := atomicWrite(ctx, n.dir, path, mode, content); err != nil {
		return fmt.Errorf("put %s on %s: %w", path, n.role, err)
	}
	return nil
}

// Start runs a command in the node's namespace, with the scratch folder as working directory and home,
// a fixed PATH and LC_ALL=C. It sees this machine's files and processes, but its own /sys/class/net.
func (n *node) Start(ctx context.Context, argv ...string) (testbed.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.thread == nil || n.life.Err() != nil {
		return nil, fmt.Errorf("start command on %s: %w", n.role, errThreadStopped)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(n.life, func() { cancel(errThreadStopped) })
	p, err := start(ctx, n.thread, n.dir, n.log, argv)
	if err != nil {
		stop()
		cancel(nil)
		return nil, fmt.Errorf("%s: %w", n.role, err)
	}
	n.commands.Go(func() {
		<-p.ended
		stop()
		cancel(nil)
	})
	return p, nil
}
