package outbox

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
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
	which, args := r.keyed(rows)
	if err := tx.QueryRowContext(ctx, r.query("SELECT COUNT(*) FROM {table} WHERE "+which), args...).Scan(&n); err != nil {
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
	for before := int64(latest); before > 0 && !behind && err == nil; {
		err = h.ordered(ctx, func(ctx context.Context) error {
			if err := h.stay(ctx); err != nil {
				return err
			}
			if h.number == 0 {
				return errOvertaken
			}
			w, err := h.window(ctx, "seq", since, before)
			if err != nil {
				return err
			}
			var last sql.NullInt64
			row := h.conn.QueryRowContext(ctx, h.query("SELECT COALESCE(last_value, CASE WHEN has_sequence_privilege(s.name, 'USAGE, SELECT') THEN 0 END) FROM pg_sequences, "+ // NULL: not used yet, or no right
				"(SELECT pg_get_serial_sequence(?, 'seq') AS name) AS s WHERE format('%I.%I', schemaname, sequencename) = s.name"), h.box.table)
			if err := row.Scan(&last); err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			behind, before = w.value.Valid && last.Valid && last.Int64 < w.value.Int64, w.next
			return nil
		})
	}
	return behind, err
}

// putBack moves rows back into the outbox, with their keys. With a time it also ends the request of
// that time.
func (r *resending) putBack(ctx context.Context, tx session, back []kept, since int64) error {
	over := ""
	if r.box.dialect == Postgres {
		over = " OVERRIDING SYSTEM VALUE"
	}
	if err := r.taken(ctx, tx, back); err != nil {
		return err
	}
	plans := make(map[int64][]stored)
	for i := range back {
		plans[back[i].at] = append(plans[back[i].at], back[i].stored)
	}
	for some := range slices.Chunk(slices.Collect(maps.Keys(plans)), mostGiven) {
		var any []string
		for _, at := range some {
			any = append(any, "sent = "+strconv.FormatInt(at, 10)+" AND seq IN ("+list(plans[at])+")")
		}
		which := " FROM {table}_sent WHERE shard = ? AND (" + strings.Join(any, " OR ") + ")"
		if _, err := tx.ExecContext(ctx, r.query("INSERT INTO {table} (seq, "+rowNames+")"+over+" SELECT seq, "+rowNames+which), r.shard); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, r.query("DELETE"+which), r.shard); err != nil {
			return err
		}
	}
	var late []*stored
	for i := range back {
		if back[i].late {
			late = append(late, &back[i].stored)
		}
	}
	if err := r.change(ctx, tx, "{table}", late); err != nil {
		return err
	}
	if since > 0 {
		if _, err := tx.ExecContext(ctx, r.query("DELETE FROM {table}_resend WHERE shard = ? AND since = ?"), r.shard, since); err != nil {
			return err
		}
	}
	return nil
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

// How many IDs get new keys in a transaction, or how many postponed reschedules come back. It
// begins with few, because a statement can take long and a transaction may not.
const (
	firstPace = 16
	mostPace  = 500
)

// pace returns how much the next transaction does.
func (h *holding) pace() int {
	if h.paces == 0 {
		h.paces = firstPace
	}
	return h.paces
}

// paced notes how long a transaction took, for the next one: also for that which follows after an
// error, when everything begins anew.
func (h *holding) paced(took time.Duration, err error) {
	switch {
	case err != nil || took > h.within()/4:
		h.paces = max(1, h.pace()/2)
	case took < h.within()/16:
		h.paces = min(2*h.pace(), mostPace)
	}
}

// putMoves moves reschedules back that were postponed because their jobs were not sent again. Each
// is about another ID and can be of another plan.
func (r *resending) putMoves(ctx context.Context) error {
	var back []kept
	for _, move := range r.moves {
		if move.lost {
			back = append(back, *move)
		}
	}
	for len(back) > 0 {
		n := min(r.pace(), len(back))
		began := time.Now()
		err := r.put(ctx, back[:n], 0)
		r.paced(time.Since(began), err)
		if err != nil {
			return err
		}
		back = back[n:]
	}
	return r.putAnew(ctx)
}

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
	for len(order) > 0 {
		var some []kept
		n := min(r.pace(), len(order))
		for _, key := range order[:n] {
			some = append(some, jobs[key]...)
		}
		began := time.Now()
		err := r.inShard(ctx, func(ctx context.Context, tx session) error {
			for _, run := range runs(some) {
				if err := r.insertAnew(ctx, tx, run); err != nil {
					return err
				}
			}
			return nil
		})
		r.paced(time.Since(began), err)
		if err != nil {
			return err
		}
		r.sent += len(some)
		order = order[n:]
	}
	return nil
}

// runs divides rows into those that one statement can move: they were sent in one plan, have
// ascending keys, and are as they were kept.
func runs(rows []kept) (list [][]kept) {
	begin := 0
	for i := range rows {
		next := i + 1
		if next < len(rows) && !rows[i].late && !rows[next].late && rows[i].at == rows[next].at && rows[i].seq < rows[next].seq {
			continue
		}
		list, begin = append(list, rows[begin:next]), next
	}
	return list
}

// insertAnew moves rows of a run into the outbox, where they get the next keys in their order.
func (r *resending) insertAnew(ctx context.Context, tx session, run []kept) error {
	due, args := "due_at, delay_ms, made, record", []any(nil)
	if run[0].late {
		due, args = "?, ?, made, ?", []any{run[0].DueAt, run[0].DueIn, []byte(run[0].Record)}
	}
	rows := make([]stored, len(run))
	for i := range run {
		rows[i] = run[i].stored
	}
	which := " FROM {table}_sent WHERE shard = ? AND sent = ? AND seq IN (" + list(rows) + ")"
	at := []any{r.shard, run[0].at}
	insert := "INSERT INTO {table} (" + rowNames + ") SELECT shard, kind, topic, id, replaces, " + due + which + " ORDER BY seq"
	if _, err := tx.ExecContext(ctx, r.query(insert), append(args, at...)...); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, r.query("DELETE"+which), at...)
	return err
}
