package libvirt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// SessionURI is the libvirt of a user, which has that user's rights and no more.
const SessionURI = "qemu:///session"

// sessionEndpoint is the libvirt of the user that this process runs as.
func sessionEndpoint() (endpoint, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return endpoint{}, fmt.Errorf("find libvirt of this user: %w", err)
	}
	run := sessionFolder(home)
	start := startSession
	if os.Geteuid() == 0 {
		start = refuseRoot
	}
	return endpoint{
		uri:     SessionURI,
		host:    thisHost{},
		wiring:  sockets{},
		folder:  "session",
		poolDir: filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "libvirt", "images", DefaultPool),
		sockets: []string{filepath.Join(run, "virtqemud-sock"), filepath.Join(run, "libvirt-sock")},
		start:   start,
		mends:   sessionMends,
	}, nil
}

var sessionMends = mends{
	start:      "see what it says: libvirtd --verbose (modular daemons: virtqemud --verbose)",
	permission: "set XDG_RUNTIME_DIR to a folder of your own, as logging in does",
	install:    mendInstall,
}

// sessionFolder is where a user's libvirt listens: in the folder that the system gives a user for the
// time of being logged in, or where there is none, in the one for caches (g_get_user_runtime_dir of
// GLib, which libvirt calls).
func sessionFolder(home string) string {
	return filepath.Join(cmp.Or(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "libvirt")
}

// refuseRoot is in the place of starting a daemon: what root starts is the system's libvirt.
func refuseRoot(context.Context, func(context.Context) error) error {
	return &UnavailableError{"root has no libvirt of its own: " + SessionURI + " is for users without privileges",
		`use uri = "qemu:///system", or run rampart as another user`, nil}
}

// sessionDaemons are what may serve a user, the first that is installed: QEMU's own daemon, which starts
// those for storage and logs by itself, or the one for all.
var sessionDaemons = []string{"virtqemud", "libvirtd"}

// startLimit is how long a daemon may take from its start to its socket. It examines QEMU's
// abilities first, which takes seconds where nobody has done that before.
const startLimit = 30 * time.Second

// startSession starts a daemon for this user as virsh does: one that ends by itself two minutes after
// the last client left and the last machine ended. It returns once ready does not fail any more.
func startSession(ctx context.Context, ready func(context.Context) error) error {
	program, err := findProgram(sessionDaemons...)
	if err != nil {
		return &UnavailableError{"it does not run for this user, and there is none to start: " + err.Error(), mendInstall, err}
	}
	complaint, err := os.CreateTemp("", "rampart-libvirt-")
	if err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	defer complaint.Close()
	os.Remove(complaint.Name())
	daemon := exec.Command(program, "--timeout=120")
	daemon.Dir, daemon.Stderr = "/", complaint
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is not for it
	if err := daemon.Start(); err != nil {
		return &UnavailableError{"start " + program + ": " + err.Error(), mendInstall, err}
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("it does not listen within %s", startLimit))
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			err = errors.Join(context.Cause(ctx), err)
		case cause := <-ended:
			// Another process may have started one at the same moment, and then this is the one that gave way.
			if ready(ctx) == nil {
				return nil
			}
			err = fmt.Errorf("it ended: %w", cause)
		case <-time.After(50 * time.Millisecond):
			continue
		}
		return &UnavailableError{"start " + program + " for this user: " + err.Error() + said(complaint),
			sessionMends.start + `; or use uri = "qemu:///system" as root or a member of group libvirt`, err}
	}
}

// said is the end of what a program wrote to a file.
func said(f *os.File) string {
	content := make([]byte, 4096)
	n, _ := f.ReadAt(content, 0)
	if lines := lastLines(string(content[:n]), 1); len(lines) > 0 {
		return "; it said: " + lines[0]
	}
	return ""
}

// findProgram is the path of the first of these programs that is installed. Daemons are where users
// without privileges do not look.
func findProgram(names ...string) (string, error) {
	var errs []error
	for _, name := range names {
		for _, candidate := range []string{name, "/usr/sbin/" + name, "/usr/local/sbin/" + name} {
			path, err := exec.LookPath(candidate)
			if err == nil {
				return path, nil
			}
			errs = append(errs, err)
		}
	}
	return "", errors.Join(errs...)
}
