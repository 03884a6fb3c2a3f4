package delayq

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// A policy decides for the server with that ID what happens to jobs.
type policy struct{ server string }

// Steers reports whether an error only says what is to happen to the job.
func (policy) Steers(err error) bool {
	switch err.(type) {
	case *snoozeError, *againError, *holdError:
		return true
	}
	return false
}

// Verdict turns the result of a handler into the row that is sent to Redis.
func (p policy) Verdict(r *run.Run, cause, err error, ran time.Duration) settle.Row {
	end := r.Start.Add(ran)
	if err == nil {
		return settle.Row{Run: r, Verb: settle.Ack, End: end}
	}
	var c *contain.Crash
	var want wish
	if !contain.As(err, &c) { // a panic with such a value requests nothing
		want = wishOf(err)
	}
	if want.again != nil {
		renewal, bad := renew(r, want.again, end)
		if bad == nil {
			_, bare := err.(*againError)
			return settle.Row{Run: r, Verb: settle.Again, End: end, Renewal: renewal, Err: err, Bare: bare}
		}
		err = badAgain(err, bad)
	}
	permanent := want.permanent
	if want.snooze != nil {
		past := r.Past.Snoozed(r.Attempt - 1)
		return settle.Row{Run: r, Verb: settle.Snooze, End: end, Delay: want.snooze.delay(), Tally: past, Err: err}
	}
	if hold := want.hold; hold != nil {
		switch delay := hold.delay(end); {
		case !hold.ofKey:
			return settle.Row{Run: r, Verb: settle.Hold, End: end, Delay: delay, Err: err}
		case r.Options.Key != "":
			return settle.Row{Run: r, Verb: settle.HoldKey, End: end, Delay: delay, Err: err}
		default: // a failure, because there is nothing to hold
			want.retry = &retryInError{delay, err}
		}
	}
	if errors.Is(cause, ErrShutdown) && c == nil && permanent == nil {
		return settle.Row{Run: r, Verb: settle.Return, End: end, Err: err}
	}
	entry := AttemptError{
		Attempt: r.Attempt, At: end, Duration: ran, Server: p.server, Kind: KindError,
		Type: fmt.Sprintf("%T", err), Message: contain.Message(err), TraceParent: r.TraceParent(),
	}
	switch {
	case c != nil:
		entry.Kind, entry.Type, entry.Stack = ErrorKind(c.Kind), fmt.Sprintf("%T", c.Value), string(c.Stack)
	case errors.Is(cause, ErrTimeout):
		entry.Kind = KindTimeout
	}
	tries := r.Attempt - r.Past.Spent
	switch {
	case permanent != nil:
		entry.Type = fmt.Sprintf("%T", permanent.err)
	case want.retry != nil:
		entry.Type = fmt.Sprintf("%T", want.retry.err)
	}
	if permanent != nil || r.Options.Retry >= 0 && tries > r.Options.Retry {
		return settle.Row{Run: r, Verb: settle.Bury, End: end, Failure: entry.encode(), Attempts: 1, Err: err}
	}
	delay := loop.Backoff(tries, r.Options.BackoffMin, r.Options.BackoffMax)
	if want.retry != nil {
		delay = want.retry.delay()
	}
	entry.NextDue = end.Add(delay)
	return settle.Row{Run: r, Verb: settle.Retry, End: end, Delay: delay, Tally: r.Past, Failure: entry.encode(), Err: err}
}

// newerRecordDelay is how long a record of a newer release is left alone before the next attempt.
const newerRecordDelay = 30 * time.Second

// Refusal returns the row to send for a taken job that must not run, or nil if it must run.
func (p policy) Refusal(r *run.Run, undecodable error, now int64, log *slog.Logger) *settle.Row {
	switch {
	case errors.Is(undecodable, record.ErrNewer):
		log.Error("job snoozed", "job", r.ID, "err", undecodable, "delay", newerRecordDelay)
		return &settle.Row{Run: r, Verb: settle.Snooze, End: msTime(now), Delay: newerRecordDelay, Tally: r.Past, Err: undecodable}
	case undecodable != nil:
		entry := AttemptError{Attempt: r.Attempt, At: msTime(now), Server: p.server, Kind: KindUndecodable, Message: undecodable.Error()}
		return &settle.Row{Run: r, Verb: settle.Bury, Failure: entry.encode(), Err: undecodable}
	case r.Due.After(msTime(now)) && r.Due.After(r.Enqueued):
		// its entry in the bucket was lost, and ready still held its ID
		log.Warn("job snoozed", "job", r.ID, "err", errNotDue, "delay", r.Due.Sub(msTime(now)))
		return &settle.Row{Run: r, Verb: settle.Snooze, End: msTime(now), Delay: r.Due.Sub(msTime(now)), Tally: r.Past, Err: errNotDue}
	case r.Expires > 0 && now >= r.Expires:
		return &settle.Row{Run: r, Verb: settle.Expire}
	case r.Options.Retry >= 0 && r.Attempt-1-r.Past.Spent > r.Options.Retry:
		// its last run was interrupted: promote has recorded that
		return &settle.Row{Run: r, Verb: settle.Bury, Err: ErrLeaseLost}
	}
	return nil
}

// errNotDue is the reason why a job that was taken too early is put back.
var errNotDue = errors.New("not due yet")

// Permanent marks err as not retryable. A handler that returns it has its job buried immediately,
// even if retries are left. An error that wraps it or is joined with it has the same effect. Only a
// panic takes precedence: see [Handler]. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }

func (e *permanentError) Unwrap() error { return e.err }

// Snooze requests another run after d. If a handler returns it, the job is scheduled again and due
// after d. A snooze is not a failure: it uses up no attempt and leaves no entry in the job's
// errors. The count of failures restarts, so the job has its full number of retries again and its
// backoff starts with the first delay. [Job.Snoozes] counts the snoozes.
//
// An error that wraps a Snooze or is joined with it has the same effect. [Permanent] and [Again]
// take precedence over it, and it takes precedence over [RetryIn]: see [Handler]. The event that
// hooks receive holds the whole error. The error is logged at Warn if another error is joined with
// the Snooze, and at Info if the Snooze is only wrapped. A Snooze alone is not logged.
//
// d is rounded up to the millisecond. A negative d counts as 0. Maximum: 100 years; a longer d
// counts as that.
func Snooze(d time.Duration) error { return &snoozeError{d} }

type snoozeError struct{ d time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("delayq: snooze for %v", e.d) }

func (e *snoozeError) delay() time.Duration { return boundedDelay(e.d) }

// RetryIn marks err as a failure that chooses its own delay. A handler that returns it has its job
// retried after d instead of its [Backoff]. In every other respect it is an ordinary failure. It
// counts against [Retry], has an entry in the job's errors, and buries the job if no retry is left.
//
// An error that wraps a RetryIn or is joined with it has the same effect. [Permanent], [Again] and
// [Snooze] take precedence over it: see [Handler]. RetryIn(d, nil) is nil.
//
// d is rounded up to the millisecond. A negative d counts as 0. Maximum: 100 years; a longer d
// counts as that.
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

// boundedDelay returns a delay that a handler has chosen, within the bounds and in whole
// milliseconds.
func boundedDelay(d time.Duration) time.Duration {
	return time.Duration(ceilMS(min(max(d, 0), maxDelay))) * time.Millisecond
}

// AsSnooze reports whether returning err from a handler snoozes the job, and returns the delay. Use
// it in middleware. If a [Permanent] or an [Again] takes precedence over the [Snooze], it reports
// false.
func AsSnooze(err error) (time.Duration, bool) {
	if want := wishOf(err); want.snooze != nil {
		return want.snooze.delay(), true
	}
	return 0, false
}

// AsRetryIn reports whether returning err from a handler chooses the delay of the retry, and
// returns the delay. Use it in middleware. If a [Permanent], an [Again] or a [Snooze] takes
// precedence over the [RetryIn], it reports false.
func AsRetryIn(err error) (time.Duration, bool) {
	if want := wishOf(err); want.retry != nil {
		return want.retry.delay(), true
	}
	return 0, false
}

// A wish is what an error requests beside a plain retry: one of its fields, or nothing.
type wish struct {
	permanent *permanentError
	again     *againError
	snooze    *snoozeError
	hold      *holdError
	retry     *retryInError
}

// wishOf returns what err requests. Handler documents the order of precedence.
func wishOf(err error) (w wish) {
	switch {
	case contain.As(err, &w.permanent), contain.As(err, &w.again), contain.As(err, &w.snooze), contain.As(err, &w.hold), contain.As(err, &w.retry):
	}
	return w
}
