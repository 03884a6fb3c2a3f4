package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// A cancel that is committed closes its ID, from when it was written, and a job that comes later
// goes to the dead rows. A window passes through a table too.
func TestTombsThroughATable(t *testing.T) {
	eachWorld(t, func(w *world) {
		ctx, tx := w.Context(), outbox.Autocommit(w.db)
		put := func(id string, opts ...delayq.JobOption) {
			_, err := w.ob.Enqueue(ctx, tx, "topic", id, nil, opts...)
			require.NoError(w, err)
		}
		put("paid", delayq.ProcessIn(time.Hour))
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "paid", delayq.Tombstone(time.Hour)))
		put("paid", delayq.ProcessIn(time.Hour))
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "overtaken", delayq.Tombstone(time.Hour)))
		put("overtaken", delayq.Replace())
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "freed", delayq.Tombstone(time.Hour)))
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "freed", delayq.Tombstone(0)))
		put("freed")
		put("unique", delayq.UniqueFor(time.Hour), delayq.Replace())
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "unique"))
		put("unique", delayq.UniqueFor(time.Hour))
		require.ErrorIs(w, w.ob.Dequeue(ctx, tx, "topic", "x", delayq.Tombstone(-1)), delayq.ErrInvalid)
		for _, opt := range []delayq.UnchangedOption{delayq.IfUnchanged(), delayq.IfUnchanged(&delayq.JobInfo{})} {
			require.ErrorIs(w, w.ob.Dequeue(ctx, tx, "topic", "x", opt), delayq.ErrInvalid)
			_, err := w.ob.Enqueue(ctx, tx, "topic", "x", nil, delayq.Replace(), opt)
			require.ErrorIs(w, err, delayq.ErrInvalid)
		}

		w.relay(outbox.Horizon(24 * time.Hour))
		w.drained()
		require.Equal(w, []string{"freed"}, w.jobs("topic"))
		dead, err := w.ob.Dead(ctx, w.db, 0, 10)
		require.NoError(w, err)
		require.Len(w, dead, 3)
		for i, id := range []string{"paid", "overtaken", "unique"} {
			require.Equal(w, id, dead[i].ID)
			require.Contains(w, dead[i].Reason, "the ID is closed until")
		}
		e, err := w.look.Explain(ctx, "topic", "paid")
		require.NoError(w, err)
		require.Equal(w, delayq.ReasonTomb, e.Reasons[0].Code)
	})
}

// A job beyond the horizon is cancelled in its table, and its ID is closed in Redis.
func TestTombsBeyondAHorizon(t *testing.T) {
	eachWorld(t, func(w *world) {
		ctx, tx := w.Context(), outbox.Autocommit(w.db)
		stop := w.relay(outbox.Horizon(time.Hour))
		_, err := w.ob.Enqueue(ctx, tx, "topic", "far", nil, delayq.ProcessIn(48*time.Hour), delayq.UniqueFor(time.Hour), delayq.Replace())
		require.NoError(w, err)
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 1 })
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "far", delayq.Tombstone(time.Hour)))
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		stop()
		_, err = w.client.Enqueue(ctx, "topic", "far", nil)
		require.ErrorIs(w, err, delayq.ErrDuplicate)
	})
}

// A job beyond the horizon that replaces another one is not refused because of the window of that
// one. If no job had the ID, it stays closed.
func TestReplaceATombBeyondAHorizon(t *testing.T) {
	eachWorld(t, func(w *world) {
		ctx, tx := w.Context(), outbox.Autocommit(w.db)
		put := func(id string, opts ...delayq.JobOption) {
			_, err := w.ob.Enqueue(ctx, tx, "topic", id, nil, opts...)
			require.NoError(w, err)
		}
		far := []delayq.JobOption{delayq.ProcessIn(48 * time.Hour), delayq.Replace()}
		put("unique", delayq.UniqueFor(100*time.Hour))
		put("unique", far...)
		require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", "closed", delayq.Tombstone(100*time.Hour)))
		put("closed", far...)
		stop := w.relay(outbox.Horizon(time.Hour))
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 2 })
		stop()
		require.Empty(w, w.jobs("topic"))
		w.relay() // without a horizon, so that all rows are sent
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		require.Equal(w, []string{"unique"}, w.jobs("topic"))
		dead, err := w.ob.Dead(ctx, w.db, 0, 10)
		require.NoError(w, err)
		require.Len(w, dead, 1)
		require.Equal(w, "closed", dead[0].ID)
	})
}

// A topic with too many tombs: the job is cancelled, and the row says that its ID is open.
func TestTombsOfATableThatAreTooMany(t *testing.T) {
	eachWorld(t, func(w *world) {
		ctx, tx := w.Context(), outbox.Autocommit(w.db)
		w.client = delayq.NewClient(w.rdb, delayq.TombLimit(1))
		for _, id := range []string{"a", "b"} {
			_, err := w.ob.Enqueue(ctx, tx, "topic", id, nil)
			require.NoError(w, err)
		}
		for _, id := range []string{"a", "b", "nobody"} {
			require.NoError(w, w.ob.Dequeue(ctx, tx, "topic", id, delayq.Tombstone(time.Hour)))
		}
		w.relay()
		w.drained()
		require.Empty(w, w.jobs("topic"))
		dead, err := w.ob.Dead(ctx, w.db, 0, 10)
		require.NoError(w, err)
		require.Len(w, dead, 2)
		for i, id := range []string{"b", "nobody"} {
			require.Equal(w, id, dead[i].ID)
			require.Contains(w, dead[i].Reason, delayq.ErrTooManyTombs.Error())
		}
	})
}
