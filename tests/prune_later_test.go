package tests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// fillLater makes n dead jobs of topic t that a later release has stored, of a size each.
func fillLater(b *queuetest.Bubble, n, size int) {
	b.Helper()
	root := queuetest.Prefix + ":{t}:"
	raw := "12345678\x07" + strings.Repeat("x", size)
	dead, records := make([]redis.Z, n), make([]string, 0, 2*n)
	for i := range n {
		id := fmt.Sprint("later ", b.At(), " ", i)
		dead[i] = redis.Z{Score: float64(time.Now().UnixMilli() - 1), Member: id}
		records = append(records, id, raw)
	}
	require.NoError(b, b.RDB.HSet(b.Context(), root+"pool", records).Err())
	require.NoError(b, b.RDB.ZAdd(b.Context(), root+"dead", dead...).Err())
}

// Dead jobs of a later release that are too many or too large for one call do not keep a server
// from those behind them: it goes on at once.
func TestPruneGoesOnPastJobsOfALaterRelease(t *testing.T) {
	for name, c := range map[string]struct{ n, size int }{"many": {3000, 0}, "large": {5, 600 << 10}} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.Serve("t", queuetest.Nothing, delayq.DeadLimit(0, time.Hour))
				b.Pass(12 * time.Second)
				for round := range 2 {
					fillLater(b, c.n, c.size)
					fillFinished(b, 700, 0)
					b.Pass(11 * time.Second)
					require.EqualValues(b, (round+1)*c.n, leftIn(b, "dead"))
					require.EqualValues(b, (round+1)*700, b.Counter("t", "pruned_dead"))
				}
			})
		})
	}
}

// A server passes over 10,000 jobs of a later release each time that it looks for jobs to prune, so
// that the rest of the work of Redis goes on. It comes to the others in the end.
func TestPrunePassesOverFewJobsAtATime(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", queuetest.Nothing, delayq.DeadLimit(0, time.Hour))
		b.Pass(12 * time.Second)
		fillLater(b, 30_100, 0)
		fillFinished(b, 700, 0)
		b.Pass(11 * time.Second) // one or two times
		require.EqualValues(b, 30_800, leftIn(b, "dead"))
		b.Pass(33 * time.Second)
		require.EqualValues(b, 30_100, leftIn(b, "dead"))
		require.EqualValues(b, 700, b.Counter("t", "pruned_dead"))
	})
}
