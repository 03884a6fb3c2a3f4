package delayq

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
)

// Get returns everything that is known about a job. It finds done jobs during their [Retention].
// Get returns [ErrNotFound] if there is no job with this ID.
func (c *Client) Get(ctx context.Context, topic, id string) (*JobInfo, error) {
	ctx, end := c.begin(ctx, CallEvent{Name: commit.Get.Name, Topic: topic, ID: id, Jobs: 1})
	o := &commit.Op{Kind: commit.Get, Topic: topic, ID: id}
	err := c.do(ctx, o)
	var info *JobInfo
	if err == nil {
		info, err = gotten(o)
	}
	if err = end.err(err); err != nil {
		return nil, err
	}
	return info, nil
}

// gotten returns the job that a get has found.
func gotten(o *commit.Op) (*JobInfo, error) {
	info := readJobInfo(o.Topic, o.ID, -1, func(column int) string { return o.Row[column] })
	if info == nil {
		return nil, o.Place().At(ErrNotFound)
	}
	return info, nil
}

// jobInfos looks up jobs, and skips those that do not exist. It reads cut bytes of each record, or
// the whole record if cut is -1. One call reads a bounded number of bytes, to keep Redis
// responsive, so large jobs take several.
func jobInfos(ctx context.Context, c script.Caller, k *script.Keys, cut int, ids []string) ([]*JobInfo, error) {
	var list []*JobInfo
	for ask := listJobs; len(ids) > 0; {
		some := ids[:min(len(ids), ask)]
		r, err := script.LookUp(ctx, c, k, script.CallBytes, cut, some)
		if err != nil {
			return nil, err
		}
		covered := min(len(r.List(2)), len(some))
		if covered == 0 {
			return nil, fmt.Errorf("get topic %q: %w", k.Topic, script.ErrReply)
		}
		for i, id := range some[:covered] {
			at := func(column int) string { return r.List(2 + column).Text(i) }
			if info := readJobInfo(k.Topic, id, cut, at); info != nil {
				list = append(list, info)
			}
		}
		ids = ids[covered:]
		ask = 2 * covered // IDs that the reply has no room for are sent in vain
	}
	return list, nil
}

// readJobInfo returns the JobInfo of one line of the reply of get.lua, or nil if there is no such
// job. It leaves out the payload of a record that was cut, even if the whole payload is there.
func readJobInfo(topic, id string, cut int, at func(column int) string) *JobInfo {
	raw := at(script.ColumnRecord)
	info := &JobInfo{Job: Job{Topic: topic, ID: id}}
	attempts, _ := strconv.Atoi(at(script.ColumnAttempts)) // "" is none
	info.Attempt = attempts + 1
	var done record.Done
	var known bool
	switch {
	case raw != "":
		info.State = StateReady
		info.Errors = attemptErrors(at(script.ColumnErrors))
	case at(script.ColumnResult) != "" && at(script.ColumnDone) != "":
		info.State = StateDone
		info.KeptUntil = scoreTime(at(script.ColumnDone))
		done, raw, known = record.DecodeDone(at(script.ColumnResult))
		if cut < 0 || len(raw) < cut { // else it may lack its end
			var output string
			if raw, output = done.Split(raw); cut < 0 && output != "" {
				info.output = run.FinalOutput(output)
			}
		}
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
	if m, ok := record.DecodeMoved(at(script.ColumnMoved)); ok {
		info.Due, info.DueReason = msTime(m.Due), DueReason(m.Why)
		info.Snoozes, info.spent = m.Snoozes, m.Spent
	}
	if score := at(script.ColumnBucket); score != "" {
		info.State, info.Due = StateScheduled, scoreTime(score)
	}
	if score := at(script.ColumnLease); score != "" {
		info.State, info.LeaseEnd = StateRunning, scoreTime(score)
		info.fence = new(atomic.Int64)
		info.fence.Store(record.ParseLeaseEnd(score).Micros())
	}
	if score := at(script.ColumnDead); score != "" {
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
	info.Headers, info.Key, info.Retries, info.PayloadSize = o.Headers, o.Key, o.Retries(), rec.Size
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
