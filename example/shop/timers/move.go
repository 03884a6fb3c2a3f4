package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
)

// A mover moves the pending rows of a table of timers to the outbox.
type mover struct {
	db  *sql.DB
	box *outbox.Outbox
	// lock ends the SELECT. Without it, a poller that still runs could take the same rows. SQLite
	// needs none, because it has one writer at a time.
	lock string
}

// A timer is a pending row.
type timer struct {
	id        int64
	kind, ref string // the topic and the ID of its job
	payload   []byte
	runAt     int64 // Unix ms
}

// batchSize is the most rows that one transaction moves.
const batchSize = 500

// move moves all pending rows. A batch is one transaction, so move can be stopped anywhere and
// called again: no row is lost, and none makes two jobs. A row that cannot become a job gets the
// status refused, and holds up no other row. If an unfinished job has the ID of a row, the relay
// puts the row into the table of dead rows.
func (m *mover) move(ctx context.Context) (moved, refused int, err error) {
	for {
		some, bad, err := m.batch(ctx)
		moved, refused = moved+some, refused+bad
		if err != nil || some+bad == 0 {
			return moved, refused, err
		}
	}
}

// batch moves up to batchSize rows.
func (m *mover) batch(ctx context.Context) (moved, refused int, err error) {
	tx, err := m.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	list, err := m.pending(ctx, tx)
	if err != nil {
		return 0, 0, err
	}
	for _, t := range list {
		status := "moved"
		_, err := m.box.Enqueue(ctx, tx, t.kind, t.ref, t.payload, delayq.ProcessAt(time.UnixMilli(t.runAt)))
		if errors.Is(err, delayq.ErrInvalid) { // nothing was written
			status = "refused"
			refused++
		} else if err != nil {
			return 0, 0, fmt.Errorf("timer %d: %w", t.id, err)
		} else {
			moved++
		}
		if _, err := tx.ExecContext(ctx, "UPDATE timers SET status = $1 WHERE id = $2", status, t.id); err != nil {
			return 0, 0, fmt.Errorf("timer %d: %w", t.id, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, 0, err
	}
	m.box.Nudge()
	return moved, refused, nil
}

// pending reads the rows of a batch.
func (m *mover) pending(ctx context.Context, tx *sql.Tx) (list []timer, err error) {
	rows, err := tx.QueryContext(ctx,
		"SELECT id, kind, ref, payload, run_at FROM timers WHERE status = 'pending' ORDER BY id LIMIT $1"+m.lock, batchSize)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var t timer
		if err := rows.Scan(&t.id, &t.kind, &t.ref, &t.payload, &t.runAt); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, rows.Err()
}
