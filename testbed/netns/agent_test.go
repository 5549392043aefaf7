package netns

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/provision"
	"github.com/rampart-bench/rampart/testbed"
)

// agent is this test binary as a helper on a node. It leaves a file where it got to undo its work.
func agent(undone string) int {
	signal.Ignore(syscall.SIGPIPE)
	err := provision.Serve(context.Background(), os.Stdin, os.Stdout, provision.Handlers{
		"links": provision.Handle(func(context.Context, struct{}) ([]string, error) {
			links, err := net.Interfaces()
			var names []string
			for _, l := range links {
				names = append(names, l.Name)
			}
			return names, err
		}),
		"wait": provision.Handle(func(ctx context.Context, _ struct{}) (bool, error) {
			<-ctx.Done()
			return true, ctx.Err()
		}),
	})
	if err != nil {
		return 1
	}
	if os.WriteFile(undone, nil, 0o644) != nil {
		return 1
	}
	return 0
}

func connectAgent(t *testing.T, b testbed.Testbed, role testbed.Role) (a *provision.Agent, undone string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	undone = filepath.Join(t.TempDir(), "undone")
	a, err = provision.Connect(t.Context(), b.Node(role), exe, "agent", undone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a, undone
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// A helper works in its node's namespace, undoes its work when it is closed or a call is cancelled, and
// is lost with the node.
func TestAgent(t *testing.T) {
	needsRoot(t)
	b := upBed(t, testSpec(t, ""))
	a, undone := connectAgent(t, b, testbed.Firewall)
	var names []string
	if err := a.Call(t.Context(), "links", nil, &names); err != nil || len(names) != 3 || names[1] != "inside" || names[2] != "outside" {
		t.Errorf("the helper sees the links %v, %v", names, err)
	}
	if err := a.Close(); err != nil || !exists(undone) {
		t.Errorf("close: %v; work undone: %v", err, exists(undone))
	}

	a, undone = connectAgent(t, b, testbed.Sender)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	err := a.Call(ctx, "wait", nil, nil)
	if !errors.Is(err, provision.ErrLost) || !errors.Is(err, context.DeadlineExceeded) || !exists(undone) || time.Since(begin) > time.Second {
		t.Errorf("cancelled call: %v after %v; work undone: %v", err, time.Since(begin), exists(undone))
	}

	a, _ = connectAgent(t, b, testbed.Firewall)
	called := make(chan error)
	go func() { called <- a.Call(t.Context(), "wait", nil, nil) }()
	time.Sleep(20 * time.Millisecond)
	if err := b.Renew(t.Context(), testbed.Firewall); err != nil {
		t.Fatal(err)
	}
	if err := <-called; !errors.Is(err, provision.ErrLost) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("call on a node that was renewed: %v", err)
	}
	if _, err := provision.Connect(t.Context(), b.Node(testbed.Firewall), "true"); err == nil {
		t.Error("connected to a program that is no helper")
	}
}
