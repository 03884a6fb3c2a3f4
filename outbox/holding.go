package outbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/commit"
)

// A holding is a shard that a relay holds or would like to.
type holding struct {
	*Relay
	shard int
	conn  *sql.Conn // while the database is in use

	number int64  // of the last plan, at least 1; 0: the relay does not hold the shard
	noted  int64  // the number that the database has
	name   string // of the shard, in the series of its plans
	server string // which server of the database has read the rows ahead

	plan   []stored
	seal   int64              // what tells the plan from others with its number; 0: an earlier release has made it
	amiss  string             // why the plan cannot be sent as it was
	since  time.Time          // when the ages of the plan's rows had been read
	marker marker             // of the plan
	sent   map[string][]error // outcomes of its topics that were sent in an earlier try
	told   map[string][]bool  // rows of its topics whose outcomes hooks know
	stuck  time.Time          // since when some topics of the plan have no answer

	// topics of the plan that have a call which replicas have not confirmed, and how many rows had
	// outcomes before that
	unconfirmed map[string]int

	ahead   []stored  // the oldest rows after the plan, as far as they have been read
	ask     int       // how many rows to read next
	narrow  int       // how often plans are halved, because transactions have failed
	passed  passed    // rows that need not be looked at often
	last    marker    // of the last plan whose rows this relay keeps
	recall  int64     // that plan is looked for among those sent before this time, Unix ms; 0: it is known
	till    time.Time // when the lease should be extended
	trims   time.Time // when kept rows should be trimmed
	drops   time.Time // when dead rows should be looked at
	census  census    // of dead rows
	dropped int       // dead rows that were deleted since they were within the limit
	odd     int       // 1 in every other plan
	again   int64     // kept rows are to be sent again since this time, Unix ms; 0: none
	paces   int       // see pace

	proven   bool      // since it holds the shard, Redis has carried out calls
	failures int       // of Redis since then
	barred   time.Time // until when the shard is left to others
	left     error     // why
	refused  error     // what Redis has answered to this relay for everything, until it has done something

	lost   map[string][]lostCall // of each topic
	aside  map[string]*parking   // topics whose rows wait
	skip   []string              // those of them that are not tried in this turn
	strait strait
}

// A stored is a row and its key.
type stored struct {
	seq   int64
	later bool // it is in the table of the later rows
	commit.Row
	made int64 // Unix ms
	size int64 // of the record, which may not have been read yet
}

// series returns the name of the plan's series.
func (h *holding) series() string { return h.name + "." + strconv.Itoa(h.shard) }

// turn does one step and returns how long to wait before the next one.
func (h *holding) turn(ctx context.Context) (wait time.Duration, err error) {
	h.skip = h.waiting()
	if h.number == 0 {
		held, wait, err := h.acquire(ctx)
		if err != nil || !held {
			return wait, err
		}
	}
	if h.recall > 0 { // before a plan is made
		return 0, h.lose(h.remember(ctx))
	}
	if h.o.keep > 0 && time.Now().After(h.trims) {
		if err := h.trim(ctx); err != nil {
			return 0, h.lose(err)
		}
	}
	if h.shard == 0 && time.Now().After(h.drops) {
		if err := h.drop(ctx); err != nil || h.number == 0 {
			return 0, h.lose(err)
		}
	}
	if len(h.plan) == 0 {
		if waits, err := h.waits(ctx); err != nil || !waits {
			return h.rest(), h.lose(err)
		}
		if h.again > 0 {
			return 0, h.lose(h.resend(ctx))
		}
	}
	end := new(ending)
	if len(h.plan) > 0 {
		if end, err = h.send(ctx); err != nil {
			return h.failed(ctx, err)
		}
		h.skip = h.waiting() // the next plan has no rows of topics that have just been set aside
	}
	if err := h.next(ctx, end); err != nil {
		return 0, h.lose(err)
	}
	if end.idle && !h.proven { // Redis has refused everything to this relay. Another one may be allowed to.
		h.refused = end.err
		return h.giveUp(ctx, end.err)
	}
	return 0, nil
}

// lose notes that it is unknown after an error whether the relay still holds the shard.
func (h *holding) lose(err error) error {
	if err != nil {
		h.number = 0
	}
	return err
}

func (h *holding) query(text string) string {
	text = strings.NewReplacer("{table}", h.box.table, "{now}", h.box.dialect.clock()).Replace(text)
	return h.box.dialect.rebind(text)
}

// within is how long a relay uses the database at a time. It is shorter than the lease, so that a
// relay whose database is silent neither keeps the shard nor waits for ever.
func (r *Relay) within() time.Duration { return r.o.lease / 2 }

// using gives work a connection. After an error the connection is closed, because it can be silent,
// or one that has become read-only.
func (h *holding) using(ctx context.Context, work func(ctx context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, h.within())
	defer cancel()
	conn, err := h.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("outbox: no connection to the database within %v: %w", h.within(), err)
	}
	h.conn = conn
	defer func() {
		h.conn = nil
		if err != nil && h.box.dialect != SQLite { // a file is neither, and the database may be in memory
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = conn.Close()
	}()
	if err := work(ctx); err != nil {
		return h.box.explain(err)
	}
	return nil
}

// acquire takes the shard if nobody holds it and if Redis answers, and reads the plan that the last
// holder has left. Otherwise it returns how long to wait.
func (h *holding) acquire(ctx context.Context) (held bool, wait time.Duration, err error) {
	if left := time.Until(h.barred); left > 0 {
		return false, min(left, time.Second), h.left
	}
	can := false
	err = h.using(ctx, func(ctx context.Context) (err error) {
		can, err = h.peek(ctx)
		return err
	})
	if err != nil {
		return false, 0, err
	}
	if err := h.answers(ctx); err != nil {
		return false, 0, err
	}
	if can {
		err = h.using(ctx, func(ctx context.Context) (err error) {
			held, err = h.take(ctx)
			return err
		})
	}
	if can && err != nil {
		h.number = 0
		h.release(ctx)
	}
	return held, max(h.o.poll, h.o.lease/5), err
}

// answers asks Redis for an answer.
func (h *holding) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, h.within())
	defer cancel()
	return library.Answers(ctx, h.client)
}

// peek reports whether the shard is free. It also finds what this release cannot work with.
func (h *holding) peek(ctx context.Context) (can bool, err error) {
	var found int
	var plan []byte
	row := h.conn.QueryRowContext(ctx, h.query("SELECT version, plan, CASE WHEN "+free+" THEN 1 ELSE 0 END FROM {table}_shards WHERE shard = ?"), h.id, h.shard)
	switch err := row.Scan(&found, &plan, &can); {
	case errors.Is(err, sql.ErrNoRows):
		insert := h.box.dialect.ignore("INSERT INTO {table}_shards (shard, version, name, number, plan, holder, held_until) VALUES (?, ?, ?, 0, ?, '', 0)")
		_, err := h.conn.ExecContext(ctx, h.query(insert), h.shard, version, newName(), []byte{})
		return true, err
	case err != nil:
		return false, err
	case found != version:
		return false, fmt.Errorf("%w: they have version %d, this release needs %d", ErrSchema, found, version)
	}
	if _, _, _, err := decodePlan(plan); err != nil {
		return false, fmt.Errorf("shard %d: %w", h.shard, err)
	}
	return can, nil
}

// free is the condition for a shard that a relay can take. No lease is longer than ten minutes: if
// one ends later, the clock of the database has been set back.
const free = "holder = ? OR held_until < {now} OR held_until > {now} + 660000"

// newName returns a random name for a shard.
func newName() string { return "outbox." + rand.Text() }

// take takes the shard if nobody holds it.
func (h *holding) take(ctx context.Context) (held bool, err error) {
	result, err := h.conn.ExecContext(ctx, h.query("UPDATE {table}_shards SET holder = ?, "+hold+" WHERE shard = ? AND ("+free+")"),
		h.id, h.lease(), h.lease(), h.shard, h.id)
	if err != nil {
		return false, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	h.till = time.Now().Add(h.o.lease / 2)
	var name string
	var number int64
	var plan []byte
	row := h.conn.QueryRowContext(ctx, h.query("SELECT name, number, plan FROM {table}_shards WHERE shard = ? AND holder = ?"), h.shard, h.id)
	switch err := row.Scan(&name, &number, &plan); {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	}
	mark, rows, seal, err := decodePlan(plan)
	if err != nil {
		return false, fmt.Errorf("shard %d: %w", h.shard, err)
	}
	h.proven, h.failures = false, 0
	h.census = census{halved: h.census.halved} // another relay may have deleted rows
	h.ahead, h.passed, h.amiss = nil, passed{}, ""
	h.sent, h.stuck = nil, time.Time{}
	if h.plan, err = h.load(ctx, rows); err != nil {
		return false, err
	}
	if len(h.plan) < len(rows) { // then the calls would not be the same
		h.amiss = fmt.Sprintf("%d of the %d rows of a plan have been deleted by somebody else", len(rows)-len(h.plan), len(rows))
	}
	h.since = time.Now()
	if name != h.name || number != h.noted || seal != h.seal {
		h.told, h.unconfirmed = nil, nil
	}
	h.name, h.noted, h.number, h.seal, h.marker = name, number, max(number, 1), seal, mark
	h.last, h.recall = marker{}, 0
	switch span := h.o.keep.Milliseconds(); {
	case span == mark.span: // also if no row is kept
		h.last = mark
	case span > 0:
		h.recall = latest
	}
	return true, nil
}

// hold sets the end of the lease. Its two arguments are both the lease in ms. The end always
// changes, because MySQL does not count a row that an UPDATE leaves as it was.
const hold = "held_until = CASE WHEN held_until = {now} + ? THEN held_until + 1 ELSE {now} + ? END"

// lease returns for how long the shard is held, in ms.
func (h *holding) lease() int64 { return h.o.lease.Milliseconds() }

// extend extends the lease, and reports whether the relay still holds the shard.
func (h *holding) extend(ctx context.Context, q execer) (bool, error) {
	result, err := q.ExecContext(ctx, h.query("UPDATE {table}_shards SET "+hold+" WHERE shard = ? AND holder = ? AND number = ? AND name = ?"),
		h.lease(), h.lease(), h.shard, h.id, h.noted, h.name)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// lock locks the shard in a transaction, until that ends or has been idle for too long. In SQLite
// the lock is that of writers, taken before anything is read. If the shard is not as this relay has
// left it, another relay has it, or the database is in another state: it returns false.
func (h *holding) lock(ctx context.Context) (bool, error) {
	text := "UPDATE {table}_shards SET " + hold + " WHERE shard = ? AND holder = ? AND number = ? AND name = ?"
	if h.box.dialect == Postgres { // for this transaction only, and in the statement that locks
		most := strconv.FormatInt(h.within().Milliseconds(), 10)
		for _, setting := range []string{"lock_timeout", "idle_in_transaction_session_timeout"} {
			text += " AND set_config('" + setting + "', '" + most + "', true) IS NOT NULL"
		}
	}
	result, err := h.conn.ExecContext(ctx, h.query(text), h.lease(), h.lease(), h.shard, h.id, h.noted, h.name)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// inTx does work in a transaction that holds the shard. If the relay does not hold it any more, it
// does nothing, and held is false. Rows that others commit meanwhile are seen, and no gap between
// rows is locked. The statements are those of a connection, because the commit of a transaction of
// database/sql has no deadline.
func (h *holding) inTx(ctx context.Context, work func(ctx context.Context, tx session) error) (held bool, err error) {
	begin := map[Dialect][]string{
		Postgres: {"BEGIN ISOLATION LEVEL READ COMMITTED"},
		SQLite:   {"BEGIN IMMEDIATE"},
		MySQL:    {h.limits(), "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "START TRANSACTION"},
	}
	err = h.using(ctx, func(ctx context.Context) (err error) {
		for _, statement := range begin[h.box.dialect] {
			if _, err := h.conn.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		ours, err := h.lock(ctx)
		if err == nil && ours {
			err = work(ctx, h.conn)
		}
		if err == nil && !ours {
			h.number, h.plan = 0, nil
		}
		if err != nil {
			h.rollback(ctx)
			return err
		}
		end := "COMMIT"
		if !ours {
			end = "ROLLBACK"
		}
		if _, err := h.conn.ExecContext(ctx, end); err != nil {
			h.rollback(ctx)
			return err
		}
		held = ours
		if h.box.dialect == MySQL {
			_, err = h.conn.ExecContext(ctx, unlimit)
		}
		return err
	})
	return held, err
}

// rollback ends a transaction that has failed, if the connection is kept.
func (h *holding) rollback(ctx context.Context) {
	if h.box.dialect != SQLite {
		return
	}
	if _, err := h.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); err != nil {
		_ = h.conn.Raw(func(any) error { return driver.ErrBadConn }) // nobody may find a transaction in it
	}
}

// limits is the statement that makes MySQL end the connection, and so the transaction, if it hears
// nothing from the relay. It has no such setting for a transaction alone, so unlimit restores what
// was there.
func (h *holding) limits() string {
	most := max(1, int(h.within()/time.Second))
	return fmt.Sprintf("SET @delayq_wait = @@SESSION.wait_timeout, @delayq_lock = @@SESSION.innodb_lock_wait_timeout, "+
		"SESSION wait_timeout = %d, SESSION innodb_lock_wait_timeout = %d", most, most)
}

const unlimit = "SET SESSION wait_timeout = @delayq_wait, SESSION innodb_lock_wait_timeout = @delayq_lock"

// waits reports whether the shard has rows that can be sent, and extends the lease in time.
func (h *holding) waits(ctx context.Context) (waits bool, err error) {
	err = h.using(ctx, func(ctx context.Context) error {
		if err := h.stay(ctx); err != nil || h.number == 0 {
			return err
		}
		if len(h.aside) > 0 {
			h.passed = passed{} // rows that were left are below
			if err := h.search(ctx); err != nil {
				return err
			}
		}
		can, args := h.can()
		own, order := h.own()
		first := "CASE WHEN (SELECT seq FROM {table} WHERE " + own + can + order + " LIMIT 1) IS NULL THEN '' ELSE '1' END"
		rows, due, now, err := h.look(ctx, h.conn, first, append([]any{h.shard, h.passed.from(time.Now())}, args...)...)
		waits = rows != "" || len(h.ahead) > 0 || len(h.strait.cancels) > 0 || due.Valid && due.Int64 <= h.reach(now) || h.again > 0
		return err
	})
	return waits, err
}

// stay extends the lease in time. If another relay has the shard, this one no longer holds it.
func (h *holding) stay(ctx context.Context) error {
	if !time.Now().After(h.till) {
		return nil
	}
	held, err := h.extend(ctx, h.conn)
	if err != nil {
		return err
	}
	if !held {
		h.number = 0
		return nil
	}
	h.till = time.Now().Add(h.o.lease / 2)
	return nil
}

// A passed says which rows an idle relay need not look at each time. While somebody holds a
// snapshot open, a look at the whole table passes all rows that have been deleted since. It is a
// hint only: a relay that has found a row reads all rows from the first one on.
type passed struct {
	greatest int64     // key of a row that was chosen
	mark     int64     // what that was at a time
	marked   time.Time // that time
	floor    int64     // no row up to this key is expected
	looked   time.Time // when the whole table was looked at
}

const (
	// passedAfter is how long after its choice a row counts as passed. A row that is committed
	// later than that after its INSERT can have a key below those of passed rows.
	passedAfter = 5 * time.Second
	// wholeLook is how often an idle relay looks at the whole table.
	wholeLook = time.Second
)

// add notes rows that were chosen.
func (p *passed) add(rows []stored) {
	for i := range rows {
		p.greatest = max(p.greatest, rows[i].seq)
	}
}

// from returns above which key a look at a time looks for rows.
func (p *passed) from(now time.Time) int64 {
	if now.Sub(p.marked) >= passedAfter {
		p.floor, p.mark, p.marked = p.mark, p.greatest, now
	}
	if now.Sub(p.looked) >= wholeLook {
		p.looked = now
		return 0
	}
	return p.floor
}

// look returns an expression, when the first of the later rows that can be sent is due, and the
// time of the database. It also reads whether kept rows are to be sent again.
func (h *holding) look(ctx context.Context, q querier, expression string, args ...any) (value string, due sql.NullInt64, now int64, err error) {
	can, topics := h.can()
	args = append(append(append(args, h.shard), topics...), h.shard)
	err = q.QueryRowContext(ctx, h.query("SELECT "+expression+", (SELECT MIN(due) FROM {table}_later WHERE shard = ?"+can+"), "+
		"COALESCE((SELECT since FROM {table}_resend WHERE shard = ?), 0), {now}"), args...).Scan(&value, &due, &h.again, &now)
	return value, due, now, h.box.explain(err)
}

// release lets other relays take the shard at once.
func (h *holding) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(h.within(), 5*time.Second))
	defer cancel()
	_, _ = h.db.ExecContext(ctx, h.query("UPDATE {table}_shards SET held_until = 0 WHERE shard = ? AND holder = ?"), h.shard, h.id) // or the lease ends by itself
}
