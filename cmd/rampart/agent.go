package main

import (
	"errors"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/provision"
)

// agentCommand is the other end of this program: the firewall helper on a node. People do not call
// it.
func (c *cli) agentCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "agent",
		Short:  "Serve requests on standard input (rampart starts this on nodes)",
		Hidden: true,
		Args:   arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A log line to a caller that is gone must not end the helper before it has undone its work.
			signal.Ignore(syscall.SIGPIPE)
			helper := experiments.NewHelper(c.log)
			err := provision.Serve(cmd.Context(), c.stdin, c.stdout, helper.Handlers())
			return errors.Join(err, helper.Undo())
		},
	}
}
