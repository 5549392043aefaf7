package experiments

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/safchain/ethtool"

	"github.com/rampart-bench/rampart/experiments/record"
)

// tools are the programs whose version can change a result, with the arguments that print it.
var tools = map[string][]string{
	"iptables-legacy": {"--version"},
	"iptables-nft":    {"--version"},
	"ipset":           {"version"},
	"nft":             {"--version"},
	"iperf3":          {"--version"},
	"netperf":         {"-V"},
	"ethtool":         {"--version"},
	"ip":              {"-V"},
}

// sysctls are the settings that change what a forwarded packet costs.
var sysctls = []string{
	"net.ipv4.ip_forward",
	"net.ipv4.conf.all.rp_filter",
	"net.ipv4.conf.default.rp_filter",
	"net.core.netdev_max_backlog",
	"net.core.netdev_budget",
	"net.core.rmem_max",
	"net.core.rmem_default",
	"net.core.wmem_max",
	"net.core.bpf_jit_enable",
	"net.core.default_qdisc",
	"net.netfilter.nf_conntrack_max",
	"net.netfilter.nf_conntrack_checksum",
	"net.bridge.bridge-nf-call-iptables",
}

// cpuSettings are those of the processors, by their files below /sys/devices/system/cpu.
var cpuSettings = []string{"smt.control", "intel_pstate.no_turbo", "cpufreq.boost", "isolated", "nohz_full"}

// DescribeMachine says what this machine is: everything that a reader needs to judge the figures and
// that a repetition should match. What cannot be read is left out.
func DescribeMachine(ctx context.Context) record.Environment {
	hostname, _ := os.Hostname()
	env := record.Environment{
		Hostname:    hostname,
		OS:          osRelease(),
		Kernel:      strings.Join(nonEmpty(readLine("/proc/sys/kernel/osrelease"), readLine("/proc/sys/kernel/version")), " "),
		CPU:         field("/proc/cpuinfo", "model name"),
		CPUs:        runtime.NumCPU(),
		MemoryBytes: memory(),
		Hypervisor:  hypervisor(),
		Governor:    readLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		Clocksource: readLine("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
		Mitigations: readFolder("/sys/devices/system/cpu/vulnerabilities"),
		Tools:       map[string]string{},
		Sysctls:     map[string]string{},
	}
	for _, name := range cpuSettings {
		if value := readLine("/sys/devices/system/cpu/" + strings.ReplaceAll(name, ".", "/")); value != "" && value != "(null)" {
			env.Sysctls["cpu."+name] = value
		}
	}
	for name, args := range tools {
		if line := versionLine(ctx, name, args); line != "" {
			env.Tools[name] = line
		}
	}
	for _, name := range sysctls {
		path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
		if value := readLine(path); value != "" {
			env.Sysctls[name] = value
		}
	}
	return env
}

// DescribeInterfaces reads MTU, driver, queues, their sizes and every offload of the named interfaces back from
// the kernel.
func DescribeInterfaces(names ...string) (map[string]map[string]string, error) {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("open ethtool socket: %w", err)
	}
	defer tool.Close()
	all := map[string]map[string]string{}
	for _, name := range names {
		facts := map[string]string{}
		link, err := net.InterfaceByName(name)
		if err != nil {
			return nil, fmt.Errorf("look up interface %s: %w", name, err)
		}
		facts["mtu"] = strconv.Itoa(link.MTU)
		if info, err := tool.DriverInfo(name); err == nil {
			facts["driver"] = info.Driver
		}
		if channels, err := tool.GetChannels(name); err == nil {
			facts["queues"] = strconv.Itoa(int(channels.CombinedCount + channels.RxCount))
		}
		if ring, err := tool.GetRing(name); err == nil {
			facts["rx_queue_size"] = strconv.Itoa(int(ring.RxPending))
			facts["tx_queue_size"] = strconv.Itoa(int(ring.TxPending))
		}
		features, err := tool.FeaturesWithState(name)
		if err != nil {
			return nil, fmt.Errorf("read offloads of %s: %w", name, err)
		}
		for feature, state := range features {
			if state.Active {
				facts["offload."+feature] = "on"
			}
		}
		all[name] = facts
	}
	return all, nil
}

// LoadAverage is this machine's load over the last minute, or 0 where it cannot be read.
func LoadAverage() float64 {
	first, _, _ := strings.Cut(readLine("/proc/loadavg"), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

func osRelease() string {
	return strings.Trim(strings.TrimPrefix(lineWith("/etc/os-release", "PRETTY_NAME="), "PRETTY_NAME="), `"`)
}

func memory() int64 {
	kib, _ := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	return kib << 10
}

// hypervisor names what the machine runs under, as its firmware tells, or "yes" where only the CPU
// admits to one.
func hypervisor() string {
	if name := readLine("/sys/class/dmi/id/sys_vendor"); name != "" && strings.Contains(field("/proc/cpuinfo", "flags"), "hypervisor") {
		return name
	}
	if strings.Contains(field("/proc/cpuinfo", "flags"), "hypervisor") {
		return "yes"
	}
	return ""
}

// versionLine is the first line that a tool prints of its version, or "" where there is no tool.
func versionLine(ctx context.Context, name string, args []string) string {
	path, err := lookTool(name)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, path, args...).CombinedOutput()
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return string(line)
}

// lookTool also looks where an ordinary user's PATH does not.
func lookTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

func readLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

func readFolder(path string) map[string]string {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil
	}
	facts := map[string]string{}
	for _, entry := range entries {
		if value := readLine(filepath.Join(path, entry.Name())); value != "" {
			facts[entry.Name()] = value
		}
	}
	return facts
}

// field is the value of the first `name : value` line of a file.
func field(path, name string) string {
	_, value, _ := strings.Cut(lineWith(path, name), ":")
	return strings.TrimSpace(value)
}

// lineWith is the first line of a file that begins with prefix.
func lineWith(path, prefix string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), prefix) {
			return lines.Text()
		}
	}
	return ""
}

func nonEmpty(values ...string) []string {
	var kept []string
	for _, v := range values {
		if v != "" {
			kept = append(kept, v)
		}
	}
	return kept
}
