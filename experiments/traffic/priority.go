package traffic

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Where nodes share a machine with other work, the ends of a stream need the processor when the
// stream needs it: a receiver that is late loses datagrams in its own socket, and the loss is then
// taken for the DUT's. On two cores with other work for sixteen, iperf3 lost 30 % of its datagrams with
// the default scheduling, and none with this.

// apart keeps a process that was just started, the receiving end of a stream or the sending one, on processors
// that the other end is kept off: receiving on the last of those allowed, sending on all the others. Where
// both ends share a kernel the scheduler puts them now on one processor and now on two, and on two cores a
// stream was so 12 or 22 Mbit/s (seen), whatever the firewall did. With one processor there is no choice.
func apart(pid int, receives bool) error {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return fmt.Errorf("read allowed processors: %w", err)
	}
	if allowed.Count() < 2 {
		return nil
	}
	last := len(allowed)*64 - 1
	for !allowed.IsSet(last) {
		last--
	}
	mine := allowed
	if receives {
		mine.Zero()
		mine.Set(last)
	} else {
		mine.Clear(last)
	}
	if err := unix.SchedSetaffinity(pid, &mine); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("place process %d on a processor of its own: %w", pid, err)
	}
	return nil
}

// setRealtime puts a thread, or a process of one thread, under SCHED_FIFO, before every ordinary
// process. It is for one that waits for packets; one that is always ready to run would keep ksoftirqd,
// and with it the packets, from running. It needs CAP_SYS_NICE.
func setRealtime(tid int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
}

// setPreferred gives a process that leads a session of its own the largest share of an ordinary
// process. The kernel shares time between sessions first (sched(7), autogroup), and only then by niceness.
func setPreferred(pid int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte("-20"), 0)
	if err != nil && !os.IsNotExist(err) { // a kernel without autogroup has no such file
		return err
	}
	return unix.Setpriority(unix.PRIO_PROCESS, pid, -20)
}
