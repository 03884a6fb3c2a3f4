package outbox_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// disk mounts a small one for a server of an account. Without the right to mount, the test is
// skipped.
func disk(t *testing.T, account string) (dir string, stop func()) {
	dir, stop, err := sqltest.SmallDisk(account, 32<<20)
	if errors.Is(err, sqltest.ErrMissing) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return dir, stop
}

// A small world is one whose database has room for little.
type small struct {
	*world
	dir string // of the disk of MariaDB
}

func newSmall(t *testing.T, d *database) *small {
	driverName, dsn := d.fresh(t)
	s := &small{}
	switch d.dialect {
	case outbox.SQLite: // the bound is that of a connection
		dsn += "&_pragma=max_page_count(1000)"
	case outbox.Postgres:
		dir, stop := disk(t, "postgres")
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
	default: // the folder of the database is on the disk, and the logs of the server are not
		dir, stop := disk(t, "mysql")
		admin, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		var data, name string
		require.NoError(t, admin.QueryRow("SELECT @@datadir, DATABASE()").Scan(&data, &name))
		options, err := os.ReadFile(filepath.Join(data, name, "db.opt"))
		require.NoError(t, err)
		folder := filepath.Join(dir, "data") // DROP DATABASE removes it
		require.NoError(t, os.Mkdir(folder, 0o777))
		require.NoError(t, os.Chmod(folder, 0o777)) // the server has an account of its own
		require.NoError(t, os.WriteFile(filepath.Join(folder, "db.opt"), options, 0o644))
		require.NoError(t, os.RemoveAll(filepath.Join(data, name)))
		require.NoError(t, os.Symlink(folder, filepath.Join(data, name)))
		t.Cleanup(func() {
			_, err := admin.Exec("DROP DATABASE " + name)
			require.NoError(t, err)
			_ = admin.Close()
			stop()
		})
		s.dir = dir
	}
	s.world = newWorld(t, d)
	db, err := sql.Open(driverName, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	s.db = db
	require.NoError(t, s.ob.Migrate(t.Context(), db))
	return s
}

// fill leaves no room.
func (s *small) fill() {
	s.Helper()
	if s.dir != "" { // a table grows by more at a time than is left in the end
		file, err := os.Create(filepath.Join(s.dir, "junk"))
		require.NoError(s, err)
		defer file.Close()
		for size := 1 << 20; size > 0; size /= 2 {
			for err = nil; err == nil; {
				_, err = file.Write(make([]byte, size))
			}
			require.ErrorIs(s, err, syscall.ENOSPC)
		}
		return
	}
	_, err := s.db.Exec("CREATE TABLE junk (text text)")
	require.NoError(s, err)
	if s.dialect == outbox.Postgres { // it would compress them
		_, err = s.db.Exec("ALTER TABLE junk ALTER COLUMN text SET STORAGE EXTERNAL")
		require.NoError(s, err)
	}
	for size := 1 << 20; size >= 8; size /= 2 { // down to the last row that fits
		for err = nil; err == nil; {
			_, err = s.db.Exec("INSERT INTO junk VALUES ('" + strings.Repeat("x", size) + "')")
		}
		require.True(s, full(err), err)
	}
}

// clear makes room again.
func (s *small) clear() {
	s.Helper()
	if s.dir != "" {
		require.NoError(s, os.Remove(filepath.Join(s.dir, "junk")))
		return
	}
	_, err := s.db.Exec("DROP TABLE junk")
	require.NoError(s, err)
}

// full reports whether an error says that the database has no room.
func full(err error) bool {
	return err != nil && regexp.MustCompile(`disk is full|53100|Error 1114 .* is full`).MatchString(err.Error())
}

// While the disk of the database is full, callers get an error for what is not written, and the
// relay tries again. No committed row is lost, and none is sent twice. Both go on when there is
// room.
func TestFullDisk(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		w := newSmall(t, d)
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
		w.fill()
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

		w.clear()
		w.drained()
		require.ElementsMatch(t, committed, w.jobs("topic"))
		require.Equal(t, fmt.Sprint(len(committed)), w.rdb.HGet(t.Context(), "delayq:{topic}:stats", "enqueued").Val())
		require.Empty(t, w.dead())
		w.until("the relay is ready", func() bool { return relay.Ready() == nil })
		require.NotZero(t, log.pauses(t))
	})
}
