package pgxoutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
	"github.com/delayq/delayq/outbox/pgxoutbox"
)

// The server of all tests.
var server struct {
	once sync.Once
	dsn  string
	stop func()
	err  error
	made int
}

func TestMain(m *testing.M) {
	code := m.Run()
	if server.stop != nil {
		server.stop()
	}
	os.Exit(code)
}

// A world is a new database with an outbox, a Redis and a client.
type world struct {
	*testing.T
	pool   *pgxpool.Pool
	db     *sql.DB
	ob     *outbox.Outbox
	rdb    *redis.Client
	client *delayq.Client
}

// newWorld skips the test without a PostgreSQL. Under CI the test fails.
func newWorld(t *testing.T, mode pgx.QueryExecMode) *world {
	server.once.Do(func() { server.dsn, server.stop, server.err = sqltest.Postgres() })
	if errors.Is(server.err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(server.err)
	}
	require.NoError(t, server.err)
	admin, err := pgx.Connect(t.Context(), fmt.Sprintf(server.dsn, "postgres"))
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close(context.Background())) }()
	server.made++
	name := "test" + strconv.Itoa(server.made)
	_, err = admin.Exec(t.Context(), "CREATE DATABASE "+name)
	require.NoError(t, err)
	config, err := pgxpool.ParseConfig(fmt.Sprintf(server.dsn, name))
	require.NoError(t, err)
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	ob, err := outbox.New(outbox.Postgres)
	require.NoError(t, err)
	require.NoError(t, ob.Migrate(t.Context(), db))
	_, err = pool.Exec(t.Context(), "CREATE TABLE orders (id text PRIMARY KEY)")
	require.NoError(t, err)
	r := embedded.New()
	t.Cleanup(r.Close)
	rdb := r.Client()
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	return &world{t, pool, db, ob, rdb, delayq.NewClient(rdb)}
}

// send runs a relay until no row waits.
func (w *world) send() {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	relay := w.ob.Relay(w.db, w.client, outbox.Poll(time.Millisecond), outbox.Logger(slog.New(slog.DiscardHandler)))
	go func() { done <- relay.Run(ctx) }()
	require.Eventually(w, func() bool {
		s, err := w.ob.Stats(w.Context(), w.db)
		return err == nil && s.Rows == 0
	}, time.Minute, time.Millisecond)
	cancel()
	require.NoError(w, <-done)
}

// jobs returns the IDs of the unfinished jobs.
func (w *world) jobs() []string {
	ids := w.rdb.HKeys(w.Context(), "delayq:{topic}:pool").Val()
	slices.Sort(ids)
	return ids
}

func (w *world) enqueue(tx pgxoutbox.Execer, id string, opts ...delayq.JobOption) {
	w.Helper()
	_, err := tx.Exec(w.Context(), "INSERT INTO orders VALUES ($1)", id)
	require.NoError(w, err)
	job, err := w.ob.Enqueue(w.Context(), pgxoutbox.Tx(tx), "topic", id, []byte("of "+id), opts...)
	require.NoError(w, err)
	require.Equal(w, id, job.ID)
	require.NotEmpty(w, job.Nonce())
}

var modes = map[string]pgx.QueryExecMode{
	"cache statement": pgx.QueryExecModeCacheStatement, "cache describe": pgx.QueryExecModeCacheDescribe,
	"describe exec": pgx.QueryExecModeDescribeExec, "exec": pgx.QueryExecModeExec, "simple protocol": pgx.QueryExecModeSimpleProtocol,
}

// Committed calls are made, and others are not, with everything of pgx that executes statements.
func TestCalls(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, mode)
			ctx := w.Context()
			require.NoError(w, pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				w.enqueue(tx, "pool")
				w.enqueue(tx, "moved", delayq.ProcessIn(time.Hour))
				w.enqueue(tx, "cancelled")
				require.ErrorIs(w, pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
					w.enqueue(nested, "nested, rolled back")
					return context.Canceled
				}), context.Canceled)
				return pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
					w.enqueue(nested, "nested")
					return nil
				})
			}))
			require.ErrorIs(w, pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				w.enqueue(tx, "rolled back")
				return context.Canceled
			}), context.Canceled)
			require.NoError(w, w.pool.AcquireFunc(ctx, func(pooled *pgxpool.Conn) error {
				w.enqueue(pooled, "pooled connection")
				w.enqueue(pooled.Conn(), "connection")
				tx, err := pooled.Begin(ctx)
				require.NoError(w, err)
				require.NoError(w, w.ob.Reschedule(ctx, pgxoutbox.Tx(tx), "topic", "moved", delayq.ProcessIn(3*time.Hour)))
				require.NoError(w, w.ob.Dequeue(ctx, pgxoutbox.Tx(tx), "topic", "cancelled"))
				return tx.Commit(ctx)
			}))
			_, err := w.ob.Enqueue(ctx, pgxoutbox.Tx(w.pool), "topic", "refused", nil)
			require.ErrorIs(w, err, outbox.ErrInvalid)
			require.ErrorContains(w, err, "in place of a transaction")
			_, err = w.ob.Enqueue(ctx, pgxoutbox.Autocommit(w.pool), "topic", "no order \x00\xff", []byte{0, 255}, delayq.Header("k\x00", "\xff"))
			require.NoError(w, err)

			w.send()
			require.Equal(w, []string{"connection", "moved", "nested", "no order \x00\xff", "pool", "pooled connection"}, w.jobs())
			info, err := w.client.Get(ctx, "topic", "moved")
			require.NoError(w, err)
			require.InDelta(w, (3 * time.Hour).Seconds(), info.Due.Sub(info.EnqueuedAt).Seconds(), 60)
			info, err = w.client.Get(ctx, "topic", "no order \x00\xff")
			require.NoError(w, err)
			require.Equal(w, []byte{0, 255}, info.Payload)
			require.Equal(w, map[string]string{"k\x00": "\xff"}, info.Headers)
			dead, err := w.ob.Dead(ctx, w.db, 0, 10)
			require.NoError(w, err)
			require.Empty(w, dead)
		})
	}
}

// Both kinds of transactions write the same rows.
func TestRowsAreThoseOfDatabaseSQL(t *testing.T) {
	w := newWorld(t, pgx.QueryExecModeCacheStatement)
	for _, tx := range []outbox.Execer{outbox.Autocommit(w.db), pgxoutbox.Autocommit(w.pool)} {
		_, err := w.ob.Enqueue(w.Context(), tx, "topic", "id", []byte("payload"), delayq.ProcessAt(time.UnixMilli(1<<41)), delayq.Replace())
		require.NoError(w, err)
		require.NoError(w, w.ob.Reschedule(w.Context(), tx, "topic", "id", delayq.ProcessIn(time.Hour)))
		require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", "id"))
	}
	rows, err := w.pool.Query(w.Context(), "SELECT row(shard, kind, topic, id, replaces, due_at, delay_ms, length(record))::text FROM delayq_outbox ORDER BY seq")
	require.NoError(w, err)
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w, err)
	require.Len(w, texts, 6)
	require.Equal(w, texts[:3], texts[3:])
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, pgx.QueryExecModeCacheStatement)
	_, err := w.ob.Enqueue(w.Context(), pgxoutbox.Tx(nil), "topic", "id", nil)
	require.ErrorIs(w, err, outbox.ErrInvalid)
	tx, err := w.pool.Begin(w.Context())
	require.NoError(w, err)
	_, err = w.ob.Enqueue(w.Context(), pgxoutbox.Tx(tx), "no{topic", "id", nil)
	require.ErrorIs(w, err, delayq.ErrInvalid)
	w.enqueue(tx, "after a refusal")
	require.NoError(w, tx.Commit(w.Context()))
	s, err := w.ob.Stats(w.Context(), w.db)
	require.NoError(w, err)
	require.EqualValues(w, 1, s.Rows)

	_, err = w.ob.Enqueue(w.Context(), pgxoutbox.Tx(tx), "topic", "id", nil)
	require.ErrorIs(w, err, pgx.ErrTxClosed)
	_, err = w.pool.Exec(w.Context(), "DROP TABLE delayq_outbox")
	require.NoError(w, err)
	_, err = w.ob.Enqueue(w.Context(), pgxoutbox.Autocommit(w.pool), "topic", "id", nil)
	require.ErrorIs(w, err, outbox.ErrSchema)
	var said *pgconn.PgError
	require.ErrorAs(w, err, &said)
	require.Equal(w, "42P01", said.Code)
	over, cancel := context.WithCancel(w.Context())
	cancel()
	_, err = w.ob.Enqueue(over, pgxoutbox.Autocommit(w.pool), "topic", "id", nil)
	require.ErrorIs(w, err, context.Canceled)
}

// Calls in a batch are made when its transaction commits, in its order.
func TestBatch(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, mode)
			ctx := w.Context()
			send := func(b *pgx.Batch, end func(pgx.Tx) error) {
				tx, err := w.pool.Begin(ctx)
				require.NoError(w, err)
				require.NoError(w, tx.SendBatch(ctx, b).Close())
				require.NoError(w, end(tx))
			}
			fill := func(id string) *pgx.Batch {
				b := &pgx.Batch{}
				b.Queue("INSERT INTO orders VALUES ($1)", id)
				job, err := w.ob.Enqueue(ctx, pgxoutbox.Batch(b), "topic", id, []byte("of "+id), delayq.ProcessIn(time.Minute))
				require.NoError(w, err)
				require.Equal(w, id, job.ID)
				_, err = w.ob.Enqueue(ctx, pgxoutbox.Batch(b), "topic", "not "+id, nil, delayq.ProcessIn(time.Hour))
				require.NoError(w, err)
				require.NoError(w, w.ob.Dequeue(ctx, pgxoutbox.Batch(b), "topic", "not "+id))
				require.NoError(w, w.ob.Reschedule(ctx, pgxoutbox.Batch(b), "topic", id, delayq.ProcessIn(3*time.Hour)))
				require.Equal(w, 5, b.Len())
				return b
			}
			send(fill("committed"), func(tx pgx.Tx) error { return tx.Commit(ctx) })
			send(fill("rolled back"), func(tx pgx.Tx) error { return tx.Rollback(ctx) })
			w.send()
			require.Equal(w, []string{"committed"}, w.jobs())
			info, err := w.client.Get(ctx, "topic", "committed")
			require.NoError(w, err)
			require.InDelta(w, (3 * time.Hour).Seconds(), info.Due.Sub(info.EnqueuedAt).Seconds(), 60)
			require.Equal(w, "of committed", string(info.Payload))
		})
	}
}

// What cannot be done in a batch leaves it as it was.
func TestBatchRefusals(t *testing.T) {
	w := newWorld(t, pgx.QueryExecModeCacheStatement)
	ctx := w.Context()
	_, err := w.ob.Enqueue(ctx, pgxoutbox.Batch(nil), "topic", "id", nil)
	require.ErrorIs(w, err, outbox.ErrInvalid)
	b := &pgx.Batch{}
	b.Queue("SELECT 1")
	_, err = w.ob.Enqueue(ctx, pgxoutbox.Batch(b), "no{topic", "id", nil)
	require.ErrorIs(w, err, delayq.ErrInvalid)
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err = w.ob.Enqueue(over, pgxoutbox.Batch(b), "topic", "id", nil)
	require.ErrorIs(w, err, context.Canceled)
	in, err := outbox.NewInbox(outbox.Postgres)
	require.NoError(w, err)
	job, err := w.client.Enqueue(ctx, "topic", "id", nil)
	require.NoError(w, err)
	_, err = in.Once(ctx, pgxoutbox.Batch(b), job)
	require.ErrorContains(w, err, "only Enqueue, Dequeue and Reschedule")
	_, err = in.Trim(ctx, pgxoutbox.Batch(b), time.Minute)
	require.Error(w, err)
	_, err = w.ob.Discard(ctx, pgxoutbox.Batch(b), 1)
	require.Error(w, err)
	_, err = w.ob.Revive(ctx, pgxoutbox.Batch(b), 1)
	require.Error(w, err)
	require.Equal(w, 1, b.Len())

	_, err = w.ob.Enqueue(ctx, pgxoutbox.Batch(b), "topic", "id", nil)
	require.NoError(w, err)
	_, err = w.pool.Exec(ctx, "DROP TABLE delayq_outbox")
	require.NoError(w, err)
	var said *pgconn.PgError
	require.ErrorAs(w, w.pool.SendBatch(ctx, b).Close(), &said)
	require.Equal(w, "42P01", said.Code)
}

// The effect of a job happens once, and dead rows can be revived, in transactions of pgx.
func TestInboxAndDeadRows(t *testing.T) {
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, mode)
			ctx := w.Context()
			in, err := outbox.NewInbox(outbox.Postgres)
			require.NoError(w, err)
			job, err := w.client.Enqueue(ctx, "topic", "twin", nil)
			require.NoError(w, err)
			_, err = in.Once(ctx, pgxoutbox.Autocommit(w.pool), job)
			require.ErrorIs(w, err, outbox.ErrInvalid, "the record would stay without the effect")
			for run, want := range []bool{true, true, false} {
				tx, err := w.pool.Begin(ctx)
				require.NoError(w, err)
				first, err := in.Once(ctx, pgxoutbox.Tx(tx), job)
				require.NoError(w, err)
				require.Equal(w, want, first, run)
				if run == 0 {
					require.NoError(w, tx.Rollback(ctx))
				} else {
					require.NoError(w, tx.Commit(ctx))
				}
			}
			_, err = w.pool.Exec(ctx, "UPDATE delayq_outbox_inbox SET seen = seen - 61000")
			require.NoError(w, err)
			n, err := in.Trim(ctx, pgxoutbox.Tx(w.pool), time.Minute)
			require.NoError(w, err)
			require.EqualValues(w, 1, n)

			_, err = w.ob.Enqueue(ctx, pgxoutbox.Autocommit(w.pool), "topic", "twin", nil)
			require.NoError(w, err)
			w.send()
			dead, err := w.ob.Dead(ctx, w.db, 0, 10)
			require.NoError(w, err)
			require.Len(w, dead, 1)
			_, err = w.client.Dequeue(ctx, "topic", "twin")
			require.NoError(w, err)
			_, err = w.ob.Revive(ctx, pgxoutbox.Autocommit(w.pool), dead[0].Seq)
			require.ErrorIs(w, err, outbox.ErrInvalid)
			require.NoError(w, pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				revived, err := w.ob.Revive(ctx, pgxoutbox.Tx(tx), dead[0].Seq)
				require.True(w, revived)
				return err
			}))
			w.send()
			require.Equal(w, []string{"twin"}, w.jobs())
			gone, err := w.ob.Discard(ctx, pgxoutbox.Tx(w.pool), dead[0].Seq)
			require.NoError(w, err)
			require.False(w, gone)
		})
	}
}

// A call that a batch refuses takes its own query out of the batch, and no other one, however often
// its result is asked for. A call whose context has ended puts none in.
func TestBatchKeepsTheQueriesOfOthers(t *testing.T) {
	var b pgx.Batch
	b.Queue("first")
	result, err := pgxoutbox.Batch(&b).ExecContext(t.Context(), "refused")
	require.NoError(t, err)
	b.Queue("last")
	for _, ask := range []func() (int64, error){result.RowsAffected, result.LastInsertId, result.RowsAffected} {
		_, err = ask()
		require.Error(t, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = pgxoutbox.Batch(&b).ExecContext(ended, "too late")
	require.ErrorIs(t, err, context.Canceled)
	var left []string
	for _, q := range b.QueuedQueries {
		left = append(left, q.SQL)
	}
	require.Equal(t, []string{"first", "last"}, left)
}
