// Package provision puts this program onto a node, starts it there as the firewall helper, and calls
// it: one binary, two ends.
//
// The helper is `rampart agent`. Requests and answers are one JSON object a line on its standard
// input and output; its standard error is the log. A job is coarse: one request, one answer, and the
// wire is silent in between, so that nothing disturbs a measurement. Closing the helper's standard
// input means: undo what you changed, then exit.
package provision

import (
	"context"
	"io"
	"io/fs"
)

// Conn is a running command on a node; see testbed.Conn, which is the identical type.
type Conn = interface {
	io.ReadWriteCloser
	Wait() error
}

// A Node is where the helper runs; every testbed.Node is one.
type Node interface {
	Put(ctx context.Context, path string, mode fs.FileMode, content io.Reader) error
	Start(ctx context.Context, argv ...string) (Conn, error)
}
