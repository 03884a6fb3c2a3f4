// Table is the shop of ../after with a table of jobs in PostgreSQL and a poller.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const schema = `
CREATE TABLE jobs (
	kind TEXT NOT NULL,
	ref TEXT NOT NULL,
	run_at TIMESTAMPTZ NOT NULL,
	attempt INT NOT NULL DEFAULT 1,
	PRIMARY KEY (kind, ref)
);
CREATE INDEX jobs_run_at ON jobs (run_at);`

// open counts what has yet to happen.
var open sync.WaitGroup

func say(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	open.Done()
}

// place stores the end of an order that is not paid in time.
func place(ctx context.Context, db *pgxpool.Pool, order string) error {
	_, err := db.Exec(ctx, `INSERT INTO jobs (kind, ref, run_at) VALUES ('cancel', $1, now() + interval '2 seconds')`, order)
	return err
}

// pay keeps an order.
func pay(ctx context.Context, db *pgxpool.Pool, order string) error {
	done, err := db.Exec(ctx, `DELETE FROM jobs WHERE kind = 'cancel' AND ref = $1`, order)
	if err == nil && done.RowsAffected() == 0 {
		return fmt.Errorf("order %s is cancelled already", order)
	}
	say("%s is paid", order)
	return err
}

// handle does a job.
func handle(kind, ref string, attempt int) error {
	switch {
	case kind == "cancel":
		say("%s is cancelled", ref)
	case attempt == 1:
		say("the mail to %s failed", ref)
		return errors.New("smtp: busy")
	default:
		say("welcome, %s", ref)
	}
	return nil
}

// poll does one job that is due. It is false if there is none.
func poll(ctx context.Context, db *pgxpool.Pool) (found bool, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var kind, ref string
		var attempt int
		err := tx.QueryRow(ctx, `SELECT kind, ref, attempt FROM jobs WHERE run_at <= now()
			ORDER BY run_at LIMIT 1 FOR UPDATE SKIP LOCKED`).Scan(&kind, &ref, &attempt)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		if handle(kind, ref, attempt) != nil {
			_, err = tx.Exec(ctx, `UPDATE jobs SET run_at = now() + interval '1 second', attempt = attempt + 1
				WHERE kind = $1 AND ref = $2`, kind, ref)
			return err
		}
		_, err = tx.Exec(ctx, `DELETE FROM jobs WHERE kind = $1 AND ref = $2`, kind, ref)
		return err
	})
	return found, err
}

func run(ctx context.Context) error {
	db, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.Exec(ctx, schema); err != nil {
		return err
	}
	polling, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		for polling.Err() == nil {
			found, err := poll(ctx, db)
			if err != nil {
				ended <- err
				return
			}
			if !found {
				time.Sleep(100 * time.Millisecond)
			}
		}
		ended <- nil
	}()

	open.Add(4)
	_, err = db.Exec(ctx, `INSERT INTO jobs (kind, ref, run_at) VALUES ('welcome', 'anna', now())`)
	err = errors.Join(err, place(ctx, db, "order-1"), place(ctx, db, "order-2"), pay(ctx, db, "order-2"))
	if err == nil {
		open.Wait()
	}
	end()
	return errors.Join(err, <-ended)
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
