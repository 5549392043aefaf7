package firewall

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MaxRoutingRules bounds the rules of policy routing that a firewall can ask for.
const MaxRoutingRules = 1000

// routingPriority is the priority of the first of our routing rules; the kernel's own are 0, 32766 and
// 32767, so ours are tried before the main table.
const routingPriority = 9000

// routingRule is "from 198.18.255.255 lookup main": an address of those that no packet has. That the rule
// is there is what costs: the kernel leaves the short cut that it takes where there are only its own.
func routingRule(i int) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family = unix.AF_INET
	rule.Priority = routingPriority + i
	rule.Src = &net.IPNet{IP: net.IPv4(198, 18, 255, 255).To4(), Mask: net.CIDRMask(32, 32)}
	rule.Table = unix.RT_TABLE_MAIN
	return rule
}

// addRoutingRules adds what was asked for, and removes what a helper that was killed left beyond that.
func (t *Tuning) addRoutingRules() error {
	if err := removeRoutingRules(t.settings.RoutingRules); err != nil {
		return err
	}
	for i := range t.settings.RoutingRules {
		err := netlink.RuleAdd(routingRule(i))
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			return &UnavailableError{Setting: "routing_rules", Reason: "this kernel has no policy routing (CONFIG_IP_MULTIPLE_TABLES): use another"}
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add routing rule %d: %w", i+1, err)
		}
	}
	return nil
}

// removeRoutingRules removes our rules from the number keep on.
func removeRoutingRules(keep int) error {
	ours, err := routingRules()
	if err != nil {
		return err
	}
	for _, priority := range ours {
		if i := priority - routingPriority; i >= keep {
			if err := netlink.RuleDel(routingRule(i)); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove routing rule %d: %w", i+1, err)
			}
		}
	}
	return nil
}

// routingRules are the priorities of our rules, as the kernel lists them.
func routingRules() (ours []int, err error) {
	all, err := netlink.RuleList(unix.AF_INET)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // no policy routing, no rules
	}
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	for _, rule := range all {
		if i := rule.Priority - routingPriority; i >= 0 && i < MaxRoutingRules {
			ours = append(ours, rule.Priority)
		}
	}
	return ours, nil
}
