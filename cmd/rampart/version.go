package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/rampart-bench/rampart/experiments/record"
)

func (c *cli) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print what this program was built from",
		Args:  arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			build := describeBuild()
			if c.json {
				return c.printJSON(build)
			}
			fmt.Fprintln(c.stdout, versionLine(build))
			return nil
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

// versionLine is the build in words, for version and --version.
func versionLine(b record.Build) string {
	return fmt.Sprintf("rampart %s (revision %s, %s)", b.Version, orUnknown(b.Revision), b.Go)
}

// stamped is what the Go tool stamped into the binary.
func stamped() record.Build {
	build := record.Build{Version: "unknown", Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		build.Version = info.Main.Version
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				build.Revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				build.Revision += "+modified"
			}
		}
	}
	return build
}

// describeBuild is what the binary was built from, with its own digest.
func describeBuild() record.Build {
	build := stamped()
	if sum, err := executableDigest(); err == nil {
		build.SHA256 = sum
	}
	return build
}

func executableDigest() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
