package libvirt

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/provision/ssh"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/testbedtest"
)

// farHost is a host in namespaces: a network, processes and a libvirt of its own, an sshd, and one cable to us.
type farHost struct {
	t       testing.TB
	folder  string
	address string
	cable   string // our end
	pid     int    // of its first process, as we know it
	key     ssh.Key
	hostKey ssh.Key
}

// farScript is the first process of the host. Where libvirt keeps things, it has file systems of its own;
// it has no control groups, for those would be ours, and a user guest without privileges; it waits for its cable, and ends with sshd. Its arguments are
// its address and a folder with the configuration of sshd.
const farScript = `set -eu
for dir in /run /var/lib/libvirt /var/log/libvirt /var/cache/libvirt; do
	mount -t tmpfs none $dir
done
mount -t tmpfs none /etc/libvirt/qemu
umount -R /sys/fs/cgroup
mount -t sysfs none /sys # of its own network: libvirt sets its bridges there
mkdir -p /run/sshd /run/lock /var/lib/libvirt/images
install -m 644 "$2/authorized" /run/authorized
sed '$a guest:x:4711:65534::/tmp:/bin/sh' /etc/passwd >/run/passwd
mount --bind /run/passwd /etc/passwd
read -r cable
ip link set lo up
ip address add "$1/30" dev "$cable"
ip link set "$cable" up
virtlogd -d
libvirtd -d
exec /usr/sbin/sshd -D -e -f "$2/sshd_config"
`

func startFarHost(t testing.TB) *farHost {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a libvirt")
	}
	if os.Geteuid() != 0 {
		skip(t, "namespaces of its own need root")
	}
	for _, program := range []string{"libvirtd", "virtlogd", "sshd", "ssh", "unshare", "ip"} {
		if _, err := findProgram(program); err != nil {
			skip(t, err.Error())
		}
	}
	n := os.Getpid() % 63 // a /30 of TEST-NET-1 (RFC 5737)
	f := &farHost{t: t, folder: t.TempDir(), address: fmt.Sprintf("198.51.100.%d", 4*n+2), cable: fmt.Sprintf("rpfar%d", os.Getpid())}
	f.makeKeys()
	f.start(fmt.Sprintf("198.51.100.%d/30", 4*n+1))
	return f
}

func (f *farHost) makeKeys() {
	f.key, f.hostKey = newTestKey(f.t), newTestKey(f.t)
	f.write("host_key", string(f.hostKey.Private))
	f.write("authorized", string(f.key.Authorized))
	f.write("sshd_config", fmt.Sprintf("HostKey %[1]s/host_key\nAuthorizedKeysFile /run/authorized\nStrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n", f.folder))
	f.write("key", string(f.key.Private))
	f.knows(f.hostKey)
	// OpenSSH finds the person's files by the password file and not by $HOME: a configuration in their place.
	f.write("config", fmt.Sprintf("UserKnownHostsFile %[1]s/known_hosts\nGlobalKnownHostsFile none\nIdentityFile %[1]s/key\nIdentitiesOnly yes\nIdentityAgent none\n", f.folder))
	real, err := exec.LookPath("ssh")
	if err != nil {
		f.t.Fatal(err)
	}
	bin := filepath.Join(f.folder, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		f.t.Fatal(err)
	}
	wrapper := fmt.Sprintf("#!/bin/sh\nexec %s -F %s/config \"$@\"\n", real, f.folder)
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte(wrapper), 0o755); err != nil {
		f.t.Fatal(err)
	}
	f.t.(*testing.T).Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

func newTestKey(t testing.TB) ssh.Key {
	t.Helper()
	key, err := ssh.NewKey("test")
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (f *farHost) write(name, content string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.folder, name), []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// knows makes these all of the host's keys that are known.
func (f *farHost) knows(keys ...ssh.Key) {
	var lines string
	for _, key := range keys {
		lines += f.address + " " + string(key.Authorized)
	}
	f.write("known_hosts", lines)
}

func (f *farHost) start(ours string) {
	t := f.t
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", farScript, "sh", f.address, f.folder)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := newConsole()
	cmd.Stdout, cmd.Stderr = log, log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		// The kernel takes its time over a network that has ended, and the next host's cable has the same name.
		_ = exec.Command("ip", "link", "delete", f.cable).Run()
		if t.Failed() {
			t.Logf("the far host said:\n%s", strings.Join(log.lines(30), "\n"))
		}
	})
	far := f.cable + "f"
	for _, args := range []string{
		"link add " + f.cable + " type veth peer name " + far,
		"address add " + ours + " dev " + f.cable,
		"link set " + f.cable + " up",
		fmt.Sprintf("link set %s netns %d", far, f.child(cmd.Process.Pid)),
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	if _, err := fmt.Fprintln(in, far); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", f.address+":22", time.Second)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("its sshd does not answer: %v", err)
		}
	}
}

// child waits for the first process inside, which is the child of unshare.
func (f *farHost) child(parent int) int {
	path := fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", parent)
	for range 200 {
		text, err := os.ReadFile(path)
		if _, scan := fmt.Sscan(string(text), &f.pid); err == nil && scan == nil {
			return f.pid
		}
		time.Sleep(10 * time.Millisecond)
	}
	f.t.Fatal("unshare has no child")
	return 0
}

// cut pulls the cable, and plug puts it back.
func (f *farHost) cut()  { f.set("down") }
func (f *farHost) plug() { f.set("up") }

func (f *farHost) set(state string) {
	f.t.Helper()
	if out, err := exec.Command("ip", "link", "set", f.cable, state).CombinedOutput(); err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
}

func (f *farHost) uri(user string) string { return "qemu+ssh://" + user + "@" + f.address + "/system" }

// provider is one for that host, without an image.
func (f *farHost) provider(user string) *Provider {
	return newProvider(f.t, Options{URI: f.uri(user), StateDir: f.t.TempDir(), Log: testLog(f.t), Accelerator: TCG})
}

// Everything goes over the connection, and what is in its way is said, with what helps.
func TestRemote(t *testing.T) {
	f := startFarHost(t)
	t.Run("Volume", f.testVolume)
	t.Run("Facts", f.testFacts)
	t.Run("Refused", f.testRefused)
	t.Run("Doctor", f.testDoctor)
	t.Run("Killed", f.testKilled)
	t.Run("Down", f.testDown) // the last: it pulls the cable
}

// testVolume: what is uploaded is there and not here.
func (f *farHost) testVolume(t *testing.T) {
	p := f.provider("root")
	file := File{Path: filepath.Join(t.TempDir(), "file")}
	if err := os.WriteFile(file.Path, []byte("far away"), 0o600); err != nil {
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
	v, err := p.sharedVolume(t.Context(), c, pool, "far", file)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := readFile(t.Context(), p.endpoint.host, v.path); err != nil || got != "far away" {
		t.Errorf("the volume holds %q, %v", got, err)
	}
	if _, err := os.Stat(v.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is on this machine: %v", err)
	}
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("testbeds of this machine are listed as the other's: %+v, %v", list, err)
	}
}

// testFacts: what is asked of the host is answered by it.
func (f *farHost) testFacts(t *testing.T) {
	h := f.provider("root").endpoint.host
	used, err := hostPrefixes(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range used {
		if !p.Addr().IsLoopback() && !strings.HasPrefix(p.String(), "198.51.100.") {
			t.Errorf("it has no route to %s", p)
		}
	}
	if len(used) < 3 {
		t.Errorf("it has routes to %v only", used)
	}
	if s, err := statFile(t.Context(), h, "/run/libvirt/libvirt-sock"); err != nil || s.perm == 0 || s.uid != 0 {
		t.Errorf("stat: %+v, %v", s, err)
	}
	if _, err := statFile(t.Context(), h, "/no/such file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of nothing: %v", err)
	}
	facts, err := f.provider("root").HostFacts(t.Context())
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"hostname", "os", "kernel", "cpu", "cpus", "memory_kib"} {
		if facts[name] == "" {
			t.Errorf("it does not say its %s: %v", name, facts)
		}
	}
	if free, err := freeSpace(t.Context(), h, "/var/lib/libvirt"); err != nil || free < 1<<20 {
		t.Errorf("free: %d, %v", free, err)
	}
}

// testRefused: each way of not getting there has its own words and its own mend.
func (f *farHost) testRefused(t *testing.T) {
	refused := func(name, user, problem, mend string) {
		t.Helper()
		begin := time.Now()
		err := f.provider(user).Reach(t.Context())
		var unable *testbed.UnableError
		if !errors.As(err, &unable) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
			return
		}
		if !strings.Contains(unable.Reason, problem) || !strings.Contains(unable.Mend, mend) {
			t.Errorf("%s: %q with mend %q; want %q and %q", name, unable.Reason, unable.Mend, problem, mend)
		}
		if took := time.Since(begin); took > 30*time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
	}
	f.knows(newTestKey(t))
	refused("another key", "root", "its host key is not the one in known_hosts", "ssh-keygen -R "+f.address)
	f.knows()
	refused("no key", "root", "its host key is not in known_hosts", "compare the fingerprint")
	f.knows(f.hostKey)
	f.write("key", string(newTestKey(t).Private))
	refused("not let in", "root", "does not let us in without a password", "ssh-copy-id")
	f.write("key", string(f.key.Private))
	f.inside("chmod", "0700", "/run/libvirt/libvirt-sock")
	refused("not allowed", "guest", "this user may not open /run/libvirt/libvirt-sock", "usermod -aG libvirt guest")
	f.inside("mv", "/run/libvirt/libvirt-sock", "/run/libvirt/away")
	refused("not running", "root", "there is no /run/libvirt/libvirt-sock", "on root@"+f.address+": systemctl start libvirtd")
	f.inside("mv", "/run/libvirt/away", "/run/libvirt/libvirt-sock")
	if err := f.provider("root").Reach(t.Context()); err != nil {
		t.Errorf("in the end: %v", err)
	}
}

// testDoctor puts the host into each of the states that can be in the way, and has it found and named.
func (f *farHost) testDoctor(t *testing.T) {
	p := f.provider("root")
	c, err := p.control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name          string
		look          look
		make, undo    string // in a shell of the host
		problem, mend string
		blocks        bool
	}{
		{"/dev/kvm", p.findKVMPermission,
			"mknod /run/kvm c 10 232; chmod 0600 /run/kvm; mount --bind /run/kvm /dev/kvm", "umount /dev/kvm",
			"which may not open /dev/kvm (mode 0600, owner 0:0)", "chmod 0660 /dev/kvm", false},
		{"bridges", p.findBridgeNetfilter,
			"iptables-nft -P FORWARD DROP; sysctl -qw net.bridge.bridge-nf-call-iptables=1", "iptables-nft -P FORWARD ACCEPT",
			"the policy of its chain FORWARD is DROP (iptables-nft; Docker sets that)", "sysctl -w net.bridge.bridge-nf-call-iptables=0", false},
		{"no filter", p.findBridgeNetfilter,
			"sysctl -qw net.bridge.bridge-nf-call-iptables=0", ":", "", "", false},
		{"subnets", p.findSubnet,
			"for n in 10.254.0.0/16 192.168.224.0/19 172.31.0.0/16; do ip route add blackhole $n; done", ":",
			"no subnet is free for reaching nodes", "remove a route or network", true},
		{"management", func(ctx context.Context, c *conn) (*Finding, error) {
			_, err := createManagement(ctx, p, c, newIdent("far"), testbed.Default())
			return nil, err
		}, ":", "ip route flush type blackhole",
			"no subnet is free for reaching nodes", "remove a route or network", true},
		{"nothing", p.findTrial, ":", ":", "", "", false},
		{"closed folder", p.findTrial,
			"chmod 0700 /var/lib/libvirt/images", "chmod 0711 /var/lib/libvirt/images",
			"a folder on the way is closed to QEMU's user", "namei -l /var/lib/libvirt/images/rampart/rampart-doctor-", true},
		{"room", p.findSpace,
			"mount -o remount,size=64m /var/lib/libvirt", ":",
			"MiB free; the image and three nodes may need 768 MiB more there", "virsh vol-list rampart", true},
		{"full", p.findTrial,
			"head -c 64M /dev/zero >/var/lib/libvirt/fill || :", "rm /var/lib/libvirt/fill",
			"no room is left on the host", "remove files in the storage pool", true},
	} {
		f.inside("sh", "-c", test.make)
		found, err := test.look(t.Context(), c)
		f.inside("sh", "-c", test.undo)
		if err != nil {
			found = new(Finding)
			*found = p.findingOf(err)
		}
		switch {
		case found == nil && test.problem == "":
		case found == nil || test.problem == "":
			t.Errorf("%s: found %+v", test.name, found)
		case !strings.Contains(found.Problem, test.problem) || !strings.Contains(found.Mend, test.mend) || found.Blocks != test.blocks:
			t.Errorf("%s: found %+v\nwant %q, %q, %v", test.name, *found, test.problem, test.mend, test.blocks)
		case !strings.HasPrefix(found.Mend, "on root@"+f.address+": "):
			t.Errorf("%s: the mend does not say where: %s", test.name, found.Mend)
		}
	}
	if left, err := p.List(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %+v, %v", left, err)
	}
}

// inside runs a command on the host.
func (f *farHost) inside(argv ...string) {
	f.t.Helper()
	argv = append([]string{"-t", fmt.Sprint(f.pid), "-m", "-n", "-p"}, argv...)
	if out, err := exec.Command("nsenter", argv...).CombinedOutput(); err != nil {
		f.t.Errorf("%v: %v: %s", argv, err, out)
	}
}

// reachedFar is what the process says that [farHost.testKilled] kills.
const reachedFar = "reached"

// farVictim reaches a host and waits to be killed.
func farVictim(uri, state string) error {
	p, err := New(Options{URI: uri, StateDir: state})
	if err != nil {
		return err
	}
	if err := p.Reach(context.Background()); err != nil {
		return err
	}
	fmt.Println(reachedFar, p.endpoint.host.(*remoteHost).link.folder)
	select {}
}

// testKilled: of a process that is killed no ssh stays, and its folder goes with the next connection.
func (f *farHost) testKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimURI+"="+f.uri("root"), victimDir+"="+t.TempDir())
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	folder, ok := strings.CutPrefix(strings.TrimSpace(line), reachedFar+" ")
	if !ok {
		t.Fatalf("the process said %q, %v, %v", line, err, cmd.Wait())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left, err := processesWith(folder)
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left behind: %v", left)
		}
	}
	if err := f.provider("root").Reach(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s stays: %v", folder, err)
	}
}

// testDown: a host that goes silent is noticed, and said, within a deadline; when it is back, so are we.
func (f *farHost) testDown(t *testing.T) {
	p := f.provider("root")
	c, err := p.control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.cut()
	begin := time.Now()
	select {
	case <-c.lost():
	case <-time.After(2 * aliveInterval * aliveCount * time.Second):
		t.Error("the connection outlives the host")
	}
	t.Logf("noticed after %v", time.Since(begin).Round(time.Second))
	begin = time.Now()
	if _, err := p.List(t.Context()); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), f.address) {
		t.Errorf("list: %v", err)
	} else {
		t.Logf("it said: %v", err)
	}
	if took := time.Since(begin); took > loginLimit+5*time.Second {
		t.Errorf("finding out took %v", took)
	}
	f.plug()
	if _, err := p.List(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// The suite on another host.
func TestRemoteConformance(t *testing.T) {
	long(t)
	l := newLab(t)
	f := startFarHost(t)
	l.options.URI, l.options.Accelerator, l.options.StateDir = f.uri("root"), TCG, t.TempDir()
	testbedtest.Run(t, func() testbed.Provider { return l.provider() }, testbedtest.Options{
		Prefix:        "far",
		Leftovers:     l.leftovers,
		Adjust:        smallest,
		Interruptions: []float64{0, 0.1, 0.6},
	})
}

// A testbed on another host: a person's terminal gets there, and when the host goes silent, what runs on a
// node ends with an error that says so.
func TestRemoteLosses(t *testing.T) {
	long(t)
	l := newLab(t)
	f := startFarHost(t)
	l.options.URI, l.options.Accelerator, l.options.StateDir = f.uri("root"), TCG, t.TempDir()
	spec := l.spec("far-losses")
	bed, err := l.provider().Up(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	if got := bed.Features().Parameters; got["uri"] != f.uri("root") || got["bridge_netfilter"] == "" {
		t.Errorf("parameters are %v", got)
	}
	argv, err := bed.(testbed.Terminal).Terminal(testbed.Firewall, "printf", "%s|", "a b", "$HOME")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output(); string(out) != "a b|$HOME|" {
		t.Errorf("%q printed %q, %v", argv, out, err)
	}
	cat := startCat(t, bed.Node(testbed.Sender))
	f.cut()
	begin := time.Now()
	ended := make(chan error, 1)
	go func() {
		_, _ = io.Copy(io.Discard, cat)
		ended <- cat.Wait()
	}()
	select {
	case err := <-ended:
		t.Logf("after %v it said: %v", time.Since(begin).Round(time.Second), err)
		if !errors.Is(err, ErrGone) {
			t.Errorf("the command ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the command did not end with its host")
	}
	if _, err := bed.Node(testbed.Sender).Start(t.Context(), "true"); !errors.Is(err, ErrGone) {
		t.Errorf("start: %v", err)
	}
	f.plug()
	// Machines that were not to be kept end once the host notices that we are gone; down works before.
	if err := l.provider().Down(t.Context(), spec.Name); err != nil {
		t.Errorf("down: %v", err)
	}
}

// long skips what takes too long for each time; make test-long runs it.
func long(t testing.TB) {
	t.Helper()
	if os.Getenv("RAMPART_TEST_LONG") != "1" {
		t.Skip("set RAMPART_TEST_LONG=1 to run it")
	}
}
