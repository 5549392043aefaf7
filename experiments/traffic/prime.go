package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// A Prime sends datagrams to and fro on the very addresses and ports that a stream will use, before it
// is measured. A one-way stream never shows a tracking kernel the other direction, and a flowtable takes
// a flow only when it has seen both. The other end is an [Answer].
type Prime struct {
	From      netip.AddrPort `json:"from"`
	To        netip.AddrPort `json:"to"`
	FrameSize int            `json:"frame_size"`
	Count     int            `json:"count"`
}

// Answer asks for the other end of a [Prime]: Count datagrams are sent back as they came.
type Answer struct {
	At    netip.AddrPort `json:"at"`
	Count int            `json:"count"`
}

// primeTimeout is how long an end waits for the other, once: nothing is lost on an idle path.
const primeTimeout = 5 * time.Second

// Run sends the datagrams, each when the one before it has come back.
func (p Prime) Run(ctx context.Context) error {
	if err := checkFrame(p.FrameSize); err != nil {
		return fmt.Errorf("prime flow: %w", err)
	}
	conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(p.From), net.UDPAddrFromAddrPort(p.To))
	if err != nil {
		return fmt.Errorf("prime flow from %v to %v: %w", p.From, p.To, err)
	}
	defer closeWith(ctx, conn)()
	datagram := make([]byte, p.FrameSize-PayloadOverhead)
	for range p.Count {
		_, err := conn.Write(datagram)
		if err == nil {
			_, err = conn.Read(datagram)
		}
		if err != nil {
			return fmt.Errorf("prime flow from %v to %v: %w", p.From, p.To, errors.Join(err, ctx.Err()))
		}
	}
	return nil
}

// An Answerer is an Answer that goes on.
type Answerer struct {
	stop context.CancelFunc
	done chan error
}

// Start listens before it returns. The answerer ends by itself after Count datagrams, or when nothing
// has come for five seconds.
func (a Answer) Start() (*Answerer, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(a.At))
	if err != nil {
		return nil, fmt.Errorf("answer at %v: %w", a.At, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	running := &Answerer{stop: stop, done: make(chan error, 1)}
	finish := closeWith(ctx, conn)
	go func() {
		err := answer(conn, a.Count)
		finish() // the port is free before anyone is told
		if err != nil {
			err = fmt.Errorf("answer at %v: %w", a.At, err)
		}
		running.done <- err
	}()
	return running, nil
}

func answer(conn *net.UDPConn, count int) error {
	datagram := make([]byte, MaxFrame)
	for range count {
		n, from, err := conn.ReadFromUDPAddrPort(datagram)
		if err == nil {
			_, err = conn.WriteToUDPAddrPort(datagram[:n], from)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Wait waits for the end. After it the port is free.
func (a *Answerer) Wait() error {
	err := <-a.done
	a.done <- err
	a.stop()
	return err
}

// Close ends the answerer, wherever it is.
func (a *Answerer) Close() {
	a.stop()
	_ = a.Wait()
}

// closeWith has what waits at conn end when ctx does or [primeTimeout] is over. The function that it
// returns closes conn.
func closeWith(ctx context.Context, conn *net.UDPConn) func() {
	// Of a socket that is open, setting a deadline cannot fail.
	_ = conn.SetDeadline(time.Now().Add(primeTimeout))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return func() {
		stop()
		_ = conn.Close()
	}
}
