// Package config reads HCL configuration into plain values. It is the only package that knows HCL.
//
// Reading is total: every mistake in every file is reported at once, with its place, the lines around
// it and what would be right, and nothing outside this package ever sees a configuration that has one.
// Only mistakes of syntax come first and alone: what follows them in a text is guesswork.
//
// The language is a table ([grammar]): every kind of block has one file, which holds the kind's schema
// and the function that reads it. The manual's tables are printed from the same schemas.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/report"
	"github.com/rampart-bench/rampart/testbed"
)

// Config is a configuration, resolved and checked.
type Config struct {
	Provider string // libvirt, netns, exact or auto
	Testbed  testbed.Spec
	Image    images.Spec // of the testbed; empty where every experiment names its images
	// Images are those that matrices name, or all that there are where nothing says which is booted.
	Images      []images.Spec `json:",omitempty"`
	ImageBlocks []string      `json:"-"` // the names of the images of all blocks, booted or not
	Libvirt     Libvirt
	Experiments []experiments.Spec // may be empty: a testbed can be brought up by hand
	Study       analysis.Study
	Report      report.Spec

	// Folder is where the configuration is, and its lock file; empty where it was not read from files.
	// Whole says that it is all that this folder has.
	Folder string `json:"-"`
	Whole  bool   `json:"-"`

	// Files are the texts as read, by name, and Variables the values given from outside: both go
	// into the manifest. Digest covers both.
	Files     map[string]string
	Variables map[string]string
	Digest    string
}

// ImageCalled returns the image that runs boot with that level of the factor image; empty: that of the testbed.
func (c *Config) ImageCalled(level string) images.Spec {
	for _, spec := range c.Images {
		if spec.Name == level {
			return spec
		}
	}
	return c.Image
}

// ImageLevels are the levels of the factor image over all experiments, and an empty one where something boots
// the image of the testbed.
func (c *Config) ImageLevels() []string {
	levels := namesOf(c.Images)
	if c.Image.Name != "" || len(levels) == 0 {
		levels = append(levels, "")
	}
	return levels
}

// Libvirt is the libvirt block of the testbed.
type Libvirt struct {
	URI         string // default qemu:///system; see [testbed.ParseHypervisor]
	Accelerator string // kvm, tcg or auto (default)
}

// Load reads and checks a configuration. An error is always an [*Error] with all mistakes.
func Load(src Source) (*Config, error) {
	r := newReader()
	r.purpose = src.For
	cfg := r.load(src)
	if err := r.error(); err != nil {
		return nil, err
	}
	return cfg, nil
}

// load reads texts, then the values from outside, then blocks. It stops before the blocks when a text
// could not be read, as every reference to what stands there would be another mistake.
func (r *reader) load(src Source) *Config {
	cfg := &Config{Files: map[string]string{}}
	cfg.Folder, cfg.Whole = src.folder()
	root := &body{r: r, schema: grammar()}
	inputs := r.inputs(src)
	outside := r.variableFiles(src.VarFiles)
	var texts []*hclsyntax.Body
	for _, in := range inputs {
		cfg.Files[in.name] = string(in.text)
		if parsed, ok := r.parse(in.shown, in.text); ok {
			texts = append(texts, parsed)
			root.blocks = append(root.blocks, parsed.Blocks...)
		}
	}
	unread := len(r.diags) > 0
	r.commandLine(src.Vars, outside)
	r.overrideProvider(src.Provider, cfg)
	for _, parsed := range texts {
		r.noAssignments(parsed)
	}
	if unread {
		return nil
	}
	root.check("A configuration")
	r.checkContent(root, inputs)

	variables := r.readVariables(root.children("variable"), outside, cfg)
	cfg.Digest = digest(cfg.Files, cfg.Variables)
	r.resolve(root, variables, src.Images, cfg)
	r.readWhatBoots(cfg)
	return cfg
}

// noAssignments explains why a file of variables cannot be part of a configuration.
func (r *reader) noAssignments(parsed *hclsyntax.Body) {
	for _, a := range parsed.Attributes {
		r.fail(a.NameRange, fmt.Sprintf("%s = … stands outside of any block", a.Name), "If this is the value of a variable, write it as the default in variable %q { … }, or put it into a file not named *.hcl and give that with --var-file.", a.Name)
	}
}

// checkContent reports a configuration that describes nothing.
func (r *reader) checkContent(root *body, inputs []input) {
	for _, block := range root.blocks {
		if block.Type != "variable" && block.Type != "locals" {
			return
		}
	}
	var rng hcl.Range
	if len(inputs) > 0 {
		rng = hcl.Range{Filename: inputs[0].shown, Start: hcl.InitialPos, End: hcl.InitialPos}
	}
	r.fail(rng, "The configuration is empty", `Write at least one experiment, such as: experiment "latency" {}. Everything else has a default. A commented example is written by `+"`rampart init`.")
}

// resolve reads every block that is not a variable, now that those are known.
func (r *reader) resolve(root *body, variables map[string]cty.Value, chosen []string, cfg *Config) {
	blocks, walls, trials := root.children("image"), root.children("firewall"), root.children("experiment")
	r.declareValues("var", variables)
	r.declare("image", labels(blocks))
	r.declare("firewall", append(predeclaredNames(), labels(walls)...))
	r.declare("experiment", labels(trials))
	r.readLocals(root.children("locals"))
	set := r.readImages(blocks)
	cfg.ImageBlocks = namesOf(set.all)
	all := r.readFirewalls(walls)

	bed := root.child("testbed")
	if provider := bed.text("provider"); cfg.Provider == "" {
		cfg.Provider = provider
	}
	var machine testbed.Machine
	cfg.Libvirt, machine = r.readLibvirt(bed)
	cfg.Testbed = r.readTestbed(bed, machine)
	cfg.Report = readReport(root.child("report"))
	cfg.Study = readAnalysis(root.child("analysis"))
	cfg.Study.Title = cfg.Report.Title
	cfg.Study.Claims, cfg.Study.Experiments = []analysis.Claim{}, []analysis.Experiment{} // [] in JSON, not null

	var read []experiment
	for _, b := range trials {
		read = append(read, r.readExperiment(b, all, set, cfg.Provider))
	}
	if len(chosen) > 0 {
		cfg.Images = r.choose(set, chosen)
	} else {
		r.resolveImages(bed, set, read, cfg)
	}
	r.disks = set.disks
	for _, b := range root.children("claim") {
		claim := r.readClaim(b, read, all)
		cfg.Study.Claims = append(cfg.Study.Claims, claim)
		comparePair(read, claim)
	}
	for _, e := range read {
		cfg.Experiments = append(cfg.Experiments, e.spec)
		cfg.Study.Experiments = append(cfg.Study.Experiments, e.study)
	}
}

// comparePair makes sure that the pair of a claim is among those that its experiment compares, in
// either order.
func comparePair(all []experiment, claim analysis.Claim) {
	for i := range all {
		study := &all[i].study
		compared := &study.Compare
		if claim.Factor == analysis.FactorImage {
			compared = &study.CompareImages
		}
		reverse := [2]string{claim.Compare[1], claim.Compare[0]}
		if study.Name == claim.Experiment && !slices.Contains(*compared, claim.Compare) && !slices.Contains(*compared, reverse) {
			*compared = append(*compared, claim.Compare)
		}
	}
}

// resolveImages gives the images that something boots: those of matrices, and that of the testbed where an
// experiment, or nothing but the testbed, has none of its own. A testbed that is not measured on may boot any.
func (r *reader) resolveImages(bed *body, set imageSet, all []experiment, cfg *Config) {
	needed := len(all) == 0
	for _, e := range all {
		needed = needed || !e.crosses
		for _, spec := range set.all {
			if slices.Contains(e.spec.Images, spec.Name) && !slices.Contains(namesOf(cfg.Images), spec.Name) {
				cfg.Images = append(cfg.Images, spec)
			}
		}
	}
	undecided := len(set.all) > 1 && !bed.has("image")
	switch {
	case needed && undecided && (len(all) == 0 || r.purpose >= Building):
		cfg.Images = set.all
	case needed:
		cfg.Image = set.chooseImage(bed)
	case bed.has("image"):
		bed.wrong("image", &mistake{"means nothing here", "Every experiment names its images in its matrix: remove one of the two."})
	}
}

func labels(blocks []*body) []string {
	var names []string
	for _, b := range blocks {
		names = append(names, b.label)
	}
	return names
}

// digest covers files and variables. JSON keeps names and texts apart and sorts the names.
func digest(files, variables map[string]string) string {
	text, err := json.Marshal([]map[string]string{files, variables})
	if err != nil {
		panic("config: maps of strings always encode: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// overrideProvider puts the provider given from outside in place of the configuration's.
func (r *reader) overrideProvider(name string, cfg *Config) {
	if name == "" {
		return
	}
	if !slices.Contains(providers(), name) {
		r.fail(hcl.Range{}, fmt.Sprintf("There is no provider %q", cut(name, 40)), "%s", unknown(name, providers(), "--provider can be"))
	}
	cfg.Provider = name
}
