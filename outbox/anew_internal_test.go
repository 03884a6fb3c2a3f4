package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// A far database is one in which a transaction of more statements takes too long.
type far struct {
	under driver.Driver
	dsn   string
	most  int
	late  int // transactions that took too long
}

func (f *far) Driver() driver.Driver { return f.under }

func (f *far) Connect(context.Context) (driver.Conn, error) {
	conn, err := f.under.Open(f.dsn)
	return &farConn{Conn: conn, far: f}, err
}

type farConn struct {
	driver.Conn
	far   *far
	begun bool
	n     int
}

func (c *farConn) step(query string) error {
	switch query {
	case "BEGIN IMMEDIATE":
		c.begun, c.n = true, 0
	case "ROLLBACK":
		c.begun = false
	}
	if c.n++; c.begun && c.n > c.far.most {
		c.far.late++
		return context.DeadlineExceeded
	}
	c.begun = c.begun && query != "COMMIT"
	return nil
}

func (c *farConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.step(query); err != nil {
		return nil, err
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c *farConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.step(query); err != nil {
		return nil, err
	}
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

// Rows are sent again although a transaction with all of them, or with many, would take too long:
// rows that get new keys because keys have started again. Those that keep their keys, such as
// reschedules of jobs that are not sent again, take few statements.
func TestResendWithAFarDatabase(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Run("keys again "+strconv.FormatBool(again), func(t *testing.T) {
			const rows = 40
			h, rdb := newHolding(t, Keep(time.Hour), Batch(1))
			var dsn string
			require.NoError(t, h.db.QueryRow("SELECT file FROM pragma_database_list WHERE name = 'main'").Scan(&dsn))
			f := &far{under: h.db.Driver(), dsn: "file:" + dsn + "?_pragma=busy_timeout(10000)", most: 12}
			h.db = sql.OpenDB(f)
			defer h.db.Close()
			turn := func(over func() bool) {
				t.Helper()
				for range 300 {
					if _, _ = h.turn(t.Context()); over() { // it may fail
						return
					}
				}
				require.Fail(t, "rows are stuck")
			}
			empty := func() bool {
				var n int
				require.NoError(t, h.db.QueryRow("SELECT (SELECT COUNT(*) FROM delayq_outbox) + (SELECT COUNT(*) FROM delayq_outbox_resend)").Scan(&n))
				return n == 0
			}
			for i := range rows {
				if again {
					h.enqueue(t, "kept "+strconv.Itoa(i), 1)
				} else {
					require.NoError(t, h.box.Reschedule(t.Context(), Autocommit(h.db), "topic", "gone "+strconv.Itoa(i), delayq.ProcessIn(time.Hour)))
				}
			}
			turn(empty)
			require.NoError(t, rdb.FlushAll(t.Context()).Err())
			if again {
				_, err := h.db.Exec("DELETE FROM sqlite_sequence WHERE name = 'delayq_outbox'")
				require.NoError(t, err)
				for i := range rows {
					h.enqueue(t, "new "+strconv.Itoa(i), 1)
				}
			}
			require.Zero(t, f.late)
			_, err := h.db.Exec("INSERT INTO delayq_outbox_resend (shard, since) VALUES (0, 1)")
			require.NoError(t, err)
			turn(empty)
			require.Equal(t, again, f.late > 0, "transactions with rows that get new keys are too large at first")
			if !again {
				return
			}
			require.EqualValues(t, 2*rows, rdb.HLen(t.Context(), "delayq:{topic}:pool").Val())
			list, err := h.db.Query("SELECT id FROM delayq_outbox_sent WHERE seq > ? ORDER BY seq", rows)
			require.NoError(t, err)
			defer list.Close()
			for i := range rows {
				var id []byte
				require.True(t, list.Next())
				require.NoError(t, list.Scan(&id))
				require.Equal(t, "kept "+strconv.Itoa(i), string(id))
			}
			require.NoError(t, list.Err())
		})
	}
}

// A transaction does more while it is fast, and less when it is slow or has failed.
func TestPace(t *testing.T) {
	h := &holding{Relay: &Relay{o: relayOptions{lease: 16 * time.Second}}}
	require.Equal(t, firstPace, h.pace())
	h.paced(time.Second, nil)
	require.Equal(t, firstPace, h.pace())
	h.paced(3*time.Second, nil)
	require.Equal(t, firstPace/2, h.pace())
	for range 10 {
		h.paced(0, errDatabase)
	}
	require.Equal(t, 1, h.pace())
	for range 10 {
		h.paced(0, nil)
	}
	require.Equal(t, mostPace, h.pace())
}
