package libvirt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A host is the machine that libvirt runs on. Paths and addresses are the host's own.
type host interface {
	// dial connects to what listens on the host or what it can reach: "unix" and a path, or "tcp"
	// and an address with its port.
	dial(ctx context.Context, network, address string) (net.Conn, error)
	// output runs a command, whose arguments arrive as they are, and returns what it writes. The
	// error of one that failed wraps [*exec.ExitError].
	output(ctx context.Context, argv ...string) (string, error)
	// close lets go of the way to the host.
	close() error
}

// thisHost is the machine that this program runs on.
type thisHost struct{}

var _ host = thisHost{}

func (thisHost) dial(ctx context.Context, network, address string) (net.Conn, error) {
	// What answers at all answers at once; keepalives to a node would be frames on the wire.
	d := net.Dialer{KeepAlive: -1, KeepAliveConfig: net.KeepAliveConfig{Enable: false}}
	return d.DialContext(ctx, network, address)
}

func (thisHost) output(ctx context.Context, argv ...string) (string, error) {
	return runCommand(ctx, argv)
}

func (thisHost) close() error { return nil }

// runCommand runs a command of this machine. Its error has the last line that the command complained.
func runCommand(ctx context.Context, argv []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callLimit, fmt.Errorf("%s did not end within %s", argv[0], callLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	}
	return "", fmt.Errorf("%w: %s", err, lastLine(complaint.String()))
}

// lookAt runs a line of shell about $1, a file of the host. The error wraps fs.ErrNotExist where there is
// no such file, and fs.ErrPermission where the line exits with [exitNotAllowed].
func lookAt(ctx context.Context, h host, path, line string) (string, error) {
	out, err := h.output(ctx, "sh", "-c", fmt.Sprintf(`[ -e "$1" ] || exit %d; %s`, exitNoFile, line), "sh", path)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		switch exit.ExitCode() {
		case exitNoFile:
			err = fs.ErrNotExist
		case exitNotAllowed:
			err = fs.ErrPermission
		}
	}
	if err != nil && !errors.Is(err, ErrUnavailable) { // not the file but the host
		err = fmt.Errorf("look at %s: %w", path, err)
	}
	return out, err
}

// The exit statuses by which lines of shell say what they else only say in words.
const (
	exitNoFile     = 44
	exitNotAllowed = 45
)

func readFile(ctx context.Context, h host, path string) (string, error) {
	return lookAt(ctx, h, path, `cat -- "$1"`)
}

// exists reports whether there is such a file; what cannot be found out counts as there.
func exists(ctx context.Context, h host, path string) bool {
	_, err := lookAt(ctx, h, path, ":")
	return !errors.Is(err, fs.ErrNotExist)
}

// fileStat is who owns a file and what others may do with it.
type fileStat struct {
	perm     fs.FileMode // of it the lowest nine bits
	uid, gid uint32
}

func statFile(ctx context.Context, h host, path string) (fileStat, error) {
	out, err := lookAt(ctx, h, path, `stat -L -c '%a %u %g' -- "$1"`)
	if err != nil {
		return fileStat{}, err
	}
	return parseStat(out)
}

func parseStat(text string) (s fileStat, err error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return s, fmt.Errorf("read output of stat: %q", text)
	}
	var numbers [3]uint64
	for i, base := range []int{8, 10, 10} {
		if numbers[i], err = strconv.ParseUint(fields[i], base, 32); err != nil {
			return s, fmt.Errorf("read output of stat: %w", err)
		}
	}
	return fileStat{perm: fs.FileMode(numbers[0]).Perm(), uid: uint32(numbers[1]), gid: uint32(numbers[2])}, nil
}

// freeSpace is how many bytes more a user without privileges may write to the file system of path.
func freeSpace(ctx context.Context, h host, path string) (uint64, error) {
	out, err := lookAt(ctx, h, path, `stat -f -c '%a %S' -- "$1"`)
	if err != nil {
		return 0, err
	}
	blocks, size, _ := strings.Cut(strings.TrimSpace(out), " ")
	n, err := strconv.ParseUint(blocks, 10, 63)
	s, errSize := strconv.ParseUint(size, 10, 32)
	if err := errors.Join(err, errSize); err != nil {
		return 0, fmt.Errorf("measure free space of %s: %w", path, err)
	}
	return n * s, nil
}

// routesFile lists every route of every routing table of a host, those to its own addresses among them
// (net/ipv4/fib_trie.c).
const routesFile = "/proc/net/fib_trie"

// hostPrefixes are the IPv4 networks that a host has addresses in or routes to, in any routing table. A
// default route is none.
func hostPrefixes(ctx context.Context, h host) ([]netip.Prefix, error) {
	text, err := readFile(ctx, h, routesFile)
	if err != nil {
		return nil, fmt.Errorf("list routes of libvirt's host: %w", err)
	}
	return parseRoutes(text), nil
}

// parseRoutes reads the lines of fib_trie. A leaf is "|-- ADDRESS", and below it stands "/BITS scope
// type" for each route that begins with that address.
func parseRoutes(text string) []netip.Prefix {
	var used []netip.Prefix
	var leaf netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 2 && fields[0] == "|--":
			leaf, _ = netip.ParseAddr(fields[1])
		case len(fields) >= 3 && strings.HasPrefix(fields[0], "/"):
			bits, err := strconv.Atoi(fields[0][1:])
			if prefix := netip.PrefixFrom(leaf, bits); err == nil && bits > 0 && prefix.IsValid() && leaf.Is4() {
				used = append(used, prefix.Masked())
			}
		}
	}
	return used
}
