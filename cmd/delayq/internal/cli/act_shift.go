package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// A signed is the value of a flag for a duration that can have a plus.
type signed struct{ duration }

func (v *signed) Set(text string) error {
	rest, plus := strings.CutPrefix(text, "+")
	if plus && strings.HasPrefix(rest, "-") {
		return fmt.Errorf("%q is no duration", text)
	}
	return v.duration.Set(rest)
}

// shiftNamed moves the due times of jobs that are named.
func shiftNamed(ctx context.Context, c *delayq.Client, topic string, ids []string, by time.Duration) ([]error, error) {
	refs := make([]delayq.JobRef, len(ids))
	for i, id := range ids {
		refs[i] = delayq.JobRef{Topic: topic, ID: id}
	}
	infos, _ := c.GetBatch(ctx, refs) // each result has its error
	errs := make([]error, len(ids))
	var jobs []delayq.NewDue
	var at []int
	for i, r := range infos {
		switch {
		case r.Err != nil:
			errs[i] = r.Err
		case r.Job.State != delayq.StateScheduled && r.Job.State != delayq.StateReady:
			errs[i] = &exitCode{exitConflict, fmt.Sprintf("the job is %s", r.Job.State)}
		default:
			jobs, at = append(jobs, delayq.NewDue{Topic: topic, ID: ids[i], Due: delayq.ProcessAt(r.Job.Due.Add(by))}), append(at, i)
		}
	}
	results, err := c.RescheduleBatch(ctx, jobs)
	for n, r := range results {
		errs[at[n]] = r.Err
	}
	return errs, unaudited(err)
}

// shift moves the due times of all jobs that match. It finds them all before it moves the first
// one, because a job that has been moved matches again. It begins with those that are moved away
// from the others: when it is stopped, the rest is on one side of a time.
func (r *bulkRun) shift(ctx context.Context, q delayq.Query, by time.Duration, limit int64) (*delayq.Applied, error) {
	done := new(delayq.Applied)
	type found struct {
		id  string
		due time.Time
	}
	var list []found
	for q.Limit = mostPage; ; {
		page, err := r.insp.Jobs(ctx, q)
		if err != nil {
			return done, err
		}
		done.Examined += int64(page.Examined)
		for _, job := range page.Jobs {
			list = append(list, found{job.ID, job.Due})
		}
		if q.Cursor = page.Next; q.Cursor == "" || limit > 0 && int64(len(list)) >= limit {
			break
		}
		if len(list) > mostIDs {
			return done, usage("more than %s jobs match; select fewer, or give --at-most", number(mostIDs))
		}
	}
	if more := q.Cursor != "" || limit > 0 && int64(len(list)) > limit; more && !r.asked {
		return done, usage("more than %s %s jobs of %s match: give --at-most, or select fewer", number(limit), q.State, q.Topic)
	}
	if limit > 0 {
		list = list[:min(int64(len(list)), limit)]
	}
	done.Matched = int64(len(list))
	slices.SortStableFunc(list, func(a, b found) int {
		if by > 0 {
			return b.due.Compare(a.due)
		}
		return a.due.Compare(b.due)
	})
	size := chunk
	if r.b.pace > 0 {
		size = min(chunk, r.b.pace)
	}
	for some := range slices.Chunk(list, size) {
		jobs := make([]delayq.NewDue, len(some))
		for i, job := range some {
			jobs[i] = delayq.NewDue{Topic: q.Topic, ID: job.id, Due: delayq.ProcessAt(job.due.Add(by))}
		}
		results, err := r.client.RescheduleBatch(ctx, jobs)
		var failed error
		for _, result := range results {
			switch {
			case result.Err == nil:
				done.Done++
			case errors.Is(result.Err, delayq.ErrNotFound), isConflict(result.Err):
				done.Skipped++
			default:
				done.Failed++
				failed = result.Err
			}
		}
		if failed == nil {
			failed = ctx.Err()
		}
		if failed != nil {
			return done, fmt.Errorf("%w; a second run would move jobs twice, unless it has %s", failed, rest(some[0].due, by))
		}
		_ = r.acted(unaudited(err)) // it is about the audit
		r.line.show(*done)
		if r.b.pace > 0 && done.Done+done.Skipped < done.Matched {
			if err := wait(ctx, time.Second*time.Duration(size)/time.Duration(r.b.pace)); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// rest returns the flag that selects the jobs that were not moved, of which this time is the first.
func rest(due time.Time, by time.Duration) string {
	if by > 0 {
		return "--until " + due.Add(time.Millisecond).UTC().Format(time.RFC3339Nano)
	}
	return "--since " + due.UTC().Format(time.RFC3339Nano)
}
