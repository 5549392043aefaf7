package config

import (
	"fmt"
	"strings"

	"github.com/rampart-bench/rampart/images"
)

func imageSchema() *schema {
	return &schema{
		name: "image", label: "name", occurs: perLabel,
		doc: "What the virtual machines boot from: a Debian root file system built from packages. Provider `netns` needs none. Referred to as `image.name`.",
		attributes: []attribute{
			{name: "suite", kind: text, def: `"bookworm"`, doc: "Debian suite."},
			{name: "kernel", kind: text, def: `"linux-image-cloud-amd64"`, doc: "Package of the kernel."},
			{name: "mirror", kind: text, example: `"http://mirror.example.org/debian"`, doc: "Archive to take packages from. Default: the one that apt uses on this machine."},
			{name: "components", kind: texts, example: `["main", "non-free"]`, doc: "Components of the archive. Default: main."},
			{name: "packages", kind: texts, example: `["netperf"]`, doc: "Packages to install beyond those that the nodes need."},
			{name: "modules", kind: texts, oneOf: images.Modules(), example: `["rtcache"]`, doc: "Kernel modules of this project to build for the kernel, with a compiler that does not go into the image."},
		},
	}
}

// readImage also reports what only a look at the whole image shows to be wrong, such as the name of a package.
func readImage(b *body) images.Spec {
	before := len(b.r.diags)
	spec := imageOf(b)
	if err := spec.Validate(); err != nil && !b.r.failedSince(before) {
		for mistake := range strings.Lines(err.Error()) {
			mistake = strings.TrimPrefix(strings.TrimSpace(mistake), fmt.Sprintf("image %q: ", spec.Name))
			b.r.fail(b.rng, fmt.Sprintf("Image %q cannot be built", cut(spec.Name, 40)), "%s.", mistake)
		}
	}
	return spec
}

func imageOf(b *body) images.Spec {
	spec := images.Spec{
		Name:   b.label,
		Suite:  b.text("suite"),
		Kernel: b.text("kernel"),
		Mirror: b.text("mirror"),
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
	return spec
}

// chooseImage finds the image of the testbed: the one it names, else the only one there is, else
// Debian with defaults.
func chooseImage(testbed *body, blocks []*body) images.Spec {
	specs := map[string]images.Spec{}
	var names []string
	for _, b := range blocks {
		specs[b.label] = readImage(b)
		names = append(names, b.label)
	}
	if testbed.has("image") {
		name := testbed.text("image")
		if spec, ok := specs[name]; ok || name == "" {
			return spec
		}
		testbed.wrong("image", &mistake{fmt.Sprintf("names no image: %q", cut(name, 40)), unknown(name, names, "The image blocks of this configuration are")})
		return images.Spec{}
	}
	switch len(names) {
	case 0:
		absent := &body{r: testbed.r, schema: imageSchema(), label: "default", rng: testbed.rng}
		return readImage(absent)
	case 1:
		return specs[names[0]]
	}
	testbed.r.fail(testbed.rng, "The testbed does not say which image it boots", "Write image = image.NAME in the testbed block: there is %s.", oneOf(names))
	return images.Spec{}
}
