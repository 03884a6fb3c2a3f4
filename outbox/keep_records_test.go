package outbox_test

import (
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// Large records of rows that are sent again are read by the key of the table.
func TestResendReadsRecordsByTheirKey(t *testing.T) {
	eachWorld(t, func(w *world) {
		driverName, dsn := w.fresh(w.T)
		db, err := sql.Open(driverName, dsn)
		require.NoError(w, err)
		w.Cleanup(func() { _ = db.Close() })
		require.NoError(w, w.ob.Migrate(w.Context(), db))
		w.db = db
		var mu sync.Mutex
		read := ""
		life := sqltest.NewLife(1<<40, false)
		life.Hear = func(statement string) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasPrefix(statement, "SELECT seq, record FROM delayq_outbox_sent") {
				read = statement
			}
		}
		behind := life.Open(db.Driver(), dsn)
		w.Cleanup(func() { _ = behind.Close() })
		_, stop := w.run(behind, w.client, outbox.Keep(time.Hour), outbox.Lease(time.Minute))
		for i := range 20 {
			w.enqueue(w.db, fmt.Sprint(i))
		}
		w.tx(func(tx *sql.Tx) { // in one plan
			for _, id := range []string{"large", "larger"} {
				_, err := w.ob.Enqueue(w.Context(), tx, "topic", id, make([]byte, 10_000))
				require.NoError(w, err)
			}
		})
		w.drained()
		w.lose()
		w.resend(time.Now().Add(-time.Hour))
		stop()
		require.Len(w, w.jobs("topic"), 22)
		require.NotEmpty(w, read)
		switch w.dialect {
		case outbox.SQLite:
			var id, parent, unused int
			var detail string
			require.NoError(w, w.db.QueryRow("EXPLAIN QUERY PLAN "+read).Scan(&id, &parent, &unused, &detail))
			require.Contains(w, detail, "(shard=? AND sent=? AND seq=?)")
		case outbox.MySQL:
			rows, err := w.db.Query("EXPLAIN " + read)
			require.NoError(w, err)
			defer rows.Close()
			require.True(w, rows.Next())
			var unused sql.NullString
			var keys sql.NullString
			require.NoError(w, rows.Scan(&unused, &unused, &unused, &unused, &keys, &unused, &unused, &unused, &unused, &unused))
			require.Equal(w, "PRIMARY", keys.String)
		}
	})
}
