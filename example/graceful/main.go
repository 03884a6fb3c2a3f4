// Graceful stops a server with a signal, as a deployment does. A job that ends within the drain
// timeout is finished. One that does not is given back, and the next server goes on with it at
// once.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// newServer makes a server that exports reports page by page. The payload is the number of pages.
func newServer(name string, rdb *redis.Client, begun chan<- string, left *sync.WaitGroup) *delayq.Server {
	server := delayq.NewServer(rdb, delayq.Drain(500*time.Millisecond), delayq.Logger(slog.New(slog.DiscardHandler)))
	server.HandlerFunc("export", func(ctx context.Context, job *delayq.Job) error {
		fmt.Printf("%s server: begin %s, attempt %d\n", name, job.ID, job.Attempt)
		begun <- job.ID
		pages, err := strconv.ParseInt(string(job.Payload), 10, 64)
		for page := int64(0); page < pages && err == nil; {
			select {
			case <-time.After(100 * time.Millisecond): // the work
				// What is done is kept for the next attempt, even if the drain timeout is over.
				page, err = rdb.Incr(context.WithoutCancel(ctx), "exported:"+job.ID).Result()
			case <-ctx.Done(): // the drain timeout is over
				fmt.Printf("%s server: give back %s: %v\n", name, job.ID, context.Cause(ctx))
				return ctx.Err()
			}
		}
		if err == nil {
			fmt.Printf("%s server: end %s\n", name, job.ID)
			left.Done()
		}
		return err
	})
	return server
}

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	_, err = q.Client.Enqueue(context.Background(), "export", "short", []byte("2"))
	check(err)
	_, err = q.Client.Enqueue(context.Background(), "export", "long", []byte("12"), delayq.ProcessIn(50*time.Millisecond))
	check(err)
	var left sync.WaitGroup
	left.Add(2)
	begun := make(chan string, 10)

	// With these two lines and Run a program stops well.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	self, err := os.FindProcess(os.Getpid())
	check(err)
	go func() {
		<-begun
		<-begun // both jobs are running
		fmt.Println("the signal comes")
		check(self.Signal(os.Interrupt)) // as Ctrl-C would
	}()
	check(newServer("first", q.Redis, begun, &left).Run(ctx))
	fmt.Println("first server: stopped")

	ctx, cancel := context.WithCancel(context.Background())
	go func() { left.Wait(); cancel() }()
	check(newServer("second", q.Redis, begun, &left).Run(ctx))
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
