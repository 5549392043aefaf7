// Package exact runs work inside a virtual machine whose clock counts instructions, so that the same
// work takes the same time, to the nanosecond, on every computer and however busy that is.
//
// The machine is QEMU's emulator with one processor, on which one instruction takes one nanosecond of
// virtual time, and with nothing in it that could let the time or the chance of the host in: no disk, no
// network card, no clock of the day, no random number instructions, no input. Everything it needs is in
// its memory when it starts (see [Bundle]); what it has to say goes to a serial port whose other
// end is a file in memory, which never makes it wait. QEMU is an ordinary process of an ordinary user.
//
// [Machine] says what is run, [Machine.Run] runs one job and hands over what the guest says line by line, and
// [Enter] is the guest's side: the program of the bundle is its process 1.
//
// What the guest says depends on the bundle, the job, the salt, QEMU's version and the flags of
// [Machine], all of which [Machine.Parameters] names for the manifest. One nanosecond is one
// instruction: there are no caches, no branch prediction and no waiting for memory in this time.
package exact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rampart-bench/rampart/testbed"
)

// Name is the provider's name.
const Name = "exact"

// program is the emulator.
const program = "qemu-system-x86_64"

// A Machine is what every job of a study runs on.
type Machine struct {
	QEMU    string // path of the program
	Version string // what it says of itself
	Bundle  Bundle
}

// New finds the emulator. The error is a [*testbed.UnableError] when there is none.
func New(ctx context.Context, bundle Bundle) (Machine, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return Machine{}, &testbed.UnableError{Provider: Name, Reason: program + " is not installed", Mend: "apt install qemu-system-x86"}
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return Machine{}, fmt.Errorf("ask %s for its version: %w", program, err)
	}
	version, _, _ := strings.Cut(string(out), "\n")
	return Machine{QEMU: path, Version: version, Bundle: bundle}, nil
}

// A flag is one option of QEMU and why it is there.
type flag struct{ name, value, why string }

// The descriptors of the files that the machine gets, as QEMU finds them.
const (
	archiveFD = 3 + iota // first of ExtraFiles
	consoleFD
	linesFD
)

func descriptor(fd int) string { return fmt.Sprintf("/dev/fd/%d", fd) }

// flags are all options but the kernel's command line. Each was tried: see docs/exact.md.
func (m Machine) flags() []flag {
	return []flag{
		{"-machine", "q35", "with the older pc, recording of inputs hangs"},
		{"-accel", "tcg,thread=single", "instructions can only be counted when they are emulated"},
		{"-icount", "shift=0,sleep=off,rr=record,rrfile=/dev/null", "2^0 ns an instruction; idle time is skipped; recording closes the race between the counter and the main loop"},
		{"-rtc", "base=2026-01-01,clock=vm", "the time of day is virtual, too"},
		{"-seed", "1", "what the processor hands to the guest as chance"},
		{"-cpu", "Nehalem,+rdrand", "old enough to be the same in every QEMU; rdrand, which follows -seed, saves the guest a second of gathering chance"},
		{"-smp", "1", "several processors would have to take turns"},
		{"-m", "512M", "holds the bundle and a million set elements"},
		{"-nodefaults", "", "no device that is not named here"},
		{"-vga", "none", ""},
		{"-display", "none", ""},
		{"-nic", "none", "no frame from outside"},
		{"-no-reboot", "", "a guest that panics ends the machine"},
		{"-chardev", "file,id=console,path=" + descriptor(consoleFD), "the kernel's words, for when something goes wrong"},
		{"-device", "isa-serial,chardev=console", ""},
		{"-chardev", "file,id=lines,path=" + descriptor(linesFD), "a file never makes the guest wait, as a pipe would"},
		{"-device", "isa-serial,chardev=lines", ""},
		{"-kernel", m.Bundle.Kernel, ""},
		{"-initrd", descriptor(archiveFD), "in memory: no file is left behind, however this ends"},
	}
}

// kernelParameters are the kernel's command line, each with its reason.
var kernelParameters = []flag{
	{"console", "ttyS0", ""},
	{"quiet", "", "each byte on the console is work for the guest"},
	{"panic", "-1", "end at once; what led to it is on the console"},
	{"mitigations", "off", "an emulated processor has nothing to mitigate"},
	{"tsc", "reliable", "time is read without leaving the guest's code"},
	{"nolapic_timer", "", "calibrating it takes half of the boot; the HPET needs no calibration"},
	{"cryptomgr.notests", "", "testing ciphers takes as long as the rest of the boot"},
}

// guestVerb is the argument that the kernel gives to process 1.
const guestVerb = "guest"

// commandLine is what the kernel is started with. The salt seeds the kernel's random numbers, and with
// them the layout of addresses and the keys of its hash tables: that is what differs between replicates.
func commandLine(salt string) string {
	var words []string
	for _, p := range kernelParameters {
		word := p.name
		if p.value != "" {
			word += "=" + p.value
		}
		words = append(words, word)
	}
	return strings.Join(append(words, "rampart.salt="+salt, "--", guestVerb), " ")
}

// arguments is QEMU's command line.
func (m Machine) arguments(salt string) []string {
	var argv []string
	for _, f := range m.flags() {
		argv = append(argv, f.name)
		if f.value != "" {
			argv = append(argv, f.value)
		}
	}
	return append(argv, "-append", commandLine(salt))
}

// Parameters are the facts that what a guest says depends on, for the manifest. Paths are left out:
// digests say more.
func (m Machine) Parameters() (map[string]string, error) {
	kernel, err := fileDigest(m.Bundle.Kernel)
	if err != nil {
		return nil, err
	}
	program, err := fileDigest(m.Bundle.Program)
	if err != nil {
		return nil, err
	}
	var flags []string
	for _, f := range m.flags() {
		switch f.name {
		case "-kernel":
			f.value = "KERNEL"
		case "-initrd":
			f.value = "INITRAMFS"
		}
		flags = append(flags, strings.TrimSpace(f.name+" "+f.value))
	}
	p := map[string]string{
		"qemu":         m.Version,
		"flags":        strings.Join(flags, " "),
		"command_line": commandLine("UNIT"),
		"kernel":       kernel,
		"base":         m.Bundle.BaseDigest,
		"program":      program,
	}
	for name, digest := range m.firmware() {
		p["firmware "+name] = digest
	}
	return p, nil
}

// firmwareFiles are what the machine runs before the kernel.
var firmwareFiles = []string{"bios-256k.bin", "linuxboot_dma.bin"}

// firmware are the digests of the firmware, where QEMU says that it looks for it.
func (m Machine) firmware() map[string]string {
	found := map[string]string{}
	out, err := exec.Command(m.QEMU, "-L", "help").Output()
	if err != nil {
		return found
	}
	for folder := range strings.Lines(string(out)) {
		for _, name := range firmwareFiles {
			if digest, err := fileDigest(filepath.Join(strings.TrimSpace(folder), name)); err == nil && found[name] == "" {
				found[name] = digest
			}
		}
	}
	return found
}

func fileDigest(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("digest file: %w", err)
	}
	return digest(content), nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// A GuestError says that the machine ended before its job did.
type GuestError struct {
	Reason  string
	Console []byte // everything that the guest's console printed
	QEMU    string // what QEMU itself said
}

// consoleEnd is how many lines of the console an error quotes.
const consoleEnd = 12

func (e *GuestError) Error() string {
	text := e.Reason
	if e.QEMU != "" {
		text += "\nqemu: " + e.QEMU
	}
	if end := lastLines(e.Console, consoleEnd); end != "" {
		text += "\nthe end of its console:\n" + end
	}
	return text
}

// lastLines is the end of a text, indented.
func lastLines(text []byte, n int) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	lines = lines[max(0, len(lines)-n):]
	var kept []string
	for _, line := range lines {
		if line = bytes.TrimRight(line, "\r"); len(line) > 0 {
			kept = append(kept, "    "+string(line))
		}
	}
	return strings.Join(kept, "\n")
}

// errSilent ends a machine that has said nothing for too long.
var errSilent = errors.New("the guest has gone silent")
