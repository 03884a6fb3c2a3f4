package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/sqltest"
	"github.com/delayq/delayq/outbox"
)

// A diary is a log that tests read.
type diary struct {
	mu   sync.Mutex
	text strings.Builder
}

func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.Write(p)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.String()
}

// pauses returns how often a relay has said that it waits. It must say so once for each time, and
// once that it continues. A machine that is too busy for a query can be a reason of its own.
func (d *diary) pauses(t testing.TB) (n int) {
	t.Helper()
	waits := false
	for line := range strings.Lines(d.String()) {
		begins, ends := strings.Contains(line, "outbox relay waits"), strings.Contains(line, "outbox relay continues")
		if !begins && !ends {
			continue
		}
		require.NotEqual(t, waits, begins, "it was said twice:\n%s", d)
		if waits = begins; begins {
			n++
		}
	}
	return n
}

func (d *diary) option() outbox.RelayOption {
	return outbox.Logger(slog.New(slog.NewTextHandler(d, nil)))
}

// run runs a relay between a database and a client until the test ends or stop is called.
func (w *world) run(db *sql.DB, client *delayq.Client, opts ...outbox.RelayOption) (relay *outbox.Relay, stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	opts = append([]outbox.RelayOption{outbox.Poll(time.Millisecond), outbox.Lease(time.Second), outbox.Logger(slog.New(slog.DiscardHandler))}, opts...)
	relay = w.ob.Relay(db, client, opts...)
	go func() { done <- relay.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(w, <-done)
		})
	}
	w.Cleanup(stop)
	return relay, stop
}

func (w *world) until(what string, is func() bool) {
	w.Helper()
	require.Eventually(w, is, 10*time.Minute, time.Millisecond, what)
}

// Two copies of a database send plans of one series, the second one with lower numbers, as after a
// failover to a server whose clock is behind.
func TestCopiesOfADatabase(t *testing.T) {
	eachWorld(t, func(w *world) {
		stop := w.relay()
		w.enqueue(w.db, "before")
		w.drained()
		stop()
		twin, err := outbox.New(w.dialect, outbox.Table("twin"))
		require.NoError(w, err)
		require.NoError(w, twin.Migrate(w.Context(), w.db))
		for _, statement := range []string{
			"UPDATE delayq_outbox_shards SET number = number + 60000",
			"INSERT INTO twin_shards SELECT * FROM delayq_outbox_shards", "UPDATE twin_shards SET number = number - 60000",
		} {
			_, err := w.db.Exec(statement)
			require.NoError(w, err)
		}
		first := *w
		second := *w
		second.ob = twin
		first.relay(outbox.Batch(3))
		first.enqueue(w.db, "first")
		first.drained() // so that the plans of the second one come late
		var log diary
		second.relay(outbox.Batch(3), log.option())
		for i := range 30 {
			first.enqueue(w.db, fmt.Sprint("first ", i))
			second.enqueue(w.db, fmt.Sprint("second ", i))
		}
		first.drained()
		second.drained()
		require.Len(w, w.jobs("topic"), 62)
		for _, one := range []*world{&first, &second} {
			require.Empty(w, one.dead())
		}
		require.Equal(w, 1, strings.Count(log.String(), "another name"), log.String())
		require.Contains(w, log.String(), "level=ERROR")
		var names int
		require.NoError(w, w.db.QueryRow("SELECT COUNT(*) FROM (SELECT name FROM twin_shards UNION SELECT name FROM delayq_outbox_shards) AS names").Scan(&names))
		require.Equal(w, 2, names)
	})
}

// A relay whose Redis is away, or refuses it, leaves the shard to others, and takes it when nobody
// else does and Redis answers.
func TestShardIsLeftByARelayWithoutRedis(t *testing.T) {
	redistest.Need(t)
	eachWorld(t, func(w *world) {
		server := redistest.Start(w.T, redistest.NoRoles...)
		var log diary
		a, _ := w.run(w.db, delayq.NewClient(server.Client(w.T)), log.option())
		w.until("A is ready", func() bool { return a.Ready() == nil && a.State().Held == 1 })
		b, stopB := w.run(w.db, w.client)
		w.until("B is ready", func() bool { return b.Ready() == nil })

		require.NoError(w, server.Kill())
		w.enqueue(w.db, "1")
		w.until("B has sent it", func() bool { return len(w.jobs("topic")) == 1 })
		w.until("A is not ready", func() bool { return a.Ready() != nil })
		w.until("A is live, a restart would not help", func() bool { return a.Live() == nil })
		require.NoError(w, server.Restart())
		w.drained()
		stopB()
		require.Error(w, b.Live(), "it is over")
		require.Error(w, b.Ready())
		w.until("A takes the shard", func() bool { return a.Ready() == nil && a.State().Held == 1 })
		w.enqueue(w.db, "2")
		w.drained()
		require.NotZero(w, log.pauses(w))
		w.until("the end is logged", func() bool { return strings.Contains(log.String(), "outbox relay continues") })

		// A user whom Redis refuses everything is no better.
		for _, setting := range []string{"nobody on >wrong +time +hello +client", "nobody resetpass >secret"} {
			require.NoError(w, server.Client(w.T).Do(w.Context(), toAny(append([]string{"ACL", "SETUSER"}, strings.Fields(setting)...))...).Err())
			opts := server.Options()
			opts.Username, opts.Password = "nobody", "wrong"
			refused := redis.NewClient(opts)
			w.Cleanup(func() { _ = refused.Close() })
			c, stopC := w.run(w.db, delayq.NewClient(refused))
			_ = c
			w.enqueue(w.db, "more "+setting)
			w.drained()
			stopC()
		}
	})
}

func toAny(words []string) (all []any) {
	for _, word := range words {
		all = append(all, word)
	}
	return all
}

// Before any relay takes the shard, it is tried by one whose user has no rights. The rows stay for
// one that has.
func TestShardIsLeftByARelayWithoutRights(t *testing.T) {
	redistest.Need(t)
	eachWorld(t, func(w *world) {
		server := redistest.Start(w.T, redistest.NoRoles...)
		require.NoError(w, server.Client(w.T).Do(w.Context(), "ACL", "SETUSER", "nobody", "on", ">secret", "+time", "+hello", "+client").Err())
		opts := server.Options()
		opts.Username, opts.Password = "nobody", "secret"
		refused := redis.NewClient(opts)
		defer refused.Close()
		for _, topic := range []string{"one", "two"} { // both are in the first plan
			_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), topic, "id", nil)
			require.NoError(w, err)
		}
		var log diary
		a, _ := w.run(w.db, delayq.NewClient(refused), log.option())
		w.until("A has given up", func() bool { return a.Ready() != nil && strings.Contains(a.Ready().Error(), "NOPERM") })
		w.run(w.db, w.client)
		w.drained()
		require.Len(w, w.jobs("one"), 1)
		require.Len(w, w.jobs("two"), 1)
		require.Empty(w, w.dead())
		require.Equal(w, 2, strings.Count(log.String(), "outbox topic waits"), log.String())
	})
}

// A plan of another format is left to a release that knows it.
func TestShardWithAPlanOfAnotherRelease(t *testing.T) {
	eachWorld(t, func(w *world) {
		stop := w.relay()
		w.until("the shard is held", func() bool {
			var n int
			return w.db.QueryRow("SELECT COUNT(*) FROM delayq_outbox_shards WHERE held_until > 0").Scan(&n) == nil && n == 1
		})
		stop()
		_, err := w.db.Exec("UPDATE delayq_outbox_shards SET plan = '9'")
		require.NoError(w, err)
		a, _ := w.run(w.db, w.client)
		w.until("A has seen it", func() bool { return a.Ready() != nil && strings.Contains(a.Ready().Error(), "another release") })
		var until int64
		require.NoError(w, w.db.QueryRow("SELECT held_until FROM delayq_outbox_shards").Scan(&until))
		require.Zero(w, until)
	})
}

// A gate passes bytes to a server until it is closed. Then it swallows them, on the connections
// that it has, and new ones work.
type gate struct {
	net.Listener
	mu     sync.Mutex
	silent chan struct{} // closed: the connections until now are silent
	match  *regexp.Regexp
	made   atomic.Int64
	to     atomic.Value // address of the server
}

func newGate(t testing.TB, to string) *gate {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{Listener: l, silent: make(chan struct{})}
	g.to.Store(to)
	var open sync.Map
	t.Cleanup(func() {
		_ = l.Close()
		open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
	})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", g.to.Load().(string))
			if err != nil {
				_ = in.Close()
				continue
			}
			g.made.Add(1)
			open.Store(in, nil)
			open.Store(out, nil)
			g.mu.Lock()
			silent := g.silent
			g.mu.Unlock()
			go g.pass(in, out, silent, true)
			go g.pass(out, in, silent, false)
		}
	}()
	return g
}

func (g *gate) pass(from, to net.Conn, silent chan struct{}, asks bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-silent:
			_, _ = io.Copy(io.Discard, from) // until the test ends, or the caller closes it
			return                           // the server does not hear of that
		default:
		}
		if n > 0 {
			_, _ = to.Write(buffer[:n])
			g.mu.Lock()
			if asks && g.match != nil && g.match.Match(buffer[:n]) {
				g.match = nil
				close(g.silent)
				g.silent = make(chan struct{})
			}
			g.mu.Unlock()
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

// close makes the connections silent, at once or after a request that matches.
func (g *gate) close(after *regexp.Regexp) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.match = after; after == nil {
		close(g.silent)
		g.silent = make(chan struct{})
	}
}

// through returns the address of the database behind a gate.
func (w *world) through(g *gate, dsn string) string {
	return strings.Replace(dsn, sqltest.Host(dsn), g.Addr().String(), 1)
}

// A relay whose connection is silent makes another one. One that is silent inside of a transaction
// has its locks until a part of the lease is over.
func TestSilentConnections(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == outbox.SQLite {
			t.Skip("it has no connections over a network")
		}
		driverName, dsn := d.fresh(t)
		db, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		defer db.Close()
		w := newWorld(t, d)
		w.db = db
		require.NoError(t, w.ob.Migrate(t.Context(), db))
		g := newGate(t, sqltest.Host(dsn))
		behind, err := sql.Open(driverName, w.through(g, dsn))
		require.NoError(t, err)
		defer behind.Close()
		var log diary
		a, stopA := w.run(behind, w.client, log.option())
		w.enqueue(w.db, "1")
		w.drained()
		g.close(nil)
		w.enqueue(w.db, "2")
		w.drained()
		require.Greater(t, g.made.Load(), int64(1))
		w.until("A is ready again", func() bool { return a.Ready() == nil })
		require.NotZero(t, log.pauses(t))

		// The lock of the shard is that of a transaction whose owner is not heard of again.
		g.close(regexp.MustCompile(`(?s)UPDATE delayq_outbox_shards SET held_until = .{0,300}(number|innodb)`))
		w.enqueue(w.db, "3")
		w.until("A is silent", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.match == nil })
		require.NoError(t, g.Listener.Close()) // it does not come back
		w.run(w.db, w.client)
		w.drained()
		require.Len(t, w.jobs("topic"), 3)
		stopA()
	})
}

// A readOnly connector opens connections that cannot write, while it is told to.
type readOnly struct {
	under driver.Driver
	dsn   string
	set   string
	on    atomic.Bool
}

func (c *readOnly) Driver() driver.Driver { return c.under }

func (c *readOnly) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.under.Open(c.dsn)
	if err == nil && c.on.Load() {
		_, err = conn.(driver.ExecerContext).ExecContext(ctx, c.set, nil)
	}
	return conn, err
}

// A connection that has become read-only, as after a failover that closes none, is replaced.
func TestReadOnlyConnections(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		if d.dialect == outbox.SQLite {
			t.Skip("it has no such connections")
		}
		driverName, dsn := d.fresh(t)
		db, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		defer db.Close()
		w := newWorld(t, d)
		w.db = db
		require.NoError(t, w.ob.Migrate(t.Context(), db))
		c := &readOnly{under: db.Driver(), dsn: dsn, set: "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"}
		if d.dialect == outbox.MySQL {
			c.set = "SET SESSION TRANSACTION READ ONLY"
		}
		c.on.Store(true)
		behind := sql.OpenDB(c)
		defer behind.Close()
		a, _ := w.run(behind, w.client)
		w.enqueue(w.db, "1")
		w.until("A cannot write", func() bool { return a.State().Err != nil })
		c.on.Store(false)
		w.drained()
		w.until("A is ready", func() bool { return a.Ready() == nil })
	})
}

// A relay that gets no connection says so, and goes on when it gets one.
func TestPoolWithoutAConnection(t *testing.T) {
	eachWorld(t, func(w *world) {
		driverName, dsn := w.fresh(w.T)
		narrow, err := sql.Open(driverName, dsn)
		require.NoError(w, err)
		defer narrow.Close()
		narrow.SetMaxOpenConns(1)
		require.NoError(w, w.ob.Migrate(w.Context(), narrow))
		w.db = narrow
		w.enqueue(narrow, "1")
		taken, err := narrow.Conn(w.Context())
		require.NoError(w, err)
		var log diary
		a, _ := w.run(narrow, w.client, log.option())
		w.until("A has no connection", func() bool { return a.State().Err != nil })
		require.ErrorContains(w, a.Ready(), "no connection to the database within 500ms")
		w.until("A is live", func() bool { return a.Live() == nil })
		w.until("it is logged", func() bool { return strings.Contains(log.String(), "no connection to the database") })
		require.NoError(w, taken.Close())
		w.drained()
	})
}

// Rows of a topic that Redis refuses hold up no others. They pass when the user has the right, and
// are dead when they have waited for an hour.
func TestTopicThatRedisRefuses(t *testing.T) {
	redistest.Need(t)
	eachWorld(t, func(w *world) {
		server := redistest.Start(w.T, redistest.NoRoles...)
		admin := server.Client(w.T)
		grant := func(topics ...string) {
			words := []any{"ACL", "SETUSER", "narrow", "on", ">secret", "resetkeys", "+@all", "allchannels", "~delayq:topics"}
			for _, topic := range topics {
				words = append(words, "~delayq:{"+topic+"}:*")
			}
			require.NoError(w, admin.Do(w.Context(), words...).Err())
		}
		grant("topic")
		opts := server.Options()
		opts.Username, opts.Password = "narrow", "secret"
		w.rdb = redis.NewClient(opts)
		w.Cleanup(func() { _ = w.rdb.Close() })
		var log diary
		relay, _ := w.run(w.db, delayq.NewClient(w.rdb), log.option())
		w.enqueue(w.db, "0")
		w.drained() // the relay has shown that it can send
		for i := range 5 {
			_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "misspelt", strconv.Itoa(i), nil)
			require.NoError(w, err)
			w.enqueue(w.db, "good "+strconv.Itoa(i))
		}
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "misspelt", "3"))
		w.rdb = admin
		w.left(func(s outbox.Stats) bool { return s.Rows == 6 })
		require.Len(w, w.jobs("topic"), 6)
		w.until("the relay is ready", func() bool { return relay.Ready() == nil })
		require.Equal(w, 1, strings.Count(log.String(), "outbox topic waits"), log.String())
		require.NotContains(w, log.String(), "topics of a plan", "no plan waits for them")

		// A row that is old already is not dead because of that.
		_, err := w.db.Exec("UPDATE delayq_outbox SET made = made - 3700000")
		require.NoError(w, err)
		grant("topic", "misspelt")
		w.drained()
		require.Empty(w, w.dead())
		require.ElementsMatch(w, []string{"0", "1", "2", "4"}, w.jobs("misspelt"))
		w.until("the end is logged", func() bool { return strings.Contains(log.String(), "outbox topic continues") })
	})
}

// Rows of a topic that Redis refuses for long are dead, and can be revived.
func TestTopicThatRedisRefusesForLong(t *testing.T) {
	redistest.Need(t)
	eachWorld(t, func(w *world) {
		server := redistest.Start(w.T, redistest.NoRoles...)
		admin := server.Client(w.T)
		grant := func(keys string) {
			require.NoError(w, admin.Do(w.Context(), "ACL", "SETUSER", "narrow", "on", ">secret", "+@all", "resetkeys", keys, "allchannels").Err())
		}
		grant("~delayq:{topic}:*")
		require.NoError(w, admin.Do(w.Context(), "ACL", "SETUSER", "narrow", "~delayq:topics").Err())
		opts := server.Options()
		opts.Username, opts.Password = "narrow", "secret"
		w.rdb = redis.NewClient(opts)
		w.Cleanup(func() { _ = w.rdb.Close() })
		w.run(w.db, delayq.NewClient(w.rdb), outbox.Patience(time.Millisecond))
		w.enqueue(w.db, "0")
		w.drained() // the relay has shown that it can send
		for i := range 3 {
			_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "misspelt", strconv.Itoa(i), nil)
			require.NoError(w, err)
		}
		w.until("they are dead", func() bool { return len(w.dead()) == 3 })
		for _, row := range w.dead() {
			require.Contains(w, row.Reason, "NOPERM")
		}
		w.drained()
		require.Empty(w, admin.Keys(w.Context(), "delayq:{misspelt}:pool").Val())
	})
}

// A row that is larger than Redis allows is dead, and holds up nothing.
func TestRowThatIsTooLargeForRedis(t *testing.T) {
	redistest.Need(t)
	eachWorld(t, func(w *world) {
		w.rdb = redistest.Start(w.T, append([]string{"--proto-max-bulk-len", "1mb"}, redistest.NoRoles...)...).Client(w.T)
		ob, err := outbox.New(w.dialect, outbox.ClientOptions(delayq.MaxPayload(4<<20)))
		require.NoError(w, err)
		w.enqueue(w.db, "1")
		_, err = ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "topic", "large", make([]byte, 2<<20))
		require.NoError(w, err)
		w.enqueue(w.db, "2")
		w.run(w.db, delayq.NewClient(w.rdb, delayq.MaxPayload(4<<20)))
		w.left(func(s outbox.Stats) bool { return s.Rows == 0 || s.Rows == 1 && len(w.jobs("topic")) == 2 })
		require.ElementsMatch(w, []string{"1", "2"}, w.jobs("topic"))
	})
}

// While Redis is full, cancels pass, and what they are about does not run. New jobs wait, and a
// cancel of one of them waits behind it.
func TestCancelsPassWhileRedisIsFull(t *testing.T) {
	redistest.Need(t)
	eachWorld(t, func(w *world) {
		w.rdb = redistest.Start(w.T, redistest.NoRoles...).Client(w.T)
		client := delayq.NewClient(w.rdb)
		w.client = client
		for _, id := range []string{"x", "y", "moved"} {
			_, err := client.Enqueue(w.Context(), "topic", id, nil, delayq.ProcessIn(time.Hour))
			require.NoError(w, err)
		}
		limit := func(bytes string) { require.NoError(w, w.rdb.ConfigSet(w.Context(), "maxmemory", bytes).Err()) }
		limit("1")
		w.run(w.db, client)
		_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), "other", "1", nil)
		require.NoError(w, err)
		w.enqueue(w.db, "new")
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "x"))
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "new"))
		require.NoError(w, w.ob.Reschedule(w.Context(), outbox.Autocommit(w.db), "topic", "moved", delayq.ProcessIn(2*time.Hour)))
		w.left(func(s outbox.Stats) bool { return s.Rows == 4 })
		require.ElementsMatch(w, []string{"y", "moved"}, w.jobs("topic"))
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "y")) // of a topic that is known to be full
		w.left(func(s outbox.Stats) bool { return s.Rows == 4 })
		require.ElementsMatch(w, []string{"moved"}, w.jobs("topic"))
		limit("0")
		w.drained()
		require.ElementsMatch(w, []string{"moved"}, w.jobs("topic"))
		require.ElementsMatch(w, []string{"1"}, w.jobs("other"))
		require.InDelta(w, 120, w.due("moved"), 1)
		require.Empty(w, w.dead())
	})
}

// A deaf hook has no answers about one topic, as when a node of a Cluster is away.
type deaf struct {
	mortalHook
	on atomic.Bool
}

func (h *deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.on.Load() && strings.Contains(fmt.Sprint(cmd.Args()...), "{away}") {
			err := errors.New("i/o timeout")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

// A topic about which Redis does not answer holds up the others for a lease at most.
func TestTopicWithoutAnswers(t *testing.T) {
	eachWorld(t, func(w *world) {
		hook := &deaf{}
		hook.on.Store(true)
		rdb := redis.NewClient(w.rdb.Options())
		defer rdb.Close()
		rdb.AddHook(hook)
		relay, _ := w.run(w.db, delayq.NewClient(rdb))
		put := func(topic, id string) {
			_, err := w.ob.Enqueue(w.Context(), outbox.Autocommit(w.db), topic, id, nil)
			require.NoError(w, err)
		}
		w.tx(func(tx *sql.Tx) {
			for _, topic := range []string{"here", "away", "there"} {
				_, err := w.ob.Enqueue(w.Context(), tx, topic, "1", nil)
				require.NoError(w, err)
			}
		})
		w.left(func(s outbox.Stats) bool { return s.Rows == 1 })
		put("away", "2")
		put("here", "2")
		w.left(func(s outbox.Stats) bool { return s.Rows == 2 })
		require.Len(w, w.jobs("here"), 2)
		w.until("the relay holds the shard", func() bool { return relay.State().Held == 1 })
		hook.on.Store(false)
		w.drained()
		require.ElementsMatch(w, []string{"1", "2"}, w.jobs("away"))
		require.EqualValues(w, "2", w.rdb.HGet(w.Context(), "delayq:{here}:stats", "enqueued").Val())
	})
}

// A relay whose client waits for replicas keeps the rows until they have the jobs, and makes each
// job once.
func TestRowsWaitForReplicas(t *testing.T) {
	redistest.Need(t)
	eachWorld(t, func(w *world) {
		server := redistest.Start(w.T, redistest.NoRoles...)
		w.rdb = server.Client(w.T)
		relay, _ := w.run(w.db, delayq.NewClient(w.rdb, delayq.WaitReplicas(1, 50*time.Millisecond)))
		w.enqueue(w.db, "1")
		w.until("the relay waits", func() bool { return errors.Is(relay.State().Err, delayq.ErrNotReplicated) })
		s, err := w.ob.Stats(w.Context(), w.db)
		require.NoError(w, err)
		require.EqualValues(w, 1, s.Rows)
		require.Len(w, w.jobs("topic"), 1)
		redistest.Replica(w.T, server, redistest.NoRoles...)
		w.drained()
		require.Equal(w, "1", w.rdb.HGet(w.Context(), "delayq:{topic}:stats", "enqueued").Val())
	})
}

// keysAgain lets the keys of rows start again.
var keysAgain = map[outbox.Dialect]string{
	outbox.SQLite: "DELETE FROM sqlite_sequence WHERE name = 'delayq_outbox'", outbox.MySQL: "TRUNCATE TABLE delayq_outbox",
	outbox.Postgres: "TRUNCATE TABLE delayq_outbox RESTART IDENTITY",
}

// If the keys of rows start again, a cancel still finds the later row, later rows are not lost, and
// neither are dead ones.
func TestKeysThatStartAgain(t *testing.T) {
	eachWorld(t, func(w *world) {
		again := keysAgain[w.dialect]
		far := func(id string, opts ...delayq.JobOption) {
			w.enqueue(w.db, id, append(opts, delayq.ProcessIn(100*time.Hour))...)
		}
		stop := w.relay(outbox.Horizon(time.Hour))
		for i := range 5 {
			far("far " + strconv.Itoa(i))
		}
		w.enqueue(w.db, "twin")
		w.enqueue(w.db, "twin")
		w.drained()
		require.EqualValues(w, 5, w.later())
		require.Len(w, w.dead(), 1)
		_, err := w.db.Exec(again)
		require.NoError(w, err)
		require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", "far 3"))
		w.drained()
		require.EqualValues(w, 4, w.later())
		for i := range 6 {
			far("more " + strconv.Itoa(i))
		}
		w.enqueue(w.db, "twin")
		w.enqueue(w.db, "twin")
		w.drained()
		require.EqualValues(w, 10, w.later())
		require.Len(w, w.dead(), 3)
		// All later rows are still found by their IDs, and are sent.
		for _, id := range []string{"far 0", "more 5"} {
			require.NoError(w, w.ob.Dequeue(w.Context(), outbox.Autocommit(w.db), "topic", id))
		}
		far("far 1", delayq.Replace())
		w.drained()
		require.EqualValues(w, 8, w.later())
		stop()
		w.relay()
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		require.ElementsMatch(w, []string{"far 1", "far 2", "far 4", "more 0", "more 1", "more 2", "more 3", "more 4", "twin"}, w.jobs("topic"))
		require.Len(w, w.dead(), 3)
	})
}

// Several processes create the tables at the same time.
func TestMigrateSideBySide(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		for range 5 {
			driverName, dsn := d.fresh(t)
			var group sync.WaitGroup
			for range 6 {
				group.Go(func() {
					db, err := sql.Open(driverName, dsn)
					assert.NoError(t, err)
					defer db.Close()
					ob, err := outbox.New(d.dialect)
					assert.NoError(t, err)
					assert.NoError(t, ob.Migrate(t.Context(), db))
				})
			}
			group.Wait()
		}
	})
}

// After the clock of the database has been set back, no relay waits for a lease of the old time.
func TestLeaseOfAnotherTime(t *testing.T) {
	eachWorld(t, func(w *world) {
		stop := w.relay()
		w.enqueue(w.db, "1")
		w.drained()
		stop()
		until := time.Now().Add(time.Hour).UnixMilli()
		_, err := w.db.Exec(fmt.Sprintf("UPDATE delayq_outbox_shards SET holder = 'somebody', held_until = %d", until))
		require.NoError(w, err)
		w.relay()
		w.enqueue(w.db, "2")
		w.drained()
	})
}

// A relay that drops duplicates has no dead rows for them, in Redis or beyond the horizon.
func TestDuplicatesAreDropped(t *testing.T) {
	eachWorld(t, func(w *world) {
		w.relay(outbox.DropDuplicates(), outbox.Horizon(time.Hour))
		for range 3 {
			w.enqueue(w.db, "near", delayq.ProcessIn(time.Minute))
			w.enqueue(w.db, "far", delayq.ProcessIn(100*time.Hour))
		}
		w.drained()
		require.EqualValues(w, 1, w.later())
		require.Equal(w, []string{"near"}, w.jobs("topic"))
		require.Empty(w, w.dead())
	})
}
