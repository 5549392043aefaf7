package traffic

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// iperf3 does what it does to be comparable with published figures: it is the real program, with its
// defaults. Its control connection (TCP) and its hand-shake (one datagram each way) run over the
// data links like everything else; [Account] knows them.
const iperf3 = "iperf3"

// handshakePayload is the payload of the datagram that iperf3 sends to say that it is there, and of
// the one that answers it (iperf_udp_connect in iperf_udp.c).
const handshakePayload = 4

// minPayload is what iperf3 needs for its own header: seconds, microseconds and a 64-bit number.
const minPayload = 16

// The programs that make streams.
const (
	Iperf3  = iperf3
	Netperf = netperf
)

// Serve asks for the receiving end of one UDP stream.
type Serve struct {
	Tool    string     `json:"tool,omitempty"` // [Iperf3] (default) or [Netperf]
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"` // default: the program's own
	// Apart is true where both ends run on one kernel: each then has processors of its own.
	Apart bool `json:"apart,omitempty"`
}

// Send asks for the sending end.
type Send struct {
	Tool      string        `json:"tool,omitempty"` // as the receiving end's
	Target    netip.Addr    `json:"target"`
	Port      uint16        `json:"port"` // as the receiving end's
	FrameSize int           `json:"frame_size"`
	Duration  time.Duration `json:"duration_ns"` // whole seconds: the programs take no others
	Omit      time.Duration `json:"omit_ns"`     // warm-up before, whole seconds
	Rate      int64         `json:"rate"`        // payload bit/s; 0: as fast as the sender can
	// Datagrams ends the stream after so many, in the place of Duration.
	Datagrams int  `json:"datagrams,omitempty"`
	Apart     bool `json:"apart,omitempty"` // as the receiving end's
}

const iperf3Port = 5201

func (s Serve) port() uint16 { return portOr(s.Port, s.Tool) }
func (s Send) port() uint16  { return portOr(s.Port, s.Tool) }

func portOr(port uint16, tool string) uint16 {
	switch {
	case port != 0:
		return port
	case tool == netperf:
		return netperfPort
	}
	return iperf3Port
}

func checkTool(tool string) error {
	if tool != "" && tool != iperf3 && tool != netperf {
		return fmt.Errorf("tool = %q: use %s or %s", tool, iperf3, netperf)
	}
	return nil
}

// UnavailableError says that a program is not installed.
type UnavailableError struct {
	Program string
	Mend    string // the command that mends it
}

func (e *UnavailableError) Error() string {
	return "program " + e.Program + ": unavailable: not installed: " + e.Mend
}

// absent turns what exec says of a program that is not there into an *UnavailableError.
func absent(program string, err error) error {
	if !errors.Is(err, exec.ErrNotFound) {
		return err
	}
	if program == netperf || program == netserver {
		return &UnavailableError{program, `netperf is in Debian's component non-free: add it to the components of apt's sources and apt-get install netperf; in an image: components = ["main", "non-free"]`}
	}
	return &UnavailableError{program, "apt-get install " + program}
}

// Validate returns every mistake in the request, joined.
func (s Send) Validate() error {
	errs := []error{checkFrame(s.FrameSize), checkTool(s.Tool)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !s.Target.Is4() {
		bad("target %v: an IPv4 address is needed", s.Target)
	}
	if s.Tool == netperf {
		errs = append(errs, s.validateNetperf())
	}
	switch {
	case s.Datagrams < 0:
		bad("datagrams = %d must not be negative", s.Datagrams)
	case s.Datagrams > 0 && (s.Duration != 0 || s.Omit != 0):
		bad("datagrams = %d: a stream that ends after so many has no duration (%v) and no omit (%v)", s.Datagrams, s.Duration, s.Omit)
	case s.Datagrams > 0:
	case s.Duration < time.Second || s.Duration%time.Second != 0 || s.Duration > 24*time.Hour:
		bad("duration = %v: use whole seconds, 1 s to 24 h", s.Duration)
	}
	if s.Omit < 0 || s.Omit%time.Second != 0 || s.Omit > 10*time.Minute {
		bad("omit = %v: iperf3 needs whole seconds, at most 10 min", s.Omit)
	}
	if s.Rate < 0 {
		bad("rate = %d bit/s must not be negative", s.Rate)
	}
	return errors.Join(errs...)
}

// argv is the command line.
func (s Send) argv() []string {
	if s.Tool == netperf {
		return s.netperfArgv()
	}
	seconds := func(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
	argv := []string{iperf3,
		"--client", s.Target.String(), "--port", strconv.Itoa(int(s.port())),
		"--udp", "--bitrate", strconv.FormatInt(s.Rate, 10),
		"--length", strconv.Itoa(s.FrameSize - PayloadOverhead),
		"--json",
	}
	if s.Datagrams > 0 {
		return append(argv, "--blockcount", strconv.Itoa(s.Datagrams))
	}
	return append(argv, "--time", seconds(s.Duration), "--omit", seconds(s.Omit))
}

// Run sends the stream and returns what the sending end says about it. Cancelling ctx kills the program. It
// returns an *[UnavailableError] where that is not installed.
func (s Send) Run(ctx context.Context) (Report, error) {
	if err := s.Validate(); err != nil {
		return Report{}, err
	}
	cmd, out := command(ctx, s.argv())
	err := cmd.Start()
	preferred := false
	if err == nil {
		preferred = setPreferred(cmd.Process.Pid) == nil
		var placed error
		if s.Apart {
			placed = apart(cmd.Process.Pid, false)
		}
		err = errors.Join(cmd.Wait(), placed)
	}
	if ctx.Err() != nil {
		return Report{}, fmt.Errorf("send stream to %v: %w", s.Target, ctx.Err())
	}
	report, err := conclude(s.Tool, out, absent(cmd.Args[0], err))
	if err != nil {
		return Report{}, fmt.Errorf("send stream to %v: %w", s.Target, err)
	}
	report.Preferred = preferred
	return report, awaitQuiet(ctx, netip.AddrPortFrom(s.Target, s.port()))
}

// output is what a program wrote.
type output struct{ stdout, stderr bytes.Buffer }

// command makes a command that dies when ctx is cancelled or this process ends, and leads a session of
// its own, so that no Ctrl-C on the terminal reaches it before us.
func command(ctx context.Context, argv []string) (*exec.Cmd, *output) {
	out := new(output)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &out.stdout, &out.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	return cmd, out
}

// conclude makes a report of what the program wrote, or the most telling error.
func conclude(tool string, out *output, err error) (Report, error) {
	var missing *UnavailableError
	switch {
	case errors.As(err, &missing):
		return Report{}, missing
	case tool == netperf:
		return concludeNetperf(out, err)
	}
	report, parseErr := parseReport(out.stdout.Bytes())
	var said *iperfError
	switch {
	case errors.As(parseErr, &said):
		return Report{}, said
	case err != nil:
		return Report{}, fmt.Errorf("run iperf3: %w: %s", err, tail(out.stderr.String()+out.stdout.String()))
	case parseErr != nil:
		return Report{}, fmt.Errorf("%w: %s", parseErr, tail(out.stdout.String()))
	}
	return report, nil
}

// tail is the end of a text, for an error.
func tail(text string) string {
	text = strings.TrimSpace(text)
	const most = 400
	if len(text) > most {
		return "…" + text[len(text)-most:]
	}
	return text
}

// A Server is the receiving end of one stream.
type Server struct {
	tool      string
	cmd       *exec.Cmd
	out       *output
	at        netip.AddrPort
	preferred bool
	done      chan struct{} // closed when the process has ended
	err       error         // of its end; valid when done is closed
	stop      context.CancelFunc
}

// argv is the command line.
func (s Serve) argv() []string {
	if s.Tool == netperf {
		return s.netserverArgv()
	}
	return []string{iperf3, "--server", "--one-off", "--bind", s.Address.String(), "--port", strconv.Itoa(int(s.port())), "--json"}
}

// listenTimeout is how long a server may take to listen.
const listenTimeout = 5 * time.Second

// Start starts the receiving end, and returns when it listens. That is seen in the tables of the
// kernel, without a packet. ctx is for starting only; [Server.Close] ends the server.
func (s Serve) Start(ctx context.Context) (*Server, error) {
	if err := checkTool(s.Tool); err != nil {
		return nil, fmt.Errorf("serve stream: %w", err)
	}
	if !s.Address.Is4() {
		return nil, fmt.Errorf("serve stream: address %v: an IPv4 address is needed", s.Address)
	}
	at := netip.AddrPortFrom(s.Address, s.port())
	if taken, err := listening(at); err != nil {
		return nil, fmt.Errorf("serve stream: %w", err)
	} else if taken {
		return nil, fmt.Errorf("serve stream: something else listens on %v already: end it, or use another port", at)
	}
	life, stop := context.WithCancel(context.Background())
	server := &Server{tool: s.Tool, at: at, done: make(chan struct{}), stop: stop}
	server.cmd, server.out = command(life, s.argv())
	if err := server.cmd.Start(); err != nil {
		stop()
		return nil, fmt.Errorf("serve stream: %w", absent(server.cmd.Args[0], err))
	}
	server.preferred = setRealtime(server.cmd.Process.Pid) == nil
	var placed error
	if s.Apart {
		placed = apart(server.cmd.Process.Pid, true)
	}
	go func() {
		server.err = server.cmd.Wait()
		close(server.done)
	}()
	if err := errors.Join(placed, server.awaitListening(ctx, at)); err != nil {
		server.Close()
		return nil, fmt.Errorf("serve stream on %v: %w", at, err)
	}
	return server, nil
}

func (s *Server) awaitListening(ctx context.Context, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listenTimeout, fmt.Errorf("%s does not listen after %v", s.cmd.Args[0], listenTimeout))
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := listening(at); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.done:
			if _, err := conclude(s.tool, s.out, s.err); err != nil {
				return err
			}
			return fmt.Errorf("%s ended before it listened", s.cmd.Args[0])
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Wait waits until the stream is over, and returns what the receiving end says about it. netserver says
// nothing itself; what it got is in the report of its client, and Wait is for after that has ended.
func (s *Server) Wait(ctx context.Context) (Report, error) {
	if s.tool == netperf {
		return s.endNetserver(ctx)
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return Report{}, fmt.Errorf("wait for end of stream: %w", context.Cause(ctx))
	}
	report, err := conclude(s.tool, s.out, s.err)
	if err != nil {
		return Report{}, fmt.Errorf("receive stream: %w", err)
	}
	report.Preferred = s.preferred
	return report, awaitQuiet(ctx, s.at)
}

// Close kills the server if it still runs, and waits for its end. It can be called more than once.
func (s *Server) Close() error {
	s.stop()
	<-s.done
	return nil
}

// States of include/net/tcp_states.h, as /proc/net/tcp shows them.
const (
	tcpTimeWait = "06"
	tcpListen   = "0A"
)

// A socket is a line of /proc/net/tcp.
type socket struct {
	local, remote netip.AddrPort
	state         string
}

// sockets lists the TCP sockets of this network namespace.
func sockets() ([]socket, error) {
	text, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		return nil, fmt.Errorf("read sockets: %w", err)
	}
	return parseSockets(string(text)), nil
}

// parseSockets reads number, local address, remote address, state, …; the heading is no socket.
func parseSockets(text string) (all []socket) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		local, ok1 := parseAddrPort(fields[1])
		remote, ok2 := parseAddrPort(fields[2])
		if ok1 && ok2 {
			all = append(all, socket{local, remote, fields[3]})
		}
	}
	return all
}

// parseAddrPort reads an address as /proc/net/tcp has it: a 32-bit number of the host's byte order,
// which is little-endian on every machine that this program is built for, and the port.
func parseAddrPort(text string) (netip.AddrPort, bool) {
	addr, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(addr)
	if err != nil || len(raw) != 4 {
		return netip.AddrPort{}, false
	}
	n, err := strconv.ParseUint(port, 16, 16)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{raw[3], raw[2], raw[1], raw[0]}), uint16(n)), err == nil
}

// listening reports whether a socket listens on the address and port, or on the port of every address.
func listening(at netip.AddrPort) (bool, error) {
	all, err := sockets()
	return slices.ContainsFunc(all, func(s socket) bool {
		return s.state == tcpListen && s.local.Port() == at.Port() && (s.local.Addr() == at.Addr() || s.local.Addr().IsUnspecified())
	}), err
}

// awaitQuiet waits until the control connection to or at the server's address has been closed by
// both ends, so that no segment of it is on the way any more while counters are read. When that takes
// too long it gives up: the counters then show it.
func awaitQuiet(ctx context.Context, at netip.AddrPort) error {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		all, err := sockets()
		open := slices.ContainsFunc(all, func(s socket) bool {
			return (s.local == at || s.remote == at) && s.state != tcpTimeWait && s.state != tcpListen
		})
		if err != nil || !open {
			return err
		}
	}
	return ctx.Err()
}
