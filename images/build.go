package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Progress is one step of a build.
type Progress struct {
	Step   int    // from 1
	Steps  int    // how many there will be
	Name   string // what is being done, such as "install packages"
	Detail string // changes within a step: the tool's last line; may be empty
}

// buildSteps are the names of the steps of a build, in order.
var buildSteps = [...]string{"check tools", "fetch packages", "install packages", "clean root file system", "make initrd", "make disk", "store image"}

// builder is one build: it works in a folder of its own and leaves it to the store.
type builder struct {
	spec     Spec
	work     string // scratch, removed by the caller
	open     string // the same for mmdebstrap, which may be another user to whom work is closed
	out      string // becomes the image
	progress func(Progress)
	step     int
	image    Image
	root     rootArchive
}

func (b *builder) begin() {
	b.step++
	b.detail("")
}

func (b *builder) detail(line string) {
	b.progress(Progress{Step: b.step, Steps: len(buildSteps), Name: buildSteps[b.step-1], Detail: line})
}

func (b *builder) workFile(name string) string { return filepath.Join(b.work, name) }
func (b *builder) outFile(name string) string  { return filepath.Join(b.out, name) }

// build makes everything that an image consists of in b.out.
func (b *builder) build(ctx context.Context) (Image, error) {
	asRoot := os.Geteuid() == 0
	b.image = Image{Spec: b.spec, SpecDigest: b.spec.Digest(), LockDigest: b.spec.Lock.Digest()}
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) (err error) {
			b.image.Tools, err = toolVersions(ctx, tools(asRoot))
			return err
		},
		b.fetch,
		b.bootstrap,
		b.clean,
		b.initrd,
		func(ctx context.Context) error {
			return makeDisk(ctx, b.work, b.workFile("root.tar"), b.outFile(diskFile), b.root, asRoot)
		},
		b.describe,
	} {
		b.begin()
		if err := ctx.Err(); err != nil {
			return Image{}, fmt.Errorf("build image: %w", context.Cause(ctx))
		}
		if err := step(ctx); err != nil {
			return Image{}, hint(fmt.Errorf("build image: %w", err))
		}
	}
	return b.image, nil
}

// fetch makes archives of what is locked, one of the image and one of the compiler.
func (b *builder) fetch(ctx context.Context) error {
	lock := *b.spec.Lock
	a, from, err := newApt(ctx, b.workFile("apt"), b.spec, nil, b.detail)
	if err != nil {
		return err
	}
	for _, s := range from {
		b.image.Sources = append(b.image.Sources, s.String())
	}
	b.image.Packages, b.image.Compiler = lock.Packages, lock.Compiler
	if err := a.fetch(ctx, lock.Packages, b.pool()); err != nil {
		return err
	}
	if len(lock.Compiler) == 0 {
		return nil
	}
	return a.fetch(ctx, lock.Compiler, b.compilerPool())
}

// The folders that are archives of what is locked.
func (b *builder) pool() string         { return filepath.Join(b.open, "packages") }
func (b *builder) compilerPool() string { return filepath.Join(b.open, "compiler") }

// bootstrap installs the packages and leaves the result in bootstrap.tar.
func (b *builder) bootstrap(ctx context.Context) error {
	modules, err := b.buildModules(ctx)
	if err != nil {
		return err
	}
	argv := []string{
		"mmdebstrap", "--variant=essential", "--format=tar",
		// Merged /usr, as every installed Debian has it; a suite that comes so needs no help.
		"--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr",
		"--include=" + names(b.image.Packages),
	}
	argv = append(argv, modules...)
	return b.mmdebstrap(ctx, append(argv, from(b.pool(), b.workFile("bootstrap.tar"))...))
}

// names lists packages for mmdebstrap.
func names(packages []Package) string {
	var list []string
	for _, p := range packages {
		list = append(list, p.Name)
	}
	return strings.Join(list, ",")
}

// from are mmdebstrap's last arguments: no suite, where the result goes, and the folder that is the only
// archive. The folder has exactly what is to be installed, and each file was held against its hash.
func from(pool, target string) []string {
	archive := url.URL{Scheme: "copy", Path: pool}
	return []string{`--aptopt=APT::Install-Recommends "false"`, "", target, "deb [trusted=yes] " + archive.String() + " ./"}
}

// mmdebstrap runs it.
func (b *builder) mmdebstrap(ctx context.Context, argv []string) error {
	return command{
		argv: argv,
		env: []string{
			"SOURCE_DATE_EPOCH=" + fmt.Sprint(epoch.Unix()),
			"TMPDIR=" + b.open,
			"INITRD=No", // Debian's kernel packages then make no initrd
			"DEBIAN_FRONTEND=noninteractive",
		},
		line:   b.detail,
		mounts: true,
	}.run(ctx)
}

// clean makes the root archive, in plain for the next steps and compressed for the store.
func (b *builder) clean(context.Context) error {
	in, err := os.Open(b.workFile("bootstrap.tar"))
	if err != nil {
		return err
	}
	defer in.Close()
	plain, err := os.Create(b.workFile("root.tar"))
	if err != nil {
		return err
	}
	zipped, err := os.Create(b.outFile(rootFile))
	if err != nil {
		return errors.Join(err, plain.Close())
	}
	b.root, err = normalise(in, plain, zipped)
	if err := errors.Join(err, plain.Close(), zipped.Close()); err != nil {
		return fmt.Errorf("clean root file system: %w", err)
	}
	b.image.RootDigest, b.image.DiskSize = b.root.digest, diskSize(b.root.content)
	return nil
}

// initrd takes the kernel out of what was bootstrapped, makes an initrd for it, and reads which
// packages there are.
func (b *builder) initrd(ctx context.Context) error {
	const modulesGlob = "usr/lib/modules/*/modules.dep"
	found, err := readFiles(b.workFile("bootstrap.tar"), func(name string) bool {
		kernel, _ := path.Match("boot/vmlinuz-*", name)
		dep, _ := path.Match(modulesGlob, name)
		return kernel || dep || name == "usr/bin/busybox" || name == "var/lib/dpkg/status"
	})
	if err != nil {
		return err
	}
	_, kernel, err := one(found, "boot/vmlinuz-*")
	if err != nil {
		return err
	}
	depFile, dep, err := one(found, modulesGlob)
	if err != nil {
		return err
	}
	folder := path.Dir(depFile)
	b.image.KernelVersion = path.Base(folder)
	if err := sameAsLocked(installed(found["var/lib/dpkg/status"]), b.image.Packages); err != nil {
		return err
	}
	b.notes()

	order := parseModulesDep(dep).order(initrdModules()...)
	wanted := map[string]bool{}
	for _, file := range order {
		wanted[path.Join(folder, file)] = true
	}
	contents, err := readFiles(b.workFile("bootstrap.tar"), func(name string) bool { return wanted[name] })
	if err != nil {
		return err
	}
	var modules []module
	for _, file := range order {
		m, err := unpackModule(ctx, file, contents[path.Join(folder, file)])
		if err != nil {
			return err
		}
		modules = append(modules, m)
	}
	var initrd bytes.Buffer
	if err := writeInitrd(&initrd, found["usr/bin/busybox"], modules); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(b.outFile(kernelFile), kernel, 0o644),
		os.WriteFile(b.outFile(initrdFile), initrd.Bytes(), 0o644),
	)
}

// sameAsLocked returns an error unless exactly what is locked was installed.
func sameAsLocked(got, locked []Package) error {
	list := func(packages []Package) (all []string) {
		for _, p := range packages {
			all = append(all, p.exactly())
		}
		return all
	}
	g, w := list(got), list(locked)
	for _, p := range w {
		if !slices.Contains(g, p) {
			return fmt.Errorf("check what was installed: %s is locked and was not installed", p)
		}
	}
	for _, p := range g {
		if !slices.Contains(w, p) {
			return fmt.Errorf("check what was installed: %s was installed and is not locked", p)
		}
	}
	return nil
}

// notes says what the image lacks.
func (b *builder) notes() {
	if _, ok := b.image.Installed(netperf); !ok {
		b.image.Notes = append(b.image.Notes, fmt.Sprintf(
			"netperf is not in this image: %s of %s has no such package; Debian keeps it in non-free",
			strings.Join(b.spec.Components, ", "), b.spec.Suite))
	}
}

// describe writes the metadata.
func (b *builder) describe(context.Context) error {
	content := sha256.New()
	for _, name := range []string{kernelFile, initrdFile, diskFile, rootFile} {
		f, err := b.finish(name)
		if err != nil {
			return err
		}
		b.image.Files = append(b.image.Files, f)
		b.image.Size += f.Size
		if name == rootFile {
			f.SHA256 = b.image.RootDigest // not how it happens to be compressed
		}
		fmt.Fprintf(content, "%s %s\n", name, f.SHA256)
	}
	b.image.Digest = "sha256:" + hex.EncodeToString(content.Sum(nil))
	text, err := json.MarshalIndent(b.image, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.outFile(metadataFile), append(text, '\n'), 0o644); err != nil {
		return err
	}
	_, err = b.finish(metadataFile)
	return err
}

// finish hashes a file, brings it to the disk and makes it readable to all, and writable to none:
// QEMU runs as a user of its own.
func (b *builder) finish(name string) (StoredFile, error) {
	f, err := os.Open(b.outFile(name))
	if err != nil {
		return StoredFile{}, err
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err := errors.Join(err, f.Chmod(0o444), f.Sync()); err != nil {
		return StoredFile{}, fmt.Errorf("store %s: %w", name, err)
	}
	return StoredFile{Name: name, Size: size, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}
