// Observe is a queue with metrics for Prometheus, traces of OpenTelemetry and probes. observe.go
// has the lines that watch the queue. At the end it prints the spans.
//
//	go run . -for 10s
//
// It needs no Redis: one is embedded, unless REDIS_URL names a real one, like
// redis://localhost:6379/0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

func main() {
	length := flag.Duration("for", 4*time.Second, "how long it runs")
	address := flag.String("listen", "127.0.0.1:9464", "the address for Prometheus and for probes; port 0 is a free one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	rdb, err := connect()
	if err == nil {
		err = run(ctx, rdb, *address, os.Stdout)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// mails are due that long after the start. The last is cancelled.
var mails = []struct {
	id string
	in time.Duration
}{{"welcome", 300 * time.Millisecond}, {"bad-line", 600 * time.Millisecond}, {"unwanted", time.Hour}}

// run runs a queue until ctx is done and its handlers have returned.
func run(ctx context.Context, rdb *redis.Client, address string, out io.Writer) error {
	prefix := delayq.Prefix("observe")
	hooks, registry, spans := observe(rdb, prefix)
	client := delayq.NewClient(rdb, prefix, hooks, delayq.Defaults(delayq.Retry(5), delayq.Backoff(200*time.Millisecond, time.Second)))
	server := delayq.NewServer(rdb, prefix, hooks, delayq.Logger(slog.New(slog.DiscardHandler)))
	server.HandlerFunc("mail", func(ctx context.Context, job *delayq.Job) error {
		if job.ID == "bad-line" && job.Attempt == 1 {
			return errors.New("the mail server has hung up")
		}
		length, err := time.ParseDuration(string(job.Payload)) // how long it takes to send the mail
		if err != nil {
			return delayq.Permanent(err)
		}
		select {
		case <-time.After(length):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, delayq.Concurrency(2))

	for _, mail := range mails {
		_, err := client.Enqueue(ctx, "mail", mail.id, []byte("20ms"), delayq.ProcessIn(mail.in), delayq.Replace())
		if err != nil {
			return err
		}
	}
	if _, err := client.Dequeue(ctx, "mail", "unwanted"); err != nil {
		return err
	}
	end, err := serve(server, registry, address, out)
	if err != nil {
		return err
	}
	defer end()

	err = server.Run(ctx)
	fmt.Fprint(out, "\n", table(spans.GetSpans()))
	return err
}

// connect returns a client of the Redis that REDIS_URL names, or else of an embedded one. Both live
// as long as the program.
func connect() (*redis.Client, error) {
	if url := os.Getenv("REDIS_URL"); url != "" {
		o, err := redis.ParseURL(url)
		if err != nil {
			return nil, err
		}
		return redis.NewClient(o), nil
	}
	q, err := delayqtest.Open()
	if err != nil {
		return nil, err
	}
	return q.Redis, nil
}
