package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Watch asks for the lengths of the frames of the load that come in on an interface. It listens
// where the packet filter does, behind GRO, so it sees what the filter sees: an offload that made one
// large packet of many frames shows. Listening costs time, so it is for the warm-up only: it ends by
// itself after Max frames.
type Watch struct {
	Interface string `json:"interface"`
	Protocol  string `json:"protocol"` // icmp or udp
	Max       int    `json:"max"`      // frames; at most 1,000,000
}

// Lengths are those of the frames seen, in bytes with Ethernet header and FCS, as frame sizes are
// counted everywhere else.
type Lengths struct {
	Count     int         `json:"count"`
	Min       int         `json:"min"`
	Max       int         `json:"max"`
	Histogram map[int]int `json:"histogram"` // length to frames
	Missed    int         `json:"missed"`    // came faster than they could be looked at
}

// The protocols that can be watched.
const (
	ICMP = "icmp"
	UDP  = "udp"
)

func (w Watch) protocol() (number uint32, ok bool) {
	switch w.Protocol {
	case ICMP:
		return unix.IPPROTO_ICMP, true
	case UDP:
		return unix.IPPROTO_UDP, true
	}
	return 0, false
}

// A Watcher is a watch that goes on.
type Watcher struct {
	file    *os.File
	max     int
	done    chan struct{} // closed when it listens no more
	lengths Lengths       // valid when done is closed
	err     error
	once    sync.Once
}

// Start begins to listen before it returns. It needs CAP_NET_RAW.
func (w Watch) Start() (*Watcher, error) {
	number, ok := w.protocol()
	if !ok || w.Max < 1 || w.Max > 1_000_000 {
		return nil, fmt.Errorf("watch %s: protocol %q and max = %d: use icmp or udp, and 1 to 1000000", w.Interface, w.Protocol, w.Max)
	}
	link, err := net.InterfaceByName(w.Interface)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", w.Interface, err)
	}
	// No protocol yet: nothing is queued until the filter is there.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("watch %s: open packet socket: %w (root or CAP_NET_RAW is needed)", w.Interface, err)
	}
	file := os.NewFile(uintptr(fd), "packet socket")
	filter, err := incomingFilter(number)
	if err == nil {
		err = attachFilter(fd, filter)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: link.Index})
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("watch %s: %w", w.Interface, err)
	}
	watcher := &Watcher{file: file, max: w.Max, done: make(chan struct{}), lengths: Lengths{Histogram: map[int]int{}}}
	go watcher.listen()
	return watcher, nil
}

func htons(n uint16) uint16 { return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n)) }

// incomingFilter lets IPv4 packets of the protocol in that others sent to this node; for ICMP, only
// echo requests and replies. It lets them in whole: a filter that cuts a packet changes the length
// that recvfrom reports.
func incomingFilter(protocol uint32) ([]bpf.RawInstruction, error) {
	program := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: EthernetHeader + 9, Size: 1}, // protocol
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocol, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
	if protocol == unix.IPPROTO_ICMP {
		program = append(program,
			bpf.LoadMemShift{Off: EthernetHeader},          // X = length of the IP header
			bpf.LoadIndirect{Off: EthernetHeader, Size: 1}, // type
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmpEchoRequest, SkipTrue: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmpEchoReply, SkipTrue: 1},
			bpf.RetConstant{Val: 0},
		)
	}
	return bpf.Assemble(append(program, bpf.RetConstant{Val: 1 << 18}))
}

// listen counts until there are enough, or the socket is closed.
func (w *Watcher) listen() {
	defer close(w.done)
	defer w.file.Close()
	raw, err := w.file.SyscallConn()
	if err != nil {
		w.err = err
		return
	}
	err = raw.Read(func(fd uintptr) bool { return w.drain(int(fd)) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Stop came before this goroutine had its turn: what has arrived still counts.
		err = raw.Control(func(fd uintptr) { w.drain(int(fd)) })
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		w.err = errors.Join(w.err, err)
	}
	w.countMissed(raw.Control)
}

// drain counts the frames that are there, and reports whether there is no need to wait for more.
func (w *Watcher) drain(fd int) (enough bool) {
	buf := make([]byte, 1) // MSG_TRUNC gives the length; the content is of no interest
	for w.lengths.Count < w.max {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			w.err = err
			return true
		}
		w.lengths.add(n + FCS)
	}
	return true
}

func (w *Watcher) countMissed(control func(func(uintptr)) error) {
	err := control(func(fd uintptr) {
		st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			w.err = errors.Join(w.err, err)
			return
		}
		w.lengths.Missed = int(st.Drops)
	})
	w.err = errors.Join(w.err, err)
}

func (l *Lengths) add(n int) {
	if l.Count == 0 || n < l.Min {
		l.Min = n
	}
	l.Max = max(l.Max, n)
	l.Count++
	l.Histogram[n]++
}

// Stop ends the watch, if it has not ended by itself, and returns what was seen.
func (w *Watcher) Stop() (Lengths, error) {
	// A deadline, not Close: listen still has to ask the socket what it missed.
	w.once.Do(func() { w.file.SetReadDeadline(time.Unix(1, 0)) })
	<-w.done
	if w.err != nil {
		return Lengths{}, fmt.Errorf("watch lengths of frames: %w", w.err)
	}
	return w.lengths, nil
}

// Wait waits until the watch has ended by itself, and returns what was seen.
func (w *Watcher) Wait(ctx context.Context) (Lengths, error) {
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	return w.Stop()
}

// Check holds what was seen against the frame size that was asked for. At least one frame must have
// been seen, and every one must have the size; only a stream's hand-shake may be shorter.
func (l Lengths) Check(frameSize int) Check {
	c := Check{Name: "frames had the requested length at the DUT", Want: frameSize, Got: l.Max}
	other := l.Count - l.Histogram[frameSize]
	if handshake := handshakePayload + PayloadOverhead; other == l.Histogram[handshake] && other <= 1 {
		other = 0
	}
	c.OK = l.Histogram[frameSize] > 0 && other == 0
	if !c.OK {
		if l.Min != frameSize {
			c.Got = l.Min
		}
		if l.Max > frameSize {
			c.Got = l.Max
		}
		c.Detail = fmt.Sprintf("%d of %d frames had another length (%v): look for an offload that is on", other, l.Count, l.Histogram)
	}
	return c
}
