package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// small returns a world whose database has room for little.
func small(t *testing.T, d *database) *world {
	driverName, dsn := d.fresh(t)
	switch d.dialect {
	case outbox.SQLite: // the bound is that of a connection
		dsn += "&_pragma=max_page_count(1000)"
	case outbox.Postgres:
		dir, stop, err := sqltest.SmallDisk("postgres", 32<<20)
		if errors.Is(err, sqltest.ErrMissing) {
			t.Skip(err)
		}
		require.NoError(t, err)
		admin, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		name := "small" + filepath.Base(dir)[len("delayq-postgres"):]
		for _, statement := range []string{"CREATE TABLESPACE " + name + " LOCATION '" + dir + "'", "CREATE DATABASE " + name + " TABLESPACE " + name} {
			_, err = admin.Exec(statement)
			require.NoError(t, err)
		}
		dsn = fmt.Sprintf(d.dsn, name)
		t.Cleanup(func() {
			for _, statement := range []string{"DROP DATABASE " + name + " WITH (FORCE)", "DROP TABLESPACE " + name} {
				_, err = admin.Exec(statement)
				require.NoError(t, err)
			}
			_ = admin.Close()
			stop()
		})
	default:
		t.Skip("a small disk for MariaDB would be that of all its databases")
	}
	w := newWorld(t, d)
	db, err := sql.Open(driverName, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	w.db = db
	require.NoError(t, w.ob.Migrate(t.Context(), db))
	return w
}

// full reports whether an error says that the database has no room.
func full(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "disk is full") || strings.Contains(err.Error(), "53100"))
}

// While the disk of the database is full, callers get an error for what is not written, and the
// relay tries again. No committed row is lost, and none is sent twice. Both go on when there is
// room.
func TestFullDisk(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		w := small(t, d)
		_, err := w.db.Exec("CREATE TABLE junk (text text)")
		require.NoError(t, err)
		if d.dialect == outbox.Postgres { // it would compress them
			_, err = w.db.Exec("ALTER TABLE junk ALTER COLUMN text SET STORAGE EXTERNAL")
			require.NoError(t, err)
		}
		var committed []string
		put := func(id string) error {
			_, err := w.ob.Enqueue(t.Context(), outbox.Autocommit(w.db), "topic", id, make([]byte, 3000))
			if err == nil {
				committed = append(committed, id)
			}
			return err
		}
		for i := range 50 {
			require.NoError(t, put(fmt.Sprint("before ", i)))
		}
		for size := 1 << 20; size >= 8; size /= 2 { // down to the last row that fits
			for err = nil; err == nil; {
				_, err = w.db.Exec("INSERT INTO junk VALUES ('" + strings.Repeat("x", size) + "')")
			}
			require.True(t, full(err), err)
		}
		for i, refused := 0, 0; refused < 3; i++ {
			if err := put(fmt.Sprint("during ", i)); err != nil {
				require.True(t, full(err), err)
				refused++
			}
		}
		var log diary
		relay, _ := w.run(w.db, w.client, outbox.Keep(time.Hour), outbox.Lease(time.Minute), log.option()) // it writes what it keeps
		w.until("the relay has no room", func() bool { return full(relay.State().Err) })
		require.NoError(t, relay.Live(), "a restart would not help")

		_, err = w.db.Exec("DROP TABLE junk")
		require.NoError(t, err)
		w.drained()
		require.ElementsMatch(t, committed, w.jobs("topic"))
		require.Equal(t, fmt.Sprint(len(committed)), w.rdb.HGet(t.Context(), "delayq:{topic}:stats", "enqueued").Val())
		require.Empty(t, w.dead())
		w.until("the relay is ready", func() bool { return relay.Ready() == nil })
		require.NotZero(t, log.pauses(t))
	})
}
