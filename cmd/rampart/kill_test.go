package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
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
