package libvirt

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/rampart-bench/rampart/images"
	ourssh "github.com/rampart-bench/rampart/provision/ssh"
	"github.com/rampart-bench/rampart/testbed"
)

func cloudState() state {
	s := exampleState()
	s.Kernel, s.Initrd, s.CommandLine, s.Cloud = "", "", "", true
	return s
}

// A disk boots by itself: no kernel beside it, and the first disk is what is booted.
func TestCloudDomainXML(t *testing.T) {
	m, err := newProvider(t, Options{StateDir: "/state"}).nodeMachine(cloudState(), testbed.Firewall, "/pool/overlay", "/pool/seed")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := m.xml().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "cloud.xml", doc+"\n")
}

// TestCloudScript has a shell read what cloud-init is given to run.
func TestCloudScript(t *testing.T) {
	for _, role := range testbed.Roles() {
		script := cloudState().cloudScript(role)
		if out, err := exec.Command("sh", "-n", "-c", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s\n%s", role, err, out, script)
		}
	}
	golden(t, "cloud-firewall.sh", cloudState().cloudScript(testbed.Firewall))
}

// TestCloudSeed reads a node's seed back with programs that have nothing to do with the one that wrote it.
func TestCloudSeed(t *testing.T) {
	for _, tool := range []string{"mcopy", "blkid"} {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, tool+" is not installed: apt-get install mtools util-linux")
		}
	}
	host, err := ourssh.NewKey("host")
	if err != nil {
		t.Fatal(err)
	}
	s := cloudState()
	content, err := s.seed(testbed.Firewall, host, []byte("ssh-ed25519 AAAA key\n"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.seed(testbed.Firewall, host, []byte("ssh-ed25519 AAAA key\n"))
	if err != nil || !bytes.Equal(content, again) {
		t.Errorf("the same seed has other bytes: %v", err)
	}
	file := filepath.Join(t.TempDir(), "seed.img")
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
	// This is how cloud-init's ds-identify looks for it.
	what, err := exec.Command("blkid", "-c", "/dev/null", "-o", "export", file).CombinedOutput()
	if err != nil || !strings.Contains(string(what), "TYPE=vfat\n") || !strings.Contains(string(what), "LABEL=cidata\n") {
		t.Errorf("blkid says %q, %v", what, err)
	}
	read := func(name string) string {
		out, err := exec.Command("mcopy", "-n", "-i", file, "::/"+name, "-").Output()
		if err != nil {
			t.Errorf("read %s: %v", name, err)
		}
		return string(out)
	}
	user, network, meta := read("user-data"), read("network-config"), read("meta-data")
	for text, wanted := range map[string][]string{
		user: {
			"#cloud-config\n", `"ssh-ed25519 AAAA key"`, `"ed25519_private": "-----BEGIN OPENSSH PRIVATE KEY-----\n`, `"ed25519_public": "ssh-ed25519 `,
			`"ssh_pwauth": false`, `"runcmd"`, "find_nic " + s.Ident.mac(testbed.Firewall, 1),
		},
		network: {
			`"version": 2`, `"inside"`, `"macaddress": "` + s.Ident.mac(testbed.Firewall, 1) + `"`, `"set-name": "outside"`, `"mtu": 9000`,
			`"10.77.1.2/24"`, managementAddress(s.Management, testbed.Firewall).String(),
		},
		meta: {`"instance-id": "rampart-rampart-0a1b2c-firewall"`, `"local-hostname": "firewall"`},
	} {
		for _, w := range wanted {
			if !strings.Contains(text, w) {
				t.Errorf("%q is not in:\n%s", w, text)
			}
		}
	}
}

// TestCloudDisk builds a Debian with cloud-init, systemd, netplan and a boot loader, as distributions have them
// on their disks, boots three nodes from it, and uses them. It takes ten minutes and more where nothing but
// emulation is there.
func TestCloudDisk(t *testing.T) {
	if os.Getenv("RAMPART_TEST_LONG") != "1" {
		t.Skip("set RAMPART_TEST_LONG=1 to build a disk and boot it three times")
	}
	l := newLab(t)
	disk := cloudDisk(t)
	content, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	image, err := images.OpenDisk(t.Context(), images.Spec{Name: "cloud", Disk: disk, SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	l.options.Image, l.options.Accelerator = FromStore(image), TCG
	spec := l.spec("images-cloud")
	for i := range spec.Nodes {
		spec.Nodes[i].Memory = 512 << 20
	}
	spec.Links[1].MTU = 1400
	p := l.provider()
	tb, err := p.Up(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer tb.Close()
	for _, test := range []struct {
		role          testbed.Role
		command, want string
	}{
		{testbed.Sender, "hostname", "sender\n"},
		{testbed.Firewall, "cat /sys/class/net/inside/mtu /sys/class/net/outside/mtu /proc/sys/net/ipv4/ip_forward", "1500\n1400\n1\n"},
		{testbed.Firewall, "ip -4 -o address show dev outside | grep -o 'inet [^ ]*'", "inet 10.77.2.1/24\n"},
		{testbed.Sender, "ip route get 10.77.2.2 | grep -o 'via [^ ]* dev [^ ]*'", "via 10.77.1.2 dev inside\n"},
		{testbed.Sender, "ping -c 3 -q 10.77.2.2 | grep -o '[0-9]*% packet loss'", "0% packet loss\n"},
		{testbed.Firewall, "ethtool -k outside | grep -c -E '^(generic-receive-offload|tx-checksumming|generic-segmentation-offload): on'", "0\n"},
		{testbed.Firewall, "systemctl list-timers --no-legend | wc -l", "0\n"},
		{testbed.Firewall, "findmnt -n -o FSTYPE,OPTIONS -T /run/rampart | grep -c noexec", "0\n"},
	} {
		out, err := tb.Node(test.role).(*node).output(t.Context(), "sh", "-c", test.command+"; true")
		if err != nil || out != test.want {
			t.Errorf("%s: %s: %q, %v; want %q", test.role, test.command, out, err, test.want)
		}
	}
	// The host key is the one that was made for the node, and no other is there.
	out, err := tb.Node(testbed.Firewall).(*node).output(t.Context(), "sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub")
	want, _, _, _, err2 := ssh.ParseAuthorizedKey([]byte(tb.(*running).state.HostKeys[testbed.Firewall]))
	got, _, _, rest, err3 := ssh.ParseAuthorizedKey([]byte(out))
	if err != nil || err2 != nil || err3 != nil || len(bytes.TrimSpace(rest)) > 0 || !bytes.Equal(got.Marshal(), want.Marshal()) {
		t.Errorf("host keys are %q: %v %v %v", out, err, err2, err3)
	}
	if err := tb.Node(testbed.Firewall).Put(t.Context(), "program", 0o755, strings.NewReader("#!/bin/sh\necho ran\n")); err != nil {
		t.Fatal(err)
	}
	if out, err := tb.Node(testbed.Firewall).(*node).output(t.Context(), "./program"); err != nil || out != "ran\n" {
		t.Errorf("a program that was put there: %q, %v", out, err)
	}
}

// cloudPackages are what a disk of the test has beyond what is essential.
const cloudPackages = "systemd-sysv,cloud-init,netplan.io,dbus,udev,openssh-server,linux-image-cloud-amd64,initramfs-tools,ethtool,iproute2," +
	"iputils-ping,iperf3,nftables,iptables,ipset,procps,kmod,netbase"

// cloudDisk builds the disk: a boot record, a FAT partition with the boot loader, kernel and initrd, and one with the
// root file system. Nothing is mounted. It is kept for the next run of the test.
func cloudDisk(t *testing.T) string {
	for _, tool := range []string{"mmdebstrap", "syslinux", "mcopy", "mkfs.fat", "mke2fs", "qemu-img"} {
		if _, err := exec.LookPath(tool); err != nil {
			skip(t, tool+" is not installed: apt-get install mmdebstrap syslinux syslinux-common mtools dosfstools e2fsprogs qemu-utils")
		}
	}
	kept := filepath.Join(os.TempDir(), "rampart-libvirt-test", "cloud.qcow2")
	if _, err := os.Stat(kept); err == nil {
		return kept
	}
	dir := t.TempDir()
	shell := func(script string) {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out[max(0, len(out)-4000):])
		}
	}
	const configuration = `DEFAULT linux
LABEL linux
  LINUX /vmlinuz
  INITRD /initrd.img
  APPEND root=LABEL=root ro console=tty0 console=ttyS0 no_timer_check
`
	if err := os.WriteFile(filepath.Join(dir, "syslinux.cfg"), []byte(configuration), 0o644); err != nil {
		t.Fatal(err)
	}
	shell(`mmdebstrap --variant=essential --include=` + cloudPackages + ` \
		--customize-hook='echo "LABEL=root / ext4 defaults 0 1" >"$1/etc/fstab"; : >"$1/etc/machine-id"; rm -f "$1"/etc/ssh/ssh_host_*' \
		--customize-hook='chroot "$1" systemctl enable systemd-networkd' bookworm root`)
	shell(`cp -L root/vmlinuz vmlinuz; cp -L root/initrd.img initrd.img
		truncate -s 96M boot.img; mkfs.fat -F 16 -h 2048 boot.img >/dev/null; syslinux --install boot.img
		mcopy -i boot.img vmlinuz initrd.img syslinux.cfg ::/
		truncate -s 1500M root.img; mke2fs -q -t ext4 -F -L root -d root root.img; rm -r root`)
	writePartitions(t, filepath.Join(dir, "disk.img"), filepath.Join(dir, "boot.img"), filepath.Join(dir, "root.img"))
	shell(`qemu-img convert -f raw -O qcow2 -c disk.img disk.qcow2; mkdir -p ` + filepath.Dir(kept) + `; mv disk.qcow2 ` + kept)
	return kept
}

// writePartitions writes a disk with a boot record and these partitions, the first of which is booted.
func writePartitions(t *testing.T, disk string, partitions ...string) {
	t.Helper()
	loader, err := os.ReadFile("/usr/lib/syslinux/mbr/mbr.bin")
	if err != nil {
		skip(t, err.Error()+": apt-get install syslinux-common")
	}
	record := make([]byte, 512)
	copy(record, loader)
	out, err := os.Create(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	const sector, align = 512, 1 << 20
	at := int64(align)
	for i, file := range partitions {
		entry := record[446+16*i:]
		entry[4] = []byte{0x0e, 0x83}[i] // FAT16 by LBA; Linux
		if i == 0 {
			entry[0] = 0x80
		}
		size := appendAt(t, out, file, at)
		binary.LittleEndian.PutUint32(entry[8:], uint32(at/sector))
		binary.LittleEndian.PutUint32(entry[12:], uint32(size/sector))
		at += (size + align - 1) / align * align
	}
	record[510], record[511] = 0x55, 0xaa
	if _, err := out.WriteAt(record, 0); err != nil {
		t.Fatal(err)
	}
	if err := out.Truncate(at); err != nil {
		t.Fatal(err)
	}
}

func appendAt(t *testing.T, out *os.File, file string, at int64) int64 {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	size, err := io.Copy(io.NewOffsetWriter(out, at), in)
	if err != nil {
		t.Fatal(err)
	}
	return size
}
