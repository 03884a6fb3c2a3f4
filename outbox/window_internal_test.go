package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/sqltest"
)

// keepMany writes n kept rows of plans of 999 rows, from a time and a key on, that were kept for a
// span.
func (h *holding) keepMany(t *testing.T, n int, at, seq, span int64) {
	t.Helper()
	numbers := "WITH RECURSIVE g(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM g WHERE n < " + fmt.Sprint(n-1) + ") SELECT n FROM g"
	_, err := h.db.Exec("INSERT INTO delayq_outbox_sent (seq, " + rowNames + ", sent, number, span, began, slot) " +
		fmt.Sprintf("SELECT %d + n, 0, 1, 'topic', 'id', '', 0, 0, 0, 'record', %d + n / 999, 1, %d, 5, 6 FROM (%s) AS numbers", seq, at, span, numbers))
	require.NoError(t, err)
}

// Windows pass no kept row, also if the end of one is in the middle of a plan.
func TestWindowsPassNoRow(t *testing.T) {
	h, _ := newHolding(t, Keep(time.Hour))
	for n, windows := range map[int]int{1: 1, windowRows - 1: 1, windowRows: 2, windowRows + 50: 2, 25_000: 3} {
		_, err := h.db.Exec("DELETE FROM delayq_outbox_sent")
		require.NoError(t, err)
		h.keepMany(t, n, 1000, 1, 1)
		for since, most := range map[int64]int{0: n, 1000: n, 1001: n - 999} {
			lowest, greatest, looks := int64(0), int64(0), 0
			for before := int64(latest); before > 0; looks++ {
				var next int64
				for expression, to := range map[string]*int64{"seq": &greatest, "-seq": &lowest} {
					err := h.using(t.Context(), func(ctx context.Context) error {
						w, err := h.window(ctx, expression, since, before)
						if w.value.Valid && (*to == 0 || w.value.Int64 > *to) {
							*to = w.value.Int64
						}
						next = w.next
						return err
					})
					require.NoError(t, err)
				}
				before = next
			}
			if most > 0 {
				require.EqualValues(t, n, greatest)
				require.EqualValues(t, n-most+1, -lowest, "of %d rows since %d", n, since)
			}
			if since == 0 {
				require.Equal(t, windows, looks, n)
			}
		}
	}
}

// A relay that keeps rows for another time than the one before it finds the last plan that was kept
// for its own time, behind many others, and makes no plan before that.
func TestMarkerBehindManyKeptRows(t *testing.T) {
	h, _ := newHolding(t, Keep(time.Hour))
	h.keepMany(t, 3, 1000, 1, time.Hour.Milliseconds())
	h.keepMany(t, 25_000, 2000, 100, time.Minute.Milliseconds())
	h.enqueue(t, "a", 1)
	for _, want := range []marker{{span: time.Hour.Milliseconds(), began: 5, slot: 6}, {}} {
		h.release(t.Context())
		h.number, h.trims = 0, time.Now().Add(time.Hour)
		turns := 0
		for turns == 0 || h.recall > 0 {
			require.Empty(t, h.plan)
			_, err := h.turn(t.Context())
			require.NoError(t, err)
			turns++
		}
		require.Equal(t, 3, turns)
		require.Equal(t, want, h.last)
		_, err := h.db.Exec("DELETE FROM delayq_outbox_sent WHERE sent = 1000")
		require.NoError(t, err)
	}
}

// PostgreSQL goes on with its sequence, whatever keys were written. A relay finds out if kept rows
// have keys that writers will get, however many rows there are, and only of those that count.
func TestKeysBehindManyKeptRows(t *testing.T) {
	dsn, err := Servers[Postgres]()
	if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	admin, err := sql.Open("pgx", fmt.Sprintf(dsn, "postgres"))
	require.NoError(t, err)
	defer admin.Close()
	_, err = admin.Exec("CREATE DATABASE behind")
	require.NoError(t, err)
	defer func() {
		_, err := admin.Exec("DROP DATABASE behind WITH (FORCE)")
		require.NoError(t, err)
	}()
	db, err := sql.Open("pgx", fmt.Sprintf(dsn, "behind"))
	require.NoError(t, err)
	defer db.Close()
	ob, err := New(Postgres)
	require.NoError(t, err)
	require.NoError(t, ob.Migrate(t.Context(), db))
	h := &holding{Relay: ob.Relay(db, new(delayq.Client), Keep(time.Hour), Logger(slog.New(slog.DiscardHandler)))}
	h.number, h.till = 1, time.Now().Add(time.Hour)
	h.keepMany(t, 1, 1000, 500_000, 1)
	h.keepMany(t, 25_000, 2000, 1, 1)
	for _, c := range []struct {
		last, since int64
		behind      bool
	}{{499_999, 0, true}, {499_999, 1000, true}, {499_999, 1001, false}, {500_000, 0, false}, {24_999, 2000, true}, {25_000, 2000, false}} {
		_, err := db.Exec("SELECT setval(pg_get_serial_sequence('delayq_outbox', 'seq'), $1)", c.last)
		require.NoError(t, err)
		behind, err := h.behind(t.Context(), c.since)
		require.NoError(t, err)
		require.Equal(t, c.behind, behind, c)
	}
}
