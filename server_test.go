package delayq_test

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
)

func nothing(context.Context, *delayq.Job) error { return nil }

// (I13)
func TestServerMisuse(t *testing.T) {
	inBubble(t, func(b *bubble) {
		good := func(s *delayq.Server) { s.HandlerFunc("a", nothing) }
		var noClient *redis.Client
		for name, c := range map[string]struct {
			rdb   redis.UniversalClient
			setup func(*delayq.Server)
			opts  []delayq.ServerOption
			says  []string
		}{
			"nil client":       {nil, good, nil, []string{"nil Redis client"}},
			"nil *Client":      {noClient, good, nil, []string{"nil Redis client"}},
			"no handler":       {b.rdb, func(*delayq.Server) {}, nil, []string{"no handlers registered"}},
			"nil handler":      {b.rdb, func(s *delayq.Server) { s.Handle("a", nil) }, nil, []string{`"a"`, "nil handler"}},
			"nil function":     {b.rdb, func(s *delayq.Server) { s.HandlerFunc("a", nil) }, nil, []string{`"a"`, "nil handler"}},
			"two handlers":     {b.rdb, func(s *delayq.Server) { good(s); good(s) }, nil, []string{`"a"`, "handler already set"}},
			"empty topic":      {b.rdb, func(s *delayq.Server) { s.HandlerFunc("", nothing) }, nil, []string{"empty topic"}},
			"illegal topic":    {b.rdb, func(s *delayq.Server) { s.HandlerFunc("a{b", nothing) }, nil, []string{"a{b", "not allowed"}},
			"handler's option": {b.rdb, func(s *delayq.Server) { s.HandlerFunc("a", nothing, delayq.Concurrency(-1)) }, nil, []string{"Concurrency(-1)"}},
			"nil option of it": {b.rdb, func(s *delayq.Server) { s.HandlerFunc("a", nothing, nil) }, nil, []string{"handler option is nil"}},
			"nil middleware":   {b.rdb, func(s *delayq.Server) { good(s); s.Use(nil) }, nil, []string{"nil middleware"}},
			"nil option":       {b.rdb, good, []delayq.ServerOption{nil}, []string{"server option is nil"}},
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
		require.Empty(b, b.redis.Keys(), "nothing is written")
	})
}

// (K4)
func TestServerRunsOnce(t *testing.T) {
	inBubble(t, func(b *bubble) {
		s := b.serve("a", nothing)
		require.ErrorIs(b, s.Run(b.Context()), delayq.ErrServerUsed)
		require.NoError(b, s.stop())
		require.ErrorIs(b, s.Run(b.Context()), delayq.ErrServerUsed)
		require.NotEqual(b, s.ID(), delayq.NewServer(b.rdb).ID())

		done, cancel := context.WithCancel(b.Context())
		cancel()
		other := delayq.NewServer(b.rdb, quiet(bubblePrefix)...)
		other.HandlerFunc("a", nothing)
		require.NoError(b, other.Run(done), "a context that has ended already")
		b.pass(time.Minute)
	})
}

func TestHandleAfterRunIsLogged(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var log logbook
		s := b.serve("a", nothing, log.to())
		s.HandlerFunc("after-run-"+s.ID(), nothing)
		s.Use(func(h delayq.Handler) delayq.Handler { return h })
		require.Len(b, log.with("level=ERROR", "after-run-"+s.ID(), "too late", "before Run"), 1)
		require.Len(b, log.with("level=ERROR", `msg="middleware not added"`, "too late", "before Run"), 1)
		b.enqueue("after-run-"+s.ID(), "1")
		b.pass(time.Minute)
		require.Equal(b, delayq.StateReady, b.state("after-run-"+s.ID(), "1"))
	})
}

func TestMiddlewareOrder(t *testing.T) {
	inBubble(t, func(b *bubble) {
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
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.Use(middleware("1"), middleware("2"))
			s.Handle("a", delayq.HandlerFunc(func(context.Context, *delayq.Job) error { note("a"); return nil }))
			s.Use(middleware("3"))
			s.HandlerFunc("b", func(context.Context, *delayq.Job) error { note("b"); panic("through all of them") })
			s.Use(func(h delayq.Handler) delayq.Handler {
				return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
					switch job.ID {
					case "stopped":
						return errTest
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
			b.enqueue(topic, "1")
			synctest.Wait()
			require.Equal(b, []string{"1 in", "2 in", "3 in", topic, "3 out", "2 out", "1 out"}, noted())
		}
		require.Equal(b, delayq.KindPanic, b.get("b", "1").Errors[0].Kind)
		b.enqueue("a", "stopped")
		synctest.Wait()
		require.NotContains(b, noted(), "a")
		require.Equal(b, errTest.Error(), b.get("a", "stopped").Errors[0].Message)
		b.enqueue("a", "panics")
		synctest.Wait()
		require.NotContains(b, noted(), "a")
		require.Equal(b, delayq.KindPanic, b.get("a", "panics").Errors[0].Kind)
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
	inBubble(t, func(b *bubble) {
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
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("server", handler(&byServer))
			s.HandlerFunc("handler", handler(&byHandler), delayq.Concurrency(7))
		}, delayq.Concurrency(3))
		b.serve("default", handler(&byDefault))
		for i := range 300 {
			for _, topic := range []string{"server", "handler", "default"} {
				b.enqueue(topic, fmt.Sprint(i))
			}
		}
		b.pass(20 * time.Second)
		for _, topic := range []string{"server", "handler", "default"} {
			require.EqualValues(b, 300, b.counter(topic, "acked"), topic)
		}
		require.Equal(b, 3, byServer.most)
		require.Equal(b, 7, byHandler.most)
		require.Equal(b, 10, byDefault.most)
	})
}

// (H1, H3)
func TestSlowTopicDelaysNoOther(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("slow", func(ctx context.Context, _ *delayq.Job) error {
				<-ctx.Done()
				return ctx.Err()
			})
			s.HandlerFunc("quick", rec.then(nil))
		}, delayq.Concurrency(2))
		for i := range 500 {
			b.enqueue("slow", fmt.Sprint(i))
		}
		for i := range 50 {
			b.enqueue("quick", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*97*time.Millisecond))
		}
		b.pass(10 * time.Second)
		require.Len(b, rec.all(), 50)
		for _, s := range rec.all() {
			require.True(b, s.at.Equal(s.due), "job %s is late by %v", s.id, s.at.Sub(s.due))
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
			inBubble(t, func(b *bubble) {
				name := bubblePrefix + ":{broken}:" + key
				b.enqueue("broken", "later", delayq.ProcessIn(30*time.Second))
				b.enqueue("broken", "now")
				exists := b.rdb.Rename(b.Context(), name, "aside").Err() == nil
				require.NoError(b, b.rdb.Set(b.Context(), name, "of a wrong type", 0).Err())
				var rec recorder
				var log logbook
				w := newWire(b.redis)
				serveMany(b.T, w.client(b.T), bubblePrefix, func(s *delayq.Server) {
					s.HandlerFunc("broken", rec.then(nil))
					s.HandlerFunc("whole", rec.then(nil))
				}, log.to())
				for i := range 40 {
					b.enqueue("whole", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*731*time.Millisecond))
				}
				b.pass(40 * time.Second)
				for i := range 40 {
					starts := rec.of(fmt.Sprint(i))
					require.Len(b, starts, 1)
					require.True(b, starts[0].at.Equal(starts[0].due), "job %d is late", i)
				}
				require.Less(b, w.requests(), 1500, "a hot loop")
				if bookkeeping[key] {
					require.Len(b, rec.of("later"), 1)
				}
				if key != "results" && key != "errors" { // which nobody needs here
					lines := log.with("level=ERROR", "topic=broken", "WRONGTYPE")
					require.NotEmpty(b, lines)
					require.LessOrEqual(b, len(lines), 6, "once for each kind of call: %v", lines)
				}
				require.NoError(b, b.rdb.Del(b.Context(), name).Err())
				if exists {
					require.NoError(b, b.rdb.Rename(b.Context(), "aside", name).Err())
				}
				b.pass(40 * time.Second)
				for _, id := range []string{"now", "later"} {
					require.NotEmpty(b, rec.of(id), id)
					require.Empty(b, b.state("broken", id), id)
				}
			})
		})
	}
}

// (I6, O4)
func TestTopicWithoutHandlerWaits(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.serve("known", rec.then(nil))
		b.enqueue("unknown", "1", delayq.Retry(0))
		b.enqueue("unknown", "2", delayq.Retry(0), delayq.ProcessIn(time.Minute))
		b.pass(2 * time.Minute)
		require.Empty(b, rec.all())
		b.serve("unknown", rec.then(nil))
		b.pass(time.Second)
		require.ElementsMatch(b, []string{"1", "2"}, rec.ids())
		for _, s := range rec.all() {
			require.Equal(b, 1, s.attempt)
		}
	})
}

func TestPauseStopsTheTaking(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		finish := make(chan struct{})
		b.serve("a", rec.then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "running" {
				<-finish
			}
			return nil
		}))
		b.serve("b", rec.then(nil))
		b.enqueue("a", "running")
		b.pass(time.Second)
		require.NoError(b, b.client.Pause(b.Context(), "a", delayq.Pause{By: "me", Reason: "why"}))
		info, err := b.client.Inspect(b.Context(), "a")
		require.NoError(b, err)
		require.True(b, info.Paused)
		require.Equal(b, "me", info.Pauses[0].By)
		b.enqueue("a", "1")
		b.enqueue("a", "2", delayq.ProcessIn(10*time.Second))
		b.enqueue("b", "other")
		b.pass(time.Minute)
		require.Equal(b, []string{"running", "other"}, rec.ids())
		require.Equal(b, delayq.StateReady, b.state("a", "2"))
		close(finish)
		b.pass(time.Second)
		require.Empty(b, b.state("a", "running"), "what runs goes on")

		b.pass(1234 * time.Millisecond)
		at := b.at()
		require.NoError(b, b.client.Resume(b.Context(), "a", "me"))
		synctest.Wait()
		require.ElementsMatch(b, []string{"running", "other", "1", "2"}, rec.ids())
		require.Equal(b, at, rec.all()[2].at.Sub(b.began), "at once")

		require.NoError(b, b.client.Pause(b.Context(), "a", delayq.Pause{For: 10 * time.Second}))
		b.enqueue("a", "3")
		b.pass(10*time.Second - time.Millisecond)
		require.Empty(b, rec.of("3"))
		b.pass(time.Millisecond) // it ends by itself, at its millisecond
		require.Len(b, rec.of("3"), 1)
	})
}

// A pause that a program makes by itself neither shortens nor ends that of an operator, and the
// topic runs again at the very millisecond at which the last one ends, however that comes about.
func TestPausesBelongToWhoMadeThem(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		b.serve("a", rec.then(nil))
		pause := func(by string, period time.Duration) {
			b.Helper()
			require.NoError(b, b.client.Pause(b.Context(), "a", delayq.Pause{By: by, For: period}))
		}
		resume := func(by string) {
			b.Helper()
			require.NoError(b, b.client.Resume(b.Context(), "a", by))
			synctest.Wait()
		}
		startsIn := func(id string, wait time.Duration) {
			b.Helper()
			at := b.at()
			b.pass(wait + 2*time.Second)
			require.Len(b, rec.of(id), 1)
			require.Equal(b, at+wait, rec.of(id)[0].at.Sub(b.began))
		}

		pause("operator", 0)
		pause("program", 50*time.Millisecond)
		b.enqueue("a", "1")
		b.pass(time.Minute)
		require.Empty(b, rec.all(), "the end of the program's pause")
		pause("program", 10*time.Second+7*time.Millisecond)
		resume("program")
		b.pass(time.Second)
		require.Empty(b, rec.all(), "the program resumed")
		pause("program", 2*time.Second+7*time.Millisecond)
		resume("operator")
		b.pass(time.Second)
		require.Empty(b, rec.all(), "the operator resumed")
		startsIn("1", time.Second+7*time.Millisecond)

		pause("program", time.Hour)
		b.enqueue("a", "2")
		b.pass(1234 * time.Millisecond)
		pause("program", 3*time.Millisecond) // a new one, with an earlier end
		startsIn("2", 3*time.Millisecond)

		pause("program", 5*time.Second)
		pause("operator", 20*time.Second)
		b.enqueue("a", "3")
		b.pass(2300 * time.Millisecond)
		resume("operator")
		startsIn("3", 2700*time.Millisecond)
	})
}

// (L1, L2)
func TestDeadLimit(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.serve("a", func(context.Context, *delayq.Job) error { return delayq.Permanent(errTest) },
			delayq.DeadLimit(30, 10*time.Minute), delayq.Concurrency(1))
		for i := range 100 {
			b.enqueue("a", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*time.Millisecond))
		}
		b.pass(30 * time.Second)
		info, err := b.client.Inspect(b.Context(), "a")
		require.NoError(b, err)
		require.EqualValues(b, 30, info.Dead)
		require.Empty(b, b.state("a", "69"), "the oldest go first")
		require.Equal(b, delayq.StateDead, b.state("a", "70"))
		b.pass(10 * time.Minute)
		info, err = b.client.Inspect(b.Context(), "a")
		require.NoError(b, err)
		require.Zero(b, info.Dead)
		for _, key := range b.redis.Keys() {
			for _, part := range []string{"pool", "dead", "attempts", "errors", "moved"} {
				require.False(b, strings.HasSuffix(key, ":"+part), "%s is left", key)
			}
		}
	})
}

// (M4, M7)
func TestExpiredJobIsDropped(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		var hooks told
		h := rec.then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "retried" {
				return errors.New("again")
			}
			return nil
		})
		b.enqueue("a", "late", delayq.ExpireIn(time.Minute))
		b.enqueue("a", "at", delayq.ExpireAt(b.began.Add(time.Minute)), delayq.ProcessIn(30*time.Second))
		b.enqueue("a", "in time", delayq.ExpireIn(time.Minute+time.Millisecond))
		b.pass(time.Minute)
		var log logbook
		b.serve("a", h, delayq.Hooks(&hooks), log.to())
		b.enqueue("a", "retried", delayq.ExpireIn(5*time.Second))
		b.pass(time.Minute)
		require.Len(b, rec.of("in time"), 1)
		require.Empty(b, rec.of("late"))
		require.Empty(b, rec.of("at"))
		require.Len(b, rec.of("retried"), 2, "at 0 and 2 s; the next would be after 6 s")
		require.Len(b, hooks.of("Expired"), 3)
		for _, e := range hooks.of("Expired") {
			require.Len(b, log.with("level=INFO", `msg="job expired"`, "topic=a", "job="+e.ID), 1)
			require.Equal(b, delayq.OutcomeExpired, e.Outcome)
			require.Empty(b, b.state("a", e.ID))
		}
		require.EqualValues(b, 3, b.counter("a", "expired"))
	})
}
