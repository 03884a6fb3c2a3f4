package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Each outcome is told once, to the hook that is named after it, and with the facts.
func TestHooksOfARun(t *testing.T) {
	const (
		failed = "1: fails, then succeeds"
		snooze = "2: snoozes, then succeeds"
		buried = "3: is buried"
		cancel = "4: is cancelled"
		lost   = "5: is replaced"
		expire = "6: expires"
		cutOff = "7: is cut off"
	)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		h := func(ctx context.Context, job *delayq.Job) error {
			time.Sleep(100 * time.Millisecond)
			switch {
			case job.ID == failed && job.Attempt == 1, job.ID == buried:
				return queuetest.ErrTest
			case job.ID == snooze && job.Due.Equal(job.EnqueuedAt):
				return delayq.Snooze(3 * time.Second)
			case job.ID == cancel, job.ID == lost && string(job.Payload) != "new", job.ID == cutOff:
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		enqueued := b.Began
		b.Enqueue("a", expire, delayq.ExpireIn(time.Millisecond), delayq.Header("h", expire))
		b.Pass(50 * time.Millisecond)
		s := b.Serve("a", h, delayq.Hooks(&hooks), delayq.Drain(0), delayq.Concurrency(10))
		b.Pass(2 * time.Second)
		began := time.Now()
		for _, id := range []string{failed, snooze, buried, cancel, lost, cutOff} {
			opts := []delayq.JobOption{delayq.Header("h", id), delayq.Backoff(5*time.Second, 5*time.Second)}
			if id == buried {
				opts = append(opts, delayq.Retry(0))
			}
			b.Enqueue("a", id, opts...)
		}
		b.Pass(time.Second)
		_, err := b.Client.Dequeue(b.Context(), "a", cancel)
		require.NoError(b, err)
		_, err = b.Client.Enqueue(b.Context(), "a", lost, []byte("new"), delayq.Replace(), delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		b.Pass(9 * time.Second)
		stopped := time.Now()
		require.NoError(b, s.Stop())

		for id, kinds := range map[string]map[string]int{
			failed: {"Started": 2, "Retried": 1, "Done": 1},
			snooze: {"Started": 2, "Snoozed": 1, "Done": 1},
			buried: {"Started": 1, "Buried": 1},
			cancel: {"Started": 1, "Cancelled": 1},
			lost:   {"Started": 1, "Replaced": 1},
			expire: {"Expired": 1},
			cutOff: {"Started": 1, "Returned": 1},
		} {
			require.Equal(b, kinds, hooks.Kinds(id), id)
		}
		const ran = 100 * time.Millisecond
		for _, c := range []struct {
			hook, outcome, id string
			start, end        time.Time
			err               error
			next              time.Duration // after the end
		}{
			{"Retried", "retried", failed, began, began.Add(ran), queuetest.ErrTest, 5 * time.Second},
			{"Snoozed", "snoozed", snooze, began, began.Add(ran), nil, 3 * time.Second},
			{"Done", "acked", snooze, began.Add(ran + 3*time.Second), began.Add(2*ran + 3*time.Second), nil, 0},
			{"Buried", "buried", buried, began, began.Add(ran), queuetest.ErrTest, 0},
			{"Cancelled", "cancelled", cancel, began, began.Add(time.Second), delayq.ErrCancelled, 0},
			{"Replaced", "replaced", lost, began, began.Add(time.Second), delayq.ErrReplaced, 0},
			{"Expired", "expired", expire, time.Time{}, time.Time{}, nil, 0},
			{"Returned", "returned", cutOff, began, stopped, context.Canceled, 0},
		} {
			events := hooks.Of(c.hook, c.id)
			require.Len(b, events, 1, c.id)
			e := events[0]
			require.Equal(b, "a", e.Topic, c.id)
			require.EqualValues(b, c.outcome, e.Outcome, c.id)
			require.Equal(b, 1, e.Attempt, c.id)
			require.Equal(b, map[string]string{"h": c.id}, e.Headers)
			require.Equal(b, s.ID(), e.Server)
			require.Equal(b, len("of "+c.id), e.PayloadSize)
			if c.id == expire {
				require.True(b, e.EnqueuedAt.Equal(enqueued))
			} else {
				require.True(b, e.EnqueuedAt.Equal(began), c.id)
				require.WithinDuration(b, c.start, e.StartedAt, 0, c.id)
			}
			require.WithinDuration(b, c.end, e.FinishedAt, 0, c.id)
			if c.err != nil {
				require.ErrorIs(b, e.Err, c.err, c.id)
			}
			if c.next == 0 {
				require.Zero(b, e.NextDue, c.id)
			} else {
				require.WithinRange(b, e.NextDue, c.end.Add(c.next), c.end.Add(c.next*6/5), c.id)
			}
		}
		for _, e := range hooks.Of("Started") {
			require.Empty(b, e.Outcome)
			require.Zero(b, e.FinishedAt)
			require.GreaterOrEqual(b, e.Lateness(), time.Duration(0))
			require.Less(b, e.Lateness(), 2*time.Millisecond, e.ID)
		}
		require.Equal(b, 2, hooks.Of("Done", failed)[0].Attempt)
		for _, name := range []string{"promote", "take", "extend", "ack", "retry", "bury", "snooze", "give_back", "heartbeat"} {
			require.Positive(b, hooks.Calls(name), name)
		}
		for _, e := range hooks.Scripts {
			if e.Name != "heartbeat" || !errors.Is(e.Err, context.Canceled) { // the stop can cut it off
				require.NoError(b, e.Err)
			}
			require.Contains(b, delayq.Scripts(), e.Name)
			require.True(b, e.Topic == "a" || e.Topic == "" && (e.Name == "heartbeat" || e.Name == "watch"), e.Name)
		}
	})
}

// A hook that is slow to understand: it panics whatever it is told.
type panickyHook struct{}

func (panickyHook) Started(delayq.RunEvent)   { panic("started") }
func (panickyHook) Done(delayq.RunEvent)      { panic("done") }
func (panickyHook) Again(delayq.RunEvent)     { panic("again") }
func (panickyHook) Retried(delayq.RunEvent)   { panic("retried") }
func (panickyHook) Snoozed(delayq.RunEvent)   { panic(queuetest.ErrTest) }
func (panickyHook) Buried(delayq.RunEvent)    { nilMap["a"]++ }
func (panickyHook) Cancelled(delayq.RunEvent) { panic(panickyError{}) }
func (panickyHook) LeaseLost(delayq.RunEvent) { panic(nil) }
func (panickyHook) Replaced(delayq.RunEvent)  { panic("replaced") }
func (panickyHook) Late(delayq.RunEvent)      { panic("late") }
func (panickyHook) Returned(delayq.RunEvent)  { panic("returned") }
func (panickyHook) Expired(delayq.RunEvent)   { panic("expired") }
func (panickyHook) Script(delayq.ScriptEvent) { panic("script") }
func (panickyHook) Pruned(delayq.PruneEvent)  { panic("pruned") }
func (panickyHook) Enqueue(context.Context, *delayq.NewJob) {
	panic("enqueue")
}

func (panickyHook) Enqueued(context.Context, delayq.EnqueueEvent) { panic("enqueued") }
func (panickyHook) Dequeued(context.Context, delayq.DequeueEvent) { panic("dequeued") }
func (panickyHook) Ended(delayq.RunEvent)                         { panic("ended") }
func (panickyHook) Call(context.Context, delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	panic("call")
}

func (panickyHook) Run(context.Context, delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	panic("run")
}

// leavingHook calls runtime.Goexit, as FailNow of a test does, in what the loops call.
type leavingHook struct{}

func (leavingHook) Done(delayq.RunEvent)      { runtime.Goexit() }
func (leavingHook) Retried(delayq.RunEvent)   { runtime.Goexit() }
func (leavingHook) Ended(delayq.RunEvent)     { runtime.Goexit() }
func (leavingHook) Script(delayq.ScriptEvent) { runtime.Goexit() }
func (leavingHook) Run(context.Context, delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	return nil, func(delayq.RunEvent) { runtime.Goexit() }
}

// The loops of a server and the group commit of a client go on.
func TestHooksThatCallGoexitEndNoLoop(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var after queuetest.HookLog
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			if job.Attempt == 1 && job.ID != "0" {
				return queuetest.ErrTest
			}
			return nil
		}, delayq.Hooks(leavingHook{}, &after))
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(leavingHook{}))
		for round := range 2 {
			var stored sync.WaitGroup
			for i := range 20 {
				stored.Go(func() {
					_, err := client.Enqueue(b.Context(), "a", fmt.Sprint(20*round+i), nil)
					if err != nil {
						b.Error(err)
					}
				})
			}
			stored.Wait()
			b.Pass(10 * time.Second)
			for i := range 20 {
				require.Len(b, after.Of("Done", fmt.Sprint(20*round+i)), 1)
			}
		}
	})
}

// (I5)
func TestPanickingHooksAreHarmless(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var after queuetest.HookLog // comes after the one that panics, and is told all the same
		var log queuetest.Logbook
		s := b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			switch {
			case job.ID == "fail" && job.Attempt == 1:
				return queuetest.ErrTest
			case job.ID == "snooze" && job.Due.Equal(job.EnqueuedAt):
				return delayq.Snooze(time.Second)
			case job.ID == "bury":
				return delayq.Permanent(queuetest.ErrTest)
			case job.ID == "cancel", job.ID == "return", job.ID == "replace":
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, delayq.Hooks(panickyHook{}), delayq.Hooks(&after), log.To(), delayq.Drain(0))
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(panickyHook{}))
		for _, id := range []string{"plain", "fail", "snooze", "bury", "cancel", "return", "replace"} {
			_, err := client.Enqueue(b.Context(), "a", id, nil)
			require.NoError(b, err)
		}
		b.Pass(time.Second)
		_, err := b.Client.Dequeue(b.Context(), "a", "cancel")
		require.NoError(b, err)
		b.Enqueue("a", "replace", delayq.Replace(), delayq.ProcessIn(time.Hour))
		b.Pass(5 * time.Second)
		require.NoError(b, s.Stop())
		for name, n := range map[string]int{"Done": 3, "Retried": 1, "Snoozed": 1, "Buried": 1, "Cancelled": 1, "Replaced": 1, "Returned": 1} {
			require.Len(b, after.Of(name), n, name)
		}
		require.Positive(b, after.Calls("ack"))
		for _, text := range []string{"panic: started", "panic: done", "panic: returned", "panic: script", queuetest.ErrTest.Error(), "nil map"} {
			require.NotEmpty(b, log.With("level=ERROR", `msg="hook crashed"`, text, "stack=", "panickyHook"), text)
		}
		require.Equal(b, delayq.StateReady, b.State("a", "return"))
	})
}

// What a handler does to its Job is its own affair.
func TestHandlerMaySpoilItsJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			attempt := job.Attempt
			job.ID, job.Attempt, job.Headers, job.Payload = "another", 77, nil, nil
			if attempt == 1 {
				return errors.New("once")
			}
			return nil
		}, delayq.Hooks(&hooks))
		b.Enqueue("a", "1", delayq.Backoff(time.Second, time.Second))
		synctest.Wait()
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, 1, info.Errors[0].Attempt)
		b.Pass(10 * time.Second)
		require.Empty(b, b.State("a", "1"))
		require.Equal(b, map[string]int{"Started": 2, "Retried": 1, "Done": 1}, hooks.Kinds("1"))
		require.Equal(b, 2, hooks.Of("Done")[0].Attempt)
	})
}
