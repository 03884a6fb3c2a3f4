package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// DeadLimit sets how many dead rows of an outbox are kept, and for how long. Rows over the limit
// are deleted for good, those with the lowest keys first: their calls are never made. The relay
// that holds shard 0 looks every minute. It logs a warning when it begins to delete rows, and a
// line with their number when none are left over the limit. [RelayState] has their number too.
//
// Of the age, a look reads the 1,000 dead rows with the lowest keys. A row that was refused late,
// because it was beyond a [Horizon], can keep rows with greater keys for longer than age. The
// strictest relay of a table wins. Range: 0 to 10,000,000 rows, 1 minute to 100 years. Default:
// 1,000,000 and 90 days.
func DeadLimit(count int, age time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.dead, o.deadAge = count, age
		if count < 0 || count > 10_000_000 {
			return fmt.Errorf("%w: DeadLimit(%d, %v): from 0 to 10000000 rows", ErrInvalid, count, age)
		}
		return within("DeadLimit", age, time.Minute, 100*365*24*time.Hour)
	}
}

const (
	dropRows  = 1000        // dead rows that are deleted at a time
	dropPause = time.Minute // between looks at the limit
)

// drop deletes dead rows that are over the limit. After an error it is left for the next minute, so
// that rows are sent in between.
func (h *holding) drop(ctx context.Context) error {
	h.drops = time.Now().Add(dropPause)
	deleted := 0
	err := h.using(ctx, func(ctx context.Context) error {
		over, err := h.overLimit(ctx)
		if err != nil || len(over) == 0 {
			return err
		}
		which, args := h.keyed(over)
		result, err := h.conn.ExecContext(ctx, h.query("DELETE FROM {table}_dead WHERE "+which), args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		deleted = int(n)
		return err
	})
	if deleted > 0 && h.dropped == 0 {
		h.o.logger.Warn("outbox dead rows are over the limit: the oldest ones are deleted", "shard", h.shard, "rows", deleted)
	}
	h.dropped += deleted
	h.mu.Lock()
	h.deleted += int64(deleted)
	h.mu.Unlock()
	switch {
	case err != nil:
		return err
	case deleted == 0 && h.dropped > 0:
		h.o.logger.Info("outbox dead rows are within the limit", "shard", h.shard, "deleted", h.dropped)
		h.dropped = 0
	}
	if deleted == dropRows {
		h.drops = time.Time{} // there may be more
	}
	return nil
}

// overLimit returns the keys of dead rows that are over the limit: those that are too old, or too
// many if none are.
func (h *holding) overLimit(ctx context.Context) ([]stored, error) {
	lowest := "SELECT seq FROM (SELECT seq, refused FROM {table}_dead ORDER BY seq LIMIT " + strconv.Itoa(dropRows) + ") AS lowest WHERE "
	over, err := h.keysBy(ctx, lowest+"refused < {now} - ?", h.o.deadAge.Milliseconds())
	if err != nil || len(over) > 0 {
		return over, err
	}
	var last int64
	row := h.conn.QueryRowContext(ctx, h.query("SELECT seq FROM {table}_dead ORDER BY seq DESC LIMIT 1 OFFSET "+strconv.Itoa(h.o.dead)))
	switch err := row.Scan(&last); {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return h.keysBy(ctx, lowest+"seq <= ?", last)
}

// keysBy returns the keys that a query finds.
func (h *holding) keysBy(ctx context.Context, query string, args ...any) (list []stored, err error) {
	rows, err := h.conn.QueryContext(ctx, h.query(query), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var row stored
		if err := rows.Scan(&row.seq); err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, errors.Join(rows.Err(), rows.Close())
}
