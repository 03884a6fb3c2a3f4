package delayq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"
)

// A Hook is called when something happens. It has one or more of the methods of the hook interfaces below. Those of
// EnqueueHook and EnqueuedHook are called by a [Client], that of ScriptHook by both, all others by a [Server]. It is an
// error from the first call to give NewClient or NewServer a value without a method that it calls, or a value that has a
// method with the name of a hook's and another signature. One value with methods of both sides may be given to both.
//
// Hooks are called in the order they were given, and what talks to Redis waits for some of them: they must be quick and
// safe for concurrent use. One that panics is reported to the Logger and otherwise ignored. One that calls runtime.Goexit ends
// nothing but itself, only Started ends its run (as a failure), and Enqueue and Enqueued the goroutine of the caller.
type Hook any

// EnqueueHook is called before a job is stored. It may add headers, by appending options to job. It
// is not called for jobs that are made by schedules and by [Again]: scripts store these.
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

// AgainHook is called, in place of DoneHook, when a job has ended with [Again] and Redis has the
// new one; event.NextDue tells when that is due. No EnqueueHook and no EnqueuedHook is called for
// it.
type AgainHook interface{ Again(event RunEvent) }

// RetriedHook is called when a failed job is back in the bucket; event.NextDue tells until when.
type RetriedHook interface{ Retried(event RunEvent) }

// SnoozedHook is called when a snoozed job is back in the bucket; event.NextDue tells until when.
type SnoozedHook interface{ Snoozed(event RunEvent) }

// BuriedHook is called when a job is dead.
type BuriedHook interface{ Buried(event RunEvent) }

// CancelledHook is called when a handler ended whose job had been cancelled meanwhile, and for a job that was cancelled between its take and its start.
type CancelledHook interface{ Cancelled(event RunEvent) }

// ReplacedHook is called when a handler ended whose job had been replaced meanwhile, by somebody
// else or by the handler itself, and for a job that was replaced between its take and its start.
type ReplacedHook interface{ Replaced(event RunEvent) }

// LeaseLostHook is called when a handler ended whose job did no longer belong to it, and for a job that was lost between its take and its start.
type LeaseLostHook interface{ LeaseLost(event RunEvent) }

// ExpiredHook is called when a job was dropped because its ExpireAt or ExpireIn had passed before it could be started.
type ExpiredHook interface{ Expired(event RunEvent) }

// ReturnedHook is called when a job is back in ready because its server stops.
type ReturnedHook interface{ Returned(event RunEvent) }

// PrunedHook is called when a server has removed dead or done jobs that are not to be kept any longer.
type PrunedHook interface{ Pruned(event PruneEvent) }

// LateHook is called when a handler ends after all that outlived the Drain of its server. Its job
// has been given back, and ReturnedHook has been told.
type LateHook interface{ Late(event RunEvent) }

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
	Topic      string
	ID         string
	Attempt    int
	EnqueuedAt time.Time
	Due        time.Time
	Start      time.Time // zero if no handler was called
	End        time.Time // zero if no handler has ended
	Outcome    Outcome   // empty for Started and Late

	// Err is what the handler returned, or what stands for it. Of a run that was cancelled,
	// replaced, lost or returned it wraps both the cause of that and what the handler returned.
	Err   error
	Stack string // of a panic or a runtime.Goexit of the handler

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
	late     []func(RunEvent)
	outcome  map[Outcome][]func(RunEvent)
	trouble  func(*crash) // called when a hook panics; nil: ignored
}

// A side is who calls a hook.
type side int

const (
	clientSide side = 1 << iota
	serverSide
)

// makers says which constructor takes the hooks of a side.
var makers = map[side]string{clientSide: "NewClient", serverSide: "NewServer"}

// hookKinds are the hook interfaces, each of one method: who calls it, and how a hook that has it is kept.
var hookKinds = []struct {
	side side
	kind reflect.Type
	keep func(h *hooks, hook Hook)
}{
	{clientSide, reflect.TypeFor[EnqueueHook](), func(h *hooks, x Hook) { h.enqueue = append(h.enqueue, x.(EnqueueHook)) }},
	{clientSide, reflect.TypeFor[EnqueuedHook](), func(h *hooks, x Hook) { h.enqueued = append(h.enqueued, x.(EnqueuedHook)) }},
	{clientSide | serverSide, reflect.TypeFor[ScriptHook](), func(h *hooks, x Hook) { h.script = append(h.script, x.(ScriptHook)) }},
	{serverSide, reflect.TypeFor[PrunedHook](), func(h *hooks, x Hook) { h.pruned = append(h.pruned, x.(PrunedHook)) }},
	{serverSide, reflect.TypeFor[StartedHook](), func(h *hooks, x Hook) { h.started = append(h.started, x.(StartedHook).Started) }},
	{serverSide, reflect.TypeFor[DoneHook](), func(h *hooks, x Hook) { h.on(OutcomeAcked, x.(DoneHook).Done) }},
	{serverSide, reflect.TypeFor[AgainHook](), func(h *hooks, x Hook) { h.on(OutcomeAgain, x.(AgainHook).Again) }},
	{serverSide, reflect.TypeFor[RetriedHook](), func(h *hooks, x Hook) { h.on(OutcomeRetried, x.(RetriedHook).Retried) }},
	{serverSide, reflect.TypeFor[SnoozedHook](), func(h *hooks, x Hook) { h.on(OutcomeSnoozed, x.(SnoozedHook).Snoozed) }},
	{serverSide, reflect.TypeFor[BuriedHook](), func(h *hooks, x Hook) { h.on(OutcomeBuried, x.(BuriedHook).Buried) }},
	{serverSide, reflect.TypeFor[CancelledHook](), func(h *hooks, x Hook) { h.on(OutcomeCancelled, x.(CancelledHook).Cancelled) }},
	{serverSide, reflect.TypeFor[ReplacedHook](), func(h *hooks, x Hook) { h.on(OutcomeReplaced, x.(ReplacedHook).Replaced) }},
	{serverSide, reflect.TypeFor[LateHook](), func(h *hooks, x Hook) { h.late = append(h.late, x.(LateHook).Late) }},
	{serverSide, reflect.TypeFor[LeaseLostHook](), func(h *hooks, x Hook) { h.on(OutcomeLeaseLost, x.(LeaseLostHook).LeaseLost) }},
	{serverSide, reflect.TypeFor[ExpiredHook](), func(h *hooks, x Hook) { h.on(OutcomeExpired, x.(ExpiredHook).Expired) }},
	{serverSide, reflect.TypeFor[ReturnedHook](), func(h *hooks, x Hook) { h.on(OutcomeReturned, x.(ReturnedHook).Returned) }},
}

// add keeps the hooks of a list that this side calls, and tells what is wrong with the others.
func (h *hooks) add(list []Hook, here side) (errs []error) {
	for _, hook := range list {
		if isNil(hook) {
			errs = append(errs, errors.New("a hook is nil"))
			continue
		}
		v := reflect.ValueOf(hook)
		var sides side
		wrong := false
		for _, k := range hookKinds {
			method := k.kind.Method(0)
			if v.Type().Implements(k.kind) {
				sides |= k.side
				if k.side&here != 0 {
					k.keep(h, hook)
				}
			} else if reflect.PointerTo(v.Type()).Implements(k.kind) {
				wrong = true
				errs = append(errs, fmt.Errorf("hook of type %T: its method %s has a pointer receiver: give a pointer", hook, method.Name))
			} else if has := v.MethodByName(method.Name); has.IsValid() {
				wrong = true
				errs = append(errs, fmt.Errorf("hook of type %T: its method %s is a %v, that of a hook must be a %v",
					hook, method.Name, has.Type(), method.Type))
			}
		}
		switch there := (clientSide | serverSide) ^ here; {
		case sides&here != 0 || wrong:
		case sides != 0:
			errs = append(errs, fmt.Errorf("hook of type %T has no method that %s calls: give it to %s", hook, makers[here], makers[there]))
		default:
			errs = append(errs, fmt.Errorf("hook of type %T has none of the hook methods", hook))
		}
	}
	return errs
}

// isNil reports whether v is nil, or a nil pointer or function of whatever type.
func isNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func:
		return r.IsNil()
	default:
		return false
	}
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
		if p := recover(); p != nil {
			h.report(newCrash(p))
		}
	}()
	f()
}

// report logs that a hook has panicked, or called runtime.Goexit where nobody else says so.
func (h *hooks) report(c *crash) {
	if h.trouble != nil {
		h.trouble(c)
	}
}

// logHook is what report does.
func logHook(log *slog.Logger, c *crash) {
	log.Error("hook", "err", c, "stack", string(c.stack))
}

// apart calls f like guard, in a goroutine of its own: a hook that calls runtime.Goexit, as FailNow of a test does, must not end a loop.
func (h *hooks) apart(f func()) {
	var c *crash
	if err := alone(func() error { f(); return nil }); errors.As(err, &c) {
		h.report(c)
	}
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
