package main

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/libvirt"
)

// A machine that does not boot is nobody's mistake: its hint stands on a line of its own, behind the end of the
// console, whatever was wrapped around it.
func TestMachineThatDoesNotBoot(t *testing.T) {
	boot := &libvirt.BootError{Role: testbed.Sender, Step: "kernel booted", Hint: "is there enough memory?", Console: []string{"Kernel panic"}}
	err := withHint(fmt.Errorf("run: %w", boot), "run again to resume")
	var stderr bytes.Buffer
	(&cli{stderr: &stderr}).printError(err)
	want := "rampart: " + err.Error() + "\nhint: run again to resume\nhint: is there enough memory?\n"
	if got := stderr.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := exitStatus(err); got != exitMachine {
		t.Errorf("exit status %d", got)
	}
}
