package outbox_test

import (
	"context"
	"database/sql"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// A world is a database with an outbox, a Redis and a client.
type world struct {
	*testing.T
	*database
	db     *sql.DB
	ob     *outbox.Outbox
	rdb    *redis.Client
	prefix string
	client *delayq.Client
	look   *delayq.Inspector
}

func eachWorld(t *testing.T, test func(w *world)) {
	each(t, func(t *testing.T, d *database) { test(newWorld(t, d)) })
}

func newWorld(t *testing.T, d *database, opts ...outbox.Option) *world {
	db, ob := d.open(t, opts...)
	r := embedded.New()
	t.Cleanup(r.Close)
	rdb := r.Client()
	t.Cleanup(func() { _ = rdb.Close() })
	return &world{t, d, db, ob, rdb, "delayq", delayq.NewClient(rdb), delayq.NewInspector(rdb)}
}

// relay runs a relay until the test ends, or until the returned function is called.
func (w *world) relay(opts ...outbox.RelayOption) (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	opts = append([]outbox.RelayOption{outbox.Poll(time.Millisecond), outbox.Logger(slog.New(slog.DiscardHandler))}, opts...)
	go func() { done <- w.ob.Relay(w.db, w.client, opts...).Run(ctx) }()
	ended := false
	stop = func() {
		if cancel(); !ended {
			ended = true
			require.NoError(w, <-done)
		}
	}
	w.Cleanup(stop)
	return stop
}

// drained waits until no row is left, except those beyond a horizon.
func (w *world) drained() { w.Helper(); w.left(func(s outbox.Stats) bool { return s.Rows == 0 }) }

// left waits until the numbers of rows are as they should be.
func (w *world) left(is func(outbox.Stats) bool) {
	w.Helper()
	require.Eventually(w, func() bool {
		s, err := w.ob.Stats(context.Background(), w.db)
		return err == nil && is(s)
	}, 10*time.Minute, time.Millisecond)
}

func (w *world) tx(work func(tx *sql.Tx)) {
	w.Helper()
	tx, err := w.db.BeginTx(w.Context(), nil)
	require.NoError(w, err)
	defer func() { _ = tx.Rollback() }()
	work(tx)
	require.NoError(w, tx.Commit())
}

// jobs returns the IDs of the unfinished jobs of a topic.
func (w *world) jobs(topic string) []string {
	return w.rdb.HKeys(context.Background(), w.prefix+":{"+topic+"}:pool").Val()
}

func (w *world) enqueue(tx outbox.Execer, id string, opts ...delayq.JobOption) {
	w.Helper()
	if db, ok := tx.(*sql.DB); ok {
		tx = outbox.Autocommit(db)
	}
	_, err := w.ob.Enqueue(w.Context(), tx, "topic", id, []byte("of "+id), opts...)
	require.NoError(w, err)
}

// job returns a job as a handler receives it.
func (w *world) job() *delayq.Job {
	w.Helper()
	job, err := w.client.Enqueue(w.Context(), "inbox", "", nil)
	require.NoError(w, err)
	return job
}

func TestCommittedRowsBecomeJobs(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.tx(func(tx *sql.Tx) {
			job, err := w.ob.Enqueue(w.Context(), tx, "topic", "", []byte{0, 255}, delayq.Header("k\x00", "\xff"))
			require.NoError(w, err)
			require.NotEmpty(w, job.ID)
			require.NotEmpty(w, job.Nonce())
			w.enqueue(tx, "any bytes \x00\xff")
			w.enqueue(tx, "later", delayq.ProcessIn(time.Hour))
			w.enqueue(tx, "moved", delayq.ProcessIn(time.Hour))
			require.NoError(w, w.ob.Reschedule(w.Context(), tx, "topic", "moved", delayq.ProcessIn(3*time.Hour)))
			w.enqueue(tx, "cancelled")
			require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", "cancelled"))
			require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", "never was"))
			_, err = w.ob.Enqueue(w.Context(), tx, "other", "x", nil)
			require.NoError(w, err)
		})
		tx, err := w.db.Begin()
		require.NoError(w, err)
		w.enqueue(tx, "rolled back")
		require.NoError(w, tx.Rollback())
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.EqualValues(w, 9, s.Rows)

		w.relay()
		w.drained()
		require.Len(w, w.jobs("topic"), 4)
		require.Subset(w, w.jobs("topic"), []string{"any bytes \x00\xff", "later", "moved"})
		require.Equal(w, []string{"x"}, w.jobs("other"))
		info, err := w.client.Get(w.Context(), "topic", "moved")
		require.NoError(w, err)
		require.InDelta(w, (3 * time.Hour).Seconds(), info.Due.Sub(info.EnqueuedAt).Seconds(), 60)
		dead, err := w.ob.Dead(w.Context(), w.db, 0, 10)
		require.NoError(w, err)
		require.Empty(w, dead)
	})
}

func TestRefusedRowsHoldUpNothing(t *testing.T) {
	eachWorld(t, func(w *world) {
		_, err := w.client.Enqueue(w.Context(), "topic", "twin", nil)
		require.NoError(w, err)
		w.tx(func(tx *sql.Tx) {
			w.enqueue(tx, "twin")
			w.enqueue(tx, "next")
		})
		w.rdb.Set(w.Context(), "delayq:{broken}:pool", "not a hash", 0)
		_, err = w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "broken", "x", nil)
		require.NoError(w, err)
		w.relay()
		w.drained()
		require.ElementsMatch(w, []string{"twin", "next"}, w.jobs("topic"))
		dead, err := w.ob.Dead(w.Context(), w.db, 0, 10)
		require.NoError(w, err)
		require.Len(w, dead, 2)
		require.Equal(w, "twin", dead[0].ID)
		require.Equal(w, "enqueue", dead[0].Call)
		require.Contains(w, dead[0].Reason, delayq.ErrDuplicate.Error())
		require.Contains(w, dead[1].Reason, "WRONGTYPE")
		require.WithinDuration(w, time.Now(), dead[0].Made, time.Minute)
		require.WithinDuration(w, time.Now(), dead[0].Refused, time.Minute)

		// The reason is gone, so the row can be sent once more.
		_, err = w.client.Dequeue(w.Context(), "topic", "twin")
		require.NoError(w, err)
		w.tx(func(tx *sql.Tx) {
			found, err := w.ob.Revive(w.Context(), tx, dead[0].Seq)
			require.NoError(w, err)
			require.True(w, found)
		})
		w.drained()
		info, err := w.client.Get(w.Context(), "topic", "twin")
		require.NoError(w, err)
		require.Equal(w, "of twin", string(info.Payload))
		found, err := w.ob.Discard(w.Context(), w.db, dead[1].Seq)
		require.NoError(w, err)
		require.True(w, found)
		found, err = w.ob.Discard(w.Context(), w.db, dead[1].Seq)
		require.NoError(w, err)
		require.False(w, found)
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.Zero(w, s)
	})
}

// A row whose transaction commits late has a lower key than rows that were sent before.
func TestRowsThatCommitLateAreSent(t *testing.T) {
	eachWorld(t, func(w *world) {
		if w.dialect == outbox.SQLite {
			w.Skip("it has one writer at a time")
		}
		late, err := w.db.Begin()
		require.NoError(w, err)
		w.enqueue(late, "late")
		w.relay()
		for i := range 20 {
			w.enqueue(w.db, "early "+strconv.Itoa(i))
		}
		w.drained()
		require.Len(w, w.jobs("topic"), 20)
		require.NoError(w, late.Commit())
		w.ob.Nudge()
		w.drained()
		require.Len(w, w.jobs("topic"), 21)
	})
}

// The payment is committed after the order, so no relay may send it first.
func TestCancelsArriveAfterTheirEnqueues(t *testing.T) {
	eachWorld(t, func(w *world) {
		for range 3 {
			w.relay(outbox.Batch(3), outbox.Lease(time.Second))
		}
		for i := range 200 {
			id := strconv.Itoa(i)
			w.enqueue(w.db, id)
			require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", id))
			w.ob.Nudge()
		}
		w.drained()
		require.Empty(w, w.jobs("topic"))
	})
}

func TestLargePayloads(t *testing.T) {
	eachWorld(t, func(w *world) {
		for i := range 12 {
			_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", strconv.Itoa(i), []byte(strings.Repeat("x", 1<<20)))
			require.NoError(w, err)
		}
		w.relay()
		w.drained()
		require.Len(w, w.jobs("topic"), 12)
		info, err := w.client.Get(w.Context(), "topic", "7")
		require.NoError(w, err)
		require.Equal(w, strings.Repeat("x", 1<<20), string(info.Payload))
	})
}

func TestMissingTables(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		driver, dsn := d.fresh(t)
		db, err := sql.Open(driver, dsn)
		require.NoError(t, err)
		defer db.Close()
		ob, err := outbox.New(d.dialect)
		require.NoError(t, err)
		_, err = ob.Enqueue(t.Context(), outbox.Autocommit(db), "topic", "id", nil)
		require.ErrorIs(t, err, outbox.ErrSchema)
		require.ErrorContains(t, err, "Migrate")
		in, err := outbox.NewInbox(d.dialect)
		require.NoError(t, err)
		_, err = in.Trim(t.Context(), db, time.Hour)
		require.ErrorIs(t, err, outbox.ErrSchema)
		r := embedded.New()
		defer r.Close()
		rdb := r.Client()
		defer rdb.Close()
		require.ErrorIs(t, ob.Relay(db, delayq.NewClient(rdb)).Run(t.Context()), outbox.ErrSchema)

		for range 2 { // the second time it does nothing
			require.NoError(t, ob.Migrate(t.Context(), db))
		}
		_, err = db.Exec("INSERT INTO delayq_outbox_shards (shard, version, name, number, plan, holder, held_until) VALUES (0, 99, 'x', 0, '', '', 0)")
		require.NoError(t, err)
		require.ErrorIs(t, ob.Relay(db, delayq.NewClient(rdb)).Run(t.Context()), outbox.ErrSchema)
	})
}

// refusesAutocommit tests that an effect cannot be lost because its record was committed alone, and
// that a dead row cannot be written without being deleted.
func (w *world) refusesAutocommit() {
	in, err := outbox.NewInbox(w.dialect)
	require.NoError(w, err)
	job := w.job()
	_, err = in.Once(w.Context(), outbox.Autocommit(w.db), job)
	require.ErrorIs(w, err, outbox.ErrInvalid)
	require.ErrorContains(w, err, "give the transaction")
	w.tx(func(tx *sql.Tx) {
		first, err := in.Once(w.Context(), tx, job)
		require.NoError(w, err)
		require.True(w, first, "nothing was recorded")
	})
	_, err = w.ob.Revive(w.Context(), outbox.Autocommit(w.db), 1)
	require.ErrorIs(w, err, outbox.ErrInvalid)
	found, err := w.ob.Discard(w.Context(), outbox.Autocommit(w.db), 1)
	require.NoError(w, err)
	require.False(w, found)
}

func TestBadInputIsRefused(t *testing.T) {
	eachWorld(t, func(w *world) {
		_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "", "id", make([]byte, 2<<20), delayq.ProcessIn(time.Nanosecond))
		require.ErrorIs(w, err, outbox.ErrInvalid)
		_, err = w.ob.Enqueue(w.Context(), nil, "topic", "id", nil)
		require.ErrorIs(w, err, outbox.ErrInvalid)
		for _, db := range []outbox.Execer{w.db, struct{ *sql.DB }{w.db}} {
			_, err = w.ob.Enqueue(w.Context(), db, "topic", "id", nil)
			require.ErrorIs(w, err, outbox.ErrInvalid)
			require.ErrorContains(w, err, "in place of a transaction")
			require.ErrorIs(w, w.ob.Dequeue(w.Context(), db, "topic", "id"), outbox.ErrInvalid)
			require.ErrorIs(w, w.ob.Reschedule(w.Context(), db, "topic", "id", delayq.ProcessIn(time.Hour)), outbox.ErrInvalid)
			_, err = w.ob.Revive(w.Context(), db, 1)
			require.ErrorIs(w, err, outbox.ErrInvalid)
			_, err = new(outbox.Inbox).Once(w.Context(), db, w.job())
			require.ErrorIs(w, err, outbox.ErrInvalid)
		}
		w.refusesAutocommit()
		conn, err := w.db.Conn(w.Context())
		require.NoError(w, err)
		require.NoError(w, w.ob.Dequeue(w.Context(), conn, "topic", "id"), "it can be in a transaction")
		require.NoError(w, conn.Close())
		_, err = w.db.Exec("DELETE FROM delayq_outbox")
		require.NoError(w, err)
		require.Nil(w, outbox.Autocommit(nil))
		require.ErrorIs(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "a{b", "id"), outbox.ErrInvalid)
		require.ErrorIs(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "id", nil), outbox.ErrInvalid)
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.Zero(w, s.Rows)
		_, err = w.ob.Dead(w.Context(), w.db, 0, 0)
		require.ErrorIs(w, err, outbox.ErrInvalid)
	})
	for _, opt := range []outbox.Option{nil, outbox.Table(""), outbox.Table("a b"), outbox.Table(strings.Repeat("x", 41)), outbox.Shards(0), outbox.Shards(65), outbox.ClientOptions(delayq.MaxPayload(-1))} {
		_, err := outbox.New(outbox.Postgres, opt)
		require.ErrorIs(t, err, outbox.ErrInvalid)
	}
	_, err := outbox.New(0)
	require.ErrorIs(t, err, outbox.ErrInvalid)
	ob, err := outbox.New(outbox.SQLite, outbox.Table("main.box_2"))
	require.NoError(t, err)
	for _, opt := range []outbox.RelayOption{nil, outbox.Poll(0), outbox.Poll(time.Hour), outbox.Lease(time.Millisecond), outbox.Batch(0), outbox.Batch(1000), outbox.Logger(nil),
		outbox.Horizon(time.Second), outbox.Horizon(101 * 365 * 24 * time.Hour),
		outbox.Keep(time.Second), outbox.Keep(7 * 24 * time.Hour)} {
		require.ErrorIs(t, ob.Relay(&sql.DB{}, &delayq.Client{}, opt).Run(t.Context()), outbox.ErrInvalid)
	}
	require.ErrorIs(t, ob.Relay(nil, nil).Run(t.Context()), outbox.ErrInvalid)
	for _, d := range []outbox.Dialect{outbox.Postgres, outbox.MySQL, outbox.SQLite} {
		parsed, err := outbox.ParseDialect(d.String())
		require.NoError(t, err)
		require.Equal(t, d, parsed)
	}
	_, err = outbox.ParseDialect("oracle")
	require.ErrorIs(t, err, outbox.ErrInvalid)
}

func TestInboxRecordsEachJobOnce(t *testing.T) {
	eachWorld(t, func(w *world) {
		in, err := outbox.NewInbox(w.dialect)
		require.NoError(w, err)
		first, err := w.client.Enqueue(w.Context(), "topic", "id", nil)
		require.NoError(w, err)
		once := func(job *delayq.Job, commit bool) (is bool) {
			tx, err := w.db.Begin()
			require.NoError(w, err)
			defer func() { _ = tx.Rollback() }()
			is, err = in.Once(w.Context(), tx, job)
			require.NoError(w, err)
			if commit {
				require.NoError(w, tx.Commit())
			}
			return is
		}
		require.True(w, once(first, false), "its transaction is rolled back")
		require.True(w, once(first, true))
		require.False(w, once(first, true))
		second, err := w.client.Enqueue(w.Context(), "topic", "id", nil, delayq.Replace())
		require.NoError(w, err)
		require.True(w, once(second, true), "another incarnation")

		_, err = in.Once(w.Context(), w.db, &delayq.Job{})
		require.ErrorIs(w, err, outbox.ErrInvalid)
		_, err = in.Trim(w.Context(), w.db, 0)
		require.ErrorIs(w, err, outbox.ErrInvalid)

		n, err := in.Trim(w.Context(), w.db, time.Hour)
		require.NoError(w, err)
		require.Zero(w, n)
		for i := range 2500 / 100 {
			values := make([]string, 100)
			for k := range values {
				values[k] = "('" + strconv.Itoa(i*100+k) + "', 't', 0)"
			}
			_, err := w.db.Exec("INSERT INTO delayq_outbox_inbox (nonce, topic, seen) VALUES " + strings.Join(values, ", "))
			require.NoError(w, err)
		}
		n, err = in.Trim(w.Context(), w.db, time.Hour)
		require.NoError(w, err)
		require.EqualValues(w, 2500, n)
		require.False(w, once(first, true), "a young record stays")
	})
}

// Rows of several shards, topics and relays: each becomes one job, in the table of the option.
func TestShards(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		w := newWorld(t, d, outbox.Shards(3), outbox.Table("box"))
		for i := range 300 {
			_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic"+strconv.Itoa(i%3), strconv.Itoa(i), nil)
			require.NoError(w, err)
		}
		w.relay(outbox.Batch(50))
		w.relay(outbox.Batch(50))
		w.drained()
		for i := range 3 {
			require.Len(w, w.jobs("topic"+strconv.Itoa(i)), 100)
		}
		var shards, sent int
		require.NoError(w, w.db.QueryRow("SELECT COUNT(*), SUM(CASE WHEN number > 0 THEN 1 ELSE 0 END) FROM box_shards").Scan(&shards, &sent))
		require.Equal(w, []int{3, 3}, []int{shards, sent})
	})
}

// A world without Redis: rows wait, and the relay logs that once.
func TestRedisAway(t *testing.T) {
	eachWorld(t, func(w *world) {
		line := sqltest.NewLife(1, false) // the first call fails, and all that follow
		away := redis.NewClient(w.rdb.Options())
		defer away.Close()
		var back atomic.Bool
		away.AddHook(switchHook{mortalHook{line}, &back})
		w.client = delayq.NewClient(away)
		var log diary
		for i := range 10 {
			w.enqueue(w.db, strconv.Itoa(i))
		}
		stop := w.relay(log.option())
		<-line.Ended
		require.Eventually(w, func() bool { return line.Left() < -3 }, 10*time.Minute, time.Millisecond)
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.EqualValues(w, 10, s.Rows)
		back.Store(true)
		w.drained()
		stop()
		require.Len(w, w.jobs("topic"), 10)
		require.NotZero(w, log.pauses(w))
		require.Contains(w, log.String(), "outbox relay continues")
	})
}

// A switchHook is one that can be switched off.
type switchHook struct {
	mortalHook
	off *atomic.Bool
}

func (h switchHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	on := h.mortalHook.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.off.Load() {
			return next(ctx, cmd)
		}
		return on(ctx, cmd)
	}
}

func (h switchHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	on := h.mortalHook.ProcessPipelineHook(next)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.off.Load() {
			return next(ctx, cmds)
		}
		return on(ctx, cmds)
	}
}

// docs/security.md says which rights a program needs that only enqueues, and a handler with an
// inbox.
func TestProducersNeedInsertAlone(t *testing.T) {
	eachWorld(t, func(w *world) {
		if w.dialect != outbox.Postgres {
			w.Skip("the roles of PostgreSQL")
		}
		in, err := outbox.NewInbox(w.dialect)
		require.NoError(w, err)
		job, err := w.client.Enqueue(w.Context(), "topic", "id", nil)
		require.NoError(w, err)
		for _, statement := range []string{
			"CREATE ROLE producer", "GRANT INSERT ON delayq_outbox TO producer", "GRANT INSERT ON delayq_outbox_inbox TO producer",
		} {
			_, err := w.db.Exec(statement)
			require.NoError(w, err)
		}
		w.tx(func(tx *sql.Tx) {
			_, err := tx.Exec("SET LOCAL ROLE producer")
			require.NoError(w, err)
			w.enqueue(tx, "a")
			require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", "a"))
			first, err := in.Once(w.Context(), tx, job)
			require.NoError(w, err)
			require.True(w, first)
		})
		tx, err := w.db.Begin()
		require.NoError(w, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("SET LOCAL ROLE producer")
		require.NoError(w, err)
		_, err = w.ob.Stats(w.Context(), tx)
		require.ErrorContains(w, err, "permission denied")
	})
}
