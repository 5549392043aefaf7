package libvirt

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rampart-bench/rampart/provision/ssh"
	"github.com/rampart-bench/rampart/testbed"
)

// remoteHost is another machine, reached by OpenSSH's own client: with the person's configuration, keys,
// agent and known hosts, as if they had typed `ssh HOST`. One connection carries everything; sockets of
// this machine, in a folder of their own, lead over it to those of the host and to its nodes.
type remoteHost struct {
	name   string   // as in messages
	target []string // arguments of ssh that say which host

	mu   sync.Mutex
	link *sshLink // the connection, if there is one
}

var _ host = (*remoteHost)(nil)

// remoteEndpoint is the system libvirt of another host.
func remoteEndpoint(to testbed.Hypervisor) endpoint {
	h := &remoteHost{name: to.Host}
	if to.User != "" {
		h.target = append(h.target, "-l", to.User)
		h.name = to.User + "@" + h.name
	}
	if to.Port != "" {
		h.target = append(h.target, "-p", to.Port)
	}
	if to.KeyFile != "" {
		h.target = append(h.target, "-i", to.KeyFile)
	}
	h.target = append(h.target, to.Host)
	at := "on " + h.name + ": "
	return endpoint{
		uri:     systemURI,
		host:    h,
		sockets: systemSockets,
		wiring:  bridges{},
		folder:  filepath.Join("remote", url.PathEscape(to.User+"@"+strings.TrimSuffix(net.JoinHostPort(to.Host, to.Port), ":"))),
		poolDir: DefaultPoolDir,
		mends:   mends{start: at + mendStart, permission: at + "usermod -aG libvirt " + cmp.Or(to.User, "$USER"), install: mendInstall},
		at:      at,
	}
}

func (h *remoteHost) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network == "unix" { // why one cannot be opened, the end of its connection would not say
		if _, err := lookAt(ctx, h, address, fmt.Sprintf(`[ -r "$1" ] && [ -w "$1" ] || exit %d`, exitNotAllowed)); err != nil {
			return nil, err
		}
	}
	local, err := h.over(ctx, func(l *sshLink) (string, error) { return l.forward(ctx, address) })
	if err != nil {
		return nil, err
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", local)
}

func (h *remoteHost) output(ctx context.Context, argv ...string) (string, error) {
	line, err := ssh.Quote(argv)
	if err != nil {
		return "", err
	}
	return h.over(ctx, func(l *sshLink) (string, error) { return l.run(ctx, "-T", line) })
}

// over does something over the connection, and once more over a new one if it turns out to be lost.
func (h *remoteHost) over(ctx context.Context, do func(*sshLink) (string, error)) (string, error) {
	l, err := h.connected(ctx)
	if err != nil {
		return "", err
	}
	out, err := do(l)
	if !errors.Is(err, errLinkLost) || ctx.Err() != nil {
		return out, err
	}
	_ = l.close()
	if l, err = h.connected(ctx); err != nil {
		return "", err
	}
	return do(l)
}

// connected returns the connection, a new one if there is none or the last has ended.
func (h *remoteHost) connected(ctx context.Context) (*sshLink, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != nil && h.link.alive() {
		return h.link, nil
	}
	if h.link != nil {
		h.link.close()
	}
	var err error
	h.link, err = openLink(ctx, h)
	return h.link, err
}

func (h *remoteHost) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link == nil {
		return nil
	}
	l := h.link
	h.link = nil
	return l.close()
}

// jump are the arguments of ssh with which it reaches a node through the host.
func (h *remoteHost) jump() ([]string, error) {
	line, err := ssh.Quote(append(append([]string{"ssh"}, h.target...), "-o", "BatchMode=yes", "-W"))
	if err != nil {
		return nil, err
	}
	// In the option % begins a token.
	return []string{"-o", "ProxyCommand=" + strings.ReplaceAll(line, "%", "%%") + " %h:%p"}, nil
}

// sshLink is a running ssh. It ends with this process, since it reads from a pipe that then closes.
type sshLink struct {
	host    *remoteHost
	program string
	folder  string // of this machine: its control socket, and those that lead to the host
	stdin   io.Closer
	process *os.Process
	log     *console // what ssh says
	ended   chan struct{}

	mu       sync.Mutex
	forwards map[string]string // socket by where it leads
}

// How long the host may take. A connection on which the host has been silent for aliveInterval seconds
// is asked for a sign of life, aliveCount times.
const (
	loginLimit    = 20 * time.Second
	aliveInterval = 5
	aliveCount    = 3
)

// remoteReady is what the host says once a command runs there.
const remoteReady = "rampart-ready"

// openLink logs in.
func openLink(ctx context.Context, h *remoteHost) (*sshLink, error) {
	program, err := findProgram("ssh")
	if err != nil {
		return nil, &UnavailableError{"there is no ssh to reach " + h.name + " with", "apt-get install openssh-client", err}
	}
	removeStaleFolders()
	folder, err := os.MkdirTemp("", fmt.Sprintf(folderPattern, os.Getpid()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", h.name, err)
	}
	l := &sshLink{host: h, program: program, folder: folder, log: newConsole(), ended: make(chan struct{}), forwards: map[string]string{}}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *sshLink) start(ctx context.Context) error {
	cmd := exec.Command(l.program, l.arguments([]string{
		"ControlMaster=yes", "ControlPersist=no", "ClearAllForwardings=yes", "StrictHostKeyChecking=yes", "ConnectionAttempts=1",
		fmt.Sprint("ConnectTimeout=", int(loginLimit.Seconds()/2)), fmt.Sprint("ServerAliveInterval=", aliveInterval), fmt.Sprint("ServerAliveCountMax=", aliveCount),
	}, "-T", "echo "+remoteReady+"; exec cat >/dev/null")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it: removing what was made needs it
	cmd.Stderr = l.log
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("connect to %s: %w", l.host.name, err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("connect to %s: %w", l.host.name, err)
	}
	l.stdin, l.process = in, cmd.Process
	ready := make(chan struct{})
	go func() {
		defer close(l.ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if lines.Text() == remoteReady {
				close(ready)
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, loginLimit, fmt.Errorf("%s did not let us in within %s", l.host.name, loginLimit))
	defer cancel()
	select {
	case <-ready:
		return nil
	case <-l.ended:
		return l.refusal()
	case <-ctx.Done():
		return &UnavailableError{"connect to " + l.host.name + ": " + context.Cause(ctx).Error(), "see how far it gets: ssh -v " + strings.Join(l.host.target, " "), context.Cause(ctx)}
	}
}

// arguments are those of every ssh over this connection: its options, the host, and what comes last.
func (l *sshLink) arguments(options []string, rest ...string) []string {
	args := []string{}
	for _, o := range append([]string{"BatchMode=yes", "RemoteCommand=none", "PermitLocalCommand=no", "ControlPath=" + filepath.Join(l.folder, "c")}, options...) {
		args = append(args, "-o", o)
	}
	for len(rest) > 0 && strings.HasPrefix(rest[0], "-") {
		args, rest = append(args, rest[0]), rest[1:]
	}
	return append(append(args, l.host.target...), rest...)
}

// refusals are what ssh says when it gives up, with what helps; LOGIN is the command that tries it.
var refusals = []struct{ says, problem, mend string }{
	{"REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the one in known_hosts: it was installed anew, or another machine answers in its place",
		"find out which, by the fingerprint on its console (ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub); only then ssh-keygen -R HOST, and log in once: LOGIN"},
	{"Host key verification failed", "its host key is not in known_hosts",
		"log in once and compare the fingerprint with the one on its console: LOGIN"},
	{"Permission denied", "it does not let us in without a password", "give ssh a key that it takes (ssh-copy-id, or ssh-add for one with a passphrase), until this works: LOGIN true"},
}

// refusal is why ssh ended before it was in.
func (l *sshLink) refusal() error {
	text, _, _ := l.log.snapshot()
	login := "ssh " + strings.Join(l.host.target, " ")
	for _, r := range refusals {
		if strings.Contains(text, r.says) {
			words := strings.NewReplacer("HOST", l.host.target[len(l.host.target)-1], "LOGIN", login)
			return &UnavailableError{"connect to " + l.host.name + ": " + r.problem, words.Replace(r.mend), nil}
		}
	}
	return &UnavailableError{"connect to " + l.host.name + ": ssh says: " + lastLine(text), "mend it until this works: " + login + " true", nil}
}

func (l *sshLink) alive() bool {
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// errLinkLost is why something could not be done over a connection.
var errLinkLost = errors.New("the connection was lost")

// exitSSH is how ssh ends when it is ssh itself that failed, and not what it ran.
const exitSSH = 255

// run runs a second ssh, which has its work done by the first. ProxyCommand keeps it from a connection of
// its own where the first is gone.
func (l *sshLink) run(ctx context.Context, args ...string) (string, error) {
	out, err := runCommand(ctx, append([]string{l.program}, l.arguments([]string{"ControlMaster=no", "ProxyCommand=false"}, args...)...))
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == exitSSH {
		return "", fmt.Errorf("ask %s: %w: %w", l.host.name, errLinkLost, err)
	}
	return out, err
}

// forward returns a socket of this machine that leads to that address of the host.
func (l *sshLink) forward(ctx context.Context, address string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if socket, ok := l.forwards[address]; ok {
		return socket, nil
	}
	socket := filepath.Join(l.folder, strconv.Itoa(len(l.forwards)))
	if _, err := l.run(ctx, "-Oforward", "-L"+socket+":"+address); err != nil {
		return "", fmt.Errorf("reach %s through %s: %w", address, l.host.name, err)
	}
	l.forwards[address] = socket
	return socket, nil
}

// close ends the connection. It may be called again.
func (l *sshLink) close() error {
	if l.process != nil {
		_ = l.stdin.Close()
		select {
		case <-l.ended:
		case <-time.After(closeLimit):
			_ = l.process.Kill()
			<-l.ended
		}
	}
	return os.RemoveAll(l.folder)
}

// folderPattern names the folder of a connection after the process that made it.
const folderPattern = "rampart-ssh-%d-"

// removeStaleFolders removes those of processes that were killed. What is not ours stays.
func removeStaleFolders() {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), "rampart-ssh-*-*"))
	for _, folder := range folders {
		var pid int
		if n, _ := fmt.Sscanf(filepath.Base(folder), folderPattern, &pid); n == 1 && pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(folder)
		}
	}
}
