// Tutorial is the program of docs/tutorial.md: a shop that cancels orders nobody pays for.
//
//	tutorial serve NAME   run a server until it is interrupted
//	tutorial order ID     place an order, which must be paid within 20 s
//	tutorial pay ID       pay for an order
//
// It connects to the Redis at localhost:6379.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

const (
	cancelTopic = "order:cancel"
	payWithin   = 20 * time.Second
)

// PlaceOrder schedules the cancellation of an order.
func PlaceOrder(ctx context.Context, client *delayq.Client, id string, within time.Duration) error {
	_, err := client.Enqueue(ctx, cancelTopic, id, nil, delayq.ProcessIn(within), delayq.Retry(10))
	return err
}

// PayOrder drops the cancellation. It reports whether the order was still open.
func PayOrder(ctx context.Context, client *delayq.Client, id string) (bool, error) {
	_, err := client.Dequeue(ctx, cancelTopic, id)
	if errors.Is(err, delayq.ErrNotFound) {
		return false, nil // it has been cancelled already
	}
	return err == nil, err
}

// Register sets the handlers of the shop. Cancelling an order takes work seconds.
func Register(server *delayq.Server, name string, work time.Duration) {
	server.HandlerFunc(cancelTopic, func(ctx context.Context, job *delayq.Job) error {
		fmt.Printf("%s: cancelling %s, attempt %d\n", name, job.ID, job.Attempt)
		select {
		case <-time.After(work): // put the stock back, refund, write a mail
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		fmt.Printf("%s: cancelled %s\n", name, job.ID)
		return nil
	})
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: tutorial serve NAME | order ID | pay ID")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	if err := run(ctx, rdb, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, rdb *redis.Client, command, name string) error {
	client := delayq.NewClient(rdb)
	switch command {
	case "serve":
		server := delayq.NewServer(rdb, delayq.Lease(5*time.Second))
		Register(server, name, 5*time.Second)
		return server.Run(ctx)
	case "order":
		return PlaceOrder(ctx, client, name, payWithin)
	case "pay":
		open, err := PayOrder(ctx, client, name)
		if err == nil && !open {
			err = fmt.Errorf("%s is no longer open", name)
		}
		return err
	}
	return fmt.Errorf("unknown command %q", command)
}
