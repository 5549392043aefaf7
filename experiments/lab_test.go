package experiments

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rampart-bench/rampart/experiments/firewall"
	"github.com/rampart-bench/rampart/testbed"
)

// What an earlier firewall left in the kernel counts for those that it would slow, and for no other.
func TestBurden(t *testing.T) {
	rules := firewall.Spec{Engine: firewall.Nftables}
	legacy := firewall.Spec{Engine: firewall.IptablesLegacy}
	routed := firewall.Spec{Engine: firewall.None, Settings: firewall.Settings{RoutingRules: 1}}
	for _, c := range []struct {
		name string
		lab  Lab
		fw   firewall.Spec
		is   bool
	}{
		{"fresh", Lab{}, rules, false},
		{"hooks of another", Lab{residue: "hooks", residueOf: firewall.IptablesLegacy}, rules, true},
		{"its own hooks", Lab{residue: "hooks", residueOf: firewall.IptablesLegacy}, legacy, false},
		{"the long way", Lab{routing: "the long way"}, rules, true},
		{"the long way, which it goes itself", Lab{routing: "the long way"}, routed, false},
		{"both", Lab{residue: "hooks", residueOf: firewall.IptablesLegacy, routing: "the long way"}, routed, true},
	} {
		if got := c.lab.burden(c.fw); (got != "") != c.is {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// sleepy is a testbed whose nodes give so many signs of life, then none.
type sleepy struct {
	testbed.Testbed
	signs int
}

type sleepyNode struct {
	testbed.Node
	bed *sleepy
}

func (s *sleepy) Node(testbed.Role) testbed.Node { return sleepyNode{bed: s} }

func (n sleepyNode) Answers(ctx context.Context) error {
	if n.bed.signs--; n.bed.signs >= 0 {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// A job may take as long as it likes on a node that lives, and ends soon on one that fell silent.
func TestListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Lab{testbed: &sleepy{signs: 3}, quiet: time.Minute}
		started := time.Now()
		ctx, done := l.listen(t.Context(), testbed.Sender)
		<-ctx.Done()
		if took := time.Since(started); took != 4*time.Minute+signTime {
			t.Errorf("given up after %v", took)
		}
		if want := "sender fell silent: none came within 20s"; context.Cause(ctx).Error() != want {
			t.Errorf("%v, want %s", context.Cause(ctx), want)
		}
		done()
		ctx, done = l.listen(t.Context(), testbed.Sender)
		done()
		if err := context.Cause(ctx); err != context.Canceled {
			t.Errorf("a job that is done: %v", err)
		}
	})
}
