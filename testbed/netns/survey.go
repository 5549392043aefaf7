package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rampart-bench/rampart/testbed"
)

// A trace is what can be seen of a testbed from outside.
type trace struct {
	scratch string                // the folder, or empty
	nodes   map[testbed.Role]bool // true for a live namespace, false for a name without one
}

// survey finds the traces of every testbed by name.
func survey() (map[string]*trace, error) {
	found := map[string]*trace{}
	at := func(name string) *trace {
		if found[name] == nil {
			found[name] = &trace{nodes: map[testbed.Role]bool{}}
		}
		return found[name]
	}
	err := eachEntry(namespaceFolder, func(entry string) {
		if name, role, ok := parseNamespace(entry); ok {
			_, live := identify(filepath.Join(namespaceFolder, entry))
			at(name).nodes[role] = live
		}
	})
	for _, root := range scratchRoots {
		err = errors.Join(err, eachEntry(root, func(entry string) {
			if name, ok := parseFolder(entry); ok {
				at(name).scratch = filepath.Join(root, entry)
			}
		}))
	}
	return found, err
}

// eachEntry calls f for the name of everything in a folder, which need not exist.
func eachEntry(folder string, f func(entry string)) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		f(entry.Name())
	}
	return err
}

// complete reports whether the testbed came up and still has all its nodes.
func (t *trace) complete() bool {
	if t.scratch == "" {
		return false
	}
	if _, err := os.Stat(filepath.Join(t.scratch, descriptionFile)); err != nil {
		return false
	}
	for _, role := range testbed.Roles() {
		if !t.nodes[role] {
			return false
		}
	}
	return true
}

// info is the trace in the words of package testbed.
func (t *trace) info(name string) testbed.Info {
	info := testbed.Info{Name: name, Provider: providerName, Nodes: map[testbed.Role]string{}}
	alive := false
	for _, role := range testbed.Roles() {
		info.Nodes[role] = "gone"
		if t.nodes[role] {
			info.Nodes[role] = "running"
			alive = true
		}
	}
	if alive {
		return info
	}
	for role := range t.nodes {
		info.Leftovers = append(info.Leftovers, filepath.Join(namespaceFolder, namespaceName(name, role)))
	}
	if t.scratch != "" {
		info.Leftovers = append(info.Leftovers, t.scratch)
	}
	return info
}
