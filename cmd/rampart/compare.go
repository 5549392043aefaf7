package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report"
)

// compareFlags are the flags of compare.
type compareFlags struct {
	threshold percentage
	metrics   []string
}

func (c *cli) compareCommand() *cobra.Command {
	var flags compareFlags
	cmd := &cobra.Command{
		Use:   "compare BEFORE AFTER",
		Short: "Say what changed between two results folders of one study",
		Long: "Hold two results folders of one study against each other, each firewall against itself, and say what\n" +
			"became slower or faster and what else differs between the two. It needs neither root nor a testbed.\n\n" +
			"Exit status 3 means a regression: something is worse, or has no run that counts any more.",
		Args: arguments(2, 2),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			return unlessInterrupted(cmd.Context(), func() error { return c.compare(dirs[0], dirs[1], flags) })
		},
	}
	cmd.Flags().Var(&flags.threshold, "threshold", "take no change up to this size for one, such as 2%")
	cmd.Flags().StringSliceVar(&flags.metrics, "metric", nil, "compare these metrics only (default: all that can be)")
	c.jsonFlag(cmd)
	c.markdownFlag(cmd)
	return cmd
}

func (c *cli) compare(before, after string, flags compareFlags) error {
	contrast, err := contrastOf(before, after, analysis.Limits{Threshold: float64(flags.threshold), Metrics: flags.metrics})
	if err != nil {
		return err
	}
	switch {
	case c.json:
		err = c.printJSON(contrast)
	case c.markdown:
		_, err = fmt.Fprint(c.stdout, contrast.Markdown())
	default:
		_, err = fmt.Fprint(c.stdout, contrast.Text())
	}
	if err != nil {
		return fmt.Errorf("compare: %w", err)
	}
	if contrast.Regressed {
		return gatef("docs/ci.md says what a regression is, and how to let small ones pass", "compare %s %s: %s", before, after, contrast.Outcome())
	}
	return nil
}

// contrastOf reads two results folders and holds them against each other.
func contrastOf(before, after string, limits analysis.Limits) (report.Contrast, error) {
	b, was, err := sideOf(before)
	if err != nil {
		return report.Contrast{}, err
	}
	a, is, err := sideOf(after)
	if err != nil {
		return report.Contrast{}, err
	}
	changes, err := analysis.Against(was, is, limits)
	var incomparable *analysis.IncomparableError
	if errors.As(err, &incomparable) {
		return report.Contrast{}, withHint(usagef("compare %s %s: %w", before, after, err), "%s", incomparable.Next)
	}
	if err != nil {
		return report.Contrast{}, fmt.Errorf("compare %s %s: %w", before, after, err)
	}
	return report.NewContrast(b, a, changes), nil
}

// sideOf reads a results folder, but for its records, which are read when they are asked for.
func sideOf(dir string) (report.Side, analysis.Measured, error) {
	manifest, err := manifestOf("compare", dir)
	if err != nil {
		return report.Side{}, analysis.Measured{}, err
	}
	var study analysis.Study
	if err := json.Unmarshal(manifest.Study, &study); err != nil {
		return report.Side{}, analysis.Measured{}, fmt.Errorf("compare: decode the study in the manifest of %s: %w", dir, err)
	}
	digest, err := record.Digest(dir)
	if err != nil {
		return report.Side{}, analysis.Measured{}, fmt.Errorf("compare: %w", err)
	}
	return report.Side{Folder: dir, RecordsDigest: digest, Manifest: manifest},
		analysis.Measured{Study: study, Records: record.ReadDir(dir, record.Options{SkipSamples: true})}, nil
}

// A percentage is a share that the command line gives in per cent.
type percentage float64

var _ pflag.Value = (*percentage)(nil)

func (p *percentage) String() string { return strconv.FormatFloat(100*float64(*p), 'g', -1, 64) + "%" }

// Type is how help names the value.
func (p *percentage) Type() string { return "PERCENT" }

// Set reads a number with its sign: 0.02 without one could be meant either way.
func (p *percentage) Set(text string) error {
	number, signed := strings.CutSuffix(text, "%")
	value, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !signed || err != nil || !(value >= 0 && value < 1e6) {
		return errors.New("give a percentage of 0% or more, such as 2%")
	}
	*p = percentage(value / 100)
	return nil
}
