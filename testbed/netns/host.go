package netns

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/testbed"
)

const (
	// namespaceFolder is where iproute2 and everybody else keep named network namespaces.
	namespaceFolder = "/run/netns"
	runFolder       = "/run"
)

// scratchRoots are where the scratch folders of testbeds may be, best first. Debian's initrd mounts
// /run with noexec, where the helper could not be started from.
var scratchRoots = []string{"/run/rampart", "/var/lib/rampart"}

// unable says that this machine, or this user on it, cannot have network namespaces.
func unable(mend, format string, args ...any) error {
	return &testbed.UnableError{Provider: providerName, Reason: fmt.Sprintf(format, args...), Mend: mend}
}

// getPrivileges is the next step for a user without them.
const getPrivileges = "run rampart as root (sudo), or in a user namespace of its own: unshare --map-root-user --net --mount rampart …"

// checkCapabilities looks for the capabilities that making namespaces and links takes.
func checkCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return unable(getPrivileges, "making network namespaces takes %s, which this process lacks", strings.Join(missing, " and "))
	}
	return nil
}

// prepareHost makes the folders that namespaces and scratch folders live in. In a user namespace
// whose /run belongs to somebody else, /run becomes a tmpfs of this mount namespace only.
func prepareHost() error {
	if err := makeFolders(); err != nil {
		if !isUserNamespace() {
			return err
		}
		if mountErr := unix.Mount("tmpfs", runFolder, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); mountErr != nil {
			return unable(getPrivileges, "%v, and a private one cannot be mounted: %v", err, mountErr)
		}
		if err := makeFolders(); err != nil {
			return err
		}
	}
	return shareNamespaceFolder()
}

func makeFolders() error {
	for _, folder := range []string{namespaceFolder, scratchRoots[0]} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return fmt.Errorf("make folder: %w", err)
		}
		if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
			return fmt.Errorf("write to folder %s: %w", folder, err)
		}
	}
	return nil
}

// isUserNamespace reports whether this process is in a user namespace other than the first, which
// alone maps every user to himself (user_namespaces(7)).
func isUserNamespace() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(data)), " ") != "0 0 4294967295"
}

// shareNamespaceFolder makes the folder a shared mount, under the lock that iproute2 takes for the
// same purpose. Otherwise every mount namespace made later would keep a copy of each of our mounts,
// and with it the network namespace, alive.
func shareNamespaceFolder() error {
	unlock, err := lock(context.Background(), namespaceFolder)
	if err != nil {
		return err
	}
	defer unlock()
	share := func() error { return unix.Mount("", namespaceFolder, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err := unix.Mount(namespaceFolder, namespaceFolder, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s on itself: %w", namespaceFolder, err)
		}
		err = share()
	}
	if err != nil {
		return fmt.Errorf("share mounts of %s: %w", namespaceFolder, err)
	}
	return nil
}

// lock takes an exclusive lock of a folder. It goes away with the process.
func lock(ctx context.Context, folder string) (unlock func(), err error) {
	f, err := os.Open(folder)
	if err != nil {
		return nil, fmt.Errorf("lock folder: %w", err)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock folder %s: %w", folder, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock folder %s: %w", folder, context.Cause(ctx))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// makeScratch makes the scratch folder of a testbed under the first root from which programs may be
// started.
func makeScratch(name string) (string, error) {
	for _, root := range scratchRoots {
		if err := os.MkdirAll(root, 0o755); err != nil {
			return "", fmt.Errorf("make scratch folder: %w", err)
		}
		var stat unix.Statfs_t
		if err := unix.Statfs(root, &stat); err != nil {
			return "", &os.PathError{Op: "look at scratch folder", Path: root, Err: err}
		}
		if stat.Flags&unix.ST_NOEXEC != 0 {
			continue
		}
		scratch := filepath.Join(root, folderName(name))
		return scratch, os.Mkdir(scratch, 0o755)
	}
	return "", unable("mount -o remount,exec /run", "programs may not be started from %s: they are mounted with noexec", strings.Join(scratchRoots, " and "))
}

// findScratch returns every scratch folder of the testbed; after Up there is one.
func findScratch(name string) []string {
	var found []string
	for _, root := range scratchRoots {
		folder := filepath.Join(root, folderName(name))
		if _, err := os.Lstat(folder); err == nil {
			found = append(found, folder)
		}
	}
	return found
}

// atomicWrite puts a file into a folder under a temporary name and renames it when it is complete and
// on disk. The path cannot lead out of the folder, not even through a symbolic link.
func atomicWrite(ctx context.Context, folder, path string, mode fs.FileMode, content io.Reader) error {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	path = filepath.Clean(path)
	if err := root.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temporary := path + ".part"
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = fill(ctx, f, mode, content)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = root.Rename(temporary, path)
	}
	if err != nil {
		root.Remove(temporary)
	}
	return err
}

func fill(ctx context.Context, f *os.File, mode fs.FileMode, content io.Reader) error {
	w := bufio.NewWriterSize(f, 256<<10)
	if _, err := io.Copy(w, contextReader{ctx, content}); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil { // the mode given to open is cut by the umask
		return err
	}
	return f.Sync()
}

// contextReader ends with ctx.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
