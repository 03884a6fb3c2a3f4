package outbox_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/outbox"
)

// A life is that of a process: a number of statements and calls of Redis. The last one is not
// carried out, or it is and its reply is lost. After that, nothing arrives any more.
type life struct {
	left  atomic.Int64
	late  bool // the last one is carried out
	ended chan struct{}
}

var errDead = errors.New("the process is dead")

func newLife(steps int, late bool) *life {
	l := &life{late: late, ended: make(chan struct{})}
	l.left.Store(int64(steps))
	return l
}

func (l *life) step(do func() error) error {
	switch left := l.left.Add(-1); {
	case left > 0:
		return do()
	case left == 0:
		defer close(l.ended)
		if l.late {
			_ = do()
		}
	}
	return errDead
}

func (l *life) dead() bool { return l.left.Load() <= 0 }

// connector opens connections that die with a life.
type connector struct {
	under driver.Driver
	dsn   string
	*life
}

func (c connector) Connect(context.Context) (driver.Conn, error) {
	if c.dead() {
		return nil, errDead
	}
	conn, err := c.under.Open(c.dsn)
	return &mortalConn{conn, c.life}, err
}

func (c connector) Driver() driver.Driver { return c.under }

type mortalConn struct {
	driver.Conn
	*life
}

func (c *mortalConn) BeginTx(ctx context.Context, opts driver.TxOptions) (tx driver.Tx, err error) {
	err = c.step(func() (err error) {
		tx, err = c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
		return err
	})
	return &mortalTx{tx, c.life}, err
}

func (c *mortalConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Result, err error) {
	err = c.step(func() (err error) {
		r, err = c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
		return err
	})
	return r, err
}

func (c *mortalConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (r driver.Rows, err error) {
	err = c.step(func() (err error) {
		r, err = c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
		return err
	})
	if err != nil && r != nil {
		_ = r.Close()
	}
	return r, err
}

func (c *mortalConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

func (c *mortalConn) IsValid() bool { return !c.dead() }

type mortalTx struct {
	driver.Tx
	*life
}

func (t *mortalTx) Commit() error { return t.step(t.Tx.Commit) }

// Rollback of a dead process does nothing: the server rolls back when the connection is closed.
func (t *mortalTx) Rollback() error {
	if t.dead() {
		return errDead
	}
	return t.Tx.Rollback()
}

// mortal returns a client of go-redis that dies with a life.
func (w *world) mortal(l *life) *redis.Client {
	rdb := redis.NewClient(w.rdb.Options())
	rdb.AddHook(mortalHook{l})
	return rdb
}

// A mortal hook ends calls of Redis with a life.
type mortalHook struct{ *life }

func (h mortalHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h mortalHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := h.step(func() error { return next(ctx, cmd) })
		cmd.SetErr(err)
		return err
	}
}

func (h mortalHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := h.step(func() error { return next(ctx, cmds) })
		if h.dead() {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// Relays die one after another, each at another statement or call of Redis. In between, workers
// finish the jobs that are there. Each committed row has made one job in the end.
func TestRelaysDieAtAnyLine(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		driverName, dsn := d.fresh(t)
		db, err := sql.Open(driverName, dsn)
		require.NoError(t, err)
		defer db.Close()
		ob, err := outbox.New(d.dialect)
		require.NoError(t, err)
		require.NoError(t, ob.Migrate(t.Context(), db))
		rdb, prefix := redistest.Shared(t), redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		w := &world{T: t, database: d, db: db, ob: ob, rdb: rdb, client: client}

		want := make(map[string]string) // nonce of a job that must exist once → its name
		may := make(map[string]string)  // … that can exist once, because it is cancelled
		seen := make(map[string]int)
		work := func() { // it finishes all jobs
			for _, topic := range []string{"one", "two"} {
				for id, record := range rdb.HGetAll(t.Context(), prefix+":{"+topic+"}:pool").Val() {
					seen[record[:8]]++
					_, err := client.Dequeue(t.Context(), topic, id)
					require.NoError(t, err)
				}
			}
		}
		kills := 0
		for round := range redistest.Size(1000) {
			w.tx(func(tx *sql.Tx) {
				put := func(into map[string]string, topic, id string, opts ...delayq.JobOption) {
					job, err := ob.Enqueue(t.Context(), tx, topic, id, []byte("payload"), opts...)
					require.NoError(t, err)
					into[job.Nonce()] = topic + "/" + id
				}
				n := strconv.Itoa(round)
				put(want, "one", "now "+n)
				put(want, "two", "later "+n, delayq.ProcessIn(time.Hour))
				put(may, "one", "pair "+n)
				require.NoError(t, ob.Dequeue(t.Context(), tx, "one", "pair "+n))
				put(want, "one", "pair "+n, delayq.ProcessIn(time.Hour))
				require.NoError(t, ob.Reschedule(t.Context(), tx, "one", "pair "+n, delayq.ProcessIn(time.Minute)))
			})
			tx, err := db.Begin()
			require.NoError(t, err)
			_, err = ob.Enqueue(t.Context(), tx, "one", "rolled back "+strconv.Itoa(round), nil)
			require.NoError(t, err)
			require.NoError(t, tx.Rollback())

			// The lease of the last relay is over.
			_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
			require.NoError(t, err)
			life := newLife(1+round%37, round/37%2 == 1)
			mortalDB := sql.OpenDB(connector{db.Driver(), dsn, life})
			mortalRDB := redis.NewClient(rdb.Options())
			mortalRDB.AddHook(mortalHook{life})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			opts := []outbox.RelayOption{outbox.Poll(time.Millisecond), outbox.Logger(slog.New(slog.DiscardHandler))}
			if round%3 > 0 { // the third one sends what they have left
				opts = append(opts, outbox.Horizon(30*time.Minute))
			}
			relay := ob.Relay(mortalDB, delayq.NewClient(mortalRDB, delayq.Prefix(prefix)), opts...)
			go func() { done <- relay.Run(ctx) }()
			select {
			case <-life.ended:
				kills++
			case <-time.After(20 * time.Second):
				t.Error("the relay did not use up its life")
			}
			cancel()
			require.NoError(t, <-done)
			require.NoError(t, mortalDB.Close())
			require.NoError(t, mortalRDB.Close())
			work()
		}
		_, err = db.Exec("UPDATE delayq_outbox_shards SET held_until = 0")
		require.NoError(t, err)
		w.relay()
		w.left(func(s outbox.Stats) bool { return s.Rows+s.Later == 0 })
		work()
		for nonce, name := range want {
			require.Equal(t, 1, seen[nonce], name)
			delete(seen, nonce)
		}
		for nonce, name := range may {
			require.LessOrEqual(t, seen[nonce], 1, name)
			delete(seen, nonce)
		}
		require.Empty(t, seen, "jobs of no committed row")
		dead, err := ob.Dead(t.Context(), db, 0, 10)
		require.NoError(t, err)
		require.Empty(t, dead)
		t.Logf("%d relays died, %d jobs", kills, len(want))
	})
}
