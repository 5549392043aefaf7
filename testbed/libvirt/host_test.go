package libvirt

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestThisHost(t *testing.T) {
	h, ctx := thisHost{}, t.Context()
	file := filepath.Join(t.TempDir(), "a file's")
	if err := os.WriteFile(file, []byte("content\n\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if got, err := readFile(ctx, h, file); got != "content\n\n" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if s, err := statFile(ctx, h, file); err != nil || s.perm != 0o640 || s.uid != uint32(os.Getuid()) {
		t.Errorf("stat: %+v, %v", s, err)
	}
	if free, err := freeSpace(ctx, h, file); err != nil || free == 0 {
		t.Errorf("free: %d, %v", free, err)
	}
	none := filepath.Join(file, "none")
	if _, err := readFile(ctx, h, none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read of nothing: %v", err)
	}
	if !exists(ctx, h, file) || exists(ctx, h, none) {
		t.Error("what is there is not, or the reverse")
	}
	if _, err := lookAt(ctx, h, file, "echo trouble >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "exit status 3: trouble") {
		t.Errorf("a command that failed: %v", err)
	}
}

// What the kernel says in a file is what it says over netlink. Routes may come and go meanwhile: one that is
// missing before and after was there all the time.
func TestHostPrefixes(t *testing.T) {
	before, err := hostPrefixes(t.Context(), thisHost{})
	if err != nil {
		t.Fatal(err)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	after, err := hostPrefixes(t.Context(), thisHost{})
	if err != nil {
		t.Fatal(err)
	}
	if len(routes) == 0 {
		t.Error("netlink has no route")
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		addr, _ := netip.AddrFromSlice(r.Dst.IP)
		bits, _ := r.Dst.Mask.Size()
		if want := netip.PrefixFrom(addr.Unmap(), bits); bits > 0 && !slices.Contains(before, want) && !slices.Contains(after, want) {
			t.Errorf("%v is missing", want)
		}
	}
}

const exampleRoutes = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.254.3.16/28 2 0 2
        |-- 10.254.3.16
           /28 link UNICAST
     |-- 172.16.0.0
        /12 universe BLACKHOLE
        /16 link UNICAST tos=8
Local:
  +-- 0.0.0.0/0 3 0 5
        |-- 10.254.3.17
           /32 host LOCAL
`

func TestParseRoutes(t *testing.T) {
	var got []string
	for _, p := range parseRoutes(exampleRoutes) {
		got = append(got, p.String())
	}
	if want := []string{"10.254.3.16/28", "172.16.0.0/12", "172.16.0.0/16", "10.254.3.17/32"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzParseRoutes(f *testing.F) {
	f.Add(exampleRoutes)
	f.Add("|-- ::1\n/3 a b\n|-- 1.2.3.4\n/-1 a b\n/33 a b\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range parseRoutes(text) {
			if !p.IsValid() || !p.Addr().Is4() || p.Bits() == 0 || p != p.Masked() {
				t.Errorf("%q gives %v", text, p)
			}
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("660 0 109\n")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := parseStat(text); err == nil && s.perm != s.perm.Perm() {
			t.Errorf("%q gives %+v", text, s)
		}
	})
}

const exampleForward = `Hub -1 (rampart0):
  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ
  TCP[ESTABLISHED]   20     10.254.0.18    22      10.254.0.17 40000     0     0
  TCP[HOST_FORWARD]  13       127.0.0.1 32979     10.254.0.18    22     0     0
`

func TestParseForward(t *testing.T) {
	if port, err := parseForward(exampleForward); port != "32979" || err != nil {
		t.Errorf("got %q, %v", port, err)
	}
	for _, text := range []string{"", "TCP[HOST_FORWARD] 13 127.0.0.1 x", "TCP[HOST_FORWARD] 13 127.0.0.1 0", "TCP[HOST_FORWARD]"} {
		if port, err := parseForward(text); err == nil {
			t.Errorf("%q gives %q", text, port)
		}
	}
}

func FuzzParseForward(f *testing.F) {
	f.Add(exampleForward)
	f.Fuzz(func(t *testing.T, text string) {
		if port, err := parseForward(text); err == nil && (port == "" || len(port) > 5) {
			t.Errorf("%q gives %q", text, port)
		}
	})
}
