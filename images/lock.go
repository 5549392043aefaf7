package images

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Architecture is the only one that images are built for, in Debian's words.
const Architecture = "amd64"

// A Lock names every package that an image is built from. A [Spec] with a Lock gives the same image to
// the byte wherever and whenever it is built; one without takes what its archive has at that time.
type Lock struct {
	Suite        string    `json:"suite"`
	Architecture string    `json:"architecture"`
	Packages     []Package `json:"packages"`           // what is installed, by name
	Compiler     []Package `json:"compiler,omitempty"` // what compiling [Spec].Modules takes, by name
}

// Digest names what is locked.
func (l Lock) Digest() string {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

var (
	// packageVersion is as Debian's policy has it (§5.6.12).
	packageVersion = regexp.MustCompile(`^[0-9][0-9A-Za-z.+~:-]*$`)
	sha256Hex      = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// IsSHA256 reports whether s is a SHA-256 in hexadecimal digits.
func IsSHA256(s string) bool { return sha256Hex.MatchString(s) }

// Validate returns every mistake in the Lock, joined: what it says becomes names of files and words on
// command lines.
func (l Lock) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !suiteName.MatchString(l.Suite) {
		bad("suite %q is not the name of a Debian release", l.Suite)
	}
	if l.Architecture != Architecture {
		bad("it is for architecture %q: images are built for %s", l.Architecture, Architecture)
	}
	if len(l.Packages) == 0 {
		bad("it has no packages")
	}
	for _, list := range [][]Package{l.Packages, l.Compiler} {
		for i, p := range list {
			if err := p.validate(); err != nil {
				errs = append(errs, err)
			}
			if i > 0 && list[i-1].Name >= p.Name {
				bad("package %s comes after %s: packages are ordered by name, each once", p.Name, list[i-1].Name)
			}
		}
	}
	return errors.Join(errs...)
}

func (p Package) validate() error {
	switch {
	case !packageName.MatchString(p.Name):
		return fmt.Errorf("%q is not the name of a Debian package", p.Name)
	case !packageVersion.MatchString(p.Version):
		return fmt.Errorf("package %s: %q is not a version", p.Name, p.Version)
	case p.Architecture != Architecture && p.Architecture != "all":
		return fmt.Errorf("package %s: architecture %q is neither %s nor all", p.Name, p.Architecture, Architecture)
	case !sha256Hex.MatchString(p.SHA256):
		return fmt.Errorf("package %s: %q is not a SHA-256 of 64 hexadecimal digits", p.Name, p.SHA256)
	}
	return nil
}

// exactly is the package as apt's command line names this one version of it.
func (p Package) exactly() string { return p.Name + "=" + p.Version }

// file is the name that apt gives to the package's file: colons are not for every file system.
func (p Package) file() string {
	return p.Name + "_" + strings.ReplaceAll(p.Version, ":", "%3a") + "_" + p.Architecture + ".deb"
}

// findPackage returns the package of that name in a list that is ordered by name.
func findPackage(list []Package, name string) (Package, bool) {
	i, ok := slices.BinarySearchFunc(list, name, func(p Package, name string) int { return strings.Compare(p.Name, name) })
	if !ok {
		return Package{}, false
	}
	return list[i], true
}

// A LockError says how an archive differs from a lock that was to be obeyed.
type LockError struct {
	Gone    []string // packages that the archive does not have, each with what it has instead
	Changed []string // packages that it has with another content
}

func (e *LockError) Error() string {
	lines := slices.Concat(e.Gone, e.Changed)
	const shown = 8
	if extra := len(lines) - shown; extra > 0 {
		lines = append(lines[:shown], fmt.Sprintf("and %d more", extra))
	}
	return "the archive does not have what is locked:\n    " + strings.Join(lines, "\n    ")
}

func (e *LockError) hint() string {
	if len(e.Changed) > 0 {
		return "a version never changes its content: this is not the archive that was locked, or it was tampered with; use that archive, or, if you trust this one, move the lock with `rampart image build --update`"
	}
	return "move the lock to what the archive has now with `rampart image build --update`, or take packages from a dated archive with snapshot in the image block"
}

// differences compares what an archive offers with what is locked. offered are all versions that it has
// of these packages.
func differences(locked, offered []Package) error {
	byName := map[string][]Package{}
	for _, p := range offered {
		byName[p.Name] = append(byName[p.Name], p)
	}
	var e LockError
	for _, want := range locked {
		var versions, contents []string
		found := false
		for _, p := range byName[want.Name] {
			versions = append(versions, p.Version)
			if p.Version == want.Version && p.Architecture == want.Architecture {
				found = found || p.SHA256 == want.SHA256
				contents = append(contents, p.SHA256)
			}
		}
		switch {
		case found:
		case len(contents) > 0:
			e.Changed = append(e.Changed, fmt.Sprintf("%s %s has SHA-256 %s there, %s is locked", want.Name, want.Version, contents[0], want.SHA256))
		case len(versions) > 0:
			e.Gone = append(e.Gone, fmt.Sprintf("%s %s is not there, %s is", want.Name, want.Version, strings.Join(sortedSet(versions), " and ")))
		default:
			e.Gone = append(e.Gone, fmt.Sprintf("%s %s is not there, nor is another version", want.Name, want.Version))
		}
	}
	if len(e.Gone)+len(e.Changed) == 0 {
		return nil
	}
	return &e
}
