package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/testbed"
)

// runtimeDir is where locks of testbeds stand; it is emptied when the host boots.
func runtimeDir() string {
	if os.Geteuid() == 0 {
		return "/run/rampart/locks"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "rampart")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("rampart-%d", os.Getuid()))
}

// A claim on a testbed's name: no two processes work on one testbed. The kernel lets go of it when
// the process ends, however it ends.
type hold struct{ file *os.File }

// holdTestbed takes the lock of a name, or says who has it.
func holdTestbed(name string) (*hold, error) {
	if err := os.MkdirAll(runtimeDir(), 0o755); err != nil {
		return nil, fmt.Errorf("lock testbed %s: %w", name, err)
	}
	path := filepath.Join(runtimeDir(), name+".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock testbed %s: %w", name, err)
	}
	if err := record.Lock(f); err != nil {
		holder, _ := os.ReadFile(path)
		f.Close()
		return nil, withHint(
			fmt.Errorf("testbed %s: process %s is working on it", name, orUnknown(strings.TrimSpace(string(holder)))),
			"wait for it, or give this testbed another name: testbed { name = \"…\" }")
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	return &hold{f}, nil
}

// release lets go of the name. The file stays: removing it would let two processes hold two files
// of one name.
func (h *hold) release() { h.file.Close() }

// keptPath marks a testbed that `rampart up` or --keep left up on purpose.
func keptPath(name string) string { return filepath.Join(runtimeDir(), name+".kept") }

// markKept remembers that the testbed is meant to stay and what it was made from.
func markKept(provider chosenProvider, spec testbed.Spec) error {
	return os.WriteFile(keptPath(spec.Name), []byte(keptDigest(provider, spec)), 0o644)
}

// What is known of a testbed that may have been left up on purpose.
type keptState int

const (
	notKept   keptState = iota
	keptSame            // it was made from this very Spec and image
	keptOther           // it was made from others
)

// keptFor says whether a testbed of this name was left up on purpose, and what it was made from.
func keptFor(provider chosenProvider, spec testbed.Spec) keptState {
	digest, err := os.ReadFile(keptPath(spec.Name))
	switch {
	case err != nil:
		return notKept
	case string(digest) == keptDigest(provider, spec):
		return keptSame
	}
	return keptOther
}

func forgetKept(name string) error {
	if err := os.Remove(keptPath(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func keptDigest(provider chosenProvider, spec testbed.Spec) string {
	text, err := json.Marshal(spec)
	if err != nil {
		panic("a testbed.Spec is always encodable: " + err.Error())
	}
	sum := sha256.Sum256(append([]byte(provider.name+"\n"+provider.image.Digest+"\n"), text...))
	return hex.EncodeToString(sum[:])
}
