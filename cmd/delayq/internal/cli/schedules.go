package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
	"github.com/delayq/delayq/cmd/delayq/internal/worker"
)

const (
	schemaSchedule  = "delayq.schedule/1"
	schemaSchedules = "delayq.schedules/1"
	schemaRun       = "delayq.run/1"
	schemaRuns      = "delayq.runs/1"
)

// A scheduleRecord is a schedule.
type scheduleRecord struct {
	Topic       string               `json:"topic"`
	Name        string               `json:"name"`
	Task        string               `json:"task,omitempty"` // what a worker does
	Spec        string               `json:"spec"`
	Zone        string               `json:"zone,omitempty"`
	State       delayq.ScheduleState `json:"state"`
	NextSlot    stamp                `json:"next_slot,omitzero"`
	WaitingSlot stamp                `json:"waiting_slot,omitzero"`
	LastSlot    stamp                `json:"last_slot,omitzero"`
	LastFired   stamp                `json:"last_fired,omitzero"`
	LastJob     string               `json:"last_job,omitempty"`
	LastRun     *runRecord           `json:"last_run,omitempty"`
	Unfinished  bool                 `json:"last_unfinished"`
	Fired       int64                `json:"fired"`
	Skipped     int64                `json:"skipped"`
	Missed      int64                `json:"missed"`
	Attempts    int64                `json:"attempts"`
	Failures    int64                `json:"failures"`
	Created     stamp                `json:"created,omitzero"`
	Changed     stamp                `json:"changed,omitzero"`
	PausedSince stamp                `json:"paused_since,omitzero"`
	StartAt     stamp                `json:"start_at,omitzero"`
	EndAt       stamp                `json:"end_at,omitzero"`
	MaxRuns     int                  `json:"max_runs,omitempty"`
	Jitter      seconds              `json:"jitter,omitempty"`
	Overlap     string               `json:"overlap"`
	OnMissed    string               `json:"on_missed"`
	In          seconds              `json:"in,omitempty"`
	Retries     int                  `json:"retries"` // -1: unlimited, or set by the handler
	Backoff     []seconds            `json:"backoff,omitempty"`
	Timeout     seconds              `json:"timeout,omitempty"`
	ExpireIn    seconds              `json:"expire_in,omitempty"`
	ExpireAt    stamp                `json:"expire_at,omitzero"`
	Retention   seconds              `json:"retention,omitempty"`
	PayloadSize int                  `json:"payload_size"`
	content
	Edited      []string `json:"edited,omitempty"` // parts
	EditedBy    string   `json:"edited_by,omitempty"`
	EditedAt    stamp    `json:"edited_at,omitzero"`
	Undecodable string   `json:"undecodable,omitempty"`
	RuleError   string   `json:"rule_error,omitempty"` // an earlier or a later release accepted the rule
}

// A runRecord is a run of a job of a schedule.
type runRecord struct {
	Slot      stamp          `json:"slot,omitzero"`
	Triggered bool           `json:"triggered,omitempty"`
	Job       string         `json:"job"`
	Attempt   int            `json:"attempt"`
	Started   stamp          `json:"started,omitzero"`
	Finished  stamp          `json:"finished"`
	Server    string         `json:"server,omitempty"`
	Outcome   delayq.Outcome `json:"outcome"`
	Error     string         `json:"error,omitempty"`
	runOutput
}

func runOf(r *delayq.RunInfo) *runRecord {
	return &runRecord{
		stamp(r.Slot), r.Triggered, r.JobID, r.Attempt, stamp(r.StartedAt), stamp(r.FinishedAt), r.Server, r.Outcome, r.Error,
		outputOf(r.Output, r.OutputSize),
	}
}

// scheduleOf returns the record of a schedule, with its payload if whole is set.
func scheduleOf(s *delayq.ScheduleInfo, whole bool) *scheduleRecord {
	r := &scheduleRecord{
		Topic: s.Topic, Name: s.Name, Task: s.Headers[worker.HeaderTask], Spec: s.Spec.String(), Zone: s.Zone, State: s.State,
		NextSlot: stamp(s.NextSlot), WaitingSlot: stamp(s.WaitingSlot), LastSlot: stamp(s.LastSlot), LastFired: stamp(s.LastFiredAt),
		LastJob: s.LastJobID, Unfinished: s.LastUnfinished, Fired: s.Fired, Skipped: s.Skipped, Missed: s.Missed,
		Attempts: s.Attempts, Failures: s.Failures, Created: stamp(s.CreatedAt), Changed: stamp(s.ChangedAt), PausedSince: stamp(s.PausedSince),
		StartAt: stamp(s.StartAt), EndAt: stamp(s.EndAt), MaxRuns: s.MaxRuns, Jitter: seconds(s.Jitter),
		Overlap: values.Overlap(s.OnOverlap), OnMissed: values.MissedName(s.OnMissed), In: seconds(s.ProcessIn), Retries: s.Retries,
		Backoff: []seconds{seconds(s.BackoffFirst), seconds(s.BackoffLimit)}, Timeout: seconds(s.Timeout),
		ExpireIn: seconds(s.ExpireIn), ExpireAt: stamp(s.ExpireAt), Retention: seconds(s.Retention), PayloadSize: s.PayloadSize,
		Edited: s.Edited, EditedBy: s.EditedBy, EditedAt: stamp(s.EditedAt),
	}
	if r.NextSlot.IsZero() || s.NextSlot.Unix() <= 0 { // a server has yet to compute it
		r.NextSlot = stamp{}
	}
	if s.LastRun != nil {
		r.LastRun = runOf(s.LastRun)
	}
	r.setHeaders(s.Headers)
	if s.Undecodable != nil {
		r.Undecodable, r.Backoff = errorText(s.Undecodable), nil
	} else if whole {
		r.setPayload(s.Payload)
	}
	if s.RuleError != nil {
		r.RuleError = errorText(s.RuleError)
	}
	return r
}

// scheduleState writes the state of a schedule for people.
func (a *app) scheduleState(r *scheduleRecord) string {
	switch {
	case r.Undecodable != "":
		return "unreadable"
	case r.State == delayq.SchedulePaused:
		return "paused since " + a.when(time.Time(r.PausedSince))
	case r.RuleError != "":
		return string(r.State) + ", rule no longer accepted"
	case !r.WaitingSlot.IsZero():
		return string(r.State) + ", a slot waits"
	}
	return string(r.State)
}

func (a *app) schedulesCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "schedules [TOPIC]",
		Short:             "List the schedules of a topic, or of all",
		Args:              counted(0, 1, "at most one topic"),
		ValidArgsFunction: a.completeArgs(a.topicNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			if a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			topics := args
			if len(args) == 0 {
				if topics, err = insp.Topics(cmd.Context()); err != nil {
					return err
				}
			}
			var list []*scheduleRecord
			tasks := false
			for _, topic := range topics {
				found, err := insp.Schedules(cmd.Context(), topic)
				if err != nil {
					return err
				}
				for _, s := range found {
					r := scheduleOf(s, false)
					list, tasks = append(list, r), tasks || r.Task != ""
				}
			}
			if err := all(a, a.schedulesView(len(args) == 0, tasks), list, nil); err != nil {
				return err
			}
			if len(list) == 0 && a.tabular() {
				a.say("no schedules")
			}
			return nil
		},
	}
}

// schedulesView shows schedules with their topics, or what tasks do, or both.
func (a *app) schedulesView(topics, tasks bool) view[*scheduleRecord] {
	v := view[*scheduleRecord]{schemaSchedule, schemaSchedules, "schedules", nil, func(r *scheduleRecord) string { return r.Name }, nil}
	if topics {
		v.in = func(r *scheduleRecord) string { return r.Topic }
		v.columns = []column[*scheduleRecord]{{head: "TOPIC", cell: func(r *scheduleRecord) string { return r.Topic }}}
	}
	lastRun := func(r *scheduleRecord) string {
		if r.LastRun == nil {
			return "-"
		}
		return a.when(time.Time(r.LastRun.Finished)) + " " + string(r.LastRun.Outcome)
	}
	v.columns = append(v.columns, column[*scheduleRecord]{head: "NAME", cell: func(r *scheduleRecord) string { return r.Name }})
	if tasks {
		v.columns = append(v.columns, column[*scheduleRecord]{head: "TASK", cell: func(r *scheduleRecord) string { return orDash(r.Task) }})
	}
	v.columns = append(v.columns, []column[*scheduleRecord]{
		{head: "SPEC", cell: func(r *scheduleRecord) string { return r.Spec }},
		{head: "NEXT", cell: func(r *scheduleRecord) string { return a.when(time.Time(r.NextSlot)) }},
		{head: "LAST RUN", cell: lastRun},
		{head: "FIRED", cell: func(r *scheduleRecord) string { return number(r.Fired) }, right: true},
		{head: "SKIPPED", cell: func(r *scheduleRecord) string { return number(r.Skipped) }, right: true, wide: true},
		{head: "MISSED", cell: func(r *scheduleRecord) string { return number(r.Missed) }, right: true, wide: true},
		{head: "FAILURES", cell: func(r *scheduleRecord) string { return number(r.Failures) + "/" + number(r.Attempts) }, right: true},
		{head: "EDITED", cell: func(r *scheduleRecord) string { return orDash(strings.Join(r.Edited, " ")) }, wide: true},
		{head: "STATE", cell: a.scheduleState},
	}...)
	return v
}

func (a *app) scheduleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule",
		Short: "Show, change or synchronise schedules",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(
		a.scheduleShowCommand(),
		a.scheduleActCommand("pause", "paused", "Stop schedules from firing", func(ctx context.Context, c *delayq.Client, topic, name string) (string, error) {
			return "", c.PauseSchedule(ctx, topic, name)
		}),
		a.scheduleActCommand("resume", "resumed", "Let paused schedules fire again", func(ctx context.Context, c *delayq.Client, topic, name string) (string, error) {
			return "", c.ResumeSchedule(ctx, topic, name)
		}),
		a.scheduleActCommand("trigger", "triggered", "Enqueue a job of each schedule now", func(ctx context.Context, c *delayq.Client, topic, name string) (string, error) {
			return c.Trigger(ctx, topic, name)
		}),
		a.scheduleActCommand("remove", "removed", "Remove schedules with their history", func(ctx context.Context, c *delayq.Client, topic, name string) (string, error) {
			return "", c.Unschedule(ctx, topic, name)
		}),
		a.scheduleRunsCommand(),
		a.scheduleEditCommand(),
		a.scheduleSyncCommand(),
	)
	return cmd
}

func (a *app) scheduleShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "show TOPIC NAME",
		Short:             "Show everything about a schedule",
		Args:              counted(2, 2, "a topic and the name of a schedule"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.scheduleNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			info, err := insp.Schedule(cmd.Context(), args[0], args[1])
			if err != nil {
				return err
			}
			if a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			r := scheduleOf(info, true)
			return object(a, schemaSchedule, r, r.Name, func(w io.Writer) error { return a.showSchedule(w, r) })
		},
	}
}

// showSchedule writes a schedule for people.
func (a *app) showSchedule(w io.Writer, r *scheduleRecord) error {
	when := func(s stamp) string { return a.when(time.Time(s)) }
	last := func(d seconds) string {
		if d == 0 {
			return ""
		}
		return span(time.Duration(d))
	}
	run, most, backoff, edited := "", "", "", ""
	if r.LastRun != nil {
		run = strings.TrimSpace(when(r.LastRun.Finished) + " " + string(r.LastRun.Outcome) + " " + r.LastRun.Error)
	}
	if r.MaxRuns > 0 {
		most = number(r.MaxRuns)
	}
	if len(r.Backoff) == 2 {
		backoff = last(r.Backoff[0]) + " to " + last(r.Backoff[1])
	}
	if len(r.Edited) > 0 {
		edited = fmt.Sprintf("%s by %s, %s", strings.Join(r.Edited, " "), orDash(r.EditedBy), when(r.EditedAt))
	}
	err := a.fields(w,
		"topic", r.Topic, "name", r.Name, "task", r.Task, "spec", r.Spec, "state", a.scheduleState(r), "next slot", when(r.NextSlot),
		"waiting slot", when(r.WaitingSlot), "last slot", when(r.LastSlot), "last job", r.LastJob, "last run", run,
		"fired", number(r.Fired), "skipped", number(r.Skipped), "missed", number(r.Missed),
		"failures", number(r.Failures)+" of "+count(r.Attempts, "attempt"),
		"start at", when(r.StartAt), "end at", when(r.EndAt), "max runs", most, "jitter", last(r.Jitter),
		"on overlap", r.Overlap, "on missed", r.OnMissed, "due after", last(r.In), "retries", retries(r.Retries), "backoff", backoff,
		"timeout", last(r.Timeout), "expire in", last(r.ExpireIn), "expire at", when(r.ExpireAt), "retention", last(r.Retention),
		"headers", headersText(&jobRecord{content: r.content}), "size", bytesText(r.PayloadSize), "payload", payloadText(r.payload()),
		"created", when(r.Created), "changed", when(r.Changed), "edited", edited, "unreadable", r.Undecodable, "rule error", r.RuleError,
	)
	if err != nil || r.LastRun == nil {
		return err
	}
	return showOutput(w, "output of the last run", &r.LastRun.runOutput)
}

func (a *app) scheduleRunsCommand() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "runs TOPIC NAME",
		Short: "List the last runs of a schedule, the latest first",
		Long: `List the last runs of a schedule, the latest first. OUTPUT is the last line of what the
handler attached to the run; --output json has its last 1 KiB.`,
		Args:              counted(2, 2, "a topic and the name of a schedule"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.scheduleNames, nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			insp, err := a.inspector()
			if err != nil {
				return err
			}
			found, err := insp.Runs(cmd.Context(), args[0], args[1], limit)
			if err != nil {
				return err
			}
			if a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			list := make([]*runRecord, len(found))
			for i := range found {
				list[i] = runOf(&found[i])
			}
			err = all(a, view[*runRecord]{schemaRun, schemaRuns, "runs", []column[*runRecord]{
				{head: "JOB", cell: func(r *runRecord) string { return r.Job }},
				{head: "SLOT", cell: func(r *runRecord) string { return a.when(time.Time(r.Slot)) }},
				{head: "ATTEMPT", cell: func(r *runRecord) string { return strconv.Itoa(r.Attempt) }, right: true},
				{head: "STARTED", cell: func(r *runRecord) string { return a.when(time.Time(r.Started)) }, wide: true},
				{head: "FINISHED", cell: func(r *runRecord) string { return a.when(time.Time(r.Finished)) }},
				{head: "RAN", cell: func(r *runRecord) string {
					if r.Started.IsZero() {
						return "-"
					}
					return span(time.Time(r.Finished).Sub(time.Time(r.Started)))
				}, right: true},
				{head: "SERVER", cell: func(r *runRecord) string { return orDash(r.Server) }, wide: true},
				{head: "OUTCOME", cell: func(r *runRecord) string { return string(r.Outcome) }},
				{head: "ERROR", cell: func(r *runRecord) string { return r.Error }},
				{head: "OUTPUT", cell: func(r *runRecord) string { return r.lastLine() }},
			}, func(r *runRecord) string { return r.Job }, nil}, list, nil)
			if err == nil && len(list) == 0 && a.tabular() {
				a.say("no runs yet")
			}
			return err
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "rows of the list, at most 100")
	return cmd
}
