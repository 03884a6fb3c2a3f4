// The acts on jobs that are named. Acts on a query are in act_bulk.go.

package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	defaultAtMost = 10_000 // jobs that --yes lets a command act on
	chunk         = 1000   // jobs that are named in one call
	schemaActed   = "delayq.acted/1"
	schemaActs    = "delayq.acts/1"
	schemaBulk    = "delayq.bulk/1"
	schemaBulks   = "delayq.bulks/1"
)

// An actedRecord is the outcome of an act on one job.
type actedRecord struct {
	jobRef
	Done  bool   `json:"done"`
	Act   string `json:"act"`
	Error string `json:"error,omitempty"`
}

// A bulkRecord is the outcome of an act on all jobs of a topic that match.
type bulkRecord struct {
	Topic    string        `json:"topic"`
	State    string        `json:"state"`
	Act      string        `json:"act"`
	DryRun   bool          `json:"dry_run,omitempty"`
	Matched  int64         `json:"matched"`
	Done     int64         `json:"done"`
	Skipped  int64         `json:"skipped"` // moved on in the meantime
	Failed   int64         `json:"failed"`
	Examined int64         `json:"examined"`
	Next     delayq.Cursor `json:"next,omitempty"`   // if jobs are left
	Sample   []jobRef      `json:"sample,omitempty"` // of a dry run
}

// given reports whether a flag that narrows the selection was given.
func (f *filters) given(cmd *cobra.Command) bool {
	for _, name := range []string{"since", "until", "id-prefix", "key", "attempt", "error", "failure", "header", "payload", "cursor"} {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// bulk holds the flags of an act on many jobs.
type bulk struct {
	filters
	all       bool
	allTopics bool
	dryRun    bool
	yes       bool
	atMost    int64
	spread    time.Duration
	pace      int
}

func (a *app) verbCommand(v *verb) *cobra.Command {
	var b bulk
	cmd := &cobra.Command{
		Use:   v.name + " (TOPIC (ID… | - | flags that select jobs) | --all-topics flags)",
		Short: v.short,
		Long: v.long + `

Name the jobs, or select them with the flags of the command jobs, or take all of a
state with --all. "-" reads IDs from stdin, one a line. With --state, jobs that are
named are left alone if they are in another state when their turn comes. Jobs that are
selected are counted first, and you are asked; above 1,000 the name of the topic has to
be typed. Without a terminal --yes is needed, which acts on at most --at-most jobs. A
job that has left its state in the meantime is skipped.

--all-topics selects jobs of all topics, in all states that the command can act on, or in
that of --state. Then --dry-run lists how many there are by topic and state, and the
first ones. --at-most is about all of them together, --spread about each topic.`,
		Example: v.example,
		Args: func(cmd *cobra.Command, args []string) error {
			least := 1
			if b.allTopics {
				least = 0
			}
			return counted(least, -1, "a topic and IDs, or flags that select jobs")(cmd, args)
		},
		ValidArgsFunction: a.completeArgs(a.topicNames, a.jobIDs(v.states...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if v.ready != nil {
				if err := v.ready(cmd); err != nil {
					return err
				}
			}
			selects := b.given(cmd) || b.all
			state := cmd.Flags().Changed("state")
			switch {
			case state && !slices.Contains(v.stateNames(), b.state):
				return usage("--state %q: %s takes %s", b.state, v.name, strings.Join(v.stateNames(), ", "))
			case len(args) > 1 && selects:
				return usage("%s takes IDs or flags that select jobs, not both", v.name)
			case selects && cmd.Flags().Changed("tombstone"):
				return usage("--tombstone is for jobs that are named")
			case len(args) > 1 && state && v.shift != nil && *v.shift != 0:
				return usage("%s --by takes IDs or --state, not both", v.name)
			case b.allTopics && len(args) > 0:
				return usage("%s takes a topic or --all-topics, not both", v.name)
			case len(args) > 1:
				if !state {
					b.state = "" // any that the command can act on
				}
				return a.actOnNamed(cmd, v, &b, args[0], args[1:])
			case !selects:
				return usage("%s needs IDs, or a flag that selects jobs, or --all; see delayq %s --help", v.name, v.name)
			case v.named && !state && !b.given(cmd):
				return usage("%s needs --state, or another flag that selects jobs: %s", v.name, strings.Join(v.stateNames(), ", "))
			}
			states := []string{b.state}
			if !state && (v.named || b.allTopics) {
				states = v.stateNames()
			}
			if (b.allTopics || len(states) > 1) && cmd.Flags().Changed("cursor") {
				return usage("--cursor is about one topic and one --state")
			}
			return a.actOnAll(cmd, v, &b, args, states)
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	if v.flags != nil {
		v.flags(cmd)
	}
	first := v.stateNames()[0]
	if v.named {
		first = ""
	}
	b.filters.flags(set, first, v.stateNames()...)
	a.choices(cmd, "state", v.stateNames())
	set.BoolVar(&b.all, "all", false, "all jobs in this state")
	set.BoolVar(&b.allTopics, "all-topics", false, "jobs of all topics; the other flags select them")
	set.BoolVar(&b.dryRun, "dry-run", false, "count the jobs, and do nothing")
	set.Int64Var(&b.atMost, "at-most", 0, "act on at most this many jobs; default: 10,000 with --yes, otherwise no limit")
	set.Lookup("at-most").DefValue = ""
	set.Var(&duration{&b.spread}, "spread", "spread the due times of the jobs evenly over this time")
	set.IntVar(&b.pace, "pace", 0, "act on at most this many jobs per second; without it there is no limit")
	set.Lookup("pace").DefValue = ""
	set.BoolVarP(&b.yes, "yes", "y", false, "do not ask")
	return cmd
}

// limit returns the number of jobs to act on at most; 0: no limit.
func (b *bulk) limit(cmd *cobra.Command) (int64, error) {
	switch {
	case cmd.Flags().Changed("at-most") && b.atMost < 1:
		return 0, usage("--at-most %d: must be at least 1", b.atMost)
	case b.atMost == 0 && b.yes:
		return defaultAtMost, nil
	}
	return b.atMost, nil
}

// actOnNamed acts on jobs that are named one by one.
func (a *app) actOnNamed(cmd *cobra.Command, v *verb, b *bulk, topic string, names []string) error {
	for _, name := range []string{"spread", "pace"} {
		if cmd.Flags().Changed(name) {
			return usage("--%s is for jobs that are selected by flags", name)
		}
	}
	limit, err := b.limit(cmd)
	if err != nil {
		return err
	}
	piped := slices.Equal(names, []string{"-"})
	if piped {
		most := limit
		if b.dryRun {
			most = 0
		}
		if names, err = a.idLines(most); err != nil {
			return err
		}
	}
	ids := names
	if piped && !b.dryRun {
		switch {
		case !b.yes && len(ids) > 1:
			return usage("%s %s of %s: IDs from stdin need --yes", v.name, count(len(ids), "job"), topic)
		case limit > 0 && int64(len(ids)) > limit:
			return usage("%s %s of %s: --yes goes up to --at-most %s", v.name, count(len(ids), "job"), topic, number(limit))
		}
	}
	ids = distinct(ids)
	client, err := a.queue()
	if err != nil {
		return err
	}
	p, err := lists(a, view[*actedRecord]{schemaActed, schemaActs, "jobs", []column[*actedRecord]{
		{head: "ID", cell: func(r *actedRecord) string { return idText(r.exact()) }},
		{head: "RESULT", cell: func(r *actedRecord) string {
			if r.Error != "" {
				return "failed"
			}
			return r.Act
		}},
		{head: "ERROR", cell: func(r *actedRecord) string { return r.Error }},
	}, (*actedRecord).exact, nil})
	if err != nil {
		return err
	}
	ctx := a.act(cmd.Context())
	var sum tally
	var stopped error
	for some := range slices.Chunk(ids, chunk) {
		var errs []error
		act := v.past
		if b.dryRun {
			errs, act = v.dry(ctx, client, topic, some, b.state), "would be "+v.past
		} else if b.state != "" {
			errs = v.inStates(ctx, client, topic, some, []delayq.State{delayq.State(b.state)})
		} else {
			var silent error
			errs, silent = v.batch(ctx, client, topic, some)
			_ = a.acted(silent) // it is about the audit
		}
		for i, id := range some {
			errs[i] = a.acted(errs[i])
			r := &actedRecord{jobRef: refOf(topic, id), Done: errs[i] == nil && !b.dryRun, Act: act, Error: errorText(bare(errs[i]))}
			sum.add(errs[i])
			if r.Error != "" && !a.tabular() {
				a.say("%s: %s", idText(id), r.Error)
			}
			if r.Error != "" && a.format == formatID {
				continue
			}
			if err := p.row(r); err != nil {
				return err
			}
			if unreachable(orNil(errs[i])) || refused(orNil(errs[i])) {
				stopped = errs[i]
			}
		}
		if stopped != nil || ctx.Err() != nil {
			break
		}
	}
	if err := p.end(nil); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s of %s", ctx.Err(), number(sum.done), count(len(ids), "job"))
	}
	if stopped != nil && sum.done == 0 {
		return stopped
	}
	return sum.result()
}

// distinct returns each ID once, in their order. An act that is told of a job twice would find that
// it has changed, or move it twice.
func distinct(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		was := seen[id]
		seen[id] = true
		return was
	})
}

// dry returns the errors that an act on these jobs would have now, in a state unless it is empty.
func (v *verb) dry(ctx context.Context, c *delayq.Client, topic string, ids []string, state string) []error {
	states := v.states
	if state != "" {
		states = []delayq.State{delayq.State(state)}
	}
	jobs := make([]delayq.JobRef, len(ids))
	for i, id := range ids {
		jobs[i] = delayq.JobRef{Topic: topic, ID: id}
	}
	results, _ := c.GetBatch(ctx, jobs) // each result has its error
	errs := make([]error, len(ids))
	for i, r := range results {
		if errs[i] = r.Err; r.Err == nil && !slices.Contains(states, r.Job.State) {
			errs[i] = &exitCode{exitConflict, fmt.Sprintf("the job is %s", r.Job.State)}
		}
	}
	return errs
}

// mostIDs is how many IDs a command reads from stdin.
const mostIDs = 1_000_000

// idLines reads IDs from stdin: at most one more than most, unless most is 0.
func (a *app) idLines(most int64) ([]string, error) {
	var ids []string
	lines := bufio.NewScanner(a.in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && (most == 0 || int64(len(ids)) <= most) {
		if len(ids) == mostIDs {
			return nil, usage("stdin has more than %s IDs", number(mostIDs))
		}
		if text := bytes.TrimRight(lines.Bytes(), "\r"); len(text) > 0 {
			id, err := idOf(string(text))
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
	}
	return ids, lines.Err()
}

func plural(n int64, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// A statusLine shows on one line of a terminal how far a bulk is.
type statusLine struct {
	a     *app
	verb  *verb
	shown time.Time
	width int
}

func (l *statusLine) show(done delayq.Applied) {
	if !l.a.err.terminal || time.Since(l.shown) < 200*time.Millisecond {
		return
	}
	text := fmt.Sprintf("%s %s, skipped %s, failed %s", l.verb.past, number(done.Done), number(done.Skipped), number(done.Failed))
	if done.Done+done.Skipped+done.Failed == 0 {
		text = fmt.Sprintf("counted %s among %s", number(done.Matched), number(done.Examined))
	}
	l.clear()
	fmt.Fprint(l.a.err, text)
	l.shown, l.width = time.Now(), len(text)
}

func (l *statusLine) clear() {
	if l.width > 0 {
		fmt.Fprint(l.a.err, "\r"+strings.Repeat(" ", l.width)+"\r")
	}
	l.width = 0
}
