package libvirt

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	rpc "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"
)

// imagesLock is held, shared, from when an image is in the pool until it is written down that a testbed
// uses it, and alone by whoever removes what nobody uses.
const imagesLock = "images"

var sharedVolumeName = regexp.MustCompile(`^rampart-(kernel|initrd|disk|program)-[0-9a-f]{24}(` + regexp.QuoteMeta(completeSuffix) + `)?$`)

// Prune removes from the pool what neither a stored image nor a testbed needs: the volumes of images that
// were removed, and of other versions of this program. It does nothing when the options do not say which
// images are stored, while a testbed comes up, or when it cannot tell what an existing testbed uses.
func (p *Provider) Prune(ctx context.Context) error {
	if p.options.Stored == nil {
		return nil
	}
	c, err := p.control(ctx)
	if err != nil {
		return err
	}
	if err := p.prune(ctx, c); err != nil {
		return fmt.Errorf("remove images that nobody uses: %w", err)
	}
	return nil
}

func (p *Provider) prune(ctx context.Context, c *conn) error {
	unlock, err := p.tryLock(imagesLock, exclusive)
	if err != nil {
		return nil // a testbed comes up
	}
	defer unlock()
	shared, err := p.takeVolumes(ctx, c, sharedVolumeName.MatchString)
	if err != nil || len(shared) == 0 {
		return err
	}
	wanted, err := p.wantedVolumes()
	if err != nil {
		return err
	}
	if err := p.addUsed(ctx, c, wanted); err != nil {
		return err
	}
	// The marks go first: content without a mark is not taken for whole, a mark without content is
	// nothing.
	for _, marks := range []bool{true, false} {
		for _, v := range shared {
			content, isMark := strings.CutSuffix(v.Name, completeSuffix)
			if isMark != marks || wanted[content] || p.options.Program == "" && strings.HasPrefix(content, "rampart-"+kindProgram) {
				continue
			}
			p.log.Info("removing from storage pool what nobody uses", "volume", v.Name)
			if err := deleteVolume(ctx, c, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantedVolumes are the names of the volumes of stored images and of this program.
func (p *Provider) wantedVolumes() (map[string]bool, error) {
	stored, err := p.options.Stored()
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, image := range append(stored, p.options.Image) {
		for kind, file := range map[string]File{kindKernel: image.Kernel, kindInitrd: image.Initrd, kindDisk: image.Disk} {
			if file.Path == "" {
				continue
			}
			sum, err := file.digest()
			if err != nil {
				return nil, err
			}
			wanted[sharedName(kind, sum)] = true
		}
	}
	if p.options.Program == "" {
		return wanted, nil
	}
	program, err := programSource(p.options.Program)
	if err == nil {
		wanted[sharedName(kindProgram, program.sha256)] = true
	}
	return wanted, err
}

// addUsed adds the volumes that testbeds were made from: what is written down of those of this state
// folder, and what the machines of all others say.
func (p *Provider) addUsed(ctx context.Context, c *conn, wanted map[string]bool) error {
	idents, err := p.stateIdents()
	if err != nil {
		return err
	}
	for _, id := range idents {
		s, _, err := p.loadState(id)
		if err != nil {
			return err
		}
		for _, path := range []string{s.Kernel, s.Initrd, s.Base, s.Program} {
			wanted[filepath.Base(path)] = true
		}
	}
	domains, err := listDomains(ctx, c)
	if err != nil {
		return err
	}
	for _, d := range domains {
		if _, _, ours := parseName(d.Name); !ours {
			continue
		}
		doc, err := ask(ctx, c, "describe domain "+d.Name, func(l *rpc.Libvirt) (string, error) { return l.DomainGetXMLDesc(d, 0) })
		if ignoreMissing(err) != nil {
			return err
		}
		if err != nil {
			continue // it ended since it was listed
		}
		paths, err := parseDomainFiles(doc)
		if err != nil {
			return fmt.Errorf("describe domain %s: %w", d.Name, err)
		}
		for _, path := range paths {
			wanted[filepath.Base(path)] = true
		}
	}
	return nil
}

// parseDomainFiles finds in a live domain's XML the files that it was started with: kernel, initrd, and
// disks with what is behind them.
func parseDomainFiles(doc string) (paths []string, err error) {
	var d libvirtxml.Domain
	if err := d.Unmarshal(doc); err != nil {
		return nil, err
	}
	if d.OS != nil {
		paths = append(paths, d.OS.Kernel, d.OS.Initrd)
	}
	if d.Devices == nil {
		return paths, nil
	}
	add := func(s *libvirtxml.DomainDiskSource) {
		if s != nil && s.File != nil {
			paths = append(paths, s.File.File)
		}
	}
	for _, disk := range d.Devices.Disks {
		add(disk.Source)
		for b := disk.BackingStore; b != nil; b = b.BackingStore {
			add(b.Source)
		}
	}
	return paths, nil
}
