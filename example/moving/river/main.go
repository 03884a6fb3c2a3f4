// River is the shop of ../after on River, in PostgreSQL.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// cancelArgs are the arguments of the end of an order.
type cancelArgs struct {
	Order string `json:"order"`
}

func (cancelArgs) Kind() string { return "cancel" }

// welcomeArgs are the arguments of welcome mails.
type welcomeArgs struct {
	To string `json:"to"`
}

func (welcomeArgs) Kind() string { return "welcome" }

// open counts what has yet to happen.
var open sync.WaitGroup

func say(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	open.Done()
}

// A shop remembers the IDs of the jobs: River gives them.
type shop struct {
	client *river.Client[pgx.Tx]
	jobs   map[string]int64
}

// place inserts the end of an order that is not paid in time.
func (s *shop) place(ctx context.Context, order string) error {
	inserted, err := s.client.Insert(ctx, cancelArgs{order}, &river.InsertOpts{
		ScheduledAt: time.Now().Add(2 * time.Second), MaxAttempts: 6,
	})
	if err == nil {
		s.jobs[order] = inserted.Job.ID
	}
	return err
}

// pay keeps an order.
func (s *shop) pay(ctx context.Context, order string) error {
	_, err := s.client.JobCancel(ctx, s.jobs[order])
	if errors.Is(err, river.ErrNotFound) {
		return fmt.Errorf("order %s is cancelled already", order)
	}
	say("%s is paid", order)
	return err
}

type cancelWorker struct {
	river.WorkerDefaults[cancelArgs]
}

func (*cancelWorker) Work(_ context.Context, job *river.Job[cancelArgs]) error {
	say("%s is cancelled", job.Args.Order)
	return nil
}

type welcomeWorker struct {
	river.WorkerDefaults[welcomeArgs]
}

func (*welcomeWorker) Work(_ context.Context, job *river.Job[welcomeArgs]) error {
	if job.Attempt == 1 {
		say("the mail to %s failed", job.Args.To)
		return errors.New("smtp: busy")
	}
	say("welcome, %s", job.Args.To)
	return nil
}

func (*welcomeWorker) NextRetry(*river.Job[welcomeArgs]) time.Time {
	return time.Now().Add(time.Second)
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	quiet := slog.New(slog.DiscardHandler)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &cancelWorker{})
	river.AddWorker(workers, &welcomeWorker{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers,
		Logger:  quiet,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}

	s := &shop{client: client, jobs: map[string]int64{}}
	open.Add(4)
	_, err = client.Insert(ctx, welcomeArgs{"anna"}, &river.InsertOpts{MaxAttempts: 4})
	err = errors.Join(err, s.place(ctx, "order-1"), s.place(ctx, "order-2"), s.pay(ctx, "order-2"))
	if err == nil {
		open.Wait()
	}
	return errors.Join(err, client.Stop(ctx))
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
