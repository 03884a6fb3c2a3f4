package outbox

import (
	"context"
	"database/sql"
	"errors"
	"slices"
)

// errTaken says that a row of the outbox has the key of a kept row.
var errTaken = errors.New("outbox: the keys of rows have started again")

// taken returns errTaken if rows cannot have their keys.
func (r *resending) taken(ctx context.Context, tx session, back []kept) error {
	if len(back) == 0 {
		return nil
	}
	rows, seen := make([]stored, len(back)), make(map[int64]bool)
	for i := range back {
		rows[i] = back[i].stored
		if seen[rows[i].seq] {
			return errTaken
		}
		seen[rows[i].seq] = true
	}
	var n int
	if err := tx.QueryRowContext(ctx, r.query("SELECT COUNT(*) FROM {table} WHERE seq IN ("+list(rows)+")")).Scan(&n); err != nil {
		return err
	}
	if n > 0 {
		return errTaken
	}
	return nil
}

// behind reports whether kept rows have keys that writers will get. MySQL and SQLite let no writer
// have a key that was written, but PostgreSQL goes on with its sequence. It does not say where that
// is to a user without a right to it.
func (h *holding) behind(ctx context.Context, since int64) (behind bool, err error) {
	if h.box.dialect != Postgres {
		return false, nil
	}
	err = h.using(ctx, func(ctx context.Context) error {
		var most, last sql.NullInt64
		row := h.conn.QueryRowContext(ctx, h.query("SELECT (SELECT MAX(seq) FROM {table}_sent WHERE shard = ? AND sent >= ?), "+
			"(SELECT COALESCE(last_value, CASE WHEN has_sequence_privilege(s.name, 'USAGE, SELECT') THEN 0 END) FROM pg_sequences, "+ // NULL: not used yet, or no right
			"(SELECT pg_get_serial_sequence(?, 'seq') AS name) AS s WHERE format('%I.%I', schemaname, sequencename) = s.name)"), h.shard, since, h.box.table)
		if err := row.Scan(&most, &last); err != nil {
			return err
		}
		behind = most.Valid && last.Valid && last.Int64 < most.Int64
		return nil
	})
	return behind, err
}

// gather notes rows that get new keys. Only those that were changed need their records.
func (r *resending) gather(back []kept) {
	for _, row := range back {
		if !row.late {
			row.Record = ""
		}
		r.back = append(r.back, row)
	}
}

// anewRows is how many rows get new keys in a transaction, or all that are about an ID.
const anewRows = 500

// putAnew moves the rows that were gathered into the outbox, the first one first. All rows about an
// ID are moved together, because rows in the outbox count as later than those that were sent.
func (r *resending) putAnew(ctx context.Context) error {
	jobs := make(map[uint64][]kept)
	var order []uint64
	for _, row := range slices.Backward(r.back) {
		key := r.key(&row.stored)
		if jobs[key] == nil {
			order = append(order, key)
		}
		jobs[key] = append(jobs[key], row)
	}
	r.back = nil
	var some []kept
	for i, key := range order {
		some = append(some, jobs[key]...)
		if len(some) < anewRows && i < len(order)-1 {
			continue
		}
		err := r.inShard(ctx, func(ctx context.Context, tx session) error {
			for i := range some {
				if err := r.insertAnew(ctx, tx, &some[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		r.sent += len(some)
		some = nil
	}
	return nil
}

// insertAnew moves a row into the outbox, where it gets the next key.
func (r *resending) insertAnew(ctx context.Context, tx session, row *kept) error {
	due, args := "due_at, delay_ms, made, record", []any(nil)
	if row.late {
		due, args = "?, ?, made, ?", []any{row.DueAt, row.DueIn, []byte(row.Record)}
	}
	which := " FROM {table}_sent WHERE shard = ? AND sent = ? AND seq = ?"
	at := []any{r.shard, row.at, row.seq}
	insert := "INSERT INTO {table} (" + rowNames + ") SELECT shard, kind, topic, id, replaces, " + due + which
	if _, err := tx.ExecContext(ctx, r.query(insert), append(args, at...)...); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, r.query("DELETE"+which), at...)
	return err
}
