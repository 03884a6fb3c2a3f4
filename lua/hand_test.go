package lua_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// The new job is due in less than a tick: sleeping servers wake for it.
func TestAgainWakesTheTimers(t *testing.T) {
	for _, in := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond, 999 * time.Millisecond} {
		t.Run(in.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var rec queuetest.Recorder
				h := hand.New(b.T, b.RDB, queuetest.Prefix, "a")
				b.Enqueue("a", "1")
				held := h.TakeOne("1") // by another server
				b.Serve("a", rec.Then(nil))
				b.Pass(1100 * time.Millisecond)
				at := b.At()
				require.Equal(b, "o", h.Again(in, held))
				b.Pass(2 * time.Second)
				require.Len(b, rec.All(), 1)
				require.Equal(b, at+in, rec.All()[0].At.Sub(b.Began))
				require.Equal(b, 1, rec.All()[0].Attempt)
			})
		})
	}
}

// Nothing that a job needs expires by itself, whatever has become of the job. (A13)
func TestWaitingJobsHaveNoExpiry(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, _ hand.Held) {
		keys, err := redistest.Census(t.Context(), f.RDB, f.Prefix+":*")
		require.NoError(t, err)
		if state != "" {
			require.Contains(t, keys, f.Key("pool"))
		}
		for key := range keys {
			if name := strings.TrimPrefix(key, f.Key("")); strings.HasPrefix(name, "receipt:") || strings.HasPrefix(name, "taken:") {
				continue
			}
			require.Equal(t, time.Duration(-1), f.RDB.TTL(t.Context(), key).Val(), key)
		}
	})
}

// A record that cannot be read, under a lease that ran out, keeps no other lapsed job from being
// run again, in its topic or another one, and its bytes are kept. (C2, I3)
func TestPoisonedLeaseStopsNoOther(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		for _, topic := range []string{"a", "b"} {
			h := hand.New(b.T, b.RDB, queuetest.Prefix, topic)
			b.Enqueue(topic, "poison")
			b.Enqueue(topic, "crashed")
			require.Len(b, h.Take(2, time.Second), 2) // by a server that died
		}
		const garbage = "\xc1\xffno record at all"
		require.NoError(b, b.RDB.HSet(ctx, queuetest.PoolKey("a"), "poison", garbage).Err())
		var rec queuetest.Recorder
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("a", rec.Then(nil))
			s.HandlerFunc("b", rec.Then(nil))
		})
		b.Pass(time.Second + time.Millisecond)
		require.Equal(b, map[string]int{"crashed": 2, "poison": 1}, rec.Times())
		for _, s := range rec.All() {
			require.Equal(b, 2, s.Attempt)
		}
		info := b.Get("a", "poison")
		require.Equal(b, delayq.StateDead, info.State)
		require.Equal(b, garbage, string(info.Raw))
		require.Empty(b, b.State("b", "poison"))
	})
}

// Of jobs whose leases ran out half are finished or cancelled before the rescue and half after it.
// No rescue brings back one that is gone, and what runs again has its payload. (D8, B8)
func TestRescueRevivesNothingThatIsGone(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		rounds, each := redistest.Size(25), 400
		for round := range rounds {
			list := make([]delayq.NewJob, each)
			for i := range list {
				id := fmt.Sprint(round, "-", i)
				list[i] = delayq.NewJob{Topic: "topic", ID: id, Payload: []byte("payload of " + id)}
			}
			_, err := f.Client.EnqueueBatch(t.Context(), list)
			require.NoError(t, err)
			held := f.Hand.Take(each, 0) // the leases have run out at once
			require.Len(t, held, each)
			part := func(n int) []hand.Held { return held[n*each/4 : (n+1)*each/4] }
			end := func(acked, cancelled []hand.Held, letter byte) {
				letters := f.Hand.Ack(acked...)
				for i := range letters {
					require.Equal(t, letter, letters[i])
				}
				for _, one := range cancelled {
					_, err := f.Client.Dequeue(t.Context(), "topic", one.ID)
					require.NoError(t, err)
				}
			}
			end(part(0), part(1), 'o')
			_, reclaimed := f.Hand.Promote()
			require.Equal(t, each/2, reclaimed)
			end(part(2), part(3), 'l')
			again := f.Hand.Take(each, time.Minute)
			require.Len(t, again, each/4, "those whose ack came too late")
			for _, one := range again {
				require.Contains(t, one.Record, "payload of "+one.ID)
				require.Equal(t, "o", f.Hand.Ack(one))
			}
		}
		for key := range f.Dump() {
			require.Equal(t, f.Key("stats"), key, "left over")
		}
	})
}

// storeMany stores jobs that are due at once, and gives their IDs.
func storeMany(f *queuetest.Fixture, name string, n int) (ids []string) {
	f.T.Helper()
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s %02d", name, i))
	}
	for _, id := range ids {
		f.Enqueue(id)
	}
	return ids
}

func pushReady(f *queuetest.Fixture, ids ...string) {
	f.T.Helper()
	for _, id := range ids {
		require.NoError(f.T, f.RDB.RPush(f.T.Context(), f.Key("ready"), id).Err())
	}
}

// A take of many jobs does not look up each in leases. Left-overs of jobs that are leased, delayed
// or dead, and IDs that stand in ready twice, give no second lease all the same, and the leases
// that there were stay as they were.
func TestTakeOfManyGivesNoSecondLease(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		leased := storeMany(f, "leased", 20)
		first := f.Hand.Take(20, time.Minute)
		require.Equal(t, leased, idsOf(first))
		dead := storeMany(f, "dead", 3)
		for _, held := range f.Hand.Take(3, time.Minute) {
			require.Equal(t, "o", f.Hand.Bury(held))
		}
		f.Enqueue("delayed", delayq.ProcessIn(time.Hour))

		fresh := storeMany(f, "fresh", 10)
		pushReady(f, leased...)
		pushReady(f, fresh...)
		pushReady(f, dead...)
		pushReady(f, "delayed", "nobody", fresh[0])
		second := storeMany(f, "more", 2)
		other := hand.New(t, f.RDB, f.Prefix, "topic")
		require.Equal(t, append(slices.Clone(fresh), second...), idsOf(other.Take(100, time.Minute)))
		require.Empty(t, other.Take(100, time.Minute))
		require.Zero(t, f.RDB.LLen(t.Context(), f.Key("ready")).Val())
		require.Equal(t, strings.Repeat("o", 20), f.Hand.Ack(first...))
	})
}

// Only left-overs at the head, many of them: a take finds the jobs behind them.
func TestTakeOfManyLooksBehindLeftOvers(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		leased := storeMany(f, "leased", 70)
		first := f.Hand.Take(70, time.Minute)
		pushReady(f, leased...)
		fresh := storeMany(f, "fresh", 30)
		second := f.Hand.Take(20, time.Minute)
		require.Equal(t, fresh[:20], idsOf(second))
		require.Equal(t, strings.Repeat("o", 90), f.Hand.Ack(append(first, second...)...))
		require.Equal(t, fresh[20:], idsOf(f.Hand.Take(100, time.Minute)))
	})
}

// Many jobs of one take are told together, and each counts for itself: those that were cancelled,
// reclaimed, or leased again by another server are refused, and what has become of them stays.
func TestManyAreSettledEachByItsOwnFence(t *testing.T) {
	for verb, settle := range map[string]func(h *hand.Hand, held ...hand.Held) string{
		"ack":    (*hand.Hand).Ack,
		"return": (*hand.Hand).Return,
		"bury":   (*hand.Hand).Bury,
		"again": func(h *hand.Hand, held ...hand.Held) string {
			return h.Again(time.Hour, held...)
		},
		"retry": func(h *hand.Hand, held ...hand.Held) string {
			return h.Retry(time.Hour, held...)
		},
	} {
		t.Run(verb, func(t *testing.T) {
			queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
				ids := storeMany(f, "job", 20)
				held := f.Hand.Take(20, time.Minute)
				require.Len(t, held, 20)
				other := hand.New(t, f.RDB, f.Prefix, "topic")

				_, err := f.Client.Dequeue(t.Context(), "topic", ids[3])
				require.NoError(t, err)
				for _, i := range []int{7, 11} { // reclaimed, and one of them taken again
					require.NoError(t, f.RDB.ZAdd(t.Context(), f.Key("leases"), queuetest.ZMember(ids[i], time.UnixMilli(1))).Err())
				}
				f.Hand.Promote()
				again := other.Take(1, time.Minute)
				require.Len(t, again, 1)
				require.Contains(t, []string{ids[7], ids[11]}, again[0].ID)

				want := strings.Split(strings.Repeat("o", 20), "")
				want[3], want[7], want[11] = "g", "l", "l"
				require.Equal(t, strings.Join(want, ""), settle(f.Hand, held...))
				require.Equal(t, "o", other.Ack(again...), "whose lease it was not is not touched")
				require.NotContains(t, settle(f.Hand, held...), "o", "nothing is settled twice")
				left := ids[7]
				if again[0].ID == left {
					left = ids[11]
				}
				require.Equal(t, delayq.StateReady, f.Get(left).State)
			})
		})
	}
}

// Jobs of one take with one end that has been extended for some: the groups are told with several
// fences, and among many other leases of that end.
func TestFewOfManyAreSettled(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		storeMany(f, "job", 60)
		held := f.Hand.Take(60, time.Minute)
		require.Len(t, held, 60)
		require.Equal(t, strings.Repeat("o", 9), f.Hand.Ack(held[:9]...), "a few of many with the same end")
		for i := 9; i < 20; i++ {
			held[i].Fence = "1 " + held[i].Fence + " 2"
		}
		require.Equal(t, strings.Repeat("o", 11), f.Hand.Ack(held[9:20]...), "an end out of several")
		for i := 20; i < 30; i++ {
			held[i].Fence = "1"
		}
		require.Equal(t, strings.Repeat("l", 10)+strings.Repeat("o", 30), f.Hand.Ack(held[20:]...))
		require.Equal(t, int64(10), f.RDB.HLen(t.Context(), f.Key("pool")).Val())
	})
}

// A laggard is a connection on which a request that contains some words takes its time.
type laggard struct {
	net.Conn
	words string
	by    time.Duration
}

func (c *laggard) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.words)) {
		time.Sleep(c.by)
	}
	return c.Conn.Write(p)
}

// lagging makes a client whose requests that contain some words take their time.
func lagging(b *queuetest.Bubble, words string, by time.Duration) *redis.Client {
	opts := b.Redis.Options()
	opts.Dialer = func(context.Context, string, string) (net.Conn, error) {
		conn, err := b.Redis.Dial()
		return &laggard{conn, words, by}, err
	}
	rdb := redis.NewClient(opts)
	b.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// storeCheckable fills the topic t, so that a check of it makes several calls and finds nothing.
func storeCheckable(b *queuetest.Bubble) {
	b.Helper()
	b.LoadScripts()
	h := hand.New(b, b.RDB, queuetest.Prefix, "t")
	b.Enqueue("t", "dead")
	require.Equal(b, "o", h.Bury(h.TakeOne("dead")))
	b.Enqueue("t", "running")
	require.Len(b, h.Take(1, 10*time.Hour), 1)
	b.Enqueue("t", "later", delayq.ProcessIn(10*time.Hour))
}

// A check that takes longer than its turn takes it anew: no other server begins to check the topic
// meanwhile.
func TestLongCheckKeepsItsTurn(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		storeCheckable(b)
		rdb := lagging(b, queuetest.Digest("check"), 2800*time.Millisecond)
		var mu sync.Mutex
		first, last := map[int]time.Duration{}, map[int]time.Duration{}
		for i := range 2 {
			queuetest.Serve(b.T, rdb, queuetest.Prefix, "t", queuetest.Nothing, delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
				if e.Name != "check" {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if first[i] == 0 {
					first[i] = b.At()
				}
				last[i] = b.At()
			})))
			b.Pass(7 * time.Second)
		}
		b.Pass(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Greater(b, last[0]-first[0], 200*time.Second, "longer than a turn, or this shows nothing")
		require.Zero(b, first[1], "the second server waits")
	})
}

// A check spends a twentieth of its time at Redis: after each call it waits for twenty times as
// long as that took.
func TestCheckTakesATwentieth(t *testing.T) {
	for _, lag := range []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(lag.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				storeCheckable(b)
				var mu sync.Mutex
				var calls []time.Time
				queuetest.Serve(b.T, lagging(b, queuetest.Digest("check"), lag), queuetest.Prefix, "t", queuetest.Nothing,
					delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
						if e.Name == "check" {
							mu.Lock()
							defer mu.Unlock()
							calls = append(calls, time.Now())
						}
					})))
				b.Pass(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				require.GreaterOrEqual(b, len(calls), 4)
				for i, at := range calls[1:] {
					pause, least := at.Add(-lag).Sub(calls[i]), max(20*time.Millisecond, 20*lag)
					require.GreaterOrEqual(b, pause, least)
					require.LessOrEqual(b, pause, least+50*time.Millisecond)
				}
			})
		})
	}
}

// The server of a run dies when it has told Redis of the end, and before it has looked whether a
// slot waits for that: the tick of another one finds it. So does a job that is cancelled while it
// waits. (E6)
func TestWaitingSlotOfADeadServer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		block := make(chan struct{})
		defer close(block)
		b.Serve("t", func(context.Context, *delayq.Job) error {
			<-block
			return nil
		}, delayq.Concurrency(1))
		b.Enqueue("t", "blocks")
		b.AddSchedule("s", delayq.Every(10*time.Second), delayq.OverlapQueueOne)
		h := hand.New(b.T, b.RDB, queuetest.Prefix, "t") // the other server
		for _, end := range []func(){
			func() { require.Equal(b, "o", h.Ack(h.Take(1, time.Minute)...)) },
			func() {
				require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", b.ScheduleInfo("s").LastJobID)))
			},
		} {
			for b.ScheduleInfo("s").WaitingSlot.IsZero() {
				b.Pass(time.Second)
			}
			waits := b.SlotID("s", b.ScheduleInfo("s").WaitingSlot.Sub(b.Began))
			b.Pass(300 * time.Millisecond)
			require.Empty(b, b.State("t", waits))
			end()
			b.Pass(2 * time.Second) // after one, 2 of 40 runs had not found it
			require.Equal(b, delayq.StateReady, b.State("t", waits))
		}
	})
}
