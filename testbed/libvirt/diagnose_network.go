package libvirt

import (
	"context"
	"fmt"
	"strings"

	"github.com/rampart-bench/rampart/testbed"
)

// findDnsmasq looks for a program that our networks do not use: when libvirt is started while networks are
// up, and does not find it, libvirt 9.0 crashes (in dnsmasqCapsNewFromBinary's callers), at every start
// until the networks' files are removed by hand. Seen with Debian 12's.
func (p *Provider) findDnsmasq(ctx context.Context, _ *conn) (*Finding, error) {
	if _, err := p.endpoint.host.output(ctx, "sh", "-c", "PATH=$PATH:/usr/sbin:/sbin command -v dnsmasq"); err == nil {
		return nil, nil
	}
	return &Finding{
		Problem: "there is no dnsmasq: should libvirt be started anew while a testbed is up, libvirt 9.0 crashes",
		Mend:    p.endpoint.at + "apt-get install dnsmasq-base",
	}, nil
}

// bridgeNetfilterFile says whether frames that cross a bridge walk the host's iptables rules.
const bridgeNetfilterFile = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// bridgeNetfilter is the setting: 0, 1, or absent.
func bridgeNetfilter(ctx context.Context, h host) string {
	content, err := readFile(ctx, h, bridgeNetfilterFile)
	if err != nil {
		return "absent"
	}
	return strings.TrimSpace(content)
}

func (p *Provider) findBridgeNetfilter(ctx context.Context, _ *conn) (*Finding, error) {
	if bridgeNetfilter(ctx, p.endpoint.host) != "1" {
		return nil, nil
	}
	f := &Finding{
		Problem: "br_netfilter sends what crosses a bridge through the host's own firewall: frames between nodes are slower",
		Mend:    p.endpoint.at + "sysctl -w net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 net.bridge.bridge-nf-call-arptables=0",
	}
	if dropping := droppingPolicies(ctx, p.endpoint.host); len(dropping) > 0 {
		f.Problem += "; the policy of its chain FORWARD is DROP (" + strings.Join(dropping, ", ") + "; Docker sets that): frames pass only where a rule of libvirt accepts them"
	}
	return f, nil
}

// droppingPolicies names the tools by which the host's chain FORWARD drops what no rule accepts. Each has
// rules of its own, and a frame must pass both. Without privileges nothing is found.
func droppingPolicies(ctx context.Context, h host) (tools []string) {
	for _, tool := range []string{"iptables-nft", "iptables-legacy"} {
		// iptables-legacy would load its kernel module only to say that there is no rule.
		out, err := h.output(ctx, "sh", "-c", `PATH=$PATH:/usr/sbin:/sbin
			[ "$1" != iptables-legacy ] || grep -qx filter /proc/net/ip_tables_names || exit 1
			exec "$1" -w 5 -S FORWARD`, "sh", tool)
		if err == nil && strings.HasPrefix(out, "-P FORWARD DROP\n") {
			tools = append(tools, tool)
		}
	}
	return tools
}

func (p *Provider) findSubnet(ctx context.Context, c *conn) (*Finding, error) {
	used, err := usedPrefixes(ctx, p.endpoint.host, c)
	if err != nil {
		return nil, err
	}
	if _, ok := freeSubnet(ident{}, used); ok {
		return nil, nil
	}
	return p.noSubnet(), nil
}

// noSubnet is that no management network can be chosen.
func (p *Provider) noSubnet() *Finding {
	return &Finding{
		Problem: fmt.Sprintf("no subnet is free for reaching nodes: routes or libvirt networks of the host cover all of %v", managementPools),
		Mend:    p.endpoint.at + "see ip route show table all and virsh net-list --all, and remove a route or network",
		Blocks:  true,
	}
}

// checkPath sends a frame from one end of the chain to the other: whatever filters on the host, or a wire
// that leads nowhere, is found before anything is measured.
func (tb *running) checkPath(ctx context.Context) error {
	target := tb.state.Spec.Outside().Address(testbed.Receiver).Addr().String()
	_, err := tb.node(testbed.Sender).output(ctx, "ping", "-n", "-q", "-c", "1", "-w", "10", target)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if !tb.provider.endpoint.wiring.taps() {
		return fmt.Errorf("send a frame from sender to receiver: %w", err)
	}
	f, look := tb.provider.findBridgeNetfilter(ctx, nil)
	if look != nil || f == nil {
		return fmt.Errorf("send a frame from sender to receiver: %w: does a firewall of the host filter its bridges? See nft list ruleset there", err)
	}
	return &UnavailableError{"no frame gets from sender to receiver: " + f.Problem, f.Mend, err}
}
