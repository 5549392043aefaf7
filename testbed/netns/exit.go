package netns

import (
	"fmt"
	"strings"
)

// ExitError is what Wait of a command returns when it did not end with status 0.
type ExitError struct {
	Command string // argv[0]
	Code    int    // exit status, or -1 when a signal ended it
	Stderr  string // the end of what it wrote to standard error
	Err     error  // from package exec, and why the command was cancelled
}

// ExitCode is the exit status, or -1.
func (e *ExitError) ExitCode() int { return e.Code }

func (e *ExitError) Unwrap() error { return e.Err }

func (e *ExitError) Error() string {
	text := fmt.Sprintf("%s: %v", e.Command, e.Err)
	if said := strings.TrimSpace(e.Stderr); said != "" {
		text += ": " + said
	}
	return text
}
