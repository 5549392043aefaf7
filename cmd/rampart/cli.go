package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rampart-bench/rampart/config"
	"github.com/rampart-bench/rampart/testbed/exact"
)

// cli is the program's state: its streams and the flags that every verb shares.
type cli struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	json     bool
	markdown bool
	quiet    bool
	verbose  bool
	gate     gate
	log      *slog.Logger
}

// root is the command tree. Each verb has a file of its own.
func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "rampart",
		Short: "Measure what a Linux firewall costs",
		Long: "rampart measures what a Linux firewall costs, on this kernel, at this rule-set size and frame\n" +
			"size, and writes a report that anybody can reproduce.\n\n" +
			"Exit status: 0 done; 1 failed; 2 the command line or the configuration is wrong;\n" +
			"3 a comparison or claim gate failed; 4 this machine cannot do it.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return withHint(usagef("there is no verb %q", args[0]), "%s --help lists them", cmd.CommandPath())
			}
			return nil
		},
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       versionLine(stamped()),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			level := slog.LevelInfo
			switch {
			case c.verbose:
				level = slog.LevelDebug
			case c.quiet:
				level = slog.LevelWarn
			}
			c.log = newLogger(c.stderr, level)
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return withHint(&usageError{err}, "%s --help lists the flags", cmd.CommandPath())
	})
	root.PersistentFlags().BoolVarP(&c.quiet, "quiet", "q", false, "print results, warnings and errors only")
	root.PersistentFlags().BoolVarP(&c.verbose, "verbose", "v", false, "print what is being done, step by step")
	root.CompletionOptions.HiddenDefaultCmd = false

	root.AddCommand(
		c.initCommand(),
		c.validateCommand(),
		c.fmtCommand(),
		c.planCommand(),
		c.doctorCommand(),
		c.imageCommand(),
		c.upCommand(),
		c.statusCommand(),
		c.sshCommand(),
		c.downCommand(),
		c.runCommand(),
		c.reportCommand(),
		c.compareCommand(),
		c.versionCommand(),
		c.agentCommand(),
		c.guestCommand(),
	)
	return root
}

// unlimited is the most arguments of a verb that takes any number.
const unlimited = math.MaxInt

// arguments makes any other number of arguments than least to most a usage error.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		var err error
		switch {
		case len(args) < least:
			err = usagef("%s: %s missing", verbOf(cmd), areArguments(least-len(args)))
		case len(args) > most:
			err = usagef("%s: %q is one argument too many", verbOf(cmd), args[most])
		default:
			return nil
		}
		return withHint(err, "usage: %s; %s --help says more", cmd.UseLine(), cmd.CommandPath())
	}
}

// verbOf is the command as errors name it: without the program.
func verbOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

func areArguments(n int) string {
	if n == 1 {
		return "1 argument is"
	}
	return plural(n, "argument") + " are"
}

// jsonFlag adds --json to a verb that prints results.
func (c *cli) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.json, "json", false, "print the result as JSON")
}

// markdownFlag adds --markdown to a verb that has --json, too.
func (c *cli) markdownFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.markdown, "markdown", false, "print the result in Markdown, for the summary of a CI job")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if c.json && c.markdown {
			return usagef("%s: --json and --markdown print the same in two ways: choose one", verbOf(cmd))
		}
		return nil
	}
}

// printJSON writes a result for a machine.
func (c *cli) printJSON(v any) error {
	out := json.NewEncoder(c.stdout)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(v)
}

// onTerminal reports whether a person watches standard error.
func (c *cli) onTerminal() bool {
	f, ok := c.stderr.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// configFlags are the flags of every verb that reads a configuration.
type configFlags struct {
	path     string
	provider string
	vars     []string
	varFiles []string
}

func (f *configFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.path, "config", "c", ".", "configuration: a file or a directory")
	cmd.Flags().StringVar(&f.provider, "provider", "", "use this provider: libvirt, netns, exact or auto")
	cmd.Flags().StringArrayVar(&f.vars, "var", nil, "set a variable, as `name=value`")
	cmd.Flags().StringArrayVar(&f.varFiles, "var-file", nil, "read variables from `FILE`")
}

// load reads the configuration that the flags name, for a purpose; images names those to be built, if not all.
func (f *configFlags) load(ctx context.Context, purpose config.Purpose, images ...string) (cfg *config.Config, err error) {
	err = unlessInterrupted(ctx, func() (err error) { // a disk has gigabytes
		cfg, err = config.Load(config.Source{
			For: purpose, Images: images,
			Path: f.path, Vars: f.vars, VarFiles: f.varFiles, Provider: f.provider,
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if cfg.Provider == exact.Name {
		planForExact(cfg)
	}
	return cfg, nil
}

// sayf writes a line for the person at the terminal, unless --quiet.
func (c *cli) sayf(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintf(c.stderr, format+"\n", args...)
	}
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
