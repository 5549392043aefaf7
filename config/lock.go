package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
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

// ReadLocks reads a lock file. One that is not there locks nothing. An error is always an [*Error] with all
// mistakes.
func ReadLocks(path string) (Locks, error) {
	r := newReader()
	locks := r.lockFile(path)
	if err := r.error(); err != nil {
		return nil, err
	}
	return locks, nil
}

// ParseLocks reads the content of a lock file; name is for the error.
func ParseLocks(name string, content []byte) (Locks, error) {
	r := newReader()
	locks := r.locks(name, content)
	if err := r.error(); err != nil {
		return nil, err
	}
	return locks, nil
}

// lockFile reads a lock file, if there is one. A link to one that is not there is no sign that nothing was ever
// locked.
func (r *reader) lockFile(path string) Locks {
	content, err := readFile(path)
	switch {
	case err == nil:
		return r.locks(path, content)
	case !errors.Is(err, fs.ErrNotExist):
		r.failToRead(path, err, lockRemedy)
	case isLink(path):
		r.failToRead(path, err, "It is a link, and what it leads to is not there: bring that file back, or remove the link to have a new lock file written.")
	}
	return Locks{}
}

func isLink(path string) bool {
	_, err := os.Readlink(path)
	return err == nil
}

// locks reads the content of a lock file. What helps is the same for every mistake and told behind the last.
func (r *reader) locks(name string, content []byte) Locks {
	before := len(r.diags)
	locks := Locks{}
	if parsed, ok := r.parse(name, content); ok {
		root := &body{r: r, schema: lockSchema(), attributes: parsed.Attributes, blocks: parsed.Blocks}
		root.check("A lock file")
		for _, b := range root.children("image") {
			locks[b.label] = readLock(b)
		}
	}
	if found := inOrder(r.diags[before:]); len(found) > 0 {
		last := found[len(found)-1]
		last.Detail = strings.TrimSpace(last.Detail + "\n\n" + lockRemedy)
	}
	return locks
}

func readLock(b *body) LockedImage {
	before := len(b.r.diags)
	l := LockedImage{Request: b.text("request")}
	l.Suite, l.Architecture = b.text("suite"), b.text("architecture")
	l.Packages = readPackages(b, "packages")
	if b.has("compiler") {
		l.Compiler = readPackages(b, "compiler")
	}
	if digest, ok := strings.CutPrefix(l.Request, "sha256:"); !b.r.failedSince(before) && !(ok && images.IsSHA256(digest)) {
		b.wrong("request", &mistake{"is no digest", "A digest is sha256: and 64 hexadecimal digits."})
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
