// Debounce makes one job of many calls. A document that is edited every two seconds is indexed once
// the edits have stopped for five, and every twenty seconds while they go on. An edit during a run
// is indexed after it. A minute passes in milliseconds, on the clock of delayqtest.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

func main() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	check(err)
	check(q.Advance(ctx, 0)) // from here on the clock stands still but for Advance
	start := time.Time{}

	edit := func(client *delayq.Client, version int) {
		job, err := client.Enqueue(ctx, "index", "document-7", fmt.Appendf(nil, "version %d", version),
			delayq.Debounce(5*time.Second, 20*time.Second))
		check(err)
		if start.IsZero() {
			start = job.EnqueuedAt
		}
	}
	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("index", func(_ context.Context, job *delayq.Job) error {
			fmt.Printf("%3.0f s: index %s\n", job.Due.Sub(start).Seconds(), job.Payload)
			if string(job.Payload) == "version 14" {
				edit(q.Client, 15) // while it runs: its successor
			}
			return nil
		})
	}, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(err)

	for version := 1; version <= 14; version++ {
		edit(q.Client, version)
		check(q.Advance(ctx, 2*time.Second))
	}
	info, err := q.Client.Get(ctx, "index", "document-7")
	check(err)
	fmt.Println("waits with", string(info.Payload)+", because of", info.DueReason)
	check(q.Advance(ctx, time.Minute))
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
