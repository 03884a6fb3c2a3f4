package delayq_test

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
)

var errTest = errors.New("does not work")

// (B18)
func TestRetryIsTheNumberOfRetries(t *testing.T) {
	for retries := range 4 {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var rec recorder
				var hooks told
				for range 5 { // no server adds attempts of its own
					b.serve("a", rec.then(func(context.Context, *delayq.Job) error { return errTest }), delayq.Hooks(&hooks))
				}
				job := b.enqueue("a", "1", delayq.Retry(retries), delayq.Backoff(time.Second, 2*time.Second))
				require.Equal(b, retries, job.Retries)
				b.pass(time.Minute)
				starts := rec.all()
				require.Len(b, starts, retries+1)
				for i, s := range starts {
					require.Equal(b, i+1, s.attempt)
				}
				info := b.get("a", "1")
				require.Equal(b, delayq.StateDead, info.State)
				require.Equal(b, retries+1, info.Attempt)
				require.Len(b, info.Errors, retries+1)
				require.Len(b, hooks.of("Retried"), retries)
				require.Len(b, hooks.of("Buried"), 1)
				require.ErrorIs(b, hooks.of("Buried")[0].Err, errTest)
			})
		})
	}
}

// (M6)
func TestRetriesAreUnlimitedByDefault(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.serve("a", rec.then(func(context.Context, *delayq.Job) error { return errTest }))
		job := b.enqueue("a", "1", delayq.Backoff(time.Second, time.Second))
		require.Equal(b, -1, job.Retries)
		b.pass(time.Minute)
		require.Greater(b, len(rec.all()), 45)
		require.Equal(b, delayq.StateScheduled, b.state("a", "1"))
	})
}

// With the default backoff the attempts lie two seconds apart, then four, and so on, each with up
// to a fifth more. (M5)
func TestRetriesFollowTheDefaultBackoff(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		var hooks told
		b.serve("a", rec.then(func(context.Context, *delayq.Job) error { return errTest }), delayq.Hooks(&hooks))
		b.enqueue("a", "1")
		b.pass(160 * time.Second)
		starts := rec.all()
		require.GreaterOrEqual(b, len(starts), 7)
		for i := range starts[1:] {
			step := 2 * time.Second << i
			gap := starts[i+1].at.Sub(starts[i].at)
			require.GreaterOrEqual(b, gap, step, "after attempt %d", i+1)
			require.LessOrEqual(b, gap, step+step/5, "after attempt %d", i+1)
			require.True(b, hooks.of("Retried")[i].NextDue.Equal(starts[i+1].at), "NextDue after attempt %d", i+1)
			require.True(b, starts[i+1].due.Equal(starts[i+1].at))
		}
	})
}

func TestPermanentBuriesAtOnce(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.serve("a", func(_ context.Context, job *delayq.Job) error {
			switch job.ID {
			case "wrapped":
				return fmt.Errorf("around: %w", delayq.Permanent(errTest))
			case "joined":
				return errors.Join(errors.New("other"), delayq.Permanent(errTest))
			case "nil":
				return delayq.Permanent(nil)
			}
			return delayq.Permanent(errTest)
		})
		for _, id := range []string{"plain", "wrapped", "joined"} {
			b.enqueue("a", id)
			synctest.Wait()
			info := b.get("a", id)
			require.Equal(b, delayq.StateDead, info.State, id)
			require.Len(b, info.Errors, 1)
			require.Contains(b, info.Errors[0].Message, errTest.Error())
			require.Equal(b, "*errors.errorString", info.Errors[0].Type, id)
			require.Zero(b, info.Errors[0].NextDue)
		}
		b.enqueue("a", "nil")
		synctest.Wait()
		require.Empty(b, b.state("a", "nil"))
	})
}

func TestSnoozeUsesNoAttempt(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		var hooks told
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			switch n := len(rec.of(job.ID)); {
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
		b.enqueue("a", "1", delayq.Retry(0))
		b.pass(30 * time.Second)
		info := b.get("a", "1")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, delayq.DueSnooze, info.DueReason)
		require.True(b, info.Due.Equal(b.began.Add(time.Minute)))
		b.pass(10 * time.Minute)
		var at []time.Duration
		for _, s := range rec.all() {
			require.Equal(b, 1, s.attempt)
			at = append(at, s.at.Sub(b.began))
		}
		require.Len(b, at, 5)
		require.Equal(b, []time.Duration{0, time.Minute, 2 * time.Minute, 210 * time.Second}, at[:4])
		require.Less(b, at[4]-at[3], time.Second+time.Millisecond)
		require.Len(b, hooks.of("Snoozed"), 4)
		require.Empty(b, hooks.of("Retried"))
		require.True(b, hooks.of("Snoozed")[2].NextDue.Equal(b.began.Add(at[3])))
		require.Len(b, hooks.of("Done"), 1)

		b.enqueue("a", "far")
		b.pass(time.Minute)
		info = b.get("a", "far")
		require.Empty(b, info.Errors)
		require.Len(b, rec.of("far"), 1)
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
		"panic error": {func() error { panic(fmt.Errorf("outer: %w", errTest)) }, "panic", "*fmt.wrapError", errTest.Error(), "retry_test.go"},
		"panic nil":   {func() error { panic(nil) }, "panic", "*runtime.PanicNilError", "nil", "retry_test.go"},
		"nil map": {func() error { nilMap["a"]++; return nil }, "panic", "runtime.plainError",
			"assignment to entry in nil map", "retry_test.go"},
		"nil pointer":   {func() error { var j *delayq.Job; return errors.New(j.ID) }, "panic", "runtime.errorString", "nil pointer", "retry_test.go"},
		"goexit":        {func() error { runtime.Goexit(); return nil }, "goexit", "string", "Goexit", "retry_test.go"},
		"panicky error": {func() error { return panickyError{} }, "error", "delayq_test.panickyError", "Error method panics", ""},
		"panic with it": {func() error { panic(panickyError{}) }, "panic", "delayq_test.panickyError", "", "retry_test.go"},
		"panic snooze":  {func() error { panic(delayq.Snooze(time.Hour)) }, "panic", "*delayq.snoozeError", "snooze", "retry_test.go"},
		"panic perm":    {func() error { panic(delayq.Permanent(errTest)) }, "panic", "*delayq.permanentError", errTest.Error(), "retry_test.go"},
		"big error":     {func() error { return errors.New(strings.Repeat("x", 10<<20)) }, "error", "*errors.errorString", "xxx", ""},
	}
	for name, c := range crashes {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var log logbook
				b.serve("a", func(_ context.Context, job *delayq.Job) error {
					if job.Attempt == 1 && job.ID != "good" {
						return c.crash()
					}
					return nil
				}, delayq.Concurrency(2), log.to())
				for i := range 6 { // three times as many as there are slots
					b.enqueue("a", fmt.Sprint(i))
				}
				b.enqueue("a", "good")
				b.pass(time.Second)
				require.Empty(b, b.state("a", "good"), "the slots are not free")
				info := b.get("a", "3")
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
				require.Len(b, log.with(`msg="job retried"`, "attempt=1"), 6)
				b.pass(time.Minute)
				require.EqualValues(b, 7, b.counter("a", "acked"))
			})
		})
	}
}

// An error that is a nil pointer, a common slip, has an Unwrap that panics.
func TestErrorWhoseMethodsPanicIsAFailureOfTheAttempt(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.serve("a", func(_ context.Context, job *delayq.Job) error {
			if job.Attempt > 1 {
				return nil
			}
			var err *net.OpError
			return err
		})
		b.enqueue("a", "1")
		b.pass(time.Second)
		require.Len(b, b.get("a", "1").Errors, 1)
		require.Equal(b, "*net.OpError", b.get("a", "1").Errors[0].Type)
		b.pass(time.Minute)
		require.Empty(b, b.state("a", "1"))
	})
}

// (L7)
func TestErrorsKeepTheFirstAndTheNewestTen(t *testing.T) {
	inBubble(t, func(b *bubble) {
		s := b.serve("a", func(_ context.Context, job *delayq.Job) error {
			time.Sleep(time.Duration(job.Attempt) * time.Millisecond)
			return fmt.Errorf("failure %d: %s", job.Attempt, strings.Repeat("ü", 1000))
		})
		b.enqueue("a", "1", delayq.Retry(24), delayq.Backoff(time.Second, time.Second), delayq.Header("traceparent", "00-abc"))
		for range 25 {
			b.pass(1300 * time.Millisecond)
			require.LessOrEqual(b, len(b.get("a", "1").Errors), 11)
		}
		info := b.get("a", "1")
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
			require.WithinRange(b, e.At, b.began, time.Now())
			if attempt < 25 {
				require.WithinRange(b, e.NextDue, e.At.Add(time.Second), e.At.Add(1200*time.Millisecond))
			} else {
				require.Zero(b, e.NextDue)
			}
		}
	})
}

func TestTimeoutIsAFailureOfTheAttempt(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var cause error
		b.serve("a", func(ctx context.Context, job *delayq.Job) error {
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
		b.enqueue("a", "1", delayq.Timeout(3*time.Second))
		b.pass(3 * time.Second)
		require.ErrorIs(b, cause, delayq.ErrTimeout)
		require.ErrorIs(b, cause, context.DeadlineExceeded)
		info := b.get("a", "1")
		require.Equal(b, delayq.KindTimeout, info.Errors[0].Kind)
		require.Equal(b, 3*time.Second, info.Errors[0].Duration)
		b.pass(time.Minute)
		require.Empty(b, b.state("a", "1"))
	})
}

// Every server that starts the job dies of it. The lease runs out as often as there are tries, then
// the next server buries the job instead of dying too; another job of the topic gets through. (I1,
// M2)
func TestJobThatKillsItsProcessIsBuried(t *testing.T) {
	for _, retries := range []int{0, 2} {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var mu sync.Mutex
				deaths := 0
				var rec recorder
				var hooks told
				opts := []delayq.ServerOption{delayq.Lease(2 * time.Second), delayq.Drain(0), delayq.Hooks(&hooks)}
				b.enqueue("a", "killer", delayq.Retry(retries))
				b.enqueue("a", "harmless", delayq.ProcessIn(time.Second))
				for range retries + 3 { // what a supervisor does
					w := newWire(b.redis)
					died := make(chan struct{})
					s := b.serveOn(w, "a", rec.then(func(ctx context.Context, job *delayq.Job) error {
						if job.ID == "killer" {
							mu.Lock()
							deaths++
							mu.Unlock()
							w.cut()
							close(died)
							<-ctx.Done()
						}
						return nil
					}), opts...)
					select {
					case <-died:
					case <-time.After(10 * time.Second):
					}
					require.NoError(b, s.stop())
					b.pass(3 * time.Second)
				}
				require.Equal(b, retries+1, deaths)
				require.NotEmpty(b, rec.of("harmless"))
				require.Empty(b, b.state("a", "harmless"))
				info := b.get("a", "killer")
				require.Equal(b, delayq.StateDead, info.State)
				require.Equal(b, retries+1, info.Attempt)
				require.Len(b, info.Errors, retries+1)
				for i, e := range info.Errors {
					require.Equal(b, delayq.KindLeaseLost, e.Kind)
					require.Equal(b, i+1, e.Attempt)
				}
				require.Len(b, hooks.of("Buried", "killer"), 1)
				require.ErrorIs(b, hooks.of("Buried", "killer")[0].Err, delayq.ErrLeaseLost)
			})
		})
	}
}

// A job of unlimited retries that kills every process that runs it does not keep the others from
// being run: from the second time on it backs off, and apart from the jobs it was taken with. (I1)
func TestJobThatKillsItsProcessStarvesNoOther(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.enqueue("a", "killer")
		for i := range 5 {
			b.enqueue("a", fmt.Sprint(i))
		}
		for range 8 {
			w := newWire(b.redis)
			s := b.serveOn(w, "a", rec.then(func(ctx context.Context, job *delayq.Job) error {
				if job.ID == "killer" {
					w.cut()
					<-ctx.Done()
				}
				return nil
			}), delayq.Lease(time.Second), delayq.Drain(0), delayq.Concurrency(1))
			b.pass(2 * time.Second)
			require.NoError(b, s.stop())
			b.pass(2 * time.Second)
		}
		require.NotEmpty(b, b.state("a", "killer"))
		for i := range 5 {
			require.Empty(b, b.state("a", fmt.Sprint(i)), "job %d does not get a chance", i)
		}
	})
}

// Who revives a job means it to run.
func TestReviveOfAnExpiredJob(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.serve("a", rec.then(func(context.Context, *delayq.Job) error { return errTest }))
		b.enqueue("a", "1", delayq.ExpireIn(5*time.Second), delayq.Retry(1), delayq.Backoff(time.Second, time.Second))
		b.pass(time.Minute)
		require.Equal(b, delayq.StateDead, b.state("a", "1"))
		require.NoError(b, b.client.Revive(b.Context(), "a", "1"))
		b.pass(time.Minute)
		require.Len(b, rec.all(), 4)
		require.Equal(b, delayq.StateDead, b.state("a", "1"))
		require.Zero(b, b.counter("a", "expired"))
	})
}

func TestReviveGivesAFreshBudget(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			if len(rec.of(job.ID)) == 5 {
				return delayq.Snooze(time.Second) // nothing has failed since the revival
			}
			return errTest
		}))
		b.enqueue("a", "1", delayq.Retry(1), delayq.Backoff(time.Second, time.Second))
		for round := 1; round <= 3; round++ {
			b.pass(time.Minute)
			info := b.get("a", "1")
			require.Equal(b, delayq.StateDead, info.State)
			require.Equal(b, 2*round, info.Attempt)
			require.Len(b, info.Errors, 2*round)
			require.NoError(b, b.client.Revive(b.Context(), "a", "1"))
			at := b.at()
			synctest.Wait()
			last := rec.all()[len(rec.all())-1]
			require.Equal(b, at, last.at.Sub(b.began), "a revived job starts at once")
			require.Equal(b, 2*round+1, last.attempt, "attempts go on counting")
			require.True(b, last.due.Equal(last.at))
		}
		require.ErrorIs(b, b.client.Revive(b.Context(), "a", "1"), delayq.ErrNotFound)
	})
}

// A failure that Redis could not be told of at once is told later, and counts once. (A8)
func TestFailureDuringAnOutageCountsOnce(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		var rec recorder
		b.serveOn(w, "a", rec.then(func(_ context.Context, job *delayq.Job) error {
			if job.Attempt == 1 {
				w.cut()
				return errTest
			}
			return nil
		}))
		b.enqueue("a", "1", delayq.Retry(1))
		b.pass(8 * time.Second)
		require.Len(b, rec.all(), 1)
		w.mend()
		b.pass(20 * time.Second)
		require.Len(b, rec.all(), 2)
		require.Equal(b, 2, rec.all()[1].attempt)
		require.Empty(b, b.state("a", "1"))
		require.EqualValues(b, 1, b.counter("a", "retried"))
	})
}

var nilMap map[string]int
