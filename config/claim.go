package config

import (
	"fmt"
	"slices"

	"github.com/rampart-bench/rampart/experiments/analysis"
)

func claimSchema() *schema {
	return &schema{
		name: "claim", label: "name", occurs: perLabel,
		doc: "A statement to be tested. It is written down before the first run, and the report gives its verdict.",
		attributes: []attribute{
			{name: "statement", kind: text, required: true, example: `"With linear look-ups nftables is slower than iptables"`, doc: "What is claimed, in a sentence."},
			{name: "experiment", kind: reference, example: "experiment.latency", doc: "The experiment that tests it. Default: the only one there is."},
			{name: "metric", kind: text, doc: "The metric it is about: `rtt_median`, `rtt_p99` or `rule_load` of icmp_rtt, `receiver_bit_rate` or `rule_load` of udp_iperf3 and udp_netperf. Default: the first of these."},
			{name: "compare", kind: texts, required: true, example: `["nftables-linear", "iptables-linear"]`, doc: "Two firewalls of the experiment, or two images, the first judged against the second."},
			{name: "where", kind: region, example: `{ rules = ">= 1000", frame_size = ">= 64 and < 512" }`, doc: "The region of the matrix, by factor: for `rules` and `frame_size` a number, or conditions joined by `and`; for `image`, or `firewall` where images are compared, a name or a list of names. Default: all of it; where images are compared, the firewalls that the matrix lists."},
			{name: "expect", kind: text, required: true, oneOf: []string{analysis.Slower, analysis.Faster, analysis.Similar, analysis.Mixed}, example: `"slower"`, doc: "What the first firewall is, against the second, in the mean over the region. `slower` means worse, whichever way the metric points; `similar` means within the margin of the analysis block; `mixed` means that single cells differ significantly, at least one in each direction, and none by more than `within`."},
			{name: "within", kind: number, def: "0.1", min: "0", max: "1", doc: "By how much the cells of a claim that expects `mixed` may differ."},
			{name: "reference", kind: number, min: "0", max: "1000000", example: "1.31", doc: "The ratio of the first to the second that somebody published. The report prints it beside the one measured here; it decides nothing."},
			{name: "reference_source", kind: text, example: `"Westphal 2014, Linux 3.18"`, doc: "Where that was published, and of what: another kernel or machine should be named."},
		},
	}
}

// readClaim reads a claim and holds it to its experiment.
func (r *reader) readClaim(b *body, all []experiment, known firewalls) analysis.Claim {
	claim := analysis.Claim{
		Name:      b.label,
		Statement: b.text("statement"),
		Metric:    b.text("metric"),
		Expect:    b.text("expect"),
	}
	if within := b.number("within"); claim.Expect == analysis.Mixed {
		claim.Within = within
	} else if b.has("within") {
		b.wrong("within", &mistake{"means nothing here", `It bounds the cells of a claim with expect = "mixed"; remove this line.`})
	}
	if b.has("reference") {
		claim.Reference = &analysis.Reference{Ratio: b.number("reference"), Source: b.text("reference_source")}
	}
	if b.has("reference") != b.has("reference_source") {
		r.fail(b.rng, "reference and reference_source go together", "Write both, or neither: a figure without its source says nothing.")
	}
	before := len(r.diags)
	e, found := r.claimed(b, all)
	claim.Experiment = e.spec.Name
	if metrics := metricsOf(e.spec.Measurement.Kind); found && claim.Metric != "" && !slices.Contains(metrics, claim.Metric) {
		b.wrong("metric", &mistake{fmt.Sprintf("cannot be %q", cut(claim.Metric, 40)), unknown(claim.Metric, metrics, fmt.Sprintf("Of %s it can be", e.spec.Measurement.Kind))})
	}
	claim.Compare = r.claimPair(b, e, found, known)
	claim.Factor = e.factorOf(claim.Compare)
	r.readRegion(b, e, &claim)
	if found && e.clean && !r.failedSince(before) && !e.hasCell(claim) {
		r.fail(b.rangeOf("where"), fmt.Sprintf("Claim %q is about no cell of experiment %q", b.label, e.spec.Name), "Its levels are rules = %v and frame_size = %v; none of their combinations is in this region.", e.rulesOf(claim), e.spec.FrameSizes)
	}
	return claim
}

// claimed finds the experiment of a claim: the one it names, or the only one.
func (r *reader) claimed(b *body, all []experiment) (experiment, bool) {
	var names []string
	for _, e := range all {
		names = append(names, e.spec.Name)
	}
	if !b.has("experiment") {
		if len(all) == 1 {
			return all[0], true
		}
		r.fail(b.rng, "experiment is missing", "Write experiment = experiment.NAME: %s", unknown("", names, "there is"))
		return experiment{}, false
	}
	name := b.text("experiment")
	for _, e := range all {
		if e.spec.Name == name {
			return e, true
		}
	}
	if name != "" {
		b.wrong("experiment", &mistake{fmt.Sprintf("names no experiment: %q", cut(name, 40)), unknown(name, names, "There is")})
	}
	return experiment{}, false
}

func (r *reader) claimPair(b *body, e experiment, found bool, known firewalls) [2]string {
	before := len(r.diags)
	names := readEach(b, "compare", attribute.text)
	if r.failedSince(before) {
		return [2]string{}
	}
	if len(names) != 2 {
		b.wrong("compare", &mistake{"is not a pair", `Name two firewalls, such as ["nftables-linear", "iptables-linear"]; the first is judged against the second.`})
		return [2]string{}
	}
	for _, name := range names {
		_, declared := known.specs[name.value]
		if !declared && !slices.Contains(e.firewallNames(), name.value) && !slices.Contains(r.names["image"], name.value) {
			r.fail(name.rng, fmt.Sprintf("There is no firewall %q", cut(name.value, 40)), "%s", unknown(name.value, known.names, "There is"))
		}
	}
	pair := [2]string{names[0].value, names[1].value}
	if found && !r.failedSince(before) {
		if wrong := e.checkPair(pair); wrong != nil {
			r.fail(b.rangeOf("compare"), wrong.summary, "%s", wrong.right)
		}
	}
	return pair
}

// hasCell reports whether a combination of levels is in the region of the claim.
func (e experiment) hasCell(claim analysis.Claim) bool {
	in := func(factor string, levels []int) bool {
		return slices.ContainsFunc(levels, func(level int) bool {
			return !slices.ContainsFunc(claim.Where, func(c analysis.Condition) bool { return c.Factor == factor && !c.Holds(level) })
		})
	}
	return in("rules", e.rulesOf(claim)) && in("frame_size", e.spec.FrameSizes)
}

// rulesOf are the numbers of rules at which the claim compares. A firewall without rules meets another at each of
// the other's numbers; where images are compared, each firewall has its own.
func (e experiment) rulesOf(claim analysis.Claim) (levels []int) {
	names := claim.Compare[:]
	if claim.Factor == analysis.FactorImage {
		names = claim.Firewalls
	}
	without := false
	for _, name := range names {
		spec, err := e.spec.Firewall(name)
		switch {
		case err == nil && spec.HasRules():
			levels = e.spec.Rules
		case err == nil:
			without = true
		}
	}
	if levels == nil || without && claim.Factor == analysis.FactorImage {
		levels = append([]int{0}, levels...)
	}
	return levels
}
