package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
)

const (
	schemaScheduleAct  = "delayq.schedule-act/1"
	schemaScheduleActs = "delayq.schedule-acts/1"
)

// A scheduleActRecord is the outcome of an act on a schedule.
type scheduleActRecord struct {
	Topic string `json:"topic"`
	Name  string `json:"name"`
	Done  bool   `json:"done"`
	Act   string `json:"act"`
	Job   string `json:"job,omitempty"` // of a trigger
	Error string `json:"error,omitempty"`
}

func (r *scheduleActRecord) ended(problem string) { r.Done, r.Error = problem == "", problem }

func (a *app) scheduleActCommand(
	name, past, short string, do func(ctx context.Context, c *delayq.Client, topic, name string) (job string, err error),
) *cobra.Command {
	return &cobra.Command{
		Use:               name + " TOPIC NAME…",
		Short:             short,
		Args:              counted(2, -1, "a topic and names of schedules"),
		ValidArgsFunction: a.completeArgs(a.topicNames, a.scheduleNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := a.queue()
			if err != nil {
				return err
			}
			p, err := lists(a, scheduleActsView(name == "trigger"))
			if err != nil {
				return err
			}
			ctx := a.act(cmd.Context())
			return inTurn(ctx, p, "schedule", args[1:], func(schedule string) (*scheduleActRecord, error) {
				job, err := do(ctx, client, args[0], schedule)
				return &scheduleActRecord{Topic: args[0], Name: schedule, Act: past, Job: job}, err
			})
		},
	}
}

// scheduleActsView shows acts on schedules, and the jobs that they made.
func scheduleActsView(jobs bool) view[*scheduleActRecord] {
	v := view[*scheduleActRecord]{schemaScheduleAct, schemaScheduleActs, "schedules", []column[*scheduleActRecord]{
		{head: "NAME", cell: func(r *scheduleActRecord) string { return r.Name }},
		{head: "RESULT", cell: func(r *scheduleActRecord) string {
			if r.Error != "" {
				return "failed"
			}
			return r.Act
		}},
	}, func(r *scheduleActRecord) string { return r.Name }, nil}
	if jobs {
		v.columns = append(v.columns, column[*scheduleActRecord]{head: "JOB", cell: func(r *scheduleActRecord) string { return orDash(r.Job) }})
		v.id = func(r *scheduleActRecord) string { return r.Job }
	}
	v.columns = append(v.columns, column[*scheduleActRecord]{head: "ERROR", cell: func(r *scheduleActRecord) string { return r.Error }})
	return v
}
