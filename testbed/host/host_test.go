package host

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/rampart-bench/rampart/testbed"
)

var update = flag.Bool("update", false, "write what was got into the expected files")

// shown is the file of an archive that has the findings; all others are the host's.
const shown = "findings"

// pinnedSpec has two virtual CPUs of the firewall and those of the others where many hosts have CPUs.
func pinnedSpec() testbed.Spec {
	spec := testbed.Default()
	spec.Nodes[0].Pin = []testbed.CPUs{{3}}
	spec.Nodes[1].VCPUs = 2
	spec.Nodes[1].Pin = []testbed.CPUs{{2}, {6}}
	spec.Nodes[1].EmulatorPin = testbed.CPUs{0, 1}
	spec.Nodes[2].Pin = []testbed.CPUs{{4}}
	spec.Nodes[2].EmulatorPin = testbed.CPUs{0, 4}
	return spec
}

// Each archive is a host: files below its root, and what is found there.
func TestFindings(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal("no archives:", err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			root := fstest.MapFS{}
			want := ""
			kept := archive.Files[:0]
			for _, f := range archive.Files {
				if f.Name == shown {
					want = string(f.Data)
					continue
				}
				root[f.Name] = &fstest.MapFile{Data: f.Data}
				kept = append(kept, f)
			}
			facts := Read(root)
			got := text(facts.Findings()) + "pinned:\n" + text(facts.PinFindings(pinnedSpec()))
			if got == want {
				return
			}
			if !*update {
				t.Fatalf("got:\n%s\nwant:\n%s", got, want)
			}
			archive.Files = append(kept, txtar.File{Name: shown, Data: []byte(got)})
			if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func text(all []Finding) string {
	var out strings.Builder
	for _, f := range all {
		fmt.Fprintf(&out, "%s: %s\n", f.Subject, f.Found)
		if f.Mend != "" {
			fmt.Fprintf(&out, "    mend: %s\n", f.Mend)
		}
	}
	return out.String()
}

// Nothing is pinned: nothing is in the way of it.
func TestNoPins(t *testing.T) {
	spec := testbed.Default()
	spec.Nodes[1].EmulatorPin = testbed.CPUs{0}
	if found := (Facts{}).PinFindings(spec); found != nil {
		t.Errorf("%+v", found)
	}
}

// The machine that runs this test can be read too.
func TestThisHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads Linux")
	}
	root := os.DirFS("/")
	if online := cpus(root, cpuFolder+"/online"); len(online) < 1 {
		t.Errorf("no CPU is online")
	}
	if !runs(root, word(root, "proc/self/comm")) {
		t.Error("this very process does not run")
	}
	t.Logf("%+v", Read(root))
}
