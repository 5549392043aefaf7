package libvirt

import (
	"context"
	"fmt"
	"strings"
)

// Remote reports whether libvirt runs on another host: what is found out about this machine then says
// nothing of the testbed.
func (p *Provider) Remote() bool {
	_, here := p.endpoint.host.(thisHost)
	return !here
}

// hostFacts prints a line NAME=VALUE for each fact.
const hostFacts = `fact() { [ ! -r "$2" ] || printf '%s=%s\n' "$1" "$(head -n 1 "$2")"; }
fact hostname /proc/sys/kernel/hostname
printf 'os=%s\n' "$(. /etc/os-release && echo "$PRETTY_NAME")"
printf 'kernel=%s %s\n' "$(uname -r)" "$(uname -v)"
printf 'cpu=%s\n' "$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)"
printf 'cpus=%s\n' "$(nproc)"
printf 'memory_kib=%s\n' "$(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo)"
fact governor /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor
fact clocksource /sys/devices/system/clocksource/clocksource0/current_clocksource
for file in /sys/devices/system/cpu/vulnerabilities/*; do fact "mitigation.${file##*/}" "$file"; done`

// HostFacts are what libvirt's host says of itself, for the manifest: hostname, os, kernel, cpu, cpus,
// memory_kib, governor, clocksource, and mitigation.NAME for each. What cannot be read is left out.
func (p *Provider) HostFacts(ctx context.Context) (map[string]string, error) {
	out, err := p.endpoint.host.output(ctx, "sh", "-c", hostFacts)
	if err != nil {
		return nil, fmt.Errorf("describe libvirt's host: %w", err)
	}
	return parseFacts(out), nil
}

func parseFacts(text string) map[string]string {
	facts := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), "="); value != "" {
			facts[name] = value
		}
	}
	return facts
}
