package libvirt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	rpc "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/testbed"
)

// Accelerator is what runs a guest's instructions.
type Accelerator string

// The accelerators. Auto is KVM where a guest was seen to boot under it, else TCG.
const (
	Auto Accelerator = "auto"
	KVM  Accelerator = "kvm"
	TCG  Accelerator = "tcg" // QEMU's emulation
)

// Verdict says whether guests can run under KVM here.
type Verdict struct {
	Usable bool   `json:"usable"`
	Reason string `json:"reason"`
	mend   string // what would change it, where that is more than anybody could say
}

// probeLimit is how long a guest kernel may take to boot under KVM. A usable one takes about a second.
const probeLimit = 20 * time.Second

// probeCommandLine makes a kernel without any disk say everything, and end: it panics for want of a
// root file system, which is as far as a kernel gets by itself.
const probeCommandLine = "console=ttyS0 panic=-1"

// bootedKernel is in the text of a kernel that got so far (init/do_mounts.c).
const bootedKernel = "VFS: Unable to mount root fs"

// probeMemory is enough for a kernel without user space.
const probeMemory = 256 << 20

// ProbeKVM reports whether a guest kernel boots under KVM, as the user that libvirt runs QEMU as.
// Nothing less counts: /dev/kvm may be there, open, and be listed among libvirt's capabilities, on
// hosts where QEMU aborts on it or the guest hangs. The kernel is the image's. The verdict is
// remembered for this boot of the host, this QEMU and this kernel, so that only the first call takes
// more than a moment. An error means that nothing was found out.
func (p *Provider) ProbeKVM(ctx context.Context) (Verdict, error) {
	if !exists(ctx, p.endpoint.host, kvmDevice) {
		return Verdict{Reason: "there is no " + kvmDevice}, nil
	}
	c, err := p.control(ctx)
	if err != nil {
		return Verdict{}, err
	}
	if v, err := offersKVM(ctx, c); err != nil || !v.Usable {
		return v, err
	}
	switch f, err := p.findKVMPermission(ctx, c); {
	case err != nil:
		return Verdict{}, fmt.Errorf("probe kvm: %w", err)
	case f != nil:
		return Verdict{Reason: f.Problem, mend: f.Mend}, nil
	}
	if p.options.Image.Kernel.Path == "" {
		return Verdict{}, fmt.Errorf("probe kvm: %w", errNoImage)
	}
	key, err := p.verdictKey(ctx, c)
	if err != nil {
		return Verdict{}, fmt.Errorf("probe kvm: %w", err)
	}
	unlock, err := p.lock(ctx, "kvm-probe", exclusive)
	if err != nil {
		return Verdict{}, fmt.Errorf("probe kvm: %w", err)
	}
	defer unlock()
	if v, ok := p.recall(key); ok {
		return v, nil
	}
	v, err := p.bootUnderKVM(ctx, c)
	if err != nil {
		return Verdict{}, fmt.Errorf("probe kvm: %w", err)
	}
	if err := p.remember(key, v); err != nil {
		p.log.Warn("the verdict on KVM will be found again next time", "error", err)
	}
	return v, nil
}

// offersKVM asks libvirt, which knows when there is nothing to try.
func offersKVM(ctx context.Context, c *conn) (Verdict, error) {
	doc, err := ask(ctx, c, "ask for capabilities", func(l *rpc.Libvirt) (string, error) {
		return l.ConnectGetCapabilities()
	})
	if err != nil {
		return Verdict{}, err
	}
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(doc); err != nil {
		return Verdict{}, fmt.Errorf("read capabilities: %w", err)
	}
	emulates := false
	for _, g := range caps.Guests {
		if g.Arch.Name != "x86_64" || g.OSType != "hvm" {
			continue
		}
		emulates = true
		for _, d := range g.Arch.Domains {
			if d.Type == "kvm" {
				return Verdict{Usable: true}, nil
			}
		}
	}
	if !emulates {
		return Verdict{}, &UnavailableError{"it knows no QEMU for x86_64", "apt-get install qemu-system-x86, then systemctl restart libvirtd", nil}
	}
	return Verdict{Reason: "libvirt offers no KVM on this host: there is no /dev/kvm"}, nil
}

// bootUnderKVM starts a machine that nobody needs and watches its console.
func (p *Provider) bootUnderKVM(ctx context.Context, c *conn) (Verdict, error) {
	pool, err := p.openPool(ctx, c)
	if err != nil {
		return Verdict{}, err
	}
	kernel, err := p.sharedVolume(ctx, c, pool, "kernel", p.options.Image.Kernel)
	if err != nil {
		return Verdict{}, err
	}
	m := machine{
		name:    "rampart-probe-" + newIdent("kvm").ID,
		kvm:     true,
		vcpus:   1,
		memory:  probeMemory,
		kernel:  kernel.path,
		cmdline: probeCommandLine,
	}
	p.log.Info("trying whether a guest boots under KVM", "limit", probeLimit)
	d, err := p.startDomain(ctx, m, true)
	if errors.Is(err, context.Canceled) || errors.Is(err, errDisconnected) || errors.Is(err, ErrUnavailable) {
		return Verdict{}, err
	}
	if err != nil { // QEMU itself refused: that is a finding
		return Verdict{Reason: "QEMU does not start under KVM: " + lastLine(err.Error())}, nil
	}
	defer d.discard(ctx)
	wait, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	err = d.console.wait(wait, func(text string) (bool, error) { return strings.Contains(text, bootedKernel), nil })
	text, _, _ := d.console.snapshot()
	switch {
	case err == nil:
		return Verdict{Usable: true, Reason: "a guest kernel booted under KVM"}, nil
	case ctx.Err() != nil:
		return Verdict{}, ctx.Err()
	case errors.Is(err, errStopped):
		return Verdict{Reason: "the guest died under KVM; its console ended with " + quoteLastLine(text)}, nil
	}
	return Verdict{Reason: fmt.Sprintf("no guest kernel booted under KVM within %s; its console ended with %s", probeLimit, quoteLastLine(text))}, nil
}

func quoteLastLine(text string) string {
	if lines := lastLines(text, 1); len(lines) > 0 {
		return fmt.Sprintf("%q", lines[0])
	}
	return "nothing"
}

// lastLine is the last line of an error: libvirt puts QEMU's own words there.
func lastLine(text string) string {
	if lines := lastLines(text, 1); len(lines) > 0 {
		return lines[0]
	}
	return text
}

// choose decides how guests run, and why.
func (p *Provider) choose(ctx context.Context) (kvm bool, reason string, err error) {
	if p.options.Accelerator == TCG {
		return false, "the configuration asks for it", nil
	}
	v, err := p.ProbeKVM(ctx)
	switch {
	case err != nil:
		return false, "", err
	case !v.Usable && p.options.Accelerator == KVM:
		return false, "", &UnavailableError{`accelerator = "kvm": ` + v.Reason, cmp.Or(v.mend, mendKVM), nil}
	case !v.Usable:
		return false, v.Reason, nil
	}
	return true, v.Reason, nil
}

// mendKVM is all that can be said: what a host offers its guests is for its owner to change.
const mendKVM = `if this host is itself a virtual machine, have nested virtualisation enabled for it; or use accelerator = "tcg", or provider = "netns" for times of this machine's own kernel`

func clockOf(kvm bool) testbed.Clock {
	if kvm {
		return testbed.ClockKVM
	}
	return testbed.ClockTCG
}

// remembered is the file with the verdicts since the host booted. A study of several kernels has one for each.
type remembered struct {
	Boot     string             `json:"boot"`
	Verdicts map[string]Verdict `json:"verdicts"`
}

// verdictKey names what a verdict is valid for: a boot of the host, and there a QEMU with a kernel.
type verdictKey struct{ boot, guest string }

// bootFile has an id that is new at every boot of a host.
const bootFile = "/proc/sys/kernel/random/boot_id"

func (p *Provider) verdictFile() string { return filepath.Join(p.options.StateDir, "kvm.json") }

func (p *Provider) verdictKey(ctx context.Context, c *conn) (verdictKey, error) {
	boot, err := readFile(ctx, p.endpoint.host, bootFile)
	if err != nil {
		return verdictKey{}, err
	}
	versions, err := askVersions(ctx, c)
	if err != nil {
		return verdictKey{}, err
	}
	kernel, err := p.options.Image.Kernel.digest()
	if err != nil {
		return verdictKey{}, err
	}
	return verdictKey{strings.TrimSpace(boot), "qemu " + versions.qemu + ", kernel " + kernel}, nil
}

// verdicts are those of a boot of the host. A file that is not there or cannot be read has none.
func (p *Provider) verdicts(boot string) map[string]Verdict {
	var r remembered
	content, err := os.ReadFile(p.verdictFile())
	if err != nil || json.Unmarshal(content, &r) != nil || r.Boot != boot || r.Verdicts == nil {
		return map[string]Verdict{}
	}
	return r.Verdicts
}

func (p *Provider) recall(key verdictKey) (Verdict, bool) {
	v, ok := p.verdicts(key.boot)[key.guest]
	return v, ok
}

// Remembered says whether guests boot under KVM by what [Provider.ProbeKVM] found since this host booted, without
// asking or trying anything. It is not known where nothing was found, or not the same for every kernel.
func (p *Provider) Remembered() (usable, known bool) {
	if p.Remote() {
		return false, false // which boot of that host it was for, only that host knows
	}
	if _, err := os.Stat(kvmDevice); errors.Is(err, fs.ErrNotExist) {
		return false, true
	}
	boot, err := os.ReadFile(bootFile)
	if err != nil {
		return false, false
	}
	for _, v := range p.verdicts(strings.TrimSpace(string(boot))) {
		if known && v.Usable != usable {
			return false, false
		}
		usable, known = v.Usable, true
	}
	return usable, known
}

// remember adds a verdict; the caller holds the lock of the probe.
func (p *Provider) remember(key verdictKey, v Verdict) error {
	all := p.verdicts(key.boot)
	all[key.guest] = v
	return writeJSON(p.verdictFile(), remembered{key.boot, all})
}

// versions are libvirt's and QEMU's, as 9.0.0.
type versions struct{ libvirt, qemu string }

func askVersions(ctx context.Context, c *conn) (versions, error) {
	lib, err := ask(ctx, c, "ask for libvirt's version", (*rpc.Libvirt).ConnectGetLibVersion)
	if err != nil {
		return versions{}, err
	}
	qemu, err := ask(ctx, c, "ask for QEMU's version", (*rpc.Libvirt).ConnectGetVersion)
	if err != nil {
		return versions{}, err
	}
	return versions{versionString(lib), versionString(qemu)}, nil
}

// versionString takes apart 1000000·major + 1000·minor + release.
func versionString(v uint64) string {
	return fmt.Sprintf("%d.%d.%d", v/1e6, v/1e3%1e3, v%1e3)
}
