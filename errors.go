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

// as is errors.As, also for an error whose methods panic: a nil pointer in an error is a common slip.
func as(err error, target any) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return errors.As(err, target)
}

// message is the text of an error, also of one whose Error method panics.
func message(err error) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("%T, whose Error method panics", err)
		}
	}()
	return err.Error()
}
