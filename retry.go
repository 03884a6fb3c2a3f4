package delayq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// backoff is the delay after the failed attempt (from 1) of a job: first × 2^(attempt-1), at most limit, and up to a fifth of that
// added at random so that jobs which failed together do not come back together. With the defaults:
//
//	attempt   1    2    3    4     5     6     7      8      9      10       11       from 12
//	delay     2 s  4 s  8 s  16 s  32 s  64 s  128 s  256 s  512 s  1,024 s  2,048 s  4,096 s
func backoff(attempt int, first, limit int64) time.Duration {
	step := limit
	if doublings := max(attempt, 1) - 1; doublings < 62 && first <= limit>>doublings {
		step = first << doublings
	}
	return time.Duration(step+rand.Int64N(step/5+1)) * time.Millisecond
}

// verdict turns what a handler returned into what Redis is to be told.
func (t *topicServer) verdict(r *run, cause, err error, ran time.Duration) row {
	end := r.start.Add(ran)
	if err == nil {
		return row{run: r, verb: verbAck, end: end}
	}
	var c *crash
	var want wish
	if !as(err, &c) { // a panic with such a value asks for nothing
		want = wishOf(err)
	}
	if want.again != nil {
		renewal, bad := r.renew(want.again, end)
		if bad == nil {
			return row{run: r, verb: verbAgain, end: end, renewal: renewal, err: err}
		}
		err = badAgain(err, bad)
	}
	permanent := want.permanent
	if want.snooze != nil {
		past := r.past.snoozed(r.attempt - 1)
		return row{run: r, verb: verbSnooze, end: end, delay: want.snooze.delay(), past: past, err: err}
	}
	if errors.Is(cause, ErrShutdown) && c == nil && permanent == nil {
		return row{run: r, verb: verbReturn, end: end, err: err}
	}
	entry := AttemptError{
		Attempt: r.attempt, At: end, Ran: ran, Server: t.server.id, Kind: KindError,
		Type: fmt.Sprintf("%T", err), Message: message(err), Trace: r.job.Headers["traceparent"],
	}
	switch {
	case c != nil:
		entry.Kind, entry.Type, entry.Stack = c.kind, fmt.Sprintf("%T", c.value), string(c.stack)
	case errors.Is(cause, ErrTimeout):
		entry.Kind = KindTimeout
	}
	tries := r.attempt - r.past.spent
	switch {
	case permanent != nil:
		entry.Type = fmt.Sprintf("%T", permanent.err)
	case want.retry != nil:
		entry.Type = fmt.Sprintf("%T", want.retry.err)
	}
	if permanent != nil || r.opts.retry >= 0 && tries > r.opts.retry {
		return row{run: r, verb: verbBury, end: end, entry: entry.encode(), attempts: 1, err: err}
	}
	delay := backoff(tries, r.opts.backoffMin, r.opts.backoffMax)
	if want.retry != nil {
		delay = want.retry.delay()
	}
	entry.NextDue = end.Add(delay)
	return row{run: r, verb: verbRetry, end: end, delay: delay, past: r.past, entry: entry.encode(), err: err}
}

// refusal is what Redis is to be told of a taken job that is not to run; nil: it is.
func (t *topicServer) refusal(r *run, undecodable error, now int64) *row {
	switch job := r.job; {
	case errors.Is(undecodable, errNewerRecord):
		t.trouble.log.Error("job snoozed", "job", job.ID, "err", undecodable, "delay", newerRecordDelay)
		return &row{run: r, verb: verbSnooze, end: msTime(now), delay: newerRecordDelay, past: r.past, err: undecodable}
	case undecodable != nil:
		entry := AttemptError{Attempt: job.Attempt, At: msTime(now), Server: t.server.id, Kind: KindUndecodable, Message: undecodable.Error()}
		return &row{run: r, verb: verbBury, entry: entry.encode(), err: undecodable}
	case job.Due.After(msTime(now)) && job.Due.After(job.EnqueuedAt): // its entry in the bucket was lost, and a left-over of its ID was in ready
		t.trouble.log.Warn("job snoozed", "job", job.ID, "err", errNotDue, "delay", job.Due.Sub(msTime(now)))
		return &row{run: r, verb: verbSnooze, end: msTime(now), delay: job.Due.Sub(msTime(now)), past: r.past, err: errNotDue}
	case r.expires > 0 && now >= r.expires:
		return &row{run: r, verb: verbExpire}
	case r.opts.retry >= 0 && r.attempt-1-r.past.spent > r.opts.retry:
		return &row{run: r, verb: verbBury, err: ErrLeaseLost} // its last run was cut off: promote has put that on record
	}
	return nil
}

// errNotDue is why a job is put back that was taken before its time.
var errNotDue = errors.New("not due yet")

// Permanent marks err as one that no retry can mend: a handler that returns it has its job buried at once, whatever
// retries are left. An error that wraps it or is joined with it asks for the same. Only a panic goes before it: see
// [Handler]. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }

func (e *permanentError) Unwrap() error { return e.err }

// Snooze asks for another run after d: a handler that returns it has its job put back, due again after d, and that is
// no failure. It uses up no attempt and leaves no entry in the job's errors. The count of failures starts anew, so the
// job has all its retries again and its backoff begins with the first delay. [Job.Snoozes] counts how often.
//
// An error that wraps a Snooze or is joined with it asks for the same. [Permanent] and [Again] go
// before it, and it goes before [RetryIn]: see [Handler]. The whole error is in the hook's event.
// It is logged at Warn if another error is joined with the Snooze, and at Info if there is only a
// text around it. A Snooze alone is not logged.
//
// d is rounded up to the millisecond. A negative one counts as 0, one of more than 100 years as 100 years.
func Snooze(d time.Duration) error { return &snoozeError{d} }

type snoozeError struct{ d time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("delayq: snooze for %v", e.d) }

func (e *snoozeError) delay() time.Duration { return boundedDelay(e.d) }

// RetryIn marks err as a failure that chooses its own delay: the job of a handler that returns it is retried after d
// instead of its [Backoff]. It is a failure like any other in all else. It counts against [Retry], has an entry in the
// job's errors, and buries the job if no retry is left.
//
// An error that wraps a RetryIn or is joined with it asks for the same. [Permanent], [Again] and
// [Snooze] go before it: see [Handler]. RetryIn(d, nil) is nil.
//
// d is rounded up to the millisecond. A negative one counts as 0, one of more than 100 years as 100 years.
func RetryIn(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryInError{d, err}
}

type retryInError struct {
	d   time.Duration
	err error
}

func (e *retryInError) Error() string { return e.err.Error() }

func (e *retryInError) Unwrap() error { return e.err }

func (e *retryInError) delay() time.Duration { return boundedDelay(e.d) }

// boundedDelay is a delay that a handler has chosen, in whole milliseconds.
func boundedDelay(d time.Duration) time.Duration {
	return time.Duration(ceilMS(min(max(d, 0), maxDelay))) * time.Millisecond
}

// AsSnooze reports whether a handler that returns err has its job snoozed, and for how long. It is for middleware. A
// [Snooze] that a [Permanent] or an [Again] overrules is none.
func AsSnooze(err error) (time.Duration, bool) {
	if want := wishOf(err); want.snooze != nil {
		return want.snooze.delay(), true
	}
	return 0, false
}

// AsRetryIn reports whether a handler that returns err chooses the delay of its job's retry, and which one. It is for
// middleware. A [RetryIn] that a [Permanent], an [Again] or a [Snooze] overrules is none.
func AsRetryIn(err error) (time.Duration, bool) {
	if want := wishOf(err); want.retry != nil {
		return want.retry.delay(), true
	}
	return 0, false
}

// A wish is what an error asks for beside a plain retry: one of its fields, or nothing.
type wish struct {
	permanent *permanentError
	again     *againError
	snooze    *snoozeError
	retry     *retryInError
}

// wishOf finds what err asks for. What goes before what is documented at Handler.
func wishOf(err error) (w wish) {
	switch {
	case as(err, &w.permanent), as(err, &w.again), as(err, &w.snooze), as(err, &w.retry):
	}
	return w
}
