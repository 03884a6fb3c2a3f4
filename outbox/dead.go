package outbox

import (
	"context"
	"errors"
	"slices"
)

// A refusal is a row that Redis has refused for good.
type refusal struct {
	seq       int64
	topic, id string
	reason    string
}

func (r refusal) key() int64 { return r.seq }

// bury writes refused rows to the dead rows. A cancel that stands for a row beyond the horizon
// takes that row with it. If a dead row has the key of a row, because keys have started again, the
// row gets another one. The number of statements grows by a few for each hundred rows.
func (h *holding) bury(ctx context.Context, tx session, rows []refusal) error {
	for some := range slices.Chunk(rows, mostGiven) {
		keys := keysOf(some)
		later, here, err := h.whereabouts(ctx, tx, some, keys)
		if err != nil {
			return err
		}
		taken, err := h.buried(ctx, tx, keys)
		if err != nil {
			return err
		}
		last := int64(0)
		for _, row := range some {
			last = max(last, row.seq)
		}
		if err := h.copyDead(ctx, tx, "{table}_later", later, taken, last); err != nil {
			return err
		}
		if err := h.copyDead(ctx, tx, "{table}", here, taken, last); err != nil {
			return err
		}
		gone := keysOf(later)
		for i := range gone {
			gone[i].later = true
		}
		if err := h.remove(ctx, tx, gone); err != nil {
			return err
		}
	}
	return nil
}

func keysOf(rows []refusal) []stored {
	keys := make([]stored, len(rows))
	for i := range rows {
		keys[i].seq = rows[i].seq
	}
	return keys
}

// whereabouts divides rows into later ones and others. It leaves out those that are not there any
// more.
func (h *holding) whereabouts(ctx context.Context, tx session, rows []refusal, keys []stored) (later, here []refusal, err error) {
	type place struct {
		seq       int64
		topic, id string
		later     bool
	}
	which, args := h.among(keys)
	found, err := tx.QueryContext(ctx, h.query("SELECT seq, topic, id, 1 FROM {table}_later WHERE "+which+
		" UNION ALL SELECT seq, topic, id, 0 FROM {table} WHERE "+which), slices.Concat(args, args)...)
	if err != nil {
		return nil, nil, err
	}
	defer found.Close()
	places := make(map[place]bool)
	for found.Next() {
		var p place
		var id []byte
		if err := found.Scan(&p.seq, &p.topic, &id, &p.later); err != nil {
			return nil, nil, err
		}
		p.id = string(id)
		places[p] = true
	}
	for _, row := range rows {
		switch {
		case places[place{row.seq, row.topic, row.id, true}]:
			later = append(later, row)
		case places[place{row.seq, row.topic, row.id, false}]:
			here = append(here, row)
		}
	}
	return later, here, errors.Join(found.Err(), found.Close())
}

// buried returns which keys dead rows have.
func (h *holding) buried(ctx context.Context, tx session, keys []stored) (taken map[int64]bool, err error) {
	which, args := h.keyed(keys)
	found, err := tx.QueryContext(ctx, h.query("SELECT seq FROM {table}_dead WHERE "+which), args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	taken = make(map[int64]bool)
	for found.Next() {
		var seq int64
		if err := found.Scan(&seq); err != nil {
			return nil, err
		}
		taken[seq] = true
	}
	return taken, errors.Join(found.Err(), found.Close())
}

// copyDead copies refused rows of a table to the dead rows, and notes their keys as taken. A row
// whose key is taken gets one that is greater than last and than those of all dead rows.
func (h *holding) copyDead(ctx context.Context, tx session, table string, rows []refusal, taken map[int64]bool, last int64) error {
	if len(rows) == 0 {
		return nil
	}
	key, args := "seq", []any(nil)
	var others []refusal
	for _, row := range rows {
		if taken[row.seq] {
			others = append(others, row)
		}
		taken[row.seq] = true
	}
	if len(others) > 0 {
		var greatest int64
		if err := tx.QueryRowContext(ctx, h.query("SELECT MAX(seq) FROM {table}_dead")).Scan(&greatest); err != nil {
			return err
		}
		last = max(last, greatest)
		key, args = given(others, refusal.key, func(refusal) any { last++; return last }, "seq")
	}
	reason, reasons := given(rows, refusal.key, func(r refusal) any { return r.reason }, "''")
	which, list := h.among(keysOf(rows))
	_, err := tx.ExecContext(ctx, h.query("INSERT INTO {table}_dead (seq, "+rowNames+", reason, refused) SELECT "+key+", "+rowNames+", "+reason+", {now} FROM "+table+" WHERE "+which),
		slices.Concat(args, reasons, list)...)
	return err
}
