package provision

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// Push copies the program exe to the node's scratch folder under a name made of its content, and
// returns the path to start it by. A program that is there already is not copied again. A program
// that needs a dynamic loader is refused: the node may not have the libraries of this machine.
func Push(ctx context.Context, node Node, exe string) (path string, copied bool, err error) {
	f, err := os.Open(exe)
	if err != nil {
		return "", false, fmt.Errorf("push program: %w", err)
	}
	defer f.Close()
	if err := checkStatic(f); err != nil {
		return "", false, fmt.Errorf("push program %s: %w", exe, err)
	}
	name, err := contentName(f)
	if err != nil {
		return "", false, fmt.Errorf("push program %s: %w", exe, err)
	}
	path = "./" + name
	if executable(ctx, node, path) {
		return path, false, nil
	}
	if err := node.Put(ctx, name, 0o755, f); err != nil {
		return "", false, fmt.Errorf("push program %s: %w", exe, err)
	}
	return path, true, nil
}

// CheckStatic returns an error unless the program runs on a node that has no libraries.
func CheckStatic(exe string) error {
	f, err := os.Open(exe)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkStatic(f)
}

// checkStatic looks for a request for a dynamic loader (PT_INTERP, System V ABI, program header).
func checkStatic(r io.ReaderAt) error {
	program, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("it is not a Linux program: %w", err)
	}
	for _, header := range program.Progs {
		if header.Type == elf.PT_INTERP {
			return fmt.Errorf("it is linked dynamically and might not start on the node: build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// contentName names a file by its SHA-256, and leaves f at its beginning.
func contentName(f io.ReadSeeker) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("hash: %w", err)
	}
	return "rampart-" + hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// executable asks the node. Whatever goes wrong means no: copying once more is always right.
func executable(ctx context.Context, node Node, path string) bool {
	conn, err := node.Start(ctx, "test", "-x", path)
	if err != nil {
		return false
	}
	conn.Close()
	io.Copy(io.Discard, conn)
	return conn.Wait() == nil
}
