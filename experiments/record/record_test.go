package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// run returns a record like those that real runs write.
func run(sequence int) Record {
	return Record{
		Schema: Schema, Experiment: "latency", Block: (sequence-1)/24 + 1, Boot: 1, Sequence: sequence,
		Treatment: Treatment{Firewall: "nftables-linear", Rules: 1000, FrameSize: 64},
		Clock:     "host", Started: time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC).Add(time.Duration(sequence) * time.Second),
		ElapsedS: 0.61, Status: OK,
		Metrics: map[string]Metric{
			"rtt_median": {12.4 + float64(sequence%7), "us"}, "rtt_p99": {19.9, "us"}, "rule_load": {0.021, "s"},
		},
		Checks: []Check{{Name: "rules loaded", Want: 1000.0, Got: 1000.0, OK: true}},
	}
}

func line(t testing.TB, rec Record) string {
	t.Helper()
	text, err := encode(rec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func collect(text string, opt Options) (recs []Record, err error) {
	for rec, e := range Read(strings.NewReader(text), opt) {
		if e != nil {
			return recs, e
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

// The record printed in the design is what the package reads and writes.
func TestExampleOfTheDesign(t *testing.T) {
	const text = `{"schema":1,"experiment":"latency","block":3,"boot":1,"sequence":117,` +
		`"treatment":{"firewall":"nftables-linear","rules":1000,"frame_size":64},` +
		`"clock":"host","started":"2026-01-02T03:04:05.678Z","elapsed_s":0.61,"status":"ok",` +
		`"metrics":{"rtt_median":{"value":12.4,"unit":"us"},"rtt_p99":{"value":19.9,"unit":"us"},` +
		`"rule_load":{"value":0.021,"unit":"s"}},"samples":{"rtt_ns":[12412,12380]},` +
		`"checks":[{"name":"rules loaded","want":1000,"got":1000,"ok":true}]}` + "\n"
	recs, err := collect(text, Options{})
	if err != nil || len(recs) != 1 {
		t.Fatalf("read %d records, %v", len(recs), err)
	}
	var want, got any
	json.Unmarshal([]byte(text), &want)
	json.Unmarshal([]byte(line(t, recs[0])), &got)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	short, err := collect(text, Options{SkipSamples: true})
	if err != nil || short[0].Samples != nil {
		t.Fatalf("samples not skipped: %v, %v", short, err)
	}
	recs[0].Samples = nil
	if d := cmp.Diff(recs, short); d != "" {
		t.Errorf("skipping samples changed more than samples: %s", d)
	}
}

func TestReadSaysWhatIsWrong(t *testing.T) {
	good := line(t, run(1))
	change := func(old, new string) string {
		text := strings.Replace(good, old, new, 1)
		if text == good {
			t.Fatalf("%q is not in the record", old)
		}
		return text
	}
	for name, c := range map[string]struct {
		text string
		line int
		want string
	}{
		"unknown field":       {good + change(`"boot"`, `"colour":1,"boot"`), 2, "colour"},
		"unknown check field": {change(`"ok":true`, `"ok":true,"why":1`) + good, 1, "why"},
		"repeated field":      {change(`"boot":1`, `"boot":1,"boot":2`), 1, "boot"},
		"newer format":        {change(`"schema":1`, `"schema":2`), 1, "use a newer rampart"},
		"newer with more":     {change(`"schema":1`, `"schema":2,"colour":3`), 1, "use a newer rampart"},
		"older format":        {change(`"schema":1`, `"schema":0`), 1, "use the older rampart"},
		"wrong type":          {change(`"boot":1`, `"boot":"x"`), 1, "boot"},
		"no status":           {change(`"ok"`, `"fine"`), 1, "status"},
		"failure unexplained": {change(`"status":"ok"`, `"status":"failed"`), 1, "without an error"},
		"sequence from 0":     {change(`"sequence":1`, `"sequence":0`), 1, "counts from 1"},
		"damage inside":       {good + "garbage\n" + good, 2, "delete that line"},
		"empty line inside":   {good + "\n" + good, 2, "not a record"},
		"two on a line":       {strings.TrimSuffix(good, "\n") + good + good, 1, "not a record"},
		"JSON, no record":     {good + "[]\n", 2, "not a record"},
		"null for a value":    {good + change(`"value":0.021`, `"value":null`), 2, "null at /metrics/rule_load/value"},
		"null for a level":    {change(`"rules":1000`, `"rules":null`), 1, "null at /treatment/rules"},
		"metric of null":      {change(`{"value":19.9,"unit":"us"}`, `null`), 1, "null at /metrics/rtt_p99"},
		"no value":            {change(`"value":0.021,`, ``), 1, "no value"},
		"no value of value":   {change(`"rule_load":{"value":0.021,`, `"value":{`), 1, "no value"},
	} {
		t.Run(name, func(t *testing.T) {
			recs, err := collect(c.text, Options{SkipSamples: true})
			var damage *DamageError
			if !errors.As(err, &damage) || damage.Line != c.line || !strings.Contains(err.Error(), c.want) {
				t.Errorf("after %d records: %v", len(recs), err)
			}
		})
	}
}

// A file cut at any byte gives the whole records before the cut, and says when something was lost.
func TestReadTornAtEveryByte(t *testing.T) {
	one, two := line(t, run(1)), line(t, run(2))
	text := one + two
	for n := range len(text) + 1 {
		recs, err := collect(text[:n], Options{})
		var torn *TornError
		switch {
		case n == 0 || n == len(one) || n == len(text):
			if err != nil {
				t.Fatalf("cut at %d: %v", n, err)
			}
		case !errors.As(err, &torn):
			t.Fatalf("cut at %d: %v", n, err)
		case torn.Offset+torn.Bytes != int64(n):
			t.Fatalf("cut at %d: %+v", n, torn)
		}
		if want := bytes.Count([]byte(text[:n]), []byte("\n")); len(recs) != want {
			t.Fatalf("cut at %d: %d records, want %d", n, len(recs), want)
		}
	}
}

// A power cut can leave zeros where data were to come.
func TestReadZerosAtTheEnd(t *testing.T) {
	var torn *TornError
	for _, tail := range []string{"\x00\x00\x00", "\x00\x00\n"} {
		recs, err := collect(line(t, run(1))+tail, Options{})
		if !errors.As(err, &torn) || len(recs) != 1 || torn.Line != 2 {
			t.Errorf("%q: %d records, %v", tail, len(recs), err)
		}
	}
}

// endless is a line without end; it fails the test if it is read into memory whole.
type endless struct{ left int64 }

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), e.left)
	for i := range p[:n] {
		p[i] = 'x'
	}
	e.left -= n
	return int(n), nil
}

func TestReadHugeLine(t *testing.T) {
	long := run(1)
	long.Samples = map[string][]int64{"rtt_ns": make([]int64, 300_000)}
	text := line(t, long) + line(t, run(2))
	recs, err := collect(text, Options{})
	if err != nil || len(recs) != 2 || len(recs[0].Samples["rtt_ns"]) != 300_000 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	s := newScanner(io.MultiReader(&endless{MaxLine + 1000}, strings.NewReader("\n"+line(t, run(2)))), "")
	var damage *DamageError
	if s.next(Options{}) || !errors.As(s.err, &damage) || !errors.Is(s.err, errLongLine) {
		t.Errorf("line beyond the limit: %v", s.err)
	}
	if cap(s.long) > 3*MaxLine {
		t.Errorf("%d bytes of a line that is %d long at most were kept", cap(s.long), MaxLine)
	}
	s = newScanner(&endless{MaxLine * 2}, "")
	var torn *TornError
	if s.next(Options{}) || !errors.As(s.err, &torn) || torn.Bytes != MaxLine*2 {
		t.Errorf("torn line beyond the limit: %v", s.err)
	}
}

func TestReadStopsWhenAsked(t *testing.T) {
	text := line(t, run(1)) + line(t, run(2))
	n := 0
	for range Read(strings.NewReader(text), Options{}) {
		n++
		break
	}
	if n != 1 {
		t.Error(n)
	}
}

func TestReadFailure(t *testing.T) {
	cause := errors.New("disk on fire")
	r := io.MultiReader(strings.NewReader(line(t, run(1))), failing{cause})
	var last error
	for _, err := range Read(r, Options{}) {
		last = err
	}
	if !errors.Is(last, cause) {
		t.Error(last)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func FuzzRead(f *testing.F) {
	good := line(f, run(1))
	f.Add([]byte(good))
	f.Add([]byte(good + good[:40]))
	f.Add([]byte(good + "\x00\x00\n" + good))
	f.Add([]byte(strings.Replace(good, `"schema":1`, `"schema":7`, 1)))
	f.Add([]byte(`{"samples":{"a":[1,2,{"b":[]}]}}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var counts [2]int
		var texts [2]string
		for i, opt := range []Options{{}, {SkipSamples: true}} {
			for rec, err := range Read(bytes.NewReader(text), opt) {
				if err != nil {
					texts[i] = fmt.Sprintf("%T", err)
					var torn *TornError
					if errors.As(err, &torn) && torn.Offset+torn.Bytes != int64(len(text)) {
						t.Fatalf("torn line does not reach the end: %+v of %d", torn, len(text))
					}
					continue
				}
				counts[i]++
				// What was read can be written, and reads back the same.
				again, err := encode(rec)
				if err != nil {
					t.Fatalf("encode %+v: %v", rec, err)
				}
				if _, err := decode(bytes.TrimSuffix(again, []byte("\n")), Options{}); err != nil {
					t.Fatalf("decode what was encoded: %v\n%s", err, again)
				}
			}
		}
		if counts[1] < counts[0] {
			t.Fatalf("%d records with samples, %d without (%v)", counts[0], counts[1], texts)
		}
	})
}

// writeMany makes a records file of n runs without samples, about 500 bytes each.
func writeMany(t testing.TB, path string, n int) int64 {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var size int64
	block := make([]byte, 0, 1<<20)
	for i := range n {
		text := line(t, run(i+1))
		size += int64(len(text))
		if block = append(block, text...); len(block) > 1<<19 || i == n-1 {
			if _, err := f.Write(block); err != nil {
				t.Fatal(err)
			}
			block = block[:0]
		}
	}
	return size
}

// BenchmarkRead reads records at a rate from which the time of a million (500 MB) follows.
func BenchmarkRead(b *testing.B) {
	path := filepath.Join(b.TempDir(), RecordsName)
	const n = 20_000
	b.SetBytes(writeMany(b, path, n))
	for b.Loop() {
		count := 0
		for _, err := range ReadFile(path, Options{SkipSamples: true}) {
			if err != nil {
				b.Fatal(err)
			}
			count++
		}
		if count != n {
			b.Fatal(count)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)*1e6/n, "s/million")
}
