package images

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == guestArgument {
		os.Exit(guestMain(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// TestRtcache boots the image with the module in a machine of two CPUs and has the driver try it. The
// module is loaded and unloaded 100 times, or 1,000 times with RAMPART_TEST_LONG=1.
//
// RAMPART_TEST_SUITE names another Debian suite. RAMPART_TEST_KERNEL and RAMPART_TEST_MODULE name a kernel
// and a module built for it, such as one that checks its own locks and memory. All drivers must be built into
// that kernel, because it gets no initrd.
func TestRtcache(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	spec := Spec{Name: "rtcache", Suite: os.Getenv("RAMPART_TEST_SUITE"), Mirror: os.Getenv("RAMPART_TEST_MIRROR")}
	otherKernel := os.Getenv("RAMPART_TEST_KERNEL")
	if otherKernel == "" {
		spec.Modules = []string{"rtcache"}
	}
	image := buildImage(t, spec)
	kernel := []string{"-kernel", image.Kernel(), "-initrd", image.Initrd()}
	module := filepath.Join("/lib/modules", image.KernelVersion, "extra/rtcache.ko")
	files := []File{{Name: "/root/driver", Mode: 0o755, Content: staticSelf(t)}}
	if otherKernel != "" {
		content, err := os.ReadFile(os.Getenv("RAMPART_TEST_MODULE"))
		if err != nil {
			t.Fatal(err)
		}
		kernel, module = []string{"-kernel", otherKernel}, "/root/rtcache.ko"
		files = append(files, File{Name: module, Mode: 0o644, Content: content})
	}
	cycles, limit := 100, 10*time.Minute
	if otherKernel != "" {
		limit = 90 * time.Minute // checks slow it down
	}
	if os.Getenv("RAMPART_TEST_LONG") == "1" {
		cycles, limit = 1000, 90*time.Minute
	}
	script := fmt.Sprintf("sysctl -q kernel.printk=5\n/root/driver %s %s %d %v\nbusybox poweroff -f\n", guestArgument, module, cycles, otherKernel == "")
	files = append(files, File{Name: SeedNetwork, Mode: 0o644, Content: []byte(script)})

	tried := map[string]bool{}
	console := runMachine(t, limit, kernel, image, files, func(line string) {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(line, guestOK), guestFailed), ":")
		tried[name] = true
		t.Log(line)
		if strings.HasPrefix(line, guestFailed) {
			t.Fail()
		}
	})
	for _, trial := range trials() {
		if !tried[trial.name] {
			t.Errorf("nothing was heard of: %s", trial.name)
		}
	}
	if !tried[guestDone] {
		t.Error("the driver did not finish")
	}
	if t.Failed() {
		t.Logf("console:\n%s", console)
	}
}

// buildImage builds an image or takes it from the user's store.
func buildImage(t *testing.T, spec Spec) Image {
	t.Helper()
	if _, err := toolVersions(t.Context(), tools(os.Geteuid() == 0)); err != nil {
		skip(t, err.Error())
	}
	s, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	image, err := s.Build(t.Context(), spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// staticSelf is this test binary, which runs in a machine with other libraries only if it needs none.
func staticSelf(t *testing.T) []byte {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		skip(t, "this test binary is not static: run the tests with CGO_ENABLED=0")
	}
	content, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// runMachine boots a machine of two CPUs with files in it, hands out the driver's lines as they come, and
// returns all that was printed once the machine is off. kernel are the options of QEMU that name what it boots.
func runMachine(t *testing.T, limit time.Duration, kernel []string, image Image, files []File, each func(string)) string {
	t.Helper()
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		skip(t, "QEMU is not installed: apt-get install qemu-system-x86")
	}
	seed, err := Seed(files)
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
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, qemu, append(kernel, "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "768",
		"-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-append", CommandLine+" slab_nomerge", // so that routes have a slab of their own
		"-drive", "if=virtio,format=qcow2,file="+disk, "-drive", "if=virtio,format=raw,readonly=on,file="+seedFile)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var console strings.Builder
	readErr := guestLines(out, each, &console)
	if err := cmd.Wait(); err != nil || readErr != nil {
		t.Errorf("the machine ended badly after at most %v: %v, %v", limit, err, readErr)
	}
	return console.String()
}
