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

// TestReadmeConfiguration loads what the README shows.
func TestReadmeConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) == 0 {
		t.Fatal("the README shows no configuration")
	}
	for _, b := range blocks {
		if _, err := config.Load(config.Source{Files: map[string]string{"readme.hcl": b[1]}}); err != nil {
			t.Error(err)
		}
	}
}
