package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Layout of an echo message (RFC 792). Its payload begins with the nonce of the prober and the
// number of the probe, 64 bits each: together they fit the smallest frame, and tell an answer's
// probe whatever has become of the 16-bit sequence number meanwhile.
const (
	echoIdent    = 4
	echoSequence = 6
	echoNonce    = 8
	echoNumber   = 16
	echoMin      = 24
)

const (
	icmpEchoReply   = 0
	icmpEchoRequest = 8
	icmpFilter      = 1 // ICMP_FILTER of SOL_RAW, include/uapi/linux/icmp.h
)

// An echoSocket sends echo requests to one target and receives the answers to them, and nothing
// else, with the times at which the kernel handed the one to the driver and got the other from it.
type echoSocket struct {
	fd      int
	nonce   uint64
	request []byte // the message being sent
	answer  []byte
	control []byte
	iov     unix.Iovec
	header  unix.Msghdr
}

// openEcho makes the socket. It needs CAP_NET_RAW.
func openEcho(p Probe, nonce uint64) (*echoSocket, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)
	if err != nil {
		return nil, fmt.Errorf("open raw ICMP socket: %w (root or CAP_NET_RAW is needed)", err)
	}
	s := &echoSocket{
		fd: fd, nonce: nonce,
		request: make([]byte, p.FrameSize-PayloadOverhead+UDPHeader),
		answer:  make([]byte, p.FrameSize+40), // and IP options
		control: make([]byte, 256),
	}
	s.request[0] = icmpEchoRequest
	binary.BigEndian.PutUint16(s.request[echoIdent:], s.ident())
	binary.BigEndian.PutUint64(s.request[echoNonce:], nonce)
	s.iov.Base = &s.answer[0]
	s.iov.SetLen(len(s.answer))
	s.header.Iov = &s.iov
	s.header.SetIovlen(1)
	if err := s.configure(p); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *echoSocket) ident() uint16 { return uint16(s.nonce) }

func (s *echoSocket) close() { unix.Close(s.fd) }

func (s *echoSocket) configure(p Probe) error {
	for _, o := range []struct {
		name               string
		level, opt, value  int
		notWithoutAdminCap bool
	}{
		{"ICMP_FILTER", unix.SOL_RAW, icmpFilter, ^(1 << icmpEchoReply), false},
		{"SO_TIMESTAMPING", unix.SOL_SOCKET, unix.SO_TIMESTAMPING, stamps, false},
		{"IP_MTU_DISCOVER", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO, false},
		{"SO_RCVBUFFORCE", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4 << 20, true},
	} {
		if err := unix.SetsockoptInt(s.fd, o.level, o.opt, o.value); err != nil && !o.notWithoutAdminCap {
			return fmt.Errorf("set %s of ICMP socket: %w", o.name, err)
		}
	}
	filter, err := echoFilter(s.ident())
	if err != nil {
		return err
	}
	if err := attachFilter(s.fd, filter); err != nil {
		return fmt.Errorf("attach filter to ICMP socket: %w", err)
	}
	if p.Source.IsValid() {
		if err := unix.Bind(s.fd, &unix.SockaddrInet4{Addr: p.Source.As4()}); err != nil {
			return fmt.Errorf("bind ICMP socket to %v: %w (does this node have the address?)", p.Source, err)
		}
	}
	if err := unix.Connect(s.fd, &unix.SockaddrInet4{Addr: p.Target.As4()}); err != nil {
		return fmt.Errorf("connect ICMP socket to %v: %w (is there a route?)", p.Target, err)
	}
	return nil
}

// stamps asks for software time-stamps in both directions. Those of sending come back through the
// error queue, without the packet, and with the number of the send call (Documentation/networking/
// timestamping.rst).
const stamps = unix.SOF_TIMESTAMPING_SOFTWARE | unix.SOF_TIMESTAMPING_RX_SOFTWARE |
	unix.SOF_TIMESTAMPING_TX_SOFTWARE | unix.SOF_TIMESTAMPING_OPT_TSONLY | unix.SOF_TIMESTAMPING_OPT_ID

// echoFilter lets answers with our identifier in, and nothing else. A raw socket's packets begin
// with the IP header.
func echoFilter(ident uint16) ([]bpf.RawInstruction, error) {
	return bpf.Assemble([]bpf.Instruction{
		bpf.LoadMemShift{Off: 0}, // X = length of the IP header
		bpf.LoadIndirect{Off: 0, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmpEchoReply, SkipTrue: 3},
		bpf.LoadIndirect{Off: echoIdent, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(ident), SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 18},
		bpf.RetConstant{Val: 0},
	})
}

func attachFilter(fd int, program []bpf.RawInstruction) error {
	filter := make([]unix.SockFilter, len(program))
	for i, in := range program {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

// source is the address that the kernel sends from.
func (s *echoSocket) source() (netip.Addr, error) {
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read address of ICMP socket: %w", err)
	}
	return netip.AddrFrom4(name.(*unix.SockaddrInet4).Addr), nil
}

// prepare makes the request number n ready to be sent.
func (s *echoSocket) prepare(n int) {
	binary.BigEndian.PutUint16(s.request[echoSequence:], uint16(n))
	binary.BigEndian.PutUint64(s.request[echoNumber:], uint64(n))
	s.request[2], s.request[3] = 0, 0
	binary.BigEndian.PutUint16(s.request[2:], checksum(s.request))
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint64
	for ; len(b) >= 4; b = b[4:] {
		sum += uint64(binary.BigEndian.Uint32(b))
	}
	if len(b) >= 2 {
		sum += uint64(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// send sends the prepared request. An ICMP error that came back for an earlier one is reported by
// the next system call on the socket, whatever that is: it is taken away and the call made again.
func (s *echoSocket) send() error {
	_, err := unix.Write(s.fd, s.request)
	if isPending(err) {
		_, err = unix.Write(s.fd, s.request)
	}
	switch {
	case errors.Is(err, unix.EMSGSIZE):
		return fmt.Errorf("send probe of %d bytes: %w (the frame is larger than the MTU of the path)",
			len(s.request)+PayloadOverhead-UDPHeader, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("send probe: %w (a packet filter on this node drops what it sends)", err)
	case err != nil:
		return fmt.Errorf("send probe: %w", err)
	}
	return nil
}

// isPending reports errors that belong to an earlier probe, which is then lost.
func isPending(err error) bool {
	for _, e := range []error{unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ECONNREFUSED, unix.EPROTO, unix.EHOSTDOWN, unix.ENOPROTOOPT, unix.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// receive takes the next answer: the number of its probe and the time of day, in nanoseconds, at which
// the kernel got it. ok is false when there is none now. An answer to another prober is skipped.
func (s *echoSocket) receive() (number uint64, at int64, ok bool, err error) {
	for {
		n, control, errno := s.recvmsg(0)
		switch {
		case errno == unix.EAGAIN:
			return 0, 0, false, nil
		case errno != 0 && isPending(errno):
			continue
		case errno != 0:
			return 0, 0, false, fmt.Errorf("receive answer: %w", errno)
		}
		number, ok := s.parse(s.answer[:n])
		if !ok {
			continue
		}
		stamp, err := parseStamp(control)
		if err == nil && stamp.at == 0 {
			err = errors.New("the kernel gave an answer without a time-stamp")
		}
		return number, stamp.at, err == nil, err
	}
}

// sent takes the next time-stamp of a request: which send call, from 0, and the time of day at which
// the kernel handed it to the driver.
func (s *echoSocket) sent() (number uint32, at int64, ok bool, err error) {
	for {
		_, control, errno := s.recvmsg(unix.MSG_ERRQUEUE)
		switch {
		case errno == unix.EAGAIN:
			return 0, 0, false, nil
		case errno != 0 && isPending(errno):
			continue
		case errno != 0:
			return 0, 0, false, fmt.Errorf("receive time-stamp: %w", errno)
		}
		stamp, err := parseStamp(control)
		if err != nil || stamp.sent {
			return stamp.number, stamp.at, err == nil, err
		}
	}
}

// recvmsg is recvmsg(2) without waiting and without allocating: it is called in the busy moments
// before a probe, while there is no garbage collection.
func (s *echoSocket) recvmsg(flags int) (n int, control []byte, errno unix.Errno) {
	s.header.Control = &s.control[0]
	s.header.SetControllen(len(s.control))
	s.header.Flags = 0
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.header)), uintptr(flags|unix.MSG_DONTWAIT))
	if errno != 0 {
		return 0, nil, errno
	}
	return int(r), s.control[:s.header.Controllen], 0
}

// parse returns the number of the probe that a packet, from its IP header on, answers.
func (s *echoSocket) parse(packet []byte) (uint64, bool) {
	if len(packet) < IPv4Header {
		return 0, false
	}
	header := int(packet[0]&0xf) * 4
	if header < IPv4Header || len(packet) < header+echoMin {
		return 0, false
	}
	echo := packet[header:]
	if echo[0] != icmpEchoReply || binary.BigEndian.Uint64(echo[echoNonce:]) != s.nonce {
		return 0, false
	}
	return binary.BigEndian.Uint64(echo[echoNumber:]), true
}

// A stamp is a time of day given by the kernel.
type stamp struct {
	at     int64  // nanoseconds; 0: none
	sent   bool   // the time of sending
	number uint32 // of the send call
}

// Offsets in struct sock_extended_err, include/uapi/linux/errqueue.h.
const (
	errOrigin = 4
	errData   = 12
	errLength = 16
)

// parseStamp finds the kernel's time-stamp among the control messages of a packet.
func parseStamp(control []byte) (s stamp, err error) {
	for len(control) > 0 {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return stamp{}, fmt.Errorf("parse control message: %w", err)
		}
		switch {
		case header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPING && len(data) >= 16:
			s.at = int64(binary.NativeEndian.Uint64(data))*1e9 + int64(binary.NativeEndian.Uint64(data[8:]))
		case header.Level == unix.SOL_IP && header.Type == unix.IP_RECVERR && len(data) >= errLength:
			s.sent = data[errOrigin] == unix.SO_EE_ORIGIN_TIMESTAMPING
			s.number = binary.NativeEndian.Uint32(data[errData:])
		}
		control = rest
	}
	return s, nil
}
