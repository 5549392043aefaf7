package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// An Intrusion is the positive control: probes from an address that no rule-set accepts. Source is
// that address; it is added to the interface for as long as the probes take.
type Intrusion struct {
	Probe
	Interface string `json:"interface"`
}

// Validate returns every mistake in the request, joined.
func (i Intrusion) Validate() error {
	err := i.Probe.Validate()
	if !i.Source.IsValid() {
		err = errors.Join(err, errors.New("source: an intrusion needs the address that no entry accepts"))
	}
	return err
}

// Run takes the address, sends the probes, and gives the address back, also when cancelled. An
// address of the same length, 32 bits, that is there already was left behind by a process that was
// killed, and is taken over.
func (i Intrusion) Run(ctx context.Context) (trips RoundTrips, err error) {
	if err := i.Validate(); err != nil {
		return RoundTrips{}, err
	}
	link, err := netlink.LinkByName(i.Interface)
	if err != nil {
		return RoundTrips{}, fmt.Errorf("find interface %q: %w", i.Interface, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: i.Source.AsSlice(), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.AddrAdd(link, addr); err != nil && !errors.Is(err, unix.EEXIST) {
		return RoundTrips{}, fmt.Errorf("add address %v to %s: %w", i.Source, i.Interface, err)
	}
	defer func() {
		if e := netlink.AddrDel(link, addr); e != nil {
			err = errors.Join(err, fmt.Errorf("remove address %v from %s: %w", i.Source, i.Interface, e))
		}
	}()
	return i.Probe.Run(ctx)
}
