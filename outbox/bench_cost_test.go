package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
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
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/outbox"
)

// benchWorld is a PostgreSQL with its fsync and a Redis of its own, both on this machine.
func benchWorld(b *testing.B) (db *sql.DB, ob *outbox.Outbox, rdb *redis.Client) {
	at := slices.IndexFunc(databases, func(d *database) bool { return d.dialect == outbox.Postgres })
	d := databases[at]
	d.once.Do(func() { d.dsn, d.stop, d.err = d.start() })
	require.NoError(b, d.err)
	server, err := redistest.StartE("")
	require.NoError(b, err)
	b.Cleanup(func() { _ = server.Close() })
	rdb = redis.NewClient(server.Options())
	b.Cleanup(func() { _ = rdb.Close() })
	db, ob = d.open(b)
	var fsync string
	require.NoError(b, db.QueryRow("SHOW fsync").Scan(&fsync))
	require.Equal(b, "on", fsync)
	return db, ob, rdb
}

func startRelay(b *testing.B, db *sql.DB, ob *outbox.Outbox, rdb *redis.Client) (stop func()) {
	return runRelay(b, ob.Relay(db, delayq.NewClient(rdb), outbox.Logger(slog.New(slog.DiscardHandler))))
}

// BenchmarkTransactions measures what Enqueue costs the transactions of 16 callers. One has a
// single INSERT. The other one is that of pgbench, which is like TPC-B: three UPDATEs, a SELECT and
// an INSERT. Each round measures the transaction alone, with one more INSERT of a row of about the
// same size, with an Enqueue, and with an Enqueue and a relay, one after the other. The figures are
// medians of the rounds.
func BenchmarkTransactions(b *testing.B) {
	for _, of := range []struct {
		name string
		work func(ctx context.Context, tx *sql.Tx, id string) error
	}{
		{"insert", func(ctx context.Context, tx *sql.Tx, id string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO history (account, delta, id) VALUES ($1, $2, $3)", rand.IntN(100_000), 1, id)
			return err
		}},
		{"pgbench", func(ctx context.Context, tx *sql.Tx, id string) error {
			account, teller, branch, balance := rand.IntN(100_000), rand.IntN(1000), rand.IntN(100), 0
			if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = $1", account); err != nil {
				return err
			}
			if err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = $1", account).Scan(&balance); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE tellers SET balance = balance + 1 WHERE id = $1", teller); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE branches SET balance = balance + 1 WHERE id = $1", branch); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO history (account, delta, id) VALUES ($1, $2, $3)", account, 1, id)
			return err
		}},
	} {
		b.Run(of.name, func(b *testing.B) { benchTransactions(b, of.work) })
	}
}

func benchTransactions(b *testing.B, work func(context.Context, *sql.Tx, string) error) {
	const callers, span = 16, time.Second
	db, ob, rdb := benchWorld(b)
	db.SetMaxIdleConns(callers + 2)
	for _, create := range []string{
		"CREATE TABLE history (account int, delta int, id text, made timestamptz DEFAULT now())",
		"CREATE TABLE accounts AS SELECT n AS id, 0 AS balance, repeat(' ', 84) AS filler FROM generate_series(0, 99999) AS n",
		"CREATE TABLE tellers AS SELECT n AS id, 0 AS balance, repeat(' ', 84) AS filler FROM generate_series(0, 999) AS n",
		"CREATE TABLE branches AS SELECT n AS id, 0 AS balance, repeat(' ', 84) AS filler FROM generate_series(0, 99) AS n",
		"ALTER TABLE accounts ADD PRIMARY KEY (id)", "ALTER TABLE tellers ADD PRIMARY KEY (id)", "ALTER TABLE branches ADD PRIMARY KEY (id)",
		"CREATE TABLE plain (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea)", "VACUUM ANALYZE",
	} {
		_, err := db.Exec(create)
		require.NoError(b, err)
	}
	var ids atomic.Int64
	payload, row := make([]byte, 100), make([]byte, 170)
	rate := func(more func(tx *sql.Tx, id string) error) float64 {
		ctx, cancel := context.WithTimeout(b.Context(), span)
		defer cancel()
		var group sync.WaitGroup
		var done atomic.Int64
		for range callers {
			group.Go(func() {
				for ctx.Err() == nil {
					tx, err := db.BeginTx(b.Context(), nil)
					require.NoError(b, err)
					id := strconv.FormatInt(ids.Add(1), 10)
					require.NoError(b, work(b.Context(), tx, id))
					require.NoError(b, more(tx, id))
					require.NoError(b, tx.Commit())
					done.Add(1)
				}
			})
		}
		began := time.Now()
		group.Wait()
		return float64(done.Load()) / time.Since(began).Seconds()
	}
	nothing := func(*sql.Tx, string) error { return nil }
	insert := func(tx *sql.Tx, _ string) error {
		_, err := tx.ExecContext(b.Context(), "INSERT INTO plain (data) VALUES ($1)", row)
		return err
	}
	enqueue := func(tx *sql.Tx, id string) error {
		_, err := ob.Enqueue(b.Context(), tx, "topic", id, payload, delayq.ProcessIn(time.Hour))
		return err
	}
	var rates [4][]float64
	var costs [4][]float64
	for b.Loop() {
		alone := rate(nothing)
		note := func(i int, rate float64) {
			rates[i], costs[i] = append(rates[i], rate), append(costs[i], 100*(1-rate/alone))
		}
		note(0, alone)
		note(1, rate(insert))
		note(2, rate(enqueue))
		_, err := db.Exec("TRUNCATE delayq_outbox")
		require.NoError(b, err)
		stop := startRelay(b, db, ob, rdb)
		note(3, rate(enqueue))
		stop()
		_, err = db.Exec("TRUNCATE delayq_outbox")
		require.NoError(b, err)
		require.NoError(b, rdb.FlushAll(b.Context()).Err())
	}
	b.ReportMetric(0, "ns/op")
	for i, name := range []string{"alone", "insert", "enqueue", "relay"} {
		b.ReportMetric(percentile(rates[i], 50), name+"-tx/s")
		if i > 0 {
			b.ReportMetric(percentile(costs[i], 50), name+"-%")
		}
	}
}

// percentile returns the nearest value to a percentile. It sorts values.
func percentile(values []float64, p int) float64 {
	slices.Sort(values)
	return values[(len(values)-1)*p/100]
}

// BenchmarkStart measures the time from a commit to the start of a job that is due at once, one job
// at a time: with a relay of the same process that is nudged, and with the polls of the default,
// which the commits meet at random.
func BenchmarkStart(b *testing.B) {
	for _, nudge := range []bool{true, false} {
		b.Run(map[bool]string{true: "nudge", false: "poll"}[nudge], func(b *testing.B) { benchStart(b, nudge) })
	}
}

func benchStart(b *testing.B, nudge bool) {
	db, ob, rdb := benchWorld(b)
	started := make(chan time.Time, 1)
	server := delayq.NewServer(rdb, delayq.Logger(slog.New(slog.DiscardHandler)))
	server.HandlerFunc("topic", func(context.Context, *delayq.Job) error {
		started <- time.Now()
		return nil
	})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	defer func() {
		cancel()
		<-ended
	}()
	defer startRelay(b, db, ob, rdb)()
	var took []float64
	for n := 0; b.Loop(); n++ {
		<-time.After(time.Duration(rand.Int64N(int64(100 * time.Millisecond))))
		tx, err := db.BeginTx(b.Context(), nil)
		require.NoError(b, err)
		_, err = ob.Enqueue(b.Context(), tx, "topic", strconv.Itoa(n), make([]byte, 100))
		require.NoError(b, err)
		require.NoError(b, tx.Commit())
		committed := time.Now()
		if nudge {
			ob.Nudge()
		}
		ms := float64((<-started).Sub(committed).Microseconds()) / 1000
		if n >= 10 { // connections and scripts are there
			took = append(took, ms)
		}
	}
	if len(took) == 0 {
		return
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(percentile(took, 50), "p50-ms")
	b.ReportMetric(percentile(took, 99), "p99-ms")
}

// BenchmarkIdle measures which share of a core the database uses for a relay that has nothing to
// do, by what Linux has counted for the process of its connection.
func BenchmarkIdle(b *testing.B) {
	const span = 20 * time.Second
	db, ob, rdb := benchWorld(b)
	db.SetMaxOpenConns(1)
	var pid int
	require.NoError(b, db.QueryRow("SELECT pg_backend_pid()").Scan(&pid))
	used := func() time.Duration {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err != nil {
			b.Skip(err)
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		require.NoError(b, err)
		return time.Duration(ns)
	}
	defer startRelay(b, db, ob, rdb)()
	<-time.After(time.Second) // it holds the shard
	var sum, whole time.Duration
	for b.Loop() {
		before, began := used(), time.Now()
		<-time.After(span)
		sum, whole = sum+used()-before, whole+time.Since(began)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(100*float64(sum)/float64(whole), "%core")
}
