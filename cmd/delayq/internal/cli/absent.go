package cli

import (
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// onlyWhole are the commands that only the program with all parts has. They run for ever.
var onlyWhole = []string{"web", "worker", "relay"}

// addAbsent makes a program say where the commands are that it does not have, also to those who ask
// for their help. It has to come after plainArgs, because no argument of them is looked at.
func addAbsent(root *cobra.Command) {
	for _, name := range onlyWhole {
		refuse := func(*cobra.Command, []string) error { return absentError(name) }
		root.AddCommand(&cobra.Command{
			Use: name, Hidden: true, DisableFlagParsing: true, ValidArgsFunction: cobra.NoFileCompletions,
			PersistentPreRunE: refuse, // instead of setUp, which may find other mistakes
			RunE:              refuse,
		})
	}
	root.InitDefaultHelpCmd()
	for _, help := range root.Commands() {
		if help.Name() != "help" {
			continue
		}
		help.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && slices.Contains(onlyWhole, args[0]) {
				return absentError(args[0])
			}
			return root.PersistentPreRunE(cmd, args)
		}
	}
}

// absentError says where a command is. Its code is not that of a crash, so that a supervisor which
// is told to run the command does not try again and again.
func absentError(name string) error {
	return &exitCode{exitConfig, name + " is a command of delayqd: " + getWhole()}
}

// getWhole is how to get the program with all parts, in the version of this one.
func getWhole() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return "go install github.com/delayq/delayq/cmd/delayq/delayqd@" + published(info)
}

// published returns the version of a program, or latest if it was built from a clone in between two
// versions: nobody else may have its commit.
func published(info *debug.BuildInfo) string {
	version, sum := info.Main.Version, info.Main.Sum
	if !strings.HasPrefix(version, "v") || sum == "" && (pseudo.MatchString(version) || strings.Contains(version, "+")) {
		return "latest"
	}
	return version
}
