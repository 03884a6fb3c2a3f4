package main

import (
	"database/sql"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/outbox"
)

func TestTimers(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "run", ".")
	cmd.Env = append(cmd.Environ(), "DATABASE_URL=")
	text, err := cmd.Output()
	require.NoError(t, err, string(text))
	require.Equal(t, "2 moved, 1 refused\n0 moved, 0 refused\ncancelled order-2\nuser-7 is scheduled\n", string(text))
}

// The move fails at rows in different batches, and is begun again each time.
func TestMoveIsInterrupted(t *testing.T) {
	db, err := sql.Open("sqlite", sqliteIn(t.TempDir()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	box, err := outbox.New(outbox.SQLite)
	require.NoError(t, err)
	require.NoError(t, box.Migrate(t.Context(), db))
	_, err = db.Exec(table)
	require.NoError(t, err)
	const rows = 2*batchSize + 200
	for id := range rows {
		require.NoError(t, add(db, id, "order:cancel", "order-"+strconv.Itoa(id), time.Now().Add(time.Hour), "pending"))
	}
	m := &mover{db: db, box: box}
	sent := func() int64 {
		stats, err := box.Stats(t.Context(), db)
		require.NoError(t, err)
		return stats.Rows
	}

	total := 0
	for _, at := range []int{0, 37, batchSize, rows - 1} {
		_, err := db.Exec("CREATE TRIGGER stop BEFORE UPDATE ON timers WHEN NEW.id = " + strconv.Itoa(at) +
			" BEGIN SELECT RAISE(ABORT, 'the database is gone'); END")
		require.NoError(t, err)
		moved, refused, err := m.move(t.Context())
		require.ErrorContains(t, err, "timer "+strconv.Itoa(at)+": ")
		require.Zero(t, refused)
		total += moved
		require.Equal(t, at-at%batchSize, total, "whole batches are moved")
		require.EqualValues(t, total, sent(), "nothing of the last batch is left in the outbox")
		_, err = db.Exec("DROP TRIGGER stop")
		require.NoError(t, err)
	}
	for _, want := range []int{rows - total, 0} {
		moved, _, err := m.move(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, moved)
		require.EqualValues(t, rows, sent())
	}
	var ids int
	require.NoError(t, db.QueryRow("SELECT count(*) FROM timers WHERE status = 'moved'").Scan(&ids))
	require.Equal(t, rows, ids)
}
