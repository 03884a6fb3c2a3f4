package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/worker"
)

// A taskRecord is a task.
type taskRecord struct {
	Topic    string               `json:"topic"`
	Name     string               `json:"name"`
	Task     string               `json:"task"` // kind and what is done, such as "sql clean-zombies"
	From     string               `json:"from"` // file or command
	Spec     string               `json:"spec"`
	Zone     string               `json:"zone,omitempty"`
	State    delayq.ScheduleState `json:"state"`
	NextSlot stamp                `json:"next_slot,omitzero"`
	LastRun  *runRecord           `json:"last_run,omitempty"`
	Attempts int64                `json:"attempts"`
	Failures int64                `json:"failures"`
	whole    *scheduleRecord
}

// taskOf returns the record of a task, or nil if the schedule is none.
func taskOf(s *delayq.ScheduleInfo) *taskRecord {
	task := s.Headers[worker.HeaderTask]
	if task == "" {
		return nil
	}
	r := scheduleOf(s, false)
	return &taskRecord{
		Topic: r.Topic, Name: r.Name, Task: task, From: s.Headers[worker.HeaderFrom], Spec: r.Spec, Zone: r.Zone, State: r.State,
		NextSlot: r.NextSlot, LastRun: r.LastRun, Attempts: r.Attempts, Failures: r.Failures, whole: r,
	}
}

// tasks calls see for the tasks of topics, or of all.
func (a *app) tasks(ctx context.Context, topics []string, see func(*taskRecord) error) error {
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		if topics, err = insp.Topics(ctx); err != nil {
			return err
		}
	}
	for _, topic := range topics {
		found, err := insp.Schedules(ctx, topic)
		if err != nil {
			return err
		}
		for _, s := range found {
			if r := taskOf(s); r != nil {
				if err := see(r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (a *app) taskListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [TOPIC…]",
		Short: "List the tasks of topics, or of all",
		Long: `List tasks: the schedules that the file of a worker has, and those of delayq task add.
Each has its state, its next run, and the time, the outcome, the error and the last line
of the output of its last one. delayq schedule has more: show, runs, pause, resume, trigger, edit.

Tasks that run once are jobs: delayq find NAME finds one.`,
		Example:           "  delayq task list\n  delayq task list sql -o json",
		Args:              counted(0, -1, "topics"),
		ValidArgsFunction: a.completeArgs(a.topicNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if a.timeStyle == timeRelative {
				if _, err := a.now(cmd.Context()); err != nil {
					return err
				}
			}
			p, err := lists(a, a.tasksView())
			if err != nil {
				return err
			}
			if err := a.tasks(cmd.Context(), args, p.row); err != nil {
				return err
			}
			if err := p.end(nil); err != nil {
				return err
			}
			if p.n == 0 && a.tabular() {
				a.say("no tasks")
			}
			return nil
		},
	}
}

func (a *app) tasksView() view[*taskRecord] {
	last := func(show func(*runRecord) string) func(*taskRecord) string {
		return func(r *taskRecord) string {
			if r.LastRun == nil {
				return "-"
			}
			return orDash(show(r.LastRun))
		}
	}
	return view[*taskRecord]{schemaTask, schemaTasks, "tasks", []column[*taskRecord]{
		{head: "NAME", cell: func(r *taskRecord) string { return r.Name }},
		{head: "TOPIC", cell: func(r *taskRecord) string { return r.Topic }},
		{head: "TASK", cell: func(r *taskRecord) string { return r.Task }},
		{head: "FROM", cell: func(r *taskRecord) string { return orDash(r.From) }, wide: true},
		{head: "SPEC", cell: func(r *taskRecord) string { return r.Spec }},
		{head: "STATE", cell: func(r *taskRecord) string { return a.scheduleState(r.whole) }},
		{head: "NEXT", cell: func(r *taskRecord) string { return a.when(time.Time(r.NextSlot)) }},
		{head: "LAST RUN", cell: last(func(r *runRecord) string { return a.when(time.Time(r.Finished)) })},
		{head: "OUTCOME", cell: last(func(r *runRecord) string { return string(r.Outcome) })},
		{head: "FAILURES", cell: func(r *taskRecord) string { return number(r.Failures) + "/" + number(r.Attempts) }, right: true, wide: true},
		{head: "ERROR", cell: last(func(r *runRecord) string { return r.Error })},
		{head: "OUTPUT", cell: last(func(r *runRecord) string { return r.lastLine() })},
	}, func(r *taskRecord) string { return r.Name }, func(r *taskRecord) string { return r.Topic }}
}

func (a *app) taskRemoveCommand() *cobra.Command {
	var topic string
	cmd := &cobra.Command{
		Use:   "remove NAME…",
		Short: "Remove tasks with their history",
		Long: `Remove tasks with their history. A job that the task has enqueued still runs. If several
topics have a task with this name, --topic is needed. A task of a worker's file comes
back when a worker loads the file: remove it there. delayq cancel removes a task that
runs once.`,
		Example:           "  delayq task remove clean-zombies",
		Args:              counted(1, -1, "names of tasks"),
		ValidArgsFunction: a.completeArgs(a.taskNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.removeTasks(cmd.Context(), topic, args)
		},
	}
	cmd.Flags().StringVar(&topic, "topic", "", "the `topic` of the tasks; without it all topics are searched")
	return cmd
}

func (a *app) taskNames(ctx context.Context, _ []string, _ string) (list []string, err error) {
	err = a.tasks(ctx, nil, func(r *taskRecord) error {
		list = append(list, r.Name)
		return nil
	})
	return list, err
}

// removeTasks removes tasks by their names.
func (a *app) removeTasks(ctx context.Context, topic string, names []string) error {
	client, err := a.queue()
	if err != nil {
		return err
	}
	var topics []string
	if topic != "" {
		topics = []string{topic}
	}
	found := map[string][]*taskRecord{}
	if err := a.tasks(ctx, topics, func(r *taskRecord) error {
		found[r.Name] = append(found[r.Name], r)
		return nil
	}); err != nil {
		return err
	}
	p, err := lists(a, scheduleActsView(false))
	if err != nil {
		return err
	}
	return inTurn(ctx, p, "task", names, func(name string) (*scheduleActRecord, error) {
		r := &scheduleActRecord{Name: name, Act: "removed"}
		switch list := found[name]; len(list) {
		case 0:
			return r, delayq.ErrNotFound
		case 1:
			r.Topic = list[0].Topic
			return r, client.Unschedule(a.act(ctx), r.Topic, name)
		default:
			return r, &exitCode{exitConflict, fmt.Sprintf("%d topics have it; --topic says which one is meant", len(list))}
		}
	})
}
