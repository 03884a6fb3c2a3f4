// Quickstart runs delayed jobs, with a retry, a cancel and a reschedule, and prints when each was
// due and when it started.
//
// It needs no Redis: one is embedded, unless REDIS_URL names a real one, like
// redis://localhost:6379/0.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

func main() {
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	rdb, prefix := connect(), delayq.Prefix("quickstart")
	client := delayq.NewClient(rdb, prefix)

	var begin time.Time
	enqueue := func(id string, opts ...delayq.JobOption) {
		job, err := client.Enqueue(ctx, "demo", id, nil, append(opts, delayq.Replace())...) // a job of an earlier run, maybe
		check(err)
		if begin.IsZero() {
			begin = job.EnqueuedAt
		}
		fmt.Printf("enqueue %s, due in %v\n", id, job.Due.Sub(job.EnqueuedAt))
	}
	enqueue("hello", delayq.ProcessIn(time.Second))
	enqueue("flaky", delayq.ProcessIn(500*time.Millisecond), delayq.Backoff(time.Second, time.Minute))
	enqueue("unwanted", delayq.ProcessIn(1500*time.Millisecond))
	enqueue("patient", delayq.ProcessIn(time.Hour))
	state, err := client.Dequeue(ctx, "demo", "unwanted")
	check(err)
	fmt.Println("cancel unwanted, which was", state)
	check(client.Reschedule(ctx, "demo", "patient", delayq.ProcessIn(2500*time.Millisecond)))
	fmt.Print("reschedule patient, due in 2.5s\n\n   due at  started at  lateness\n")

	left := 3
	server := delayq.NewServer(rdb, prefix, delayq.Logger(slog.New(slog.DiscardHandler))) // the table tells it all
	server.HandlerFunc("demo", func(_ context.Context, job *delayq.Job) error {
		fmt.Printf("%6d ms   %6d ms   %4d ms  %s, attempt %d\n", job.Due.Sub(begin).Milliseconds(),
			job.StartedAt.Sub(begin).Milliseconds(), job.Lateness().Milliseconds(), job.ID, job.Attempt)
		if job.ID == "flaky" && job.Attempt == 1 {
			return errors.New("no answer") // it is retried after the backoff of a second and up to a fifth more
		}
		if left--; left == 0 {
			stop()
		}
		return nil
	}, delayq.Concurrency(1))
	check(server.Run(ctx))
}

// connect gives a client of the Redis that REDIS_URL names, or else of an embedded one. Both live
// as long as the program.
func connect() *redis.Client {
	if url := os.Getenv("REDIS_URL"); url != "" {
		o, err := redis.ParseURL(url)
		check(err)
		return redis.NewClient(o)
	}
	q, err := delayqtest.Open()
	check(err)
	return q.Redis
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
