package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// (B18)
func TestRetryIsTheNumberOfRetries(t *testing.T) {
	for retries := range 4 {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var rec queuetest.Recorder
				var hooks queuetest.HookLog
				for range 5 { // no server adds attempts of its own
					b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error { return queuetest.ErrTest }), delayq.Hooks(&hooks))
				}
				job := b.Enqueue("a", "1", delayq.Retry(retries), delayq.Backoff(time.Second, 2*time.Second))
				require.Equal(b, retries, job.Retries)
				b.Pass(time.Minute)
				starts := rec.All()
				require.Len(b, starts, retries+1)
				for i, s := range starts {
					require.Equal(b, i+1, s.Attempt)
				}
				info := b.Get("a", "1")
				require.Equal(b, delayq.StateDead, info.State)
				require.Equal(b, retries+1, info.Attempt)
				require.Len(b, info.Errors, retries+1)
				require.Len(b, hooks.Of("Retried"), retries)
				require.Len(b, hooks.Of("Buried"), 1)
				require.ErrorIs(b, hooks.Of("Buried")[0].Err, queuetest.ErrTest)
			})
		})
	}
}

// (M6)
func TestRetriesAreUnlimitedByDefault(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error { return queuetest.ErrTest }))
		job := b.Enqueue("a", "1", delayq.Backoff(time.Second, time.Second))
		require.Equal(b, -1, job.Retries)
		b.Pass(time.Minute)
		require.Greater(b, len(rec.All()), 45)
		require.Equal(b, delayq.StateScheduled, b.State("a", "1"))
	})
}

// With the default backoff the attempts lie two seconds apart, then four, and so on, each with up
// to a fifth more. (M5)
func TestRetriesFollowTheDefaultBackoff(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error { return queuetest.ErrTest }), delayq.Hooks(&hooks))
		b.Enqueue("a", "1")
		b.Pass(160 * time.Second)
		starts := rec.All()
		require.GreaterOrEqual(b, len(starts), 7)
		for i := range starts[1:] {
			step := 2 * time.Second << i
			gap := starts[i+1].At.Sub(starts[i].At)
			require.GreaterOrEqual(b, gap, step, "after attempt %d", i+1)
			require.LessOrEqual(b, gap, step+step/5, "after attempt %d", i+1)
			require.True(b, hooks.Of("Retried")[i].NextDue.Equal(starts[i+1].At), "NextDue after attempt %d", i+1)
			require.True(b, starts[i+1].Due.Equal(starts[i+1].At))
		}
	})
}

func TestPermanentBuriesAtOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			switch job.ID {
			case "wrapped":
				return fmt.Errorf("around: %w", delayq.Permanent(queuetest.ErrTest))
			case "joined":
				return errors.Join(errors.New("other"), delayq.Permanent(queuetest.ErrTest))
			case "nil":
				return delayq.Permanent(nil)
			}
			return delayq.Permanent(queuetest.ErrTest)
		})
		for _, id := range []string{"plain", "wrapped", "joined"} {
			b.Enqueue("a", id)
			synctest.Wait()
			info := b.Get("a", id)
			require.Equal(b, delayq.StateDead, info.State, id)
			require.Len(b, info.Errors, 1)
			require.Contains(b, info.Errors[0].Message, queuetest.ErrTest.Error())
			require.Equal(b, "*errors.errorString", info.Errors[0].Type, id)
			require.Zero(b, info.Errors[0].NextDue)
		}
		b.Enqueue("a", "nil")
		synctest.Wait()
		require.Empty(b, b.State("a", "nil"))
	})
}

func TestSnoozeUsesNoAttempt(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			switch n := len(rec.Of(job.ID)); {
			case job.ID == "far":
				return delayq.Snooze(1<<63 - 1)
			case n <= 2:
				return delayq.Snooze(time.Minute)
			case n == 3:
				return fmt.Errorf("not yet: %w", delayq.Snooze(90*time.Second))
			case n == 4:
				return delayq.Snooze(-time.Hour) // now
			}
			return nil
		}), delayq.Hooks(&hooks))
		b.Enqueue("a", "1", delayq.Retry(0))
		b.Pass(30 * time.Second)
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, delayq.DueSnooze, info.DueReason)
		require.True(b, info.Due.Equal(b.Began.Add(time.Minute)))
		b.Pass(10 * time.Minute)
		var at []time.Duration
		for _, s := range rec.All() {
			require.Equal(b, 1, s.Attempt)
			at = append(at, s.At.Sub(b.Began))
		}
		require.Len(b, at, 5)
		require.Equal(b, []time.Duration{0, time.Minute, 2 * time.Minute, 210 * time.Second}, at[:4])
		require.Less(b, at[4]-at[3], time.Second+time.Millisecond)
		require.Len(b, hooks.Of("Snoozed"), 4)
		require.Empty(b, hooks.Of("Retried"))
		require.True(b, hooks.Of("Snoozed")[2].NextDue.Equal(b.Began.Add(at[3])))
		require.Len(b, hooks.Of("Done"), 1)

		b.Enqueue("a", "far")
		b.Pass(time.Minute)
		info = b.Get("a", "far")
		require.Empty(b, info.Errors)
		require.Len(b, rec.Of("far"), 1)
		require.Equal(b, 2099, info.Due.Year(), "a hundred years of 365 days, and no more")
	})
}

type panickyError struct{}

func (panickyError) Error() string { panic("even the error is broken") }

// However a handler ends without returning well, it is a failure of that attempt, with the stack
// kept where there is one, and its slot is free again at once. (C7, C8, I4, I5, I11)
func TestCrashOfAHandlerIsAFailureOfTheAttempt(t *testing.T) {
	crashes := map[string]struct {
		crash              func() error
		kind, typ, message string
		stack              string
	}{
		"panic":       {func() error { panic("at the disco") }, "panic", "string", "at the disco", "retry_test.go"},
		"panic error": {func() error { panic(fmt.Errorf("outer: %w", queuetest.ErrTest)) }, "panic", "*fmt.wrapError", queuetest.ErrTest.Error(), "retry_test.go"},
		"panic nil":   {func() error { panic(nil) }, "panic", "*runtime.PanicNilError", "nil", "retry_test.go"},
		"nil map": {func() error { nilMap["a"]++; return nil }, "panic", "runtime.plainError",
			"assignment to entry in nil map", "retry_test.go"},
		"nil pointer":   {func() error { var j *delayq.Job; return errors.New(j.ID) }, "panic", "runtime.errorString", "nil pointer", "retry_test.go"},
		"goexit":        {func() error { runtime.Goexit(); return nil }, "goexit", "string", "Goexit", "retry_test.go"},
		"panicky error": {func() error { return panickyError{} }, "error", "tests.panickyError", "Error method panics", ""},
		"panic with it": {func() error { panic(panickyError{}) }, "panic", "tests.panickyError", "", "retry_test.go"},
		"panic snooze":  {func() error { panic(delayq.Snooze(time.Hour)) }, "panic", "*delayq.snoozeError", "snooze", "retry_test.go"},
		"panic perm":    {func() error { panic(delayq.Permanent(queuetest.ErrTest)) }, "panic", "*delayq.permanentError", queuetest.ErrTest.Error(), "retry_test.go"},
		"big error":     {func() error { return errors.New(strings.Repeat("x", 10<<20)) }, "error", "*errors.errorString", "xxx", ""},
	}
	for name, c := range crashes {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var log queuetest.Logbook
				b.Serve("a", func(_ context.Context, job *delayq.Job) error {
					if job.Attempt == 1 && job.ID != "good" {
						return c.crash()
					}
					return nil
				}, delayq.Concurrency(2), log.To())
				for i := range 6 { // three times as many as there are slots
					b.Enqueue("a", fmt.Sprint(i))
				}
				b.Enqueue("a", "good")
				b.Pass(time.Second)
				require.Empty(b, b.State("a", "good"), "the slots are not free")
				info := b.Get("a", "3")
				require.Equal(b, delayq.StateScheduled, info.State)
				require.Equal(b, 2, info.Attempt)
				require.Len(b, info.Errors, 1)
				e := info.Errors[0]
				require.EqualValues(b, c.kind, e.Kind)
				require.Equal(b, c.typ, e.Type)
				require.Equal(b, 1, e.Attempt)
				require.Contains(b, e.Message, c.message)
				require.LessOrEqual(b, len(e.Message), 1<<10)
				require.LessOrEqual(b, len(e.Stack), 4<<10)
				require.Contains(b, e.Stack, c.stack)
				require.Equal(b, c.stack == "", e.Stack == "")
				require.Len(b, log.With(`msg="job retried"`, "attempt=1"), 6)
				b.Pass(time.Minute)
				require.EqualValues(b, 7, b.Counter("a", "acked"))
			})
		})
	}
}

// An error that is a nil pointer, a common slip, has an Unwrap that panics.
func TestErrorWhoseMethodsPanicIsAFailureOfTheAttempt(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			if job.Attempt > 1 {
				return nil
			}
			var err *net.OpError
			return err
		})
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.Len(b, b.Get("a", "1").Errors, 1)
		require.Equal(b, "*net.OpError", b.Get("a", "1").Errors[0].Type)
		b.Pass(time.Minute)
		require.Empty(b, b.State("a", "1"))
	})
}

// (L7)
func TestErrorsKeepTheFirstAndTheNewestTen(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			time.Sleep(time.Duration(job.Attempt) * time.Millisecond)
			return fmt.Errorf("failure %d: %s", job.Attempt, strings.Repeat("ü", 1000))
		})
		b.Enqueue("a", "1", delayq.Retry(24), delayq.Backoff(time.Second, time.Second), delayq.Header("traceparent", "00-abc"))
		for range 25 {
			b.Pass(1300 * time.Millisecond)
			require.LessOrEqual(b, len(b.Get("a", "1").Errors), 11)
		}
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateDead, info.State)
		require.Len(b, info.Errors, 11)
		for i, e := range info.Errors {
			attempt := 1
			if i > 0 {
				attempt = 15 + i // 16 to 25
			}
			require.Equal(b, attempt, e.Attempt)
			require.True(b, strings.HasPrefix(e.Message, fmt.Sprintf("failure %d: ü", attempt)))
			require.LessOrEqual(b, len(e.Message), 1<<10)
			require.Equal(b, delayq.KindError, e.Kind)
			require.Equal(b, "*errors.errorString", e.Type)
			require.Equal(b, time.Duration(attempt)*time.Millisecond, e.Duration)
			require.Equal(b, s.ID(), e.Server)
			require.Equal(b, "00-abc", e.TraceParent)
			require.Empty(b, e.Stack)
			require.WithinRange(b, e.At, b.Began, time.Now())
			if attempt < 25 {
				require.WithinRange(b, e.NextDue, e.At.Add(time.Second), e.At.Add(1200*time.Millisecond))
			} else {
				require.Zero(b, e.NextDue)
			}
		}
	})
}

func TestTimeoutIsAFailureOfTheAttempt(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var cause error
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			if job.Attempt > 1 {
				return nil
			}
			deadline, ok := ctx.Deadline()
			require.True(b, ok)
			require.Equal(b, 3*time.Second, time.Until(deadline))
			<-ctx.Done()
			cause = context.Cause(ctx)
			return ctx.Err()
		})
		b.Enqueue("a", "1", delayq.Timeout(3*time.Second))
		b.Pass(3 * time.Second)
		require.ErrorIs(b, cause, delayq.ErrTimeout)
		require.ErrorIs(b, cause, context.DeadlineExceeded)
		info := b.Get("a", "1")
		require.Equal(b, delayq.KindTimeout, info.Errors[0].Kind)
		require.Equal(b, 3*time.Second, info.Errors[0].Duration)
		b.Pass(time.Minute)
		require.Empty(b, b.State("a", "1"))
	})
}

// Every server that starts the job dies of it. The lease runs out as often as there are tries, then
// the next server buries the job instead of dying too; another job of the topic gets through. (I1,
// M2)
func TestJobThatKillsItsProcessIsBuried(t *testing.T) {
	for _, retries := range []int{0, 2} {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var mu sync.Mutex
				deaths := 0
				var rec queuetest.Recorder
				var hooks queuetest.HookLog
				opts := []delayq.ServerOption{delayq.Lease(2 * time.Second), delayq.Drain(0), delayq.Hooks(&hooks)}
				b.Enqueue("a", "killer", delayq.Retry(retries))
				b.Enqueue("a", "harmless", delayq.ProcessIn(time.Second))
				for range retries + 3 { // what a supervisor does
					w := queuetest.NewWire(b.Redis)
					died := make(chan struct{})
					s := b.ServeOn(w, "a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
						if job.ID == "killer" {
							mu.Lock()
							deaths++
							mu.Unlock()
							w.Cut()
							close(died)
							<-ctx.Done()
						}
						return nil
					}), opts...)
					select {
					case <-died:
					case <-time.After(10 * time.Second):
					}
					require.NoError(b, s.Stop())
					b.Pass(3 * time.Second)
				}
				require.Equal(b, retries+1, deaths)
				require.NotEmpty(b, rec.Of("harmless"))
				require.Empty(b, b.State("a", "harmless"))
				info := b.Get("a", "killer")
				require.Equal(b, delayq.StateDead, info.State)
				require.Equal(b, retries+1, info.Attempt)
				require.Len(b, info.Errors, retries+1)
				for i, e := range info.Errors {
					require.Equal(b, delayq.KindLeaseLost, e.Kind)
					require.Equal(b, i+1, e.Attempt)
				}
				require.Len(b, hooks.Of("Buried", "killer"), 1)
				require.ErrorIs(b, hooks.Of("Buried", "killer")[0].Err, delayq.ErrLeaseLost)
			})
		})
	}
}

// A job of unlimited retries that kills every process that runs it does not keep the others from
// being run: from the second time on it backs off, and apart from the jobs it was taken with. (I1)
func TestJobThatKillsItsProcessStarvesNoOther(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Enqueue("a", "killer")
		for i := range 5 {
			b.Enqueue("a", fmt.Sprint(i))
		}
		for range 8 {
			w := queuetest.NewWire(b.Redis)
			s := b.ServeOn(w, "a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
				if job.ID == "killer" {
					w.Cut()
					<-ctx.Done()
				}
				return nil
			}), delayq.Lease(time.Second), delayq.Drain(0), delayq.Concurrency(1))
			b.Pass(2 * time.Second)
			require.NoError(b, s.Stop())
			b.Pass(2 * time.Second)
		}
		require.NotEmpty(b, b.State("a", "killer"))
		for i := range 5 {
			require.Empty(b, b.State("a", fmt.Sprint(i)), "job %d does not get a chance", i)
		}
	})
}

// Who revives a job means it to run.
func TestReviveOfAnExpiredJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error { return queuetest.ErrTest }))
		b.Enqueue("a", "1", delayq.ExpireIn(5*time.Second), delayq.Retry(1), delayq.Backoff(time.Second, time.Second))
		b.Pass(time.Minute)
		require.Equal(b, delayq.StateDead, b.State("a", "1"))
		require.NoError(b, b.Client.Revive(b.Context(), "a", "1"))
		b.Pass(time.Minute)
		require.Len(b, rec.All(), 4)
		require.Equal(b, delayq.StateDead, b.State("a", "1"))
		require.Zero(b, b.Counter("a", "expired"))
	})
}

func TestReviveGivesAFreshBudget(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if len(rec.Of(job.ID)) == 5 {
				return delayq.Snooze(time.Second) // nothing has failed since the revival
			}
			return queuetest.ErrTest
		}))
		b.Enqueue("a", "1", delayq.Retry(1), delayq.Backoff(time.Second, time.Second))
		for round := 1; round <= 3; round++ {
			b.Pass(time.Minute)
			info := b.Get("a", "1")
			require.Equal(b, delayq.StateDead, info.State)
			require.Equal(b, 2*round, info.Attempt)
			require.Len(b, info.Errors, 2*round)
			require.NoError(b, b.Client.Revive(b.Context(), "a", "1"))
			at := b.At()
			synctest.Wait()
			last := rec.All()[len(rec.All())-1]
			require.Equal(b, at, last.At.Sub(b.Began), "a revived job starts at once")
			require.Equal(b, 2*round+1, last.Attempt, "attempts go on counting")
			require.True(b, last.Due.Equal(last.At))
		}
		require.ErrorIs(b, b.Client.Revive(b.Context(), "a", "1"), delayq.ErrNotFound)
	})
}

// A failure that Redis could not be told of at once is told later, and counts once. (A8)
func TestFailureDuringAnOutageCountsOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		var rec queuetest.Recorder
		b.ServeOn(w, "a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.Attempt == 1 {
				w.Cut()
				return queuetest.ErrTest
			}
			return nil
		}))
		b.Enqueue("a", "1", delayq.Retry(1))
		b.Pass(8 * time.Second)
		require.Len(b, rec.All(), 1)
		w.Mend()
		b.Pass(20 * time.Second)
		require.Len(b, rec.All(), 2)
		require.Equal(b, 2, rec.All()[1].Attempt)
		require.Empty(b, b.State("a", "1"))
		require.EqualValues(b, 1, b.Counter("a", "retried"))
	})
}

var nilMap map[string]int
