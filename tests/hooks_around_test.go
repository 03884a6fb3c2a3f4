package tests

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// An aroundLog is a CallHook and a RunHook that keeps what it is called with.
type aroundLog struct {
	name string

	mu    sync.Mutex
	lines []string
	calls []delayq.CallEvent
	ends  []delayq.CallResult
	runs  map[string][]delayq.RunEvent // by ID: what the functions of Run got
	ended map[string][]delayq.RunEvent // by ID
}

// aroundKey is the key of the names of the hooks that a context has passed.
type aroundKey struct{}

func passed(ctx context.Context) string {
	names, _ := ctx.Value(aroundKey{}).(string)
	return names
}

func (a *aroundLog) note(format string, args ...any) {
	a.lines = append(a.lines, fmt.Sprintf(format, args...))
}

func (a *aroundLog) Call(ctx context.Context, call delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call)
	return context.WithValue(ctx, aroundKey{}, passed(ctx)+a.name), func(r delayq.CallResult) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.ends = append(a.ends, r)
	}
}

func (a *aroundLog) Enqueue(ctx context.Context, job *delayq.NewJob) {
	job.Options = append(job.Options, delayq.Header("by", passed(ctx)))
}

func (a *aroundLog) Enqueued(ctx context.Context, e delayq.EnqueueEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note("%s enqueued %s", passed(ctx), e.ID)
}

func (a *aroundLog) Dequeued(ctx context.Context, e delayq.DequeueEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.note("%s dequeued %s/%s %s %v", passed(ctx), e.Topic, e.ID, e.State, errors.Is(e.Err, delayq.ErrNotFound))
}

func (a *aroundLog) Run(ctx context.Context, e delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	return context.WithValue(ctx, aroundKey{}, passed(ctx)+a.name), func(end delayq.RunEvent) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.runs == nil {
			a.runs = make(map[string][]delayq.RunEvent)
		}
		a.runs[e.ID] = append(a.runs[e.ID], end)
	}
}

func (a *aroundLog) Ended(e delayq.RunEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended == nil {
		a.ended = make(map[string][]delayq.RunEvent)
	}
	a.ended[e.ID] = append(a.ended[e.ID], e)
}

func (a *aroundLog) outcomes(of map[string][]delayq.RunEvent, id string) (list []delayq.Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range of[id] {
		list = append(list, e.Outcome)
	}
	return list
}

// Each call of a client is seen once by a CallHook, under the name that errors and the audit use.
// The set of methods is complete.
func TestCallHookSeesEveryCall(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		seen := &aroundLog{name: "a"}
		c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(seen))
		due := delayq.ProcessIn(time.Hour)
		none := func(error) bool { return false }
		missing := func(err error) bool { return errors.Is(err, delayq.ErrNotFound) }
		is := func(id string) delayq.JobRef { return delayq.JobRef{Topic: "t", ID: id} }
		brief, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		calls := []struct {
			method string
			want   delayq.CallEvent
			call   func() error
			fails  func(error) bool
		}{
			{"Enqueue", delayq.CallEvent{Name: "enqueue", Topic: "t", ID: "x", Jobs: 1}, func() error {
				_, err := c.Enqueue(ctx, "t", "x", nil, due)
				return err
			}, none},
			{"Enqueue", delayq.CallEvent{Name: "enqueue", Topic: "t", ID: "x", Jobs: 1}, func() error {
				_, err := c.Enqueue(ctx, "t", "x", nil)
				return err
			}, func(err error) bool { return errors.Is(err, delayq.ErrDuplicate) }},
			{"EnqueueBatch", delayq.CallEvent{Name: "enqueue batch", Topic: "t", Jobs: 2}, func() error {
				_, err := c.EnqueueBatch(ctx, []delayq.NewJob{
					{Topic: "t", ID: "1", Options: []delayq.JobOption{due}}, {Topic: "t", ID: "2", Options: []delayq.JobOption{due}},
				})
				return err
			}, none},
			{"Get", delayq.CallEvent{Name: "get", Topic: "t", ID: "x", Jobs: 1}, func() error {
				_, err := c.Get(ctx, "t", "x")
				return err
			}, none},
			{"GetBatch", delayq.CallEvent{Name: "get batch", Topic: "t", Jobs: 2}, func() error {
				_, err := c.GetBatch(ctx, []delayq.JobRef{is("1"), is("2")})
				return err
			}, none},
			{"Reschedule", delayq.CallEvent{Name: "reschedule", Topic: "t", ID: "x", Jobs: 1}, func() error {
				return c.Reschedule(ctx, "t", "x", due)
			}, none},
			{"RescheduleBatch", delayq.CallEvent{Name: "reschedule batch", Jobs: 2}, func() error {
				_, err := c.RescheduleBatch(ctx, []delayq.NewDue{{Topic: "t", ID: "1", Due: due}, {Topic: "other", ID: "2", Due: due}})
				return err
			}, missing},
			{"Bury", delayq.CallEvent{Name: "bury", Topic: "t", ID: "x", Jobs: 1}, func() error {
				return c.Bury(ctx, "t", "x", "why")
			}, none},
			{"Revive", delayq.CallEvent{Name: "revive", Topic: "t", ID: "x", Jobs: 1}, func() error {
				return c.Revive(ctx, "t", "x")
			}, none},
			{"Dequeue", delayq.CallEvent{Name: "cancel", Topic: "t", ID: "x", Jobs: 1}, func() error {
				_, err := c.Dequeue(ctx, "t", "x")
				return err
			}, none},
			{"CancelBatch", delayq.CallEvent{Name: "cancel batch", Topic: "t", Jobs: 3}, func() error {
				_, err := c.CancelBatch(ctx, []delayq.JobRef{is("1"), is("2"), is("none")})
				return err
			}, missing},
			{"Wait", delayq.CallEvent{Name: "wait", Topic: "t", ID: "none", Jobs: 1}, func() error {
				_, err := c.Wait(brief, "t", "none")
				return err
			}, missing},
			{"Call", delayq.CallEvent{Name: "call", Topic: "t", ID: "1", Jobs: 1}, func() error {
				_, err := c.Call(ctx, "t", "1", nil) // without a deadline
				return err
			}, func(err error) bool { return errors.Is(err, delayq.ErrInvalid) }},
			{"Delete", delayq.CallEvent{Name: "delete", Topic: "t", ID: "x", Jobs: 1}, func() error {
				return c.Delete(ctx, "t", "x")
			}, missing},
			{"Pause", delayq.CallEvent{Name: "pause", Topic: "t"}, func() error { return c.Pause(ctx, "t", delayq.Pause{}) }, none},
			{"Resume", delayq.CallEvent{Name: "resume", Topic: "t"}, func() error { return c.Resume(ctx, "t", "") }, none},
			{"ResumeAll", delayq.CallEvent{Name: "resume all", Topic: "t"}, func() error { return c.ResumeAll(ctx, "t") }, none},
			{"SetLimits", delayq.CallEvent{Name: "set limits", Topic: "t"}, func() error { return c.SetLimits(ctx, "t", delayq.Limits{Running: 9}) }, none},
			{"Partition", delayq.CallEvent{Name: "partition", Topic: "divided"}, func() error { return c.Partition(ctx, "divided", 2) }, none},
			{"SetPriority", delayq.CallEvent{Name: "set priority", Topic: "t", ID: "none", Jobs: 1}, func() error { return c.SetPriority(ctx, "t", "none", time.Hour) },
				func(err error) bool { return errors.Is(err, delayq.ErrNotFound) }},
			{"HoldKey", delayq.CallEvent{Name: "hold key", Topic: "t"}, func() error { return c.HoldKey(ctx, "t", "k", time.Hour) }, none},
			{"PauseKey", delayq.CallEvent{Name: "pause key", Topic: "t"}, func() error { return c.PauseKey(ctx, "t", "k") }, none},
			{"ResumeKey", delayq.CallEvent{Name: "resume key", Topic: "t"}, func() error { return c.ResumeKey(ctx, "t", "k") }, none},
			{"SetKeyLimits", delayq.CallEvent{Name: "set key limits", Topic: "t"}, func() error { return c.SetKeyLimits(ctx, "t", "k", delayq.KeyLimits{Weight: 9}) }, none},
			{"Hold", delayq.CallEvent{Name: "hold", Topic: "t"}, func() error { return c.Hold(ctx, "t", time.Hour, "") }, none},
			{"EndHold", delayq.CallEvent{Name: "end hold", Topic: "t"}, func() error { return c.EndHold(ctx, "t") }, none},
			{"Schedule", delayq.CallEvent{Name: "schedule", Topic: "t"}, func() error {
				return c.Schedule(ctx, "t", "s", delayq.Every(time.Hour), nil)
			}, none},
			{"ScheduleBatch", delayq.CallEvent{Name: "schedule batch", Topic: "t", Jobs: 1}, func() error {
				_, err := c.ScheduleBatch(ctx, []delayq.NewSchedule{{Topic: "t", Name: "s", Spec: delayq.Every(time.Hour)}})
				return err
			}, none},
			{"EditSchedule", delayq.CallEvent{Name: "edit schedule", Topic: "t"}, func() error {
				return c.EditSchedule(ctx, "t", "s", func(*delayq.ScheduleDefinition) error { return nil })
			}, none},
			{"PauseSchedule", delayq.CallEvent{Name: "pause schedule", Topic: "t"}, func() error { return c.PauseSchedule(ctx, "t", "s") }, none},
			{"ResumeSchedule", delayq.CallEvent{Name: "resume schedule", Topic: "t"}, func() error { return c.ResumeSchedule(ctx, "t", "s") }, none},
			{"Trigger", delayq.CallEvent{Name: "trigger", Topic: "t", Jobs: 1}, func() error {
				_, err := c.Trigger(ctx, "t", "s")
				return err
			}, none},
			{"Unschedule", delayq.CallEvent{Name: "unschedule", Topic: "t"}, func() error { return c.Unschedule(ctx, "t", "s") }, none},
			{"Repair", delayq.CallEvent{Name: "repair", Topic: "t"}, func() error {
				_, err := c.Repair(ctx, "t")
				return err
			}, none},
			{"Apply", delayq.CallEvent{Name: "apply", Topic: "t"}, func() error {
				_, err := c.Apply(ctx, delayq.Query{Topic: "t", State: delayq.StateReady}, delayq.Cancel())
				return err
			}, none},
			{"Start", delayq.CallEvent{Name: "start flow", Topic: "f", ID: "1", Jobs: 2}, func() error {
				flow := delayq.NewFlow("f", "1", nil).Deadline(time.Hour)
				flow.Add("f", nil)
				return queuetest.ErrOf(c.Start(ctx, flow))
			}, none},
			{"OpenGroup", delayq.CallEvent{Name: "start flow", Topic: "f", ID: "2", Jobs: 1}, func() error {
				return queuetest.ErrOf(c.OpenGroup(ctx, delayq.NewFlow("f", "2", nil).Deadline(time.Hour)))
			}, none},
			{"Group", delayq.CallEvent{Name: "add to group", Topic: "f", ID: "2", Jobs: 1}, func() error {
				return c.Group("f", "2").Add(ctx, delayq.NewJob{Topic: "f", ID: "3"})
			}, none},
			{"Group", delayq.CallEvent{Name: "close group", Topic: "f", ID: "2"}, func() error { return c.Group("f", "2").Close(ctx) }, none},
			{"RemoveTopic", delayq.CallEvent{Name: "remove topic", Topic: "t"}, func() error { return c.RemoveTopic(ctx, "t") }, none},
			{"RemoveTopic", delayq.CallEvent{Name: "remove topic", Topic: "a{b"}, func() error { return c.RemoveTopic(ctx, "a{b") },
				func(err error) bool { return errors.Is(err, delayq.ErrInvalid) }},
		}
		called := make(map[string]bool)
		for i, one := range calls {
			err := one.call()
			if err != nil {
				require.True(t, one.fails(err), "%s: %v", one.method, err)
			}
			require.Len(t, seen.calls, i+1, one.method)
			require.Len(t, seen.ends, i+1, one.method)
			require.Equal(t, one.want, seen.calls[i])
			require.Equal(t, err, seen.ends[i].Err, one.method)
			called[one.method] = true
		}
		require.Equal(t, "x", seen.ends[0].ID)
		require.Equal(t, []string{
			"a enqueued x", "a enqueued x", "a enqueued 1", "a enqueued 2", "a dequeued t/x ready false",
			"a dequeued t/1 scheduled false", "a dequeued t/2 scheduled false", "a dequeued t/none  true",
			"a enqueued 1", "a enqueued 2", // the last steps of flows
		}, seen.lines)
		methods := reflect.TypeFor[*delayq.Client]()
		for i := range methods.NumMethod() {
			require.True(t, called[methods.Method(i).Name], "%s is not in the test", methods.Method(i).Name)
		}
		_, err := c.Enqueue(ctx, "t", "", nil)
		require.NoError(t, err)
		require.NotEmpty(t, seen.ends[len(seen.ends)-1].ID, "a generated ID")
		require.Empty(t, seen.calls[len(seen.calls)-1].ID)
		state, err := c.Dequeue(ctx, "t", seen.ends[len(seen.ends)-1].ID)
		require.NoError(t, err)
		require.Equal(t, state, seen.ends[len(seen.ends)-1].State)
	})
}

// noContext is what a caller must not pass.
var noContext context.Context

// CallHooks nest: each gets the context of the one before, the hooks in between get the last
// context, and the functions are called from the inside out.
func TestCallHooksNest(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.Shared(t))
	ctx := t.Context()
	first, second := &aroundLog{name: "1"}, &aroundLog{name: "2"}
	var order []string
	end := func(name string) callHook {
		return func(ctx context.Context, _ delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
			return nil, func(delayq.CallResult) { order = append(order, name) }
		}
	}
	nothing := callHook(func(context.Context, delayq.CallEvent) (context.Context, func(delayq.CallResult)) { return nil, nil })
	c := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(first, end("outer"), nothing, panickyHook{}, second, end("inner")))
	job, err := c.Enqueue(ctx, "t", "x", nil)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"by": "12"}, job.Headers)
	require.Equal(t, []string{"inner", "outer"}, order)
	require.Equal(t, []string{"12 enqueued x"}, first.lines)

	// Nobody is asked about a client or a context that cannot be used.
	_, err = c.Enqueue(noContext, "t", "y", nil)
	require.ErrorIs(t, err, delayq.ErrInvalid)
	broken := delayq.NewClient(f.RDB, delayq.Prefix("{"), delayq.Hooks(first))
	_, err = broken.Get(ctx, "t", "x")
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.Len(t, first.calls, 1)

	// The context of a hook is that of the call.
	stop := callHook(func(ctx context.Context, _ delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(queuetest.ErrTest)
		return ctx, nil
	})
	stopped := delayq.NewClient(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(stop))
	_, err = stopped.Enqueue(ctx, "t", "z", nil)
	require.ErrorIs(t, err, context.Canceled)
}

type callHook func(ctx context.Context, call delayq.CallEvent) (context.Context, func(delayq.CallResult))

func (h callHook) Call(ctx context.Context, call delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	return h(ctx, call)
}

type runHook func(ctx context.Context, e delayq.RunEvent) (context.Context, func(delayq.RunEvent))

func (h runHook) Run(ctx context.Context, e delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	return h(ctx, e)
}

// A RunHook sees the end of every run that it has seen begin, once and with the outcome. The
// handler gets its context. An EndedHook sees the end of every job that was taken.
func TestRunHookAndEndedHook(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		first, second := &aroundLog{name: "1"}, &aroundLog{name: "2"}
		var single queuetest.HookLog
		b.Enqueue("a", "expired", delayq.ExpireIn(time.Millisecond))
		b.Pass(50 * time.Millisecond)
		var mu sync.Mutex
		contexts := make(map[string]bool)
		h := func(ctx context.Context, job *delayq.Job) error {
			mu.Lock()
			contexts[passed(ctx)] = true
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			switch job.ID {
			case "failed":
				if job.Attempt == 1 {
					return queuetest.ErrTest
				}
			case "panics":
				panic("no")
			case "leaves":
				runtime.Goexit()
			case "snoozed":
				if job.Snoozes == 0 {
					return delayq.Snooze(time.Second)
				}
			case "again":
				if len(job.Payload) == 0 {
					return delayq.Again([]byte("more"), delayq.ProcessIn(time.Second))
				}
			case "cancelled", "replaced", "returned":
				<-ctx.Done()
				return ctx.Err()
			case "lost":
				time.Sleep(time.Minute)
			}
			return nil
		}
		s := b.Serve("a", h, delayq.Hooks(first, panickyHook{}, second, &single), delayq.Drain(0), delayq.Concurrency(20))
		want := map[string][]delayq.Outcome{
			"acked":     {delayq.OutcomeAcked},
			"failed":    {delayq.OutcomeRetried, delayq.OutcomeAcked},
			"panics":    {delayq.OutcomeBuried},
			"leaves":    {delayq.OutcomeBuried},
			"snoozed":   {delayq.OutcomeSnoozed, delayq.OutcomeAcked},
			"again":     {delayq.OutcomeAgain, delayq.OutcomeAcked},
			"cancelled": {delayq.OutcomeCancelled},
			"replaced":  {delayq.OutcomeReplaced},
			"returned":  {delayq.OutcomeReturned},
			"lost":      {delayq.OutcomeCancelled},
		}
		for id := range want {
			opts := []delayq.JobOption{delayq.Backoff(time.Second, time.Second)}
			if id == "panics" || id == "leaves" {
				opts = append(opts, delayq.Retry(0))
			}
			_, err := b.Client.Enqueue(b.Context(), "a", id, nil, opts...)
			require.NoError(b, err)
		}
		b.Pass(time.Second)
		for _, id := range []string{"cancelled", "lost"} {
			_, err := b.Client.Dequeue(b.Context(), "a", id)
			require.NoError(b, err)
		}
		_, err := b.Client.Enqueue(b.Context(), "a", "replaced", nil, delayq.Replace(), delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		b.Pass(2 * time.Minute)
		require.NoError(b, s.Stop())
		require.Equal(b, map[string]bool{"12": true}, contexts)
		for id, outcomes := range want {
			for _, a := range []*aroundLog{first, second} {
				require.Equal(b, outcomes, a.outcomes(a.runs, id), "runs of %s", id)
				require.Equal(b, outcomes, a.outcomes(a.ended, id), "ends of %s", id)
				require.Equal(b, a.ended[id], a.runs[id], id)
			}
		}
		require.Empty(b, first.runs["expired"])
		require.Equal(b, []delayq.Outcome{delayq.OutcomeExpired}, first.outcomes(first.ended, "expired"))
		for id, events := range first.ended {
			kinds := single.Kinds(id)
			delete(kinds, "Started")
			for _, e := range events {
				name := strings.ToUpper(string(e.Outcome[:1])) + string(e.Outcome[1:])
				name = map[string]string{"Acked": "Done"}[name] + map[bool]string{true: name}[name != "Acked"]
				kinds[name]--
			}
			for name, n := range kinds {
				require.Zero(b, n, "%s of %s", name, id)
			}
		}
	})
}

// A run whose outcome does not reach Redis ends for a RunHook without an outcome, and one that
// outlives the drain has been returned, even if the hook itself was slow.
func TestRunHookAtAStop(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var ends []string
		w := queuetest.NewWire(b.Redis)
		hook := runHook(func(ctx context.Context, e delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
			if e.ID == "slow hook" {
				time.Sleep(time.Minute)
			}
			return ctx, func(end delayq.RunEvent) {
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, fmt.Sprintf("%s %q", end.ID, end.Outcome))
			}
		})
		s := b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			switch job.ID {
			case "unsettled":
				<-ctx.Done()
				return queuetest.ErrTest
			case "late":
				time.Sleep(time.Minute)
			}
			return nil
		}, delayq.Hooks(hook), delayq.Drain(time.Second))
		for _, id := range []string{"late", "slow hook"} {
			b.Enqueue("a", id)
		}
		b.Pass(time.Second)
		require.NoError(b, s.Stop())
		b.Pass(2 * time.Minute)
		mu.Lock()
		slices.Sort(ends)
		require.Equal(b, []string{`late "returned"`, `slow hook "returned"`}, ends)
		ends = nil
		mu.Unlock()
		for _, id := range []string{"late", "slow hook"} {
			_, err := b.Client.Dequeue(b.Context(), "a", id)
			require.NoError(b, err)
		}

		w = queuetest.NewWire(b.Redis)
		s = b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			<-ctx.Done()
			return nil
		}, delayq.Hooks(hook), delayq.Drain(time.Second))
		b.Enqueue("a", "unsettled")
		b.Pass(time.Second)
		w.Cut()
		require.NoError(b, s.Stop())
		mu.Lock()
		defer mu.Unlock()
		require.Equal(b, []string{`unsettled ""`}, ends)
	})
}

// The trace parent of a run is kept with its error. Without one, that of the job is.
func TestSetTraceParent(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var refused []error
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			if job.Attempt == 1 {
				refused = append(refused, delayq.SetTraceParent(ctx, strings.Repeat("x", 256)), delayq.SetTraceParent(ctx, "\xff"))
				inner, cancel := context.WithCancel(ctx)
				defer cancel()
				if err := delayq.SetTraceParent(inner, "of run 1"); err != nil {
					return err
				}
			}
			return queuetest.ErrTest
		})
		b.Enqueue("a", "x", delayq.Header("traceparent", "of the job"), delayq.Backoff(time.Second, time.Second), delayq.Retry(1))
		b.Pass(10 * time.Second)
		errs := b.Get("a", "x").Errors
		require.Len(b, errs, 2)
		require.Equal(b, "of run 1", errs[0].TraceParent)
		require.Equal(b, "of the job", errs[1].TraceParent)
		refused = append(refused, delayq.SetTraceParent(b.Context(), "x"), delayq.SetTraceParent(noContext, "x"))
		for i, want := range []string{"256 bytes, at most 255 are allowed", `"\xff" is not UTF-8`, "not the context of a handler", "nil context"} {
			require.ErrorIs(b, refused[i], delayq.ErrInvalid)
			require.ErrorContains(b, refused[i], "set trace parent: ")
			require.ErrorContains(b, refused[i], want)
		}
	})
}

// A tracedClient wraps a client, as a program does to trace it.
type tracedClient struct {
	*delayq.Client
	calls []string
}

func (c *tracedClient) Enqueue(ctx context.Context, topic, id string, payload []byte, opts ...delayq.JobOption) (*delayq.Job, error) {
	c.calls = append(c.calls, "enqueue "+id)
	return c.Client.Enqueue(ctx, topic, id, payload, opts...)
}

func (c *tracedClient) Schedule(
	ctx context.Context, topic, name string, spec delayq.Spec, payload []byte, opts ...delayq.ScheduleOption,
) error {
	c.calls = append(c.calls, "schedule "+name)
	return c.Client.Schedule(ctx, topic, name, spec, payload, opts...)
}

// Typed topics take what wraps a client.
func TestTypedTopicOfAWrappedClient(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.Shared(t))
	ctx := t.Context()
	c := &tracedClient{Client: f.Client}
	topic := delayq.NewTopic[int]("t")
	_, err := topic.Enqueue(ctx, c, "x", 1, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, topic.Schedule(ctx, c, "s", delayq.Every(time.Hour), 1))
	require.Equal(t, []string{"enqueue x", "schedule s"}, c.calls)
	require.Equal(t, delayq.StateScheduled, queuetest.StateOf(t, f.Client, "t", "x"))

	_, err = topic.Enqueue(ctx, nil, "x", 1)
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.ErrorContains(t, err, `enqueue topic "t" job "x": `)
	require.ErrorContains(t, err, "nil Enqueuer")
	err = topic.Schedule(ctx, nil, "s", delayq.Every(time.Hour), 1)
	require.ErrorIs(t, err, delayq.ErrInvalid)
	require.ErrorContains(t, err, "nil Scheduler")
	_, err = topic.Enqueue(ctx, (*delayq.Client)(nil), "x", 1)
	require.ErrorContains(t, err, "nil Client")
}

// heading is an EnqueueHook that adds a header, and panics at jobs of one topic.
type heading struct{}

type headingKey struct{}

func (heading) Enqueue(ctx context.Context, job *delayq.NewJob) {
	job.Options = append(job.Options, delayq.Header("by", fmt.Sprint(ctx.Value(headingKey{}))))
	if job.Topic == "broken" {
		panic("oh no")
	}
}

func (heading) Run(ctx context.Context, event delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	return context.WithValue(ctx, headingKey{}, "the run of "+event.ID), nil
}

// The EnqueueHook of a server gets the jobs that its runs hand over, with the context of the run.
func TestEnqueueHookOfAServer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			return errors.Join(job.Then("next", job.ID, nil), job.Then("broken", job.ID, nil))
		}, delayq.Hooks(heading{}), log.To())
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.Equal(b, map[string]string{"by": "the run of 1"}, b.Get("next", "1").Headers)
		require.Equal(b, map[string]string{"by": "the run of 1"}, b.Get("broken", "1").Headers)
		require.Len(b, log.With("hook", "oh no"), 1)
	})
}
