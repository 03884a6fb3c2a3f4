// Api calls an API that allows five requests a second and answers 429 to any other. First the
// handler only holds the topic for the time that the API names. Then the topic has a rate, and the
// API refuses nothing.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// api returns a handler that stands for the other side.
func api() http.HandlerFunc {
	var mu sync.Mutex
	second, calls := int64(0), 0
	return func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now().Unix(); now != second {
			second, calls = now, 0
		}
		if calls++; calls > 5 {
			w.Header().Set("Retry-After", "1s")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}
}

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	remote := httptest.NewServer(api())
	var left, refused atomic.Int64
	all := make(chan bool)
	server := delayq.NewServer(q.Redis, delayq.Logger(slog.New(slog.DiscardHandler)))
	server.HandlerFunc("invoice:send", func(context.Context, *delayq.Job) error {
		resp, err := http.Post(remote.URL, "application/json", nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			refused.Add(1)
			wait, _ := time.ParseDuration(resp.Header.Get("Retry-After"))
			return fmt.Errorf("%s: %w", resp.Status, delayq.Hold(wait)) // the whole topic waits
		}
		if left.Add(-1) == 0 {
			all <- true
		}
		return nil
	}, delayq.Concurrency(4))
	run := make(chan error)
	go func() { run <- server.Run(ctx) }()
	send := func(invoices int, what string) {
		left.Store(int64(invoices))
		refused.Store(0)
		for i := range invoices {
			_, err := q.Client.Enqueue(ctx, "invoice:send", fmt.Sprint(what, i), nil)
			check(err)
		}
		<-all
		fmt.Printf("%s: %d invoices sent, some were refused before: %v\n", what, invoices, refused.Load() > 0)
	}
	send(12, "with holds")
	time.Sleep(time.Second) // the API has forgotten the first part
	// At most five starts in any second on all servers, with a margin for the way to the API.
	rate := delayq.Per(5, 1100*time.Millisecond).Burst(1).Strict()
	check(q.Client.SetLimits(ctx, "invoice:send", delayq.Limits{Running: 4, Rate: rate}))
	send(8, "with a rate")
	stop()
	check(<-run)
	remote.Close()
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
