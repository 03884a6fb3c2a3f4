package delayq

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
)

// A ScheduleState is the state of a schedule.
type ScheduleState string

// The states of a schedule.
const (
	// ScheduleWaiting is a schedule that waits for its next slot, or whose last job waits to run.
	ScheduleWaiting ScheduleState = "waiting"

	// ScheduleRunning is a schedule whose last job is running.
	ScheduleRunning ScheduleState = "running"

	// SchedulePaused is a schedule paused by [Client.PauseSchedule].
	SchedulePaused ScheduleState = "paused"

	// ScheduleEnded is a schedule without further slots, because of [EndAt] or [MaxRuns].
	ScheduleEnded ScheduleState = "ended"
)

// ScheduleInfo describes a schedule. All times are by Redis's clock.
type ScheduleInfo struct {
	Topic, Name string
	Spec        Spec
	Zone        string // of a cron rule; empty: UTC
	State       ScheduleState

	// NextSlot is the next slot. It is zero while a slot waits, while the schedule is paused, after
	// it has ended, and until a server has asked the calendar.
	NextSlot time.Time
	// WaitingSlot is the slot that waits for the last run to end. Zero: none.
	WaitingSlot    time.Time
	LastUnfinished bool // the last job is unfinished

	LastSlot    time.Time // the last slot that was fired; zero: none yet
	LastFiredAt time.Time // when LastSlot was fired
	LastJobID   string    // ID of the job of LastSlot
	// LastRun is the run that ended last, with its outcome and error. It can be a run of a
	// triggered job. Nil: none yet.
	LastRun *RunInfo

	Fired int64 // slots that made a job
	// Skipped counts slots that made no job because of the [OverlapPolicy]. Slots skipped by
	// [OverlapQueueOne] are counted when the slot that waits is fired.
	Skipped int64
	// Missed counts slots that made no job because of the [MissedPolicy]. In a gap of more than
	// 1,000 slots not all are counted, except with [Every].
	Missed   int64
	Attempts int64 // attempts that have ended, including those of triggered jobs
	Failures int64 // how many of the Attempts failed

	CreatedAt   time.Time
	ChangedAt   time.Time // by Schedule or EditSchedule
	PausedSince time.Time // zero: not paused

	StartAt, EndAt time.Time // zero: none
	MaxRuns        int       // 0: no limit
	Jitter         time.Duration
	OnOverlap      OverlapPolicy
	OnMissed       MissedPolicy

	// The rest describes the jobs of the schedule.
	Payload                    []byte // nil from [Inspector.Schedules]
	PayloadSize                int
	Headers                    map[string]string // nil: none
	ProcessIn                  time.Duration     // counted from the slot
	Retries                    int               // -1: unlimited, or set by the handler
	BackoffFirst, BackoffLimit time.Duration     // 2 s and 4096 s: not set, or set by the handler
	Timeout                    time.Duration     // 0: none
	ExpireIn                   time.Duration     // 0: none, or ExpireAt
	ExpireAt                   time.Time         // zero: none, or ExpireIn
	Retention                  time.Duration     // 0: none

	EditedAt time.Time // by EditSchedule, the last time; zero: never
	EditedBy string
	// Edited lists the edited parts, sorted: Spec, Payload, the name of an option, OnOverlap,
	// OnMissed, Expire or Headers.
	Edited []string

	// Undecodable is set if this release cannot decode the definition or the state. The fields
	// that depend on it are zero then.
	Undecodable error
	// RuleError is set if [Cron] refuses the rule of the schedule. An earlier release accepted it,
	// and its slots are fired as that release understood them. Or a later release wrote it, and
	// servers of this release cannot fire it. The error says which, and what to write instead.
	RuleError error

	definition *record.Definition
}

// Options returns the options that recreate the schedule with [Client.Schedule], together with the
// Spec and the Payload of info. Schedule rejects these options with [ErrInvalid] if the definition
// could not be decoded, or if info lacks the payload, as it does from [Inspector.Schedules].
func (info *ScheduleInfo) Options() []ScheduleOption {
	switch {
	case info.definition == nil:
		return []ScheduleOption{refusedOption("info.Options: the definition of the schedule could not be read")}
	case info.Payload == nil && info.PayloadSize > 0:
		return []ScheduleOption{refusedOption("info.Options: the payload was not read; Inspector.Schedule reads it")}
	}
	return scheduleOptionsOf(info.definition)
}

// refusedOption returns an option that is always invalid.
func refusedOption(reason string) JobOption {
	return jobOption(func(o *jobOptions) { o.fail(errors.New(reason)) })
}

// A RunInfo is an entry in the history of a schedule: one run of one of its jobs.
type RunInfo struct {
	Slot       time.Time // of a triggered job: when it was triggered
	Triggered  bool
	JobID      string
	Attempt    int
	StartedAt  time.Time // zero if the job was not started, or its server crashed
	FinishedAt time.Time
	Server     string  // ID of the server; empty if it crashed
	Outcome    Outcome // acked, again, retried, buried, expired, cancelled or lease_lost
	// Error is the first 256 bytes of the error. [Inspector.Job] returns all of it while the job
	// exists.
	Error string
	// Output is the end of what the handler attached with [Job.SetOutput], at most 1 KiB.
	// OutputSize is the size of the whole output, in bytes.
	Output     []byte
	OutputSize int
}

// runInfo returns what an entry of a history says.
func runInfo(entry string) (run RunInfo, ok bool) {
	e, ok := record.DecodeRun(entry)
	if !ok {
		return run, false
	}
	run = RunInfo{
		JobID: e.Job, Attempt: e.Attempt, StartedAt: orZero(e.Start), FinishedAt: msTime(e.End),
		Server: e.Server, Outcome: Outcome(e.Outcome), Error: e.Error, Output: e.Output, OutputSize: max(e.OutputSize, len(e.Output)),
	}
	if s, ok := record.DecodeSlotID(e.Job); ok {
		run.Slot, run.Triggered = msTime(s.Slot), s.Triggered
	}
	return run, true
}

// Schedule describes a schedule, including its payload. It returns [ErrNotFound] if there is none
// with this name. Cost: one call to Redis.
func (i *Inspector) Schedule(ctx context.Context, topic, name string) (*ScheduleInfo, error) {
	err := i.validateSchedule(ctx, topic, name)
	var list []*ScheduleInfo
	if err == nil {
		list, err = i.scheduleInfos(ctx, topic, -1, []string{name})
	}
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, script.Place{Call: "describe", Topic: topic, Schedule: name}.At(err)
	}
	return list[0], nil
}

// validateSchedule joins the complaints about the inspector, the topic and the name of a schedule.
func (i *Inspector) validateSchedule(ctx context.Context, topic, name string) error {
	return errors.Join(i.validate(ctx, topic, ""), checkScheduleName(name))
}

// schedulesPage is the maximum number of schedules in one call. definitionHead is how many bytes
// of a definition the call reads, which is everything but the payload.
const (
	schedulesPage  = 100
	definitionHead = 3*script.MaxHeaderLen + 6*schedule.MaxCronLen // msgpack at most doubles short headers
)

// Schedules describes all schedules of a topic, sorted by name and without payloads. Schedules
// that are created or removed during the call may be missing. Cost: two calls to Redis for each
// hundred schedules, at most about 1 MiB each.
func (i *Inspector) Schedules(ctx context.Context, topic string) ([]*ScheduleInfo, error) {
	list, err := i.schedules(ctx, topic)
	if err != nil {
		return nil, script.Place{Call: "list schedules", Topic: topic}.At(err)
	}
	return list, nil
}

func (i *Inspector) schedules(ctx context.Context, topic string) ([]*ScheduleInfo, error) {
	if err := i.validate(ctx, topic, ""); err != nil {
		return nil, err
	}
	k := script.NewKeys(i.o.prefix, topic)
	var found []string
	err := i.scan(ctx, k.Fired, func(i *Inspector) error {
		found = nil
		for cursor := uint64(0); ; {
			pairs, next, err := i.rdb.HScan(ctx, k.Fired, cursor, "", schedulesPage).Result()
			if err != nil {
				return i.scripts.Blame(ctx, err, k.Fired)
			}
			for at := 0; at < len(pairs); at += 2 {
				found = append(found, pairs[at])
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(found)
	var list []*ScheduleInfo
	for some := range slices.Chunk(slices.Compact(found), schedulesPage) {
		infos, err := i.scheduleInfos(ctx, topic, definitionHead, some)
		if err != nil {
			return nil, err
		}
		list = append(list, infos...)
	}
	return list, nil
}

// scheduleInfos describes schedules and leaves out those that do not exist.
func (i *Inspector) scheduleInfos(ctx context.Context, topic string, size int, which []string) (list []*ScheduleInfo, err error) {
	for len(which) > 0 {
		r, err := readSchedules(ctx, i.scripts, script.NewKeys(i.o.prefix, topic), size, which...)
		if err != nil {
			return nil, err
		}
		covered := min(len(r.List(2)), len(which))
		if covered == 0 {
			return nil, script.ErrReply
		}
		for at, name := range which[:covered] {
			if info := readInfo(r, at, size < 0); info != nil {
				info.Topic, info.Name = topic, name
				list = append(list, info)
			}
		}
		which = which[covered:]
	}
	return list, nil
}

// readSchedules executes the schedule_info script once. The reply covers the first of the
// schedules in which, as many as can be read in a short time.
func readSchedules(ctx context.Context, c script.Caller, k *script.Keys, size int, which ...string) (script.Reply, error) {
	args := make([]any, 2, 2+len(which))
	args[0], args[1] = size, script.CallBytes
	for _, name := range which {
		args = append(args, name)
	}
	return c.Exec(ctx, script.ScheduleInfo, k, "", 0, args...)
}

// readInfo decodes one schedule of a reply of schedule_info. If whole is set, the reply has whole
// definitions, otherwise the beginnings of them. It returns nil if the schedule does not exist.
func readInfo(r script.Reply, i int, whole bool) *ScheduleInfo {
	raw := r.List(2).Text(i)
	if raw == "" {
		return nil
	}
	info := new(ScheduleInfo)
	decode := record.DecodeDefinition
	if !whole {
		decode = record.DecodeDefinitionMeta
	}
	if d, err := decode(raw); err != nil {
		info.Undecodable = err
	} else {
		info.defined(d)
	}
	state, err := record.DecodeScheduleState(r.List(5).Text(i))
	if err != nil {
		info.Undecodable = errors.Join(info.Undecodable, err)
	}
	info.fired(&state)
	if score := r.List(3).Text(i); score != "" && score != "0" {
		info.NextSlot = scoreTime(score)
	}
	if score := r.List(4).Text(i); score != "" {
		info.WaitingSlot = scoreTime(score)
	}
	info.ran(r.List(6).Text(i))
	doing := r.List(7).Text(i)
	info.LastUnfinished = doing != "none"
	switch {
	case state.Paused != 0:
		info.State = SchedulePaused
	case doing == "running":
		info.State = ScheduleRunning
	case state.Ended:
		info.State = ScheduleEnded
	default:
		info.State = ScheduleWaiting
	}
	return info
}

func (info *ScheduleInfo) defined(d *record.Definition) {
	info.Spec, info.Zone = Spec{rule: d.Spec}, d.Spec.Zone
	if d.Spec.Kind == record.Cron {
		info.RuleError = schedule.StoredCron(d.Spec.Text)
	}
	info.StartAt, info.EndAt = orZero(d.First), orZero(d.Last)
	info.MaxRuns, info.Jitter = int(d.Most), time.Duration(d.Jitter)*time.Millisecond
	info.OnOverlap, info.OnMissed = OverlapPolicy(d.Overlap), MissedPolicy(d.Missed)
	job := d.Job
	job.Fill(&defaultRun)
	info.Payload, info.PayloadSize, info.Headers, info.Retries = d.Payload, d.Size, job.Headers, job.Retries()
	info.ProcessIn, info.Timeout, info.Retention = ofMS(d.Job.DueIn), ofMS(d.Job.Timeout), ofMS(d.Job.Retention)
	info.BackoffFirst, info.BackoffLimit = ofMS(job.BackoffMin), ofMS(job.BackoffMax)
	info.ExpireIn, info.ExpireAt = ofMS(d.Job.ExpireIn), orZero(d.Job.ExpireAt)
	info.EditedAt, info.EditedBy, info.Edited = orZero(d.Edit.At), d.Edit.By, d.Edit.Names()
	info.definition = d
}

func (info *ScheduleInfo) fired(state *record.ScheduleState) {
	info.Fired, info.Skipped, info.Missed = state.Fired, state.Skipped, state.Missed
	info.CreatedAt, info.ChangedAt, info.PausedSince = orZero(state.Made), orZero(state.Changed), orZero(state.Paused)
	info.LastSlot, info.LastFiredAt, info.LastJobID = orZero(state.Slot), orZero(state.At), state.Job
}

// ran decodes the counters and the last entry of a history.
func (info *ScheduleInfo) ran(log string) {
	ended, failed, last := record.CutRunCounts(log)
	info.Attempts, info.Failures = ended, failed
	if run, ok := runInfo(last); ok {
		info.LastRun = &run
	}
}

// maxRuns is how many runs the history of a schedule holds (prelude/history.lua). maxRunAge is how
// much older than the latest run a reported run can be.
const (
	maxRuns   = 100
	maxRunAge = 400 * 24 * time.Hour
)

// Runs returns the last runs of a schedule's jobs, the latest first. Every attempt that has ended
// is listed, including those of triggered jobs. Range of limit: 1 to 100. A history keeps the
// newest 100 runs, except those that are 400 days older than the latest one. Runs returns
// [ErrNotFound] if there is no such schedule. Cost: one call to Redis.
func (i *Inspector) Runs(ctx context.Context, topic, name string, limit int) ([]RunInfo, error) {
	list, err := i.runs(ctx, topic, name, limit)
	if err != nil {
		return nil, script.Place{Call: "list runs", Topic: topic, Schedule: name}.At(err)
	}
	return list, nil
}

func (i *Inspector) runs(ctx context.Context, topic, name string, limit int) (list []RunInfo, err error) {
	err = i.validateSchedule(ctx, topic, name)
	if limit < 1 || limit > maxRuns {
		err = errors.Join(err, fmt.Errorf("%w: limit %d: must be from 1 to %d", ErrInvalid, limit, maxRuns))
	}
	if err != nil {
		return nil, err
	}
	key := script.NewKeys(i.o.prefix, topic).Runs
	fields := make([]string, 1, 1+maxRuns)
	fields[0] = name
	for at := range maxRuns {
		fields = append(fields, fmt.Sprintf("%s\n%d", name, at))
	}
	values, err := i.rdb.HMGet(ctx, key, fields...).Result()
	if err == nil && values[0] == nil {
		err = ErrNotFound
	}
	if err != nil {
		return nil, i.scripts.Blame(ctx, err, key)
	}
	log := script.Reply(values)
	ended, _, _ := record.CutRunCounts(log.Text(0))
	for n := ended - 1; n >= max(0, ended-int64(limit)); n-- {
		run, ok := runInfo(log.Text(1 + int(n%maxRuns)))
		if ok && len(list) > 0 && list[0].FinishedAt.Sub(run.FinishedAt) > maxRunAge {
			break
		}
		if ok {
			list = append(list, run)
		}
	}
	return list, nil
}

// Changes returns the names of the parts that [Client.Schedule] would change with these arguments,
// or the error that it would return for them. A nil info is a schedule that does not exist, so
// everything is new.
func (friends) Changes(info *ScheduleInfo, spec Spec, payload []byte, opts []ScheduleOption) ([]string, error) {
	d := newDefinition(spec, payload, opts)
	if err := d.validate(mostPayload); err != nil || info == nil {
		return nil, err
	}
	if info.definition == nil {
		return nil, info.Undecodable
	}
	if d.onto == ontoGiven {
		keep(&d.Definition, info.definition)
	}
	return differences(&d.Definition, info.definition), nil
}

// Unset returns an option that gives a part of a definition the value that it has by default. The
// part has the name that [ScheduleInfo.Edited] uses.
func (friends) Unset(name string) ScheduleOption {
	return scheduleOption(func(d *definition) {
		for _, part := range parts {
			if part.name != name {
				continue
			}
			blank := record.Definition{Job: defaultJob.Options}
			to := part.fields(&d.Definition)
			for i, field := range part.fields(&blank) {
				reflect.ValueOf(to[i]).Elem().Set(reflect.ValueOf(field).Elem())
			}
			return
		}
		d.fail(fmt.Errorf("a schedule has no %s", name))
	})
}
