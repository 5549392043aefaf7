package main_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rampart-bench/rampart/experiments"
	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/testbed"
	"github.com/rampart-bench/rampart/testbed/netns"
)

// turns is a study of two images that are namespaces of one kernel in truth: what is tested is who is up when.
type turns struct {
	t        *testing.T
	provider *netns.Provider
	spec     testbed.Spec
	up       testbed.Testbed

	booted    []string // images, in the order in which they were brought up
	described []string // images of which the nodes were told
	records   []record.Record
	breakAt   int // the record behind which the testbed is torn down under the study
}

func (u *turns) fresh(ctx context.Context, image string) (testbed.Testbed, error) {
	if u.up != nil {
		_ = u.up.Close()
	}
	if err := u.provider.Down(ctx, u.spec.Name); err != nil {
		return nil, err
	}
	u.booted = append(u.booted, image)
	var err error
	u.up, err = u.provider.Up(ctx, u.spec)
	return u.up, err
}

// run measures what is left of the schedules.
func (u *turns) run(schedules []experiments.Schedule, done int) error {
	isDone := func(_ string, sequence int) bool { return sequence <= done }
	ctx, cancel := context.WithTimeout(u.t.Context(), time.Minute)
	defer cancel()
	first, err := u.fresh(ctx, experiments.NextImage(schedules, isDone))
	if err != nil {
		return err
	}
	execution := experiments.Execution{
		Schedules: schedules, Testbed: u.spec, Fresh: u.fresh, Executable: filepath.Join(bin, "rampart"), Done: isDone,
		Append: func(r record.Record) error {
			u.records = append(u.records, r)
			if len(u.records) == u.breakAt {
				return u.provider.Down(ctx, u.spec.Name)
			}
			return nil
		},
		Booted: func(image string, nodes map[string]record.Environment) error {
			if nodes["firewall"].Kernel == "" {
				return fmt.Errorf("image %s: no kernel of the firewall", image)
			}
			u.described = append(u.described, image)
			return nil
		},
		Observe: func(experiments.Progress) {}, Log: slog.New(slog.DiscardHandler),
	}
	return execution.Run(ctx, first)
}

// TestImagesTakeTurns follows a split plot: each boot brings every image up once, a testbed that breaks comes back with
// its own image, and a study that goes on begins with the image that it needs.
func TestImagesTakeTurns(t *testing.T) {
	if os.Geteuid() != 0 {
		unprivileged(t, "images that take turns", "root")
		return
	}
	spec := testbed.Default()
	spec.Name = fmt.Sprintf("turns-%d", os.Getpid()%100000)
	u := &turns{t: t, spec: spec, provider: netns.New(netns.Options{Log: slog.New(slog.DiscardHandler)})}
	t.Cleanup(func() {
		if err := u.provider.Down(context.Background(), spec.Name); err != nil {
			t.Error(err)
		}
	})
	schedules, err := experiments.Schedules([]experiments.Spec{{
		Name: "latency", Measurement: experiments.Measurement{Kind: experiments.ICMPRTT, Count: 5, Interval: time.Millisecond},
		Images: []string{"old", "new"}, Firewalls: []firewall.Spec{{Name: "none", Engine: firewall.None}, {Name: "empty", Engine: firewall.Empty}},
		FrameSizes: []int{64}, Repetitions: 4, Boots: 2, Seed: 3,
	}})
	if err != nil {
		t.Fatal(err)
	}
	plan := schedules[0].Plan.Runs // 2 boots of 2 images, 2 blocks of 2 treatments in each
	var want []string
	for turn := range slices.Chunk(plan, 4) {
		want = append(want, turn[0].Treatment.Image)
	}

	u.breakAt = 6 // in the middle of the second turn
	if err := u.run(schedules, 0); err != nil {
		t.Fatal(err)
	}
	broken := slices.Insert(slices.Clone(want), 2, want[1])
	if !slices.Equal(u.booted, broken) {
		t.Errorf("booted %v, want %v: the second testbed broke", u.booted, broken)
	}
	if slices.Sort(u.described); strings.Join(u.described, " ") != "new old" {
		t.Errorf("nodes were described of %v, want of each image once", u.described)
	}
	for i, r := range u.records {
		if r.Status != record.OK || r.Sequence != i+1 || r.Boot != plan[i].Boot || r.Treatment.Image != plan[i].Treatment.Image {
			t.Errorf("record %d: %s, boot %d, %+v (%s), want %+v", i, r.Status, r.Boot, r.Treatment, r.Error, plan[i])
		}
	}
	if len(u.records) != len(plan) {
		t.Errorf("%d records, want %d", len(u.records), len(plan))
	}

	u.booted, u.records, u.breakAt = nil, nil, 0
	if err := u.run(schedules, 5); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(u.booted, want[1:]) || len(u.records) != len(plan)-5 {
		t.Errorf("went on with %v and %d records, want %v and %d", u.booted, len(u.records), want[1:], len(plan)-5)
	}
}
