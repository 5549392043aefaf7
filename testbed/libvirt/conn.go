package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"strings"
	"syscall"
	"time"

	rpc "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
)

// ErrGone is wrapped by what fails because a node's machine no longer runs, or because libvirt
// closed the connection that it depended on.
var ErrGone = errors.New("the virtual machine is gone")

// How long libvirt may take to answer. The library's calls have neither context nor time-out.
const (
	dialLimit = 10 * time.Second
	callLimit = 30 * time.Second
	// Where libvirt's QEMU user cannot open /dev/kvm but root can, libvirt probes QEMU again at
	// every start; 68 s were seen.
	createLimit = 150 * time.Second
	closeLimit  = 2 * time.Second
)

// conn is one connection to libvirt. It is safe for use by several goroutines at once.
type conn struct {
	l    *rpc.Libvirt
	sock net.Conn
	at   string // begins what helps; see endpoint
}

// dial opens a connection to the libvirt of e.
func dial(ctx context.Context, e endpoint) (*conn, error) {
	sock, path, err := e.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{l: rpc.NewWithDialer(dialers.NewAlreadyConnected(sock)), sock: sock, at: e.at}
	err = c.do(ctx, dialLimit, "open "+e.uri, func(l *rpc.Libvirt) error {
		return l.ConnectToURI(rpc.ConnectURI(e.uri))
	})
	if err == nil {
		return c, nil
	}
	sock.Close()
	if isCode(err, rpc.ErrAuthFailed, rpc.ErrAuthCancelled, rpc.ErrAuthUnavailable, rpc.ErrAccessDenied) || refusedByPolkit.MatchString(err.Error()) {
		return nil, &UnavailableError{"this user may not use " + path + ": " + err.Error(), e.mends.permission, err}
	}
	return nil, &UnavailableError{path + ": " + err.Error(), e.mends.start, err}
}

// refusedByPolkit is in what libvirt says where polkit, which it asks about everybody but root, or the bus to that
// does not answer (virPolkitCheckAuth, virGDBusGetSystemBus).
var refusedByPolkit = regexp.MustCompile(`(?i)polkit|system bus`)

// connect opens the first socket of e that answers, and has a daemon started where none does.
func (e endpoint) connect(ctx context.Context) (sock net.Conn, path string, err error) {
	sock, path, err = e.open(ctx)
	if err == nil || e.start == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return sock, path, err
	}
	err = e.start(ctx, func(ctx context.Context) (err error) {
		sock, path, err = e.open(ctx)
		return err
	})
	return sock, path, err
}

// open tries the sockets of e in their order.
func (e endpoint) open(ctx context.Context) (net.Conn, string, error) {
	ctx, cancel := context.WithTimeout(ctx, loginLimit+dialLimit)
	defer cancel()
	var errs []error
	for _, path := range e.sockets {
		sock, err := e.host.dial(ctx, "unix", path)
		if err == nil {
			return sock, path, nil
		}
		errs = append(errs, err)
		if errors.Is(err, ErrUnavailable) {
			break // the host itself does not answer
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, "", fmt.Errorf("open %s: %w", e.uri, err)
	}
	return nil, "", unreachable(e.sockets, errs, e.mends)
}

// do runs one call with a deadline. When that passes, or ctx ends, the connection is closed: there
// is no other way to take a call back, and what libvirt does with it afterwards is not known.
func (c *conn) do(ctx context.Context, limit time.Duration, what string, f func(*rpc.Libvirt) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		fmt.Errorf("libvirt did not answer within %s: look at its log, then restart it: systemctl restart libvirtd", limit))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(c.l) }()
	select {
	case err := <-done:
		return c.describe(what, err)
	case <-ctx.Done():
		c.sock.Close()
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
}

// ask is [conn.do] for a call with a result.
func ask[T any](ctx context.Context, c *conn, what string, f func(*rpc.Libvirt) (T, error)) (T, error) {
	var result T
	answers := make(chan T, 1)
	err := c.do(ctx, callLimit, what, func(l *rpc.Libvirt) error {
		v, err := f(l)
		answers <- v
		return err
	})
	if err == nil {
		result = <-answers
	}
	return result, err
}

// troubles are what any call to libvirt may fail with for a reason that lies with the host. NAME is what the
// expression's group matched.
var troubles = []struct {
	says          *regexp.Regexp
	problem, mend string
}{
	// virNetSocketNewConnectUNIX: the modular daemon for QEMU has others do the rest.
	{regexp.MustCompile(`Failed to connect socket to '[^']*/(virt[a-z]+d)-sock'`), "its daemon NAME does not run",
		"systemctl start NAME.socket; if it is not installed: apt-get install libvirt-daemon-system"},
	// VIR_ERR_NO_SUPPORT
	{regexp.MustCompile(`not supported by the connection driver: vir(Storage|Network)`), "it came without its driver NAME",
		"apt-get install libvirt-daemon-system, or the package of the driver NAME"},
	{regexp.MustCompile(`(No space left on device|Disk quota exceeded)`), "no room is left on the host: NAME",
		"remove files in the storage pool, such as disks of other machines: virsh pool-list, virsh vol-list"},
}

func (c *conn) describe(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpc.ErrInterrupted), errors.Is(err, syscall.EINVAL), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%s: libvirt closed the connection (was it stopped?): %w", what, errDisconnected)
	}
	for _, t := range troubles {
		if match := t.says.FindStringSubmatch(err.Error()); match != nil {
			words := strings.NewReplacer("NAME", match[1])
			return fmt.Errorf("%s: %w", what, &UnavailableError{words.Replace(t.problem), c.at + words.Replace(t.mend), err})
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// errDisconnected says that the daemon went away during a call.
var errDisconnected = errors.New("connection to libvirt lost")

// lost is closed once the connection is.
func (c *conn) lost() <-chan struct{} { return c.l.Disconnected() }

// close says goodbye for at most closeLimit.
func (c *conn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	_ = c.do(ctx, closeLimit, "close", (*rpc.Libvirt).Disconnect)
	c.sock.Close()
}

// isCode reports whether err is an answer of libvirt with one of these numbers.
func isCode(err error, codes ...rpc.ErrorNumber) bool {
	var e rpc.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, code := range codes {
		if e.Code == uint32(code) {
			return true
		}
	}
	return false
}

// ignoreMissing is for removal: what is not there need not be removed.
func ignoreMissing(err error) error {
	if isCode(err, rpc.ErrNoDomain, rpc.ErrNoNetwork, rpc.ErrNoStorageVol, rpc.ErrNoStoragePool) {
		return nil
	}
	return err
}
