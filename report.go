package delayq

import (
	"context"
	"errors"
	"fmt"
	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/loop"
	"log/slog"
	"slices"
)

func (r row) outcome() Outcome {
	if r.lost != nil {
		return lostOutcome(r.lost)
	}
	return verbs[r.verb].outcome
}

// reportAll reports the outcomes of runs to the log and the hooks. The hooks are called in a
// goroutine of their own. If one of them ends it, another goroutine continues with the next hook.
// Each hook is a sign of life of the loop that has the sign g.
func (t *topicServer) reportAll(rows []row, g *loop.Sign) {
	h := &t.server.o.hooks
	if len(h.outcome)+len(h.run) == 0 {
		for _, r := range rows {
			t.logOutcome(r)
		}
		return
	}
	var event RunEvent
	var fire []func(RunEvent) // what is still to be called with the event
	var ends *runEnd          // what is to be called after that
	for len(rows) > 0 || len(fire) > 0 || ends != nil {
		h.apart(func() {
			for {
				for len(fire) > 0 || ends != nil {
					var f func(RunEvent)
					if len(fire) > 0 {
						f, fire = fire[0], fire[1:]
					} else {
						f, ends = ends.call, ends.before
					}
					g.Called()
					h.guard(func() { f(event) })
				}
				if len(rows) == 0 {
					return
				}
				r := rows[0]
				rows = rows[1:]
				t.logOutcome(r)
				fire, ends = h.outcome[r.outcome()], r.run.ends.Swap(nil)
				if len(fire) > 0 || ends != nil {
					event = r.event(t.server.id)
				}
			}
		})
	}
}

// reportOutcome counts and reports the outcome of a run that was not settled.
func (t *topicServer) reportOutcome(r row) {
	t.mu.Lock()
	t.countLocked(&r)
	t.mu.Unlock()
	t.reportAll([]row{r}, nil)
}

// A runEnd is a function that a RunHook has returned, with those of the hooks before it.
type runEnd struct {
	call   func(RunEvent)
	before *runEnd
}

// addEnd adds a function that is to be called at the end of the run.
func (r *run) addEnd(f func(RunEvent)) {
	for e := (&runEnd{call: f}); ; {
		e.before = r.ends.Load()
		if r.ends.CompareAndSwap(e.before, e) {
			return
		}
	}
}

// logOutcome logs the outcome of a run.
func (t *topicServer) logOutcome(r row) {
	run, log := r.run, t.trouble.log
	switch r.outcome() {
	case OutcomeRetried:
		log.Warn("job retried", "job", run.id, "attempt", run.attempt, "err", contain.Message(r.err), "delay", r.delay)
	case OutcomeBuried:
		log.Error("job buried", "job", run.id, "attempt", run.attempt, "err", contain.Message(r.err))
	case OutcomeLeaseLost:
		t.remark(slog.LevelWarn, "lease lost", r)
	case OutcomeCancelled: // by Dequeue, or deleted manually
		t.remark(slog.LevelInfo, "job cancelled", r)
	case OutcomeReplaced:
		t.remark(slog.LevelInfo, "job replaced", r)
	case OutcomeAgain:
		t.remark(quiet, "job enqueued again", r)
	case OutcomeReturned:
		t.remark(quiet, "job returned", r)
	case OutcomeSnoozed:
		t.remark(quiet, "job snoozed", r, "delay", r.delay)
	case OutcomeHeld:
		if r.verb == verbHoldKey {
			t.remark(slog.LevelInfo, "key held", r, "key", r.run.opts.Key, "delay", r.delay)
		} else {
			t.remark(slog.LevelInfo, "topic held", r, "delay", r.delay)
		}
	case OutcomeExpired:
		t.remark(slog.LevelInfo, "job expired", r)
	}
}

// event returns the hooks' event for a run that has ended.
func (r row) event(server string) RunEvent {
	err, why := r.err, r.lost
	if why == nil && r.verb == verbReturn {
		why = r.cause
	}
	switch {
	case why == nil || why == err:
	case err == nil:
		err = why
	default:
		err = fmt.Errorf("%w: %w", why, err)
	}
	event := r.run.event(server, r.outcome(), err)
	event.FinishedAt, event.Output = r.end, r.output
	switch event.Outcome {
	case OutcomeRetried, OutcomeSnoozed, OutcomeHeld:
		event.NextDue = r.end.Add(r.delay)
	case OutcomeAgain:
		event.NextDue = r.renewal.due
	}
	var c *contain.Crash
	if contain.As(r.err, &c) {
		event.Stack = string(c.Stack)
	}
	return event
}

// quiet is the level of a line that is logged only if the handler returned an error worth logging.
const quiet = slog.LevelDebug - 1

// remark logs an outcome that does not depend on the handler's error. The line includes that error,
// and the stack if it is a panic, because nothing else reports them. An error makes the line a
// warning, and a panic makes it an error. An error that only says that the context was cancelled,
// or that the job is snoozed, does not change the line.
func (t *topicServer) remark(level slog.Level, text string, r row, more ...any) {
	var c *contain.Crash
	switch said := r.err; {
	case said == nil || r.run.start.IsZero() || r.plain(said): // the server's own reason
	case contain.As(said, &c):
		level = slog.LevelError
		more = append(more, "err", contain.Message(said), "stack", string(c.Stack))
	default:
		more = append(more, "err", contain.Message(said))
		if level = max(level, slog.LevelInfo); r.loud(said) {
			level = max(level, slog.LevelWarn)
		}
	}
	if level > quiet {
		more = append([]any{"job", r.run.id, "attempt", r.run.attempt}, more...)
		t.trouble.log.Log(context.Background(), level, text, more...)
	}
}

// plain reports whether an error adds no information: it is the error of the cancelled context, or
// it steers the job.
func (r row) plain(err error) bool {
	switch err.(type) {
	case *snoozeError, *againError, *holdError:
		return true
	}
	switch {
	case r.cause == nil:
		return false
	case errors.Is(r.cause, context.DeadlineExceeded):
		return err == r.cause || err == context.DeadlineExceeded
	}
	return err == r.cause || err == context.Canceled
}

// loud reports whether an error wraps one that adds information. It returns true if the error's
// methods panic.
func (r row) loud(err error) (loud bool) {
	defer func() {
		if recover() != nil {
			loud = true
		}
	}()
	if r.plain(err) {
		return false
	}
	switch x := err.(type) {
	case interface{ Unwrap() error }:
		inner := x.Unwrap()
		return inner == nil || r.loud(inner)
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(x.Unwrap(), func(inner error) bool { return inner != nil && r.loud(inner) })
	}
	return true
}

// reportLate reports a handler that returns after the drain. Its job has already been given back,
// and its outcome has been reported.
func (t *topicServer) reportLate(r row) {
	r.verb, r.lost = verbReturn, nil
	t.remark(quiet, "handler returned late", r)
	h, event := &t.server.o.hooks, r.event(t.server.id)
	for end := r.run.ends.Swap(nil); end != nil; end = end.before { // of a hook that was running then
		h.apart(func() { end.call(event) })
	}
	event.Outcome = ""
	for _, f := range h.late {
		h.apart(func() { f(event) })
	}
}

// reportUnsettled logs the handlers' errors in outcomes that Redis did not receive, and ends the
// runs for the RunHooks.
func (t *topicServer) reportUnsettled() {
	t.mu.Lock()
	rows := t.outcomes.takeAll()
	t.mu.Unlock()
	for _, r := range rows {
		t.remark(quiet, "job not settled", r)
		for end := r.run.ends.Swap(nil); end != nil; end = end.before {
			event := r.event(t.server.id)
			event.Outcome = ""
			t.server.o.hooks.apart(func() { end.call(event) })
		}
	}
}

// reportLost reports a run that was lost before it started.
func (t *topicServer) reportLost(r *run) {
	t.reportOutcome(row{run: r}.as(r.lost))
}

// lostOutcome returns the outcome of a run that has lost its job.
func lostOutcome(lost error) Outcome {
	switch {
	case errors.Is(lost, ErrCancelled):
		return OutcomeCancelled
	case errors.Is(lost, ErrReplaced):
		return OutcomeReplaced
	}
	return OutcomeLeaseLost
}

// event returns the hooks' event for a run.
func (r *run) event(server string, outcome Outcome, err error) RunEvent {
	return RunEvent{
		Topic: r.topic, ID: r.id, Attempt: r.attempt, EnqueuedAt: r.enqueued, Due: r.due,
		StartedAt: r.start, Outcome: outcome, Server: server, Err: err, PayloadSize: int(r.size), Headers: r.opts.Headers,
	}
}
