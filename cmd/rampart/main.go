// Command rampart measures what a Linux firewall costs and makes the result reproducible by anybody.
//
// Rules of its user interface: results go to standard output and everything else to standard error;
// an error is one sentence, `rampart: verb object: cause`, and ends with the next step; the exit
// status says who has to act (see exitStatus); nothing is created before the whole configuration has
// been checked.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	// Else a write to a pipe that nobody reads (`rampart run | head`) would end this process on the
	// spot, with its testbed left behind. Programs that it starts get the signal as usual.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// endings are the signals that ask this program to stop. It goes on when its terminal is closed only
// if it was started so, by nohup.
func endings() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// run is the whole program; it returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	results := &resultWriter{w: stdout}
	c := &cli{stdin: stdin, stdout: results, stderr: stderr}
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Canceled) {
		// What was interrupted may say so in its own words, as a program that was killed does.
		err = fmt.Errorf("interrupted: %w", err)
	}
	if err == nil && results.err != nil {
		err = fmt.Errorf("write result: %w", results.err)
	}
	if err != nil && !(results.abandoned() && errors.Is(err, results.err)) {
		c.printError(err)
	}
	return exitStatus(err)
}

// A resultWriter remembers the first error, so that no verb has to: a result that did not reach its
// reader is a failure.
type resultWriter struct {
	w   io.Writer
	err error
}

// abandoned reports whether the reader wanted only the beginning of the result, which is no news to
// anybody.
func (r *resultWriter) abandoned() bool { return errors.Is(r.err, syscall.EPIPE) }

func (r *resultWriter) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if err != nil && r.err == nil {
		r.err = err
	}
	return n, err
}
