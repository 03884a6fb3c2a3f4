package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// bury writes n dead rows with every seventh key.
func (w *world) bury(n int) {
	w.Helper()
	numbers := map[outbox.Dialect]string{
		outbox.Postgres: "SELECT n FROM generate_series(1, %d) AS g(n)",
		outbox.MySQL:    "SELECT seq AS n FROM seq_1_to_%d",
		outbox.SQLite:   "WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < %d) SELECT n FROM g",
	}
	_, err := w.db.Exec("INSERT INTO delayq_outbox_dead (seq, shard, kind, topic, id, replaces, due_at, delay_ms, made, record, reason, refused) " +
		fmt.Sprintf("SELECT n * 7, 0, 1, 'topic', '1', '', 0, 0, 0, 'record', 'why', %d FROM (", time.Now().UnixMilli()) +
		fmt.Sprintf(numbers[w.dialect], n) + ") AS numbers")
	require.NoError(w, err)
}

// buried waits until there are n dead rows, and returns the lowest key.
func (w *world) buried(n int) (least int64) {
	w.Helper()
	require.Eventually(w, func() bool {
		var found int
		err := w.db.QueryRow("SELECT COUNT(*), COALESCE(MIN(seq), 0) FROM delayq_outbox_dead").Scan(&found, &least)
		return err == nil && found == n
	}, 10*time.Minute, 20*time.Millisecond) // a count of many rows keeps SQLite busy
	return least
}

// A relay that finds out whether there are too many dead rows reads a bounded number of them in a
// statement, and so does one that deletes some.
func TestLooksAtDeadRowsAreBounded(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.bury(30_000)
		if w.dialect == outbox.MySQL { // a server that tells how many rows a statement has read
			for _, setting := range []string{"log_output = 'TABLE'", "long_query_time = 0", "slow_query_log = 1"} {
				_, err := w.db.Exec("SET GLOBAL " + setting)
				require.NoError(w, err)
			}
			w.db.SetMaxIdleConns(0) // so that all connections have the setting
			defer func() { _, _ = w.db.Exec("SET GLOBAL slow_query_log = 0") }()
		}
		stop := w.relay(outbox.DeadLimit(25_000, time.Hour))
		require.EqualValues(w, 5_001*7, w.buried(25_000))
		stop()
		if w.dialect != outbox.MySQL {
			return
		}
		var most int
		var text string
		require.NoError(w, w.db.QueryRow("SELECT rows_examined, sql_text FROM mysql.slow_log WHERE sql_text LIKE '%outbox_dead%' AND sql_text NOT LIKE 'SELECT COUNT(*), COALESCE(MIN(seq), 0) FROM delayq_outbox_dead' "+
			"ORDER BY rows_examined DESC LIMIT 1").Scan(&most, &text))
		require.Less(w, most, 25_000, text)
		require.Positive(w, most)
	})
}

// Dead rows that an open transaction of somebody else has locked hold up neither the rows that wait
// nor the deletion of others.
func TestLockedDeadRowsHoldUpNothing(t *testing.T) {
	eachWorld(t, func(w *world) {
		if w.dialect == outbox.SQLite {
			w.Skip("a transaction that writes locks the whole database")
		}
		w.bury(50)
		tx, err := w.db.BeginTx(w.Context(), nil)
		require.NoError(w, err)
		defer func() { _ = tx.Rollback() }()
		for _, seq := range []int64{5 * 7, 45 * 7} { // over the limit, and not
			found, err := w.ob.Discard(context.Background(), tx, seq)
			require.NoError(w, err)
			require.True(w, found)
		}
		log := new(diary)
		_, stop := w.run(w.db, w.client, outbox.DeadLimit(20, time.Hour), outbox.Lease(10*time.Minute), log.option())
		defer stop()
		require.EqualValues(w, 5*7, w.buried(21))
		w.enqueue(w.db, "job")
		w.drained()
		require.Equal(w, []string{"job"}, w.jobs("topic"))
		require.NotContains(w, log.String(), "outbox relay waits")
	})
}

// Rows beyond the horizon that Redis refuses go to the dead rows while a transaction has locked
// such a row of another shard.
func TestRefusedLaterRowsWaitForNoOthers(t *testing.T) {
	eachWorld(t, func(w *world) {
		if w.dialect == outbox.SQLite {
			w.Skip("a transaction that writes locks the whole database")
		}
		stop := w.relay(outbox.Horizon(time.Hour))
		var ids []string
		for i := range 10 {
			ids = append(ids, fmt.Sprint(i))
			w.enqueue(w.db, ids[i], delayq.ProcessIn(2*time.Hour))
		}
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 && s.Later == 10 })
		stop()
		for _, id := range ids {
			_, err := w.client.Enqueue(w.Context(), "topic", id, nil)
			require.NoError(w, err)
		}
		_, err := w.db.Exec("INSERT INTO delayq_outbox_later (seq, shard, kind, topic, id, replaces, due_at, delay_ms, made, record, due) " +
			"SELECT seq + 100, 1, kind, topic, id, replaces, due_at, delay_ms, made, record, due FROM delayq_outbox_later")
		require.NoError(w, err)
		w.tx(func(tx *sql.Tx) {
			var seq int64
			require.NoError(w, tx.QueryRow("SELECT MIN(seq) FROM delayq_outbox_later WHERE shard = 1").Scan(&seq))
			_, err := tx.Exec(fmt.Sprint("UPDATE delayq_outbox_later SET made = made + 1 WHERE seq = ", seq)) // by its key, which locks no other
			require.NoError(w, err)
			w.run(w.db, w.client, outbox.Lease(10*time.Minute))
			w.buried(10)
		})
	})
}

// A dead row that somebody deletes while it is revived is not written.
func TestReviveBesideADeletion(t *testing.T) {
	eachWorld(t, func(w *world) {
		waits := map[outbox.Dialect]string{
			outbox.Postgres: "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
			// Unlike this, innodb_lock_waits stays as it was while it is read every 10 ms.
			outbox.MySQL: "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'innodb_row_lock_current_waits'",
		}[w.dialect]
		if waits == "" {
			w.Skip("transactions that write come one after the other")
		}
		w.bury(3)
		begin := func() *sql.Tx {
			tx, err := w.db.BeginTx(w.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			require.NoError(w, err)
			w.Cleanup(func() { _ = tx.Rollback() })
			return tx
		}
		one, other := begin(), begin()
		found, err := w.ob.Discard(w.Context(), one, 7)
		require.NoError(w, err)
		require.True(w, found)
		failed := make(chan error, 1)
		go func() {
			var err error
			found, err = w.ob.Revive(w.Context(), other, 7)
			failed <- err
		}()
		require.Eventually(w, func() bool {
			var n int
			err := w.db.QueryRow(waits).Scan(&n)
			return err == nil && n > 0
		}, 10*time.Minute, 10*time.Millisecond)
		require.NoError(w, one.Commit())
		require.NoError(w, <-failed)
		require.False(w, found)
		require.NoError(w, other.Commit())
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.Zero(w, s.Rows)
		require.EqualValues(w, 2, s.Dead)

		w.tx(func(tx *sql.Tx) {
			found, err := w.ob.Revive(w.Context(), tx, 14)
			require.NoError(w, err)
			require.True(w, found)
		})
		s, err = w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.EqualValues(w, 1, s.Rows)
		require.EqualValues(w, 1, s.Dead)
	})
}
