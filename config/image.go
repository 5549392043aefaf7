package config

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"

	"github.com/rampart-bench/rampart/images"
)

func imageSchema() *schema {
	return &schema{
		name: "image", label: "name", occurs: perLabel,
		doc: "What the virtual machines boot from: a Debian root file system built from packages, or a disk that is there already, such as a distribution's cloud image. Provider `netns` needs none. Referred to as `image.name`. See [images.md](images.md). A block that lists several suites or kernels describes several images, one for each combination: `image \"debian\"` with two suites `debian-bookworm` and `debian-trixie`, with two kernels `debian-cloud-amd64` and `debian-amd64`, the latter named after their packages without `linux-image-`. In a matrix the block's own name stands for all of them.",
		attributes: []attribute{
			{name: "suite", kind: names, def: `"bookworm"`, doc: "Debian suite, or several."},
			{name: "kernel", kind: names, def: `"linux-image-cloud-amd64"`, doc: "Package of the kernel, or several."},
			{name: "mirror", kind: text, example: `"http://mirror.example.org/debian"`, doc: "Archive to take packages from. Default: the one that apt uses on this machine."},
			{name: "snapshot", kind: text, example: `"2026-01-31"`, doc: "Take packages from the archive as it was on that day, or at a time such as `20260131T120000Z`: from snapshot.debian.org, or from the folder of that name below `mirror`."},
			{name: "components", kind: texts, example: `["main", "non-free"]`, doc: "Components of the archive. Default: main."},
			{name: "packages", kind: texts, example: `["netperf"]`, doc: "Packages to install beyond those that the nodes need."},
			{name: "modules", kind: texts, oneOf: images.Modules(), example: `["rtcache"]`, doc: "Kernel modules of this project to build for the kernel, with a compiler that does not go into the image."},
			{name: "disk", kind: text, example: `"debian-12-genericcloud-amd64.qcow2"`, doc: "Boot from this qcow2 file with cloud-init in it instead of an image built from packages. A relative path begins at the file that it stands in. Provider `libvirt` only."},
			{name: "sha256", kind: text, example: `"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"`, doc: "What the SHA-256 of `disk` must be."},
		},
	}
}

// readImage gives the images that a block describes. It also reports what only a look at a whole image shows to
// be wrong, such as the name of a package.
func readImage(b *body) []images.Spec {
	if b.has("disk") || b.has("sha256") {
		return []images.Spec{readDisk(b)}
	}
	before := len(b.r.diags)
	all := imagesOf(b)
	if b.r.failedSince(before) {
		return all
	}
	said := map[string]bool{} // what is wrong with one image of a block often is with all
	for _, spec := range all {
		for mistake := range strings.Lines(errorText(spec.Validate())) {
			mistake = strings.TrimPrefix(strings.TrimSpace(mistake), fmt.Sprintf("image %q: ", spec.Name))
			if !said[mistake] {
				b.r.fail(b.rng, fmt.Sprintf("Image %q cannot be built", cut(spec.Name, 40)), "%s.", mistake)
			}
			said[mistake] = true
		}
	}
	return all
}

// errorText is that of an error, or empty.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func imagesOf(b *body) []images.Spec {
	spec := images.Spec{
		Name:     b.label,
		Mirror:   b.text("mirror"),
		Snapshot: b.text("snapshot"),
	}
	if b.has("components") {
		spec.Components = values(b.texts("components"))
	}
	if b.has("packages") {
		spec.Packages = values(b.texts("packages"))
	}
	if b.has("modules") {
		spec.Modules = values(b.texts("modules"))
	}
	return combinations(spec, values(b.texts("suite")), values(b.texts("kernel")))
}

// readDisk reads a block that names a disk. What it is built from is then not for this block to say.
func readDisk(b *body) images.Spec {
	spec := images.Spec{Name: b.label, Disk: b.text("disk"), SHA256: strings.TrimPrefix(b.text("sha256"), "sha256:")}
	for _, a := range b.sortedAttributes() {
		if a.Name != "disk" && a.Name != "sha256" && slices.Contains(b.schema.attributeNames(), a.Name) {
			b.r.fail(a.NameRange, a.Name+" does not go with disk", "A disk is booted as it is: what is on it is not built from packages. Remove this, or disk and sha256.")
		}
	}
	switch {
	case !b.has("disk"):
		b.r.fail(b.rng, "disk is missing", "sha256 is that of a disk: write disk = \"FILE.qcow2\", or leave sha256 out.")
	case spec.Disk != "" && !filepath.IsAbs(spec.Disk):
		spec.Disk = filepath.Join(filepath.Dir(b.rangeOf("disk").Filename), spec.Disk)
	}
	switch {
	case !b.has("sha256"):
		b.r.fail(b.rng, "sha256 is missing", "Say which disk it must be: sha256 = \"…\", as `sha256sum %s` prints it.", filepath.Base(spec.Disk))
	case !images.IsSHA256(spec.SHA256):
		b.wrong("sha256", &mistake{fmt.Sprintf("cannot be %q", cut(spec.SHA256, 80)), "A SHA-256 has 64 hexadecimal digits in small letters; `sha256sum FILE` prints it."})
	}
	return spec
}

// combinations are the images of a block that lists several suites or kernels, suites first. Where it
// lists several, they are part of the name.
func combinations(spec images.Spec, suites, kernels []string) (all []images.Spec) {
	for _, suite := range suites {
		for _, kernel := range kernels {
			one := spec
			one.Suite, one.Kernel = suite, kernel
			if len(suites) > 1 {
				one.Name += "-" + suite
			}
			if len(kernels) > 1 {
				one.Name += "-" + strings.TrimPrefix(kernel, "linux-image-")
			}
			all = append(all, one)
		}
	}
	return all
}

// imageSet is what the image blocks of a configuration describe.
type imageSet struct {
	all    []images.Spec            // in the order of the text
	called map[string][]images.Spec // by the name of a block or of one image
	names  []string                 // of called: blocks, each before its images where it has several
	disks  map[string]*body         // the right blocks of those that are disks
}

// readImages reads the blocks and makes the names of single images known to references.
func (r *reader) readImages(blocks []*body) imageSet {
	set := imageSet{called: map[string][]images.Spec{}, disks: map[string]*body{}}
	for _, b := range blocks {
		before := len(r.diags)
		specs := readImage(b)
		if b.has("disk") && !r.failedSince(before) {
			set.disks[b.label] = b
		}
		set.all = append(set.all, specs...)
		set.add(b, b.label, specs)
		for _, spec := range specs {
			if spec.Name != b.label {
				set.add(b, spec.Name, []images.Spec{spec})
			}
		}
	}
	r.declare("image", set.names)
	return set
}

// add puts a name into the set. Two blocks have two names, but one may be called as an image of the other.
func (set *imageSet) add(b *body, name string, specs []images.Spec) {
	if _, taken := set.called[name]; taken {
		b.r.fail(b.rng, fmt.Sprintf("There are two images %q", name), "A block that lists several suites or kernels has images whose names begin with its own: give one of the two blocks another name.")
		return
	}
	set.called[name] = specs
	set.names = append(set.names, name)
}

// choose finds the images that the command line names.
func (r *reader) choose(set imageSet, names []string) (all []images.Spec) {
	for _, name := range names {
		specs, ok := set.called[name]
		if !ok {
			r.fail(hcl.Range{}, fmt.Sprintf("There is no image %q", cut(name, 40)), "%s", unknownImage(name, set.names))
		}
		for _, spec := range specs {
			if !slices.Contains(namesOf(all), spec.Name) {
				all = append(all, spec)
			}
		}
	}
	return all
}

// unknownImage says which images there are in the place of one that there is not.
func unknownImage(name string, names []string) string {
	if len(names) == 0 {
		return fmt.Sprintf("The configuration has no image block, and boots Debian with the defaults of one. Leave this out, or write a block: image %q {}.", cut(name, 40))
	}
	return unknown(name, names, "There is")
}

// readWhatBoots looks at the files that machines boot from beside the texts: the lock file and disks.
func (r *reader) readWhatBoots(cfg *Config) {
	var booted []images.Spec
	for _, level := range cfg.ImageLevels() {
		booted = append(booted, cfg.ImageCalled(level))
	}
	if cfg.Provider == "exact" {
		r.refuseDisks(booted)
	}
	if r.purpose == Reading || r.purpose == Booting && cfg.Provider == "netns" {
		return
	}
	if cfg.Folder != "" && r.purpose != Relocking {
		r.lockFile(filepath.Join(cfg.Folder, LockName))
	}
	for _, spec := range booted {
		if b := r.disks[spec.Name]; b != nil && cfg.Provider != "exact" {
			checkDisk(b, spec)
		}
	}
}

// refuseDisks says that provider exact boots none.
func (r *reader) refuseDisks(booted []images.Spec) {
	for _, spec := range booted {
		if b := r.disks[spec.Name]; b != nil {
			b.wrong("disk", &mistake{"means nothing here", "The machine of provider exact has none: it takes programs and modules from an image that is built from packages."})
		}
	}
}

// checkDisk holds a disk to what its block says.
func checkDisk(b *body, spec images.Spec) {
	_, err := images.OpenDisk(context.Background(), spec)
	if err == nil {
		return
	}
	right := "Name a qcow2 file that can be read."
	if advised, ok := errors.AsType[*images.Advised](err); ok {
		right = sentence(advised.Next)
	}
	b.wrong("disk", &mistake{"cannot be booted: " + err.Error(), right})
}

// chooseImage finds the image of the testbed: the one it names, else the only one there is, else
// Debian with defaults.
func (set imageSet) chooseImage(testbed *body) images.Spec {
	if testbed.has("image") {
		name := testbed.text("image")
		specs, ok := set.called[name]
		switch {
		case name == "":
		case !ok:
			testbed.wrong("image", &mistake{fmt.Sprintf("names no image: %q", cut(name, 40)), unknown(name, set.names, "The image blocks of this configuration are")})
		case len(specs) > 1:
			testbed.wrong("image", &mistake{"names several images", fmt.Sprintf("A testbed boots one: %s. To measure across them, write image = image.%s in a matrix.", oneOf(namesOf(specs)), name)})
		case len(specs) == 1:
			return specs[0]
		}
		return images.Spec{}
	}
	switch len(set.all) {
	case 0:
		if len(set.names) > 0 {
			return images.Spec{} // its block has mistakes
		}
		absent := &body{r: testbed.r, schema: imageSchema(), label: "default", rng: testbed.rng}
		return readImage(absent)[0]
	case 1:
		return set.all[0]
	}
	testbed.r.fail(testbed.rng, "The testbed does not say which image it boots", "Write image = image.NAME in the testbed block: there is %s.", oneOf(namesOf(set.all)))
	return images.Spec{}
}

func namesOf(specs []images.Spec) []string {
	var names []string
	for _, spec := range specs {
		names = append(names, spec.Name)
	}
	return names
}
