package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report/document"
)

// longCode is the number of lines beyond which a text is folded away.
const longCode = 30

// environment says what the machines said about themselves.
func (b *builder) environment() []document.Block {
	m := b.in.Manifest
	study := []document.Definition{
		{Term: "provider", Text: m.Provider},
		{Term: "clock", Text: clockWords(cmp.Or(m.Clock, b.f.Clock))},
		{Term: "image", Text: m.Image},
		{Term: "rampart", Text: buildWords(m.Rampart)},
		{Term: "command", Text: shell(m.Command)},
		{Term: "started", Text: m.Created.UTC().Format("2006-01-02 15:04:05 UTC")},
		{Term: "sessions", Text: sessions(m.Sessions)},
	}
	host := environmentItems(m.Host)
	out := []document.Block{
		document.Definitions{Caption: "Testbed", Items: filled(study)},
		document.Definitions{Caption: "Host", Items: host},
	}
	for _, name := range nodeNames(m.Nodes) {
		out = append(out, nodeBlock("Node "+name, m.Nodes[name], host))
	}
	for _, name := range sortedKeys(m.Images) {
		image := m.Images[name]
		out = append(out, document.Definitions{Caption: "Image " + name, Items: filled([]document.Definition{
			{Term: "digest", Text: image.Digest}, {Term: "kernel", Text: image.Nodes["firewall"].Kernel},
		})})
		for _, node := range nodeNames(image.Nodes) {
			out = append(out, nodeBlock("Node "+node+" with image "+name, image.Nodes[node], host))
		}
	}
	if text := pretty(m.Testbed); text != "" {
		out = append(out, document.Code{Name: "Testbed as built", Text: text, Fold: true})
	}
	if text := pretty(m.Features); text != "" {
		out = append(out, document.Code{Name: "Features of the testbed", Text: text, Fold: true})
	}
	return out
}

// nodeBlock says in what a node is not as the host.
func nodeBlock(caption string, node record.Environment, host []document.Definition) document.Definitions {
	items := differing(environmentItems(node), host)
	if len(items) == 0 {
		items = []document.Definition{{Term: "all", Text: "as the host"}}
	}
	return document.Definitions{Caption: caption, Items: items}
}

// nodeNames are in the order of the chain, then any others.
func nodeNames(nodes map[string]record.Environment) []string {
	var out []string
	for _, n := range []string{"sender", "firewall", "receiver"} {
		if _, ok := nodes[n]; ok {
			out = append(out, n)
		}
	}
	for _, n := range sortedKeys(nodes) {
		if n != "sender" && n != "firewall" && n != "receiver" {
			out = append(out, n)
		}
	}
	return out
}

func buildWords(v record.Build) string {
	s := v.Version
	if v.Revision != "" {
		s += ", revision " + v.Revision
	}
	if v.Go != "" {
		s += ", " + v.Go
	}
	return s
}

func sessions(list []record.Session) string {
	var parts []string
	for _, s := range list {
		parts = append(parts, fmt.Sprintf("%s, %s in %s, load average of the host %.1f at the start and %.1f at the end", s.Outcome,
			plural(s.Runs, "run"), duration(s.Ended.Sub(s.Started).Seconds()), s.LoadStart, s.LoadEnd))
	}
	return strings.Join(parts, "; ")
}

func environmentItems(e record.Environment) []document.Definition {
	items := []document.Definition{
		{Term: "host name", Text: e.Hostname},
		{Term: "system", Text: e.OS},
		{Term: "kernel", Text: e.Kernel},
		{Term: "CPU", Text: e.CPU},
		{Term: "CPUs", Text: positiveWords(e.CPUs)},
		{Term: "memory", Text: memory(e.MemoryBytes)},
		{Term: "hypervisor", Text: e.Hypervisor},
		{Term: "frequency governor", Text: e.Governor},
		{Term: "clock source", Text: e.Clocksource},
		{Term: "mitigations", Text: pairsWords(e.Mitigations)},
		{Term: "tools", Text: pairsWords(e.Tools)},
		{Term: "sysctls", Text: pairsWords(e.Sysctls)},
	}
	for _, name := range sortedKeys(e.Interfaces) {
		items = append(items, document.Definition{Term: "link " + name, Text: pairsWords(e.Interfaces[name])})
	}
	return filled(items)
}

// filled leaves out what is not known.
func filled(items []document.Definition) []document.Definition {
	var out []document.Definition
	for _, i := range items {
		if i.Text != "" {
			out = append(out, i)
		}
	}
	return out
}

// differing keeps what is not as on the host: in namespaces nearly all is.
func differing(items, host []document.Definition) []document.Definition {
	same := map[document.Definition]bool{}
	for _, i := range host {
		same[i] = true
	}
	var out []document.Definition
	for _, i := range items {
		if !same[i] {
			out = append(out, i)
		}
	}
	return out
}

func positiveWords(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func memory(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
}

func pairsWords(m map[string]string) string {
	var parts []string
	for _, k := range sortedKeys(m) {
		parts = append(parts, k+": "+m[k])
	}
	return strings.Join(parts, "; ")
}

// pretty indents JSON that another package wrote.
func pretty(raw json.RawMessage) string {
	if len(raw) == 0 || string(raw) == "null" {
		return ""
	}
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// reproduce is what somebody else needs to do the same and to see that it is the same.
func (b *builder) reproduce() []document.Block {
	m := b.in.Manifest
	digests := []document.Definition{{Term: "configuration", Text: m.ConfigDigest}}
	for _, name := range sortedKeys(m.PlanDigests) {
		digests = append(digests, document.Definition{Term: "plan of " + name, Text: m.PlanDigests[name]})
	}
	digests = append(digests,
		document.Definition{Term: "records", Text: b.in.RecordsDigest},
		document.Definition{Term: "image", Text: m.Image})
	for _, name := range sortedKeys(m.Images) {
		digests = append(digests, document.Definition{Term: "image " + name, Text: m.Images[name].Digest})
	}
	digests = append(digests,
		document.Definition{Term: "rampart", Text: m.Rampart.SHA256})
	same := "The same configuration gives the same plan, run by run; compare the digests. The records hold every run, and the report can be made from them again:"
	if b.f.Clock == "virtual" {
		same = "Under the virtual clock the same configuration, image and version of QEMU give the same records, byte for byte: compare the digest of the records, which is one line. The report can be made from them again:"
	}
	out := []document.Block{
		document.Paragraph("Put the configuration below into a folder of its own and run there, with the version of rampart named above:"),
		document.Code{Text: shell(again(m))},
		document.Paragraph(same),
		document.Code{Text: "rampart report DIR"},
		document.Definitions{Caption: "Digests", Items: filled(digests)},
	}
	if len(m.Variables) > 0 {
		out = append(out, document.Definitions{Caption: "Variables given from outside", Items: mapItems(m.Variables)})
	}
	for _, name := range sortedKeys(m.Configuration) {
		text := m.Configuration[name]
		out = append(out, document.Code{Name: name, Text: text, Fold: strings.Count(text, "\n") > longCode})
	}
	return out
}

// again is the command that makes the study once more from its configuration, whatever was typed then: with the
// provider that was found and every value that came from outside.
func again(m record.Manifest) []string {
	command := []string{"rampart", "run"}
	if len(m.Configuration) == 1 { // more are one configuration: that of the folder
		command = append(command, "--config", sortedKeys(m.Configuration)[0])
	}
	if m.Provider != "" {
		command = append(command, "--provider", m.Provider)
	}
	for _, name := range sortedKeys(m.Variables) {
		command = append(command, "--var", name+"="+m.Variables[name])
	}
	return command
}

func mapItems(m map[string]string) []document.Definition {
	var out []document.Definition
	for _, k := range sortedKeys(m) {
		out = append(out, document.Definition{Term: k, Text: m[k]})
	}
	return out
}

// shell quotes a command for a POSIX shell.
func shell(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		safe := w != "" && strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%") == ""
		if safe {
			quoted[i] = w
		} else {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// cite is a reference to this report that names the records it stands on.
func (b *builder) cite(title string) []document.Block {
	m := b.in.Manifest
	digest := strings.TrimPrefix(b.in.RecordsDigest, "sha256:")
	key := "rampart" + m.Created.UTC().Format("20060102")
	if len(digest) >= 8 {
		key += slug(digest[:8])
	}
	var t strings.Builder
	fmt.Fprintf(&t, "@misc{%s,\n  title        = {%s},\n  year         = {%d},\n  month        = {%d},\n", key, bibtex(title), m.Created.UTC().Year(), m.Created.UTC().Month())
	fmt.Fprintf(&t, "  howpublished = {Measured with rampart %s},\n", bibtex(buildWords(m.Rampart)))
	fmt.Fprintf(&t, "  note         = {Provider %s, clock %s; records %s}\n}\n", bibtex(m.Provider), bibtex(b.f.Clock), bibtex(b.in.RecordsDigest))
	return []document.Block{
		document.Paragraph("Add your names and where the results folder can be had. The digest of the records ties the text to the data."),
		document.Code{Name: "BibTeX", Text: t.String()},
	}
}

// bibtex keeps text from ending a field or starting a command.
func bibtex(s string) string {
	return strings.NewReplacer(`\`, `\textbackslash `, "{", `\{`, "}", `\}`, "%", `\%`, "&", `\&`, "#", `\#`, "_", `\_`, "$", `\$`).Replace(document.Clean(s, false))
}
