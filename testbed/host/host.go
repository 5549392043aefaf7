// Package host reads what of a Linux host makes times unsteady, and says what mends it: clock frequencies
// that change, processors that share a core, and whatever else may run where a virtual machine is pinned.
package host

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rampart-bench/rampart/testbed"
)

// Facts are what a host is like. What its kernel does not tell of is zero.
type Facts struct {
	// Online are the CPUs that there are to run on.
	Online testbed.CPUs
	// Governors has the CPUs of each frequency governor, by its name.
	Governors map[string]testbed.CPUs
	// SMT is the state of simultaneous multithreading: on, off, forceoff, notsupported and so on
	// (Documentation/ABI/testing/sysfs-devices-system-cpu).
	SMT string
	// Cores are the sets of CPUs that share a core, where there are two or more in one.
	Cores []testbed.CPUs
	// Turbo is the switch of the frequencies above the nominal one, nil where there is none.
	Turbo *Turbo
	// Isolated are the CPUs that the scheduler leaves alone, Tickless those without a timer tick while
	// one task runs (isolcpus= and nohz_full= of the kernel's command line).
	Isolated, Tickless testbed.CPUs
	// Irqbalance says whether that daemon runs.
	Irqbalance bool
}

// Turbo is a driver's switch.
type Turbo struct {
	On  bool
	Off string // the command that switches it off
}

const cpuFolder = "sys/devices/system/cpu"

// turboSwitches are the files that there may be, and what is in them when turbo is on and off
// (Documentation/admin-guide/pm/intel_pstate.rst, cpufreq.rst).
var turboSwitches = []struct{ file, on, off string }{
	{cpuFolder + "/intel_pstate/no_turbo", "0", "1"},
	{cpuFolder + "/cpufreq/boost", "1", "0"},
}

// Read reads the facts of the host whose root folder that is.
func Read(root fs.FS) Facts {
	f := Facts{
		Online:     cpus(root, cpuFolder+"/online"),
		Governors:  map[string]testbed.CPUs{},
		SMT:        word(root, cpuFolder+"/smt/control"),
		Isolated:   cpus(root, cpuFolder+"/isolated"),
		Tickless:   cpus(root, cpuFolder+"/nohz_full"),
		Irqbalance: runs(root, "irqbalance"),
	}
	for _, n := range f.Online {
		dir := fmt.Sprintf("%s/cpu%d", cpuFolder, n)
		if governor := word(root, dir+"/cpufreq/scaling_governor"); governor != "" {
			f.Governors[governor] = f.Governors[governor].Or(testbed.CPUs{n})
		}
		if core := cpus(root, dir+"/topology/thread_siblings_list"); len(core) > 1 && core[0] == n {
			f.Cores = append(f.Cores, core)
		}
	}
	for _, s := range turboSwitches {
		if value := word(root, s.file); value != "" {
			f.Turbo = &Turbo{On: value == s.on, Off: fmt.Sprintf("echo %s > /%s", s.off, s.file)}
			break
		}
	}
	return f
}

// word is the content of a small file; empty if there is none.
func word(root fs.FS, file string) string {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// cpus are the set in a file. The kernel writes "(null)" where nothing was ever set.
func cpus(root fs.FS, file string) testbed.CPUs {
	set, err := testbed.ParseCPUs(word(root, file))
	if err != nil {
		return nil
	}
	return set
}

// runs reports whether a process has that name.
func runs(root fs.FS, name string) bool {
	files, err := fs.Glob(root, "proc/[0-9]*/comm")
	return err == nil && slices.ContainsFunc(files, func(f string) bool { return word(root, path.Clean(f)) == name })
}

// A Finding is one thing that was looked at.
type Finding struct {
	Subject string
	Found   string
	Mend    string // the command or step that mends it; empty: it is as it should be
}

// Findings are what was looked at on any host.
func (f Facts) Findings() []Finding {
	var all []Finding
	if len(f.Governors) > 0 {
		finding := Finding{Subject: "frequency governor", Found: f.governors()}
		if len(f.Governors["performance"]) == 0 || len(f.Governors) > 1 {
			finding.Mend = "cpupower frequency-set -g performance"
		}
		all = append(all, finding)
	}
	if f.SMT != "" && f.SMT != "notsupported" && f.SMT != "notimplemented" {
		finding := Finding{Subject: "simultaneous multithreading", Found: f.SMT}
		if f.SMT == "on" {
			finding.Found += ": what runs on one half of a core slows the other"
			finding.Mend = "echo off > /" + cpuFolder + "/smt/control"
		}
		all = append(all, finding)
	}
	if f.Turbo != nil {
		finding := Finding{Subject: "turbo", Found: "off"}
		if f.Turbo.On {
			finding.Found, finding.Mend = "on: the frequency depends on what else runs, and on the heat", f.Turbo.Off
		}
		all = append(all, finding)
	}
	return all
}

// governors names each governor with its CPUs; alone, without them.
func (f Facts) governors() string {
	names := slices.Sorted(maps.Keys(f.Governors))
	if len(names) == 1 {
		return names[0]
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%s on CPU %s", name, f.Governors[name])
	}
	return strings.Join(names, ", ")
}

// pinned is something that runs where it was pinned.
type pinned struct {
	name string
	cpus testbed.CPUs
	vcpu bool
}

// pins are all of a testbed, without the CPUs that are not online: nothing that is done to those would help.
func (f Facts) pins(spec testbed.Spec) (all []pinned) {
	there := func(set testbed.CPUs) testbed.CPUs {
		if f.Online == nil { // this kernel does not tell
			return set
		}
		return set.And(f.Online)
	}
	for _, n := range spec.Nodes {
		for i, set := range n.Pin {
			all = append(all, pinned{fmt.Sprintf("virtual CPU %d of %s", i, n.Role), there(set), true})
		}
		if n.EmulatorPin != nil {
			all = append(all, pinned{fmt.Sprintf("the emulator of %s", n.Role), there(n.EmulatorPin), false})
		}
	}
	return all
}

// PinFindings are what is in the way of the virtual CPUs of a testbed where they are pinned.
func (f Facts) PinFindings(spec testbed.Spec) []Finding {
	all := f.pins(spec)
	var busy testbed.CPUs // where virtual CPUs are pinned
	for _, p := range all {
		if p.vcpu {
			busy = busy.Or(p.cpus)
		}
	}
	if len(busy) == 0 {
		return nil
	}
	found := f.neighbours(all)
	if open := busy.Minus(f.Isolated); len(open) > 0 {
		found = append(found, Finding{"pinned CPUs", fmt.Sprintf("CPU %s is not isolated: the scheduler runs other tasks there", open),
			fmt.Sprintf("add isolcpus=%s nohz_full=%s to GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub and boot anew", busy, busy)})
	}
	// It keeps off these by itself (irqbalance(1), IRQBALANCE_BANNED_CPULIST).
	if open := busy.Minus(f.Isolated.Or(f.Tickless)); f.Irqbalance && len(open) > 0 {
		found = append(found, Finding{"irqbalance", fmt.Sprintf("it may move interrupts to CPU %s, where virtual CPUs are pinned", open),
			fmt.Sprintf("echo IRQBALANCE_BANNED_CPULIST=%s >> /etc/default/irqbalance && systemctl restart irqbalance", busy)})
	}
	if len(found) == 0 {
		found = []Finding{{Subject: "pinned CPUs", Found: fmt.Sprintf("CPU %s is isolated, and nothing shares a core", busy)}}
	}
	return found
}

// neighbours are pairs that would take turns on a CPU or share a core, one of them a virtual CPU.
func (f Facts) neighbours(all []pinned) (found []Finding) {
	for i, a := range all {
		for _, b := range all[i+1:] {
			if !a.vcpu && !b.vcpu {
				continue
			}
			pair := fmt.Sprintf("%s and %s", a.name, b.name)
			if common := a.cpus.And(b.cpus); len(common) > 0 {
				found = append(found, Finding{"pinned CPUs", fmt.Sprintf("%s may both run on CPU %s", pair, common), "pin to CPUs that nothing else is pinned to"})
				continue
			}
			for _, core := range f.Cores {
				if x, y := a.cpus.And(core), b.cpus.And(core); len(x) > 0 && len(y) > 0 {
					found = append(found, Finding{"pinned CPUs", fmt.Sprintf("%s share a core: CPU %s and %s", pair, x, y), "pin to CPUs of different cores: lscpu --extended shows them"})
				}
			}
		}
	}
	return found
}
