package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// (K3)
func TestDrainLetsHandlersFinish(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var cause error
		var rec queuetest.Recorder
		s := b.Serve("a", rec.Then(func(ctx context.Context, _ *delayq.Job) error {
			time.Sleep(3 * time.Second)
			cause = context.Cause(ctx)
			return nil
		}), delayq.Drain(10*time.Second), delayq.Lease(time.Second))
		b.Enqueue("a", "1")
		b.Enqueue("a", "later", delayq.ProcessIn(1500*time.Millisecond))
		b.Pass(time.Second)
		s.End()
		b.Pass(time.Second)
		b.Enqueue("a", "2")
		require.Equal(b, delayq.StateRunning, b.State("a", "1"))
		at := b.At()
		<-s.Done
		require.NoError(b, s.Err)
		require.Equal(b, at+time.Second, b.At(), "as soon as the handler is done")
		require.NoError(b, cause)
		require.Empty(b, b.State("a", "1"))
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"), "leases are kept while it drains")
		require.Equal(b, []string{"1"}, rec.IDs(), "nothing new is started")
		require.Equal(b, delayq.StateReady, b.State("a", "2"))
		b.Pass(time.Minute)
	})
}

// A laggingContext is done before the contexts that were made of it, as any context is for a
// moment.
type laggingContext struct {
	context.Context
	done chan struct{}
}

func (c laggingContext) Done() <-chan struct{} { return c.done }

func (c laggingContext) Err() error {
	select {
	case <-c.done:
		return context.Canceled
	default:
		return nil
	}
}

// AfterFunc is what package context calls to end a context that was made of c.
func (c laggingContext) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(c.Context, func() {
		time.Sleep(time.Second)
		f()
	})
}

// A stop closes connections that wait for jobs. Their loops take that for what it is, and not for
// an outage, even if they have not seen the end of their context yet.
func TestStopIsNoOutage(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		s := queuetest.NewServer(b.RDB, queuetest.Prefix, log.To())
		s.HandlerFunc("a", queuetest.Nothing)
		parent, end := context.WithCancel(context.WithoutCancel(b.Context()))
		ctx := laggingContext{parent, make(chan struct{})}
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		b.Pass(time.Second)
		close(ctx.done)
		end()
		require.NoError(b, <-ended)
		require.Len(b, log.With(`msg="server draining"`), 1)
		require.Empty(b, log.With("level=ERROR"))
		require.Empty(b, log.With("level=WARN"))
		require.Equal(b, time.Second, b.At())
		b.Pass(time.Second)
	})
}

// What still runs when the drain is over is cut off and goes back to the front of ready, with no
// attempt used up. (C6, K3)
func TestHandlerBeyondTheDrainIsCutOff(t *testing.T) {
	for name, result := range map[string]func(ctx context.Context) error{
		"ctx error":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"other error": func(ctx context.Context) error { <-ctx.Done(); return queuetest.ErrTest },
		"ignores ctx": func(context.Context) error { time.Sleep(10 * time.Minute); return nil },
		"nil":         func(ctx context.Context) error { <-ctx.Done(); return nil },
		"permanent":   func(ctx context.Context) error { <-ctx.Done(); return delayq.Permanent(queuetest.ErrTest) },
		"panic":       func(ctx context.Context) error { <-ctx.Done(); panic("at the end") },
		"snooze":      func(ctx context.Context) error { <-ctx.Done(); return delayq.Snooze(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const drain = 5 * time.Second
				var mu sync.Mutex
				causes := make(map[string]error)
				var hooks queuetest.HookLog
				var log queuetest.Logbook
				s := b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					context.AfterFunc(ctx, func() { // can be later than the end of the handler
						mu.Lock()
						defer mu.Unlock()
						causes[job.ID] = context.Cause(ctx)
						require.Equal(b, time.Second+drain, b.At())
					})
					return result(ctx)
				}, delayq.Drain(drain), delayq.Concurrency(3), delayq.Hooks(&hooks), log.To())
				for _, id := range []string{"1", "2", "3", "4", "5"} {
					b.Enqueue("a", id, delayq.Retry(0))
					b.Pass(time.Millisecond)
				}
				b.Pass(995 * time.Millisecond)
				require.NoError(b, s.Stop())
				require.LessOrEqual(b, b.At(), time.Second+drain+500*time.Millisecond)
				require.Empty(b, log.With("take unanswered"))
				b.Pass(0)
				mu.Lock()
				for _, id := range []string{"1", "2", "3"} {
					require.ErrorIs(b, causes[id], delayq.ErrShutdown, id)
				}
				mu.Unlock()

				info := b.Stats("a")
				require.Zero(b, info.Running)
				switch name {
				case "nil":
					require.EqualValues(b, 3, info.Counters["acked"])
				case "permanent", "panic": // no retry is left
					require.EqualValues(b, 3, info.Counters["buried"])
				case "snooze":
					require.EqualValues(b, 3, info.Counters["snoozed"])
				default:
					list := queuetest.JobsOf(b, b.Inspector, "a", delayq.StateReady)
					require.Len(b, list, 5)
					var ids []string
					for _, info := range list {
						ids = append(ids, info.ID)
						require.Equal(b, 1, info.Attempt)
						require.Empty(b, info.Errors)
					}
					require.ElementsMatch(b, []string{"1", "2", "3"}, ids[:3], "at the front")
					require.Equal(b, []string{"4", "5"}, ids[3:])
					require.Len(b, hooks.Of("Returned"), 3)
					require.Empty(b, hooks.Of("Retried"))

					// Another server has them at once, and it is the first attempt still.
					var rec queuetest.Recorder
					b.Serve("a", rec.Then(nil))
					synctest.Wait()
					require.Len(b, rec.All(), 5)
					for _, s := range rec.All() {
						require.Equal(b, 1, s.Attempt)
					}
				}
				if name == "ignores ctx" {
					b.Pass(10 * time.Minute) // so that they end, which changes nothing any more
					require.EqualValues(b, 5, b.Counter("a", "acked"))
				}
			})
		})
	}
}

// Whatever state the server and Redis are in, Run returns within half a second after the drain.
// (C9, K1)
func TestRunReturnsInTime(t *testing.T) {
	block := func(ctx context.Context, _ *delayq.Job) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		handler       delayq.HandlerFunc
		jobs          int
		before, after func(w *queuetest.Wire) // the server is up; after gets 20 s for its effects
	}{
		"idle":             {handler: queuetest.Nothing},
		"busy":             {handler: block, jobs: 30},
		"stuck":            {handler: func(context.Context, *delayq.Job) error { time.Sleep(time.Hour); return nil }, jobs: 30},
		"Redis gone":       {handler: queuetest.Nothing, after: (*queuetest.Wire).Cut},
		"Redis gone, busy": {handler: block, jobs: 30, after: (*queuetest.Wire).Cut},
		"frozen":           {handler: queuetest.Nothing, after: (*queuetest.Wire).Freeze},
		"frozen, busy":     {handler: block, jobs: 30, after: (*queuetest.Wire).Freeze},
		"never up":         {handler: queuetest.Nothing, before: (*queuetest.Wire).Cut},
		"frozen at first":  {handler: queuetest.Nothing, before: (*queuetest.Wire).Freeze},
	} {
		for _, drain := range []time.Duration{0, 2 * time.Second} {
			for _, wait := range []time.Duration{time.Millisecond, 20 * time.Second} {
				t.Run(fmt.Sprintf("%s/drain=%v/after=%v", name, drain, wait), func(t *testing.T) {
					queuetest.InBubble(t, func(b *queuetest.Bubble) {
						w := queuetest.NewWire(b.Redis)
						if c.before != nil {
							c.before(w)
						}
						s := b.ServeOn(w, "a", c.handler, delayq.Drain(drain))
						for i := range c.jobs {
							b.Enqueue("a", fmt.Sprint(i))
						}
						b.Pass(1234 * time.Millisecond)
						if c.after != nil {
							c.after(w)
						}
						b.Pass(wait)
						at := b.At()
						require.NoError(b, s.Stop())
						require.LessOrEqual(b, b.At()-at, drain+500*time.Millisecond)
						if name == "idle" {
							require.Zero(b, b.At()-at)
						}
						w.Heal()
						if name == "stuck" {
							b.Pass(time.Hour)
						}
					})
				})
			}
		}
	}
}

// A job that was taken when the server stops and has not been started goes back: the answer of its
// take comes after the stop.
func TestTakenJobThatIsNotStartedIsReturned(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		s := b.ServeOn(w, "a", rec.Then(nil), delayq.Hooks(&hooks))
		b.Pass(100 * time.Millisecond)
		w.Lose(queuetest.Digest("take"))
		b.Enqueue("a", "1")
		b.Pass(10 * time.Millisecond) // the take is to be repeated after 50 ms
		require.Equal(b, 1, w.Losses())
		require.Equal(b, delayq.StateRunning, b.State("a", "1"))
		require.NoError(b, s.Stop())
		require.Empty(b, rec.All())
		require.Equal(b, delayq.StateReady, b.State("a", "1"))
		require.Empty(b, hooks.Kinds("1"), "the server has never heard of it")
		require.EqualValues(b, 1, b.Counter("a", "returned"))
		b.Serve("a", rec.Then(nil))
		require.Len(b, rec.All(), 1)
		require.Equal(b, 1, rec.All()[0].Attempt)
	})
}

// The same of jobs that were taken ahead, as is done when handlers are very short. (A5)
func TestJobTakenAheadIsReturned(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		s := b.Serve("a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
			if job.ID == "slow" {
				time.Sleep(10 * time.Second)
			}
			return nil
		}), delayq.Concurrency(1), delayq.Drain(time.Minute))
		for i := range 200 {
			b.Enqueue("a", fmt.Sprint(i))
			synctest.Wait()
		}
		var list []delayq.NewJob
		for _, id := range []string{"slow", "next-1", "next-2", "next-3"} {
			list = append(list, delayq.NewJob{Topic: "a", ID: id})
		}
		_, err := b.Client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		b.Pass(time.Millisecond)
		s.End()
		b.Pass(time.Second)
		list2 := queuetest.JobsOf(b, b.Inspector, "a", delayq.StateReady)
		require.Len(b, list2, 3, "they do not wait for the slow one")
		for i, info := range list2 {
			require.Equal(b, list[i+1].ID, info.ID, "in their order")
		}
		require.NoError(b, s.Stop())
		require.Empty(b, rec.Of("next-1"))
		require.Empty(b, b.State("a", "slow"))
	})
}

// Servers come and go while jobs flow. Each stop leaves nothing running, and no job is lost or run
// twice. (A5, K5)
func TestManyStops(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		ended := make(map[string]int)
		next := 0
		for round := range 30 {
			s := b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
				select {
				case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
				mu.Lock()
				defer mu.Unlock()
				ended[job.ID]++
				return nil
			}, delayq.Concurrency(4), delayq.Drain(time.Duration(rand.IntN(2))*5*time.Millisecond))
			for range 25 {
				b.Enqueue("a", fmt.Sprint(next), delayq.ProcessIn(time.Duration(rand.IntN(60))*time.Millisecond))
				next++
			}
			b.Pass(time.Duration(rand.IntN(100)) * time.Millisecond)
			require.NoError(b, s.Stop())
			info := b.Stats("a")
			require.Zero(b, info.Running, "round %d", round)
		}
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			ended[job.ID]++
			return nil
		})
		b.Pass(5 * time.Second)
		require.Len(b, ended, next)
		for id, n := range ended {
			require.Equal(b, 1, n, "job %s", id)
		}
		require.EqualValues(b, next, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"))
	})
}

// (K4)
func TestStopFromInsideAHandler(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var s *queuetest.Running
		s = b.Serve("a", func(context.Context, *delayq.Job) error {
			s.End()
			time.Sleep(time.Second / 2)
			return nil
		})
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		<-s.Done
		require.NoError(b, s.Err)
		require.Empty(b, b.State("a", "1"))
	})
}

// The same with a real Redis that is killed, frozen or never there. Half a second is not asserted
// on a real clock. (K2)
func TestRunReturnsOnARealClock(t *testing.T) {
	for name, fail := range map[string]func(s *redistest.Server) error{
		"idle": nil, "killed": (*redistest.Server).Kill, "frozen": (*redistest.Server).Stop,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := redistest.Start(t)
			started := make(chan string, 10)
			rdb := own.Client(t)
			s := queuetest.Serve(t, rdb, "delayq", "a", func(ctx context.Context, job *delayq.Job) error {
				started <- job.ID
				<-ctx.Done()
				return ctx.Err()
			}, delayq.Drain(100*time.Millisecond))
			for i := range 3 {
				_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "a", fmt.Sprint(i), nil)
				require.NoError(t, err)
				queuetest.Receive(t, started)
			}
			if fail != nil {
				require.NoError(t, fail(own))
			}
			requireReturns(t, s)
			if name == "frozen" {
				require.NoError(t, own.Cont())
			}
		})
	}
	t.Run("never there", func(t *testing.T) {
		t.Parallel()
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // tcpmux: nobody has it
		defer func() { _ = rdb.Close() }()
		var log queuetest.Logbook
		s := queuetest.Serve(t, rdb, "delayq", "a", queuetest.Nothing, log.To())
		queuetest.Until(t, func() bool { return len(log.With(`msg="redis away"`)) == 1 })
		requireReturns(t, s)
	})
}

// requireReturns ends a server and waits for Run, far longer than it should take.
func requireReturns(t *testing.T, s *queuetest.Running) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), queuetest.Patience)
	defer cancel()
	s.End()
	select {
	case <-s.Done:
		require.NoError(t, s.Err)
	case <-ctx.Done():
		require.NoError(t, errors.New("Run does not return"))
	}
}
