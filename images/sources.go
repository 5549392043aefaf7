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
)

// source is one line of an apt sources.list.
type source struct {
	uri, suite, signedBy string
	trusted              bool
	components           []string
}

// String is the line as in sources.list(5).
func (s source) String() string {
	var options []string
	if s.signedBy != "" {
		options = append(options, "signed-by="+s.signedBy)
	}
	if s.trusted {
		options = append(options, "trusted=yes")
	}
	line := "deb "
	if len(options) > 0 {
		line += "[" + strings.Join(options, " ") + "] "
	}
	return line + s.uri + " " + s.suite + " " + strings.Join(s.components, " ")
}

// sources returns the sources to build spec from. None means that the bootstrap tool's own default
// is used, as on a machine whose apt knows no such Debian suite (Ubuntu).
func sources(ctx context.Context, spec Spec) ([]source, error) {
	if spec.Mirror != "" {
		return []source{{uri: spec.Mirror, suite: spec.Suite, components: spec.Components}}, nil
	}
	return aptSources(ctx, spec)
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

// fetchOptions are the parts of this machine's apt configuration that say how to reach an archive:
// proxies, certificates, credentials, clocks. The bootstrap tool does not read them by itself.
func fetchOptions(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return nil, fmt.Errorf("ask apt for its configuration: %w", err)
	}
	return matchOptions(out), nil
}

// matchOptions filters what `apt-config dump` prints, one `Name::Space "value";` a line.
func matchOptions(dump []byte) []string {
	wanted := []string{
		"Acquire::http", "Acquire::https", "Acquire::ftp", "Acquire::tor", "Acquire::mirror", "Acquire::proxy",
		"Acquire::Check-", "Acquire::Max-FutureTime", "Acquire::Min-ValidTime", "Acquire::Max-ValidTime",
		"Acquire::Retries", "Acquire::ForceIPv", "Acquire::By-Hash", "Acquire::Queue-", "Acquire::AllowInsecure",
		"Acquire::AllowWeak", "Acquire::AllowDowngrade",
	}
	var options []string
	for line := range strings.Lines(string(dump)) {
		line = strings.TrimSpace(line)
		if slices.ContainsFunc(wanted, func(p string) bool {
			return len(line) >= len(p) && strings.EqualFold(line[:len(p)], p)
		}) && !strings.HasSuffix(line, ` "";`) {
			options = append(options, line)
		}
	}
	return append(options,
		// Files with the passwords of archives; apt does not mind when they are missing.
		`Dir::Etc::netrc "/etc/apt/auth.conf";`,
		`Dir::Etc::netrcparts "/etc/apt/auth.conf.d/";`,
	)
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
