package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/record"
)

// Get returns everything that is known about a job. It finds done jobs during their [Retention].
// Get returns [ErrNotFound] if there is no job with this ID.
func (c *Client) Get(ctx context.Context, topic, id string) (*JobInfo, error) {
	o := &operation{kind: getKind, topic: topic, id: id}
	if err := c.do(ctx, o); err != nil {
		return nil, err
	}
	return o.info, nil
}

// jobInfos looks up jobs, and skips those that do not exist. It reads cut bytes of each record, or
// the whole record if cut is -1. One call reads a bounded number of bytes, to keep Redis
// responsive, so large jobs take several.
func (c caller) jobInfos(ctx context.Context, k *keys, cut int, ids []string) ([]*JobInfo, error) {
	var list []*JobInfo
	for ask := listJobs; len(ids) > 0; {
		some := ids[:min(len(ids), ask)]
		r, err := c.lookUp(ctx, k, callBytes, cut, some)
		if err != nil {
			return nil, err
		}
		covered := min(len(r.list(2)), len(some))
		if covered == 0 {
			return nil, fmt.Errorf("get topic %q: %w", k.topic, errReply)
		}
		for i, id := range some[:covered] {
			at := func(column int) string { return r.list(2 + column).text(i) }
			if info := readJobInfo(k.topic, id, cut, at); info != nil {
				list = append(list, info)
			}
		}
		ids = ids[covered:]
		ask = 2 * covered // IDs that the reply has no room for are sent in vain
	}
	return list, nil
}

// lookUp executes the get script once. The reply may cover only the first of ids.
func (c caller) lookUp(ctx context.Context, k *keys, bytes, cut int, ids []string) (reply, error) {
	args := make([]any, 2, 2+len(ids))
	args[0], args[1] = bytes, cut
	for _, id := range ids {
		args = append(args, id)
	}
	return c.exec(ctx, getKind.script, k, "", len(ids), args...)
}

// Columns of the reply of get.lua.
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

// readJobInfo returns the JobInfo of one line of the reply of get.lua, or nil if there is no such
// job. It leaves out the payload of a record that was cut, even if the whole payload is there.
func readJobInfo(topic, id string, cut int, at func(column int) string) *JobInfo {
	raw := at(columnRecord)
	info := &JobInfo{Job: Job{Topic: topic, ID: id}}
	attempts, _ := strconv.Atoi(at(columnAttempts)) // "" is none
	info.Attempt = attempts + 1
	var done record.Done
	var known bool
	switch {
	case raw != "":
		info.State = StateReady
		info.Errors = attemptErrors(at(columnErrors))
	case at(columnResult) != "" && at(columnDone) != "":
		info.State = StateDone
		info.KeptUntil = scoreTime(at(columnDone))
		done, raw, known = record.DecodeDone(at(columnResult))
	default:
		return nil
	}
	info.nonce = record.NonceOf(raw)
	decode := record.Decode
	if cut >= 0 && len(raw) >= cut {
		decode = record.DecodeMeta
	}
	if rec, err := decode(raw); err != nil {
		info.Undecodable, info.Raw = err, []byte(raw)
	} else {
		info.recorded(&rec)
		if cut < 0 {
			info.Payload = rec.Payload
		}
	}
	if info.State == StateDone {
		if known {
			info.Attempt, info.StartedAt, info.FinishedAt = done.Attempt, msTime(done.Start), msTime(done.End)
			info.Snoozes = done.Snoozes
		}
		return info
	}
	if m, ok := record.DecodeMoved(at(columnMoved)); ok {
		info.Due, info.DueReason = msTime(m.Due), DueReason(m.Why)
		info.Snoozes, info.spent = m.Snoozes, m.Spent
	}
	if score := at(columnBucket); score != "" {
		info.State, info.Due = StateScheduled, scoreTime(score)
	}
	if score := at(columnLease); score != "" {
		info.State, info.LeaseEnd = StateRunning, scoreTime(score)
		info.fence = new(atomic.Int64)
		info.fence.Store(record.ParseLeaseEnd(score).Micros())
	}
	if score := at(columnDead); score != "" {
		info.State, info.BuriedAt = StateDead, scoreTime(score)
		info.Attempt = max(attempts, 1)
	}
	return info
}

// recorded sets what the record of the job holds, except the payload.
func (info *JobInfo) recorded(rec *record.Job) {
	info.options = rec.Options
	o := rec.Options
	o.Fill(&defaultRun)
	info.Headers, info.Retries, info.PayloadSize = o.Headers, o.Retries(), rec.Size
	info.EnqueuedAt, info.Due = msTime(rec.EnqueuedAt), msTime(rec.Due())
	info.BackoffFirst, info.BackoffLimit = ofMS(o.BackoffMin), ofMS(o.BackoffMax)
	info.Timeout, info.Retention, info.ExpireAt = ofMS(o.Timeout), ofMS(o.Retention), orZero(rec.Expires())
	if o.Scheduled {
		info.scheduledFor(info.ID)
	}
}

// scoreTime reads the score of a zset, in Unix ms.
func scoreTime(score string) time.Time {
	ms, _ := strconv.ParseFloat(score, 64) // Redis wrote it
	return msTime(int64(ms))
}

const (
	listJobs = 1000 // the most jobs that one call looks at

	// recordHead is at least the length of a record up to its payload: msgpack at most triples the
	// bytes of short headers.
	recordHead = 3 * record.MaxHeaders
)

// A ListQuery selects the jobs that [Client.List] returns.
type ListQuery struct {
	State  State
	Offset int // number of jobs of that state to skip. Default: 0
	Limit  int // maximum number of jobs to return. Default: 100. Range: 1 to 1,000

	// Payload makes List read the payloads too. All payloads of a page are in memory at the same
	// time, so list few jobs at a time if payloads can be large. To read the payload of one job,
	// use [Client.Get]. Without it, [Job.Payload] is nil and [JobInfo.PayloadSize] is its size.
	Payload bool
}

const defaultLimit = 100 // of a ListQuery

// check returns the complaints about the query, with its limit set to the default if it is 0.
func (q *ListQuery) check() error {
	var errs []error
	if !slices.Contains([]State{StateScheduled, StateReady, StateRunning, StateDead, StateDone}, q.State) {
		errs = append(errs, fmt.Errorf("unknown state %q", q.State))
	}
	if q.Offset < 0 {
		errs = append(errs, fmt.Errorf("offset %d: must be at least 0", q.Offset))
	}
	if q.Limit == 0 {
		q.Limit = defaultLimit
	}
	if q.Limit < 1 || q.Limit > listJobs {
		errs = append(errs, fmt.Errorf("limit %d: must be from 1 to %d", q.Limit, listJobs))
	}
	return invalid(errs)
}

// List returns the jobs of a topic in one state: a page of at most Limit jobs, after the first
// Offset jobs of that state. A page with fewer jobs than its Limit is the last one.
//
// The order depends on the state:
//
//   - Scheduled jobs are sorted by due time.
//   - Ready jobs are in the order in which servers take them. A job on its way to a server may be
//     missing.
//   - Running jobs are sorted by the end of their lease.
//   - Dead jobs are sorted by time of burial, the latest first.
//   - Done jobs are sorted by the time until which they are kept.
//
// Jobs that change state between calls may be skipped or appear on two pages. To cancel all listed
// jobs, list the page at Offset 0 and pass it to [Client.CancelBatch], again and again until it is
// empty: a growing Offset would skip as many jobs as were cancelled.
//
// List makes several calls to Redis, each of which looks at up to 1,000 entries and reads at most
// about 1 MiB, or one job if that is larger. Cost: O(log(jobs) + Limit). For ready jobs it is
// O(Offset + Limit + entries that cancelled jobs have left in front of them).
func (c *Client) List(ctx context.Context, topic string, q ListQuery) ([]*JobInfo, error) {
	if err := errors.Join(c.validate(ctx, topic, ""), q.check()); err != nil {
		return nil, fmt.Errorf("list topic %q: %w", topic, err)
	}
	state, limit, cut := q.State, q.Limit, recordHead
	if q.Payload {
		cut = -1
	}

	k := newKeys(c.o.prefix, topic)
	at, skip := q.Offset, 0
	if state == StateReady { // an offset into the list would count entries that are not jobs
		at, skip = 0, q.Offset
	}
	var list []*JobInfo
	seen := make(map[string]bool) // an ID can be in ready twice
	for look := min(skip+limit, listJobs); ; look = listJobs {
		r, err := c.scripts.exec(ctx, listScript, k, "", look, string(state), at, look)
		if err != nil {
			return nil, err
		}
		ids := slices.DeleteFunc(r.list(3).texts(), func(id string) bool {
			again := seen[id]
			seen[id] = true
			return again
		})
		over := min(skip, len(ids))
		skip, ids = skip-over, ids[over:]
		for len(ids) > 0 && len(list) < limit {
			some := ids[:min(len(ids), limit-len(list))]
			infos, err := c.scripts.jobInfos(ctx, k, cut, some)
			if err != nil {
				return nil, err
			}
			for _, info := range infos {
				if info.State == state { // its state has changed in the meantime
					list = append(list, info)
				}
			}
			ids = ids[len(some):]
		}
		looked := int(r.number(2))
		if at += looked; len(list) == limit || looked < look {
			return list, nil
		}
	}
}
