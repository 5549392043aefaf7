package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/experiments/analysis"
	"github.com/rampart-bench/rampart/experiments/record"
	"github.com/rampart-bench/rampart/report"
	"github.com/rampart-bench/rampart/report/export"
)

// reportFlags are the flags of report.
type reportFlags struct {
	formats []string
	out     string
	exports []string
}

func (c *cli) reportCommand() *cobra.Command {
	var flags reportFlags
	cmd := &cobra.Command{
		Use:   "report DIR...",
		Short: "Render the report of results folders again",
		Long: "Render the report of a results folder again from its records. It needs neither root nor a testbed.\n\n" +
			"Several folders make one report, into the folder given with --out, in which the claims stand side by\n" +
			"side. Their records are never pooled.",
		Args: arguments(1, unlimited),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			if len(dirs) > 1 {
				return unlessInterrupted(cmd.Context(), func() error { return c.reportSeveral(dirs, flags) })
			}
			return c.reportOne(cmd.Context(), dirs[0], flags)
		},
	}
	cmd.Flags().StringSliceVar(&flags.formats, "format", nil, "html, markdown, or both (the default)")
	cmd.Flags().StringVarP(&flags.out, "out", "o", "", "where the report of several folders goes")
	cmd.Flags().StringArrayVar(&flags.exports, "export", nil, "also write the records to `FILE`: .csv, .parquet, or .bench for benchstat")
	c.gateFlag(cmd)
	c.jsonFlag(cmd)
	c.markdownFlag(cmd)
	return cmd
}

// unlessInterrupted does what cannot stop half-way, and does not wait for its end when ctx ends: the
// program is about to end too, and every file is either whole or not there.
func unlessInterrupted(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *cli) reportOne(ctx context.Context, dir string, flags reportFlags) error {
	if flags.out != "" {
		return usagef("report %s: the report of one folder goes into that folder; --out is for several", dir)
	}
	if _, err := manifestOf("report", dir); err != nil {
		return err
	}
	if err := exportAll(dir, flags.exports); err != nil {
		return err
	}
	return c.render(ctx, dir, report.Spec{Formats: flags.formats})
}

// manifestOf reads the manifest of a folder that the command line names. One that is no results folder is a slip
// there.
func manifestOf(verb, dir string) (record.Manifest, error) {
	manifest, err := record.ReadManifest(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return record.Manifest{}, withHint(usagef("%s: %s is not a results folder: it has no %s", verb, dir, record.ManifestName), "rampart run makes one, below results/ unless --out names another place")
	case err != nil:
		return record.Manifest{}, fmt.Errorf("%s: %w", verb, err)
	}
	return manifest, nil
}

// analyse reads a results folder and draws the findings from its records.
func analyse(dir string) (report.Input, error) {
	manifest, err := manifestOf("report", dir)
	if err != nil {
		return report.Input{}, err
	}
	var study analysis.Study
	if err := json.Unmarshal(manifest.Study, &study); err != nil {
		return report.Input{}, fmt.Errorf("report %s: decode the study in the manifest: %w", dir, err)
	}
	findings, err := analysis.Analyze(study, record.ReadDir(dir, record.Options{SkipSamples: true}))
	if err != nil {
		return report.Input{}, fmt.Errorf("report %s: %w", dir, err)
	}
	digest, err := record.Digest(dir)
	if err != nil {
		return report.Input{}, err
	}
	return report.Input{Manifest: manifest, Findings: findings, RecordsDigest: digest}, nil
}

// render writes the report of a folder into it, prints the verdicts, and holds them against the gate.
func (c *cli) render(ctx context.Context, dir string, spec report.Spec) error {
	return unlessInterrupted(ctx, func() error { return c.renderNow(dir, spec) })
}

func (c *cli) renderNow(dir string, spec report.Spec) error {
	in, err := analyse(dir)
	if err != nil {
		return err
	}
	if spec.Title == "" {
		spec.Title = in.Findings.Study.Title
	}
	files, err := report.Render(dir, in, spec)
	if err != nil {
		return fmt.Errorf("report %s: %w", dir, err)
	}
	if err := c.printVerdicts(in, files); err != nil {
		return err
	}
	if err := anyCounts(in.Findings); err != nil {
		return withHint(fmt.Errorf("report %s: %w", dir, err), "the report counts the runs that do not, with their reasons; rampart doctor looks for the cause")
	}
	return c.gate.judge(claimsOf(in.Findings))
}

// printVerdicts prints the outcome for a person, for the summary of a CI job, where no file stands beside it, or
// all of it for a machine.
func (c *cli) printVerdicts(in report.Input, files []string) error {
	switch {
	case c.json:
		return c.printJSON(in.Findings)
	case c.markdown:
		fmt.Fprint(c.stdout, report.MarkdownSummary(in.Findings))
	default:
		fmt.Fprint(c.stdout, report.Summary(in.Findings))
		fmt.Fprintf(c.stdout, "records  %s\n", in.RecordsDigest)
		c.printPages(files)
	}
	return nil
}

// anyCounts refuses to call a study done of which not one run entered the statistics.
func anyCounts(f analysis.Findings) error {
	runs := 0
	for _, count := range f.Runs {
		if count.OK > 0 {
			return nil
		}
		runs += count.Failed + count.SenderBound + count.Unavailable
	}
	return fmt.Errorf("none of %d runs entered the statistics", runs)
}

// printPages names the pages among the files of a report.
func (c *cli) printPages(files []string) {
	for _, file := range files {
		if name := filepath.Base(file); name == "index.html" || name == "report.md" {
			fmt.Fprintf(c.stdout, "report   %s\n", file)
		}
	}
}

// reportSeveral sets folders side by side, named by their own names.
func (c *cli) reportSeveral(dirs []string, flags reportFlags) error {
	if flags.out == "" {
		return usagef("report: several folders make a report of their own: say where it goes with --out DIR")
	}
	if c.markdown {
		return usagef("report: --markdown is for one folder; the report.md of several is Markdown already")
	}
	if len(flags.exports) > 0 {
		return usagef("report: --export is for one folder: records of several are never pooled")
	}
	var folders []report.Folder
	var claims []gatedClaim
	names := folderNames(dirs)
	for i, dir := range dirs {
		in, err := analyse(dir)
		if err != nil {
			return err
		}
		name := names[i]
		folders = append(folders, report.Folder{Name: name, Input: in})
		for _, claim := range claimsOf(in.Findings) {
			claim.name = name + ": " + claim.name
			claims = append(claims, claim)
		}
	}
	if err := os.MkdirAll(flags.out, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	title := folders[0].Findings.Study.Title
	files, err := report.RenderSeveral(flags.out, folders, report.Spec{Title: title, Formats: flags.formats})
	if err != nil {
		return err
	}
	c.printPages(files)
	return c.gate.judge(claims)
}

// folderNames tells folders apart by their own names, or by their paths where two have one name.
func folderNames(dirs []string) []string {
	names, seen := make([]string, len(dirs)), map[string]bool{}
	for i, dir := range dirs {
		names[i] = filepath.Base(filepath.Clean(dir))
		seen[names[i]] = true
	}
	if len(seen) < len(dirs) {
		for i, dir := range dirs {
			names[i] = filepath.Clean(dir)
		}
	}
	return names
}

// exportFormats are the formats by the ending of the file.
var exportFormats = map[string]string{".csv": export.CSV, ".parquet": export.Parquet, ".bench": export.Benchmark}

// exportAll writes the records of a folder to every file asked for.
func exportAll(dir string, files []string) error {
	for _, file := range files {
		format, ok := exportFormats[filepath.Ext(file)]
		if !ok {
			endings := slices.Sorted(maps.Keys(exportFormats))
			return usagef("report: export %s: the name must end in %s", file, strings.Join(endings, ", "))
		}
		if err := exportTo(dir, file, format); err != nil {
			return fmt.Errorf("report: export %s: %w", file, err)
		}
	}
	return nil
}

func exportTo(dir, file, format string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return export.Write(f, format, record.ReadDir(dir, record.Options{SkipSamples: true}))
}
