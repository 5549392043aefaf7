package traffic

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Where nodes share a machine with other work, the ends of a stream need the processor when the
// stream needs it: a receiver that is late loses datagrams in its own socket, and the loss is then
// taken for the DUT's. On two cores with other work for sixteen, iperf3 lost 30 % of its datagrams with
// the default scheduling, and none with this.

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
