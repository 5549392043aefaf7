package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/images"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/libvirt"
)

// The exit statuses, which scripts and CI rely on.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2 // the command line or the configuration is wrong
	exitGate    = 3 // a comparison or a claim gate failed
	exitMachine = 4 // this machine cannot do it
)

// exitStatus is the one place that turns an error into an exit status.
func exitStatus(err error) int {
	var (
		diagnostics *config.Error
		usage       *usageError
		gate        *gateError
	)
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &diagnostics), errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &gate):
		return exitGate
	case isUnable(err), bootOf(err) != nil:
		return exitMachine
	}
	return exitFailed
}

// A usageError says that the command line is wrong.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// A gateError says that something was measured well and is not as it should be.
type gateError struct{ error }

func (e *gateError) Unwrap() error { return e.error }

// gatef is a failed gate with the next step for the user.
func gatef(hint, format string, args ...any) error {
	return &gateError{&hintedError{fmt.Errorf(format, args...), hint}}
}

// A hintedError carries the next step for the user.
type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }

// withHint adds the next step to an error; nil stays nil, and a failed gate keeps its own: nothing went
// wrong that could be tried again.
func withHint(err error, format string, args ...any) error {
	var gate *gateError
	if err == nil || errors.As(err, &gate) {
		return err
	}
	return &hintedError{err, fmt.Sprintf(format, args...)}
}

// printError writes the error and its next step.
func (c *cli) printError(err error) {
	var diagnostics *config.Error
	if errors.As(err, &diagnostics) {
		diagnostics.WriteTo(c.stderr)
		return
	}
	text := err.Error()
	if errors.Is(err, context.Canceled) {
		text = "interrupted" + besides(err)
	}
	fmt.Fprintf(c.stderr, "rampart: %s\n", strings.TrimSpace(text))
	// What found the mistake knows the remedy best; who called it adds what became of the work.
	hints := hintsOf(err)
	for _, hint := range slices.Backward(hints) {
		fmt.Fprintf(c.stderr, "hint: %s\n", hint)
	}
	if mend := mendOf(err); mend != "" {
		fmt.Fprintf(c.stderr, "hint: %s\n", mend)
	}
	if boot := bootOf(err); boot != nil {
		fmt.Fprintf(c.stderr, "hint: %s\n", boot.Hint)
	}
}

// besides is what else went wrong when somebody interrupted: what could not be removed, most of all.
func besides(err error) string {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return ""
	}
	var text string
	for _, part := range joined.Unwrap() {
		if !errors.Is(part, context.Canceled) {
			text += "\n" + part.Error()
		}
	}
	return text
}

// mendOf is what would make a provider usable that said it is not, or an image bootable.
func mendOf(err error) string {
	if unable, ok := errors.AsType[*testbed.UnableError](err); ok {
		return unable.Mend
	}
	if advised, ok := errors.AsType[*images.Advised](err); ok {
		return advised.Next
	}
	return ""
}

// bootOf is the virtual machine that did not come up. Unlike with a provider that is not there, trying again
// at once is no remedy.
func bootOf(err error) *libvirt.BootError {
	boot, _ := errors.AsType[*libvirt.BootError](err)
	return boot
}

// hintsOf lists the hints of an error and of what it wraps, the outermost first.
func hintsOf(err error) []string {
	var hints []string
	for hinted := (*hintedError)(nil); errors.As(err, &hinted); err = hinted.error {
		hints = append(hints, hinted.hint)
	}
	return hints
}
