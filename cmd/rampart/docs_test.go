package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/config"
)

// manual lists the pages of the manual.
func manual(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no page of the manual was found: %v", err)
	}
	return append(pages, "../../README.md", "../../CHANGELOG.md")
}

// TestManualLinks follows every relative link of the manual to a file.
func TestManualLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	for _, page := range manual(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// TestShownConfigurations loads every configuration that a page of the manual shows.
func TestShownConfigurations(t *testing.T) {
	shown := 0
	for _, page := range manual(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			shown++
			if _, err := config.Load(config.Source{Files: map[string]string{filepath.Base(page): b[1]}}); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
	}
	if shown < 3 {
		t.Errorf("the manual shows %d configurations", shown)
	}
}
