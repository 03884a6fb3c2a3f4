package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// A crowd is a world whose tables have many rows.
type crowd struct {
	*world
	large int // how many
}

// fill makes some of the tables large, while the database believes that they are empty. The rows
// that wait are of a shard that no relay holds.
func (w *crowd) fill(some ...string) {
	w.Helper()
	numbers := map[outbox.Dialect]string{
		outbox.Postgres: "SELECT n FROM generate_series(1, %d) AS g(n)",
		outbox.MySQL:    "SELECT seq AS n FROM seq_1_to_%d",
		outbox.SQLite:   "WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < %d) SELECT n FROM g",
	}[w.dialect]
	id := map[outbox.Dialect]string{
		outbox.Postgres: "convert_to('old ' || n, 'UTF8')", outbox.MySQL: "CONCAT('old ', n)", outbox.SQLite: "CAST('old ' || n AS BLOB)",
	}[w.dialect]
	over := ""
	if w.dialect == outbox.Postgres {
		over = "OVERRIDING SYSTEM VALUE "
	}
	hour := time.Hour.Milliseconds()
	now := time.Now().UnixMilli()
	type part struct{ name, columns, values string }
	for _, table := range []part{
		{"_later", ", due", fmt.Sprintf("n, 0, 1, 'topic', %s, '', %d, 0, %d, 'record', %[2]d", id, now+1000*hour, now)},
		{"_dead", ", reason, refused", fmt.Sprintf("n, 0, 1, 'topic', %s, '', 0, 0, %d, 'record', 'why', %[2]d", id, now)},
		{"_sent", ", sent, number, span, began, slot", fmt.Sprintf("n, 0, 1, 'topic', %s, '', 0, 0, %d, 'record', %[2]d + n, 1, %d, 1, 1", id, now-hour, 2*hour)},
		{"", "", fmt.Sprintf("%d + n, 1, 1, 'topic', %s, '', 0, 0, %d, 'record'", w.large, id, now)},
	} {
		if !slices.Contains(some, table.name) {
			continue
		}
		w.exec("INSERT INTO delayq_outbox" + table.name + " (seq, shard, kind, topic, id, replaces, due_at, delay_ms, made, record" + table.columns + ") " + over +
			"SELECT " + table.values + " FROM (" + fmt.Sprintf(numbers, w.large) + ") AS numbers")
	}
	if !slices.Contains(some, "_inbox") {
		return
	}
	w.exec("INSERT INTO delayq_outbox_inbox (nonce, topic, seen) SELECT n, 'topic', CASE WHEN n > 2500 THEN " + fmt.Sprint(now) + " ELSE 0 END FROM (" +
		fmt.Sprintf(numbers, w.large) + ") AS numbers")
	if w.dialect == outbox.Postgres {
		w.exec("SELECT setval(pg_get_serial_sequence('delayq_outbox', 'seq'), " + fmt.Sprint(2*w.large) + ")")
	}
}

func (w *crowd) exec(statement string) {
	w.Helper()
	statement = "/* test */ " + statement
	_, err := w.db.Exec(statement)
	require.NoError(w, err, statement)
}

// number returns what a query of the test finds.
func (w *crowd) number(q interface {
	QueryRow(query string, args ...any) *sql.Row
}, query string) (n int64) {
	w.Helper()
	require.NoError(w, q.QueryRow(query+" /* test */").Scan(&n), query)
	return n
}

// Who uses an outbox, as docs/outbox.md names them.
const (
	writer   = "a writer"
	relay    = "a relay"
	resender = "`Resend`"
	watcher  = "`Stats`"
	checker  = "`Check`"
	operator = "`Dead`, `Revive`, `Discard`"
	handler  = "`Once`"
	trimmer  = "`Trim`"
	owner    = "the owner of the tables"
)

// everything does all that an outbox can do. Each part uses the database as who does it.
func (w *crowd) everything(as func(who string) *sql.DB, round string) {
	auto := outbox.Autocommit(as(writer))
	id := func(of string) string { return of + " " + round }
	full := new(refusing)
	w.rdb.AddHook(full)
	began := time.Now().Add(-time.Second)
	sent := func() {
		w.T.Helper()
		w.until("the rows are sent", func() bool { return w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox WHERE shard = 0") == 0 })
	}
	_, stop := w.run(as(relay), w.client, outbox.Horizon(time.Hour), outbox.Keep(90*time.Minute), outbox.Lease(time.Minute))
	enqueue := func(tx outbox.Execer, of string, opts ...delayq.JobOption) {
		w.T.Helper()
		_, err := w.ob.Enqueue(w.Context(), tx, "topic", id(of), make([]byte, 5000), opts...)
		require.NoError(w, err)
	}
	const many = 200
	each := func(do func(tx *sql.Tx, of string)) {
		w.T.Helper()
		tx, err := as(writer).BeginTx(w.Context(), nil)
		require.NoError(w, err)
		defer func() { _ = tx.Rollback() }()
		for i := range many {
			do(tx, fmt.Sprint(i))
		}
		require.NoError(w, tx.Commit())
		sent()
	}
	each(func(tx *sql.Tx, of string) { enqueue(tx, "a"+of) })
	dead := w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox_dead")
	// The keys of rows are taken in the other tables.
	twin := func(of, table, other, more string, opts ...delayq.JobOption) {
		w.T.Helper()
		w.tx(func(tx *sql.Tx) {
			enqueue(tx, of, opts...)
			key := w.number(tx, "SELECT MAX(seq) FROM delayq_outbox")
			_, err := tx.Exec(fmt.Sprintf("INSERT INTO delayq_outbox_%s SELECT %d, shard, kind, topic, %s, replaces, due_at, delay_ms, made, record, %s FROM delayq_outbox WHERE seq = %[2]d /* test */", table, key, other, more))
			require.NoError(w, err)
		})
		sent()
	}
	each(func(tx *sql.Tx, of string) { enqueue(tx, "a"+of) })
	twin("a1", "dead", "id", "'twin', made")
	require.Equal(w, dead+many+2, w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox_dead"))
	each(func(tx *sql.Tx, of string) { enqueue(tx, "far"+of, delayq.ProcessIn(far)) })
	w.exec("UPDATE delayq_outbox_later SET shard = 7 WHERE seq = 1") // of a relay with more shards
	twin("more", "later", "(SELECT id FROM delayq_outbox_later WHERE seq = 2)", "made + 1000000000", delayq.ProcessIn(far))
	each(func(tx *sql.Tx, of string) {
		require.NoError(w, w.ob.Reschedule(w.Context(), tx, "topic", id("far"+of), delayq.ProcessIn(2*far)))
	})
	each(func(tx *sql.Tx, of string) { enqueue(tx, "far"+of, delayq.ProcessIn(far), delayq.Replace()) })
	each(func(tx *sql.Tx, of string) { require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", id("far"+of))) })
	w.exec("UPDATE delayq_outbox_later SET due = 1 WHERE seq BETWEEN 100 AND 300")
	w.until("the later row is sent", func() bool { return w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox_later WHERE due = 1") == 0 })

	full.on.Store(true)
	_, err := w.ob.Enqueue(w.Context(), auto, "full", id("1"), nil)
	require.NoError(w, err)
	w.until("the topic was refused", func() bool { return full.times.Load() > 0 })
	enqueue(auto, "passes")
	w.until("others pass", func() bool {
		return w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox WHERE shard = 0 AND topic = 'topic'") == 0
	})
	full.on.Store(false)
	sent()

	again := func() {
		w.T.Helper()
		w.lose()
		_, err := w.ob.Resend(w.Context(), as(resender), began)
		require.NoError(w, err)
		w.until("the request is done", func() bool { return w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox_resend") == 0 })
		sent()
		require.Contains(w, w.jobs("topic"), id("passes"))
	}
	again()
	// A row that waits has the key of a kept one.
	over := ""
	if w.dialect == outbox.Postgres {
		over = "OVERRIDING SYSTEM VALUE "
	}
	w.exec("INSERT INTO delayq_outbox " + over + "SELECT seq, 1, kind, topic, id, replaces, due_at, delay_ms, made, record FROM delayq_outbox_sent WHERE sent = (SELECT MAX(sent) FROM delayq_outbox_sent WHERE kind = 1)")
	enqueue(auto, "last")
	require.NoError(w, w.ob.Reschedule(w.Context(), auto, "topic", id("last"), delayq.ProcessIn(time.Minute)))
	sent()
	again()
	stop()
	w.asks(as)
	// A relay finds out how far the one before it has come, and goes on with its lease.
	_, stop = w.run(as(relay), w.client, outbox.Horizon(time.Hour), outbox.Keep(90*time.Minute))
	until := "SELECT MAX(held_until) FROM delayq_outbox_shards"
	for range 2 {
		before := w.number(w.db, until)
		w.until("the lease is extended", func() bool { return w.number(w.db, until) > before })
	}
	stop()
	few := min(9000, w.large/2) // one look finds so many
	// A relay that keeps fewer rows deletes the others.
	kept := w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox_sent")
	_, stop = w.run(as(relay), w.client, outbox.Horizon(time.Hour), outbox.Keep(59*time.Minute), outbox.DeadLimit(few, 1000*time.Hour), outbox.Lease(time.Minute))
	w.until("old rows are deleted", func() bool { return w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox_sent") < kept })
	w.until("dead rows are deleted", func() bool { return w.number(w.db, "SELECT COUNT(*) FROM delayq_outbox_dead") <= int64(few) })
	stop()
}

// asks makes the calls that need no relay.
func (w *crowd) asks(as func(who string) *sql.DB) {
	s, err := w.ob.Stats(w.Context(), as(watcher))
	require.NoError(w, err)
	require.Positive(w, s.Dead)
	dead, err := w.ob.Dead(w.Context(), as(operator), int64(2*w.large), 1000)
	require.NoError(w, err)
	require.NotEmpty(w, dead)
	found, err := w.ob.Discard(w.Context(), outbox.Autocommit(as(operator)), dead[0].Seq)
	require.NoError(w, err)
	require.True(w, found)
	tx, err := as(operator).BeginTx(w.Context(), nil)
	require.NoError(w, err)
	found, err = w.ob.Revive(w.Context(), tx, dead[1].Seq)
	require.NoError(w, err)
	require.True(w, found)
	require.NoError(w, tx.Rollback())
	for _, c := range []struct {
		table, who string
		kind       outbox.FindingKind
	}{{"delayq_outbox", checker, outbox.FindingLostShard}, {"none", owner, outbox.FindingNoTable}} {
		ob, err := outbox.New(w.dialect, outbox.Table(c.table))
		require.NoError(w, err)
		report, err := ob.Check(w.Context(), as(c.who), time.Hour)
		require.NoError(w, err)
		require.True(w, slices.ContainsFunc(report.Findings, func(f outbox.Finding) bool { return f.Kind == c.kind }), c.kind)
	}
	in, err := outbox.NewInbox(w.dialect)
	require.NoError(w, err)
	job := w.job()
	tx, err = as(handler).BeginTx(w.Context(), nil)
	require.NoError(w, err)
	first, err := in.Once(w.Context(), tx, job)
	require.NoError(w, err)
	require.True(w, first)
	require.NoError(w, tx.Commit())
	_, err = in.Trim(w.Context(), outbox.Autocommit(as(trimmer)), time.Hour)
	require.NoError(w, err)
}

// A refusing hook answers for a Redis that has no memory for a topic.
type refusing struct {
	mortalHook
	on    atomic.Bool
	times atomic.Int64
}

// A noMemory is what Redis answers then.
type noMemory string

func (e noMemory) Error() string { return string(e) }
func (noMemory) RedisError()     {}

func (h *refusing) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.on.Load() && strings.HasPrefix(cmd.Name(), "eval") && strings.Contains(fmt.Sprint(cmd.Args()...), "{full}") {
			h.times.Add(1)
			err := noMemory("OOM command not allowed when used memory > 'maxmemory'.")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h *refusing) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
