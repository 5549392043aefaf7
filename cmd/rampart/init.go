package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/config"
)

func (c *cli) initCommand() *cobra.Command {
	var preset, path string
	var force bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write a commented configuration from a preset",
		Args:  arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			return c.initialise(preset, path, force)
		},
	}
	cmd.Flags().StringVar(&preset, "preset", "quick", "one of: "+strings.Join(presetNames(), ", "))
	cmd.Flags().StringVarP(&path, "output", "o", "rampart.hcl", "the file to write, or - for standard output")
	cmd.Flags().BoolVar(&force, "force", false, "write over a file that is there")
	return cmd
}

func presetNames() []string {
	var names []string
	for _, p := range config.Presets() {
		names = append(names, p.Name)
	}
	return names
}

func (c *cli) initialise(preset, path string, force bool) error {
	p, ok := config.FindPreset(preset)
	if !ok {
		return usagef("init: no preset %q: there are %s", preset, strings.Join(presetNames(), ", "))
	}
	if path == "-" {
		_, err := c.stdout.Write(p.Text)
		return err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return withHint(fmt.Errorf("init %s: the file is there already", path), "write over it with --force, or elsewhere with --output FILE")
	}
	if errors.Is(err, fs.ErrNotExist) {
		folder := filepath.Dir(path)
		return withHint(usagef("init %s: there is no folder %s", path, folder), "mkdir -p %s, or write elsewhere with --output FILE", folder)
	}
	if err != nil {
		return fmt.Errorf("init %s: %w", path, err)
	}
	_, err = f.Write(p.Text)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("init %s: %w", path, err)
	}
	c.sayf("wrote %s from preset %s; now: rampart plan, rampart run", path, preset)
	return nil
}
