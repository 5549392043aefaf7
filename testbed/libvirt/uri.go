package libvirt

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
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

// endpoint is a parsed connection URI.
type endpoint struct {
	uri     string   // what the daemon is asked to open
	sockets []string // where it may listen
}

// parseURI understands qemu:///system, with ?socket=PATH as virsh has it.
func parseURI(raw string) (endpoint, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return endpoint{}, fmt.Errorf("parse libvirt uri %q: %w", raw, err)
	}
	switch {
	case u.Scheme == "qemu" && u.Host == "" && u.Path == "/session":
		return endpoint{}, fmt.Errorf(`libvirt uri %q is not supported yet: unprivileged machines have no bridges; use "qemu:///system" as a member of group libvirt, or provider = "netns"`, raw)
	case u.Host != "":
		return endpoint{}, fmt.Errorf(`libvirt uri %q is not supported yet: the libvirt of another host; run rampart there, with uri = "qemu:///system"`, raw)
	case u.Scheme != "qemu" && u.Scheme != "qemu+unix", u.Path != "/system":
		return endpoint{}, fmt.Errorf(`libvirt uri %q is not supported: use "qemu:///system"`, raw)
	}
	for key := range u.Query() {
		if key != "socket" {
			return endpoint{}, fmt.Errorf("libvirt uri %q: unknown parameter %q: only socket is known", raw, key)
		}
	}
	if socket := u.Query().Get("socket"); socket != "" {
		return endpoint{uri: "qemu:///system", sockets: []string{socket}}, nil
	}
	return endpoint{uri: "qemu:///system", sockets: systemSockets}, nil
}

// unreachable turns why no socket could be opened into one error with a next step. errs has one
// error a socket, in the same order.
func unreachable(sockets []string, errs []error) error {
	for i, err := range errs {
		if errors.Is(err, fs.ErrPermission) {
			return &UnavailableError{"this user may not open " + sockets[i], mendPermission, err}
		}
	}
	for i, err := range errs {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return &UnavailableError{sockets[i] + " is there but nothing listens on it", mendStart, err}
		}
	}
	for i, err := range errs {
		if !errors.Is(err, fs.ErrNotExist) {
			return &UnavailableError{"open " + sockets[i] + ": " + err.Error(), mendStart, err}
		}
	}
	return &UnavailableError{"it does not run: there is no " + sockets[0], mendStart + "; if it is not installed: " + mendInstall, errors.Join(errs...)}
}

const (
	mendPermission = "usermod -aG libvirt $USER, then log in again"
	mendStart      = "systemctl start libvirtd (modular daemons: virtqemud.socket virtnetworkd.socket virtstoraged.socket; without systemd: virtlogd -d; libvirtd -d)"
	mendInstall    = "apt-get install libvirt-daemon-system dnsmasq-base qemu-system-x86 qemu-utils"
)
