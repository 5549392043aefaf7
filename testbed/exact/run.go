package exact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A Job is work for one machine, which starts for it and ends with it.
type Job struct {
	// Content is what [Guest.Job] returns in the guest.
	Content []byte
	// Salt tells replicates of the same job apart: letters, digits, - and . only.
	Salt string
	// Patience is for how long, in real time, the guest may say nothing before it counts as hung.
	Patience time.Duration
	// Line is called with every line that the guest says, in order and without its newline. When it
	// returns an error, the machine is ended.
	Line func([]byte) error
}

// endLine is the last line of a guest that did its job.
const endLine = "end"

// look is how often the host looks for new lines.
const look = 25 * time.Millisecond

// Run starts the machine and returns when the guest has said everything and the machine is gone. The
// error is a [*GuestError] when the guest ended, panicked or hung before its job was done, that of
// Line when that failed, or ctx's when cancelled; the machine is gone in any case.
func (m Machine) Run(ctx context.Context, job Job) error {
	vm := &vm{job: job}
	defer vm.close()
	if err := vm.open(ctx, m.Bundle); err != nil {
		return fmt.Errorf("prepare virtual machine: %w", err)
	}
	// The kernel's parent-death signal follows the thread that started the process, so it must
	// outlive it: QEMU dies with us, however we die.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cmd := vm.command(ctx, m, job.Salt)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start virtual machine: %w", err)
	}
	ended := make(chan struct{})
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		if err := vm.follow(ctx, ended); err != nil {
			cancel(err)
		}
	}()
	exit := cmd.Wait()
	close(ended)
	<-followed
	return vm.judge(ctx, exit)
}

// A vm is one machine at work.
type vm struct {
	job                     Job
	archive, console, lines *os.File
	said                    bytes.Buffer // by QEMU on standard error
	complete                bool         // the guest said endLine
}

func (v *vm) open(ctx context.Context, b Bundle) (err error) {
	if v.archive, err = b.archive(ctx, v.job.Content); err != nil {
		return err
	}
	if v.console, err = memoryFile("console"); err != nil {
		return err
	}
	v.lines, err = memoryFile("lines")
	return err
}

func (v *vm) close() {
	for _, f := range []*os.File{v.archive, v.console, v.lines} {
		if f != nil {
			f.Close()
		}
	}
}

// command is QEMU as a process that nothing but us can end by accident, and that ends with us.
func (v *vm) command(ctx context.Context, m Machine, salt string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, m.QEMU, m.arguments(salt)...)
	cmd.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	cmd.ExtraFiles = []*os.File{v.archive, v.console, v.lines}
	cmd.Stderr = &v.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// follow hands over the guest's lines as they come, until it has ended.
func (v *vm) follow(ctx context.Context, ended <-chan struct{}) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	var at int64
	var rest []byte
	heard := time.Now()
	for last := false; ; {
		fresh, err := readFrom(v.lines, at)
		if err != nil {
			return err
		}
		if len(fresh) > 0 {
			at += int64(len(fresh))
			heard = time.Now()
			if rest, err = v.take(append(rest, fresh...)); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		if time.Since(heard) > v.job.Patience {
			return errSilent
		}
		select {
		case <-ended:
			last = true // and look once more
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// take hands over the complete lines of text and returns what is left.
func (v *vm) take(text []byte) (rest []byte, err error) {
	for {
		line, after, found := bytes.Cut(text, []byte("\n"))
		if !found {
			return text, nil
		}
		text = after
		if string(line) == endLine {
			v.complete = true
			continue
		}
		if err := v.job.Line(line); err != nil {
			return nil, err
		}
	}
}

// readFrom reads what a file has from an offset on.
func readFrom(f *os.File, at int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil || info.Size() <= at {
		return nil, err
	}
	content := make([]byte, info.Size()-at)
	n, err := f.ReadAt(content, at)
	if n < len(content) {
		return nil, fmt.Errorf("read what the guest says: %w", err)
	}
	return content, nil
}

// judge says how the machine's end is to be seen.
func (v *vm) judge(ctx context.Context, exit error) error {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errSilent):
		return v.failure(fmt.Sprintf("%v: it said nothing for %v", errSilent, v.job.Patience))
	case cause != nil:
		return cause
	case exit != nil:
		return v.failure("the virtual machine ended by itself: " + exit.Error())
	case !v.complete:
		return v.failure("the guest ended before its work was done")
	}
	return nil
}

func (v *vm) failure(reason string) error {
	console, _ := readFrom(v.console, 0)
	return &GuestError{Reason: reason, Console: console, QEMU: strings.TrimSpace(v.said.String())}
}
