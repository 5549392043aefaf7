// Package ssh reaches a node over SSH: it copies files there and starts commands, with nothing but a
// shell and coreutils at the other end. It is the only package that imports goph.
//
// goph gives the client; what it does not do is done here: a handshake that ends with its context, a
// pinned host key, arguments that survive the remote shell, files that arrive whole or not at all, and
// sessions that leave nothing running when they are cancelled. No keepalives are sent unless somebody asks
// for one: the wire is silent while nobody calls.
package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/melbahja/goph"
	"golang.org/x/crypto/ssh"

	"github.com/rampart-bench/rampart/provision"
)

// Scratch is the folder on the node that relative paths are below.
const Scratch = "/run/rampart"

// ErrHostKey is what a host answered with a key other than the expected one.
var ErrHostKey = errors.New("the host has another key than the one that was given to it")

// Config says how to reach a node.
type Config struct {
	Addr    string        // host:port
	User    string        // default root
	Key     ssh.Signer    // what we log in with
	HostKey ssh.PublicKey // the only host key that is accepted
	// Scratch is the folder on the node that relative paths are below; default [Scratch]. It is
	// made when something is put there.
	Scratch string
	// Grace is how long the node may take to confirm that a session is closed; default 3 s. One that
	// does not is taken for dead and its connection is closed, or calls that wait for it would do so
	// for ever. A node whose processor is emulated needs more.
	Grace time.Duration
	// Log gets standard error of commands as it arrives, if not nil. It must not block, and it is
	// called by one goroutine a command.
	Log io.Writer
	// DialContext makes the TCP connection; default net.Dialer's.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Client is a connection to a node. It is safe for use by several goroutines at once.
type Client struct {
	config Config
	client *goph.Client
}

var _ provision.Node = (*Client)(nil)

// Dial connects and logs in. It returns when ctx ends, even if the host accepts the connection and
// then says nothing, as a machine that is booting does. It does not retry: the caller knows what it
// waits for. A host key other than config.HostKey gives an error that wraps [ErrHostKey].
func Dial(ctx context.Context, config Config) (*Client, error) {
	if config.HostKey == nil || config.Key == nil {
		return nil, fmt.Errorf("connect to %s: the host's key and our own are needed", config.Addr)
	}
	if config.User == "" {
		config.User = "root"
	}
	if config.Scratch == "" {
		config.Scratch = Scratch
	}
	if config.Grace == 0 {
		config.Grace = defaultGrace
	}
	if config.DialContext == nil {
		// A node that answers at all answers at once; TCP keepalives would be frames on the wire.
		config.DialContext = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}).DialContext
	}
	conn, err := config.DialContext(ctx, "tcp", config.Addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Addr, cause(ctx, err))
	}
	client, err := handshake(ctx, conn, config)
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("log in to %s as %s: %w", config.Addr, config.User, cause(ctx, err))
	}
	return &Client{config: config, client: &goph.Client{Client: client, Config: &goph.Config{User: config.User, Addr: config.Addr}}}, nil
}

// handshake logs in on conn. goph's own time limit ends with the TCP connection, and a host that then
// stays silent would hang it for ever; here the end of ctx makes every read and write fail.
func handshake(ctx context.Context, conn net.Conn, config Config) (*ssh.Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	auth := goph.Auth{ssh.PublicKeys(config.Key)}
	c, channels, requests, err := ssh.NewClientConn(conn, config.Addr, &ssh.ClientConfig{
		User:              config.User,
		Auth:              auth,
		HostKeyCallback:   pinned(config.HostKey),
		HostKeyAlgorithms: []string{config.HostKey.Type()},
	})
	if !stop() && err == nil {
		// ctx ended in the moment of success; its deadline may be set any time from now.
		err = errors.Join(context.Cause(ctx), c.Close())
	}
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(c, channels, requests), nil
}

// pinned accepts one key.
func pinned(want ssh.PublicKey) ssh.HostKeyCallback {
	return func(_ string, _ net.Addr, got ssh.PublicKey) error {
		if !bytes.Equal(got.Marshal(), want.Marshal()) {
			return fmt.Errorf("%w: want %s, got %s: another machine answers at this address", ErrHostKey,
				ssh.FingerprintSHA256(want), ssh.FingerprintSHA256(got))
		}
		return nil
	}
}

// cause is why ctx ended, if that is what made err; "i/o timeout" would only be our own deadline.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Close ends the connection and with it everything that [Client.Start] started.
func (c *Client) Close() error {
	if err := c.client.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close connection to %s: %w", c.config.Addr, err)
	}
	return nil
}

// Wait returns when the connection has ended, by either side. It lets a caller notice that a node is gone.
func (c *Client) Wait() error { return c.client.Wait() }

// Answers returns nil if the host answers before ctx ends, which sshd itself does, whatever its commands are
// at. After an error the connection is to be closed: what waits for the answer lives as long as that.
func (c *Client) Answers(ctx context.Context) error {
	answered := make(chan error, 1)
	go func() {
		_, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil)
		answered <- err
	}()
	select {
	case err := <-answered:
		if err != nil {
			return fmt.Errorf("ask %s for a sign of life: %w", c.config.Addr, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ask %s for a sign of life: %w", c.config.Addr, context.Cause(ctx))
	}
}
