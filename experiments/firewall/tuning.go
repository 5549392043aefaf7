package firewall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Tuning holds the [Settings] of the device under test, whatever its engine. It works on the network
// namespace of the thread that calls it.
type Tuning struct {
	settings Settings
	opts     Options
	changed  []sysctl // with the values that were there, in the order of change
}

// A sysctl is a file below /proc/sys and a value.
type sysctl struct{ path, value string }

// NewTuning makes the Tuning of spec. It touches nothing yet.
func NewTuning(spec Spec, opts Options) (*Tuning, error) {
	if err := spec.Settings.Validate(); err != nil {
		return nil, fmt.Errorf("make tuning: %w", err)
	}
	return &Tuning{settings: spec.Settings, opts: opts}, nil
}

// Apply sets everything, or nothing: what an Apply that fails has set is put back. It comes after the
// engine's Load, which removes what an earlier helper may have left. It returns an *UnavailableError
// where the kernel lacks a setting.
func (t *Tuning) Apply(ctx context.Context) error {
	err := t.apply(ctx)
	if err != nil {
		err = errors.Join(err, t.Restore(context.WithoutCancel(ctx)))
	}
	return err
}

func (t *Tuning) apply(ctx context.Context) error {
	if t.settings.Conntrack {
		if err := t.track(ctx); err != nil {
			return err
		}
	}
	for _, scope := range t.scopes() {
		path := rpFilterPath(scope)
		before, err := readSysctl(path)
		if err != nil {
			return fmt.Errorf("set rp_filter of %s: is the interface gone? %w", scope, err) // every kernel with IPv4 has it
		}
		if err := t.replace("rp_filter", path, before, strconv.Itoa(t.settings.RPFilter)); err != nil {
			return err
		}
	}
	if err := t.cache(ctx); err != nil {
		return err
	}
	if err := t.addRoutingRules(); err != nil {
		return err
	}
	for name, value := range t.settings.Sysctl.All() {
		if err := t.set("sysctl "+name, sysctlPath(name), value); err != nil {
			return err
		}
	}
	return nil
}

// scopes are where reverse-path filtering is set: the kernel takes the greater of conf/all and the
// interface's own.
func (t *Tuning) scopes() []string {
	scopes := []string{"all"}
	for _, name := range t.opts.Interfaces {
		if name != "" {
			scopes = append(scopes, name)
		}
	}
	return scopes
}

func rpFilterPath(scope string) string { return "net/ipv4/conf/" + scope + "/rp_filter" }

const (
	sysctlFolder = "/proc/sys/"
	rtcachePath  = "net/rtcache/enabled"
	rtcacheStats = "/proc/thread-self/net/rtcache"
)

// cache switches the route cache on or off. Where there is none it is off.
func (t *Tuning) cache(ctx context.Context) error {
	_, err := os.Stat(sysctlFolder + rtcachePath)
	if !t.settings.RTCache {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return t.set("rtcache", rtcachePath, "0")
	}
	if errors.Is(err, os.ErrNotExist) && t.opts.DedicatedKernel {
		// Whether it helped is seen right below.
		_ = loadModule(ctx, "rtcache")
		_, err = os.Stat(sysctlFolder + rtcachePath)
	}
	if errors.Is(err, os.ErrNotExist) {
		return &UnavailableError{Setting: "rtcache", Reason: `this kernel has no module rtcache loaded: build an image with modules = ["rtcache"], or load it (images/rtcache)`}
	}
	return t.set("rtcache", rtcachePath, "1")
}

// loadModule loads a kernel module by modprobe, which knows what it depends on.
func loadModule(ctx context.Context, name string) error {
	path, err := find(name, "modprobe")
	if err == nil {
		_, err = run(ctx, nil, path, name)
	}
	return err
}

// set replaces a sysctl that a kernel may lack. setting names it for the error.
func (t *Tuning) set(setting, path, value string) error {
	before, err := readSysctl(path)
	if errors.Is(err, os.ErrNotExist) {
		return &UnavailableError{Setting: setting, Reason: fmt.Sprintf("there is no %s here: this kernel lacks it, or it belongs to the whole kernel and not to a network namespace (use provider libvirt or exact)", path)}
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", path, err)
	}
	return t.replace(setting, path, before, value)
}

// replace writes a sysctl unless it has the value, and remembers what was there before.
func (t *Tuning) replace(setting, path, before, value string) error {
	if before == normal(value) {
		return nil
	}
	switch err := writeSysctl(path, value); {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return &UnavailableError{Setting: setting, Reason: fmt.Sprintf("this user may not set %s: run as root", path)}
	case err != nil:
		return fmt.Errorf("set %s to %q: %w", path, value, err)
	}
	t.changed = append(t.changed, sysctl{path, before})
	return nil
}

func readSysctl(path string) (string, error) {
	text, err := os.ReadFile(sysctlFolder + path)
	return normal(string(text)), err
}

// normal is how values are compared: the kernel writes tabs between numbers where people write blanks.
func normal(value string) string { return strings.Join(strings.Fields(value), " ") }

// writeSysctl opens without creating: /proc would answer that with a puzzling error.
func writeSysctl(path, value string) error {
	f, err := os.OpenFile(sysctlFolder+path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Verify reads the settings back from the kernel, those that are off too.
func (t *Tuning) Verify(context.Context) ([]Check, error) {
	tracking, err := isTracking()
	if err != nil {
		return nil, err
	}
	checks := []Check{fact("connection tracking", t.settings.Conntrack, tracking, "")}
	for _, scope := range t.scopes()[1:] {
		got, err := effectiveRPFilter(scope)
		if err != nil {
			return nil, err
		}
		checks = append(checks, fact("reverse-path filter of "+scope, t.settings.RPFilter, got, ""))
	}
	cached, err := readSysctl(rtcachePath)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read setting: %w", err)
	}
	checks = append(checks, fact("route cache", t.settings.RTCache, cached == "1", ""))
	rules, err := routingRules()
	if err != nil {
		return nil, err
	}
	checks = append(checks, fact("routing rules of ours", t.settings.RoutingRules, len(rules), ""))
	if t.settings.Flowtable {
		devices, err := flowtableDevices()
		if err != nil {
			return nil, err
		}
		checks = append(checks, facts("flowtable takes packets from", slices.Sorted(slices.Values(t.opts.Interfaces[:])), devices, ""))
	}
	for name, value := range t.settings.Sysctl.All() {
		got, err := readSysctl(sysctlPath(name))
		if err != nil {
			return nil, fmt.Errorf("read setting: %w", err)
		}
		checks = append(checks, fact("sysctl "+name, normal(value), got, ""))
	}
	return checks, nil
}

// effectiveRPFilter is what the kernel goes by on an interface.
func effectiveRPFilter(name string) (int, error) {
	greatest := 0
	for _, scope := range []string{"all", name} {
		text, err := readSysctl(rpFilterPath(scope))
		if err != nil {
			return 0, fmt.Errorf("read setting: %w", err)
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("read setting %s: %w", rpFilterPath(scope), err)
		}
		greatest = max(greatest, n)
	}
	return greatest, nil
}

// restoreTime is how long the kernel may take to stop tracking after the rule that asked for it is
// gone: it waits for every packet that is on its way.
const restoreTime = 2 * time.Second

// Restore puts back what was there before Apply. It is idempotent, and comes before the engine's Unload.
func (t *Tuning) Restore(ctx context.Context) error {
	var errs []error
	for len(t.changed) > 0 {
		last := t.changed[len(t.changed)-1]
		if err := writeSysctl(last.path, last.value); err != nil {
			errs = append(errs, fmt.Errorf("put %s back to %q: %w", last.path, last.value, err))
		}
		t.changed = t.changed[:len(t.changed)-1]
	}
	if t.settings.RoutingRules > 0 {
		errs = append(errs, removeRoutingRules(0))
	}
	if t.settings.Conntrack {
		errs = append(errs, t.untrack(ctx))
	}
	return errors.Join(errs...)
}

// Clean says, after Restore, whether anything of the settings is left. The table is among what the
// engine's [Cleaner] looks for.
func (t *Tuning) Clean(context.Context) ([]Check, error) {
	if !t.settings.Conntrack {
		return nil, nil
	}
	tracking, err := isTracking()
	return []Check{fact("connections are tracked no more", false, tracking, "")}, err
}

// Residue names what the settings leave in the kernel for as long as the namespace lives, or is empty. A
// namespace that ever had a routing rule of somebody's never again takes the short cut of its look-ups
// (fib_has_custom_rules in net/ipv4/fib_rules.c is set by adding and by deleting, and never cleared).
func (t *Tuning) Residue() string {
	if t.settings.RoutingRules == 0 {
		return ""
	}
	return "the kernel's long way of looking up routes, which every routing rule leaves behind"
}

// Activity is what the settings saw and did until now.
type Activity struct {
	// Tracked is the number of connections between sender and receiver that are tracked now, and
	// Offloaded how many of them are in a flowtable.
	Tracked   int `json:"tracked"`
	Offloaded int `json:"offloaded,omitempty"`
	// Forwarded counts the UDP packets that came through the forward hook: all that the flowtable did
	// not take.
	Forwarded uint64 `json:"forwarded,omitempty"`
	// CacheHits counts the packets that the route cache gave their route.
	CacheHits uint64 `json:"cache_hits,omitempty"`
}

// Activity reads what the settings saw and did.
func (t *Tuning) Activity(rules RuleSet) (a Activity, err error) {
	if a.Tracked, a.Offloaded, err = between(rules.Sender, rules.Receiver); err != nil {
		return a, err
	}
	if t.settings.Flowtable {
		if a.Forwarded, err = offloadCounter(); err != nil {
			return a, err
		}
	}
	if t.settings.RTCache {
		a.CacheHits, err = cacheHits()
	}
	return a, err
}

// cacheHits reads the module's own count.
func cacheHits() (uint64, error) {
	text, err := os.ReadFile(rtcacheStats)
	if err != nil {
		return 0, fmt.Errorf("read counters of rtcache: %w", err)
	}
	return parseCacheHits(string(text))
}

// parseCacheHits reads lines of a name and a number.
func parseCacheHits(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "hits" {
			return strconv.ParseUint(fields[1], 10, 64)
		}
	}
	return 0, errors.New("read counters of rtcache: there is no line hits")
}

// few is how many packets of a flow may go another way than the flow: those before both directions
// were seen, and those that came while an entry was renewed.
const few = 32

// Since is what was done after before was read. Connections are those that are tracked now.
func (a Activity) Since(before Activity) Activity {
	a.Forwarded -= before.Forwarded
	a.CacheHits -= before.CacheHits
	return a
}

// Proof holds what the settings saw and did while a load ran to what they are for. packets is how many
// packets of the load the device got, and datagrams how many of them were UDP.
func (s Settings) Proof(did Activity, packets, datagrams uint64) []Check {
	checks := []Check{fact("load in connection tracking", s.Conntrack, did.Tracked > 0, "")}
	least := func(name string, want, got uint64, detail string) {
		want -= min(want, max(few, want/100))
		checks = append(checks, Check{Name: name, Want: want, Got: got, OK: want > 0 && got >= want, Detail: detail})
	}
	if s.Flowtable {
		// The counter stands in the forward hook: what arrived and is not in it took the flowtable.
		detail := fmt.Sprintf("%d datagrams arrived, %d came through the forward hook", datagrams, did.Forwarded)
		if s.Unprimed {
			least("datagrams did not take the flowtable", datagrams, did.Forwarded, detail)
		} else {
			least("datagrams took the flowtable", datagrams, datagrams-min(datagrams, did.Forwarded), detail)
		}
	}
	if s.RTCache {
		least("packets got their route from the cache", packets, did.CacheHits, fmt.Sprintf("%d packets arrived", packets))
	}
	return checks
}
