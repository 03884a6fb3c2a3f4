package outbox_test

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/outbox"
)

// BenchmarkRelay measures how fast one relay sends rows that wait, with the fsync of the database
// and a Redis of its own. The rows are copies of one, with IDs of their own. With a snapshot,
// another transaction keeps all deleted rows in the table.
func BenchmarkRelay(b *testing.B) {
	for _, d := range databases {
		if d.dialect != outbox.Postgres {
			continue
		}
		b.Run(d.name, func(b *testing.B) { benchRelay(b, d, false) })
		b.Run(d.name+"/snapshot", func(b *testing.B) { benchRelay(b, d, true) })
	}
}

func benchRelay(b *testing.B, d *database, snapshot bool) {
	d.once.Do(func() { d.dsn, d.stop, d.err = d.start() })
	require.NoError(b, d.err)
	server, err := redistest.StartE("")
	require.NoError(b, err)
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	db, ob := d.open(b)
	const rows = 200_000
	const names = "shard, kind, topic, id, replaces, due_at, delay_ms, made, record"
	var spent time.Duration
	for b.Loop() {
		require.NoError(b, rdb.FlushAll(b.Context()).Err())
		_, err := ob.Enqueue(b.Context(), outbox.Autocommit(db), "topic", "id", make([]byte, 100), delayq.ProcessIn(time.Hour))
		require.NoError(b, err)
		_, err = db.Exec("INSERT INTO delayq_outbox ("+names+") SELECT shard, kind, topic, convert_to('id' || n, 'UTF8'), replaces, "+
			"due_at, delay_ms, made, record FROM delayq_outbox, generate_series(2, $1::int) AS n", rows)
		require.NoError(b, err)
		var held *sql.Tx
		if snapshot {
			held, err = db.BeginTx(b.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			require.NoError(b, err)
			var n int
			require.NoError(b, held.QueryRow("SELECT COUNT(*) FROM delayq_outbox").Scan(&n))
		}
		began := time.Now()
		stop := runRelay(b, ob.Relay(db, delayq.NewClient(rdb), outbox.Poll(time.Millisecond), outbox.Logger(slog.New(slog.DiscardHandler))))
		require.Eventually(b, func() bool {
			return rdb.HLen(b.Context(), "delayq:{topic}:pool").Val() == rows
		}, 5*time.Minute, 5*time.Millisecond)
		spent += time.Since(began)
		stop()
		if held != nil {
			require.NoError(b, held.Rollback())
		}
		_, err = db.Exec("TRUNCATE delayq_outbox")
		require.NoError(b, err)
	}
	b.ReportMetric(float64(rows*b.N)/spent.Seconds(), "rows/s")
}

// runRelay runs a relay until the returned function is called.
func runRelay(b *testing.B, relay *outbox.Relay) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- relay.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(b, <-done)
	}
}
