package delayq_test

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
	"github.com/delayq/delayq/internal/redistest"
)

// (K3)
func TestDrainLetsHandlersFinish(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var cause error
		var rec recorder
		s := b.serve("a", rec.then(func(ctx context.Context, _ *delayq.Job) error {
			time.Sleep(3 * time.Second)
			cause = context.Cause(ctx)
			return nil
		}), delayq.Drain(10*time.Second), delayq.Lease(time.Second))
		b.enqueue("a", "1")
		b.enqueue("a", "later", delayq.ProcessIn(1500*time.Millisecond))
		b.pass(time.Second)
		s.end()
		b.pass(time.Second)
		b.enqueue("a", "2")
		require.Equal(b, delayq.StateRunning, b.state("a", "1"))
		at := b.at()
		<-s.done
		require.NoError(b, s.err)
		require.Equal(b, at+time.Second, b.at(), "as soon as the handler is done")
		require.NoError(b, cause)
		require.Empty(b, b.state("a", "1"))
		require.EqualValues(b, 1, b.counter("a", "acked"))
		require.Zero(b, b.counter("a", "reclaimed"), "leases are kept while it drains")
		require.Equal(b, []string{"1"}, rec.ids(), "nothing new is started")
		require.Equal(b, delayq.StateReady, b.state("a", "2"))
		b.pass(time.Minute)
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
	inBubble(t, func(b *bubble) {
		var log logbook
		s := delayq.AsWorker(delayq.NewServer(b.rdb, append(quiet(bubblePrefix), log.to())...))
		s.HandlerFunc("a", nothing)
		parent, end := context.WithCancel(context.WithoutCancel(b.Context()))
		ctx := laggingContext{parent, make(chan struct{})}
		ended := make(chan error)
		go func() { ended <- s.Run(ctx) }()
		b.pass(time.Second)
		close(ctx.done)
		end()
		require.NoError(b, <-ended)
		require.Len(b, log.with(`msg="server draining"`), 1)
		require.Empty(b, log.with("level=ERROR"))
		require.Empty(b, log.with("level=WARN"))
		require.Equal(b, time.Second, b.at())
		b.pass(time.Second)
	})
}

// What still runs when the drain is over is cut off and goes back to the front of ready, with no
// attempt used up. (C6, K3)
func TestHandlerBeyondTheDrainIsCutOff(t *testing.T) {
	for name, result := range map[string]func(ctx context.Context) error{
		"ctx error":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"other error": func(ctx context.Context) error { <-ctx.Done(); return errTest },
		"ignores ctx": func(context.Context) error { time.Sleep(10 * time.Minute); return nil },
		"nil":         func(ctx context.Context) error { <-ctx.Done(); return nil },
		"permanent":   func(ctx context.Context) error { <-ctx.Done(); return delayq.Permanent(errTest) },
		"panic":       func(ctx context.Context) error { <-ctx.Done(); panic("at the end") },
		"snooze":      func(ctx context.Context) error { <-ctx.Done(); return delayq.Snooze(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				const drain = 5 * time.Second
				var mu sync.Mutex
				causes := make(map[string]error)
				var hooks told
				s := b.serve("a", func(ctx context.Context, job *delayq.Job) error {
					stop := context.AfterFunc(ctx, func() {
						mu.Lock()
						defer mu.Unlock()
						causes[job.ID] = context.Cause(ctx)
						require.Equal(b, time.Second+drain, b.at())
					})
					defer stop()
					return result(ctx)
				}, delayq.Drain(drain), delayq.Concurrency(3), delayq.Hooks(&hooks))
				for _, id := range []string{"1", "2", "3", "4", "5"} {
					b.enqueue("a", id, delayq.Retry(0))
					b.pass(time.Millisecond)
				}
				b.pass(995 * time.Millisecond)
				require.NoError(b, s.stop())
				require.LessOrEqual(b, b.at(), time.Second+drain+500*time.Millisecond)
				mu.Lock()
				for _, id := range []string{"1", "2", "3"} {
					require.ErrorIs(b, causes[id], delayq.ErrShutdown, id)
				}
				mu.Unlock()

				info, err := b.client.Inspect(b.Context(), "a")
				require.NoError(b, err)
				require.Zero(b, info.Running)
				switch name {
				case "nil":
					require.EqualValues(b, 3, info.Counters["acked"])
				case "permanent", "panic": // no retry is left
					require.EqualValues(b, 3, info.Counters["buried"])
				case "snooze":
					require.EqualValues(b, 3, info.Counters["snoozed"])
				default:
					list, err := b.client.List(b.Context(), "a", delayq.ListQuery{State: delayq.StateReady, Limit: 10})
					require.NoError(b, err)
					require.Len(b, list, 5)
					var ids []string
					for _, info := range list {
						ids = append(ids, info.ID)
						require.Equal(b, 1, info.Attempt)
						require.Empty(b, info.Errors)
					}
					require.ElementsMatch(b, []string{"1", "2", "3"}, ids[:3], "at the front")
					require.Equal(b, []string{"4", "5"}, ids[3:])
					require.Len(b, hooks.of("Returned"), 3)
					require.Empty(b, hooks.of("Retried"))

					// Another server has them at once, and it is the first attempt still.
					var rec recorder
					b.serve("a", rec.then(nil))
					synctest.Wait()
					require.Len(b, rec.all(), 5)
					for _, s := range rec.all() {
						require.Equal(b, 1, s.attempt)
					}
				}
				if name == "ignores ctx" {
					b.pass(10 * time.Minute) // so that they end, which changes nothing any more
					require.EqualValues(b, 5, b.counter("a", "acked"))
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
		before, after func(w *wire) // the server is up; after gets 20 s for its effects
	}{
		"idle":             {handler: nothing},
		"busy":             {handler: block, jobs: 30},
		"stuck":            {handler: func(context.Context, *delayq.Job) error { time.Sleep(time.Hour); return nil }, jobs: 30},
		"Redis gone":       {handler: nothing, after: (*wire).cut},
		"Redis gone, busy": {handler: block, jobs: 30, after: (*wire).cut},
		"frozen":           {handler: nothing, after: (*wire).freeze},
		"frozen, busy":     {handler: block, jobs: 30, after: (*wire).freeze},
		"never up":         {handler: nothing, before: (*wire).cut},
		"frozen at first":  {handler: nothing, before: (*wire).freeze},
	} {
		for _, drain := range []time.Duration{0, 2 * time.Second} {
			for _, wait := range []time.Duration{time.Millisecond, 20 * time.Second} {
				t.Run(fmt.Sprintf("%s/drain=%v/after=%v", name, drain, wait), func(t *testing.T) {
					inBubble(t, func(b *bubble) {
						w := newWire(b.redis)
						if c.before != nil {
							c.before(w)
						}
						s := b.serveOn(w, "a", c.handler, delayq.Drain(drain))
						for i := range c.jobs {
							b.enqueue("a", fmt.Sprint(i))
						}
						b.pass(1234 * time.Millisecond)
						if c.after != nil {
							c.after(w)
						}
						b.pass(wait)
						at := b.at()
						require.NoError(b, s.stop())
						require.LessOrEqual(b, b.at()-at, drain+500*time.Millisecond)
						if name == "idle" {
							require.Zero(b, b.at()-at)
						}
						w.heal()
						if name == "stuck" {
							b.pass(time.Hour)
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
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var rec recorder
		var hooks told
		w := newWire(b.redis)
		s := b.serveOn(w, "a", rec.then(nil), delayq.Hooks(&hooks))
		b.pass(100 * time.Millisecond)
		w.lose(script("take"))
		b.enqueue("a", "1")
		b.pass(10 * time.Millisecond) // the take is to be repeated after 50 ms
		require.Equal(b, 1, w.losses())
		require.Equal(b, delayq.StateRunning, b.state("a", "1"))
		require.NoError(b, s.stop())
		require.Empty(b, rec.all())
		require.Equal(b, delayq.StateReady, b.state("a", "1"))
		require.Empty(b, hooks.kinds("1"), "the server has never heard of it")
		require.EqualValues(b, 1, b.counter("a", "returned"))
		b.serve("a", rec.then(nil))
		require.Len(b, rec.all(), 1)
		require.Equal(b, 1, rec.all()[0].attempt)
	})
}

// The same of jobs that were taken ahead, as is done when handlers are very short. (A5)
func TestJobTakenAheadIsReturned(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		s := b.serve("a", rec.then(func(ctx context.Context, job *delayq.Job) error {
			if job.ID == "slow" {
				time.Sleep(10 * time.Second)
			}
			return nil
		}), delayq.Concurrency(1), delayq.Drain(time.Minute))
		for i := range 200 {
			b.enqueue("a", fmt.Sprint(i))
			synctest.Wait()
		}
		var list []delayq.NewJob
		for _, id := range []string{"slow", "next-1", "next-2", "next-3"} {
			list = append(list, delayq.NewJob{Topic: "a", ID: id})
		}
		_, err := b.client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		b.pass(time.Millisecond)
		s.end()
		b.pass(time.Second)
		list2, err := b.client.List(b.Context(), "a", delayq.ListQuery{State: delayq.StateReady, Limit: 10})
		require.NoError(b, err)
		require.Len(b, list2, 3, "they do not wait for the slow one")
		for i, info := range list2 {
			require.Equal(b, list[i+1].ID, info.ID, "in their order")
		}
		require.NoError(b, s.stop())
		require.Empty(b, rec.of("next-1"))
		require.Empty(b, b.state("a", "slow"))
	})
}

// Servers come and go while jobs flow. Each stop leaves nothing running, and no job is lost or run
// twice. (A5, K5)
func TestManyStops(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var mu sync.Mutex
		ended := make(map[string]int)
		next := 0
		for round := range 30 {
			s := b.serve("a", func(ctx context.Context, job *delayq.Job) error {
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
				b.enqueue("a", fmt.Sprint(next), delayq.ProcessIn(time.Duration(rand.IntN(60))*time.Millisecond))
				next++
			}
			b.pass(time.Duration(rand.IntN(100)) * time.Millisecond)
			require.NoError(b, s.stop())
			info, err := b.client.Inspect(b.Context(), "a")
			require.NoError(b, err)
			require.Zero(b, info.Running, "round %d", round)
		}
		b.serve("a", func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			ended[job.ID]++
			return nil
		})
		b.pass(5 * time.Second)
		require.Len(b, ended, next)
		for id, n := range ended {
			require.Equal(b, 1, n, "job %s", id)
		}
		require.EqualValues(b, next, b.counter("a", "acked"))
		require.Zero(b, b.counter("a", "reclaimed"))
	})
}

// (K4)
func TestStopFromInsideAHandler(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var s *served
		s = b.serve("a", func(context.Context, *delayq.Job) error {
			s.end()
			time.Sleep(time.Second / 2)
			return nil
		})
		b.enqueue("a", "1")
		b.pass(time.Second)
		<-s.done
		require.NoError(b, s.err)
		require.Empty(b, b.state("a", "1"))
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
			s := serve(t, rdb, "delayq", "a", func(ctx context.Context, job *delayq.Job) error {
				started <- job.ID
				<-ctx.Done()
				return ctx.Err()
			}, delayq.Drain(100*time.Millisecond))
			for i := range 3 {
				_, err := delayq.NewClient(rdb).Enqueue(t.Context(), "a", fmt.Sprint(i), nil)
				require.NoError(t, err)
				receive(t, started)
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
		var log logbook
		s := serve(t, rdb, "delayq", "a", nothing, log.to())
		until(t, func() bool { return len(log.with(`msg="redis away"`)) == 1 })
		requireReturns(t, s)
	})
}

// requireReturns ends a server and waits for Run, far longer than it should take.
func requireReturns(t *testing.T, s *served) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	s.end()
	select {
	case <-s.done:
		require.NoError(t, s.err)
	case <-ctx.Done():
		require.NoError(t, errors.New("Run does not return"))
	}
}
