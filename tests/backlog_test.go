package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// slow makes each answer of a script long on its way.
func slow(name string, d time.Duration) queuetest.OnScript {
	if delayq.Scripts()[name] == "" {
		panic("no script " + name)
	}
	return func(e delayq.ScriptEvent) {
		if e.Name == name {
			time.Sleep(d)
		}
	}
}

// storeBacklog stores jobs of the topic a that are due at once, and gives their IDs: name and five
// digits.
func storeBacklog(b *queuetest.Bubble, name string, n int, opts ...delayq.JobOption) (ids []string) {
	b.Helper()
	var list []delayq.NewJob
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s%05d", name, i))
		list = append(list, delayq.NewJob{Topic: "a", ID: ids[i], Options: opts})
	}
	_, err := b.Client.EnqueueBatch(b.Context(), list)
	require.NoError(b, err)
	return ids
}

// While there are more jobs ready than a call can take, two takes are under way at a time, and two
// calls that settle, so that Redis does not wait for the server to read its answers. A single slot
// has one take at a time: it takes its jobs in their order.
func TestBacklogIsTakenTwoCallsAtATime(t *testing.T) {
	const jobs, answer = 20_000, 10 * time.Millisecond
	for concurrency, most := range map[int]time.Duration{64: 30 * answer, 1: 100 * answer} { // a single slot learns slower how short its runs are
		t.Run(fmt.Sprint(concurrency), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				ids := storeBacklog(b, "", jobs)
				var rec queuetest.Recorder
				var calls queuetest.HookLog
				began := time.Now()
				s := b.Serve("a", rec.Then(nil), delayq.Concurrency(concurrency),
					delayq.Hooks(&calls, slow("take", answer), slow("ack", answer)))
				b.Pass(2 * time.Second)
				require.Len(b, rec.Times(), jobs)
				require.Len(b, rec.All(), jobs)
				last := rec.All()[jobs-1].At.Sub(began)
				require.LessOrEqual(b, last, most)
				if concurrency > 1 {
					require.Less(b, calls.Calls("take"), jobs/500*3/2, "they are full")
				} else {
					require.Greater(b, last, jobs/500*answer)
					require.True(b, slices.Equal(ids, rec.IDs()), "in their order")
				}
				require.NoError(b, s.Stop())
				require.EqualValues(b, jobs, b.Counter("a", "acked"))
			})
		})
	}
}

// Two takes are under way while records are large, but one while they are huge. Otherwise another
// client of Redis waits until two of the largest payloads have been read.
func TestHugeJobsAreTakenOneAtATime(t *testing.T) {
	for size, most := range map[int]int64{1_000_000: 2, 5 << 20: 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const jobs = 12
				b.LoadScripts()
				client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.MaxPayload(size))
				for i := range jobs {
					_, err := client.Enqueue(b.Context(), "a", fmt.Sprint(i), make([]byte, size))
					require.NoError(b, err)
				}
				var now, highest atomic.Int64
				var rec queuetest.Recorder
				b.Serve("a", rec.Then(nil), delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
					if e.Name == "take" {
						highest.Store(max(highest.Load(), now.Add(1)))
						time.Sleep(10 * time.Millisecond)
						now.Add(-1)
					}
				})))
				b.Pass(time.Second)
				require.Len(b, rec.All(), jobs)
				require.Equal(b, most, highest.Load())
			})
		})
	}
}

// Answers of both takers are lost: their calls are made again and give the same jobs, so none waits
// for the end of a lease, and none runs twice.
func TestLostAnswersInABacklog(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 10_000
		b.LoadScripts()
		storeBacklog(b, "", jobs)
		var rec queuetest.Recorder
		w := queuetest.NewWire(b.Redis)
		var calls queuetest.HookLog
		b.ServeOn(w, "a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if job.ID[2:] == "500" {
				w.Lose(queuetest.Digest("take"), queuetest.Digest("take"), queuetest.Digest("ack"), queuetest.Digest("ack"))
			}
			return nil
		}), delayq.Concurrency(64), delayq.Hooks(&calls, slow("take", time.Millisecond)))
		b.Pass(20 * time.Second) // less than a lease
		require.Greater(b, w.Losses(), 30)
		require.Len(b, rec.Times(), jobs)
		require.Len(b, rec.All(), jobs)
		require.Zero(b, calls.Total("LeaseLost"))
		require.EqualValues(b, jobs, b.Counter("a", "acked"))
	})
}

// A server that stops with two takes under way gives back what they bring.
func TestStopInABacklog(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 35 * time.Millisecond, 41 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				const jobs = 10_000
				b.LoadScripts()
				storeBacklog(b, "", jobs)
				var rec queuetest.Recorder
				s := b.Serve("a", rec.Then(nil), delayq.Concurrency(64), delayq.Hooks(slow("take", 10*time.Millisecond)))
				b.Pass(after)
				require.NoError(b, s.Stop())
				info := b.Stats("a")
				require.Zero(b, info.Running)
				require.EqualValues(b, jobs-len(rec.All()), info.Ready)
				require.Len(b, rec.Times(), len(rec.All()))
				b.Serve("a", rec.Then(nil), delayq.Concurrency(64))
				b.Pass(time.Second)
				require.Len(b, rec.All(), jobs)
				require.Len(b, rec.Times(), jobs)
			})
		})
	}
}

// Jobs of a single slot that were taken ahead are back in their order after a stop, however many
// calls that takes.
func TestStoppedBacklogKeepsItsOrder(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs = 10_000
		b.LoadScripts()
		ids := storeBacklog(b, "", jobs)
		var rec queuetest.Recorder
		enough := make(chan struct{})
		s := b.Serve("a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
			if job.ID == ids[4000] {
				close(enough)
				<-ctx.Done()
			}
			return nil
		}), delayq.Concurrency(1))
		<-enough
		synctest.Wait()
		info := b.Stats("a")
		require.Greater(b, info.Running, int64(1000), "taken ahead")
		s.End()
		require.NoError(b, s.Stop())
		ready, err := b.RDB.LRange(b.Context(), queuetest.Prefix+":{a}:ready", 0, -1).Result()
		require.NoError(b, err)
		require.True(b, slices.Equal(ids[len(rec.All()):], ready), "in their order")
	})
}

// At the end of a backlog one taker finds nothing while the other one's call is still under way,
// also one whose answer is lost. Nothing is left lying, and the next job starts at once.
func TestEndOfABacklog(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		var calls queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		s := b.ServeOn(w, "a", rec.Then(nil), delayq.Concurrency(64), delayq.Hooks(&calls, queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name == "take" {
				time.Sleep(rand.N(10 * time.Millisecond))
			}
		})))
		want := 0
		for round := range 40 {
			jobs := 1000 + 250*rand.IntN(8)
			storeBacklog(b, fmt.Sprint("round ", round, " job "), jobs)
			if round%2 == 1 {
				w.Lose("taken:" + s.ID() + []string{"", "+"}[round/2%2] + "\r\n")
			}
			b.Pass(time.Second)
			after := b.Enqueue("a", fmt.Sprint("after-", round)).ID
			b.Pass(100 * time.Millisecond)
			want += jobs + 1
			require.Len(b, rec.Of(after), 1, "round %d", round)
			require.Len(b, rec.All(), want, "round %d", round)
		}
		require.Greater(b, w.Losses(), 10)
		require.Len(b, rec.Times(), want)
		require.Zero(b, calls.Total("LeaseLost"))
	})
}

// The second taker's answer is lost, and then the handlers become slow. What its repeated call
// brings goes back: who has free slots may have it.
func TestLostAnswerIsNotKeptFromOthers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		const slots, short = 64, 5000
		var blocked atomic.Bool
		stop := make(chan struct{})
		defer close(stop)
		w := queuetest.NewWire(b.Redis)
		s := b.ServeOn(w, "a", func(_ context.Context, job *delayq.Job) error {
			if blocked.Load() {
				<-stop
			}
			return nil
		}, delayq.Concurrency(slots), delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
			if e.Name != "take" {
				return
			}
			time.Sleep(time.Millisecond)
			if e.Err != nil {
				blocked.Store(true)
			}
		})))
		storeBacklog(b, "short ", short)
		b.Pass(time.Second)
		require.Zero(b, b.Counter("a", "returned"))
		w.Lose("taken:" + s.ID() + "+\r\n")
		storeBacklog(b, "slow ", short/2)
		b.Pass(time.Second)
		require.Equal(b, 1, w.Losses())
		info := b.Stats("a")
		require.EqualValues(b, slots, info.Running)
		require.Positive(b, b.Counter("a", "returned"))
	})
}

// Two takes at a time take no more jobs of limited retries than there are slots, also while it is
// not known what one of them has brought. And slow handlers make no server take jobs again and
// again that it has to give back.
func TestTwoTakesKeepToTheSlots(t *testing.T) {
	for name, c := range map[string]struct {
		lose string
		opts []delayq.JobOption
	}{
		"limited":                {opts: []delayq.JobOption{delayq.Retry(0)}},
		"limited, a lost answer": {lose: "+\r\n", opts: []delayq.JobOption{delayq.Retry(0)}},
		"unlimited":              {},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				const jobs, slots = 4000, 1800
				storeBacklog(b, "", jobs, c.opts...)
				stop := make(chan struct{})
				defer close(stop)
				var rec queuetest.Recorder
				var calls queuetest.HookLog
				w := queuetest.NewWire(b.Redis)
				if c.lose != "" {
					w.Lose(c.lose)
				}
				b.ServeOn(w, "a", rec.Then(func(context.Context, *delayq.Job) error { <-stop; return nil }), delayq.Concurrency(slots),
					delayq.Hooks(&calls, slow("take", time.Millisecond)))
				for range 50 {
					info := b.Stats("a")
					require.LessOrEqual(b, info.Running, int64(slots))
					b.Pass(3 * time.Millisecond)
				}
				b.Pass(2 * time.Second)
				require.Len(b, rec.All(), slots)
				require.LessOrEqual(b, calls.Calls("take"), 12)
				require.Zero(b, calls.Calls("give_back"))
			})
		})
	}
}
