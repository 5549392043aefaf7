package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// A Subset names the part of an image that is enough for a machine that runs from memory. What the
// image does not have is passed over: whoever misses a program says so better than this can.
type Subset struct {
	// Programs are looked for in /usr/sbin and /usr/bin; the shared libraries they need come along.
	Programs []string
	// Plugins are patterns (see [path.Match]) of files that programs load by themselves.
	Plugins []string
	// Modules are patterns of kernel modules, below the folder of the image's kernel, such as
	// kernel/net/netfilter/*; what they need comes along.
	Modules []string
}

// libraryFolders are where Debian keeps shared libraries.
var libraryFolders = []string{"usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"}

// moduleTables are depmod's indexes, from which modprobe finds modules and aliases.
const moduleTables = "modules.*"

// WriteSubset writes a part of the image's root file system as a cpio archive in the form that the
// kernel unpacks. It is not compressed (see [Image.Initrd]), holds nothing but what s names, and is
// the same to the byte whenever the same is asked of the same image.
func (i Image) WriteSubset(w io.Writer, s Subset) error {
	tree, err := readTree(i.Root(), func(name string) bool {
		dir := path.Dir(name)
		return dir == "usr/sbin" || dir == "usr/bin" || slices.Contains(libraryFolders, dir) ||
			matchAny(s.Plugins, name) || isModuleTable(i.KernelVersion, name)
	})
	if err != nil {
		return fmt.Errorf("take subset of image: %w", err)
	}
	pick := picker{tree: tree, picked: map[string]bool{}}
	for name, e := range tree {
		top := !strings.Contains(name, "/") && e.link != "" // bin, lib and so on: merged /usr
		if top || matchAny(s.Plugins, name) || isModuleTable(i.KernelVersion, name) {
			pick.add(name)
		}
	}
	for _, program := range s.Programs {
		pick.add("usr/sbin/" + program)
		pick.add("usr/bin/" + program)
	}
	if err := pick.addLibraries(); err != nil {
		return fmt.Errorf("take subset of image: %w", err)
	}
	if err := i.addModules(&pick, s.Modules); err != nil {
		return fmt.Errorf("take subset of image: %w", err)
	}
	return pick.write(w)
}

// addModules picks the modules that match and those that they need.
func (i Image) addModules(pick *picker, patterns []string) error {
	folder := path.Join("usr/lib/modules", i.KernelVersion)
	dep, ok := pick.tree[path.Join(folder, "modules.dep")]
	if !ok {
		return fmt.Errorf("find %s/modules.dep in the root file system: %w", folder, fs.ErrNotExist)
	}
	index := parseModulesDep(dep.content)
	var names []string
	for file := range index.needs {
		if matchAny(patterns, file) {
			names = append(names, moduleName(file))
		}
	}
	slices.Sort(names)
	wanted := map[string]bool{}
	for _, file := range index.order(names...) {
		wanted[path.Join(folder, file)] = true
	}
	modules, err := readTree(i.Root(), func(name string) bool { return wanted[name] })
	if err != nil {
		return err
	}
	maps.Copy(pick.tree, modules)
	for name := range modules {
		pick.add(name)
	}
	return nil
}

func isModuleTable(kernel, name string) bool {
	dir, base := path.Split(name)
	ok, _ := path.Match(moduleTables, base)
	return ok && path.Clean(dir) == path.Join("usr/lib/modules", kernel)
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name)
		return ok
	})
}

// An entry is a file or a symbolic link of a root file system.
type entry struct {
	mode    uint64
	link    string // target; "" for a regular file
	content []byte
}

// readTree reads the wanted files, and every symbolic link, of the tar in file. A hard link becomes a
// file of its own; the tar has the file it links to before it.
func readTree(file string, wanted func(name string) bool) (map[string]entry, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path.Base(file), err)
	}
	tree := map[string]entry{}
	err = eachEntry(unzipped, func(h *tar.Header, content io.Reader) error {
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeSymlink:
			tree[name] = entry{mode: 0o777, link: h.Linkname}
		case tar.TypeLink:
			if e, ok := tree[path.Clean(h.Linkname)]; ok && wanted(name) {
				tree[name] = e
			}
		case tar.TypeReg:
			if !wanted(name) {
				return nil
			}
			b, err := io.ReadAll(content)
			tree[name] = entry{mode: uint64(h.Mode & 0o777), content: b}
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path.Base(file), err)
	}
	return tree, nil
}

// A picker collects what goes into an archive.
type picker struct {
	tree   map[string]entry
	picked map[string]bool
}

// add picks a file, or a symbolic link and what it leads to, if the tree has it.
func (p *picker) add(name string) {
	e, ok := p.tree[name]
	if !ok || p.picked[name] {
		return
	}
	p.picked[name] = true
	if e.link == "" {
		return
	}
	target := strings.TrimPrefix(e.link, "/")
	if !path.IsAbs(e.link) {
		target = path.Join(path.Dir(name), e.link)
	}
	p.add(target)
}

// addLibraries picks the shared libraries and the loader of everything that is picked, and those that
// they need in turn.
func (p *picker) addLibraries() error {
	done := map[string]bool{}
	for len(done) < len(p.picked) {
		for _, name := range slices.Sorted(maps.Keys(p.picked)) {
			if done[name] {
				continue
			}
			done[name] = true
			needs, err := libraries(p.tree[name].content)
			if err != nil {
				return fmt.Errorf("look for the libraries of %s: %w", name, err)
			}
			for _, library := range needs {
				for _, folder := range libraryFolders {
					p.add(path.Join(folder, path.Base(library)))
				}
			}
		}
	}
	return nil
}

// libraries lists the shared libraries that a program or library names, and its loader. A file that is
// neither has none.
func libraries(content []byte) ([]string, error) {
	if !bytes.HasPrefix(content, []byte(elf.ELFMAG)) {
		return nil, nil
	}
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	needs, err := file.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, part := range file.Progs {
		if part.Type != elf.PT_INTERP {
			continue
		}
		loader, err := io.ReadAll(part.Open())
		if err != nil {
			return nil, err
		}
		needs = append(needs, strings.TrimRight(string(loader), "\x00"))
	}
	return needs, nil
}

// write writes what is picked, each folder before what is in it.
func (p *picker) write(w io.Writer) error {
	var records []cpio.Record
	folders := map[string]bool{".": true}
	var folder func(name string)
	folder = func(name string) {
		if folders[name] {
			return
		}
		folders[name] = true
		folder(path.Dir(name))
		records = append(records, cpio.Directory(name, 0o755))
	}
	for _, name := range slices.Sorted(maps.Keys(p.picked)) {
		folder(path.Dir(name))
		e := p.tree[name]
		if e.link != "" {
			records = append(records, cpio.Symlink(name, e.link))
		} else {
			records = append(records, cpio.StaticFile(name, string(e.content), e.mode))
		}
	}
	return WriteArchive(w, records)
}

// WriteArchive writes a cpio archive in the form that the kernel unpacks into its first file system,
// with nothing in it that depends on where and when it was made. Archives can be written one behind
// the other; the kernel unpacks them all.
func WriteArchive(w io.Writer, records []cpio.Record) error {
	out := cpio.Newc.Writer(w)
	for i, r := range records {
		r.Ino, r.NLink, r.MTime = uint64(i+1), 1, uint64(epoch.Unix())
		if err := out.WriteRecord(r); err != nil {
			return fmt.Errorf("write archive: %s: %w", r.Name, err)
		}
	}
	if err := cpio.WriteTrailer(out); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}
