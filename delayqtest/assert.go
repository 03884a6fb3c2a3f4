package delayqtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/delayq/delayq"
)

// Scheduled returns the jobs of a topic that are not due yet, the earliest first: new, snoozed and
// backing off.
func (q *TestQueue) Scheduled(topic string) []*delayq.JobInfo {
	q.t.Helper()
	list, err := q.list(topic, delayq.StateScheduled)
	if err != nil {
		q.t.Fatalf("delayqtest: %v", err)
	}
	return list
}

// AssertScheduled fails the test unless a job with this ID is scheduled for exactly this due time
// (to the millisecond, rounded up). The message says what the topic has instead. The test
// continues.
func (q *TestQueue) AssertScheduled(topic, id string, due time.Time) {
	q.t.Helper()
	due = ceil(due)
	if job, ok := q.find(topic, id); ok && (job.State != delayq.StateScheduled || !job.Due.Equal(due)) {
		q.t.Errorf("topic %q: want job %q scheduled %s, but it is %s", topic, id, at(due, q.Now()), describeOne(job, q.Now()))
	}
}

// AssertState fails the test unless there is a job with this ID in this state. The message has the
// actual state and the last error. Done jobs exist only during their Retention. The test continues.
func (q *TestQueue) AssertState(topic, id string, want delayq.State) {
	q.t.Helper()
	if job, ok := q.find(topic, id); ok && job.State != want {
		q.t.Errorf("topic %q: want job %q %s, but it is %s", topic, id, want, describeOne(job, q.Now()))
	}
}

// AssertNone fails the test if the topic has a scheduled, ready, running or dead job, and lists
// them. Of a ready job it says what it waits for. The test continues.
func (q *TestQueue) AssertNone(topic string) {
	q.t.Helper()
	list, err := q.unfinished(topic)
	if err != nil {
		q.t.Fatalf("delayqtest: %v", err)
	}
	if len(list) > 0 {
		q.t.Errorf("topic %q: want no jobs, but there are %d: %s", topic, len(list), q.describe(context.Background(), list, q.Now()))
	}
}

// find returns a job, and fails the test if there is none.
func (q *TestQueue) find(topic, id string) (job *delayq.JobInfo, ok bool) {
	q.t.Helper()
	job, err := q.Client.Get(context.Background(), topic, id)
	if err == nil {
		return job, true
	}
	if !errors.Is(err, delayq.ErrNotFound) {
		q.t.Fatalf("delayqtest: %v", err)
	}
	list, err := q.unfinished(topic)
	switch {
	case err != nil:
		q.t.Fatalf("delayqtest: %v", err)
	case len(list) == 0:
		q.t.Errorf("topic %q: there is no job %q, nor any other", topic, id)
	default:
		q.t.Errorf("topic %q: there is no job %q, but there are %d others: %s", topic, id, len(list), q.describe(context.Background(), list, q.Now()))
	}
	return nil, false
}

// unfinished returns all jobs of a topic except the done ones.
func (q *TestQueue) unfinished(topic string) (all []*delayq.JobInfo, err error) {
	for _, state := range []delayq.State{delayq.StateRunning, delayq.StateReady, delayq.StateScheduled, delayq.StateDead} {
		list, err := q.list(topic, state)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// list returns the jobs of a topic in a state, with their payloads.
func (q *TestQueue) list(topic string, state delayq.State) (all []*delayq.JobInfo, err error) {
	ctx := context.Background()
	var refs []delayq.JobRef
	for info, err := range q.Inspector.All(ctx, delayq.Query{Topic: topic, State: state, Limit: 1000}) {
		if err != nil {
			return nil, err
		}
		refs = append(refs, delayq.JobRef{Topic: topic, ID: info.ID})
	}
	results, _ := q.Client.GetBatch(ctx, refs) // the results have the errors
	for _, r := range results {
		switch {
		case errors.Is(r.Err, delayq.ErrNotFound): // it has gone in the meantime
		case r.Err != nil:
			return all, r.Err
		case r.Job.State == state:
			all = append(all, r.Job)
		}
	}
	return all, nil
}

// timeFormat is the format of times in messages.
const timeFormat = "2006-01-02 15:04:05.000"

// at formats a time, absolute and relative to now.
func at(t, now time.Time) string {
	switch d := t.Sub(now); {
	case d > 0:
		return fmt.Sprintf("at %s (in %v)", t.Format(timeFormat), d)
	case d < 0:
		return fmt.Sprintf("at %s (%v ago)", t.Format(timeFormat), -d)
	default:
		return fmt.Sprintf("at %s (now)", t.Format(timeFormat))
	}
}

// describe returns a line about jobs, about the first ten at most. Of a ready one it says what it
// waits for.
func (q *Queue) describe(ctx context.Context, list []*delayq.JobInfo, now time.Time) string {
	var parts []string
	for i, job := range list {
		if i == 10 {
			parts = append(parts, "…")
			break
		}
		text := describeOne(job, now)
		if job.State == delayq.StateReady {
			if why, err := q.Inspector.Explain(ctx, job.Topic, job.ID); err == nil && len(why.Reasons) > 0 {
				_, reason, _ := strings.Cut(why.Verdict, ": ")
				text += fmt.Sprintf(" (%s)", strings.TrimSuffix(reason, "."))
			}
		}
		parts = append(parts, fmt.Sprintf("%q %s", job.ID, text))
	}
	return strings.Join(parts, ", ")
}

func describeOne(job *delayq.JobInfo, now time.Time) string {
	text := string(job.State)
	switch job.State {
	case delayq.StateScheduled:
		text = "scheduled " + at(job.Due, now)
	case delayq.StateRunning:
		text = fmt.Sprintf("running attempt %d", job.Attempt)
	}
	if n := len(job.Errors); n > 0 {
		text += fmt.Sprintf(" after attempt %d failed: %s", job.Errors[n-1].Attempt, job.Errors[n-1].Message)
	}
	return text
}
