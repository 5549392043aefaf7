// Package export writes records in formats that other programs read: CSV and Parquet, one line for
// every metric of every run, and the benchmark format of Go, which benchstat compares.
package export

import (
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report/document"
)

// Formats that can be asked for.
const (
	CSV       = "csv"
	Parquet   = "parquet"
	Benchmark = "benchmark"
)

// Write writes all records in one format. It reads them once and holds none. Samples are left out:
// they are values inside a run, and no unit of anything.
func Write(w io.Writer, format string, records iter.Seq2[record.Record, error]) error {
	switch format {
	case CSV:
		return writeCSV(w, records)
	case Parquet:
		return writeParquet(w, records)
	case Benchmark:
		return writeBenchmark(w, records)
	}
	return fmt.Errorf("export records: no format %q: use %q, %q or %q", format, CSV, Parquet, Benchmark)
}

// A Row is one metric of one run. A run that does not count has one row, without a metric.
type Row struct {
	Experiment string    `parquet:"experiment,dict"`
	Block      int32     `parquet:"block"`
	Boot       int32     `parquet:"boot"`
	Sequence   int32     `parquet:"sequence"`
	Image      string    `parquet:"image,dict"` // empty where that is no factor
	Firewall   string    `parquet:"firewall,dict"`
	Rules      int32     `parquet:"rules"`
	FrameSize  int32     `parquet:"frame_size"` // bytes
	Clock      string    `parquet:"clock,dict"`
	Started    time.Time `parquet:"started,timestamp(millisecond)"`
	ElapsedS   float64   `parquet:"elapsed_s"`
	Status     string    `parquet:"status,dict"`
	Error      string    `parquet:"error,dict"`
	Metric     string    `parquet:"metric,dict"`
	Value      *float64  `parquet:"value,optional"` // nil without a metric
	Unit       string    `parquet:"unit,dict"`
}

// rows are the lines of a record, metrics in the order of their names.
func rows(r record.Record) []Row {
	base := Row{
		Experiment: r.Experiment, Block: int32(r.Block), Boot: int32(r.Boot), Sequence: int32(r.Sequence),
		Image: r.Treatment.Image, Firewall: r.Treatment.Firewall, Rules: int32(r.Treatment.Rules), FrameSize: int32(r.Treatment.FrameSize),
		Clock: r.Clock, Started: r.Started.UTC(), ElapsedS: r.ElapsedS, Status: string(r.Status), Error: r.Error,
	}
	if len(r.Metrics) == 0 {
		return []Row{base}
	}
	var out []Row
	for _, name := range names(r) {
		row, m := base, r.Metrics[name]
		row.Metric, row.Value, row.Unit = name, &m.Value, m.Unit
		out = append(out, row)
	}
	return out
}

func names(r record.Record) []string {
	out := make([]string, 0, len(r.Metrics))
	for name := range r.Metrics {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func writeCSV(w io.Writer, records iter.Seq2[record.Record, error]) error {
	out := csv.NewWriter(w)
	out.Write([]string{"experiment", "block", "boot", "sequence", "image", "firewall", "rules", "frame_size", "clock",
		"started", "elapsed_s", "status", "error", "metric", "value", "unit"}) // Flush tells of an error
	for r, err := range records {
		if err != nil {
			return fmt.Errorf("export records as CSV: %w", err)
		}
		for _, row := range rows(r) {
			out.Write(fields(row))
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("export records as CSV: %w", err)
	}
	return nil
}

func fields(r Row) []string {
	value := ""
	if r.Value != nil {
		value = float(*r.Value)
	}
	integer := func(n int32) string { return strconv.Itoa(int(n)) }
	return []string{
		document.Inert(r.Experiment), integer(r.Block), integer(r.Boot), integer(r.Sequence), document.Inert(r.Image), document.Inert(r.Firewall),
		integer(r.Rules), integer(r.FrameSize), document.Inert(r.Clock), r.Started.Format("2006-01-02T15:04:05.000Z"),
		float(r.ElapsedS), document.Inert(r.Status), document.Inert(r.Error), document.Inert(r.Metric), value, document.Inert(r.Unit),
	}
}

func float(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

func writeParquet(w io.Writer, records iter.Seq2[record.Record, error]) error {
	out := parquet.NewGenericWriter[Row](w, parquet.CreatedBy("rampart", "1", ""), parquet.Compression(&parquet.Zstd))
	for r, err := range records {
		if err == nil {
			_, err = out.Write(rows(r))
		}
		if err != nil {
			return fmt.Errorf("export records as Parquet: %w", err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("export records as Parquet: %w", err)
	}
	return nil
}

// writeBenchmark writes one result a run that counts, in the Go benchmark data format
// (golang.org/design/14313-benchmark-format): the treatment as sub-benchmarks, each metric as a unit
// of its own, with lines that say which way it points. Times are in nanoseconds, which benchstat knows.
func writeBenchmark(w io.Writer, records iter.Seq2[record.Record, error]) error {
	out := &printer{w: w}
	clock := ""
	declared := map[string]bool{}
	for r, err := range records {
		if err != nil {
			return fmt.Errorf("export records as benchmark results: %w", err)
		}
		if r.Status != record.OK {
			continue
		}
		if r.Clock != clock {
			clock = r.Clock
			out.printf("clock: %s\n", word(clock))
		}
		line := fmt.Sprintf("Benchmark%s%s/firewall=%s/rules=%d/frame=%d 1", capital(word(r.Experiment)), imagePart(r.Treatment), word(r.Treatment.Firewall), r.Treatment.Rules, r.Treatment.FrameSize)
		for _, name := range names(r) {
			value, u := benchmarkUnit(name, r.Metrics[name])
			if m, known := analysis.LookupMetric(name); known && !declared[u] {
				declared[u] = true
				out.printf("Unit %s better=%s\n", u, map[bool]string{true: "higher", false: "lower"}[m.HigherIsBetter])
			}
			line += " " + float(value) + " " + u
		}
		out.printf("%s\n", line)
	}
	if out.err != nil {
		return fmt.Errorf("export records as benchmark results: %w", out.err)
	}
	return nil
}

// imagePart is the part of a benchmark's name for the image, where that is a factor.
func imagePart(t record.Treatment) string {
	if t.Image == "" {
		return ""
	}
	return "/image=" + word(t.Image)
}

// A printer remembers its first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// benchmarkUnit makes a unit of a metric's name and its unit.
func benchmarkUnit(name string, m record.Metric) (float64, string) {
	nanoseconds := map[string]float64{"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1}
	if f, ok := nanoseconds[m.Unit]; ok {
		return m.Value * f, word(name) + "-ns"
	}
	if m.Unit == "1" {
		return m.Value, word(name)
	}
	return m.Value, word(name) + "-" + unit(m.Unit)
}

// word makes one field of text, without the signs that part a name.
func word(s string) string { return strings.NewReplacer("/", "_", "=", "_").Replace(unit(s)) }

// unit makes one field of text; a unit may have a slash.
func unit(s string) string {
	return strings.Join(strings.Fields(document.Clean(s, false)), "_")
}

// capital is what the name of a benchmark has to begin with.
func capital(s string) string {
	if s != "" && s[0] >= 'a' && s[0] <= 'z' {
		return string(s[0]-'a'+'A') + s[1:]
	}
	return s
}
