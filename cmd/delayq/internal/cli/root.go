package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/part"
	"github.com/delayq/delayq/internal/friend"
)

// library has what delayq does for its friends.
var library = friend.Of(new(delayq.Client))

// An app is one execution of the command line.
type app struct {
	*process
	connection
	format    string
	timeStyle string
	noColor   bool
	actor     string

	offset *time.Duration // of Redis's clock from ours; nil: not known yet
	rdb    redis.UniversalClient
	buffer *bufio.Writer // of stdout

	silent   error // of the first act that is done and not in the audit
	silences int   // how many there are
}

// The groups in which help lists the commands.
const (
	groupLook     = "look"
	groupAct      = "act"
	groupSchedule = "schedule"
	groupTask     = "task"
	groupCheck    = "check"
	groupData     = "data"
	groupOther    = "other"
)

const envPrefix = "DELAYQ_"

// root returns the command of the program with all others below it.
func (a *app) root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   a.name,
		Short: "Look into the topics of delayq, and act on their jobs",
		Long: `delayq looks into the topics of a delayq queue, says why a job is not running, and
acts on one job or on all that match a filter.

Data goes to stdout and everything else to stderr. Every flag below has a twin in
the environment, for example DELAYQ_REDIS for --redis; a flag wins. If DELAYQ_REDIS
is not set, REDIS_URL is used. A password belongs into --password-file, into
DELAYQ_PASSWORD, or into the URL in the environment. In --redis on the command line
it is refused, because other users could see it in the list of processes.`,
		Args:              cobra.ArbitraryArgs,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.setUp(cmd) },
		RunE:              group,
	}
	f := cmd.PersistentFlags()
	cmd.Flags().SortFlags = false
	f.SortFlags = false
	a.connection.flags(f)
	f.StringVarP(&a.format, "output", "o", formatTable, "output `format`: "+strings.Join(formats, ", "))
	f.StringVar(&a.timeStyle, "time", timeLocal, "how tables show times: "+strings.Join(timeStyles, ", ")+"; JSON has UTC always")
	f.BoolVar(&a.noColor, "no-color", false, "no colors on a terminal; NO_COLOR in the environment does the same")
	f.StringVar(&a.actor, "actor", a.user, "`name` that the audit, pauses and holds show; default: the user of the system")
	f.Lookup("actor").DefValue = ""
	f.VisitAll(func(flag *pflag.Flag) {
		switch flag.Name {
		case "output":
			a.choices(cmd, flag.Name, formats)
		case "time":
			a.choices(cmd, flag.Name, timeStyles)
		}
	})

	cmd.AddGroup(
		&cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupAct, Title: "Act on jobs and topics:"},
		&cobra.Group{ID: groupSchedule, Title: "Schedules:"},
		&cobra.Group{ID: groupTask, Title: "Tasks without code:"},
		&cobra.Group{ID: groupCheck, Title: "Check:"},
		&cobra.Group{ID: groupData, Title: "Move data:"},
		&cobra.Group{ID: groupOther, Title: "Other:"},
	)
	for _, commands := range []struct {
		group string
		list  []*cobra.Command
	}{
		{groupLook, a.lookCommands()},
		{groupAct, a.actCommands()},
		{groupSchedule, a.scheduleCommands()},
		{groupTask, a.taskCommands()},
		{groupCheck, a.checkCommands()},
		{groupData, a.dataCommands()},
		{groupOther, a.otherCommands()},
	} {
		for _, c := range commands.list {
			c.GroupID = commands.group
			cmd.AddCommand(c)
		}
	}
	plainArgs(cmd)
	cmd.SetHelpCommandGroupID(groupOther)
	if !part.Whole() {
		addAbsent(cmd)
	}
	cmd.SetCompletionCommandGroupID(groupOther)
	cmd.SetUsageFunc(showUsage)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%v; see %s --help", err, cmd.CommandPath())
	})
	cmd.SetArgs(a.args)
	cmd.SetIn(a.in)
	cmd.SetOut(a.stdout())
	cmd.SetErr(a.err)
	return cmd
}

// showUsage writes how a command is used. Unlike a template of cobra, it lets the linker leave out
// methods that nobody calls, and it shows the flags of all commands only once.
func showUsage(cmd *cobra.Command) error {
	w := cmd.OutOrStderr()
	fmt.Fprint(w, "Usage:")
	if own := strings.Contains(cmd.Use, " "); cmd.Runnable() && (own || !cmd.HasAvailableSubCommands()) {
		fmt.Fprintf(w, "\n  %s", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n  %s [command]", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, "\n\nExamples:\n%s", cmd.Example)
	}
	list := func(title, group string) {
		fmt.Fprintf(w, "\n\n%s", title)
		for _, c := range cmd.Commands() {
			if c.GroupID == group && (c.IsAvailableCommand() || c.Name() == "help") {
				fmt.Fprintf(w, "\n  %-*s %s", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	for _, g := range cmd.Groups() {
		list(g.Title, g.ID)
	}
	if cmd.HasAvailableSubCommands() && len(cmd.Groups()) == 0 {
		list("Commands:", "")
	}
	if cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(w, "\n\nFlags:\n%s", strings.TrimRight(cmd.LocalFlags().FlagUsagesWrapped(96), " \n"))
	}
	if cmd.HasAvailableInheritedFlags() {
		fmt.Fprintf(w, "\n\nThe flags of all commands are in \"%s --help\".", cmd.Root().Name())
	}
	fmt.Fprintln(w)
	return nil
}

// group is the function of a command that has others below it.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	hint := "see " + cmd.CommandPath() + " --help"
	cmd.SuggestionsMinimumDistance = 2
	if list := cmd.SuggestionsFor(args[0]); len(list) > 0 {
		hint = "did you mean " + strings.Join(list, " or ") + "?"
	}
	return usage("unknown command %q; %s", args[0], hint)
}

// plainArgs lets all commands have their arguments as they are meant: base64:… is the name or the
// ID that is written in base64 there, as -o id and completion write it. An empty one is a mistake.
func plainArgs(cmd *cobra.Command) {
	if act := cmd.RunE; act != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
			if args, err = idsOf(args); err != nil {
				return err
			}
			if at := slices.Index(args, ""); at >= 0 {
				return usage("argument %d of %s is empty", at+1, cmd.CommandPath())
			}
			return act(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		plainArgs(c)
	}
}

// setUp reads the environment and checks the flags that all commands have.
func (a *app) setUp(cmd *cobra.Command) error {
	f := cmd.Root().PersistentFlags()
	if flag := f.Lookup("redis"); flag.Changed && hasPassword(a.url) {
		return usage("--redis: a password on the command line is visible to other users; use --password-file, DELAYQ_PASSWORD or DELAYQ_REDIS")
	}
	var errs []string
	f.VisitAll(func(flag *pflag.Flag) {
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value := a.getenv(name)
		if value == "" && flag.Name == "redis" {
			name, value = "REDIS_URL", a.getenv("REDIS_URL")
		}
		if flag.Changed || value == "" || flag.Name == "help" {
			return
		}
		if err := flag.Value.Set(value); err != nil {
			errs = append(errs, fmt.Sprintf("%s: %v", name, err))
		}
	})
	a.password = a.getenv(envPrefix + "PASSWORD")
	if !slices.Contains(formats, a.format) {
		errs = append(errs, fmt.Sprintf("--output %q: allowed are %s", a.format, strings.Join(formats, ", ")))
	}
	if !slices.Contains(timeStyles, a.timeStyle) {
		errs = append(errs, fmt.Sprintf("--time %q: allowed are %s", a.timeStyle, strings.Join(timeStyles, ", ")))
	}
	if a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb" {
		a.noColor = true
	}
	if len(errs) > 0 {
		return usage("%s", strings.Join(errs, "\n"))
	}
	return noEmptyFlag(cmd)
}

// noEmptyFlag refuses flags that are given and empty. In a script they come from a variable that is
// not set, and an empty filter would select everything.
func noEmptyFlag(cmd *cobra.Command) error {
	var errs []string
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		} else if flag.Value.Type() != "string" {
			return // it has been read, which fails for an empty text
		}
		if len(values) == 0 || slices.Contains(values, "") {
			errs = append(errs, fmt.Sprintf("--%s is empty: give it a value, or leave it out", flag.Name))
		}
	})
	if len(errs) > 0 {
		return usage("%s", strings.Join(errs, "\n"))
	}
	return nil
}

// redis returns the client of go-redis. It connects with the first call.
func (a *app) redis() (redis.UniversalClient, error) {
	if a.rdb == nil {
		rdb, err := a.dial(&a.connection)
		if err != nil {
			return nil, err
		}
		a.rdb = rdb
	}
	return a.rdb, nil
}

// maxPayload lets the command line store whatever another client may have stored.
const maxPayload = 64 << 20

// queue returns the client that writes.
func (a *app) queue(opts ...delayq.ClientOption) (*delayq.Client, error) {
	rdb, err := a.redis()
	if err != nil {
		return nil, err
	}
	return delayq.NewClient(rdb, append(opts, delayq.Prefix(a.prefix), delayq.MaxPayload(maxPayload))...), nil
}

// inspector returns what reads.
func (a *app) inspector() (*delayq.Inspector, error) {
	rdb, err := a.redis()
	if err != nil {
		return nil, err
	}
	return delayq.NewInspector(rdb, delayq.Prefix(a.prefix)), nil
}

// validPrefix returns what the library says about --prefix. It does not ask Redis.
func (a *app) validPrefix(ctx context.Context) error {
	over, cancel := context.WithCancel(ctx)
	cancel()
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = nowhere.Close() }() // it has not connected
	_, err := delayq.NewInspector(nowhere, delayq.Prefix(a.prefix)).Topics(over)
	if errors.Is(err, delayq.ErrInvalid) {
		return err
	}
	return nil
}

func (a *app) close() {
	if a.rdb != nil {
		_ = a.rdb.Close() // nothing is in flight any more
	}
}

// act marks the calls of a context as those of the operator, for the audit.
func (a *app) act(ctx context.Context) context.Context { return delayq.WithActor(ctx, a.actor) }

// note records an act in the audit that the library does not record. Who may only store jobs has no
// right to the audit, and is told so.
func (a *app) note(ctx context.Context, c *delayq.Client, act, topic, id, filter string, n int64) error {
	err := library.Note(ctx, c, act, topic, id, filter, n)
	if err != nil && refused(err) {
		a.say("it is not in the audit: this user of Redis has no right to that")
		return nil
	}
	return a.acted(err)
}

// acted returns what has failed of an act that has ended with err. An act that is done and not in
// the audit has not failed: the command goes on, and says so at its end.
func (a *app) acted(err error) error {
	failed, silent := unrecorded(err)
	if silent != nil {
		if a.silent == nil {
			a.silent = silent
		}
		a.silences++
	}
	return failed
}

// counted checks the number of arguments. most below 0 is no limit.
func counted(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most && most >= 0 {
			return usage("%s takes %s, and got %s; see %s --help", cmd.CommandPath(), what, count(len(args), "argument"), cmd.CommandPath())
		}
		return nil
	}
}

// count writes a number with its noun.
func count[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return number(n) + " " + noun + "s"
}
