package report

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

// synthetic makes findings of a study that never was: numbers from a formula and a seed, so that
// tests have something of a given size to render. Nothing in it was measured.
func synthetic(rules, sizes []int, clock string) Input {
	firewalls := []analysis.Firewall{
		{Name: "iptables-linear", Engine: "iptables-legacy", Lookup: "linear", Rules: true},
		{Name: "nftables-linear", Engine: "nftables", Lookup: "linear", Rules: true},
		{Name: "iptables-indexed", Engine: "iptables-legacy", Lookup: "indexed", Rules: true},
		{Name: "nftables-indexed", Engine: "nftables", Lookup: "indexed", Rules: true},
		{Name: "nftables-linear-again", Engine: "nftables", Lookup: "linear", Rules: true},
		{Name: "none", Engine: "none"},
		{Name: "empty", Engine: "empty"},
	}
	pairs := [][2]string{{"nftables-linear", "iptables-linear"}, {"nftables-indexed", "iptables-indexed"}}
	controls := [][2]string{{"nftables-linear", "nftables-linear-again"}}
	study := analysis.Study{Title: "Synthetic study: iptables and nftables", Alpha: 0.05, Margin: 0.03, Bootstrap: 10000, Seed: 1}
	g := generator{rng: rand.New(rand.NewPCG(1, 2)), clock: clock}
	for _, m := range []struct{ name, kind string }{{"latency", "icmp_rtt"}, {"throughput", "udp_iperf3"}} {
		e := analysis.Experiment{Name: m.name, Measurement: m.kind, Parameters: map[string]string{"count": "200", "interval": "2ms"},
			Firewalls: firewalls, Rules: rules, FrameSizes: sizes, Repetitions: 12, Boots: 1, Seed: 7, Compare: pairs, Controls: controls}
		study.Experiments = append(study.Experiments, e)
	}
	study.Claims = []analysis.Claim{
		{Name: "J1", Statement: "With linear look-ups and small frames nftables is slower than iptables", Experiment: "latency", Compare: pairs[0], Expect: "slower",
			Where: []analysis.Condition{{Factor: "frame_size", Op: "<=", Value: 128}}},
		{Name: "J2", Statement: "With linear look-ups nftables is slower than iptables when the rule-set is large", Experiment: "latency", Compare: pairs[0], Expect: "slower",
			Where: []analysis.Condition{{Factor: "rules", Op: ">=", Value: 1000}}},
		{Name: "J3", Statement: "With linear look-ups, large frames and few rules nftables is slightly faster", Experiment: "throughput", Compare: pairs[0], Expect: "faster",
			Where: []analysis.Condition{{Factor: "frame_size", Op: ">=", Value: 1024}, {Factor: "rules", Op: "<=", Value: 100}}},
		{Name: "J4", Statement: "With indexed look-ups both are similar", Experiment: "latency", Compare: pairs[1], Expect: "similar"},
	}
	f := analysis.Findings{Schema: 1, Study: study, Clock: clock,
		Warnings: []analysis.Warning{
			{Text: "p cannot pass Holm over 70 comparisons with 5 runs a cell", Next: "set repetitions = 9"},
			{Text: "the slope of an indexed firewall is not told from zero"},
		}}
	for _, e := range study.Experiments {
		g.experiment(&f, e)
	}
	for i, c := range study.Claims {
		verdict := []string{analysis.Agrees, analysis.Agrees, analysis.Inconclusive, analysis.Disagrees}[i]
		r := []float64{1.083, 1.214, 1.004, 1.047}[i]
		f.Claims = append(f.Claims, analysis.ClaimResult{Claim: c, Metric: primaryOf(c.Experiment), Verdict: verdict,
			Effect: analysis.Interval{Value: r, Lo: r * 0.985, Hi: r * 1.016, Level: 0.95}, Cells: 20, Noise: 1.012,
			Sentence: fmt.Sprintf("%s is %+.1f %% [%+.1f, %+.1f] of %s over 20 cells (noise floor 1.2 %%).", c.Compare[0], 100*(r-1), 100*(r*0.985-1), 100*(r*1.016-1), c.Compare[1])})
	}
	f.Excluded = []analysis.Exclusion{
		{Experiment: "latency", Firewall: "iptables-indexed", Status: "failed", Reason: "verify rules: want 1000, got 904", Runs: 2},
		{Experiment: "throughput", Firewall: "none", Status: "sender_bound", Reason: "receiver got 99.9 % of what was sent and the firewall was idle", Runs: 7},
	}
	f.Checks = []analysis.CheckCount{{Name: "rules loaded", Made: 7280}, {Name: "probe from a foreign address dropped", Made: 7000}, {Name: "counter of the matching rule", Made: 7280, Failed: 2}}
	return Input{Manifest: manifest(clock), Findings: f, RecordsDigest: "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"}
}

func primaryOf(experiment string) string {
	if experiment == "latency" {
		return "rtt_median"
	}
	return "throughput"
}

type generator struct {
	rng   *rand.Rand
	clock string
}

func (g *generator) experiment(f *analysis.Findings, e analysis.Experiment) {
	metrics := [][2]string{{"rtt_median", "us"}, {"rtt_p99", "us"}}
	if e.Name == "throughput" {
		metrics = [][2]string{{"throughput", "bit/s"}, {"frame_rate", "frames/s"}}
	}
	total := 0
	for i, m := range metrics {
		for _, fw := range e.Firewalls {
			rules := e.Rules
			if !fw.Rules {
				rules = []int{0}
			}
			for _, r := range rules {
				for _, size := range e.FrameSizes {
					f.Cells = append(f.Cells, analysis.Cell{Experiment: e.Name, Metric: m[0], Unit: m[1], Firewall: fw.Name, Rules: r, FrameSize: size, N: e.Repetitions,
						Median: g.around(model(m[0], fw.Name, r, size), 0.01)})
					if i == 0 {
						total += e.Repetitions
					}
				}
			}
		}
		for _, p := range append(append([][2]string(nil), e.Compare...), e.Controls...) {
			g.compare(f, e, m[0], p)
		}
		f.NoiseFloors = append(f.NoiseFloors, analysis.NoiseFloor{Experiment: e.Name, Metric: m[0], Ratio: 1.012, Cells: len(e.Rules) * len(e.FrameSizes)})
		g.costs(f, e, m[0], m[1])
	}
	f.Runs = append(f.Runs, analysis.RunCount{Experiment: e.Name, Planned: total, OK: total - 7, Failed: 2, SenderBound: 5, ElapsedS: float64(total) * 0.61, MeasuringS: float64(total) * 0.5})
}

// model is a formula, not a finding.
func model(metric, firewall string, rules, size int) float64 {
	perRule := map[string]float64{"iptables-linear": 0.009, "nftables-linear": 0.013, "nftables-linear-again": 0.013}[firewall]
	us := 21 + 0.002*float64(size) + perRule*float64(rules)
	if firewall == "none" {
		us -= 2
	}
	if strings.HasSuffix(firewall, "indexed") {
		us += 0.9
	}
	switch metric {
	case "rtt_p99":
		return us * 1.6
	case "throughput":
		return 8 * float64(size-46) * 1e6 / (us / 8)
	case "frame_rate":
		return 1e6 / (us / 8)
	}
	return us
}

func (g *generator) around(x, noise float64) analysis.Interval {
	v := x * math.Exp(noise*g.rng.NormFloat64()*0.3)
	return analysis.Interval{Value: v, Lo: v * (1 - noise*(0.5+g.rng.Float64())), Hi: v * (1 + noise*(0.5+g.rng.Float64())), Level: 0.95}
}

func (g *generator) compare(f *analysis.Findings, e analysis.Experiment, metric string, p [2]string) {
	control := strings.HasSuffix(p[1], "-again")
	for _, r := range e.Rules {
		for _, size := range e.FrameSizes {
			ratio := g.around(model(metric, p[0], r, size)/model(metric, p[1], r, size), 0.008)
			c := analysis.Comparison{Experiment: e.Name, Metric: metric, A: p[0], B: p[1], Control: control, Rules: r, FrameSize: size, NA: e.Repetitions, NB: e.Repetitions,
				Ratio: ratio, Ratio90: ratio, P: 7.4e-7, HolmP: 5.2e-5, Family: len(e.Rules) * len(e.FrameSizes), Verdict: analysis.Inconclusive}
			c.Ratio90.Level = 0.9
			worse := ratio.Value > 1 == (e.Name == "latency")
			switch {
			case ratio.Lo > 1/1.03 && ratio.Hi < 1.03:
				c.Verdict, c.Minor = analysis.Equivalent, ratio.Lo > 1
			case ratio.Lo > 1 || ratio.Hi < 1:
				c.Verdict = map[bool]string{true: analysis.Slower, false: analysis.Faster}[worse]
			default:
				c.P, c.HolmP = 0.31, 1
			}
			if r == e.Rules[0] {
				c.Warnings = []int{0}
			}
			f.Comparisons = append(f.Comparisons, c)
		}
	}
}

func (g *generator) costs(f *analysis.Findings, e analysis.Experiment, metric, unit string) {
	for _, fw := range e.Firewalls {
		for _, size := range e.FrameSizes {
			if !fw.Rules {
				continue
			}
			n := e.Rules[len(e.Rules)-1]
			slope := (model(metric, fw.Name, n, size) - model(metric, fw.Name, 0, size)) / float64(n)
			half := math.Abs(slope)*0.06 + 1e-4*model(metric, fw.Name, 0, size)*0.05
			c := analysis.RuleCost{Experiment: e.Name, Metric: metric, Firewall: fw.Name, FrameSize: size, Unit: unit, Intercept: model(metric, fw.Name, 0, size),
				Slope: analysis.Interval{Value: slope, Lo: slope - half, Hi: slope + half, Level: 0.95}}
			if strings.HasSuffix(fw.Name, "indexed") {
				c.Warnings = []int{1}
			}
			f.RuleCosts = append(f.RuleCosts, c)
		}
	}
	for _, size := range e.FrameSizes {
		f.CostRatios = append(f.CostRatios, analysis.CostRatio{Experiment: e.Name, Metric: metric, A: "nftables-linear", B: "iptables-linear", FrameSize: size, Ratio: g.around(1.44, 0.02)})
	}
}

func manifest(clock string) record.Manifest {
	host := record.Environment{Hostname: "bench1.example", OS: "Debian GNU/Linux 12", Kernel: "6.1.0-37-amd64", CPU: "Synthetic CPU @ 3.0 GHz", CPUs: 2, MemoryBytes: 8 << 30,
		Governor: "performance", Clocksource: "tsc", Mitigations: map[string]string{"spectre_v2": "Mitigation: Retpolines", "meltdown": "Not affected"},
		Tools: map[string]string{"iptables-legacy": "iptables v1.8.9 (legacy)", "iperf3": "iperf 3.12"}, Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}
	node := host
	node.Interfaces = map[string]map[string]string{"inside": {"mtu": "1500", "driver": "veth", "gro": "off", "tso": "off"}}
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return record.Manifest{Schema: 1, Rampart: record.Build{Version: "v0.1.0", Revision: "0123456789ab", Go: "go1.26.0", SHA256: "sha256:00"}, Created: created,
		Configuration: map[string]string{"rampart.hcl": "experiment \"latency\" {\n  measurement \"icmp_rtt\" {\n    count = 200\n  }\n}\n" + strings.Repeat("# a line\n", 40)},
		Variables:     map[string]string{"repetitions": "12"}, ConfigDigest: "sha256:aa", PlanDigests: map[string]string{"latency": "sha256:bb", "throughput": "sha256:cc"},
		Testbed: json.RawMessage(`{"name":"demo"}`), Clock: clock, Provider: "netns", Host: host,
		Nodes:    map[string]record.Environment{"sender": host, "firewall": node, "receiver": host},
		Command:  []string{"rampart", "run", "--var", "repetitions=12", "--out", "results/my study"},
		Sessions: []record.Session{{Started: created, Ended: created.Add(80 * time.Minute), Runs: 8736, Outcome: "complete"}}}
}

// small and full are the sizes that tests use; full is that of the Jonsson study.
func small() Input { return synthetic([]int{10, 100, 1000}, []int{64, 1518}, "host") }

func full() Input {
	return synthetic([]int{10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}, []int{64, 128, 256, 512, 1024, 1280, 1518}, "host")
}
