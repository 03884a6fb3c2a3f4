package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/delayq/delayq/internal/commit"
)

// Stats says how far the relays are behind.
type Stats struct {
	Rows   int64         // that wait, the committed ones; counting ends at 10,000
	Oldest time.Duration // how long the oldest one has waited; 0: none waits
	Dead   int64         // that Redis has refused; counting ends at 10,000
	Later  int64         // that are due beyond the [Horizon]; counting ends at 10,000
}

// Stats counts rows. It reads an index over as many of them, so call it every few seconds at most.
func (b *Outbox) Stats(ctx context.Context, db querier) (s Stats, err error) {
	h := &holding{Relay: &Relay{box: b}}
	var oldest int64
	err = db.QueryRowContext(ctx, h.query("SELECT (SELECT COUNT(*) FROM (SELECT seq FROM {table} LIMIT 10000) AS some_rows), "+
		"(SELECT COUNT(*) FROM (SELECT seq FROM {table}_dead LIMIT 10000) AS some_rows), "+
		"COALESCE({now} - (SELECT made FROM {table} ORDER BY seq LIMIT 1), 0), "+
		"(SELECT COUNT(*) FROM (SELECT seq FROM {table}_later LIMIT 10000) AS some_rows)")).Scan(&s.Rows, &s.Dead, &oldest, &s.Later)
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: stats: %w", b.explain(err))
	}
	s.Oldest = time.Duration(max(0, oldest)) * time.Millisecond
	return s, nil
}

// A DeadRow is a row that Redis has refused for good.
type DeadRow struct {
	Seq       int64  // key of the row
	Call      string // enqueue, dequeue, reschedule or start flow; empty: a call of a later release
	Topic, ID string
	Reason    string
	Made      time.Time // when it was written, by the database's clock
	Refused   time.Time
}

// callNames has the calls of rows.
var callNames = map[commit.RowKind]string{
	commit.RowEnqueue: "enqueue", commit.RowCancel: "dequeue", commit.RowReschedule: "reschedule", commit.RowFlow: commit.FlowStart.Name,
}

// Dead returns the oldest dead rows, up to limit, with greater keys than after. A row is dead
// because an unfinished job had its ID, because its job expired before it was sent or before it was
// due, or because it or a key of the topic is damaged. It holds up no other row.
func (b *Outbox) Dead(ctx context.Context, db querier, after int64, limit int) (list []DeadRow, err error) {
	if limit < 1 || limit > 1000 {
		return nil, fmt.Errorf("%w: limit %d: from 1 to 1000", ErrInvalid, limit)
	}
	h := &holding{Relay: &Relay{box: b}}
	rows, err := db.QueryContext(ctx, h.query(fmt.Sprintf("SELECT seq, kind, topic, id, reason, made, refused FROM {table}_dead WHERE seq > ? ORDER BY seq LIMIT %d", limit)), after)
	if err != nil {
		return nil, fmt.Errorf("outbox: dead rows: %w", b.explain(err))
	}
	defer rows.Close()
	for rows.Next() {
		var d DeadRow
		var kind commit.RowKind
		var id []byte
		var made, refused int64
		if err := rows.Scan(&d.Seq, &kind, &d.Topic, &id, &d.Reason, &made, &refused); err != nil {
			return nil, fmt.Errorf("outbox: dead rows: %w", err)
		}
		d.ID, d.Made, d.Refused = string(id), time.UnixMilli(made), time.UnixMilli(refused)
		d.Call = callNames[kind]
		list = append(list, d)
	}
	return list, rows.Err()
}

// Revive writes a dead row once more, at the end of the outbox, and deletes it from the dead rows.
// Its delay still counts from when it was first written. It needs a transaction, or the row could
// be written without being deleted: a *sql.DB and [Autocommit] are refused with [ErrInvalid].
// Revive reports whether there was such a row.
func (b *Outbox) Revive(ctx context.Context, tx Execer, seq int64) (bool, error) {
	if err := transaction(tx); err != nil {
		return false, fmt.Errorf("outbox: revive row %d: %w", seq, err)
	}
	h := &holding{Relay: &Relay{box: b}}
	// Somebody else may delete the row meanwhile, so it is locked or deleted before it is written.
	write := "INSERT INTO {table} (" + rowNames + ") SELECT " + rowNames + " FROM "
	from := "{table}_dead WHERE seq = ?"
	switch b.dialect {
	case Postgres:
		write = "WITH gone AS (DELETE FROM " + from + " RETURNING " + rowNames + ") " + write + "gone"
	case MySQL:
		write += from + " FOR UPDATE"
	default: // a transaction that writes has all rows
		write += from
	}
	result, err := tx.ExecContext(ctx, h.query(write), seq)
	if err != nil {
		return false, fmt.Errorf("outbox: revive row %d: %w", seq, b.explain(err))
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 || b.dialect == Postgres {
		return n > 0 && err == nil, err
	}
	return b.Discard(ctx, tx, seq)
}

// Discard deletes a dead row, and reports whether there was one.
func (b *Outbox) Discard(ctx context.Context, tx Execer, seq int64) (bool, error) {
	h := &holding{Relay: &Relay{box: b}}
	result, err := tx.ExecContext(ctx, h.query("DELETE FROM {table}_dead WHERE seq = ?"), seq)
	if err != nil {
		return false, fmt.Errorf("outbox: discard row %d: %w", seq, b.explain(err))
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
