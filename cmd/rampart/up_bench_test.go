package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/u-root/u-root/pkg/cpio"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/images"
)

// here is the source of a process 1 that says so and does nothing.
const here = `package main

import "os"

func main() {
	os.Stdout.WriteString("here\n")
	select {}
}
`

// threeMachines is the testbed of a single run on three virtual machines.
const threeMachines = `
testbed {
  name     = "bench-up"
  provider = "libvirt"
}
`

// BenchmarkUp holds the time from the start of `rampart run` until three agents have answered against the
// time that one machine with the same kernel under the same accelerator takes until its process 1, which
// does nothing, runs; and, where vagrant is, the time of `vagrant up` of three such machines against it.
// The metrics are medians.
func BenchmarkUp(b *testing.B) {
	if lacks := lacking("libvirt-"); lacks != "" {
		b.Skipf("%s is needed", lacks)
	}
	_, features := timeToAgents(b) // the first uploads
	image := defaultImage(b)
	bare := newBareKernel(b, image, features)
	took := map[string][]float64{}
	note := func(what string, d time.Duration) { took[what] = append(took[what], d.Seconds()) }
	var other *vagrant
	if lacks := lacksVagrant(); lacks != "" {
		b.Log("not compared with vagrant: " + lacks)
	} else {
		other = newVagrant(b, image, features)
		other.timeToUp(b) // the first uploads
	}
	for b.Loop() {
		note("bare-boot-s", bare.timeToInit(b))
		d, _ := timeToAgents(b)
		note("agents-s", d)
		if other != nil {
			note("vagrant-s", other.timeToUp(b))
		}
	}
	median := map[string]float64{}
	for what, all := range took {
		slices.Sort(all)
		median[what] = all[len(all)/2]
		b.ReportMetric(median[what], what)
	}
	b.ReportMetric(median["agents-s"]/median["bare-boot-s"], "agents/bare-boot")
	if other != nil {
		b.ReportMetric(median["vagrant-s"]/median["agents-s"], "vagrant/agents")
	}
}

// timeToAgents is from the start of the program until it has met all agents, and what it says of the
// testbed.
func timeToAgents(b *testing.B) (time.Duration, map[string]string) {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rampart.hcl"), []byte(threeMachines+oneRun), 0o644); err != nil {
		b.Fatal(err)
	}
	run := exec.Command(filepath.Join(bin, "rampart"), "run", "--verbose", "--out", "out")
	run.Dir = dir
	said, err := run.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	started := time.Now()
	if err := run.Start(); err != nil {
		b.Fatal(err)
	}
	var took time.Duration
	var all strings.Builder
	for lines := bufio.NewScanner(said); lines.Scan(); {
		fmt.Fprintln(&all, lines.Text())
		if took == 0 && strings.Contains(lines.Text(), "helpers answer on all nodes") {
			took = time.Since(started)
		}
	}
	if err := run.Wait(); err != nil || took == 0 {
		b.Fatalf("%v\n%s", err, all.String())
	}
	manifest, err := record.ReadManifest(filepath.Join(dir, "out"))
	if err != nil {
		b.Fatal(err)
	}
	var features struct{ Parameters map[string]string }
	if err := json.Unmarshal(manifest.Features, &features); err != nil {
		b.Fatal(err)
	}
	return took, features.Parameters
}

// bareKernel is a machine like a node, with nothing but a kernel and a process 1.
type bareKernel struct{ arguments []string }

func newBareKernel(b *testing.B, image images.Image, features map[string]string) bareKernel {
	dir := b.TempDir()
	program := compile(b, here)
	content, err := os.ReadFile(program)
	if err != nil {
		b.Fatal(err)
	}
	var archive bytes.Buffer
	if err := images.WriteArchive(&archive, []cpio.Record{
		cpio.Directory("dev", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.StaticFile("init", string(content), 0o755),
	}); err != nil {
		b.Fatal(err)
	}
	initrd := filepath.Join(dir, "initrd")
	if err := os.WriteFile(initrd, archive.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	return bareKernel{[]string{
		"-machine", features["machine"], "-accel", features["accelerator"], "-cpu", features["cpu_model"],
		"-smp", "1", "-m", "256", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", image.Kernel(), "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 no_timer_check",
	}}
}

// defaultImage is what nodes boot from unless another image is asked for.
func defaultImage(b *testing.B) images.Image {
	store, err := images.Open("")
	if err != nil {
		b.Fatal(err)
	}
	image, err := store.Build(b.Context(), images.Spec{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	return image
}

// timeToInit is from the start of QEMU until process 1 is there.
func (k bareKernel) timeToInit(b *testing.B) time.Duration {
	qemu := exec.Command("qemu-system-x86_64", k.arguments...)
	console, err := qemu.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	started := time.Now()
	if err := qemu.Start(); err != nil {
		b.Fatal(err)
	}
	defer qemu.Wait()
	defer qemu.Process.Kill()
	stuck := time.AfterFunc(5*time.Minute, func() { qemu.Process.Kill() })
	defer stuck.Stop()
	for lines := bufio.NewReader(console); ; {
		line, err := lines.ReadString('\n')
		if strings.TrimSpace(line) == "here" {
			return time.Since(started)
		}
		if err != nil && err != io.EOF || line == "" {
			b.Fatalf("the machine ended without a word: %v", err)
		}
	}
}
