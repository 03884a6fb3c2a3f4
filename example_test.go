package delayq_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// payWithin is short here. A shop would use half an hour.
const payWithin = 30 * time.Millisecond

// shop cancels two orders unless they are paid in time. The first one is.
func shop(ctx context.Context, rdb *redis.Client, cancelOrder func(ctx context.Context, id string) error) error {
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	server.HandlerFunc("order:cancel", func(ctx context.Context, job *delayq.Job) error {
		return cancelOrder(ctx, job.ID) // after an error it runs again: in 2 s, 4 s, 8 s and so on
	})

	// Two orders arrive. Each is cancelled unless it is paid in time.
	for _, id := range []string{"order-1", "order-2"} {
		if _, err := client.Enqueue(ctx, "order:cancel", id, nil, delayq.ProcessIn(payWithin)); err != nil {
			return err
		}
	}

	// The first one is paid, so it is not cancelled.
	if _, err := client.Dequeue(ctx, "order:cancel", "order-1"); err != nil {
		return err
	}

	// until ctx is cancelled; start any number of servers, in any number of processes
	return server.Run(ctx)
}

func Example() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	err := shop(ctx, rdb, func(_ context.Context, id string) error {
		fmt.Println(id, "is cancelled")
		stop()
		return nil
	})
	fmt.Println("stopped:", err)
	// Output:
	// order-2 is cancelled
	// stopped: <nil>
}
