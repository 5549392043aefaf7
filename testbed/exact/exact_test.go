package exact

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/images"
)

// TestMain is also process 1 of the machines under test.
func TestMain(m *testing.M) {
	if os.Getpid() != 1 {
		os.Exit(m.Run())
	}
	if err := behave(); err != nil {
		panic(err)
	}
}

// behave does what the job says, word by word, and says the words that it does not know.
func behave() error {
	guest, err := Enter()
	if err != nil {
		return err
	}
	job, err := guest.Job()
	if err != nil {
		return err
	}
	for word := range strings.FieldsSeq(string(job)) {
		switch word {
		case "panic":
			return errors.New("as asked")
		case "sleep":
			time.Sleep(1000 * time.Hour)
		case "spin":
			for forever := time.Now(); time.Since(forever) >= 0; {
			}
		case "end":
			err = guest.End()
		case "off":
			err = guest.PowerOff()
		default:
			err = guest.Say([]byte(word))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// needs skips a test that cannot run here, and fails it where nothing may be skipped.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("RAMPART_TEST_NO_SKIP") == "1" {
		t.Fatalf("%s is needed, and this run may not skip", program)
	}
	t.Skipf("%s is needed", program)
}

// behavingMachine is a machine with that process 1.
func behavingMachine(t *testing.T) Machine {
	t.Helper()
	needs(t, program)
	needs(t, "mmdebstrap")
	exe := filepath.Join(t.TempDir(), "exact.test")
	build := exec.Command("go", "test", "-c", "-o", exe, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build this test as a guest: %v\n%s", err, out)
	}
	store, err := images.Open("")
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.Build(t.Context(), images.Spec{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := NewBundle(image, exe, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	machine, err := New(t.Context(), bundle)
	if err != nil {
		t.Fatal(err)
	}
	return machine
}

func TestMachine(t *testing.T) {
	machine := behavingMachine(t)
	for _, tt := range []struct {
		name, job string
		patience  time.Duration
		lines     string // joined by spaces; "any": how far it comes depends on this computer
		failure   string // part of the GuestError; "" for none
		console   string // part of the console
	}{
		{name: "a job that is done", job: "one two end off", lines: "one two"},
		{name: "a guest that stops half-way", job: "one off", lines: "one", failure: "before its work was done"},
		{name: "a guest that panics", job: "panic", failure: "before its work was done", console: "Kernel panic"},
		{name: "a guest that sleeps for ever", job: "one sleep", patience: 30 * time.Second, lines: "any", failure: "said nothing for 30s"},
		{name: "a guest that spins for ever", job: "one spin", patience: 30 * time.Second, lines: "any", failure: "said nothing for 30s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			job := Job{Content: []byte(tt.job), Salt: "test", Patience: tt.patience, Line: func(line []byte) error {
				lines = append(lines, string(line))
				return nil
			}}
			if job.Patience == 0 {
				job.Patience = 5 * time.Minute
			}
			err := machine.Run(t.Context(), job)
			if got := strings.Join(lines, " "); got != tt.lines && tt.lines != "any" {
				t.Errorf("lines %q, want %q", got, tt.lines)
			}
			var failed *GuestError
			switch {
			case tt.failure == "" && err != nil:
				t.Fatal(err)
			case tt.failure == "":
			case !errors.As(err, &failed) || !strings.Contains(failed.Reason, tt.failure):
				t.Fatalf("got error %v, want a GuestError with %q", err, tt.failure)
			case !bytes.Contains(failed.Console, []byte(tt.console)):
				t.Errorf("%q is not on the console:\n%s", tt.console, failed.Console)
			}
		})
	}
}

// TestMachineEndsAtOnce cancels a machine, and has one whose words are not taken.
func TestMachineEndsAtOnce(t *testing.T) {
	machine := behavingMachine(t)
	refused := errors.New("no space left")
	for name, stop := range map[string]func(cancel func()) error{
		"cancelled": func(cancel func()) error { cancel(); return nil },
		"refused":   func(func()) error { return refused },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var at time.Time
			err := machine.Run(ctx, Job{Content: []byte("one spin"), Salt: "test", Patience: 5 * time.Minute, Line: func([]byte) error {
				at = time.Now()
				return stop(cancel)
			}})
			if !errors.Is(err, context.Canceled) && !errors.Is(err, refused) {
				t.Fatalf("got error %v", err)
			}
			if took := time.Since(at); took > 2*time.Second {
				t.Errorf("the machine ended %v after that", took)
			}
		})
	}
}

// TestFlags holds the command line to what the manual says makes figures the same.
func TestFlags(t *testing.T) {
	line := strings.Join(Machine{}.arguments("s-1"), " ")
	for _, want := range []string{
		"-accel tcg,thread=single", "-icount shift=0,sleep=off,rr=record,rrfile=/dev/null", "-rtc base=2026-01-01,clock=vm",
		"-seed 1", "-smp 1", "-nodefaults", "-nic none", "rampart.salt=s-1 -- guest",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is not in %s", want, line)
		}
	}
	for _, not := range []string{"-drive", "virtio", "-netdev", "-qmp", "pipe"} {
		if strings.Contains(line, not) {
			t.Errorf("%q is in %s", not, line)
		}
	}
}

// TestBundleIsTheSame makes the base of an image twice.
func TestBundleIsTheSame(t *testing.T) {
	needs(t, "mmdebstrap")
	store, err := images.Open("")
	if err != nil {
		t.Fatal(err)
	}
	image, err := store.Build(t.Context(), images.Spec{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var digests []string
	for range 2 {
		b, err := NewBundle(image, os.Args[0], t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, b.BaseDigest)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests %s", digests)
	}
}
