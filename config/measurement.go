package config

import (
	"strconv"
	"time"

	"github.com/rampart-bench/rampart/experiments"
)

// The defaults of icmp_rtt give 0.4 s of measuring a run: the median of 200 round trips moves by less
// than the difference between two runs, so more of them would not narrow an interval over runs. At
// 2 ms each probe is answered long before the next one leaves, also on an emulated machine.
func icmpRTTSchema() *schema {
	return &schema{
		name: "measurement", label: "kind", labels: []string{experiments.ICMPRTT},
		doc: "Round-trip times of ICMP echoes at a fixed interval, by the kernel's receive timestamps; each run keeps every sample. The default where an experiment has no block measurement.",
		attributes: []attribute{
			{name: "count", kind: whole, def: "200", min: "1", max: "1000000", doc: "Probes a run."},
			{name: "interval", kind: duration, def: `"2ms"`, min: `"10us"`, max: `"10s"`, doc: "Between two probes."},
			{name: "warmup", kind: whole, def: "20", min: "0", max: "1000000", doc: "Probes sent before those, whose times are thrown away."},
		},
	}
}

// The default of omit is none: UDP has no slow start, and the run's positive control has resolved
// addresses and warmed caches before iperf3 begins. Two seconds are the shortest duration at which the
// start of iperf3's own timers is below one part in a hundred.
func udpIperf3Schema() *schema {
	return &schema{
		name: "measurement", label: "kind", labels: []string{experiments.UDPIperf3},
		doc: "UDP datagrams by iperf3; the values are what the receiver got.",
		attributes: []attribute{
			{name: "duration", kind: duration, def: `"2s"`, min: `"1s"`, max: `"1h"`, doc: "Measured time of a run, in whole seconds."},
			{name: "omit", kind: duration, def: `"0s"`, min: `"0s"`, max: `"60s"`, doc: "Time before that, thrown away, in whole seconds."},
			{name: "rate", kind: rate, def: `"0"`, min: `"0"`, max: `"1000G"`, doc: "Offered load, payload bit/s; 0 is as fast as the sender can."},
			{name: "datagrams", kind: whole, def: "0", min: "0", max: "1000000000", doc: "End a run after so many datagrams instead of after `duration` and without `omit`; 0 is by duration. For provider `exact`, where a second is a billion instructions to be emulated: some thousand datagrams say as much."},
		},
	}
}

func udpNetperfSchema() *schema {
	return &schema{
		name: "measurement", label: "kind", labels: []string{experiments.UDPNetperf},
		doc: "UDP datagrams by netperf (UDP_STREAM), as fast as the sender can; the values are what the receiver got. Its ports are fixed, and both directions of the flow are shown to the kernel before it is measured. netperf is in Debian's component non-free; where it is not installed the runs are recorded as unavailable.",
		attributes: []attribute{
			{name: "duration", kind: duration, def: `"2s"`, min: `"1s"`, max: `"1h"`, doc: "Measured time of a run, in whole seconds."},
			{name: "datagrams", kind: whole, def: "0", min: "0", max: "1000000000", doc: "End a run after so many datagrams instead of after `duration`; 0 is by duration."},
			{name: "message", kind: whole, min: "18", max: "9188", example: "64", doc: "Bytes of a message, in the place of `frame_size` in the matrix: the frames are then 46 bytes larger. Default: what fits the frame size."},
		},
	}
}

// messageOverhead is what a frame has beyond the message in it: headers of Ethernet, IPv4 and UDP, and
// the FCS.
const messageOverhead = 46

func readMeasurement(b *body) experiments.Measurement {
	switch b.label {
	case experiments.UDPNetperf:
		m := experiments.Measurement{Kind: b.label, Duration: b.seconds("duration"), Datagrams: b.whole("datagrams")}
		if m.Datagrams > 0 {
			m.Duration = 0
		}
		return m
	case experiments.UDPIperf3:
		m := experiments.Measurement{
			Kind:      b.label,
			Duration:  b.seconds("duration"),
			Omit:      b.seconds("omit"),
			Rate:      b.amount("rate"),
			Datagrams: b.whole("datagrams"),
		}
		if m.Datagrams > 0 {
			m.Duration, m.Omit = 0, 0
		}
		return m
	}
	return experiments.Measurement{
		Kind:     b.label,
		Count:    b.whole("count"),
		Interval: time.Duration(b.amount("interval")),
		Warmup:   b.whole("warmup"),
	}
}

// seconds reads a duration that iperf3 and netperf take: they know whole seconds only.
func (b *body) seconds(name string) time.Duration {
	d := time.Duration(b.amount(name))
	if d%time.Second != 0 {
		b.wrong(name, &mistake{"is not a number of whole seconds", `The programs know no fractions: write "1s", "2s" and so on.`})
	}
	return d
}

// metricsOf lists the metrics of a measurement that a claim can be about, the primary one first.
func metricsOf(kind string) []string {
	if kind == experiments.ICMPRTT {
		return []string{"rtt_median", "rtt_p99", "rule_load"}
	}
	return []string{"receiver_bit_rate", "rule_load"}
}

// parameters tell the reader of a report what was measured.
func parameters(m experiments.Measurement) map[string]string {
	if m.Kind == experiments.ICMPRTT {
		return map[string]string{
			"count":    strconv.Itoa(m.Count),
			"interval": m.Interval.String(),
			"warmup":   strconv.Itoa(m.Warmup),
		}
	}
	if m.Datagrams > 0 {
		return map[string]string{"datagrams": strconv.Itoa(m.Datagrams), "rate": rateText(m.Rate)}
	}
	if m.Kind == experiments.UDPNetperf {
		return map[string]string{"duration": m.Duration.String(), "rate": rateText(0)}
	}
	return map[string]string{
		"duration": m.Duration.String(),
		"omit":     m.Omit.String(),
		"rate":     rateText(m.Rate),
	}
}

// rateText writes a bit rate in the largest unit that leaves it whole.
func rateText(rate int64) string {
	if rate == 0 {
		return "as fast as the sender can"
	}
	best := unit{"", 1}
	for _, u := range rateUnits() {
		if rate%u.factor == 0 {
			best = u
		}
	}
	return strconv.FormatInt(rate/best.factor, 10) + " " + best.name + "bit/s"
}
