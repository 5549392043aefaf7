package report

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/report/document"
)

// runs counts what is not in the statistics and names it, and sums up the checks.
func (b *builder) runs() []document.Block {
	t := &document.Table{
		ID:      b.id("runs"),
		Title:   "Runs by what became of them",
		Caption: "Only ok runs enter statistics. " + b.clock(),
		Columns: []document.Column{
			{Key: "experiment", Title: "experiment", Head: true},
			{Key: "planned", Title: "planned"}, {Key: "ok", Title: "ok"}, {Key: "failed", Title: "failed"},
			{Key: "sender_bound", Title: "sender-bound"}, {Key: "unavailable", Title: "unavailable"}, {Key: "missing", Title: "not made"},
			{Key: "elapsed", Title: "elapsed", Unit: document.Unit{Name: "s", Printed: "s"}},
			{Key: "measuring", Title: "of it measuring", Unit: document.Unit{Name: "percent", Printed: "%", Factor: 1}},
		},
	}
	for _, r := range b.f.Runs {
		share := 0.0
		if r.ElapsedS > 0 {
			share = 100 * r.MeasuringS / r.ElapsedS
		}
		t.Rows = append(t.Rows, document.Row{Values: []document.Value{
			document.Text(r.Experiment), document.Count(r.Planned), document.Count(r.OK), document.Count(r.Failed),
			document.Count(r.SenderBound), document.Count(r.Unavailable), document.Count(missing(r)),
			document.Number(r.ElapsedS), document.Number(share),
		}})
	}
	out := []document.Block{t}
	if len(b.f.Excluded) == 0 {
		out = append(out, document.Paragraph("No recorded run was left out."))
	} else {
		out = append(out, b.exclusions())
	}
	return append(out, b.checks()...)
}

func missing(r analysis.RunCount) int {
	return max(0, r.Planned-r.OK-r.Failed-r.SenderBound-r.Unavailable)
}

func (b *builder) exclusions() *document.Table {
	t := &document.Table{
		ID:      b.id("excluded"),
		Title:   "Runs that were left out, with the reason as recorded",
		Caption: "sender-bound: the generator was the limit and not the firewall; unavailable: this kernel cannot run that engine. " + b.clock(),
		Columns: []document.Column{
			{Key: "experiment", Title: "experiment", Head: true}, {Key: "image", Title: "image"}, firewallColumn,
			{Key: "status", Title: "status"}, {Key: "runs", Title: "runs"}, {Key: "reason", Title: "reason"},
		},
	}
	for _, x := range b.f.Excluded {
		t.Rows = append(t.Rows, document.Row{Values: []document.Value{
			document.Text(x.Experiment), document.Text(x.Image), document.Text(x.Firewall), document.Text(strings.ReplaceAll(x.Status, "_", "-")),
			document.Count(x.Runs), document.Text(x.Reason),
		}})
	}
	return finish(withoutEmpty(t, "image"))
}

func (b *builder) checks() []document.Block {
	made, failed := 0, 0
	t := &document.Table{
		ID:      b.id("checks"),
		Title:   "Checks made during the runs",
		Caption: "Facts read back from the kernel and held against what they had to be. A run with a failed check counts as failed. " + b.clock(),
		Columns: []document.Column{
			{Key: "check", Title: "check", Head: true}, {Key: "made", Title: "made"}, {Key: "held", Title: "held"}, {Key: "failed", Title: "failed"},
		},
	}
	for _, c := range b.f.Checks {
		made, failed = made+c.Made, failed+c.Failed
		t.Rows = append(t.Rows, document.Row{Values: []document.Value{
			document.Text(c.Name), document.Count(c.Made), document.Count(c.Made - c.Failed), document.Count(c.Failed),
		}})
	}
	if made == 0 {
		return []document.Block{document.Paragraph("The records hold no check: nothing shows that the rule-sets were really loaded. Do not rely on these figures.")}
	}
	said := fmt.Sprintf("All %s held.", plural(made, "check"))
	if failed > 0 {
		said = fmt.Sprintf("%s of %s failed.", document.Print(document.Count(failed), document.Unit{}), plural(made, "check"))
	}
	return []document.Block{document.Paragraph(said), finish(t)}
}

// method says what was really done.
func (b *builder) method() []document.Block {
	var out []document.Block
	for _, e := range b.f.Study.Experiments {
		out = append(out, document.Definitions{Caption: e.Name, Items: b.experimentItems(e)},
			document.Paragraph(measurementWords(e.Measurement)), document.Paragraph(order(e)))
	}
	return append(out,
		document.Heading("What makes a run"),
		document.Paragraph("A run follows a protocol: load the rule-set and time it; read it back from the kernel; show that a probe which no entry accepts is dropped and that one which should pass passes; warm up; measure, with no other traffic on the links; read the counters of rules, interfaces and protocols and hold them against what was sent and received; unload, and look that nothing is left. Each step that proves something leaves a check in the record."),
		document.Paragraph(b.checkNames()),
		document.Paragraph("N rules are N entries, the same in every engine: N − 2 addresses that never occur, drawn from 198.18.0.0/15 by the seed, and the receiver's and the sender's address; policy drop. Frame sizes count the Ethernet frame with its FCS (RFC 2544)."),
		document.Heading("Statistics"),
		document.List(b.statistics()),
	)
}

// checkNames says which checks the records really hold.
func (b *builder) checkNames() string {
	var names []string
	for _, c := range b.f.Checks {
		names = append(names, c.Name)
	}
	if len(names) == 0 {
		return "The records of this study hold no check."
	}
	return "Checks in the records of this study: " + strings.Join(names, "; ") + "."
}

func (b *builder) experimentItems(e analysis.Experiment) []document.Definition {
	items := []document.Definition{{Term: "measurement", Text: e.Measurement}}
	for _, k := range sortedKeys(e.Parameters) {
		items = append(items, document.Definition{Term: k, Text: e.Parameters[k]})
	}
	var firewalls []string
	for _, fw := range e.Firewalls {
		s := fw.Name + " (" + fw.Engine
		for _, more := range []string{fw.Lookup, positionWords(fw.Position), fw.Settings} {
			if more != "" {
				s += ", " + more
			}
		}
		firewalls = append(firewalls, s+")")
	}
	if len(e.Images) > 0 {
		items = append(items, document.Definition{Term: "images", Text: imageWords(e.Images)})
	}
	items = append(items,
		document.Definition{Term: "firewalls", Text: strings.Join(firewalls, "; ")},
		document.Definition{Term: "rules", Text: numbers(e.Rules)},
		document.Definition{Term: "frame sizes", Text: numbers(e.FrameSizes) + " bytes"},
		document.Definition{Term: "treatments", Text: document.Print(document.Count(treatmentsOf(e)), document.Unit{})},
		document.Definition{Term: "runs a treatment", Text: fmt.Sprint(e.Repetitions)},
	)
	for _, r := range b.f.Runs {
		if r.Experiment == e.Name {
			items = append(items, document.Definition{Term: "runs", Text: fmt.Sprintf("%s planned, %d in the statistics, %d left out, %d not made",
				document.Print(document.Count(r.Planned), document.Unit{}), r.OK, r.Failed+r.SenderBound+r.Unavailable, missing(r))},
				document.Definition{Term: "duration", Text: fmt.Sprintf("%s, %s of it measuring (clock: %s)", duration(r.ElapsedS), duration(r.MeasuringS), b.f.Clock)})
		}
	}
	return items
}

// imageWords says what each image is.
func imageWords(images []analysis.Image) string {
	var parts []string
	for _, image := range images {
		s := image.Name
		if of := slices.DeleteFunc([]string{image.Suite, image.Kernel}, func(s string) bool { return s == "" }); len(of) > 0 {
			s += " (" + strings.Join(of, ", ") + ")"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, "; ")
}

// order says in which order the runs were made.
func order(e analysis.Experiment) string {
	if len(e.Images) > 0 {
		return wholePlots(e)
	}
	s := fmt.Sprintf("Runs were ordered in %d complete blocks, each with every treatment once, ", e.Repetitions)
	if e.Grouped {
		s += "in the same order in every block, which a clock that cannot drift allows."
	} else {
		s += fmt.Sprintf("shuffled anew in every block by seed %d, so that drift of the machine falls on all treatments alike.", e.Seed)
	}
	if e.Boots > 1 {
		s += fmt.Sprintf(" The blocks were spread over %d fresh boots of the nodes, and boot is a level of variance.", e.Boots)
	}
	return s + " The number of repetitions was fixed before the first run."
}

// wholePlots is order where another image takes another boot.
func wholePlots(e analysis.Experiment) string {
	s := fmt.Sprintf("Runs were ordered in %d complete blocks. Another image takes a boot, so images are whole plots: the blocks were spread over %d boots, in each of which every image was booted once and all its treatments of those blocks were measured before the next, ",
		e.Repetitions, e.Boots)
	if e.Grouped {
		s += "in the same order in every boot, which a clock that cannot drift allows."
	} else {
		s += fmt.Sprintf("images in an order shuffled anew in every boot, and treatments in every block of an image, by seed %d.", e.Seed)
	}
	return s + " So firewalls are compared inside a boot, and images from boot to boot: the boot is their unit of comparison. Repetitions and boots were fixed before the first run."
}

// statistics says how runs became statements, with this study's numbers.
func (b *builder) statistics() []string {
	st := b.f.Study
	ci, ci90 := b.level(), percentWords(1-2*st.Alpha)
	out := []string{
		"The unit is the run: each gives one value a metric. Packets are never counted as repetitions.",
		fmt.Sprintf("Location of a cell: median with a %s interval from order statistics.", ci),
		fmt.Sprintf("A against B: values are logged; the ratio is that of the Hodges–Lehmann shift, its %s interval and p come from the exact Wilcoxon rank-sum distribution (normal approximation with ties or from 50 runs on).", ci),
		"Many cells: p is corrected by Holm within the family, which is one experiment, metric and pair.",
		fmt.Sprintf("Similar is a result of its own: equivalent means that the %s interval of the ratio lies within 1/(1+δ) and 1+δ, δ = %s, fixed before the first run. Not significant never means similar.", ci90, percentWords(st.Margin)),
		"Slower or faster (worse or better, whichever way the metric points): p after Holm is below α = " + fmt.Sprint(st.Alpha) + " and the effect exceeds the A/A noise floor, the 95th percentile of |log ratio| over the cells of the A/A pair. Else the cell is inconclusive.",
		"Cost of a rule: Theil–Sen slope of time against the number of rules, a firewall and a frame size at a time, in each block; the mean over blocks, and likewise for the time at no rule. Time is that of a round trip, or what a frame takes at the frame rate received. Ratios of slopes by Fieller's theorem.",
		"Claims: log ratios of A to B inside each block, so that drift falls on both; their mean over the cells of the region and over blocks. A claim agrees if the interval lies on the side it names (for similar: within the margin), disagrees if on the other, else it is inconclusive. Each is tested by itself: nothing is corrected for the number of claims. A mixed claim agrees if cells differ significantly in both directions and none by more than its bound.",
		fmt.Sprintf("Intervals of costs and claims (%s): the standard error from %s draws of blocks (whole boots, where there are several), seed %d, times Student's t.",
			ci, document.Print(document.Count(st.Bootstrap), document.Unit{}), st.Seed),
	}
	if slices.ContainsFunc(st.Experiments, func(e analysis.Experiment) bool { return len(e.Images) > 0 }) {
		out = append(out, "Images are compared by boots: of the runs of a cell in one boot the mean of the logs counts as one value, for the test of a cell as for intervals, and claims pair the boots of the same number. Several blocks in a boot make its value more precise and are no further evidence. A family of a pair of images holds the cells of all firewalls.")
	}
	families := map[int]bool{}
	for _, c := range b.f.Comparisons {
		families[c.Family] = true
	}
	var sizes []int
	for n := range families {
		sizes = append(sizes, n)
	}
	slices.Sort(sizes)
	if len(sizes) > 0 {
		out = append(out, "Sizes of the families here: "+numbers(sizes)+".")
	}
	return out
}

// threats are what may be wrong although every number is right. They depend on the clock.
func (b *builder) threats() []document.Block {
	var items []string
	switch b.f.Clock {
	case "host":
		items = []string{
			"Sender, firewall and receiver are namespaces of one kernel and share its CPUs, caches and scheduler: what the generator costs can show in the figures of the firewall.",
			"The links are veth pairs. There is no NIC, no DMA and no interrupt; a frame is handed over in memory, and absolute values say nothing about hardware. Ratios between firewalls on this path are what is measured.",
			"Whatever else ran on this machine ran beside the measurement. Blocks and shuffling spread that over all treatments; they do not remove it.",
		}
	case "kvm":
		items = []string{
			"The nodes are virtual machines with virtio NICs. Exits to the hypervisor, vhost threads and the placing of virtual CPUs by the host are part of every value.",
			"Three guests share the host's CPUs, caches and memory bandwidth.",
			"Absolute values are those of this host, its kernel and its hypervisor; ratios between firewalls carry further, and not without limit.",
		}
	case "tcg":
		items = []string{
			"The guests' instructions were emulated by QEMU (TCG), not run by the processor. Times are those of the emulator: an instruction costs many times more than on hardware, and not all cost more alike.",
			"Neither absolute values nor ratios can be carried over to hardware. The run shows that the study can be made and which way effects point; measure under KVM or on the host's kernel before deciding anything.",
			"Three emulated guests share the host's CPUs.",
		}
	case "virtual":
		items = []string{
			"The clock counts instructions: one nanosecond each. There are no caches, no branch prediction, no memory latency and no contention. Instructions are not time: what costs few instructions and many cache misses looks cheap here.",
			"Sender, firewall and receiver are namespaces in one emulated machine with one CPU: the costs of all three are in a round trip.",
			"Repeating an identical execution gives identical values and no new information. Intervals describe the variation over the salts that were given to the guests (layout of addresses, hash keys), nothing else.",
			"Values depend on the kernel, the compiler that built it, the CPU model and version of QEMU. Identical is not exact to the last digit: medians move by up to 0.02 % when unrelated bytes of the image change.",
		}
	case "":
		items = []string{"There is no record, and so nothing that could be wrong or right."}
	default:
		items = []string{"The records name a clock that this program does not know (" + b.f.Clock + "): find out what time means in them before reading on."}
	}
	for _, e := range b.f.Study.Experiments {
		if isRate(e.Measurement) {
			items = append(items, e.Name+" is one UDP flow, which one CPU of the firewall handles; several flows may scale otherwise. It is the forwarding rate at offered load (RFC 2285), not the throughput of RFC 2544.")
		}
		if e.Measurement == "icmp_rtt" {
			items = append(items, e.Name+" crosses the firewall twice, once a direction, and includes the work of both ends. The reply does not walk the list to the same entry as the request.")
		}
	}
	if links := b.offloading(); len(links) > 0 {
		items = append(items, fmt.Sprintf("Offloads were left on (%s): the stack of a node may join several frames into one or leave their checksums to a NIC, so what the firewall handles need not be the frame that the frame size names, and costs of a frame come out too low.", enumerate(links)))
	}
	items = append(items,
		position(b.f.Study)+" Rule-sets in use are shaped otherwise.",
		"One machine, one kernel, one boot each are one sample of machines, kernels and boots. The intervals say nothing about others"+boots(b.f.Study)+".",
		"The levels of rules and frame sizes are ours; nothing is claimed between or beyond them except by the slope, which assumes a straight line.")
	if slices.ContainsFunc(b.f.Claims, func(c analysis.ClaimResult) bool { return c.Claim.Reference != nil }) {
		items = append(items, anotherKernel)
	}
	if slices.ContainsFunc(b.f.Study.Experiments, func(e analysis.Experiment) bool { return len(e.Images) > 0 }) {
		items = append(items, "An image is a kernel together with its configuration, modules and programs. What differs between two images may come from any of them; two images with one suite and two kernels differ in the least.")
	}
	if len(b.f.NoiseFloors) == 0 {
		items = append(items, "No A/A pair was measured: nothing shows what this set-up calls a difference between two identical firewalls.")
	}
	return []document.Block{document.Paragraph(b.clock()), document.List(items)}
}

// offloading names the links whose offloads were left on, as the testbed was asked for.
func (b *builder) offloading() (links []string) {
	var built struct {
		Links []struct {
			Name     string `json:"name"`
			Offloads bool   `json:"offloads"`
		} `json:"links"`
	}
	if json.Unmarshal(b.in.Manifest.Testbed, &built) != nil {
		return nil // of a version that says it otherwise; the testbed is printed as it stands
	}
	for _, l := range built.Links {
		if l.Offloads {
			links = append(links, "link "+l.Name)
		}
	}
	return links
}

// positionWords says which entries match the traffic.
func positionWords(position string) string {
	switch position {
	case "":
		return ""
	case "uniform":
		return "matching entries anywhere"
	}
	return "matching entries " + position
}

// position says what part of the list the traffic walks, where all firewalls agree in that.
func position(s analysis.Study) string {
	found := map[string]bool{}
	for _, e := range s.Experiments {
		for _, fw := range e.Firewalls {
			if fw.Rules {
				found[fw.Position] = true
			}
		}
	}
	if len(found) == 1 {
		switch sortedKeys(found)[0] {
		case "last":
			return "The traffic matches the last entries of the list, the worst case for linear look-up."
		case "first":
			return "The traffic matches the first entries of the list, the best case for linear look-up."
		case "uniform":
			return "The traffic matches entries at places that the seed drew once for each number of rules, so the cost of a rule holds the luck of that draw."
		}
	}
	return "What a linear look-up costs depends on where in the list the traffic matches, which the method section names for each firewall."
}

// boots adds how far the study did look beyond one boot.
func boots(s analysis.Study) string {
	most := 1
	for _, e := range s.Experiments {
		most = max(most, e.Boots)
	}
	if most == 1 {
		return ""
	}
	return fmt.Sprintf(", but for the %d boots that were made", most)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
