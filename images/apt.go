package images

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// apt is a package manager in a folder of its own. It reaches archives as this machine's apt does
// (proxies, certificates, credentials), knows those of one [Spec] and nothing of what is installed here.
type apt struct {
	dir  string
	line func(string) // gets each line of output as it comes
}

// aptConf makes an apt one that lives in a folder, which it names as %[1]s. It is read after the machine's
// own configuration, so it says everything that must not come from there.
const aptConf = `
Dir::State "%[1]s/state/";
Dir::State::lists "%[1]s/lists/";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache/";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "%[1]s/none/";
Dir::Etc::preferences "%[1]s/preferences";
Dir::Etc::preferencesparts "%[1]s/none/";
Dir::Etc::trustedparts "%[1]s/keys/";
#clear APT::Architectures;
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
#clear APT::Default-Release;
APT::Install-Recommends "false";
APT::Install-Suggests "false";
#clear APT::Update;
#clear DPkg;
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
pkgCacheGen::ForceEssential ",";
APT::Sandbox::User "root";
quiet "2";
`

// keyrings are where the keys of archives are that a source does not name itself.
var keyrings = [...]string{"/etc/apt/trusted.gpg.d/*", "/usr/share/keyrings/debian-archive-*"}

// newApt lays out a package manager in dir, which is made, and has it read what its archives have. It
// prefers the packages in keep to newer ones.
func newApt(ctx context.Context, dir string, spec Spec, keep []Package, line func(string)) (*apt, []source, error) {
	from, err := sources(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	a := &apt{dir: dir, line: line}
	if err := a.layOut(from, keep); err != nil {
		return nil, nil, fmt.Errorf("set up apt: %w", err)
	}
	if err := a.run(ctx, "", "apt-get", "update", "--error-on=any"); err != nil {
		if spec.Snapshot != "" {
			err = &snapshotError{at: spec.Snapshot, uri: from[0].uri, err: err}
		}
		return nil, nil, fmt.Errorf("read what the archive has: %w", err)
	}
	return a, from, nil
}

func (a *apt) layOut(from []source, keep []Package) error {
	var errs []error
	for _, sub := range []string{"state", "lists/partial", "cache/archives/partial", "none", "keys"} {
		errs = append(errs, os.MkdirAll(filepath.Join(a.dir, sub), 0o755))
	}
	var list, pins strings.Builder
	for _, s := range from {
		fmt.Fprintln(&list, s)
	}
	for _, p := range keep {
		fmt.Fprintf(&pins, "Package: %s\nPin: version %s\nPin-Priority: 1001\n\n", p.Name, p.Version)
	}
	for name, content := range map[string]string{
		"apt.conf": fmt.Sprintf(aptConf, a.dir), "sources.list": list.String(), "preferences": pins.String(), "status": "",
	} {
		errs = append(errs, os.WriteFile(filepath.Join(a.dir, name), []byte(content), 0o644))
	}
	for _, pattern := range keyrings {
		files, err := filepath.Glob(pattern)
		errs = append(errs, err)
		for _, file := range files {
			errs = append(errs, os.Symlink(file, filepath.Join(a.dir, "keys", filepath.Base(file))))
		}
	}
	return errors.Join(errs...)
}

// run runs one of apt's programs in the folder dir.
func (a *apt) run(ctx context.Context, dir string, program string, arguments ...string) error {
	return command{argv: a.argv(program, arguments...), dir: dir, line: a.line}.run(ctx)
}

func (a *apt) argv(program string, arguments ...string) []string {
	return append([]string{program, "-c", filepath.Join(a.dir, "apt.conf")}, arguments...)
}

// ask runs one of apt's programs and returns what it prints.
func (a *apt) ask(ctx context.Context, program string, arguments ...string) ([]byte, error) {
	argv := a.argv(program, arguments...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return out, &toolError{name: program, err: err, log: failure.String()}
	}
	return out, nil
}

// choose returns the packages that installing what is asked for into nothing would bring along, by name.
// What is asked for are names and apt's patterns.
func (a *apt) choose(ctx context.Context, wanted []string) ([]Package, error) {
	out, err := a.ask(ctx, "apt-get", append([]string{"install", "--print-uris", "--"}, wanted...)...)
	if err != nil {
		return nil, fmt.Errorf("choose packages: %w", err)
	}
	chosen, err := parseURIs(string(out))
	if err != nil {
		return nil, fmt.Errorf("choose packages: %w", err)
	}
	described, err := a.describe(ctx, chosen)
	if err != nil {
		return nil, err
	}
	for i, p := range chosen {
		j := slices.IndexFunc(described, func(d stanza) bool {
			return d.Name == p.Name && d.Version == p.Version && d.Architecture == p.Architecture
		})
		if j < 0 {
			return nil, fmt.Errorf("choose packages: apt chose %s %s and does not know it", p.Name, p.Version)
		}
		chosen[i].SHA256 = described[j].SHA256
	}
	slices.SortFunc(chosen, func(x, y Package) int { return strings.Compare(x.Name, y.Name) })
	return chosen, nil
}

// parseURIs reads what apt-get --print-uris prints, `'URI' NAME_VERSION_ARCHITECTURE.deb SIZE HASH` a line.
func parseURIs(text string) ([]Package, error) {
	var all []Package
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		var parts []string
		if len(fields) > 1 {
			file, _ := strings.CutSuffix(fields[1], ".deb")
			parts = strings.Split(file, "_")
		}
		if len(parts) != 3 {
			return nil, fmt.Errorf("understand what apt-get prints: %q", strings.TrimSpace(line))
		}
		all = append(all, Package{Name: parts[0], Version: strings.ReplaceAll(parts[1], "%3a", ":"), Architecture: parts[2]})
	}
	return all, nil
}

// stanza is a package as its archive describes it: the paragraph of its index.
type stanza struct {
	Package
	text string
}

// describe returns what the archives say of these packages, all versions that they have.
func (a *apt) describe(ctx context.Context, packages []Package) ([]stanza, error) {
	if len(packages) == 0 {
		return nil, nil
	}
	argv := []string{"show", "--all-versions", "--"}
	for _, p := range packages {
		argv = append(argv, p.Name)
	}
	out, err := a.ask(ctx, "apt-cache", argv...)
	if err != nil && !strings.Contains(err.Error(), "No packages found") {
		return nil, fmt.Errorf("ask apt about packages: %w", err)
	}
	var all []stanza
	for text := range strings.SplitSeq(string(out), "\n\n") {
		for _, s := range stanzas([]byte(text)) {
			all = append(all, stanza{Package{s["Package"], s["Version"], s["Architecture"], s["SHA256"]}, text})
		}
	}
	return all, nil
}

// check returns a [LockError] unless the archives have every locked package, with the content that is
// locked. It returns how they describe them.
func (a *apt) check(ctx context.Context, locked []Package) ([]stanza, error) {
	described, err := a.describe(ctx, locked)
	if err != nil {
		return nil, err
	}
	var offered []Package
	for _, s := range described {
		offered = append(offered, s.Package)
	}
	if err := differences(locked, offered); err != nil {
		return nil, err
	}
	var all []stanza
	for _, p := range locked {
		all = append(all, described[slices.IndexFunc(described, func(s stanza) bool { return s.Package == p })])
	}
	return all, nil
}

// fetch fills the folder pool with the locked packages and an index, so that it is an archive that has
// nothing else. Every file is held against the lock.
func (a *apt) fetch(ctx context.Context, locked []Package, pool string) error {
	described, err := a.check(ctx, locked)
	if err != nil {
		return err
	}
	// Another user reads it: the one that is root in the namespace that mmdebstrap makes.
	if err := errors.Join(os.MkdirAll(pool, 0o755), os.Chmod(pool, 0o755)); err != nil {
		return fmt.Errorf("fetch packages: %w", err)
	}
	argv := []string{"download", "--"}
	for _, p := range locked {
		argv = append(argv, p.exactly())
	}
	if err := a.run(ctx, pool, "apt-get", argv...); err != nil {
		return fmt.Errorf("fetch packages: %w", err)
	}
	var index strings.Builder
	for _, s := range described {
		file := filepath.Join(pool, s.file())
		if err := errors.Join(verify(file, s.Package), os.Chmod(file, 0o644)); err != nil {
			return fmt.Errorf("fetch packages: %w", err)
		}
		index.WriteString(localStanza(s))
	}
	file := filepath.Join(pool, "Packages")
	if err := errors.Join(os.WriteFile(file, []byte(index.String()), 0o644), os.Chmod(file, 0o644)); err != nil {
		return fmt.Errorf("fetch packages: %w", err)
	}
	return nil
}

// localStanza is a package's paragraph for an archive that is one folder.
func localStanza(s stanza) string {
	var b strings.Builder
	for line := range strings.Lines(s.text) {
		if !strings.HasPrefix(line, "Filename:") && !strings.HasPrefix(line, "MD5sum:") {
			b.WriteString(strings.TrimRight(line, "\n") + "\n")
		}
	}
	fmt.Fprintf(&b, "Filename: ./%s\n\n", s.file())
	return b.String()
}

// verify holds a file against its hash.
func verify(file string, p Package) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("verify package %s: %w", p.Name, err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("verify package %s: %w", p.Name, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != p.SHA256 {
		return &LockError{Changed: []string{fmt.Sprintf("%s %s has SHA-256 %s there, %s is locked", p.Name, p.Version, got, p.SHA256)}}
	}
	return nil
}

// snapshotError is a dated archive that cannot be read.
type snapshotError struct {
	at, uri string
	err     error
}

func (e *snapshotError) Error() string {
	return fmt.Sprintf("snapshot %s at %s: %v", e.at, e.uri, e.err)
}
func (e *snapshotError) Unwrap() error { return e.err }

func (e *snapshotError) hint() string {
	return "can this machine reach that address? mirror = … names another archive with dated folders; without snapshot the lock keeps the versions as long as the mirror has them"
}
