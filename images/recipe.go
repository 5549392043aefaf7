package images

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// files holds what an image has beyond packages: its two init scripts and sshd's configuration.
//
//go:embed files
var files embed.FS

// recipeVersion changes when the same Spec would give another image for a reason that the digest of
// a recipe does not see.
const recipeVersion = 2

// nodePackages are what the nodes of a testbed need, with the reason.
func nodePackages() []string {
	return []string{
		"busybox-static", // the initrd, rampart-init
		"conntrack",      // connection tracking, by hand
		"ethtool",        // offloads
		"iperf3",         // udp_iperf3
		"iproute2",       // addresses and routes
		"ipset",          // indexed look-up of iptables
		"iptables",       // both back ends
		"iputils-ping",   // by hand, and the yardstick of icmp_rtt
		"kmod",           // modules on demand
		"mount",          // mount, by hand
		"netbase",        // names of protocols and services
		"nftables",       // nft, by hand and for differential tests
		"openssh-server", // how the helper reaches the node
		"procps",         // sysctl, ps
		"tiny-initramfs", // the smallest that satisfies the kernel's dependency; never run
		"usr-is-merged",  // else usrmerge, which pulls all of Perl in
	}
}

// netperf is not free by Debian's measure, so most archives lack it: it is taken where it is.
const netperf = "netperf"

// wanted lists what to install, for apt: what every Debian has, what nodes need, and what the Spec asks for.
// netperf is asked for by a pattern, packages of that name that have a version: apt does not mind when
// nothing matches.
func (s Spec) wanted() []string {
	list := sortedSet(append(append(nodePackages(), s.Kernel), s.Packages...))
	return append(append([]string{"?essential"}, list...), "~n^"+netperf+"$~V.")
}

// wantedCompiler lists what compiling the modules of the Spec takes.
func (s Spec) wantedCompiler() ([]string, error) {
	if len(s.Modules) == 0 {
		return nil, nil
	}
	headers, err := headersPackage(s.Kernel)
	return append(compilerPackages(), headers), err
}

// withDefaults fills what was left out and puts lists in one order.
func (s Spec) withDefaults() Spec {
	if s.Suite == "" {
		s.Suite = "bookworm"
	}
	if s.Kernel == "" {
		s.Kernel = "linux-image-cloud-amd64"
	}
	if len(s.Components) == 0 {
		s.Components = []string{"main"}
	}
	s.Components = sortedSet(s.Components)
	s.Packages = sortedSet(s.Packages)
	s.Modules = sortedSet(s.Modules)
	if s.Snapshot != "" {
		s.Snapshot = stamp(s.Snapshot)
	}
	return s
}

func sortedSet(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// The names that Debian's policy allows (§5.6.1 for packages); apt would read anything else as an
// option, a pattern, a version or a file.
var (
	packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	suiteName   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

// Validate returns every mistake in the Spec, joined.
func (s Spec) Validate() error {
	if s.Disk != "" {
		return fmt.Errorf("image %q: it is a disk: there is nothing to build", s.Name)
	}
	s = s.withDefaults()
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("image %q: "+format, append([]any{s.Name}, args...)...))
	}
	if !suiteName.MatchString(s.Suite) {
		bad("suite = %q: use the code name of a Debian release, such as bookworm", s.Suite)
	}
	for _, c := range s.Components {
		if !suiteName.MatchString(c) {
			bad("components: %q: use main, contrib, non-free or non-free-firmware", c)
		}
	}
	for _, p := range append([]string{s.Kernel}, s.Packages...) {
		if !packageName.MatchString(p) {
			bad("%q is not the name of a Debian package", p)
		}
	}
	for _, m := range s.Modules {
		if !slices.Contains(Modules(), m) {
			bad("modules: %q: use %s", m, strings.Join(Modules(), " or "))
		}
	}
	if len(s.Modules) > 0 {
		if _, err := headersPackage(s.Kernel); err != nil {
			bad("%w", err)
		}
	}
	if s.Snapshot != "" {
		if err := checkSnapshot(s.Snapshot); err != nil {
			bad("%w", err)
		}
	}
	if s.Lock != nil {
		if err := s.Lock.Validate(); err != nil {
			bad("lock: %w", err)
		}
	}
	if s.Mirror != "" && !isMirror(s.Mirror) {
		bad("mirror = %q: use the address of a Debian archive, such as https://mirror.example/debian", s.Mirror)
	}
	return errors.Join(errs...)
}

// mirrorSchemes are the ways to an archive. Debian's own have not been served by FTP since 2017
// (debian.org/News/2017/20170425), and apt has other ways that need more than an address.
var mirrorSchemes = []string{"http", "https", "file"}

// isMirror reports whether s can be the address of an archive in a line of sources.list(5).
func isMirror(s string) bool {
	u, err := url.Parse(s)
	return err == nil && slices.Contains(mirrorSchemes, u.Scheme) && (u.Host != "" || u.Scheme == "file") && !strings.ContainsAny(s, " \t\n[]")
}

// Request names what is asked for and the recipe of this program, and leaves out what a [Lock] says
// better: where packages come from.
func (s Spec) Request() string {
	s.Mirror, s.Snapshot = "", ""
	return s.digest()
}

// Digest names what is asked for: the Spec without its name and with its defaults, and the recipe
// of this program. Without a Lock it says nothing about versions of packages: [Image.Digest] does.
func (s Spec) Digest() string {
	if s.Lock == nil {
		return s.digest()
	}
	sum := sha256.Sum256([]byte(s.Request() + " " + s.Lock.Digest()))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (s Spec) digest() string {
	if s.Disk != "" {
		return "sha256:" + s.SHA256
	}
	s = s.withDefaults()
	s.Name = ""
	h := sha256.New()
	enc := json.NewEncoder(h)
	parts := []any{recipeVersion, s, nodePackages(), addedFiles()}
	if len(s.Modules) > 0 {
		parts = append(parts, compilerPackages(), moduleRecipe(s.Modules))
	}
	for _, part := range parts {
		if err := enc.Encode(part); err != nil {
			panic(err) // strings, numbers and lists of them
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
