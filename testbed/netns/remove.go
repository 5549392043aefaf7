package netns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

// bindNamespace gives the thread's namespace its name.
func bindNamespace(t *thread, name string) error {
	ns, err := t.open()
	if err != nil {
		return fmt.Errorf("name network namespace: %w", err)
	}
	defer ns.Close()
	path := filepath.Join(namespaceFolder, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("name network namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", ns.Fd()), path, "none", unix.MS_BIND, ""); err != nil {
		os.Remove(path)
		return &os.PathError{Op: "name network namespace", Path: path, Err: err}
	}
	return nil
}

// unbindNamespace takes the name away, however much of it there is. The namespace dies when nothing
// else refers to it.
func unbindNamespace(name string) error {
	path := filepath.Join(namespaceFolder, name)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // no mount, or no file
			break
		}
		if err != nil {
			return &os.PathError{Op: "unmount network namespace", Path: path, Err: err}
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// A namespaceID identifies a namespace: its inode in the kernel's nsfs.
type namespaceID struct{ device, inode uint64 }

// identify returns the identity of the namespace that path refers to; ok is false when path refers to
// none, as the file of a half-made name does.
func identify(path string) (id namespaceID, ok bool) {
	var fsStat unix.Statfs_t
	var stat unix.Stat_t
	if unix.Statfs(path, &fsStat) != nil || fsStat.Type != unix.NSFS_MAGIC || unix.Stat(path, &stat) != nil {
		return namespaceID{}, false
	}
	return namespaceID{stat.Dev, stat.Ino}, true
}

// removeNamespace ends every process in a named namespace, deletes its links and takes its name away.
func removeNamespace(ctx context.Context, name string) error {
	path := filepath.Join(namespaceFolder, name)
	if id, ok := identify(path); ok {
		if err := endProcesses(ctx, id); err != nil {
			return fmt.Errorf("end processes in %s: %w", name, err)
		}
		t, err := enterNamespace(path)
		if err != nil {
			return err
		}
		err = deleteLinks(t)
		t.close()
		if err != nil {
			return fmt.Errorf("empty %s: %w", name, err)
		}
	}
	return unbindNamespace(name)
}

// endProcesses kills every process of the namespace, until none is left, and waits for their end.
func endProcesses(ctx context.Context, id namespaceID) error {
	for {
		pids, err := processesIn(id)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := endProcess(ctx, pid, id); err != nil {
				return fmt.Errorf("end process %d: %w", pid, err)
			}
		}
	}
}

// processesIn lists the processes of a namespace, this one left out.
func processesIn(id namespaceID) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && pid != os.Getpid() && isIn(pid, id) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// isIn reports whether the process is in the namespace. A process that may not be looked at belongs
// to somebody with more rights than we have, and so does its namespace.
func isIn(pid int, id namespaceID) bool {
	got, ok := identify(fmt.Sprintf("/proc/%d/ns/net", pid))
	return ok && got == id
}

// endProcess kills one process and waits until it has no namespace any more. It holds the process by
// a descriptor and looks at its namespace once more, so that a number used again hits nobody.
func endProcess(ctx context.Context, pid int, id namespaceID) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !isIn(pid, id) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for isIn(pid, id) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// removeAll removes whatever is left of a testbed. It goes on after an error, to leave as little as
// possible behind.
func removeAll(ctx context.Context, name string) error {
	var errs []error
	for _, role := range testbed.Roles() {
		errs = append(errs, removeNamespace(ctx, namespaceName(name, role)))
	}
	for _, folder := range findScratch(name) {
		errs = append(errs, os.RemoveAll(folder))
	}
	return errors.Join(errs...)
}
