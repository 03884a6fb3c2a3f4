package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// resend sends kept rows again and waits until that is done.
func (w *world) resend(since time.Time) (looked int64) {
	w.Helper()
	n, err := w.ob.Resend(w.Context(), w.db, since)
	require.NoError(w, err)
	require.Eventually(w, func() bool {
		var requests int
		err := w.db.QueryRow("SELECT COUNT(*) FROM delayq_outbox_resend").Scan(&requests)
		return err == nil && requests == 0
	}, 10*time.Minute, time.Millisecond)
	w.drained()
	return n
}

// finish ends jobs, as a handler does.
func (w *world) finish(ids ...string) {
	w.Helper()
	for _, id := range ids {
		_, err := w.client.Dequeue(w.Context(), "topic", id)
		require.NoError(w, err)
	}
}

func (w *world) kept() (n int) {
	w.Helper()
	require.NoError(w, w.db.QueryRow("SELECT COUNT(*) FROM delayq_outbox_sent").Scan(&n))
	return n
}

// lose makes Redis forget all.
func (w *world) lose() {
	for _, key := range w.rdb.Keys(w.Context(), w.prefix+":*").Val() {
		require.NoError(w, w.rdb.Del(w.Context(), key).Err())
	}
}

func TestResendAfterALoss(t *testing.T) {
	eachWorld(t, func(w *world) {
		start := time.Now().Add(-time.Minute)
		var log diary
		w.relay(outbox.Keep(time.Hour), outbox.Batch(3), log.option())
		for _, id := range []string{"finished", "waits", "cancelled", "moved", "replaced"} {
			w.enqueue(w.db, id, delayq.ProcessIn(near))
		}
		w.enqueue(w.db, "waits") // refused
		w.drained()
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "cancelled"))
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "moved", delayq.ProcessIn(2*time.Hour)))
		_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", "replaced", []byte("second"), delayq.Replace())
		require.NoError(w, err)
		w.drained()
		w.finish("finished")
		require.Equal(w, 8, w.kept())
		require.Len(w, w.dead(), 1)

		// Redis remembers all.
		before := w.rdb.HGetAll(w.Context(), "delayq:{topic}:pool").Val()
		require.EqualValues(w, 8, w.resend(start))
		require.Equal(w, before, w.rdb.HGetAll(w.Context(), "delayq:{topic}:pool").Val())
		require.Equal(w, 8, w.kept())

		w.lose()
		w.resend(start)
		require.ElementsMatch(w, []string{"finished", "waits", "moved", "replaced"}, w.jobs("topic"))
		require.InDelta(w, 120, w.due("moved"), 1)
		info, err := w.client.Get(w.Context(), "topic", "replaced")
		require.NoError(w, err)
		require.Equal(w, "second", string(info.Payload))
		require.Len(w, w.dead(), 1)

		// What was sent again is remembered again.
		w.finish("finished", "waits")
		w.resend(start)
		require.ElementsMatch(w, []string{"moved", "replaced"}, w.jobs("topic"))
		require.Contains(w, log.String(), "outbox rows are sent again")
		w.lose()
		require.Zero(w, w.resend(time.Now().Add(30*time.Second)))
		require.Empty(w, w.jobs("topic"))

		_, err = w.ob.Resend(w.Context(), w.db, time.Now().Add(time.Hour))
		require.ErrorIs(w, err, outbox.ErrInvalid)
		_, err = w.ob.Resend(w.Context(), w.db, time.Time{})
		require.ErrorIs(w, err, outbox.ErrInvalid)
		_, err = w.ob.Resend(w.Context(), nil, start)
		require.ErrorIs(w, err, outbox.ErrInvalid)
	})
}

// Redis falls back to an earlier state, and relays have gone on before anybody asks for the rows.
func TestResendAfterAFallback(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.onRedis()
		start := time.Now().Add(-time.Minute)
		put := func(ids ...string) {
			w.tx(func(tx *sql.Tx) {
				for _, id := range ids {
					w.enqueue(tx, id, delayq.ProcessIn(near))
				}
			})
			w.drained()
		}
		w.relay(outbox.Keep(time.Hour))
		put("old", "finished", "to move", "used again")
		w.finish("finished")
		state := w.dump()
		put("lost", "lost too", "cancelled", "cancelled later", "moved later", "to cancel", "again")
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "cancelled"))
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "to move", delayq.ProcessIn(2*time.Hour)))
		w.tx(func(tx *sql.Tx) {
			require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", "used again"))
			_, err := w.ob.Enqueue(w.Context(), tx, "topic", "used again", []byte("second"), delayq.ProcessIn(near))
			require.NoError(w, err)
		})
		w.drained()
		w.restore(state)

		put("new", "new and finished")
		w.finish("new and finished")
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "cancelled later"))
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "moved later", delayq.ProcessIn(2*time.Hour)))
		_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", "again", []byte("second"), delayq.ProcessIn(near))
		require.NoError(w, err)
		w.drained()
		w.resend(start)
		require.ElementsMatch(w, []string{"old", "to move", "lost", "lost too", "moved later", "to cancel", "new", "again", "used again"}, w.jobs("topic"))
		require.InDelta(w, 120, w.due("to move"), 1)
		require.InDelta(w, 120, w.due("moved later"), 1)
		for _, id := range []string{"again", "used again"} {
			info, err := w.client.Get(w.Context(), "topic", id)
			require.NoError(w, err)
			require.Equal(w, "second", string(info.Payload))
		}
		require.Empty(w, w.dead())
	})
}

// A cancel that has not been sent yet, and a row beyond the horizon, come after what was sent.
func TestResendBehindRowsThatWait(t *testing.T) {
	eachWorld(t, func(w *world) {
		start := time.Now().Add(-time.Minute)
		stop := w.relay(outbox.Keep(time.Hour), outbox.Horizon(time.Hour))
		w.enqueue(w.db, "cancelled")
		w.enqueue(w.db, "beyond", delayq.ProcessIn(far), delayq.Replace())
		w.enqueue(w.db, "both", delayq.ProcessIn(near))
		w.enqueue(w.db, "both", delayq.ProcessIn(far))
		w.drained()
		stop()
		require.Equal(w, 3, w.kept(), "two jobs, and the cancel of what is replaced")
		w.lose()
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "cancelled"))
		_, err := w.ob.Resend(w.Context(), w.db, start)
		require.NoError(w, err)
		var log strings.Builder
		stop = w.relay(outbox.Keep(time.Hour), outbox.Horizon(time.Hour), outbox.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		w.resend(start)
		stop()
		require.Contains(w, log.String(), "rows=2 of=3", "not the job that will be cancelled")
		require.Equal(w, []string{"both"}, w.jobs("topic"))
		require.EqualValues(w, 2, w.later())
		require.Empty(w, w.dead())
	})
}

// If keys have started again, kept rows get new keys when they are sent again, in their order, and
// no writer meets their old ones.
func TestResendAfterKeysHaveStartedAgain(t *testing.T) {
	for name, waits := range map[string]int{"none waits": 0, "some wait": 3, "many wait": 15} {
		t.Run(name, func(t *testing.T) {
			eachWorld(t, func(w *world) {
				w.onRedis()
				start := time.Now().Add(-time.Minute)
				stop := w.relay(outbox.Keep(time.Hour), outbox.Batch(2))
				w.enqueue(w.db, "before", delayq.ProcessIn(near))
				w.enqueue(w.db, "used again", delayq.ProcessIn(near))
				w.drained()
				state := w.dump()
				for i := range 5 {
					w.enqueue(w.db, "kept "+strconv.Itoa(i), delayq.ProcessIn(near))
				}
				require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "used again"))
				_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", "used again", []byte("second"), delayq.ProcessIn(near))
				require.NoError(w, err)
				require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "before", delayq.ProcessIn(2*time.Hour)))
				require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "kept 4", delayq.ProcessIn(2*time.Hour)))
				w.drained()
				stop()
				w.restore(state)
				_, err = w.db.Exec(keysAgain[w.dialect])
				require.NoError(w, err)
				for i := range waits {
					w.enqueue(w.db, "waits "+strconv.Itoa(i), delayq.ProcessIn(near))
				}
				_, err = w.ob.Resend(w.Context(), w.db, start)
				require.NoError(w, err)
				w.relay(outbox.Keep(time.Hour), outbox.Batch(2))
				w.resend(start)
				var last, next int64
				require.NoError(w, w.db.QueryRow("SELECT MAX(seq) FROM delayq_outbox_sent WHERE kind = 1").Scan(&last))
				for i := range 20 {
					w.enqueue(w.db, "more "+strconv.Itoa(i), delayq.ProcessIn(near))
				}
				w.drained()
				require.NoError(w, w.db.QueryRow("SELECT MAX(seq) - 20 FROM delayq_outbox_sent").Scan(&next))
				require.GreaterOrEqual(w, next, last, "writers would get keys of rows that wait")
				require.Empty(w, w.dead())
				require.Len(w, w.jobs("topic"), 7+waits+20)
				info, err := w.client.Get(w.Context(), "topic", "used again")
				require.NoError(w, err)
				require.Equal(w, "second", string(info.Payload))
				require.InDelta(w, 120, w.due("before"), 1)
				require.InDelta(w, 120, w.due("kept 4"), 1)
			})
		})
	}
}

// docs/outbox.md says how much memory a receipt of a kept plan takes.
func TestMemoryOfReceipts(t *testing.T) {
	redistest.Need(t)
	if redistest.Major(t) != 7 {
		t.Skip("the figure is that of Redis 7")
	}
	require.Contains(t, strings.Join(strings.Fields(read(t, "docs/outbox.md")), " "), "a key in Redis of about 250 bytes")
	w := newWorld(t, databases[0].started())
	w.rdb = redistest.Start(t, redistest.NoRoles...).Client(t)
	w.client = delayq.NewClient(w.rdb)
	w.relay(outbox.Keep(6 * time.Hour))
	_, err := w.ob.Enqueue(t.Context(), outbox.Autocommit(w.db), "order:cancel", "1", nil)
	require.NoError(t, err)
	w.drained()
	keys := w.rdb.Keys(t.Context(), "*:receipt:outbox.*").Val()
	require.Len(t, keys, 1)
	value := w.rdb.Get(t.Context(), keys[0]).Val()
	used := func() int64 {
		for line := range strings.Lines(w.rdb.Info(t.Context(), "memory").Val()) {
			if text, ok := strings.CutPrefix(strings.TrimSpace(line), "used_memory:"); ok {
				n, err := strconv.ParseInt(text, 10, 64)
				require.NoError(t, err)
				return n
			}
		}
		return 0
	}
	const receipts = 50_000
	before := used()
	pipe := w.rdb.Pipeline()
	for i := range receipts {
		pipe.Set(t.Context(), strings.Replace(keys[0], ".0.t0.", "."+strconv.Itoa(30_000+3*i)+".t0.", 1), value, 7*24*time.Hour)
	}
	_, err = pipe.Exec(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, receipts+1, len(w.rdb.Keys(t.Context(), "*:receipt:outbox.*").Val()))
	require.InDelta(t, 250, (used()-before)/receipts, 40)
}

// onRedis puts a world on a real Redis.
func (w *world) onRedis() {
	w.rdb, w.prefix = redistest.Shared(w.T), redistest.Prefix(w.T)
	w.client = delayq.NewClient(w.rdb, delayq.Prefix(w.prefix))
}

// dump returns what Redis knows.
func (w *world) dump() map[string]string {
	w.Helper()
	state := make(map[string]string)
	for _, key := range w.rdb.Keys(w.Context(), w.prefix+":*").Val() {
		value, err := w.rdb.Dump(w.Context(), key).Result()
		require.NoError(w, err)
		state[key] = value
	}
	return state
}

// restore makes Redis fall back to what it knew.
func (w *world) restore(state map[string]string) {
	w.Helper()
	w.lose()
	for key, value := range state {
		require.NoError(w, w.rdb.Restore(w.Context(), key, 0, value).Err())
	}
}

// A scriptsHook is one for the calls of scripts only: a relay may ask more than once whether Redis
// answers.
type scriptsHook struct{ switchHook }

func (h scriptsHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	on := h.switchHook.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		return on(ctx, cmd)
	}
}

// Redis falls back to a state between two calls of a plan.
func TestResendAfterAFallbackIntoAPlan(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.onRedis()
		start := time.Now().Add(-time.Minute)
		stop := w.relay(outbox.Keep(time.Hour))
		w.enqueue(w.db, "cancelled", delayq.ProcessIn(near))
		w.drained()
		stop()

		away, line := redis.NewClient(w.rdb.Options()), sqltest.NewLife(2, false) // the second call of the plan fails
		defer away.Close()
		require.NoError(w, away.Ping(w.Context()).Err())
		var back atomic.Bool
		away.AddHook(scriptsHook{switchHook{mortalHook{line}, &back}})
		client := w.client
		w.client = delayq.NewClient(away, delayq.Prefix(w.prefix))
		w.tx(func(tx *sql.Tx) {
			w.enqueue(tx, "finished", delayq.ProcessIn(near))
			require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", "cancelled"))
		})
		stop = w.relay(outbox.Keep(time.Hour), outbox.Lease(time.Second)) // it may give the shard up for as long
		<-line.Ended
		state := w.dump()
		require.ElementsMatch(w, []string{"finished", "cancelled"}, w.jobs("topic"))
		back.Store(true)
		w.drained()
		require.Equal(w, []string{"finished"}, w.jobs("topic"))
		stop()

		w.client = client
		w.restore(state)
		w.finish("finished")
		w.relay(outbox.Keep(time.Hour))
		w.resend(start)
		require.Empty(w, w.jobs("topic"))
	})
}

// Kept rows are deleted when they are old, and those that are left are not forgotten, although the
// plans share few series.
func TestKeptRowsAreTrimmed(t *testing.T) {
	eachWorld(t, func(w *world) {
		pass := func() { // a part of the time for which rows are kept
			_, err := w.db.Exec(fmt.Sprintf("UPDATE delayq_outbox_sent SET sent = sent - %d, began = began - %[1]d", (40 * time.Second).Milliseconds()))
			require.NoError(w, err)
		}
		for round := range 12 {
			stop := w.relay(outbox.Keep(time.Minute), outbox.Batch(5))
			w.tx(func(tx *sql.Tx) { // so that the relay sees all at once, and makes two plans of them
				for i := range 10 {
					w.enqueue(tx, fmt.Sprint(round, " ", i))
				}
			})
			w.drained()
			require.Eventually(w, func() bool { return w.kept() <= 20 }, 10*time.Minute, time.Millisecond)
			for _, id := range w.jobs("topic") {
				w.finish(id)
			}
			w.resend(time.Now().Add(-time.Hour))
			require.Empty(w, w.jobs("topic"))
			stop()
			pass()
		}
		series := make(map[string]bool)
		for _, key := range w.rdb.Keys(w.Context(), "*:receipt:outbox.*").Val() {
			if w.rdb.TTL(w.Context(), key).Val() > time.Hour { // not of Resend
				series[key] = true
			}
		}
		require.Less(w, len(series), 40, "of 24 plans or more: three rounds")
	})
}

// Relays with Keep die at any statement while rows are sent again after losses. In the end each job
// is there that was neither cancelled nor finished.
func TestResendingRelaysDie(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		driverName, dsn := d.fresh(t)
		db, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		defer db.Close()
		ob, err := outbox.New(d.dialect)
		require.NoError(t, err)
		require.NoError(t, ob.Migrate(t.Context(), db))
		w := newWorld(t, d)
		w.db, w.ob = db, ob
		start, want := time.Now().Add(-time.Minute), make(map[string]bool)
		random := rand.New(rand.NewPCG(1, 2))
		for round := range redistest.Size(200) {
			w.tx(func(tx *sql.Tx) {
				for i := range 3 {
					id := strconv.Itoa(round) + "." + strconv.Itoa(i)
					w.enqueue(tx, id, delayq.ProcessIn(near))
					want[id] = true
				}
			})
			if id := strconv.Itoa(random.IntN(round+1)) + "." + strconv.Itoa(random.IntN(3)); want[id] {
				require.NoError(t, ob.Dequeue(t.Context(), outbox.Autocommit(db), "topic", id))
				delete(want, id)
			}
			if round%5 == 0 {
				w.lose()
				_, err := ob.Resend(t.Context(), db, start)
				require.NoError(t, err)
			}
			_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
			require.NoError(t, err)
			life := sqltest.NewLife(1+round%41, round/41%2 == 1)
			mortalDB := life.Open(db.Driver(), dsn)
			mortalRDB := w.mortal(life)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			relay := ob.Relay(mortalDB, delayq.NewClient(mortalRDB), outbox.Poll(time.Millisecond), outbox.Logger(slog.New(slog.DiscardHandler)), outbox.Keep(time.Hour))
			go func() { done <- relay.Run(ctx) }()
			<-life.Ended
			cancel()
			require.NoError(t, <-done)
			require.NoError(t, mortalDB.Close())
			require.NoError(t, mortalRDB.Close())
		}
		_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(t, err)
		w.relay(outbox.Keep(time.Hour))
		w.resend(start)
		w.resend(start)
		var ids []string
		for id := range want {
			ids = append(ids, id)
		}
		require.ElementsMatch(t, ids, w.jobs("topic"))
		require.Empty(t, w.dead())
	})
}
