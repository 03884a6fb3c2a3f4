package delayq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A ScheduleStatus is how a schedule stands.
type ScheduleStatus string

// The states of a schedule.
const (
	ScheduleWaiting ScheduleStatus = "waiting" // for its next slot, or for the end of what keeps its last job from running
	ScheduleRunning ScheduleStatus = "running" // the job that was fired last is running
	SchedulePaused  ScheduleStatus = "paused"  // by PauseSchedule
	ScheduleEnded   ScheduleStatus = "ended"   // there is no further slot, because of EndAt or MaxRuns
)

// ScheduleInfo is what is known of a schedule. Times are Redis's.
type ScheduleInfo struct {
	Topic, Name string
	Spec        Spec
	Zone        string // of a cron rule; empty: UTC
	Status      ScheduleStatus

	Next  time.Time // the next slot; zero while it is paused, after it has ended, and until a server has asked the calendar
	Waits time.Time // the slot that waits for the end of the last run; zero: none. Then there is no Next
	Going bool      // the job that was fired last has not ended

	Last    time.Time // the slot that was fired last; zero: none yet
	FiredAt time.Time // when that was
	LastJob string    // the ID of its job
	LastRun *Run      // the run that ended last, also of a triggered job; nil: none yet. It has the last outcome and error

	Fired    int64 // slots that made a job
	Skipped  int64 // slots that made none because of the OverlapPolicy; those of QueueOne are counted when the one that waits is fired
	Missed   int64 // slots that made none because the next one came first, see MissedPolicy; of a gap of more than 1,000 not all are counted, except of Every
	Runs     int64 // runs that have ended: attempts, also of triggered jobs
	Failures int64 // those of them that failed

	CreatedAt   time.Time
	ChangedAt   time.Time // by Schedule
	PausedSince time.Time // zero: it is not paused

	StartAt, EndAt time.Time // zero: none
	MaxRuns        int       // 0: no limit
	Jitter         time.Duration
	OnOverlap      OverlapPolicy
	OnMissed       MissedPolicy

	// What its jobs are given.
	Payload                    []byte // nil in what [Client.Schedules] tells
	PayloadSize                int
	Headers                    map[string]string // nil: none
	ProcessIn                  time.Duration     // after the slot
	Retries                    int               // -1: unlimited, or left to the handler's Defaults
	BackoffFirst, BackoffLimit time.Duration     // 2 s and 4096 s: perhaps left to the handler's Defaults
	Timeout                    time.Duration     // 0: none
	ExpireIn                   time.Duration     // 0: none, or ExpireAt
	ExpireAt                   time.Time         // zero: none, or ExpireIn
	Retention                  time.Duration     // 0: none

	EditedAt time.Time // by EditSchedule, the last time; zero: it is as Schedule has made it
	EditedBy string
	Edited   []string // what was edited, sorted: Spec, Payload, an option's name, OnOverlap, OnMissed, Expire or Headers

	// Undecodable is set if this release cannot read the definition. All that stands in it is zero then.
	Undecodable error

	definition *definition
}

// Options gives the options that make the same schedule again, with [Client.Schedule] and the Spec and the Payload of
// info. What [Client.Schedules] tells has no payload: if there is one, Schedule refuses those options with ErrInvalid,
// as it does those of a schedule that cannot be read.
func (info *ScheduleInfo) Options() []ScheduleOption {
	switch {
	case info.definition == nil:
		return []ScheduleOption{refusedOption("info.Options: the definition of the schedule could not be read")}
	case info.Payload == nil && info.PayloadSize > 0:
		return []ScheduleOption{refusedOption("info.Options: the payload was not read; ScheduleInfo reads it")}
	}
	return info.definition.options()
}

// refusedOption is an option that is refused.
func refusedOption(reason string) JobOption {
	return func(o *jobOptions) { o.fail(errors.New(reason)) }
}

// A Run is one run of a job of a schedule, as its history tells of it.
type Run struct {
	Slot      time.Time // of a triggered job: when it was triggered
	Triggered bool
	JobID     string
	Attempt   int
	Start     time.Time // zero if the job was not started or the server did not live to tell
	End       time.Time
	Server    string  // its ID; empty if the server did not live to tell
	Outcome   Outcome // acked, again, retried, buried, expired, cancelled or lease_lost
	Error     string  // the first 256 bytes of it; Get has all, as long as the job is there
}

// maxRunError is how much of an error a history keeps: it is copied at every run.
const maxRunError = 256

// runEntry is a Run as the hash runs holds it. promote.lua and prelude/withdraw.lua write some of it.
type runEntry struct {
	Job     string  `json:"job"`
	Attempt int     `json:"attempt"`
	Start   int64   `json:"start,omitempty"`
	End     int64   `json:"end"`
	Server  string  `json:"server,omitempty"`
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
}

// encodeRun writes what the history is to tell of a run that has ended; empty if its job is not one of a schedule.
func encodeRun(r row, outcome Outcome, server string) string {
	if !r.run.scheduled {
		return ""
	}
	e := runEntry{Job: r.run.id, Attempt: r.run.attempt, Server: server, Outcome: outcome}
	if !r.run.start.IsZero() {
		e.Start, e.End = r.run.start.UnixMilli(), r.end.UnixMilli()
	}
	if r.err != nil {
		e.Error = clip(message(r.err), maxRunError)
	}
	raw, err := json.Marshal(e)
	if err != nil { // cannot be: strings and numbers only
		return "{}"
	}
	return string(raw)
}

// decodeRun reads an entry: a time and JSON.
func decodeRun(entry string) (run Run, ok bool) {
	at, text, found := strings.Cut(entry, " ")
	var e runEntry
	if !found || json.Unmarshal([]byte(text), &e) != nil {
		return run, false
	}
	run = Run{JobID: e.Job, Attempt: e.Attempt, Server: e.Server, Outcome: e.Outcome, Error: e.Error}
	if e.Start != 0 {
		run.Start = msTime(e.Start)
	}
	if e.End == 0 {
		e.End, _ = strconv.ParseInt(at, 10, 64) // when Redis was told
	}
	run.End = msTime(e.End)
	if _, slot, triggered, ok := slotOf(e.Job); ok {
		run.Slot, run.Triggered = msTime(slot), triggered
	}
	return run, true
}

// ScheduleInfo tells all that is known of a schedule. ErrNotFound if there is none of this name.
func (c *Client) ScheduleInfo(ctx context.Context, topic, name string) (*ScheduleInfo, error) {
	err := c.validateSchedule(ctx, topic, name)
	var list []*ScheduleInfo
	if err == nil {
		list, err = c.scheduleInfos(ctx, topic, -1, []string{name})
	}
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, located{call: "describe", topic: topic, schedule: name}.at(err)
	}
	return list[0], nil
}

// schedulesPage is the most schedules one call describes, and definitionHead how much of a definition it answers: all but
// the payload.
const (
	schedulesPage  = 100
	definitionHead = 3*maxHeaderLen + 6*maxCronLen // msgpack adds to short headers as much as they have
)

// Schedules tells of all schedules of a topic, by name. Those that come or go meanwhile may be missing.
func (c *Client) Schedules(ctx context.Context, topic string) ([]*ScheduleInfo, error) {
	list, err := c.schedules(ctx, topic)
	if err != nil {
		return nil, located{call: "list schedules", topic: topic}.at(err)
	}
	return list, nil
}

func (c *Client) schedules(ctx context.Context, topic string) ([]*ScheduleInfo, error) {
	if err := c.validate(ctx, topic, ""); err != nil {
		return nil, err
	}
	k := newKeys(c.o.prefix, topic)
	var found []string
	for cursor := uint64(0); ; {
		pairs, next, err := c.rdb.HScan(ctx, k.fired, cursor, "", schedulesPage).Result()
		if err != nil {
			return nil, c.scripts.blame(ctx, err, k.fired)
		}
		for i := 0; i < len(pairs); i += 2 {
			found = append(found, pairs[i])
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	slices.Sort(found)
	var list []*ScheduleInfo
	for some := range slices.Chunk(slices.Compact(found), schedulesPage) {
		infos, err := c.scheduleInfos(ctx, topic, definitionHead, some)
		if err != nil {
			return nil, err
		}
		list = append(list, infos...)
	}
	return list, nil
}

// scheduleInfos describes schedules and leaves out those that do not exist.
func (c *Client) scheduleInfos(ctx context.Context, topic string, size int, which []string) (list []*ScheduleInfo, err error) {
	for len(which) > 0 {
		r, err := c.readSchedules(ctx, topic, size, which...)
		if err != nil {
			return nil, err
		}
		told := min(len(r.list(2)), len(which))
		if told == 0 {
			return nil, errReply
		}
		for i, name := range which[:told] {
			if info := readInfo(r, i, size < 0); info != nil {
				info.Topic, info.Name = topic, name
				list = append(list, info)
			}
		}
		which = which[told:]
	}
	return list, nil
}

// readInfo reads one schedule of a reply of describe, which has the whole definitions or the beginnings of them; nil: it
// does not exist.
func readInfo(r reply, i int, whole bool) *ScheduleInfo {
	raw := r.list(2).text(i)
	if raw == "" {
		return nil
	}
	info := new(ScheduleInfo)
	d, err := decodeDefinition(raw, whole)
	if err != nil {
		info.Undecodable = err
	} else {
		info.defined(d)
	}
	var state scheduleState
	if err := json.Unmarshal([]byte(r.list(5).text(i)), &state); err != nil {
		info.Undecodable = errors.Join(info.Undecodable, fmt.Errorf("state: %w", err))
	}
	info.fired(&state)
	if score := r.list(3).text(i); score != "" && score != "0" {
		info.Next = scoreTime(score)
	}
	if score := r.list(4).text(i); score != "" {
		info.Waits = scoreTime(score)
	}
	info.ran(r.list(6).text(i))
	doing := r.list(7).text(i)
	info.Going = doing != "none"
	switch {
	case state.Paused != 0:
		info.Status = SchedulePaused
	case doing == "running":
		info.Status = ScheduleRunning
	case state.Ended:
		info.Status = ScheduleEnded
	default:
		info.Status = ScheduleWaiting
	}
	return info
}

func (info *ScheduleInfo) defined(d *definition) {
	info.Spec, info.Zone = d.spec, d.spec.zone
	info.StartAt, info.EndAt = orZero(d.first), orZero(d.last)
	info.MaxRuns, info.Jitter = int(d.most), time.Duration(d.jitter)*time.Millisecond
	info.OnOverlap, info.OnMissed = d.overlap, d.missed
	job := d.job
	job.fill(&defaultRun)
	info.Payload, info.PayloadSize, info.Headers, info.Retries = d.payload, d.size, job.headers, job.retries()
	info.ProcessIn, info.Timeout, info.Retention = inMS(d.job.dueIn), inMS(d.job.timeout), inMS(d.job.retention)
	info.BackoffFirst, info.BackoffLimit = inMS(job.backoffMin), inMS(job.backoffMax)
	info.ExpireIn, info.ExpireAt = inMS(d.job.expireIn), orZero(d.job.expireAt)
	info.EditedAt, info.EditedBy, info.Edited = orZero(d.edit.at), d.edit.by, d.edit.names()
	info.definition = d
}

func (info *ScheduleInfo) fired(state *scheduleState) {
	info.Fired, info.Skipped, info.Missed = state.Fired, state.Skipped, state.Missed
	info.CreatedAt, info.ChangedAt, info.PausedSince = orZero(state.Made), orZero(state.Changed), orZero(state.Paused)
	info.Last, info.FiredAt, info.LastJob = orZero(state.Slot), orZero(state.At), state.Job
}

// ran reads the counters and the last entry of a history.
func (info *ScheduleInfo) ran(log string) {
	field := strings.SplitN(log, " ", 3)
	if len(field) < 3 {
		return
	}
	info.Runs, _ = strconv.ParseInt(field[0], 10, 64) // a script wrote it
	info.Failures, _ = strconv.ParseInt(field[1], 10, 64)
	if run, ok := decodeRun(field[2]); ok {
		info.LastRun = &run
	}
}

// orZero is the time of a number of ms that may be 0 for none.
func orZero(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return msTime(ms)
}

// maxRuns is how many runs the history of a schedule has (prelude/history.lua), and maxRunAge how much older than the latest of them one may be
// that is told of.
const (
	maxRuns   = 100
	maxRunAge = 400 * 24 * time.Hour
)

// Runs tells of the last runs of a schedule's jobs, the latest first, at most limit of them (1 to 100): every attempt that has ended, also of triggered
// jobs. A history keeps the newest 100 runs, but for those that are 400 days older than the latest one. ErrNotFound if there is no such
// schedule.
func (c *Client) Runs(ctx context.Context, topic, name string, limit int) ([]Run, error) {
	list, err := c.runs(ctx, topic, name, limit)
	if err != nil {
		return nil, located{call: "list runs", topic: topic, schedule: name}.at(err)
	}
	return list, nil
}

func (c *Client) runs(ctx context.Context, topic, name string, limit int) (list []Run, err error) {
	err = c.validateSchedule(ctx, topic, name)
	if limit < 1 || limit > maxRuns {
		err = errors.Join(err, fmt.Errorf("%w: limit %d: must be from 1 to %d", ErrInvalid, limit, maxRuns))
	}
	if err != nil {
		return nil, err
	}
	key := newKeys(c.o.prefix, topic).runs
	fields := make([]string, 1, 1+maxRuns)
	fields[0] = name
	for i := range maxRuns {
		fields = append(fields, fmt.Sprintf("%s\n%d", name, i))
	}
	values, err := c.rdb.HMGet(ctx, key, fields...).Result()
	if err == nil && values[0] == nil {
		err = ErrNotFound
	}
	if err != nil {
		return nil, c.scripts.blame(ctx, err, key)
	}
	log := reply(values)
	counts, _, _ := strings.Cut(log.text(0), " ")
	ended, _ := strconv.ParseInt(counts, 10, 64) // a script wrote it
	for n := ended - 1; n >= max(0, ended-int64(limit)); n-- {
		run, ok := decodeRun(log.text(1 + int(n%maxRuns)))
		if ok && len(list) > 0 && list[0].End.Sub(run.End) > maxRunAge {
			break
		}
		if ok {
			list = append(list, run)
		}
	}
	return list, nil
}
