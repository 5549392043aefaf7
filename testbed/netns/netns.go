// Package netns makes testbeds of three network namespaces on the running kernel, joined by two pairs
// of veth.
//
// It is the testbed that needs nothing but a kernel: it stands in a tenth of a second and measures the
// kernel it runs on, in real time. A frame crosses a link by a function call into the other
// namespace, so what is left to measure is the protocol stack and the firewall.
//
// Nothing flows that the experiment did not ask for: IPv6 is off (no neighbour discovery, no MLD), the
// neighbour entries of both ends are permanent (no ARP), hardware addresses are fixed. Everything that
// is configured is read back, and a testbed that is not exactly as its Spec says does not come up.
//
// The namespaces are visible to `ip netns` under the testbed's name, a tag and the role. Nodes share
// the host's files; each has a scratch folder below /run/rampart (or /var/lib/rampart where /run does
// not allow programs to start). All names follow from the testbed's, so what a killed process left
// behind is found without a state file.
package netns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/rampart-bench/rampart/testbed"
)

// Options are what the caller may say about the kernel that the namespaces are on. The zero value
// describes the kernel of an ordinary host.
type Options struct {
	// Clock is what time means here; the default is [testbed.ClockHost].
	Clock testbed.Clock
	// DedicatedKernel says that nobody else uses this kernel.
	DedicatedKernel bool
	// Program is the path of this program, which nodes share with the host: it is not copied then.
	Program string
	// Log receives the standard error of commands at level debug; the default discards it.
	Log *slog.Logger
}

// Provider makes testbeds of network namespaces. All providers of one host see the same testbeds.
type Provider struct{ options Options }

var (
	_ testbed.Provider = (*Provider)(nil)
	_ testbed.Attacher = (*Provider)(nil)
	_ testbed.Lister   = (*Provider)(nil)
	_ testbed.Renewer  = (*bed)(nil)
)

// New returns a provider.
func New(options Options) *Provider {
	if options.Clock == "" {
		options.Clock = testbed.ClockHost
	}
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	return &Provider{options}
}

// descriptionFile in the scratch folder holds the Spec. It is written last: a testbed without it never
// came up.
const descriptionFile = "testbed.json"

// A step of Up and how to undo it.
type step struct {
	name     string
	do, undo func() error
}

// Up makes the testbed. The error wraps fs.ErrExist when one of that name is there, and is a
// [*testbed.UnableError] when this process or this kernel cannot make one.
func (p *Provider) Up(ctx context.Context, spec testbed.Spec) (testbed.Testbed, error) {
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("bring up testbed: %w", err)
	}
	b := newBed(spec, p.options)
	if err := p.up(ctx, b); err != nil {
		b.Close()
		return nil, fmt.Errorf("bring up testbed %s: %w", spec.Name, err)
	}
	return b, nil
}

func (p *Provider) up(ctx context.Context, b *bed) error {
	if err := checkCapabilities(); err != nil {
		return err
	}
	if err := prepareHost(); err != nil {
		return err
	}
	unlock, err := lock(ctx, scratchRoots[0])
	if err != nil {
		return err
	}
	defer unlock()
	if len(findScratch(b.Name())) > 0 {
		return fmt.Errorf("it is there already, or was left by a process that was killed: %w; rampart down removes it", fs.ErrExist)
	}
	return runSteps(ctx, upSteps(ctx, b))
}

// upSteps lists what Up does.
func upSteps(ctx context.Context, b *bed) []step {
	steps := []step{{"scratch folder", b.makeScratch, func() error { return os.RemoveAll(b.scratch) }}}
	for _, role := range testbed.Roles() {
		steps = append(steps, step{
			"namespace of " + string(role),
			func() error { return b.nodes[role].makeNamespace(namespaceName(b.Name(), role)) },
			// Undoing must work although ctx may be why.
			func() error {
				return removeNamespace(context.WithoutCancel(ctx), namespaceName(b.Name(), role))
			},
		})
	}
	for i, l := range b.spec.Links {
		steps = append(steps, step{"link " + l.Name, func() error {
			return makeLink(b.spec, i, b.nodes[l.Nodes[0]].thread, b.nodes[l.Nodes[1]].thread)
		}, nil}) // goes with the namespaces
	}
	for _, role := range testbed.Roles() {
		steps = append(steps, step{"configuration of " + string(role), func() error {
			return configure(b.nodes[role].thread, b.spec, role)
		}, nil})
	}
	for _, role := range testbed.Roles() {
		steps = append(steps, step{"read-back of " + string(role), func() error {
			return verify(ctx, b.nodes[role].thread, b.spec, role)
		}, nil})
	}
	return append(steps, step{"description", func() error { return b.describe(ctx) }, nil})
}

// runSteps does one step after the other. When one fails, or ctx ends before one, those done are
// undone in reverse order.
func runSteps(ctx context.Context, steps []step) error {
	for i, s := range steps {
		err := context.Cause(ctx)
		if err == nil {
			err = s.do()
		}
		if err == nil {
			continue
		}
		errs := []error{fmt.Errorf("%s: %w", s.name, err)}
		for _, done := range slices.Backward(steps[:i]) {
			if done.undo == nil {
				continue
			}
			if err := done.undo(); err != nil {
				errs = append(errs, fmt.Errorf("undo %s: %w", done.name, err))
			}
		}
		return errors.Join(errs...)
	}
	return nil
}

// Down removes whatever is left of the testbed called name: processes in its namespaces, links,
// namespaces and scratch folder.
func (p *Provider) Down(ctx context.Context, name string) error {
	if err := testbed.ValidateName(name); err != nil {
		return fmt.Errorf("take down testbed: %w", err)
	}
	if err := p.down(ctx, name); err != nil {
		return fmt.Errorf("take down testbed %s: %w", name, err)
	}
	return nil
}

func (p *Provider) down(ctx context.Context, name string) error {
	unlock, err := lock(ctx, scratchRoots[0])
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no testbed has ever been here
	}
	if err != nil {
		return err
	}
	defer unlock()
	found, err := survey()
	if err != nil || found[name] == nil {
		return err
	}
	if err := checkCapabilities(); err != nil {
		return err
	}
	return removeAll(ctx, name)
}

// Attach opens the testbed called name.
func (p *Provider) Attach(_ context.Context, name string) (testbed.Testbed, error) {
	if err := testbed.ValidateName(name); err != nil {
		return nil, fmt.Errorf("attach to testbed: %w", err)
	}
	b, err := p.attach(name)
	if err != nil {
		return nil, fmt.Errorf("attach to testbed %s: %w", name, err)
	}
	return b, nil
}

func (p *Provider) attach(name string) (*bed, error) {
	found, err := survey()
	if err != nil {
		return nil, err
	}
	trace := found[name]
	if trace == nil {
		return nil, fmt.Errorf("no network namespaces of that name: %w", fs.ErrNotExist)
	}
	if !trace.complete() {
		return nil, errors.New("only part of it is there: rampart down removes it")
	}
	if err := checkCapabilities(); err != nil {
		return nil, err
	}
	spec, err := readDescription(trace.scratch)
	if err != nil {
		return nil, err
	}
	b := newBed(spec, p.options)
	b.scratch = trace.scratch
	for _, role := range testbed.Roles() {
		if err := b.nodes[role].enter(filepath.Join(namespaceFolder, namespaceName(name, role)), b.folder(role)); err != nil {
			b.Close()
			return nil, err
		}
	}
	return b, nil
}

func readDescription(scratch string) (testbed.Spec, error) {
	data, err := os.ReadFile(filepath.Join(scratch, descriptionFile))
	if err != nil {
		return testbed.Spec{}, fmt.Errorf("read description: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var spec testbed.Spec
	if err := d.Decode(&spec); err != nil {
		return testbed.Spec{}, fmt.Errorf("read description: %w", err)
	}
	return spec, nil
}

// List finds every testbed of network namespaces on this machine, in the order of their names.
func (p *Provider) List(context.Context) ([]testbed.Info, error) {
	found, err := survey()
	if err != nil {
		return nil, fmt.Errorf("list testbeds: %w", err)
	}
	var list []testbed.Info
	for _, name := range slices.Sorted(maps.Keys(found)) {
		list = append(list, found[name].info(name))
	}
	return list, nil
}
