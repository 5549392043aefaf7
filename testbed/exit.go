package testbed

import (
	"fmt"
	"strings"
)

// ExitError is what Wait of a [Conn] returns for a command that did not end with status 0.
type ExitError struct {
	Command string // argv[0]
	Code    int    // exit status, or -1 when a signal or the loss of the node ended it
	Stderr  string // the end of what it wrote to standard error
	Err     error  // the cause as the provider knows it
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
