package traffic

import "fmt"

const (
	// saturatedBusy is the share of a processor's time from which on it counts as fully busy: the
	// moments before and after the load are between the snapshots, too.
	saturatedBusy = 0.90
	// saturatedSoftIRQ is how much of it must have gone to handling packets. A processor that is busy
	// with something else does not make the DUT the limit.
	saturatedSoftIRQ = 0.10
	// endTicks are ticks of the kernel's accounting that may be idle besides: the load begins and ends
	// within a tick each. They matter to loads of some hundredths of a second only.
	endTicks = 2
	// atLimit is the share of the frames sent below which the load was more than the path could carry.
	atLimit = 0.99
	// socketLimit is the share of the frames sent that may be lost in the receiver's own socket.
	socketLimit = 0.01
)

// Saturated reports whether a processor of the node was kept fully busy, in part by packets, while s
// was counted, and which.
//
// Where the nodes are namespaces of one kernel, a processor belongs to all of them: over veth the
// softirq that forwards a frame runs on the processor that the sender's system call ran on, right
// behind it. Sender and DUT then share one processor, and a DUT that gets slower makes the sender slower
// by as much: there is no loss that could show it. So a processor that is fully busy counts as
// saturated if it handles packets at all, and that it was the DUT's work which grew can be seen in
// the treatments, not in one run. Where there is one processor only, it has nothing else to be busy with.
// In VMs the DUT has processors of its own, and saturated means its own work.
func Saturated(s Snapshot) (cpu CPU, ok bool) {
	for _, c := range s.CPUs {
		t := c.Total()
		idle := c.Idle - endTicks/float64(userHz)
		if t > 0 && idle <= (1-saturatedBusy)*t && (len(s.CPUs) == 1 || c.SoftIRQ/t >= saturatedSoftIRQ) {
			return c, true
		}
	}
	return CPU{}, false
}

// SenderBound reports whether the ends of the stream, and not the DUT, were the limit, and says why:
//
//   - frames were lost in the receiver's own socket, behind the DUT; or
//   - the receiver got (almost) all that was sent, and that was (almost) all that was asked for: a DUT
//     that could do more would have given the same figure, however busy this one was; or
//   - the receiver got (almost) all that was sent, and the DUT was not saturated.
//
// dut and receiver are what these nodes counted meanwhile.
func SenderBound(s Stream, dut, receiver Snapshot) (bool, string) {
	if s.SenderFrames == 0 {
		return true, "the sender sent nothing"
	}
	socket := float64(receiver.protocol("Udp", "RcvbufErrors")) / float64(s.Sender.All.Datagrams)
	if socket > socketLimit {
		return true, fmt.Sprintf("the receiver's socket lost %.1f %% of the frames: give the receiver a processor of its own, or offer less load (rate)", socket*100)
	}
	arrived := float64(s.ReceiverFrames) / float64(s.SenderFrames)
	if arrived < atLimit {
		return false, ""
	}
	got := fmt.Sprintf("the receiver got %.1f %% of the frames sent", arrived*100)
	if rate := float64(s.Sender.Rate); rate > 0 && s.SenderBitRate >= atLimit*rate {
		return true, got + ", and the sender sent all that was asked for: offer more load (rate)"
	}
	if _, ok := Saturated(dut); ok {
		return false, ""
	}
	busiest := 0.0
	for _, c := range dut.CPUs {
		busiest = max(busiest, c.Busy())
	}
	return true, fmt.Sprintf("%s, and no processor of the DUT was kept busy by packets (the busiest was busy for %.0f %% of the time): give the sender more processors",
		got, busiest*100)
}
