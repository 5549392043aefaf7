package images

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Sizes of a disk, in bytes. Its file is sparse: what is unused takes no space.
const (
	minDiskSize  = 1 << 30
	diskSizeStep = 256 << 20
)

// diskSize gives a root file system of content bytes at least as much room again.
func diskSize(content int64) int64 {
	size := max(minDiskSize, 2*content)
	return (size + diskSizeStep - 1) / diskSizeStep * diskSizeStep
}

// ext4Features are the features of the file system, named one by one so that neither the machine's
// mke2fs.conf nor the version of mke2fs decides. There is no journal and no lazy initialisation:
// both are kernel threads that would write while something is measured, and a node's disk is
// thrown away anyway. Without metadata_csum, emulated guests compute no checksums.
const ext4Features = "none,extent,filetype,sparse_super,large_file,huge_file,dir_nlink,dir_index,extra_isize,flex_bg,ext_attr"

// uuid formats the first 16 bytes of a "sha256:…" digest as an RFC 9562 UUID of version 8.
func uuid(digest string) string {
	h := []byte(strings.TrimPrefix(digest, "sha256:")[:32])
	h[12], h[16] = '8', 'a'
	return fmt.Sprintf("%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// makeDisk turns the tar at archive into an ext4 file system in a qcow2 at disk. It works in the
// folder work, which must be empty of the names it uses, and leaves them to the caller to remove.
func makeDisk(ctx context.Context, work, archive, disk string, root rootArchive, asRoot bool) error {
	tree, raw := filepath.Join(work, "tree"), filepath.Join(work, "disk.raw")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	clock := fmt.Sprint(epoch.Unix())
	id := uuid(root.digest)
	// Owners, and mke2fs's view of them, are one command because fakeroot remembers the owners only
	// as long as it runs.
	script := `set -e
tar -xpf "$1" -C "$2" --numeric-owner --same-owner --delay-directory-restore
truncate -s "$3" "$4"
mke2fs -q -t ext4 -F -b 4096 -I 256 -m 0 -O "$5" -U "$6" -L rampart \
	-E "hash_seed=$6,lazy_itable_init=0,nodiscard,root_owner=0:0" -d "$2" "$4"`
	argv := []string{"sh", "-c", script, "sh", archive, tree, fmt.Sprint(diskSize(root.content)), raw, ext4Features, id}
	if !asRoot {
		argv = append([]string{"fakeroot", "--"}, argv...)
	}
	env := []string{
		"E2FSPROGS_FAKE_TIME=" + clock, "SOURCE_DATE_EPOCH=" + clock,
		"MKE2FS_CONFIG=" + filepath.Join(work, "no-such-file"), // the compiled-in defaults
		"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin",
	}
	if err := (command{argv: argv, env: env}).run(ctx); err != nil {
		return fmt.Errorf("make file system: %w", err)
	}
	if err := fixTimes(ctx, raw, root.entries, env); err != nil {
		return err
	}
	convert := command{argv: []string{"qemu-img", "convert", "-m", "1", "-f", "raw", "-O", "qcow2", raw, disk}}
	if err := convert.run(ctx); err != nil {
		return fmt.Errorf("convert disk: %w", err)
	}
	return nil
}

// fixTimes sets the access and change times of every inode: mke2fs copies them from the folder it
// reads, where they are the moment of unpacking and cannot be set. New inodes are numbered from 11
// on without gaps, one an entry at most.
func fixTimes(ctx context.Context, raw string, entries int, env []string) error {
	const firstInode, slack = 11, 16
	var script strings.Builder
	set := func(inode int) {
		for _, field := range []string{"atime", "ctime"} {
			fmt.Fprintf(&script, "sif <%d> %s @%d\n", inode, field, epoch.Unix())
		}
	}
	set(2) // the root folder
	for inode := firstInode; inode < firstInode+entries+slack; inode++ {
		set(inode)
	}
	c := command{argv: []string{"debugfs", "-w", "-f", "-", raw}, env: env, stdin: script.String()}
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("set times in file system: %w", err)
	}
	return nil
}
