package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A key that only hand-overs use has a wrong type. Jobs that hand nothing over end nevertheless,
// and the one that does has ended once an operator has deleted the key.
func TestPlainJobsBesideAWrongTypeOfParcels(t *testing.T) {
	for _, key := range []string{"all:parcels", "all:plans"} {
		t.Run(key, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				key := queuetest.Prefix + ":{a}:" + key
				require.NoError(b, b.RDB.Set(b.Context(), key, "x", 0).Err())
				b.Serve("a", func(_ context.Context, job *delayq.Job) error {
					if job.ID == "hands over" {
						return job.Then("b", "next", nil)
					}
					return nil
				})
				b.Enqueue("a", "plain", delayq.ProcessIn(500*time.Millisecond))
				b.Enqueue("a", "hands over")
				b.Pass(400 * time.Millisecond)
				for i := range 5 {
					b.Enqueue("a", fmt.Sprint("plain", i))
				}
				b.Pass(2 * time.Second)
				for i := range 5 {
					require.Empty(b, b.State("a", fmt.Sprint("plain", i)), "it is done")
				}
				require.Empty(b, b.State("a", "plain"), "it is done")
				require.Equal(b, delayq.StateRunning, b.State("a", "hands over"))
				require.NoError(b, b.RDB.Del(b.Context(), key).Err())
				b.Pass(2 * time.Second)
				require.Empty(b, b.State("a", "hands over"))
				require.Equal(b, delayq.StateReady, b.State("b", "next"))
				noParcels(b)
			})
		})
	}
}

// A hand-over to one topic costs three calls after the end of the run, as the how-to says.
func TestCallsOfAHandOver(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var calls queuetest.HookLog
		b.Serve("a", func(_ context.Context, job *delayq.Job) error { return job.Then("b", "", nil) }, delayq.Hooks(&calls))
		b.Enqueue("a", "1")
		b.Pass(500 * time.Millisecond)
		n := 0
		for _, name := range []string{"parcel_plan", "replace", "enqueue", "enqueue_now", "enqueue_keyed", "parcel_done"} {
			n += calls.Calls(name)
		}
		require.Equal(b, 3, n)
		noParcels(b)
	})
}

// Damaged parcels keep no others from being delivered, and the relay comes to rest.
func TestRelayBesideDamagedParcels(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		number := fmt.Sprintf("%014x%013d", 1, 1)
		for _, damaged := range []string{"06target", "06targetzzz", "00" + number + "1x", "01b12 4", "no parcel"} {
			require.NoError(b, b.RDB.ZAdd(b.Context(), parcelsKey, redis.Z{Member: damaged}).Err())
		}
		var calls queuetest.HookLog
		b.Serve("a", func(_ context.Context, job *delayq.Job) error { return job.Then("b", job.ID, nil) }, delayq.Hooks(&calls))
		b.Enqueue("a", "1")
		b.Pass(10 * time.Second)
		require.Equal(b, delayq.StateReady, b.State("b", "1"))
		noParcels(b)
		require.Less(b, calls.Calls("parcel_plan"), 20)
		list, err := b.RDB.LLen(b.Context(), queuetest.Prefix+":{a}:all:undelivered").Result()
		require.NoError(b, err)
		require.EqualValues(b, 5, list)
	})
}
