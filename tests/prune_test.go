package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// fillFinished makes n dead and n done jobs of topic t as if they had been buried and were to be
// kept until now, in that order.
func fillFinished(b *queuetest.Bubble, dead, done int) {
	b.Helper()
	root := queuetest.Prefix + ":{t}:"
	add := func(n int, zset, hash string) {
		for i := range n {
			id := fmt.Sprint(zset, b.At(), " ", i)
			require.NoError(b, b.RDB.ZAdd(b.Context(), root+zset, queuetest.ZMember(id, time.Now())).Err())
			require.NoError(b, b.RDB.HSet(b.Context(), root+hash, id, "a record").Err())
		}
	}
	add(dead, "dead", "pool")
	add(done, "done", "results")
}

func leftIn(b *queuetest.Bubble, zset string) int64 {
	return b.RDB.ZCard(b.Context(), queuetest.Prefix+":{t}:"+zset).Val()
}

// Of which kind it was that a call removed as many as it may does not matter: the next call follows
// at once, also if it has removed some of the other kind as well.
func TestPruneGoesOnAfterBothKinds(t *testing.T) {
	for _, kinds := range [][2]int{{1, 2600}, {2600, 1}, {700, 1300}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.Serve("t", queuetest.Nothing, delayq.DeadLimit(0, time.Hour))
				b.Pass(12 * time.Second)
				fillFinished(b, kinds[0], kinds[1])
				b.Pass(11 * time.Second)
				require.Zero(b, leftIn(b, "dead"))
				require.Zero(b, leftIn(b, "done"))
				require.EqualValues(b, kinds[0], b.Counter("t", "pruned_dead"))
				require.EqualValues(b, kinds[1], b.Counter("t", "pruned_done"))
			})
		})
	}
}

// Whoever deletes dead jobs says so: in the log, one line a minute at most with the sum, to hooks
// and in the counters.
func TestPrunedDeadJobsAreReported(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		var hooks queuetest.HookLog
		s := b.Serve("t", queuetest.Nothing, delayq.DeadLimit(10, time.Hour), log.To(), delayq.Hooks(panickyHook{}, &hooks))
		lines := func() []string { return log.With(`msg="dead jobs pruned"`) }
		fillFinished(b, 10, 3)
		b.Pass(12 * time.Second)
		require.Empty(b, lines(), "done jobs are no warning")
		require.Equal(b, delayq.PruneEvent{Topic: "t", Done: 3}, hooks.AllPruned())

		fillFinished(b, 1200, 0)
		b.Pass(11 * time.Second)
		require.EqualValues(b, 10, leftIn(b, "dead"))
		require.Len(b, lines(), 1, "all that go in one turn")
		require.Regexp(b, `level=WARN msg="dead jobs pruned" topic=t count=1200$`, lines()[0])

		for range 5 {
			fillFinished(b, 7, 1)
			b.Pass(10 * time.Second)
		}
		require.Len(b, lines(), 1, "one a minute")
		b.Pass(22 * time.Second)
		require.Len(b, lines(), 2)
		require.Regexp(b, `level=WARN msg="dead jobs pruned" topic=t count=35$`, lines()[1])

		b.Pass(time.Minute)
		require.Len(b, lines(), 2, "nothing to tell")
		fillFinished(b, 2, 0)
		b.Pass(11 * time.Second)
		require.Len(b, lines(), 3)
		fillFinished(b, 3, 0)
		b.Pass(11 * time.Second)
		require.Len(b, lines(), 3)
		require.NoError(b, s.Stop())
		require.Len(b, lines(), 4, "what is left is told at the end")
		require.Regexp(b, `count=3$`, lines()[3])

		require.Equal(b, delayq.PruneEvent{Topic: "t", Dead: 1240, Done: 8}, hooks.AllPruned())
		require.EqualValues(b, 1240, b.Counter("t", "pruned_dead"))
		require.EqualValues(b, 8, b.Counter("t", "pruned_done"))
	})
}

// Dead jobs that go for minutes on end are told every minute, and not only when the last has gone.
func TestPruningWithoutEndIsReported(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		b.Serve("t", queuetest.Nothing, delayq.DeadLimit(0, time.Hour), log.To(), delayq.Hooks(slow("prune", 10*time.Second)))
		fillFinished(b, 500*10, 0)
		b.Pass(85 * time.Second)
		require.Positive(b, leftIn(b, "dead"))
		require.Len(b, log.With("level=WARN", `msg="dead jobs pruned"`), 1)
	})
}

// The answer of a call that removed dead jobs is lost: it is asked for once more, and nothing goes
// untold.
func TestPrunedDeadJobsAreReportedAfterALostAnswer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var log queuetest.Logbook
		var hooks queuetest.HookLog
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "t", queuetest.Nothing, delayq.DeadLimit(0, time.Hour), log.To(), delayq.Hooks(&hooks))
		b.Pass(time.Second)
		fillFinished(b, 40, 2)
		w.Lose(queuetest.Digest("prune"))
		b.Pass(30 * time.Second)
		require.Zero(b, leftIn(b, "dead"))
		require.Equal(b, delayq.PruneEvent{Topic: "t", Dead: 40, Done: 2}, hooks.AllPruned())
		require.Len(b, log.With(`msg="dead jobs pruned"`, "count=40"), 1)
		require.EqualValues(b, 40, b.Counter("t", "pruned_dead"))
	})
}

// At a full memory a prune with nothing to remove writes nothing, and so is not refused.
func TestPruneWritesNothingForNothing(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", queuetest.Nothing)
		b.Pass(12 * time.Second)
		require.Empty(b, b.RDB.HGetAll(b.Context(), queuetest.Prefix+":{t}:stats").Val())
		for _, key := range b.Redis.Keys() {
			require.NotContains(b, key, ":receipt:", key)
		}
	})
}
