package tests

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Jobs that are kept are copied when they end. However many end at once, a call copies about 1 MiB
// beyond the first of them, so that Redis is there for others.
func TestKeptJobsAreSettledInSmallCalls(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs, size = 20, 400 << 10
		var calls queuetest.HookLog
		release := make(chan struct{})
		b.Serve("a", func(context.Context, *delayq.Job) error {
			<-release
			return nil
		}, delayq.Hooks(&calls), delayq.Concurrency(jobs))
		for i := range jobs {
			_, err := b.Client.Enqueue(b.Context(), "a", fmt.Sprint(i), make([]byte, size), delayq.Retention(time.Hour))
			require.NoError(b, err)
		}
		synctest.Wait()
		close(release)
		synctest.Wait()
		settled := 0
		for _, e := range calls.Scripts {
			if e.Name == "ack" {
				settled += e.Jobs
				require.LessOrEqual(b, e.Jobs, 1+(1<<20)/size)
			}
		}
		require.Equal(b, jobs, settled)
		require.Equal(b, delayq.StateDone, b.State("a", "0"))
	})
}

// Redis carries out an ack, and its answer is lost. Then Redis cannot be reached for a while. That
// a repetition was never sent says nothing about the call before it, so the outcome is asked for
// again with the same number, and is the true one.
func TestOutcomeStaysInDoubtWhileRedisIsAway(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		var hooks queuetest.HookLog
		b.ServeOn(w, "a", queuetest.Nothing, delayq.Hooks(&hooks))
		b.Pass(time.Second)
		w.Die(queuetest.Digest("ack"), false)
		b.Enqueue("a", "1")
		b.Pass(5 * time.Second)
		require.Equal(b, 1, w.Losses())
		require.Empty(b, b.State("a", "1"), "the ack was carried out")
		require.Equal(b, map[string]int{"Started": 1}, hooks.Kinds("1"))
		w.Mend()
		b.Pass(5 * time.Second)
		require.Equal(b, map[string]int{"Started": 1, "Done": 1}, hooks.Kinds("1"))
		require.EqualValues(b, 1, b.Counter("a", "acked"))
	})
}
