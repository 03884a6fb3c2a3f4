package statement_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/handlers/statement"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/outbox"
)

// killedEnv makes the test binary a server that kills itself: see killed.
const killedEnv = "STATEMENT_KILLED"

// A killed is the configuration of a server that gets SIGKILL at one of its steps.
type killed struct {
	Dialect              outbox.Dialect
	Driver, DSN          string
	Network, Addr, Redis string // Redis is the prefix
	Step                 int64
}

var effects = map[string][]string{"effect": {
	"INSERT INTO effects VALUES (:id)",
	"UPDATE hits SET n = n + 1 WHERE id = 1",
}}

// stepsOfAJob is the number of steps of a job: before and after BEGIN, the record of the inbox, two
// statements and COMMIT, and then when the handler has returned and when Redis has the outcome.
const stepsOfAJob = 2*5 + 2

// run serves until it is killed.
func (k killed) run() error {
	var steps atomic.Int64
	die := func() {
		if steps.Add(1) == k.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	probe, err := sql.Open(k.Driver, k.DSN)
	if err != nil {
		return err
	}
	db := sql.OpenDB(mortalConnector{probe.Driver(), k.DSN, die})
	db.SetMaxOpenConns(1)
	h, err := statement.New(db, k.Dialect, effects)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Network: k.Network, Addr: k.Addr})
	server := delayq.NewServer(rdb, append(serverOptions(k.Redis), delayq.Hooks(ended(die)))...)
	server.HandlerFunc("sql", func(ctx context.Context, job *delayq.Job) error {
		err := h.Handle(ctx, job)
		die()
		return err
	})
	return server.Run(context.Background())
}

// ended is a hook for the end of a run. The next job may begin before it is called.
type ended func()

func (f ended) Ended(delayq.RunEvent) { f() }

func serverOptions(prefix string) []delayq.ServerOption {
	return []delayq.ServerOption{
		delayq.Prefix(prefix), delayq.Concurrency(1), delayq.Lease(time.Second), delayq.Logger(slog.New(slog.DiscardHandler)),
	}
}

// A mortalConnector opens connections that call die before and after each step.
type mortalConnector struct {
	under driver.Driver
	dsn   string
	die   func()
}

func (c mortalConnector) Connect(context.Context) (driver.Conn, error) {
	conn, err := c.under.Open(c.dsn)
	return &mortalConn{conn, c.die}, err
}

func (c mortalConnector) Driver() driver.Driver { return c.under }

type mortalConn struct {
	driver.Conn
	die func()
}

func (c *mortalConn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	c.die()
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, opts)
	c.die()
	return &mortalTx{tx, c.die}, err
}

func (c *mortalConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	c.die()
	r, err := c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
	if errors.Is(err, driver.ErrSkip) { // the driver prepares the statement instead
		var prepared driver.Stmt
		if prepared, err = c.Conn.Prepare(query); err == nil {
			r, err = prepared.(driver.StmtExecContext).ExecContext(ctx, args)
			_ = prepared.Close()
		}
	}
	c.die()
	return r, err
}

func (c *mortalConn) CheckNamedValue(v *driver.NamedValue) error {
	if checker, ok := c.Conn.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type mortalTx struct {
	driver.Tx
	die func()
}

func (t *mortalTx) Commit() error {
	t.die()
	err := t.Tx.Commit()
	t.die()
	return err
}

// Servers get SIGKILL one after another, each at another step. The next one has its jobs as soon as
// the leases are over. Each job has had its effect once in the end.
func TestServersAreKilledBetweenAnyTwoSteps(t *testing.T) {
	each(t, func(w *world) {
		const perRound = 3
		text := map[outbox.Dialect]string{outbox.MySQL: "VARCHAR(20)"}[w.dialect]
		if text == "" {
			text = "TEXT"
		}
		w.exec(count, begin, "CREATE TABLE effects (id "+text+" NOT NULL)")
		rdb, prefix := redistest.Shared(w), redistest.Prefix(w)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		jobs := 0
		for round := range redistest.Size(300) {
			fresh := make([]delayq.NewJob, perRound)
			for i := range fresh {
				id := fmt.Sprint("job-", jobs+i)
				fresh[i] = delayq.NewJob{Topic: "sql", ID: id, Payload: fmt.Appendf(nil, `{"statement": "effect", "arguments": {"id": %q}}`, id)}
			}
			stored, err := client.EnqueueBatch(w.Context(), fresh)
			require.NoError(w, err)
			for _, one := range stored {
				require.NoError(w, one.Err)
			}
			jobs += perRound
			config, err := json.Marshal(killed{
				w.dialect, w.driver, w.dsn, rdb.Options().Network, rdb.Options().Addr, prefix, 1 + int64(round)%(perRound*stepsOfAJob-1),
			})
			require.NoError(w, err)
			child := exec.CommandContext(w.Context(), os.Args[0])
			child.Env = append(os.Environ(), killedEnv+"="+string(config))
			child.Stderr = os.Stderr
			err = child.Run()
			exit, ok := errors.AsType[*exec.ExitError](err)
			require.True(w, ok, "round %d: %v", round, err)
			require.Equal(w, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), "round %d", round)
		}
		var again atomic.Int64 // runs of jobs that have had a run
		server := delayq.NewServer(rdb, serverOptions(prefix)...)
		h := w.handler(effects)
		server.HandlerFunc("sql", func(ctx context.Context, job *delayq.Job) error {
			if job.Attempt > 1 {
				again.Add(1)
			}
			return h.Handle(ctx, job)
		})
		ctx, stop := context.WithCancel(w.Context())
		result := make(chan error, 1)
		go func() { result <- server.Run(ctx) }()
		inspector := delayq.NewInspector(rdb, delayq.Prefix(prefix))
		require.Eventually(w, func() bool {
			stats, err := inspector.Stats(w.Context(), "sql")
			return err == nil && stats[0].Ready+stats[0].Running+stats[0].Scheduled == 0
		}, 5*time.Minute, 10*time.Millisecond)
		stop()
		require.NoError(w, <-result)
		require.Equal(w, jobs, w.number("SELECT COUNT(*) FROM effects"))
		require.Equal(w, jobs, w.number("SELECT COUNT(DISTINCT id) FROM effects"))
		require.Equal(w, jobs, w.number("SELECT n FROM hits WHERE id = 1"))
		w.Logf("%d jobs, of which %d ran again at the end", jobs, again.Load())
	})
}
