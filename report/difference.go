package report

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/rampart-bench/rampart/experiments/record"
)

// A Difference is a fact about the making of a results folder that is not the same in another.
type Difference struct {
	What   string `json:"what"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// differences lists what two manifests say otherwise and what could change a figure: the program, the
// configuration, the machine and its settings. Times and host names are left out, and so is what a node has in
// common with its host.
func differences(before, after record.Manifest) []Difference {
	was, is := facts(before), facts(after)
	out := []Difference{}
	all := maps.Clone(was)
	maps.Copy(all, is)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		host := asOnHost(what)
		if was[what] != is[what] && (host == what || was[what] != was[host] || is[what] != is[host]) {
			out = append(out, Difference{What: what, Before: was[what], After: is[what]})
		}
	}
	return out
}

// asOnHost is the name of the same fact about the host, with which nodes that are namespaces of its kernel agree.
func asOnHost(what string) string {
	node, fact, _ := strings.Cut(what, ", ")
	if strings.HasPrefix(node, "node ") {
		return "host, " + fact
	}
	return what
}

// facts are a manifest's, by name.
func facts(m record.Manifest) map[string]string {
	out := map[string]string{
		"rampart":         buildWords(m.Rampart),
		"rampart, binary": m.Rampart.SHA256,
		"provider":        m.Provider,
		"image":           m.Image,
		"configuration":   m.ConfigDigest,
	}
	for name, image := range m.Images {
		out["image "+name] = image.Digest
		for node, environment := range image.Nodes {
			addEnvironment(out, "node "+node+" with image "+name, environment)
		}
	}
	for name, digest := range m.PlanDigests {
		out["plan of "+name] = digest
	}
	for name, value := range m.Variables {
		out["variable "+name] = value
	}
	var features struct {
		Parameters map[string]string `json:"parameters"`
	}
	if json.Unmarshal(m.Features, &features) == nil {
		for name, value := range features.Parameters {
			out["testbed "+name] = value
		}
	}
	// The host of a virtual clock is only where the emulator ran; the nodes are what was measured.
	if m.Clock != "virtual" {
		addEnvironment(out, "host", m.Host)
	}
	for name, node := range m.Nodes {
		addEnvironment(out, "node "+name, node)
	}
	return out
}

func addEnvironment(out map[string]string, where string, e record.Environment) {
	for _, item := range environmentItems(e) {
		switch item.Term {
		case "host name", "mitigations", "tools", "sysctls":
			// The first is no cause of anything, the others follow one by one.
		default:
			out[where+", "+item.Term] = item.Text
		}
	}
	for kind, values := range map[string]map[string]string{"mitigation": e.Mitigations, "tool": e.Tools, "sysctl": e.Sysctls} {
		for name, value := range values {
			out[where+", "+kind+" "+name] = value
		}
	}
}
