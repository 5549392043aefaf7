package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/config"
)

// TestExamplesForCI holds the workflow and the page about it to the program: every command is one that it has,
// with flags that it knows, and the configuration loads.
func TestExamplesForCI(t *testing.T) {
	cfg, err := config.Load(config.Source{Path: "../../examples/ci/firewall-cost.hcl"})
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Study.Claims) == 0 || cfg.Provider != "exact" {
		t.Errorf("provider %s, %d claims: the workflow gates on claims of instructions", cfg.Provider, len(cfg.Study.Claims))
	}
	command := regexp.MustCompile("rampart\"?\\)?\"? ((?:image )?[a-z]+)([^`\n]*)")
	flag := regexp.MustCompile(`--[a-z-]+`)
	for _, page := range []string{"../../examples/ci/firewall-cost.yml", "../../docs/ci.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range command.FindAllStringSubmatch(string(text), -1) {
			flags := flag.FindAllString(m[2], -1)
			if len(flags) == 0 && !strings.HasPrefix(m[2], " ") {
				continue // prose
			}
			help, err := exec.Command(filepath.Join(bin, "rampart"), append(strings.Fields(m[1]), "--help")...).Output()
			if err != nil || !strings.Contains(string(help), "rampart "+m[1]+" ") {
				t.Errorf("%s: there is no command in %q (%v)", page, m[0], err)
			}
			for _, f := range flags {
				if !regexp.MustCompile(regexp.QuoteMeta(f) + `\b`).Match(help) {
					t.Errorf("%s: %q: there is no %s", page, m[0], f)
				}
			}
			found++
		}
		if found < 3 {
			t.Errorf("%s: found %d commands: nothing was checked", page, found)
		}
	}
}
