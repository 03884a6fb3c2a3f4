package serve

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/run"
	"github.com/delayq/delayq/internal/settle"
)

// reportAll reports the outcomes of runs to the log and the observer. Each call of a hook is a sign
// of life of the loop that has the sign g.
func (t *Topic) reportAll(rows []settle.Row, g *loop.Sign) {
	t.Server.Config.Observer.Ended(rows, t.logOutcome, g.Called)
}

// reportOutcome counts and reports the outcome of a run that was not settled.
func (t *Topic) reportOutcome(r settle.Row) {
	t.Mu.Lock()
	t.countLocked(&r)
	t.Mu.Unlock()
	t.reportAll([]settle.Row{r}, nil)
}

// logOutcome logs the outcome of a run.
func (t *Topic) logOutcome(r settle.Row) {
	run, log := r.Run, t.trouble.log
	switch r.Outcome() {
	case record.OutcomeRetried:
		if r.Verb == settle.Pass {
			log.Error("stage failed", "job", run.ID, "stage", run.Options.Plan.Stage+1, "attempt", run.Attempt, "err", contain.Message(r.Err), "delay", r.Delay)
			return
		}
		log.Warn("job retried", "job", run.ID, "attempt", run.Attempt, "err", contain.Message(r.Err), "delay", r.Delay)
	case record.OutcomeBuried:
		log.Error("job buried", "job", run.ID, "attempt", run.Attempt, "err", contain.Message(r.Err))
	case record.OutcomeLeaseLost:
		t.remark(slog.LevelWarn, "lease lost", r)
	case record.OutcomeCancelled: // by Dequeue, or deleted manually
		t.remark(slog.LevelInfo, "job cancelled", r)
	case record.OutcomeReplaced:
		t.remark(slog.LevelInfo, "job replaced", r)
	case record.OutcomeAgain:
		t.remark(quiet, "job enqueued again", r)
	case record.OutcomeReturned:
		t.remark(quiet, "job returned", r)
	case record.OutcomeSnoozed:
		t.remark(quiet, "job snoozed", r, "delay", r.Delay)
	case record.OutcomeHeld:
		if r.Verb == settle.HoldKey {
			t.remark(slog.LevelInfo, "key held", r, "key", r.Run.Options.Key, "delay", r.Delay)
		} else {
			t.remark(slog.LevelInfo, "topic held", r, "delay", r.Delay)
		}
	case record.OutcomeExpired:
		t.remark(slog.LevelInfo, "job expired", r)
	}
}

// quiet is the level of a line that is logged only if the handler returned an error worth logging.
const quiet = slog.LevelDebug - 1

// remark logs an outcome that does not depend on the handler's error. The line includes that error,
// and the stack if it is a panic, because nothing else reports them. An error makes the line a
// warning, and a panic makes it an error. An error that only says that the context was cancelled,
// or that the job is snoozed, does not change the line.
func (t *Topic) remark(level slog.Level, text string, r settle.Row, more ...any) {
	var c *contain.Crash
	switch said := r.Err; {
	case said == nil || r.Run.Start.IsZero() || t.plain(r, said): // the server's own reason
	case contain.As(said, &c):
		level = slog.LevelError
		more = append(more, "err", contain.Message(said), "stack", string(c.Stack))
	default:
		more = append(more, "err", contain.Message(said))
		if level = max(level, slog.LevelInfo); t.loud(r, said) {
			level = max(level, slog.LevelWarn)
		}
	}
	if level > quiet {
		more = append([]any{"job", r.Run.ID, "attempt", r.Run.Attempt}, more...)
		t.trouble.log.Log(context.Background(), level, text, more...)
	}
}

// plain reports whether an error adds no information: it is the error of the cancelled context, or
// it steers the job.
func (t *Topic) plain(r settle.Row, err error) bool {
	switch {
	case t.Server.Config.Judge.Steers(err):
		return true
	case r.Cause == nil:
		return false
	case errors.Is(r.Cause, context.DeadlineExceeded):
		return err == r.Cause || err == context.DeadlineExceeded
	}
	return err == r.Cause || err == context.Canceled
}

// loud reports whether an error wraps one that adds information. It returns true if the error's
// methods panic.
func (t *Topic) loud(r settle.Row, err error) (loud bool) {
	defer func() {
		if recover() != nil {
			loud = true
		}
	}()
	if t.plain(r, err) {
		return false
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		inner := x.Unwrap()
		return inner == nil || t.loud(r, inner)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(x.Unwrap(), func(inner error) bool { return inner != nil && t.loud(r, inner) })
	}
	return true
}

// reportLate reports a handler that returns after the drain. Its job has already been given back,
// and its outcome has been reported.
func (t *Topic) reportLate(r settle.Row) {
	r.Verb, r.Lost = settle.Return, nil
	t.remark(quiet, "handler returned late", r)
	t.Server.Config.Observer.Late(r)
}

// reportUnsettled reports the outcomes that Redis did not receive.
func (t *Topic) reportUnsettled() {
	t.Mu.Lock()
	rows := t.Outcomes.TakeAll()
	t.Mu.Unlock()
	for _, r := range rows {
		t.remark(quiet, "job not settled", r)
		t.Server.Config.Observer.Unsettled(r)
	}
}

// reportLost reports a run that was lost before it started.
func (t *Topic) reportLost(r *run.Run) {
	t.reportOutcome(settle.Row{Run: r}.As(r.Lost))
}
