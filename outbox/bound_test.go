package outbox_test

import (
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// A tally counts the statements of a relay between two of those that extend its lease.
type tally struct {
	mu        sync.Mutex
	now, most int
	last      string // of the most
}

func (c *tally) hear(statement string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case strings.HasPrefix(statement, "SELECT CASE WHEN (SELECT seq"): // an idle relay looks for rows
		return
	case strings.Contains(statement, "delayq_outbox_shards SET held_until"):
		c.now = 0
	}
	if c.now++; c.now > c.most {
		c.most, c.last = c.now, statement[:min(len(statement), 200)]
	}
}

// few fails the test if there were many statements.
func (c *tally) few(w *world) {
	w.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Less(w, c.most, 80, c.last)
	w.Logf("%d statements", c.most)
}

// counted runs a relay whose statements are counted, until the test ends or stop is called.
func (w *world) counted(opts ...outbox.RelayOption) (c *tally, stop func()) {
	driverName, dsn := w.fresh(w.T)
	db, err := sql.Open(driverName, dsn)
	require.NoError(w, err)
	w.Cleanup(func() { _ = db.Close() })
	require.NoError(w, w.ob.Migrate(w.Context(), db))
	w.db = db
	c = new(tally)
	life := sqltest.NewLife(1<<40, false)
	life.Hear = c.hear
	behind := life.Open(db.Driver(), dsn)
	w.Cleanup(func() { _ = behind.Close() })
	_, stop = w.run(behind, w.client, append([]outbox.RelayOption{outbox.Lease(time.Minute)}, opts...)...)
	return c, stop
}

// A relay makes few statements between two that extend its lease, however many rows have an outcome
// that is not the usual one.
func TestStatementsOfAPlanAreFew(t *testing.T) {
	const rows = 300
	large := make([]byte, 15<<10) // of which not all fit into a plan
	each := func(w *world, do func(tx *sql.Tx, id string) error) {
		w.Helper()
		w.tx(func(tx *sql.Tx) {
			for i := range rows {
				require.NoError(w, do(tx, strconv.Itoa(i)))
			}
		})
		w.drained()
	}
	put := func(w *world, payload []byte, opts ...delayq.JobOption) func(tx *sql.Tx, id string) error {
		return func(tx *sql.Tx, id string) error {
			_, err := w.ob.Enqueue(w.Context(), tx, "topic", id, payload, opts...)
			return err
		}
	}
	later := func(w *world, d time.Duration) func(tx *sql.Tx, id string) error {
		return func(tx *sql.Tx, id string) error {
			n, err := strconv.Atoi(id)
			require.NoError(w, err)
			return w.ob.Reschedule(w.Context(), tx, "topic", id, delayq.ProcessIn(d+time.Duration(n)*time.Minute))
		}
	}
	t.Run("refused", func(t *testing.T) {
		eachWorld(t, func(w *world) {
			c, _ := w.counted()
			each(w, put(w, large, delayq.ProcessIn(time.Hour)))
			each(w, put(w, nil))
			require.Len(w, w.dead(), rows)
			require.Len(w, w.jobs("topic"), rows)
			c.few(w)
		})
	})
	t.Run("horizon", func(t *testing.T) {
		eachWorld(t, func(w *world) {
			c, stop := w.counted(outbox.Horizon(time.Hour))
			each(w, put(w, large, delayq.ProcessIn(far), delayq.ExpireIn(3*far)))
			each(w, later(w, 2*far))
			each(w, later(w, 4*far))
			for _, row := range w.dead() {
				require.Contains(w, row.Reason, "job "+strconv.Quote(row.ID)+" expires")
			}
			require.Len(w, w.dead(), rows)
			require.EqualValues(w, rows, w.later())
			stop()
			w.relay()
			w.left(func(s outbox.Stats) bool { return s.Later == 0 })
			for _, n := range []int{0, 150, 299} {
				require.InDelta(w, (2*far + time.Duration(n)*time.Minute).Minutes(), w.due(strconv.Itoa(n)), 1)
			}
			c.few(w)
		})
	})
	t.Run("replaced", func(t *testing.T) {
		eachWorld(t, func(w *world) {
			c, _ := w.counted(outbox.Horizon(time.Hour))
			each(w, put(w, nil, delayq.ProcessIn(far)))
			_, err := w.db.Exec(keysAgain[w.dialect])
			require.NoError(w, err)
			each(w, put(w, nil, delayq.ProcessIn(far), delayq.Replace()))
			require.EqualValues(w, rows, w.later())
			require.Empty(w, w.dead())
			_, err = w.db.Exec(keysAgain[w.dialect])
			require.NoError(w, err)
			each(w, func(tx *sql.Tx, id string) error { return put(w, nil, delayq.ProcessIn(far))(tx, "more "+id) })
			require.EqualValues(w, 2*rows, w.later())
			c.few(w)
		})
	})
	t.Run("again", func(t *testing.T) {
		eachWorld(t, func(w *world) {
			c, _ := w.counted(outbox.Keep(time.Hour))
			each(w, put(w, large, delayq.ProcessIn(time.Hour)))
			each(w, later(w, 2*time.Hour))
			require.NoError(w, w.rdb.FlushAll(w.Context()).Err())
			n, err := w.ob.Resend(w.Context(), w.db, time.Now().Add(-time.Hour))
			require.NoError(w, err)
			require.EqualValues(w, 2*rows, n)
			w.until("they are there again", func() bool { return len(w.jobs("topic")) == rows })
			for _, n := range []int{0, 150, 299} {
				require.InDelta(w, (2*time.Hour + time.Duration(n)*time.Minute).Minutes(), w.due(strconv.Itoa(n)), 1, fmt.Sprint(n))
			}
			c.few(w)
		})
	})
}
