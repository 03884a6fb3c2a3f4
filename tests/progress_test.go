package tests

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// noteCalls is a hook that notes when the note script was called, and for how many jobs.
type noteCalls struct {
	mu   sync.Mutex
	at   map[string][]time.Time // by topic
	jobs []int
}

func (c *noteCalls) Script(e delayq.ScriptEvent) {
	if e.Name != "note" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at == nil {
		c.at = map[string][]time.Time{}
	}
	c.at[e.Topic] = append(c.at[e.Topic], time.Now())
	c.jobs = append(c.jobs, e.Jobs)
}

func (c *noteCalls) of(topic string) []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Time(nil), c.at[topic]...)
}

// Many jobs say all the time how far they have come: each topic makes a call at once and then one a
// second, the last value arrives, and there is none after the end.
func TestProgressIsGathered(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs, steps = 30, 250
		var calls noteCalls
		finish := make(chan struct{})
		handler := func(_ context.Context, job *delayq.Job) error {
			for i := range steps {
				require.NoError(b, job.Progress(int64(i+1), steps, fmt.Sprint("part ", i)))
				time.Sleep(10 * time.Millisecond)
			}
			<-finish
			require.NoError(b, job.Progress(math.MaxInt64, 1, "too late to be seen"))
			return nil
		}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("a", handler)
			s.HandlerFunc("other", handler)
		}, delayq.Hooks(&calls), delayq.Concurrency(jobs))
		b.Pass(time.Second)
		for i := range jobs {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(1200 * time.Millisecond)
		b.Enqueue("other", "1")
		b.Pass(20 * time.Millisecond)
		require.Equal(b, "part 0", b.Get("other", "1").Progress.Text, "at once")
		require.EqualValues(b, 1, b.Get("other", "1").Progress.Done)
		p := b.Get("a", "7").Progress
		require.EqualValues(b, steps, p.Total)
		require.InDelta(b, 100, p.Done, 2, "as it was a second after the first")
		b.Pass(4 * time.Second)
		for i := range jobs {
			p := b.Get("a", fmt.Sprint(i)).Progress
			require.EqualValues(b, steps, p.Done)
			require.Equal(b, fmt.Sprint("part ", steps-1), p.Text)
			require.WithinDuration(b, b.Began.Add(4*time.Second), p.At, 10*time.Millisecond)
		}
		for _, topic := range []string{"a", "other"} {
			at := calls.of(topic)
			require.Len(b, at, 4, "at once, and in the three seconds in which there is news")
			for i := range at[1:] {
				require.GreaterOrEqual(b, at[i+1].Sub(at[i]), time.Second)
			}
		}
		close(finish)
		b.Pass(time.Minute)
		require.EqualValues(b, jobs, b.Counter("a", "acked"))
		require.LessOrEqual(b, len(calls.of("a")), 5, "that of the first job that is too late may have been sent")
		require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a"), notesKey("other")).Val())
	})
}

// However a run ends that leaves its job, the last progress is there, and stays until the next run
// says another one.
func TestLastProgressOfARun(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(ctx context.Context) error
		left bool
	}{
		"an error":  {func(context.Context) error { return queuetest.ErrTest }, true},
		"a panic":   {func(context.Context) error { panic("oh no") }, true},
		"a snooze":  {func(context.Context) error { return delayq.Snooze(time.Hour) }, true},
		"a hold":    {func(context.Context) error { return delayq.Hold(time.Hour) }, true},
		"burial":    {func(context.Context) error { return delayq.Permanent(queuetest.ErrTest) }, true},
		"a timeout": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, true},
		"success":   {func(context.Context) error { return nil }, false},
		"Again":     {func(context.Context) error { return delayq.Again(nil, delayq.ProcessIn(time.Hour)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var calls noteCalls
				runs := 0
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					if runs++; runs > 1 {
						<-ctx.Done()
						return nil
					}
					for i := range 100 {
						require.NoError(b, job.Progress(int64(i), 0, ""))
					}
					time.Sleep(100 * time.Millisecond) // the first one is sent
					require.NoError(b, job.Progress(100, 0, "the last"))
					return c.end(ctx)
				}, delayq.Hooks(&calls))
				b.Enqueue("a", "1", delayq.Backoff(time.Hour, time.Hour), delayq.Timeout(500*time.Millisecond), delayq.Retention(time.Hour))
				b.Pass(10 * time.Second)
				info := b.Get("a", "1")
				if !c.left {
					require.Nil(b, info.Progress)
					require.Len(b, calls.of("a"), 1)
					require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
					return
				}
				require.Len(b, calls.of("a"), 2)
				require.NotNil(b, info.Progress)
				require.EqualValues(b, 100, info.Progress.Done)
				require.Equal(b, "the last", info.Progress.Text)
			})
		})
	}
}

// A server that stops gives its jobs back with their last progress, also those of handlers that do
// not return.
func TestLastProgressOfAServer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		finish := make(chan struct{})
		s := b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			require.NoError(b, job.Progress(1, 2, "begun"))
			<-ctx.Done()
			require.NoError(b, job.Progress(2, 2, "stopped"))
			if job.ID == "hangs" {
				<-finish
				_ = job.Progress(3, 2, "too late")
			}
			return ctx.Err()
		}, delayq.Concurrency(2))
		b.Enqueue("a", "returns")
		b.Enqueue("a", "hangs")
		b.Pass(500 * time.Millisecond)
		require.NoError(b, s.Stop())
		for _, id := range []string{"returns", "hangs"} {
			info := b.Get("a", id)
			require.Equal(b, delayq.StateReady, info.State)
			require.Equal(b, "stopped", info.Progress.Text, id)
		}
		close(finish)
		b.Pass(time.Minute)
		require.Equal(b, "stopped", b.Get("a", "hangs").Progress.Text)
	})
}

// A report is on its way when its run says the last one and ends: whichever comes first to Redis,
// the last one is there, in each view and for those who wait.
func TestReportsOvertakeEachOther(t *testing.T) {
	for verb, end := range map[string]error{"retry": queuetest.ErrTest, "bury": delayq.Permanent(queuetest.ErrTest), "snooze": delayq.Snooze(time.Hour)} {
		t.Run(verb, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				w := queuetest.NewWire(b.Redis)
				b.ServeOn(w, "a", func(_ context.Context, job *delayq.Job) error {
					w.Stall("the old one")
					require.NoError(b, job.Progress(1, 2, "the old one"))
					time.Sleep(100 * time.Millisecond)
					require.NoError(b, job.Progress(2, 2, "the last one"))
					return end
				})
				b.Enqueue("a", "1", delayq.Backoff(time.Hour, time.Hour))
				var mu sync.Mutex
				var told []string
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				w.Stall(queuetest.Digest(verb))
				waiter := make(chan error, 1)
				go func() {
					_, err := b.Client.Wait(ctx, "a", "1", delayq.OnJobProgress(func(p delayq.Progress) {
						mu.Lock()
						defer mu.Unlock()
						told = append(told, p.Text)
					}))
					waiter <- err
				}()
				b.Pass(500 * time.Millisecond)
				require.Equal(b, delayq.StateRunning, b.State("a", "1"), "its end waits")
				require.Equal(b, "the last one", b.Get("a", "1").Progress.Text)
				w.Set(func() { w.Stalled = []string{queuetest.Digest(verb)} })
				b.Pass(time.Second)
				require.Equal(b, delayq.StateRunning, b.State("a", "1"), "it owns its lease")
				require.Equal(b, "the last one", b.Get("a", "1").Progress.Text, "the old one has arrived")
				w.Heal()
				b.Pass(2 * time.Minute)
				require.NotEqual(b, delayq.StateRunning, b.State("a", "1"))
				require.Equal(b, "the last one", b.Get("a", "1").Progress.Text)
				require.EqualValues(b, 2, b.Get("a", "1").Progress.Done)
				require.Error(b, <-waiter)
				mu.Lock()
				defer mu.Unlock()
				require.Equal(b, []string{"the last one"}, told)
			})
		})
	}
}

// Redis is away when a run ends: its last progress arrives before its outcome.
func TestLastProgressWhileRedisIsAway(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", func(_ context.Context, job *delayq.Job) error {
			require.NoError(b, job.Progress(1, 2, "the first"))
			time.Sleep(100 * time.Millisecond)
			w.Cut()
			require.NoError(b, job.Progress(2, 2, "the last"))
			return queuetest.ErrTest
		}, delayq.Lease(time.Minute))
		b.Enqueue("a", "1", delayq.Backoff(time.Hour, time.Hour))
		b.Pass(10 * time.Second)
		require.Equal(b, "the first", b.Get("a", "1").Progress.Text)
		w.Mend()
		b.Pass(10 * time.Second)
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, "the last", info.Progress.Text)
	})
}

// What is no progress is refused, and changes nothing.
func TestProgressOutOfBounds(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var kept *delayq.Job
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			kept = job
			require.NoError(b, job.Progress(math.MaxInt64, 3, strings.Repeat("ü\n", 85)))
			for want, err := range map[string]error{
				"done of -1, at least 0 is allowed":            job.Progress(-1, 1, ""),
				"total of -2, at least 0 is allowed":           job.Progress(1, -2, ""),
				"text of 257 bytes, at most 256 are allowed":   job.Progress(1, 2, strings.Repeat("x", 257)),
				`text "a\xff" is not valid UTF-8`:              job.Progress(1, 2, "a\xff"),
				"at least 0 is allowed\ntotal of -1, at least": job.Progress(-1, -1, ""),
			} {
				require.ErrorIs(b, err, delayq.ErrInvalid)
				require.ErrorContains(b, err, `progress topic "a" job "1": delayq: invalid: `)
				require.ErrorContains(b, err, want)
			}
			other := *job
			require.NoError(b, other.Progress(0, 0, "a copy"), "the last call counts")
			return delayq.Snooze(time.Hour)
		})
		job := b.Enqueue("a", "1")
		require.ErrorContains(b, job.Progress(1, 1, ""), "the job is not that of a handler")
		require.ErrorIs(b, (*delayq.Job)(nil).Progress(1, 1, ""), delayq.ErrInvalid)
		b.Pass(time.Second)
		require.ErrorContains(b, kept.Progress(1, 1, ""), "the handler has returned")
		require.Equal(b, "a copy", b.Get("a", "1").Progress.Text)
		require.Zero(b, b.Get("a", "1").Progress.Done)
	})
}

// Redis does not answer: no handler waits for its progress, and the last value arrives later.
func TestProgressDoesNotWait(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			w.Stall(queuetest.Digest("note"))
			began := time.Now()
			for i := range 1000 {
				require.NoError(b, job.Progress(int64(i), 1000, ""))
			}
			require.Zero(b, time.Since(began))
			time.Sleep(7 * time.Second)
			require.NoError(b, job.Progress(1000, 1000, ""))
			<-ctx.Done()
			return nil
		})
		b.Enqueue("a", "1")
		b.Pass(8 * time.Second)
		require.Nil(b, b.Get("a", "1").Progress)
		w.Heal()
		b.Pass(10 * time.Second)
		require.EqualValues(b, 1000, b.Get("a", "1").Progress.Done)
	})
}

// A call has at most 500 jobs; the others follow a second later.
func TestProgressOfManyJobs(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 700
		var calls noteCalls
		var begun sync.WaitGroup
		begun.Add(jobs)
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			begun.Done()
			begun.Wait() // so that they speak together
			require.NoError(b, job.Progress(1, 2, ""))
			time.Sleep(3 * time.Second)
			return nil
		}, delayq.Concurrency(jobs), delayq.Hooks(&calls))
		for i := range jobs {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(2500 * time.Millisecond)
		calls.mu.Lock()
		sum := 0
		for _, n := range calls.jobs {
			require.LessOrEqual(b, n, 500)
			sum += n
		}
		calls.mu.Unlock()
		require.Equal(b, jobs, sum)
		require.LessOrEqual(b, len(calls.of("a")), 3)
		require.EqualValues(b, jobs, b.RDB.HLen(b.Context(), notesKey("a")).Val())
		b.Pass(10 * time.Second)
		require.EqualValues(b, jobs, b.Counter("a", "acked"))
		require.Zero(b, b.RDB.Exists(b.Context(), notesKey("a")).Val())
	})
}

// A run that has lost its lease does not overwrite what the next one says, and is told of the loss.
func TestProgressOfALostLease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{a}:leases",
				queuetest.ZMember("1", time.Now().Add(time.Hour))).Err())
			require.NoError(b, job.Progress(1, 2, "not mine any more"))
			<-ctx.Done()
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrLeaseLost)
			return ctx.Err()
		}, delayq.Hooks(&hooks))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.Nil(b, b.Get("a", "1").Progress)
		require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, hooks.Kinds("1"))
	})
}

// Redis refuses the progress: no handler hears of it, the log does, and it goes on once Redis
// allows it.
func TestProgressThatRedisRefuses(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			require.NoError(b, b.RDB.Set(b.Context(), notesKey("a"), "not a hash", 0).Err())
			for i := range 100 {
				require.NoError(b, job.Progress(int64(i), 100, ""))
				time.Sleep(100 * time.Millisecond)
			}
			return nil
		}, log.To())
		b.Enqueue("a", "1")
		b.Pass(5 * time.Second)
		require.Len(b, log.With("note failed", "WRONGTYPE"), 1)
		require.NoError(b, b.RDB.Del(b.Context(), notesKey("a")).Err())
		b.Pass(2500 * time.Millisecond)
		require.Len(b, log.With("note works again"), 1)
		require.Positive(b, b.Get("a", "1").Progress.Done)
		b.Pass(10 * time.Second)
		require.EqualValues(b, 1, b.Counter("a", "acked"))
	})
}
