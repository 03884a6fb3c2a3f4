package outbox_test

import (
	"context"
	"database/sql"
	"log/slog"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// mortal returns a client of go-redis that dies with a life.
func (w *world) mortal(l *sqltest.Life) *redis.Client {
	rdb := redis.NewClient(w.rdb.Options())
	rdb.AddHook(mortalHook{l})
	return rdb
}

// A mortal hook ends calls of Redis with a life.
type mortalHook struct{ *sqltest.Life }

func (h mortalHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h mortalHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := h.Step(func() error { return next(ctx, cmd) })
		cmd.SetErr(err)
		return err
	}
}

func (h mortalHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := h.Step(func() error { return next(ctx, cmds) })
		if h.Dead() {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// Relays die one after another, each at another statement or call of Redis. In between, workers
// finish the jobs that are there. Each committed row has made one job in the end.
func TestRelaysDieAtAnyLine(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		driverName, dsn := d.fresh(t)
		db, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		defer db.Close()
		ob, err := outbox.New(d.dialect)
		require.NoError(t, err)
		require.NoError(t, ob.Migrate(t.Context(), db))
		rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		w := &world{T: t, database: d, db: db, ob: ob, rdb: rdb, client: client}

		want := make(map[string]string) // nonce of a job that must exist once → its name
		may := make(map[string]string)  // … that can exist once, because it is cancelled
		seen := make(map[string]int)
		work := func() { // it finishes all jobs
			for _, topic := range []string{"one", "two"} {
				for id, record := range rdb.HGetAll(t.Context(), prefix+":{"+topic+"}:pool").Val() {
					seen[record[:8]]++
					_, err := client.Dequeue(t.Context(), topic, id)
					require.NoError(t, err)
				}
			}
		}
		kills := 0
		for round := range redistest.Size(1000) {
			w.tx(func(tx *sql.Tx) {
				put := func(into map[string]string, topic, id string, opts ...delayq.JobOption) {
					job, err := ob.Enqueue(t.Context(), tx, topic, id, []byte("payload"), opts...)
					require.NoError(t, err)
					into[job.Nonce()] = topic + "/" + id
				}
				n := strconv.Itoa(round)
				put(want, "one", "now "+n)
				put(want, "two", "later "+n, delayq.ProcessIn(time.Hour))
				put(may, "one", "pair "+n)
				require.NoError(t, ob.Dequeue(t.Context(), tx, "one", "pair "+n))
				put(want, "one", "pair "+n, delayq.ProcessIn(time.Hour))
				require.NoError(t, ob.Reschedule(t.Context(), tx, "one", "pair "+n, delayq.ProcessIn(time.Minute)))
			})
			tx, err := db.Begin()
			require.NoError(t, err)
			_, err = ob.Enqueue(t.Context(), tx, "one", "rolled back "+strconv.Itoa(round), nil)
			require.NoError(t, err)
			require.NoError(t, tx.Rollback())

			// The lease of the last relay is over.
			_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
			require.NoError(t, err)
			life := sqltest.NewLife(1+round%37, round/37%2 == 1)
			mortalDB := life.Open(db.Driver(), dsn)
			mortalRDB := redis.NewClient(rdb.Options())
			mortalRDB.AddHook(mortalHook{life})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			opts := []outbox.RelayOption{outbox.Poll(time.Millisecond), outbox.Logger(slog.New(slog.DiscardHandler))}
			if round%3 > 0 { // the third one sends what they have left
				opts = append(opts, outbox.Horizon(30*time.Minute))
			}
			relay := ob.Relay(mortalDB, delayq.NewClient(mortalRDB, delayq.Prefix(prefix)), opts...)
			go func() { done <- relay.Run(ctx) }()
			select {
			case <-life.Ended:
				kills++
			case <-time.After(20 * time.Second):
				t.Error("the relay did not use up its life")
			}
			cancel()
			require.NoError(t, <-done)
			require.NoError(t, mortalDB.Close())
			require.NoError(t, mortalRDB.Close())
			work()
		}
		_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(t, err)
		w.relay()
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		work()
		for nonce, name := range want {
			require.Equal(t, 1, seen[nonce], name)
			delete(seen, nonce)
		}
		for nonce, name := range may {
			require.LessOrEqual(t, seen[nonce], 1, name)
			delete(seen, nonce)
		}
		require.Empty(t, seen, "jobs of no committed row")
		dead, err := ob.Dead(t.Context(), db, 0, 10)
		require.NoError(t, err)
		require.Empty(t, dead)
		t.Logf("%d relays died, %d jobs", kills, len(want))
	})
}
