package firewall

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkLoad compares loading by an engine, with everything that it reads back, with what the tools
// need for the same rule-set as text, in pairs that change their order. It prints the median of the
// pairs' ratios and their quartiles, ours ÷ the tool's, by the clock and (cpu-ratio) by the processor
// time of this process and its children, which a busy machine disturbs less. Of that, load-cpu-ratio is for
// loading alone: what it lacks of cpu-ratio is nearly all the kernel's, which writes every rule down.
//
//	go test -run '^$' -bench Load -benchtime 20x ./experiments/firewall
func BenchmarkLoad(b *testing.B) {
	for _, arm := range arms {
		n := 10_000
		if arm.lookup == Indexed {
			n = 100_000
		}
		b.Run(arm.engine+"-"+arm.lookup, func(b *testing.B) {
			isolate(b)
			compareLoads(b, arm.engine, arm.lookup, ruleSet(n, Last))
		})
	}
}

func compareLoads(b *testing.B, engine, lookup string, rules RuleSet) {
	e := mustNew(b, engine, lookup)
	commands := textCommands(b, engine, lookup, rules)
	var loaded time.Duration // processor time before anything is read back
	ours := func() {
		mustLoad(b, e, rules)
		loaded = processorTime(b)
		wantClean(b, mustVerify(b, e, rules), nil)
	}
	theirs := func() {
		for _, argv := range commands {
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				b.Fatalf("%v: %v\n%s", argv, err, out)
			}
		}
	}
	timed := func(load func()) cost {
		if err := e.Unload(b.Context()); err != nil {
			b.Fatal(err)
		}
		start, busy := time.Now(), processorTime(b)
		load()
		return cost{time.Since(start), processorTime(b) - busy, loaded - busy}
	}
	timed(ours) // modules and pages
	timed(theirs)
	var ratios, busy, loading, milliseconds []float64
	for i := 0; b.Loop(); i++ {
		var our, their cost
		if i%2 == 0 {
			our, their = timed(ours), timed(theirs)
		} else {
			their, our = timed(theirs), timed(ours)
		}
		ratios = append(ratios, float64(our.wall)/float64(their.wall))
		busy = append(busy, float64(our.busy)/float64(their.busy))
		loading = append(loading, float64(our.loading)/float64(their.busy))
		milliseconds = append(milliseconds, our.wall.Seconds()*1e3)
	}
	for _, list := range [][]float64{ratios, busy, loading, milliseconds} {
		slices.Sort(list)
	}
	b.ReportMetric(0, "ns/op") // of both together: means nothing
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(ratios[len(ratios)/4], "ratio-q1")
	b.ReportMetric(ratios[len(ratios)*3/4], "ratio-q3")
	b.ReportMetric(busy[len(busy)/2], "cpu-ratio")
	b.ReportMetric(loading[len(loading)/2], "load-cpu-ratio")
	b.ReportMetric(milliseconds[len(milliseconds)/2], "ms")
}

// A cost is the time of a load, and of its processor time (busy) the part before reading back (loading).
type cost struct{ wall, busy, loading time.Duration }

func processorTime(b *testing.B) (total time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if err := unix.Getrusage(who, &used); err != nil {
			b.Fatal(err)
		}
		total += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return total
}

// textCommands writes the rule-set as text and returns the commands that load it.
func textCommands(b *testing.B, engine, lookup string, rules RuleSet) [][]string {
	write := func(name string, text []byte, err error) string {
		path := filepath.Join(b.TempDir(), name)
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			b.Fatal(err)
		}
		return path
	}
	spec := Spec{Engine: engine, Lookup: lookup}
	if engine == Nftables {
		text, err := NFTScript(rules, spec)
		return [][]string{{"nft", "-f", write("nft", text, err)}}
	}
	text, err := IptablesRestore(rules, spec)
	restore := []string{engine + "-restore", write("iptables", text, err)}
	if lookup == Linear {
		return [][]string{restore}
	}
	text, err = IpsetRestore(rules)
	return [][]string{{"ipset", "restore", "-file", write("ipset", text, err)}, restore}
}
