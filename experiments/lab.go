package experiments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/experiments/traffic"
	"github.com/rampart-bench/rampart/provision"
	"github.com/rampart-bench/rampart/testbed"
)

// A Lab is a testbed with a helper at work on every node.
type Lab struct {
	testbed testbed.Testbed
	spec    testbed.Spec
	exe     string
	helpers map[testbed.Role]*provision.Agent

	// loaded is the rule-set that the firewall holds, with the name of its firewall; zero: none.
	loaded loadRequest
	// residue is what an earlier engine left in the firewall's kernel and only a fresh node is
	// rid of, and residueOf that engine.
	residue, residueOf string
	// routing is what earlier routing rules left there.
	routing string
	// quiet is how long a node may say nothing before it is asked for a sign of life.
	quiet time.Duration
}

// Connect pushes the program exe to every node of a testbed and starts it as the helper, side by side.
func Connect(ctx context.Context, tb testbed.Testbed, spec testbed.Spec, exe string) (*Lab, error) {
	l := &Lab{testbed: tb, spec: spec, exe: exe, helpers: map[testbed.Role]*provision.Agent{}, quiet: quietTime}
	var starts errgroup.Group
	helpers := make([]*provision.Agent, len(testbed.Roles()))
	for i, role := range testbed.Roles() {
		starts.Go(func() (err error) {
			helpers[i], err = l.start(ctx, role)
			return err
		})
	}
	err := starts.Wait()
	for i, role := range testbed.Roles() {
		if helpers[i] != nil {
			l.helpers[role] = helpers[i]
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// connect starts the helper of a node that was renewed.
func (l *Lab) connect(ctx context.Context, role testbed.Role) error {
	helper, err := l.start(ctx, role)
	if err == nil {
		l.helpers[role] = helper
	}
	return err
}

func (l *Lab) start(ctx context.Context, role testbed.Role) (*provision.Agent, error) {
	ctx, done := l.listen(ctx, role)
	defer done()
	node := l.testbed.Node(role)
	path := l.testbed.Features().Program
	if path == "" {
		var err error
		if path, _, err = provision.Push(ctx, node, l.exe); err != nil {
			return nil, fmt.Errorf("prepare %s: %w", role, err)
		}
	}
	helper, err := provision.Connect(ctx, node, path, "agent")
	if err != nil {
		return nil, fmt.Errorf("start helper on %s: %w", role, err)
	}
	return helper, nil
}

// Close ends the helpers, which undo what they changed, side by side: each may take its time. Where the
// testbed was closed before, they are gone already, and that is no error.
func (l *Lab) Close() error {
	ends := make(chan error, len(l.helpers))
	for role, helper := range l.helpers {
		go func() {
			err := helper.Close()
			switch {
			case errors.Is(err, testbed.ErrClosed):
				err = nil
			case err != nil:
				err = fmt.Errorf("end helper on %s: %w", role, err)
			}
			ends <- err
		}()
	}
	var errs []error
	for range l.helpers {
		errs = append(errs, <-ends)
	}
	clear(l.helpers)
	return errors.Join(errs...)
}

// call asks the helper of a role.
func call[R any](ctx context.Context, l *Lab, role testbed.Role, method string, params any) (R, error) {
	ctx, done := l.listen(ctx, role)
	defer done()
	var result R
	if err := l.helpers[role].Call(ctx, method, params, &result); err != nil {
		return result, fmt.Errorf("%s on %s: %w", method, role, err)
	}
	return result, nil
}

const (
	// quietTime is how long a node may say nothing beyond what is measured: long against every job but that of
	// loading many rules.
	quietTime = 20 * time.Second
	// signTime is how long a node may take to give a sign of life. An emulated one on a host with a load of
	// twenty was seen to take seconds for a command.
	signTime = 20 * time.Second
)

// listen ends the context when the node of a role, where it can be asked, has said nothing for long and then
// gives no sign of life: who waits for an answer over a link that is gone hears nothing, and no error either.
func (l *Lab) listen(ctx context.Context, role testbed.Role) (context.Context, func()) {
	node, ok := l.testbed.Node(role).(testbed.Answerer)
	if !ok {
		return ctx, func() {}
	}
	quiet := l.quiet
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(quiet):
			}
			asking, done := context.WithTimeoutCause(ctx, signTime, fmt.Errorf("none came within %s", signTime))
			if err := node.Answers(asking); err != nil {
				cancel(fmt.Errorf("%s fell silent: %w", role, err))
			}
			done()
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Describe asks every node what it is, side by side.
func (l *Lab) Describe(ctx context.Context) (map[string]record.Environment, error) {
	var asks errgroup.Group
	told := make([]record.Environment, len(testbed.Roles()))
	for i, role := range testbed.Roles() {
		asks.Go(func() (err error) {
			told[i], err = call[record.Environment](ctx, l, role, methodDescribe, l.interfaces(role))
			return err
		})
	}
	if err := asks.Wait(); err != nil {
		return nil, err
	}
	all := map[string]record.Environment{}
	for i, role := range testbed.Roles() {
		all[string(role)] = told[i]
	}
	return all, nil
}

// interfaces are the names of a node's interfaces on the links.
func (l *Lab) interfaces(role testbed.Role) []string {
	var names []string
	for _, link := range l.spec.Links {
		if link.Address(role).IsValid() {
			names = append(names, link.Name)
		}
	}
	return names
}

// request asks for a firewall with so many rules on this testbed.
func (l *Lab) request(fw firewall.Spec, rules int, seed uint64) loadRequest {
	return loadRequest{
		Firewall:        fw,
		Rules:           l.ruleSet(fw, rules, seed),
		DedicatedKernel: l.testbed.Features().DedicatedKernel,
		Interfaces:      [2]string{l.spec.Inside().Name, l.spec.Outside().Name},
	}
}

// ruleSet is the rule-set of so many rules on this testbed.
func (l *Lab) ruleSet(fw firewall.Spec, rules int, seed uint64) firewall.RuleSet {
	return firewall.RuleSet{
		Rules:    rules,
		Seed:     seed,
		Position: fw.Position,
		Sender:   l.spec.Inside().Address(testbed.Sender).Addr(),
		Receiver: l.spec.Outside().Address(testbed.Receiver).Addr(),
	}
}

// Try loads two rules with a firewall, reads them back, and removes them: whether this kernel and
// this system can run it at all.
func (l *Lab) Try(ctx context.Context, fw firewall.Spec) error {
	if err := l.renewIfBurdened(ctx, fw); err != nil {
		return err
	}
	if _, err := l.load(ctx, l.request(fw, 2, 1)); err != nil {
		return err
	}
	checks, err := call[[]record.Check](ctx, l, testbed.Firewall, methodVerify, none{})
	if err == nil {
		err = firstFailure(checks)
	}
	_, unloadErr := l.unload(ctx)
	return errors.Join(err, unloadErr)
}

// load loads a rule-set and returns how long the engine took.
func (l *Lab) load(ctx context.Context, req loadRequest) (time.Duration, error) {
	answer, err := call[loadAnswer](ctx, l, testbed.Firewall, methodLoad, req)
	if err != nil {
		if req.Firewall.Engine == firewall.IptablesLegacy && !req.DedicatedKernel {
			// It may have got as far as its hooks, which then stay.
			l.residue, l.residueOf = "what a load that failed may have registered", req.Firewall.Engine
		}
		return 0, err
	}
	l.loaded = req
	return answer.Duration, nil
}

// unload removes what is loaded and returns the checks that nothing is left.
func (l *Lab) unload(ctx context.Context) ([]record.Check, error) {
	if l.loaded == (loadRequest{}) {
		return nil, nil
	}
	answer, err := call[unloadAnswer](ctx, l, testbed.Firewall, methodUnload, none{})
	if err != nil {
		return nil, err
	}
	if answer.Residue != "" {
		l.residue, l.residueOf = answer.Residue, l.loaded.Firewall.Engine
	}
	if answer.SettingsResidue != "" {
		l.routing = answer.SettingsResidue
	}
	l.loaded = loadRequest{}
	return answer.Checks, nil
}

// burden is what an earlier firewall left in the kernel that would slow this one, or is empty.
func (l *Lab) burden(fw firewall.Spec) string {
	switch {
	case l.residue != "" && l.residueOf != fw.Engine:
		return l.residue + " of " + l.residueOf
	case l.routing != "" && fw.RoutingRules == 0:
		return l.routing
	}
	return ""
}

// renewIfBurdened replaces the firewall node when an earlier firewall left something in its kernel
// that would slow this one.
func (l *Lab) renewIfBurdened(ctx context.Context, fw firewall.Spec) error {
	burden := l.burden(fw)
	if burden == "" {
		return nil
	}
	renewer, ok := l.testbed.(testbed.Renewer)
	if !ok {
		return fmt.Errorf("renew firewall: %s is left in it, and provider %s cannot make a fresh node", burden, l.testbed.Features().Provider)
	}
	// A helper in the old node has nothing left to undo; its end is no news.
	_ = l.helpers[testbed.Firewall].Close()
	delete(l.helpers, testbed.Firewall)
	if err := renewer.Renew(ctx, testbed.Firewall); err != nil {
		return fmt.Errorf("renew firewall: %w", err)
	}
	l.residue, l.residueOf, l.routing = "", "", ""
	return l.connect(ctx, testbed.Firewall)
}

// counting returns what a node counted while do ran, its rules' counters included.
func (l *Lab) counting(ctx context.Context, role testbed.Role, do func() error) (counted, error) {
	before, err := call[counted](ctx, l, role, methodCount, none{})
	if err != nil {
		return counted{}, err
	}
	if err := do(); err != nil {
		return counted{}, err
	}
	after, err := call[counted](ctx, l, role, methodCount, none{})
	if err != nil {
		return counted{}, err
	}
	between := counted{Activity: after.Activity.Since(before.Activity)}
	if between.Snapshot, err = after.Snapshot.Since(before.Snapshot); err != nil {
		return counted{}, err
	}
	if before.Rule != nil && after.Rule != nil {
		between.Rule = &firewall.Counters{
			FromSender:   since(after.Rule.FromSender, before.Rule.FromSender),
			FromReceiver: since(after.Rule.FromReceiver, before.Rule.FromReceiver),
			Combined:     after.Rule.Combined,
		}
	}
	return between, nil
}

// counted returns what the kernel of a node counted while do ran.
func (l *Lab) counted(ctx context.Context, role testbed.Role, do func() error) (traffic.Snapshot, error) {
	between, err := l.counting(ctx, role, do)
	return between.Snapshot, err
}

func since(now, before firewall.Count) firewall.Count {
	return firewall.Count{Packets: now.Packets - before.Packets, Bytes: now.Bytes - before.Bytes}
}

// firstFailure is the first check that does not hold, as an error.
func firstFailure(checks []record.Check) error {
	for _, c := range checks {
		if !c.OK {
			detail := c.Detail
			if detail != "" {
				detail = " (" + detail + ")"
			}
			return fmt.Errorf("check %q: want %v, got %v%s", c.Name, c.Want, c.Got, detail)
		}
	}
	return nil
}
