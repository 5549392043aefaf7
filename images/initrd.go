package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// initrdModules are what reaching the root disk takes. Those that are built into the kernel, or that
// it does not have, are passed over; their dependencies come with them.
func initrdModules() []string {
	return []string{"virtio_pci", "virtio_blk", "crc32c_generic", "ext4"}
}

// moduleIndex says which modules a kernel has and what each needs first (depmod's modules.dep).
type moduleIndex struct {
	file  map[string]string   // name -> path below the modules folder
	needs map[string][]string // path -> paths, the last is loaded first
}

// parseModulesDep reads modules.dep: `path: path path …` a line.
func parseModulesDep(text []byte) moduleIndex {
	index := moduleIndex{map[string]string{}, map[string][]string{}}
	for line := range strings.Lines(string(text)) {
		file, needs, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		index.file[moduleName(file)] = file
		index.needs[file] = strings.Fields(needs)
	}
	return index
}

// moduleName is how the kernel calls the module in file: no folder, no extension, _ for -.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".")
	return strings.ReplaceAll(name, "-", "_")
}

// order lists the files of the named modules and of all they need, each after what it needs.
func (m moduleIndex) order(names ...string) []string {
	var files []string
	add := func(file string) {
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	for _, name := range names {
		file, ok := m.file[name]
		if !ok {
			continue
		}
		for _, need := range slices.Backward(m.needs[file]) {
			add(need)
		}
		add(file)
	}
	return files
}

// writeInitrd writes an initial RAM file system with busybox, our init and modules, which are loaded in
// the order given. It is not compressed: the host copies a few megabytes in no time, while an
// emulated guest unpacks them slowly. (The stock initrd takes longer than the rest of the boot.)
func writeInitrd(w io.Writer, busybox []byte, modules []module) error {
	init, err := files.ReadFile("files/initrd-init")
	if err != nil {
		return err
	}
	var order strings.Builder
	records := []cpio.Record{
		cpio.Directory("bin", 0o755),
		cpio.StaticFile("bin/busybox", string(busybox), 0o755),
		cpio.Directory("dev", 0o755),
		// The kernel opens it for init before init can mount anything.
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.StaticFile("init", string(init), 0o755),
		cpio.Directory("modules", 0o755),
	}
	for _, m := range modules {
		records = append(records, cpio.StaticFile("modules/"+m.name+".ko", string(m.content), 0o644))
		order.WriteString(m.name + ".ko\n")
	}
	records = append(records,
		cpio.StaticFile("modules/order", order.String(), 0o644),
		cpio.Directory("proc", 0o755),
		cpio.Directory("root", 0o755),
	)
	return WriteArchive(w, records)
}

// module is a kernel module ready for insmod.
type module struct {
	name    string
	content []byte
}

// unpackModule undoes what distributions do to a module's file; Debian 13 and later use xz.
func unpackModule(ctx context.Context, file string, content []byte) (module, error) {
	m := module{name: moduleName(file), content: content}
	var err error
	switch ext := path.Ext(file); ext {
	case ".ko":
	case ".gz":
		var r *gzip.Reader
		if r, err = gzip.NewReader(bytes.NewReader(content)); err == nil {
			m.content, err = io.ReadAll(r)
		}
	case ".xz", ".zst":
		program := map[string]string{".xz": "xz", ".zst": "zstd"}[ext]
		cmd := exec.CommandContext(ctx, program, "-dc")
		cmd.Stdin = bytes.NewReader(content)
		if m.content, err = cmd.Output(); err != nil {
			err = fmt.Errorf("%s: %w: is %[1]s installed?", program, err)
		}
	default:
		err = fmt.Errorf("%s files are unknown", ext)
	}
	if err != nil {
		return module{}, fmt.Errorf("unpack module %s: %w", path.Base(file), err)
	}
	return m, nil
}
