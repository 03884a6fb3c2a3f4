// After is a shop on delayq. The programs beside it are the same shop on other queues: an order is
// cancelled unless it is paid in time, and a mail is sent again if that fails. All print the same.
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

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// A mail is the payload of welcome mails.
type mail struct {
	To string `json:"to"`
}

var welcomes = delayq.NewTopic[mail]("welcome", delayq.JSON)

// open counts what has yet to happen.
var open sync.WaitGroup

func say(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	open.Done()
}

// place enqueues the end of an order that is not paid in time.
func place(ctx context.Context, client *delayq.Client, order string) error {
	_, err := client.Enqueue(ctx, "cancel", order, nil, delayq.ProcessIn(2*time.Second), delayq.Retry(5))
	return err
}

// pay keeps an order.
func pay(ctx context.Context, client *delayq.Client, order string) error {
	_, err := client.Dequeue(ctx, "cancel", order)
	if errors.Is(err, delayq.ErrNotFound) {
		return fmt.Errorf("order %s is cancelled already", order)
	}
	say("%s is paid", order)
	return err
}

func cancelOrder(_ context.Context, job *delayq.Job) error {
	say("%s is cancelled", job.ID)
	return nil
}

func sendWelcome(_ context.Context, job *delayq.Job, m mail) error {
	if job.Attempt == 1 {
		say("the mail to %s failed", m.To)
		return errors.New("smtp: busy")
	}
	say("welcome, %s", m.To)
	return nil
}

func run(ctx context.Context) error {
	opt, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(opt)
	defer rdb.Close()
	client := delayq.NewClient(rdb)

	server := delayq.NewServer(rdb, delayq.Concurrency(10), delayq.Logger(slog.New(slog.DiscardHandler)))
	err = errors.Join(
		server.HandlerFunc("cancel", cancelOrder),
		welcomes.Handle(server, sendWelcome, delayq.Defaults(delayq.Retry(3))))
	if err != nil {
		return err
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(running) }()

	open.Add(4)
	_, err = welcomes.Enqueue(ctx, client, "anna", mail{"anna"})
	err = errors.Join(err, place(ctx, client, "order-1"), place(ctx, client, "order-2"), pay(ctx, client, "order-2"))
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
