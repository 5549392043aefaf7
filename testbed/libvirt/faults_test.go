package libvirt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/testbed"
)

// TestMain is also the process that tests kill.
func TestMain(m *testing.M) {
	if uri := os.Getenv(victimURI); uri != "" {
		fmt.Fprintln(os.Stderr, farVictim(uri, os.Getenv(victimDir)))
		os.Exit(1)
	}
	if name := os.Getenv(victimName); name != "" {
		if err := victim(name); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

const (
	victimName = "RAMPART_TEST_VICTIM" // the testbed to bring up
	victimDir  = "RAMPART_TEST_VICTIM_STATE"
	victimURI  = "RAMPART_TEST_VICTIM_URI" // the host to reach
	isUp       = "is up"
)

// victim brings up a testbed, says so, and waits to be killed.
func victim(name string) error {
	image, err := testImage()
	if err != nil {
		return err
	}
	p, err := New(Options{Image: image, StateDir: os.Getenv(victimDir), Pool: testPool, PoolDir: filepath.Join(filepath.Dir(DefaultPoolDir), testPool)})
	if err != nil {
		return err
	}
	spec := testbed.Default()
	spec.Name = name
	smallest(&spec)
	if _, err := p.Up(context.Background(), spec); err != nil {
		return err
	}
	fmt.Println(isUp)
	select {}
}

// A process that is killed takes its machines with it; the next one removes the rest by the name.
func TestKilledProcess(t *testing.T) {
	l := newLab(t)
	spec := l.spec("lv-killed")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimName+"="+spec.Name, victimDir+"="+l.options.StateDir)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != isUp {
		t.Fatalf("the process said %q, %v, %v", line, err, cmd.Wait())
	}
	p := l.provider()
	if info := only(t, p, spec.Name); info.Nodes[testbed.Firewall] != stateRunning || len(info.Leftovers) > 0 {
		t.Errorf("before: %+v", info)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	deadline := time.Now().Add(30 * time.Second)
	for {
		info := only(t, p, spec.Name)
		if info.Nodes[testbed.Sender] == stateGone && info.Nodes[testbed.Firewall] == stateGone && info.Nodes[testbed.Receiver] == stateGone {
			if len(info.Leftovers) == 0 {
				t.Errorf("networks, volumes and state should be left: %+v", info)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("machines outlive their process: %+v", info)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if err := p.Down(t.Context(), spec.Name); err != nil {
		t.Error(err)
	}
	if left, err := l.leftovers(t.Context(), spec.Name); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// only is the testbed of that name in the list.
func only(t *testing.T, p *Provider, name string) testbed.Info {
	t.Helper()
	list, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range list {
		if info.Name == name {
			return info
		}
	}
	t.Fatalf("%s is not in the list", name)
	return testbed.Info{}
}

// A machine that is destroyed under a running command ends it with a clear error, and so does a
// libvirt that goes away; the testbed can be mended, and goes without a trace. It is a tuned one, so that
// one boot also shows that tuning is read back, from fresh machines and from those that replace them.
func TestLosses(t *testing.T) {
	l := newLab(t)
	spec := l.spec("lv-losses")
	link := startCuttable(t, "/run/libvirt/libvirt-sock")
	options := l.options
	options.URI = "qemu:///system?socket=" + link.socket
	p := newProvider(t, options)
	tuneAll(t, p, &spec)
	bed, err := p.Up(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()

	t.Run("Tuned", func(t *testing.T) { checkTuned(t, p, bed.(*running)) })
	t.Run("Destroyed", func(t *testing.T) {
		cat := startCat(t, bed.Node(testbed.Firewall))
		other := newProvider(t, Options{StateDir: t.TempDir()}) // somebody else, on the real socket
		c, err := other.control(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := destroyByName(t.Context(), c, bed.(*running).state.Ident.domain(testbed.Firewall)); err != nil {
			t.Fatal(err)
		}
		endsAsGone(t, cat)
		if err := bed.Node(testbed.Firewall).Put(t.Context(), "x", 0o600, strings.NewReader("")); !errors.Is(err, ErrGone) {
			t.Errorf("put: %v", err)
		}
		if _, err := bed.Node(testbed.Firewall).Start(t.Context(), "true"); !errors.Is(err, ErrGone) {
			t.Errorf("start: %v", err)
		}
		if err := bed.(testbed.Renewer).Renew(t.Context(), testbed.Firewall); err != nil {
			t.Fatalf("renew: %v", err)
		}
		out, err := bed.(*running).node(testbed.Sender).output(t.Context(), "ping", "-n", "-c", "2", "-W", "5", spec.Outside().Address(testbed.Receiver).Addr().String())
		if err != nil {
			t.Errorf("through the new firewall: %v\n%s", err, out)
		}
	})
	t.Run("LibvirtGone", func(t *testing.T) {
		cat := startCat(t, bed.Node(testbed.Sender))
		link.cut()
		endsAsGone(t, cat)
		begin := time.Now()
		if err := bed.(testbed.Renewer).Renew(t.Context(), testbed.Sender); !errors.Is(err, ErrUnavailable) {
			t.Errorf("renew: %v", err)
		}
		if _, err := p.List(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("list: %v", err)
		}
		if _, err := bed.Node(testbed.Sender).Start(t.Context(), "true"); !errors.Is(err, ErrGone) {
			t.Errorf("start: %v", err)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("finding out took %v", took)
		}
	})
	t.Run("LibvirtBack", func(t *testing.T) {
		link.mend()
		if err := p.Down(t.Context(), spec.Name); err != nil {
			t.Errorf("down: %v", err)
		}
	})
}

func startCat(t *testing.T, node testbed.Node) testbed.Conn {
	t.Helper()
	c, err := node.Start(t.Context(), "cat")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// endsAsGone holds that a command ends soon with an error that says why.
func endsAsGone(t *testing.T, c testbed.Conn) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		io.Copy(io.Discard, c)
		ended <- c.Wait()
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, ErrGone) {
			t.Errorf("the command ended with %v", err)
		}
		t.Logf("it said: %v", err)
	case <-time.After(15 * time.Second):
		t.Fatal("the command did not end with its machine")
	}
}

// cuttable is a socket in front of libvirt's that can go away, as libvirt can.
type cuttable struct {
	socket, target string

	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
}

func startCuttable(t *testing.T, target string) *cuttable {
	t.Helper()
	c := &cuttable{socket: filepath.Join(t.TempDir(), "sock"), target: target}
	if err := c.mend(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.cut)
	return c
}

func (c *cuttable) mend() error {
	l, err := net.Listen("unix", c.socket)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.listener = l
	c.mu.Unlock()
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			c.join(near)
		}
	}()
	return nil
}

func (c *cuttable) join(near net.Conn) {
	far, err := net.Dial("unix", c.target)
	if err != nil {
		near.Close()
		return
	}
	c.mu.Lock()
	c.conns = append(c.conns, near, far)
	c.mu.Unlock()
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			io.Copy(pair[0], pair[1])
			near.Close()
			far.Close()
		}()
	}
}

func (c *cuttable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listener.Close()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// An image that does not boot: the error names the step and shows what the kernel said.
func TestImageThatDoesNotBoot(t *testing.T) {
	l := newLab(t)
	spec := l.spec("lv-noboot")
	broken := filepath.Join(t.TempDir(), "initrd")
	if err := os.WriteFile(broken, []byte("this is no initrd"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.options.Image.Initrd = File{Path: broken}
	p := l.provider()
	t.Cleanup(func() { removeShared(t, p, "initrd", l.options.Image.Initrd) })
	_, err := p.Up(t.Context(), spec)
	var boot *BootError
	if !errors.As(err, &boot) {
		t.Fatalf("got %v", err)
	}
	if boot.Step != "kernel booted" || !errors.Is(err, errStopped) {
		t.Errorf("step %q: %v", boot.Step, err)
	}
	if console := strings.Join(boot.Console, "\n"); !strings.Contains(console, "Kernel panic") || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("the console is not shown: %v", err)
	}
	if left, err := l.leftovers(t.Context(), spec.Name); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// removeShared deletes what was uploaded for a test.
func removeShared(t *testing.T, p *Provider, kind string, f File) {
	ctx := context.Background()
	c, err := p.control(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	pool, err := p.openPool(ctx, c)
	if err != nil {
		t.Error(err)
		return
	}
	sum, err := f.digest()
	if err != nil {
		t.Error(err)
		return
	}
	name := sharedName(kind, sum)
	for _, n := range []string{name, name + completeSuffix} {
		v, err := lookupVolume(ctx, c, pool, n)
		if err == nil {
			err = deleteVolume(ctx, c, v.StorageVol)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// An upload that was broken off is not taken for the image.
func TestBrokenUpload(t *testing.T) {
	l := newLab(t)
	p := l.provider()
	f := File{Path: filepath.Join(t.TempDir(), "file")}
	if err := os.WriteFile(f.Path, []byte("all of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := p.control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pool, err := p.openPool(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := f.digest()
	if err != nil {
		t.Fatal(err)
	}
	name := sharedName("test", sum)
	if _, err := createVolume(t.Context(), c, pool, rawVolume(name, modeShared, 9)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeShared(t, p, "test", f) })
	for range 2 { // uploads, then finds
		v, err := p.sharedVolume(t.Context(), c, pool, "test", f)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(v.path); err != nil || string(got) != "all of it" {
			t.Errorf("the volume holds %q, %v", got, err)
		}
	}
	other := filepath.Join(t.TempDir(), "changed")
	if err := os.WriteFile(other, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	lie := File{Path: other, SHA256: strings.Repeat("00", 32)}
	if _, err := p.sharedVolume(t.Context(), c, pool, "test", lie); err == nil || !strings.Contains(err.Error(), "changed or damaged") {
		t.Errorf("a damaged file: %v", err)
	}
}

// The probe finds what this machine really does, and remembers it.
func TestProbeKVM(t *testing.T) {
	l := newLab(t)
	l.options.StateDir = t.TempDir()
	p := l.provider()
	first, err := p.ProbeKVM(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", first)
	if first.Reason == "" {
		t.Error("the verdict has no reason")
	}
	begin := time.Now()
	second, err := l.provider().ProbeKVM(t.Context())
	if err != nil || second != first {
		t.Errorf("second time: %+v, %v", second, err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("remembering took %v", took)
	}
	found, err := p.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := false
	for _, f := range found {
		t.Logf("finding: %+v", f)
		if f.Problem == "" || f.Mend == "" {
			t.Errorf("a finding without problem or mend: %+v", f)
		}
		told = told || strings.Contains(f.Problem, "KVM")
	}
	if told == first.Usable {
		t.Errorf("KVM usable: %v, but told of: %v", first.Usable, told)
	}
	if first.Usable {
		return
	}
	l.options.Accelerator = KVM
	if _, err := l.provider().Up(t.Context(), l.spec("lv-kvm")); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), first.Reason) {
		t.Errorf("up under KVM: %v", err)
	}
}
