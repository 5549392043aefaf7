package netns

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// A thread is an operating-system thread of this process that lives in a node's network namespace.
//
// The namespace is a property of the thread that opens a socket, reads /proc/sys/net or forks, so
// all such work for a node runs on its thread. Commands are forked from it as well: they inherit the
// namespace, and because a parent-death signal follows the forking thread, they die with it.
//
// The thread also has a mount namespace of its own, as `ip netns exec` gives it: /sys shows this
// network namespace, and /run/netns is gone, which would otherwise pin the namespaces of all nodes
// for as long as the thread lives.
type thread struct {
	calls   chan func()
	stop    func()
	stopped chan struct{}
	sysfs   error // why /sys still shows the host's network; nil when it does not
}

// errThreadStopped is returned for work that comes after stop.
var errThreadStopped = fmt.Errorf("node is closed: %w", os.ErrClosed)

// newThread starts a thread that enters a network namespace by enter.
func newThread(enter func() error) (*thread, error) {
	quit := make(chan struct{})
	t := &thread{
		calls:   make(chan func()),
		stop:    sync.OnceFunc(func() { close(quit) }),
		stopped: make(chan struct{}),
	}
	started := make(chan error)
	onOwnThread(func() {
		defer close(t.stopped)
		err := enter()
		if err == nil {
			err = t.isolateMounts()
		}
		started <- err
		for err == nil {
			select {
			case call := <-t.calls:
				call()
			case <-quit:
				return
			}
		}
	})
	return t, <-started
}

// onOwnThread runs f on a thread that nothing else runs on and that ends with f. It is never the
// process's first thread: that one cannot end, and its namespaces are what /proc shows as those of the
// whole process.
func onOwnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			f() // and the thread ends, for it is never unlocked
			return
		}
		locked := make(chan struct{})
		go func() { // cannot be on the first thread while this goroutine holds it
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}

// newNamespace starts a thread in a network namespace that did not exist before.
func newNamespace() (*thread, error) {
	return newThread(func() error {
		switch err := unix.Unshare(unix.CLONE_NEWNET); err {
		case nil:
			return nil
		case unix.EINVAL: // unshare(2)
			return unable("use a kernel with CONFIG_NET_NS", "this kernel has no network namespaces")
		case unix.ENOSPC:
			return unable("sysctl user.max_net_namespaces=100000", "this user has as many network namespaces as he may")
		default:
			return fmt.Errorf("make network namespace: %w", err)
		}
	})
}

// enterNamespace starts a thread in the network namespace that path refers to.
func enterNamespace(path string) (*thread, error) {
	return newThread(func() error {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open network namespace", Path: path, Err: err}
		}
		defer unix.Close(fd)
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return &os.PathError{Op: "enter network namespace", Path: path, Err: err}
		}
		return nil
	})
}

// isolateMounts gives the thread its own view of /sys and none of /run/netns.
func (t *thread) isolateMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	// What is unmounted on the host goes away here too, and nothing done here reaches the host.
	if err := unix.Mount("", "/", "none", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for unix.Unmount(namespaceFolder, unix.MNT_DETACH) == nil {
	}
	// A container may forbid this. Only commands that read /sys/class/net can tell the difference.
	t.sysfs = unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	return nil
}

// do runs f on the thread and returns its error.
func (t *thread) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case t.calls <- func() { result <- f() }:
		return <-result
	case <-t.stopped:
		return errThreadStopped
	}
}

// close ends the thread, and with it every command forked from it.
func (t *thread) close() {
	t.stop()
	<-t.stopped
}

// open returns a handle of the thread's network namespace.
func (t *thread) open() (*os.File, error) {
	var f *os.File
	err := t.do(func() (err error) {
		f, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	return f, err
}
