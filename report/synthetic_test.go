package report

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

// A study that never was: values from a formula and a seed, so that tests have records of a given
// size to analyse and render. Nothing in it was measured.

// A shape is the size of a synthetic study.
type shape struct {
	rules, sizes []int
	repetitions  int
	bootstrap    int
	clock        string
	names        func(string) string // of firewalls, experiments and claims, for hostile text
	images       []string            // levels of that factor, the last as the first under a second name
}

func plain(s string) string { return s }

// small is quick to render; jonsson has the size of the largest preset.
func small() shape {
	return shape{[]int{10, 100, 1000}, []int{64, 1518}, 12, 200, "host", plain, nil}
}

// released is small across two releases, of which one is there twice.
func released() shape {
	s := small()
	s.images = []string{"bookworm", "trixie", "bookworm-again"}
	return s
}

func jonsson() shape {
	return shape{[]int{10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}, []int{64, 128, 256, 512, 1024, 1280, 1518}, 12, 200, "host", plain, nil}
}

// full is the analysed study of the size of Jonsson's, made once.
var full = sync.OnceValue(func() Input { return jonsson().input() })

func (s shape) study() analysis.Study {
	n := s.names
	firewalls := []analysis.Firewall{
		{Name: n("iptables-linear"), Engine: "iptables-legacy", Lookup: "linear", Position: "last", Rules: true},
		{Name: n("nftables-linear"), Engine: "nftables", Lookup: "linear", Position: "last", Rules: true},
		{Name: n("iptables-indexed"), Engine: "iptables-legacy", Lookup: "indexed", Position: "last", Rules: true},
		{Name: n("nftables-indexed"), Engine: "nftables", Lookup: "indexed", Position: "last", Rules: true},
		{Name: n("nftables-linear-again"), Engine: "nftables", Lookup: "linear", Position: "last", Rules: true},
		{Name: n("none"), Engine: "none"},
		{Name: n("empty"), Engine: "empty"},
	}
	linear := [2]string{n("nftables-linear"), n("iptables-linear")}
	indexed := [2]string{n("nftables-indexed"), n("iptables-indexed")}
	study := analysis.Study{Title: n("Synthetic study of iptables and nftables"), Alpha: 0.05, Margin: 0.03, Bootstrap: s.bootstrap, Seed: 1}
	for _, e := range [][2]string{{n("latency"), "icmp_rtt"}, {n("throughput"), "udp_iperf3"}} {
		study.Experiments = append(study.Experiments, analysis.Experiment{
			Name: e[0], Measurement: e[1], Parameters: map[string]string{"warm-up": n("20 probes")}, Firewalls: firewalls,
			Rules: s.rules, FrameSizes: s.sizes, Repetitions: s.repetitions, Boots: 1, Seed: 7,
			Compare: [][2]string{linear, indexed}, Controls: [][2]string{{n("nftables-linear"), n("nftables-linear-again")}},
		})
	}
	s.acrossImages(&study)
	latency, throughput := study.Experiments[0].Name, study.Experiments[1].Name
	where := func(factor, op string, value int) analysis.Condition {
		return analysis.Condition{Factor: factor, Op: op, Value: value}
	}
	study.Claims = []analysis.Claim{
		{Name: n("J1"), Statement: n("With linear look-ups and small frames nftables is slower than iptables"), Experiment: latency, Compare: linear, Expect: "slower",
			Where: []analysis.Condition{where("frame_size", "<=", 128)}},
		{Name: n("J2"), Statement: n("With linear look-ups nftables is slower than iptables when the rule-set is large"), Experiment: throughput, Compare: linear, Expect: "slower",
			Where: []analysis.Condition{where("rules", ">=", 1000)}, Reference: &analysis.Reference{Ratio: 0.8125, Source: n("somebody, long ago")}},
		{Name: n("J3"), Statement: n("With linear look-ups, large frames and few rules nftables is slightly faster"), Experiment: latency, Compare: linear, Expect: "faster",
			Where: []analysis.Condition{where("frame_size", ">=", 1024), where("rules", "<=", 100)}},
		{Name: n("J4"), Statement: n("With indexed look-ups both are similar"), Experiment: latency, Compare: indexed, Expect: "similar"},
	}
	study.Claims = append(study.Claims, s.claimsOnImages(latency, linear)...)
	return study
}

// acrossImages makes image a factor of every experiment, where the shape has images.
func (s shape) acrossImages(study *analysis.Study) {
	if len(s.images) == 0 {
		return
	}
	first, second, again := s.names(s.images[0]), s.names(s.images[1]), s.names(s.images[2])
	for i := range study.Experiments {
		e := &study.Experiments[i]
		e.Boots = e.Repetitions
		for _, name := range s.images {
			e.Images = append(e.Images, analysis.Image{Name: s.names(name), Suite: s.names("suite"), Kernel: "linux-image-cloud-amd64"})
		}
		e.CompareImages, e.ControlImages = [][2]string{{second, first}}, [][2]string{{first, again}}
	}
}

// claimsOnImages are made where there are images.
func (s shape) claimsOnImages(latency string, linear [2]string) []analysis.Claim {
	if len(s.images) == 0 {
		return nil
	}
	first, second := s.names(s.images[0]), s.names(s.images[1])
	return []analysis.Claim{
		{Name: s.names("I1"), Statement: s.names("The release made it slower"), Experiment: latency, Factor: analysis.FactorImage, Compare: [2]string{second, first},
			Firewalls: linear[:], Expect: "slower", Where: []analysis.Condition{{Factor: "rules", Op: ">=", Value: 1000}}},
		{Name: s.names("I2"), Statement: s.names("There, nftables is slower"), Experiment: latency, Compare: linear, Images: []string{second}, Expect: "slower"},
	}
}

// records are those of the study in the order of blocks; a few runs failed, were limited by the
// sender, or could not be made.
func (s shape) records() iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		rng := rand.New(rand.NewPCG(1, 2))
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		sequence := 0
		for _, e := range s.study().Experiments {
			for block := 1; block <= s.repetitions; block++ {
				for _, image := range imagesOf(e) {
					for i, fw := range e.Firewalls {
						levels := e.Rules
						if !fw.Rules {
							levels = []int{0}
						}
						for _, rules := range levels {
							for _, size := range e.FrameSizes {
								sequence++
								at = at.Add(700 * time.Millisecond)
								r := record.Record{Schema: record.Schema, Experiment: e.Name, Block: block, Boot: (block-1)*e.Boots/e.Repetitions + 1, Sequence: sequence, Clock: s.clock,
									Started: at, ElapsedS: 0.61, Treatment: record.Treatment{Image: image, Firewall: fw.Name, Rules: rules, FrameSize: size},
									PhasesS: map[string]float64{"measure": 0.5}}
								s.outcome(&r, e.Measurement, i, rng)
								if !yield(r, nil) {
									return
								}
							}
						}
					}
				}
			}
		}
	}
}

// outcome fills in what a run gave; firewall is the index in the study.
func (s shape) outcome(r *record.Record, measurement string, firewall int, rng *rand.Rand) {
	loaded := record.Check{Name: s.names("rules loaded"), Want: r.Treatment.Rules, Got: r.Treatment.Rules, OK: true}
	r.Status = record.OK
	switch {
	case firewall == 2 && r.Block == 3 && r.Treatment.Rules == s.rules[len(s.rules)-1]:
		loaded.Got, loaded.OK = 904, false
		r.Status, r.Error = record.Failed, s.names("verify rules: 904 of them are loaded")
	case firewall == 5 && r.Block < 4 && measurement == "udp_iperf3":
		r.Status, r.Error = record.SenderBound, s.names("the receiver got all that was sent and the firewall was idle")
	}
	r.Checks = []record.Check{loaded, {Name: s.names("foreign probe dropped"), Want: true, Got: true, OK: true}}
	if r.Status != record.OK {
		return
	}
	us := formula(firewall, r.Treatment) * math.Exp(0.006*rng.NormFloat64())
	if len(s.images) > 0 && r.Treatment.Image == s.names(s.images[1]) {
		us *= 1.06
	}
	if measurement == "icmp_rtt" {
		r.Metrics = map[string]record.Metric{"rtt_median": {Value: us, Unit: "us"}, "rtt_p99": {Value: us * (1.5 + 0.1*rng.Float64()), Unit: "us"}}
	} else {
		rate := 8e6 / us
		r.Metrics = map[string]record.Metric{
			"receiver_frame_rate": {Value: rate, Unit: "1/s"},
			"receiver_bit_rate":   {Value: rate * 8 * float64(r.Treatment.FrameSize-46), Unit: "bit/s"},
		}
	}
	r.Metrics["loss"] = record.Metric{Value: 0, Unit: "1"}
	r.Metrics["rule_load"] = record.Metric{Value: 0.004 + 2e-6*float64(r.Treatment.Rules)*math.Exp(0.02*rng.NormFloat64()), Unit: "s"}
}

// formula is microseconds from nowhere.
func formula(firewall int, t record.Treatment) float64 {
	base := []float64{21.4, 21, 22.1, 22.2, 21, 19, 20.6}[firewall]
	perRule := []float64{0.009, 0.013, 0, 0, 0.013, 0, 0}[firewall]
	return base + 0.002*float64(t.FrameSize) + perRule*float64(t.Rules)
}

// input analyses the records.
func (s shape) input() Input {
	f, err := analysis.Analyze(s.study(), s.records())
	if err != nil {
		panic(fmt.Sprintf("analyse the synthetic study: %v", err))
	}
	return Input{Manifest: s.manifest(), Findings: f, RecordsDigest: "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"}
}

func (s shape) manifest() record.Manifest {
	n := s.names
	host := record.Environment{Hostname: n("bench1.example"), OS: n("Debian GNU/Linux 12"), Kernel: "6.1.0-37-amd64", CPU: n("Synthetic CPU"), CPUs: 2, MemoryBytes: 8 << 30,
		Governor: "performance", Clocksource: "tsc", Mitigations: map[string]string{"spectre_v2": "Mitigation: Retpolines", "meltdown": "Not affected"},
		Tools: map[string]string{"iptables-legacy": "iptables v1.8.9 (legacy)", "iperf3": "iperf 3.12"}, Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}
	node := host
	node.Interfaces = map[string]map[string]string{"inside": {"mtu": "1500", "driver": "veth", "gro": "off", "tso": "off"}}
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	text := "experiment \"latency\" {\n  measurement \"icmp_rtt\" {\n    count = 200\n  }\n}\n" + n("# a comment") + "\n" + strings.Repeat("# a line\n", 40)
	var images map[string]record.Image
	for _, name := range s.images {
		if images == nil {
			images = map[string]record.Image{}
		}
		guest := node
		guest.Kernel = n("6.12.9")
		images[n(name)] = record.Image{Digest: "sha256:" + name, Nodes: map[string]record.Environment{"firewall": guest}}
	}
	return record.Manifest{Schema: 1, Images: images, Rampart: record.Build{Version: "v0.1.0", Revision: "0123456789ab", Go: "go1.26.0", SHA256: "sha256:00"}, Created: created,
		Configuration: map[string]string{n("rampart.hcl"): text}, Variables: map[string]string{"repetitions": n("12")},
		ConfigDigest: "sha256:aa", PlanDigests: map[string]string{n("latency"): "sha256:bb", n("throughput"): "sha256:cc"},
		Testbed: json.RawMessage(`{"name":"demo"}`), Clock: s.clock, Provider: "netns", Host: host,
		Nodes:    map[string]record.Environment{"sender": host, "firewall": node, "receiver": host},
		Command:  []string{"rampart", "run", "--var", n("repetitions=12"), "--out", n("results/my study")},
		Sessions: []record.Session{{Started: created, Ended: created.Add(80 * time.Minute), Runs: 8736, Outcome: "complete"}}}
}
