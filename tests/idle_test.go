package tests

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/script"
)

// smuggle stores a job as a client would whose message to the servers is lost.
func smuggle(b *queuetest.Bubble, topic, id string, in time.Duration) (due time.Time) {
	b.Helper()
	other := delayq.NewClient(b.RDB, delayq.Prefix("other")) // its messages go elsewhere
	job, err := other.Enqueue(b.Context(), topic, id, nil, delayq.ProcessIn(in))
	require.NoError(b, err)
	record := b.RDB.HGet(b.Context(), "other:{"+topic+"}:pool", id).Val()
	root := queuetest.Prefix + ":{" + topic + "}:"
	require.NoError(b, b.RDB.HSet(b.Context(), root+"pool", id, record).Err())
	require.NoError(b, b.RDB.ZAdd(b.Context(), root+"bucket", queuetest.ZMember(id, job.Due)).Err())
	return job.Due
}

// serveTopics runs a server with the topics t0, t1 and so on.
func serveTopics(b *queuetest.Bubble, topics int, h delayq.HandlerFunc, opts ...delayq.ServerOption) *queuetest.Running {
	b.Helper()
	s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
		for i := range topics {
			s.HandlerFunc(fmt.Sprint("t", i), h)
		}
	}, opts...)
	b.Pass(0)
	return s
}

// A server whose jobs and schedules are far away asks Redis no more often than one that has none,
// the checks but the first one included. (G11)
func TestWhatIsFarAwayCostsNothing(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		const topics = 3
		count := func(prefix string) (requests, watches, promotes int) {
			var calls queuetest.HookLog
			w := queuetest.NewWire(b.Redis)
			s := queuetest.ServeMany(b.T, w.Client(b.T), prefix, func(s *delayq.Server) {
				for i := range topics {
					s.HandlerFunc(fmt.Sprint("t", i), queuetest.Nothing)
				}
			}, delayq.Hooks(&calls))
			b.Pass(30 * time.Second) // the first check is over
			requests, watches, promotes = w.Requests(), calls.Calls("watch"), calls.Calls("promote")
			b.Pass(3 * time.Minute)
			requests, watches, promotes = w.Requests()-requests, calls.Calls("watch")-watches, calls.Calls("promote")-promotes
			require.NoError(b, s.Stop())
			return requests, watches, promotes
		}
		bare, watches, promotes := count("bare")
		require.InDelta(b, 180/0.95, watches, 5, "one a tick for all topics")
		require.Zero(b, promotes)

		client := delayq.NewClient(b.RDB, delayq.Prefix("far"))
		for i := range 200 {
			require.NoError(b, client.Schedule(b.Context(), "t0", fmt.Sprint(i), delayq.Every(1000*time.Hour), nil))
			_, err := client.Enqueue(b.Context(), "t1", fmt.Sprint(i), nil, delayq.ProcessIn(time.Hour))
			require.NoError(b, err)
		}
		far, watches, promotes := count("far")
		require.InDelta(b, 180/0.95, watches, 5)
		require.Zero(b, promotes)
		// Ticks are cut short at random, and a round of checks asks of two topics whether they have
		// changed.
		require.InDelta(b, bare, far, 10)
	})
}

// What a client has stored without a word to the servers is found by the watch, also before what
// they know of: it starts to the millisecond if it is due a tick later or more, else within a tick.
// And so it is with many topics, several calls for each tick, and two servers.
func TestWatchFindsJobsNobodyToldOf(t *testing.T) {
	for _, c := range []struct {
		name            string
		topics, servers int
	}{{"one topic", 1, 1}, {"two servers", 3, 2}, {"many topics", 250, 1}} {
		t.Run(c.name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				var starts queuetest.Recorder
				var calls queuetest.HookLog
				for range c.servers {
					serveTopics(b, c.topics, starts.Then(nil), delayq.Hooks(&calls))
				}
				b.Pass(time.Second)
				watches, promotes := calls.Calls("watch"), calls.Calls("promote")
				// A topic that is woken in its first call makes another one.
				require.InDelta(b, c.servers*c.topics, promotes, 8, "each at the start")
				b.Pass(10 * time.Second)
				require.InDelta(b, c.servers*((c.topics+199)/200)*10, calls.Calls("watch")-watches, 4)
				require.Equal(b, promotes, calls.Calls("promote"), "none later")
				rounds := 12
				if c.topics > 100 {
					rounds = 1
				}
				for i := range rounds {
					topic := fmt.Sprint("t", (i+1)*211%c.topics)
					b.Enqueue(topic, fmt.Sprint("known", i), delayq.ProcessIn(time.Minute))
					b.Pass(1500*time.Millisecond + time.Duration(i)*77*time.Millisecond)
					soon, later := fmt.Sprint("soon", i), fmt.Sprint("later", i)
					stored := time.Now()
					smuggle(b, topic, soon, time.Duration(i%3)*300*time.Millisecond)
					due := smuggle(b, topic, later, 1001*time.Millisecond+time.Duration(i)*113*time.Millisecond)
					b.Pass(3 * time.Second)
					require.Len(b, starts.Of(soon), 1)
					require.False(b, starts.Of(soon)[0].At.Before(starts.Of(soon)[0].Due))
					require.LessOrEqual(b, starts.Of(soon)[0].At.Sub(stored), time.Second)
					require.Len(b, starts.Of(later), 1)
					require.Equal(b, due.Sub(b.Began), starts.Of(later)[0].At.Sub(b.Began))
				}
			})
		})
	}
}

// A topic does not depend on the watch: when that has no answer, what is due starts on time, and
// what nobody told of is found within little more than a tick.
func TestTopicsDoNotWaitForTheWatch(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var starts queuetest.Recorder
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", starts.Then(nil))
		due := b.Enqueue("t", "known", delayq.ProcessIn(7777*time.Millisecond)).Due
		b.Pass(5 * time.Second)
		w.Stall(queuetest.Digest("watch"))
		b.Pass(time.Second)
		stored := time.Now()
		smuggle(b, "t", "unknown", 0)
		b.Pass(2 * time.Second)
		require.Len(b, starts.Of("known"), 1)
		require.True(b, starts.Of("known")[0].At.Equal(due))
		require.Len(b, starts.Of("unknown"), 1)
		require.LessOrEqual(b, starts.Of("unknown")[0].At.Sub(stored), 1100*time.Millisecond)
		b.Pass(300 * time.Millisecond)
		due = smuggle(b, "t", "near", 1050*time.Millisecond)
		require.NoError(b, b.RDB.Publish(b.Context(), script.ControlChannel(queuetest.Prefix), "wake 0 1 t").Err())
		b.Pass(2 * time.Second)
		require.Len(b, starts.Of("near"), 1)
		require.Equal(b, due.Sub(b.Began), starts.Of("near")[0].At.Sub(b.Began))
	})
}

// A topic that has something to do within each tick sees to itself, and comes back to the watch
// when it has not.
func TestBusyTopicLeavesTheWatch(t *testing.T) {
	queuetest.NeedsPop(t)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var calls queuetest.HookLog
		var busy atomic.Bool
		busy.Store(true)
		b.Serve("t", func(context.Context, *delayq.Job) error {
			if busy.Load() {
				return delayq.Snooze(300 * time.Millisecond)
			}
			return nil
		}, delayq.Hooks(&calls))
		b.Enqueue("t", "1")
		b.Pass(30 * time.Second)
		require.LessOrEqual(b, calls.Calls("watch"), 3, "at the instant of a run")
		require.Len(b, calls.Of("Snoozed"), 101)
		busy.Store(false)
		b.Pass(10 * time.Second)
		require.InDelta(b, 11, calls.Calls("watch"), 4)
	})
}

// A key of a wrong type in one topic is that topic's trouble: its log says so once, and the others
// go on sleeping and start what is due. (J11)
func TestWatchOfAWrongTypeBlindsNoOther(t *testing.T) {
	for _, key := range []string{"bucket", "leases", "slots", "handoff", "waiting"} {
		t.Run(key, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var starts queuetest.Recorder
				var log queuetest.Logbook
				var calls queuetest.HookLog
				serveTopics(b, 3, starts.Then(nil), delayq.Hooks(&calls), log.To())
				b.Pass(2 * time.Second)
				promotes := calls.Calls("promote", "t2")
				slip := queuetest.Prefix + ":{t0}:" + key
				require.NoError(b, b.RDB.Set(b.Context(), slip, "a slip", 0).Err())
				b.Pass(2 * time.Second)
				due := smuggle(b, "t1", "1", 2345*time.Millisecond)
				b.Pass(20 * time.Second)
				require.Len(b, starts.Of("1"), 1)
				require.True(b, starts.Of("1")[0].At.Equal(due))
				require.Len(b, log.With(`msg="promote failed"`, "level=ERROR", "topic=t0", slip), 1)
				require.Empty(b, log.With(`msg="promote failed"`, "topic=t1"))
				require.Empty(b, log.With(`msg="idle failed"`))
				require.Equal(b, promotes, calls.Calls("promote", "t2"), "it has nothing to do")
				require.NoError(b, b.RDB.Del(b.Context(), slip).Err())
				b.Pass(10 * time.Second)
				require.Len(b, log.With(`msg="promote works again"`, "topic=t0"), 1)
			})
		})
	}
}

// A topic takes no notice of a watch that has looked before its own last promote: what it knows
// since counts.
func TestWatchTellsNobodyWhatIsOutOfDate(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var starts queuetest.Recorder
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", starts.Then(nil))
		for i := range 5 {
			b.Pass(3 * time.Second)
			w.Delay(queuetest.Digest("watch"))
			b.Pass(time.Second) // it has been carried out meanwhile, and the answer waits
			due := smuggle(b, "t", fmt.Sprint(i), 1500*time.Millisecond)
			require.NoError(b, b.RDB.Publish(b.Context(), script.ControlChannel(queuetest.Prefix), "wake 0 1 t").Err())
			b.Pass(time.Second)
			w.Rush()
			b.Pass(3 * time.Second)
			require.Len(b, starts.Of(fmt.Sprint(i)), 1)
			require.Equal(b, due.Sub(b.Began), starts.Of(fmt.Sprint(i))[0].At.Sub(b.Began))
		}
	})
}

// Schedules that are far away are looked through once an hour, and at the next round when anything
// has been added or lost. One server tells the next.
func TestRoundsPassOverWhatHasNotChanged(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		schedule := func(name string) {
			require.NoError(b, b.Client.Schedule(b.Context(), "t", name, delayq.Every(1000*time.Hour), nil))
		}
		round := func() int { // how many calls one takes
			b.Pass(3 * time.Minute)
			var calls queuetest.HookLog
			s := b.Serve("t", queuetest.Nothing, delayq.Hooks(&calls))
			b.Pass(18 * time.Second) // and a tick, for what was mended
			require.NoError(b, s.Stop())
			return calls.Calls("check")
		}
		const full, passed = 5, 1 // all and four keys of schedules; all
		require.Equal(b, passed, round(), "an empty topic")
		schedule("a")
		schedule("b")
		require.Equal(b, full, round())
		require.Equal(b, passed, round())
		schedule("c")
		require.Equal(b, full, round())
		require.Equal(b, passed, round())
		b.Pass(50 * time.Minute)
		require.Equal(b, passed, round())
		b.Pass(5 * time.Minute)
		require.Equal(b, full, round())
		require.Equal(b, passed, round())

		slots := queuetest.Prefix + ":{t}:slots"
		lose := func(name string) { require.NoError(b, b.RDB.ZRem(b.Context(), slots, name).Err()) }
		lose("a")
		require.Equal(b, full, round())
		require.NotZero(b, b.RDB.ZScore(b.Context(), slots, "a").Val(), "mended")
		require.Equal(b, full, round(), "the last one had a finding")
		require.Equal(b, passed, round())
		stats := queuetest.Prefix + ":{t}:stats" // its size does not count
		require.NoError(b, b.RDB.Set(b.Context(), stats, "a slip", 0).Err())
		require.Equal(b, full, round())
		require.Equal(b, full, round())
		require.NoError(b, b.RDB.Del(b.Context(), stats).Err())
		require.Equal(b, full, round())
		require.Equal(b, passed, round())
		lose("b") // damage that leaves all sizes as they are
		require.NoError(b, b.RDB.ZAdd(b.Context(), slots, queuetest.ZMember("nobody", time.Now().Add(time.Hour))).Err())
		require.Equal(b, passed, round())
		b.Pass(time.Hour)
		require.Equal(b, full, round())
		require.NotZero(b, b.RDB.ZScore(b.Context(), slots, "b").Val(), "mended")
	})
}
