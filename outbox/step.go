package outbox

import (
	"context"
	"time"
)

// An ending is what becomes of a plan.
type ending struct {
	refused []refusal    // rows that go to the dead rows
	open    map[int]bool // rows that stay, by their index in the plan
	renamed string       // why the shard takes another name; empty: it keeps its own
	idle    bool         // no row has a known outcome
	err     error        // why rows stay
}

// next ends the plan that was sent and commits the next one, in one transaction. If another relay
// has taken the shard, that one has sent or will send the same plan, and this one forgets it. If
// this relay holds the shard, but the plan that it has sent is not the last one in the database,
// then the database has fallen back. The relay forgets the plan too, and begins with what is there.
func (h *holding) next(ctx context.Context, end *ending) error {
	var number, now, seal int64
	var rows []stored
	var mark marker
	var looked time.Time
	name, last := h.name, h.last
	if end.renamed != "" {
		name, last = newName(), marker{}
	}
	held, err := h.inTx(ctx, func(ctx context.Context, tx session) error {
		if err := h.bury(ctx, tx, end.refused); err != nil {
			return err
		}
		expression := h.box.dialect.server()
		if h.box.dialect == Postgres {
			// Without statistics, or with those of an empty table, PostgreSQL would read all rows
			// that wait and sort them.
			expression += " || set_config('enable_sort', 'off', true)"
		}
		server, due, at, err := h.look(ctx, tx, expression)
		if err != nil {
			return err
		}
		if server != h.server || len(end.open) > 0 {
			h.server, h.ahead = server, nil // rows of another server are others, and rows that stay come first
		}
		looked = time.Now() // not before the query: a job may start late, but not early
		now = at
		number = max(h.number, now) // and the next plan is later than these rows are sent
		ended := end.ended(h.plan)
		if err := h.save(ctx, tx, end.unrefused(ended), number); err != nil {
			return err
		}
		if err := h.remove(ctx, tx, ended); err != nil {
			return err
		}
		if h.again == 0 { // or no plan may be in progress
			if rows, err = h.choose(ctx, tx, due, now); err != nil {
				return err
			}
		}
		if len(rows) > 0 {
			number++
			mark, seal = last.next(h.o.keep, now), newSeal()
		}
		_, err = tx.ExecContext(ctx, h.query("UPDATE {table}_shards SET name = ?, number = ?, plan = ? WHERE shard = ?"), name, number, encodePlan(mark, rows, seal), h.shard)
		return err
	})
	if h.ends(err) != nil || !held {
		return err
	}
	if end.renamed != "" {
		h.o.logger.Error("outbox shard has another name now: if the database was copied or has fallen back, see docs/outbox.md",
			"shard", h.shard, "err", end.renamed, "rows", len(end.open))
	}
	h.name, h.number, h.noted, h.plan, h.seal, h.marker, h.till = name, number, number, rows, seal, mark, time.Now().Add(h.o.lease/2)
	h.sent, h.told, h.unconfirmed, h.stuck, h.amiss = nil, nil, nil, time.Time{}, ""
	h.since, h.last = looked, last
	h.passed.add(rows)
	if mark.span > 0 {
		h.last = mark
	}
	return nil
}

// ended returns the rows that leave the outbox with their plan.
func (e *ending) ended(plan []stored) []stored {
	if len(e.open) == 0 {
		return plan
	}
	var rows []stored
	for i := range plan {
		if !e.open[i] {
			rows = append(rows, plan[i])
		}
	}
	return rows
}

// unrefused returns those of rows that were not refused.
func (e *ending) unrefused(rows []stored) []stored {
	dead := make(map[int64]bool)
	for _, row := range e.refused {
		dead[row.seq] = true
	}
	var list []stored
	for _, row := range rows {
		if !dead[row.seq] {
			list = append(list, row)
		}
	}
	return list
}

// remove deletes rows.
func (h *holding) remove(ctx context.Context, tx session, rows []stored) error {
	for table, some := range byTable(rows) {
		which, args := h.among(some)
		if err := h.erase(ctx, tx, table, some, which, args); err != nil {
			return err
		}
	}
	return nil
}

// erase deletes rows of a table, for which there is a condition too.
func (h *holding) erase(ctx context.Context, tx session, table string, rows []stored, which string, args []any) error {
	drop := "DELETE FROM " + table + " WHERE " + which
	if h.box.dialect == MySQL {
		// By the list alone InnoDB can scan the table, and then waits for rows that other
		// transactions have not committed yet. This looks up each key.
		drop = "DELETE o FROM JSON_TABLE('[" + list(rows) + "]', '$[*]' COLUMNS (seq BIGINT PATH '$')) AS p STRAIGHT_JOIN " + table + " AS o ON o.seq = p.seq"
	}
	_, err := tx.ExecContext(ctx, h.query(drop), args...)
	return err
}
