package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os/signal"
	"slices"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

// The live view is in these files:
//
//   - top.go: the command and the program around the view
//   - top_model.go: what the view knows, and what each message changes
//   - top_read.go: what is read from Redis, and how often
//   - top_keys.go: what each key does
//   - top_view.go, top_rows.go, top_grid.go: how it is drawn
//
// Only the functions of commands (tea.Cmd) call Redis. Everything else depends on the messages so
// far and on nothing else, so tests send messages and compare frames.

func (a *app) topCommand() *cobra.Command {
	var readOnly bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch all topics live, and open what is in trouble",
		Long: `Watch all topics live. The view is refreshed every second, with one call for the numbers
of all topics. Topics in trouble come first: those with due jobs and no server, those
that are behind, held or paused ones, and those in which jobs have died within the last
minute.

Press ? for the keys. Lower-case letters look. Capitals, and p, act on what is selected
and ask first. They are left out with --read-only, on a replica, and once Redis has
refused one.

If Redis does not answer, the last numbers remain, with a line that says how old they
are. The view goes on by itself as soon as Redis answers.`,
		Args:              counted(0, 0, "no arguments"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := a.newTop(cmd.Context(), a.place())
			if err != nil {
				return err
			}
			m.readOnly = readOnly
			return a.watch(m)
		},
	}
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "leave out the keys that act")
	return cmd
}

// place names the Redis of the connection, without a user and a password.
func (c *connection) place() string {
	u, err := url.Parse(c.url)
	switch {
	case err != nil:
		return ""
	case u.Host == "":
		return u.Path
	}
	return u.Host
}

// newTop returns the view of a queue before its first message.
func (a *app) newTop(ctx context.Context, place string) (*top, error) {
	if !a.tabular() {
		return nil, usage("-o %s: top is for people; use delayq stats --every 1s -o jsonl", a.format)
	}
	if !a.in.terminal || !a.out.terminal || a.getenv("TERM") == "dumb" {
		return nil, usage("top needs a terminal on stdin and stdout; without one use delayq stats --every 1s")
	}
	insp, err := a.inspector()
	if err != nil {
		return nil, err
	}
	client, err := a.queue()
	if err != nil {
		return nil, err
	}
	return newTop(ctx, a, insp, client, place), nil
}

func newTop(ctx context.Context, a *app, insp *delayq.Inspector, client *delayq.Client, place string) *top {
	m := &top{ctx: ctx, a: a, insp: insp, client: client, place: place, topics: map[string]*topTopic{}}
	for _, kind := range []screenKind{topicsScreen, failuresScreen, serversScreen, schedulesScreen} {
		m.tabs = append(m.tabs, &topScreen{kind: kind})
	}
	return m
}

// watch draws the view until it is left. It restores the terminal, also after a signal or a panic.
func (a *app) watch(m *top) error {
	ctx, stop := signal.NotifyContext(m.ctx, syscall.SIGTERM)
	defer stop()
	calls, cancel := context.WithCancel(ctx)
	defer cancel() // of the calls in flight, after the end of the program
	m.ctx = calls
	m.tick = func() tea.Cmd { return tea.Tick(topEvery, func(t time.Time) tea.Msg { return topTick(t) }) }

	opts := []tea.ProgramOption{tea.WithInput(a.in.Reader), tea.WithOutput(a.out.Writer), tea.WithoutSignalHandler()}
	if a.noColor {
		opts = append(opts, tea.WithColorProfile(colorprofile.ASCII))
	}
	p := tea.NewProgram(m, opts...)
	defer context.AfterFunc(ctx, func() { p.Send(topEnd{ctx.Err()}) })()
	_, err := p.Run()
	switch {
	case m.crash != nil:
		return fmt.Errorf("%v\n\n%s", m.crash.value, m.crash.stack)
	case errors.Is(err, tea.ErrProgramPanic):
		return &exitCode{code: exitError} // it has been printed
	case err != nil:
		return err
	case errors.Is(m.end, context.DeadlineExceeded): // that of demo --for
		return nil
	case m.end != nil:
		return &exitCode{code: exitInterrupted}
	}
	return nil
}

// The order of topics.
const (
	byTrouble = iota
	byName
	byOverdue
	byDead
	byRate
	sortings
)

// sortHeads are the columns that the orders go by.
var sortHeads = [sortings]string{byTrouble: "STATE", byName: "TOPIC", byOverdue: "READY", byDead: "DEAD", byRate: "OUT/s"}

// states of topics, with those in trouble first. Topics in which jobs die come after them.
var troubles = []string{topicNoServer, topicBehind, topicHeld, topicPaused}

func (t *topTopic) trouble() int {
	if i := slices.Index(troubles, t.State); i >= 0 {
		return i
	}
	if t.died() > 0 {
		return len(troubles)
	}
	return len(troubles) + 1
}
