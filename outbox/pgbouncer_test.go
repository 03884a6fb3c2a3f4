package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// Callers, relays and an inbox share two connections of a PgBouncer in transaction mode. Without a
// PgBouncer the test is skipped, or fails under CI.
func TestPgBouncerInTransactionMode(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect != outbox.Postgres {
			t.Skip("PgBouncer is for PostgreSQL")
		}
		through, stop, err := sqltest.PgBouncer(d.dsn)
		if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
			t.Skip(err)
		}
		require.NoError(t, err)
		defer stop()
		w := newWorld(t, d)
		var name string
		require.NoError(t, w.db.QueryRow("SELECT current_database()").Scan(&name))
		w.db, err = sql.Open("pgx", fmt.Sprintf(through, path.Base(name))+"&default_query_exec_mode=exec")
		require.NoError(t, err)
		defer w.db.Close()
		require.NoError(t, w.ob.Migrate(t.Context(), w.db))

		stops := []func(){w.relay(outbox.Horizon(2*time.Hour), outbox.Keep(time.Hour)), w.relay(outbox.Horizon(2*time.Hour), outbox.Keep(time.Hour))}
		const callers, each = 8, 25
		var group sync.WaitGroup
		for c := range callers {
			group.Go(func() {
				for n := range each {
					id := strconv.Itoa(c) + "-" + strconv.Itoa(n)
					w.tx(func(tx *sql.Tx) {
						w.enqueue(tx, id)
						w.enqueue(tx, "far "+id, delayq.ProcessIn(24*time.Hour))
					})
					w.tx(func(tx *sql.Tx) {
						require.NoError(w, w.ob.Dequeue(w.Context(), tx, "topic", "far "+id))
						require.NoError(w, w.ob.Reschedule(w.Context(), tx, "topic", id, delayq.ProcessIn(time.Minute)))
					})
					w.ob.Nudge()
				}
			})
		}
		group.Wait()
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		require.Len(w, w.jobs("topic"), callers*each)
		dead, err := w.ob.Dead(w.Context(), w.db, 0, 10)
		require.NoError(w, err)
		require.Empty(w, dead)

		in, err := outbox.NewInbox(outbox.Postgres)
		require.NoError(w, err)
		job, err := w.client.Enqueue(w.Context(), "other", "id", nil)
		require.NoError(w, err)
		for _, want := range []bool{true, false} {
			w.tx(func(tx *sql.Tx) {
				first, err := in.Once(w.Context(), tx, job)
				require.NoError(w, err)
				require.Equal(w, want, first)
			})
		}
		report, err := w.ob.Check(w.Context(), w.db, time.Minute)
		require.NoError(w, err)
		require.Empty(w, report.Findings)
		for _, stop := range stops {
			stop()
		}
	})
}
