package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/config"
)

func (c *cli) validateCommand() *cobra.Command {
	var flags configFlags
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check a configuration without touching anything",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := flags.load(cmd.Context(), config.Booting)
			if c.json {
				return c.validateJSON(err)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.stdout, "the configuration is right: %s, %s\n", plural(len(cfg.Experiments), "experiment"), plural(len(cfg.Study.Claims), "claim"))
			return nil
		},
	}
	flags.add(cmd)
	c.jsonFlag(cmd)
	return cmd
}

// validateJSON prints the diagnostics for a machine; the error still decides the exit status.
func (c *cli) validateJSON(err error) error {
	var diagnostics *config.Error
	if err != nil && !errors.As(err, &diagnostics) {
		return err
	}
	result := struct {
		Valid       bool                `json:"valid"`
		Diagnostics []config.Diagnostic `json:"diagnostics"`
	}{Valid: err == nil, Diagnostics: []config.Diagnostic{}}
	if diagnostics != nil {
		result.Diagnostics = diagnostics.Diagnostics()
	}
	return errors.Join(c.printJSON(result), err)
}

func (c *cli) fmtCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "fmt [PATH...]",
		Short: "Format configuration files",
		Long:  "Format *.hcl files in place: those named, those in the directories named, or those in this directory.\nThe path - formats standard input to standard output.",
		RunE: func(_ *cobra.Command, paths []string) error {
			return c.format(paths, check)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "change nothing; list the files that are not formatted and exit with status 3")
	return cmd
}

func (c *cli) format(paths []string, check bool) error {
	if len(paths) == 0 {
		paths = []string{"."}
	}
	if len(paths) == 1 && paths[0] == "-" {
		text, err := io.ReadAll(c.stdin)
		if err != nil {
			return fmt.Errorf("fmt standard input: %w", err)
		}
		formatted, err := config.Format("standard input", text)
		if err != nil {
			return err
		}
		_, err = c.stdout.Write(formatted)
		return err
	}
	files, err := hclFiles(paths)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return withHint(usagef("fmt: there is no *.hcl file in %s", strings.Join(paths, ", ")), "name a file or a directory that has one; rampart init writes one")
	}
	unformatted := 0
	for _, file := range files {
		changed, err := c.formatFile(file, check)
		if err != nil {
			return err
		}
		if changed {
			unformatted++
		}
	}
	if check && unformatted > 0 {
		return gatef("rampart fmt formats them", "fmt: %s not formatted", areFiles(unformatted))
	}
	return nil
}

func areFiles(n int) string {
	if n == 1 {
		return "1 file is"
	}
	return plural(n, "file") + " are"
}

// formatFile formats one file and reports, and prints, whether it had to change.
func (c *cli) formatFile(file string, check bool) (bool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("fmt %s: %w", file, err)
	}
	formatted, err := config.Format(file, text)
	if err != nil || bytes.Equal(text, formatted) {
		return false, err
	}
	fmt.Fprintln(c.stdout, file)
	if check {
		return true, nil
	}
	if err := renameio.WriteFile(file, formatted, 0o644, renameio.WithExistingPermissions()); err != nil {
		return true, fmt.Errorf("fmt %s: %w", file, err)
	}
	return true, nil
}

// hclFiles lists the files to format.
func hclFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, usagef("fmt: there is no %s", path)
		}
		if err != nil {
			return nil, fmt.Errorf("fmt %s: %w", path, err)
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		found, err := filepath.Glob(filepath.Join(path, "*.hcl"))
		if err != nil {
			return nil, fmt.Errorf("fmt %s: %w", path, err)
		}
		// The lock file is written by this program, in this form.
		files = append(files, slices.DeleteFunc(found, func(file string) bool { return filepath.Base(file) == config.LockName })...)
	}
	return files, nil
}
