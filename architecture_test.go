package rampart

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/rampart-bench/rampart/"

// arrows is the import direction of the project: each package with those of ours that it may import.
// "everything" is the command alone. A folder that is missing here may not exist.
var arrows = map[string][]string{
	"config": {
		"testbed", "images", "report", "experiments",
		"experiments/analysis", "experiments/design", "experiments/firewall", // for their Spec types
	},
	"testbed":              {},
	"testbed/libvirt":      {"testbed", "images", "provision", "provision/ssh"},
	"testbed/netns":        {"testbed", "images", "provision", "provision/ssh"},
	"testbed/exact":        {"testbed", "images", "provision", "provision/ssh"},
	"testbed/host":         {"testbed"},
	"testbed/testbedtest":  {"testbed"},
	"images":               {},
	"provision":            {},
	"provision/ssh":        {"provision"},
	"experiments":          {"testbed", "provision", "experiments/*"},
	"experiments/design":   {},
	"experiments/firewall": {},
	"experiments/traffic":  {},
	"experiments/record":   {},
	"experiments/stats":    {},
	"experiments/analysis": {"experiments/record", "experiments/stats", "experiments/design"},
	"report":               {"experiments/record", "experiments/stats", "experiments/analysis", "report/*"},
	"report/document":      {"experiments/record", "experiments/stats", "experiments/analysis"},
	"report/figure":        {"report/document"},
	"report/export":        {"experiments/record", "experiments/analysis", "report/document"},
	"report/render":        {"report/document", "report/figure"},
	".":                    {},
	"cmd/rampart":          {"everything"},
}

// owners are libraries that only one package may know.
var owners = map[string]string{
	"github.com/hashicorp/hcl/v2":        "config",
	"github.com/zclconf/go-cty":          "config",
	"github.com/melbahja/goph":           "provision/ssh",
	"github.com/digitalocean/go-libvirt": "testbed/libvirt",
	"libvirt.org/go/libvirtxml":          "testbed/libvirt",
	"github.com/google/nftables":         "experiments/firewall",
	"github.com/coreos/go-iptables":      "experiments/firewall",
	"gonum.org/v1/plot":                  "report/figure",
}

// pure packages do arithmetic: nothing of the outside world reaches them.
var pure = map[string][]string{
	"experiments/design": {"os", "net", "time", "os/exec", "io/fs", "log", "log/slog"},
	"experiments/stats":  {"os", "net", "time", "os/exec", "io/fs", "log", "log/slog"},
}

// TestImportsFollowTheArrows holds every non-test file to the three tables above.
func TestImportsFollowTheArrows(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		pkg := filepath.ToSlash(filepath.Dir(path))
		seen[pkg] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if fault := faultOf(pkg, imported); fault != "" {
				t.Errorf("%s: %s", path, fault)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !seen["cmd/rampart"] {
		t.Error("the walk did not reach cmd/rampart: nothing was checked")
	}
}

// faultOf says what is wrong with pkg importing a package, or nothing.
func faultOf(pkg, imported string) string {
	allowed, known := arrows[pkg]
	if !known {
		return "package " + pkg + " is not in the table of arrows"
	}
	if ours, ok := strings.CutPrefix(imported, module); ok {
		for _, a := range allowed {
			if a == "everything" || a == ours || strings.HasSuffix(a, "/*") && strings.HasPrefix(ours, a[:len(a)-1]) {
				return ""
			}
		}
		return pkg + " may not import " + ours
	}
	for library, owner := range owners {
		if (imported == library || strings.HasPrefix(imported, library+"/")) && pkg != owner {
			return "only " + owner + " may import " + imported
		}
	}
	if slices.Contains(pure[pkg], imported) {
		return pkg + " is pure and may not import " + imported
	}
	return ""
}

// TestFaultsAreFound shows that the tables can fail.
func TestFaultsAreFound(t *testing.T) {
	for _, c := range []struct{ pkg, imported string }{
		{"testbed", module + "config"},
		{"report", module + "experiments"},
		{"experiments/stats", "os"},
		{"cmd/rampart", "github.com/melbahja/goph"},
		{"util", "fmt"},
	} {
		if faultOf(c.pkg, c.imported) == "" {
			t.Errorf("%s importing %s passes", c.pkg, c.imported)
		}
	}
	if fault := faultOf("experiments", module+"experiments/stats"); fault != "" {
		t.Error(fault)
	}
}
