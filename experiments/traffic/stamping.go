package traffic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// stampingTimeout is how long the kernel may take to begin stamping what it receives.
const stampingTimeout = 5 * time.Second

// awaitStamping returns when the kernel stamps what it receives. It begins with the first socket that
// asks for it, but in the background (net_enable_timestamp in net/core/dev.c): on a busy machine
// later than the first answers. That it does is seen in a datagram to ourselves; lo is on no link.
func awaitStamping(ctx context.Context) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("await time-stamps: %w", err)
	}
	defer unix.Close(fd)
	if err := connectToItself(fd); err != nil {
		return fmt.Errorf("await time-stamps: %w (is lo up?)", err)
	}
	var data [1]byte
	var control [256]byte
	for end := time.Now().Add(stampingTimeout); time.Now().Before(end); {
		if _, err := unix.Write(fd, data[:]); err != nil {
			return fmt.Errorf("await time-stamps: %w", err)
		}
		_, n, _, _, err := unix.Recvmsg(fd, data[:], control[:], 0)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("await time-stamps: %w", err)
		}
		stamp, err := parseStamp(control[:n])
		if stamp.at != 0 || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return fmt.Errorf("await time-stamps: the kernel stamps nothing within %v", stampingTimeout)
}

// connectToItself makes a UDP socket, with time-stamps, that receives what it sends.
func connectToItself(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_SOFTWARE|unix.SOF_TIMESTAMPING_RX_SOFTWARE); err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	return unix.Connect(fd, address)
}
