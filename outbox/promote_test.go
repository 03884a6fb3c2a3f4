package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// A PostgreSQL fails over to a replica that has not received the last transactions, and whose clock
// is behind. The relay reaches both through one address. Each row that the replica has or gets
// makes its job.
func TestFailoverOfTheDatabase(t *testing.T) {
	for _, behind := range []time.Duration{0, 4 * time.Second, time.Minute} {
		t.Run(behind.String(), func(t *testing.T) {
			t.Parallel()
			dsn, stopPrimary, err := sqltest.Postgres()
			if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
				t.Skip(err)
			}
			require.NoError(t, err)
			running := true
			defer func() {
				if running {
					stopPrimary()
				}
			}()
			open := func(dsn string) *sql.DB {
				db, err := sql.Open("pgx", fmt.Sprintf(dsn, "postgres"))
				require.NoError(t, err)
				t.Cleanup(func() { _ = db.Close() })
				return db
			}
			primary := open(dsn)
			w := newWorld(t, databases[0].started())
			w.db = primary
			w.ob, err = outbox.New(outbox.Postgres)
			require.NoError(t, err)
			require.NoError(t, w.ob.Migrate(t.Context(), primary))
			copied, stopReplica, err := sqltest.PostgresReplica(dsn, behind)
			if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
				t.Skip(err)
			}
			require.NoError(t, err)
			defer stopReplica()
			replica := open(copied)

			g := newGate(t, sqltest.Host(dsn))
			var log diary
			w.run(open(w.through(g, dsn)), w.client, log.option())
			n := 0
			write := func(rows int) {
				for range rows {
					w.enqueue(w.db, strconv.Itoa(n))
					n++
				}
				w.drained()
			}
			write(50)
			w.until("the replica has the rows", func() bool {
				s, err := w.ob.Stats(t.Context(), replica)
				return err == nil && s.Rows == 0
			})
			require.NoError(t, sqltest.Cut(t.Context(), replica))
			write(20) // they are lost in the database, but not in Redis
			stopPrimary()
			running = false
			require.NoError(t, sqltest.Promote(t.Context(), replica))
			g.to.Store(sqltest.Host(copied))
			w.db = replica
			write(100)
			require.Len(t, w.jobs("topic"), n)
			require.Empty(t, w.dead())
			if behind > 0 {
				require.Equal(t, 1, strings.Count(log.String(), "another name"), log.String())
			}
		})
	}
}
