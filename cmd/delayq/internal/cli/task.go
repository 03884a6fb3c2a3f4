package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
	"github.com/delayq/delayq/cmd/delayq/internal/worker"
)

const (
	schemaTask      = "delayq.task/1"
	schemaTasks     = "delayq.tasks/1"
	schemaTaskAdded = "delayq.task-added/1"
)

// onceRetention is how long a task that runs once is kept when it is done, so that its outcome can
// be seen.
const onceRetention = 7 * 24 * time.Hour

// taskKinds are the kinds of tasks, which are also the flags and the topics that they are for.
var taskKinds = []string{"sql", "command", "mail", "webhook"}

func (a *app) taskCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "task",
		Short: "Add, list or remove the tasks of a worker",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	cmd.AddCommand(a.taskAddCommand(), a.taskListCommand(), a.taskRemoveCommand())
	return cmd
}

// taskFlags are the flags of task add.
type taskFlags struct {
	what                  map[string]*string // by kind
	topic, data, dataFile string
	to, cc, bcc           []string
	replyTo, key          string
	config                string
	replace               bool

	every           time.Duration
	cron, zone      string
	due             dueFlags
	overlap, missed string
	startAt, endAt  string
	maxRuns         int
	jitter          time.Duration
	job             jobFlags
}

func (a *app) taskAddCommand() *cobra.Command {
	f := taskFlags{what: map[string]*string{}}
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a task that a worker runs, once or again and again",
		Long: `Add a task: a schedule, or with --at and --in a single job with this name as its ID.
The task names what the file of delayqd worker has: a statement, a command, a template,
a receiver. It has neither SQL nor arguments of a command in it.

The topic is named like the kind: sql, command, mail or webhook. --topic is for another
one. For a topic that does one thing only, --topic is enough, and --data is its payload.

--data is JSON: the arguments of a statement, the input of a command, the data of a
template, the body of a webhook. The input of a command can be any text.

With --config the file of the worker is asked whether it serves the task. Without it,
a name that the worker does not have is found when the task runs.

A task that exists is not changed, unless --replace is given. A task that runs once is
kept for 7 days when it is done; delayq job TOPIC NAME shows it.`,
		Example: `  delayq task add clean-zombies --every 10m --sql clean-zombies --data '{"days": 3}'
  delayq task add report --cron '0 6 * * 1' --zone Europe/Berlin --command report
  delayq task add ping --every 1m --webhook https://partner.example/ping
  delayq task add invoice-7 --at '2026-03-01 09:00' --mail invoice --to ann@customer.example`,
		Args:              counted(1, 1, "a name"),
		ValidArgsFunction: a.completeArgs(nothing),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.addTask(cmd, args[0], &f)
		},
	}
	s := cmd.Flags()
	s.SortFlags = false
	for i, text := range []string{
		"execute this `statement` of the worker's file", "run this `command` of the worker's file", "send this `template` of the worker's file",
		"post to this `receiver` of the worker's file, or to a URL of one of its hosts",
	} {
		f.what[taskKinds[i]] = s.String(taskKinds[i], "", text)
	}
	s.StringVar(&f.topic, "topic", "", "`topic` of the worker; default: sql, command, mail or webhook")
	s.StringVar(&f.data, "data", "", "`JSON`: arguments, input, data of a template, or body")
	s.StringVar(&f.dataFile, "data-file", "", "the same from a `file`, or from stdin if it is -")
	s.StringArrayVar(&f.to, "to", nil, "`address` of a mail; can be repeated")
	s.StringArrayVar(&f.cc, "cc", nil, "`address` for a copy; can be repeated")
	s.StringArrayVar(&f.bcc, "bcc", nil, "`address` for a hidden copy; can be repeated")
	s.StringVar(&f.replyTo, "reply-to", "", "`address` for answers")
	s.StringVar(&f.key, "key", "", "key of the jobs; default: the receiver of a webhook, or the host of its URL")
	s.Var(&duration{&f.every}, "every", "run at this interval")
	s.StringVar(&f.cron, "cron", "", "run by this cron `rule` of 5 or 6 fields")
	s.StringVar(&f.zone, "zone", "", "time `zone` of the cron rule, for example Europe/Berlin or UTC")
	s.StringVar(&f.due.at, "at", "", "run once at this `time`: 2006-01-02T15:04:05Z, \"2006-01-02 15:04\", \"tomorrow 9:00\" or +1h30m")
	s.Var(&duration{&f.due.in}, "in", "run once after this time")
	s.StringVar(&f.startAt, "start-at", "", "earliest slot, a `time`")
	s.StringVar(&f.endAt, "end-at", "", "latest slot, a `time`")
	s.IntVar(&f.maxRuns, "max-runs", 0, "end after this many jobs")
	s.Var(&duration{&f.jitter}, "jitter", "make each job due up to this much later")
	s.StringVar(&f.overlap, "overlap", "", "`policy` while the last job is unfinished: "+strings.Join(values.Overlaps, ", "))
	s.StringVar(&f.missed, "missed", "", "`policy` for missed slots: "+values.Missed)
	f.job.flags(s)
	s.StringVar(&f.config, "config", "", "the `file` of the worker, to check the task")
	s.BoolVar(&f.replace, "replace", false, "replace a task with this name")
	a.choices(cmd, "overlap", values.Overlaps)
	return cmd
}

// repeating are the flags that are for schedules only.
var repeating = []string{"zone", "start-at", "end-at", "max-runs", "jitter", "overlap", "missed"}

// addTask stores a schedule or a job.
func (a *app) addTask(cmd *cobra.Command, name string, f *taskFlags) error {
	given := cmd.Flags().Changed
	rhythms := 0
	for _, flag := range []string{"every", "cron", "at", "in"} {
		if given(flag) {
			rhythms++
		}
	}
	if rhythms != 1 {
		return usage("exactly one of --every, --cron, --at and --in is needed")
	}
	once := given("at") || given("in")
	for _, flag := range repeating {
		if given(flag) && (once || flag == "zone" && !given("cron")) {
			return usage("--%s is for %s", flag, map[bool]string{true: "cron rules", false: "tasks that run more than once"}[flag == "zone"])
		}
	}
	topic, task, payload, key, err := f.payload(cmd, a)
	if err != nil {
		return err
	}
	if f.config != "" {
		if err := a.checkTask(f.config, topic, payload); err != nil {
			return err
		}
	}
	job, err := f.job.options(cmd, a)
	if err != nil {
		return err
	}
	job = append(job, delayq.Header(worker.HeaderTask, task), delayq.Header(worker.HeaderFrom, worker.FromCommand))
	if key != nil {
		job = append(job, key)
	}
	client, err := a.queue()
	if err != nil {
		return err
	}
	r := &taskAddedRecord{Topic: topic, Name: name, Task: task}
	if once {
		err = a.addOnce(cmd, client, r, payload, f, job)
	} else {
		err = a.addSchedule(cmd, client, r, payload, f, job)
	}
	if err != nil {
		return err
	}
	return object(a, schemaTaskAdded, r, name, func(w io.Writer) error {
		return a.fields(w, "topic", r.Topic, "name", r.Name, "task", r.Task, "spec", r.Spec, "due", a.when(time.Time(r.Due)))
	})
}

// A taskAddedRecord is a task that was stored.
type taskAddedRecord struct {
	Topic string `json:"topic"`
	Name  string `json:"name"`
	Task  string `json:"task"`
	Spec  string `json:"spec,omitempty"`
	Due   stamp  `json:"due,omitzero"` // of a task that runs once
}

// addOnce stores the job of a task that runs once.
func (a *app) addOnce(cmd *cobra.Command, client *delayq.Client, r *taskAddedRecord, payload []byte, f *taskFlags, job []delayq.JobOption) error {
	when, err := f.due.option(cmd, a)
	if err != nil {
		return err
	}
	if job = append(job, when); !cmd.Flags().Changed("retention") {
		job = append(job, delayq.Retention(onceRetention))
	}
	if f.replace {
		job = append(job, delayq.Replace())
	}
	ctx := a.act(cmd.Context())
	stored, err := client.Enqueue(ctx, r.Topic, r.Name, payload, job...)
	if err != nil {
		return err
	}
	r.Due = stamp(stored.Due)
	return a.note(ctx, client, "enqueue", r.Topic, r.Name, "due "+exactTime(stored.Due), 1)
}

// addSchedule stores the schedule of a task.
func (a *app) addSchedule(cmd *cobra.Command, client *delayq.Client, r *taskAddedRecord, payload []byte, f *taskFlags, job []delayq.JobOption) error {
	opts, err := f.schedule(cmd, a)
	if err != nil {
		return err
	}
	for _, opt := range job {
		opts = append(opts, opt)
	}
	spec := delayq.Every(f.every)
	if cmd.Flags().Changed("cron") {
		spec = delayq.Cron(f.cron, f.zone)
	}
	r.Spec = spec.String()
	ctx := a.act(cmd.Context())
	if f.replace {
		return a.acted(client.Schedule(ctx, r.Topic, r.Name, spec, payload, append(opts, delayq.DiscardEdits())...))
	}
	insp, err := a.inspector()
	if err != nil {
		return err
	}
	taken := &exitCode{exitConflict, fmt.Sprintf("topic %s has a schedule %q already; --replace replaces it", r.Topic, r.Name)}
	switch _, err := insp.Schedule(ctx, r.Topic, r.Name); {
	case err == nil:
		return taken
	case !errors.Is(err, delayq.ErrNotFound):
		return err
	}
	if err := a.acted(client.Schedule(ctx, r.Topic, r.Name, spec, payload, append(opts, delayq.IfAbsent())...)); err != nil {
		return err
	}
	// Somebody else may have added another one in between, which has not been changed.
	info, err := insp.Schedule(ctx, r.Topic, r.Name)
	if err == nil && (info.Spec != spec || !bytes.Equal(info.Payload, payload)) {
		return taken
	}
	return err
}

// schedule returns the options of a schedule.
func (f *taskFlags) schedule(cmd *cobra.Command, a *app) (opts []delayq.ScheduleOption, err error) {
	given := cmd.Flags().Changed
	for flag, at := range map[string]struct {
		text   string
		option func(time.Time) delayq.ScheduleOption
	}{"start-at": {f.startAt, delayq.StartAt}, "end-at": {f.endAt, delayq.EndAt}} {
		if !given(flag) {
			continue
		}
		t, err := a.instant(cmd.Context(), flag, at.text)
		if err != nil {
			return nil, err
		}
		opts = append(opts, at.option(t))
	}
	if given("max-runs") {
		opts = append(opts, delayq.MaxRuns(f.maxRuns))
	}
	if given("jitter") {
		opts = append(opts, delayq.Jitter(f.jitter))
	}
	if given("overlap") {
		p, err := values.ParseOverlap(f.overlap)
		if err != nil {
			return nil, usage("--overlap %v", err)
		}
		opts = append(opts, p)
	}
	if given("missed") {
		p, err := values.ParseMissed(f.missed)
		if err != nil {
			return nil, usage("--missed %v", err)
		}
		opts = append(opts, p)
	}
	return opts, nil
}
