package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/report/document"
)

// A gate says what the verdicts on claims must be for the exit status to be 0.
type gate string

const (
	noGate       gate = ""
	allAgree     gate = "all-agree"     // every claim agrees
	noneDisagree gate = "none-disagree" // no claim disagrees, and each could be tested
)

var _ pflag.Value = (*gate)(nil)

func (g *gate) String() string { return string(*g) }

// Type is how help names the value.
func (g *gate) Type() string { return "RULE" }

// Set reads the flag's value.
func (g *gate) Set(text string) error {
	switch given := gate(text); given {
	case allAgree, noneDisagree:
		*g = given
		return nil
	}
	return fmt.Errorf("no such rule: use %s or %s", allAgree, noneDisagree)
}

// gateFlag adds --gate to a verb that ends with verdicts on claims. Its rule may be left out, so it follows
// an equals sign; what stands behind a space is an argument, which is noticed here.
func (c *cli) gateFlag(cmd *cobra.Command) {
	cmd.Flags().Var(&c.gate, "gate", fmt.Sprintf("exit with status %d unless the claims hold: %s (the default rule), or %s, which lets inconclusive ones pass",
		exitGate, allAgree, noneDisagree))
	cmd.Flags().Lookup("gate").NoOptDefVal = string(allAgree)
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if !cmd.Flags().Changed("gate") || len(args) == 0 {
			return err
		}
		for _, arg := range args {
			if new(gate).Set(arg) == nil && err == nil {
				err = usagef("%s: the argument %q is a rule of --gate", verbOf(cmd), arg)
			}
		}
		return withHint(err, "a rule follows --gate with an equals sign: --gate=%s or --gate=%s", allAgree, noneDisagree)
	}
}

// check refuses a gate that could not fail.
func (g gate) check(claims int) error {
	if g == noGate || claims > 0 {
		return nil
	}
	return withHint(usagef("--gate: the study makes no claim"), "add a claim block to the configuration")
}

// A gatedClaim is a claim's result with the name under which the user knows it.
type gatedClaim struct {
	name string
	analysis.ClaimResult
}

// claimsOf names the claims of one study.
func claimsOf(f analysis.Findings) (out []gatedClaim) {
	for _, c := range f.Claims {
		out = append(out, gatedClaim{c.Claim.Name, c})
	}
	return out
}

// holds reports whether the gate lets the claim pass. Of a claim without a cell nothing is known, which no
// rule lets pass.
func (g gate) holds(c gatedClaim) bool {
	if g == noneDisagree {
		return c.Cells > 0 && c.Verdict != analysis.Disagrees
	}
	return c.Verdict == analysis.Agrees
}

// judge returns a *gateError that names the claims that do not pass.
func (g gate) judge(claims []gatedClaim) error {
	if g == noGate {
		return nil
	}
	if err := g.check(len(claims)); err != nil {
		return err
	}
	var failed []string
	for _, c := range claims {
		if !g.holds(c) {
			failed = append(failed, fmt.Sprintf("%s (%s)", document.Clean(c.name, false), c.Verdict))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return gatef("the report says how far each is from what it expects",
		"gate %s: %d of %d claims fail: %s", g, len(failed), len(claims), strings.Join(failed, ", "))
}
