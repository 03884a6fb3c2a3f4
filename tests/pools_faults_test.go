package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// requireWholePool checks that a pool has all its workers, and no more: jobs of a single topic use
// all of them at the same time.
func requireWholePool(b *queuetest.Bubble, topic string, now *crowd, size int) {
	b.Helper()
	require.EqualValues(b, 0, now.now.Load(), "at rest")
	for i := range 3 * size {
		b.Enqueue(topic, fmt.Sprint("whole", i))
	}
	b.Pass(500 * time.Millisecond)
	require.EqualValues(b, size, now.now.Load(), "workers of the pool")
	b.Pass(10 * time.Second)
	require.EqualValues(b, 0, now.now.Load(), "at rest")
}

// Whatever happens to the takes of its topics, a pool loses no worker and gets none too many.
func TestPoolAfterFaults(t *testing.T) {
	const size, topics = 3, 4
	take := queuetest.Digest("take")
	for _, others := range []int{0, 10} { // servers that pop, and servers that are rung
		for name, fault := range map[string]func(b *queuetest.Bubble, w *queuetest.Wire){
			"lost replies": func(b *queuetest.Bubble, w *queuetest.Wire) {
				for range 20 {
					w.Lose(take)
					b.Pass(300 * time.Millisecond)
				}
			},
			"frozen": func(b *queuetest.Bubble, w *queuetest.Wire) {
				for range 5 {
					w.Freeze()
					b.Pass(2 * time.Second)
					w.Thaw()
					b.Pass(700 * time.Millisecond)
				}
			},
			"cut": func(b *queuetest.Bubble, w *queuetest.Wire) {
				for range 5 {
					w.Cut()
					b.Pass(1700 * time.Millisecond)
					w.Mend()
					b.Pass(900 * time.Millisecond)
				}
			},
			"unanswered": func(b *queuetest.Bubble, w *queuetest.Wire) {
				w.Stall(take)
				b.Pass(8 * time.Second)
			},
		} {
			t.Run(fmt.Sprintf("%s, %d other topics", name, others), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					b.LoadScripts()
					w := queuetest.NewWire(b.Redis)
					var c crowd
					queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
						for i := range topics {
							s.HandlerFunc(fmt.Sprint("t", i), c.handler(time.Second), delayq.InPool("p"), delayq.Weight(i+1))
						}
						for i := range others {
							s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
						}
					}, delayq.Pool("p", size))
					b.Pass(time.Second)
					for i := range 10 {
						for j := range topics {
							b.Enqueue(fmt.Sprint("t", j), fmt.Sprint(j, "-", i))
						}
					}
					b.Pass(time.Second)
					fault(b, w)
					w.Heal()
					b.Pass(3 * time.Minute)
					require.EqualValues(b, size, c.most.Load())
					for j := range topics {
						stats := b.Stats(fmt.Sprint("t", j))
						require.EqualValues(b, []int64{0, 0}, []int64{stats.Ready, stats.Running}, j)
					}
					for j := range topics {
						requireWholePool(b, fmt.Sprint("t", j), &c, size)
					}
				})
			})
		}
	}
}

// A topic that may not run jobs leaves its workers to the others, and takes part again as soon as
// it may.
func TestPoolOfATopicThatMayNotRun(t *testing.T) {
	for name, c := range map[string]struct {
		stop, start func(b *queuetest.Bubble) error
		most        int64 // handlers that the topic runs meanwhile
		starts      int   // at least, in a second
	}{
		"paused": {
			func(b *queuetest.Bubble) error {
				return b.Client.Pause(b.Context(), "a", delayq.Pause{By: "test", Reason: "a test"})
			},
			func(b *queuetest.Bubble) error { return b.Client.Resume(b.Context(), "a", "test") }, 0, 0,
		},
		"held": {
			func(b *queuetest.Bubble) error {
				return b.Client.Hold(b.Context(), "a", 4500*time.Millisecond, "a test")
			},
			func(b *queuetest.Bubble) error { b.Pass(time.Second); return nil }, 0, 0,
		},
		"limited": {
			func(b *queuetest.Bubble) error {
				return b.Client.SetLimits(b.Context(), "a", delayq.Limits{Running: 1})
			},
			func(b *queuetest.Bubble) error { return b.Client.SetLimits(b.Context(), "a", delayq.Limits{}) }, 1, 2,
		},
	} {
		for _, others := range []int{0, 10} {
			t.Run(fmt.Sprintf("%s, %d other topics", name, others), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					var first, second crowd
					queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
						s.HandlerFunc("a", first.handler(200*time.Millisecond), delayq.InPool("p"), delayq.Weight(3))
						s.HandlerFunc("b", second.handler(200*time.Millisecond), delayq.InPool("p"))
						for i := range others {
							s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
						}
					}, delayq.Pool("p", 4))
					for i := range 400 {
						b.Enqueue("a", fmt.Sprint(i))
						b.Enqueue("b", fmt.Sprint(i))
					}
					busy := func() []int64 { return []int64{first.now.Load(), second.now.Load()} }
					b.Pass(3100 * time.Millisecond)
					require.Equal(b, []int64{3, 1}, busy())
					require.NoError(b, c.stop(b))
					b.Pass(3 * time.Second)
					before := len(first.started())
					for range 20 {
						b.Pass(50 * time.Millisecond)
						now := busy()
						require.LessOrEqual(b, now[0], c.most)
						require.EqualValues(b, 4, now[0]+now[1])
					}
					// each start waits for the end of a handler of the other topic
					require.GreaterOrEqual(b, len(first.started())-before, c.starts)
					require.NoError(b, c.start(b))
					b.Pass(3 * time.Second)
					require.Equal(b, []int64{3, 1}, busy())
				})
			})
		}
	}
}

// A batch is one worker of the pool, however many jobs it has. A batch handler that is alone uses
// the whole pool, and what it does not need goes to the others.
func TestPoolOfBatches(t *testing.T) {
	for _, others := range []int{0, 10} {
		t.Run(fmt.Sprintf("%d other topics", others), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var batches batchLog
				var single crowd
				queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					require.NoError(b, s.HandleBatch("a", batches.then(lasting(time.Second)), delayq.BatchSize(10), delayq.InPool("p")))
					require.NoError(b, s.HandlerFunc("b", single.handler(time.Second), delayq.InPool("p")))
					for i := range others {
						s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
					}
				}, delayq.Pool("p", 4))
				b.Pass(time.Second)
				for i := range 40 {
					b.Enqueue("b", fmt.Sprint(i))
				}
				b.Pass(1500 * time.Millisecond)
				stock(b, 600)
				for range 6 {
					b.Pass(time.Second)
					batches.mu.Lock()
					now := batches.now
					batches.mu.Unlock()
					require.EqualValues(b, 4, int64(now)+single.now.Load())
				}
				b.Pass(time.Minute)
				require.Len(b, batches.ids(), 600)
				require.LessOrEqual(b, len(batches.sizes()), 4, "%v", batches.sizes())
				require.GreaterOrEqual(b, batches.sizes()[10], 57, "%v", batches.sizes())
				require.Equal(b, 4, batches.busiest(), "the pool is lent whole")
				requireWholePool(b, "b", &single, 4)
			})
		})
	}
}

// A topic that is removed while its handlers run keeps their workers until they end, and no others.
func TestPoolOfARemovedTopic(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var gone, c crowd
		release := make(chan struct{})
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("a", func(_ context.Context, job *delayq.Job) error {
				gone.enter(job.ID)
				defer gone.leave()
				<-release
				return nil
			}, delayq.Concurrency(3))
			s.HandlerFunc("b", c.handler(time.Second))
		}, delayq.Pool("p", 4), delayq.InPool("p"))
		for i := range 10 {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(time.Second)
		for i := range 10 {
			b.Enqueue("b", fmt.Sprint(i))
		}
		b.Pass(time.Second)
		require.EqualValues(b, 3, gone.now.Load())
		require.EqualValues(b, 1, c.most.Load())
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		require.ErrorIs(b, s.Remove(ctx, "a"), context.DeadlineExceeded)
		b.Pass(30 * time.Second)
		require.EqualValues(b, 3, gone.now.Load(), "abandoned handlers still run")
		require.EqualValues(b, 1, c.most.Load(), "their workers are theirs")
		close(release)
		b.Pass(time.Second)
		require.EqualValues(b, 0, gone.now.Load())
		require.EqualValues(b, 10, b.Stats("a").Ready, "their leases have expired")
		requireWholePool(b, "b", &c, 4)
		require.NoError(b, s.HandlerFunc("a", c.handler(time.Second)))
		b.Pass(time.Minute)
		require.EqualValues(b, 0, b.Stats("a").Ready, "a topic that comes back")
		requireWholePool(b, "b", &c, 4)
	})
}

// A server that stops while its pool is full and jobs wait for it starts no more of them, returns
// when the handlers have ended, and leaves the others ready.
func TestPoolAtShutdown(t *testing.T) {
	for _, others := range []int{0, 10} {
		t.Run(fmt.Sprintf("%d other topics", others), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var c crowd
				s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					for i := range 3 {
						s.HandlerFunc(fmt.Sprint("t", i), c.handler(2*time.Second), delayq.InPool("p"))
					}
					for i := range others {
						s.HandlerFunc(fmt.Sprint("other", i), queuetest.Nothing)
					}
				}, delayq.Pool("p", 2), delayq.Drain(10*time.Second))
				for i := range 30 {
					b.Enqueue(fmt.Sprint("t", i%3), fmt.Sprint(i))
				}
				b.Pass(time.Second)
				require.EqualValues(b, 2, c.now.Load())
				at := b.At()
				require.NoError(b, s.Stop())
				require.Less(b, b.At()-at, 3*time.Second)
				require.Len(b, c.started(), 2)
				left := int64(0)
				for i := range 3 {
					stats := b.Stats(fmt.Sprint("t", i))
					require.EqualValues(b, 0, stats.Running)
					left += stats.Ready
				}
				require.EqualValues(b, 28, left)
			})
		})
	}
}

// Each topic of a pattern is in the pool by itself, with the weight of the pattern. Panics and
// runtime.Goexit cost the pool no worker.
func TestPoolOfAPattern(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var tenants, c crowd
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("tenant.*", func(ctx context.Context, job *delayq.Job) error {
				if err := tenants.handler(time.Second)(ctx, job); err != nil {
					return err
				}
				switch job.ID {
				case "panic":
					panic("no")
				case "error":
					return delayq.Permanent(errors.New("no"))
				}
				return nil
			}, delayq.InPool("p"), delayq.Weight(2)))
			require.NoError(b, s.HandlerFunc("c", c.handler(time.Second), delayq.InPool("p")))
		}, delayq.Pool("p", 5))
		for i := range 40 {
			for _, topic := range []string{"tenant.a", "tenant.b", "c"} {
				b.Enqueue(topic, fmt.Sprint(topic, i))
			}
		}
		b.Enqueue("tenant.a", "panic", delayq.Retry(0))
		b.Enqueue("tenant.b", "error")
		b.Pass(10 * time.Second)
		synctest.Wait()
		require.Equal(b, []int64{4, 1}, []int64{tenants.now.Load(), c.now.Load()})
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		for _, topic := range []string{"tenant.a", "tenant.b"} {
			status := servers[0].Topics[topic]
			require.Equal(b, []any{"p", 5, 2}, []any{status.Pool, status.PoolSize, status.Weight})
		}
		b.Pass(3 * time.Minute)
		require.EqualValues(b, 1, b.Stats("tenant.a").Dead)
		requireWholePool(b, "c", &c, 5)
	})
}
