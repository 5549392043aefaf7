package libvirt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	rpc "github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/rampart-bench/rampart/testbed"
)

// A reading is one fact of a running machine from one source: what it should be and what it is.
type reading struct {
	source string // who says so: libvirt, kernel or guest
	fact   string // as the manifest names it, after the node's role
	want   string // empty: nothing was asked for
	got    string // empty: this source does not say
}

// The sources of readings.
const (
	fromLibvirt = "libvirt"
	fromKernel  = "the host's kernel"
	fromGuest   = "the guest"
)

// The facts.
const (
	factMachine   = "machine"
	factCPU       = "cpu_model"
	factCPUWhole  = "cpu_features_missing"
	factCPUName   = "cpu_name"
	factCPUs      = "vcpus"
	factVCPUs     = "vcpu_affinity"
	factEmulator  = "emulator_affinity"
	factHugePages = "huge_pages"
	factVHost     = "vhost_workers"
	factUnseen    = "not_read_back"
	// Of a link, after its name.
	factQueues = "queues"
	factRx     = "rx_queue_size"
	factTx     = "tx_queue_size"
)

const none = "none"

// judge returns an error that names whatever is not as it was asked to be, or that no source tells of.
func judge(readings []reading) error {
	var errs []error
	told := map[string]bool{}
	for _, r := range readings {
		told[r.fact] = told[r.fact] || r.got != ""
		if r.want != "" && r.got != "" && r.got != r.want {
			errs = append(errs, fmt.Errorf("%s is %s, not %s as it should be, says %s", r.fact, r.got, r.want, r.source))
		}
	}
	for _, r := range readings {
		if r.want != "" && !told[r.fact] {
			told[r.fact] = true
			errs = append(errs, fmt.Errorf("%s cannot be read back: it should be %s", r.fact, r.want))
		}
	}
	return errors.Join(errs...)
}

// parameters are the facts for the manifest. Where several sources tell of one, the last does: the
// kernel knows better than libvirt.
func parameters(role testbed.Role, readings []reading) map[string]string {
	all := map[string]string{}
	for _, r := range readings {
		switch {
		case r.got == "":
		case r.fact == factMachine, r.fact == factCPU: // the same for all nodes
			all[r.fact] = r.got
		default:
			all[string(role)+"."+r.fact] = r.got
		}
	}
	return all
}

// readBack holds the node's machine to what was asked for, and keeps what it found for the manifest.
func (n *node) readBack(ctx context.Context, c *conn, m machine, d rpc.Domain) error {
	readings, err := readLibvirt(ctx, c, m, d)
	if err != nil {
		return err
	}
	p, err := n.seeProcess(m)
	if err != nil {
		return fmt.Errorf("read back node %s: its QEMU: %w", n.role, err)
	}
	if p == nil {
		readings = append(readings, reading{fromLibvirt, factUnseen, "", "the process of QEMU, which cannot be seen from here"})
	} else {
		readings = append(readings, m.processReadings(p)...)
	}
	inside, err := n.guestReadings(ctx, c, m, d)
	if err != nil {
		return fmt.Errorf("read back node %s: %w", n.role, err)
	}
	readings = append(readings, inside...)
	if err := judge(readings); err != nil {
		return fmt.Errorf("node %s is not as the configuration wants it: %w", n.role, err)
	}
	n.facts = parameters(n.role, readings)
	return nil
}

// seeProcess is what the kernel says of the node's QEMU; nil on another host, where it cannot be seen from here.
func (n *node) seeProcess(m machine) (*process, error) {
	if _, here := n.tb.provider.endpoint.host.(thisHost); !here {
		return nil, nil
	}
	return seeProcess(m)
}

// seeProcess is what this host's kernel says of a machine's QEMU; nil where that cannot be seen.
func seeProcess(m machine) (*process, error) {
	proc := os.DirFS("/proc")
	pid, err := findQEMU(proc, m.name)
	if err != nil || pid == "" {
		return nil, err
	}
	return readProcess(proc, pid, m.tuning.HugePages != 0)
}

// readLibvirt asks libvirt what became of a machine.
func readLibvirt(ctx context.Context, c *conn, m machine, d rpc.Domain) ([]reading, error) {
	doc, err := ask(ctx, c, "describe domain "+m.name, func(l *rpc.Libvirt) (string, error) { return l.DomainGetXMLDesc(d, 0) })
	if err != nil {
		return nil, err
	}
	readings, err := m.xmlReadings(doc)
	if err != nil {
		return nil, fmt.Errorf("describe domain %s: %w", m.name, err)
	}
	vcpus, err := ask(ctx, c, "ask where the CPUs of "+m.name+" run", func(l *rpc.Libvirt) ([]byte, error) {
		_, maps, err := l.DomainGetVcpus(d, int32(m.vcpus), cpuMapBytes)
		return maps, err
	})
	if err != nil {
		return nil, err
	}
	var sets []testbed.CPUs
	for one := range slices.Chunk(vcpus, cpuMapBytes) {
		sets = append(sets, cpusOf(one))
	}
	emulator, err := ask(ctx, c, "ask where the emulator of "+m.name+" runs", func(l *rpc.Libvirt) ([]byte, error) {
		bits, _, err := l.DomainGetEmulatorPinInfo(d, cpuMapBytes, rpc.DomainAffectLive)
		return bits, err
	})
	if err != nil {
		return nil, err
	}
	return append(readings,
		reading{fromLibvirt, factVCPUs, joinSets(m.tuning.Pin), joinSets(sets)},
		reading{fromLibvirt, factEmulator, m.tuning.EmulatorPin.String(), cpusOf(emulator).String()}), nil
}

// cpuMapBytes is the length of a CPU map that holds every CPU there can be (NR_CPUS).
const cpuMapBytes = 8192 / 8

// joinSets is one text of several sets, in order.
func joinSets(sets []testbed.CPUs) string {
	var texts []string
	for _, set := range sets {
		texts = append(texts, set.String())
	}
	return strings.Join(texts, " ")
}

// xmlReadings is what a live domain's description says of a machine.
func (m machine) xmlReadings(doc string) ([]reading, error) {
	var d libvirtxml.Domain
	if err := d.Unmarshal(doc); err != nil {
		return nil, err
	}
	if d.OS == nil || d.OS.Type == nil || d.OS.Type.Machine == "" {
		return nil, errors.New("it names no machine type")
	}
	readings := []reading{{fromLibvirt, factMachine, m.wantMachine(d.OS.Type.Machine), d.OS.Type.Machine}}
	if m.cpu != "" {
		cpu := libvirtxml.DomainCPU{}
		if d.CPU != nil {
			cpu = *d.CPU
		}
		readings = append(readings, m.cpuReadings(cpu)...)
	}
	if size := m.tuning.HugePages; size != 0 {
		got := none
		if b := d.MemoryBacking; b != nil && b.MemoryHugePages != nil && len(b.MemoryHugePages.Hugepages) == 1 {
			// libvirt writes sizes in KiB, whatever they were given in.
			got = pageSize(int64(b.MemoryHugePages.Hugepages[0].Size) << 10)
		}
		readings = append(readings, reading{fromLibvirt, factHugePages, pageSize(size), got})
	}
	cards := 0
	if d.Devices != nil {
		cards = len(d.Devices.Interfaces)
	}
	if want := len(m.devices().Interfaces); cards != want {
		return nil, fmt.Errorf("it has %d network cards, not %d", cards, want)
	}
	return readings, nil
}

// wantMachine is the type that was asked for: any version of the family if only that was named.
func (m machine) wantMachine(got string) string {
	family := map[string]string{"": "pc-q35-", "q35": "pc-q35-", "pc": "pc-i440fx-"}[m.kind]
	if family != "" && strings.HasPrefix(got, family) {
		return got
	}
	return m.kind
}

// cpuReadings hold the CPU of a live domain to the one that was asked for. libvirt notes as disabled the
// features of a model that QEMU did not give; in mode host-model it chooses model and features itself.
func (m machine) cpuReadings(cpu libvirtxml.DomainCPU) []reading {
	got := cpu.Mode
	if cpu.Model != nil {
		got = cpu.Model.Value
	}
	switch m.cpu {
	case hostModel:
		return []reading{{fromLibvirt, factCPU, "", got}}
	case hostPassthrough, maximum:
		return []reading{{fromLibvirt, factCPU, m.cpu, cpu.Mode}}
	}
	missing := none
	for _, f := range cpu.Features {
		if f.Policy == "disable" {
			missing = strings.TrimPrefix(missing+" "+f.Name, none+" ")
		}
	}
	return []reading{{fromLibvirt, factCPU, m.cpu, got}, {fromLibvirt, factCPUWhole, none, missing}}
}

// processReadings is what the kernel says of a machine.
func (m machine) processReadings(p *process) []reading {
	var sets []testbed.CPUs
	for i := range m.vcpus {
		sets = append(sets, p.vcpus[i])
	}
	readings := []reading{
		{fromKernel, factVCPUs, joinSets(m.tuning.Pin), joinSets(sets)},
		{fromKernel, factEmulator, m.tuning.EmulatorPin.String(), p.others.String()},
		{fromKernel, factVHost, strconv.Itoa(m.vhostWorkers()), strconv.Itoa(p.vhost)},
	}
	if size := m.tuning.HugePages; size != 0 && p.huge != nil {
		got := none
		if p.huge[size] >= m.memory {
			got = pageSize(size)
		}
		readings = append(readings, reading{fromKernel, factHugePages, pageSize(size), got})
	}
	return readings
}

// vhostWorkers is how many threads of the kernel carry frames for a machine.
func (m machine) vhostWorkers() (n int) {
	for _, nic := range m.nics {
		if nic.vhost {
			n += nic.queues
		}
	}
	return n
}

// readGuest is the command whose output [parseGuest] understands. Its arguments are links.
const readGuest = `grep -c '^processor' /proc/cpuinfo; sed -n 's/^model name[[:space:]]*: //p;T;q' /proc/cpuinfo
for link; do ethtool -l "$link"; ethtool -g "$link"; done`

// guestReadings asks the guest, unless all of it is as usual: programs take long to start in emulated
// machines.
func (n *node) guestReadings(ctx context.Context, c *conn, m machine, d rpc.Domain) ([]reading, error) {
	if m.vcpus == 1 && m.cpu == "" && m.tuning.RxQueueSize == 0 && m.tuning.TxQueueSize == 0 {
		return nil, nil
	}
	name, err := cpuName(ctx, c, m, d)
	if err != nil {
		return nil, err
	}
	argv := []string{"sh", "-c", readGuest, "sh"}
	var links []string
	for _, l := range n.tb.state.Spec.Links {
		if l.Address(n.role).IsValid() {
			links = append(links, l.Name)
		}
	}
	out, err := n.output(ctx, append(argv, links...)...)
	if err != nil {
		return nil, err
	}
	g, err := parseGuest(out, links)
	if err != nil {
		return nil, err
	}
	return m.insideReadings(g, n.tb.state.Spec.Node(n.role).Queues, links, name), nil
}

// cpuName is what a guest should take its CPU for: what QEMU calls the model. It is empty where that
// depends on more than the model.
func cpuName(ctx context.Context, c *conn, m machine, d rpc.Domain) (string, error) {
	if slices.Contains([]string{"", hostPassthrough, hostModel, maximum}, m.cpu) {
		return "", nil
	}
	question, err := json.Marshal(map[string]any{
		"execute":   "query-cpu-model-expansion",
		"arguments": map[string]any{"type": "full", "model": map[string]string{"name": m.cpu}},
	})
	if err != nil {
		return "", err
	}
	answer, err := ask(ctx, c, "ask QEMU about CPU model "+m.cpu, func(l *rpc.Libvirt) (string, error) {
		return l.QEMUDomainMonitorCommand(d, string(question), 0)
	})
	if err != nil {
		return "", err
	}
	return parseCPUName(answer)
}

// parseCPUName reads QEMU's answer to query-cpu-model-expansion.
func parseCPUName(answer string) (string, error) {
	var a struct {
		Return struct {
			Model struct {
				Props struct {
					Name string `json:"model-id"`
				} `json:"props"`
			} `json:"model"`
		} `json:"return"`
	}
	if err := json.Unmarshal([]byte(answer), &a); err != nil {
		return "", fmt.Errorf("read what QEMU says of a CPU model: %w", err)
	}
	return strings.TrimSpace(a.Return.Model.Props.Name), nil
}

// insideReadings is what the guest says of a machine.
func (m machine) insideReadings(g guest, queues int, links []string, cpuName string) []reading {
	readings := []reading{
		{fromGuest, factCPUs, strconv.Itoa(m.vcpus), strconv.Itoa(g.cpus)},
		{fromGuest, factCPUName, cpuName, g.cpuName},
	}
	for i, link := range links {
		readings = append(readings,
			reading{fromGuest, link + "." + factQueues, strconv.Itoa(queues), g.links[i].channels["Combined"]},
			reading{fromGuest, link + "." + factRx, number(m.tuning.RxQueueSize), g.links[i].rings["RX"]},
			reading{fromGuest, link + "." + factTx, number(m.tuning.TxQueueSize), g.links[i].rings["TX"]})
	}
	return readings
}

// number is n in digits, or nothing where nothing was asked for.
func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// guest is what a machine's own kernel says of it.
type guest struct {
	cpus    int
	cpuName string
	links   []guestLink
}

// guestLink has what ethtool says is set now, by ethtool's words.
type guestLink struct{ channels, rings map[string]string }

// parseGuest reads the output of [readGuest].
func parseGuest(output string, links []string) (guest, error) {
	first, rest, _ := strings.Cut(output, "\n")
	cpus, err := strconv.Atoi(first)
	if err != nil {
		return guest{}, fmt.Errorf("count CPUs: %q is no number", first)
	}
	g := guest{cpus: cpus}
	g.cpuName, rest, _ = strings.Cut(rest, "\n")
	for _, link := range links {
		channels, ok := currentSettings(rest, "Channel parameters for "+link+":")
		rings, also := currentSettings(rest, "Ring parameters for "+link+":")
		if !ok || !also {
			return guest{}, fmt.Errorf("ethtool says nothing of the queues or rings of link %s", link)
		}
		g.links = append(g.links, guestLink{channels, rings})
	}
	return g, nil
}

// currentSettings are the lines "name: value" below "Current hardware settings:" of the part of ethtool's
// output that begins with that heading.
func currentSettings(output, heading string) (map[string]string, bool) {
	_, part, ok := strings.Cut("\n"+output, "\n"+heading+"\n")
	if !ok {
		return nil, false
	}
	part, _, _ = strings.Cut(part, " parameters for ") // of the next part
	_, lines, ok := strings.Cut(part, "Current hardware settings:\n")
	settings := map[string]string{}
	for line := range strings.Lines(lines) {
		if name, value, found := strings.Cut(line, ":"); found && strings.TrimSpace(value) != "" {
			settings[name] = strings.TrimSpace(value)
		}
	}
	return settings, ok
}
