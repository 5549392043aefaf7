package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rpc "github.com/digitalocean/go-libvirt"

	"github.com/rampart-bench/rampart/testbed"
)

func TestParseURI(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	for uri, want := range map[string]string{ // want: the first socket, or part of the error
		"qemu:///system":                   "/run/libvirt/libvirt-sock",
		"qemu+unix:///system":              "/run/libvirt/libvirt-sock",
		"qemu:///system?socket=/tmp/a%20b": "/tmp/a b",
		"qemu:///session":                  "/run/user/7/libvirt/virtqemud-sock",
		"qemu:///session?socket=/a":        "/a",
		"qemu+ssh://me@host:22/system":     "/run/libvirt/libvirt-sock",
		"qemu+ssh://host/session":          "on another host use",
		"qemu+ssh://a:secret@host/system":  "without a password",
		"qemu+ssh://-oX=y/system":          "USER@HOST",
		"qemu+ssh://-oX@y/system":          "USER@HOST",
		"qemu:///system?keyfile=/x":        "unknown parameter",
		"xen:///system":                    "not supported",
		"qemu:///system?sockt=/x":          "unknown parameter",
		"%":                                "cannot be read",
		"":                                 "not supported",
	} {
		e, err := parseURI(uri)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("parseURI(%q): %v, want %q", uri, err, want)
			}
			continue
		}
		if e.sockets[0] != want || e.uri != "qemu:///"+path.Base(strings.SplitN(uri, "?", 2)[0]) {
			t.Errorf("parseURI(%q) = %+v, want %q", uri, e, want)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add("qemu:///system?socket=/x")
	f.Add("qemu+ssh://a@b:1/session")
	f.Fuzz(func(t *testing.T, uri string) {
		if e, err := parseURI(uri); err == nil && (e.uri == "" || len(e.sockets) == 0) {
			t.Errorf("%q gives %+v", uri, e)
		}
	})
}

func TestUnreachableSaysWhatHelps(t *testing.T) {
	sockets := []string{"/one", "/two"}
	for _, test := range []struct {
		errs []error
		want string
		mend string
	}{
		{[]error{fs.ErrNotExist, fs.ErrNotExist}, "there is no /one", "systemctl start libvirtd"},
		{[]error{fs.ErrNotExist, syscall.EACCES}, "may not open /two", "usermod"},
		{[]error{syscall.ECONNREFUSED, fs.ErrNotExist}, "nothing listens", "systemctl start"},
		{[]error{fs.ErrNotExist, syscall.EMFILE}, "open /two: too many open files", "systemctl start"},
	} {
		err := unreachable(sockets, test.errs, systemMends)
		unavailable, ok := errors.AsType[*UnavailableError](err)
		if !ok || !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) || !strings.Contains(unavailable.Mend, test.mend) {
			t.Errorf("%v: %v; want %q and %q", test.errs, err, test.want, test.mend)
		}
	}
}

func TestNoLibvirt(t *testing.T) {
	p := newProvider(t, Options{URI: "qemu:///system?socket=" + filepath.Join(t.TempDir(), "none"), StateDir: t.TempDir()})
	if _, err := p.List(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
	if err := p.Down(t.Context(), "x"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("down: %v", err)
	}
	found, err := p.Diagnose(t.Context())
	if err != nil || len(found) != 1 || !found[0].Blocks || !strings.Contains(found[0].Mend, "systemctl start") {
		t.Errorf("diagnose: %+v, %v", found, err)
	}
}

// listen accepts connections and gives each to serve.
func listen(t *testing.T, serve func(net.Conn)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return socket
}

// A libvirt that accepts and then says nothing must not hang us, nor one that hangs up.
func TestSilentLibvirt(t *testing.T) {
	socket := listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	p := newProvider(t, Options{URI: "qemu:///system?socket=" + socket, StateDir: t.TempDir()})
	if _, err := p.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("list: %v", err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestLibvirtThatHangsUp(t *testing.T) {
	socket := listen(t, func(c net.Conn) { c.Close() })
	p := newProvider(t, Options{URI: "qemu:///system?socket=" + socket, StateDir: t.TempDir()})
	if _, err := p.List(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
}

// A call that does not end by itself ends with its deadline, and takes the connection with it.
func TestCallHasDeadline(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	c := &conn{sock: here}
	stuck := make(chan struct{})
	defer close(stuck)
	err := c.do(t.Context(), 10*time.Millisecond, "do nothing", func(*rpc.Libvirt) error { <-stuck; return nil })
	if err == nil || !strings.Contains(err.Error(), "do nothing: libvirt did not answer within 10ms") {
		t.Errorf("got %v", err)
	}
	if _, err := here.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the connection is still open: %v", err)
	}
}

func TestConsoleKeepsTheEnd(t *testing.T) {
	c := newConsole()
	for range consoleSize / 10 {
		c.Write([]byte("0123456789\n"))
	}
	c.Write([]byte("\x1b[0mthe end\r\n\n"))
	text, _, _ := c.snapshot()
	if len(text) != consoleSize {
		t.Errorf("%d bytes are kept, want %d", len(text), consoleSize)
	}
	if got := c.lines(2); !slices.Equal(got, []string{"0123456789", "[0mthe end"}) {
		t.Errorf("last lines are %q", got)
	}
}

func TestConsoleWait(t *testing.T) {
	c := newConsole()
	got := make(chan error)
	go func() { got <- c.wait(t.Context(), reached("ready")) }()
	c.Write([]byte("rampart: boot: sshd\r\nrampart: bo"))
	c.Write([]byte("ot: ready\r\n"))
	if err := <-got; err != nil {
		t.Errorf("got %v", err)
	}

	c = newConsole()
	c.Write([]byte("rampart: boot: failed: network\r\nrampart: boot: ready\r\n"))
	if err := c.wait(t.Context(), reached("ready")); err == nil || !strings.Contains(err.Error(), `"network" failed`) {
		t.Errorf("got %v", err)
	}

	c = newConsole()
	c.end()
	if err := c.wait(t.Context(), reached("ready")); !errors.Is(err, errStopped) {
		t.Errorf("got %v", err)
	}
}

// The error of a node that does not come up names the step and shows the console.
func TestMeet(t *testing.T) {
	c := newConsole()
	c.Write([]byte("one\ntwo\n"))
	never := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	err := meet(t.Context(), testLog(t), testbed.Sender, c, []requirement{
		{"first", time.Minute, "", func(context.Context) error { return nil }},
		{"second", time.Millisecond, "look there", never},
	})
	var boot *BootError
	if !errors.As(err, &boot) || boot.Step != "second" || boot.Role != testbed.Sender || boot.Hint != "look there" {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"node sender", "second: not within 1ms", "| two"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q:\n%v", want, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := meet(ctx, testLog(t), testbed.Sender, c, []requirement{{"third", time.Minute, "", never}}); !errors.Is(err, context.Canceled) || errors.As(err, &boot) {
		t.Errorf("cancelled: %v", err)
	}
}

const goodFeatures = `Features for inside:
rx-checksumming: on [fixed]
tx-checksumming: off
	tx-checksum-ipv4: off [fixed]
tcp-segmentation-offload: off
generic-segmentation-offload: off
generic-receive-offload: off
large-receive-offload: off [fixed]
`

func TestCheckLink(t *testing.T) {
	const bits = "0010010000000001111101010000110010000000100000000000000000000000"
	link := testbed.LinkSpec{Name: "inside", MTU: 1500}
	for name, test := range map[string]struct{ output, want string }{
		"good":        {"1500\n" + bits + "\n" + goodFeatures, ""},
		"mtu":         {"1400\n" + bits + "\n" + goodFeatures, `mtu is "1400", not 1500`},
		"device":      {"1500\n1" + bits[1:] + "\n" + goodFeatures, "stay on: VIRTIO_NET_F_CSUM:"},
		"driver":      {"1500\n" + bits + "\n" + strings.Replace(goodFeatures, "receive-offload: off", "receive-offload: on", 1), "stay on: generic-receive-offload:"},
		"rx":          {"1500\n" + bits + "\n" + strings.Replace(goodFeatures, "on [fixed]", "on", 1), "stay on: rx-checksumming:"},
		"no ethtool":  {"1500\n" + bits + "\n", "ethtool says nothing"},
		"no features": {"1500\n", "too short"},
		"few bits":    {"1500\n0010\n" + goodFeatures, "too short"},
	} {
		err := checkLink(link, test.output)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	link.Offloads = true
	if err := checkLink(link, "1500\n1\n"); err != nil {
		t.Errorf("offloads that may be on: %v", err)
	}
}

func FuzzCheckLink(f *testing.F) {
	f.Add("1500\n" + strings.Repeat("0", 64) + "\n" + goodFeatures)
	f.Fuzz(func(t *testing.T, output string) {
		if checkLink(testbed.LinkSpec{MTU: 1500}, output) == nil && !strings.HasPrefix(output, "1500\n0") {
			t.Errorf("%q passes", output)
		}
	})
}

func TestMayOpen(t *testing.T) {
	for _, test := range []struct {
		mode       fs.FileMode
		owner, grp uint32
		uid        uint32
		groups     []uint32
		want       bool
	}{
		{0o600, 0, 0, 64055, []uint32{109}, false}, // the trap: root may, QEMU's user may not
		{0o600, 0, 0, 0, nil, true},
		{0o666, 0, 0, 64055, []uint32{109}, true},
		{0o660, 0, 109, 64055, []uint32{64055, 109}, true},
		{0o660, 0, 109, 64055, []uint32{64055}, false},
		{0o606, 0, 109, 64055, []uint32{109}, false}, // the group's bits count for its members
		{0o644, 0, 0, 64055, nil, false},
		{0o600, 64055, 0, 64055, nil, true},
	} {
		if got := mayOpen(test.mode, test.owner, test.grp, test.uid, test.groups); got != test.want {
			t.Errorf("%+v: got %v", test, got)
		}
	}
}

func TestParseQEMUUser(t *testing.T) {
	const caps = `<capabilities><host><secmodel><model>apparmor</model><doi>0</doi></secmodel><secmodel><model>dac</model><doi>0</doi><baselabel type='kvm'>+64055:+109</baselabel><baselabel type='qemu'>+64055:+109</baselabel></secmodel></host></capabilities>`
	if uid, gid, err := parseQEMUUser(caps); uid != 64055 || gid != 109 || err != nil {
		t.Errorf("got %d, %d, %v", uid, gid, err)
	}
	if uid, gid, err := parseQEMUUser(`<capabilities/>`); uid != 0 || gid != 0 || err != nil {
		t.Errorf("without a model: %d, %d, %v", uid, gid, err)
	}
}

// What libvirt and QEMU say is turned into what helps. The texts are theirs.
func TestTroubles(t *testing.T) {
	c := &conn{}
	for text, want := range map[string][2]string{
		"Failed to connect socket to '/var/run/libvirt/virtnetworkd-sock': No such file or directory": {"its daemon virtnetworkd does not run", "systemctl start virtnetworkd.socket"},
		"Failed to connect socket to '/run/user/1000/libvirt/virtstoraged-sock': Connection refused":  {"its daemon virtstoraged does not run", "systemctl start virtstoraged.socket"},
		"this function is not supported by the connection driver: virStoragePoolLookupByName":         {"without its driver Storage", "apt-get install"},
		"cannot write data to file '/pool/x': No space left on device":                                {"no room is left", "remove files"},
		"cannot set up guest memory 'pc.ram': Cannot allocate memory":                                 {"", ""},
	} {
		err := c.describe("do something", errors.New(text))
		u, ok := errors.AsType[*UnavailableError](err)
		if ok != (want[0] != "") || !strings.Contains(err.Error(), "do something: ") {
			t.Errorf("%s: %v", text, err)
		} else if ok && (!strings.Contains(u.Problem, want[0]) || !strings.Contains(u.Mend, want[1])) {
			t.Errorf("%s: %q, %q; want %q", text, u.Problem, u.Mend, want)
		}
	}
}

func TestStartTroubles(t *testing.T) {
	const closed = "qemu-system-x86_64: -blockdev {}: Could not open '/data/images/rampart/base': Permission denied"
	for _, test := range []struct {
		text          string
		confined      bool
		problem, mend string
	}{
		{closed, false, "QEMU may not open /data/images/rampart/base: a folder on the way is closed", "namei -l /data/images/rampart/base"},
		{closed, true, "AppArmor's profile for it does not allow the place", `"/data/images/rampart/**" rwk`},
		{"qemu: could not open kernel file '/pool/kernel': Permission denied", false, "may not open /pool/kernel", "namei"},
		{"Cannot access storage file '/a/b' (as uid:64055, gid:64055): Permission denied", false, "may not open /a/b", "namei -l /a/b"},
		{"internal error: cannot load AppArmor profile 'libvirt-1-2'", true, "the AppArmor profile libvirt-1-2", "apt-get install --reinstall"},
		{"-netdev user,id=rampart0: network backend 'user' is not compiled into this binary", false, "without user-mode networks", "qemu:///system"},
		{"-netdev dgram,id=rampart1: Parameter 'type' does not accept value 'dgram'", false, "older than 7.2", "QEMU 7.2 or later"},
		{"qemu-system-x86_64: cannot set up guest memory 'pc.ram': Cannot allocate memory", false, "no memory left", "memory in node blocks"},
	} {
		f, ok := startTrouble(test.text, func() bool { return test.confined })
		if !ok || !strings.Contains(f.Problem, test.problem) || !strings.Contains(f.Mend, test.mend) {
			t.Errorf("%s: %+v, %v", test.text, f, ok)
		}
	}
	if f, ok := startTrouble("something else", func() bool { return true }); ok {
		t.Errorf("found %+v", f)
	}
}

func FuzzStartTrouble(f *testing.F) {
	f.Add("Could not open '/a': Permission denied")
	f.Fuzz(func(t *testing.T, text string) {
		if found, ok := startTrouble(text, func() bool { return true }); ok && (found.Problem == "" || found.Mend == "" || !found.Blocks) {
			t.Errorf("%q gives %+v", text, found)
		}
	})
}

func TestNamesAppArmor(t *testing.T) {
	const caps = `<capabilities><host><secmodel><model>%s</model><doi>0</doi></secmodel><secmodel><model>dac</model></secmodel></host></capabilities>`
	if !namesAppArmor(fmt.Sprintf(caps, "apparmor")) || namesAppArmor(fmt.Sprintf(caps, "selinux")) || namesAppArmor("<") {
		t.Error("it is not told apart")
	}
}

func FuzzParseQEMUUser(f *testing.F) {
	f.Add(`<capabilities><host><secmodel><model>dac</model><baselabel type='kvm'>+1:+2</baselabel></secmodel></host></capabilities>`)
	f.Fuzz(func(t *testing.T, doc string) { parseQEMUUser(doc) })
}

func TestVersionString(t *testing.T) {
	if got := versionString(7_002_022); got != "7.2.22" {
		t.Errorf("got %s", got)
	}
}

// Verdicts are for one boot of the host, and there for each QEMU with each kernel.
func TestVerdictIsRememberedForItsKey(t *testing.T) {
	p := newProvider(t, Options{StateDir: t.TempDir()})
	one, other, later := verdictKey{"boot", "one"}, verdictKey{"boot", "other"}, verdictKey{"later", "one"}
	if v, ok := p.recall(one); ok {
		t.Errorf("knows %+v from nowhere", v)
	}
	want := map[verdictKey]Verdict{one: {Usable: true, Reason: "it booted"}, other: {Reason: "it died"}}
	for key, v := range want {
		if err := p.remember(key, v); err != nil {
			t.Fatal(err)
		}
	}
	for key, v := range want {
		if got, ok := p.recall(key); !ok || got != v {
			t.Errorf("%v: %+v, %v", key, got, ok)
		}
	}
	if got, ok := p.recall(later); ok {
		t.Errorf("after another boot: %+v", got)
	}
	if err := p.remember(later, Verdict{}); err != nil {
		t.Fatal(err)
	}
	if got, ok := p.recall(other); ok {
		t.Errorf("of an earlier boot: %+v", got)
	}
}

func TestLock(t *testing.T) {
	p := newProvider(t, Options{StateDir: t.TempDir()})
	unlock, err := p.tryLock("x", exclusive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.tryLock("x", exclusive); !errors.Is(err, errBusy) {
		t.Errorf("taken twice: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.lock(ctx, "x", exclusive); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited: %v", err)
	}
	unlock()
	unlock, err = p.lock(t.Context(), "x", exclusive)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := New(Options{Accelerator: "warp"}); err == nil || !strings.Contains(err.Error(), "auto, kvm or tcg") {
		t.Errorf("got %v", err)
	}
	if _, err := New(Options{URI: "qemu+ssh://host/session"}); err == nil {
		t.Error("qemu+ssh://host/session passes")
	}
}

// OutlastEnds: the longer context does end, and not before its time.
func TestOutlast(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	longer, stop := outlast(ctx, 30*time.Millisecond)
	defer stop()
	begin := time.Now()
	cancel()
	<-longer.Done()
	if took := time.Since(begin); took < 30*time.Millisecond {
		t.Errorf("ended after %v", took)
	}
	if !errors.Is(context.Cause(longer), context.Canceled) {
		t.Errorf("cause is %v", context.Cause(longer))
	}
}

// What is remembered is told without asking: of this boot, of this host, and if it is the same for every kernel.
func TestRememberedVerdicts(t *testing.T) {
	content, err := os.ReadFile(bootFile)
	if err != nil {
		t.Fatal(err)
	}
	boot := strings.TrimSpace(string(content))
	there := exists(t.Context(), thisHost{}, kvmDevice) // without it that alone is known
	for _, test := range []struct {
		boot          string
		verdicts      []bool
		usable, known bool
	}{
		{boot, nil, false, false},
		{boot, []bool{true}, true, true},
		{boot, []bool{false, false}, false, true},
		{boot, []bool{true, false}, false, false},
		{"another", []bool{true}, false, false},
	} {
		p := newProvider(t, Options{StateDir: t.TempDir()})
		for i, usable := range test.verdicts {
			if err := p.remember(verdictKey{test.boot, fmt.Sprint("kernel ", i)}, Verdict{Usable: usable}); err != nil {
				t.Fatal(err)
			}
		}
		if usable, known := p.Remembered(); usable != (test.usable && there) || known != (test.known || !there) {
			t.Errorf("%+v: usable %t, known %t", test, usable, known)
		}
	}
	if _, known := newProvider(t, Options{StateDir: t.TempDir(), URI: "qemu+ssh://host/system"}).Remembered(); known {
		t.Error("something is known of a host that nobody asked")
	}
}
