package libvirt

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"github.com/rampart-bench/rampart/provision/ssh"
	"github.com/rampart-bench/rampart/testbed"
)

var _ testbed.Terminal = (*running)(nil)

// knownHostsFile in the state folder has the host keys of the nodes, as OpenSSH wants them. Each is under
// the name of its domain, since addresses are used again.
const knownHostsFile = "known_hosts"

// Terminal is OpenSSH's client with the keys of this testbed and none of the person's own settings: it
// trusts the node's host key and no other.
func (tb *running) Terminal(role testbed.Role, command ...string) ([]string, error) {
	if tb.node(role) == nil {
		return nil, fmt.Errorf("open terminal on %q: there is no such node", role)
	}
	program, err := exec.LookPath("ssh")
	if err != nil {
		return nil, &testbed.UnableError{Provider: Name, Reason: "there is no ssh to open a terminal with", Mend: "apt-get install openssh-client"}
	}
	folder := tb.provider.stateFolder(tb.state.Ident)
	known := filepath.Join(folder, knownHostsFile)
	if err := os.WriteFile(known, []byte(tb.state.knownHosts()), 0o600); err != nil {
		return nil, fmt.Errorf("open terminal on %s: %w", role, err)
	}
	argv := []string{program, "-F", "none", "-i", filepath.Join(folder, keyFile)}
	for _, option := range []string{
		"IdentitiesOnly=yes",
		"IdentityAgent=none",
		"PasswordAuthentication=no",
		"StrictHostKeyChecking=yes",
		"UserKnownHostsFile=" + known,
		"GlobalKnownHostsFile=none",
		"HostKeyAlias=" + tb.state.Ident.domain(role),
		"LogLevel=ERROR",
		// A machine that is emulated answers late, and one that is gone never.
		"ConnectTimeout=45", "ServerAliveInterval=15", "ServerAliveCountMax=3",
	} {
		argv = append(argv, "-o", option)
	}
	ip, port, err := tb.node(role).listens()
	if err != nil {
		return nil, fmt.Errorf("open terminal on %s: %w", role, err)
	}
	argv = append(argv, "-p", port)
	if far, ok := tb.provider.endpoint.host.(*remoteHost); ok {
		jump, err := far.jump()
		if err != nil {
			return nil, fmt.Errorf("open terminal on %s: %w", role, err)
		}
		argv = append(argv, jump...)
	}
	target := "root@" + ip
	if len(command) == 0 {
		return append(argv, target), nil
	}
	line, err := ssh.Quote(command)
	if err != nil {
		return nil, fmt.Errorf("open terminal on %s: %w", role, err)
	}
	if term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd())) {
		argv = append(argv, "-t") // with a command ssh gives none by itself
	}
	return append(argv, target, line), nil
}

// listens is where the node's sshd does.
func (n *node) listens() (ip, port string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	config, err := n.sshConfig(ctx)
	if err != nil {
		return "", "", err
	}
	return net.SplitHostPort(config.Addr)
}

// knownHosts are the host keys of the nodes, a line each.
func (s state) knownHosts() string {
	var b strings.Builder
	for _, role := range testbed.Roles() {
		fmt.Fprintf(&b, "%s %s\n", s.Ident.domain(role), strings.TrimSpace(s.HostKeys[role]))
	}
	return b.String()
}
