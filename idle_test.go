package delayq_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// smuggle stores a job as a client would whose message to the servers is lost.
func (b *bubble) smuggle(topic, id string, in time.Duration) (due time.Time) {
	b.Helper()
	other := delayq.NewClient(b.rdb, delayq.Prefix("other")) // its messages go elsewhere
	job, err := other.Enqueue(b.Context(), topic, id, nil, delayq.ProcessIn(in))
	require.NoError(b, err)
	record := b.rdb.HGet(b.Context(), "other:{"+topic+"}:pool", id).Val()
	root := bubblePrefix + ":{" + topic + "}:"
	require.NoError(b, b.rdb.HSet(b.Context(), root+"pool", id, record).Err())
	require.NoError(b, b.rdb.ZAdd(b.Context(), root+"bucket", zsetMember(id, job.Due)).Err())
	return job.Due
}

// serveTopics runs a server with the topics t0, t1 and so on.
func (b *bubble) serveTopics(topics int, h delayq.HandlerFunc, opts ...delayq.ServerOption) *served {
	b.Helper()
	s := serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
		for i := range topics {
			s.HandlerFunc(fmt.Sprint("t", i), h)
		}
	}, opts...)
	b.pass(0)
	return s
}

// A server whose jobs and schedules are far away asks Redis no more often than one that has none,
// the checks but the first one included. (G11)
func TestWhatIsFarAwayCostsNothing(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		const topics = 3
		count := func(prefix string) (requests, watches, promotes int) {
			var calls told
			w := newWire(b.redis)
			s := serveMany(b.T, w.client(b.T), prefix, func(s *delayq.Server) {
				for i := range topics {
					s.HandlerFunc(fmt.Sprint("t", i), nothing)
				}
			}, delayq.Hooks(&calls))
			b.pass(30 * time.Second) // the first check is over
			requests, watches, promotes = w.requests(), calls.calls("idle"), calls.calls("promote")
			b.pass(3 * time.Minute)
			requests, watches, promotes = w.requests()-requests, calls.calls("idle")-watches, calls.calls("promote")-promotes
			require.NoError(b, s.stop())
			return requests, watches, promotes
		}
		bare, watches, promotes := count("bare")
		require.InDelta(b, 180/0.95, watches, 5, "one a tick for all topics")
		require.Zero(b, promotes)

		client := delayq.NewClient(b.rdb, delayq.Prefix("far"))
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
			inBubble(t, func(b *bubble) {
				b.loadScripts()
				var starts recorder
				var calls told
				for range c.servers {
					b.serveTopics(c.topics, starts.then(nil), delayq.Hooks(&calls))
				}
				b.pass(time.Second)
				watches := calls.calls("idle")
				b.pass(10 * time.Second)
				require.InDelta(b, c.servers*((c.topics+199)/200)*10, calls.calls("idle")-watches, 4)
				require.Equal(b, 2*c.servers*c.topics, calls.calls("promote"), "each at the start, and when its server listens")
				rounds := 12
				if c.topics > 100 {
					rounds = 1
				}
				for i := range rounds {
					topic := fmt.Sprint("t", (i+1)*211%c.topics)
					b.enqueue(topic, fmt.Sprint("known", i), delayq.ProcessIn(time.Minute))
					b.pass(1500*time.Millisecond + time.Duration(i)*77*time.Millisecond)
					soon, later := fmt.Sprint("soon", i), fmt.Sprint("later", i)
					stored := time.Now()
					b.smuggle(topic, soon, time.Duration(i%3)*300*time.Millisecond)
					due := b.smuggle(topic, later, 1001*time.Millisecond+time.Duration(i)*113*time.Millisecond)
					b.pass(3 * time.Second)
					require.Len(b, starts.of(soon), 1)
					require.False(b, starts.of(soon)[0].at.Before(starts.of(soon)[0].due))
					require.LessOrEqual(b, starts.of(soon)[0].at.Sub(stored), time.Second)
					require.Len(b, starts.of(later), 1)
					require.Equal(b, due.Sub(b.began), starts.of(later)[0].at.Sub(b.began))
				}
			})
		})
	}
}

// A topic does not depend on the watch: when that has no answer, what is due starts on time, and
// what nobody told of is found within little more than a tick.
func TestTopicsDoNotWaitForTheWatch(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var starts recorder
		w := newWire(b.redis)
		b.serveOn(w, "t", starts.then(nil))
		due := b.enqueue("t", "known", delayq.ProcessIn(7777*time.Millisecond)).Due
		b.pass(5 * time.Second)
		w.stall(script("idle"))
		b.pass(time.Second)
		stored := time.Now()
		b.smuggle("t", "unknown", 0)
		b.pass(2 * time.Second)
		require.Len(b, starts.of("known"), 1)
		require.True(b, starts.of("known")[0].at.Equal(due))
		require.Len(b, starts.of("unknown"), 1)
		require.LessOrEqual(b, starts.of("unknown")[0].at.Sub(stored), 1100*time.Millisecond)
		b.pass(300 * time.Millisecond)
		due = b.smuggle("t", "near", 1050*time.Millisecond)
		require.NoError(b, b.rdb.Publish(b.Context(), delayq.ControlChannel(bubblePrefix), "wake 0 1 t").Err())
		b.pass(2 * time.Second)
		require.Len(b, starts.of("near"), 1)
		require.Equal(b, due.Sub(b.began), starts.of("near")[0].at.Sub(b.began))
	})
}

// A topic that has something to do within each tick sees to itself, and comes back to the watch
// when it has not.
func TestBusyTopicLeavesTheWatch(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var calls told
		var busy atomic.Bool
		busy.Store(true)
		b.serve("t", func(context.Context, *delayq.Job) error {
			if busy.Load() {
				return delayq.Snooze(300 * time.Millisecond)
			}
			return nil
		}, delayq.Hooks(&calls))
		b.enqueue("t", "1")
		b.pass(30 * time.Second)
		require.LessOrEqual(b, calls.calls("idle"), 3, "at the instant of a run")
		require.Len(b, calls.of("Snoozed"), 101)
		busy.Store(false)
		b.pass(10 * time.Second)
		require.InDelta(b, 11, calls.calls("idle"), 4)
	})
}

// A key of a wrong type in one topic is that topic's trouble: its log says so once, and the others
// go on sleeping and start what is due. (J11)
func TestWatchOfAWrongTypeBlindsNoOther(t *testing.T) {
	for _, key := range []string{"bucket", "leases", "slots", "handoff", "waiting"} {
		t.Run(key, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var starts recorder
				var log logbook
				var calls told
				b.serveTopics(3, starts.then(nil), delayq.Hooks(&calls), log.to())
				b.pass(2 * time.Second)
				promotes := calls.calls("promote", "t2")
				slip := bubblePrefix + ":{t0}:" + key
				require.NoError(b, b.rdb.Set(b.Context(), slip, "a slip", 0).Err())
				b.pass(2 * time.Second)
				due := b.smuggle("t1", "1", 2345*time.Millisecond)
				b.pass(20 * time.Second)
				require.Len(b, starts.of("1"), 1)
				require.True(b, starts.of("1")[0].at.Equal(due))
				require.Len(b, log.with(`msg="promote failed"`, "level=ERROR", "topic=t0", slip), 1)
				require.Empty(b, log.with(`msg="promote failed"`, "topic=t1"))
				require.Empty(b, log.with(`msg="watch failed"`))
				require.Equal(b, promotes, calls.calls("promote", "t2"), "it has nothing to do")
				require.NoError(b, b.rdb.Del(b.Context(), slip).Err())
				b.pass(10 * time.Second)
				require.Len(b, log.with(`msg="promote works again"`, "topic=t0"), 1)
			})
		})
	}
}

// A topic takes no notice of a watch that has looked before its own last promote: what it knows
// since counts.
func TestWatchTellsNobodyWhatIsOutOfDate(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		var starts recorder
		w := newWire(b.redis)
		b.serveOn(w, "t", starts.then(nil))
		for i := range 5 {
			b.pass(3 * time.Second)
			w.delay(script("idle"))
			b.pass(time.Second) // it has been carried out meanwhile, and the answer waits
			due := b.smuggle("t", fmt.Sprint(i), 1500*time.Millisecond)
			require.NoError(b, b.rdb.Publish(b.Context(), delayq.ControlChannel(bubblePrefix), "wake 0 1 t").Err())
			b.pass(time.Second)
			w.rush()
			b.pass(3 * time.Second)
			require.Len(b, starts.of(fmt.Sprint(i)), 1)
			require.Equal(b, due.Sub(b.began), starts.of(fmt.Sprint(i))[0].at.Sub(b.began))
		}
	})
}

// Schedules that are far away are looked through once an hour, and at the next round when anything
// has been added or lost. One server tells the next.
func TestRoundsPassOverWhatHasNotChanged(t *testing.T) {
	inBubble(t, func(b *bubble) {
		schedule := func(name string) {
			require.NoError(b, b.client.Schedule(b.Context(), "t", name, delayq.Every(1000*time.Hour), nil))
		}
		round := func() int { // how many calls one takes
			b.pass(3 * time.Minute)
			var calls told
			s := b.serve("t", nothing, delayq.Hooks(&calls))
			b.pass(18 * time.Second) // and a tick, for what was mended
			require.NoError(b, s.stop())
			return calls.calls("check")
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
		b.pass(50 * time.Minute)
		require.Equal(b, passed, round())
		b.pass(5 * time.Minute)
		require.Equal(b, full, round())
		require.Equal(b, passed, round())

		slots := bubblePrefix + ":{t}:slots"
		lose := func(name string) { require.NoError(b, b.rdb.ZRem(b.Context(), slots, name).Err()) }
		lose("a")
		require.Equal(b, full, round())
		require.NotZero(b, b.rdb.ZScore(b.Context(), slots, "a").Val(), "mended")
		require.Equal(b, full, round(), "the last one had a finding")
		require.Equal(b, passed, round())
		stats := bubblePrefix + ":{t}:stats" // its size does not count
		require.NoError(b, b.rdb.Set(b.Context(), stats, "a slip", 0).Err())
		require.Equal(b, full, round())
		require.Equal(b, full, round())
		require.NoError(b, b.rdb.Del(b.Context(), stats).Err())
		require.Equal(b, full, round())
		require.Equal(b, passed, round())
		lose("b") // damage that leaves all sizes as they are
		require.NoError(b, b.rdb.ZAdd(b.Context(), slots, zsetMember("nobody", time.Now().Add(time.Hour))).Err())
		require.Equal(b, passed, round())
		b.pass(time.Hour)
		require.Equal(b, full, round())
		require.NotZero(b, b.rdb.ZScore(b.Context(), slots, "b").Val(), "mended")
	})
}
