package traffic

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestProbe(t *testing.T) {
	l := newLab(t)
	s := l.node("s")
	for _, size := range []int{64, 65, 512, 1518} {
		p := probe(100)
		p.FrameSize = size
		got := must[RoundTrips](s, "probe", p)
		if got.Sent != 100 || got.Received != 100 || got.WarmupSent != 20 || got.WarmupReceived != 20 || got.Duplicates != 0 || len(got.SamplesNS) != 100 {
			t.Errorf("frame %d: %+v", size, got)
		}
		for _, rtt := range got.SamplesNS {
			if rtt <= 0 || rtt > int64(time.Second) {
				t.Errorf("frame %d: a round trip of %d ns", size, rtt)
			}
		}
		if e := time.Duration(got.ElapsedNS); e < 190*time.Millisecond || e > 2*time.Second {
			t.Errorf("frame %d: 100 probes at 2 ms took %v", size, e)
		}
		if got.Source != senderAddr {
			t.Errorf("source %v", got.Source)
		}
	}
	large := probe(1)
	large.FrameSize = 1519
	if err := s.ask("probe", large, nil); err == nil || !strings.Contains(err.Error(), "larger than the MTU") {
		t.Errorf("a frame beyond the MTU: %v", err)
	}
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

// pingSamples runs the system's ping on the same path, and gives back its round trips in ns.
func (l *lab) pingSamples(count int) (samples []float64) {
	out := l.in("s", "ping", "-i", "0.002", "-c", fmt.Sprint(count), "-s", "18", receiverAddr.String())
	for _, m := range pingTime.FindAllStringSubmatch(out, -1) {
		ms, _ := strconv.ParseFloat(m[1], 64)
		samples = append(samples, ms*1e6)
	}
	return samples
}

func quantile(sorted []float64, q float64) float64 { return sorted[int(q*float64(len(sorted)-1))] }

func describe(samples []float64) (median, iqr, mad float64) {
	slices.Sort(samples)
	median = quantile(samples, 0.5)
	dev := make([]float64, len(samples))
	for i, s := range samples {
		dev[i] = max(s-median, median-s)
	}
	slices.Sort(dev)
	return median, quantile(samples, 0.75) - quantile(samples, 0.25), quantile(dev, 0.5)
}

// BenchmarkAgainstPing alternates our prober and ping(8) on the same path, and reports ours over
// theirs: of the medians, and of the spreads.
func BenchmarkAgainstPing(b *testing.B) {
	l := newLab(b)
	s := l.node("s")
	var ours, theirs []float64
	for b.Loop() {
		for range 5 {
			theirs = append(theirs, l.pingSamples(300)[20:]...)
			for _, ns := range must[RoundTrips](s, "probe", probe(280)).SamplesNS {
				ours = append(ours, float64(ns))
			}
		}
	}
	m1, q1, d1 := describe(ours)
	m2, q2, d2 := describe(theirs)
	b.ReportMetric(m1/m2, "median-ratio")
	b.ReportMetric(q1/q2, "iqr-ratio")
	b.ReportMetric(d1/d2, "mad-ratio")
	b.ReportMetric(m1, "ours-ns")
	b.ReportMetric(m2, "ping-ns")
	b.ReportMetric(quantile(ours, 0.99), "ours-p99-ns")
	b.ReportMetric(quantile(theirs, 0.99), "ping-p99-ns")
	b.ReportMetric(q1, "ours-iqr-ns")
	b.ReportMetric(q2, "ping-iqr-ns")
}
