// Tenants shares a topic fairly: the jobs of three small tenants do not wait for the backlog of a
// large one.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"sync"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ctx, stop := context.WithCancel(context.Background())

	enqueue := func(tenant string, n int) {
		jobs := make([]delayq.NewJob, n)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "report", ID: fmt.Sprint(tenant, "-", i), Options: []delayq.JobOption{delayq.Key(tenant)}}
		}
		_, err := q.Client.EnqueueBatch(ctx, jobs)
		check(err)
	}
	enqueue("whale", 2000)
	for _, tenant := range []string{"ant", "bee", "cat"} {
		enqueue(tenant, 5)
	}
	check(q.Client.SetKeyLimits(ctx, "report", "cat", delayq.KeyLimits{Weight: 2}))
	keys, err := q.Inspector.Keys(ctx, "report", "", 10)
	check(err)
	for _, key := range keys {
		fmt.Printf("%-5s has %4d ready jobs, and the weight %d\n", key.Key, key.Waiting, key.Weight)
	}

	var mu sync.Mutex
	var order []string
	var left sync.WaitGroup
	left.Add(2015)
	server := delayq.NewServer(q.Redis, delayq.Concurrency(1), delayq.Logger(slog.New(slog.DiscardHandler)))
	check(server.HandlerFunc("report", func(_ context.Context, job *delayq.Job) error {
		mu.Lock()
		order = append(order, job.Key)
		mu.Unlock()
		left.Done()
		return nil
	}))
	run := make(chan error)
	go func() { run <- server.Run(ctx) }()
	left.Wait()
	stop()
	check(<-run)

	last := map[string]int{}
	for i, key := range order {
		last[key] = i + 1
	}
	small := max(last["ant"], last["bee"], last["cat"])
	fmt.Printf("the small tenants were done within 100 starts: %v\n", small <= 100)
	fmt.Printf("the whale was done at last: %v\n", last["whale"] == len(order) && strings.HasSuffix(order[len(order)-1], "whale"))
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
