package analysis_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

func against(t testing.TB, before, after analysis.Measured, limits analysis.Limits) analysis.Changes {
	t.Helper()
	c, err := analysis.Against(before, after, limits)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func measured(s analysis.Study, w truth) analysis.Measured {
	return analysis.Measured{Study: s, Records: w.records(s)}
}

func changeOf(t *testing.T, c analysis.Changes, metric, firewall string, rules, size int) analysis.Change {
	t.Helper()
	for _, cell := range c.Cells {
		if cell.Metric == metric && cell.Firewall == firewall && cell.Rules == rules && cell.FrameSize == size {
			return cell
		}
	}
	t.Fatalf("no change of %s, %s, %d rules, %d bytes", metric, firewall, rules, size)
	return analysis.Change{}
}

func warned(c analysis.Changes, part string) bool {
	return slices.ContainsFunc(c.Warnings, func(w analysis.Warning) bool { return strings.Contains(w.Text, part) })
}

// slowed is the same world with one firewall slower by a factor.
func (w truth) slowed(firewall string, factor float64) truth {
	usual := w
	w.rtt = func(f string, rules, frame int) float64 {
		us := usual.latency(f, rules, frame)
		if f == firewall {
			us *= factor
		}
		return us
	}
	return w
}

func TestAgainstFindsWhatChanged(t *testing.T) {
	s := jonsson(12)
	world := truth{noise: 0.01, seed: 1}
	later := world.slowed("nftables-linear", 1.10).slowed("nftables-indexed", 0.90)
	later.seed = 2
	c := against(t, measured(s, world), measured(s, later), analysis.Limits{})
	for _, cell := range c.Cells {
		want := analysis.Equivalent
		switch {
		case cell.Metric == "rule_load" || cell.Metric == "rtt_p99":
			continue // 5 % of noise
		case cell.Firewall == "nftables-linear":
			want = analysis.Slower
		case cell.Firewall == "nftables-indexed":
			want = analysis.Faster
		}
		if cell.Verdict != want && !(want == analysis.Equivalent && cell.Verdict == analysis.Inconclusive) {
			t.Errorf("%+v, want %s", cell, want)
		}
		if cell.Changed() && (cell.Worsening() > 1) != (cell.Verdict == analysis.Slower) {
			t.Errorf("%s with a worsening of %g", cell.Verdict, cell.Worsening())
		}
		if cell.Test.Family != 364 || cell.Blocks != nil {
			t.Errorf("%+v: want one family of all cells", cell.Test)
		}
	}
	for _, n := range c.Counts {
		if (n.Metric == "rtt_median" || n.Metric == "receiver_bit_rate") && (n.Slower != 70 || n.Faster != 70) {
			t.Errorf("%+v", n)
		}
	}
	if worse, missing := c.Regressed(); worse < 2*70 || missing != 0 {
		t.Errorf("%d worse, %d missing", worse, missing)
	}
	if len(c.Counts) != 5 || !warned(c, "at different times") {
		t.Errorf("%+v %v", c.Counts, c.Warnings)
	}
	// The A/A pairs of both sides.
	if len(c.NoiseFloors) != 5 || c.NoiseFloors[0].Cells != 2*70 {
		t.Errorf("%+v", c.NoiseFloors)
	}
	// A threshold beyond the change lets it pass.
	c = against(t, measured(s, world), measured(s, later), analysis.Limits{Threshold: 0.2, Metrics: []string{"rtt_median"}})
	if worse, _ := c.Regressed(); worse != 0 || len(c.Counts) != 1 {
		t.Errorf("threshold 20 %%: %d worse, %+v", worse, c.Counts)
	}
}

// Nothing changed: a false alarm in a family is rare.
func TestAgainstRarelyAlarmsFalsely(t *testing.T) {
	s := small(8)
	alarms, families := 0, 0
	for seed := range uint64(150) {
		world, later := truth{noise: 0.06, seed: seed}, truth{noise: 0.06, seed: seed + 1000}
		c := against(t, measured(s, world), measured(s, later), analysis.Limits{Metrics: []string{"rtt_median"}})
		for _, n := range c.Counts {
			families++
			if n.Slower+n.Faster > 0 {
				alarms++
			}
		}
	}
	// Binomial(150, 0.05) exceeds 18 less than once in a thousand times.
	t.Logf("%d alarms in %d families", alarms, families)
	if alarms > 18 {
		t.Errorf("%d alarms in %d families: more than the level allows", alarms, families)
	}
}

func virtual(records []record.Record, change func(*record.Record)) []record.Record {
	out := slices.Clone(records)
	for i := range out {
		r := &out[i]
		r.Clock = "virtual"
		us := map[string]record.Metric{}
		for name, m := range r.Metrics {
			m.Value = math.Round(m.Value*1000) / 1000 // whole nanoseconds
			us[name] = m
		}
		r.Metrics = us
		if change != nil {
			change(r)
		}
	}
	return out
}

func add(us float64) func(*record.Record) {
	return func(r *record.Record) {
		if r.Treatment.Firewall == "nftables-linear" {
			m := r.Metrics["rtt_median"]
			m.Value += us
			r.Metrics["rtt_median"] = m
		}
	}
}

// One instruction more each way is seen with three blocks, although the replicates differ by a per cent and
// Holm over this family could never pass.
func TestAgainstSeesTwoInstructions(t *testing.T) {
	s := small(3)
	records := list(truth{noise: 0.01, seed: 5}.records(s))
	side := func(change func(*record.Record)) analysis.Measured {
		return analysis.Measured{Study: s, Records: sequence(virtual(records, change))}
	}
	same := against(t, side(nil), side(nil), analysis.Limits{})
	for _, cell := range same.Cells {
		if cell.Verdict != analysis.Equivalent || cell.Minor || cell.Ratio.Value != 1 || cell.Blocks.Paired != 3 || cell.Test != nil {
			t.Errorf("%+v", cell)
		}
	}
	if len(same.Warnings) != 1 || !warned(same, "rtt_p99 is left out") || same.Clock != "virtual" || len(same.NoiseFloors) != 0 {
		t.Errorf("%v", same.Warnings)
	}
	for verdict, ns := range map[string]float64{analysis.Slower: 0.002, analysis.Faster: -0.002} {
		c := against(t, side(nil), side(add(ns)), analysis.Limits{})
		for _, cell := range c.Cells {
			want := analysis.Equivalent
			if cell.Firewall == "nftables-linear" && cell.Metric == "rtt_median" {
				want = verdict
			}
			if cell.Verdict != want {
				t.Errorf("%+v, want %s", cell, want)
			}
		}
		// Within a threshold it is noted and passes.
		c = against(t, side(nil), side(add(ns)), analysis.Limits{Threshold: 0.001})
		if n := c.Counts[0]; n.Slower+n.Faster != 0 || n.Minor != 6 {
			t.Errorf("threshold: %+v", n)
		}
	}
	uneven := against(t, side(nil), side(func(r *record.Record) { add(0.002 * float64(r.Block-2))(r) }), analysis.Limits{})
	if cell := changeOf(t, uneven, "rtt_median", "nftables-linear", 10, 64); cell.Verdict != analysis.Inconclusive || cell.Blocks.Up != 1 || cell.Blocks.Down != 1 {
		t.Errorf("%+v %+v", cell, cell.Blocks)
	}
}

// layout moves all values of a block alike, by what was seen when only bytes around the program changed.
func layout(r *record.Record) {
	for _, name := range []string{"rtt_median", "rtt_p99"} {
		m := r.Metrics[name]
		m.Value = math.Round(m.Value*1000+[]float64{5, -7, -1}[r.Block-1]) / 1000
		r.Metrics[name] = m
	}
}

// Two nanoseconds are seen although the layout of memory moves each block by more, and the layout alone is
// no change.
func TestAgainstSeesBeyondTheLayout(t *testing.T) {
	s := small(3)
	records := list(truth{noise: 0.001, seed: 5}.records(s))
	side := func(changes ...func(*record.Record)) analysis.Measured {
		return analysis.Measured{Study: s, Records: sequence(virtual(records, func(r *record.Record) {
			for _, change := range changes {
				change(r)
			}
		}))}
	}
	for _, ns := range []float64{0, 2} {
		c := against(t, side(), side(layout, add(ns/1000)), analysis.Limits{Metrics: []string{"rtt_median", "rtt_p99"}})
		for _, cell := range c.Cells {
			want := analysis.Equivalent
			switch {
			case cell.Firewall == "none":
				want = analysis.Inconclusive
			case cell.Firewall == "nftables-linear" && cell.Metric == "rtt_median" && ns > 0:
				want = analysis.Slower
			}
			if cell.Verdict != want || (cell.Blocks.Reference == "none") == (cell.Firewall == "none") {
				t.Errorf("%g ns: %+v %+v, want %s", ns, cell, cell.Blocks, want)
			}
		}
	}
	// What moves the arm without a firewall by more than layouts differ is seen on that arm.
	everything := func(r *record.Record) {
		m := r.Metrics["rtt_median"]
		m.Value += 0.5
		r.Metrics["rtt_median"] = m
	}
	c := against(t, side(), side(layout, everything), analysis.Limits{Metrics: []string{"rtt_median"}})
	if n := c.Counts[0]; n.Slower != 2 || n.Equivalent != len(c.Cells)-2 || changeOf(t, c, "rtt_median", "none", 0, 64).Verdict != analysis.Slower {
		t.Errorf("%+v", n)
	}
	// Without such an arm only what exceeds the spread of blocks is a change, and a note says so.
	bare := s
	bare.Experiments = slices.Clone(s.Experiments)
	bare.Experiments[0].Firewalls = bare.Experiments[0].Firewalls[1:]
	without := func(m analysis.Measured) analysis.Measured {
		kept := slices.DeleteFunc(list(m.Records), func(r record.Record) bool { return r.Treatment.Firewall == "none" })
		return analysis.Measured{Study: bare, Records: sequence(kept)}
	}
	for us, want := range map[float64]string{0.002: analysis.Inconclusive, 5: analysis.Slower} {
		c := against(t, without(side()), without(side(layout, add(us))), analysis.Limits{})
		if cell := changeOf(t, c, "rtt_median", "nftables-linear", 10, 64); cell.Verdict != want || !warned(c, "layout of memory") {
			t.Errorf("%g us: %+v %+v, want %s", us, cell, cell.Blocks, want)
		}
	}
}

// One block that moved says nothing unless it is known what would not matter.
func TestAgainstNeedsBlocks(t *testing.T) {
	s := small(1)
	records := list(truth{noise: 0.01, seed: 5}.records(s))
	side := func(change func(*record.Record)) analysis.Measured {
		return analysis.Measured{Study: s, Records: sequence(virtual(records, change))}
	}
	c := against(t, side(nil), side(add(1)), analysis.Limits{})
	if worse, _ := c.Regressed(); worse != 0 || !warned(c, "1 block moved, and 3 or more") {
		t.Errorf("%d worse, %v", worse, c.Warnings)
	}
	c = against(t, side(nil), side(add(1)), analysis.Limits{Threshold: 0.001})
	if worse, _ := c.Regressed(); worse != 6 {
		t.Errorf("%d worse, want 6", worse)
	}
}

// What was measured before and is not any more must not pass unseen.
func TestAgainstMissesNothing(t *testing.T) {
	s := small(6)
	records := list(truth{noise: 0.01, seed: 5}.records(s))
	broken := slices.Clone(records)
	for i := range broken {
		switch r := &broken[i]; r.Treatment.Firewall {
		case "nftables-linear":
			r.Status, r.Error, r.Metrics = record.Unavailable, "no such module", nil
		case "iptables-linear":
			r.Metrics = map[string]record.Metric{"rtt_median": r.Metrics["rtt_median"]}
		}
	}
	before := func() analysis.Measured { return analysis.Measured{Study: s, Records: sequence(records)} }
	c := against(t, before(), analysis.Measured{Study: s, Records: sequence(broken)}, analysis.Limits{})
	if _, missing := c.Regressed(); missing != 3*6 || c.Missing[0].Reason != "unavailable: no such module" || c.Missing[1].Metric != "rtt_p99" {
		t.Errorf("%d missing: %+v", missing, c.Missing)
	}
	if !warned(c, "36 runs after do not count, 0 before") {
		t.Errorf("%v", c.Warnings)
	}
	c = against(t, before(), analysis.Measured{Study: s, Records: sequence(nil)}, analysis.Limits{})
	if _, missing := c.Regressed(); missing == 0 || len(c.Cells) != 0 || c.Clock != "host" {
		t.Errorf("%+v", c)
	}
}

func TestAgainstComparesWhatBothHave(t *testing.T) {
	s, other := small(6), small(8)
	e := &other.Experiments[0]
	e.Rules, e.FrameSizes = []int{100, 1000, 2000}, []int{64}
	e.Firewalls = append(slices.Clone(e.Firewalls[1:]), analysis.Firewall{Name: "bare", Engine: "none"})
	e.Controls, e.Compare, e.Seed = nil, nil, e.Seed+1
	e.Parameters = map[string]string{"count": "7"}
	other.Margin, other.Claims = 0.1, nil
	world := truth{noise: 0.01, seed: 5}
	c := against(t, measured(s, world), measured(other, world), analysis.Limits{Metrics: []string{"rtt_median"}})
	if c.Margin != analysis.DefaultMargin || len(c.Missing) != 0 {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{"alpha and margin", "rules 10, 5000 only before", "rules 100, 2000 only after", "frame size 1518 only before",
		"firewall none only before", "firewall bare only after", `count of the measurement was "200" before and is "7" after`, "seed 1 before and 2 after"} {
		if !warned(c, want) {
			t.Errorf("no warning about %q in %v", want, c.Warnings)
		}
	}
	for _, cell := range c.Cells {
		if cell.FrameSize != 64 || cell.Rules == 10 || cell.NBefore != 6 || cell.NAfter != 8 {
			t.Errorf("%+v", cell)
		}
	}
}

func TestAgainstRefuses(t *testing.T) {
	s := small(3)
	world := truth{noise: 0.01, seed: 5}
	records := list(world.records(s))
	before := func() analysis.Measured { return analysis.Measured{Study: s, Records: sequence(records)} }
	elsewhere := small(3)
	elsewhere.Experiments[0].Name, elsewhere.Claims = "elsewhere", nil
	for name, c := range map[string]struct {
		after  analysis.Measured
		limits analysis.Limits
		want   string
	}{
		"clock":     {analysis.Measured{Study: s, Records: sequence(virtual(records, nil))}, analysis.Limits{}, "different clocks"},
		"study":     {measured(elsewhere, world), analysis.Limits{}, "both ask for"},
		"threshold": {before(), analysis.Limits{Threshold: -1}, "negative"},
		"metric":    {before(), analysis.Limits{Metrics: []string{"loss"}}, "cannot be compared"},
	} {
		_, err := analysis.Against(before(), c.after, c.limits)
		var incomparable *analysis.IncomparableError
		if !errors.As(err, &incomparable) || !strings.Contains(err.Error(), c.want) || incomparable.Next == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := func(yield func(record.Record, error) bool) { yield(record.Record{}, errors.New("line 1 is damaged")) }
	if _, err := analysis.Against(before(), analysis.Measured{Study: s, Records: broken}, analysis.Limits{}); err == nil || err.Error() != "after: line 1 is damaged" {
		t.Errorf("%v", err)
	}
}

// Records in any order give the same bytes.
func TestAgainstSameBytes(t *testing.T) {
	s := small(6)
	one, two := list(truth{noise: 0.01, seed: 5}.records(s)), list(truth{noise: 0.01, seed: 6}.records(s))
	encode := func() []byte {
		c := against(t, analysis.Measured{Study: s, Records: sequence(one)}, analysis.Measured{Study: s, Records: sequence(two)}, analysis.Limits{})
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := encode()
	slices.Reverse(one)
	slices.Reverse(two)
	if !bytes.Equal(first, encode()) {
		t.Error("the order of records shows")
	}
}
