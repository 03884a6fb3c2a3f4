package delayq

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors from a client's calls. Test for them with errors.Is.
var (
	// ErrInvalid is returned when an argument or an option is out of its bounds. Nothing was written. The text lists
	// every complaint with what, where and which bound.
	ErrInvalid = errors.New("delayq: invalid")

	// ErrDuplicate is returned by Enqueue when an unfinished job with this ID exists, in whatever state, dead included.
	// That job is left as it was and nothing of the new one was written. The error is a [DuplicateError], which says what state
	// that job is in. A dead job keeps its ID until it is revived and ends well, until [Client.Dequeue] forgets it, or for as long
	// as [DeadLimit] lets it lie. The option [ReplaceDead] makes a dead job give way, [Replace] any.
	ErrDuplicate = errors.New("delayq: duplicate job ID")

	// ErrNotFound is returned when there is no job with this ID: it never was, has ended, was cancelled or has expired; or no schedule of this
	// name.
	ErrNotFound = errors.New("delayq: not found")

	// ErrRunning is returned by Reschedule when the job is running. It was left alone.
	ErrRunning = errors.New("delayq: job is running")

	// ErrDead is returned by Reschedule when the job is dead. It was left alone; Revive brings it back.
	ErrDead = errors.New("delayq: job is dead")

	// ErrTooManyPauses is returned by Pause when 16 others have paused the topic. Nothing was done; ResumeAll ends all of them.
	ErrTooManyPauses = errors.New("delayq: a topic has 16 pauses at most")

	// ErrNotReplicated is returned by Enqueue, besides the job, when the job is stored but fewer replicas than WaitReplicas
	// asks for had confirmed it in time. It will run unless a failover loses it.
	ErrNotReplicated = errors.New("delayq: stored, but not confirmed by enough replicas")

	// ErrUnknownOutcome is returned when a request was sent and Redis did not answer: the call may have been carried
	// out or not. The cause is wrapped as well. A request that was never sent, because the connection or the password
	// was refused for example, was not carried out: then the cause is the error. Of a job that is not due yet Get tells, or the same call again: ErrDuplicate says that it is stored. A job that is
	// due may have come and gone meanwhile.
	ErrUnknownOutcome = errors.New("delayq: no answer from Redis, outcome unknown")
)

// A DuplicateError says which job has the ID of a new one that was refused. It is an [ErrDuplicate].
type DuplicateError struct {
	Topic, ID string
	State     State     // of the job that has the ID, when the new one was refused; empty: not known
	Since     time.Time // when that job was buried, by Redis's clock; zero unless it is dead
}

func (e *DuplicateError) Error() string {
	switch e.State {
	case "":
		return ErrDuplicate.Error()
	case StateDead:
		return fmt.Sprintf("%v: that job is dead since %s; Revive runs it again, Dequeue or ReplaceDead frees the ID",
			ErrDuplicate, e.Since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%v: that job is %s", ErrDuplicate, e.State)
}

// Is makes errors.Is find an ErrDuplicate.
func (e *DuplicateError) Is(target error) bool { return target == ErrDuplicate }

// Errors from Server.Run.
var (
	// ErrServerUsed is returned by Run when the server is running or has run. A Server runs once.
	ErrServerUsed = errors.New("delayq: server has been run before")

	// ErrRedisVersion is returned by Run when Redis is older than 6.2.
	ErrRedisVersion = errors.New("delayq: Redis 6.2 or newer is needed")
)

// Causes of the end of a handler's context. Read them with context.Cause.
var (
	// ErrLeaseLost is the cause when the job no longer belongs to this worker: its lease ran out, or
	// it was replaced and the announcement of that was lost, or Redis has lost its data. Another
	// worker may be running it.
	// Whatever the handler returns now changes nothing; an error is logged.
	ErrLeaseLost = errors.New("delayq: lease lost")

	// ErrReplaced is the cause when somebody else has put a new job of the same ID in the place of
	// this one, with [Replace]. It wraps ErrLeaseLost. Whatever the handler returns now changes
	// nothing; an error is logged. A handler that replaces its own job is not stopped.
	ErrReplaced = fmt.Errorf("delayq: job replaced: %w", ErrLeaseLost)

	// ErrCancelled is the cause when the job was cancelled by Dequeue. Whatever the handler returns
	// now changes nothing; an error is logged.
	ErrCancelled = errors.New("delayq: job cancelled")

	// ErrShutdown is the cause when the server stops and the drain timeout is over. A handler that returns nil still
	// finishes its job; one that returns an error gives it back without using up an attempt.
	ErrShutdown = errors.New("delayq: server is shutting down")

	// ErrTimeout is the cause when the job's Timeout is over. It wraps context.DeadlineExceeded.
	ErrTimeout = fmt.Errorf("delayq: job timeout: %w", context.DeadlineExceeded)
)

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

func (e *snoozeError) Error() string        { return fmt.Sprintf("delayq: snooze for %v", e.d) }
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

func (e *retryInError) Error() string        { return e.err.Error() }
func (e *retryInError) Unwrap() error        { return e.err }
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
