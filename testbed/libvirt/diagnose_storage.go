package libvirt

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	rpc "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/testbed"
)

// What a node writes over its image, in bytes: overlaySpace is enough for everything that a study installs
// or records there, and below overlayLeast none would come up.
const (
	overlaySpace = 256 << 20
	overlayLeast = 32 << 20
)

func (p *Provider) findSpace(ctx context.Context, c *conn) (*Finding, error) {
	free, where, err := p.poolSpace(ctx)
	if err != nil {
		return nil, err
	}
	image := p.missingImage(ctx, c)
	if free >= image+3*overlaySpace {
		return nil, nil
	}
	return &Finding{
		Problem: fmt.Sprintf("%s has %d MiB free; the image and three nodes may need %d MiB more there", where, free>>20, (image+3*overlaySpace)>>20),
		Mend:    p.endpoint.at + "remove files there, such as disks of other machines: virsh vol-list " + p.options.Pool,
		Blocks:  free < image+3*overlayLeast,
	}, nil
}

// missingImage is the size of what of the image is not in the pool yet, in bytes.
func (p *Provider) missingImage(ctx context.Context, c *conn) (size uint64) {
	pool, errPool := p.lookupPool(ctx, c)
	for kind, file := range map[string]File{kindKernel: p.options.Image.Kernel, kindInitrd: p.options.Image.Initrd, kindDisk: p.options.Image.Disk} {
		info, err := os.Stat(file.Path)
		if err != nil {
			continue // there is no image: doctor then says so
		}
		sum, err := file.digest()
		if err == nil && errPool == nil {
			_, err = lookupVolume(ctx, c, pool, sharedName(kind, sum)+completeSuffix)
		}
		if err != nil || errPool != nil {
			size += uint64(info.Size())
		}
	}
	return size
}

// poolSpace is what is free where the pool is or would be, in bytes.
func (p *Provider) poolSpace(ctx context.Context) (free uint64, where string, err error) {
	for dir := p.options.PoolDir; ; dir = filepath.Dir(dir) {
		free, err := freeSpace(ctx, p.endpoint.host, dir)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || dir == "/" {
			return free, dir, err
		}
	}
}

// trialName is the testbed that the volumes of a trial seem to belong to, so that down finds them after a
// crash.
const trialName = "doctor"

// findTrial starts a machine that nobody needs, with a disk that is an overlay of another in the pool: what
// keeps QEMU from its files, such as folders that are closed to its user or an AppArmor profile, is found
// only so.
func (p *Provider) findTrial(ctx context.Context, c *conn) (_ *Finding, err error) {
	id := newIdent(trialName)
	defer func() {
		clean, cancel := cleanupContext(ctx)
		defer cancel()
		err = errors.Join(err, p.down(clean, func(i ident) bool { return i == id }))
	}()
	pool, err := p.openPool(ctx, c)
	if err != nil {
		return nil, err
	}
	empty := rawVolume(id.seed(testbed.Firewall), modeShared, 1<<20)
	empty.Target.Format.Type = "qcow2"
	base, err := createVolume(ctx, c, pool, empty)
	if err != nil {
		return nil, err
	}
	disk, err := createVolume(ctx, c, pool, overlayVolume(id.overlay(testbed.Firewall), base.path))
	if err != nil {
		return nil, err
	}
	m := machine{name: id.domain(testbed.Firewall), vcpus: 1, memory: 64 << 20, overlay: disk.path}
	if !p.endpoint.wiring.taps() {
		link := filepath.Join(p.options.StateDir, "trial")
		defer os.Remove(link)
		m.nics = trialNICs(link)
	}
	d, err := p.startDomain(ctx, m, true)
	if err != nil {
		return nil, err
	}
	return nil, d.discard(ctx)
}

// trialNICs are what not every QEMU has: a user-mode network, and a link to nowhere at that path.
func trialNICs(link string) []nic {
	path := escapeComma(link)
	return []nic{
		{plug: plug{netdev: "user,restrict=on"}, mac: "52:54:00:00:00:01"},
		{plug: plug{netdev: "dgram,local.type=unix,local.path=" + path + ",remote.type=unix,remote.path=" + path + ".peer"}, mac: "52:54:00:00:00:02"},
	}
}

// closedFile is how QEMU says that it may not open a disk or a kernel, and libvirt that QEMU could not.
var closedFile = regexp.MustCompile(`(?:[Cc]ould not (?:open|load)|Cannot access storage)[a-z ]* '([^']+)'(?: \(as uid:\d+, gid:\d+\))?: Permission denied`)

// startTroubles are what libvirt and QEMU say when a machine does not start for a reason that lies with the
// host. FILE is what the expression's group
// matched, and FOLDER where that is.
var startTroubles = []struct {
	says          *regexp.Regexp
	appArmor      bool // only where it is in force
	problem, mend string
}{
	{closedFile, true,
		"QEMU may not open FILE: AppArmor's profile for it does not allow the place, or a folder on the way is closed to QEMU's user",
		"journalctl -k -g 'apparmor=\"DENIED\"' shows what was denied; allow the folder: echo '  \"FOLDER/**\" rwk,' >>/etc/apparmor.d/local/abstractions/libvirt-qemu and echo '  \"FOLDER/**\" r,' >>/etc/apparmor.d/local/usr.lib.libvirt.virt-aa-helper, then systemctl reload apparmor; if nothing was denied: namei -l FILE, each folder needs x for others"},
	{closedFile, false,
		"QEMU may not open FILE: a folder on the way is closed to QEMU's user",
		"namei -l FILE shows which: each needs x for others (chmod o+x)"},
	{regexp.MustCompile(`cannot load AppArmor profile '([^']+)'`), true,
		"libvirt cannot load the AppArmor profile FILE of a machine",
		"aa-status shows what is loaded; load libvirt's own profiles again: apt-get install --reinstall libvirt-daemon-system apparmor, then systemctl restart apparmor libvirtd"},
	{regexp.MustCompile(`network backend '(user)' is not compiled|(?:does not accept value|Invalid parameter) 'dgram'`), false,
		"this QEMU cannot join machines without privileges: it is older than 7.2, or was built without user-mode networks",
		`install QEMU 7.2 or later with slirp, as Debian 12 has it, or use uri = "qemu:///system"`},
	{regexp.MustCompile(`(cannot set up guest memory[^:]*|unable to map backing store for guest RAM): Cannot allocate memory`), false,
		"the host has no memory left for a node", "end other machines (virsh list), or give nodes less: memory in node blocks"},
}

// explainStart turns an error of starting a machine into one that says what would help, if that is known.
func (p *Provider) explainStart(ctx context.Context, err error) error {
	f, ok := startTrouble(err.Error(), func() bool { return p.confined(ctx) })
	if !ok {
		return err
	}
	return &UnavailableError{f.Problem, p.endpoint.at + f.Mend, err}
}

// startTrouble finds the trouble that a text is about. confined is asked where AppArmor may be the reason.
func startTrouble(text string, confined func() bool) (Finding, bool) {
	for _, trouble := range startTroubles {
		match := trouble.says.FindStringSubmatch(text)
		if match == nil || trouble.appArmor && !confined() {
			continue
		}
		words := strings.NewReplacer("FILE", match[1], "FOLDER", filepath.Dir(match[1]))
		return Finding{Problem: words.Replace(trouble.problem), Mend: words.Replace(trouble.mend), Blocks: true}, true
	}
	return Finding{}, false
}

// confined reports whether AppArmor is among what libvirt confines QEMU by.
func (p *Provider) confined(ctx context.Context) bool {
	c, err := p.control(ctx)
	if err != nil {
		return false
	}
	doc, err := ask(ctx, c, "ask for capabilities", (*rpc.Libvirt).ConnectGetCapabilities)
	return err == nil && namesAppArmor(doc)
}

func namesAppArmor(doc string) bool {
	var caps libvirtxml.Caps
	if caps.Unmarshal(doc) != nil {
		return false
	}
	for _, m := range caps.Host.SecModel {
		if m.Name == "apparmor" {
			return true
		}
	}
	return false
}
