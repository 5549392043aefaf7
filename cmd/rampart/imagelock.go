package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/images"
)

// A lockFile says what the images of a configuration are built from. It is written when an image is first
// built, and obeyed from then on. The zero value is that of a configuration that is in no folder: none.
type lockFile struct{ path string }

func lockFileOf(cfg *config.Config) lockFile {
	if cfg.Folder == "" {
		return lockFile{}
	}
	return lockFile{filepath.Join(cfg.Folder, config.LockName)}
}

// target is the file itself, where its name in the folder is a link to it.
func (f lockFile) target() string {
	if target, err := filepath.EvalSymlinks(f.path); err == nil {
		return target
	}
	return f.path
}

// read returns the entries.
func (f lockFile) read() (config.Locks, error) {
	if f.path == "" {
		return config.Locks{}, nil
	}
	return config.ReadLocks(f.path)
}

// apply gives spec the lock that the file has for it. It is false where the file has none, or one for a
// block that asked for something else.
func (f lockFile) apply(spec images.Spec) (images.Spec, bool, error) {
	locks, err := f.read()
	if err != nil {
		return spec, false, err
	}
	entry, ok := locks[spec.Name]
	if !ok || entry.Request != spec.Request() {
		return spec, false, nil
	}
	spec.Lock = &entry.Lock
	return spec, true, nil
}

// change replaces the file by what edit makes of its entries, with nobody else at it meanwhile. Nothing is
// written where edit fails or changes nothing.
func (f lockFile) change(ctx context.Context, edit func(config.Locks) error) error {
	unlock, err := lockFolder(ctx, filepath.Dir(f.target()))
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.path, err)
	}
	defer unlock()
	locks, err := f.read()
	if err != nil {
		return err
	}
	before := string(locks.Format())
	if err := edit(locks); err != nil {
		return err
	}
	after := locks.Format()
	if string(after) == before {
		return nil
	}
	if err := renameio.WriteFile(f.target(), after, 0o644, renameio.WithExistingPermissions()); err != nil {
		return &unwritableError{f.path, err}
	}
	return nil
}

// lockFolder holds a folder against other processes of this program. It leaves nothing behind.
func lockFolder(ctx context.Context, path string) (unlock func(), err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = dir.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(err, dir.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), dir.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// unwritableError is a lock file that cannot be written.
type unwritableError struct {
	path string
	err  error
}

func (e *unwritableError) Error() string { return fmt.Sprintf("write %s: %v", e.path, e.err) }
func (e *unwritableError) Unwrap() error { return e.err }

// pin gives spec its lock, and writes that into the file where it is not there yet. A block that was changed
// keeps the versions of what it still has.
func (c *cli) pin(ctx context.Context, store *images.Store, file lockFile, spec images.Spec) (images.Spec, error) {
	pinned, ok, err := file.apply(spec)
	if ok || err != nil {
		return pinned, err
	}
	err = file.change(ctx, func(locks config.Locks) error {
		entry, known := locks[spec.Name]
		if known && entry.Request == spec.Request() { // another process was faster
			pinned.Lock = &entry.Lock
			return nil
		}
		keep := images.Lock{}
		if known && entry.Suite == spec.Suite {
			keep = entry.Lock
		}
		lock, err := c.choosePackages(ctx, store, spec, keep)
		if err != nil {
			return err
		}
		pinned.Lock = &lock
		c.sayMoves(spec.Name, entry.Lock, lock)
		locks[spec.Name] = newEntry(spec, lock)
		return nil
	})
	var unwritable *unwritableError
	if errors.As(err, &unwritable) {
		c.log.Warn("image "+spec.Name+" is not locked: a later build may have other packages", "cause", err)
		err = nil
	}
	return pinned, err
}

// choosePackages returns what an image is to be built from: what the last one was that was built here for the same
// block, unless some versions are to be kept, else what the archive has.
func (c *cli) choosePackages(ctx context.Context, store *images.Store, spec images.Spec, keep images.Lock) (images.Lock, error) {
	if len(keep.Packages) == 0 {
		if image, err := lookUp(store, spec); !errors.Is(err, fs.ErrNotExist) {
			return image.Lock(), err
		}
	}
	c.sayf("image: choosing packages for %s", spec.Name)
	return store.Resolve(ctx, spec, keep)
}

// move replaces the locks of these images by what their archives have now, whatever the file says, and drops
// those of blocks that are gone.
func (c *cli) move(ctx context.Context, cfg *config.Config, specs []images.Spec) error {
	store, err := openStore()
	if err != nil {
		return err
	}
	file := lockFileOf(cfg)
	fresh := map[string]images.Lock{}
	for _, spec := range specs {
		if spec.Disk != "" {
			continue
		}
		c.sayf("image: choosing packages for %s", spec.Name)
		lock, err := store.Resolve(ctx, spec, images.Lock{})
		if err != nil {
			return fmt.Errorf("update image %s: %w", spec.Name, err)
		}
		fresh[spec.Name] = lock
	}
	if _, err := file.read(); isDamaged(err) {
		if err := os.Truncate(file.path, 0); err != nil {
			return fmt.Errorf("update images: %w", err)
		}
		c.sayf("%s was damaged and is written anew", file.path)
	}
	return file.change(ctx, func(locks config.Locks) error {
		for _, spec := range specs {
			lock, ok := fresh[spec.Name]
			if !ok {
				continue
			}
			before := locks[spec.Name]
			if before.Lock.Digest() == lock.Digest() && before.Request == spec.Request() {
				c.sayf("image %s is locked to the newest packages already", spec.Name)
				continue
			}
			c.sayMoves(spec.Name, before.Lock, lock)
			locks[spec.Name] = newEntry(spec, lock)
		}
		c.prune(locks, cfg, specs)
		return nil
	})
}

// tidy drops the locks of image blocks that are gone.
func (c *cli) tidy(ctx context.Context, cfg *config.Config, specs []images.Spec) error {
	file := lockFileOf(cfg)
	if file.path == "" || !cfg.Whole {
		return nil
	}
	return file.change(ctx, func(locks config.Locks) error { c.prune(locks, cfg, specs); return nil })
}

// prune drops entries of blocks that are gone. Where only a file of the folder was read, another file may
// have the block.
func (c *cli) prune(locks config.Locks, cfg *config.Config, specs []images.Spec) {
	if !cfg.Whole {
		return
	}
	for name := range locks {
		used := slices.ContainsFunc(specs, func(s images.Spec) bool { return s.Name == name && s.Disk == "" })
		if !used && !slices.Contains(cfg.ImageBlocks, name) {
			delete(locks, name)
			c.sayf("image %s is no longer in the configuration: its lock is dropped", name)
		}
	}
}

// isDamaged reports whether it is the content of a lock file that is wrong. One that could not be read may be whole.
func isDamaged(err error) bool {
	damaged, ok := errors.AsType[*config.Error](err)
	return ok && damaged.Unwrap() == nil
}

func newEntry(spec images.Spec, lock images.Lock) config.LockedImage {
	return config.LockedImage{Lock: lock, Request: spec.Request(), Locked: time.Now().UTC().Truncate(time.Second)}
}

// sayMoves says how a lock changed.
func (c *cli) sayMoves(name string, before, after images.Lock) {
	if len(before.Packages) == 0 {
		c.sayf("image %s is locked to %s in %s", name, plural(len(after.Packages), "package"), config.LockName)
		return
	}
	version := func(list []images.Package, name string) string {
		for _, p := range list {
			if p.Name == name {
				return p.Version
			}
		}
		return ""
	}
	var lines []string
	for _, p := range after.Packages {
		switch was := version(before.Packages, p.Name); was {
		case p.Version:
		case "":
			lines = append(lines, "+ "+p.Name+" "+p.Version)
		default:
			lines = append(lines, "  "+p.Name+" "+was+" → "+p.Version)
		}
	}
	for _, p := range before.Packages {
		if version(after.Packages, p.Name) == "" {
			lines = append(lines, "- "+p.Name+" "+p.Version)
		}
	}
	c.sayf("image %s: %s changed in %s", name, plural(len(lines), "package"), config.LockName)
	if len(lines) > 0 {
		c.sayf("%s", strings.Join(lines, "\n"))
	}
}
