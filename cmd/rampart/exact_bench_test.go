package main_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed/exact"
)

// nothing is the source of a process 1 that does nothing.
const nothing = `package main

import "syscall"

func main() { syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF) }
`

// oneRun is the configuration of a single run, without its testbed.
const oneRun = `
firewall "open" { engine = "none" }
experiment "latency" {
  measurement "icmp_rtt" {
    count  = 1
    warmup = 0
  }
  matrix {
    firewall   = ["open"]
    rules      = [2]
    frame_size = [64]
  }
  repetitions = 1
  controls    = false
}
`

// BenchmarkExactStart holds the time from the start of `rampart run` to the end of its first run against
// the time that the same kernel on the same machine takes from start to end with a process 1 that does
// nothing.
func BenchmarkExactStart(b *testing.B) {
	bare := bareMachine(b)
	var first, boot time.Duration
	for b.Loop() {
		started := time.Now()
		err := bare.Run(b.Context(), exact.Job{Salt: "bench", Patience: 5 * time.Minute})
		var ended *exact.GuestError
		if !errors.As(err, &ended) { // it powers off without a word
			b.Fatal(err)
		}
		boot += time.Since(started)
		first += timeToFirstRun(b)
	}
	b.ReportMetric(first.Seconds()/float64(b.N), "first-run-s")
	b.ReportMetric(boot.Seconds()/float64(b.N), "bare-boot-s")
	b.ReportMetric(first.Seconds()/boot.Seconds(), "ratio")
}

// compile makes a static program, a process 1, of its source.
func compile(b *testing.B, text string) (program string) {
	dir := b.TempDir()
	source, program := filepath.Join(dir, "init.go"), filepath.Join(dir, "init")
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, source)
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build a process 1: %v\n%s", err, out)
	}
	return program
}

// bareMachine is a machine whose process 1 does nothing.
func bareMachine(b *testing.B) exact.Machine {
	dir := b.TempDir()
	program := compile(b, nothing)
	store, err := images.Open("")
	if err != nil {
		b.Fatal(err)
	}
	image, err := store.Build(b.Context(), images.Spec{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	// No base either: this is the kernel's own time.
	empty := filepath.Join(dir, "empty.cpio")
	var archive bytes.Buffer
	if err := images.WriteArchive(&archive, nil); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(empty, archive.Bytes(), 0o644); err != nil {
		b.Fatal(err)
	}
	machine, err := exact.New(b.Context(), exact.Bundle{Kernel: image.Kernel(), Base: empty, Program: program})
	if err != nil {
		b.Fatal(err)
	}
	return machine
}

// timeToFirstRun is from the start of the program until the first record is on disk.
func timeToFirstRun(b *testing.B) time.Duration {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rampart.hcl"), []byte("testbed { provider = \"exact\" }"+oneRun), 0o644); err != nil {
		b.Fatal(err)
	}
	run := exec.Command(filepath.Join(bin, "rampart"), "run", "--quiet", "--out", "out")
	run.Dir = dir
	started := time.Now()
	if err := run.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- run.Wait() }()
	for {
		if info, err := os.Stat(filepath.Join(dir, "out", "records.jsonl")); err == nil && info.Size() > 0 {
			took := time.Since(started)
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
			return took
		}
		select {
		case err := <-ended:
			b.Fatalf("rampart run ended without a record: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
