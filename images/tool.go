package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// tool is a program that a build runs.
type tool struct {
	name    string
	pkg     string   // Debian package that has it
	version []string // arguments that make it print its version, first line
}

// tools are the programs that a build may run. fakeroot is not needed by root.
func tools(root bool) []tool {
	all := []tool{
		{"apt-get", "apt", []string{"--version"}},
		{"apt-cache", "apt", []string{"--version"}},
		{"mmdebstrap", "mmdebstrap", []string{"--version"}},
		{"tar", "tar", []string{"--version"}},
		{"mke2fs", "e2fsprogs", []string{"-V"}},
		{"debugfs", "e2fsprogs", []string{"-V"}},
		{"qemu-img", "qemu-utils", []string{"--version"}},
	}
	if !root {
		all = append(all, tool{"fakeroot", "fakeroot", []string{"--version"}})
	}
	return all
}

// toolVersions finds every tool and asks it for its version. All that are missing are named at once.
func toolVersions(ctx context.Context, all []tool) (map[string]string, error) {
	versions := map[string]string{}
	var missing []string
	for _, t := range all {
		path, err := lookPath(t.name)
		if err != nil {
			missing = append(missing, t.pkg)
			continue
		}
		out, err := exec.CommandContext(ctx, path, t.version...).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("ask %s for its version: %w", t.name, err)
		}
		line, _, _ := strings.Cut(string(out), "\n")
		versions[t.name] = strings.TrimSpace(line)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("build image: programs are missing: run `apt-get install %s`", strings.Join(sortedSet(missing), " "))
	}
	return versions, nil
}

// lookPath also looks where programs of the administrator are, which are not on every user's PATH.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if err != nil {
			path, err = exec.LookPath(dir + name)
		}
	}
	return path, err
}

// command is one run of a tool.
type command struct {
	argv  []string
	dir   string   // where it runs; "": here
	env   []string // beyond this process's
	stdin string
	line  func(string) // gets each line of output as it comes; may be nil
	// mounts is true for a tool that mounts things: they then go away with it even when it is
	// killed, because it gets a mount namespace of its own where that is allowed.
	mounts bool
}

// logTail is how much of a tool's output an error shows, in bytes.
const logTail = 2000

// run runs the command in a process group of its own. When ctx ends, the group is asked to stop
// (mmdebstrap then removes what it made) and killed if it has not after three seconds: a user who
// presses Ctrl-C is promised an end after five. When this process dies, the command is asked too.
func (c command) run(ctx context.Context) error {
	attr := syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if c.mounts && os.Geteuid() == 0 {
		attr.Unshareflags = syscall.CLONE_NEWNS
	}
	err := c.runAs(ctx, attr)
	if attr.Unshareflags != 0 && errors.Is(err, syscall.EPERM) {
		attr.Unshareflags = 0 // root in a container that may not mount
		err = c.runAs(ctx, attr)
	}
	return err
}

func (c command) runAs(ctx context.Context, attr syscall.SysProcAttr) error {
	path, err := lookPath(c.argv[0])
	if err != nil {
		return fmt.Errorf("run %s: %w", c.argv[0], err)
	}
	cmd := exec.CommandContext(ctx, path, c.argv[1:]...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "TZ=UTC"), c.env...)
	cmd.Dir = c.dir
	cmd.Stdin = strings.NewReader(c.stdin)
	log := &lineWriter{line: c.line}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &attr
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	// Pdeathsig means the death of the thread that started the command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	if ctx.Err() != nil && cmd.Process != nil {
		// What ignored the request, and whatever it had started.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return fmt.Errorf("run %s: %w", c.argv[0], context.Cause(ctx))
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return &toolError{name: c.argv[0], err: err, log: log.tail()}
	}
	return fmt.Errorf("run %s: %w", c.argv[0], err)
}

// toolError is a tool that ended badly, with the end of what it printed.
type toolError struct {
	name string
	err  error
	log  string
}

func (e *toolError) Error() string {
	return fmt.Sprintf("run %s: %v; it printed last:\n%s", e.name, e.err, indent(e.log))
}
func (e *toolError) Unwrap() error { return e.err }

func indent(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ")
}

// An Advised error comes with what to do next, which its text leaves to whoever shows it.
type Advised struct {
	Err  error
	Next string
}

func (e *Advised) Error() string { return e.Err.Error() }
func (e *Advised) Unwrap() error { return e.Err }

func advise(err error, next string) error { return &Advised{err, next} }

// hint adds what to do next to an error of a build, where the cause is one that users meet.
func hint(err error) error {
	if _, ok := errors.AsType[*Advised](err); ok {
		return err
	}
	var knowing interface{ hint() string }
	if errors.As(err, &knowing) {
		return advise(err, knowing.hint())
	}
	var failed *toolError
	text := err.Error()
	if errors.As(err, &failed) {
		text = failed.log
	}
	for _, known := range []struct{ text, hint string }{
		{"No space left on device", "free some space (a build needs about 1.5 GB for a while) or choose another folder for the store"},
		{"no space left on device", "free some space (a build needs about 1.5 GB for a while) or choose another folder for the store"},
		{"Unable to locate package", "check the names in kernel and packages, and whether components has their section"},
		{"no longer has a Release file", "check suite and mirror: this archive does not have the suite"},
		{"does not have a Release file", "check suite and mirror: this archive does not have the suite"},
		{"NO_PUBKEY", "install the archive's keys: `apt-get install debian-archive-keyring`"},
		{"Could not resolve", "check the network, or name a mirror that can be reached in the image block"},
		{"is not signed", "install the archive's keys, in /etc/apt/trusted.gpg.d"},
		{"Could not connect", "check the network and apt's proxy, or name a mirror that can be reached in the image block"},
		{"unable to pick chroot mode", "without root a range of user ids is needed: `apt-get install uidmap` and a line in /etc/subuid and /etc/subgid; or build as root"},
		{"newuidmap", "without root a range of user ids is needed: `apt-get install uidmap` and a line in /etc/subuid and /etc/subgid; or build as root"},
		{"/etc/subuid", "without root a range of user ids is needed: `apt-get install uidmap` and a line in /etc/subuid and /etc/subgid; or build as root"},
	} {
		if strings.Contains(text, known.text) {
			return advise(err, known.hint)
		}
	}
	return err
}

// lineWriter keeps the end of what is written and hands out each full line.
type lineWriter struct {
	kept    []byte
	partial []byte
	line    func(string)
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.kept = append(w.kept, p...)
	if extra := len(w.kept) - logTail; extra > 0 {
		w.kept = append(w.kept[:0], w.kept[extra:]...)
	}
	if w.line == nil {
		return len(p), nil
	}
	w.partial = append(w.partial, p...)
	for {
		line, rest, ok := bytes.Cut(w.partial, []byte("\n"))
		if !ok {
			break
		}
		w.line(string(bytes.TrimSpace(line)))
		w.partial = rest
	}
	return len(p), nil
}

// tail is the end of the output, from the start of a line where there is one.
func (w *lineWriter) tail() string {
	if len(w.kept) == logTail {
		if _, rest, ok := bytes.Cut(w.kept, []byte("\n")); ok {
			return string(rest)
		}
	}
	return string(w.kept)
}
