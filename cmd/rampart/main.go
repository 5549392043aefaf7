// Command rampart measures what a Linux firewall costs and makes the result reproducible by anybody.
//
// Rules of its user interface: results go to standard output and everything else to standard error;
// an error is one sentence, `rampart: verb object: cause`, and ends with the next step; the exit
// status says who has to act (see exitStatus); nothing is created before the whole configuration has
// been checked.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program; it returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{stdin: stdin, stdout: stdout, stderr: stderr}
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		c.printError(err)
	}
	return exitStatus(err)
}
