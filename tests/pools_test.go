package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// starts counts the starts of each topic, in their order.
type starts struct {
	mu   sync.Mutex
	list []string
}

func (s *starts) add(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, topic)
}

func (s *starts) counts(first int) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := map[string]int{}
	for _, topic := range s.list[:min(first, len(s.list))] {
		n[topic]++
	}
	return n
}

// The topics of an asynq program with the queues critical 6, default 3 and low 1 and one worker
// start jobs in these proportions, whether the server pops or is rung. No more than one handler
// runs at a time, and low jobs are not starved.
func TestPoolOfOne(t *testing.T) {
	for _, others := range []int{0, 10} {
		t.Run(fmt.Sprintf("%d other topics", others), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var c crowd
				var order starts
				weights := map[string]int{"critical": 6, "default": 3, "low": 1}
				for topic := range weights {
					for i := range 200 {
						b.Enqueue(topic, fmt.Sprint(topic, i))
					}
				}
				queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					for topic, weight := range weights {
						s.HandlerFunc(topic, func(ctx context.Context, job *delayq.Job) error {
							order.add(topic)
							return c.handler(10*time.Millisecond)(ctx, job)
						}, delayq.InPool("all"), delayq.Weight(weight))
					}
					for i := range others {
						s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
					}
				}, delayq.Pool("all", 1))
				b.Pass(5 * time.Second)
				got := order.counts(200)
				require.InDelta(b, 120, got["critical"], 6, "%v", got)
				require.InDelta(b, 60, got["default"], 3, "%v", got)
				require.InDelta(b, 20, got["low"], 1, "%v", got)
				b.Pass(5 * time.Second)
				require.Equal(b, map[string]int{"critical": 200, "default": 200, "low": 200}, order.counts(1000))
				require.EqualValues(b, 1, c.most.Load())
			})
		})
	}
}

// One busy topic uses the whole pool. When a second one has jobs, it gets its share as handlers
// end. A Concurrency is a topic's own maximum.
func TestPoolLends(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var low, high, few crowd
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("low", low.handler(time.Second))
			s.HandlerFunc("high", high.handler(time.Second), delayq.Weight(3))
			s.HandlerFunc("few", few.handler(time.Second), delayq.Concurrency(2))
		}, delayq.Pool("all", 8), delayq.InPool("all"))
		b.Pass(time.Second)
		for i := range 100 {
			b.Enqueue("low", fmt.Sprint(i))
			b.Enqueue("few", fmt.Sprint(i))
		}
		b.Pass(3500 * time.Millisecond)
		require.EqualValues(b, 2, few.now.Load())
		require.EqualValues(b, 6, low.now.Load())
		for i := range 100 {
			b.Enqueue("high", fmt.Sprint(i))
		}
		b.Pass(3 * time.Second)
		require.InDelta(b, 5, high.now.Load(), 1) // 8 by 3:1:1
		require.EqualValues(b, 8, high.now.Load()+low.now.Load()+few.now.Load())
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		status := servers[0].Topics["high"]
		require.Equal(b, []any{"all", 8, 3, 8}, []any{status.Pool, status.PoolSize, status.Weight, status.Workers})
		b.Pass(2 * time.Minute)
		for _, topic := range []string{"low", "high", "few"} {
			require.EqualValues(b, 0, b.Stats(topic).Ready+b.Stats(topic).Running, topic)
		}
	})
}

// While the pool is full, a topic that is woken for a job makes no more calls than an idle one. Its
// job runs when the handler ends.
func TestPoolFullIsQuiet(t *testing.T) {
	for _, others := range []int{0, 10} {
		t.Run(fmt.Sprintf("%d other topics", others), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				release := make(chan struct{})
				var done atomic.Int64
				var calls atomic.Int64
				count := queuetest.OnScript(func(e delayq.ScriptEvent) {
					if e.Name == "take" || e.Name == "ring" {
						calls.Add(1)
					}
				})
				queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					s.HandlerFunc("long", func(context.Context, *delayq.Job) error { <-release; return nil }, delayq.InPool("p"))
					for i := range 3 {
						s.HandlerFunc(fmt.Sprint("short", i), func(context.Context, *delayq.Job) error { done.Add(1); return nil }, delayq.InPool("p"))
					}
					for i := range others {
						s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
					}
				}, delayq.Pool("p", 1), delayq.Hooks(count))
				b.Pass(time.Second)
				b.Enqueue("long", "a")
				b.Pass(time.Second)
				for i := range 30 {
					b.Enqueue(fmt.Sprint("short", i%3), fmt.Sprint(i))
				}
				calls.Store(0)
				b.Pass(time.Minute)
				require.Less(b, calls.Load(), int64(60), "calls in a minute")
				require.EqualValues(b, 0, done.Load())
				close(release)
				b.Pass(time.Second)
				require.EqualValues(b, 30, done.Load())
			})
		})
	}
}

// Fifty topics of a pattern, in a pool of one worker, with handlers that take no time: all jobs
// run, one at a time. A topic that is removed gives back its worker.
func TestPoolOfFiftyTopics(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		const topics = 50
		jobs := redistest.Size(40)
		var c crowd
		var done atomic.Int64
		h := func(_ context.Context, job *delayq.Job) error {
			c.enter(job.Topic + job.ID)
			defer c.leave()
			done.Add(1)
			return nil
		}
		for i := range topics {
			for j := range jobs {
				_, err := f.Client.Enqueue(t.Context(), fmt.Sprint("t", i), fmt.Sprint(j), nil)
				require.NoError(t, err)
			}
		}
		var s *delayq.Server
		run := queuetest.ServeMany(t, f.RDB, f.Prefix, func(server *delayq.Server) {
			s = server
			for i := range topics {
				s.HandlerFunc(fmt.Sprint("t", i), h, delayq.Weight(i%5+1))
			}
		}, delayq.Pool("p", 1), delayq.InPool("p"))
		queuetest.Until(t, func() bool { return done.Load() == int64(topics*jobs) })
		require.NoError(t, s.Remove(t.Context(), "t0"))
		require.NoError(t, s.HandlerFunc("later", h))
		_, err := f.Client.Enqueue(t.Context(), "later", "a", nil)
		require.NoError(t, err)
		queuetest.Until(t, func() bool { return done.Load() == int64(topics*jobs)+1 })
		require.EqualValues(t, 1, c.most.Load())
		run.Stop()
	})
}

// What is wrong with pools is an error of Handle and of Run.
func TestPoolMisuse(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // never called
	defer rdb.Close()
	handle := func(s *delayq.Server, opts ...delayq.HandlerOption) error {
		return s.HandlerFunc("a", queuetest.Nothing, opts...)
	}
	server := func(opts ...delayq.ServerOption) *delayq.Server { return delayq.NewServer(rdb, opts...) }
	declared := delayq.Pool("p", 5)
	for want, err := range map[string]error{
		`InPool("q"): the server has no such Pool`: handle(server(declared), delayq.InPool("q")),
		`Weight is for topics with InPool`:         handle(server(declared), delayq.Weight(2)),
		`Weight(0): must be from 1 to 1000`:        handle(server(declared), delayq.InPool("p"), delayq.Weight(0)),
		`Weight(1001): must be from 1 to 1000`:     handle(server(declared), delayq.InPool("p"), delayq.Weight(1001)),
		`Pool("p", 0): the size must be from 1 to`: server(delayq.Pool("p", 0)).Run(t.Context()),
		`Pool("p", 10001): the size must be from`:  server(delayq.Pool("p", 10_001)).Run(t.Context()),
		`Pool("p", 6): already declared with 5`:    server(declared, delayq.Pool("p", 6)).Run(t.Context()),
		`InPool("x"): the server has no such Pool`: server(declared, delayq.InPool("x")).Run(t.Context()),
		`empty worker pool`:                        server(delayq.Pool("", 6)).Run(t.Context()),
	} {
		require.ErrorIs(t, err, delayq.ErrInvalid, want)
		require.ErrorContains(t, err, want)
	}
	var nobody *delayq.Server
	require.Error(t, handle(nobody, delayq.InPool("p")))
	require.False(t, errors.Is(handle(server(declared), delayq.InPool("p"), delayq.Weight(1000)), delayq.ErrInvalid))
}
