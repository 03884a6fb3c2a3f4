// Unique closes IDs: an order that is paid before its timeout was enqueued, and a digest that is
// sent once a day however often it is asked for. A day passes in milliseconds, on the clock of
// delayqtest.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// place enqueues the timeout of an order. It can come after the payment, from a queue of its own.
func place(ctx context.Context, client *delayq.Client, order string) {
	_, err := client.Enqueue(ctx, "order:cancel", order, nil, delayq.ProcessIn(30*time.Minute))
	say("place", order, err)
}

// pay cancels the timeout, also one that has not been enqueued yet.
func pay(ctx context.Context, client *delayq.Client, order string) {
	state, err := client.Dequeue(ctx, "order:cancel", order, delayq.Tombstone(time.Hour))
	if errors.Is(err, delayq.ErrNotFound) {
		fmt.Println("pay", order+": no timeout, and none will come")
		return
	}
	check(err)
	fmt.Println("pay", order+": its timeout was", state)
}

// digest asks for the digest of a user, at most one a day.
func digest(ctx context.Context, client *delayq.Client, user string) {
	_, err := client.Enqueue(ctx, "digest", user, nil, delayq.UniqueFor(24*time.Hour), delayq.ProcessIn(time.Minute))
	say("digest", user, err)
}

func main() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	check(err)
	check(q.Advance(ctx, 0)) // from here on the clock stands still but for Advance
	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("order:cancel", func(_ context.Context, job *delayq.Job) error { fmt.Println("cancel", job.ID); return nil })
		server.HandlerFunc("digest", func(_ context.Context, job *delayq.Job) error { fmt.Println("send the digest of", job.ID); return nil })
	}, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(err)

	place(ctx, q.Client, "mug")
	pay(ctx, q.Client, "mug")
	pay(ctx, q.Client, "cup") // the payment overtakes the order
	place(ctx, q.Client, "cup")
	place(ctx, q.Client, "jar")
	check(q.Advance(ctx, time.Hour))

	digest(ctx, q.Client, "anna")
	check(q.Advance(ctx, time.Hour))
	digest(ctx, q.Client, "anna")
	check(q.Advance(ctx, 24*time.Hour))
	digest(ctx, q.Client, "anna")
	check(q.Advance(ctx, time.Hour))
	check(q.Close())
}

// say prints the outcome of an enqueue.
func say(what, id string, err error) {
	if errors.Is(err, delayq.ErrDuplicate) {
		fmt.Println(what, id+": refused")
		return
	}
	check(err)
	fmt.Println(what, id)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
