package outbox

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
)

// A saga is a random history of an outbox: databases that are copied and that fall back, whose
// clocks jump, relays that die at any line, and a Redis whose answers are lost. Each step is
// repeatable but for the random names.
type saga struct {
	*testing.T
	*rand.Rand
	seed   uint64
	rdb    *redis.Client
	copies []*incarnation
	dir    string
	ids    int
	seen   map[string]bool // nonces of jobs that have been in Redis
	lost   map[string]bool // nonces of rows that a database has lost, or whose cancel it has lost
	fault  bool            // Redis loses calls or answers
	log    strings.Builder
}

// An incarnation is a database that lives, and what has been committed to it.
type incarnation struct {
	file   string
	db     *sql.DB
	box    *Outbox
	relays []*mortal
	rows   []written
	saved  *state
}

// A written is a row that was committed.
type written struct {
	nonce, topic, id string
	cancelled        bool
}

// A state is what a backup or a replica has.
type state struct {
	tables map[string][][]any
	rows   []written
}

// A mortal is a relay and its process.
type mortal struct {
	h    *holding
	life *sqltest.Life
	db   *sql.DB
	rdb  *redis.Client
}

var sagaTables = []string{"delayq_outbox", "delayq_outbox_shards", "delayq_outbox_dead", "delayq_outbox_later", "delayq_outbox_sent", "delayq_outbox_resend", "sqlite_sequence"}

func (s *saga) create() *incarnation {
	in := &incarnation{file: "file:" + filepath.Join(s.dir, strconv.Itoa(len(s.copies))) + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"}
	var err error
	in.db, err = sql.Open("sqlite", in.file)
	require.NoError(s, err)
	in.box, err = New(SQLite)
	require.NoError(s, err)
	require.NoError(s, in.box.Migrate(s.Context(), in.db))
	for range 2 {
		in.relays = append(in.relays, s.process(in))
	}
	s.copies = append(s.copies, in)
	return in
}

// process starts a relay that dies after some steps.
func (s *saga) process(in *incarnation) *mortal {
	life := sqltest.NewLife(1+s.IntN(150), s.IntN(2) == 0)
	if !s.fault {
		life = sqltest.NewLife(1<<40, false)
	}
	p := &mortal{life: life, db: life.Open(in.db.Driver(), in.file), rdb: redis.NewClient(s.rdb.Options())}
	p.rdb.AddHook(&fickle{s, life})
	opts := []RelayOption{Batch(1 + s.IntN(7)), Logger(slog.New(slog.NewTextHandler(&s.log, nil)))}
	if s.IntN(3) == 0 {
		opts = append(opts, Horizon(time.Hour))
	}
	p.h = &holding{Relay: in.box.Relay(p.db, delayq.NewClient(p.rdb), opts...)}
	require.NoError(s, p.h.err)
	return p
}

// A fickle hook loses calls of Redis or their answers.
type fickle struct {
	*saga
	life *sqltest.Life
}

func (f *fickle) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (f *fickle) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := f.life.Step(func() error { return next(ctx, cmd) })
		if f.fault && err == nil && f.IntN(12) == 0 && !slices.Contains([]string{"hello", "client"}, cmd.Name()) {
			err = errors.New("the answer is lost")
		}
		cmd.SetErr(err)
		return err
	}
}

func (f *fickle) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// save reads the tables.
func (s *saga) save(in *incarnation) *state {
	st := &state{tables: make(map[string][][]any), rows: slices.Clone(in.rows)}
	for _, table := range sagaTables {
		rows, err := in.db.Query("SELECT * FROM " + table)
		require.NoError(s, err)
		columns, err := rows.Columns()
		require.NoError(s, err)
		for rows.Next() {
			values, into := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			require.NoError(s, rows.Scan(into...))
			for i := range values {
				if b, ok := values[i].([]byte); values[i] == nil || ok && len(b) == 0 { // as the driver reads an empty blob
					values[i] = []byte{}
				}
			}
			st.tables[table] = append(st.tables[table], values)
		}
		require.NoError(s, rows.Close())
	}
	return st
}

// restore gives a database an earlier state. Its relays have lost their connections.
func (s *saga) restore(in *incarnation, st *state) {
	tx, err := in.db.Begin()
	require.NoError(s, err)
	for _, table := range sagaTables {
		_, err := tx.Exec("DELETE FROM " + table)
		require.NoError(s, err)
		for _, values := range st.tables[table] {
			_, err := tx.Exec("INSERT INTO "+table+" VALUES ("+marks(len(values))+")", values...)
			require.NoError(s, err)
		}
	}
	require.NoError(s, tx.Commit())
	for _, row := range in.rows { // its lost calls may have been made
		if !slices.Contains(st.rows, row) {
			s.lost[row.nonce] = true
		}
	}
	in.rows = slices.Clone(st.rows)
	for _, p := range in.relays {
		_ = p.h.lose(errDatabase)
	}
}

var errDatabase = errors.New("the connection was closed")

func (s *saga) write(in *incarnation) {
	tx, err := in.db.Begin()
	require.NoError(s, err)
	var rows []written
	for range 1 + s.IntN(3) {
		s.ids++
		topic, id := "t"+strconv.Itoa(s.IntN(3)), strconv.Itoa(s.ids)
		opts := []delayq.JobOption{delayq.ProcessIn(time.Minute * time.Duration(1+s.IntN(100)))}
		if s.IntN(4) == 0 {
			opts = append(opts, delayq.Key("k"), delayq.Replace())
		}
		job, err := in.box.Enqueue(s.Context(), tx, topic, id, nil, opts...)
		require.NoError(s, err)
		rows = append(rows, written{nonce: job.Nonce(), topic: topic, id: id})
	}
	cancelled := -1
	if len(in.rows) > 0 && s.IntN(3) == 0 {
		cancelled = s.IntN(len(in.rows))
		require.NoError(s, in.box.Dequeue(s.Context(), tx, in.rows[cancelled].topic, in.rows[cancelled].id))
	}
	require.NoError(s, tx.Commit())
	if cancelled >= 0 {
		in.rows[cancelled].cancelled = true
	}
	in.rows = append(in.rows, rows...)
}

// turn lets a relay do a step. If its process has died, another one takes its place, and the lease
// is over.
func (s *saga) turn(in *incarnation, n int) {
	p := in.relays[n]
	if p.life.Dead() {
		_ = p.db.Close()
		_ = p.rdb.Close()
		in.relays[n] = s.process(in)
		_, err := in.db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(s, err)
		return
	}
	p.h.barred = time.Time{}
	for _, a := range p.h.aside {
		a.until = time.Time{}
	}
	if s.fault && s.IntN(20) == 0 { // its lease has ended
		_, err := in.db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(s, err)
	}
	_, err := p.h.turn(s.Context())
	require.NotErrorIs(s, err, ErrSchema)
}

// look notes which jobs are in Redis.
func (s *saga) look(finish bool) {
	for topic := range 3 {
		key := fmt.Sprintf("delayq:{t%d}:pool", topic)
		for id, record := range s.rdb.HGetAll(s.Context(), key).Val() {
			s.seen[record[:8]] = true
			if finish && s.IntN(3) == 0 {
				_, err := delayq.NewClient(s.rdb).Dequeue(s.Context(), fmt.Sprint("t", topic), id)
				require.NoError(s, err)
			}
		}
	}
}

// elsewhere reports whether a copy of a row is not cancelled.
func (s *saga) elsewhere(row written) bool {
	return slices.ContainsFunc(s.copies, func(in *incarnation) bool {
		return slices.ContainsFunc(in.rows, func(other written) bool { return other.nonce == row.nonce && !other.cancelled })
	})
}

// Whatever happens to databases, relays and answers, each committed row has been in Redis or is a
// dead row with a reason in the end, and no cancelled job is left.
func TestNoCommittedRowIsLost(t *testing.T) {
	renamed := 0
	for seed := range uint64(redistest.Size(200)) {
		renamed += playSaga(t, seed)
	}
	t.Logf("%d shards took other names", renamed)
	require.NotZero(t, renamed)
}

func playSaga(t *testing.T, seed uint64) (renamed int) {
	r := embedded.New()
	defer r.Close()
	s := &saga{T: t, Rand: rand.New(rand.NewPCG(seed, 1)), seed: seed, rdb: r.Client(), dir: t.TempDir(), seen: make(map[string]bool), lost: make(map[string]bool), fault: true}
	defer s.rdb.Close()
	s.create()
	defer func() {
		for _, in := range s.copies {
			for _, p := range in.relays {
				_ = p.db.Close()
				_ = p.rdb.Close()
			}
			_ = in.db.Close()
		}
	}()
	for range 150 {
		in := s.copies[s.IntN(len(s.copies))]
		switch action := s.IntN(40); {
		case action < 10:
			s.write(in)
		case action == 10:
			in.saved = s.save(in)
		case action == 11 && in.saved != nil: // a restore, or a failover with a lost tail
			s.restore(in, in.saved)
		case action == 12 && len(s.copies) < 3:
			st := s.save(in)
			s.restore(s.create(), st)
		case action == 13: // the clock is ahead, or goes on from there
			_, err := in.db.Exec("UPDATE delayq_outbox_shards SET number = number + 60000 WHERE number > 0 AND plan = ''")
			require.NoError(s, err)
		case action == 14: // somebody deletes a row
			if len(in.rows) > 0 {
				gone := in.rows[s.IntN(len(in.rows))]
				_, err := in.db.Exec("DELETE FROM delayq_outbox WHERE topic = ? AND id = ?", gone.topic, []byte(gone.id))
				require.NoError(s, err)
				s.seen[gone.nonce], s.lost[gone.nonce] = true, true
			}
		default:
			s.turn(in, s.IntN(2))
			s.look(true)
		}
	}
	s.fault = false
	for _, in := range s.copies {
		for n := range in.relays {
			_ = in.relays[n].db.Close()
			_ = in.relays[n].rdb.Close()
			in.relays[n] = s.process(in)
			in.relays[n].h.o.horizon = 0
		}
		_, err := in.db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(s, err)
		for range 400 {
			s.turn(in, 0)
			s.look(false)
			stats, err := in.box.Stats(s.Context(), in.db)
			require.NoError(s, err)
			if stats.Rows+stats.Later == 0 {
				break
			}
		}
		stats, err := in.box.Stats(s.Context(), in.db)
		require.NoError(s, err)
		require.Zero(s, stats.Rows+stats.Later, "seed %d: rows are stuck\n%s", seed, &s.log)
		dead, err := in.box.Dead(s.Context(), in.db, 0, 1000)
		require.NoError(s, err)
		reasons := make(map[string]string)
		for _, d := range dead {
			reasons[d.Topic+"/"+d.ID] = d.Reason
		}
		for _, row := range in.rows {
			if !row.cancelled {
				require.True(s, s.seen[row.nonce] || reasons[row.topic+"/"+row.id] != "", "seed %d: %s/%s is lost\n%s", seed, row.topic, row.id, &s.log)
			}
		}
	}
	for _, in := range s.copies {
		for _, row := range in.rows {
			if row.cancelled && !s.lost[row.nonce] && !s.elsewhere(row) {
				require.False(s, s.rdb.HExists(s.Context(), "delayq:{"+row.topic+"}:pool", row.id).Val(), "seed %d: %s/%s was cancelled\n%s", seed, row.topic, row.id, &s.log)
			}
		}
	}
	return strings.Count(s.log.String(), "another name")
}

// decodeBefore reads a plan as the release did that had no seals.
func decodeBefore(plan []byte) (rows []stored, err error) {
	if plan[0] != 2 {
		return nil, errPlan
	}
	plan = plan[1:]
	for range 3 {
		_, n := binary.Uvarint(plan)
		plan = plan[n:]
	}
	last := int64(0)
	for len(plan) > 0 {
		step, n := binary.Uvarint(plan)
		if n <= 0 || len(rows) == 1000 {
			return nil, errPlan
		}
		last += int64(step >> 1)
		rows, plan = append(rows, stored{seq: last, later: step&1 == 1}), plan[n:]
	}
	return rows, nil
}

// A relay of the release before, which has no seals, reads a plan of this one: its rows, and the
// key of one that is not there.
func TestPlansOfThisReleaseAreReadByTheOneBefore(t *testing.T) {
	h, _ := newHolding(t)
	for i := range 1200 {
		h.enqueue(t, strconv.Itoa(i), 1)
	}
	require.NoError(t, h.next(t.Context(), new(ending)))
	require.Len(t, h.plan, mostRows)
	var plan []byte
	require.NoError(t, h.db.QueryRow("SELECT plan FROM delayq_outbox_shards").Scan(&plan))
	rows, err := decodeBefore(plan)
	require.NoError(t, err)
	require.Len(t, rows, mostRows+1)
	for i, row := range h.plan {
		require.Equal(t, row.seq, rows[i].seq)
	}
	var there int
	last := rows[mostRows].seq
	require.NoError(t, h.db.QueryRow("SELECT COUNT(*) FROM delayq_outbox WHERE seq >= ?", last).Scan(&there))
	require.Zero(t, there)
	require.GreaterOrEqual(t, last, int64(sealed))
}

// A plan of the release before is sent on as it was begun: what Redis has had of it is not made
// again.
func TestPlansOfTheReleaseBeforeAreContinued(t *testing.T) {
	h, rdb := newHolding(t)
	for _, id := range []string{"a", "b"} {
		h.enqueue(t, id, 1)
	}
	require.NoError(t, h.next(t.Context(), new(ending)))
	// As that release has left it, after it has sent the plan.
	plan := encodePlan(marker{}, h.plan, sealed)
	plan = plan[:len(plan)-len(binary.AppendUvarint(nil, uint64(sealed-h.plan[1].seq)<<1))]
	_, err := h.db.Exec("UPDATE delayq_outbox_shards SET plan = ?", plan)
	require.NoError(t, err)
	h.seal = 0
	_, err = h.send(t.Context())
	require.NoError(t, err)
	client := delayq.NewClient(rdb)
	for _, id := range []string{"a", "b"} {
		_, err := client.Dequeue(t.Context(), "topic", id) // they have finished
		require.NoError(t, err)
	}
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	require.Zero(t, h.seal)
	require.Len(t, h.plan, 2)
	end, err := h.send(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.next(t.Context(), end))
	require.Empty(t, h.plan)
	require.Empty(t, rdb.HKeys(t.Context(), "delayq:{topic}:pool").Val())
	require.Equal(t, "2", rdb.HGet(t.Context(), "delayq:{topic}:stats", "enqueued").Val())
}
