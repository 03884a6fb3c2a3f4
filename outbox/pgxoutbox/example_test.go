package pgxoutbox_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/outbox"
	"github.com/delayq/delayq/outbox/pgxoutbox"
)

// An order and the job that cancels it are committed together.
func ExampleTx() {
	var ctx context.Context
	var pool *pgxpool.Pool
	ob, err := outbox.New(outbox.Postgres)
	if err != nil {
		panic(err)
	}

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, "order-42"); err != nil {
			return err
		}
		_, err := ob.Enqueue(ctx, pgxoutbox.Tx(tx), "order:cancel", "order-42", nil, delayq.ProcessIn(30*time.Minute))
		return err
	})
	ob.Nudge()
}

// The row of the job travels together with the statement of the caller, in one round trip.
func ExampleBatch() {
	var ctx context.Context
	var pool *pgxpool.Pool
	ob, err := outbox.New(outbox.Postgres)
	if err != nil {
		panic(err)
	}

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`INSERT INTO orders (id) VALUES ($1)`, "order-42")
		if _, err := ob.Enqueue(ctx, pgxoutbox.Batch(b), "order:cancel", "order-42", nil, delayq.ProcessIn(30*time.Minute)); err != nil {
			return err
		}
		return tx.SendBatch(ctx, b).Close()
	})
	ob.Nudge()
}

// The effect of a handler happens once.
func ExampleTx_inbox() {
	var pool *pgxpool.Pool
	var server *delayq.Server
	in, err := outbox.NewInbox(outbox.Postgres)
	if err != nil {
		panic(err)
	}

	server.HandlerFunc("order:cancel", func(ctx context.Context, job *delayq.Job) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if first, err := in.Once(ctx, pgxoutbox.Tx(tx), job); err != nil || !first {
				return err
			}
			_, err := tx.Exec(ctx, `UPDATE orders SET cancelled = true WHERE id = $1`, job.ID)
			return err
		})
	})
}

// A relay and the migration take a *sql.DB, which uses the connections of the pool.
func ExampleTx_relay() {
	var ctx context.Context
	var pool *pgxpool.Pool
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"})
	ob, err := outbox.New(outbox.Postgres)
	if err != nil {
		panic(err)
	}

	db := stdlib.OpenDBFromPool(pool)
	if err := ob.Migrate(ctx, db); err != nil {
		panic(err)
	}
	err = ob.Relay(db, delayq.NewClient(rdb)).Run(ctx)
}
