package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// A job with several due times passes through a table as it is: at once, and beyond the horizon of
// the relay, where a reschedule moves its first stage only.
func TestPlanThroughATable(t *testing.T) {
	eachWorld(t, func(w *world) {
		ctx, tx := w.Context(), outbox.Autocommit(w.db)
		first := time.Now().Add(48 * time.Hour)
		times := []time.Time{first, first.Add(time.Hour)}
		for _, id := range []string{"near", "far"} {
			job, err := w.ob.Enqueue(ctx, tx, "topic", id, []byte("p"), delayq.ProcessAtEach(times...), delayq.Key("k"))
			require.NoError(w, err)
			require.Equal(w, []int{1, 2}, []int{job.Stage, job.Stages})
		}
		w.relay(outbox.Horizon(24 * time.Hour))
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 2 })
		require.NoError(w, w.ob.Reschedule(ctx, tx, "topic", "near", delayq.ProcessIn(time.Hour)))
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 1 })
		info, err := w.client.Get(ctx, "topic", "near")
		require.NoError(w, err)
		require.Equal(w, []int{1, 2}, []int{info.Stage, info.Stages})
		require.True(w, info.Due.Before(first))
		require.Equal(w, first.Add(time.Hour).UnixMilli()/1000, info.Plan[1].Due.Unix())
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "near"))
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "far"))
		w.drained()
		require.Empty(w, w.jobs("topic"))
	})
}
