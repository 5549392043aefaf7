package libvirt

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	"github.com/rampart-bench/rampart/testbed"
)

// process is what the host's kernel says of the QEMU of a domain.
type process struct {
	// vcpus has, by number, where the thread of each virtual CPU may run, and others where any other
	// thread of QEMU may.
	vcpus  map[int]testbed.CPUs
	others testbed.CPUs
	// vhost counts the threads of the kernel that carry frames for it: one a queue pair.
	vhost int
	// huge has, by size of page, how many bytes are mapped with huge pages. It is nil unless they were
	// looked for, and where this user may not see them.
	huge map[int64]int64
}

// vcpuThread is what QEMU calls the thread of a virtual CPU (accel/kvm/kvm-accel-ops.c,
// accel/tcg/tcg-accel-ops-mttcg.c), which libvirt has it tell the kernel.
var vcpuThread = regexp.MustCompile(`^CPU (\d+)/[A-Z]+$`)

// findQEMU is the process id of a domain's QEMU; empty where none can be seen, such as on another host.
func findQEMU(proc fs.FS, domain string) (string, error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return "", err
	}
	name := []byte("\x00guest=" + domain + ",")
	for _, e := range entries {
		if !isNumber(e.Name()) {
			continue
		}
		// A process that ends meanwhile is not the one.
		if line, err := fs.ReadFile(proc, e.Name()+"/cmdline"); err == nil && bytes.Contains(line, name) {
			return e.Name(), nil
		}
	}
	return "", nil
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 31)
	return err == nil
}

// readProcess reads what the kernel says of a process of QEMU; of its mappings only if there should be
// huge pages: that takes the kernel some time.
func readProcess(proc fs.FS, pid string, hugePages bool) (*process, error) {
	tasks, err := fs.ReadDir(proc, pid+"/task")
	if err != nil {
		return nil, err
	}
	p := &process{vcpus: map[int]testbed.CPUs{}}
	for _, task := range tasks {
		if err := p.readThread(proc, pid, pid+"/task/"+task.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	workers, err := vhostWorkers(proc, pid)
	if err != nil {
		return nil, err
	}
	p.vhost += workers
	if !hugePages {
		return p, nil
	}
	switch maps, err := fs.ReadFile(proc, pid+"/smaps"); {
	case err == nil:
		p.huge, err = parseHugePages(maps)
		return p, err
	case errors.Is(err, fs.ErrPermission):
		return p, nil
	default:
		return nil, err
	}
}

// readThread adds one thread.
func (p *process) readThread(proc fs.FS, pid, dir string) error {
	name, err := fs.ReadFile(proc, dir+"/comm")
	if err != nil {
		return err
	}
	comm := strings.TrimSpace(string(name))
	if comm == vhostThread(pid) { // since Linux 6.4 it is among the threads of QEMU
		p.vhost++
		return nil
	}
	status, err := fs.ReadFile(proc, dir+"/status")
	if err != nil {
		return err
	}
	allowed, err := parseAllowed(status)
	if err != nil {
		return fmt.Errorf("read %s/status: %w", dir, err)
	}
	if m := vcpuThread.FindStringSubmatch(comm); m != nil {
		number, err := strconv.Atoi(m[1])
		if err != nil {
			return err
		}
		p.vcpus[number] = allowed
		return nil
	}
	p.others = p.others.Or(allowed)
	return nil
}

func vhostThread(pid string) string { return "vhost-" + pid }

// vhostWorkers counts those that are processes by themselves, as they were before Linux 6.4.
func vhostWorkers(proc fs.FS, pid string) (n int, err error) {
	entries, err := fs.ReadDir(proc, ".")
	for _, e := range entries {
		if !isNumber(e.Name()) {
			continue
		}
		if comm, err := fs.ReadFile(proc, e.Name()+"/comm"); err == nil && strings.TrimSpace(string(comm)) == vhostThread(pid) {
			n++
		}
	}
	return n, err
}

// parseAllowed finds the CPUs that a thread may run on in its status.
func parseAllowed(status []byte) (testbed.CPUs, error) {
	for line := range strings.Lines(string(status)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			return testbed.ParseCPUs(list)
		}
	}
	return nil, errors.New("it has no line Cpus_allowed_list")
}

// parseHugePages adds up the mappings of a process with huge pages, in bytes by the size of their pages.
func parseHugePages(smaps []byte) (map[int64]int64, error) {
	huge := map[int64]int64{}
	var size int64
	lines := bufio.NewScanner(bytes.NewReader(smaps))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name != "Size" && name != "KernelPageSize" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 52)
		if err != nil {
			return nil, fmt.Errorf("read mappings: %q: %w", lines.Text(), err)
		}
		if name == "Size" {
			size = kib << 10
		} else if page := kib << 10; page >= testbed.MinHugePage {
			huge[page] += size
		}
	}
	return huge, lines.Err()
}
