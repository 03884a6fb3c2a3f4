package cli

import (
	"fmt"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq/cmd/delayq/internal/part"
	"github.com/delayq/delayq/docs/acl"
)

// The commands and what they belong to.

func (a *app) lookCommands() []*cobra.Command {
	return []*cobra.Command{
		a.topicsCommand(), a.topicCommand(), a.memoryCommand(), a.jobsCommand(), a.jobCommand(), a.findCommand(), a.explainCommand(), a.waitCommand(),
		a.keysCommand(), a.undeliveredCommand(), a.flowCommand(),
		a.failuresCommand(), a.serversCommand(), a.serverCommand(), a.statsCommand(), a.topCommand(),
	}
}

func (a *app) actCommands() []*cobra.Command {
	list := []*cobra.Command{a.enqueueCommand()}
	for _, v := range a.verbs() {
		list = append(list, a.verbCommand(v))
	}
	return append(list, a.moveCommand(), a.pauseCommand(), a.resumeCommand(), a.holdCommand(), a.limitsCommand(), a.partitionCommand(), a.keyCommand(), a.priorityCommand(), a.removeCommand())
}

func (a *app) scheduleCommands() []*cobra.Command {
	return []*cobra.Command{a.schedulesCommand(), a.scheduleCommand()}
}

func (a *app) checkCommands() []*cobra.Command {
	list := []*cobra.Command{a.checkCommand(), a.healthCommand(), a.doctorCommand(), a.auditCommand(), a.exporterCommand(), a.gatewayCommand()}
	if part.Whole() {
		list = append(list, a.webCommand(), a.relayCommand())
	}
	return list
}

func (a *app) dataCommands() []*cobra.Command {
	load := a.importCommand()
	load.AddCommand(a.importAsynqCommand())
	return []*cobra.Command{a.exportCommand(), load}
}

func (a *app) otherCommands() []*cobra.Command {
	return []*cobra.Command{a.aclCommand(), a.demoCommand(), a.versionCommand()}
}

const (
	aclUser   = "delayq-" // start of the names in delayq.acl
	aclPrefix = "delayq:" // start of the keys there
)

const (
	schemaACL     = "delayq.acl/1"
	schemaVersion = "delayq.version/1"
)

// An aclRecord is a line of an ACL file.
type aclRecord struct {
	Role string `json:"role"`
	Line string `json:"line"`
}

// patternSigns makes a pattern of Redis match these signs themselves.
var patternSigns = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, `\`, `\\`)

// aclLine returns the line of a role for a prefix, or "".
func aclLine(role, prefix string) string {
	for line := range strings.Lines(acl.File) {
		words := strings.Fields(line)
		if len(words) < 2 || words[1] != aclUser+role {
			continue
		}
		for i, word := range words {
			if rest, ok := strings.CutPrefix(word[1:], aclPrefix); ok && (word[0] == '~' || word[0] == '&') {
				words[i] = word[:1] + patternSigns.Replace(prefix) + ":" + rest
			}
		}
		return strings.Join(words, " ")
	}
	return ""
}

// aclRoles returns the roles of the file.
func aclRoles() (list []string) {
	for line := range strings.Lines(acl.File) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "user" {
			list = append(list, strings.TrimPrefix(words[1], aclUser))
		}
	}
	return list
}

func (a *app) aclCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "acl ROLE",
		Short: "Print the line of a role for the ACL file of Redis",
		Long: `Print the line of a role for the ACL file of Redis, with the keys of --prefix. Roles are
` + strings.Join(aclRoles(), ", ") + `. Change the password, which is the word that begins
with ">", before you use it.`,
		Example:           "  delayq acl operator --prefix shop >> users.acl",
		Args:              counted(1, 1, "a role"),
		ValidArgsFunction: a.completeArgs(words(aclRoles()...), nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.validPrefix(cmd.Context()); err != nil {
				return err
			}
			if strings.ContainsFunc(a.prefix, unicode.IsSpace) {
				return usage("--prefix %q: a line of the ACL file cannot have white space in a word", a.prefix)
			}
			line := aclLine(args[0], a.prefix)
			if line == "" {
				return usage("role %q: allowed are %s", args[0], strings.Join(aclRoles(), ", "))
			}
			return object(a, schemaACL, &aclRecord{args[0], line}, args[0], func(w io.Writer) error {
				_, err := fmt.Fprintln(w, line)
				return err
			})
		},
	}
}

// A versionRecord is the version of the program.
type versionRecord struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"` // as far as it is known: 12 digits of a pseudo-version
	Time    string `json:"time,omitempty"`   // of the commit
	Sum     string `json:"sum,omitempty"`    // of the module's files, as go.sum has it
	Go      string `json:"go"`
}

// pseudo is the end of a version without a tag: the time of its commit, and 12 digits of its hash.
var pseudo = regexp.MustCompile(`[-.](\d{14})-([0-9a-f]{12})(\+|$)`)

func currentVersion() *versionRecord {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return versionOf(info)
}

// versionOf returns what a program knows of its origin. A build in a clone has the commit. One of
// go install has the version and the sum of the module, and of the commit what the version says.
func versionOf(info *debug.BuildInfo) *versionRecord {
	r := &versionRecord{Version: "devel", Sum: info.Main.Sum, Go: runtime.Version()}
	if info.Main.Version != "" {
		r.Version = strings.Trim(info.Main.Version, "()")
	}
	if m := pseudo.FindStringSubmatch(r.Version); m != nil {
		r.Commit = m[2]
		if at, err := time.Parse("20060102150405", m[1]); err == nil {
			r.Time = at.Format(time.RFC3339)
		}
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Commit = s.Value
		case "vcs.time":
			r.Time = s.Value
		}
	}
	return r
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version of delayq",
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(*cobra.Command, []string) error {
			r := currentVersion()
			return object(a, schemaVersion, r, r.Version, func(w io.Writer) error {
				return a.fields(w, "version", r.Version, "commit", r.Commit, "time", r.Time, "sum", r.Sum, "go", r.Go)
			})
		},
	}
}
