package libvirt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/provision/ssh"
	"github.com/rampart-bench/rampart/testbed"
)

// requirement is something that must come true before a node can be used.
type requirement struct {
	name  string
	limit time.Duration
	hint  string
	wait  func(context.Context) error
}

// pace is how much longer than under KVM on a quiet host everything may take.
func pace(kvm bool) time.Duration {
	if kvm {
		return 1
	}
	return 4 // TCG, three nodes booting on two busy cores
}

// requirements of a node that was just started, in order. The client is what the last one leaves.
func (p *Provider) requirements(s state, role testbed.Role, d *instance, config ssh.Config, client **ssh.Client) []requirement {
	if s.Cloud {
		return p.cloudRequirements(s, role, d, config, client)
	}
	unit := pace(s.KVM) * time.Minute
	marker := func(step string) func(context.Context) error {
		return func(ctx context.Context) error { return d.console.wait(ctx, reached(step)) }
	}
	return []requirement{
		{"domain running", unit, "see what libvirt says: virsh domstate --reason " + d.Name, func(ctx context.Context) error {
			return p.waitRunning(ctx, d)
		}},
		{"kernel booted", unit, "the kernel did not reach its initrd: is it a kernel for this machine type, and is there enough memory?", marker("initrd")},
		{"network configured", unit, "the image's init did not finish: build the image again with rampart image build", marker("ready")},
		{"SSH answering", unit, "look from inside: virsh console " + d.Name + "; on the host, does a firewall drop traffic to " + config.Addr + "?", func(ctx context.Context) (err error) {
			*client, err = dialSSH(ctx, config, d.console, false)
			return err
		}},
	}
}

// cloudRequirements are those of a node that boots from a disk with cloud-init on it. Its console may be silent.
func (p *Provider) cloudRequirements(s state, role testbed.Role, d *instance, config ssh.Config, client **ssh.Client) []requirement {
	unit := pace(s.KVM) * time.Minute
	return []requirement{
		{"domain running", unit, "see what libvirt says: virsh domstate --reason " + d.Name, func(ctx context.Context) error {
			return p.waitRunning(ctx, d)
		}},
		// A distribution's whole start, which under emulation takes minutes.
		{"SSH answering", 3 * unit, "does the disk boot by itself through a BIOS, and are cloud-init and an SSH server on it? Look from inside: virsh console " + d.Name, func(ctx context.Context) (err error) {
			*client, err = dialSSH(ctx, config, d.console, true)
			return err
		}},
		{"cloud-init done", 2 * unit, "look from inside: rampart ssh " + string(role) + " -- cloud-init status --long", func(ctx context.Context) error {
			return waitForCloudScript(ctx, *client, d.console)
		}},
	}
}

// waitForCloudScript waits until the seed's script has ended on a node.
func waitForCloudScript(ctx context.Context, client *ssh.Client, c *console) error {
	for {
		outcome, err := output(ctx, client, "sh", "-c", "cat "+cloudOutcome+" 2>/dev/null || :")
		switch word, why, _ := strings.Cut(strings.TrimSpace(outcome), "\n"); {
		case err != nil:
			return err
		case word == "done":
			return nil
		case word != "":
			return fmt.Errorf("the script that sets up the network failed: %s", strings.ReplaceAll(why, "\n", "; "))
		}
		if _, ended, _ := c.snapshot(); ended {
			return errStopped
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Second):
		}
	}
}

// meet waits for each requirement in turn. The error names the one that was not met, carries what to do, and
// shows the end of the console.
func meet(ctx context.Context, log *slog.Logger, role testbed.Role, c *console, all []requirement) error {
	for _, r := range all {
		begin := time.Now()
		limited, cancel := context.WithTimeoutCause(ctx, r.limit, fmt.Errorf("not within %s", r.limit))
		err := r.wait(limited)
		cancel()
		if err == nil {
			log.Debug("node got further", "node", string(role), "step", r.name, "took", time.Since(begin).Round(time.Millisecond))
			continue
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errHalted) {
			return fmt.Errorf("wait for node %s: %s: %w", role, r.name, cause)
		}
		return &BootError{Role: role, Step: r.name, Hint: r.hint, Console: c.lines(consoleLines), err: err}
	}
	return nil
}

// consoleLines is how many lines of a console an error shows.
const consoleLines = 20

// BootError says which step of a node's start failed. Its text is without the hint, which the caller has
// to show.
type BootError struct {
	Role    testbed.Role
	Step    string   // such as "kernel booted"
	Hint    string   // what to do next
	Console []string // the last lines of the node's console
	err     error
}

func (e *BootError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "wait for node %s: %s: %v", e.Role, e.Step, e.err)
	if len(e.Console) == 0 {
		b.WriteString("\nits console is empty")
		return b.String()
	}
	b.WriteString("\nits console ends with:")
	for _, line := range e.Console {
		b.WriteString("\n  | " + line)
	}
	return b.String()
}

// Unwrap returns what went wrong in the step.
func (e *BootError) Unwrap() error { return e.err }

// reached tells from a console whether the image's init began that step. A step that failed before
// it is an error.
func reached(step string) func(text string) (bool, error) {
	return func(text string) (bool, error) {
		if _, failed, ok := strings.Cut(text, images.BootPrefix+"failed: "); ok {
			failed, _, _ = strings.Cut(failed, "\n")
			return false, fmt.Errorf("the image's init says that its step %q failed", strings.TrimSpace(failed))
		}
		return strings.Contains(text, images.BootPrefix+step), nil
	}
}

func (c *console) lines(n int) []string {
	text, _, _ := c.snapshot()
	return lastLines(text, n)
}

func (p *Provider) waitRunning(ctx context.Context, d *instance) error {
	for {
		c, err := p.control(ctx)
		if err != nil {
			return err
		}
		switch word, err := domainState(ctx, c, d.Domain); {
		case err != nil:
			return err
		case word == stateRunning:
			return nil
		case word == stateGone:
			return errStopped
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// dialTry is how long one try to log in may take: key exchange is slow under emulation.
const dialTry = 45 * time.Second

// dialSSH tries until it succeeds, ctx ends, or the machine stops. Another host key than the one that was given
// to the node ends it too, unless the node may not have put it into its place yet.
func dialSSH(ctx context.Context, config ssh.Config, c *console, keyMayFollow bool) (*ssh.Client, error) {
	var last error
	for {
		try, cancel := context.WithTimeout(ctx, dialTry)
		client, err := ssh.Dial(try, config)
		cancel()
		if err == nil {
			return client, nil
		}
		if ctx.Err() == nil {
			last = err
		}
		if errors.Is(err, ssh.ErrHostKey) && !keyMayFollow {
			return nil, err
		}
		if _, ended, _ := c.snapshot(); ended {
			return nil, errStopped
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), last)
		case <-time.After(250 * time.Millisecond):
		}
	}
}
