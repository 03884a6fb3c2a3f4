package delayq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// fill makes n dead and n done jobs of topic t as if they had been buried and were to be kept until
// now, in that order.
func (b *bubble) fill(dead, done int) {
	b.Helper()
	root := bubblePrefix + ":{t}:"
	add := func(n int, zset, hash string) {
		for i := range n {
			id := fmt.Sprint(zset, b.at(), " ", i)
			require.NoError(b, b.rdb.ZAdd(b.Context(), root+zset, zsetMember(id, time.Now())).Err())
			require.NoError(b, b.rdb.HSet(b.Context(), root+hash, id, "a record").Err())
		}
	}
	add(dead, "dead", "pool")
	add(done, "done", "results")
}

func (b *bubble) left(zset string) int64 {
	return b.rdb.ZCard(b.Context(), bubblePrefix+":{t}:"+zset).Val()
}

// Of which kind it was that a call removed as many as it may does not matter: the next call follows
// at once, also if it has removed some of the other kind as well.
func TestPruneGoesOnAfterBothKinds(t *testing.T) {
	for _, kinds := range [][2]int{{1, 2600}, {2600, 1}, {700, 1300}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.serve("t", nothing, delayq.DeadLimit(0, time.Hour))
				b.pass(12 * time.Second)
				b.fill(kinds[0], kinds[1])
				b.pass(11 * time.Second)
				require.Zero(b, b.left("dead"))
				require.Zero(b, b.left("done"))
				require.EqualValues(b, kinds[0], b.counter("t", "pruned_dead"))
				require.EqualValues(b, kinds[1], b.counter("t", "pruned_done"))
			})
		})
	}
}

// Whoever deletes dead jobs says so: in the log, one line a minute at most with the sum, to hooks
// and in the counters.
func TestPrunedDeadJobsAreReported(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var log logbook
		var hooks told
		s := b.serve("t", nothing, delayq.DeadLimit(10, time.Hour), log.to(), delayq.Hooks(panickyHook{}, &hooks))
		lines := func() []string { return log.with(`msg="dead jobs pruned"`) }
		b.fill(10, 3)
		b.pass(12 * time.Second)
		require.Empty(b, lines(), "done jobs are no warning")
		require.Equal(b, delayq.PruneEvent{Topic: "t", Done: 3}, hooks.pruned())

		b.fill(1200, 0)
		b.pass(11 * time.Second)
		require.EqualValues(b, 10, b.left("dead"))
		require.Len(b, lines(), 1, "all that go in one turn")
		require.Regexp(b, `level=WARN msg="dead jobs pruned" topic=t count=1200$`, lines()[0])

		for range 5 {
			b.fill(7, 1)
			b.pass(10 * time.Second)
		}
		require.Len(b, lines(), 1, "one a minute")
		b.pass(22 * time.Second)
		require.Len(b, lines(), 2)
		require.Regexp(b, `level=WARN msg="dead jobs pruned" topic=t count=35$`, lines()[1])

		b.pass(time.Minute)
		require.Len(b, lines(), 2, "nothing to tell")
		b.fill(2, 0)
		b.pass(11 * time.Second)
		require.Len(b, lines(), 3)
		b.fill(3, 0)
		b.pass(11 * time.Second)
		require.Len(b, lines(), 3)
		require.NoError(b, s.stop())
		require.Len(b, lines(), 4, "what is left is told at the end")
		require.Regexp(b, `count=3$`, lines()[3])

		require.Equal(b, delayq.PruneEvent{Topic: "t", Dead: 1240, Done: 8}, hooks.pruned())
		require.EqualValues(b, 1240, b.counter("t", "pruned_dead"))
		require.EqualValues(b, 8, b.counter("t", "pruned_done"))
	})
}

// Dead jobs that go for minutes on end are told every minute, and not only when the last has gone.
func TestPruningWithoutEndIsReported(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var log logbook
		b.serve("t", nothing, delayq.DeadLimit(0, time.Hour), log.to(), delayq.Hooks(slow("prune", 10*time.Second)))
		b.fill(500*10, 0)
		b.pass(85 * time.Second)
		require.Positive(b, b.left("dead"))
		require.Len(b, log.with("level=WARN", `msg="dead jobs pruned"`), 1)
	})
}

// The answer of a call that removed dead jobs is lost: it is asked for once more, and nothing goes
// untold.
func TestPrunedDeadJobsAreReportedAfterALostAnswer(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var log logbook
		var hooks told
		b.loadScripts()
		w := newWire(b.redis)
		b.serveOn(w, "t", nothing, delayq.DeadLimit(0, time.Hour), log.to(), delayq.Hooks(&hooks))
		b.pass(time.Second)
		b.fill(40, 2)
		w.lose(script("prune"))
		b.pass(30 * time.Second)
		require.Zero(b, b.left("dead"))
		require.Equal(b, delayq.PruneEvent{Topic: "t", Dead: 40, Done: 2}, hooks.pruned())
		require.Len(b, log.with(`msg="dead jobs pruned"`, "count=40"), 1)
		require.EqualValues(b, 40, b.counter("t", "pruned_dead"))
	})
}

// At a full memory a prune with nothing to remove writes nothing, and so is not refused.
func TestPruneWritesNothingForNothing(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.serve("t", nothing)
		b.pass(12 * time.Second)
		require.Empty(b, b.rdb.HGetAll(b.Context(), bubblePrefix+":{t}:stats").Val())
		for _, key := range b.redis.Keys() {
			require.NotContains(b, key, ":receipt:", key)
		}
	})
}
