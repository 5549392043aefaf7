package traffic

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseSNMP(t *testing.T) {
	got, err := parseSNMP(strings.NewReader("Udp: NoPorts InDatagrams\nUdp: 3 12\nTcp: MaxConn OutSegs\nTcp: -1 7\nIp: InReceives\nIp: 5\n"))
	if err != nil || got["Udp"]["InDatagrams"] != 12 || got["Tcp"]["OutSegs"] != 7 || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"Udp: A\n", "Udp: InErrors\nUdp: x\n", "Udp: A\nTcp: 1\n", "Udp: A B\nUdp: 1\n", "\n\n"} {
		if got, err := parseSNMP(strings.NewReader(bad)); err == nil {
			t.Errorf("%q gave %v", bad, got)
		}
	}
}

func TestParseSoftnet(t *testing.T) {
	const columns = "000000ff 00000002 0000000a 0 0 0 0 0 0 0 0 0 00000003 0 0\n"
	got, err := parseSoftnet(strings.NewReader(columns + "1 2 3\n"))
	if err != nil || len(got) != 2 || got[0] != (Softnet{3, 255, 2, 10}) || got[1] != (Softnet{1, 1, 2, 3}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"1 2\n", "1 2 x\n"} {
		if _, err := parseSoftnet(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	got, err := parseCPUs(strings.NewReader("cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 100 100 100 500 100 100 200 100 0 0\nintr 5\n"))
	want := CPU{CPU: 0, User: 2, System: 2, SoftIRQ: 2, Steal: 1, Idle: 6}
	if err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("%+v, %v", got, err)
	}
	if b := got[0].Busy(); b < 0.538 || b > 0.539 {
		t.Errorf("busy %v", b)
	}
	if (CPU{}).Busy() != 0 {
		t.Error("no time at all is busy")
	}
	if _, err := parseCPUs(strings.NewReader("cpu0 1 2\n")); err == nil {
		t.Error("a short line was accepted")
	}
}

func TestParseSockets(t *testing.T) {
	const table = "  sl  local_address rem_address   st\n" +
		"   0: 02024E0A:1451 00000000:0000 0A 00000000:00000000\n" +
		"   1: 0100007F:0016 02024E0A:1451 01 00000000:00000000\n" +
		"   2: 0100007F:0016\n   3: 01:0016 01:0016 01\n   4: 0100007F:x 0100007F:0016 01\n"
	want := []socket{
		{netip.MustParseAddrPort("10.78.2.2:5201"), netip.MustParseAddrPort("0.0.0.0:0"), tcpListen},
		{netip.MustParseAddrPort("127.0.0.1:22"), netip.MustParseAddrPort("10.78.2.2:5201"), "01"},
	}
	if got := parseSockets(table); !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func FuzzProc(f *testing.F) {
	f.Add("Udp: A B\nUdp: 1 2\n")
	f.Add("000000ff 00000002 0000000a 0 0 0 0 0 0 0 0 0 00000003 0 0\n")
	f.Add("cpu0 1 2 3 4 5 6 7 8 9 10\n")
	f.Add("   0: 02024E0A:1451 00000000:0000 0A 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		parseSNMP(strings.NewReader(text))
		parseSoftnet(strings.NewReader(text))
		parseCPUs(strings.NewReader(text))
		parseSockets(text)
	})
}

func TestSnap(t *testing.T) {
	l := newLab(t)
	s := l.node("s")
	before := must[Snapshot](s, "snap", nil)
	l.in("s", "ping", "-c", "3", "-i", "0.01", "-s", "100", receiverAddr.String())
	// On a busy machine ping may not have waited for the last answer.
	d, err := must[Snapshot](s, "snap", nil).Since(before)
	for began := time.Now(); err == nil && d.Interfaces["inside"].RxPackets < 3 && time.Since(began) < 2*time.Second; {
		time.Sleep(20 * time.Millisecond)
		d, err = must[Snapshot](s, "snap", nil).Since(before)
	}
	if err != nil {
		t.Fatal(err)
	}
	if i := d.Interfaces["inside"]; i.TxPackets != 3 || i.TxBytes != 3*142 || i.RxPackets != 3 || i.Drops() != 0 {
		t.Errorf("%+v", i)
	}
	if d.protocol("Icmp", "OutEchos") != 3 || d.protocol("Icmp", "InEchoReps") != 3 {
		t.Errorf("%v", d.Protocols["Icmp"])
	}
	if len(d.CPUs) == 0 || d.CPUs[0].Total() <= 0 || len(d.Softnet) == 0 || d.TakenNS <= 0 {
		t.Errorf("%+v", d)
	}

	// A queue that drops is heard of.
	l.in("s", "tc", "qdisc", "add", "dev", "inside", "root", "tbf", "rate", "8kbit", "burst", "150", "limit", "150")
	before = must[Snapshot](s, "snap", nil)
	l.run("sh", "-c", "ip netns exec "+l.prefix+"s ping -c 5 -i 0.002 -W 0.1 "+receiverAddr.String()+" || true")
	if d, err = must[Snapshot](s, "snap", nil).Since(before); err != nil || d.Interfaces["inside"].QueueDropped == 0 {
		t.Errorf("a queue for one frame, five frames at once: %+v, %v", d.Interfaces["inside"], err)
	}
}

func TestSinceRefuses(t *testing.T) {
	a := Snapshot{Kernel: "a", Interfaces: map[string]Interface{"inside": {RxPackets: 5}}}
	if _, err := a.Since(Snapshot{Kernel: "b"}); err == nil || !strings.Contains(err.Error(), "rebooted") {
		t.Error(err)
	}
	before := Snapshot{Kernel: "a", Interfaces: map[string]Interface{"inside": {RxPackets: 6}}}
	if _, err := a.Since(before); err == nil || !strings.Contains(err.Error(), "inside") {
		t.Error(err)
	}
	wrapped := Snapshot{Softnet: []Softnet{{Dropped: 3}}}
	d, err := wrapped.Since(Snapshot{Softnet: []Softnet{{Dropped: 1<<32 - 2}}})
	if err != nil || d.SoftnetDropped() != 5 {
		t.Errorf("%+v, %v", d, err)
	}
}
