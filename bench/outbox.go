package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/delayq/delayq/outbox"
	"github.com/delayq/delayq/outbox/pgxoutbox"
)

// txCallers is how many callers make transactions at the same time.
const txCallers = 16

// world is what the callers' transactions are about: the tables of pgbench.
const world = `
CREATE TABLE history (account int, delta int, made timestamptz DEFAULT now());
CREATE TABLE accounts AS SELECT n AS id, 0 AS balance, repeat(' ', 84) AS filler FROM generate_series(0, 99999) AS n;
CREATE TABLE tellers AS SELECT n AS id, 0 AS balance, repeat(' ', 84) AS filler FROM generate_series(0, 999) AS n;
CREATE TABLE branches AS SELECT n AS id, 0 AS balance, repeat(' ', 84) AS filler FROM generate_series(0, 99) AS n;
ALTER TABLE accounts ADD PRIMARY KEY (id);
ALTER TABLE tellers ADD PRIMARY KEY (id);
ALTER TABLE branches ADD PRIMARY KEY (id);
CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data bytea NOT NULL);
`

// createWorld creates the tables of the callers and more.
func createWorld(ctx context.Context, pool *pgxpool.Pool, more string) error {
	if _, err := pool.Exec(ctx, world+more); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, "VACUUM ANALYZE")
	return err
}

// transact does the work of a caller and more in one transaction.
func transact(ctx context.Context, pool *pgxpool.Pool, more func(tx pgx.Tx) error) error {
	return callerWork(ctx, pool, func(tx pgx.Tx, insert string, account int) error {
		if _, err := tx.Exec(ctx, insert, account); err != nil {
			return err
		}
		return more(tx)
	})
}

// transactBatch is transact whose last statement and more travel together.
func transactBatch(ctx context.Context, pool *pgxpool.Pool, more func(b *pgx.Batch) error) error {
	return callerWork(ctx, pool, func(tx pgx.Tx, insert string, account int) error {
		b := &pgx.Batch{}
		b.Queue(insert, account)
		if err := more(b); err != nil {
			return err
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// callerWork is a transaction like that of pgbench: three UPDATEs, a SELECT and
// an INSERT, which last executes.
func callerWork(ctx context.Context, pool *pgxpool.Pool, last func(tx pgx.Tx, insert string, account int) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		account, balance := rand.IntN(100_000), 0
		if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = $1", account); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = $1", account).Scan(&balance); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE tellers SET balance = balance + 1 WHERE id = $1", rand.IntN(1000)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE branches SET balance = balance + 1 WHERE id = $1", rand.IntN(100)); err != nil {
			return err
		}
		return last(tx, "INSERT INTO history (account, delta) VALUES ($1, 1)", account)
	})
}

// onPostgres measures with a peer on a new database of a server of our own.
func onPostgres(label string, open func(context.Context, *store, *pgxpool.Pool) (peer, error),
	measure func(context.Context, *bench, peer) (sample, error)) side {
	return side{label: label, measure: func(ctx context.Context, b *bench) (_ sample, err error) {
		db, err := b.database(ctx)
		if err != nil {
			return nil, err
		}
		pool, drop, err := db.fresh(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, drop(context.WithoutCancel(ctx))) }()
		p, err := open(ctx, b.store, pool)
		if err != nil {
			return nil, err
		}
		if _, err := db.admin.Exec(ctx, "CHECKPOINT"); err != nil { // or it happens in the middle
			return nil, errors.Join(err, p.close())
		}
		b.store.db = db
		defer func() { b.store.db = nil }()
		result, err := product{label, func(*store) peer { return p }}.on(measure).measure(ctx, b)
		if _, ours := p.(*outboxPeer); !ours { // the others do not use Redis
			delete(result, figCPU)
			delete(result, figCommands)
			delete(result, figBytes)
		}
		return result, err
	}}
}

// outboxPeer is the outbox of delayq as its users have it: rows are written in
// transactions of pgx, and a relay with its defaults runs beside the server.
type outboxPeer struct {
	*delayqPeer
	pool  *pgxpool.Pool
	box   *outbox.Outbox
	nudge bool // a nudge after each commit
	do    func(ctx context.Context, pool *pgxpool.Pool, more func(tx outbox.Execer) error) error
}

// openOutbox returns how to connect an outbox. A job is written in what do
// begins and commits.
func openOutbox(nudge bool, do func(context.Context, *pgxpool.Pool, func(tx outbox.Execer) error) error) func(context.Context, *store, *pgxpool.Pool) (peer, error) {
	return func(ctx context.Context, s *store, pool *pgxpool.Pool) (peer, error) {
		box, err := outbox.New(outbox.Postgres)
		if err != nil {
			return nil, err
		}
		if err := createWorld(ctx, pool, box.Schema()); err != nil {
			return nil, err
		}
		return &outboxPeer{openDelayq(s).(*delayqPeer), pool, box, nudge, do}, nil
	}
}

// write writes a row.
func (p *outboxPeer) write(ctx context.Context, tx outbox.Execer, topic string, j job) error {
	_, err := p.box.Enqueue(ctx, tx, topic, j.id, j.payload, jobOptions(j)...)
	return err
}

// enqueue implements peer.
func (p *outboxPeer) enqueue(ctx context.Context, topic string, j job) error {
	err := p.do(ctx, p.pool, func(tx outbox.Execer) error { return p.write(ctx, tx, topic, j) })
	if err == nil && p.nudge {
		p.box.Nudge()
	}
	return err
}

// enqueueAll implements peer. An outbox has no call for many jobs.
func (p *outboxPeer) enqueueAll(ctx context.Context, topic string, jobs []job) error {
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		for _, j := range jobs {
			if err := p.write(ctx, pgxoutbox.Tx(tx), topic, j); err != nil {
				return err
			}
		}
		return nil
	})
	p.box.Nudge()
	return err
}

// left implements peer. It counts the rows and the jobs in Redis. While a plan
// ends, its jobs are counted twice.
func (p *outboxPeer) left(ctx context.Context, topic string) (int, error) {
	var rows int
	if err := p.pool.QueryRow(ctx, "SELECT COUNT(*) FROM delayq_outbox").Scan(&rows); err != nil {
		return 0, err
	}
	jobs, err := p.delayqPeer.left(ctx, topic)
	return rows + jobs, err
}

// work implements peer.
func (p *outboxPeer) work(ctx context.Context, w workload) (func() error, error) {
	stop, err := p.delayqPeer.work(ctx, w)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDBFromPool(p.pool)
	ctx, cancel := context.WithCancel(ctx)
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	relay := p.box.Relay(db, p.client, outbox.Logger(logger))
	var group sync.WaitGroup
	var failed error
	group.Go(func() { failed = relay.Run(ctx) })
	return func() error {
		cancel()
		group.Wait()
		return errors.Join(failed, db.Close(), stop())
	}, nil
}

// forget implements peer.
func (p *outboxPeer) forget(ctx context.Context) error {
	if _, err := p.pool.Exec(ctx, "TRUNCATE history, plain, delayq_outbox, delayq_outbox_shards, delayq_outbox_dead"); err != nil {
		return err
	}
	return p.delayqPeer.forget(ctx)
}

// plainPeer makes the callers' transactions without a job. It implements only what these rows call.
type plainPeer struct {
	peer
	pool *pgxpool.Pool
	more func(ctx context.Context, tx pgx.Tx, j job) error
}

// openPlain returns how to connect callers that do more in their transactions.
func openPlain(more func(ctx context.Context, tx pgx.Tx, j job) error) func(context.Context, *store, *pgxpool.Pool) (peer, error) {
	return func(ctx context.Context, _ *store, pool *pgxpool.Pool) (peer, error) {
		return &plainPeer{nil, pool, more}, createWorld(ctx, pool, "")
	}
}

// enqueue implements peer.
func (p *plainPeer) enqueue(ctx context.Context, _ string, j job) error {
	return transact(ctx, p.pool, func(tx pgx.Tx) error { return p.more(ctx, tx, j) })
}

// work implements peer.
func (p *plainPeer) work(context.Context, workload) (func() error, error) {
	return func() error { return nil }, nil
}

// left implements peer. It counts the transactions.
func (p *plainPeer) left(ctx context.Context, _ string) (n int, err error) {
	err = p.pool.QueryRow(ctx, "SELECT COUNT(*) FROM history").Scan(&n)
	return n, err
}

// forget implements peer.
func (p *plainPeer) forget(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, "TRUNCATE history, plain")
	return err
}

// close implements peer.
func (p *plainPeer) close() error { return nil }

// writeLead is the time in which all jobs of a row are written, one statement
// after the other.
const writeLead = 4 * time.Second

// transactions measures how many transactions a second the callers make, each
// with a job that is due in an hour. With served, servers and relays run.
func transactions(served bool) func(context.Context, *bench, peer) (sample, error) {
	return func(ctx context.Context, b *bench, p peer) (_ sample, err error) {
		n := b.sizes.transactions
		one := func(ctx context.Context, i int, payload []byte) error {
			fillPayload(payload, i, time.Time{})
			return p.enqueue(ctx, topic, job{payload: payload, in: delay})
		}
		if err := inParallel(ctx, txCallers, n/4, one); err != nil {
			return nil, err
		}
		if err := b.reset(ctx, p); err != nil {
			return nil, err
		}
		if served {
			stop, err := p.work(ctx, workload{topics: []topicWork{{topic, txCallers, func(delivery) {}}}, plain: true})
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, stop()) }()
		}
		m, err := startMeter(ctx, b.store)
		if err != nil {
			return nil, err
		}
		before, known := ownCPU()
		if err := inParallel(ctx, txCallers, n, one); err != nil {
			return nil, err
		}
		result, err := m.stop(ctx, n, time.Since(m.at))
		if err != nil {
			return nil, err
		}
		if after, _ := ownCPU(); known {
			result[figProcess] = float64((after - before).Microseconds()) / float64(n)
		}
		for deadline := time.Now().Add(patience); ; {
			left, err := p.left(ctx, topic)
			if err != nil || left == n {
				return result, err
			}
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("%d unfinished jobs where %d were stored", left, n)
			}
			if err := sleep(ctx, 20*time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
}

// startAfterCommit measures how long after its commit a job for now starts, one
// job at a time. Commits are at random times within the interval of polls.
func startAfterCommit(ctx context.Context, b *bench, p peer) (sample, error) {
	waits, err := startWaits(ctx, p, b.sizes.commits, func() time.Duration { return rand.N(100 * time.Millisecond) })
	if err != nil {
		return nil, err
	}
	return sample{figCommitP50: milliseconds(percentile(waits, 50)), figCommitP99: milliseconds(percentile(waits, 99))}, nil
}

// outboxRows are the rows with jobs that are written in transactions of
// PostgreSQL.
func outboxRows() []row {
	const concurrency = 64
	nothing := func(context.Context, pgx.Tx, job) error { return nil }
	insert := func(ctx context.Context, tx pgx.Tx, j job) error {
		_, err := tx.Exec(ctx, "INSERT INTO plain (data) VALUES ($1)", append(j.payload, j.payload[:70]...)) // as long as a row
		return err
	}
	alone := func(ctx context.Context, pool *pgxpool.Pool, more func(tx pgx.Tx) error) error {
		return pgx.BeginFunc(ctx, pool, more)
	}
	inTx := func(do func(context.Context, *pgxpool.Pool, func(pgx.Tx) error) error) func(context.Context, *pgxpool.Pool, func(outbox.Execer) error) error {
		return func(ctx context.Context, pool *pgxpool.Pool, more func(outbox.Execer) error) error {
			return do(ctx, pool, func(tx pgx.Tx) error { return more(pgxoutbox.Tx(tx)) })
		}
	}
	inBatch := func(ctx context.Context, pool *pgxpool.Pool, more func(outbox.Execer) error) error {
		return transactBatch(ctx, pool, func(b *pgx.Batch) error { return more(pgxoutbox.Batch(b)) })
	}
	pair := func(measure func(context.Context, *bench, peer) (sample, error)) []side {
		return []side{onPostgres("delayq", openOutbox(true, inTx(alone)), measure), onPostgres("river", openRiver(alone), measure)}
	}
	costs := func(id, title string, served bool) row {
		measure := transactions(served)
		return row{
			id: id, title: title,
			sides: []side{
				onPostgres("delayq", openOutbox(false, inBatch), measure),
				onPostgres("no job", openPlain(nothing), measure),
				onPostgres("delayq, no batch", openOutbox(false, inTx(transact)), measure),
				onPostgres("river", openRiver(transact), measure),
				onPostgres("any INSERT", openPlain(insert), measure),
			},
			targets: []target{timesAtLeast(figRate, 0.9)},
		}
	}
	return []row{
		costs("outbox/insert", "transactions with a job, 16 callers", false),
		costs("outbox/insert/served", "the same while servers run, and a relay sends the jobs to Redis", true),
		{
			id: "outbox/work", title: "work off a backlog of committed jobs, concurrency 64",
			sides:   pair(workBacklog(concurrency, func(s sizes) int { return s.committed })),
			targets: []target{timesAtLeast(figRate, 1)},
		},
		{
			id: "outbox/late", title: "lateness of committed jobs at random times",
			sides:   pair(lateness(false, writeLead)),
			targets: []target{atMost(figP50, 1), atMost(figP99, 5), atMost(figEarly, 0)},
		},
		{
			id: "outbox/now", title: "from the commit to the start of a job for now",
			sides:   append(pair(startAfterCommit), onPostgres("polls", openOutbox(false, inTx(alone)), startAfterCommit)),
			targets: []target{atMost(figCommitP50, 5)},
		},
	}
}
