package main_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

// synthetic runs `synthetic DIR [KEY=VALUE...]`: it makes a results folder whose values come from a formula
// and a seed. Nothing in it was measured. The keys are those of madeUp.
func synthetic(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: synthetic DIR [KEY=VALUE...]")
	}
	m := madeUp{clock: "host", kernel: "6.1.0-synthetic", runs: 10, noise: 0.004, seed: 1}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		ts.Check(m.set(key, value))
	}
	study, err := json.Marshal(m.study())
	ts.Check(err)
	features, err := json.Marshal(map[string]any{"parameters": map[string]string{"flags": "-accel synthetic"}})
	ts.Check(err)
	environment := record.Environment{OS: "none", Kernel: m.kernel, CPU: "none", CPUs: 1}
	reserved, err := record.Reserve(ts.MkAbs(args[0]))
	ts.Check(err)
	folder, err := reserved.Create(record.Manifest{
		Rampart: record.Build{Version: "synthetic"}, Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Configuration: map[string]string{}, PlanDigests: map[string]string{}, Study: study, Testbed: json.RawMessage("{}"), Features: features,
		Clock: m.clock, Provider: "synthetic", Host: environment, Nodes: map[string]record.Environment{"firewall": environment},
		Command: []string{"synthetic"}, Sessions: []record.Session{},
	})
	ts.Check(err)
	for _, r := range m.records() {
		ts.Check(folder.Append(r))
	}
	ts.Check(folder.Close())
}

// madeUp is a study that never was, of nftables-linear (which costs more a rule), iptables-linear, an A/A copy
// of it, and the arm without a firewall.
type madeUp struct {
	clock, kernel string
	runs          int      // a cell
	noise         float64  // standard deviation of a run's log
	seed          uint64   // of the noise
	factor        float64  // on the time of nftables-linear
	extra         float64  // us, added to the time of nftables-linear
	layout        float64  // us, about which all values of a block move, each block otherwise
	gone          string   // a firewall that is unavailable
	claims        []string // of slower, faster and similar
}

func (m *madeUp) set(key, value string) (err error) {
	switch key {
	case "clock":
		m.clock = value
	case "kernel":
		m.kernel = value
	case "gone":
		m.gone = value
	case "claims":
		m.claims = strings.Split(value, ",")
	case "runs":
		m.runs, err = strconv.Atoi(value)
	case "seed":
		m.seed, err = strconv.ParseUint(value, 10, 64)
	case "noise":
		m.noise, err = strconv.ParseFloat(value, 64)
	case "factor":
		m.factor, err = strconv.ParseFloat(value, 64)
	case "layout":
		m.layout, err = strconv.ParseFloat(value, 64)
	case "extra":
		m.extra, err = strconv.ParseFloat(value, 64)
	default:
		err = strconv.ErrSyntax
	}
	return err
}

func (m *madeUp) study() analysis.Study {
	pair := [2]string{"nftables-linear", "iptables-linear"}
	s := analysis.Study{Title: "Synthetic", Bootstrap: 1000, Seed: 1, Experiments: []analysis.Experiment{{
		Name: "latency", Measurement: "icmp_rtt", Parameters: map[string]string{"count": "200"}, Rules: []int{10, 1000}, FrameSizes: []int{64, 1518},
		Firewalls: []analysis.Firewall{
			{Name: "nftables-linear", Engine: "nftables", Lookup: "linear", Rules: true},
			{Name: "iptables-linear", Engine: "iptables-legacy", Lookup: "linear", Rules: true},
			{Name: "iptables-linear-aa", Engine: "iptables-legacy", Lookup: "linear", Rules: true},
			{Name: "none", Engine: "none"},
		},
		Repetitions: m.runs, Boots: 1, Seed: 1, Compare: [][2]string{pair}, Controls: [][2]string{{"iptables-linear", "iptables-linear-aa"}},
	}}}
	for _, expect := range m.claims {
		s.Claims = append(s.Claims, analysis.Claim{Name: "is-" + expect, Statement: "made up", Experiment: "latency", Compare: pair, Expect: expect})
	}
	return s
}

func (m *madeUp) records() (out []record.Record) {
	rng := rand.New(rand.NewPCG(m.seed, 1))
	e := m.study().Experiments[0]
	for block := 1; block <= m.runs; block++ {
		for _, f := range e.Firewalls {
			levels := e.Rules
			if !f.Rules {
				levels = []int{0}
			}
			for _, rules := range levels {
				for _, size := range e.FrameSizes {
					r := record.Record{
						Schema: record.Schema, Experiment: e.Name, Block: block, Boot: 1, Sequence: len(out) + 1, Clock: m.clock,
						Treatment: record.Treatment{Firewall: f.Name, Rules: rules, FrameSize: size},
						Started:   time.Date(2026, 1, 2, 3, 4, len(out), 0, time.UTC), ElapsedS: 0.5, Status: record.OK,
					}
					us := nanoseconds(m.time(f.Name, rules, size)*math.Exp(m.noise*rng.NormFloat64())) + nanoseconds(m.layout*math.Sin(float64(3*block)))
					if f.Name == "nftables-linear" {
						us += m.extra
					}
					r.Metrics = map[string]record.Metric{"rtt_median": {Value: nanoseconds(us), Unit: "us"}}
					if f.Name == m.gone {
						r.Status, r.Error, r.Metrics = record.Unavailable, "there is no such <module>", nil
					}
					out = append(out, r)
				}
			}
		}
	}
	return out
}

// nanoseconds rounds microseconds to whole ones.
func nanoseconds(us float64) float64 { return math.Round(us*1000) / 1000 }

// time is microseconds from nowhere.
func (m *madeUp) time(firewall string, rules, size int) float64 {
	us := 20 + 0.002*float64(size)
	if firewall != "nftables-linear" {
		return us + 0.010*float64(rules)
	}
	us += 0.013 * float64(rules)
	if m.factor > 0 {
		us *= m.factor
	}
	return us
}
