package delayq_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// Delete removes all that is kept of a done job, and nothing else.
func TestDeleteOfADoneJob(t *testing.T) {
	eachLife(t, func(t *testing.T, f *fixture, state delayq.State, _ delayq.Held) {
		before := f.dump()
		err := f.client.Delete(t.Context(), "topic", "x")
		if _, kept := before[f.hand.Key("results")]; !kept {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.ErrorContains(t, err, `delete topic "topic" job "x": `)
			require.Equal(t, before, f.dump())
			return
		}
		require.NoError(t, err)
		_, err = f.client.Get(t.Context(), "topic", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		require.EqualValues(t, 1, counterOf(t, f.client, "topic", "deleted"))
		for _, key := range []string{"done", "results"} {
			require.Zero(t, f.rdb.Exists(t.Context(), f.hand.Key(key)).Val(), key)
		}
		require.ErrorIs(t, f.client.Delete(t.Context(), "topic", "x"), delayq.ErrNotFound)
	})
}

// A live job of the same ID stays, in whatever state it is.
func TestDeleteLeavesALiveJob(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		f.enqueue("x", delayq.Retention(time.Hour))
		require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne("x")))
		f.enqueue("x")
		require.NoError(t, f.client.Delete(t.Context(), "topic", "x"))
		require.Equal(t, delayq.StateReady, f.get("x").State)
		require.Equal(t, "payload of x", string(f.get("x").Payload))
		list, err := f.client.List(t.Context(), "topic", delayq.ListQuery{State: delayq.StateDone, Limit: 10})
		require.NoError(t, err)
		require.Empty(t, list)
		f.hand.TakeOne("x")
	})
}

// What is left of a done job without its place is removed too: nobody could otherwise.
func TestDeleteOfWhatIsLeft(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		for _, lost := range []string{"done", "results"} {
			f.enqueue(lost, delayq.Retention(time.Hour))
			require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne(lost)))
			require.NoError(t, f.rdb.Del(t.Context(), f.hand.Key(lost)).Err())
			require.NoError(t, f.client.Delete(t.Context(), "topic", lost))
			for _, key := range []string{"done", "results"} {
				require.Zero(t, f.rdb.Exists(t.Context(), f.hand.Key(key)).Val(), key)
			}
		}
		// With a key of a wrong type the call fails, and can be made again.
		f.enqueue("x", delayq.Retention(time.Hour))
		require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne("x")))
		for _, key := range []string{"done", "results"} {
			require.NoError(t, f.rdb.Rename(t.Context(), f.hand.Key(key), f.hand.Key("aside")).Err())
			require.NoError(t, f.rdb.Set(t.Context(), f.hand.Key(key), "", 0).Err())
			err := f.client.Delete(t.Context(), "topic", "x")
			require.ErrorContains(t, err, "is a string and not a ")
			require.NoError(t, f.rdb.Rename(t.Context(), f.hand.Key("aside"), f.hand.Key(key)).Err())
			if key == "done" {
				require.NoError(t, f.client.Delete(t.Context(), "topic", "x"))
				f.enqueue("x", delayq.Retention(time.Hour))
				require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne("x")))
			}
		}
		require.NoError(t, f.client.Delete(t.Context(), "topic", "x"))
	})
}
