package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/record"
)

// Horizon makes a relay send a job only when it is due within d. Until then its row stays in the
// database, in the table whose name ends in _later, so that jobs of the far future take no memory
// of Redis. Without a horizon every row is sent at once, also those that a relay with a horizon has
// left, so give all relays of a table the same one. Choose a horizon that is longer than relays can
// be away: a job whose row is still in the table when it is due starts late.
//
// [Outbox.Dequeue] and [Outbox.Reschedule] find such a job. [delayq.Client.Dequeue] and all other
// calls of a client do not. Its ID is taken: another [Outbox.Enqueue] of it goes to the dead rows,
// unless [delayq.Replace] is given. Whether a job in Redis has the ID is decided when the row is
// sent, except that Replace removes it at once. Then the ID is free too, if [delayq.UniqueFor] of
// that job has closed it. A row with [delayq.Debounce], [delayq.Latest] or [delayq.UnlessRunning]
// is sent at once, because Redis decides what becomes of a job with the ID. It finds a row beyond
// the horizon, too: with Latest, that stays there and takes the payload.
//
// Range: 1 minute to 100 years. Default: no horizon.
func Horizon(d time.Duration) RelayOption {
	return func(o *relayOptions) error {
		o.horizon = d
		return within("Horizon", d, time.Minute, 100*365*24*time.Hour)
	}
}

// reach returns up to which due time rows are sent, in Unix ms.
func (h *holding) reach(now int64) int64 {
	if h.o.horizon == 0 {
		return math.MaxInt64
	}
	return now + h.o.horizon.Milliseconds()
}

// due returns when a row of an enqueue is due by the clock of the database, in Unix ms.
func (s *stored) due() int64 {
	if s.DueAt > 0 {
		return s.DueAt
	}
	return s.made + s.DueIn
}

// choose returns the rows of the next plan: later rows that the horizon has reached, and the oldest
// rows of the outbox. It moves rows beyond the horizon to the later ones.
func (h *holding) choose(ctx context.Context, tx session, earliest sql.NullInt64, now int64) (plan []stored, err error) {
	reach := h.reach(now)
	// Half of a plan is for either, even if it has one row.
	if most := (h.batch() + h.odd) / 2; most > 0 && earliest.Valid && earliest.Int64 <= reach {
		can, topics := h.can()
		plan, _, err = h.read(ctx, tx, "{table}_later", "WHERE shard = ? AND due <= ?"+can+" ORDER BY due LIMIT "+strconv.Itoa(most), h.bytes()/2, append([]any{h.shard, reach}, topics...)...)
		if err != nil {
			return nil, err
		}
		age(plan, now)
	}
	h.odd = 1 - h.odd
	if most := h.batch() - len(plan); most > 0 {
		left := h.bytes()
		for i := range plan {
			left -= plan[i].size
		}
		rows, err := h.oldest(ctx, tx, most, left)
		if err != nil {
			return nil, err
		}
		if cancels := h.strait.take(most - len(rows)); len(cancels) > 0 {
			which, args := h.among(cancels)
			passing, _, err := h.read(ctx, tx, "{table}", "WHERE "+which, planBytes, args...)
			if err != nil {
				return nil, err
			}
			rows = append(rows, passing...)
			slices.SortFunc(rows, order)
		}
		age(rows, now)
		if rows, err = h.sift(ctx, tx, rows, plan, earliest.Valid, reach); err != nil {
			return nil, err
		}
		plan = append(plan, rows...)
	}
	slices.SortFunc(plan, order)
	return plan, nil
}

// readAhead is how many plans of rows are read in one query at most. While somebody holds a
// snapshot open, each query passes all rows that have been deleted since.
const readAhead = 8

// oldest returns the oldest rows of the outbox up to a number and a size, at least one. It returns
// rows in the order in which queries have read them. A row that depends on the commit of another
// one has a greater key and is read by the same query or a later one, so it comes later.
func (h *holding) oldest(ctx context.Context, tx session, most int, bytes int64) (rows []stored, err error) {
	if len(h.ahead) == 0 {
		ask := max(h.ask, h.batch())
		can, topics := h.can()
		own, order := h.own()
		h.ahead, _, err = h.read(ctx, tx, "{table}", "WHERE "+own+can+order+" LIMIT "+strconv.Itoa(ask), h.bytes(), append([]any{h.shard, math.MinInt64}, topics...)...)
		if err != nil {
			return nil, err
		}
		h.ask = len(h.ahead)
		if h.ask == ask { // all of them fit into the bytes of a plan
			h.ask = min(2*ask, readAhead*h.batch())
		}
	}
	n := 0
	for n < min(most, len(h.ahead)) {
		if bytes -= h.ahead[n].size; n > 0 && bytes < 0 {
			break
		}
		n++
	}
	rows, h.ahead = h.ahead[:n:n], h.ahead[n:]
	return rows, nil
}

// mostNarrow is how often a plan is halved.
const mostNarrow = 10

// ends notes how the last transaction has ended. A transaction has half a lease, so after one that
// has failed the next plan is half as large, because it may have taken too long.
func (h *holding) ends(err error) error {
	if err != nil {
		h.narrow, h.ask = min(h.narrow+1, mostNarrow), 0
		return err
	}
	h.narrow = max(h.narrow-1, 0)
	return nil
}

// batch returns how many rows the next plan has at most.
func (h *holding) batch() int { return max(1, h.o.batch>>h.narrow) }

// bytes returns how many bytes the records of the next plan have at most.
func (h *holding) bytes() int64 { return planBytes >> h.narrow }

// A name is that of a job.
type name struct{ topic, id string }

// A sieve holds what becomes of rows that are not simply sent.
type sieve struct {
	later   map[name]*stored // rows beyond the horizon, at most one for each job
	gone    []stored         // rows that are deleted
	parked  []*stored        // rows of the outbox that stay beyond the horizon
	changed map[*stored]bool // rows beyond the horizon with another due time
	stands  []stored         // rows of the outbox that become cancels
	refused []refusal
}

// sift removes from the oldest rows of the outbox those that are not to be sent: rows beyond the
// horizon, and calls about jobs whose rows are beyond it. It carries these calls out. Rows that
// are sent in the same plan are no longer beyond the horizon.
func (h *holding) sift(ctx context.Context, tx session, rows, sent []stored, waiting bool, reach int64) (left []stored, err error) {
	if len(rows) == 0 || !waiting && h.o.horizon == 0 {
		return rows, nil
	}
	s := &sieve{later: make(map[name]*stored), changed: make(map[*stored]bool)}
	if waiting {
		if err := h.find(ctx, tx, s, rows, sent); err != nil {
			return nil, err
		}
		if err := h.learn(ctx, tx, s, rows); err != nil {
			return nil, err
		}
	}
	for i := range rows {
		r := &rows[i]
		if far := s.later[name{r.Topic, r.ID}]; r.needs() && far != nil && far.Kind == 0 {
			h.ahead = slices.Concat(rows[i:], h.ahead) // there are many large records: these rows are of the next plan
			break
		}
		if s.stays(r, reach, h.o.drop) {
			left = append(left, *r)
		}
	}
	return left, h.settle(ctx, tx, s, sent)
}

// stays carries a call out if it is about a row beyond the horizon, and reports whether it has to
// be sent.
func (s *sieve) stays(r *stored, reach int64, drop bool) bool {
	key := name{r.Topic, r.ID}
	far := s.later[key]
	// A later row can be the newer one: transactions were open at the same time, or the row is
	// sent again. Then the call is about a job in Redis.
	// If keys have started again, the newer one has the lower key.
	older := far == nil || far.seq < r.seq || far.made < r.made
	switch r.Kind {
	case commit.RowFlow: // it starts at once
		if far != nil && older {
			s.meetTwin(r, drop)
			return false
		}
	case commit.RowEnqueue:
		if r.decides() {
			return far == nil || !older || s.meet(r, far)
		}
		if !older && r.due() <= reach {
			break
		}
		if far != nil && !r.replaces(commit.ReplaceAny) {
			s.meetTwin(r, drop)
			return false
		}
		s.drop(key)
		if r.due() > reach {
			own := *r
			s.parked, s.later[key] = append(s.parked, &own), &own
			if !r.replaces(commit.ReplaceAny) {
				s.gone = append(s.gone, *r)
				return false
			}
			s.stands = append(s.stands, *r)
			r.Row = commit.Row{Kind: commit.RowCancel, Topic: r.Topic, ID: r.ID, Age: r.Age, DueAt: commit.Yields}
		}
	case commit.RowCancel:
		if older {
			s.drop(key)
		}
	case commit.RowReschedule:
		if far != nil && older {
			if err := far.reschedule(r); err != nil {
				s.refuse(r, err)
				return false
			}
			s.changed[far] = true
			s.gone = append(s.gone, *r)
			return false
		}
	}
	return true
}

// find finds the later rows of the jobs that rows are about.
func (h *holding) find(ctx context.Context, tx session, s *sieve, rows, sent []stored) error {
	// A join would leave the order of the tables to the database, which knows little about them.
	which, args := h.among(rows)
	found, err := tx.QueryContext(ctx, h.query("SELECT topic, id, (SELECT CASE WHEN l.shard = o.shard THEN l.seq END FROM {table}_later AS l WHERE l.topic = o.topic AND l.id = o.id LIMIT 1), "+
		"(SELECT l.made FROM {table}_later AS l WHERE l.topic = o.topic AND l.id = o.id LIMIT 1) FROM {table} AS o WHERE "+which), args...)
	if err != nil {
		return err
	}
	defer found.Close()
	leaves := make(map[int64]bool, len(sent))
	for i := range sent {
		leaves[sent[i].seq] = true
	}
	for found.Next() {
		var seq, made sql.NullInt64
		var id []byte
		far := &stored{later: true}
		if err := found.Scan(&far.Topic, &id, &seq, &made); err != nil {
			return err
		}
		far.made = made.Int64
		if far.seq, far.ID = seq.Int64, string(id); seq.Valid && !leaves[far.seq] && s.later[name{far.Topic, far.ID}] == nil {
			s.later[name{far.Topic, far.ID}] = far
		}
	}
	return found.Err()
}

func (s *sieve) refuse(r *stored, err error) {
	s.refused = append(s.refused, r.refuse(err.Error()))
	s.gone = append(s.gone, *r)
}

// drop removes the later row of a job, if there is one.
func (s *sieve) drop(job name) {
	far := s.later[job]
	if far == nil {
		return
	}
	delete(s.later, job)
	delete(s.changed, far)
	if far.later {
		s.gone = append(s.gone, *far)
	}
	s.parked = slices.DeleteFunc(s.parked, func(p *stored) bool { return p == far })
}

// learn reads the later rows whose contents calls need, in their order, up to the bytes of a plan.
// The others keep the kind 0.
func (h *holding) learn(ctx context.Context, tx session, s *sieve, rows []stored) error {
	var wanted []*stored
	var keys []stored
	seen := make(map[*stored]bool)
	for i := range rows {
		far := s.later[name{rows[i].Topic, rows[i].ID}]
		if rows[i].needs() && far != nil && !seen[far] {
			seen[far], wanted, keys = true, append(wanted, far), append(keys, *far)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	which, args := h.among(keys)
	found, _, err := h.outline(ctx, tx, "{table}_later", "WHERE "+which, args...)
	if err != nil {
		return err
	}
	byKey := make(map[int64]stored, len(found))
	for _, row := range found {
		byKey[row.seq] = row
	}
	for i, far := range wanted {
		row, there := byKey[far.seq]
		if !there {
			return disappeared(far.seq)
		}
		keys[i] = row
	}
	if keys, err = h.fill(ctx, tx, "{table}_later", "", keys, h.bytes()); err != nil {
		return err
	}
	for i := range keys {
		*wanted[i] = keys[i]
	}
	return nil
}

// reschedule gives a row of an enqueue the due time of a reschedule. If the job would expire, or if
// its record is damaged, the error is ErrInvalid.
func (s *stored) reschedule(r *stored) error {
	text, rest, err := s.CutRow()
	if err != nil {
		return fmt.Errorf("%w: job %q: %w", ErrInvalid, s.ID, err)
	}
	job, err := record.Decode(text)
	if err != nil {
		return fmt.Errorf("%w: job %q: %w", ErrInvalid, s.ID, err)
	}
	to := *s
	to.DueAt, to.DueIn = r.DueAt, 0
	if r.DueAt == 0 {
		to.DueIn = max(0, r.made-s.made) + r.DueIn
	}
	if s.replaces(commit.ReplaceDebounce) { // its burst has ended
		to.DueAt, to.DueIn = to.due(), 0
	}
	if expires := job.Options.Expires(s.made); expires > 0 && to.due() >= expires {
		return fmt.Errorf("%w: job %q expires at %v, it cannot be due at %v", ErrInvalid, s.ID, time.UnixMilli(expires).UTC(), time.UnixMilli(to.due()).UTC())
	}
	job.Options.DueAt, job.Options.DueIn = to.DueAt, to.DueIn
	var nonce record.Nonce
	copy(nonce[:], job.Nonce)
	head, tail, err := record.Encode(nonce, &job.Options, job.Payload)
	if err != nil {
		return fmt.Errorf("%w: job %q: %w", ErrInvalid, s.ID, err)
	}
	to.SetJob(record.Join(head, 0, tail), rest)
	to.size = int64(len(to.Record))
	*s = to
	return nil
}

// settle writes what a sieve has decided.
func (h *holding) settle(ctx context.Context, tx session, s *sieve, sent []stored) error {
	if err := h.bury(ctx, tx, s.refused); err != nil {
		return err
	}
	h.complain(s.refused)
	// The later rows first, because a row can get the key of one of them.
	gone, changed := s.of(true)
	if err := errors.Join(h.change(ctx, tx, "{table}_later", changed), h.remove(ctx, tx, gone)); err != nil {
		return err
	}
	if len(s.parked) > 0 {
		rows := make([]stored, len(s.parked))
		for i, p := range s.parked {
			rows[i] = *p
		}
		if err := h.vacate(ctx, tx, rows, sent); err != nil {
			return err
		}
		which, args := h.among(rows)
		_, err := tx.ExecContext(ctx, h.query("INSERT INTO {table}_later (seq, "+rowNames+", due) SELECT seq, "+rowNames+
			", CASE WHEN due_at > 0 THEN due_at ELSE made + delay_ms END FROM {table} WHERE "+which), args...)
		if err != nil {
			return err
		}
	}
	if len(s.stands) > 0 {
		which, args := h.among(s.stands)
		_, err := tx.ExecContext(ctx, h.query("UPDATE {table} SET kind = ?, replaces = '', due_at = ?, delay_ms = 0, record = ? WHERE "+which),
			append([]any{int(commit.RowCancel), commit.Yields, []byte{}}, args...)...)
		if err != nil {
			return err
		}
	}
	gone, changed = s.of(false)
	if err := h.change(ctx, tx, "{table}_later", changed); err != nil {
		return err
	}
	return h.remove(ctx, tx, gone)
}

// of returns the rows that are deleted and those that are changed, either those that were later
// rows before or the others.
func (s *sieve) of(later bool) (gone []stored, changed []*stored) {
	for i := range s.gone {
		if s.gone[i].later == later {
			gone = append(gone, s.gone[i])
		}
	}
	for far := range s.changed {
		if far.later == later {
			changed = append(changed, far)
		}
	}
	return gone, changed
}

// change writes the due times of rows that were rescheduled.
func (h *holding) change(ctx context.Context, tx session, table string, rows []*stored) error {
	columns := []struct {
		name  string
		value func(*stored) any
	}{
		{"due_at", func(s *stored) any { return s.DueAt }},
		{"delay_ms", func(s *stored) any { return s.DueIn }},
		{"record", func(s *stored) any { return []byte(s.Record) }},
		{"due", func(s *stored) any { return s.due() }},
	}
	if table != "{table}_later" {
		columns = columns[:3]
	}
	for some := range slices.Chunk(rows, mostGiven) {
		var sets []string
		var args []any
		for _, column := range columns {
			values, more := given(some, func(s *stored) int64 { return s.seq }, column.value, column.name)
			sets, args = append(sets, column.name+" = "+values), append(args, more...)
		}
		keys := make([]stored, len(some))
		for i := range some {
			keys[i].seq = some[i].seq
		}
		which, list := h.among(keys)
		if _, err := tx.ExecContext(ctx, h.query("UPDATE "+table+" SET "+strings.Join(sets, ", ")+" WHERE "+which), append(args, list...)...); err != nil {
			return err
		}
	}
	return nil
}

// vacate gives later rows other keys that have the keys of rows, because keys have started again.
// Rows that are sent in the same plan are among them.
func (h *holding) vacate(ctx context.Context, tx session, rows, sent []stored) error {
	which, args := h.keyed(rows) // of all shards
	found, err := tx.QueryContext(ctx, h.query("SELECT seq, (SELECT MAX(seq) FROM {table}_later) FROM {table}_later WHERE "+which), args...)
	if err != nil {
		return err
	}
	defer found.Close()
	var taken []stored
	var last int64
	for found.Next() {
		var seq int64
		if err := found.Scan(&seq, &last); err != nil {
			return err
		}
		taken = append(taken, stored{seq: seq})
	}
	if err := errors.Join(found.Err(), found.Close()); err != nil {
		return err
	}
	for i := range rows { // which get their keys next
		last = max(last, rows[i].seq)
	}
	other := make(map[int64]int64, len(taken))
	for some := range slices.Chunk(taken, mostGiven) {
		key, args := given(some, func(s stored) int64 { return s.seq }, func(s stored) any { last++; other[s.seq] = last; return last }, "seq")
		which, list := h.keyed(some)
		if _, err := tx.ExecContext(ctx, h.query("UPDATE {table}_later SET seq = "+key+" WHERE "+which), append(args, list...)...); err != nil {
			return err
		}
	}
	for i := range sent {
		if seq := other[sent[i].seq]; sent[i].later && seq > 0 {
			sent[i].seq = seq
		}
	}
	return nil
}
