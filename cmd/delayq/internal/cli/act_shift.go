package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
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
	return side(len(ids), whileReached(func(i int) error {
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
	}))
}

// errNoDue is the error of a job whose record cannot be read.
var errNoDue = errors.New("its due time cannot be read")

// errNotTried is the error of a call that was not made, because Redis has not answered one before.
var errNotTried = errors.New("not tried, because Redis did not answer")

// whileReached makes no more calls after one that Redis has not answered.
func whileReached(call func(i int) error) func(i int) error {
	var lost atomic.Bool
	return func(i int) error {
		if lost.Load() {
			return errNotTried
		}
		err := call(i)
		if failed, _ := unrecorded(err); failed != nil && unreachable(failed) {
			lost.Store(true)
		}
		return err
	}
}

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
	size := chunk
	if r.b.pace > 0 {
		size = min(chunk, r.b.pace)
	}
	for len(list) > 0 {
		some := list[:min(size, len(list))]
		step, err := r.shiftSome(ctx, q, some, by, done)
		if !step.whole() {
			list = list[len(some):]
		}
		r.line.show(*done)
		if err == nil && r.b.pace > 0 && len(list) > 0 {
			err = wait(ctx, time.Second*time.Duration(size)/time.Duration(r.b.pace))
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			r.line.clear()
			if !step.whole() { // no time divides these jobs from those that were moved
				r.name(q.Topic+": not moved: ", step.left)
				r.name(q.Topic+": moved or not: ", step.unknown)
			}
			if len(list) > 0 {
				r.say("%s: jobs are left; to go on without moving a job twice: %s", q.Topic, rest(list[0].due, by))
			}
			return done, err
		}
	}
	if done.Failed > 0 {
		return done, fmt.Errorf("%s of %s failed: %w", number(done.Failed), count(done.Matched, "job"), errors.Join(done.Errs...))
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
			if r.shifted[delayq.JobRef{Topic: q.Topic, ID: job.ID}] { // from another state into this one
				continue
			}
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
	list = slices.DeleteFunc(list, func(job found) bool {
		if job.due.IsZero() {
			fails(done, fmt.Errorf("%s: %w", idText(job.id), errNoDue))
		}
		return job.due.IsZero()
	})
	return list, nil
}

// fails counts a job that has failed.
func fails(done *delayq.Applied, err error) {
	if done.Failed++; len(done.Errs) < mostErrors {
		done.Errs = append(done.Errs, err)
	}
}

// mostErrors is how many errors of single jobs are shown.
const mostErrors = 10

// A cut has the jobs of a step that has ended early: those that were not moved, and those of which
// nobody knows.
type cut struct {
	all           int // jobs of the step
	left, unknown []string
}

// whole reports whether none of the jobs was moved.
func (c *cut) whole() bool { return len(c.left) == c.all }

// name says something about jobs, if there are any.
func (r *bulkRun) name(what string, ids []string) {
	if len(ids) > 0 {
		r.say("%s%s", what, strings.Join(ids, " "))
	}
}

// shiftSome moves the due times of some of the jobs, each as it was found, and counts what has
// become of them. The audit has one entry about all of them. A job that would expire by then fails,
// and the others go on. After another error the next jobs must not be moved.
func (r *bulkRun) shiftSome(ctx context.Context, q delayq.Query, some []found, by time.Duration, done *delayq.Applied) (*cut, error) {
	quiet := delayq.WithActor(ctx, "") // of each job
	errs := side(len(some), whileReached(func(i int) error {
		job := &delayq.JobInfo{Job: delayq.Job{Topic: q.Topic, ID: some[i].id, Due: some[i].due}, State: q.State}
		return library.ActOn(quiet, r.client, job, delayq.Reschedule(delayq.ProcessAt(job.Due.Add(by))))
	}))
	o, moved, failed := &cut{all: len(some)}, int64(0), error(nil)
	var text strings.Builder
	for i, err := range errs {
		switch {
		case err == nil:
			moved++
			if r.shifted != nil {
				r.shifted[delayq.JobRef{Topic: q.Topic, ID: some[i].id}] = true
			}
		case errors.Is(err, delayq.ErrNotFound), isConflict(err):
			done.Skipped++
			continue
		case errors.Is(err, delayq.ErrUnknownOutcome):
			fails(done, err)
			o.unknown, failed = append(o.unknown, idText(some[i].id)), err
		case errors.Is(err, delayq.ErrInvalid):
			fails(done, err)
			continue
		default:
			if o.left = append(o.left, idText(some[i].id)); failed == nil || errors.Is(failed, errNotTried) {
				failed = err
			}
			continue
		}
		if text.Len() < mostNoted {
			fmt.Fprintf(&text, ", %q was due %s", some[i].id, exactTime(some[i].due))
		}
	}
	done.Done += moved
	act, unknown := "by "+by.String()+text.String(), int64(len(o.unknown))
	if unknown > 0 {
		act = fmt.Sprintf("outcome of %s unknown, %s", number(unknown), act)
	}
	if err := r.acted(library.Note(ctx, r.client, r.v.name, q.Topic, "", act, moved+unknown)); failed == nil {
		failed = err
	}
	return o, failed
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
