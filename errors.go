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
	// That job is left as it was and nothing of the new one was written. The option Replace makes it give way.
	ErrDuplicate = errors.New("delayq: duplicate job ID")

	// ErrNotFound is returned when there is no job with this ID: it never was, has ended, was cancelled or has expired; or no schedule of this
	// name.
	ErrNotFound = errors.New("delayq: not found")

	// ErrRunning is returned by Reschedule when the job is running. It was left alone.
	ErrRunning = errors.New("delayq: job is running")

	// ErrDead is returned by Reschedule when the job is dead. It was left alone; Revive brings it back.
	ErrDead = errors.New("delayq: job is dead")

	// ErrNotReplicated is returned by Enqueue, besides the job, when the job is stored but fewer replicas than WaitReplicas
	// asks for had confirmed it in time. It will run unless a failover loses it.
	ErrNotReplicated = errors.New("delayq: stored, but not confirmed by enough replicas")

	// ErrUnknownOutcome is returned when Redis did not answer: the call may have been carried out or not. The cause is
	// wrapped as well. Of a job that is not due yet Get tells, or the same call again: ErrDuplicate says that it is stored. A job that is
	// due may have come and gone meanwhile.
	ErrUnknownOutcome = errors.New("delayq: no answer from Redis, outcome unknown")
)

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
	// it was replaced and the announcement of that was lost. Another worker may be running it.
	// Whatever the handler returns now changes nothing; an error is logged.
	ErrLeaseLost = errors.New("delayq: lease lost")

	// ErrReplaced is the cause when somebody else has put a new job of the same ID in the place of
	// this one, with [Replace]. It wraps ErrLeaseLost. Whatever the handler returns now changes
	// nothing; an error is logged. A handler that replaces its own job is not stopped.
	ErrReplaced = fmt.Errorf("delayq: job replaced: %w", ErrLeaseLost)

	// ErrCancelled is the cause when the job was cancelled by Dequeue. Whatever the handler returns now changes nothing; an error is
	// logged.
	ErrCancelled = errors.New("delayq: job cancelled")

	// ErrShutdown is the cause when the server stops and the drain timeout is over. A handler that returns nil still
	// finishes its job; one that returns an error gives it back without using up an attempt.
	ErrShutdown = errors.New("delayq: server is shutting down")

	// ErrTimeout is the cause when the job's Timeout is over. It wraps context.DeadlineExceeded.
	ErrTimeout = fmt.Errorf("delayq: job timeout: %w", context.DeadlineExceeded)
)

// Permanent wraps an error that no retry can mend. A handler that returns it has its job buried at once, whatever retries
// are left. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Snooze, returned by a handler, puts its job back to be due again after d, without using up an attempt and without an entry
// in its errors. d is bounded like ProcessIn; a negative one is taken as 0.
func Snooze(d time.Duration) error { return &snoozeError{d} }

type snoozeError struct{ d time.Duration }

func (e *snoozeError) Error() string { return fmt.Sprintf("delayq: snooze for %v", e.d) }
