package delayq

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// Errors from calls of a client. Test for them with errors.Is.
var (
	// ErrInvalid is returned when an argument or an option is out of range. Nothing was written.
	// The text lists every invalid argument with its name, its value and its bound.
	ErrInvalid = errors.New("delayq: invalid")

	// ErrDuplicate is returned by [Client.Enqueue] when an unfinished job with this ID exists. Dead
	// jobs are unfinished too. That job is unchanged, and nothing of the new one was written. The
	// error is a [DuplicateError], which has the state of the existing job. A dead job keeps its ID
	// until it is revived and completes, until [Client.Dequeue] deletes it, or until it exceeds
	// [DeadLimit]. With the option [ReplaceDead] the new job replaces a dead one. With [Replace] it
	// replaces any unfinished one.
	//
	// It is also returned when the ID is closed by a [Tombstone] or [UniqueFor].
	ErrDuplicate = errors.New("delayq: duplicate job ID")

	// ErrNotFound is returned when there is no job with this ID (it never existed, finished, was
	// cancelled or expired) or no schedule with this name.
	ErrNotFound = errors.New("delayq: not found")

	// ErrRunning is returned by [Client.Reschedule] and [Client.Bury] when the job is running. The
	// job is unchanged.
	ErrRunning = errors.New("delayq: job is running")

	// ErrDead is returned by [Client.Reschedule] and [Client.Bury] when the job is dead. The job is
	// unchanged. To run it again, use [Client.Revive].
	ErrDead = errors.New("delayq: job is dead")

	// ErrChanged is returned by a call with [IfUnchanged] when the job is not as it was when it was
	// read. The job is unchanged, and nothing was written. The error also wraps [ErrRunning] or
	// [ErrDead] if that is why [Client.Reschedule] or [Client.Bury] would have failed.
	ErrChanged = errors.New("delayq: job has changed")

	// ErrNotEmpty is returned by [Client.RemoveTopic] when the topic has jobs or schedules, or when
	// a server handles it. Nothing was removed.
	ErrNotEmpty = errors.New("delayq: topic is not empty")

	// ErrCursor is returned by [Inspector.Jobs] and [Inspector.All] when the cursor belongs to
	// another query, or when it is damaged. It wraps [ErrInvalid].
	ErrCursor = fmt.Errorf("%w cursor", ErrInvalid)

	// ErrGroupClosed is returned by [Group.Add] when the group is closed, or when its last step is
	// no longer there. No job was added.
	ErrGroupClosed = errors.New("delayq: the group is closed")

	// ErrTooManyPauses is returned by [Client.Pause] when 16 others have paused the topic. Nothing
	// was changed. [Client.ResumeAll] ends all of them.
	ErrTooManyPauses = errors.New("delayq: the topic already has 16 pauses")

	// ErrNotAudited is returned when an act of an actor ([WithActor]) is done, but the entry in the
	// audit was not written, for example because the Redis user lacks the right to it. The call
	// returns its other results too. Do not repeat the act. The error wraps the cause.
	ErrNotAudited = errors.New("delayq: done, but not recorded in the audit")

	// ErrNotReplicated is returned by [Client.Enqueue], along with the job, when the job is stored
	// but too few replicas confirmed it in time for [WaitReplicas]. The job runs unless a failover
	// loses it.
	ErrNotReplicated = errors.New("delayq: stored, but not confirmed by enough replicas")

	// ErrUnknownOutcome is returned when a request was sent and Redis did not reply: the call may
	// or may not have been carried out. The error wraps the cause too. If a request was never sent,
	// for example because the connection or the password was refused, it was not carried out, and
	// the call returns the cause alone.
	//
	// To find out about a job that is not due yet, call [Client.Get] or repeat the call:
	// [ErrDuplicate] means that the first call stored the job. A job that was already due may have
	// finished in the meantime.
	ErrUnknownOutcome = script.ErrUnknown
)

// A DuplicateError describes the job that has the ID of a rejected new one. It is an
// [ErrDuplicate].
type DuplicateError struct {
	Topic, ID string
	State     State     // of the job that has the ID, when the new one was rejected, or [StateTomb]; empty: unknown
	Since     time.Time // when that job was buried, by Redis's clock; zero unless it is dead
	Until     time.Time // when the ID is free again, by Redis's clock; zero unless State is StateTomb
}

// Error returns a text that says, for a dead job, how its ID becomes free.
func (e *DuplicateError) Error() string {
	switch e.State {
	case "":
		return ErrDuplicate.Error()
	case StateDead:
		return fmt.Sprintf("%v: that job has been dead since %s; Revive runs it again, Dequeue or ReplaceDead frees the ID",
			ErrDuplicate, e.Since.UTC().Format(time.RFC3339))
	case StateTomb:
		return fmt.Sprintf("%v: the ID is closed until %s, by a Tombstone or UniqueFor; Dequeue with Tombstone(0) frees it",
			ErrDuplicate, e.Until.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%v: that job is %s", ErrDuplicate, e.State)
}

// Is reports whether target is [ErrDuplicate], for errors.Is.
func (e *DuplicateError) Is(target error) bool { return target == ErrDuplicate }

// StateTomb is the State of a [DuplicateError] if no job has the ID, but the ID is closed by a
// [Tombstone] or by [UniqueFor]. It is no state of a job: no query has it.
const StateTomb State = "tomb"

// ErrTooManyTombs is returned when the topic has as many tombs as [TombLimit] allows. An Enqueue
// with [UniqueFor] has stored nothing. A [Client.Dequeue] with a [Tombstone] has cancelled the job,
// if there was one, and has not closed the ID.
var ErrTooManyTombs = errors.New("delayq: the topic has too many tombs")

// states holds the letters of replies that name the state in which the script found a job.
var states = map[byte]State{
	script.LetterScheduled: StateScheduled, script.LetterReady: StateReady, script.LetterRunning: StateRunning, script.LetterDead: StateDead, script.LetterDone: StateDone,
}

// mergedInto holds the letters that name the state of the job that has taken a payload.
var mergedInto = map[byte]State{
	script.LetterIntoScheduled: StateScheduled, script.LetterIntoReady: StateReady, script.LetterIntoRunning: StateRunning,
}

// outcomeOf returns the error of an operation. failed is why Redis has not said how it has ended;
// then it can still be on its way, and is not read.
func outcomeOf(o *commit.Op, failed error) error {
	if failed != nil {
		return failed
	}
	return o.Place().At(answered(o))
}

// answered returns the error that the answer to an operation means.
func answered(o *commit.Op) error {
	switch o.Kind {
	case commit.Get:
		return nil // its caller reads the row
	case commit.Enqueue, commit.EnqueueLinked, commit.FlowStart:
		return notStored(o)
	case commit.Arrive, commit.FlowSweep, commit.FlowCancel, commit.FlowRelease:
		return nil // to leave something alone is not an error
	case commit.Reschedule:
		if o.Letter == script.LetterBeyond {
			return hopeless(o.Move.Known.Expires(), o.Move.Due.Due(o.Now))
		}
		return movedFrom(o)
	case commit.Bury:
		return movedFrom(o)
	case commit.Cancel:
		return cancelled(o, foundAs(o))
	}
	return foundAs(o)
}

// foundAs returns the error that the letter of a job means which had to be in a state.
func foundAs(o *commit.Op) error {
	switch {
	case o.Letter == script.LetterGone:
		return ErrNotFound
	case o.Letter == script.LetterChanged:
		return ErrChanged
	case states[o.Letter] == "":
		return script.ErrReply
	}
	return nil
}

// few returns the first errors, and how many more there are.
func few(errs []error) []error {
	if len(errs) > keptErrors {
		errs = append(slices.Clone(errs[:keptErrors]), fmt.Errorf("and %d more errors", len(errs)-keptErrors))
	}
	return errs
}

// errorOf returns the error of a result.
func errorOf[R BatchResult](result R) error {
	switch r := any(result).(type) {
	case EnqueueResult:
		return r.Err
	case CancelResult:
		return r.Err
	case RescheduleResult:
		return r.Err
	case GetResult:
		return r.Err
	case ScheduleResult:
		return r.Err
	}
	return nil
}

// notStored returns why a job was not stored, or not safely; nil: it is.
func notStored(o *commit.Op) error {
	switch {
	case o.Letter == script.LetterExpired:
		expires := o.Fresh.Opts.Expires(o.EnqueuedAt)
		if due := o.Fresh.Opts.Due(o.EnqueuedAt); due >= expires || !o.Fresh.Replace.Merges() {
			return hopeless(expires, due)
		}
		return fmt.Errorf("%w: expires at %v, before the job that has its ID is due: it could never run", ErrInvalid, msTime(expires).UTC())
	case o.Letter == script.LetterFull:
		return ErrTooManyTombs
	case o.Letter == script.LetterTomb:
		return &DuplicateError{Topic: o.Topic, ID: o.ID, State: StateTomb, Until: msTime(o.Since)}
	case !script.Stored(o.Letter) && o.Known != "":
		return ErrChanged
	case !script.Stored(o.Letter):
		twin := &DuplicateError{Topic: o.Topic, ID: o.ID, State: states[o.Letter]}
		if o.Since != 0 {
			twin.Since = msTime(o.Since)
		}
		return twin
	case o.Unconfirmed != nil:
		return fmt.Errorf("%w: %w", ErrNotReplicated, o.Unconfirmed)
	}
	return nil
}

// movedFrom returns the error of a call that moves a scheduled or ready job. If the job was in
// another state when it was read, it has changed too.
func movedFrom(o *commit.Op) error {
	err := unmoved(o.Letter)
	if err != nil && o.Reads > 0 && o.Letter != o.Known[0] && (o.Letter == script.LetterRunning || o.Letter == script.LetterDead) {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}

// unmoved returns the error that a letter of the script means.
func unmoved(letter byte) error {
	switch letter {
	case script.LetterScheduled, script.LetterReady:
		return nil
	case script.LetterRunning:
		return ErrRunning
	case script.LetterDead:
		return ErrDead
	case script.LetterGone:
		return ErrNotFound
	case script.LetterChanged:
		return ErrChanged
	}
	return script.ErrReply
}

// An AttemptError is the stored error of one failed attempt.
type AttemptError struct {
	Attempt     int
	At          time.Time
	Duration    time.Duration // how long the handler ran; 0 if unknown
	Server      string        // ID of the server; empty if unknown
	Kind        ErrorKind
	Type        string    // Go type of the error or of the panic's value
	Message     string    // at most 1 KiB
	Stack       string    // of a panic or a goexit, at most 4 KiB
	NextDue     time.Time // when the retry is due; zero if there is none
	TraceParent string    // of the run (SetTraceParent), or else the job's header traceparent
}

// encode returns the entry of the error log.
func (e *AttemptError) encode() string {
	f := record.Failure{
		Attempt: e.Attempt, At: e.At.UnixMilli(), Ran: e.Duration.Milliseconds(), Server: e.Server, Kind: string(e.Kind), Type: e.Type,
		Message: e.Message, Stack: e.Stack, Trace: e.TraceParent,
	}
	if !e.NextDue.IsZero() {
		f.NextDue = e.NextDue.UnixMilli()
	}
	return f.Encode()
}

// attemptErrors returns the errors of an error log.
func attemptErrors(log string) (list []AttemptError) {
	for _, f := range record.DecodeFailures(log) {
		list = append(list, AttemptError{
			Attempt: f.Attempt, At: msTime(f.At), Duration: ofMS(f.Ran), Server: f.Server, Kind: ErrorKind(f.Kind),
			Type: f.Type, Message: f.Message, Stack: f.Stack, NextDue: orZero(f.NextDue), TraceParent: f.Trace,
		})
	}
	return list
}

// Errors from [Server.Run].
var (
	// ErrServerUsed is returned by Run when the server is running or has run. A Server can be run
	// only once.
	ErrServerUsed = serve.ErrUsed

	// ErrRedisAway is returned by Run when Redis could not be used within [FailFast]. The error
	// wraps the last cause too, such as a refused connection or password. No job was taken.
	ErrRedisAway = serve.ErrAway

	// ErrRedisVersion is returned by Run when Redis is older than 6.2.
	ErrRedisVersion = serve.ErrVersion
)

// Causes of the cancellation of a handler's context. Read them with context.Cause.
var (
	// ErrLeaseLost is the cause when the job no longer belongs to this worker: its lease ran out,
	// or it was replaced and the message about that was lost, or Redis has lost data. Another
	// worker may be running the job. The handler's result is ignored; an error is logged.
	ErrLeaseLost = run.ErrLeaseLost

	// ErrReplaced is the cause when a call with [Replace] has replaced this job with a new one of
	// the same ID. It wraps [ErrLeaseLost]. The handler's result is ignored; an error is logged. A
	// handler that replaces its own job is not cancelled.
	ErrReplaced = run.ErrReplaced

	// ErrCancelled is the cause when [Client.Dequeue] cancelled the job. The handler's result is
	// ignored; an error is logged.
	ErrCancelled = run.ErrCancelled

	// ErrShutdown is the cause when the server stops and the [Drain] timeout is over. A handler
	// that then returns nil still completes its job. If it returns an error, the job goes back to
	// ready without using up an attempt.
	ErrShutdown = run.ErrShutdown

	// ErrTimeout is the cause when the job's [Timeout] is over. It wraps context.DeadlineExceeded.
	ErrTimeout = run.ErrTimeout
)

// cancelled returns the error of a cancel that Redis has answered.
func cancelled(o *commit.Op, err error) error {
	switch {
	case !o.Full:
		return err
	case err == nil:
		return ErrTooManyTombs
	}
	return fmt.Errorf("%w; %w", err, ErrTooManyTombs)
}
