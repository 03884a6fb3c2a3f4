package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/docs/acl"
)

var manual = filepath.Join("..", "..", "..", "..", "docs", "cli.md")

// commandsHead is the line of the manual below which it is what --help says.
const commandsHead = "\n## Commands\n"

// newApp returns an app whose commands are only looked at.
func newApp(out *bytes.Buffer) *app {
	return &app{process: &process{
		name: "delayq",
		in:   &input{Reader: strings.NewReader("")}, out: &output{Writer: out}, err: &output{Writer: out},
		getenv: func(string) string { return "" },
	}}
}

// walk calls see for every command that the manual describes.
func walk(cmd *cobra.Command, see func(*cobra.Command)) {
	if cmd.Name() == "completion" || cmd.Name() == "help" || cmd.Hidden {
		return
	}
	see(cmd)
	for _, c := range cmd.Commands() {
		walk(c, see)
	}
}

// docs/cli.md has what --help says, for every command.
func TestManualIsTheHelp(t *testing.T) {
	whole, err := os.ReadFile(manual)
	require.NoError(t, err)
	head, _, found := strings.Cut(string(whole), commandsHead)
	require.True(t, found)
	var text strings.Builder
	text.WriteString(head + commandsHead + "\nThis section is what `delayqd COMMAND --help` says. All commands but web, worker and relay are in\n`delayq` too.\n")
	var out bytes.Buffer
	root := newApp(&out).root()
	walk(root, func(cmd *cobra.Command) {
		out.Reset()
		p := newApp(&out).process
		path := strings.Fields(cmd.CommandPath())
		if len(path) == 1 || slices.Contains(onlyWhole, path[1]) {
			path[0] += "d"
		}
		p.name, p.args = path[0], append(path[1:], "--help")
		require.Zero(t, run(t.Context(), p))
		text.WriteString("\n### " + strings.Join(path, " ") + "\n\n```text\n" + out.String() + "```\n")
	})
	compare(t, manual, text.String())
}

// Examples in the help are command lines that the program understands.
func TestExamplesAreUnderstood(t *testing.T) {
	word := regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`)
	var out bytes.Buffer
	walk(newApp(&out).root(), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			named := regexp.MustCompile(`delayqd? `).FindStringIndex(line)
			if named == nil {
				continue
			}
			line = line[named[1]:]
			line, _, _ = strings.Cut(line, " | ")
			line = regexp.MustCompile(` >>? \S+`).ReplaceAllString(strings.TrimSpace(line), "")
			args := word.FindAllString(line, -1)
			for i, arg := range args {
				args[i] = strings.Trim(arg, `'"`)
			}
			root := newApp(&out).root()
			found2, rest, err := root.Find(args)
			require.NoError(t, err, line)
			require.NotEqual(t, root, found2, line)
			require.NoError(t, found2.ParseFlags(rest), line)
			require.NoError(t, found2.ValidateArgs(found2.Flags().Args()), line)
		}
	})
}

// Every flag says what it does, and help fits a terminal of 100 columns.
func TestHelpIsWhole(t *testing.T) {
	var out bytes.Buffer
	walk(newApp(&out).root(), func(cmd *cobra.Command) {
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		require.NotRegexp(t, `\.$`, cmd.Short, cmd.CommandPath())
		cmd.Flags().VisitAll(func(f *pflag.Flag) { require.NotEmpty(t, f.Usage, f.Name) })
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			require.LessOrEqual(t, len([]rune(strings.TrimSpace(line))), 98, line)
		}
		if cmd.Runnable() && !cmd.HasSubCommands() {
			require.NotNil(t, cmd.ValidArgsFunction, "completion of %s", cmd.CommandPath())
			require.NotNil(t, cmd.Args, "arguments of %s", cmd.CommandPath())
		}
	})
}

// The exit codes of the manual are those of the program.
func TestManualHasTheExitCodes(t *testing.T) {
	whole, err := os.ReadFile(manual)
	require.NoError(t, err)
	_, after, found := strings.Cut(string(whole), "\n## Exit codes\n")
	require.True(t, found)
	section, _, _ := strings.Cut(after, "\n## ")
	var codes []string
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(section, -1) {
		codes = append(codes, m[1])
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "78", "130"}, codes)
	for code, want := range map[int]int{
		exitDone: 0, exitError: 1, exitUsage: 2, exitNotFound: 3, exitConflict: 4, exitPartly: 5, exitUnreachable: 6, exitRefused: 7, exitConfig: 78, exitInterrupted: 130,
	} {
		require.Equal(t, want, code)
	}
}

// The lines of acl are those of the file, with another prefix.
func TestACLIsTheFile(t *testing.T) {
	file, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "acl", "delayq.acl"))
	require.NoError(t, err)
	require.Equal(t, string(file), acl.File)
	require.NotEmpty(t, aclRoles())
	var lines []string
	for _, role := range aclRoles() {
		lines = append(lines, aclLine(role, "delayq")+"\n")
		other := aclLine(role, "shop")
		require.NotContains(t, other, "~delayq")
		require.NotContains(t, other, "&delayq")
		require.Contains(t, other, "~shop:{*}:")
		require.Equal(t, aclLine(role, "delayq"), regexp.MustCompile(`([~&])shop:`).ReplaceAllString(other, "${1}delayq:"))
	}
	require.Equal(t, acl.File, strings.Join(lines, ""))
	require.Empty(t, aclLine("king", "shop"))
}
