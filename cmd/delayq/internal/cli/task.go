package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/cmd/delayq/internal/values"
	"github.com/delayq/delayq/cmd/delayq/internal/worker"
	"github.com/delayq/delayq/handlers/webhook"
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

// payload returns the topic of a task, what it does, its payload, and the option for its key.
func (f *taskFlags) payload(cmd *cobra.Command, a *app) (topic, task string, payload []byte, key delayq.JobOption, err error) {
	given := cmd.Flags().Changed
	kind := ""
	for _, k := range taskKinds {
		switch {
		case !given(k):
		case kind != "":
			return "", "", nil, nil, usage("--%s and --%s: only one of them can be given", kind, k)
		default:
			kind = k
		}
	}
	for _, flag := range []string{"to", "cc", "bcc", "reply-to"} {
		if given(flag) && kind != "mail" {
			return "", "", nil, nil, usage("--%s is for --mail", flag)
		}
	}
	if topic = f.topic; topic == "" {
		topic = kind
	}
	if topic == "" {
		return "", "", nil, nil, usage("one of --sql, --command, --mail and --webhook is needed, or --topic")
	}
	if given("data") && given("data-file") {
		return "", "", nil, nil, usage("--data and --data-file: only one of them can be given")
	}
	data := []byte(f.data)
	if given("data-file") {
		if data, err = a.readFile(f.dataFile); err != nil {
			return "", "", nil, nil, err
		}
	}
	if given("key") {
		key = delayq.Key(f.key)
	}
	if kind == "" {
		return topic, topic, data, key, nil
	}
	what := *f.what[kind]
	content := json.RawMessage(data)
	switch {
	case len(data) == 0:
		content = nil
	case json.Valid(data):
	case kind == "command": // any text
		if content, err = marshal(string(data)); err != nil {
			return "", "", nil, nil, err
		}
	default:
		return "", "", nil, nil, usage("--data: the text is no JSON")
	}
	var request any
	switch kind {
	case "sql":
		request = struct {
			Statement string          `json:"statement"`
			Arguments json.RawMessage `json:"arguments,omitempty"`
		}{what, content}
	case "command":
		request = struct {
			Command string          `json:"command"`
			Input   json.RawMessage `json:"input,omitempty"`
		}{what, content}
	case "mail":
		if len(f.to)+len(f.cc)+len(f.bcc) == 0 {
			return "", "", nil, nil, usage("--mail needs an address: --to, --cc or --bcc")
		}
		request = struct {
			Template string          `json:"template"`
			To       []string        `json:"to,omitempty"`
			CC       []string        `json:"cc,omitempty"`
			BCC      []string        `json:"bcc,omitempty"`
			ReplyTo  string          `json:"reply_to,omitempty"`
			Data     json.RawMessage `json:"data,omitempty"`
		}{what, f.to, f.cc, f.bcc, f.replyTo, content}
	case "webhook":
		isURL := strings.Contains(what, "://")
		post := struct {
			Receiver string          `json:"receiver,omitempty"`
			URL      string          `json:"url,omitempty"`
			Body     json.RawMessage `json:"body,omitempty"`
		}{what, "", content}
		if isURL {
			post.Receiver, post.URL = "", what
		}
		request = post
		switch {
		case key != nil:
		case isURL:
			key = webhook.Key(what)
		default:
			key = delayq.Key(what)
		}
	}
	payload, err = marshal(request)
	task = kind + " " + what
	if kind == "webhook" && strings.Contains(what, "://") { // the rest of the URL may be a token
		task = kind + " " + worker.HostOf(what)
	}
	return topic, task, payload, key, err
}

// checkTask asks the file of a worker whether it serves a task.
func (a *app) checkTask(config, topic string, payload []byte) error {
	file, mistakes := worker.Load(config, a.getenv)
	if len(mistakes) > 0 {
		for _, m := range mistakes {
			a.say("%s", m)
		}
		return usage("%s has %s", config, count(len(mistakes), "mistake"))
	}
	if err := file.Serves(topic, payload); err != nil {
		return usage("%s: %v", config, err)
	}
	return nil
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
	stored, err := client.Enqueue(a.act(cmd.Context()), r.Topic, r.Name, payload, job...)
	if err == nil {
		r.Due = stamp(stored.Due)
	}
	return err
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
		return client.Schedule(ctx, r.Topic, r.Name, spec, payload, append(opts, delayq.DiscardEdits())...)
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
	if err := client.Schedule(ctx, r.Topic, r.Name, spec, payload, append(opts, delayq.IfAbsent())...); err != nil {
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
	var sum tally
	for _, name := range names {
		r := &scheduleActRecord{Name: name, Act: "removed"}
		err := delayq.ErrNotFound
		switch list := found[name]; len(list) {
		case 0:
		case 1:
			r.Topic = list[0].Topic
			err = client.Unschedule(a.act(ctx), r.Topic, name)
		default:
			err = &exitCode{exitConflict, fmt.Sprintf("%d topics have it; --topic says which one is meant", len(list))}
		}
		if unreachable(orNil(err)) || refused(orNil(err)) || ctx.Err() != nil {
			_ = p.end(nil) // the error below is the one to report
			return fmt.Errorf("after %s: %w", count(sum.done, "task"), err)
		}
		sum.add(err)
		r.Done, r.Error = err == nil, errorText(bare(err))
		if r.Error != "" && !a.tabular() {
			a.say("%s: %s", name, r.Error)
		}
		if r.Error != "" && a.format == formatID {
			continue
		}
		if err := p.row(r); err != nil {
			return err
		}
	}
	if err := p.end(nil); err != nil {
		return err
	}
	return sum.result()
}
