package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report"
)

func (c *cli) reportCommand() *cobra.Command {
	var formats []string
	cmd := &cobra.Command{
		Use:   "report DIR",
		Short: "Render the report of a results folder again",
		Long:  "Render the report of a results folder again from its records. It needs neither root nor a testbed.",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return c.renderAfterRun(args[0], report.Spec{Formats: formats})
		},
	}
	cmd.Flags().StringSliceVar(&formats, "format", nil, "html, markdown, or both (the default)")
	c.jsonFlag(cmd)
	return cmd
}

// renderAfterRun analyses the records of a folder, writes the report beside them, and prints the
// verdicts.
func (c *cli) renderAfterRun(dir string, spec report.Spec) error {
	manifest, err := record.ReadManifest(dir)
	if err != nil {
		return err
	}
	var study analysis.Study
	if err := json.Unmarshal(manifest.Study, &study); err != nil {
		return fmt.Errorf("report %s: decode the study in the manifest: %w", dir, err)
	}
	findings, err := analysis.Analyze(study, record.ReadDir(dir, record.Options{SkipSamples: true}))
	if err != nil {
		return fmt.Errorf("report %s: %w", dir, err)
	}
	digest, err := record.Digest(dir)
	if err != nil {
		return err
	}
	if spec.Title == "" {
		spec.Title = study.Title
	}
	files, err := report.Render(dir, report.Input{Manifest: manifest, Findings: findings, RecordsDigest: digest}, spec)
	if err != nil {
		return fmt.Errorf("report %s: %w", dir, err)
	}
	if c.json {
		return c.printJSON(findings)
	}
	fmt.Fprint(c.stdout, report.Summary(findings))
	fmt.Fprintf(c.stdout, "records  %s\n", digest)
	for _, name := range []string{"index.html", "report.md"} {
		if i := slices.IndexFunc(files, func(f string) bool { return strings.HasSuffix(f, name) }); i >= 0 {
			fmt.Fprintf(c.stdout, "report   %s\n", filepath.Join(dir, name))
		}
	}
	return nil
}
