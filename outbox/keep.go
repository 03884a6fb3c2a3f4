package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
)

// Keep makes a relay keep the rows that it has sent for d, in the table whose name ends in _sent,
// so that [Outbox.Resend] can send them again if Redis loses its data. Older rows are deleted, up
// to about 2,000 in a statement. Refused rows are not kept. Give all relays of a table the same
// time. A relay without Keep neither keeps rows nor deletes those that others have kept.
//
// Range: 1 minute to 6 days, because what Redis remembers of a row expires after 7 days. Default:
// no row is kept.
func Keep(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.keep = d
		return within("Keep", d, time.Minute, 6*24*time.Hour)
	}
}

// Resend asks the relays to send rows again that were sent at since or later, by the database's
// clock, and that Redis does not remember. It returns how many kept rows there are since then, of
// which Redis may remember most. The relay that holds a shard does it, before it sends anything
// else. If it dies, the next one does. It logs how many rows it sends again.
//
// Redis remembers a row as long as it has the data that it had after the row was sent, so a job
// that exists or that has finished is not made again. After the loss of that memory, a job that had
// finished is made again too, with its nonce, so that an [Inbox] prevents its effect. Of the calls
// about an ID only the last ones count: no job is made that was cancelled or replaced after since.
//
// Without [Keep] there are no rows, and Resend returns 0. Errors: [ErrInvalid] if since is in the
// future by more than a minute or before 1970, [ErrSchema], or the error of the database.
func (b *Outbox) Resend(ctx context.Context, db *sql.DB, since time.Time) (rows int64, err error) {
	if db == nil || since.UnixMilli() < 1 || time.Until(since) > time.Minute {
		return 0, fmt.Errorf("%w: Resend(%v) needs a database and a time from 1970 to now", ErrInvalid, since)
	}
	h := &holding{Relay: &Relay{box: b}}
	from := since.UnixMilli()
	for shard := range b.shards {
		var n int64 // before a relay sees the request, and moves rows
		if err := db.QueryRowContext(ctx, h.query("SELECT COUNT(*) FROM {table}_sent WHERE shard = ? AND sent >= ?"), shard, from).Scan(&n); err != nil {
			return 0, fmt.Errorf("outbox: resend: %w", b.explain(err))
		}
		rows += n
	}
	for shard := range b.shards {
		insert := h.query(b.dialect.ignore("INSERT INTO {table}_resend (shard, since) VALUES (?, ?)"))
		if _, err := db.ExecContext(ctx, insert, shard, from); err != nil {
			return 0, fmt.Errorf("outbox: resend: %w", b.explain(err))
		}
		// An earlier request may have a later time.
		if _, err := db.ExecContext(ctx, h.query("UPDATE {table}_resend SET since = ? WHERE shard = ? AND since > ?"), from, shard, from); err != nil {
			return 0, fmt.Errorf("outbox: resend: %w", b.explain(err))
		}
	}
	b.Nudge()
	return rows, nil
}

// A marker says which series a plan uses whose rows are kept. Its receipt is what Redis remembers
// of the plan, so no other plan may use the series while the rows are kept. To use few series,
// plans take those of three rounds in turn. A round lasts for at least the span for which rows are
// kept. A round that uses the series of an earlier one begins two rounds after that has ended.
type marker struct {
	span  int64 // ms for which rows are kept; 0: they are not, and all plans use the same series
	began int64 // when the round began, Unix ms
	slot  int64 // place of the plan in its round, times 3, plus that of the round
}

// next returns the marker of the next plan.
func (m marker) next(keep time.Duration, now int64) marker {
	span := keep.Milliseconds()
	switch {
	case span == 0:
		return marker{}
	case m.span != span:
		return marker{span: span, began: now}
	case now-m.began < span:
		m.slot += 3
		return m
	}
	return marker{span: span, began: now, slot: (m.slot + 1) % 3}
}

// series returns the series of the plan in a shard.
func (m marker) series(shard string) string {
	if m.span == 0 {
		return shard
	}
	return shard + "." + strconv.FormatInt(m.span, 10) + "." + strconv.FormatInt(m.slot, 10)
}

// latest is a time after all plans.
const latest = 1 << 62

// windowRows is how many kept rows a statement looks at, more than a plan has.
const windowRows = 10_000

// A window is some kept rows, from a time back.
type window struct {
	value sql.NullInt64 // the greatest one of an expression
	next  int64         // the time before which the next window begins; 0: there is none
}

// window looks at rows that were sent since a time and before another one. The next window has the
// plan at the end of this one once more.
func (h *holding) window(ctx context.Context, expression string, since, before int64) (w window, err error) {
	row := h.conn.QueryRowContext(ctx, h.query("SELECT COUNT(*), COALESCE(MIN(sent), 0) + 1, MAX("+expression+") FROM (SELECT seq, sent, span FROM {table}_sent "+
		"WHERE shard = ? AND sent >= ? AND sent < ? ORDER BY sent DESC LIMIT "+strconv.Itoa(windowRows)+") AS some_rows"), h.shard, since, before)
	n := 0
	if err := row.Scan(&n, &w.next, &w.value); err != nil {
		return w, err
	}
	if n < windowRows {
		w.next = 0
	}
	return w, nil
}

// remember looks for the marker of the last plan whose rows were kept for as long as this relay
// does, among some kept rows. Behind them can be many that were kept for another time.
func (h *holding) remember(ctx context.Context) error {
	return h.using(ctx, func(ctx context.Context) error {
		if err := h.stay(ctx); err != nil || h.number == 0 {
			return err
		}
		return h.inOrder(ctx, func(ctx context.Context) error {
			span := h.o.keep.Milliseconds()
			w, err := h.window(ctx, fmt.Sprintf("CASE WHEN span = %d THEN sent END", span), 0, h.recall)
			if err != nil || !w.value.Valid {
				h.recall = w.next
				return err
			}
			h.recall, h.last = 0, marker{span: span}
			row := h.conn.QueryRowContext(ctx, h.query("SELECT began, slot FROM {table}_sent WHERE shard = ? AND sent = ? AND span = ? LIMIT 1"), h.shard, w.value.Int64, span)
			return row.Scan(&h.last.began, &h.last.slot)
		})
	})
}

// save keeps rows of the plan that was sent.
func (h *holding) save(ctx context.Context, tx session, rows []stored, now int64) error {
	if h.marker.span == 0 {
		return nil
	}
	for table, some := range byTable(rows) {
		which, args := h.among(some)
		_, err := tx.ExecContext(ctx, h.query("INSERT INTO {table}_sent (seq, "+rowNames+", sent, number, span, began, slot) SELECT seq, "+rowNames+
			", ?, ?, ?, ?, ? FROM "+table+" WHERE "+which),
			append([]any{now, h.number, h.marker.span, h.marker.began, h.marker.slot}, args...)...)
		if err != nil {
			return err
		}
	}
	return nil
}

// trimRows is how many kept rows a relay deletes in a statement, up to one plan more.
const trimRows = 2000

// trim deletes rows that were kept long enough.
func (h *holding) trim(ctx context.Context) error {
	return h.ordered(ctx, func(ctx context.Context) error {
		var until int64
		if err := h.conn.QueryRowContext(ctx, "SELECT "+h.box.dialect.clock()).Scan(&until); err != nil {
			return err
		}
		until -= h.o.keep.Milliseconds()
		end := until
		row := h.conn.QueryRowContext(ctx, h.query("SELECT sent FROM {table}_sent WHERE shard = ? AND sent < ? ORDER BY sent LIMIT 1 OFFSET "+strconv.Itoa(trimRows)), h.shard, until)
		switch err := row.Scan(&end); {
		case errors.Is(err, sql.ErrNoRows): // less than that
			h.trims = time.Now().Add(min(h.o.keep/10, time.Minute))
		case err != nil:
			return err
		}
		_, err := h.conn.ExecContext(ctx, h.query("DELETE FROM {table}_sent WHERE shard = ? AND sent < ?"), h.shard, end)
		return err
	})
}

// A resending sends kept rows again. It reads plans from the last one to the first, so that it
// knows the later calls about an ID.
type resending struct {
	*holding
	seed   maphash.Seed
	jobs   map[uint64]progress // by a hash of topic and ID
	moves  map[uint64]*kept    // the last reschedule of jobs whose enqueue has not been read
	anew   bool                // rows get new keys, because keys have started again
	back   []kept              // rows that get new keys, the last one first
	looked int
	sent   int
}

// A progress is what is known about the calls about an ID.
type progress uint8

const (
	open    progress = iota
	enqueue          // the job is sent again. An earlier cancel comes before it.
	closed           // earlier calls do not count
)

// A kept is a row that was sent.
type kept struct {
	stored
	at   int64 // when it was sent, Unix ms
	lost bool  // Redis does not remember it
	late bool  // it has the due time of a later reschedule
}

// resend moves rows that Redis does not remember back into the outbox, with their keys, so that
// they come before all others. No plan is in progress. If keys have started again, the rows get new
// keys.
func (h *holding) resend(ctx context.Context) error {
	since := h.again
	h.ahead, h.passed = nil, passed{} // the rows that come back are older
	anew, err := h.behind(ctx, since)
	if err != nil {
		return err
	}
	err = h.resendSince(ctx, since, anew)
	if errors.Is(err, errTaken) {
		err = h.resendSince(ctx, since, true)
	}
	return err
}

func (h *holding) resendSince(ctx context.Context, since int64, anew bool) error {
	r := &resending{holding: h, seed: maphash.MakeSeed(), jobs: make(map[uint64]progress), moves: make(map[uint64]*kept), anew: anew}
	if err := r.pending(ctx); err != nil {
		return err
	}
	for before := int64(0); ; {
		rows, err := r.plan(ctx, since, before)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			break
		}
		before = rows[0].at
		if err := r.put(ctx, r.choose(rows), 0); err != nil {
			return err
		}
	}
	if err := r.putAnew(ctx); err != nil {
		return err
	}
	if err := r.putMoves(ctx); err != nil {
		return err
	}
	if err := r.put(ctx, nil, since); err != nil {
		return err
	}
	h.o.logger.Info("outbox rows are sent again", "shard", h.shard, "since", time.UnixMilli(since), "rows", r.sent, "of", r.looked)
	return nil
}

func (r *resending) key(s *stored) uint64 {
	return maphash.String(r.seed, s.Topic+"\x00"+s.ID)
}

// pending reads which jobs the rows of the outbox are about, because they come later than all that
// were sent.
func (r *resending) pending(ctx context.Context) error {
	for last := int64(0); ; {
		n, err := r.pendingAfter(ctx, &last)
		if err != nil || n < pendingRows {
			return err
		}
		if err := r.put(ctx, nil, 0); err != nil { // it extends the lease
			return err
		}
	}
}

// pendingRows is how many rows pending reads in a query.
const pendingRows = 10_000

// pendingAfter reads rows with keys after the last one, which it sets, and returns their number.
func (r *resending) pendingAfter(ctx context.Context, last *int64) (n int, err error) {
	err = r.ordered(ctx, func(ctx context.Context) (err error) {
		n, err = r.readPending(ctx, last)
		return err
	})
	return n, err
}

func (r *resending) readPending(ctx context.Context, last *int64) (n int, err error) {
	own, order := r.own()
	rows, err := r.conn.QueryContext(ctx, r.query("SELECT seq, topic, id, kind FROM {table} WHERE "+own+order+" LIMIT "+strconv.Itoa(pendingRows)), r.shard, *last)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for ; rows.Next(); n++ {
		var s stored
		var id []byte
		if err := rows.Scan(last, &s.Topic, &id, &s.Kind); err != nil {
			return 0, err
		}
		if s.ID = string(id); s.Kind != commit.RowReschedule {
			r.jobs[r.key(&s)] = closed
		}
	}
	return n, rows.Err()
}

// plan returns the rows of the last plan that was sent before a time (0: of all), the last row
// first.
func (r *resending) plan(ctx context.Context, since, before int64) (list []kept, err error) {
	if before == 0 {
		before = 1 << 62
	}
	var at, number int64
	var mark marker
	var rows []stored
	err = r.ordered(ctx, func(ctx context.Context) error {
		row := r.conn.QueryRowContext(ctx, r.query("SELECT sent, number, span, slot FROM {table}_sent WHERE shard = ? AND sent >= ? AND sent < ? ORDER BY sent DESC LIMIT 1"), r.shard, since, before)
		switch err := row.Scan(&at, &number, &mark.span, &mark.slot); {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		if rows, _, err = r.outline(ctx, r.conn, "{table}_sent", "WHERE shard = ? AND sent = ? ORDER BY seq DESC", r.shard, at); err != nil {
			return err
		}
		rows, err = r.fill(ctx, r.conn, "{table}_sent", fmt.Sprintf(" AND shard = %d AND sent = %d", r.shard, at), rows, math.MaxInt64)
		return err
	})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	list = make([]kept, len(rows))
	topics := make(map[string][]*kept)
	for i := range slices.Backward(rows) {
		list[i] = kept{stored: rows[i], at: at, lost: true}
		topics[rows[i].Topic] = append(topics[rows[i].Topic], &list[i])
	}
	r.looked += len(list)
	return list, r.recall(ctx, topics, mark, number)
}

// recall finds out which rows of a plan Redis remembers. It extends the lease meanwhile, because
// each topic has calls of its own.
func (r *resending) recall(ctx context.Context, topics map[string][]*kept, mark marker, number int64) (err error) {
	ctx, stop := r.keepLease(ctx)
	defer func() { err = errors.Join(err, stop()) }()
	for topic, sent := range topics {
		// Which release has sent the plan is not known. A series that was not used has no receipt.
		for _, sealed := range []bool{true, false} {
			if err := r.remembered(ctx, topic, divide(sent, sealed), mark, number, sealed); err != nil {
				return err
			}
		}
	}
	return nil
}

// Bounds of a call, as docs/protocol.md has them.
const (
	callRows  = 500
	callBytes = 1 << 20
)

// divide divides the rows of a topic into the calls by which they were sent, in a plan with a seal
// or without one.
func divide(rows []*kept, sealed bool) (calls [][]*kept) {
	for len(rows) > 0 {
		var call, rest []*kept
		bytes, seen, left := int64(0), make(map[string]bool), make(map[string]bool)
		for _, row := range rows {
			key := ""
			if text, _, err := row.CutRow(); sealed && row.makes() && err == nil {
				job, _ := record.Decode(text) // damaged: no key
				key = job.Options.Key
			}
			alone := len(call) > 0 && row.Kind == commit.RowFlow
			if alone || row.Kind != rows[0].Kind || seen[row.ID] || key != "" && left[key] || len(call) == callRows || len(call) > 0 && bytes+row.size > callBytes {
				left[key] = true
				rest = append(rest, row)
			} else {
				call, bytes = append(call, row), bytes+row.size
			}
			seen[row.ID] = true
		}
		calls, rows = append(calls, call), rest
	}
	return calls
}

// remembered finds out which rows of a plan Redis remembers. It makes the calls of the plan with a
// lower number, each with a row that changes nothing. A script that finds the receipt of the plan
// refuses that. Another one finds no job.
func (r *resending) remembered(ctx context.Context, topic string, calls [][]*kept, mark marker, number int64, sealed bool) error {
	plan := commit.Plan{Series: mark.series(r.series()), Number: uint64(number - 1), Probe: true}
	if sealed {
		plan.Tag = "probe"
	}
	for i, call := range calls {
		plan.Call = commit.CallName(i, sealed)
		_, _, err := library.SendRows(ctx, r.client, plan, nothing(topic))
		switch {
		case errors.Is(err, commit.ErrPassed):
			for _, row := range call {
				row.lost = false
			}
		case err != nil:
			return err
		}
	}
	return nil
}

// choose returns the rows of a plan that are sent again, and reschedules that it had postponed.
func (r *resending) choose(rows []kept) (back []kept) {
	for i := range rows {
		row := &rows[i]
		key := r.key(&row.stored)
		state, move := r.jobs[key], r.moves[key]
		switch {
		case state == closed:
			continue
		case row.Kind == commit.RowReschedule:
			if state == open && move == nil {
				own := *row // or it would hold all rows of its plan
				r.moves[key] = &own
			}
			continue
		case row.makes() && state == enqueue:
			if !row.lost {
				r.jobs[key] = closed
			}
			continue
		}
		delete(r.moves, key)
		r.jobs[key] = closed
		if row.makes() && row.lost {
			if !row.replaces(commit.ReplaceAny) && !row.decides() {
				r.jobs[key] = enqueue
			}
			if move != nil { // or the job could start before it is moved
				row.late = row.reschedule(&move.stored) == nil // or Redis has refused the reschedule too
			}
		} else if move != nil && move.lost {
			back = append(back, *move)
		}
		if row.lost {
			back = append(back, *row)
		}
	}
	return back
}

// put moves rows back into the outbox. With a time it also ends the request of that time.
func (r *resending) put(ctx context.Context, back []kept, since int64) (err error) {
	if r.anew {
		r.gather(back)
		back = nil
	}
	if len(back) == 0 && since == 0 && time.Now().Before(r.till) {
		return nil
	}
	err = r.inShard(ctx, func(ctx context.Context, tx session) error { return r.putBack(ctx, tx, back, since) })
	if err == nil {
		r.sent += len(back)
	}
	return err
}

// inShard does work in a transaction that holds the shard.
func (r *resending) inShard(ctx context.Context, work func(ctx context.Context, tx session) error) error {
	held, err := r.inTx(ctx, work)
	if err != nil {
		return err
	}
	if !held {
		return errOvertaken
	}
	r.till = time.Now().Add(r.o.lease / 2)
	return nil
}

var errOvertaken = errors.New("outbox: another relay has taken the shard")
