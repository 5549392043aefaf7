// Package images makes what a virtual machine boots from: a Debian root file system built from
// packages, with its kernel and initrd beside it, in a store that is addressed by content.
//
// # Boot contract
//
// An [Image] is booted directly, with no boot loader: the machine is given [Image.Kernel],
// [Image.Initrd] and [CommandLine], a writable copy (or an overlay) of [Image.Disk] as its first
// virtio disk (/dev/vda), and optionally a seed, raw, as its second (/dev/vdb; see [Seed]). Devices
// are virtio over PCI. 256 MiB of memory are enough. The first serial port is the console.
//
// The initrd loads the few modules that reaching the disk takes and hands over to
// /sbin/rampart-init, a shell script that stays process 1. In this order it
//
//  1. mounts proc, sysfs, devtmpfs, devpts and tmpfs on /run and /tmp,
//  2. unpacks the tar on /dev/vdb, if there is one, into /,
//  3. runs /etc/rampart/network, if that file is there, by busybox's shell, which is also most programs
//     itself (the network drivers are loaded),
//  4. starts sshd, if there is a host key: public keys only, root only,
//  5. prints `rampart: boot: ready` on the console.
//
// Each step announces itself on the console as `rampart: boot: <step>` (see [BootSteps]); a step
// that fails says `rampart: boot: failed: <step>` and the boot goes on, so that one can still look
// inside. Nothing else runs: no service manager, no udev, no timers. `poweroff`, `halt` and `reboot` work inside the node; the
// ACPI power button does not, because nothing listens to it.
//
// Modules load on demand (kmod is installed and the kernel's modules are in the image). A node has
// /run/rampart, on tmpfs, as its scratch folder.
//
// Modules of this project ([Spec].Modules) are compiled for the kernel that is being installed, in a
// root file system that goes away again, and are in the image's folder of modules as if Debian had
// shipped them: `modprobe rtcache` loads it, nothing else does.
package images

import "path/filepath"

// CommandLine is the kernel command line that every image boots with. Providers may append to it.
const CommandLine = "root=/dev/vda rw rootfstype=ext4 console=ttyS0 quiet panic=-1 init=/sbin/rampart-init"

// Scratch is the folder on a node, on tmpfs, for files that go away with the testbed.
const Scratch = "/run/rampart"

// Where a seed puts things (see the boot contract).
const (
	SeedHostKey        = "/etc/ssh/ssh_host_ed25519_key" // OpenSSH private key, mode 0600
	SeedAuthorizedKeys = "/root/.ssh/authorized_keys"    // mode 0600
	SeedNetwork        = "/etc/rampart/network"          // shell commands that configure the interfaces
)

// BootPrefix starts every line that the node's init prints on the console.
const BootPrefix = "rampart: boot: "

// BootSteps are the steps that a boot announces, in order; each is printed when it begins, and the
// last says that the node is ready. "initrd" comes from the initrd, so its absence means that the
// kernel did not get that far.
func BootSteps() []string {
	return []string{"initrd", "mounts", "seed", "network", "sshd", "ready"}
}

// Spec describes an image. The zero values of all fields but Name have defaults.
type Spec struct {
	Name       string   `json:"name"`                 // a label; two Specs that differ only here share one image
	Suite      string   `json:"suite"`                // Debian suite, such as bookworm (default)
	Kernel     string   `json:"kernel"`               // package of the kernel; default linux-image-cloud-amd64
	Mirror     string   `json:"mirror,omitempty"`     // default: the one that apt uses here
	Snapshot   string   `json:"snapshot,omitempty"`   // take packages from the archive as it was then
	Components []string `json:"components,omitempty"` // default: main
	Packages   []string `json:"packages,omitempty"`   // beyond what the nodes need
	Modules    []string `json:"modules,omitempty"`    // kernel modules of ours to build for the kernel: see [Modules]

	// Disk is the path of a qcow2 to boot instead, with cloud-init on it and a boot loader, and SHA256 what
	// it must be. The fields above, but for Name, are then empty. See [OpenDisk].
	Disk   string `json:"disk,omitempty"`
	SHA256 string `json:"sha256,omitempty"`

	// Lock, where not nil, is obeyed: the image has exactly these packages, wherever they come from.
	Lock *Lock `json:"-"`
}

// Image is a built image in a store. What is stored never changes.
type Image struct {
	// Digest names the content: it covers kernel, initrd, disk and root archive. "sha256:" and 64
	// hexadecimal digits.
	Digest string `json:"digest"`
	// SpecDigest is the [Spec.Digest] of what was asked for.
	SpecDigest string `json:"spec_digest"`
	// RootDigest names the root file system as a tar. It says whether two images run the same
	// software even when other versions of the tools laid out their disks differently.
	RootDigest string `json:"root_digest"`
	Spec       Spec   `json:"spec"`

	KernelVersion string            `json:"kernel_version"`     // as uname -r in the node
	Packages      []Package         `json:"packages"`           // every installed package, by name
	Compiler      []Package         `json:"compiler,omitempty"` // what compiled Spec.Modules, by name
	LockDigest    string            `json:"lock_digest"`        // [Lock.Digest] of both lists
	Sources       []string          `json:"sources"`            // the one-line apt sources it came from
	Tools         map[string]string `json:"tools"`              // versions of the programs that built it
	Files         []StoredFile      `json:"files"`              // what Digest covers
	Notes         []string          `json:"notes,omitempty"`    // what the image lacks and why, such as netperf
	DiskSize      int64             `json:"disk_size"`          // bytes the node sees
	Size          int64             `json:"size"`               // bytes in the store

	dir string
}

// Package is one version of a Debian package.
type Package struct {
	Name         string `json:"name"`
	Version      string `json:"version"`
	Architecture string `json:"architecture"`
	SHA256       string `json:"sha256"` // of its file
}

// StoredFile is one file of an image.
type StoredFile struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Names of the files of an image in its folder.
const (
	kernelFile   = "kernel"
	initrdFile   = "initrd"
	diskFile     = "disk.qcow2"
	rootFile     = "root.tar.gz"
	metadataFile = "image.json"
)

// Disk is the path of the root file system, a qcow2 with one ext4 and no partitions. It must not be
// written: use an overlay or a copy.
func (i Image) Disk() string {
	if i.FromDisk() {
		return i.Spec.Disk
	}
	return filepath.Join(i.dir, diskFile)
}

// Kernel is the path of the kernel.
func (i Image) Kernel() string { return filepath.Join(i.dir, kernelFile) }

// Initrd is the path of the initial RAM file system, an uncompressed cpio archive.
func (i Image) Initrd() string { return filepath.Join(i.dir, initrdFile) }

// Root is the path of the root file system as a gzip-compressed tar, for those who need single files of it.
func (i Image) Root() string { return filepath.Join(i.dir, rootFile) }

// Lock names the packages that the image was built from.
func (i Image) Lock() Lock {
	return Lock{Suite: i.Spec.Suite, Architecture: Architecture, Packages: i.Packages, Compiler: i.Compiler}
}

// Installed returns the version of an installed package.
func (i Image) Installed(name string) (version string, ok bool) {
	p, ok := findPackage(i.Packages, name)
	return p.Version, ok
}
