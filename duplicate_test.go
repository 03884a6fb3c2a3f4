package delayq_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// An ID is taken as long as its job is unfinished, whatever has become of it, and free afterwards. (D10)
func TestEnqueueOfAnIDInEveryState(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
		before := f.dump()
		job, err := f.client.Enqueue(t.Context(), "topic", "x", []byte("new"), delayq.ProcessIn(time.Minute))
		if state == "" {
			require.NoError(t, err)
			info := f.get("x")
			require.Equal(t, "new", string(info.Payload))
			require.Equal(t, job.Nonce(), info.Nonce())
			requireFresh(t, info)
			return
		}
		require.Nil(t, job)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.Equal(t, before, f.dump(), "nothing was written")
		results, err := f.client.EnqueueBatch(t.Context(), []delayq.NewJob{{Topic: "topic", ID: "x"}})
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		require.Nil(t, results[0].Job)
		require.Equal(t, before, f.dump(), "nothing was written")
	})
}

// requireFresh looks for anything that a job can have inherited from one of the same ID before it.
func requireFresh(t *testing.T, info *delayq.JobInfo) {
	t.Helper()
	require.Equal(t, 1, info.Attempt)
	require.Empty(t, info.Errors)
	require.Empty(t, info.Moved)
	require.Zero(t, info.Fence())
	require.Zero(t, info.LeaseEnd)
	require.Zero(t, info.BuriedAt)
	require.Zero(t, info.FinishedAt)
	require.Zero(t, info.KeptUntil)
	require.Zero(t, info.Started)
}

// With Replace the old job gives way in every state, with all that was known of it; whoever was running it can write nothing any more. (D10)
func TestReplaceInEveryState(t *testing.T) {
	for name, due := range map[string]time.Duration{"later": time.Minute, "now": 0} {
		t.Run(name, func(t *testing.T) {
			eachLife(t, func(t *testing.T, f *fixture, state delayq.State, lease delayq.Held) {
				job, err := f.client.Enqueue(t.Context(), "topic", "x", []byte("new"), delayq.ProcessIn(due), delayq.Replace())
				require.NoError(t, err)
				want := delayq.StateScheduled
				if due == 0 {
					want = delayq.StateReady
				}
				info := f.get("x")
				require.Equal(t, want, info.State)
				require.Equal(t, job.Nonce(), info.Nonce())
				require.Equal(t, "new", string(info.Payload))
				requireFresh(t, info)

				if lease.ID != "" {
					require.Equal(t, "l", f.hand.Ack(lease))
					require.Equal(t, "l", f.hand.Retry(0, lease))
					require.Equal(t, info, f.get("x"), "the old worker wrote something")
				}
				// The new job runs once, at its own time.
				if due > 0 {
					f.hand.Promote()
					require.Empty(t, f.hand.Take(10, time.Minute), "before its time")
					f.hand.Hasten(due)
				}
				f.hand.Promote()
				held := f.hand.TakeOne("x")
				require.Contains(t, held.Record, "new")
				require.Empty(t, f.hand.Take(10, time.Minute), "a second time")
				require.Equal(t, "o", f.hand.Ack(held))
				if state == "" {
					return // of a job kept as done something is left
				}
				require.Empty(t, f.hand.Traces("x"))
			})
		})
	}
}

// A job that was cancelled while it was ready leaves its ID in ready. It must not start the next job of that ID early. (D15)
func TestCancelThenEnqueueTheSameIDForLater(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("x")
		require.Equal(t, delayq.StateReady, f.dequeue("x"))
		f.enqueue("x", delayq.ProcessIn(time.Hour))
		f.hand.Promote()
		require.Empty(t, f.hand.Take(10, time.Minute))
		require.Equal(t, delayq.StateScheduled, f.get("x").State)
		f.hand.Hasten(time.Hour)
		f.hand.Promote()
		f.hand.TakeOne("x")
		require.Empty(t, f.hand.Take(10, time.Minute))
	})
}

// (D13)
func TestReplaceIsDoneByTheNewestOnly(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		for _, payload := range []string{"one", "two", "three"} {
			_, err := f.client.Enqueue(t.Context(), "topic", "x", []byte(payload), delayq.Replace())
			require.NoError(t, err)
		}
		require.Contains(t, f.hand.TakeOne("x").Record, "three")
		require.Empty(t, f.hand.Take(10, time.Minute))
		info, err := f.client.Inspect(t.Context(), "topic")
		require.NoError(t, err)
		require.EqualValues(t, 3, info.Counters["enqueued"])
	})
}
