package images

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Store keeps images in a folder, each under its content digest. It is safe for use by several
// processes at once.
//
//	images/HEX/    one image: its files and image.json
//	specs/HEX      symbolic link from a Spec's digest to the image that was built for it
//	locks/HEX      held while that Spec is being built
//	tmp/HEX.…/     a build under way
type Store struct{ dir string }

// SystemDir is where root keeps images; anybody may read them.
const SystemDir = "/var/cache/rampart/images"

// DefaultDir is /var/cache/rampart/images for root and rampart/images in the user's cache folder
// ($XDG_CACHE_HOME, ~/.cache) for others. Root with XDG_CACHE_HOME set uses that.
func DefaultDir() (string, error) {
	if os.Geteuid() == 0 && os.Getenv("XDG_CACHE_HOME") == "" {
		return SystemDir, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find folder for images: %w: set XDG_CACHE_HOME", err)
	}
	return filepath.Join(cache, "rampart", "images"), nil
}

// Open returns the store in dir, which is made if needed; "" means [DefaultDir].
func Open(dir string) (*Store, error) {
	if dir == "" {
		var err error
		if dir, err = DefaultDir(); err != nil {
			return nil, err
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	s := &Store{dir: dir}
	for _, sub := range []string{"images", "specs", "locks", "tmp"} {
		if err := os.MkdirAll(s.path(sub), 0o755); err != nil {
			return nil, fmt.Errorf("open image store: %w", err)
		}
	}
	return s, nil
}

// Dir is the folder of the store.
func (s *Store) Dir() string { return s.dir }

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// hexOf is a digest without the name of its algorithm.
func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// Resolve returns what an image for spec would be built from today: what its archive has, in the versions
// of keep where it has those. spec.Lock does not count. Packages of keep that the image would have in
// another version, because the archive no longer has that one, are a [LockError].
func (s *Store) Resolve(ctx context.Context, spec Spec, keep Lock) (Lock, error) {
	spec.Lock = nil
	if err := spec.Validate(); err != nil {
		return Lock{}, err
	}
	unlock, err := s.lock(ctx, hexOf(spec.Digest()), func() {})
	if err != nil {
		return Lock{}, fmt.Errorf("choose packages: wait for another build: %w", err)
	}
	defer unlock()
	return s.choose(ctx, spec, keep)
}

// choose is Resolve; the caller holds the lock of spec.
func (s *Store) choose(ctx context.Context, spec Spec, keep Lock) (_ Lock, err error) {
	if _, err := toolVersions(ctx, tools(os.Geteuid() == 0)); err != nil {
		return Lock{}, err
	}
	if err := s.sweep(hexOf(spec.Digest())); err != nil {
		return Lock{}, err
	}
	tmp, err := os.MkdirTemp(s.path("tmp"), hexOf(spec.Digest())+".")
	if err != nil {
		return Lock{}, hint(fmt.Errorf("choose packages: %w", err))
	}
	defer func() { err = errors.Join(err, removeTree(tmp)) }()
	lock, err := choosePackages(ctx, tmp, spec.withDefaults(), keep)
	if err != nil {
		return Lock{}, hint(err)
	}
	return lock, nil
}

// choosePackages does so in a folder that the caller removes.
func choosePackages(ctx context.Context, dir string, spec Spec, keep Lock) (Lock, error) {
	compiler, err := spec.wantedCompiler()
	if err != nil {
		return Lock{}, err
	}
	a, _, err := newApt(ctx, filepath.Join(dir, "apt"), spec, slices.Concat(keep.Packages, keep.Compiler), nil)
	if err != nil {
		return Lock{}, err
	}
	lock := Lock{Suite: spec.Suite, Architecture: Architecture}
	if lock.Packages, err = a.choose(ctx, spec.wanted()); err != nil {
		return Lock{}, err
	}
	if len(compiler) > 0 {
		if lock.Compiler, err = a.choose(ctx, compiler); err != nil {
			return Lock{}, err
		}
	}
	if err := errors.Join(kept(keep.Packages, lock.Packages), kept(keep.Compiler, lock.Compiler)); err != nil {
		return Lock{}, err
	}
	return lock, lock.Validate()
}

// kept returns a [LockError] if a package of before is now there in another version or with another content.
func kept(before, now []Package) error {
	var still []Package
	for _, p := range before {
		if _, ok := findPackage(now, p.Name); ok {
			still = append(still, p)
		}
	}
	return differences(still, now)
}

// Build returns the image for spec: the stored one if it was built before, else a new one. Without a Lock
// that is the last one that was built without, whatever its archive has by now. Of several
// builds of the same spec at once, in this or other processes, one builds and the others wait.
// A build that fails or is cancelled leaves nothing behind. progress may be nil; it is called from
// one goroutine at a time.
func (s *Store) Build(ctx context.Context, spec Spec, progress func(Progress)) (Image, error) {
	if err := spec.Validate(); err != nil {
		return Image{}, err
	}
	if image, err := s.Lookup(spec); !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	if progress == nil {
		progress = func(Progress) {}
	}
	unlock, err := s.lock(ctx, hexOf(spec.Digest()), func() {
		progress(Progress{Steps: len(buildSteps), Name: "wait for another build of the same image"})
	})
	if err != nil {
		return Image{}, fmt.Errorf("build image: wait for another build: %w", err)
	}
	defer unlock()
	if image, err := s.Lookup(spec); !errors.Is(err, fs.ErrNotExist) {
		return image, err
	}
	if spec.Lock == nil {
		return s.buildUnlocked(ctx, spec, progress)
	}
	return s.build(ctx, spec, progress)
}

// buildUnlocked builds what the archive has; the caller holds the lock of spec.
func (s *Store) buildUnlocked(ctx context.Context, spec Spec, progress func(Progress)) (Image, error) {
	lock, err := s.choose(ctx, spec, Lock{})
	if err != nil {
		return Image{}, fmt.Errorf("build image: %w", err)
	}
	locked := spec
	locked.Lock = &lock
	image, err := s.Build(ctx, locked, progress)
	if err != nil {
		return Image{}, err
	}
	if err := s.point(spec.Digest(), image); err != nil {
		return Image{}, hint(fmt.Errorf("store image: %w", err))
	}
	return s.Lookup(spec)
}

// build builds spec; the caller holds its lock.
func (s *Store) build(ctx context.Context, spec Spec, progress func(Progress)) (_ Image, err error) {
	if err := s.sweep(hexOf(spec.Digest())); err != nil {
		return Image{}, err
	}
	tmp, err := os.MkdirTemp(s.path("tmp"), hexOf(spec.Digest())+".")
	if err != nil {
		return Image{}, hint(fmt.Errorf("build image: %w", err))
	}
	defer func() { err = errors.Join(err, removeTree(tmp)) }()
	b := &builder{spec: spec.withDefaults(), work: tmp, open: tmp, out: filepath.Join(tmp, "out"), progress: progress}
	if os.Geteuid() != 0 {
		// mmdebstrap is then root in a namespace, which is some other user outside, who cannot reach into a home folder.
		if b.open, err = os.MkdirTemp(openDir(), "rampart-build-"); err != nil {
			return Image{}, hint(fmt.Errorf("build image: %w", err))
		}
		defer func() { err = errors.Join(err, removeTree(b.open)) }()
	}
	for _, dir := range []string{tmp, b.open, b.out} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			return Image{}, hint(fmt.Errorf("build image: %w", err))
		}
	}
	image, err := b.build(ctx)
	if err != nil {
		return Image{}, err
	}
	if err := s.adopt(b.out, image); err != nil {
		return Image{}, hint(fmt.Errorf("store image: %w", err))
	}
	return s.Lookup(spec)
}

// openDir is where a folder of hundreds of megabytes can be made that every user can reach: not in memory, as /tmp
// often is.
func openDir() string { return cmp.Or(os.Getenv("TMPDIR"), "/var/tmp") }

// adopt moves a finished image into its place and points its Spec's digest to it.
func (s *Store) adopt(dir string, image Image) error {
	final := s.path("images", hexOf(image.Digest))
	err := os.Rename(dir, final)
	if err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOTEMPTY) {
		return err
	} // else another Spec gave the same content, which is as good
	return s.point(image.SpecDigest, image)
}

// point makes an image the one for a Spec's digest; the caller holds the lock of that.
func (s *Store) point(digest string, image Image) error {
	link := s.path("specs", hexOf(digest))
	fresh := link + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Join("..", "images", hexOf(image.Digest)), fresh); err != nil {
		return err
	}
	return os.Rename(fresh, link)
}

// sweep removes what killed builds and removals left. The caller holds the lock of the Spec with the
// digest own; what belongs to other Specs goes if nobody is building them.
func (s *Store) sweep(own string) error {
	entries, err := os.ReadDir(s.path("tmp"))
	if err != nil {
		return fmt.Errorf("clean up image store: %w", err)
	}
	for _, e := range entries {
		owner, _, _ := strings.Cut(e.Name(), ".")
		if owner != own && owner != removed {
			unlock, err := s.tryLock(owner)
			if err != nil {
				continue
			}
			defer unlock()
		}
		if err := removeTree(s.path("tmp", e.Name())); err != nil {
			return fmt.Errorf("clean up after a build that was killed: %w", err)
		}
	}
	return nil
}

// removed begins the names of images that are being removed.
const removed = "removed"

// removeTree removes a build's folder. It never crosses into another file system: mmdebstrap mounts
// the host's /dev, /proc and /sys below it, and where it had to do so without a mount namespace of
// its own, and was killed, a removal must not reach those.
func removeTree(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			return fmt.Errorf("remove %s: %s is still mounted: unmount it and remove the folder", dir, fields[4])
		}
	}
	return os.RemoveAll(dir)
}

// lock takes the lock called name, and calls waiting once if another has it.
func (s *Store) lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	for first := true; ; first = false {
		unlock, err := s.tryLock(name)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return unlock, err
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tryLock takes the lock called name or returns an error that wraps EWOULDBLOCK. Locks belong to open
// files (flock(2)), so that they exclude goroutines as well as processes and end with their owner.
func (s *Store) tryLock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(s.path("locks", name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "lock", Path: f.Name(), Err: err}, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// Lookup returns the image that was built for spec, or an error that wraps fs.ErrNotExist.
func (s *Store) Lookup(spec Spec) (Image, error) {
	image, err := s.load(s.path("specs", hexOf(spec.Digest())))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, fmt.Errorf("find image %q: it was not built yet: %w", spec.Name, fs.ErrNotExist)
	}
	if err != nil {
		return Image{}, err
	}
	image.Spec.Name = spec.Name
	if spec.Lock != nil {
		image.LockDigest = spec.Lock.Digest() // several locks may give one image
	}
	return image, nil
}

// load reads the image in dir, which may be a link to it.
func (s *Store) load(dir string) (Image, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return Image{}, err
	}
	text, err := os.ReadFile(filepath.Join(dir, metadataFile))
	if err != nil {
		return Image{}, fmt.Errorf("read image: %w", err)
	}
	image := Image{dir: dir}
	if err := json.Unmarshal(text, &image); err != nil {
		return Image{}, fmt.Errorf("read image: %s: %w: remove %s and build it again", metadataFile, err, dir)
	}
	for _, f := range image.Files {
		info, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil || info.Size() != f.Size {
			return Image{}, fmt.Errorf("read image: %s in %s is damaged or missing: remove the folder and build it again", f.Name, dir)
		}
	}
	return image, nil
}

// A DigestError says that a digest, or the beginning of one, names no image, or more than one.
type DigestError struct {
	Digest string
	Images int // that it names
}

func (e *DigestError) Error() string {
	switch {
	case len(hexOf(e.Digest)) < minDigits:
		return fmt.Sprintf("%q is too short for a digest: give six digits or more", e.Digest)
	case e.Images == 0:
		return fmt.Sprintf("no image has the digest %q", e.Digest)
	}
	return fmt.Sprintf("the digests of %d images begin with %q", e.Images, e.Digest)
}

// minDigits is how much of a digest names an image: a slip of the finger should not.
const minDigits = 6

// resolve returns the full name of the folder that a digest or the first digits of one, six or more, mean
// ("sha256:" may be left out). The error is a *DigestError where they mean none or several.
func (s *Store) resolve(digest string) (string, error) {
	all, err := s.names()
	if err != nil {
		return "", err
	}
	var found []string
	for _, name := range all {
		if len(hexOf(digest)) >= minDigits && strings.HasPrefix(name, hexOf(digest)) {
			found = append(found, name)
		}
	}
	if len(found) != 1 {
		return "", &DigestError{Digest: digest, Images: len(found)}
	}
	return found[0], nil
}

func (s *Store) names() ([]string, error) {
	entries, err := os.ReadDir(s.path("images"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// List returns every image, ordered by suite, kernel version and digest. Images that cannot be read
// are in the error; the others are returned all the same.
func (s *Store) List() ([]Image, error) {
	names, err := s.names()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var all []Image
	var errs []error
	for _, name := range names {
		image, err := s.load(s.path("images", name))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, image)
		}
	}
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(cmp.Compare(a.Spec.Suite, b.Spec.Suite), cmp.Compare(a.KernelVersion, b.KernelVersion), cmp.Compare(a.Digest, b.Digest))
	})
	return all, errors.Join(errs...)
}

// Remove deletes the image with that digest, or with the only digest that begins so, even a damaged one. The
// error wraps a [*DigestError] where there is none or more than one.
func (s *Store) Remove(digest string) error {
	name, err := s.resolve(digest)
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	links, err := os.ReadDir(s.path("specs"))
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	for _, l := range links {
		link := s.path("specs", l.Name())
		if target, err := os.Readlink(link); err == nil && filepath.Base(target) == name {
			if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove image: %w", err)
			}
		}
	}
	// Renamed first, so that nobody finds half an image.
	tmp, err := os.MkdirTemp(s.path("tmp"), removed+".")
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	if err := os.Rename(s.path("images", name), filepath.Join(tmp, name)); err != nil {
		return errors.Join(fmt.Errorf("remove image: %w", err), os.Remove(tmp))
	}
	if err := os.RemoveAll(tmp); err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}
