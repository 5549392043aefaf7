package netns

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/testbed"
)

// TestBusyProgram: a program that is held open for writing a moment longer is waited for.
func TestBusyProgram(t *testing.T) {
	needsRoot(t)
	b := upBed(t, testSpec(t, ""))
	program, err := os.OpenFile(filepath.Join(b.folder(testbed.Sender), "busy"), os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := program.Write(content); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { program.Close() })
	onNode(t, b, testbed.Sender, "./busy")
}
