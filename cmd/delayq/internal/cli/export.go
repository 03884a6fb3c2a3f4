package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/record"
)

const (
	schemaExport = "delayq.export/1"
	schemaImport = "delayq.import/1"
)

// An exportRecord is a job as export writes it: what it was given, so that import makes the same
// job, and what has become of it.
type exportRecord struct {
	Schema string `json:"schema"`
	jobRef
	jobKey
	Priority  *seconds     `json:"priority,omitempty"` // of a job with a key; negative: it goes behind
	State     delayq.State `json:"state"`
	Due       stamp        `json:"due,omitzero"`
	Retry     *int         `json:"retry,omitempty"` // -1: unlimited; left out: not given
	Backoff   []seconds    `json:"backoff,omitempty"`
	Timeout   seconds      `json:"timeout,omitempty"`
	ExpireAt  stamp        `json:"expire_at,omitzero"`
	Retention seconds      `json:"retention,omitempty"`
	content
	planRecord
	Enqueued    stamp           `json:"enqueued,omitzero"`
	Attempt     int             `json:"attempt"`
	Buried      stamp           `json:"buried,omitzero"`
	Finished    stamp           `json:"finished,omitzero"`
	Errors      []attemptRecord `json:"errors,omitempty"`
	Undecodable string          `json:"undecodable,omitempty"`
	RawBase64   []byte          `json:"raw_base64,omitempty"`
}

func exportOf(info *delayq.JobInfo) *exportRecord {
	r := jobOf(info, true)
	e := &exportRecord{
		Schema: schemaExport, jobRef: r.jobRef, jobKey: r.jobKey, Priority: r.Priority, State: r.State, Due: r.Due, ExpireAt: r.ExpireAt, content: r.content, planRecord: r.planRecord,
		Enqueued: r.Enqueued, Attempt: r.Attempt, Buried: r.Buried, Finished: r.Finished, Errors: r.Errors,
		Undecodable: r.Undecodable, RawBase64: r.RawBase64,
	}
	given := library.Given(info)
	ms := func(n int64) seconds { return seconds(time.Duration(n) * time.Millisecond) }
	if given.Retry != record.NotSet {
		n := max(given.Retry, delayq.Unlimited)
		e.Retry = &n
	}
	if given.BackoffMax > 0 {
		e.Backoff = []seconds{ms(given.BackoffMin), ms(given.BackoffMax)}
	}
	e.Timeout, e.Retention = ms(given.Timeout), ms(given.Retention)
	return e
}

// job returns what import enqueues.
func (e *exportRecord) job() (delayq.NewJob, error) {
	j := delayq.NewJob{Topic: e.Topic, ID: e.exact(), Payload: e.payload()}
	if e.Retry != nil {
		j.Options = append(j.Options, delayq.Retry(*e.Retry))
	}
	switch len(e.Backoff) {
	case 0:
	case 2:
		j.Options = append(j.Options, delayq.Backoff(time.Duration(e.Backoff[0]), time.Duration(e.Backoff[1])))
	default:
		return j, errors.New("backoff needs two numbers")
	}
	if e.Timeout > 0 {
		j.Options = append(j.Options, delayq.Timeout(time.Duration(e.Timeout)))
	}
	if e.Retention > 0 {
		j.Options = append(j.Options, delayq.Retention(time.Duration(e.Retention)))
	}
	if key := e.exactKey(); key != "" {
		j.Options = append(j.Options, delayq.Key(key))
		if e.Priority != nil {
			j.Options = append(j.Options, delayq.Priority(time.Duration(*e.Priority)))
		}
	}
	var due time.Time
	if e.State == delayq.StateScheduled {
		due = time.Time(e.Due)
	}
	plan, err := e.planRecord.option(due)
	switch {
	case err != nil:
		return j, err
	case plan != nil:
		j.Options = append(j.Options, plan)
	case !due.IsZero():
		j.Options = append(j.Options, delayq.ProcessAt(due))
	}
	if !e.ExpireAt.IsZero() && e.State != delayq.StateDead {
		j.Options = append(j.Options, delayq.ExpireAt(time.Time(e.ExpireAt)))
	}
	headers, err := e.headers()
	for key, value := range headers {
		j.Options = append(j.Options, delayq.Header(key, value))
	}
	return j, err
}

func (a *app) exportCommand() *cobra.Command {
	var f filters
	cmd := &cobra.Command{
		Use:   "export TOPIC",
		Short: "Write jobs with payloads as JSON Lines, for import or a support ticket",
		Long: `Write the jobs of a topic in one state to stdout, one a line, with payloads and errors. The
flags select jobs as in the command jobs. Servers may go on while export runs: a job
that leaves the state in the meantime may be missing. Progress, steps and outputs are not
written: they belong to a run or to this very job.`,
		Example:           "  delayq export mail:welcome --state dead > dead.jsonl",
		Args:              counted(1, 1, "a topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("output") {
				return usage("export writes JSON Lines: -o has no effect")
			}
			q, err := f.query(cmd, a, args[0])
			if err != nil {
				return err
			}
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			n := 0
			for {
				q.Limit = exportPage
				page, err := insp.Jobs(cmd.Context(), q)
				if err != nil {
					return a.stopped(n, q.Cursor, err)
				}
				for _, info := range page.Jobs {
					whole, err := insp.Job(cmd.Context(), args[0], info.ID)
					if errors.Is(err, delayq.ErrNotFound) || err == nil && whole.State != info.State {
						continue // it has moved on
					}
					if err != nil {
						return a.stopped(n, q.Cursor, err)
					}
					if err := writeObject(a.stdout(), "", exportOf(whole)); err != nil {
						return err
					}
					if err := a.stdout().WriteByte('\n'); err != nil {
						return err
					}
					n++
				}
				if q.Cursor = page.Next; q.Cursor == "" {
					break
				}
			}
			if err := a.flush(); err != nil {
				return err
			}
			a.say("%s", count(n, "job"))
			return nil
		},
	}
	cmd.Flags().SortFlags = false
	f.flags(cmd.Flags(), string(delayq.StateScheduled), states...)
	a.choices(cmd, "state", states)
	return cmd
}
