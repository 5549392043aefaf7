package images

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// source is one line of an apt sources.list.
type source struct {
	uri, suite, signedBy string
	dated                bool // as it was at some time: that its Release file has expired is no wonder
	components           []string
}

// String is the line as in sources.list(5).
func (s source) String() string {
	var options []string
	if s.signedBy != "" {
		options = append(options, "signed-by="+s.signedBy)
	}
	if s.dated {
		options = append(options, "check-valid-until=no")
	}
	line := "deb "
	if len(options) > 0 {
		line += "[" + strings.Join(options, " ") + "] "
	}
	return line + s.uri + " " + s.suite + " " + strings.Join(s.components, " ")
}

// sources returns the sources to build spec from: the mirror that it names, or dated archives, or those of
// this machine's apt, or, where that knows no such Debian suite (Ubuntu), Debian's own.
func sources(ctx context.Context, spec Spec) ([]source, error) {
	switch {
	case spec.Mirror != "" && spec.Snapshot != "":
		return []source{{uri: strings.TrimRight(spec.Mirror, "/") + "/" + stamp(spec.Snapshot) + "/", suite: spec.Suite, dated: true, components: spec.Components}}, nil
	case spec.Mirror != "":
		return []source{{uri: spec.Mirror, suite: spec.Suite, components: spec.Components}}, nil
	case spec.Snapshot != "":
		return debian(spec, snapshots, "/"+stamp(spec.Snapshot)+"/"), nil
	}
	found, err := aptSources(ctx, spec)
	if err == nil && found == nil {
		found = debian(spec, mirrors, "/")
	}
	return found, err
}

// Where Debian's archives are, and where they are kept as they were at any time.
const (
	mirrors   = "http://deb.debian.org/"
	snapshots = "http://snapshot.debian.org/archive/"
)

// debian are the release, its updates and its security fixes, below one address.
func debian(spec Spec, base, tail string) []source {
	archive := func(name, suite string) source {
		return source{uri: base + name + tail, suite: suite, dated: base == snapshots, components: spec.Components}
	}
	return []source{archive("debian", spec.Suite), archive("debian", spec.Suite+"-updates"), archive("debian-security", spec.Suite+"-security")}
}

// The ways to write the time of a dated archive: a day, and what archives call their folders.
const (
	snapshotDay   = "2006-01-02"
	snapshotStamp = "20060102T150405Z"
)

// stamp is a time as archives call their folders.
func stamp(snapshot string) string {
	if t, err := time.Parse(snapshotDay, snapshot); err == nil {
		return t.Format(snapshotStamp)
	}
	return snapshot
}

// checkSnapshot returns what is wrong with the time of a dated archive.
func checkSnapshot(snapshot string) error {
	if _, err := time.Parse(snapshotStamp, stamp(snapshot)); err != nil {
		return fmt.Errorf("snapshot = %q: use a day, such as 2026-01-31, or a time, such as 20260131T120000Z", snapshot)
	}
	return nil
}

// aptSources asks apt, with options before its verb. Where `apt-get update` never ran, apt knows only
// what its sources say and not what the releases say of themselves, which is enough to go on.
func aptSources(ctx context.Context, spec Spec, options ...string) ([]source, error) {
	for _, extra := range []string{"--release-info", "--no-release-info"} {
		argv := append(slices.Clone(options), "indextargets", extra, "Created-By: Packages")
		out, err := exec.CommandContext(ctx, "apt-get", argv...).Output()
		if err != nil {
			return nil, fmt.Errorf("ask apt for its sources: %w: name a mirror in the image block", err)
		}
		if found := matchTargets(out, spec); found != nil {
			return found, nil
		}
	}
	return nil, nil
}

// matchTargets picks the sources for spec out of what `apt-get indextargets` prints: apt itself has
// read both of its file formats. The release, its updates and its security fixes count; other
// archives that use Debian's names for their own packages do not.
func matchTargets(targets []byte, spec Spec) []source {
	var found []source
	complete := false
	seen := map[string]bool{}
	for _, t := range stanzas(targets) {
		if origin := t["Origin"]; origin != "" && origin != "Debian" {
			continue
		}
		if t["Target-Of"] != "deb" || !slices.Contains(spec.Components, t["Component"]) {
			continue
		}
		name := t["Codename"] // what the release calls itself; apt knows it after an update
		if name == "" {
			name = t["Release"]
		}
		if !slices.Contains([]string{spec.Suite, spec.Suite + "-updates", spec.Suite + "-security"}, name) {
			continue
		}
		if seen[t["Repo-URI"]+" "+t["Release"]] {
			continue
		}
		seen[t["Repo-URI"]+" "+t["Release"]] = true
		complete = complete || name == spec.Suite
		s := source{uri: t["Repo-URI"], suite: t["Release"], components: spec.Components}
		// Not every apt tells, and a key that stands in the sources file itself has no place on one
		// line; the bootstrap tool finds Debian's own key without being told.
		if key := t["Signed-By"]; strings.HasPrefix(key, "/") {
			s.signedBy = key
		}
		found = append(found, s)
	}
	if !complete {
		return nil // updates alone are no release
	}
	return found
}

// stanzas reads `Field: value` lines in paragraphs, the format of dpkg's status file too. Lines that
// continue a value are dropped.
func stanzas(text []byte) []map[string]string {
	var all []map[string]string
	current := map[string]string{}
	end := func() {
		if len(current) > 0 {
			all = append(all, current)
			current = map[string]string{}
		}
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if strings.TrimSpace(line) == "" {
			end()
			continue
		}
		if field, value, ok := strings.Cut(line, ":"); ok && line[0] != ' ' && line[0] != '\t' {
			current[field] = strings.TrimSpace(value)
		}
	}
	end()
	return all
}

// installed reads dpkg's status file.
func installed(status []byte) []Package {
	byName := map[string]Package{}
	for _, s := range stanzas(status) {
		if strings.HasSuffix(s["Status"], " installed") {
			byName[s["Package"]+":"+s["Architecture"]] = Package{Name: s["Package"], Version: s["Version"], Architecture: s["Architecture"]}
		}
	}
	var all []Package
	for _, key := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, byName[key])
	}
	return all
}
