package testbed

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// A Hypervisor says which libvirt makes virtual machines, as a uri does: the system's, that of this user, or the
// system's on another host.
type Hypervisor struct {
	// Session says that it is this user's own, which has no privileges.
	Session bool
	// Host is another host, reached by SSH as User at Port; empty: this one. User and Port may be empty, too.
	Host, User, Port string
	Socket           string // where it listens, if not where it usually does
	KeyFile          string // with which to log in at Host
}

// ParseHypervisor reads qemu:///system, qemu:///session and qemu+ssh://USER@HOST:PORT/system, with
// ?socket=PATH, and ?keyfile=PATH for the last, as virsh has them. The error is what would be right.
func ParseHypervisor(uri string) (Hypervisor, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return Hypervisor{}, fmt.Errorf("it cannot be read (%w): "+supportedURIs, err)
	}
	remote := u.Host != "" && u.Scheme == "qemu+ssh"
	for key := range u.Query() {
		if key != "socket" && !(remote && key == "keyfile") {
			return Hypervisor{}, fmt.Errorf("unknown parameter %q: socket is known, and with qemu+ssh also keyfile", key)
		}
	}
	h := Hypervisor{Host: u.Hostname(), User: u.User.Username(), Port: u.Port(), Socket: u.Query().Get("socket"), KeyFile: u.Query().Get("keyfile")}
	_, password := u.User.Password()
	local := u.Host == "" && (u.Scheme == "qemu" || u.Scheme == "qemu+unix")
	switch {
	case remote && u.Path != "/system":
		return Hypervisor{}, errors.New(`on another host use "qemu+ssh://USER@HOST/system"`)
	case remote && (password || strings.HasPrefix(h.Host, "-") || strings.HasPrefix(h.User, "-")):
		return Hypervisor{}, errors.New(`use "qemu+ssh://USER@HOST/system", without a password`)
	case local && u.Path == "/session":
		h.Session = true
	case !remote && !(local && u.Path == "/system"):
		return Hypervisor{}, errors.New(supportedURIs)
	}
	return h, nil
}

const supportedURIs = `use "qemu:///system", "qemu:///session" without root, or "qemu+ssh://USER@HOST/system"`
