package analysis_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/rampart-bench/rampart/experiments/record"
)

// BenchmarkJonsson analyses the full preset jonsson-2018 at ten repetitions with 10,000 bootstrap
// replicates. Aim: at most 5 s on two cores.
func BenchmarkJonsson(b *testing.B) {
	s := jonsson(10)
	records := list(truth{noise: 0.01, drift: 0.02, seed: 1}.records(s))
	for b.Loop() {
		analyze(b, s, sequence(records))
	}
}

// BenchmarkMillionRecords reads and analyses a file of a million records without samples, in the matrix
// of jonsson-2018. Aim: at most 30 s and 1 GiB. Memory is what the process got from the system.
func BenchmarkMillionRecords(b *testing.B) {
	s := jonsson(1374)
	path := filepath.Join(b.TempDir(), "records.jsonl")
	count, size := writeRecords(b, path, truth{noise: 0.01, drift: 0.02, seed: 1}.records(s))
	for b.Loop() {
		if got := analyze(b, s, record.ReadFile(path, record.Options{SkipSamples: true})).Runs; got[0].OK+got[1].OK != count {
			b.Fatalf("%+v of %d", got, count)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(count), "records")
	b.ReportMetric(float64(size)/1e6, "MB")
	b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-from-system")
}

func writeRecords(b *testing.B, path string, records func(func(record.Record, error) bool)) (count int, size int64) {
	b.Helper()
	f, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	enc := json.NewEncoder(w)
	for r := range records {
		if err := enc.Encode(r); err != nil {
			b.Fatal(err)
		}
		count++
	}
	if err := w.Flush(); err != nil {
		b.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		b.Fatal(err)
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	return count, info.Size()
}
