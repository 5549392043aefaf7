package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/rampart-bench/rampart/testbed"
)

// ErrUnavailable is wrapped by every error that means: not this machine, not now. Such an error is
// an [*UnavailableError] or says itself what would change that.
var ErrUnavailable = errors.New("libvirt is not available")

// UnavailableError says what keeps libvirt from being used. Its text is without the mend, which the
// caller has to show.
type UnavailableError struct {
	Problem string
	Mend    string // commands, or what to do
	err     error  // may be nil
}

func (e *UnavailableError) Error() string {
	return ErrUnavailable.Error() + ": " + e.Problem
}

// Unwrap returns ErrUnavailable, the same as every provider says it, and what led to it.
func (e *UnavailableError) Unwrap() []error {
	return []error{ErrUnavailable, &testbed.UnableError{Provider: Name, Reason: e.Problem, Mend: e.Mend}, e.err}
}

// systemSockets are where a system libvirt listens, in the order in which they are tried: the one
// daemon (or virtproxyd in its place), then the modular QEMU daemon, which itself opens the network
// and storage daemons for its clients.
var systemSockets = []string{
	"/run/libvirt/libvirt-sock",
	"/run/libvirt/virtqemud-sock",
	"/var/run/libvirt/libvirt-sock",
	"/var/run/libvirt/virtqemud-sock",
}

// endpoint is a libvirt, with all that differs between that of a system, of a user and of another host.
type endpoint struct {
	uri     string   // what the daemon is asked to open
	host    host     // where it runs
	sockets []string // where it may listen there
	wiring  wiring   // what it may join machines by
	folder  string   // below the state folder, for what is known of it
	poolDir string   // where its pool has its folder by default
	// start starts a daemon and returns once ready does not fail any more. It is nil where that is
	// the business of the host's owner.
	start func(ctx context.Context, ready func(context.Context) error) error
	mends mends
	at    string // begins what helps where that is not to be done at this machine
}

// mends are what helps when an endpoint cannot be opened: commands, for the person at this machine.
type mends struct{ start, permission, install string }

var systemMends = mends{start: mendStart, permission: mendPermission, install: mendInstall}

// systemURI is the libvirt of a host.
const systemURI = "qemu:///system"

// parseURI gives the libvirt that [testbed.ParseHypervisor] reads out of a uri.
func parseURI(raw string) (endpoint, error) {
	h, err := testbed.ParseHypervisor(raw)
	if err != nil {
		return endpoint{}, fmt.Errorf("libvirt uri %q is not supported: %w", raw, err)
	}
	var e endpoint
	switch {
	case h.Host != "":
		e = remoteEndpoint(h)
	case h.Session:
		e, err = sessionEndpoint()
	default:
		e = endpoint{uri: systemURI, host: thisHost{}, sockets: systemSockets, wiring: bridges{}, poolDir: DefaultPoolDir, mends: systemMends}
	}
	if h.Socket != "" {
		e.sockets, e.start = []string{h.Socket}, nil
	}
	return e, err
}

// unreachable turns why no socket could be opened into one error with a next step. errs has one
// error a socket, in the same order.
func unreachable(sockets []string, errs []error, helps mends) error {
	for i, err := range errs {
		if errors.Is(err, fs.ErrPermission) {
			return &UnavailableError{"this user may not open " + sockets[i], helps.permission, err}
		}
	}
	for i, err := range errs {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return &UnavailableError{sockets[i] + " is there but nothing listens on it", helps.start, err}
		}
	}
	for i, err := range errs {
		if errors.Is(err, ErrUnavailable) {
			return err // the host itself
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return &UnavailableError{"open " + sockets[i] + ": " + err.Error(), helps.start, err}
		}
	}
	return &UnavailableError{"it does not run: there is no " + sockets[0], helps.start + "; if it is not installed: " + helps.install, errors.Join(errs...)}
}

const (
	mendPermission = `sudo usermod -aG libvirt $USER, then log in again; or run rampart as root; or use uri = "qemu:///session", which needs no rights`
	mendStart      = "systemctl start libvirtd (modular daemons: virtqemud.socket virtnetworkd.socket virtstoraged.socket; without systemd: virtlogd -d; libvirtd -d)"
	mendInstall    = "apt-get install libvirt-daemon-system dnsmasq-base qemu-system-x86 qemu-utils"
)
