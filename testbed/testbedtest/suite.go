// Package testbedtest holds every testbed.Provider to the same contract. A provider's tests call [Run];
// what passes it can carry the experiments.
//
// What a node is like is asked of the node itself, by commands that any Debian has (coreutils,
// ethtool, ip, ping and sh), run as the provider runs every command. So the suite holds a provider
// to what a measurement will see and not to what the provider believes.
package testbedtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/testbed"
)

// Options fit the suite to a provider.
type Options struct {
	// Prefix begins the names of the testbeds that the suite makes, at most 8 characters.
	Prefix string
	// Leftovers names everything on this machine that belongs to the testbed called name:
	// namespaces, domains, links, processes, files. The suite calls it when there must be nothing.
	Leftovers func(ctx context.Context, name string) ([]string, error)
	// Adjust may change the Spec that the suite is about to bring up, such as a node's memory.
	Adjust func(*testbed.Spec)
	// Interruptions are the moments, as fractions of the time that Up takes, at which Up is
	// cancelled to see whether it cleans up. The default is 0, 0.05, 0.2, 0.5 and 0.8.
	Interruptions []float64
}

// Run runs the suite. The function makes a new provider value for each of its calls, as another
// process would have it.
func Run(t *testing.T, provider func() testbed.Provider, options Options) {
	if options.Interruptions == nil {
		options.Interruptions = []float64{0, 0.05, 0.2, 0.5, 0.8}
	}
	s := &suite{provider: provider, options: options}
	name := fmt.Sprintf("%s-%s", options.Prefix, strconv.FormatInt(int64(os.Getpid()), 36))
	s.first, s.second = s.spec(name+"a"), s.spec(name+"b")
	for _, spec := range []testbed.Spec{s.first, s.second} {
		t.Cleanup(func() {
			if err := provider().Down(context.WithoutCancel(t.Context()), spec.Name); err != nil {
				t.Error(err)
			}
		})
	}

	t.Run("Refuse", s.refuse)
	t.Run("Absent", s.absent)
	bed := s.up(t, s.first)
	defer bed.Close()
	t.Run("Features", func(t *testing.T) { features(t, bed) })
	t.Run("Links", func(t *testing.T) { links(t, bed, s.first) })
	t.Run("Offloads", func(t *testing.T) { offloads(t, bed, s.first) })
	t.Run("Path", func(t *testing.T) { path(t, bed, s.first) })
	t.Run("MTU", func(t *testing.T) { mtu(t, bed, s.first) })
	for _, role := range testbed.Roles() {
		t.Run("Put/"+string(role), func(t *testing.T) { put(t, bed.Node(role)) })
		t.Run("Start/"+string(role), func(t *testing.T) { start(t, bed.Node(role)) })
	}
	t.Run("UpTwice", func(t *testing.T) { s.upTwice(t, bed) })
	t.Run("List", s.list)
	t.Run("Attach", func(t *testing.T) { s.attach(t, bed) })
	t.Run("SideBySide", func(t *testing.T) { s.sideBySide(t, bed) })
	t.Run("Renew", func(t *testing.T) { s.renew(t, bed) })
	t.Run("Close", func(t *testing.T) { closing(t, bed) })
	t.Run("Down", s.down)
	t.Run("Interrupt", s.interrupt)
}

type suite struct {
	provider      func() testbed.Provider
	options       Options
	first, second testbed.Spec
	took          time.Duration // by the first Up
}

// spec is what the suite brings up. The links differ in everything they can, and all testbeds of the
// suite have the same networks.
func (s *suite) spec(name string) testbed.Spec {
	spec := testbed.Default()
	spec.Name = name
	spec.Links[1].MTU = 1400
	if s.options.Adjust != nil {
		s.options.Adjust(&spec)
	}
	return spec
}

// up brings up a testbed that must come up.
func (s *suite) up(t *testing.T, spec testbed.Spec) testbed.Testbed {
	t.Helper()
	begin := time.Now()
	bed, err := s.provider().Up(t.Context(), spec)
	if err != nil {
		t.Fatalf("up: %v", err)
	}
	took := time.Since(begin)
	if s.took == 0 {
		s.took = took
	}
	t.Logf("%s was up after %v", spec.Name, took.Round(time.Millisecond))
	if bed.Name() != spec.Name {
		t.Errorf("testbed is called %q, want %q", bed.Name(), spec.Name)
	}
	return bed
}

// nothing holds that there is no trace of the testbed called name.
func (s *suite) nothing(t *testing.T, name string) {
	t.Helper()
	if s.options.Leftovers != nil {
		left, err := s.options.Leftovers(t.Context(), name)
		if err != nil {
			t.Error(err)
		}
		for _, l := range left {
			t.Errorf("left behind: %s", l)
		}
	}
	if info, ok := s.find(t, name); ok {
		t.Errorf("still listed: %+v", info)
	}
	if attacher, ok := s.provider().(testbed.Attacher); ok {
		if bed, err := attacher.Attach(t.Context(), name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("attach: %v, want %v", err, fs.ErrNotExist)
			if err == nil {
				bed.Close()
			}
		}
	}
}

// find looks a testbed up in the list. It finds nothing where the provider has no list.
func (s *suite) find(t *testing.T, name string) (testbed.Info, bool) {
	t.Helper()
	lister, ok := s.provider().(testbed.Lister)
	if !ok {
		return testbed.Info{}, false
	}
	list, err := lister.List(t.Context())
	if err != nil {
		t.Errorf("list: %v", err)
	}
	i := slices.IndexFunc(list, func(i testbed.Info) bool { return i.Name == name })
	if i < 0 {
		return testbed.Info{}, false
	}
	return list[i], true
}

// refuse: a Spec that is wrong makes nothing.
func (s *suite) refuse(t *testing.T) {
	spec := s.first
	spec.Links = slices.Clone(spec.Links)
	spec.Links[0].Network = spec.Links[1].Network
	bed, err := s.provider().Up(t.Context(), spec)
	if err == nil {
		bed.Close()
		t.Error("brought up a testbed whose links have the same network")
	} else if !strings.Contains(err.Error(), "overlap") {
		t.Errorf("error does not say what is wrong: %v", err)
	}
	s.nothing(t, spec.Name)
}

// absent: taking down what is not there is no error.
func (s *suite) absent(t *testing.T) {
	if err := s.provider().Down(t.Context(), s.first.Name); err != nil {
		t.Errorf("down of a testbed that never was: %v", err)
	}
	s.nothing(t, s.first.Name)
}

// upTwice: a name that is taken is refused, and who has it is left alone.
func (s *suite) upTwice(t *testing.T, bed testbed.Testbed) {
	again, err := s.provider().Up(t.Context(), s.first)
	if err == nil {
		again.Close()
		t.Fatal("brought up a second testbed of the same name")
	}
	ping(t, bed, s.first, true)
}

func (s *suite) list(t *testing.T) {
	if _, ok := s.provider().(testbed.Lister); !ok {
		t.Skip("the provider has no list")
	}
	info, ok := s.find(t, s.first.Name)
	if !ok {
		t.Fatalf("%s is not in the list", s.first.Name)
	}
	for _, role := range testbed.Roles() {
		if info.Nodes[role] != "running" {
			t.Errorf("%s is %q, want running", role, info.Nodes[role])
		}
	}
	if info.Provider == "" || len(info.Leftovers) > 0 {
		t.Errorf("got %+v", info)
	}
}

// attach: another provider value finds the testbed, and can let go of it without harm.
func (s *suite) attach(t *testing.T, bed testbed.Testbed) {
	attacher, ok := s.provider().(testbed.Attacher)
	if !ok {
		t.Skip("the provider cannot attach")
	}
	other, err := attacher.Attach(t.Context(), s.first.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.Name() != bed.Name() {
		t.Errorf("attached to %q", other.Name())
	}
	if got, want := other.Features(), bed.Features(); got.Provider != want.Provider || got.Clock != want.Clock || got.DedicatedKernel != want.DedicatedKernel {
		t.Errorf("features are %+v, want %+v", got, want)
	}
	putFile(t, bed.Node(testbed.Sender), "attach.txt", "from the first")
	if got := output(t, other.Node(testbed.Sender), "cat", "attach.txt"); got != "from the first" {
		t.Errorf("the other sees a file with %q", got)
	}
	ping(t, other, s.first, true)
	if err := other.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	ping(t, bed, s.first, true)
}

// sideBySide: two testbeds with the same networks do not know of each other.
func (s *suite) sideBySide(t *testing.T, bed testbed.Testbed) {
	second := s.up(t, s.second)
	defer second.Close()
	ping(t, second, s.second, true)
	setForwarding(t, second, false)
	ping(t, second, s.second, false)
	ping(t, bed, s.first, true)
	second.Close()
	if err := s.provider().Down(t.Context(), s.second.Name); err != nil {
		t.Fatalf("down: %v", err)
	}
	s.nothing(t, s.second.Name)
	ping(t, bed, s.first, true)
}

// renew: the firewall comes back pristine, the rest stays.
func (s *suite) renew(t *testing.T, bed testbed.Testbed) {
	renewer, ok := bed.(testbed.Renewer)
	if !ok {
		t.Skip("the testbed cannot renew a node")
	}
	const ttl = "/proc/sys/net/ipv4/ip_default_ttl"
	node := bed.Node(testbed.Firewall)
	before := output(t, node, "cat", ttl)
	output(t, node, "sh", "-c", "echo 17 >"+ttl)
	old, err := node.Start(t.Context(), "sleep", "300")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := renewer.Renew(t.Context(), testbed.Firewall); err != nil {
		t.Fatalf("renew: %v", err)
	}
	t.Logf("renewed after %v", time.Since(begin).Round(time.Millisecond))
	if err := waitFor(t, old, 10*time.Second); err == nil {
		t.Error("a command on the old node ended as if nothing had happened")
	}
	node = bed.Node(testbed.Firewall)
	if got := output(t, node, "cat", ttl); got != before {
		t.Errorf("the node kept what was set on it: ip_default_ttl is %s, want %s", got, before)
	}
	links(t, bed, s.first)
	offloads(t, bed, s.first)
	path(t, bed, s.first)
	mtu(t, bed, s.first)
}

// down: everything goes, and going twice is fine.
func (s *suite) down(t *testing.T) {
	for range 2 {
		if err := s.provider().Down(t.Context(), s.first.Name); err != nil {
			t.Errorf("down: %v", err)
		}
		s.nothing(t, s.first.Name)
	}
}

// interrupt: wherever Up is interrupted, it says so and leaves nothing; the name is free afterwards.
func (s *suite) interrupt(t *testing.T) {
	for _, fraction := range s.options.Interruptions {
		after := time.Duration(fraction * float64(s.took))
		ctx, cancel := context.WithTimeout(t.Context(), after)
		bed, err := s.provider().Up(ctx, s.first)
		cancel()
		if err == nil {
			t.Logf("was up before %v", after)
			bed.Close()
			if err := s.provider().Down(t.Context(), s.first.Name); err != nil {
				t.Errorf("down: %v", err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("interrupted after %v: %v does not wrap %v", after, err, context.DeadlineExceeded)
		}
		s.nothing(t, s.first.Name)
	}
}
