// Pools shares one worker among three topics by weight, as an asynq server does with its queues
// critical, default and low. All of them have jobs, so of ten jobs six are critical, three default
// and one is low.
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

const (
	backlog = 60 // jobs of each topic
	watched = 60 // the first jobs that start
)

var weights = []struct {
	topic  string
	weight int
}{{"critical", 6}, {"default", 3}, {"low", 1}}

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	server := delayq.NewServer(q.Redis, delayq.Pool("all", 1), delayq.InPool("all"),
		delayq.Logger(slog.New(slog.DiscardHandler)))
	count, starts := map[string]int{}, 0 // only one handler runs at a time
	for _, w := range weights {
		check(server.HandlerFunc(w.topic, func(_ context.Context, job *delayq.Job) error {
			time.Sleep(5 * time.Millisecond)
			if starts++; starts <= watched {
				count[job.Topic]++
			} else {
				stop()
			}
			return nil
		}, delayq.Weight(w.weight)))
		for i := range backlog {
			_, err := q.Client.Enqueue(ctx, w.topic, fmt.Sprint(i), nil)
			check(err)
		}
	}
	check(server.Run(ctx))

	fmt.Printf("one of each topic at least, of %d: %v\n", watched, count["low"] > 0 && count["default"] > 0)
	for _, w := range weights {
		share := 10 * float64(count[w.topic]) / watched
		fmt.Printf("%s: about %.0f of 10\n", w.topic, share)
	}
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
