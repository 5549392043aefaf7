package netns_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/netns"
	"github.com/rampart-bench/rampart/testbed/testbedtest"
)

// needsRoot skips a test that this process may not run, or fails it where no skip is allowed.
func needsRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() == 0 && exec.Command("unshare", "--net", "true").Run() == nil {
		return
	}
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Fatal("making network namespaces takes root")
	}
	t.Skip("making network namespaces takes root")
}

// leftovers looks for everything that a testbed of network namespaces is made of, in other ways than
// the provider itself does.
func leftovers(_ context.Context, name string) ([]string, error) {
	var left []string
	for _, pattern := range []string{"/run/netns/" + name + "-*", "/run/rampart/" + name + "-*", "/var/lib/rampart/" + name + "-*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	links, err := exec.Command("ip", "-o", "link").CombinedOutput()
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(links)) {
		if strings.Contains(line, ": inside@") || strings.Contains(line, ": outside@") {
			left = append(left, "link on the host: "+line)
		}
	}
	folders, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil, err
	}
	for _, cwd := range folders {
		if target, err := os.Readlink(cwd); err == nil && strings.Contains(target, "/rampart/"+name+"-") {
			left = append(left, "process "+filepath.Dir(cwd)+" in "+target)
		}
	}
	return left, nil
}

func TestConformance(t *testing.T) {
	needsRoot(t)
	testbedtest.Run(t, func() testbed.Provider { return netns.New(netns.Options{}) }, testbedtest.Options{
		Prefix:    "netns",
		Leftovers: leftovers,
	})
}
