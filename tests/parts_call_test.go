package tests

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A Call waits where its job is, and nowhere else: the closed home of a topic has no waiter while
// the job runs. A client that does not know the partitions finds them before it registers.
func TestCallWaitsInThePartitionOfItsJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		require.NoError(b, b.Client.Partition(b.Context(), "t", 3))
		waiters := make(map[string]int64) // by ID, at home, while the job runs
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			waiters[job.ID] = b.RDB.HLen(b.Context(), notesKey("t")).Val()
			return job.SetOutput(append(job.Payload, '!'))
		}, delayq.Concurrency(1))
		for _, id := range []string{"a", "b", "c", "d", "e", "a"} {
			began := time.Now()
			end := call(b.T, delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix)), id).get()
			require.NoError(b, end.err, id)
			require.Equal(b, "of "+id+"!", string(end.result.Output))
			require.Less(b, end.at.Sub(began), 50*time.Millisecond)
		}
		require.Equal(b, map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0, "e": 0}, waiters)
	})
}
