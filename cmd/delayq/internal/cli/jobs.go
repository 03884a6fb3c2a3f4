package cli

import (
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
)

const defaultLimit = 100 // rows of a list of jobs

// jobsView is how lists show jobs that are in one state, or in any state if it is empty.
func (a *app) jobsView(state delayq.State, topics bool) view[*jobRecord] {
	head := map[delayq.State]string{
		delayq.StateRunning: "LEASE UNTIL", delayq.StateDead: "BURIED", delayq.StateDone: "FINISHED", "": "SINCE",
	}[state]
	if head == "" {
		head = "DUE"
	}
	v := view[*jobRecord]{record: schemaJob, list: schemaJobs, field: "jobs", id: (*jobRecord).exact}
	if topics {
		v.columns = append(v.columns, column[*jobRecord]{head: "TOPIC", cell: func(r *jobRecord) string { return r.Topic }})
	}
	return view[*jobRecord]{v.record, v.list, v.field, append(v.columns, []column[*jobRecord]{
		{head: "ID", cell: func(r *jobRecord) string { return idText(r.exact()) }},
		{head: "STATE", cell: func(r *jobRecord) string { return string(r.State) }, wide: state != ""},
		{head: "KEY", cell: func(r *jobRecord) string { return orDash(keyText(&r.jobKey)) }, wide: true},
		{head: head, cell: func(r *jobRecord) string { return a.when(r.since()) }},
		{head: "PROGRESS", cell: func(r *jobRecord) string { return orDash(r.progressText()) }, wide: state != delayq.StateRunning},
		{head: "ATTEMPT", cell: func(r *jobRecord) string { return strconv.Itoa(r.Attempt) }, right: true, minor: true},
		{head: "RETRIES LEFT", cell: (*jobRecord).leftText, right: true, wide: true},
		{head: "SIZE", cell: func(r *jobRecord) string { return bytesText(r.PayloadSize) }, right: true, minor: true},
		{head: "ENQUEUED", cell: func(r *jobRecord) string { return a.when(time.Time(r.Enqueued)) }, wide: true},
		{head: "WHY DUE", cell: func(r *jobRecord) string { return orDash(string(r.DueReason)) }, wide: true},
		{head: "HEADERS", cell: func(r *jobRecord) string { return orDash(headersText(r)) }, wide: true},
		{head: "LAST ERROR", cell: func(r *jobRecord) string { return r.lastError() }},
	}...), v.id, nil}
}

func (a *app) jobsCommand() *cobra.Command {
	var (
		f      filters
		latest bool
		whole  bool
		limit  int
		number int64
	)
	cmd := &cobra.Command{
		Use:   "jobs TOPIC",
		Short: "List the jobs of a topic in one state",
		Long: `List the jobs of a topic in one state, in the order in which they run, or were buried
or finished. Flags that select jobs are combined: a job has to match all of them.

A list ends after --limit jobs. Then stderr has the flag --cursor for the rest. Jobs
that stay in their state are neither skipped nor repeated, whatever happens between
two calls.

--page jumps to a page by its number, however long the list is, and not beside flags that
examine jobs one by one. Between two such calls, jobs that come and go shift the pages.`,
		Example: `  delayq jobs mail:welcome --state dead --error "550" --since 24h
  delayq jobs order:cancel --until +1h -o id
  delayq jobs order:cancel --state ready --page 5000
  delayq jobs mail:welcome --state dead --all -o jsonl > dead.jsonl`,
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usage("--limit %d: must be at least 1", limit)
			}
			q, err := f.query(cmd, a, args[0])
			if err != nil {
				return err
			}
			q.Latest = latest
			if err := page(cmd, &f, &q, number, limit); err != nil {
				return err
			}
			return a.listJobs(cmd, &f, q, limit, whole)
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	f.flags(set, string(delayq.StateScheduled), states...)
	a.choices(cmd, "state", states)
	set.BoolVar(&latest, "latest", false, "the latest jobs first")
	set.IntVar(&limit, "limit", defaultLimit, "rows of the list")
	set.Int64Var(&number, "page", 1, "`number` of the page, from 1")
	set.BoolVar(&whole, "all", false, "no limit")
	return cmd
}

// page makes a query begin at a page with a number.
func page(cmd *cobra.Command, f *filters, q *delayq.Query, number int64, limit int) error {
	set := cmd.Flags()
	switch {
	case !set.Changed("page"):
		return nil
	case number < 1 || number > math.MaxInt64/int64(limit):
		return usage("--page %d: must be at least 1, and not larger than any list", number)
	case set.Changed("cursor"):
		return usage("--page and --cursor: only one of them can say where the list begins")
	case set.Changed("all"):
		return usage("--page and --all: a page has --limit jobs")
	case f.narrow() || !byTime(q.State) && (f.since != "" || f.until != ""):
		return usage("--page: not beside flags that examine jobs one by one; go on with --cursor")
	}
	q.Offset = (number - 1) * int64(limit)
	return nil
}

// byTime reports whether jobs in a state are found by --since and --until without a look at each.
func byTime(state delayq.State) bool {
	return state != delayq.StateReady && state != delayq.StateRunning
}

const mostPage = 1000 // rows of one call

// listJobs writes up to limit jobs, or all of them, and what is needed to go on.
func (a *app) listJobs(cmd *cobra.Command, f *filters, q delayq.Query, limit int, whole bool) error {
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	p, err := lists(a, a.jobsView(q.State, false))
	if err != nil {
		return err
	}
	var page *delayq.Page
	for first := q.Cursor == "" && q.Offset == 0; ; {
		if q.Limit = mostPage; !whole {
			q.Limit = min(mostPage, limit-p.n)
		}
		fresh, err := insp.Jobs(cmd.Context(), q)
		if err != nil {
			if page != nil {
				_ = p.end(nil) // the error below is the one to report
			}
			return a.stopped(p.n, q.Cursor, err)
		}
		page = fresh
		if a.offset == nil && !page.At.IsZero() {
			a.setClock(page.At)
		}
		for _, info := range page.Jobs {
			if err := p.row(jobOf(info, false)); err != nil {
				return err
			}
		}
		if q.Cursor = page.Next; q.Cursor == "" || !whole && p.n >= limit {
			more := struct {
				Total int64         `json:"total"`
				Next  delayq.Cursor `json:"next,omitempty"`
				At    stamp         `json:"at,omitzero"`
			}{page.Total, page.Next, stamp(page.At)}
			if err := p.end(more); err != nil {
				return err
			}
			return a.rest(f, page, first, p.n)
		}
	}
}

// stopped says where a list that has ended with err can go on.
func (a *app) stopped(n int, at delayq.Cursor, err error) error {
	if flushed := a.flush(); flushed == nil && at != "" {
		a.say("… stopped after %s: --cursor %s", count(n, "job"), at)
	}
	return err
}

// rest says what a list has left out.
func (a *app) rest(f *filters, page *delayq.Page, first bool, shown int) error {
	left := page.Total - int64(shown)
	switch {
	case page.Next == "" && shown == 0 && a.tabular():
		a.say("no %s jobs%s", f.state, f.text())
		if _, err := values.ParseSpan(f.until); err == nil && f.state == string(delayq.StateScheduled) {
			a.say("%s is that long ago; write +%s for the future", f.until, f.until)
		}
	case page.Next == "":
	case first && !f.narrow() && f.since == "" && f.until == "" && left > 0:
		a.say("… %s more: --cursor %s", number(left), page.Next)
	default:
		a.say("… more, of %s %s in all: --cursor %s", number(page.Total), f.state, page.Next)
	}
	return a.flush()
}
