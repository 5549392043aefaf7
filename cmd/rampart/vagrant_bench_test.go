package main_test

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/provision/ssh"
)

// vagrant makes the machines of a testbed by vagrant-libvirt, from the image that nodes boot from.
type vagrant struct {
	folder string // what vagrant and libvirt read; a storage pool too
	env    []string
}

// vagrantName begins the name of everything that libvirt has of a vagrant.
const vagrantName = "bench-up-vagrant"

// vagrantLease is the network of a machine of vagrant's: libvirt gives it its address. Vagrant edits /etc/fstab
// even where there is nothing to be mounted.
const vagrantLease = `set -eu
: >>/etc/fstab
cat >/run/lease <<'END'
#!/bin/busybox sh
[ "$1" != bound ] || /sbin/ip address add "$ip/$mask" dev "$interface"
END
chmod +x /run/lease
/sbin/ip link set eth0 up
udhcpc -i eth0 -q -n -t 10 -s /run/lease
`

// vagrantManagement is the network that vagrant reaches its machines by, as it would make it, but for no-ping: while
// dnsmasq looks whether anybody has the address that it is about to give, other machines wait, and too long.
const vagrantManagement = `<network xmlns:dnsmasq="http://libvirt.org/schemas/network/dnsmasq/1.0">
  <name>` + vagrantName + `-management</name>
  <forward mode="nat"/>
  <ip address="192.168.249.1" netmask="255.255.255.0">
    <dhcp><range start="192.168.249.2" end="192.168.249.254"/></dhcp>
  </ip>
  <dnsmasq:options><dnsmasq:option value="no-ping"/></dnsmasq:options>
</network>
`

// lacksVagrant says what is missing for a comparison with vagrant, or nothing.
func lacksVagrant() string {
	out, err := exec.Command("vagrant", "plugin", "list").CombinedOutput()
	switch {
	case err != nil:
		return "vagrant does not run here: apt-get install vagrant vagrant-libvirt"
	case !strings.Contains(string(out), "vagrant-libvirt"):
		return "vagrant has no plug-in for libvirt: apt-get install vagrant-libvirt"
	}
	return ""
}

// newVagrant puts the image, as a box, and the seed where vagrant and libvirt find them.
func newVagrant(b *testing.B, image images.Image, features map[string]string) *vagrant {
	// The system's libvirt runs QEMU as a user of its own, to whom b.TempDir is closed.
	folder, err := os.MkdirTemp("/var/tmp", "rampart-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(folder) })
	driver, mode := "qemu", "maximum"
	if features["accelerator"] == "kvm" {
		driver, mode = "kvm", "host-passthrough"
	}
	v := &vagrant{folder, append(os.Environ(),
		"VAGRANT_HOME="+filepath.Join(folder, "home"), "VAGRANT_CHECKPOINT_DISABLE=1", "VAGRANT_DEFAULT_PROVIDER=libvirt",
		"BENCH_FOLDER="+folder, "BENCH_NAME="+vagrantName, "BENCH_COMMAND_LINE="+features["kernel_command"],
		"BENCH_DRIVER="+driver, "BENCH_CPU_MODE="+mode,
	)}
	if err := os.Chmod(folder, 0o755); err != nil {
		b.Fatal(err)
	}
	config, err := os.ReadFile("testdata/bench/Vagrantfile")
	if err != nil {
		b.Fatal(err)
	}
	v.write(b, "Vagrantfile", 0o644, config)
	v.write(b, "seed.img", 0o644, v.seed(b))
	v.copy(b, "kernel", image.Kernel())
	v.copy(b, "initrd", image.Initrd())
	v.box(b, image.Disk())
	v.do(b, "vagrant", "box", "add", "--name", vagrantName, filepath.Join(folder, "image.box"))
	b.Cleanup(func() {
		for _, network := range []string{"inside", "outside", "management"} {
			v.try("virsh", "net-destroy", vagrantName+"-"+network)
			v.try("virsh", "net-undefine", vagrantName+"-"+network)
		}
		v.try("virsh", "pool-destroy", vagrantName)
	})
	v.do(b, "virsh", "pool-create-as", vagrantName, "dir", "--target", folder)
	v.write(b, "management.xml", 0o644, []byte(vagrantManagement))
	v.do(b, "virsh", "net-define", "management.xml")
	v.do(b, "virsh", "net-start", vagrantName+"-management")
	return v
}

// seed is the disk that makes a machine one that vagrant can log in to.
func (v *vagrant) seed(b *testing.B) []byte {
	var keys [2]ssh.Key
	for i := range keys {
		var err error
		if keys[i], err = ssh.NewKey(vagrantName); err != nil {
			b.Fatal(err)
		}
	}
	v.write(b, "key", 0o600, keys[0].Private)
	seed, err := images.Seed([]images.File{
		{Name: images.SeedHostKey, Mode: 0o600, Content: keys[1].Private},
		{Name: images.SeedAuthorizedKeys, Mode: 0o600, Content: keys[0].Authorized},
		{Name: images.SeedNetwork, Mode: 0o644, Content: []byte(vagrantLease)},
	})
	if err != nil {
		b.Fatal(err)
	}
	return seed
}

// box packs a disk as vagrant-libvirt wants it.
func (v *vagrant) box(b *testing.B, disk string) {
	content, err := os.ReadFile(disk)
	if err != nil {
		b.Fatal(err)
	}
	f, err := os.Create(filepath.Join(v.folder, "image.box"))
	if err != nil {
		b.Fatal(err)
	}
	compressed := gzip.NewWriter(f)
	archive := tar.NewWriter(compressed)
	for _, part := range []struct {
		name    string
		content []byte
	}{
		{"metadata.json", []byte(`{"provider": "libvirt", "format": "qcow2", "virtual_size": 1}`)},
		{"Vagrantfile", []byte(`Vagrant.configure("2") {}`)},
		{"box.img", content},
	} {
		if err := archive.WriteHeader(&tar.Header{Name: part.name, Mode: 0o644, Size: int64(len(part.content))}); err != nil {
			b.Fatal(err)
		}
		if _, err := archive.Write(part.content); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range []io.Closer{archive, compressed, f} {
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func (v *vagrant) write(b *testing.B, name string, mode os.FileMode, content []byte) {
	if err := os.WriteFile(filepath.Join(v.folder, name), content, mode); err != nil {
		b.Fatal(err)
	}
}

func (v *vagrant) copy(b *testing.B, name, from string) {
	content, err := os.ReadFile(from)
	if err != nil {
		b.Fatal(err)
	}
	v.write(b, name, 0o644, content)
}

// try runs a program in the folder and returns what it says.
func (v *vagrant) try(argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = v.folder, v.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (v *vagrant) do(b *testing.B, argv ...string) {
	if out, err := v.try(argv...); err != nil {
		b.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
}

// timeToUp is how long vagrant takes until it could log in to three machines. It removes them again.
func (v *vagrant) timeToUp(b *testing.B) time.Duration {
	defer v.do(b, "vagrant", "destroy", "--force", "--no-parallel")
	started := time.Now()
	v.do(b, "vagrant", "up")
	return time.Since(started)
}
