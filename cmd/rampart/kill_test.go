package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// killed is the study of TestKilledAtAnyMoment: 24 runs, about two seconds.
const killed = `
testbed {
  name     = %q
  provider = "netns"
}
experiment "latency" {
  measurement "icmp_rtt" {
    count    = 20
    interval = "1ms"
    warmup   = 2
  }
  matrix {
    firewall   = ["iptables-linear", "nftables-linear"]
    rules      = [10, 100]
    frame_size = [64]
  }
  controls    = false
  repetitions = 6
}
`

// TestKilledAtAnyMoment kills the program with SIGKILL at twenty random moments. Each time every record
// that was there is there still, and the next run finds and removes what is left and goes on.
func TestKilledAtAnyMoment(t *testing.T) {
	if os.Geteuid() != 0 {
		unprivileged(t, t.Name(), "root")
		return
	}
	t.Parallel()
	dir := t.TempDir()
	name := fmt.Sprintf("k%d", os.Getpid()%100000)
	t.Cleanup(func() { removeTestbed(t, name) })
	if err := os.WriteFile(filepath.Join(dir, "rampart.hcl"), fmt.Appendf(nil, killed, name), 0o644); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	start := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.Command(filepath.Join(bin, "rampart"), args...)
		cmd.Dir = dir
		said := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = said, said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, said
	}
	study, before := 0, []byte(nil)
	for range 20 {
		out := fmt.Sprint("out", study)
		cmd, said := start("run", "--out", out)
		moment := time.Duration(random.Int64N(int64(1500 * time.Millisecond)))
		killer := time.AfterFunc(moment, func() { cmd.Process.Kill() })
		err := cmd.Wait()
		killer.Stop()
		if err != nil && cmd.ProcessState.ExitCode() != -1 {
			t.Fatalf("to be killed after %s, it failed by itself: %v\n%s", moment, err, said)
		}
		records := whole(t, filepath.Join(dir, out, "records.jsonl"))
		if !bytes.HasPrefix(records, before) {
			t.Fatalf("killed after %s, records were lost: %d bytes were there, now %d", moment, len(before), len(records))
		}
		before = records
		if err == nil { // it was done first: the next one begins anew
			study, before = study+1, nil
		}
	}
	last, said := start("run", "--out", fmt.Sprint("out", study))
	if err := last.Wait(); err != nil {
		t.Fatalf("the last run: %v\n%s", err, said)
	}
	left, err := exec.Command("sh", "-c", "ip netns list; ls /run/rampart").CombinedOutput()
	if err != nil || bytes.Contains(left, []byte(name+"-")) {
		t.Errorf("%v: there is left:\n%s", err, left)
	}
}

// killedMachines is the study of TestMachinesKilledAtAnyMoment: ten runs of a second or two each.
const killedMachines = `
testbed {
  name     = %q
  provider = "libvirt"
  node "sender" { memory = "256MiB" }
  node "firewall" { memory = "256MiB" }
  node "receiver" { memory = "256MiB" }
}
experiment "latency" {
  measurement "icmp_rtt" {
    count    = 10
    interval = "2ms"
    warmup   = 2
  }
  matrix {
    firewall   = ["nftables-linear"]
    rules      = [10]
    frame_size = [64]
  }
  controls    = false
  repetitions = 10
}
`

// TestMachinesKilledAtAnyMoment kills the program with SIGKILL while it runs a study on virtual machines,
// while it brings them up, and while it removes them, at random moments: three, or fifty with
// RAMPART_TEST_LONG=1, and as many more as it takes to have whole rounds. No record is lost, and after each three `rampart down` leaves nothing at all.
func TestMachinesKilledAtAnyMoment(t *testing.T) {
	if lacks := lacking("libvirt-"); lacks != "" {
		unprivileged(t, t.Name(), lacks)
		return
	}
	t.Parallel()
	moments := 3
	if os.Getenv("RAMPART_TEST_LONG") == "1" {
		moments = 50
	}
	v := newVictim(t, killedMachines)
	booting := v.timeUp()
	for v.kills < moments {
		v.killWhileRunning(3 * booting)
		v.kill(booting, "up")
		v.kill(2*time.Second, "down")
		v.removeAll()
	}
	t.Logf("%d commands killed, %d were done before; %d records, and none lost", v.kills, v.spared, v.kept+bytes.Count(v.records, []byte("\n")))
}

// victim is a testbed whose program is killed again and again.
type victim struct {
	*testing.T
	dir, bed string
	random   *rand.Rand
	studies  int             // that were finished
	kept     int             // records of those
	records  []byte          // of the study under way
	ids      map[string]bool // of every testbed of that name that was seen

	kills, spared int // commands that were killed, and that were done first
}

func newVictim(t *testing.T, configuration string) *victim {
	v := &victim{T: t, dir: t.TempDir(), bed: fmt.Sprintf("kv%d", os.Getpid()%100000), ids: map[string]bool{}}
	t.Cleanup(func() { removeTestbed(t, v.bed) })
	if err := os.WriteFile(filepath.Join(v.dir, "rampart.hcl"), fmt.Appendf(nil, configuration, v.bed), 0o644); err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	v.random = rand.New(rand.NewPCG(seed, 0))
	return v
}

// timeUp is how long it takes to bring the testbed up here and now.
func (v *victim) timeUp() time.Duration {
	v.Helper()
	started := time.Now()
	up := exec.Command(filepath.Join(bin, "rampart"), "up")
	up.Dir = v.dir
	if said, err := up.CombinedOutput(); err != nil {
		v.Fatalf("up: %v\n%s", err, said)
	}
	took := time.Since(started)
	v.removeAll()
	return took
}

// kill starts a command and kills it at a random moment within that time. It reports whether the command
// was done first.
func (v *victim) kill(within time.Duration, args ...string) (done bool) {
	v.Helper()
	cmd := exec.Command(filepath.Join(bin, "rampart"), args...)
	cmd.Dir = v.dir
	said := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		v.Fatal(err)
	}
	moment := time.Duration(v.random.Int64N(int64(within)))
	killer := time.AfterFunc(moment, func() { cmd.Process.Kill() })
	defer killer.Stop()
	err := cmd.Wait()
	if err != nil && cmd.ProcessState.ExitCode() != -1 {
		v.Fatalf("%q, to be killed after %s, failed by itself: %v\n%s", args, moment, err, said)
	}
	v.Logf("%q killed after %s: %v", args, moment.Round(time.Millisecond), err != nil)
	v.noteIDs()
	if err == nil {
		v.spared++
		return true
	}
	v.kills++
	return false
}

// killWhileRunning kills the study, which goes on where the one before was killed.
func (v *victim) killWhileRunning(within time.Duration) {
	v.Helper()
	out := fmt.Sprint("out", v.studies)
	done := v.kill(within, "run", "--out", out)
	records := whole(v.T, filepath.Join(v.dir, out, "records.jsonl"))
	if !bytes.HasPrefix(records, v.records) {
		v.Fatalf("records were lost: %d bytes were there, now %d", len(v.records), len(records))
	}
	v.records = records
	if done {
		v.kept += bytes.Count(v.records, []byte("\n"))
		v.studies, v.records = v.studies+1, nil
	}
}

// noteIDs remembers the ids of the testbed, by which its bridges are called.
func (v *victim) noteIDs() {
	v.Helper()
	names, err := exec.Command("sh", "-c", "virsh -q net-list --all --name; ls /var/lib/rampart").Output()
	if err != nil {
		v.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\b`+v.bed+`-([0-9a-f]{6})\b`).FindAllSubmatch(names, -1) {
		v.ids[string(m[1])] = true
	}
}

// removeAll takes the testbed down and looks everywhere for what may be left of it.
func (v *victim) removeAll() {
	v.Helper()
	down := exec.Command(filepath.Join(bin, "rampart"), "down")
	down.Dir = v.dir
	if said, err := down.CombinedOutput(); err != nil {
		v.Fatalf("down: %v\n%s", err, said)
	}
	// Names of domains, networks, volumes and folders; arguments of processes; links, with their masters.
	seen, err := exec.Command("sh", "-c", `virsh -q list --all --name; virsh -q net-list --all --name
		for pool in $(virsh -q pool-list --name); do virsh -q vol-list "$pool"; done
		ls /var/lib/rampart; ps -eo args; ip -o link`).Output()
	if err != nil {
		v.Fatal(err)
	}
	for line := range strings.Lines(string(seen)) {
		left := strings.Contains(line, "rampart-"+v.bed+"-") || strings.HasPrefix(line, v.bed+"-")
		for id := range v.ids {
			left = left || strings.Contains(line, "rp"+id+"-")
		}
		if left {
			v.Errorf("left behind: %.200s", line)
		}
	}
}

// whole reads the whole lines of a records file, each of which must be JSON. A file that is not there yet
// has none.
func whole(t *testing.T, path string) []byte {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	for line := range bytes.Lines(text) {
		if !json.Valid(line) {
			t.Fatalf("%s: not JSON: %.100s", path, line)
		}
	}
	return text
}
