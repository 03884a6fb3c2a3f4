package delayq_test

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
)

// slow makes each answer of a script long on its way.
func slow(name string, d time.Duration) onScript {
	return func(e delayq.ScriptEvent) {
		if e.Name == name {
			time.Sleep(d)
		}
	}
}

// backlog stores jobs of the topic a that are due at once, and gives their IDs: name and five
// digits.
func (b *bubble) backlog(name string, n int, opts ...delayq.JobOption) (ids []string) {
	b.Helper()
	var list []delayq.NewJob
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s%05d", name, i))
		list = append(list, delayq.NewJob{Topic: "a", ID: ids[i], Options: opts})
	}
	_, err := b.client.EnqueueBatch(b.Context(), list)
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
			inBubble(t, func(b *bubble) {
				b.loadScripts()
				ids := b.backlog("", jobs)
				var rec recorder
				var calls told
				began := time.Now()
				s := b.serve("a", rec.then(nil), delayq.Concurrency(concurrency),
					delayq.Hooks(&calls, slow("take", answer), slow("ack", answer)))
				b.pass(2 * time.Second)
				require.Len(b, rec.times(), jobs)
				require.Len(b, rec.all(), jobs)
				last := rec.all()[jobs-1].at.Sub(began)
				require.LessOrEqual(b, last, most)
				if concurrency > 1 {
					require.Less(b, calls.calls("take"), jobs/500*3/2, "they are full")
				} else {
					require.Greater(b, last, jobs/500*answer)
					require.True(b, slices.Equal(ids, rec.ids()), "in their order")
				}
				require.NoError(b, s.stop())
				require.EqualValues(b, jobs, b.counter("a", "acked"))
			})
		})
	}
}

// Two takes are under way while records are large, but one while they are huge. Otherwise another
// client of Redis waits until two of the largest payloads have been read.
func TestHugeJobsAreTakenOneAtATime(t *testing.T) {
	for size, most := range map[int]int64{1_000_000: 2, 5 << 20: 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				const jobs = 12
				b.loadScripts()
				client := delayq.NewClient(b.rdb, delayq.Prefix(bubblePrefix), delayq.MaxPayload(size))
				for i := range jobs {
					_, err := client.Enqueue(b.Context(), "a", fmt.Sprint(i), make([]byte, size))
					require.NoError(b, err)
				}
				var now, highest atomic.Int64
				var rec recorder
				b.serve("a", rec.then(nil), delayq.Hooks(onScript(func(e delayq.ScriptEvent) {
					if e.Name == "take" {
						highest.Store(max(highest.Load(), now.Add(1)))
						time.Sleep(10 * time.Millisecond)
						now.Add(-1)
					}
				})))
				b.pass(time.Second)
				require.Len(b, rec.all(), jobs)
				require.Equal(b, most, highest.Load())
			})
		})
	}
}

// Answers of both takers are lost: their calls are made again and give the same jobs, so none waits
// for the end of a lease, and none runs twice.
func TestLostAnswersInABacklog(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const jobs = 10_000
		b.loadScripts()
		b.backlog("", jobs)
		var rec recorder
		w := newWire(b.redis)
		var calls told
		b.serveOn(w, "a", rec.then(func(_ context.Context, job *delayq.Job) error {
			if job.ID[2:] == "500" {
				w.lose(script("take"), script("take"), script("ack"), script("ack"))
			}
			return nil
		}), delayq.Concurrency(64), delayq.Hooks(&calls, slow("take", time.Millisecond)))
		b.pass(20 * time.Second) // less than a lease
		require.Greater(b, w.losses(), 30)
		require.Len(b, rec.times(), jobs)
		require.Len(b, rec.all(), jobs)
		require.Zero(b, calls.total("LeaseLost"))
		require.EqualValues(b, jobs, b.counter("a", "acked"))
	})
}

// A server that stops with two takes under way gives back what they bring.
func TestStopInABacklog(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 35 * time.Millisecond, 41 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				const jobs = 10_000
				b.loadScripts()
				b.backlog("", jobs)
				var rec recorder
				s := b.serve("a", rec.then(nil), delayq.Concurrency(64), delayq.Hooks(slow("take", 10*time.Millisecond)))
				b.pass(after)
				require.NoError(b, s.stop())
				info, err := b.client.Inspect(b.Context(), "a")
				require.NoError(b, err)
				require.Zero(b, info.Running)
				require.EqualValues(b, jobs-len(rec.all()), info.Ready)
				require.Len(b, rec.times(), len(rec.all()))
				b.serve("a", rec.then(nil), delayq.Concurrency(64))
				b.pass(time.Second)
				require.Len(b, rec.all(), jobs)
				require.Len(b, rec.times(), jobs)
			})
		})
	}
}

// Jobs of a single slot that were taken ahead are back in their order after a stop, however many
// calls that takes.
func TestStoppedBacklogKeepsItsOrder(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const jobs = 10_000
		b.loadScripts()
		ids := b.backlog("", jobs)
		var rec recorder
		enough := make(chan struct{})
		s := b.serve("a", rec.then(func(ctx context.Context, job *delayq.Job) error {
			if job.ID == ids[4000] {
				close(enough)
				<-ctx.Done()
			}
			return nil
		}), delayq.Concurrency(1))
		<-enough
		synctest.Wait()
		info, err := b.client.Inspect(b.Context(), "a")
		require.NoError(b, err)
		require.Greater(b, info.Running, int64(1000), "taken ahead")
		s.end()
		require.NoError(b, s.stop())
		ready, err := b.rdb.LRange(b.Context(), bubblePrefix+":{a}:ready", 0, -1).Result()
		require.NoError(b, err)
		require.True(b, slices.Equal(ids[len(rec.all()):], ready), "in their order")
	})
}

// At the end of a backlog one taker finds nothing while the other one's call is still under way,
// also one whose answer is lost. Nothing is left lying, and the next job starts at once.
func TestEndOfABacklog(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var rec recorder
		var calls told
		w := newWire(b.redis)
		s := b.serveOn(w, "a", rec.then(nil), delayq.Concurrency(64), delayq.Hooks(&calls, onScript(func(e delayq.ScriptEvent) {
			if e.Name == "take" {
				time.Sleep(rand.N(10 * time.Millisecond))
			}
		})))
		want := 0
		for round := range 40 {
			jobs := 1000 + 250*rand.IntN(8)
			b.backlog(fmt.Sprint("round ", round, " job "), jobs)
			if round%2 == 1 {
				w.lose("taken:" + s.ID() + []string{"", "+"}[round/2%2] + "\r\n")
			}
			b.pass(time.Second)
			after := b.enqueue("a", fmt.Sprint("after-", round)).ID
			b.pass(100 * time.Millisecond)
			want += jobs + 1
			require.Len(b, rec.of(after), 1, "round %d", round)
			require.Len(b, rec.all(), want, "round %d", round)
		}
		require.Greater(b, w.losses(), 10)
		require.Len(b, rec.times(), want)
		require.Zero(b, calls.total("LeaseLost"))
	})
}

// The second taker's answer is lost, and then the handlers become slow. What its repeated call
// brings goes back: who has free slots may have it.
func TestLostAnswerIsNotKeptFromOthers(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		const slots, short = 64, 5000
		var blocked atomic.Bool
		stop := make(chan struct{})
		defer close(stop)
		w := newWire(b.redis)
		s := b.serveOn(w, "a", func(_ context.Context, job *delayq.Job) error {
			if blocked.Load() {
				<-stop
			}
			return nil
		}, delayq.Concurrency(slots), delayq.Hooks(onScript(func(e delayq.ScriptEvent) {
			if e.Name != "take" {
				return
			}
			time.Sleep(time.Millisecond)
			if e.Err != nil {
				blocked.Store(true)
			}
		})))
		b.backlog("short ", short)
		b.pass(time.Second)
		require.Zero(b, b.counter("a", "returned"))
		w.lose("taken:" + s.ID() + "+\r\n")
		b.backlog("slow ", short/2)
		b.pass(time.Second)
		require.Equal(b, 1, w.losses())
		info, err := b.client.Inspect(b.Context(), "a")
		require.NoError(b, err)
		require.EqualValues(b, slots, info.Running)
		require.Positive(b, b.counter("a", "returned"))
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
			inBubble(t, func(b *bubble) {
				b.loadScripts()
				const jobs, slots = 4000, 1800
				b.backlog("", jobs, c.opts...)
				stop := make(chan struct{})
				defer close(stop)
				var rec recorder
				var calls told
				w := newWire(b.redis)
				if c.lose != "" {
					w.lose(c.lose)
				}
				b.serveOn(w, "a", rec.then(func(context.Context, *delayq.Job) error { <-stop; return nil }), delayq.Concurrency(slots),
					delayq.Hooks(&calls, slow("take", time.Millisecond)))
				for range 50 {
					info, err := b.client.Inspect(b.Context(), "a")
					require.NoError(b, err)
					require.LessOrEqual(b, info.Running, int64(slots))
					b.pass(3 * time.Millisecond)
				}
				b.pass(2 * time.Second)
				require.Len(b, rec.all(), slots)
				require.LessOrEqual(b, calls.calls("take"), 12)
				require.Zero(b, calls.calls("give_back"))
			})
		})
	}
}
