package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
)

// A realm is where the databases of a history are.
type realm struct {
	dialect Dialect
	driver  string
	dsn     string // of the server
	dir     string // of SQLite
}

var realms = []realm{
	{dialect: SQLite, driver: "sqlite"}, {dialect: Postgres, driver: "pgx"}, {dialect: MySQL, driver: "mysql"},
}

// begin makes a database.
func (r realm) begin(t *testing.T) realm {
	if r.dialect == SQLite {
		return r
	}
	dsn, err := Servers[r.dialect]()
	if errors.Is(err, sqltest.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	name := map[Dialect]string{Postgres: "postgres", MySQL: "mysql"}[r.dialect]
	db, err := sql.Open(r.driver, fmt.Sprintf(dsn, name))
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec("CREATE DATABASE histories")
	require.NoError(t, err)
	t.Cleanup(func() { // or -count finds it
		db, err := sql.Open(r.driver, fmt.Sprintf(dsn, name))
		require.NoError(t, err)
		defer db.Close()
		_, err = db.Exec("DROP DATABASE histories")
		require.NoError(t, err)
	})
	r.dsn = fmt.Sprintf(dsn, "histories")
	return r
}

// address returns that of the nth database of a history. On a server it is a set of tables.
func (r realm) address(n int) string {
	if r.dialect == SQLite {
		return "file:" + filepath.Join(r.dir, strconv.Itoa(n)) + "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	}
	return r.dsn
}

func (r realm) table(n int) string { return "copy" + strconv.Itoa(n) }

// nextKey returns the key that the next row gets.
func (r realm) nextKey(t testing.TB, in *incarnation) (key int64) {
	var err error
	switch r.dialect {
	case SQLite:
		err = in.db.QueryRow("SELECT COALESCE(MAX(seq), 0) + 1 FROM sqlite_sequence").Scan(&key)
	case Postgres:
		err = in.db.QueryRow("SELECT last_value + CASE WHEN is_called THEN 1 ELSE 0 END FROM " + in.box.table + "_seq_seq").Scan(&key)
	case MySQL:
		err = in.db.QueryRow("SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?", in.box.table).Scan(&key)
	}
	require.NoError(t, err)
	return key
}

func (r realm) setNextKey(t testing.TB, in *incarnation, key int64) {
	switch r.dialect {
	case SQLite:
		in.exec(t, "DELETE FROM sqlite_sequence")
		in.exec(t, "INSERT INTO sqlite_sequence (name, seq) VALUES ('{table}', ?)", key-1)
	case Postgres:
		in.exec(t, "SELECT setval('{table}_seq_seq', ?, false)", key)
	case MySQL:
		in.exec(t, "ALTER TABLE {table} AUTO_INCREMENT = "+strconv.FormatInt(key, 10))
	}
}

// exec executes a statement as somebody else than a relay.
func (in *incarnation) exec(t testing.TB, statement string, args ...any) {
	_, err := in.db.Exec(in.box.dialect.rebind(strings.ReplaceAll(statement, "{table}", in.box.table)), args...)
	require.NoError(t, err, statement)
}

// seeds returns how many histories are played, and the seed of the first one. The others have the
// seeds that follow.
func seeds(t testing.TB, d Dialect) (first, n uint64) {
	n = uint64(redistest.Size(20))
	if d == SQLite {
		n = uint64(redistest.Size(200))
	}
	first = rand.Uint64N(1 << 40)
	for name, value := range map[string]*uint64{"DELAYQ_HISTORIES": &n, "DELAYQ_SEED": &first} {
		if text := os.Getenv(name); text != "" {
			read, err := strconv.ParseUint(text, 10, 63)
			require.NoError(t, err, name)
			*value = read
		}
	}
	return first, n
}

// sagaTables are the endings of the names of tables.
var sagaTables = []string{"", "_shards", "_dead", "_later", "_sent", "_resend"}

// A saga is a random history of an outbox: databases that are copied and that fall back, whose
// clocks jump, relays that die at any line, and a Redis whose answers are lost. Each step is
// repeatable but for the random names.
type saga struct {
	*testing.T
	*rand.Rand
	seed   uint64
	rdb    *redis.Client
	copies []*incarnation
	realm
	ids  int
	seen map[string]bool // nonces of jobs that have been in Redis
	lost map[string]bool // nonces of rows that a database has lost, or whose cancel it has lost
	log  strings.Builder

	// What a client notes about topics is sent beside the steps.
	fault atomic.Bool // Redis loses calls or answers
	away  atomic.Bool // Redis does not answer
	full  atomic.Bool // Redis has no memory for new jobs
}

// A dice is a source of random numbers for concurrent use.
type dice struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

func (d *dice) Uint64() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pcg.Uint64()
}

// An incarnation is a database that lives, and what has been committed to it.
type incarnation struct {
	dsn    string
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
	tables map[string][][]any // by their endings
	key    int64              // next key
	rows   []written
}

// A mortal is a relay and its process.
type mortal struct {
	h    *holding
	life *sqltest.Life
	db   *sql.DB
	rdb  *redis.Client
}

func (s *saga) create() *incarnation {
	n := len(s.copies)
	in := &incarnation{dsn: s.address(n)}
	var err error
	in.db, err = sql.Open(s.driver, in.dsn)
	require.NoError(s, err)
	in.box, err = New(s.dialect, Table(s.table(n)))
	require.NoError(s, err)
	require.NoError(s, in.box.Migrate(s.Context(), in.db))
	for _, ending := range sagaTables { // of an earlier history
		in.exec(s, "DELETE FROM {table}"+ending)
	}
	for range 2 {
		in.relays = append(in.relays, s.process(in))
	}
	s.copies = append(s.copies, in)
	return in
}

// process starts a relay that dies after some steps.
func (s *saga) process(in *incarnation) *mortal {
	life := sqltest.NewLife(1+s.IntN(150), s.IntN(2) == 0)
	if !s.fault.Load() {
		life = sqltest.NewLife(1<<40, false)
	}
	p := &mortal{life: life, db: life.Open(in.db.Driver(), in.dsn), rdb: redis.NewClient(s.rdb.Options())}
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
		if f.fault.Load() && f.full.Load() && cmd.Name() == "evalsha" && !strings.Contains(fmt.Sprint(cmd.Args()...), ":runs") { // no cancel
			arrives(cmd)
			cmd.SetErr(replied("OOM command not allowed when used memory > 'maxmemory'."))
			return cmd.Err()
		}
		err := f.life.Step(func() error {
			if f.fault.Load() && f.away.Load() {
				return errors.New("connection refused")
			}
			return next(ctx, cmd)
		})
		if f.fault.Load() && err == nil && f.IntN(12) == 0 && !slices.Contains([]string{"hello", "client"}, cmd.Name()) {
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
	st := &state{tables: make(map[string][][]any), key: s.nextKey(s, in), rows: slices.Clone(in.rows)}
	for _, ending := range sagaTables {
		rows, err := in.db.Query("SELECT * FROM " + in.box.table + ending)
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
				if b, ok := values[i].([]byte); values[i] == nil || ok && len(b) == 0 { // as a driver reads an empty blob
					values[i] = []byte{}
				}
			}
			st.tables[ending] = append(st.tables[ending], values)
		}
		require.NoError(s, rows.Close())
	}
	return st
}

// restore gives a database an earlier state. Its relays have lost their connections.
func (s *saga) restore(in *incarnation, st *state) {
	tx, err := in.db.Begin()
	require.NoError(s, err)
	over := ""
	if s.dialect == Postgres {
		over = " OVERRIDING SYSTEM VALUE"
	}
	for _, ending := range sagaTables {
		_, err := tx.Exec("DELETE FROM " + in.box.table + ending)
		require.NoError(s, err)
		for _, values := range st.tables[ending] {
			_, err := tx.Exec(s.dialect.rebind("INSERT INTO "+in.box.table+ending+over+" VALUES ("+marks(len(values))+")"), values...)
			require.NoError(s, err)
		}
	}
	require.NoError(s, tx.Commit())
	s.setNextKey(s, in, st.key)
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
		in.exec(s, "UPDATE {table}_shards SET held_until = 0")
		return
	}
	p.h.barred = time.Time{}
	for _, a := range p.h.aside {
		a.until = time.Time{}
	}
	if s.fault.Load() && s.IntN(20) == 0 { // its lease has ended
		in.exec(s, "UPDATE {table}_shards SET held_until = 0")
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

// Whatever happens to databases, relays, Redis and answers, each committed row has been in Redis or
// is a dead row with a reason in the end, no cancelled job is left, and no row is stuck after the
// faults have gone.
func TestNoCommittedRowIsLost(t *testing.T) {
	for _, r := range realms {
		t.Run(r.dialect.String(), func(t *testing.T) {
			t.Parallel()
			r := r.begin(t)
			first, n := seeds(t, r.dialect)
			t.Logf("%d histories, the first one with DELAYQ_SEED=%d", n, first)
			renamed := 0
			for i := range n {
				renamed += playSaga(t, r, first+i)
			}
			t.Logf("%d shards took other names", renamed)
			require.True(t, renamed > 0 || n < 50)
		})
	}
}

func playSaga(t *testing.T, in realm, seed uint64) (renamed int) {
	r := embedded.New()
	defer r.Close()
	if in.dialect == SQLite {
		in.dir = t.TempDir()
	}
	s := &saga{T: t, Rand: rand.New(&dice{pcg: rand.NewPCG(seed, 1)}), seed: seed, rdb: r.Client(), realm: in, seen: make(map[string]bool), lost: make(map[string]bool)}
	s.fault.Store(true)
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
			in.exec(s, "UPDATE {table}_shards SET number = number + 60000 WHERE number > 0 AND plan = ''")
		case action == 15:
			s.away.Store(!s.away.Load())
		case action == 16:
			s.full.Store(!s.full.Load())
		case action == 14: // somebody deletes a row
			if len(in.rows) > 0 {
				gone := in.rows[s.IntN(len(in.rows))]
				in.exec(s, "DELETE FROM {table} WHERE topic = ? AND id = ?", gone.topic, []byte(gone.id))
				s.seen[gone.nonce], s.lost[gone.nonce] = true, true
			}
		default:
			s.turn(in, s.IntN(2))
			s.look(true)
		}
	}
	s.fault.Store(false)
	for _, in := range s.copies {
		for n := range in.relays {
			_ = in.relays[n].db.Close()
			_ = in.relays[n].rdb.Close()
			in.relays[n] = s.process(in)
			in.relays[n].h.o.horizon = 0
		}
		in.exec(s, "UPDATE {table}_shards SET held_until = 0")
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
