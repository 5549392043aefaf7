package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/exact"
	"github.com/rampart-bench/rampart/testbed/netns"
)

// A guestJob is what a machine of provider exact does.
type guestJob struct {
	Testbed testbed.Spec `json:"testbed"`
	// Schedule is an experiment with the runs of one unit.
	Schedule experiments.Schedule `json:"schedule"`
	// Try lists firewalls to load two rules with, instead of measuring.
	Try []firewall.Spec `json:"try,omitempty"`
}

// A guestLine is one line that the machine says. One field is set.
type guestLine struct {
	Record *record.Record `json:"record,omitempty"`
	Tried  *trial         `json:"tried,omitempty"`
	Nodes  *nodeFacts     `json:"nodes,omitempty"` // once, when the runs are done
	Error  string         `json:"error,omitempty"` // what ended the job early
}

// A trial is what became of two rules.
type trial struct {
	Firewall string `json:"firewall"`
	Error    string `json:"error,omitempty"`
}

// nodeFacts are what the inside of a machine knows of itself.
type nodeFacts struct {
	Features     testbed.Features              `json:"features"`
	Environments map[string]record.Environment `json:"environments"`
}

// guestCommand is process 1 of a machine of provider exact. People do not call it.
func (c *cli) guestCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guest",
		Short:  "Do a job inside a virtual machine (provider exact starts this)",
		Hidden: true,
		Args:   arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			guest, err := exact.Enter()
			if err != nil {
				return fmt.Errorf("guest: %w", err)
			}
			if err := c.doJob(cmd.Context(), guest); err != nil {
				// Process 1 has nobody to return an exit status to.
				return errors.Join(err, say(guest, guestLine{Error: err.Error()}), guest.PowerOff())
			}
			return errors.Join(guest.End(), guest.PowerOff())
		},
	}
}

// doJob brings the testbed up inside this machine and does the job on it.
func (c *cli) doJob(ctx context.Context, guest *exact.Guest) error {
	text, err := guest.Job()
	if err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	var job guestJob
	if err := json.Unmarshal(text, &job); err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	provider := netns.New(netns.Options{Clock: testbed.ClockVirtual, DedicatedKernel: true, Program: exact.Program, Log: c.log})
	inside := &bench{cli: c, spec: job.Testbed, provider: func(string) chosenProvider { return chosenProvider{Provider: provider, name: exact.Name} }}
	tb, err := inside.fresh(ctx, experiments.NextImage([]experiments.Schedule{job.Schedule}, nothingDone))
	if err != nil {
		return err
	}
	if len(job.Try) > 0 {
		return c.tryInside(ctx, guest, tb, job)
	}
	execution := &experiments.Execution{
		Schedules:  []experiments.Schedule{job.Schedule},
		Testbed:    job.Testbed,
		Fresh:      inside.fresh,
		Executable: exact.Program,
		Done:       nothingDone,
		Append:     func(rec record.Record) error { return say(guest, guestLine{Record: &rec}) },
		Observe:    func(experiments.Progress) {},
		Log:        c.log,
	}
	if err := execution.Run(ctx, tb); err != nil {
		return err
	}
	return describeInside(ctx, guest, inside.current, job.Testbed)
}

// nothingDone is what a machine that has just started has done of its job.
func nothingDone(string, int) bool { return false }

// tryInside loads two rules with each firewall of the job.
func (c *cli) tryInside(ctx context.Context, guest *exact.Guest, tb testbed.Testbed, job guestJob) error {
	lab, err := experiments.Connect(ctx, tb, job.Testbed, exact.Program)
	if err != nil {
		return err
	}
	defer lab.Close()
	for _, fw := range job.Try {
		t := trial{Firewall: fw.Name}
		if err := lab.Try(ctx, fw); err != nil {
			t.Error = err.Error()
		}
		if err := say(guest, guestLine{Tried: &t}); err != nil {
			return err
		}
	}
	return nil
}

// describeInside says what the nodes are. It comes after the runs, so that it cannot change them.
func describeInside(ctx context.Context, guest *exact.Guest, tb testbed.Testbed, spec testbed.Spec) error {
	lab, err := experiments.Connect(ctx, tb, spec, exact.Program)
	if err != nil {
		return err
	}
	defer lab.Close()
	all, err := lab.Describe(ctx)
	if err != nil {
		return err
	}
	return say(guest, guestLine{Nodes: &nodeFacts{tb.Features(), all}})
}

func say(guest *exact.Guest, line guestLine) error {
	text, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	return guest.Say(text)
}
