package libvirt

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	rpc "github.com/digitalocean/go-libvirt"

	"github.com/rampart-bench/rampart/testbed"
)

// tunings are all options by name, each alone.
var tunings = []struct {
	name string
	kvm  bool
	tune func(*testbed.Spec)
}{
	{"pin", true, func(s *testbed.Spec) { s.Nodes[1].Pin = []testbed.CPUs{{2}, {3, 7}, {4, 5, 6}, {8}} }},
	{"emulator_pin", true, func(s *testbed.Spec) { s.Nodes[1].EmulatorPin = testbed.CPUs{0, 1} }},
	{"hugepages", true, func(s *testbed.Spec) { s.Nodes[1].HugePages = testbed.MinHugePage }},
	{"rx_queue_size and tx_queue_size", true, func(s *testbed.Spec) { s.Nodes[1].RxQueueSize, s.Nodes[1].TxQueueSize = 1024, 256 }},
	{"machine = pc", true, func(s *testbed.Spec) { s.Machine.Type = "pc" }},
	{"machine = pc-q35-7.2", true, func(s *testbed.Spec) { s.Machine.Type = "pc-q35-7.2" }},
	{"cpu = host-passthrough under KVM", true, func(s *testbed.Spec) { s.Machine.CPU = "host-passthrough" }},
	{"cpu = host-model under KVM", true, func(s *testbed.Spec) { s.Machine.CPU = "host-model" }},
	{"cpu = maximum under KVM", true, func(s *testbed.Spec) { s.Machine.CPU = "maximum" }},
	{"cpu = Nehalem under TCG", false, func(s *testbed.Spec) { s.Machine.CPU = "Nehalem" }},
	{"vhost = false under KVM", true, func(s *testbed.Spec) { s.Machine.VHost = testbed.VHostOff }},
	{"vhost = true under TCG", false, func(s *testbed.Spec) { s.Machine.VHost = testbed.VHostOn }},
}

// Each option changes these lines of a domain, and no others.
func TestTunedXML(t *testing.T) {
	var all strings.Builder
	for _, option := range tunings {
		plain := exampleState()
		plain.KVM, plain.VHost = option.kvm, option.kvm // as on a host with vhost-net
		tuned := exampleState()
		option.tune(&tuned.Spec)
		tuned.KVM, tuned.VHost = option.kvm, option.kvm && tuned.Spec.Machine.VHost == "" || tuned.Spec.Machine.VHost == testbed.VHostOn
		fmt.Fprintf(&all, "# %s\n%s\n", option.name, lineDiff(domainLines(t, plain), domainLines(t, tuned)))
	}
	golden(t, "tuning.diff", all.String())
}

func domainLines(t *testing.T, s state) []string {
	t.Helper()
	m, err := newProvider(t, Options{StateDir: t.TempDir()}).nodeMachine(s, testbed.Firewall, "/pool/overlay", "/pool/seed")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := m.xml().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(doc, "\n")
}

// lineDiff has the lines of a that are not in b after a minus, and those of b that are not in a after a
// plus, found by their longest common subsequence.
func lineDiff(a, b []string) string {
	common := make([][]int, len(a)+1)
	common[len(a)] = make([]int, len(b)+1)
	for i := len(a) - 1; i >= 0; i-- {
		common[i] = make([]int, len(b)+1)
		for j := len(b) - 1; j >= 0; j-- {
			common[i][j] = max(common[i+1][j], common[i][j+1])
			if a[i] == b[j] {
				common[i][j] = 1 + common[i+1][j+1]
			}
		}
	}
	var out strings.Builder
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			fmt.Fprintf(&out, "-%s\n", a[i])
			i++
		default:
			fmt.Fprintf(&out, "+%s\n", b[j])
			j++
		}
	}
	return out.String()
}

func TestJudge(t *testing.T) {
	for name, test := range map[string]struct {
		readings []reading
		want     string // part of the error; empty: none
	}{
		"nothing asked":             {[]reading{{fromKernel, "a", "", "1"}}, ""},
		"as asked":                  {[]reading{{fromKernel, "a", "1", "1"}}, ""},
		"another":                   {[]reading{{fromKernel, "a", "1", "2"}}, "a is 2, not 1 as it should be, says the host's kernel"},
		"one source silent":         {[]reading{{fromLibvirt, "a", "1", "1"}, {fromKernel, "a", "1", ""}}, ""},
		"all sources silent":        {[]reading{{fromLibvirt, "a", "1", ""}, {fromKernel, "a", "1", ""}}, "a cannot be read back: it should be 1"},
		"the kernel knows better":   {[]reading{{fromLibvirt, "a", "1", "1"}, {fromKernel, "a", "1", "2"}}, "says the host's kernel"},
		"the first is not the last": {[]reading{{fromKernel, "a", "1", "2"}, {fromKernel, "b", "3", "4"}}, "b is 4"},
	} {
		err := judge(test.readings)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// What libvirt says of a live domain, as it was seen with libvirt 9.0 and QEMU 7.2.
const liveDomain = `<domain type='kvm' id='39'>
  <memoryBacking><hugepages><page size='2048' unit='KiB'/></hugepages><source type='memfd'/></memoryBacking>
  <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
  <cpu mode='custom' match='exact' check='full'>
    <model fallback='forbid'>kvm64</model>
    <feature policy='require' name='vme'/>
    <feature policy='disable' name='pni'/>
  </cpu>
  <devices/>
</domain>`

func TestXMLReadings(t *testing.T) {
	for name, test := range map[string]struct {
		m    machine
		want string
	}{
		"default":       {machine{}, ""},
		"family":        {machine{kind: "q35"}, ""},
		"version":       {machine{kind: "pc-q35-7.2"}, ""},
		"another":       {machine{kind: "pc-q35-7.1"}, "machine is pc-q35-7.2, not pc-q35-7.1"},
		"other family":  {machine{kind: "pc"}, "machine is pc-q35-7.2, not pc "},
		"features":      {machine{cpu: "kvm64"}, "cpu_features_missing is pni, not none"},
		"model":         {machine{cpu: "Nehalem"}, "cpu_model is kvm64, not Nehalem"},
		"host-model":    {machine{cpu: "host-model"}, ""},
		"mode":          {machine{cpu: "maximum"}, "cpu_model is custom, not maximum"},
		"pages":         {machine{tuning: testbed.Tuning{HugePages: 2 << 20}}, ""},
		"larger pages":  {machine{tuning: testbed.Tuning{HugePages: 1 << 30}}, "huge_pages is 2 MiB, not 1 GiB"},
		"network cards": {machine{nics: make([]nic, 2)}, "it has 0 network cards, not 2"},
	} {
		readings, err := test.m.xmlReadings(liveDomain)
		err = errors.Join(err, judge(readings))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if readings, err := (machine{}).xmlReadings(`<domain/>`); err == nil {
		t.Errorf("a domain without machine type gives %+v", readings)
	}
	// A description that lacks what was asked for is not one that agrees.
	readings, err := machine{cpu: "Nehalem"}.xmlReadings(`<domain><os><type machine='pc-q35-7.2'>hvm</type></os></domain>`)
	if err := errors.Join(err, judge(readings)); err == nil || !strings.Contains(err.Error(), "cpu_model cannot be read back") {
		t.Errorf("a domain without CPU: %v", err)
	}
}

func FuzzXMLReadings(f *testing.F) {
	f.Add(liveDomain)
	m := machine{cpu: "Nehalem", tuning: testbed.Tuning{HugePages: 2 << 20}}
	f.Fuzz(func(t *testing.T, doc string) {
		if readings, err := m.xmlReadings(doc); err == nil && len(readings) == 0 {
			t.Errorf("%q says nothing", doc)
		}
	})
}

const smaps = `55d4c0000000-55d4c0400000 r-xp 00000000 08:01 1234                       /usr/bin/qemu-system-x86_64
Size:               4096 kB
KernelPageSize:        4 kB
MMUPageSize:           4 kB
7f4547e00000-7f454be00000 rw-s 00000000 00:11 4005341                    /memfd:memory-backend-memfd (deleted)
Size:              65536 kB
KernelPageSize:     2048 kB
MMUPageSize:        2048 kB
`

// proc is a /proc with one QEMU in it: two virtual CPUs, two other threads, a vhost thread of its own and
// one as before Linux 6.4.
func proc(name string) fstest.MapFS {
	thread := func(comm, cpus string) map[string]string {
		return map[string]string{"comm": comm + "\n", "status": "Name:\t" + comm + "\nCpus_allowed:\t3\nCpus_allowed_list:\t" + cpus + "\n"}
	}
	files := fstest.MapFS{
		"self/cmdline":  {Data: []byte("x\x00guest=" + name + ",debug-threads=on\x00")},
		"41/cmdline":    {Data: []byte("qemu\x00-name\x00guest=" + name + "2,debug-threads=on\x00")},
		"42/cmdline":    {Data: []byte("qemu\x00-name\x00guest=" + name + ",debug-threads=on\x00")},
		"42/comm":       {Data: []byte("qemu-system-x86\n")},
		"42/smaps":      {Data: []byte(smaps)},
		"50/comm":       {Data: []byte("vhost-42\n")},
		"51/comm":       {Data: []byte("vhost-421\n")},
		"cpuinfo":       {Data: []byte("processor : 0\n")},
		"42/task/49/cx": {Data: nil}, // a thread that ended meanwhile
	}
	for tid, files42 := range map[string]map[string]string{
		"42": thread("qemu-system-x86", "0"),
		"43": thread("IO mon_iothread", "1"),
		"44": thread("CPU 0/KVM", "3"),
		"45": thread("CPU 1/KVM", "4,6"),
		"46": thread("vhost-42", "0-7"),
	} {
		for file, text := range files42 {
			files["42/task/"+tid+"/"+file] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	return files
}

func TestProcessReadings(t *testing.T) {
	const name = "rampart-x-0a1b2c-firewall"
	pid, err := findQEMU(proc(name), name)
	if err != nil || pid != "42" {
		t.Fatalf("found %q, %v", pid, err)
	}
	if pid, err := findQEMU(proc(name), "another"); pid != "" || err != nil {
		t.Errorf("found %q, %v", pid, err)
	}
	p, err := readProcess(proc(name), pid, true)
	if err != nil {
		t.Fatal(err)
	}
	good := machine{vcpus: 2, memory: 64 << 20, tuning: testbed.Tuning{
		Pin: []testbed.CPUs{{3}, {4, 6}}, EmulatorPin: testbed.CPUs{0, 1}, HugePages: 2 << 20,
	}, nics: []nic{{queues: 2, vhost: true}}}
	for name, test := range map[string]struct {
		change func(*machine)
		want   string
	}{
		"as asked":    {func(*machine) {}, ""},
		"pin":         {func(m *machine) { m.tuning.Pin = []testbed.CPUs{{3}, {4}} }, "vcpu_affinity is 3 4,6, not 3 4"},
		"third CPU":   {func(m *machine) { m.vcpus, m.tuning.Pin = 3, []testbed.CPUs{{3}, {4, 6}, {7}} }, "vcpu_affinity is 3 4,6 , not 3 4,6 7"},
		"emulator":    {func(m *machine) { m.tuning.EmulatorPin = testbed.CPUs{0} }, "emulator_affinity is 0-1, not 0"},
		"more memory": {func(m *machine) { m.memory = 66 << 20 }, "huge_pages is none, not 2 MiB"},
		"other pages": {func(m *machine) { m.tuning.HugePages = 1 << 30 }, "huge_pages is none, not 1 GiB"},
		"no vhost":    {func(m *machine) { m.nics[0].vhost = false }, "vhost_workers is 2, not 0"},
		"more vhost":  {func(m *machine) { m.nics[0].queues = 3; m.nics[0].vhost = true }, "vhost_workers is 2, not 3"},
	} {
		m := good
		m.nics = []nic{good.nics[0]}
		test.change(&m)
		err := judge(m.processReadings(p))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func FuzzParseHugePages(f *testing.F) {
	f.Add([]byte(smaps))
	f.Fuzz(func(t *testing.T, text []byte) {
		huge, err := parseHugePages(text)
		for page := range huge {
			if page < testbed.MinHugePage && err == nil {
				t.Errorf("%q has huge pages of %d bytes", text, page)
			}
		}
	})
}

const guestOutput = `2
Intel Core i7 9xx (Nehalem Class Core i7)
Channel parameters for inside:
Pre-set maximums:
RX:		n/a
TX:		n/a
Other:		n/a
Combined:	2
Current hardware settings:
RX:		n/a
TX:		n/a
Other:		n/a
Combined:	1
Ring parameters for inside:
Pre-set maximums:
RX:			1024
RX Mini:		n/a
RX Jumbo:		n/a
TX:			256
Current hardware settings:
RX:			512
RX Mini:		n/a
RX Jumbo:		n/a
TX:			256
`

func TestParseGuest(t *testing.T) {
	g, err := parseGuest(guestOutput, []string{"inside"})
	if err != nil {
		t.Fatal(err)
	}
	m := machine{vcpus: 2, tuning: testbed.Tuning{RxQueueSize: 1024, TxQueueSize: 256}}
	err = judge(m.insideReadings(g, 2, []string{"inside"}, "Westmere"))
	for _, want := range []string{
		"inside.queues is 1, not 2", "inside.rx_queue_size is 512, not 1024", "cpu_name is Intel Core i7 9xx (Nehalem Class Core i7), not Westmere",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	if err != nil && (strings.Contains(err.Error(), factTx) || strings.Contains(err.Error(), factCPUs+" ")) {
		t.Errorf("what is right is told of: %v", err)
	}
	for _, output := range []string{"", "x\n", guestOutput} {
		if g, err := parseGuest(output, []string{"outside"}); err == nil {
			t.Errorf("%q gives %+v", output, g)
		}
	}
}

func FuzzParseGuest(f *testing.F) {
	f.Add(guestOutput)
	f.Fuzz(func(t *testing.T, output string) {
		if g, err := parseGuest(output, []string{"inside", "outside"}); err == nil && len(g.links) != 2 {
			t.Errorf("%q has %d links", output, len(g.links))
		}
	})
}

func TestParseCPUName(t *testing.T) {
	const answer = `{"return":{"model":{"name":"Nehalem","props":{"phys-bits":0,"model-id":"Intel Core i7 9xx (Nehalem Class Core i7)"}}},"id":"libvirt-411"}`
	if name, err := parseCPUName(answer); name != "Intel Core i7 9xx (Nehalem Class Core i7)" || err != nil {
		t.Errorf("got %q, %v", name, err)
	}
	if name, err := parseCPUName(`[`); err == nil {
		t.Errorf("got %q", name)
	}
}

func FuzzUsableCPUs(f *testing.F) {
	f.Add(`<domainCapabilities><cpu><mode name='maximum' supported='yes'/><mode name='custom' supported='yes'><model usable='yes'>Nehalem</model></mode></cpu></domainCapabilities>`)
	f.Fuzz(func(t *testing.T, doc string) {
		usable, err := usableCPUs(doc)
		for _, name := range usable {
			if err == nil && name != "" && !strings.Contains(doc, "yes") {
				t.Errorf("%q: %q is usable", doc, name)
			}
		}
	})
}

// reserve has the kernel set huge pages aside for the length of a test.
func reserve(t *testing.T, pages int) {
	t.Helper()
	const file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	before, err := os.ReadFile(file)
	if err != nil {
		skip(t, err.Error())
	}
	had, err := strconv.Atoi(strings.TrimSpace(string(before)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(had+pages)), 0o644); err != nil {
		skip(t, err.Error())
	}
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0o644); err != nil {
			t.Error(err)
		}
	})
	if after, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(after)) != strconv.Itoa(had+pages) {
		skip(t, fmt.Sprintf("the kernel has no room for %d huge pages: it has %s (%v)", pages, after, err))
	}
}

// hostCPUs are those that pins may name.
func hostCPUs(t *testing.T) testbed.CPUs {
	t.Helper()
	c, err := newProvider(t, Options{StateDir: t.TempDir()}).control(t.Context())
	if err != nil {
		skip(t, err.Error())
	}
	online, err := onlineCPUs(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(online) < 2 {
		skip(t, "the host has one CPU: there is nothing to choose from")
	}
	return online
}

// tuneAll tunes a testbed in every way that needs no special host.
func tuneAll(t *testing.T, p *Provider, spec *testbed.Spec) {
	t.Helper()
	cpus := hostCPUs(t)
	kvm, _, err := p.choose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec.Machine = testbed.Machine{Type: "pc", CPU: "Nehalem", VHost: testbed.VHostOff}
	if kvm { // which models a host can have differs
		spec.Machine.CPU = hostPassthrough
	}
	fw := &spec.Nodes[1]
	fw.VCPUs, fw.Queues = 2, 2
	fw.Tuning = testbed.Tuning{
		Pin: []testbed.CPUs{{cpus[1]}, {cpus[0]}}, EmulatorPin: testbed.CPUs{cpus[0]},
		HugePages: testbed.MinHugePage, RxQueueSize: 1024, TxQueueSize: 256,
	}
	reserve(t, int(fw.Memory/fw.HugePages))
}

// checkTuned holds a testbed of [tuneAll] to what it was asked to be, and changes it: that must be found
// out. Renewing the firewall mends it.
func checkTuned(t *testing.T, p *Provider, tb *running) {
	cpus := hostCPUs(t)
	one, other := testbed.CPUs{cpus[0]}, testbed.CPUs{cpus[1]}
	got := tb.Features().Parameters
	want := map[string]string{
		"cpu_model":                      tb.state.Spec.Machine.CPU,
		"network_backend":                "qemu",
		"firewall.vcpus":                 "2",
		"firewall.vcpu_affinity":         other.String() + " " + one.String(),
		"firewall.emulator_affinity":     one.String(),
		"firewall.huge_pages":            "2 MiB",
		"firewall.vhost_workers":         "0",
		"firewall.inside.queues":         "2",
		"firewall.inside.rx_queue_size":  "1024",
		"firewall.outside.tx_queue_size": "256",
		"sender.vcpu_affinity":           cpus.String(),
		"sender.emulator_affinity":       cpus.String(),
		"sender.huge_pages":              "",
	}
	if want["cpu_model"] == "Nehalem" {
		want["firewall.cpu_features_missing"], want["firewall.cpu_name"] = "none", "Intel Core i7 9xx (Nehalem Class Core i7)"
	}
	for fact, value := range want {
		if got[fact] != value {
			t.Errorf("%s is %q, want %q", fact, got[fact], value)
		}
	}
	if !strings.HasPrefix(got["machine"], "pc-i440fx-") {
		t.Errorf("machine is %q", got["machine"])
	}

	c, err := p.control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := tb.node(testbed.Firewall)
	m, err := p.nodeMachine(n.tb.state, n.role, "", "")
	if err != nil {
		t.Fatal(err)
	}
	d, err := ask(t.Context(), c, "find it", func(l *rpc.Libvirt) (rpc.Domain, error) { return l.DomainLookupByName(m.name) })
	if err != nil {
		t.Fatal(err)
	}
	if err := c.do(t.Context(), callLimit, "move a CPU", func(l *rpc.Libvirt) error { return l.DomainPinVcpu(d, 0, []byte{1 << one[0]}) }); err != nil {
		t.Fatal(err)
	}
	if out, err := n.output(t.Context(), "ethtool", "-L", "inside", "combined", "1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	err = n.readBack(t.Context(), c, m, d)
	for _, want := range []string{"node firewall is not", "vcpu_affinity is " + one.String() + " " + one.String(), "says the host's kernel", "inside.queues is 1, not 2"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("after changes: %v lacks %q", err, want)
		}
	}
}

// The threads of a machine that runs under KVM, where this host offers it, are pinned as those of TCG
// are, and its machine type is the version that was asked for. No guest is booted.
func TestPinnedThreads(t *testing.T) {
	cpus := hostCPUs(t)
	c, err := newProvider(t, Options{StateDir: t.TempDir()}).control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	offered, err := offersKVM(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	m := machine{
		name: "rampart-probe-" + newIdent("tuned").ID, kvm: offered.Usable, cpu: "kvm64", kind: "pc-q35-7.1", vcpus: 2, memory: 64 << 20,
		tuning: testbed.Tuning{Pin: []testbed.CPUs{{cpus[1]}, {cpus[0]}}, EmulatorPin: testbed.CPUs{cpus[1]}},
	}
	doc, err := m.xml().Marshal()
	if err != nil {
		t.Fatal(err)
	}
	d, err := ask(t.Context(), c, "start "+m.name, func(l *rpc.Libvirt) (rpc.Domain, error) {
		return l.DomainCreateXML(doc, rpc.DomainStartPaused|rpc.DomainStartAutodestroy)
	})
	if err != nil {
		t.Fatal(err)
	}
	readings, err := readLibvirt(t.Context(), c, m, d)
	seen, errSeen := seeProcess(m)
	if err := errors.Join(err, errSeen, destroyDomain(t.Context(), c, d)); err != nil {
		t.Fatal(err)
	}
	if seen == nil {
		t.Fatal("its QEMU cannot be seen")
	}
	// What a CPU model lacks is the host's affair.
	readings = slices.DeleteFunc(append(readings, m.processReadings(seen)...), func(r reading) bool { return r.fact == factCPUWhole })
	if err := judge(readings); err != nil {
		t.Error(err)
	}
	if len(seen.vcpus) != 2 {
		t.Errorf("threads of virtual CPUs: %v", seen.vcpus)
	}
}

// What the host does not have is told before anything is made, with the next step.
func TestLacks(t *testing.T) {
	hostCPUs(t) // there is a libvirt
	// No image: it is not needed to find out.
	p := newProvider(t, Options{StateDir: t.TempDir(), Accelerator: TCG})
	const pageSize = "page size"
	for name, test := range map[string]struct {
		tune    func(*testbed.Spec)
		problem string // empty: nothing is missing
		mend    string
	}{
		"default":   {func(*testbed.Spec) {}, "", ""},
		"CPUs":      {func(s *testbed.Spec) { s.Nodes[0].Pin = []testbed.CPUs{{0, 4000}} }, "pinned to CPU 4000, which is not online", "lscpu"},
		"emulator":  {func(s *testbed.Spec) { s.Nodes[2].EmulatorPin = testbed.CPUs{4000} }, "pinned to CPU 4000", "lscpu"},
		"hugepages": {func(s *testbed.Spec) { s.Nodes[0].Memory, s.Nodes[0].HugePages = 1<<40, 2<<20 }, "need 524288 huge pages of 2 MiB, and ", "nr_hugepages) + "},
		// No configuration can ask for these, and no host here has them: they stand for 1 GiB on a host without.
		pageSize:    {func(s *testbed.Spec) { s.Nodes[0].HugePages = 16 << 20 }, "no huge pages of 16 MiB", "ls /sys/kernel/mm/hugepages"},
		"machine":   {func(s *testbed.Spec) { s.Machine.Type = "pc-q35-99.9" }, `no machine type "pc-q35-99.9"`, "virsh capabilities"},
		"CPU model": {func(s *testbed.Spec) { s.Machine.CPU = "Nehallem" }, `cpu = "Nehallem": guests of type qemu cannot have that CPU`, "Nehalem"},
		"CPU mode":  {func(s *testbed.Spec) { s.Machine.CPU = "host-passthrough" }, `cpu = "host-passthrough": guests of type qemu`, "maximum"},
		"both good": {func(s *testbed.Spec) { s.Machine.Type, s.Machine.CPU = "pc", "Nehalem" }, "", ""},
	} {
		spec := testbed.Default()
		test.tune(&spec)
		if err := spec.Validate(); err != nil && name != pageSize {
			t.Errorf("%s: %v", name, err)
		}
		found, err := p.DiagnoseTuning(t.Context(), spec)
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case test.problem == "" && len(found) > 0:
			t.Errorf("%s: %+v", name, found)
		case test.problem != "" && (len(found) != 1 || !found[0].Blocks || !strings.Contains(found[0].Problem, test.problem) || !strings.Contains(found[0].Mend, test.mend)):
			t.Errorf("%s: %+v, want %q and %q", name, found, test.problem, test.mend)
		}
	}
}

func TestVHost(t *testing.T) {
	p := newProvider(t, Options{StateDir: t.TempDir()})
	has := p.hasVHost(t.Context())
	asked := testbed.Default()
	asked.Machine.VHost = testbed.VHostOn
	err := p.lacksVHost(t.Context(), nil, asked)
	var unable *testbed.UnableError
	if has != (err == nil) || err != nil && (!errors.As(err, &unable) || !strings.Contains(unable.Mend, "modprobe vhost_net")) {
		t.Errorf("vhost is there: %v, but %v", has, err)
	}
	for _, test := range []struct {
		asked string
		kvm   bool
		want  bool
	}{
		{"", true, has}, {"", false, false},
		{testbed.VHostOn, false, true}, {testbed.VHostOn, true, true},
		{testbed.VHostOff, true, false},
	} {
		if got := useVHost(testbed.Machine{VHost: test.asked}, test.kvm, has); got != test.want {
			t.Errorf("%+v gives %v", test, got)
		}
	}
}
