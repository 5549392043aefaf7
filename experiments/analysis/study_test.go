package analysis_test

import (
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"math/rand/v2"
	"time"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
)

// truth is a world in which every cost is known.
type truth struct {
	noise float64 // standard deviation of a run's log
	drift float64 // of a block's log, common to all its runs
	seed  uint64
	// rtt is the true median in us; nil: base + cost·rules.
	rtt func(firewall string, rules, frame int) float64
	// image is by what factor an image slows everything, 0: by none; boot is the standard deviation of
	// the log that all runs of one boot of an image share.
	image map[string]float64
	boot  float64
}

func (w truth) latency(firewall string, rules, frame int) float64 {
	if w.rtt != nil {
		return w.rtt(firewall, rules, frame)
	}
	base, perRule := 12+float64(frame)/500, map[string]float64{
		"iptables-linear": 0.020, "nftables-linear": 0.030, "iptables-linear-again": 0.020,
	}[firewall]
	return base + perRule*float64(rules)
}

// records of a complete study in this world.
func (w truth) records(s analysis.Study) iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		rng := rand.New(rand.NewPCG(w.seed, 7))
		for _, e := range s.Experiments {
			sequence := 0
			for block := 1; block <= e.Repetitions; block++ {
				drift := rng.NormFloat64() * w.drift
				for _, t := range treatments(e) {
					sequence++
					if !yield(w.run(e, t, block, sequence, drift+w.bootLog(e, t.Image, block), rng), nil) {
						return
					}
				}
			}
		}
	}
}

// treatments of an experiment.
func treatments(e analysis.Experiment) (out []record.Treatment) {
	images := []string{""}
	if len(e.Images) > 0 {
		images = nil
	}
	for _, image := range e.Images {
		images = append(images, image.Name)
	}
	for _, image := range images {
		for _, f := range e.Firewalls {
			rules := e.Rules
			if !f.Rules {
				rules = []int{0}
			}
			for _, n := range rules {
				for _, size := range e.FrameSizes {
					out = append(out, record.Treatment{Image: image, Firewall: f.Name, Rules: n, FrameSize: size})
				}
			}
		}
	}
	return out
}

// bootLog is the log by which a boot of an image moves all its runs.
func (w truth) bootLog(e analysis.Experiment, image string, block int) float64 {
	if image == "" {
		return 0
	}
	h := fnv.New64()
	fmt.Fprint(h, image, w.seed, (block-1)*e.Boots/e.Repetitions)
	log := w.boot * rand.New(rand.NewPCG(h.Sum64(), 3)).NormFloat64()
	if factor := w.image[image]; factor > 0 {
		log += math.Log(factor)
	}
	return log
}

func (w truth) run(e analysis.Experiment, t record.Treatment, block, sequence int, drift float64, rng *rand.Rand) record.Record {
	rules, size := t.Rules, t.FrameSize
	us := w.latency(t.Firewall, rules, size) * math.Exp(drift+rng.NormFloat64()*w.noise)
	r := record.Record{
		Schema: 1, Experiment: e.Name, Block: block, Sequence: sequence, Clock: "host", Status: record.OK,
		Boot:      (block-1)*e.Boots/e.Repetitions + 1,
		Treatment: t,
		Started:   time.Date(2026, 1, 2, 3, 4, sequence, 0, time.UTC), ElapsedS: 0.75,
		PhasesS: map[string]float64{"measure": 0.5},
		Checks:  []record.Check{{Name: "rules loaded", Want: rules, Got: rules, OK: true}},
		Metrics: map[string]record.Metric{"rule_load": {Value: 0.001 * (1 + float64(rules)) * math.Exp(rng.NormFloat64()*0.05), Unit: "s"}},
	}
	if e.Measurement == "icmp_rtt" {
		r.Metrics["rtt_median"] = record.Metric{Value: us, Unit: "us"}
		r.Metrics["rtt_p99"] = record.Metric{Value: us * 1.5 * math.Exp(rng.NormFloat64()*0.05), Unit: "us"}
		return r
	}
	rate := 1e6 / us
	r.Metrics["receiver_frame_rate"] = record.Metric{Value: rate, Unit: "1/s"}
	r.Metrics["receiver_bit_rate"] = record.Metric{Value: rate * float64(size-46) * 8, Unit: "bit/s"}
	r.Metrics["loss"] = record.Metric{Value: 0, Unit: "1"}
	return r
}

// jonsson is a study of the shape of the preset jonsson-2018: two experiments of four firewalls, an A/A
// copy, and the arms without rules.
func jonsson(repetitions int) analysis.Study {
	firewalls := []analysis.Firewall{
		{Name: "none", Engine: "none"}, {Name: "empty", Engine: "nftables"},
		{Name: "iptables-linear", Engine: "iptables-legacy", Lookup: "linear", Rules: true},
		{Name: "nftables-linear", Engine: "nftables", Lookup: "linear", Rules: true},
		{Name: "iptables-indexed", Engine: "iptables-legacy", Lookup: "indexed", Rules: true},
		{Name: "nftables-indexed", Engine: "nftables", Lookup: "indexed", Rules: true},
		{Name: "iptables-linear-again", Engine: "iptables-legacy", Lookup: "linear", Rules: true},
	}
	s := analysis.Study{Title: "Jonsson", Seed: 1}
	for _, kind := range [][2]string{{"latency", "icmp_rtt"}, {"throughput", "udp_iperf3"}} {
		s.Experiments = append(s.Experiments, analysis.Experiment{
			Name: kind[0], Measurement: kind[1], Firewalls: firewalls, Repetitions: repetitions, Boots: 1, Seed: 1,
			Parameters: map[string]string{"count": "200"},
			Rules:      []int{10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000},
			FrameSizes: []int{64, 128, 256, 512, 1024, 1280, 1518},
			Compare:    [][2]string{{"nftables-linear", "iptables-linear"}, {"nftables-indexed", "iptables-indexed"}},
			Controls:   [][2]string{{"iptables-linear", "iptables-linear-again"}},
		})
		linear, indexed := [2]string{"nftables-linear", "iptables-linear"}, [2]string{"nftables-indexed", "iptables-indexed"}
		for i, c := range []analysis.Claim{
			{Compare: linear, Expect: "slower", Where: []analysis.Condition{{Factor: "frame_size", Op: "<=", Value: 128}}},
			{Compare: linear, Expect: "slower", Where: []analysis.Condition{{Factor: "rules", Op: ">=", Value: 1000}}},
			{Compare: linear, Expect: "faster", Where: []analysis.Condition{{Factor: "frame_size", Op: ">=", Value: 1024}, {Factor: "rules", Op: "<=", Value: 100}}},
			{Compare: indexed, Expect: "similar"},
			{Compare: indexed, Expect: "mixed"},
		} {
			c.Name, c.Experiment, c.Statement = fmt.Sprintf("J%d %s", i+1, kind[0]), kind[0], "as published"
			s.Claims = append(s.Claims, c)
		}
	}
	return s
}

// small is a study that is quick to analyse: two firewalls and an A/A copy.
func small(repetitions int) analysis.Study {
	s := jonsson(repetitions)
	s.Bootstrap = 1000
	s.Experiments, s.Claims = s.Experiments[:1], s.Claims[:2]
	e := &s.Experiments[0]
	e.Rules, e.FrameSizes = []int{10, 1000, 5000}, []int{64, 1518}
	e.Compare = e.Compare[:1]
	return s
}
