package firewall

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Settings are what a [Spec] sets on the device under test beside its rules. The zero Settings are
// set, too: no connection tracking, no reverse-path filter, no cache.
type Settings struct {
	// Conntrack has the kernel track the connection of every IPv4 packet.
	Conntrack bool `json:"conntrack,omitempty"`
	// RPFilter is net.ipv4.conf.*.rp_filter: 0 off, 1 strict, 2 loose (RFC 3704).
	RPFilter int `json:"rp_filter,omitempty"`
	// Flowtable lets tracked UDP flows skip the kernel's forwarding path.
	Flowtable bool `json:"flowtable,omitempty"`
	// Unprimed sends nothing in the other direction before a flow is measured. What a flowtable does
	// depends on that.
	Unprimed bool `json:"unprimed,omitempty"`
	// RTCache switches on the route cache of the kernel module rtcache.
	RTCache bool `json:"rtcache,omitempty"`
	// RoutingRules is a number of policy routing rules that no packet matches. The kernel tries each before
	// it looks up a route.
	RoutingRules int `json:"routing_rules,omitempty"`
	// Sysctl is whatever else is to be set.
	Sysctl Sysctls `json:"sysctl,omitempty"`
}

// Describe says in words what is set, or is empty.
func (s Settings) Describe() string {
	var words []string
	add := func(is bool, word string) {
		if is {
			words = append(words, word)
		}
	}
	add(s.Conntrack, "conntrack")
	add(s.RPFilter != 0, fmt.Sprintf("rp_filter = %d", s.RPFilter))
	add(s.RTCache, "rtcache")
	add(s.Flowtable, "flowtable")
	add(s.Unprimed, "not primed")
	add(s.RoutingRules == 1, "1 routing rule")
	add(s.RoutingRules > 1, fmt.Sprintf("%d routing rules", s.RoutingRules))
	for name, value := range s.Sysctl.All() {
		words = append(words, name+" = "+value)
	}
	return strings.Join(words, ", ")
}

// hasTable reports whether the settings need a table of nftables.
func (s Settings) hasTable() bool { return s.Conntrack }

// Validate returns every mistake in the settings, joined.
func (s Settings) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.RPFilter < 0 || s.RPFilter > 2 {
		bad("rp_filter = %d: use 0 (off), 1 (strict) or 2 (loose)", s.RPFilter)
	}
	if s.RoutingRules < 0 || s.RoutingRules > MaxRoutingRules {
		bad("routing_rules = %d: use 0 to %d", s.RoutingRules, MaxRoutingRules)
	}
	if s.Flowtable && !s.Conntrack {
		bad("flowtable = true needs conntrack = true: what it offloads are tracked connections")
	}
	if s.RTCache && !s.Conntrack {
		bad("rtcache = true needs conntrack = true: what it caches routes for are tracked connections")
	}
	if s.Unprimed && !s.Flowtable {
		bad("a flow can be primed or not only with flowtable = true")
	}
	for name := range s.Sysctl.All() {
		errs = append(errs, checkSysctl(name))
	}
	return errors.Join(errs...)
}

// hooks are the settings' own, as the kernel lists them for IPv4. Numbers and priorities are those of
// linux/netfilter_ipv4.h: connection tracking confirms last, and defragments before it tracks.
func (s Settings) hooks() (list []hook) {
	if s.Conntrack {
		list = append(list,
			hook{number: unix.NF_INET_PRE_ROUTING, priority: -400}, hook{number: unix.NF_INET_PRE_ROUTING, priority: -200},
			hook{number: unix.NF_INET_LOCAL_IN, priority: math.MaxInt32},
			hook{number: unix.NF_INET_LOCAL_OUT, priority: -400}, hook{number: unix.NF_INET_LOCAL_OUT, priority: -200},
			hook{number: unix.NF_INET_POST_ROUTING, priority: math.MaxInt32})
	}
	if s.Flowtable {
		list = append(list, hook{number: unix.NF_INET_FORWARD, priority: offloadPriority})
	}
	if s.RTCache {
		list = append(list,
			hook{number: unix.NF_INET_PRE_ROUTING, priority: math.MaxInt32},
			hook{number: unix.NF_INET_FORWARD, priority: math.MinInt32})
	}
	return list
}

// Sysctls are names and values as `name=value` lines, sorted by name. A text rather than a map, so
// that a [Spec] can be compared.
type Sysctls string

// NewSysctls makes Sysctls of a map.
func NewSysctls(values map[string]string) Sysctls {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, name+"="+values[name])
	}
	return Sysctls(strings.Join(lines, "\n"))
}

// All yields names and values.
func (s Sysctls) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for line := range strings.SplitSeq(string(s), "\n") {
			if name, value, ok := strings.Cut(line, "="); ok && !yield(name, value) {
				return
			}
		}
	}
}

var sysctlName = regexp.MustCompile(`^net([./][A-Za-z0-9_-]+)+$`)

// checkSysctl refuses what is no setting of the network, and what a setting of its own is for.
func checkSysctl(name string) error {
	for pattern, setting := range map[string]string{"net/ipv4/conf/*/rp_filter": "rp_filter", "net/rtcache/enabled": "rtcache"} {
		if ok, _ := path.Match(pattern, sysctlPath(name)); ok {
			return fmt.Errorf("sysctl %s: use %s for that", name, setting)
		}
	}
	if !sysctlName.MatchString(name) {
		return fmt.Errorf("sysctl %q: use a name of the network's settings, such as net.ipv4.conf.all.forwarding", name)
	}
	return nil
}

// sysctlPath is the file of a sysctl below /proc/sys. A name with a slash is one already, as for
// sysctl(8): names of interfaces may have dots.
func sysctlPath(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return strings.ReplaceAll(name, ".", "/")
}
