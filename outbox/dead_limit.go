package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// DeadLimit sets how many dead rows of an outbox are kept, and for how long. Rows over the limit
// are deleted for good, those with the lowest keys first: their calls are never made. These are the
// oldest ones, unless keys have started again. The age counts by the clock of the database, so a
// clock that jumps ahead by the age makes all rows of before too old. The relay that holds shard 0
// looks every minute. It logs a warning when it begins to delete rows, and a line with their number
// when none are left over the limit. [RelayState] has their number too.
//
// Of the age, a look reads the 1,000 dead rows with the lowest keys. A row that was refused late,
// because it was beyond a [Horizon], can keep rows with greater keys for longer than age. The
// strictest relay of a table wins. A row that another transaction has locked stays until a later
// look. A row that gets a lower key than one that was counted, because it was refused late or keys
// have started again, counts within an hour. Range: 0 to 10,000,000 rows, 1 minute to 100 years.
// Default: 1,000,000 and 90 days.
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
	dropRows    = 1000        // dead rows that are deleted at a time
	dropPause   = time.Minute // between looks at the limit
	countFactor = 10          // how many times as many are counted at a time
	countPause  = 20          // how many times as long as counting takes is the pause after it
	countAgain  = time.Hour   // after which all are counted again
)

// A census is what a relay knows of the number of dead rows. It counts them from the greatest key
// down, some in each look, until it finds a row that has as many above it as are kept. After that
// it only counts rows with greater keys, until there could be too many or an hour has passed.
type census struct {
	halved int       // how often a look was too slow
	below  int64     // rows below this key are still to be counted; 0: it does not count
	seen   int       // rows that were counted
	last   int64     // greatest key when that began, or of a row that was counted later
	count  int       // how many rows there are up to the last key, at most
	until  time.Time // when that is too old
	over   int64     // rows up to this key are over the limit; 0: none is known
}

// rows returns how many rows a statement is about.
func (c *census) rows() int { return max(10, dropRows>>c.halved) }

// settled reports whether nothing is left to count or to delete.
func (c *census) settled() bool { return c.below == 0 && c.over == 0 }

// An excess is dead rows over the limit.
type excess struct {
	rows  []stored // the ones with the lowest keys
	which string   // a condition that they meet
	arg   int64    // of it
}

// drop deletes dead rows that are over the limit. It takes a quarter of the lease at most. After an
// error it is left for the next minute, so that rows are sent in between.
func (h *holding) drop(ctx context.Context) error {
	began := time.Now()
	h.drops = began.Add(dropPause)
	short, cancel := context.WithTimeout(ctx, h.o.lease/4)
	defer cancel()
	found, deleted, err := h.dropSome(short)
	if deleted > 0 && h.dropped == 0 {
		h.o.logger.Warn("outbox dead rows are over the limit: those with the lowest keys are deleted", "shard", h.shard, "rows", deleted)
	}
	h.dropped += deleted
	h.mu.Lock()
	h.deleted += int64(deleted)
	h.mu.Unlock()
	switch full := found == h.census.rows(); {
	case err != nil && short.Err() != nil && ctx.Err() == nil:
		h.census.halved = min(h.census.halved+1, 7)
		h.o.logger.Warn("outbox dead rows were not looked at in time: the next look is in a minute", "shard", h.shard, "err", err)
		return nil
	case err != nil:
		return err
	case full && deleted > 0:
		h.drops = time.Time{} // there may be more
	case h.census.below > 0:
		h.drops = time.Now().Add(countPause * time.Since(began))
	case found == 0 && h.dropped > 0 && h.census.settled():
		h.o.logger.Info("outbox dead rows are within the limit", "shard", h.shard, "deleted", h.dropped)
		h.dropped = 0
	}
	h.census.halved = max(0, h.census.halved-1)
	return nil
}

// dropSome finds rows over the limit, and deletes those of them that nobody else has locked.
func (h *holding) dropSome(ctx context.Context) (found, deleted int, err error) {
	var over excess
	err = h.ordered(ctx, func(ctx context.Context) (err error) {
		over, err = h.excess(ctx)
		return err
	})
	found = len(over.rows)
	if err != nil || found == 0 {
		return found, 0, err
	}
	lock := "SELECT seq FROM {table}_dead WHERE seq >= ? AND seq <= ? AND " + over.which
	if h.box.dialect != SQLite { // where a transaction that writes has all rows
		lock += " FOR UPDATE SKIP LOCKED"
	}
	held, err := h.inTx(ctx, func(ctx context.Context, tx session) error {
		free, err := h.keysBy(ctx, lock, over.rows[0].seq, over.rows[found-1].seq, over.arg)
		if err != nil || len(free) == 0 {
			return err
		}
		which, args := h.keyed(free)
		deleted = len(free)
		return h.erase(ctx, tx, "{table}_dead", free, which, args)
	})
	if err != nil || !held {
		return found, 0, err
	}
	h.till = time.Now().Add(h.o.lease / 2)
	return found, deleted, nil
}

// excess returns dead rows that are over the limit: those that are too old, or too many if none
// are.
func (h *holding) excess(ctx context.Context) (over excess, err error) {
	lowest := "SELECT seq FROM (SELECT seq, refused FROM {table}_dead ORDER BY seq LIMIT " + strconv.Itoa(h.census.rows()) + ") AS lowest WHERE "
	if h.census.settled() {
		over.which, over.arg = "refused < {now} - ?", h.o.deadAge.Milliseconds()
		over.rows, err = h.keysBy(ctx, lowest+over.which+" ORDER BY seq", over.arg)
		if err != nil || len(over.rows) > 0 {
			return over, err
		}
	}
	if h.census.over == 0 {
		if err := h.countDead(ctx); err != nil || h.census.over == 0 {
			return excess{}, err
		}
	}
	over.which, over.arg = "seq <= ?", h.census.over
	over.rows, err = h.keysBy(ctx, strings.ReplaceAll(lowest, ", refused", "")+over.which+" ORDER BY seq", over.arg)
	if err == nil && len(over.rows) < h.census.rows() {
		h.census.over = 0 // these are the last ones
	}
	return over, err
}

// countDead counts some dead rows.
func (h *holding) countDead(ctx context.Context) error {
	c := &h.census
	if c.below == 0 {
		begin, err := h.mayBeOver(ctx)
		if err != nil || !begin {
			return err
		}
	}
	most := min(countFactor*c.rows(), h.o.dead+1-c.seen)
	n, least, err := h.countBy(ctx, "MIN", "seq < ? ORDER BY seq DESC", most, c.below)
	if err != nil {
		return err
	}
	c.seen += n
	switch {
	case c.seen > h.o.dead:
		c.over = least
	case n == most:
		c.below = least
		return nil
	}
	c.below, c.count, c.until = 0, min(c.seen, h.o.dead), time.Now().Add(countAgain)
	return nil
}

// mayBeOver reports whether there could be too many dead rows. Then all are to be counted.
func (h *holding) mayBeOver(ctx context.Context) (begin bool, err error) {
	c := &h.census
	var least, greatest sql.NullInt64
	row := h.conn.QueryRowContext(ctx, h.query("SELECT (SELECT MIN(seq) FROM {table}_dead), (SELECT MAX(seq) FROM {table}_dead)"))
	if err := row.Scan(&least, &greatest); err != nil {
		return false, err
	}
	if !greatest.Valid || greatest.Int64-least.Int64 < int64(h.o.dead) { // there are not as many keys
		return false, nil
	}
	if time.Now().Before(c.until) {
		n, last, err := h.countBy(ctx, "MAX", "seq > ? ORDER BY seq", countFactor*c.rows(), c.last)
		if err != nil {
			return false, err
		}
		if n > 0 {
			c.count, c.last = c.count+n, last
		}
		if c.count <= h.o.dead {
			return false, nil
		}
	}
	c.below, c.seen, c.last = greatest.Int64+1, 0, greatest.Int64
	return true, nil
}

// countBy counts dead rows, up to a number, and returns the last key.
func (h *holding) countBy(ctx context.Context, last, which string, most int, key int64) (n int, end int64, err error) {
	row := h.conn.QueryRowContext(ctx, h.query("SELECT COUNT(*), COALESCE("+last+"(seq), 0) FROM (SELECT seq FROM {table}_dead WHERE "+which+
		" LIMIT "+strconv.Itoa(most)+") AS some_rows"), key)
	return n, end, row.Scan(&n, &end)
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
