package delayq_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Delete removes all that is kept of a done job, and nothing else.
func TestDeleteOfADoneJob(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
		before := f.Dump()
		err := f.Client.Delete(t.Context(), "topic", "x")
		if _, kept := before[f.Key("results")]; !kept {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorContains(t, err, `delete topic "topic" job "x": `)
			require.Equal(t, before, f.Dump())
			return
		}
		require.NoError(t, err)
		_, err = f.Client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.EqualValues(t, 1, queuetest.CounterOf(t, f.Client, "topic", "deleted"))
		for _, key := range []string{"done", "results"} {
			require.Zero(t, f.RDB.Exists(t.Context(), f.Key(key)).Val(), key)
		}
		require.ErrorIs(t, f.Client.Delete(t.Context(), "topic", "x"), delayq.ErrNotFound)
	})
}

// A live job of the same ID stays, in whatever state it is.
func TestDeleteLeavesALiveJob(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.Enqueue("x", delayq.Retention(time.Hour))
		require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne("x")))
		f.Enqueue("x")
		require.NoError(t, f.Client.Delete(t.Context(), "topic", "x"))
		require.Equal(t, delayq.StateReady, f.Get("x").State)
		require.Equal(t, "payload of x", string(f.Get("x").Payload))
		list, err := f.Client.List(t.Context(), "topic", delayq.ListQuery{State: delayq.StateDone, Limit: 10})
		require.NoError(t, err)
		require.Empty(t, list)
		f.hand.TakeOne("x")
	})
}

// What is left of a done job without its place is removed too: nobody could otherwise.
func TestDeleteOfWhatIsLeft(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		for _, lost := range []string{"done", "results"} {
			f.Enqueue(lost, delayq.Retention(time.Hour))
			require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne(lost)))
			require.NoError(t, f.RDB.Del(t.Context(), f.Key(lost)).Err())
			require.NoError(t, f.Client.Delete(t.Context(), "topic", lost))
			for _, key := range []string{"done", "results"} {
				require.Zero(t, f.RDB.Exists(t.Context(), f.Key(key)).Val(), key)
			}
		}
		// With a key of a wrong type the call fails, and can be made again.
		f.Enqueue("x", delayq.Retention(time.Hour))
		require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne("x")))
		for _, key := range []string{"done", "results"} {
			require.NoError(t, f.RDB.Rename(t.Context(), f.Key(key), f.Key("aside")).Err())
			require.NoError(t, f.RDB.Set(t.Context(), f.Key(key), "", 0).Err())
			err := f.Client.Delete(t.Context(), "topic", "x")
			require.ErrorContains(t, err, "is a string and not a ")
			require.NoError(t, f.RDB.Rename(t.Context(), f.Key("aside"), f.Key(key)).Err())
			if key == "done" {
				require.NoError(t, f.Client.Delete(t.Context(), "topic", "x"))
				f.Enqueue("x", delayq.Retention(time.Hour))
				require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne("x")))
			}
		}
		require.NoError(t, f.Client.Delete(t.Context(), "topic", "x"))
	})
}
