package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// rung runs a server on a wire, or on none, whose topics wait for rings.
func rung(b *queuetest.Bubble, w *queuetest.Wire, h delayq.HandlerFunc, opts ...delayq.ServerOption) *queuetest.Running {
	b.Helper()
	rdb := b.RDB
	if w != nil {
		rdb = w.Client(b.T)
	}
	return queuetest.ServeMany(b.T, rdb, queuetest.Prefix, func(s *delayq.Server) {
		require.NoError(b, s.HandlerFunc("a", h))
		require.NoError(b, s.HandlerFunc("b", h))
		library.AlwaysRing(s)
	}, opts...)
}

// Of ten idle servers one is woken for a job, at once, and they take turns.
func TestOneServerIsRung(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var calls queuetest.HookLog
		var rec queuetest.Recorder
		var mu sync.Mutex
		ran := make(map[int]bool)
		for i := range 10 {
			rung(b, nil, rec.Then(func(context.Context, *delayq.Job) error {
				mu.Lock()
				defer mu.Unlock()
				ran[i] = true
				return nil
			}), delayq.Hooks(&calls), delayq.Concurrency(2))
			b.Pass(100 * time.Millisecond) // their waits begin one after the other
		}
		b.Pass(2 * time.Second)
		before := calls.Calls("take", "a")
		for i := range 10 {
			b.Enqueue("a", fmt.Sprint(i))
			synctest.Wait()
			require.Len(b, rec.Of(fmt.Sprint(i)), 1, "at once")
		}
		require.Equal(b, 10, calls.Calls("take", "a")-before, "one for each job")
		require.Len(b, ran, 10, "the one that has waited longest is rung")
	})
}

// A push of several jobs wakes as many servers.
func TestManyJobsRingManyServers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		release := make(chan struct{})
		var mu sync.Mutex
		servers := make(map[int]bool)
		for i := range 4 {
			rung(b, nil, func(context.Context, *delayq.Job) error {
				mu.Lock()
				servers[i] = true
				mu.Unlock()
				<-release
				return nil
			}, delayq.Concurrency(1))
		}
		b.Pass(time.Second)
		_, err := b.Client.EnqueueBatch(b.Context(), []delayq.NewJob{{Topic: "a", ID: "1"}, {Topic: "a", ID: "2"}, {Topic: "a", ID: "3"}})
		require.NoError(b, err)
		synctest.Wait()
		require.Len(b, servers, 3)
		close(release)
		b.Pass(time.Second)
	})
}

// Without its messages a server finds each job within a tick.
func TestLostRingCostsATick(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		w := queuetest.NewWire(b.Redis)
		w.Stall(queuetest.Subscribe)
		rung(b, w, rec.Then(nil))
		b.Pass(3 * time.Second)
		for i := range 20 {
			id := fmt.Sprint(i)
			stored := time.Now()
			b.Enqueue("b", id)
			b.Pass(1500*time.Millisecond + time.Duration(i)*31*time.Millisecond)
			require.Len(b, rec.Of(id), 1)
			require.LessOrEqual(b, rec.Of(id)[0].At.Sub(stored), time.Second)
		}
	})
}

// A server that has had nothing to do for an hour is still rung. Prune removes names that are an
// hour old.
func TestLongIdleServerIsRung(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		rung(b, nil, rec.Then(nil))
		b.Pass(time.Second)
		for in := range 10 { // every server prunes every ten seconds, and after an hour all topics
			b.Enqueue("a", fmt.Sprint(in), delayq.ProcessIn(time.Hour+time.Duration(in)*500*time.Millisecond))
		}
		b.Pass(time.Hour - time.Minute)
		for _, waits := range b.RDB.ZRangeWithScores(b.Context(), queuetest.Prefix+":{b}:idle", 0, -1).Val() {
			require.Less(b, time.Since(time.UnixMilli(int64(waits.Score))), 32*time.Minute)
		}
		b.Pass(2 * time.Minute)
		for in := range 10 {
			runs := rec.Of(fmt.Sprint(in))
			require.Len(b, runs, 1)
			require.Equal(b, runs[0].Due, runs[0].Started)
		}
	})
}

// A producer that does not ring, one of an earlier release, costs its first jobs up to a tick. Then
// the server blocks for that topic, and the jobs start at once.
func TestProducerThatDoesNotRing(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		rung(b, nil, rec.Then(nil))
		b.Pass(2 * time.Second)
		push := func(id string) time.Time {
			// An enqueue whose ring is taken off the list first, as if there were none.
			name, err := b.RDB.ZRange(b.Context(), queuetest.Prefix+":{a}:idle", 0, -1).Result()
			require.NoError(b, err)
			require.NoError(b, b.RDB.Del(b.Context(), queuetest.Prefix+":{a}:idle").Err())
			began := time.Now()
			b.Enqueue("a", id)
			for _, one := range name {
				require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{a}:idle", queuetest.ZMember(one, began)).Err())
			}
			return began
		}
		for i := range 2 {
			began := push(fmt.Sprint(i))
			b.Pass(1100 * time.Millisecond)
			require.Len(b, rec.Of(fmt.Sprint(i)), 1)
			require.LessOrEqual(b, rec.Of(fmt.Sprint(i))[0].At.Sub(began), time.Second)
		}
		b.Pass(2 * time.Second)
		for i := range 5 {
			id := fmt.Sprint("blocked ", i)
			began := push(id)
			b.Pass(time.Second)
			require.Len(b, rec.Of(id), 1)
			require.Equal(b, began, rec.Of(id)[0].At)
		}
	})
}

// A server that stops leaves no ring unanswered, and its name is not on the list.
func TestStoppedServerIsNotRung(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		first := rung(b, nil, rec.Then(nil))
		b.Pass(time.Second)
		rung(b, nil, rec.Then(nil))
		b.Pass(time.Second)
		require.NoError(b, first.Stop())
		idle, err := b.RDB.ZRange(b.Context(), queuetest.Prefix+":{a}:idle", 0, -1).Result()
		require.NoError(b, err)
		require.Len(b, idle, 1)
		require.NotContains(b, idle, first.ID())
		b.Enqueue("a", "1")
		synctest.Wait()
		require.Equal(b, []string{"1"}, rec.IDs())
	})
}

// A paused topic costs its server no take, and its jobs start when the pause ends, by a resume or
// by its time, also if the message is lost.
func TestPausedTopicIsNotRung(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		t.Run(fmt.Sprint("deaf ", deaf), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				var calls queuetest.HookLog
				var rec queuetest.Recorder
				w := queuetest.NewWire(b.Redis)
				if deaf {
					w.Stall(queuetest.Subscribe)
				}
				rung(b, w, rec.Then(nil), delayq.Hooks(&calls))
				b.Pass(time.Second)
				require.NoError(b, b.Client.Pause(b.Context(), "a", delayq.Pause{By: "op", Reason: "test"}))
				b.Enqueue("a", "1")
				b.Pass(2 * time.Second)
				before := calls.Calls("take", "a")
				b.Pass(time.Minute)
				require.Equal(b, before, calls.Calls("take", "a"))
				require.NoError(b, b.Client.Resume(b.Context(), "a", "op"))
				resumed := time.Now()
				b.Pass(2 * time.Second)
				require.Len(b, rec.Of("1"), 1)
				late := rec.Of("1")[0].At.Sub(resumed)
				if deaf {
					require.LessOrEqual(b, late, time.Second)
				} else {
					require.Zero(b, late)
				}
			})
		})
	}
}

// Topics that change between rings and blocking pops, because others come and go, are served all
// the time, also if the list of waiting servers is lost meanwhile. None of them pops twice at a
// time.
func TestTopicsChangeHowTheyWait(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		var log queuetest.Logbook
		w := queuetest.NewWire(b.Redis)
		s := queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			for i := range 4 {
				require.NoError(b, s.HandlerFunc(fmt.Sprint("t", i), rec.Then(nil)))
			}
		}, log.To())
		for round := range 6 {
			require.NoError(b, s.HandlerFunc("fifth", rec.Then(nil)))
			b.Pass(5 * time.Second)
			require.NoError(b, s.Remove(b.Context(), "fifth"))
			if round%2 == 0 {
				require.NoError(b, b.RDB.Del(b.Context(), queuetest.Prefix+":{t1}:idle").Err())
			}
			for i := range 4 {
				id := fmt.Sprint(round, "-", i)
				b.Enqueue(fmt.Sprint("t", i), id)
				b.Pass(time.Second)
				require.Len(b, rec.Of(id), 1)
			}
		}
		require.Empty(b, log.With("level=ERROR"))
		require.LessOrEqual(b, w.MostOpen(), 16) // some of them for topics that ask at once whether they have limits
	})
}
