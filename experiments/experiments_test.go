package experiments

import (
	"testing"
	"time"

	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/testbed"
)

func study() Spec {
	return Spec{
		Name:        "latency",
		Measurement: Measurement{Kind: ICMPRTT, Count: 200, Interval: 2 * time.Millisecond, Warmup: 20},
		Firewalls: []firewall.Spec{
			{Name: "none", Engine: firewall.None},
			{Name: "nftables-linear", Engine: firewall.Nftables, Lookup: firewall.Linear},
		},
		Rules:       []int{10, 100, 1000},
		FrameSizes:  []int{64, 1518},
		Repetitions: 5, Boots: 1, Seed: 1,
	}
}

// TestMatrixOfControls: a firewall without rules has one number of rules, 0, and not one cell for each.
func TestMatrixOfControls(t *testing.T) {
	cells := map[string]int{}
	for _, c := range study().Design().Treatments {
		cells[c.Firewall]++
		if (c.Firewall == "none") != (c.Rules == 0) {
			t.Errorf("treatment %+v", c)
		}
	}
	if cells["none"] != 2 || cells["nftables-linear"] != 6 {
		t.Errorf("cells: %v, want 2 of none and 6 of nftables-linear", cells)
	}
}

func TestEstimates(t *testing.T) {
	schedules, err := Schedules([]Spec{study()})
	if err != nil {
		t.Fatal(err)
	}
	runs := len(schedules[0].Plan.Runs)
	if runs != 40 {
		t.Fatalf("%d runs, want 40", runs)
	}
	// 0.40 s measured, 0.04 s warm-up, and what a run costs beside.
	least := time.Duration(runs) * 440 * time.Millisecond
	host, tcg := schedules[0].EstimateTime(testbed.ClockHost), schedules[0].EstimateTime(testbed.ClockTCG)
	if host < least || host > 3*least || tcg < 2*host {
		t.Errorf("estimates %s, and %s with emulated machines, for runs that take at least %s", host, tcg, least)
	}
	p := Progress{Done: 10, Total: 40}
	if got := p.Left(20*time.Second, 0); got != time.Minute {
		t.Errorf("ten runs took 20 s, so thirty take %s?", got)
	}
	if got := (Progress{Done: 4, Total: 40}).Left(time.Second, 4); got != 0 {
		t.Errorf("nothing was measured in this session, yet %s are left", got)
	}
}

// TestQuantile holds the quantile to R: quantile(c(1, 2, 4, 8), c(0, .5, .99, 1)) is 1, 3, 7.88, 8.
func TestQuantile(t *testing.T) {
	for q, want := range map[float64]float64{0: 1, 0.5: 3, 0.99: 7.88, 1: 8} {
		if got := quantile([]int64{1, 2, 4, 8}, q); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("quantile %g is %g, want %g", q, got, want)
		}
	}
	if got := quantile([]int64{5}, 0.5); got != 5 {
		t.Errorf("the median of one value is %g", got)
	}
}

// TestFirstFailure: a check that does not hold is told with what was wanted and what was there.
func TestFirstFailure(t *testing.T) {
	checks := []record.Check{
		{Name: "rules loaded", Want: 10, Got: 10, OK: true},
		{Name: "set elements", Want: 10, Got: 9, Detail: "198.18.0.1 is missing"},
	}
	err := firstFailure(checks)
	if want := `check "set elements": want 10, got 9 (198.18.0.1 is missing)`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := firstFailure(checks[:1]); err != nil {
		t.Error(err)
	}
}
