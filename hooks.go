package delayq

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Hook is told of events. It has one or more of the methods of the hook interfaces below; a value that has none is an error from
// the first call. Hooks are called in the order they were given, and what talks to Redis waits for some of them: they must be
// quick and safe for concurrent use. One that panics is reported to the Logger and otherwise ignored. One that calls runtime.Goexit ends
// nothing but itself, only Started ends its run (as a failure), and Enqueue and Enqueued the goroutine of the caller.
type Hook any

// EnqueueHook is called before a job is stored. It may add headers, by appending options to job. Jobs that are made by schedules are stored by a
// script, without it.
type EnqueueHook interface {
	Enqueue(ctx context.Context, job *NewJob)
}

// EnqueuedHook is called after an enqueueing, with its outcome.
type EnqueuedHook interface {
	Enqueued(ctx context.Context, event EnqueueEvent)
}

// StartedHook is called right before a handler is.
type StartedHook interface{ Started(event RunEvent) }

// DoneHook is called when a job has ended well and Redis knows it.
type DoneHook interface{ Done(event RunEvent) }

// RetriedHook is called when a failed job is back in the bucket; event.NextDue tells until when.
type RetriedHook interface{ Retried(event RunEvent) }

// SnoozedHook is called when a snoozed job is back in the bucket; event.NextDue tells until when.
type SnoozedHook interface{ Snoozed(event RunEvent) }

// BuriedHook is called when a job is dead.
type BuriedHook interface{ Buried(event RunEvent) }

// CancelledHook is called when a handler ended whose job had been cancelled meanwhile, and for a job that was cancelled between its take and its start.
type CancelledHook interface{ Cancelled(event RunEvent) }

// LeaseLostHook is called when a handler ended whose job did no longer belong to it, and for a job that was lost between its take and its start.
type LeaseLostHook interface{ LeaseLost(event RunEvent) }

// ExpiredHook is called when a job was dropped because its ExpireAt or ExpireIn had passed before it could be started.
type ExpiredHook interface{ Expired(event RunEvent) }

// ReturnedHook is called when a job is back in ready because its server stops.
type ReturnedHook interface{ Returned(event RunEvent) }

// PrunedHook is called when a server has removed dead or done jobs that are not to be kept any longer.
type PrunedHook interface{ Pruned(event PruneEvent) }

// ScriptHook is called after every script call, with Redis's part and the network's in Duration.
type ScriptHook interface{ Script(event ScriptEvent) }

// EnqueueEvent is what an EnqueuedHook is told.
type EnqueueEvent struct {
	Topic       string
	ID          string
	Due         time.Time // zero if Err is not nil
	PayloadSize int
	Err         error
}

// RunEvent is what the hooks of a run are told. All times are Redis's.
type RunEvent struct {
	Topic       string
	ID          string
	Attempt     int
	EnqueuedAt  time.Time
	Due         time.Time
	Start       time.Time // zero if no handler was called
	End         time.Time // zero if no handler has ended
	Outcome     Outcome   // empty for Started
	Err         error     // what the handler returned, or what stands for it
	NextDue     time.Time // zero if there is none
	PayloadSize int
	Headers     map[string]string
}

// Lateness is the time from Due to Start by Redis's clock.
func (e RunEvent) Lateness() time.Duration { return e.Start.Sub(e.Due) }

// PruneEvent is what a PrunedHook is told: of one topic, how many dead jobs were removed by [DeadLimit], which no one will ever run,
// and how many done ones whose [Retention] is over. At most 500 of each, so after an incident there are many events.
type PruneEvent struct {
	Topic      string
	Dead, Done int
}

// ScriptEvent is what a ScriptHook is told.
type ScriptEvent struct {
	Name     string // of the file in lua/, without its ending
	Topic    string // empty for heartbeat and watch, which are not about one topic
	Jobs     int    // how many jobs the call was about; for promote and take the most it asked for
	Duration time.Duration
	Err      error // nil if the script ran; context.Canceled if its caller gave the call up, as a server does that stops
}

// hooks holds hooks by what they are told.
type hooks struct {
	enqueue  []EnqueueHook
	enqueued []EnqueuedHook
	script   []ScriptHook
	pruned   []PrunedHook
	started  []func(RunEvent)
	outcome  map[Outcome][]func(RunEvent)
	trouble  func(recovered any) // called when a hook panics; nil: ignored
}

// add sorts hooks in and tells which are none.
func (h *hooks) add(list []Hook) (errs []error) {
	for _, hook := range list {
		known := false
		note := func(ok bool) bool { known = known || ok; return ok }
		if x, ok := hook.(EnqueueHook); note(ok) {
			h.enqueue = append(h.enqueue, x)
		}
		if x, ok := hook.(EnqueuedHook); note(ok) {
			h.enqueued = append(h.enqueued, x)
		}
		if x, ok := hook.(ScriptHook); note(ok) {
			h.script = append(h.script, x)
		}
		if x, ok := hook.(PrunedHook); note(ok) {
			h.pruned = append(h.pruned, x)
		}
		if x, ok := hook.(StartedHook); note(ok) {
			h.started = append(h.started, x.Started)
		}
		if x, ok := hook.(DoneHook); note(ok) {
			h.on(OutcomeAcked, x.Done)
		}
		if x, ok := hook.(RetriedHook); note(ok) {
			h.on(OutcomeRetried, x.Retried)
		}
		if x, ok := hook.(SnoozedHook); note(ok) {
			h.on(OutcomeSnoozed, x.Snoozed)
		}
		if x, ok := hook.(BuriedHook); note(ok) {
			h.on(OutcomeBuried, x.Buried)
		}
		if x, ok := hook.(CancelledHook); note(ok) {
			h.on(OutcomeCancelled, x.Cancelled)
		}
		if x, ok := hook.(LeaseLostHook); note(ok) {
			h.on(OutcomeLeaseLost, x.LeaseLost)
		}
		if x, ok := hook.(ExpiredHook); note(ok) {
			h.on(OutcomeExpired, x.Expired)
		}
		if x, ok := hook.(ReturnedHook); note(ok) {
			h.on(OutcomeReturned, x.Returned)
		}
		switch {
		case hook == nil:
			errs = append(errs, errors.New("a hook is nil"))
		case !known:
			errs = append(errs, fmt.Errorf("hook of type %T has none of the hook methods", hook))
		}
	}
	return errs
}

func (h *hooks) on(outcome Outcome, f func(RunEvent)) {
	if h.outcome == nil {
		h.outcome = make(map[Outcome][]func(RunEvent))
	}
	h.outcome[outcome] = append(h.outcome[outcome], f)
}

// guard calls f and keeps its panic from the caller.
func (h *hooks) guard(f func()) {
	defer func() {
		if p := recover(); p != nil && h.trouble != nil {
			h.trouble(p)
		}
	}()
	f()
}

// apart calls f like guard, in a goroutine of its own: a hook that calls runtime.Goexit, as FailNow of a test does, must not end a loop.
func (h *hooks) apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.guard(f)
	}()
	<-done
}

func (h *hooks) fireStarted(event RunEvent) {
	for _, f := range h.started {
		h.guard(func() { f(event) })
	}
}

func (h *hooks) fireOutcome(event RunEvent) {
	for _, f := range h.outcome[event.Outcome] {
		h.apart(func() { f(event) })
	}
}

func (h *hooks) firePruned(event PruneEvent) {
	for _, x := range h.pruned {
		h.apart(func() { x.Pruned(event) })
	}
}

func (h *hooks) tellScript(event ScriptEvent) {
	for _, x := range h.script {
		h.apart(func() { x.Script(event) })
	}
}
