package outbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/bridge"
)

// A Relay sends committed rows to Redis. Any number of relays of one table can run, in any
// processes: each shard has one at a time, which holds it by a lease in the database.
type Relay struct {
	box    *Outbox
	db     *sql.DB
	client *delayq.Client
	id     string
	o      relayOptions
	err    error
}

type relayOptions struct {
	poll    time.Duration
	lease   time.Duration
	batch   int
	horizon time.Duration // 0: none
	keep    time.Duration // 0: no row is kept
	logger  *slog.Logger
}

// A RelayOption configures a [Relay].
type RelayOption func(*relayOptions) error

// Poll sets how often a relay looks for rows while there are none. A look is one query that reads
// an index. Range: 1 ms to 1 minute. Default: 100 ms.
func Poll(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.poll = d
		return within("Poll", d, time.Millisecond, time.Minute)
	}
}

// Lease sets for how long a relay holds a shard without a sign of life. After a crash, other relays
// wait that long. Range: 1 s to 10 minutes. Default: 10 s.
func Lease(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.lease = d
		return within("Lease", d, time.Second, 10*time.Minute)
	}
}

// Batch sets how many rows are sent together. Their records have at most 4 MiB, or one has more.
// Range: 1 to 1,000. Default: 1,000.
func Batch(n int) RelayOption {
	return func(o *relayOptions) error {
		o.batch = n
		if n < 1 || n > mostRows {
			return fmt.Errorf("%w: Batch(%d): from 1 to %d", ErrInvalid, n, mostRows)
		}
		return nil
	}
}

// Logger sets where a relay logs refused rows, and when a database or Redis goes away and returns.
// Default: slog.Default().
func Logger(l *slog.Logger) RelayOption {
	return func(o *relayOptions) error {
		if o.logger = l; l == nil {
			return fmt.Errorf("%w: Logger(nil)", ErrInvalid)
		}
		return nil
	}
}

func within(option string, d, least, most time.Duration) error {
	if d < least || d > most {
		return fmt.Errorf("%w: %s(%v): from %v to %v", ErrInvalid, option, d, least, most)
	}
	return nil
}

// Bounds of a plan.
const (
	mostRows  = 1000
	planBytes = 4 << 20
	// inline is the size up to which records come with the list of rows. Larger ones are read one
	// by one, so that planBytes bounds what is in memory.
	inline = 4 << 10
)

// Relay returns a relay from the tables in db to the Redis of the client. It starts nothing. The
// caller owns db and the client. A relay uses one connection of db for each shard.
func (b *Outbox) Relay(db *sql.DB, client *delayq.Client, opts ...RelayOption) *Relay {
	r := &Relay{
		box: b, db: db, client: client, id: rand.Text(),
		o: relayOptions{poll: 100 * time.Millisecond, lease: 10 * time.Second, batch: mostRows, logger: slog.Default()},
	}
	if db == nil || client == nil {
		r.err = fmt.Errorf("%w: a relay needs a database and a client", ErrInvalid)
	}
	for _, opt := range opts {
		if opt == nil {
			r.err = errors.Join(r.err, fmt.Errorf("%w: an option is nil", ErrInvalid))
			continue
		}
		r.err = errors.Join(r.err, opt(&r.o))
	}
	return r
}

// Run sends rows until ctx is done, and then returns nil once the batch in progress has ended or
// was abandoned. An abandoned batch is continued by the next relay. If the database or Redis is
// away, Run waits and tries again, at least once a second.
//
// Run returns an error at once if the relay is invalid ([ErrInvalid]) or if the tables are missing
// or of another version ([ErrSchema]).
func (r *Relay) Run(ctx context.Context) error {
	if r.err != nil {
		return r.err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for shard := range r.box.shards {
		group.Go(func() {
			if err := r.serve(ctx, shard); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, ErrSchema) {
		return cause
	}
	return nil
}

// serve is the loop of one shard.
func (r *Relay) serve(ctx context.Context, shard int) error {
	if ctx.Err() != nil { // there is nothing to release
		return nil
	}
	nudge := make(chan struct{}, 1)
	r.box.mu.Lock()
	r.box.nudges[nudge] = struct{}{}
	r.box.mu.Unlock()
	defer func() {
		r.box.mu.Lock()
		delete(r.box.nudges, nudge)
		r.box.mu.Unlock()
	}()
	h := &holding{Relay: r, shard: shard}
	defer h.release(ctx)
	var away time.Time
	for ctx.Err() == nil {
		wait, err := h.turn(ctx)
		switch {
		case err == nil && !away.IsZero():
			r.o.logger.Info("outbox relay continues", "shard", shard, "away", time.Since(away))
			away = time.Time{}
		case errors.Is(err, ErrSchema):
			return err
		case err != nil && ctx.Err() == nil && away.IsZero():
			away = time.Now()
			r.o.logger.Warn("outbox relay waits", "shard", shard, "err", err)
		}
		if err != nil {
			h.number, h.known = 0, false // whether it still holds the shard is unknown
			wait = min(max(r.o.poll, time.Since(away)/4), time.Second)
		}
		if wait == 0 {
			continue
		}
		timer, nudged := time.NewTimer(wait), nudge
		if h.number == 0 {
			nudged = nil // it cannot do anything
		}
		select {
		case <-ctx.Done():
		case <-nudged:
			h.passed.looked = time.Time{}
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// A holding is a shard that a relay holds or would like to.
type holding struct {
	*Relay
	shard int

	number int64  // of the last plan; 0: the relay does not hold the shard
	series string // of the shard
	plan   []stored
	since  time.Time // when the ages of the plan's rows had been read
	ahead  []stored  // the oldest rows after the plan, as far as they have been read
	ask    int       // how many rows to read next
	passed passed    // rows that need not be looked at often
	marker marker    // of the plan
	last   marker    // of the last plan whose rows this relay keeps
	till   time.Time // when the lease should be extended
	trims  time.Time // when kept rows should be trimmed
	known  bool      // there is a row for the shard
	odd    int       // 1 in every other plan
	again  int64     // kept rows are to be sent again since this time, Unix ms; 0: none
}

// A stored is a row and its key.
type stored struct {
	seq   int64
	later bool // it is in the table of the later rows
	bridge.Row
	made int64 // Unix ms
	size int64 // of the record, which may not have been read yet
}

// turn does one step and returns how long to wait before the next one.
func (h *holding) turn(ctx context.Context) (wait time.Duration, err error) {
	if h.number == 0 {
		held, err := h.acquire(ctx)
		if err != nil || !held {
			return max(h.o.poll, h.o.lease/5), err
		}
	}
	if h.o.keep > 0 && time.Now().After(h.trims) {
		if err := h.trim(ctx); err != nil {
			return 0, err
		}
	}
	if len(h.plan) == 0 {
		if waits, err := h.waits(ctx); err != nil || !waits {
			return h.o.poll, err
		}
		if h.again > 0 {
			return 0, h.resend(ctx)
		}
	}
	var refused []refusal
	if len(h.plan) > 0 {
		if refused, err = h.send(ctx); err != nil {
			return 0, err
		}
	}
	return 0, h.next(ctx, refused)
}

func (h *holding) query(text string) string {
	text = strings.NewReplacer("{table}", h.box.table, "{now}", h.box.dialect.clock()).Replace(text)
	return h.box.dialect.rebind(text)
}

// acquire takes the shard if nobody holds it, and reads the plan that the last holder has left.
func (h *holding) acquire(ctx context.Context) (held bool, err error) {
	if !h.known {
		insert := h.box.dialect.ignore("INSERT INTO {table}_shards (shard, version, name, number, plan, holder, held_until) VALUES (?, ?, ?, 0, ?, '', 0)")
		if _, err := h.db.ExecContext(ctx, h.query(insert), h.shard, version, "outbox."+rand.Text(), []byte{}); err != nil {
			return false, h.box.explain(err)
		}
		h.known = true
	}
	result, err := h.db.ExecContext(ctx, h.query("UPDATE {table}_shards SET holder = ?, held_until = {now} + ? WHERE shard = ? AND (holder = ? OR held_until < {now})"),
		h.id, h.o.lease.Milliseconds(), h.shard, h.id)
	if err != nil {
		return false, h.box.explain(err)
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	h.till = time.Now().Add(h.o.lease / 2)
	var found int
	var name string
	var number int64
	var plan []byte
	row := h.db.QueryRowContext(ctx, h.query("SELECT version, name, number, plan FROM {table}_shards WHERE shard = ? AND holder = ?"), h.shard, h.id)
	switch err := row.Scan(&found, &name, &number, &plan); {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, h.box.explain(err)
	case found != version:
		return false, fmt.Errorf("%w: they have version %d, this release needs %d", ErrSchema, found, version)
	}
	mark, rows, err := decodePlan(plan)
	if err != nil {
		return false, fmt.Errorf("shard %d: %w", h.shard, err)
	}
	// If somebody has deleted the rows, the next plan replaces this one.
	h.ahead, h.passed = nil, passed{}
	if h.plan, err = h.load(ctx, rows); err != nil {
		return false, err
	}
	h.since = time.Now()
	if h.marker = mark; h.o.keep > 0 {
		if err := h.remember(ctx); err != nil {
			return false, err
		}
	}
	h.series, h.number = name+"."+strconv.Itoa(h.shard), max(number, 1)
	return true, nil
}

// waits reports whether the shard has rows, and extends the lease in time.
func (h *holding) waits(ctx context.Context) (bool, error) {
	if time.Now().After(h.till) {
		result, err := h.db.ExecContext(ctx, h.query("UPDATE {table}_shards SET held_until = {now} + ? WHERE shard = ? AND holder = ?"), h.o.lease.Milliseconds(), h.shard, h.id)
		if err != nil {
			return false, err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			h.number = 0
			return false, err
		}
		h.till = time.Now().Add(h.o.lease / 2)
	}
	rows, due, now, err := h.look(ctx, h.db, "CASE WHEN EXISTS (SELECT 1 FROM {table} WHERE shard = ? AND seq > ?) THEN '1' ELSE '' END", h.shard, h.passed.from(time.Now()))
	return rows != "" || len(h.ahead) > 0 || due.Valid && due.Int64 <= h.reach(now) || h.again > 0, err
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

// look returns an expression, when the first of the later rows is due, and the time of the
// database. It also reads whether kept rows are to be sent again.
func (h *holding) look(ctx context.Context, q querier, expression string, args ...any) (value string, due sql.NullInt64, now int64, err error) {
	err = q.QueryRowContext(ctx, h.query("SELECT "+expression+", (SELECT MIN(due) FROM {table}_later WHERE shard = ?), "+
		"COALESCE((SELECT since FROM {table}_resend WHERE shard = ?), 0), {now}"), append(args, h.shard, h.shard)...).Scan(&value, &due, &h.again, &now)
	return value, due, now, h.box.explain(err)
}

// next ends the plan that was sent and commits the next one, in one transaction. If another relay
// has taken the shard, that one has sent or will send the same plan, and this one forgets it.
func (h *holding) next(ctx context.Context, refused []refusal) (err error) {
	tx, err := h.db.BeginTx(ctx, &sql.TxOptions{Isolation: h.isolation()})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback()
		}
	}()
	// The first statement locks the shard. In SQLite it takes the write lock before anything is
	// read.
	result, err := tx.ExecContext(ctx, h.query("UPDATE {table}_shards SET held_until = {now} + ? WHERE shard = ? AND holder = ? AND number <= ?"), h.o.lease.Milliseconds()+1, h.shard, h.id, h.number)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		h.number, h.plan = 0, nil
		return tx.Rollback()
	}
	for _, row := range refused {
		if err := h.bury(ctx, tx, row); err != nil {
			return err
		}
	}
	setting := "''"
	if h.box.dialect == Postgres {
		// Without statistics, or with those of an empty table, PostgreSQL would read all rows that
		// wait and sort them.
		setting = "set_config('enable_sort', 'off', true)"
	}
	_, due, now, err := h.look(ctx, tx, setting)
	if err != nil {
		return err
	}
	looked := time.Now()         // not before the query: a job may start late, but not early
	number := max(h.number, now) // and the next plan is later than these rows are sent
	if err := h.save(ctx, tx, refused, number); err != nil {
		return err
	}
	if err := h.remove(ctx, tx, h.plan); err != nil {
		return err
	}
	var rows []stored
	var mark marker
	if h.again == 0 { // or no plan may be in progress
		if rows, err = h.choose(ctx, tx, due, now); err != nil {
			return err
		}
	}
	if len(rows) > 0 {
		number++
		mark = h.last.next(h.o.keep, now)
	}
	if _, err := tx.ExecContext(ctx, h.query("UPDATE {table}_shards SET number = ?, plan = ? WHERE shard = ?"), number, encodePlan(mark, rows), h.shard); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	h.number, h.plan, h.marker, h.till = number, rows, mark, time.Now().Add(h.o.lease/2)
	h.since = looked
	h.passed.add(rows)
	if mark.span > 0 {
		h.last = mark
	}
	return nil
}

// isolation is that of the transaction of a plan: rows that others commit meanwhile are seen, and
// no gap between rows is locked.
func (h *holding) isolation() sql.IsolationLevel {
	if h.box.dialect == SQLite {
		return sql.LevelDefault
	}
	return sql.LevelReadCommitted
}

// bury writes a refused row to the dead rows. A cancel that stands for a row beyond the horizon
// takes that row with it.
func (h *holding) bury(ctx context.Context, tx *sql.Tx, row refusal) error {
	for _, table := range []string{"{table}_later", "{table}"} { // the second one does nothing if the first one did
		insert := "INSERT INTO {table}_dead (seq, " + rowNames + ", reason, refused) SELECT seq, " + rowNames + ", ?, {now} FROM " + table + " WHERE " + h.one("?")
		if _, err := tx.ExecContext(ctx, h.query(h.box.dialect.ignore(insert)), row.reason, row.seq); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, h.query("DELETE FROM {table}_later WHERE "+h.one("?")), row.seq)
	return err
}

// remove deletes rows.
func (h *holding) remove(ctx context.Context, tx *sql.Tx, rows []stored) error {
	for table, some := range byTable(rows) {
		which, args := h.among(some)
		drop := "DELETE FROM " + table + " WHERE " + which
		if h.box.dialect == MySQL {
			// By the list alone InnoDB can scan the table, and then waits for rows that other
			// transactions have not committed yet. This looks up each key.
			drop = "DELETE o FROM JSON_TABLE('[" + list(some) + "]', '$[*]' COLUMNS (seq BIGINT PATH '$')) AS p STRAIGHT_JOIN " + table + " AS o ON o.seq = p.seq"
		}
		if _, err := tx.ExecContext(ctx, h.query(drop), args...); err != nil {
			return err
		}
	}
	return nil
}

// byTable divides rows by the table that has them.
func byTable(rows []stored) map[string][]stored {
	tables := make(map[string][]stored)
	for _, row := range rows {
		table := "{table}"
		if row.later {
			table = "{table}_later"
		}
		tables[table] = append(tables[table], row)
	}
	return tables
}

// load reads the rows of a plan that was committed before. A plan is sent whole, however large it
// is by the bounds of this release.
func (h *holding) load(ctx context.Context, plan []stored) ([]stored, error) {
	var rows []stored
	for table, some := range byTable(plan) {
		which, args := h.among(some)
		read, now, err := h.read(ctx, h.db, table, "WHERE "+which, math.MaxInt64, args...)
		if err != nil {
			return nil, err
		}
		age(read, now)
		rows = append(rows, read...)
	}
	slices.SortFunc(rows, order)
	return rows, nil
}

// order is that of the rows in a plan. A cancel that stands for a later row has its key.
func order(a, b stored) int {
	if a.seq == b.seq && a.later != b.later {
		if a.later {
			return 1
		}
		return -1
	}
	return cmp.Compare(a.seq, b.seq)
}

// A querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// among returns a condition for rows of the shard by their keys, and its arguments.
func (h *holding) among(rows []stored) (condition string, args []any) {
	if h.box.dialect == Postgres { // so that one prepared statement does for all
		return h.one("ANY(CAST(CAST(? AS text) AS bigint[]))"), []any{"{" + list(rows) + "}"}
	}
	return "seq IN (" + list(rows) + ")", nil
}

// one returns a condition for a row of the shard by its key.
func (h *holding) one(key string) string {
	return "shard = " + strconv.Itoa(h.shard) + " AND seq = " + key
}

// age gives rows their age at a time of the database. A row that was made later, before it was
// read, has a negative age.
func age(rows []stored, now int64) {
	for i := range rows {
		rows[i].Age = now - rows[i].made
	}
}

// read reads rows of a table up to a size, at least one, and the time of the database.
func (h *holding) read(ctx context.Context, q querier, table, which string, most int64, args ...any) (list []stored, now int64, err error) {
	rows, err := q.QueryContext(ctx, h.query("SELECT seq, kind, topic, id, replaces, due_at, delay_ms, made, LENGTH(record), CASE WHEN LENGTH(record) <= "+
		strconv.Itoa(inline)+" THEN record END, (SELECT {now}) FROM "+table+" "+which), args...)
	if err != nil {
		return nil, 0, h.box.explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		s := stored{later: table == "{table}_later"}
		var id, record []byte
		if err := rows.Scan(&s.seq, &s.Kind, &s.Topic, &id, &s.Replace, &s.DueAt, &s.DueIn, &s.made, &s.size, &record, &now); err != nil {
			return nil, 0, err
		}
		s.ID, s.Record = string(id), string(record)
		list = append(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, 0, err
	}
	if err := rows.Close(); err != nil {
		return nil, 0, err
	}
	bytes := int64(0)
	for i := range list {
		if bytes += list[i].size; i > 0 && bytes > most {
			return list[:i], now, nil
		}
		if err := h.fill(ctx, q, table, &list[i]); err != nil {
			return nil, 0, err
		}
	}
	return list, now, nil
}

// fill reads the record of a row that has a large one.
func (h *holding) fill(ctx context.Context, q querier, table string, s *stored) error {
	if int64(len(s.Record)) == s.size {
		return nil
	}
	var record []byte
	if err := q.QueryRowContext(ctx, h.query("SELECT record FROM "+table+" WHERE "+h.one("?")), s.seq).Scan(&record); err != nil {
		return err
	}
	s.Record = string(record)
	return nil
}

// A refusal is a row that Redis has refused for good.
type refusal struct {
	seq    int64
	reason string
}

// send carries out the plan, all topics at the same time up to mostTopics, and returns the rows
// that were refused.
func (h *holding) send(ctx context.Context) (refused []refusal, err error) {
	topics := make(map[string][]int)
	var order []string
	for i := range h.plan {
		topic := h.plan[i].Topic
		if topics[topic] == nil {
			order = append(order, topic)
		}
		topics[topic] = append(topics[topic], i)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, mostTopics)
	waited := time.Since(h.since).Milliseconds() // Redis may have been away
	for _, topic := range order {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			rows := make([]bridge.Row, len(topics[topic]))
			for n, i := range topics[topic] {
				rows[n] = h.plan[i].Row
				rows[n].Age = max(0, rows[n].Age+waited)
			}
			outcomes, failed := bridge.SendRows(ctx, h.client, bridge.Plan{Series: h.marker.series(h.series), Number: uint64(h.number)}, rows)
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				err = errors.Join(err, failed)
				return
			}
			for n, i := range topics[topic] {
				if reason := refusedFor(rows[n].Kind, outcomes[n]); reason != "" {
					refused = append(refused, refusal{h.plan[i].seq, reason})
				}
			}
		})
	}
	group.Wait()
	if err != nil {
		return nil, err
	}
	h.complain(refused)
	return refused, nil
}

// complain logs that rows were refused, in one line.
func (h *holding) complain(refused []refusal) {
	if len(refused) > 0 {
		h.o.logger.Warn("outbox rows refused", "shard", h.shard, "rows", len(refused), "first", refused[0].seq, "err", refused[0].reason)
	}
}

// mostTopics is how many topics of a plan are sent at the same time.
const mostTopics = 16

// refusedFor returns why a row goes to the dead rows, or an empty string. A cancel or a reschedule
// that comes too late has nothing to do.
func refusedFor(kind bridge.RowKind, err error) string {
	late := errors.Is(err, delayq.ErrNotFound) || errors.Is(err, delayq.ErrRunning) || errors.Is(err, delayq.ErrDead)
	if err == nil || kind != bridge.RowEnqueue && late {
		return ""
	}
	return strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", ""), "\uFFFD")
}

// release lets other relays take the shard at once.
func (h *holding) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = h.db.ExecContext(ctx, h.query("UPDATE {table}_shards SET held_until = 0 WHERE shard = ? AND holder = ?"), h.shard, h.id) // or the lease ends by itself
}

// list returns the keys of rows, separated by commas.
func list(rows []stored) string {
	text := make([]byte, 0, 8*len(rows))
	for i := range rows {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, rows[i].seq, 10)
	}
	return string(text)
}
