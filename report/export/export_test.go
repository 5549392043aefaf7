package export

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/rampart-bench/rampart/experiments/record"
)

func example() []record.Record {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	base := record.Record{Schema: 1, Experiment: "latency", Block: 1, Boot: 1, Sequence: 1, Clock: "host", Started: at, ElapsedS: 0.61, Status: record.OK,
		Treatment: record.Treatment{Firewall: "nftables-linear", Rules: 1000, FrameSize: 64}}
	ok := base
	ok.Metrics = map[string]record.Metric{"rtt_median": {Value: 12.4, Unit: "us"}, "loss": {Value: 0, Unit: "1"}}
	failed := base
	failed.Sequence, failed.Status, failed.Error = 2, record.Failed, "=verify rules"
	rate := base
	rate.Sequence, rate.Experiment, rate.Treatment.Firewall = 3, "through put", "a/b=c"
	rate.Treatment.Image = "trixie"
	rate.Metrics = map[string]record.Metric{"receiver_bit_rate": {Value: 1e9, Unit: "bit/s"}}
	return []record.Record{ok, failed, rate}
}

func sequence(list []record.Record, err error) iter.Seq2[record.Record, error] {
	return func(yield func(record.Record, error) bool) {
		for _, r := range list {
			if !yield(r, nil) {
				return
			}
		}
		if err != nil {
			yield(record.Record{}, err)
		}
	}
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, CSV, sequence(example(), nil)); err != nil {
		t.Fatal(err)
	}
	got, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"latency,1,1,1,,nftables-linear,1000,64,host,2026-01-02T03:04:05.678Z,0.61,ok,,loss,0,1",
		"latency,1,1,1,,nftables-linear,1000,64,host,2026-01-02T03:04:05.678Z,0.61,ok,,rtt_median,12.4,us",
		"latency,1,1,2,,nftables-linear,1000,64,host,2026-01-02T03:04:05.678Z,0.61,failed,'=verify rules,,,",
		"through put,1,1,3,trixie,a/b=c,1000,64,host,2026-01-02T03:04:05.678Z,0.61,ok,,receiver_bit_rate,1e+09,bit/s",
	}
	if len(got) != len(want)+1 {
		t.Fatalf("%d lines, want %d", len(got), len(want)+1)
	}
	for i, w := range want {
		if line := strings.Join(got[i+1], ","); line != w {
			t.Errorf("line %d:\n got %s\nwant %s", i+1, line, w)
		}
	}
}

func TestParquet(t *testing.T) {
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if err := Write(b, Parquet, sequence(example(), nil)); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same records give different bytes")
	}
	got, err := parquet.Read[Row](bytes.NewReader(first.Bytes()), int64(first.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 4 {
		t.Fatalf("%d rows, want 4", len(got))
	}
	if r := got[1]; r.Metric != "rtt_median" || r.Value == nil || *r.Value != 12.4 || r.Unit != "us" || !r.Started.Equal(example()[0].Started) {
		t.Errorf("row 1 is %+v", r)
	}
	if r := got[2]; r.Status != "failed" || r.Value != nil {
		t.Errorf("row 2 is %+v", r)
	}
}

func TestBenchmark(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, Benchmark, sequence(example(), nil)); err != nil {
		t.Fatal(err)
	}
	const want = `clock: host
Unit loss better=lower
Unit rtt_median-ns better=lower
BenchmarkLatency/firewall=nftables-linear/rules=1000/frame=64 1 0 loss 12400 rtt_median-ns
Unit receiver_bit_rate-bit/s better=higher
BenchmarkThrough_put/image=trixie/firewall=a_b_c/rules=1000/frame=64 1 1e+09 receiver_bit_rate-bit/s
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestErrorsComeThrough(t *testing.T) {
	broken := errors.New("line 4: broken")
	for _, format := range []string{CSV, Parquet, Benchmark} {
		if err := Write(io.Discard, format, sequence(example(), broken)); !errors.Is(err, broken) {
			t.Errorf("%s: error = %v", format, err)
		}
		if err := Write(full{}, format, sequence(example(), nil)); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%s on a full disk: error = %v", format, err)
		}
	}
	if err := Write(io.Discard, "xls", sequence(nil, nil)); err == nil || !strings.Contains(err.Error(), CSV) {
		t.Errorf("error = %v, want one that names the formats", err)
	}
}

// full is a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
