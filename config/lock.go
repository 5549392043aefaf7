package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclwrite"

	"github.com/rampart-bench/rampart/images"
)

// LockName is the name of the lock file, which is beside the configuration.
const LockName = "rampart.lock.hcl"

// Locks are the entries of a lock file by the names of image blocks.
type Locks map[string]LockedImage

// A LockedImage is what an image block was locked to.
type LockedImage struct {
	images.Lock
	Request string    // [images.Spec.Request] of the block when it was locked
	Locked  time.Time // UTC, to the second
}

// lockHeader tells the reader of a lock file what it is.
const lockHeader = `# What the images of this folder are built from: name, version, architecture and SHA-256 of every package.
# rampart writes this file when it first builds an image, and obeys it from then on. Keep it with the
# configuration. To move to what the archive has by now: rampart image build --update
`

// lockRemedy is what helps with every mistake in a file that nobody writes by hand.
const lockRemedy = "rampart writes this file: take the last good one out of version control, or have it written anew with `rampart image build --update`."

func lockSchema() *schema {
	return &schema{name: "lock file", blocks: []*schema{{
		name: "image", label: "name", occurs: perLabel,
		doc: "What an image block was locked to.",
		attributes: []attribute{
			{name: "suite", kind: text, required: true, example: `"bookworm"`, doc: "Debian suite."},
			{name: "architecture", kind: text, required: true, example: `"amd64"`, doc: "Debian architecture."},
			{name: "request", kind: text, required: true, example: `"sha256:0123"`, doc: "Digest of what the block asked for."},
			{name: "locked", kind: text, required: true, example: `"2026-01-31T12:00:00Z"`, doc: "When."},
			{name: "packages", kind: texts, required: true, example: `["dash 0.5.12-2 amd64 sha256:0123"]`, doc: "What is installed."},
			{name: "compiler", kind: texts, example: `["make 4.3-4.1 amd64 sha256:0123"]`, doc: "What compiles kernel modules."},
		},
	}}}
}

// ReadLocks reads a lock file. One that is not there locks nothing. Another error than one of reading is an
// [*Error] with all mistakes.
func ReadLocks(path string) (Locks, error) {
	content, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Locks{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, reason(err))
	}
	return ParseLocks(path, content)
}

// ParseLocks reads the content of a lock file; name is for the error.
func ParseLocks(name string, content []byte) (Locks, error) {
	r := newReader()
	locks := Locks{}
	if parsed, ok := r.parse(name, content); ok {
		root := &body{r: r, schema: lockSchema(), attributes: parsed.Attributes, blocks: parsed.Blocks}
		root.check("A lock file")
		for _, b := range root.children("image") {
			locks[b.label] = readLock(b)
		}
	}
	for _, d := range r.diags {
		d.Detail = strings.TrimSpace(d.Detail + "\n" + lockRemedy)
	}
	if err := newError(r.diags, r.files); err != nil {
		return nil, err
	}
	return locks, nil
}

func readLock(b *body) LockedImage {
	before := len(b.r.diags)
	l := LockedImage{Request: b.text("request")}
	l.Suite, l.Architecture = b.text("suite"), b.text("architecture")
	l.Packages = readPackages(b, "packages")
	if b.has("compiler") {
		l.Compiler = readPackages(b, "compiler")
	}
	var err error
	if l.Locked, err = time.Parse(time.RFC3339, b.text("locked")); err != nil && !b.r.failedSince(before) {
		b.wrong("locked", &mistake{"is no time", "A time is written as 2026-01-31T12:00:00Z."})
	}
	if b.r.failedSince(before) {
		return l
	}
	if l.Architecture != images.Architecture {
		b.wrong("architecture", &mistake{
			fmt.Sprintf("is %q: image %s is locked for other machines", cut(l.Architecture, 40), b.label),
			fmt.Sprintf("Images are built for %s.", images.Architecture),
		})
		return l
	}
	if err := l.Validate(); err != nil {
		b.r.fail(b.rng, "Image "+b.label+" cannot be locked to this", "%s.", err)
	}
	return l
}

var lockedPackage = regexp.MustCompile(`^(\S+) (\S+) (\S+) sha256:(\S+)$`)

func readPackages(b *body, name string) []images.Package {
	var list []images.Package
	for _, e := range b.texts(name) {
		fields := lockedPackage.FindStringSubmatch(e.value)
		if fields == nil {
			b.r.fail(e.rng, "This is no locked package", "A package is written as its name, version, architecture and sha256:DIGITS.")
			continue
		}
		list = append(list, images.Package{Name: fields[1], Version: fields[2], Architecture: fields[3], SHA256: fields[4]})
	}
	return list
}

// Format is the content of a lock file. Equal entries give equal bytes.
func (l Locks) Format() []byte {
	var b bytes.Buffer
	b.WriteString(lockHeader)
	for _, name := range slices.Sorted(maps.Keys(l)) {
		e := l[name]
		fmt.Fprintf(&b, "\nimage %q {\nsuite = %q\narchitecture = %q\nrequest = %q\nlocked = %q\n", name, e.Suite, e.Architecture, e.Request, e.Locked.UTC().Format(time.RFC3339))
		formatPackages(&b, "packages", e.Packages)
		if len(e.Compiler) > 0 {
			formatPackages(&b, "compiler", e.Compiler)
		}
		b.WriteString("}\n")
	}
	return hclwrite.Format(b.Bytes())
}

func formatPackages(b *bytes.Buffer, name string, list []images.Package) {
	fmt.Fprintf(b, "%s = [\n", name)
	for _, p := range list {
		fmt.Fprintf(b, "%q,\n", fmt.Sprintf("%s %s %s sha256:%s", p.Name, p.Version, p.Architecture, p.SHA256))
	}
	b.WriteString("]\n")
}
