package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"
)

// lockTimeout is how many seconds a program waits for the lock of xtables, a file that all network
// namespaces of a machine share. go-iptables would wait for ever.
const lockTimeout = 60

// tool is one of the two iptables, by its full name: plain "iptables" is whichever a link points to.
type tool struct {
	name string // IptablesLegacy or IptablesNFT
}

// restore loads the text of [IptablesRestore].
func (t tool) restore(ctx context.Context, script []byte) error {
	path, err := t.find(t.name + "-restore")
	if err != nil {
		return err
	}
	_, err = run(ctx, script, path, "-w", strconv.Itoa(lockTimeout))
	return err
}

// listing is what iptables -S prints of the filter table.
func (t tool) listing(ctx context.Context) ([]string, error) {
	path, err := t.find(t.name)
	if err != nil {
		return nil, err
	}
	out, err := run(ctx, nil, path, "-w", strconv.Itoa(lockTimeout), "-S")
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' }), err
}

// library is go-iptables on this program. Only calls that look at exit statuses are used, since it
// sets no LC_ALL.
func (t tool) library() (*iptables.IPTables, error) {
	path, err := t.find(t.name)
	if err != nil {
		return nil, err
	}
	lib, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Path(path), iptables.Timeout(lockTimeout))
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	return lib, nil
}

// reset empties FORWARD and lets everything pass again.
func (t tool) reset() error {
	lib, err := t.library()
	if err != nil {
		return err
	}
	if err := lib.ChangePolicy("filter", "FORWARD", "ACCEPT"); err != nil {
		return fmt.Errorf("set policy of FORWARD: %w", err)
	}
	if err := lib.ClearChain("filter", "FORWARD"); err != nil {
		return fmt.Errorf("empty FORWARD: %w", err)
	}
	return nil
}

// setRules reads FORWARD as text, for its rule with a match: the kernel keeps of an ipset only its
// index. The form is compared whole, with the counters taken out.
func (t tool) setRules() (rules []matchRule, others int, err error) {
	lib, err := t.library()
	if err != nil {
		return nil, 0, err
	}
	lines, err := lib.ListWithCounters("filter", "FORWARD")
	if err != nil {
		return nil, 0, fmt.Errorf("list FORWARD: %w", err)
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "-P ") {
			continue
		}
		rule, ok := parseSetRule(line)
		if !ok {
			others++
		}
		rules = append(rules, rule)
	}
	return rules, others, nil
}

// parseSetRule reads "-A FORWARD -m set --match-set accepted src -c PACKETS BYTES -j ACCEPT"; where the
// counters stand differs between versions.
func parseSetRule(line string) (matchRule, bool) {
	before, after, ok := strings.Cut(line, " -c ")
	fields := strings.SplitN(after, " ", 3)
	if !ok || len(fields) < 2 {
		return matchRule{}, false
	}
	if len(fields) == 3 {
		before += " " + fields[2]
	}
	packets, err1 := strconv.ParseUint(fields[0], 10, 64)
	octets, err2 := strconv.ParseUint(fields[1], 10, 64)
	if before != setRule || err1 != nil || err2 != nil {
		return matchRule{}, false
	}
	return matchRule{set: setName, count: Count{Packets: packets, Bytes: octets}}, true
}

// find returns the full path of a program of the engine, or an *UnavailableError.
func (t tool) find(program string) (string, error) { return find(t.name, program) }

func find(engine, program string) (string, error) {
	dirs := filepath.SplitList(os.Getenv("PATH"))
	dirs = append(dirs, "/usr/sbin", "/sbin", "/usr/local/sbin") // where root's programs are, though not in every PATH
	for _, dir := range dirs {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil && filepath.IsAbs(path) {
			return path, nil
		}
	}
	pkg := "iptables"
	if program == "ipset" {
		pkg = "ipset"
	}
	return "", &UnavailableError{Engine: engine, Reason: fmt.Sprintf("there is no program %s: install the package %s", program, pkg)}
}

// restoreIpset loads the text of [IpsetRestore].
func restoreIpset(ctx context.Context, engine string, script []byte) error {
	path, err := find(engine, "ipset")
	if err != nil {
		return err
	}
	_, err = run(ctx, script, path, "restore")
	return err
}

// destroyIpset waits for the kernel to let go of the set: nf_tables frees the rules of a deleted table
// in a work queue, and until then they hold it.
func destroyIpset(ctx context.Context) error {
	path, err := find("ipset", "ipset")
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		_, err = run(ctx, nil, path, "destroy", setName)
		if attempt == 100 || !strings.Contains(said(err), "in use") {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// run runs a program and returns its output. It speaks English, whatever the user's language, and dies
// with this process: a rule-set must not appear after the helper that wanted it is gone.
func run(ctx context.Context, stdin []byte, argv ...string) ([]byte, error) {
	// The signal on death is the thread's: without the lock the end of an idle thread would send it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if stdin != nil {
		file, err := memoryFile(stdin)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		cmd.Stdin = file
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, &toolError{argv: argv, said: strings.TrimSpace(stderr.String()), err: err}
	}
	return stdout.Bytes(), nil
}

// memoryFile makes a file of memory that can be read from its beginning. A program reads it at once; a
// pipe would make it wait for us every 64 KiB.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("rampart", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "rampart")
	if _, err := file.Write(content); err != nil {
		file.Close()
		return nil, fmt.Errorf("write file in memory: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		file.Close()
		return nil, fmt.Errorf("rewind file in memory: %w", err)
	}
	return file, nil
}

// toolError is a program that failed, with what it said.
type toolError struct {
	argv []string
	said string
	err  error
}

func (e *toolError) Error() string {
	return fmt.Sprintf("run %s: %v: %s", strings.Join(e.argv, " "), e.err, e.said)
}

func (e *toolError) Unwrap() error { return e.err }

// said is what a program that failed with err said.
func said(err error) string {
	var t *toolError
	if errors.As(err, &t) {
		return t.said
	}
	return ""
}
