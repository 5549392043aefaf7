package firewall

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// ruleMessage is a rule as the kernel dumps it: what is sent, with the counters filled in.
func ruleMessage(t testing.TB, entry uint32) []byte {
	t.Helper()
	attrs, hole, err := ruleTemplate()
	must(t, err)
	binary.BigEndian.PutUint32(attrs[hole:], entry)
	return attrs
}

func TestParseRule(t *testing.T) {
	attrs := ruleMessage(t, key(sender))
	rule, ok := new(ruleReader).read(attrs)
	if !ok || rule.source != key(sender) || rule.set != "" {
		t.Errorf("got %+v, %t", rule, ok)
	}
	// A rule cut short anywhere is not one of ours.
	for n := range len(attrs) {
		if rule, ok := new(ruleReader).read(attrs[:n]); ok {
			t.Errorf("%d of %d bytes are %+v", n, len(attrs), rule)
		}
	}
}

// TestReadRules: that a rule looks like one before it changes nothing of what is read, whichever byte of it is
// another.
func TestReadRules(t *testing.T) {
	var reader ruleReader
	form := ruleMessage(t, key(sender))
	if rule, ok := reader.read(form); !ok || rule.source != key(sender) {
		t.Fatalf("got %+v, %t", rule, ok)
	}
	alike := 0
	for i := range form {
		changed := bytes.Clone(form)
		changed[i] ^= 0x55
		if reader.isAlike(attribute(changed, unix.NFTA_RULE_EXPRESSIONS)) {
			alike++
		}
		got, ok := reader.read(changed)
		if want, wanted := new(ruleReader).read(changed); got != want || ok != wanted {
			t.Errorf("byte %d of %d: got %+v, %t, want %+v, %t", i, len(form), got, ok, want, wanted)
		}
	}
	if want := addressLength + 8 + 8; alike < want {
		t.Errorf("%d changed bytes are read without a look at the attributes, want at least the %d of address and counters", alike, want)
	}
}

func TestParseAnswer(t *testing.T) {
	none := func(uint8, []byte) error { return nil }
	message := func(kind, flags int, body ...byte) []byte {
		return appendMessage(nil, kind, flags, 0, body[0], 0, body[4:])
	}
	code := func(errno unix.Errno) []byte {
		b := message(unix.NLMSG_ERROR, 0, 0, 0, 0, 0)
		binary.NativeEndian.PutUint32(b[unix.NLMSG_HDRLEN:], uint32(-int32(errno)))
		return b
	}
	for name, c := range map[string]struct {
		answer []byte
		done   bool
		err    error
	}{
		"error":           {code(unix.ENOENT), true, unix.ENOENT},
		"acknowledgement": {code(0), true, nil},
		"one of many":     {message(unix.NFNL_SUBSYS_NFTABLES<<8, unix.NLM_F_MULTI, 2, 0, 0, 0), false, nil},
		"interrupted":     {message(unix.NFNL_SUBSYS_NFTABLES<<8, unix.NLM_F_DUMP_INTR, 2, 0, 0, 0), true, errInterrupted},
	} {
		if done, err := parseAnswer(c.answer, none); done != c.done || err != c.err {
			t.Errorf("%s: got %t, %v", name, done, err)
		}
	}
	if _, err := parseAnswer([]byte{200, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, none); err == nil {
		t.Error("a message longer than the answer passes")
	}
}

// TestParseLegacy reads a table that a kernel (6.18, amd64) gave: ten rules, a rule of another form, a
// rule in INPUT, and a chain of the user (its head and its end).
func TestParseLegacy(t *testing.T) {
	info, blob := capture(t)
	table, err := parseLegacy(info, blob)
	must(t, err)
	if len(table.rules) != 11 || table.others != 1 || table.strangers != 3 || !table.forwardDrop || !table.othersAccept || table.isPristine || len(table.hooks) != 3 {
		t.Errorf("got %+v", table)
	}
	entries, err := ruleSet(10, Last).entries()
	must(t, err)
	if c := inOrder(entries, table.rules); !c.OK {
		t.Errorf("%+v", c)
	}
	for n := range len(blob) {
		if _, err := parseLegacy(info, blob[:n]); err == nil {
			t.Errorf("%d of %d bytes pass", n, len(blob))
		}
	}
}

// capture is the table of TestParseLegacy: its struct ipt_getinfo, then its blob.
func capture(t testing.TB) (info, blob []byte) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "legacy-table"))
	must(t, err)
	return b[:sizeofInfo], b[sizeofInfo:]
}

func TestParseSetRule(t *testing.T) {
	want := matchRule{set: setName, count: Count{Packets: 10, Bytes: 840}}
	for line, ok := range map[string]bool{
		"-A FORWARD -m set --match-set accepted src -c 10 840 -j ACCEPT":   true, // iptables 1.8.9
		"-A FORWARD -m set --match-set accepted src -j ACCEPT -c 10 840":   true, // some iptables-nft, by go-iptables
		"-A FORWARD -m set ! --match-set accepted src -c 10 840 -j ACCEPT": false,
		"-A FORWARD -m set --match-set accepted dst -c 10 840 -j ACCEPT":   false,
		"-A FORWARD -m set --match-set accepted src -c 10 -j ACCEPT":       false,
		"-A FORWARD -m set --match-set accepted src -j ACCEPT":             false,
	} {
		if got, is := parseSetRule(line); is != ok || ok && got != want {
			t.Errorf("%s: got %+v, %t", line, got, is)
		}
	}
}

// TestHooksOfSecurityModules: those of the host's security module are in every namespace.
func TestHooksOfSecurityModules(t *testing.T) {
	rest, security := withoutSecurity([]hook{
		{unix.NF_INET_POST_ROUTING, -225, "apparmor_ip_postroute"}, {unix.NF_INET_FORWARD, 0, "nft_do_chain_ipv4"},
		{unix.NF_INET_FORWARD, -225, "selinux_ip_forward"}, {unix.NF_INET_PRE_ROUTING, -200, "ipv4_conntrack_in"},
	})
	if got := describe(rest); len(got) != 2 || got[0] != "prerouting -200" || got[1] != "forward 0" || len(security) != 2 {
		t.Errorf("got %q and %q", got, security)
	}
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(appendMessage(nil, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE, unix.NLM_F_MULTI, 1, unix.NFPROTO_IPV4, 0, ruleMessage(f, 1)))
	f.Add(ruleBatch([]uint32{1, 2}, ruleMessage(f, 1), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parseAnswer(b, func(_ uint8, attrs []byte) error {
			new(ruleReader).read(attrs)
			parseChain(attrs)
			return nil
		})
	})
}

func FuzzParseRule(f *testing.F) {
	form := ruleMessage(f, key(sender))
	f.Add(form)
	f.Fuzz(func(t *testing.T, b []byte) {
		rule, ok := new(ruleReader).read(b)
		if !ok && rule != (matchRule{}) {
			t.Errorf("not a rule of ours, but %+v", rule)
		}
		var reader ruleReader
		reader.read(form)
		if again, is := reader.read(b); again != rule || is != ok {
			t.Errorf("after another rule: got %+v, %t, want %+v, %t", again, is, rule, ok)
		}
	})
}

func FuzzParseLegacy(f *testing.F) {
	info, blob := capture(f)
	f.Add(info, blob)
	f.Fuzz(func(t *testing.T, info, blob []byte) {
		table, err := parseLegacy(info, blob)
		if err == nil && len(table.rules)*sizeofEntry > len(blob) {
			t.Errorf("%d rules in %d bytes", len(table.rules), len(blob))
		}
	})
}

func FuzzParseSetRule(f *testing.F) {
	f.Add("-A FORWARD -m set --match-set accepted src -c 10 840 -j ACCEPT")
	f.Fuzz(func(t *testing.T, line string) {
		if rule, ok := parseSetRule(line); ok != (rule.set == setName) {
			t.Errorf("%+v, %t", rule, ok)
		}
		isOurs([]string{line})
	})
}
