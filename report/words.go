package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/report/document"
)

// metricWords are the names of metrics for readers. A metric that nobody knows keeps its own name.
func metricWords(name string) string {
	if m, known := analysis.LookupMetric(name); known {
		return m.Noun
	}
	return strings.ReplaceAll(name, "_", " ")
}

// axisWords is metricWords where there is little room.
func axisWords(name string) string {
	switch name {
	case "rtt_p99":
		return "round-trip time, p99"
	case "rule_load":
		return "time to load"
	}
	return metricWords(name)
}

// betterWords says which way a metric points.
func betterWords(name string) string {
	m, known := analysis.LookupMetric(name)
	switch {
	case !known:
		return "which way is better is not known"
	case m.HigherIsBetter:
		return "higher is better"
	}
	return "lower is better"
}

// clockWords says what time meant, for captions.
func clockWords(clock string) string {
	switch clock {
	case "host":
		return "host (real time; three namespaces on one kernel)"
	case "kvm":
		return "kvm (real time; virtual machines under hardware virtualisation)"
	case "tcg":
		return "tcg (real time; virtual machines under emulation, not hardware)"
	case "virtual":
		return "virtual (one nanosecond an instruction; not time)"
	case "":
		return "not known, as there is no record"
	}
	return clock
}

// measurementWords says what a measurement does, for the method section.
func measurementWords(kind string) string {
	switch kind {
	case "icmp_rtt":
		return "ICMP echo requests are sent through the firewall at a fixed interval, and the round-trip time of each is kept. The value of a run is the median of its samples (and their 99th percentile)."
	case "udp_iperf3":
		return "iperf3 sends one UDP flow through the firewall, and what the receiver got is counted. This is the forwarding rate at offered load (RFC 2285), not the throughput of RFC 2544: no search for the highest rate without loss was made."
	case "udp_netperf":
		return "netperf sends one UDP_STREAM flow through the firewall, and what the receiver got is counted. This is the forwarding rate at offered load (RFC 2285), not the throughput of RFC 2544: no search for the highest rate without loss was made."
	}
	return "Measurement " + kind + "."
}

// isRate reports whether a measurement is one to which the words of RFC 2285 apply.
func isRate(kind string) bool { return strings.HasPrefix(kind, "udp_") }

// verdict maps the words of analysis.
func verdict(word string, minor bool) document.Verdict {
	switch word {
	case analysis.Equivalent:
		if minor {
			return document.EquivalentMinor
		}
		return document.Equivalent
	case analysis.Slower:
		return document.Slower
	case analysis.Faster:
		return document.Faster
	case analysis.Agrees:
		return document.Agrees
	case analysis.Disagrees:
		return document.Disagrees
	case analysis.Inconclusive:
		return document.Inconclusive
	}
	return document.None
}

// effectWords is a claim's sentence without the verdict that it begins with, for where that stands
// beside it.
func effectWords(c analysis.ClaimResult) string {
	s := c.Sentence
	for _, v := range []string{analysis.Agrees, analysis.Disagrees, analysis.Inconclusive} {
		s = strings.TrimPrefix(s, capital(v)+": ")
	}
	return capital(s)
}

func estimate(i analysis.Interval) document.Estimate {
	return document.Estimate{Value: i.Value, Lo: i.Lo, Hi: i.Hi, Level: i.Level}
}

// ratio is an estimate of a ratio, or none where there is nothing to make one of.
func ratio(i analysis.Interval) document.Estimate {
	if i.Value == 0 && i.Level == 0 {
		return document.Estimate{Value: math.NaN()}
	}
	return estimate(i)
}

// notes turns indices of warnings into numbers of footnotes.
func notes(warnings []int) []int {
	var out []int
	for _, w := range warnings {
		out = append(out, w+1)
	}
	return out
}

// region says where a claim is made.
func region(c analysis.Claim) string {
	signs := map[string]string{"==": "=", "!=": "≠", "<": "<", "<=": "≤", ">": ">", ">=": "≥"}
	names := map[string]string{"rules": "rules", "frame_size": "frame size"}
	var parts []string
	for _, levels := range []struct {
		noun  string
		names []string
	}{{"image", c.Images}, {"firewall", c.Firewalls}} {
		switch len(levels.names) {
		case 0:
		case 1:
			parts = append(parts, levels.noun+" "+levels.names[0])
		default:
			parts = append(parts, levels.noun+"s "+enumerate(levels.names))
		}
	}
	for _, c := range c.Where {
		name, sign := names[c.Factor], signs[c.Op]
		if name == "" {
			name = c.Factor
		}
		if sign == "" {
			sign = c.Op
		}
		s := fmt.Sprintf("%s %s %d", name, sign, c.Value)
		if c.Factor == "frame_size" {
			s += " bytes"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ", ")
}

// slug makes a file name of words from anywhere: lower-case letters, digits and hyphens.
func slug(words ...string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(strings.Join(words, "-")) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if s := b.String(); s != "" && !strings.HasSuffix(s, "-") {
			b.WriteByte('-')
		}
	}
	s := strings.Trim(b.String(), "-")
	return s[:min(len(s), 80)]
}

// plural counts things: "1 run", "1,200 runs".
func plural(n int, noun string) string {
	s := document.Print(document.Count(n), document.Unit{}) + " " + noun
	if n != 1 {
		s += "s"
	}
	return s
}

// enumerate joins words as a sentence does.
func enumerate(words []string) string {
	switch len(words) {
	case 0:
		return ""
	case 1:
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

func numbers(xs []int) string {
	words := make([]string, len(xs))
	for i, x := range xs {
		words[i] = strconv.Itoa(x)
	}
	return enumerate(words)
}

// percentWords prints a share such as 0.05 as "5 %".
func percentWords(share float64) string {
	return strconv.FormatFloat(100*share, 'g', 4, 64) + " %"
}

// duration prints seconds for people.
func duration(s float64) string {
	switch {
	case s < 120:
		return strconv.FormatFloat(s, 'f', 1, 64) + " s"
	case s < 7200:
		return strconv.FormatFloat(s/60, 'f', 1, 64) + " min"
	}
	return strconv.FormatFloat(s/3600, 'f', 1, 64) + " h"
}
