package outbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// put writes a row of an enqueue, with its number as the payload.
func (w *world) put(id string, n int, opts ...delayq.JobOption) {
	_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", id, fmt.Append(nil, n), opts...)
	require.NoError(w, err)
}

// payload returns that of a job.
func (w *world) payload(id string) string {
	info, err := w.client.Get(w.Context(), "topic", id)
	require.NoError(w, err)
	return string(info.Payload)
}

// Debounce, Latest and UnlessRunning pass through a table. The wait counts from the call, and the
// record says the wait that was given.
func TestDebounceThroughATable(t *testing.T) {
	eachWorld(t, func(w *world) {
		for n := range 3 {
			w.put("burst", n, delayq.Debounce(20*time.Hour, 24*time.Hour))
		}
		w.put("late", 1, delayq.Debounce(time.Millisecond, time.Minute))
		w.put("latest", 1, delayq.ProcessIn(time.Hour))
		w.put("latest", 2, delayq.ProcessIn(9*time.Hour), delayq.Latest())
		w.put("waiting", 1, delayq.ProcessIn(time.Hour))
		w.put("waiting", 2, delayq.ProcessIn(2*time.Hour), delayq.Replace(), delayq.UnlessRunning())
		w.put("window", 1, delayq.Debounce(time.Hour, 2*time.Hour), delayq.UniqueFor(3*time.Hour))
		w.relay()
		w.drained()
		dead, err := w.ob.Dead(w.Context(), w.db, 0, 10)
		require.NoError(w, err)
		require.Empty(w, dead)
		for id, want := range map[string]string{"burst": "2", "late": "1", "latest": "2", "waiting": "2", "window": "1"} {
			require.Equal(w, want, w.payload(id), id)
		}
		burst, err := w.client.Get(w.Context(), "topic", "burst")
		require.NoError(w, err)
		require.Equal(w, delayq.DueDebounce, burst.DueReason)
		require.Equal(w, 24*time.Hour, burst.BurstEnds.Sub(burst.BurstBegan))
		require.WithinDuration(w, burst.BurstBegan.Add(20*time.Hour), burst.Due, time.Minute)
		latest, err := w.client.Get(w.Context(), "topic", "latest")
		require.NoError(w, err)
		require.Less(w, latest.Due.Sub(latest.EnqueuedAt), 2*time.Hour)
		waiting, err := w.client.Get(w.Context(), "topic", "waiting")
		require.NoError(w, err)
		require.Greater(w, waiting.Due.Sub(waiting.EnqueuedAt), time.Hour)
		stats, err := w.look.Stats(w.Context(), "topic")
		require.NoError(w, err)
		require.EqualValues(w, 3, stats[0].Counters[delayq.CounterDebounced])
	})
}

// Rows whose fate depends on a job with their ID are not kept beyond a horizon. They meet a row
// that is there as they would meet a scheduled job.
func TestDebounceBeyondAHorizon(t *testing.T) {
	eachWorld(t, func(w *world) {
		stop := w.relay(outbox.Horizon(time.Hour))
		far := []string{"latest", "burst", "waiting", "plain"}
		for _, id := range far {
			w.put(id, 1, delayq.ProcessIn(48*time.Hour))
		}
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 4 })
		w.put("latest", 2, delayq.ProcessIn(time.Minute), delayq.Latest(), delayq.ExpireIn(72*time.Hour))
		w.put("burst", 2, delayq.Debounce(2*time.Hour, 3*time.Hour))
		w.put("waiting", 2, delayq.ProcessIn(5*time.Hour), delayq.Replace(), delayq.UnlessRunning())
		w.put("none", 2, delayq.ProcessIn(5*time.Hour), delayq.Latest())
		w.put("plain", 2)
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 2 })
		stop()
		require.ElementsMatch(w, []string{"burst", "waiting", "none"}, w.jobs("topic"))
		for _, id := range []string{"burst", "waiting", "none"} {
			require.Equal(w, "2", w.payload(id), id)
		}
		dead, err := w.ob.Dead(w.Context(), w.db, 0, 10)
		require.NoError(w, err)
		require.Len(w, dead, 1)
		require.Equal(w, "plain", dead[0].ID)

		w.relay() // without a horizon, everything is sent
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		require.Equal(w, "2", w.payload("latest"))
		info, err := w.client.Get(w.Context(), "topic", "latest")
		require.NoError(w, err)
		require.Greater(w, info.Due.Sub(info.EnqueuedAt), 47*time.Hour)
	})
}
