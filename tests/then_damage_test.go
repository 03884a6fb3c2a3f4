package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A key that only hand-overs use has a wrong type. Jobs that hand nothing over end nevertheless,
// and the one that does has ended once an operator has deleted the key.
func TestPlainJobsBesideAWrongTypeOfParcels(t *testing.T) {
	for _, key := range []string{"serve:parcels", "serve:plans"} {
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
