package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/delayq/delayq"
)

func ExampleServer_Run() {
	rdb, end := openRedis()
	defer end()
	// Cancelling the context stops the server; usually a signal does it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client := delayq.NewClient(rdb)

	server := delayq.NewServer(rdb, delayq.Concurrency(64), delayq.Drain(10*time.Second))
	server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
		fmt.Printf("%s: %s\n", job.ID, job.Payload)
		stop() // the handler still finishes, and its job is acked
		return nil
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", []byte("Hello!")); err != nil {
		log.Fatal(err)
	}
	fmt.Println("run:", server.Run(ctx))
	// Output:
	// welcome-7: Hello!
	// run: <nil>
}

func ExampleServer_HandlerFunc() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	started, ended := make(chan struct{}), make(chan struct{})
	server := delayq.NewServer(rdb, delayq.Lease(time.Second))
	server.HandlerFunc("video", func(ctx context.Context, _ *delayq.Job) error {
		close(started)
		<-ctx.Done() // a long task must watch its context
		fmt.Println(context.Cause(ctx))
		close(ended)
		return ctx.Err() // ignored: the job no longer exists
	}, delayq.Concurrency(2)) // at most two videos simultaneously

	if _, err := client.Enqueue(ctx, "video", "clip-3", nil); err != nil {
		log.Fatal(err)
	}
	go func() {
		<-started
		state, err := client.Dequeue(ctx, "video", "clip-3")
		fmt.Println("was", state, err)
		<-ended
		stop()
	}()
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// was running <nil>
	// delayq: job cancelled
}

// A crawler reads a site page by page. The job of each page enqueues the next one, under the same
// ID and with another payload.
func ExampleAgain() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("crawl", func(_ context.Context, job *delayq.Job) error {
		page := string(job.Payload)
		fmt.Println("read", page, "of", job.ID, "in attempt", job.Attempt)
		if page == "page-3" {
			stop()
			return nil
		}
		next := map[string]string{"page-1": "page-2", "page-2": "page-3"}[page]
		return delayq.Again([]byte(next), delayq.ProcessIn(10*time.Millisecond))
	})

	if _, err := client.Enqueue(ctx, "crawl", "example.org", []byte("page-1")); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// read page-1 of example.org in attempt 1
	// read page-2 of example.org in attempt 1
	// read page-3 of example.org in attempt 1
}

func ExampleServer_Use() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.Use(func(next delayq.Handler) delayq.Handler {
		return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
			fmt.Println("before", job.ID)
			err := next.Handle(ctx, job)
			fmt.Println("after", job.ID, err)
			return err
		})
	})
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error {
		fmt.Println("sending")
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// before welcome-7
	// sending
	// after welcome-7 <nil>
}

// metrics is a hook: it implements some of the hook interfaces.
type metrics struct{ end func() }

func (metrics) Enqueued(_ context.Context, event delayq.EnqueueEvent) {
	fmt.Println("enqueued", event.Topic, event.ID, event.PayloadSize, "bytes")
}

func (metrics) Started(event delayq.RunEvent) {
	fmt.Println("started", event.ID, "early:", event.Lateness() < 0)
}

func (metrics) Retried(event delayq.RunEvent) {
	fmt.Println("retried", event.ID, event.Err, "- due later:", event.NextDue.After(event.FinishedAt))
}

func (m metrics) Done(event delayq.RunEvent) {
	fmt.Println("done", event.ID, "attempt", event.Attempt)
	m.end()
}

func ExampleHooks() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	hooks := delayq.Hooks(metrics{end: stop})
	client := delayq.NewClient(rdb, hooks)
	server := delayq.NewServer(rdb, hooks)
	server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
		if job.Attempt == 1 {
			return errors.New("relay is busy")
		}
		return nil
	})

	_, err := client.Enqueue(ctx, "mail", "welcome-7", []byte("Hello!"), delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// enqueued mail welcome-7 6 bytes
	// started welcome-7 early: false
	// retried welcome-7 relay is busy - due later: true
	// started welcome-7 early: false
	// done welcome-7 attempt 2
}

// tracing adds a header to every job.
type tracing struct{}

func (tracing) Enqueue(_ context.Context, job *delayq.NewJob) {
	job.Options = append(job.Options, delayq.Header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
}

func ExampleEnqueueHook() {
	rdb, end := openRedis()
	defer end()
	client := delayq.NewClient(rdb, delayq.Hooks(tracing{}))

	job, err := client.Enqueue(context.Background(), "mail", "welcome-7", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Headers["traceparent"])
	// Output: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
}

func ExampleJob_Fence() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	var highest int64 // a column beside the row that the job writes
	server.HandlerFunc("invoice", func(_ context.Context, job *delayq.Job) error {
		fence := job.Fence()
		// if not, another worker has the job: do not write
		fmt.Println("newer than all before:", fence > highest)
		highest = fence
		if job.Attempt == 1 {
			return errors.New("once more")
		}
		stop()
		return nil
	})

	_, err := client.Enqueue(ctx, "invoice", "order-42", nil, delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// newer than all before: true
	// newer than all before: true
}
