package outbox_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/outbox"
)

const (
	near = 30 * time.Minute
	far  = 90 * 24 * time.Hour
)

// later returns the number of rows beyond the horizon.
func (w *world) later() int64 {
	w.Helper()
	s, err := w.ob.Stats(w.Context(), w.db)
	require.NoError(w, err)
	return s.Later
}

// pass lets time pass for the rows beyond the horizon.
func (w *world) pass(d time.Duration) {
	w.Helper()
	_, err := w.db.Exec(fmt.Sprintf("UPDATE delayq_outbox_later SET made = made - %d, due = due - %d", d.Milliseconds(), d.Milliseconds()))
	require.NoError(w, err)
}

// due returns in how many minutes a job in Redis is due.
func (w *world) due(id string) float64 {
	w.Helper()
	info, err := w.client.Get(w.Context(), "topic", id)
	require.NoError(w, err)
	return time.Until(info.Due).Minutes()
}

func (w *world) dead() []outbox.DeadRow {
	w.Helper()
	dead, err := w.ob.Dead(w.Context(), w.db, 0, 1000)
	require.NoError(w, err)
	return dead
}

func TestHorizonKeepsRows(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.enqueue(w.db, "near", delayq.ProcessIn(near))
		w.enqueue(w.db, "in", delayq.ProcessIn(far))
		w.enqueue(w.db, "at", delayq.ProcessAt(time.Now().Add(far)))
		w.relay(outbox.Horizon(time.Hour))
		w.drained()
		require.Equal(w, []string{"near"}, w.jobs("topic"))
		require.EqualValues(w, 2, w.later())
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.Zero(w, s.Oldest)

		w.pass(far - near)
		w.left(func(s outbox.Stats) bool { return s.Later == 0 })
		require.ElementsMatch(w, []string{"near", "in", "at"}, w.jobs("topic"))
		require.InDelta(w, near.Minutes(), w.due("in"), 1)
		require.InDelta(w, far.Minutes(), w.due("at"), 1, "its instant has not changed")
		require.Empty(w, w.dead())
	})
}

// A relay without a horizon sends what others have left. Rows of either table share a plan.
func TestHorizonThatIsGone(t *testing.T) {
	eachWorld(t, func(w *world) {
		for i := range 50 {
			w.enqueue(w.db, strconv.Itoa(i), delayq.ProcessIn(far))
		}
		stop := w.relay(outbox.Horizon(time.Hour), outbox.Batch(7))
		w.drained()
		stop()
		require.EqualValues(w, 50, w.later())
		for i := range 50 {
			w.enqueue(w.db, "near "+strconv.Itoa(i), delayq.ProcessIn(near))
		}
		w.relay(outbox.Batch(1))
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		require.Len(w, w.jobs("topic"), 100)
		require.InDelta(w, far.Minutes(), w.due("49"), 1)
	})
}

func TestCallsBeyondTheHorizon(t *testing.T) {
	eachWorld(t, func(w *world) {
		for _, id := range []string{"cancelled", "sooner", "farther", "expires", "twin", "replaced"} {
			opts := []delayq.JobOption{delayq.ProcessIn(far)}
			if id == "expires" {
				opts = append(opts, delayq.ExpireIn(far+time.Hour))
			}
			w.enqueue(w.db, id, opts...)
		}
		for _, id := range []string{"cancelled", "gives way"} { // while their rows wait
			_, err := w.client.Enqueue(w.Context(), "topic", id, nil, delayq.ProcessIn(time.Hour))
			require.NoError(w, err)
		}
		w.relay(outbox.Horizon(time.Hour))
		w.drained()
		require.EqualValues(w, 6, w.later())

		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "cancelled"))
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "sooner", delayq.ProcessIn(near)))
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "farther", delayq.ProcessAt(time.Now().Add(2*far))))
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "expires", delayq.ProcessIn(far+2*time.Hour)))
		w.enqueue(w.db, "twin")
		w.enqueue(w.db, "replaced", delayq.ProcessIn(near), delayq.Replace())
		w.enqueue(w.db, "gives way", delayq.ProcessIn(far), delayq.Replace())
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 4 })
		require.ElementsMatch(w, []string{"sooner", "replaced"}, w.jobs("topic"))
		require.InDelta(w, near.Minutes(), w.due("sooner"), 1)
		info, err := w.client.Get(w.Context(), "topic", "sooner")
		require.NoError(w, err)
		require.Equal(w, "of sooner", string(info.Payload))

		dead := w.dead()
		require.Len(w, dead, 2)
		require.Equal(w, []string{"expires", "reschedule"}, []string{dead[0].ID, dead[0].Call})
		require.Contains(w, dead[0].Reason, "expires at")
		require.Equal(w, []string{"twin", "enqueue"}, []string{dead[1].ID, dead[1].Call})
		require.Contains(w, dead[1].Reason, delayq.ErrDuplicate.Error())

		w.pass(far)
		w.left(func(s outbox.Stats) bool { return s.Later == 1 })
		require.ElementsMatch(w, []string{"sooner", "replaced", "expires", "twin", "gives way"}, w.jobs("topic"))
	})
}

// The key of the topic is broken when the job that gives way should be removed. The row is dead
// then, once, and does not come back.
func TestHorizonOfARefusedRow(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.rdb.Set(w.Context(), "delayq:{topic}:pool", "not a hash", 0)
		w.enqueue(w.db, "x", delayq.ProcessIn(far), delayq.Replace())
		w.relay(outbox.Horizon(time.Hour))
		w.drained()
		require.Zero(w, w.later())
		dead := w.dead()
		require.Len(w, dead, 1)
		require.Equal(w, "enqueue", dead[0].Call)
		w.rdb.Del(w.Context(), "delayq:{topic}:pool")
		w.tx(func(tx *sql.Tx) {
			_, err := w.ob.Revive(w.Context(), tx, dead[0].Seq)
			require.NoError(w, err)
		})
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 1 })
		w.pass(far)
		w.left(func(s outbox.Stats) bool { return s.Later == 0 })
		require.Equal(w, []string{"x"}, w.jobs("topic"))
	})
}

// Calls about few jobs, in the order of their commits, while relays with several horizons come and
// go. Each job is what its calls make of it.
func TestHorizonKeepsTheOrder(t *testing.T) {
	eachWorld(t, func(w *world) {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		type job struct {
			payload string
			due     time.Duration
		}
		want := make(map[string]*job)
		refused := 0
		stop := func() {}
		for i := range redistest.Size(600) {
			if i%40 == 0 {
				stop()
				stop = w.relay(outbox.Horizon(time.Duration(1+random.IntN(3))*time.Hour), outbox.Batch(1+random.IntN(5)))
			}
			id, due := strconv.Itoa(random.IntN(4)), []time.Duration{near, near + 2*time.Hour, far}[random.IntN(3)]
			fresh := &job{"v" + strconv.Itoa(i), due}
			switch random.IntN(4) {
			case 0:
				_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", id, []byte(fresh.payload), delayq.ProcessIn(due))
				require.NoError(w, err)
				if want[id] != nil {
					// Beyond the horizon it would be refused when it is sent, so leave no such row.
					require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", id))
					delete(want, id)
					refused++
				} else {
					want[id] = fresh
				}
			case 1:
				_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", id, []byte(fresh.payload), delayq.ProcessIn(due), delayq.Replace())
				require.NoError(w, err)
				want[id] = fresh
			case 2:
				require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", id))
				delete(want, id)
			case 3:
				require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", id, delayq.ProcessIn(due)))
				if want[id] != nil {
					want[id].due = due
				}
			}
		}
		w.drained()
		stop()
		w.relay()
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		ids := w.jobs("topic")
		require.Len(w, ids, len(want), "seed %d", seed)
		for _, id := range ids {
			info, err := w.client.Get(w.Context(), "topic", id)
			require.NoError(w, err)
			require.NotNil(w, want[id], "seed %d, job %s", seed, id)
			require.Equal(w, want[id].payload, string(info.Payload), "seed %d, job %s", seed, id)
			require.InDelta(w, want[id].due.Minutes(), time.Until(info.Due).Minutes(), 2, "seed %d, job %s", seed, id)
		}
		require.LessOrEqual(w, len(w.dead()), refused)
	})
}

// A row that the horizon has just reached and a call about it are in one plan.
func TestCallsAtTheHorizon(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.enqueue(w.db, "moved", delayq.ProcessIn(far))
		w.enqueue(w.db, "cancelled", delayq.ProcessIn(far))
		stop := w.relay(outbox.Horizon(3 * time.Hour))
		w.drained()
		stop()
		w.pass(far - near)
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "moved", delayq.ProcessIn(2*time.Hour)))
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "cancelled"))
		w.relay(outbox.Horizon(3 * time.Hour))
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		require.Equal(w, []string{"moved"}, w.jobs("topic"))
		require.InDelta(w, 120, w.due("moved"), 1)
	})
}
