package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/delayq/delayq"
	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	client := delayq.NewClient(rdb, delayq.Defaults(delayq.Retry(25), delayq.Timeout(time.Hour)))

	for _, order := range []string{"mug", "cup"} { // each is cancelled unless it is paid within 2 s
		_, err := client.Enqueue(ctx, "order:cancel", order, nil, delayq.ProcessIn(2*time.Second))
		if err != nil && !errors.Is(err, delayq.ErrDuplicate) { // a duplicate: already enqueued
			log.Fatal(err)
		}
	}
	if _, err := client.Dequeue(ctx, "order:cancel", "mug"); err != nil { // the mug is paid
		log.Fatal(err)
	}

	server := delayq.NewServer(rdb)
	server.HandlerFunc("order:cancel", func(_ context.Context, job *delayq.Job) error {
		fmt.Println("cancelling order", job.ID)
		stop()     // this program ends here; a real server runs until Ctrl-C
		return nil // after an error the job runs again: in 2 s, 4 s, 8 s and so on
	})
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
