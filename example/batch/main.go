// Batch indexes documents in bulk: one request for many jobs. A document that the index refuses is
// a failure of its own job and of no other.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

var documents = delayq.NewTopic[string]("index", delayq.JSON)

// bulk stands for the request to the index. It returns an error for each document.
func bulk(texts []string) []error {
	errs := make([]error, len(texts))
	for i, text := range texts {
		if strings.TrimSpace(text) == "" {
			errs[i] = errors.New("empty document")
		}
	}
	return errs
}

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ctx, stop := context.WithCancel(context.Background())

	var mu sync.Mutex
	var sizes []int // of the batches
	var left sync.WaitGroup
	server := delayq.NewServer(q.Redis, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(documents.HandleBatch(server, func(_ context.Context, jobs []*delayq.Job, texts []string) error {
		mu.Lock()
		sizes = append(sizes, len(jobs))
		mu.Unlock()
		for i, err := range bulk(texts) {
			if err != nil {
				fmt.Printf("%s is refused: %v\n", jobs[i].ID, err)
				check(jobs[i].Permanent(err)) // a retry would not help
			}
		}
		left.Add(-len(jobs))
		return nil // all others are done
	}, delayq.BatchSize(100), delayq.Concurrency(2)))

	var jobs []delayq.NewJob
	for i := range 1000 {
		text := fmt.Sprint("text of document ", i)
		if i == 700 {
			text = " "
		}
		job, err := documents.Job(fmt.Sprint("document-", i), text)
		check(err)
		jobs = append(jobs, job)
	}
	_, err = q.Client.EnqueueBatch(ctx, jobs)
	check(err)

	left.Add(len(jobs))
	run := make(chan error)
	go func() { run <- server.Run(ctx) }()
	left.Wait()
	fmt.Printf("%d requests, of %d to %d documents\n", len(sizes), slices.Min(sizes), slices.Max(sizes))

	left.Add(1)
	_, err = documents.Enqueue(ctx, q.Client, "lone", "it does not wait for others")
	check(err)
	left.Wait()
	fmt.Printf("one more, of %d\n", sizes[len(sizes)-1])
	stop()
	check(<-run)
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
