package traffic

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// A Snapshot is what a node's kernel has counted until now, or, from [Snapshot.Since], between two
// moments.
type Snapshot struct {
	// TakenNS is the time of day, or the time between.
	TakenNS int64 `json:"taken_ns"`
	// Kernel identifies the running kernel: nodes that are namespaces share one, and with it
	// Softnet and CPUs.
	Kernel string `json:"kernel"`
	// Interfaces are those of the network namespace, by name.
	Interfaces map[string]Interface `json:"interfaces"`
	// Protocols are the counters of /proc/net/snmp, such as Udp, InDatagrams (RFC 4113), and Linux's own
	// of /proc/net/netstat, such as TcpExt, IPReversePathFilter, of the network namespace. Only those that
	// accounts are made of are here (see protocolCounters).
	Protocols map[string]map[string]int64 `json:"protocols"`
	// Softnet and CPUs are those of the whole kernel, by number of the processor.
	Softnet []Softnet `json:"softnet"`
	CPUs    []CPU     `json:"cpus"`
}

// Interface are the counters of an interface (struct rtnl_link_stats64). Bytes are those of Ethernet
// frames without FCS.
type Interface struct {
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	RxDropped uint64 `json:"rx_dropped"`
	RxErrors  uint64 `json:"rx_errors"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
	TxDropped uint64 `json:"tx_dropped"`
	TxErrors  uint64 `json:"tx_errors"`
	// QueueDropped is what the root queueing discipline dropped.
	QueueDropped uint64 `json:"queue_dropped"`
}

// counters lists the fields, so that nothing has to be done nine times.
func (i *Interface) counters() []*uint64 {
	return []*uint64{&i.RxPackets, &i.RxBytes, &i.RxDropped, &i.RxErrors,
		&i.TxPackets, &i.TxBytes, &i.TxDropped, &i.TxErrors, &i.QueueDropped}
}

// Drops is everything that the interface dropped or could not send.
func (i Interface) Drops() uint64 {
	return i.RxDropped + i.RxErrors + i.TxDropped + i.TxErrors + i.QueueDropped
}

// Softnet is a line of /proc/net/softnet_stat: the queue between driver and protocols.
type Softnet struct {
	CPU       int    `json:"cpu"`
	Processed uint64 `json:"processed"`
	Dropped   uint64 `json:"dropped"`
	Squeezed  uint64 `json:"squeezed"` // work was left when the budget was used up; nothing is lost
}

// CPU is how a processor spent its time, in seconds (/proc/stat).
type CPU struct {
	CPU     int     `json:"cpu"`
	User    float64 `json:"user_s"`   // and nice
	System  float64 `json:"system_s"` // and hardware interrupts
	SoftIRQ float64 `json:"softirq_s"`
	Steal   float64 `json:"steal_s"` // wanted, but the hypervisor ran something else
	Idle    float64 `json:"idle_s"`  // and waiting for I/O
}

// Total is all the time there was.
func (c CPU) Total() float64 { return c.User + c.System + c.SoftIRQ + c.Steal + c.Idle }

// Busy is the share of the time, 0 to 1, in which the processor was not idle. Stolen time counts as
// busy: there was work to do.
func (c CPU) Busy() float64 {
	if c.Total() <= 0 {
		return 0
	}
	return 1 - c.Idle/c.Total()
}

// Snap reads every counter of this node.
func Snap() (Snapshot, error) {
	s := Snapshot{TakenNS: time.Now().UnixNano()}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Snapshot{}, fmt.Errorf("read identity of kernel: %w", err)
	}
	s.Kernel = strings.TrimSpace(string(id))
	if s.Interfaces, err = snapInterfaces(); err != nil {
		return Snapshot{}, err
	}
	for _, source := range []struct {
		path  string
		parse func(io.Reader) error
	}{
		{"/proc/self/net/snmp", func(r io.Reader) (err error) { s.Protocols, err = parseSNMP(r); return err }},
		{"/proc/self/net/netstat", func(r io.Reader) error {
			more, err := parseSNMP(r)
			maps.Copy(s.Protocols, more)
			return err
		}},
		{"/proc/self/net/softnet_stat", func(r io.Reader) (err error) { s.Softnet, err = parseSoftnet(r); return err }},
		{"/proc/stat", func(r io.Reader) (err error) { s.CPUs, err = parseCPUs(r); return err }},
	} {
		f, err := os.Open(source.path)
		if err != nil {
			return Snapshot{}, fmt.Errorf("read counters: %w", err)
		}
		err = source.parse(f)
		f.Close()
		if err != nil {
			return Snapshot{}, fmt.Errorf("read %s: %w", source.path, err)
		}
	}
	return s, nil
}

func snapInterfaces() (map[string]Interface, error) {
	links, err := netlink.LinkList()
	for try := 0; try < 5 && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		links, err = netlink.LinkList()
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	all := make(map[string]Interface, len(links))
	for _, link := range links {
		attrs := link.Attrs()
		if attrs.Statistics == nil {
			continue
		}
		st := attrs.Statistics
		i := Interface{
			RxPackets: st.RxPackets, RxBytes: st.RxBytes, RxDropped: st.RxDropped, RxErrors: st.RxErrors,
			TxPackets: st.TxPackets, TxBytes: st.TxBytes, TxDropped: st.TxDropped, TxErrors: st.TxErrors,
		}
		if i.QueueDropped, err = queueDrops(link); err != nil {
			return nil, err
		}
		all[attrs.Name] = i
	}
	return all, nil
}

// queueDrops is what the root queueing disciplines dropped; those of a multi-queue interface count
// in the root as well.
func queueDrops(link netlink.Link) (drops uint64, err error) {
	qdiscs, err := netlink.QdiscList(link)
	if err != nil {
		return 0, fmt.Errorf("list queueing disciplines of %s: %w", link.Attrs().Name, err)
	}
	for _, q := range qdiscs {
		a := q.Attrs()
		if a.Parent == netlink.HANDLE_ROOT && a.Statistics != nil && a.Statistics.Queue != nil {
			drops += uint64(a.Statistics.Queue.Drops)
		}
	}
	return drops, nil
}

// protocolCounters are what accounts need of the some four hundred counters that there are.
var protocolCounters = map[string][]string{
	"Icmp":   {"OutMsgs", "OutEchos", "InEchoReps"},
	"Tcp":    {"OutSegs", "RetransSegs"},
	"TcpExt": {"IPReversePathFilter"},
	"Udp":    {"InDatagrams", "InErrors", "OutDatagrams", "RcvbufErrors", "SndbufErrors"},
}

// parseSNMP reads pairs of lines: names, then values, each led by the protocol.
func parseSNMP(r io.Reader) (map[string]map[string]int64, error) {
	all := map[string]map[string]int64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		names := strings.Fields(lines.Text())
		if !lines.Scan() {
			return nil, fmt.Errorf("no values behind %q", names)
		}
		values := strings.Fields(lines.Text())
		if len(names) < 1 || len(names) != len(values) || names[0] != values[0] {
			return nil, fmt.Errorf("names %q do not match values %q", names, values)
		}
		protocol := strings.TrimSuffix(names[0], ":")
		counters := map[string]int64{}
		for _, name := range protocolCounters[protocol] {
			at := slices.Index(names, name)
			if at < 0 {
				continue
			}
			n, err := strconv.ParseInt(values[at], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", protocol, name, err)
			}
			counters[name] = n
		}
		if len(counters) > 0 {
			all[protocol] = counters
		}
	}
	return all, lines.Err()
}

// parseSoftnet reads a line of hexadecimal numbers for each processor that is online: processed,
// dropped, squeezed, …, and, in the thirteenth column since Linux 5.10, the processor.
func parseSoftnet(r io.Reader) (all []Softnet, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			return nil, fmt.Errorf("line %q has too few columns", lines.Text())
		}
		var n [13]uint64
		for i := range min(len(fields), len(n)) {
			if n[i], err = strconv.ParseUint(fields[i], 16, 32); err != nil {
				return nil, err
			}
		}
		cpu := len(all)
		if len(fields) >= len(n) {
			cpu = int(n[12])
		}
		all = append(all, Softnet{CPU: cpu, Processed: n[0], Dropped: n[1], Squeezed: n[2]})
	}
	return all, lines.Err()
}

// userHz is the unit of /proc/stat, ticks a second; the kernel converts to it whatever its own tick.
const userHz = 100

// parseCPUs reads the lines of the single processors.
func parseCPUs(r io.Reader) (all []CPU, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // the line of interrupts is long
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" {
			continue
		}
		number, err := strconv.Atoi(strings.TrimPrefix(fields[0], "cpu"))
		if err != nil || len(fields) < 9 {
			return nil, fmt.Errorf("line %q is not of a processor", lines.Text())
		}
		var t [8]float64 // user nice system idle iowait irq softirq steal
		for i := range t {
			ticks, err := strconv.ParseUint(fields[i+1], 10, 64)
			if err != nil {
				return nil, err
			}
			t[i] = float64(ticks) / userHz
		}
		all = append(all, CPU{CPU: number, User: t[0] + t[1], System: t[2] + t[5], SoftIRQ: t[6], Steal: t[7], Idle: t[3] + t[4]})
	}
	return all, lines.Err()
}

// Since is what was counted after before was taken. It is an error when the two are not of the same
// boot, or an interface was replaced meanwhile.
func (s Snapshot) Since(before Snapshot) (Snapshot, error) {
	if s.Kernel != before.Kernel {
		return Snapshot{}, fmt.Errorf("compare counters: the node was rebooted in between")
	}
	d := Snapshot{
		TakenNS: s.TakenNS - before.TakenNS, Kernel: s.Kernel,
		Interfaces: map[string]Interface{}, Protocols: map[string]map[string]int64{},
	}
	for _, name := range slices.Sorted(maps.Keys(s.Interfaces)) {
		now, was := s.Interfaces[name], before.Interfaces[name]
		a, b := now.counters(), was.counters()
		for i := range a {
			if *a[i] < *b[i] {
				return Snapshot{}, fmt.Errorf("compare counters: those of interface %s went backwards: it was replaced in between", name)
			}
			*a[i] -= *b[i]
		}
		d.Interfaces[name] = now
	}
	for protocol, counters := range s.Protocols {
		d.Protocols[protocol] = map[string]int64{}
		for name, n := range counters {
			d.Protocols[protocol][name] = n - before.Protocols[protocol][name]
		}
	}
	for _, now := range s.Softnet {
		was := find(before.Softnet, func(o Softnet) bool { return o.CPU == now.CPU })
		// The kernel counts in 32 bits, and wraps.
		d.Softnet = append(d.Softnet, Softnet{now.CPU, wrap(now.Processed, was.Processed), wrap(now.Dropped, was.Dropped), wrap(now.Squeezed, was.Squeezed)})
	}
	for _, now := range s.CPUs {
		was := find(before.CPUs, func(o CPU) bool { return o.CPU == now.CPU })
		d.CPUs = append(d.CPUs, CPU{now.CPU, now.User - was.User, now.System - was.System, now.SoftIRQ - was.SoftIRQ, now.Steal - was.Steal, now.Idle - was.Idle})
	}
	return d, nil
}

func wrap(now, was uint64) uint64 { return uint64(uint32(now) - uint32(was)) }

func find[T any](all []T, is func(T) bool) (none T) {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return all[i]
	}
	return none
}

// SoftnetDropped is the sum over all processors.
func (s Snapshot) SoftnetDropped() (n uint64) {
	for _, c := range s.Softnet {
		n += c.Dropped
	}
	return n
}
