package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Nothing that a handler said is lost when its run is not what decides about the job any more: it
// is in the log once, with the stack of a panic, and the hooks have it beside the cause.
func TestWhatHandlersOfLostJobsSaid(t *testing.T) {
	type way struct {
		hook, message, level string
		cause                error
		take                 func(b *queuetest.Bubble, s *queuetest.Running) // from the handler
	}
	ways := map[string]way{
		"cancelled": {"Cancelled", "job cancelled", "INFO", delayq.ErrCancelled, func(b *queuetest.Bubble, _ *queuetest.Running) {
			_, err := b.Client.Dequeue(b.Context(), "a", "1")
			require.NoError(b, err)
		}},
		"replaced": {"Replaced", "job replaced", "INFO", delayq.ErrReplaced, func(b *queuetest.Bubble, _ *queuetest.Running) {
			b.Enqueue("a", "1", delayq.Replace(), delayq.ProcessIn(time.Hour))
		}},
		"lease lost": {"LeaseLost", "lease lost", "WARN", delayq.ErrLeaseLost, func(b *queuetest.Bubble, _ *queuetest.Running) {
			require.NoError(b, b.RDB.Del(b.Context(), queuetest.Prefix+":{a}:leases").Err())
		}},
		"returned": {"Returned", "job returned", "", delayq.ErrShutdown, func(b *queuetest.Bubble, s *queuetest.Running) { s.End() }},
	}
	type end struct {
		level string // that the line has at least; empty: there is nothing to tell
		text  string
		say   func(ctx context.Context) error
	}
	ends := map[string]end{
		"nothing":            {"", "", func(context.Context) error { return nil }},
		"the context's":      {"", "", func(ctx context.Context) error { return ctx.Err() }},
		"the cause":          {"", "", context.Cause},
		"a snooze":           {"", "", func(context.Context) error { return delayq.Snooze(time.Second) }},
		"the context's, put": {"INFO", "half way", func(ctx context.Context) error { return fmt.Errorf("half way: %w", ctx.Err()) }},
		"an error":           {"WARN", queuetest.ErrTest.Error(), func(context.Context) error { return queuetest.ErrTest }},
		"a joined error": {"WARN", queuetest.ErrTest.Error(), func(ctx context.Context) error {
			return errors.Join(ctx.Err(), fmt.Errorf("and %w", queuetest.ErrTest))
		}},
		"another's context": {"WARN", "deadline exceeded", func(context.Context) error {
			return fmt.Errorf("ask: %w", context.DeadlineExceeded)
		}},
		"an error that panics": {"WARN", "whose Error method panics", func(context.Context) error { return panickyError{} }},
		"a panic":              {"ERROR", "panic: out of cheese", func(context.Context) error { panic("out of cheese") }},
		"a Goexit":             {"ERROR", "goexit", func(context.Context) error { runtime.Goexit(); return nil }},
	}
	levels := []string{"", "INFO", "WARN", "ERROR"}
	at := func(level string) int {
		for i, l := range levels {
			if l == level {
				return i
			}
		}
		panic(level)
	}
	for wayName, way := range ways {
		for endName, end := range ends {
			if crash := end.level == "ERROR"; wayName == "returned" && crash {
				continue // is a failed attempt also at the end of Drain
			}
			if wayName == "returned" && (endName == "nothing" || endName == "a snooze") {
				continue // decide about the job
			}
			t.Run(wayName+"/"+endName, func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					var hooks queuetest.HookLog
					var log queuetest.Logbook
					var s *queuetest.Running
					var said error
					ready := make(chan struct{})
					s = b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
						<-ready
						if len(hooks.Of("Started", "1")) > 1 { // a lost job runs again
							return nil
						}
						way.take(b, s)
						<-ctx.Done()
						said = end.say(ctx)
						return said
					}, delayq.Hooks(&hooks), log.To(), delayq.Drain(0), delayq.Lease(3*time.Second))
					b.Enqueue("a", "1")
					close(ready)
					b.Pass(time.Minute)
					require.Len(b, hooks.Of(way.hook, "1"), 1)
					event := hooks.Of(way.hook, "1")[0]
					require.ErrorIs(b, event.Err, way.cause)
					if said != nil {
						require.ErrorIs(b, event.Err, said)
					}
					level := levels[max(at(way.level), at(end.level))]
					lines := log.With("msg="+quoted(way.message), "job=1", "attempt=1")
					if level == "" {
						require.Empty(b, lines)
						return
					}
					require.Len(b, lines, 1)
					require.Contains(b, lines[0], "level="+level)
					if end.text == "" {
						require.NotContains(b, lines[0], "err=")
						require.Equal(b, "", event.Stack)
						return
					}
					require.Contains(b, lines[0], "err=")
					require.Contains(b, lines[0], end.text)
					if end.level == "ERROR" {
						require.Contains(b, lines[0], "said_test.go")
						require.Contains(b, event.Stack, "said_test.go")
						require.ErrorContains(b, event.Err, end.text)
					}
				})
			})
		}
	}
}

// quoted is a text as the handler of the logbook writes it.
func quoted(text string) string {
	for _, r := range text {
		if r == ' ' {
			return fmt.Sprintf("%q", text)
		}
	}
	return text
}

// A handler that outlives the drain, and Run: what it says at last is in the log, and its hook is
// called, but its outcome stays the one that was told.
func TestWhatAbandonedHandlersSaid(t *testing.T) {
	for name, end := range map[string]struct {
		level, text string
		say         func() error
	}{
		"nothing": {"", "", func() error { return nil }},
		"ctx":     {"", "", func() error { return context.Canceled }},
		"error":   {"WARN", queuetest.ErrTest.Error(), func() error { return queuetest.ErrTest }},
		"panic":   {"ERROR", "panic: out of cheese", func() error { panic("out of cheese") }},
		"goexit":  {"ERROR", "goexit", func() error { runtime.Goexit(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks queuetest.HookLog
				var log queuetest.Logbook
				release := make(chan struct{})
				s := b.Serve("a", func(context.Context, *delayq.Job) error {
					<-release
					return end.say()
				}, delayq.Hooks(&hooks), log.To(), delayq.Drain(0))
				b.Enqueue("a", "1")
				b.Pass(time.Second)
				require.NoError(b, s.Stop())
				require.Equal(b, map[string]int{"Started": 1, "Returned": 1}, hooks.Kinds("1"))
				require.ErrorIs(b, hooks.Of("Returned")[0].Err, delayq.ErrShutdown)
				b.Pass(time.Hour)
				close(release)
				synctest.Wait()
				require.Equal(b, map[string]int{"Started": 1, "Returned": 1, "Late": 1}, hooks.Kinds("1"))
				late := hooks.Of("Late")[0]
				require.Empty(b, late.Outcome)
				require.ErrorIs(b, late.Err, delayq.ErrShutdown)
				require.Equal(b, time.Hour+time.Second, late.FinishedAt.Sub(late.StartedAt).Round(time.Second))
				lines := log.With(`msg="handler returned late"`, "job=1", "attempt=1")
				if end.level == "" {
					require.Empty(b, lines)
					return
				}
				require.Len(b, lines, 1)
				require.Contains(b, lines[0], "level="+end.level)
				require.Contains(b, lines[0], end.text)
				require.ErrorContains(b, late.Err, end.text)
				if end.level == "ERROR" {
					require.Contains(b, lines[0], "said_test.go")
					require.Contains(b, late.Stack, "said_test.go")
				}
			})
		})
	}
}

// A handler is given up at the end of the drain and ends while Redis is still being told so: its
// outcome is told once, and the job is not settled a second time.
func TestAbandonedRunHasOneOutcome(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var hooks queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		release := make(chan struct{})
		s := b.ServeOn(w, "a", func(context.Context, *delayq.Job) error {
			<-release
			return nil
		}, delayq.Hooks(&hooks), delayq.Drain(0))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		w.Delay(queuetest.Digest("give_back"))
		s.End()
		b.Pass(150 * time.Millisecond) // the job is back, and the answer is on its way
		require.Equal(b, delayq.StateReady, b.State("a", "1"))
		require.Empty(b, hooks.Of("Returned"))
		close(release)
		synctest.Wait()
		w.Rush()
		<-s.Done
		require.NoError(b, s.Err)
		b.Pass(time.Minute)
		require.Equal(b, map[string]int{"Started": 1, "Returned": 1, "Late": 1}, hooks.Kinds("1"))
		for _, name := range []string{"ack", "retry"} {
			require.Zero(b, hooks.Calls(name), name)
		}
	})
}

// Redis does not take the outcomes before the server ends: what the handlers said is in the log.
func TestWhatHandlersSaidThatRedisWasNotTold(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		w := queuetest.NewWire(b.Redis)
		s := b.ServeOn(w, "a", func(_ context.Context, job *delayq.Job) error {
			time.Sleep(2 * time.Second)
			if job.ID == "well" {
				return nil
			}
			panic("out of " + job.ID)
		}, log.To(), delayq.Drain(time.Second))
		for _, id := range []string{"cheese", "time", "well"} {
			b.Enqueue("a", id)
		}
		b.Pass(time.Second)
		w.Cut()
		b.Pass(2 * time.Second)
		require.NoError(b, s.Stop())
		for _, id := range []string{"cheese", "time"} {
			require.Len(b, log.With("level=ERROR", `msg="job not settled"`, "job="+id, "out of "+id, "said_test.go"), 1)
		}
		require.Empty(b, log.With("job=well"))
	})
}

// What is joined to a Snooze is in the log, with the delay.
func TestWhatIsSaidBesideASnooze(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			switch snooze := delayq.Snooze(time.Hour); job.ID {
			case "bare":
				return snooze
			case "put":
				return fmt.Errorf("too many requests: %w", snooze)
			default:
				return errors.Join(queuetest.ErrTest, snooze)
			}
		}, log.To())
		for _, id := range []string{"bare", "put", "joined"} {
			b.Enqueue("a", id)
		}
		b.Pass(time.Second)
		require.EqualValues(b, 3, b.Counter("a", "snoozed"))
		require.Empty(b, log.With("job=bare"))
		require.Len(b, log.With("job=put"), 1)
		require.Len(b, log.With("level=INFO", `msg="job snoozed"`, "job=put", "too many requests", "delay=1h"), 1)
		require.Len(b, log.With("job=joined"), 1)
		require.Len(b, log.With("level=WARN", `msg="job snoozed"`, "job=joined", queuetest.ErrTest.Error(), "delay=1h"), 1)
	})
}
