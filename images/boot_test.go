package images

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/provision/ssh"
)

// realImage builds the default image from packages, or takes it from the user's store, as `rampart`
// itself does.
func realImage(t *testing.T) Image {
	t.Helper()
	return buildImage(t, Spec{Name: "test"})
}

// machine is a virtual machine under emulation with one network card, whose port 22 is on loopback.
type machine struct {
	addr  string
	key   ssh.Key
	host  ssh.Key
	steps chan step // closed when the machine is off
}

// step is a line that init printed, and when.
type step struct {
	name  string
	after time.Duration // since QEMU was started
}

// escapeComma keeps QEMU from taking a comma in the name of a file, as names of tests have them, for the next option.
func escapeComma(file string) string { return strings.ReplaceAll(file, ",", ",,") }

func boot(t *testing.T, image Image) machine {
	t.Helper()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		skip(t, "QEMU is not installed: apt-get install qemu-system-x86")
	}
	m := machine{steps: make(chan step, 100)}
	for _, key := range []*ssh.Key{&m.key, &m.host} {
		if *key, err = ssh.NewKey("images-test"); err != nil {
			t.Fatal(err)
		}
	}
	seed, err := Seed([]File{
		{Name: SeedHostKey, Mode: 0o600, Content: m.host.Private},
		{Name: SeedAuthorizedKeys, Mode: 0o600, Content: m.key.Authorized},
		// The addresses of QEMU's user-mode network.
		{Name: SeedNetwork, Mode: 0o644, Content: []byte("ip link set eth0 up\nip address add 10.0.2.15/24 dev eth0\nhostname images-test\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	seedFile, disk := filepath.Join(dir, "seed"), filepath.Join(dir, "disk.qcow2")
	if err := os.WriteFile(seedFile, seed, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", image.Disk(), disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.addr = listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, qemu, "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "1", "-m", "256",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", image.Kernel(), "-initrd", image.Initrd(), "-append", CommandLine,
		"-drive", "if=virtio,format=qcow2,file="+escapeComma(disk), "-drive", "if=virtio,format=raw,readonly=on,file="+escapeComma(seedFile),
		"-netdev", "user,id=n,restrict=on,hostfwd=tcp:"+m.addr+"-:22", "-device", "virtio-net-pci,netdev=n,romfile=")
	cmd.Stderr = t.Output()
	console, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	go func() {
		defer close(m.steps)
		for lines := bufio.NewScanner(console); lines.Scan(); {
			log.WriteString(lines.Text() + "\n")
			if name, ok := strings.CutPrefix(lines.Text(), BootPrefix); ok {
				m.steps <- step{strings.TrimSpace(name), time.Since(began)}
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		for range m.steps {
		}
		if t.Failed() {
			t.Logf("console:\n%s", log.String())
		}
	})
	return m
}

func (m machine) run(t *testing.T, c *ssh.Client, script string) (string, error) {
	t.Helper()
	conn, err := c.Start(t.Context(), "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(conn)
	return string(out), errors.Join(err, conn.Wait())
}

// ready waits until the machine says that it is, and holds the steps until then to what is promised.
func (m machine) ready(t *testing.T) {
	t.Helper()
	var names []string
	for ready := false; !ready; {
		select {
		case s, ok := <-m.steps:
			if !ok {
				t.Fatal("the machine is off")
			}
			t.Logf("%6.2f s  %s", s.after.Seconds(), s.name)
			names = append(names, s.name)
			ready = s.name == "ready"
		case <-time.After(2 * time.Minute):
			t.Fatalf("after %q nothing more came", names)
		}
	}
	if !slices.Equal(names, BootSteps()) {
		t.Errorf("steps %q, want %q", names, BootSteps())
	}
}

// dial logs in. The connection is closed with the test.
func (m machine) dial(t *testing.T) *ssh.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := ssh.Dial(ctx, ssh.Config{Addr: m.addr, Key: m.key.Signer, HostKey: m.host.Signer.PublicKey()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestNode boots the image with the least memory that nodes get and uses it as the study does.
func TestNode(t *testing.T) {
	m := boot(t, realImage(t))
	m.ready(t)
	c := m.dial(t)
	for _, test := range []struct {
		name, script, want string // want "": whatever it says
	}{
		{"name", "hostname", "images-test\n"},
		{"tools", "nft --version && iperf3 --version && ethtool --version && ip -V && ping -V && conntrack -V && ipset --version", ""},
		{"iptables back ends", "iptables-legacy --version && iptables-nft --version", ""},
		{"modules of iptables-legacy", "iptables-legacy -A FORWARD -m conntrack --ctstate NEW -j ACCEPT && iptables-legacy -L -n", ""},
		{"modules of ipset", "ipset create s hash:ip && iptables-legacy -A FORWARD -m set --match-set s src -j ACCEPT", ""},
		{"modules of iptables-nft", "iptables-nft -A FORWARD -m set --match-set s src -j ACCEPT 2>&1", ""},
		{"modules of nftables", `nft 'table ip t { set s { type ipv4_addr; }; flowtable f { hook ingress priority 0; devices = { eth0 }; }; chain c { type filter hook forward priority 0; ct state established flow add @f; ip saddr @s counter accept; }; }'`, ""},
		{"namespaces", "ip netns add n && ip link add v0 type veth peer name v1 netns n && ip netns exec n ip link show v1", ""},
		{"scratch folder", "findmnt -n -o FSTYPE -T " + Scratch + " && test -w " + Scratch, "tmpfs\n"},
		{"what runs", `ps -e -o ppid=,comm= | awk '$1 != 2 && $2 != "kthreadd" {print $2}' | sort -u | tr '\n' ' '`, "awk ps rampart-init sh sleep sort sshd tr "},
		{"no process wakes up by itself", `
			switches() { for p in 1 $(pidof sleep) $(cat /run/sshd.pid); do grep ctxt_switches /proc/$p/status; done; }
			before=$(switches); read -r up _ </proc/uptime; until read -r now _ </proc/uptime; [ ${now%.*} -ge $((${up%.*} + 3)) ]; do :; done
			[ "$before" = "$(switches)" ] && echo quiet`, "quiet\n"},
		{"nothing that would run something later", "for p in cron anacron atd systemctl chronyd ntpd unattended-upgrade; do command -v $p; done; ls /var/spool/cron 2>/dev/null; echo end", "end\n"},
		{"orphans are reaped", "(sh -c 'sleep 0.2 &') ; sleep 1; ps -e -o stat= | grep -c Z", "0\n"},
		{"no identity in the image", "cat /etc/machine-id 2>/dev/null; ls /etc/ssh/*_key", "/etc/ssh/ssh_host_ed25519_key\n"},
		{"nothing failed", "dmesg --level=emerg,alert,crit,err", ""},
		{"no kernel module was refused", "cat /proc/sys/kernel/tainted", "0\n"},
	} {
		out, err := m.run(t, c, test.script)
		if strings.HasSuffix(test.script, "grep -c Z") {
			err = nil // grep's status for none
		}
		if err != nil || test.want != "" && out != test.want {
			t.Errorf("%s: %q, %v; want %q", test.name, out, err, test.want)
		}
	}
	memory, err := m.run(t, c, "free -m | sed -n 2p")
	t.Logf("memory: %s %v", memory, err)

	if _, err := c.Start(t.Context(), "poweroff"); err != nil {
		t.Fatal(err)
	}
	select {
	case _, ok := <-m.steps:
		if ok {
			t.Error("something was printed instead of powering off")
		}
	case <-time.After(30 * time.Second):
		t.Error("the node does not power off")
	}
}

// TestReleases builds and boots what a study may compare: another release, and another kernel of the same one.
func TestReleases(t *testing.T) {
	if os.Getenv("RAMPART_TEST_LONG") != "1" {
		t.Skip("set RAMPART_TEST_LONG=1 to build and boot several images")
	}
	seen := map[string]string{}
	for name, spec := range map[string]Spec{
		"bookworm":                     {Suite: "bookworm"},
		"bookworm, kernel for all PCs": {Suite: "bookworm", Kernel: "linux-image-amd64"},
		"trixie":                       {Suite: "trixie"},
		"trixie, kernel for all PCs":   {Suite: "trixie", Kernel: "linux-image-amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			image := buildImage(t, spec)
			if other, ok := seen[image.Digest]; ok {
				t.Errorf("it is the same image as %s", other)
			}
			seen[image.Digest] = name
			m := boot(t, image)
			m.ready(t)
			c := m.dial(t)
			version, err := m.run(t, c, "uname -r")
			if err != nil || strings.TrimSpace(version) != image.KernelVersion {
				t.Errorf("it runs %q, %v; the image has %s", version, err, image.KernelVersion)
			}
			out, err := m.run(t, c, "nft add table ip t && iptables-nft --version && ps -e -o ppid=,comm= | awk '$1 != 2 && $2 != \"kthreadd\" {print $2}' | sort -u | tr '\\n' ' '")
			t.Logf("%s: %s %s", name, image.KernelVersion, out)
			if err != nil {
				t.Errorf("%v", err)
			}
		})
	}
}
