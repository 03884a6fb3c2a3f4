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

// shiftNamed moves the due times of jobs that are named. A job that changes after it was read keeps
// the due time that it has got.
func shiftNamed(ctx context.Context, c *delayq.Client, topic string, ids []string, by time.Duration) []error {
	refs := make([]delayq.JobRef, len(ids))
	for i, id := range ids {
		refs[i] = delayq.JobRef{Topic: topic, ID: id}
	}
	infos, _ := c.GetBatch(ctx, refs) // each result has its error
	return side(len(ids), func(i int) error {
		r := infos[i]
		switch {
		case r.Err != nil:
			return r.Err
		case r.Job.State != delayq.StateScheduled && r.Job.State != delayq.StateReady:
			return &exitCode{exitConflict, fmt.Sprintf("the job is %s", r.Job.State)}
		case r.Job.Due.IsZero():
			return errNoDue
		}
		return actAsRead(ctx, c, r.Job, delayq.Reschedule(delayq.ProcessAt(r.Job.Due.Add(by))))
	})
}

// errNoDue is the error of a job whose record cannot be read.
var errNoDue = errors.New("its due time cannot be read")

// A found is a job whose due time is to be moved.
type found struct {
	id  string
	due time.Time
}

// shift moves the due times of all jobs that match. It finds them all before it moves the first
// one, because a job that has been moved matches again. It begins with those that are moved away
// from the others: when it is stopped, the rest is on one side of a time. A job that has changed
// since it was found is skipped.
func (r *bulkRun) shift(ctx context.Context, q delayq.Query, by time.Duration, limit int64) (*delayq.Applied, error) {
	done := new(delayq.Applied)
	list, err := r.find(ctx, q, limit, done)
	if err != nil {
		return done, err
	}
	slices.SortStableFunc(list, func(a, b found) int {
		if by > 0 {
			return b.due.Compare(a.due)
		}
		return a.due.Compare(b.due)
	})
	unread := done.Failed
	size := chunk
	if r.b.pace > 0 {
		size = min(chunk, r.b.pace)
	}
	for some := range slices.Chunk(list, size) {
		failed := r.shiftSome(ctx, q, some, by, done)
		if failed == nil {
			failed = ctx.Err()
		}
		if failed != nil {
			return done, fmt.Errorf("%w; a second run would move jobs twice, unless it has %s", failed, rest(some[0].due, by))
		}
		r.line.show(*done)
		if r.b.pace > 0 && done.Done+done.Skipped+done.Failed < done.Matched {
			if err := wait(ctx, time.Second*time.Duration(size)/time.Duration(r.b.pace)); err != nil {
				return done, err
			}
		}
	}
	if unread > 0 {
		return done, fmt.Errorf("%s not moved: %w", count(unread, "job"), errNoDue)
	}
	return done, nil
}

// find returns the jobs that match with their due times, at most limit unless that is 0. It counts
// those whose due times cannot be read as failed.
func (r *bulkRun) find(ctx context.Context, q delayq.Query, limit int64, done *delayq.Applied) (list []found, err error) {
	for q.Limit = mostPage; ; {
		page, err := r.insp.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		done.Examined += int64(page.Examined)
		for _, job := range page.Jobs {
			if job.Due.IsZero() { // a list does not read large records
				if job, err = r.client.Get(ctx, q.Topic, job.ID); errors.Is(err, delayq.ErrNotFound) {
					continue
				} else if err != nil {
					return nil, err
				}
			}
			list = append(list, found{job.ID, job.Due})
		}
		if q.Cursor = page.Next; q.Cursor == "" || limit > 0 && int64(len(list)) >= limit {
			break
		}
		if len(list) > mostIDs {
			return nil, usage("more than %s jobs match; select fewer, or give --at-most", number(mostIDs))
		}
	}
	if more := q.Cursor != "" || limit > 0 && int64(len(list)) > limit; more && !r.asked {
		return nil, usage("more than %s %s jobs of %s match: give --at-most, or select fewer", number(limit), q.State, q.Topic)
	}
	if limit > 0 {
		list = list[:min(int64(len(list)), limit)]
	}
	done.Matched = int64(len(list))
	list = slices.DeleteFunc(list, func(job found) bool { return job.due.IsZero() })
	done.Failed = done.Matched - int64(len(list))
	return list, nil
}

// shiftSome moves the due times of some of the jobs, each as it was found, and counts what has
// become of them. The audit has one entry about all of them.
func (r *bulkRun) shiftSome(ctx context.Context, q delayq.Query, some []found, by time.Duration, done *delayq.Applied) (failed error) {
	quiet := delayq.WithActor(ctx, "") // of each job
	errs := side(len(some), func(i int) error {
		job := &delayq.JobInfo{Job: delayq.Job{Topic: q.Topic, ID: some[i].id, Due: some[i].due}, State: q.State}
		return library.ActOn(quiet, r.client, job, delayq.Reschedule(delayq.ProcessAt(job.Due.Add(by))))
	})
	moved, unknown := int64(0), int64(0)
	var text strings.Builder
	for i, err := range errs {
		switch {
		case err == nil:
			moved++
		case errors.Is(err, delayq.ErrNotFound), isConflict(err):
			done.Skipped++
			continue
		default:
			done.Failed++
			if failed = err; !errors.Is(err, delayq.ErrUnknownOutcome) {
				continue
			}
			unknown++
		}
		if text.Len() < mostNoted {
			fmt.Fprintf(&text, ", %q was due %s", some[i].id, exactTime(some[i].due))
		}
	}
	done.Done += moved
	act := "by " + by.String() + text.String()
	if unknown > 0 {
		act = fmt.Sprintf("outcome of %s unknown, %s", number(unknown), act)
	}
	if err := r.acted(library.Note(ctx, r.client, r.v.name, q.Topic, "", act, moved+unknown)); failed == nil {
		failed = err
	}
	return failed
}

// mostNoted is how many bytes an entry of the audit has about jobs. The library cuts it there.
const mostNoted = 2 << 10

// rest returns the flag that selects the jobs that were not moved, of which this time is the first.
func rest(due time.Time, by time.Duration) string {
	if by > 0 {
		return "--until " + due.Add(time.Millisecond).UTC().Format(time.RFC3339Nano)
	}
	return "--since " + due.UTC().Format(time.RFC3339Nano)
}
