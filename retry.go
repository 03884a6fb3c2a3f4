// What happens to a job whose handler has returned. internal/settle has the rows that say so, and
// internal/serve/settle.go sends them.

package delayq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

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
		next, bad := nextStage(r, end)
		switch {
		case bad != nil:
			err = bad
		case next != nil:
			return settle.Row{Run: r, Verb: settle.Again, End: end, Renewal: next, Bare: true}
		default:
			return settle.Row{Run: r, Verb: settle.Ack, End: end}
		}
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
		switch delay := hold.delay(); {
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
	entry := p.failure(r, want, cause, err, ran)
	tries := r.Attempt - r.Past.Spent
	if permanent != nil || r.Options.Retry >= 0 && tries > r.Options.Retry {
		return passOn(settle.Row{Run: r, Verb: settle.Bury, End: end, Failure: entry.encode(), Attempts: 1, Err: err}, &entry)
	}
	delay := loop.Backoff(tries, r.Options.BackoffMin, r.Options.BackoffMax)
	if want.retry != nil {
		delay = want.retry.delay()
	}
	entry.NextDue = end.Add(delay)
	return settle.Row{Run: r, Verb: settle.Retry, End: end, Delay: delay, Tally: r.Past, Failure: entry.encode(), Err: err}
}

// failure returns what is kept of an attempt that has failed.
func (p policy) failure(r *run.Run, want wish, cause, err error, ran time.Duration) AttemptError {
	entry := AttemptError{
		Attempt: r.Attempt, At: r.Start.Add(ran), Duration: ran, Server: p.server, Kind: KindError,
		Type: fmt.Sprintf("%T", err), Message: contain.Message(err), TraceParent: r.TraceParent(),
	}
	var c *contain.Crash
	switch {
	case contain.As(err, &c):
		entry.Kind, entry.Type, entry.Stack = ErrorKind(c.Kind), fmt.Sprintf("%T", c.Value), string(c.Stack)
	case errors.Is(cause, ErrTimeout):
		entry.Kind = KindTimeout
	}
	switch {
	case want.permanent != nil:
		entry.Type = fmt.Sprintf("%T", want.permanent.err)
	case want.retry != nil:
		entry.Type = fmt.Sprintf("%T", want.retry.err)
	}
	return entry
}

// Refusal returns the row to send for a taken job that must not run, or nil if it must run. Jobs of
// later releases do not get here.
func (p policy) Refusal(r *run.Run, undecodable error, now int64, log *slog.Logger) *settle.Row {
	switch {
	case undecodable != nil:
		entry := AttemptError{Attempt: r.Attempt, At: msTime(now), Server: p.server, Kind: KindUndecodable, Message: undecodable.Error()}
		return &settle.Row{Run: r, Verb: settle.Bury, Failure: entry.encode(), Err: undecodable}
	case r.Due.After(msTime(now)) && r.Due.After(r.Enqueued):
		// its entry in the bucket was lost, and ready still held its ID
		log.Warn("job snoozed", "job", r.ID, "err", errNotDue, "delay", r.Due.Sub(msTime(now)))
		return &settle.Row{Run: r, Verb: settle.Snooze, End: msTime(now), Delay: r.Due.Sub(msTime(now)), Tally: r.Past, Err: errNotDue}
	case r.Expires > 0 && now >= r.Expires:
		return &settle.Row{Run: r, Verb: settle.Expire}
	case r.Options.Plan != nil && r.Options.Plan.Closed() && !r.Past.Revived:
		failed := r.Options.Plan.Failed[0]
		entry := AttemptError{Attempt: failed.Attempt, At: msTime(failed.At), Kind: ErrorKind(failed.Kind), Message: failed.Message}
		return &settle.Row{Run: r, Verb: settle.Bury, Failure: entry.encode(), Err: fmt.Errorf("stage %d has failed: %s", failed.Stage+1, failed.Message)}
	case r.Options.Retry >= 0 && r.Attempt-1-r.Past.Spent > r.Options.Retry:
		// its last run was interrupted: promote has recorded that
		entry := AttemptError{Attempt: r.Attempt - 1, At: msTime(now), Kind: KindLeaseLost, Message: ErrLeaseLost.Error()}
		row := passOn(settle.Row{Run: r, Verb: settle.Bury, Err: ErrLeaseLost}, &entry)
		return &row
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

// Again continues a job under the same ID. If a handler returns it, the job is completed and, in
// the same step, a new job with the same ID and this payload is enqueued. No crash can separate the
// two: either the old job runs again, or the new one exists.
//
//	return delayq.Again(state, delayq.ProcessIn(24*time.Hour))
//
// The completed job is treated as if its handler had returned nil: it counts as acked and is kept
// for its [Retention]. While the new job exists, Get and Jobs show the new one. The new job counts
// as enqueued, has another nonce, starts with attempt 1 and has no errors and no snoozes. Unless
// opts say otherwise, it has the options of the completed one: [Retry], [Backoff], [Timeout],
// Retention, the headers, and an [ExpireIn] that starts again. Without [ProcessIn] or [ProcessAt]
// it is due immediately. It does not inherit an [ExpireAt] or the [Defaults] of the handler.
// [Replace] and [ReplaceDead] have no effect here.
//
// If the completed job belongs to a schedule, so does the new one, with the same slot. For the
// schedule's overlap policy, the run continues until a handler ends the job without Again.
//
// Nothing is enqueued if the job was cancelled, replaced or lost in the meantime. If opts are
// invalid or the payload has more than 64 MiB, the run is a failed attempt, with an [ErrInvalid]
// that names the fault. [WaitReplicas] and the bound of [MaxPayload] belong to clients and do not
// apply.
//
// An error that wraps an Again or is joined with it has the same effect, unless it contains a
// [Permanent]: see [Handler]. An error that is joined with it is logged and is in the event of
// [AgainHook].
func Again(payload []byte, opts ...JobOption) error { return &againError{payload, opts} }

type againError struct {
	payload []byte
	opts    []JobOption
}

func (e *againError) Error() string { return "delayq: again" }

// IsAgain reports whether returning err from a handler enqueues the job again. Use it in
// middleware. If a [Permanent] takes precedence over the [Again], it reports false.
func IsAgain(err error) bool { return wishOf(err).again != nil }

var errPlanExpires = errors.New("ProcessAtEach: not with ExpireAt or ExpireIn; Job.Lateness tells a handler how late it is")

// renew returns the job that follows the one of a run that has ended at end.
func renew(r *run.Run, again *againError, end time.Time) (*settle.Renewal, error) {
	if n := len(again.payload); n > mostPayload {
		return nil, fmt.Errorf("again: %w: payload of %d bytes, at most %d are allowed", ErrInvalid, n, mostPayload)
	}
	o := jobOptions{Options: r.Options.Given()}
	o.DueAt, o.DueIn, o.ExpireAt, o.Plan = 0, 0, 0, nil
	o, err := o.with(again.opts)
	switch plan := r.Options.Plan; {
	case err == nil && o.Plan != nil && o.Scheduled:
		err = fmt.Errorf("%w: ProcessAtEach: the job belongs to a schedule", ErrInvalid)
	case o.Plan == nil && plan != nil:
		o.Plan = plan.Again()
		if err == nil && (o.ExpireAt > 0 || o.ExpireIn > 0) {
			err = fmt.Errorf("%w: %w", ErrInvalid, errPlanExpires)
		}
	}
	if bad := o.onlyEnqueue("not in Again, whose job has the ID already"); err == nil && bad != nil {
		err = fmt.Errorf("%w: %w", ErrInvalid, bad)
	}
	if err == nil && o.guard != nil {
		err = fmt.Errorf("%w: IfUnchanged: not in Again, whose job is that of the run", ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("again: %w", err)
	}
	now := end.UnixMilli()
	n := &settle.Renewal{When: instantOr(o.DueAt, o.DueIn), Due: msTime(o.Due(now))}
	if expires := o.Expires(now); expires > 0 && o.Due(now) >= expires {
		return nil, fmt.Errorf("again: %w", hopeless(expires, o.Due(now)))
	}
	if n.Head, n.Tail, err = record.Encode(record.NewNonce(), &o.Options, again.payload); err != nil {
		return nil, fmt.Errorf("again: %w", err)
	}
	return n, nil
}

// nextStage returns the job of what follows in a plan when its present stage has succeeded. It
// returns nil if nothing follows, and for a job without a plan.
func nextStage(r *run.Run, end time.Time) (*settle.Renewal, error) {
	if r.Options.Plan == nil {
		return nil, nil
	}
	return stageOf(r, end, r.Options.Plan.Next)
}

// stageOf returns the job of a stage of a plan that follows a run that has ended at end. next
// returns the plan, and its due time or 0 for now.
func stageOf(r *run.Run, end time.Time, next func() (*record.Plan, int64)) (n *settle.Renewal, err error) {
	o := r.Options.Given()
	if o.Plan, o.DueAt = next(); o.Plan == nil {
		return nil, nil
	}
	o.DueIn = 0
	n = &settle.Renewal{When: instantOr(o.DueAt, 0), Due: msTime(o.Due(end.UnixMilli())), Stage: true}
	n.Head, n.Tail, err = record.Encode(record.NewNonce(), &o, r.Payload)
	return n, err
}

// passOn returns the row of a run that has failed for good: bury, or that of the next stage if the
// job has one.
func passOn(bury settle.Row, why *AttemptError) settle.Row {
	r := bury.Run
	if r.Options.Plan == nil {
		return bury
	}
	next, err := stageOf(r, why.At, func() (*record.Plan, int64) {
		return r.Options.Plan.Fail(record.FailedStage{At: why.At.UnixMilli(), Attempt: why.Attempt, Kind: string(why.Kind), Message: why.Message})
	})
	if next == nil || err != nil {
		return bury
	}
	return settle.Row{Run: r, Verb: settle.Pass, End: why.At, Delay: max(0, next.Due.Sub(why.At)), Renewal: next, Err: bury.Err}
}

// badAgain returns the error of an attempt whose Again is invalid, joined with the handler's other
// errors.
func badAgain(err, bad error) error {
	if _, bare := err.(*againError); bare {
		return bad
	}
	return fmt.Errorf("%w: %w", bad, err)
}

// Hold makes the whole topic wait for d, for example because an API has answered "429 Too Many
// Requests". The job goes back to the head of ready, and its attempt is not used up. No server
// takes a job of the topic until d has passed. If several handlers return Hold, the latest end
// counts: a hold prolongs another one and never shortens it.
//
// Jobs that run already continue. Jobs that their server has taken ahead may still start; a topic
// with [Limits] has none. In a topic with partitions ([Client.Partition]), the partition of the job
// is held, and the others go on until a handler returns the same there.
//
// An error that wraps a Hold or is joined with it has the same effect, and its message is kept as
// the reason: see [TopicStats]. [Permanent], [Again] and [Snooze] take precedence: see [Handler].
// [Client.EndHold] ends a hold early. d is rounded up to the millisecond. A d of 0 or less only
// returns the job. Maximum: 100 years; a longer d counts as that. For a time, such as that of a
// Retry-After header, write Hold(time.Until(t)). docs/howto/stopping.md compares all calls that
// stop jobs.
func Hold(d time.Duration) error { return &holdError{d: d} }

// HoldKey makes the key of the job wait for d, for example because the API of one tenant has
// answered "429 Too Many Requests": see [Key]. The job goes back to its place among those of its
// key, and its attempt is not used up. No server takes a job of the key until d has passed. Jobs of
// other keys and jobs without a key continue. The rest is as for [Hold]: the latest end counts, and
// jobs that run or were taken ahead are not affected. In a topic with partitions that are not by
// key ([ByKey]), the jobs of the key in the partition of the job are held.
//
// A job without a key fails instead: it is retried after d, or buried if no retry is left. Of a
// Hold and a HoldKey in one error the first counts. [Client.ResumeKey] ends a hold early.
// docs/howto/stopping.md compares all calls that stop jobs.
func HoldKey(d time.Duration) error { return &holdError{d: d, ofKey: true} }

type holdError struct {
	d     time.Duration
	ofKey bool // only the key of the job is held
}

func (e *holdError) Error() string {
	what := "hold"
	if e.ofKey {
		what = "hold the key"
	}
	return fmt.Sprintf("delayq: %s for %v", what, e.d)
}

// delay returns how long the hold is.
func (e *holdError) delay() time.Duration { return boundedDelay(e.d) }

// AsHold reports whether returning err from a handler holds the topic, and returns for how long.
// Use it in middleware. If a [Permanent], an [Again] or a [Snooze] takes precedence over the
// [Hold], it reports false. So it does for [HoldKey].
func AsHold(err error) (time.Duration, bool) {
	want := wishOf(err)
	if want.hold == nil || want.hold.ofKey {
		return 0, false
	}
	return want.hold.delay(), true
}

// An Outcome is the way a run of a job ended. [RunEvent] and [RunInfo] have it; use it as a label
// of metrics. An Outcome that ends a job or puts it back is also the name of a [Counter].
type Outcome string

// The outcomes of a run.
const (
	OutcomeAcked     Outcome = "acked"      // the handler returned nil: the job is completed
	OutcomeRetried   Outcome = "retried"    // the run failed: it is due again after its backoff
	OutcomeSnoozed   Outcome = "snoozed"    // the handler returned Snooze: the job is due again
	OutcomeBuried    Outcome = "buried"     // the run failed for good: the job is dead
	OutcomeExpired   Outcome = "expired"    // dropped, because its expiry passed before its start
	OutcomeReturned  Outcome = "returned"   // the server stopped: the job is back in ready
	OutcomeCancelled Outcome = "cancelled"  // Dequeue cancelled the job during its run
	OutcomeReplaced  Outcome = "replaced"   // an Enqueue with Replace replaced it during its run
	OutcomeLeaseLost Outcome = "lease_lost" // the lease ran out before the run ended
	OutcomeAgain     Outcome = "again"      // the handler returned Again: the job is enqueued again
	OutcomeHeld      Outcome = "held"       // the handler returned Hold or HoldKey: the job is ready again
)

// outcomeNames lists all outcomes.
var outcomeNames = []Outcome{
	OutcomeAcked, OutcomeRetried, OutcomeSnoozed, OutcomeBuried, OutcomeExpired, OutcomeReturned, OutcomeCancelled, OutcomeReplaced,
	OutcomeLeaseLost, OutcomeAgain, OutcomeHeld,
}

// An ErrorKind is the kind of failure of an attempt: see [AttemptError].
type ErrorKind string

// The kinds of failure.
const (
	KindError       ErrorKind = "error"       // the handler returned an error
	KindPanic       ErrorKind = "panic"       // the handler panicked
	KindGoexit      ErrorKind = "goexit"      // the handler called runtime.Goexit
	KindTimeout     ErrorKind = "timeout"     // the handler returned an error after its Timeout
	KindLeaseLost   ErrorKind = "lease_lost"  // the lease ran out first: mostly after a crash
	KindUndecodable ErrorKind = "undecodable" // the job's record cannot be read
	KindBuried      ErrorKind = "buried"      // no run: Bury or Apply buried the job, with a reason
	KindDependency  ErrorKind = "dependency"  // no run: a step of the flow has failed
	KindDeadline    ErrorKind = "deadline"    // no run: steps of the flow were missing at its deadline
	KindLostFlow    ErrorKind = "lost_flow"   // no run: Redis has lost the data of the flow
)

// maxTraceParent is the maximum length of a trace parent. Version 00 of the format has 55 bytes.
const maxTraceParent = 255

// SetTraceParent sets the traceparent (of W3C Trace Context) that is kept with the error of the
// present run if it fails: see [AttemptError]. Without it, the header traceparent of the job is
// kept. It has at most 255 bytes of UTF-8, and Redis is not called. With the context of a batch, it
// does so for each job of the batch; with that of [Job.Context], only for that job.
//
// SetTraceParent returns [ErrInvalid] if ctx is not the context of a handler, or if traceparent is
// too long or not UTF-8.
func SetTraceParent(ctx context.Context, traceparent string) error {
	if err := checkContext(ctx); err != nil {
		return fmt.Errorf("set trace parent: %w", err)
	}
	switch n := len(traceparent); {
	case !run.In(ctx):
		return fmt.Errorf("set trace parent: %w: not the context of a handler", ErrInvalid)
	case n > maxTraceParent:
		return fmt.Errorf("set trace parent: %w: %d bytes, at most %d are allowed", ErrInvalid, n, maxTraceParent)
	case !utf8.ValidString(traceparent):
		return fmt.Errorf("set trace parent: %w: %q is not UTF-8", ErrInvalid, traceparent)
	}
	run.SetTrace(ctx, traceparent)
	return nil
}
