package images

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// moduleSources holds the kernel modules of this project, a folder each. They are built with an image
// that asks for them, because a module fits one build of the kernel alone.
//
//go:embed rtcache/rtcache.c rtcache/Kbuild
var moduleSources embed.FS

// Modules are the kernel modules that an image can have beyond those of its kernel's package.
func Modules() []string { return []string{"rtcache"} }

// moduleRecipe returns what building the named modules takes, by path: their sources and the script that
// compiles them. Names of no module of ours add nothing; [Spec.Validate] refuses them.
func moduleRecipe(names []string) map[string]string {
	read := func(from embed.FS, file string) string {
		content, err := from.ReadFile(file)
		if err != nil {
			panic(err) // it is part of this program
		}
		return string(content)
	}
	recipe := map[string]string{"build": read(files, "files/build-modules")}
	for _, name := range names {
		entries, _ := moduleSources.ReadDir(name)
		for _, e := range entries {
			file := name + "/" + e.Name()
			recipe[file] = read(moduleSources, file)
		}
	}
	return recipe
}

// headersPackage is the package with what compiling modules for the kernel of a package takes. Debian
// names the two alike.
func headersPackage(kernel string) (string, error) {
	flavour, ok := strings.CutPrefix(kernel, "linux-image-")
	if !ok {
		return "", fmt.Errorf("modules need a kernel whose package is called linux-image-…, for its headers: kernel = %q", kernel)
	}
	return "linux-headers-" + strings.TrimSuffix(flavour, "-unsigned"), nil
}

// compilerPackages are what a build root needs beside the headers, which bring the compiler along:
// the one that built the kernel.
func compilerPackages() []string {
	return []string{"base-files", "binutils", "coreutils", "dash", "findutils", "grep", "make", "mawk", "sed"}
}

// buildModules compiles the modules of the Spec in a root file system of their own, whose packages are
// only unpacked and which goes away again: half a minute, and no compiler in the node. It returns
// the options of mmdebstrap that put the modules into the image.
func (b *builder) buildModules(ctx context.Context) ([]string, error) {
	if len(b.spec.Modules) == 0 {
		return nil, nil
	}
	sources, built := b.workFile("modules"), b.workFile("built")
	if err := b.writeModules(sources); err != nil {
		return nil, err
	}
	argv := append([]string{
		"mmdebstrap", "--variant=extract", "--format=null",
		"--hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr",
		"--include=" + names(b.image.Compiler),
		"--extract-hook=ln -s mawk \"$1/usr/bin/awk\"", // what configuring the package would do
		"--extract-hook=copy-in " + shellQuote(sources) + " /",
		"--extract-hook=chroot \"$1\" sh /modules/build",
		"--extract-hook=copy-out /built " + shellQuote(b.work),
	}, from(b.compilerPool(), "/dev/null")...)
	if err := b.mmdebstrap(ctx, argv); err != nil {
		return nil, fmt.Errorf("build kernel modules: %w", err)
	}
	version, err1 := os.ReadFile(filepath.Join(built, "version"))
	compiler, err2 := os.ReadFile(filepath.Join(built, "compiler"))
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("build kernel modules: %w", err)
	}
	b.image.Tools["gcc"] = strings.TrimSpace(string(compiler))
	return installModules(built, strings.TrimSpace(string(version)), b.spec.Modules), nil
}

// writeModules lays out what building takes in one folder.
func (b *builder) writeModules(dir string) error {
	for name, content := range moduleRecipe(b.spec.Modules) {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			return fmt.Errorf("lay out kernel modules: %w", err)
		}
	}
	return nil
}

// installModules returns the hooks that copy modules out of dir into the folder of the kernel with
// that version, and index them. That kernel must be the one that was installed.
func installModules(dir, version string, names []string) []string {
	folder := "/usr/lib/modules/" + version
	hooks := []string{
		fmt.Sprintf(`--customize-hook=test -d "$1%s" || { echo "the kernel modules are for %s: another kernel was installed" >&2; exit 1; }`, folder, version),
		fmt.Sprintf(`--customize-hook=mkdir "$1%s/extra"`, folder),
	}
	for _, name := range names {
		hooks = append(hooks, fmt.Sprintf("--customize-hook=copy-in %s %s/extra", shellQuote(filepath.Join(dir, name+".ko")), folder))
	}
	return append(hooks,
		fmt.Sprintf(`--customize-hook=chown -R 0:0 "$1%[1]s/extra" && chmod -R u=rwX,go=rX "$1%[1]s/extra"`, folder), // whoever builds
		fmt.Sprintf(`--customize-hook=chroot "$1" depmod %s`, version))
}

// shellQuote makes one word of s for a shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
