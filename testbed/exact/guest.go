package exact

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// linesPort is the guest's second serial port.
const linesPort = "/dev/ttyS1"

// A Guest is the inside of the machine.
type Guest struct{ port *os.File }

// ErrNotInside is returned by [Enter] outside of such a machine.
var ErrNotInside = errors.New("this is not the inside of a virtual machine of rampart: `rampart run --provider exact` makes one")

// mounts are the file systems that programs expect.
var mounts = []struct {
	source, target, kind string
	flags                uintptr
}{
	{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID},
	{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV}, // helpers are started from there
	{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
}

// Enter makes the bare kernel that process 1 finds into a system that helpers can work on.
func Enter() (*Guest, error) {
	if os.Getpid() != 1 {
		return nil, ErrNotInside
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return nil, fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for name, value := range map[string]string{"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/root"} {
		if err := os.Setenv(name, value); err != nil {
			return nil, fmt.Errorf("set environment: %w", err)
		}
	}
	port, err := openPort(linesPort)
	if err != nil {
		return nil, err
	}
	return &Guest{port}, nil
}

// openPort opens a serial port that passes bytes on as they are.
func openPort(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open port: %w", err)
	}
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err == nil {
		t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
		t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
		err = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set up port %s: %w", filepath.Base(name), err), f.Close())
	}
	return f, nil
}

// Job is the content of the job.
func (g *Guest) Job() ([]byte, error) { return os.ReadFile(jobPath) }

// Say sends a line to the host, and returns when all of it is out, so that nothing of it is on the way
// while something is measured. It must not contain a newline.
func (g *Guest) Say(line []byte) error {
	if _, err := g.port.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("send line: %w", err)
	}
	// tcdrain(3)
	if err := unix.IoctlSetInt(int(g.port.Fd()), unix.TCSBRK, 1); err != nil {
		return fmt.Errorf("send line: %w", err)
	}
	return nil
}

// End tells the host that the job is done.
func (g *Guest) End() error { return g.Say([]byte(endLine)) }

// PowerOff ends the machine. It returns only when that failed.
func (g *Guest) PowerOff() error {
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	return nil
}
