package config

import "github.com/rampart-bench/rampart/experiments/analysis"

func analysisSchema() *schema {
	return &schema{
		name: "analysis",
		doc:  "How records are judged. It is fixed before the first run and kept in the manifest.",
		attributes: []attribute{
			{name: "alpha", kind: number, def: "0.05", min: "0", max: "0.5", doc: "Level of significance, after Holm's correction. Intervals have level 1 − alpha."},
			{name: "margin", kind: number, def: "0.03", min: "0", max: "1", doc: "δ of equivalence: \"similar\" is a ratio surely within 1/(1+δ) and 1+δ."},
			{name: "bootstrap", kind: whole, def: "10000", min: "100", max: "1000000", doc: "Bootstrap replicates."},
			{name: "seed", kind: whole, def: "1", min: "0", max: "9223372036854775807", doc: "Of the bootstrap."},
		},
	}
}

func readAnalysis(b *body) analysis.Study {
	return analysis.Study{
		Alpha:     b.number("alpha"),
		Margin:    b.number("margin"),
		Bootstrap: b.whole("bootstrap"),
		Seed:      uint64(b.amount("seed")),
	}
}
