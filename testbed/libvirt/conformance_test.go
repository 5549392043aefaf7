package libvirt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/testbedtest"
)

// skip skips a test that this machine cannot run, or fails it where that must not happen.
func skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Fatalf("cannot be skipped here: %s", reason)
	}
	t.Skip(reason)
}

// The tests have a pool of their own, apart from that of testbeds in use. The image stays in it, so that
// only the first run uploads.
const testPool = "rampart-test"

// testImage builds the image once for all tests, or takes the one that was built before.
var testImage = sync.OnceValues(func() (Image, error) {
	dir, err := images.DefaultDir()
	if err != nil {
		return Image{}, err
	}
	store, err := images.Open(dir)
	if err != nil {
		return Image{}, err
	}
	i, err := store.Build(context.Background(), images.Spec{Name: "libvirt-test"}, nil)
	if err != nil {
		return Image{}, err
	}
	return FromStore(i), nil
})

// lab is what tests with a real libvirt share.
type lab struct {
	t       testing.TB
	options Options
}

func newLab(t testing.TB) *lab {
	t.Helper()
	if testing.Short() {
		t.Skip("boots machines")
	}
	probe := newProvider(t, Options{StateDir: t.TempDir()})
	if _, err := probe.control(t.Context()); err != nil {
		skip(t, err.Error())
	}
	image, err := testImage()
	if err != nil {
		skip(t, fmt.Sprintf("no image: %v", err))
	}
	options := Options{
		Image: image,
		// What is known of KVM and of uploads outlives a test; so does the pool.
		StateDir: filepath.Join(os.TempDir(), "rampart-libvirt-test"),
		Pool:     testPool,
		PoolDir:  filepath.Join(filepath.Dir(DefaultPoolDir), testPool),
		Log:      testLog(t),
	}
	return &lab{t, options}
}

func newProvider(t testing.TB, o Options) *Provider {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func (l *lab) provider() *Provider { return newProvider(l.t, l.options) }

// spec is the smallest testbed.
func (l *lab) spec(name string) testbed.Spec {
	spec := testbed.Default()
	spec.Name = name
	smallest(&spec)
	l.t.Cleanup(func() {
		if err := l.provider().Down(context.Background(), name); err != nil {
			l.t.Error(err)
		}
		left, err := l.leftovers(context.Background(), name)
		if err != nil || len(left) > 0 {
			l.t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return spec
}

// smallest is as little memory as the image boots in.
func smallest(spec *testbed.Spec) {
	for i := range spec.Nodes {
		spec.Nodes[i].Memory = 192 << 20
	}
}

// leftovers looks past the provider: at libvirt, the bridges, QEMU's processes and the folders.
func (l *lab) leftovers(ctx context.Context, name string) ([]string, error) {
	p := newProvider(l.t, l.options)
	c, err := p.control(ctx)
	if err != nil {
		return nil, err
	}
	inv, err := p.take(ctx, c, func(id ident) bool { return id.Name == name })
	if err != nil {
		return nil, err
	}
	var left []string
	for _, d := range inv.domains {
		left = append(left, "domain "+d.Name)
	}
	for _, n := range inv.networks {
		left = append(left, "network "+n.Name)
	}
	for _, v := range inv.volumes {
		left = append(left, "volume "+v.Name)
	}
	for _, s := range inv.states {
		left = append(left, "state "+s.String())
	}
	processes, err := processesOf(name)
	left = append(left, processes...)
	bridges, errBridges := l.bridges(name)
	return append(left, bridges...), errors.Join(err, errBridges)
}

// processesOf are the processes that name a domain of the testbed on their command line.
func processesOf(name string) ([]string, error) {
	return processesWith("guest=rampart-" + name + "-")
}

// processesWith are the processes with that text on their command line.
func processesWith(text string) ([]string, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(content), text) {
			found = append(found, "process "+filepath.Base(filepath.Dir(file)))
		}
	}
	return found, err
}

// bridges are those that there are though no network has them any more. Their names hold no
// testbed's name, so they are judged by what libvirt says of all.
func (l *lab) bridges(string) ([]string, error) {
	p := newProvider(l.t, l.options)
	c, err := p.control(context.Background())
	if err != nil {
		return nil, err
	}
	networks, err := listNetworks(context.Background(), c)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, n := range networks {
		if id, _, ok := parseName(n.Name); ok {
			known[id.ID] = true
		}
	}
	if !p.endpoint.wiring.taps() {
		return nil, nil // it cannot make any; those there are belong to others
	}
	interfaces, err := p.endpoint.host.output(context.Background(), "ls", "/sys/class/net")
	if err != nil {
		return nil, err
	}
	var left []string
	for _, i := range strings.Fields(interfaces) {
		if id, _, ok := strings.Cut(strings.TrimPrefix(i, "rp"), "-"); ok && strings.HasPrefix(i, "rp") && len(id) == 6 && !known[id] {
			left = append(left, "bridge "+i)
		}
	}
	return left, nil
}

func TestConformance(t *testing.T) {
	l := newLab(t)
	testbedtest.Run(t, func() testbed.Provider { return l.provider() }, testbedtest.Options{
		Prefix:        "lv",
		Leftovers:     l.leftovers,
		Adjust:        smallest,
		Interruptions: []float64{0, 0.1, 0.6},
	})
}
