package config

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/images"
)

func matrixSchema() *schema {
	return &schema{
		name: "matrix",
		doc:  "The levels to combine. Each stands once in its list.",
		attributes: []attribute{
			{name: "image", kind: names, example: "[image.bookworm, image.trixie]", doc: "Images to measure across: blocks of this configuration, or single images of a block that lists several suites or kernels. Without it every run boots the image of the testbed. Every boot takes one image, so list them in the order of their release: unless `compare` says otherwise, each is compared with the one before it. Not with provider `netns`, whose nodes share the kernel of this machine."},
			{name: "firewall", kind: texts, def: `["iptables-linear", "iptables-indexed", "nftables-linear", "nftables-indexed"]`, doc: "Firewalls: blocks of this configuration, or predeclared ones."},
			{name: "rules", kind: wholes, def: "[10, 100, 1000]", min: "2", max: strconv.Itoa(firewall.MaxRules), doc: "Entries of the rule-set. Two of them match the traffic, one for each direction, so there are at least 2."},
			{name: "frame_size", kind: wholes, def: "[64, 512, 1518]", min: "64", max: "9234", doc: "Ethernet frames in bytes, header and FCS included (RFC 2544); at most the MTU of the links and 18."},
		},
	}
}

func (r *reader) readMatrix(b, measurement *body, known firewalls, e *experiment) {
	if b.has("image") {
		e.crosses = true
		e.images = r.readLevels(b, e.set)
		e.spec.Images = namesOf(e.images)
	}
	for _, name := range b.texts("firewall") {
		spec, ok := known.specs[name.value]
		if !ok {
			r.fail(name.rng, fmt.Sprintf("There is no firewall %q", cut(name.value, 40)), "%s", unknown(name.value, known.names, "There is"))
			continue
		}
		e.measured = append(e.measured, spec)
	}
	e.spec.Rules = values(b.wholes("rules"))
	for _, frame := range r.frameSizes(b, measurement) {
		if frame.value > r.frameLimit {
			r.fail(frame.rng, fmt.Sprintf("frame_size %d is too large for the links", frame.value), "With mtu = %d a frame has at most %d bytes (header 14, FCS 4): use a smaller one, or raise mtu on both links.", r.frameLimit-frameOverhead, r.frameLimit)
		}
		e.spec.FrameSizes = append(e.spec.FrameSizes, frame.value)
	}
}

// readLevels gives the images of a matrix. The name of a block stands for all that it describes.
func (r *reader) readLevels(b *body, set imageSet) (levels []images.Spec) {
	for _, name := range readEach(b, "image", attribute.text) {
		specs, ok := set.called[name.value]
		if !ok {
			r.fail(name.rng, fmt.Sprintf("There is no image %q", cut(name.value, 40)), "%s", unknownImage(name.value, set.names))
		}
		for _, spec := range specs {
			if slices.Contains(namesOf(levels), spec.Name) {
				r.fail(name.rng, fmt.Sprintf("%s is in image twice", spec.Name), "Every image counts once; to see what two boots of one image differ by, give it a second block of another name.")
				continue
			}
			levels = append(levels, spec)
		}
	}
	return levels
}

// frameSizes are those of the matrix, or the one that the message of netperf makes.
func (r *reader) frameSizes(b, measurement *body) []at[int] {
	if measurement.label != experiments.UDPNetperf || !measurement.has("message") {
		return b.wholes("frame_size")
	}
	if b.has("frame_size") {
		b.wrong("frame_size", &mistake{"means nothing here", "message of the measurement sets it; remove one of the two."})
	}
	return []at[int]{{measurement.whole("message") + messageOverhead, measurement.rangeOf("message")}}
}

// same reports whether two firewalls differ in name only: an A/A pair.
func same(a, b firewall.Spec) bool {
	a.Name = b.Name
	return a == b
}
