package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// (I13)
func TestServerMisuse(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		good := func(s *delayq.Server) { s.HandlerFunc("a", queuetest.Nothing) }
		var noClient *redis.Client
		for name, c := range map[string]struct {
			rdb   redis.UniversalClient
			setup func(*delayq.Server)
			opts  []delayq.ServerOption
			says  []string
		}{
			"nil client":       {nil, good, nil, []string{"nil Redis client"}},
			"nil *Client":      {noClient, good, nil, []string{"nil Redis client"}},
			"no handler":       {b.RDB, func(*delayq.Server) {}, nil, []string{"no handlers registered"}},
			"nil handler":      {b.RDB, func(s *delayq.Server) { s.Handle("a", nil) }, nil, []string{`"a"`, "nil handler"}},
			"nil function":     {b.RDB, func(s *delayq.Server) { s.HandlerFunc("a", nil) }, nil, []string{`"a"`, "nil handler"}},
			"two handlers":     {b.RDB, func(s *delayq.Server) { good(s); good(s) }, nil, []string{`"a"`, "handler already set"}},
			"empty topic":      {b.RDB, func(s *delayq.Server) { s.HandlerFunc("", queuetest.Nothing) }, nil, []string{"empty topic"}},
			"illegal topic":    {b.RDB, func(s *delayq.Server) { s.HandlerFunc("a{b", queuetest.Nothing) }, nil, []string{"a{b", "not allowed"}},
			"handler's option": {b.RDB, func(s *delayq.Server) { s.HandlerFunc("a", queuetest.Nothing, delayq.Concurrency(-1)) }, nil, []string{"Concurrency(-1)"}},
			"nil option of it": {b.RDB, func(s *delayq.Server) { s.HandlerFunc("a", queuetest.Nothing, nil) }, nil, []string{"handler option is nil"}},
			"nil middleware":   {b.RDB, func(s *delayq.Server) { good(s); s.Use(nil) }, nil, []string{"nil middleware"}},
			"nil option":       {b.RDB, good, []delayq.ServerOption{nil}, []string{"server option is nil"}},
			"all at once": {nil, func(s *delayq.Server) { good(s); good(s) }, []delayq.ServerOption{
				delayq.Concurrency(0), delayq.Lease(time.Millisecond), delayq.Drain(-1), delayq.Tick(time.Minute), delayq.DeadLimit(-1, 0),
				delayq.Logger(nil), delayq.Hooks(struct{}{}, nil), delayq.Prefix("a{b"),
			}, []string{
				"nil Redis client", "Concurrency(0)", "Lease(1ms)", "from 100ms", "Drain(-1ns)", "Tick(1m0s)", "DeadLimit(-1", "Logger(nil)", "hook of type struct {}",
				"a hook is nil", "prefix", "handler already set",
			}},
		} {
			s := delayq.NewServer(c.rdb, c.opts...)
			c.setup(s)
			for range 2 {
				err := s.Run(b.Context())
				require.ErrorIs(b, err, delayq.ErrInvalid, name)
				for _, part := range c.says {
					require.ErrorContains(b, err, part, name)
				}
			}
		}
		require.Empty(b, b.Redis.Keys(), "nothing is written")
	})
}

// (K4)
func TestServerRunsOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := b.Serve("a", queuetest.Nothing)
		require.ErrorIs(b, s.Run(b.Context()), delayq.ErrServerUsed)
		require.NoError(b, s.Stop())
		require.ErrorIs(b, s.Run(b.Context()), delayq.ErrServerUsed)
		require.NotEqual(b, s.ID(), delayq.NewServer(b.RDB).ID())

		done, cancel := context.WithCancel(b.Context())
		cancel()
		other := delayq.NewServer(b.RDB, queuetest.Quiet(queuetest.Prefix)...)
		other.HandlerFunc("a", queuetest.Nothing)
		require.NoError(b, other.Run(done), "a context that has ended already")
		b.Pass(time.Minute)
	})
}

func TestUseAfterRunIsLogged(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		s := b.Serve("a", queuetest.Nothing, log.To())
		s.Use(func(h delayq.Handler) delayq.Handler { return h })
		require.Len(b, log.With("level=ERROR", `msg="middleware not added"`, "too late", "before Run"), 1)
	})
}

func TestMiddlewareOrder(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var order []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, what)
		}
		middleware := func(name string) delayq.Middleware {
			return func(h delayq.Handler) delayq.Handler {
				return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
					note(name + " in")
					defer note(name + " out")
					return h.Handle(ctx, job)
				})
			}
		}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.Use(middleware("1"), middleware("2"))
			s.Handle("a", delayq.HandlerFunc(func(context.Context, *delayq.Job) error { note("a"); return nil }))
			s.Use(middleware("3"))
			s.HandlerFunc("b", func(context.Context, *delayq.Job) error { note("b"); panic("through all of them") })
			s.Use(func(h delayq.Handler) delayq.Handler {
				return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
					switch job.ID {
					case "stopped":
						return queuetest.ErrTest
					case "panics": // (I5)
						panic("in the middleware")
					}
					return h.Handle(ctx, job)
				})
			})
		})
		noted := func() []string {
			mu.Lock()
			defer mu.Unlock()
			list := order
			order = nil
			return list
		}
		for _, topic := range []string{"a", "b"} {
			b.Enqueue(topic, "1")
			synctest.Wait()
			require.Equal(b, []string{"1 in", "2 in", "3 in", topic, "3 out", "2 out", "1 out"}, noted())
		}
		require.Equal(b, delayq.KindPanic, b.Get("b", "1").Errors[0].Kind)
		b.Enqueue("a", "stopped")
		synctest.Wait()
		require.NotContains(b, noted(), "a")
		require.Equal(b, queuetest.ErrTest.Error(), b.Get("a", "stopped").Errors[0].Message)
		b.Enqueue("a", "panics")
		synctest.Wait()
		require.NotContains(b, noted(), "a")
		require.Equal(b, delayq.KindPanic, b.Get("a", "panics").Errors[0].Kind)
	})
}

// A gauge knows the most that were inside at a time.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) in() func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now++
	g.most = max(g.most, g.now)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.now--
	}
}

func TestConcurrencyIsNeverExceeded(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var byServer, byHandler, byDefault gauge
		handler := func(g *gauge) delayq.HandlerFunc {
			return func(_ context.Context, job *delayq.Job) error {
				defer g.in()()
				// First many short ones, for which jobs are taken ahead, then longer ones.
				if len(job.ID) == 3 {
					time.Sleep(time.Duration(job.ID[2]) * time.Millisecond)
				}
				return nil
			}
		}
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("server", handler(&byServer))
			s.HandlerFunc("handler", handler(&byHandler), delayq.Concurrency(7))
		}, delayq.Concurrency(3))
		b.Serve("default", handler(&byDefault))
		for i := range 300 {
			for _, topic := range []string{"server", "handler", "default"} {
				b.Enqueue(topic, fmt.Sprint(i))
			}
		}
		b.Pass(20 * time.Second)
		for _, topic := range []string{"server", "handler", "default"} {
			require.EqualValues(b, 300, b.Counter(topic, "acked"), topic)
		}
		require.Equal(b, 3, byServer.most)
		require.Equal(b, 7, byHandler.most)
		require.Equal(b, 10, byDefault.most)
	})
}

// (H1, H3)
func TestSlowTopicDelaysNoOther(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("slow", func(ctx context.Context, _ *delayq.Job) error {
				<-ctx.Done()
				return ctx.Err()
			})
			s.HandlerFunc("quick", rec.Then(nil))
		}, delayq.Concurrency(2))
		for i := range 500 {
			b.Enqueue("slow", fmt.Sprint(i))
		}
		for i := range 50 {
			b.Enqueue("quick", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*97*time.Millisecond))
		}
		b.Pass(10 * time.Second)
		require.Len(b, rec.All(), 50)
		for _, s := range rec.All() {
			require.True(b, s.At.Equal(s.Due), "job %s is late by %v", s.ID, s.At.Sub(s.Due))
		}
	})
}

// Each key of a topic in turn has a wrong type. Other topics do not notice, it is logged, and all
// is well when the key is. (A6, J11)
func TestBrokenTopicDelaysNoOther(t *testing.T) {
	// Without these a topic works all the same: they never decide the fate of a job.
	bookkeeping := map[string]bool{"attempts": true, "moved": true, "stats": true, "errors": true, "done": true, "results": true}
	for _, key := range []string{
		"pool", "bucket", "ready", "handoff", "leases", "attempts", "errors", "moved", "dead", "done", "results", "meta", "stats",
	} {
		t.Run(key, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				name := queuetest.Prefix + ":{broken}:" + key
				b.Enqueue("broken", "later", delayq.ProcessIn(30*time.Second))
				b.Enqueue("broken", "now")
				exists := b.RDB.Rename(b.Context(), name, "aside").Err() == nil
				require.NoError(b, b.RDB.Set(b.Context(), name, "of a wrong type", 0).Err())
				var rec queuetest.Recorder
				var log queuetest.Logbook
				w := queuetest.NewWire(b.Redis)
				queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
					s.HandlerFunc("broken", rec.Then(nil))
					s.HandlerFunc("whole", rec.Then(nil))
				}, log.To())
				for i := range 40 {
					b.Enqueue("whole", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*731*time.Millisecond))
				}
				b.Pass(40 * time.Second)
				for i := range 40 {
					starts := rec.Of(fmt.Sprint(i))
					require.Len(b, starts, 1)
					require.True(b, starts[0].At.Equal(starts[0].Due), "job %d is late", i)
				}
				require.Less(b, w.Requests(), 1500, "a hot loop")
				if bookkeeping[key] {
					require.Len(b, rec.Of("later"), 1)
				}
				if key != "results" && key != "errors" { // which nobody needs here
					lines := log.With("level=ERROR", "topic=broken", "WRONGTYPE")
					require.NotEmpty(b, lines)
					require.LessOrEqual(b, len(lines), 6, "once for each kind of call: %v", lines)
				}
				require.NoError(b, b.RDB.Del(b.Context(), name).Err())
				if exists {
					require.NoError(b, b.RDB.Rename(b.Context(), "aside", name).Err())
				}
				b.Pass(40 * time.Second)
				for _, id := range []string{"now", "later"} {
					require.NotEmpty(b, rec.Of(id), id)
					require.Empty(b, b.State("broken", id), id)
				}
			})
		})
	}
}

// (I6, O4)
func TestTopicWithoutHandlerWaits(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("known", rec.Then(nil))
		b.Enqueue("unknown", "1", delayq.Retry(0))
		b.Enqueue("unknown", "2", delayq.Retry(0), delayq.ProcessIn(time.Minute))
		b.Pass(2 * time.Minute)
		require.Empty(b, rec.All())
		b.Serve("unknown", rec.Then(nil))
		b.Pass(time.Second)
		require.ElementsMatch(b, []string{"1", "2"}, rec.IDs())
		for _, s := range rec.All() {
			require.Equal(b, 1, s.Attempt)
		}
	})
}

func TestPauseStopsTheTaking(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		finish := make(chan struct{})
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "running" {
				<-finish
			}
			return nil
		}))
		b.Serve("b", rec.Then(nil))
		b.Enqueue("a", "running")
		b.Pass(time.Second)
		require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{By: "me", Reason: "why"}))
		info := b.Stats("a")
		require.True(b, info.Paused)
		require.Equal(b, "me", info.Pauses[0].By)
		b.Enqueue("a", "1")
		b.Enqueue("a", "2", delayq.ProcessIn(10*time.Second))
		b.Enqueue("b", "other")
		b.Pass(time.Minute)
		require.Equal(b, []string{"running", "other"}, rec.IDs())
		require.Equal(b, delayq.StateReady, b.State("a", "2"))
		close(finish)
		b.Pass(time.Second)
		require.Empty(b, b.State("a", "running"), "what runs goes on")

		b.Pass(1234 * time.Millisecond)
		at := b.At()
		require.NoError(b, b.Client.Resume(b.Context(), "a", "me"))
		synctest.Wait()
		require.ElementsMatch(b, []string{"running", "other", "1", "2"}, rec.IDs())
		require.Equal(b, at, rec.All()[2].At.Sub(b.Began), "at once")

		require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{For: 10 * time.Second}))
		b.Enqueue("a", "3")
		b.Pass(10*time.Second - time.Millisecond)
		require.Empty(b, rec.Of("3"))
		b.Pass(time.Millisecond) // it ends by itself, at its millisecond
		require.Len(b, rec.Of("3"), 1)
	})
}

// A pause that a program makes by itself neither shortens nor ends that of an operator, and the
// topic runs again at the very millisecond at which the last one ends, however that comes about.
func TestPausesBelongToWhoMadeThem(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil))
		pause := func(by string, period time.Duration) {
			b.Helper()
			require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{By: by, For: period}))
		}
		resume := func(by string) {
			b.Helper()
			require.NoError(b, b.Client.Resume(b.Context(), "a", by))
			synctest.Wait()
		}
		startsIn := func(id string, wait time.Duration) {
			b.Helper()
			at := b.At()
			b.Pass(wait + 2*time.Second)
			require.Len(b, rec.Of(id), 1)
			require.Equal(b, at+wait, rec.Of(id)[0].At.Sub(b.Began))
		}

		pause("operator", 0)
		pause("program", 50*time.Millisecond)
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Empty(b, rec.All(), "the end of the program's pause")
		pause("program", 10*time.Second+7*time.Millisecond)
		resume("program")
		b.Pass(time.Second)
		require.Empty(b, rec.All(), "the program resumed")
		pause("program", 2*time.Second+7*time.Millisecond)
		resume("operator")
		b.Pass(time.Second)
		require.Empty(b, rec.All(), "the operator resumed")
		startsIn("1", time.Second+7*time.Millisecond)

		pause("program", time.Hour)
		b.Enqueue("a", "2")
		b.Pass(1234 * time.Millisecond)
		pause("program", 3*time.Millisecond) // a new one, with an earlier end
		startsIn("2", 3*time.Millisecond)

		pause("program", 5*time.Second)
		pause("operator", 20*time.Second)
		b.Enqueue("a", "3")
		b.Pass(2300 * time.Millisecond)
		resume("operator")
		startsIn("3", 2700*time.Millisecond)
	})
}

// (L1, L2)
func TestDeadLimit(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("a", func(context.Context, *delayq.Job) error { return delayq.Permanent(queuetest.ErrTest) },
			delayq.DeadLimit(30, 10*time.Minute), delayq.Concurrency(1))
		for i := range 100 {
			b.Enqueue("a", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*time.Millisecond))
		}
		b.Pass(30 * time.Second)
		info := b.Stats("a")
		require.EqualValues(b, 30, info.Dead)
		require.Empty(b, b.State("a", "69"), "the oldest go first")
		require.Equal(b, delayq.StateDead, b.State("a", "70"))
		b.Pass(10 * time.Minute)
		info = b.Stats("a")
		require.Zero(b, info.Dead)
		for _, key := range b.Redis.Keys() {
			for _, part := range []string{"pool", "dead", "attempts", "errors", "moved"} {
				require.False(b, strings.HasSuffix(key, ":"+part), "%s is left", key)
			}
		}
	})
}

// (M4, M7)
func TestExpiredJobIsDropped(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		h := rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "retried" {
				return errors.New("again")
			}
			return nil
		})
		b.Enqueue("a", "late", delayq.ExpireIn(time.Minute))
		b.Enqueue("a", "at", delayq.ExpireAt(b.Began.Add(time.Minute)), delayq.ProcessIn(30*time.Second))
		b.Enqueue("a", "in time", delayq.ExpireIn(time.Minute+time.Millisecond))
		b.Pass(time.Minute)
		var log queuetest.Logbook
		b.Serve("a", h, delayq.Hooks(&hooks), log.To())
		b.Enqueue("a", "retried", delayq.ExpireIn(5*time.Second))
		b.Pass(time.Minute)
		require.Len(b, rec.Of("in time"), 1)
		require.Empty(b, rec.Of("late"))
		require.Empty(b, rec.Of("at"))
		require.Len(b, rec.Of("retried"), 2, "at 0 and 2 s; the next would be after 6 s")
		require.Len(b, hooks.Of("Expired"), 3)
		for _, e := range hooks.Of("Expired") {
			require.Len(b, log.With("level=INFO", `msg="job expired"`, "topic=a", "job="+e.ID), 1)
			require.Equal(b, delayq.OutcomeExpired, e.Outcome)
			require.Empty(b, b.State("a", e.ID))
		}
		require.EqualValues(b, 3, b.Counter("a", "expired"))
	})
}
