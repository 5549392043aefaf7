package analysis

// A Metric is what is known about a metric beyond its values.
type Metric struct {
	Name string
	Unit string
	// Noun names it in a sentence, such as "round-trip time".
	Noun           string
	HigherIsBetter bool
	// Compared metrics are compared between firewalls, as ratios. Others only have cells: loss may be
	// 0, which has no logarithm, the frame rate says the same as the bit rate, and what was sent and how evenly
	// it arrived say little of the firewall.
	Compared bool
	// Tail says that a few samples of a run decide the value.
	Tail bool
}

// metrics lists the known metrics in the order of findings.
func metrics() []Metric {
	return []Metric{
		{Name: "rtt_median", Unit: "us", Noun: "round-trip time", Compared: true},
		{Name: "rtt_p99", Unit: "us", Noun: "99th percentile of round-trip time", Compared: true, Tail: true},
		{Name: "receiver_bit_rate", Unit: "bit/s", Noun: "received bit rate", HigherIsBetter: true, Compared: true},
		{Name: "receiver_frame_rate", Unit: "1/s", Noun: "received frame rate", HigherIsBetter: true},
		{Name: "sender_bit_rate", Unit: "bit/s", Noun: "sent bit rate", HigherIsBetter: true},
		{Name: "loss", Unit: "1", Noun: "loss"},
		{Name: "jitter", Unit: "us", Noun: "jitter"},
		{Name: "rule_load", Unit: "s", Noun: "time to load the rule-set", Compared: true},
	}
}

// LookupMetric returns what is known about the metric called name.
func LookupMetric(name string) (Metric, bool) {
	for _, m := range metrics() {
		if m.Name == name {
			return m, true
		}
	}
	return Metric{Name: name}, false
}

// PrimaryMetric is the metric that answers an experiment's question, and a claim's when it names
// none. It is empty for an unknown kind of measurement.
func PrimaryMetric(measurement string) string {
	switch measurement {
	case "icmp_rtt":
		return "rtt_median"
	case "udp_iperf3", "udp_netperf":
		return "receiver_bit_rate"
	}
	return ""
}

// A costModel turns a metric into the time that a rule adds to.
type costModel struct {
	metric string
	// traversals is how often that time holds a walk through the list.
	traversals int
	// nanoseconds of one frame or round trip; the argument is > 0.
	nanoseconds func(value float64) float64
}

// costModelOf says how the cost of a rule is read off a measurement: from the round-trip time, in which the
// list is walked twice, or from the time a frame takes the busy device, 1/frame rate.
func costModelOf(measurement string) (costModel, bool) {
	switch measurement {
	case "icmp_rtt":
		return costModel{"rtt_median", 2, func(us float64) float64 { return us * 1e3 }}, true
	case "udp_iperf3", "udp_netperf":
		return costModel{"receiver_frame_rate", 1, func(rate float64) float64 { return 1e9 / rate }}, true
	}
	return costModel{}, false
}
