package delayq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// finishedRun is what is kept of a done job beside its record, as JSON.
type finishedRun struct {
	Attempt int    `json:"attempt"`
	Start   int64  `json:"start"`
	End     int64  `json:"end"`
	Server  string `json:"server"`
}

func encodeFinished(r row, server string) string {
	raw, err := json.Marshal(finishedRun{r.run.attempt, r.run.start.UnixMilli(), r.end.UnixMilli(), server})
	if err != nil { // cannot be: numbers and a plain string
		return "{}"
	}
	return string(raw)
}

// Get tells all that is known of a job. ErrNotFound if there is no job with this ID; done jobs are found during their Retention.
func (c *Client) Get(ctx context.Context, topic, id string) (*JobInfo, error) {
	if err := errors.Join(c.ready(topic, id), checkContext(ctx)); err != nil {
		return nil, fmt.Errorf("get topic %q: %w", topic, err)
	}
	list, err := c.get(ctx, topic, []string{id})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("get topic %q: %w", topic, ErrNotFound)
	}
	return list[0], nil
}

// get looks up jobs, at most 1,000, and leaves out those that do not exist.
func (c *Client) get(ctx context.Context, topic string, ids []string) ([]*JobInfo, error) {
	r, err := c.scripts.lookUp(ctx, newKeys(c.o.prefix, topic), 0, ids)
	if err != nil {
		return nil, err
	}
	var list []*JobInfo
	for i, id := range ids {
		at := func(column int) string { return r.list(2 + column).text(i) }
		info := describe(topic, id, at)
		if info != nil {
			list = append(list, info)
		}
	}
	return list, nil
}

// lookUp is one call of the get script. With bytes other than 0 the answer may be about the first of ids only.
func (c caller) lookUp(ctx context.Context, k *keys, bytes int, ids []string) (reply, error) {
	args := make([]any, 1, 1+len(ids))
	args[0] = bytes
	for _, id := range ids {
		args = append(args, id)
	}
	return c.call(ctx, getScript, k.topic, len(ids), names(
		k.pool, k.bucket, k.leases, k.dead, k.attempts, k.errors, k.moved, k.done, k.results,
	), args...)
}

// Columns of what get.lua answers.
const (
	columnRecord = iota
	columnBucket
	columnLease
	columnDead
	columnAttempts
	columnErrors
	columnMoved
	columnDone
	columnResult
)

// describe makes a JobInfo of one line of what get.lua answers, nil if there is no such job.
func describe(topic, id string, at func(column int) string) *JobInfo {
	raw := at(columnRecord)
	info := &JobInfo{Job: Job{Topic: topic, ID: id}}
	attempts, _ := strconv.Atoi(at(columnAttempts)) // "" is none
	info.Attempt = attempts + 1
	var finished string
	switch {
	case raw != "":
		info.State = StateReady
		info.Errors = decodeErrors(at(columnErrors))
	case at(columnResult) != "" && at(columnDone) != "":
		info.State = StateDone
		info.KeptUntil = scoreTime(at(columnDone))
		finished, raw, _ = cutNetstring(at(columnResult))
	default:
		return nil
	}
	info.nonce = nonceOf(raw)
	if rec, err := decodeRecord(raw); err != nil {
		info.Undecodable, info.Raw = err, []byte(raw)
	} else {
		info.Payload, info.Headers, info.Retries, info.PayloadSize = rec.payload, rec.opts.headers, rec.opts.retry, rec.size
		info.EnqueuedAt, info.Due = msTime(rec.enqueuedAt), msTime(rec.due)
		if ofSchedule(raw) {
			info.scheduledFor(id)
		}
	}
	if info.State == StateDone {
		var run finishedRun
		if json.Unmarshal([]byte(finished), &run) == nil {
			info.Attempt, info.Started, info.FinishedAt = run.Attempt, msTime(run.Start), msTime(run.End)
		}
		return info
	}
	if m, ok := parseMoved(at(columnMoved)); ok {
		info.Due, info.Moved = msTime(m.due), m.why
	}
	if score := at(columnBucket); score != "" {
		info.State, info.Due = StateScheduled, scoreTime(score)
	}
	if score := at(columnLease); score != "" {
		info.State, info.LeaseEnd = StateRunning, scoreTime(score)
		info.fence.Store(parseEnd(score))
	}
	if score := at(columnDead); score != "" {
		info.State, info.BuriedAt = StateDead, scoreTime(score)
		info.Attempt = max(attempts, 1)
	}
	return info
}

// scoreTime reads the score of a zset, in Unix ms.
func scoreTime(score string) time.Time {
	ms, _ := strconv.ParseFloat(score, 64) // Redis wrote it
	return msTime(int64(ms))
}

// List tells of the jobs of a topic in one state, at most limit of them (1 to 1,000) after the first offset: scheduled ones by due
// time, ready ones in the order in which they will be taken (one that is just on its way to a server may be missing), running ones by the end of their lease, dead ones the latest first, done
// ones by the time until which they are kept. Jobs that change their state meanwhile may be missing or stand twice on two pages.
func (c *Client) List(ctx context.Context, topic string, state State, offset, limit int) ([]*JobInfo, error) {
	err := errors.Join(c.ready(topic, ""), checkContext(ctx))
	if offset < 0 || limit < 1 || limit > 1000 {
		err = errors.Join(err, fmt.Errorf("%w: List from %d, %d jobs: must be from 0 on and 1 to 1000", ErrInvalid, offset, limit))
	}
	if err != nil {
		return nil, fmt.Errorf("list topic %q: %w", topic, err)
	}
	k := newKeys(c.o.prefix, topic)
	first, last := int64(offset), int64(offset+limit-1)
	var ids []string
	switch state {
	case StateScheduled:
		ids, err = c.rdb.ZRange(ctx, k.bucket, first, last).Result()
	case StateReady:
		ids, err = c.rdb.LRange(ctx, k.ready, first, last).Result()
	case StateRunning:
		ids, err = c.rdb.ZRangeByScore(ctx, k.leases, &redis.ZRangeBy{ // without the anchor, whose score is +inf
			Min: "-inf", Max: strconv.FormatInt(maxDueMS, 10), Offset: first, Count: int64(limit),
		}).Result()
	case StateDead:
		ids, err = c.rdb.ZRevRange(ctx, k.dead, first, last).Result()
	case StateDone:
		ids, err = c.rdb.ZRange(ctx, k.done, first, last).Result()
	default:
		err = fmt.Errorf("%w: state %q", ErrInvalid, state)
	}
	if err != nil {
		return nil, fmt.Errorf("list topic %q: %w", topic, c.scripts.blame(ctx, err, k.bucket, k.ready, k.leases, k.dead, k.done))
	}
	if len(ids) == 0 {
		return nil, nil
	}
	list, err := c.get(ctx, topic, ids)
	if err != nil {
		return nil, err
	}
	// What stands in ready can be a left-over of a job that is elsewhere by now, or stand there twice.
	seen := make(map[string]bool, len(list))
	return slices.DeleteFunc(list, func(info *JobInfo) bool {
		wrong := info.State != state || seen[info.ID]
		seen[info.ID] = true
		return wrong
	}), nil
}

// TopicInfo is what a topic holds, and what has happened in it since its first job.
type TopicInfo struct {
	Scheduled, Ready, Running, Dead, Done int64

	NextDue time.Time // of the earliest scheduled job; zero if there is none

	Schedules int64     // all of the topic, also those that are paused or have ended
	Waiting   int64     // schedules of which a slot waits for the end of the last run
	NextSlot  time.Time // the earliest of all schedules; 1970 if a server is to work it out; zero if there is none

	Paused      bool
	PausedSince time.Time
	PausedUntil time.Time // zero: until Resume
	PausedBy    string
	PauseReason string

	// Counters has every [Counter].
	Counters map[Counter]int64
}

var counters = []Counter{
	CounterEnqueued, CounterTaken, CounterAcked, CounterRetried, CounterSnoozed, CounterBuried, CounterCancelled,
	CounterExpired, CounterReclaimed, CounterReturned, CounterRevived, CounterDropped, CounterPrunedDead, CounterPrunedDone, CounterMended,
	CounterFired, CounterSkipped, CounterMissed,
}

// Inspect counts the jobs of a topic. A topic that was never used has none.
func (c *Client) Inspect(ctx context.Context, topic string) (*TopicInfo, error) {
	if err := errors.Join(c.ready(topic, ""), checkContext(ctx)); err != nil {
		return nil, fmt.Errorf("inspect topic %q: %w", topic, err)
	}
	k := newKeys(c.o.prefix, topic)
	args := make([]any, len(counters))
	for i, name := range counters {
		args[i] = string(name)
	}
	r, err := c.scripts.call(ctx, inspectScript, topic, 0, names(
		k.pool, k.bucket, k.leases, k.dead, k.done, k.meta, k.stats, k.schedules, k.slots, k.waiting,
	), args...)
	if err != nil {
		return nil, err
	}
	info := &TopicInfo{Scheduled: r.number(3), Running: r.number(4), Dead: r.number(5), Done: r.number(6)}
	info.Ready = max(0, r.number(2)-info.Scheduled-info.Running-info.Dead)
	if head := r.list(7); len(head) == 2 {
		info.NextDue = scoreTime(head.text(1))
	}
	info.Schedules, info.Waiting = r.number(10), r.number(11)
	if head := r.list(12); len(head) == 2 {
		info.NextSlot = scoreTime(head.text(1))
	}
	pause := r.list(8)
	if since := pause.text(0); since != "" {
		info.PausedSince = scoreTime(since)
		info.Paused = true
		info.PausedBy, info.PauseReason = pause.text(2), pause.text(3)
		if until := pause.text(1); until != "" {
			info.PausedUntil = scoreTime(until)
			info.Paused = msTime(r.now()).Before(info.PausedUntil)
		}
	}
	info.Counters = make(map[Counter]int64, len(counters))
	for i, name := range counters {
		info.Counters[name], _ = strconv.ParseInt(r.list(9).text(i), 10, 64) // "" is none yet
	}
	return info, nil
}

// Topics lists the topics that jobs were enqueued to or that a server has handled, sorted.
func (c *Client) Topics(ctx context.Context) ([]string, error) {
	if err := errors.Join(c.err, checkContext(ctx)); err != nil {
		return nil, fmt.Errorf("topics: %w", err)
	}
	var names []string
	for cursor := uint64(0); ; {
		some, next, err := c.rdb.SScan(ctx, topicsKey(c.o.prefix), cursor, "", 100).Result()
		if err != nil {
			return nil, fmt.Errorf("topics of %q: %w", c.o.prefix, c.scripts.blame(ctx, err, topicsKey(c.o.prefix)))
		}
		names = append(names, some...)
		if cursor = next; cursor == 0 {
			break
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Servers lists the servers of the prefix that have sent a heartbeat within the last 30 s.
func (c *Client) Servers(ctx context.Context) ([]ServerInfo, error) {
	if err := errors.Join(c.err, checkContext(ctx)); err != nil {
		return nil, fmt.Errorf("servers: %w", err)
	}
	list, err := readServers(ctx, c.rdb, c.o.prefix)
	if err != nil || len(list) == 0 {
		return nil, c.scripts.blame(ctx, err, serversKey(c.o.prefix))
	}
	now, err := c.rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("servers of %q: %w", c.o.prefix, err)
	}
	return slices.DeleteFunc(list, func(info ServerInfo) bool { return now.Sub(info.Seen) > heartbeatStale }), nil
}

// Pause stops the taking of jobs of a topic on all servers, for period or, if that is 0, until Resume. Jobs still come in and fall due, running
// ones go on. by and reason, at most 1 KiB each, are for who looks. Pausing again replaces the pause.
func (c *Client) Pause(ctx context.Context, topic string, period time.Duration, by, reason string) error {
	var errs []error
	if period < 0 || period > maxDelay {
		errs = append(errs, fmt.Errorf("pause of %v: must be from 0 to %v", period, maxDelay))
	}
	if len(by) > maxIDLen || len(reason) > maxIDLen {
		errs = append(errs, fmt.Errorf("by and reason of %d and %d bytes, at most %d are allowed", len(by), len(reason), maxIDLen))
	}
	return c.pause(ctx, "pause", topic, invalid(errs), 1, ceilMS(period), by, reason)
}

// Resume ends a pause. A topic that is not paused is left as it is.
func (c *Client) Resume(ctx context.Context, topic string) error {
	return c.pause(ctx, "resume", topic, nil, 0, 0, "", "")
}

func (c *Client) pause(ctx context.Context, what, topic string, err error, paused int, period int64, by, reason string) error {
	if err := errors.Join(c.ready(topic, ""), checkContext(ctx), err); err != nil {
		return fmt.Errorf("%s topic %q: %w", what, topic, err)
	}
	k := newKeys(c.o.prefix, topic)
	_, err = c.scripts.call(ctx, pauseScript, topic, 0, names(k.meta), paused, period, by, reason, controlChannel(c.o.prefix), topic)
	return c.unsure(err)
}
