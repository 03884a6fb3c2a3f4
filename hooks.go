package delayq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/contain"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
)

// A Hook receives events. It implements one or more of the hook interfaces, such as [DoneHook] and
// [BuriedHook]. A [Client] calls [CallHook], [EnqueueHook], [EnqueuedHook], [DequeuedHook] and
// [ScriptHook]. A [Server] calls ScriptHook and all the others. An [Inspector] calls ScriptHook
// only. A value can implement interfaces of several of them and be given to each.
//
// A hook is invalid if it has none of the methods that its Client, Server or Inspector calls, or a
// method with the name of a hook's method but another signature. Every call of the Client or the
// Inspector, and [Server.Run], then returns [ErrInvalid].
//
// Hooks are called in the order in which they were given. Some run on the goroutines that talk to
// Redis, so they must be fast and safe for concurrent use. A hook that panics is reported to the
// [Logger] and otherwise ignored. A hook that calls [runtime.Goexit] ends only itself, with two
// exceptions. In Run and Started it ends the run, which counts as a failure. In the hooks of a
// Client other than Script, and in Enqueue, it ends the caller's goroutine.
type Hook any

// CallHook is called around every call of a [Client], for example to trace it. The context that it
// returns takes the place of the caller's: the call, its other hooks and the next CallHook get it.
// The function that it returns is called when the call ends, in the reverse order of the hooks. A
// nil context stands for the given one, and a nil function for none.
//
// It is not called if the Client or the context is invalid.
type CallHook interface {
	Call(ctx context.Context, call CallEvent) (context.Context, func(CallResult))
}

// EnqueueHook is called before a job is stored. It can add headers by appending options to job. It
// is not called for jobs of schedules and of [Again], because no client enqueues those. A Server
// calls it for the jobs of [Job.Then], in the handler's goroutine and with its context.
type EnqueueHook interface {
	Enqueue(ctx context.Context, job *NewJob)
}

// EnqueuedHook is called after an enqueue, with its outcome.
type EnqueuedHook interface {
	Enqueued(ctx context.Context, event EnqueueEvent)
}

// DequeuedHook is called after the cancellation of each job by [Client.Dequeue] or
// [Client.CancelBatch], with its outcome. It is not called for the jobs of [Client.Apply].
type DequeuedHook interface {
	Dequeued(ctx context.Context, event DequeueEvent)
}

// RunHook is called around every run of a handler, for example to trace it. Run is called before
// [StartedHook], with the handler's context. The handler gets the context that Run returns.
//
// The function that it returns is called once, when the outcome is recorded in Redis, just as the
// hook of that outcome is. The outcome is empty if the server stopped before it could record it. A
// handler that ignores the end of its context can still be running then.
//
// A nil context stands for the given one, and a nil function for none. The functions of several
// hooks are called in reverse order.
//
// Before a batch ([Server.HandleBatch]), Run is called once for each job. [Job.Context] returns the
// context that Run has returned for the job. The handler gets that of the batch.
type RunHook interface {
	Run(ctx context.Context, event RunEvent) (context.Context, func(RunEvent))
}

// EndedHook is called at the end of every run, whatever its [Outcome], and also for jobs that were
// taken but not started. It is called beside the hook of that outcome.
type EndedHook interface{ Ended(event RunEvent) }

// StartedHook is called immediately before the handler.
type StartedHook interface{ Started(event RunEvent) }

// DoneHook is called when a job is done and this is recorded in Redis.
type DoneHook interface{ Done(event RunEvent) }

// AgainHook is called instead of [DoneHook] when a job ended with [Again], or a stage of
// [ProcessAtEach] did and another follows. event.NextDue is the due time of what follows. Neither
// [EnqueueHook] nor [EnqueuedHook] is called for it.
type AgainHook interface{ Again(event RunEvent) }

// RetriedHook is called when a failed job, or its next stage, is scheduled at event.NextDue.
type RetriedHook interface{ Retried(event RunEvent) }

// SnoozedHook is called when a snoozed job is scheduled again. event.NextDue is its due time.
type SnoozedHook interface{ Snoozed(event RunEvent) }

// BuriedHook is called when a job is dead.
type BuriedHook interface{ Buried(event RunEvent) }

// CancelledHook is called when a handler returns after its job was cancelled, or when a job is
// cancelled after it was taken but before its handler is called.
type CancelledHook interface{ Cancelled(event RunEvent) }

// ReplacedHook is called when a handler returns after its job was replaced by another caller or by
// the handler itself. It is also called when a job is replaced after it was taken but before its
// handler is called.
type ReplacedHook interface{ Replaced(event RunEvent) }

// LeaseLostHook is called when a handler returns after losing its lease, or when a job is lost
// after it was taken but before its handler is called.
type LeaseLostHook interface{ LeaseLost(event RunEvent) }

// ExpiredHook is called when a job was dropped because it could not start before its [ExpireAt] or
// [ExpireIn] had passed.
type ExpiredHook interface{ Expired(event RunEvent) }

// ReturnedHook is called when a job is back in ready because its server is shutting down.
type ReturnedHook interface{ Returned(event RunEvent) }

// HeldHook is called when a handler has returned [Hold] or [HoldKey] and its job is ready again.
// event.NextDue is the end of that hold. Another one can end later.
type HeldHook interface{ Held(event RunEvent) }

// PrunedHook is called when a server has deleted dead or done jobs that are no longer kept.
type PrunedHook interface{ Pruned(event PruneEvent) }

// LateHook is called when a handler returns after the [Drain] of its server is over. Its job has
// been put back in the meantime, and [ReturnedHook] was called for it.
type LateHook interface{ Late(event RunEvent) }

// ScriptHook is called after every script call. Duration includes the network and Redis's time.
type ScriptHook interface{ Script(event ScriptEvent) }

// CallEvent is the event of a [CallHook].
type CallEvent struct {
	// Name is the word for the call in errors and in the audit: "enqueue", "cancel", "reschedule",
	// "revive", "bury", "delete", "get" or "schedule", each also with " batch" if it has a batch;
	// "wait", "call", "apply", "repair", "remove topic", "pause", "resume", "resume all",
	// "unschedule", "pause schedule", "resume schedule", "trigger", "edit schedule", "set limits",
	// "set key limits", "hold", "end hold", "hold key", "pause key", "resume key", "set priority",
	// "start flow", "add to group" or "close group". Within a "call" there is an "enqueue".
	Name  string
	Topic string // empty for a batch with several topics
	ID    string // empty for a batch, a call without a job, and an Enqueue that generates the ID
	Jobs  int    // number of jobs, or schedules of a batch; 0 for a call without, and for Apply
}

// CallResult is the result of a call, for the function that [CallHook] returns.
type CallResult struct {
	ID    string // of an Enqueue, also if it was generated; empty for a batch
	State State  // in which Dequeue found the job
	Err   error
}

// DequeueEvent is the event of a [DequeuedHook].
type DequeueEvent struct {
	Topic string
	ID    string
	State State // in which the job was; empty if Err is not nil
	Err   error
}

// EnqueueEvent is the event of an [EnqueuedHook].
type EnqueueEvent struct {
	Topic       string
	ID          string
	Due         time.Time // zero if Err is not nil
	PayloadSize int
	Merged      State // of the job that has taken the payload: see [Debounce] and [Latest]; empty: none
	Err         error
}

// RunEvent is the event of the hooks of a run. All times are by Redis's clock.
type RunEvent struct {
	Topic      string
	ID         string
	Attempt    int
	EnqueuedAt time.Time
	Due        time.Time
	StartedAt  time.Time // zero if no handler was called
	FinishedAt time.Time // zero if no handler has returned
	Outcome    Outcome   // empty for Started and Late
	Server     string    // ID of the server

	// Err is the error that the handler returned, or one that takes its place. If the run was
	// cancelled, replaced, lost or returned, Err wraps both the cause and the handler's error.
	Err   error
	Stack string // of the handler's panic or runtime.Goexit

	// Output is what the handler has attached with [Job.SetOutput]. Nil: nothing, or no handler has
	// returned. Hooks must not change it.
	Output []byte

	NextDue     time.Time // zero if there is none
	PayloadSize int
	Headers     map[string]string
}

// Lateness returns the time from Due to StartedAt, by Redis's clock.
func (e RunEvent) Lateness() time.Duration { return e.StartedAt.Sub(e.Due) }

// PruneEvent is the event of a [PrunedHook] and is about one topic. Dead counts jobs that were
// deleted by [DeadLimit] and will never run, Done those whose [Retention] is over. At most 500 of
// each are in one event, so after an incident there are many events.
type PruneEvent struct {
	Topic      string
	Dead, Done int
}

// ScriptEvent is the event of a [ScriptHook].
type ScriptEvent struct {
	Name     string // name of the file in lua/, without its extension
	Topic    string // empty for heartbeat, watch, survey and audit, which are not about one topic
	Jobs     int    // number of jobs in the call; for promote and take the limit of the call
	Duration time.Duration
	// Err is nil if the script was executed. It is [context.Canceled] if the caller gave up the
	// call, as a server does when it stops.
	Err error
}

// hooks holds hooks by the events that they receive.
type hooks struct {
	call     []CallHook
	enqueue  []EnqueueHook
	enqueued []EnqueuedHook
	dequeued []DequeuedHook
	script   []ScriptHook
	pruned   []PrunedHook
	run      []RunHook
	started  []func(RunEvent)
	late     []func(RunEvent)
	outcome  map[Outcome][]func(RunEvent)
	trouble  func(*contain.Crash) // called when a hook panics; nil: ignored
	lookers  []serve.Looker       // of our own tests
}

// A callEnd is the functions that the CallHooks of a call have returned.
type callEnd struct {
	hooks *hooks
	ends  []func(CallResult)
}

// begin calls the CallHooks of a call that begins. It returns the context for the call.
func (c *Client) begin(ctx context.Context, call CallEvent) (context.Context, callEnd) {
	if c == nil || len(c.o.hooks.call) == 0 || c.usable(ctx) != nil {
		return ctx, callEnd{}
	}
	h := &c.o.hooks
	end := callEnd{hooks: h}
	for _, hook := range h.call {
		h.guard(func() {
			within, f := hook.Call(ctx, call)
			if within != nil {
				ctx = within
			}
			if f != nil {
				end.ends = append(end.ends, f)
			}
		})
	}
	return ctx, end
}

// beginBatch is begin for a batch of n jobs.
func (c *Client) beginBatch(ctx context.Context, name string, n int, topic func(i int) string) (context.Context, callEnd) {
	if c == nil || len(c.o.hooks.call) == 0 {
		return ctx, callEnd{}
	}
	call := CallEvent{Name: name, Jobs: n}
	for i := range n {
		if i > 0 && topic(i) != call.Topic {
			call.Topic = ""
			break
		}
		call.Topic = topic(i)
	}
	return c.begin(ctx, call)
}

// with calls the functions with the result of the call, and returns its error.
func (e callEnd) with(r CallResult) error {
	for _, f := range slices.Backward(e.ends) {
		e.hooks.guard(func() { f(r) })
	}
	return r.Err
}

// err is with for a call that returns only an error.
func (e callEnd) err(err error) error { return e.with(CallResult{Err: err}) }

// A side is a caller of hooks: clients, servers or inspectors.
type side int

const (
	clientSide side = 1 << iota
	serverSide
	inspectorSide
)

// makers holds the constructor that accepts the hooks of a side.
var makers = map[side]string{clientSide: "NewClient", serverSide: "NewServer", inspectorSide: "NewInspector"}

// makersOf names the constructors that accept hooks of any of these sides.
func makersOf(sides side) string {
	var names []string
	for _, one := range []side{clientSide, serverSide, inspectorSide} {
		if sides&one != 0 {
			names = append(names, makers[one])
		}
	}
	return strings.Join(names, " or ")
}

// A hookKind is a hook interface, which has one method: which side calls it, the method, which is
// named like the interface, and how a hook that implements it is kept.
type hookKind struct {
	side   side
	method any // with the interface as its first parameter
	keep   func(h *hooks, hook Hook)
}

// kind returns the interface.
func (k *hookKind) kind() reflect.Type { return reflect.TypeOf(k.method).In(0) }

// name returns the name of the method.
func (k *hookKind) name() string { return strings.TrimSuffix(k.kind().Name(), "Hook") }

// want describes the method.
func (k *hookKind) want() string {
	return strings.Replace(reflect.TypeOf(k.method).String(), k.kind().String()+", ", "", 1)
}

// hookKinds lists the hook interfaces.
var hookKinds = []hookKind{
	{clientSide, CallHook.Call, func(h *hooks, x Hook) { h.call = append(h.call, x.(CallHook)) }},
	{clientSide | serverSide, EnqueueHook.Enqueue, func(h *hooks, x Hook) { h.enqueue = append(h.enqueue, x.(EnqueueHook)) }},
	{clientSide, EnqueuedHook.Enqueued, func(h *hooks, x Hook) { h.enqueued = append(h.enqueued, x.(EnqueuedHook)) }},
	{clientSide, DequeuedHook.Dequeued, func(h *hooks, x Hook) { h.dequeued = append(h.dequeued, x.(DequeuedHook)) }},
	{clientSide | serverSide | inspectorSide, ScriptHook.Script, func(h *hooks, x Hook) { h.script = append(h.script, x.(ScriptHook)) }},
	{serverSide, PrunedHook.Pruned, func(h *hooks, x Hook) { h.pruned = append(h.pruned, x.(PrunedHook)) }},
	{serverSide, RunHook.Run, func(h *hooks, x Hook) { h.run = append(h.run, x.(RunHook)) }},
	{serverSide, EndedHook.Ended, func(h *hooks, x Hook) {
		for _, outcome := range outcomeNames {
			h.on(outcome, x.(EndedHook).Ended)
		}
	}},
	{serverSide, StartedHook.Started, func(h *hooks, x Hook) { h.started = append(h.started, x.(StartedHook).Started) }},
	{serverSide, DoneHook.Done, func(h *hooks, x Hook) { h.on(OutcomeAcked, x.(DoneHook).Done) }},
	{serverSide, AgainHook.Again, func(h *hooks, x Hook) { h.on(OutcomeAgain, x.(AgainHook).Again) }},
	{serverSide, RetriedHook.Retried, func(h *hooks, x Hook) { h.on(OutcomeRetried, x.(RetriedHook).Retried) }},
	{serverSide, SnoozedHook.Snoozed, func(h *hooks, x Hook) { h.on(OutcomeSnoozed, x.(SnoozedHook).Snoozed) }},
	{serverSide, BuriedHook.Buried, func(h *hooks, x Hook) { h.on(OutcomeBuried, x.(BuriedHook).Buried) }},
	{serverSide, CancelledHook.Cancelled, func(h *hooks, x Hook) { h.on(OutcomeCancelled, x.(CancelledHook).Cancelled) }},
	{serverSide, ReplacedHook.Replaced, func(h *hooks, x Hook) { h.on(OutcomeReplaced, x.(ReplacedHook).Replaced) }},
	{serverSide, LateHook.Late, func(h *hooks, x Hook) { h.late = append(h.late, x.(LateHook).Late) }},
	{serverSide, LeaseLostHook.LeaseLost, func(h *hooks, x Hook) { h.on(OutcomeLeaseLost, x.(LeaseLostHook).LeaseLost) }},
	{serverSide, ExpiredHook.Expired, func(h *hooks, x Hook) { h.on(OutcomeExpired, x.(ExpiredHook).Expired) }},
	{serverSide, HeldHook.Held, func(h *hooks, x Hook) { h.on(OutcomeHeld, x.(HeldHook).Held) }},
	{serverSide, ReturnedHook.Returned, func(h *hooks, x Hook) { h.on(OutcomeReturned, x.(ReturnedHook).Returned) }},
}

// add keeps the hooks of a list that this side calls, and returns the errors of the others.
func (h *hooks) add(list []Hook, here side) (errs []error) {
	for _, hook := range list {
		if contain.IsNil(hook) {
			errs = append(errs, errors.New("a hook is nil"))
			continue
		}
		if l, ok := hook.(serve.Looker); ok && here == serverSide {
			h.lookers = append(h.lookers, l)
		}
		v := reflect.ValueOf(hook)
		var sides side
		wrong := false
		for _, k := range hookKinds {
			if v.Type().Implements(k.kind()) {
				sides |= k.side
				if k.side&here != 0 {
					k.keep(h, hook)
				}
			} else if reflect.PointerTo(v.Type()).Implements(k.kind()) {
				wrong = true
				errs = append(errs, fmt.Errorf("hook of type %T: method %s has a pointer receiver: pass a pointer", hook, k.name()))
			} else if has := methodOf(v, k.name()); has.IsValid() {
				wrong = true
				errs = append(errs, fmt.Errorf("hook of type %T: method %s is a %v, want a %v",
					hook, k.name(), has.Type(), k.want()))
			}
		}
		switch {
		case sides&here != 0 || wrong:
		case sides != 0:
			errs = append(errs, fmt.Errorf("hook of type %T has no method that %s calls: give it to %s", hook, makers[here], makersOf(sides)))
		default:
			errs = append(errs, fmt.Errorf("hook of type %T has none of the hook methods", hook))
		}
	}
	return errs
}

// methodOf returns the method of a hook that has the name of one of hookKinds. The names are
// constants: with any other name, the linker would keep every exported method of every type of the
// whole program.
func methodOf(v reflect.Value, name string) reflect.Value {
	switch name {
	case "Call":
		return v.MethodByName("Call")
	case "Enqueue":
		return v.MethodByName("Enqueue")
	case "Enqueued":
		return v.MethodByName("Enqueued")
	case "Dequeued":
		return v.MethodByName("Dequeued")
	case "Script":
		return v.MethodByName("Script")
	case "Pruned":
		return v.MethodByName("Pruned")
	case "Run":
		return v.MethodByName("Run")
	case "Ended":
		return v.MethodByName("Ended")
	case "Started":
		return v.MethodByName("Started")
	case "Done":
		return v.MethodByName("Done")
	case "Again":
		return v.MethodByName("Again")
	case "Retried":
		return v.MethodByName("Retried")
	case "Snoozed":
		return v.MethodByName("Snoozed")
	case "Buried":
		return v.MethodByName("Buried")
	case "Cancelled":
		return v.MethodByName("Cancelled")
	case "Replaced":
		return v.MethodByName("Replaced")
	case "Late":
		return v.MethodByName("Late")
	case "LeaseLost":
		return v.MethodByName("LeaseLost")
	case "Expired":
		return v.MethodByName("Expired")
	case "Held":
		return v.MethodByName("Held")
	case "Returned":
		return v.MethodByName("Returned")
	}
	return reflect.Value{}
}

func (h *hooks) on(outcome Outcome, f func(RunEvent)) {
	if h.outcome == nil {
		h.outcome = make(map[Outcome][]func(RunEvent))
	}
	h.outcome[outcome] = append(h.outcome[outcome], f)
}

// guard calls f and recovers from its panic.
func (h *hooks) guard(f func()) {
	defer func() {
		if p := recover(); p != nil {
			h.report(contain.NewCrash(p))
		}
	}()
	f()
}

// report logs that a hook panicked, or called runtime.Goexit where nothing else reports it.
func (h *hooks) report(c *contain.Crash) {
	if h.trouble != nil {
		h.trouble(c)
	}
}

// logHook logs the crash of a hook.
func logHook(log *slog.Logger, c *contain.Crash) {
	log.Error("hook crashed", "err", c, "stack", string(c.Stack))
}

// apart calls f like guard, but in a new goroutine. A hook that calls runtime.Goexit, as FailNow
// of a test does, must not end a loop.
func (h *hooks) apart(f func()) {
	var c *contain.Crash
	if err := contain.Alone(func() error { f(); return nil }); errors.As(err, &c) {
		h.report(c)
	}
}

// Listens reports whether there are script hooks.
func (h *hooks) Listens() bool { return len(h.script) > 0 }

// Called calls the script hooks.
func (h *hooks) Called(event script.Event) {
	for _, x := range h.script {
		h.apart(func() { x.Script(ScriptEvent(event)) })
	}
}
