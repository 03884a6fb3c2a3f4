package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverPeer is River with its driver for pgx. Rows that measure a rate set it
// up as its own benchmark does: a fetch every 2 ms at most and every 20 ms at
// least (defaults: 100 ms and 1 s), with 1,000 workers. The other rows have its
// defaults and as many workers as delayq.
type riverPeer struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	do     func(ctx context.Context, pool *pgxpool.Pool, more func(tx pgx.Tx) error) error
}

// The set-up for the highest rate.
const (
	riverCooldown = 2 * time.Millisecond
	riverPoll     = 20 * time.Millisecond
	riverWorkers  = 1000
)

// riverArgs is a job. River stores JSON, which has bytes in base64.
type riverArgs struct {
	Payload []byte `json:"payload"`
}

// Kind implements river.JobArgs.
func (riverArgs) Kind() string { return "bench" }

// openRiver returns how to connect River. A job is written in what do begins
// and commits.
func openRiver(do func(context.Context, *pgxpool.Pool, func(tx pgx.Tx) error) error) func(context.Context, *store, *pgxpool.Pool) (peer, error) {
	return func(ctx context.Context, _ *store, pool *pgxpool.Pool) (peer, error) {
		p := &riverPeer{pool: pool, do: do}
		migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: riverLogger()})
		if err != nil {
			return nil, err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return nil, err
		}
		if err := createWorld(ctx, pool, ""); err != nil {
			return nil, err
		}
		p.client, err = river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: riverLogger()})
		return p, err
	}
}

func riverLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// riverOpts is when j is due.
func riverOpts(j job) *river.InsertOpts {
	switch {
	case !j.at.IsZero():
		return &river.InsertOpts{ScheduledAt: j.at}
	case j.in > 0:
		return &river.InsertOpts{ScheduledAt: time.Now().Add(j.in)}
	default:
		return nil
	}
}

// enqueue implements peer.
func (p *riverPeer) enqueue(ctx context.Context, _ string, j job) error {
	return p.do(ctx, p.pool, func(tx pgx.Tx) error {
		_, err := p.client.InsertTx(ctx, tx, riverArgs{j.payload}, riverOpts(j))
		return err
	})
}

// enqueueAll implements peer.
func (p *riverPeer) enqueueAll(ctx context.Context, _ string, jobs []job) error {
	list := make([]river.InsertManyParams, len(jobs))
	for i, j := range jobs {
		list[i] = river.InsertManyParams{Args: riverArgs{j.payload}, InsertOpts: riverOpts(j)}
	}
	_, err := p.client.InsertManyFast(ctx, list)
	return err
}

// cancel implements peer.
func (p *riverPeer) cancel(context.Context, string, string) error {
	return fmt.Errorf("no row cancels jobs of River")
}

// left implements peer.
func (p *riverPeer) left(ctx context.Context, _ string) (n int, err error) {
	err = p.pool.QueryRow(ctx, "SELECT COUNT(*) FROM river_job WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled')").Scan(&n)
	return n, err
}

// riverWorker hands a job to a handler.
type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	handle func(delivery)
}

// Work implements river.Worker.
func (w *riverWorker) Work(_ context.Context, j *river.Job[riverArgs]) error {
	w.handle(delivery{payload: j.Args.Payload, late: time.Since(payloadDue(j.Args.Payload))})
	return nil
}

// work implements peer.
func (p *riverPeer) work(ctx context.Context, w workload) (func() error, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{handle: w.topics[0].handle})
	config := &river.Config{
		Logger: riverLogger(), Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: w.topics[0].concurrency}},
	}
	if !w.plain {
		config.FetchCooldown, config.FetchPollInterval = riverCooldown, riverPoll
		config.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: riverWorkers}
	}
	client, err := river.NewClient(riverpgxv5.New(p.pool), config)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // Stop ends it
	if err := client.Start(ctx); err != nil {
		return nil, fmt.Errorf("start river: %w", err)
	}
	return func() error { return client.Stop(ctx) }, nil
}

// forget implements peer.
func (p *riverPeer) forget(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "TRUNCATE history, plain, river_job")
	return err
}

// close implements peer.
func (p *riverPeer) close() error { return nil }
