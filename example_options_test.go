package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/delayq/delayq"
)

func ExampleProcessAt() {
	rdb, end := openRedis()
	defer end()
	client := delayq.NewClient(rdb)

	noon := time.Date(2050, 1, 1, 12, 0, 0, 0, time.UTC)
	job, err := client.Enqueue(context.Background(), "reminder", "user-7", nil, delayq.ProcessAt(noon))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Due.UTC())
	// Output: 2050-01-01 12:00:00 +0000 UTC
}

func ExampleRetry() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb, delayq.Hooks(onBuried(func(delayq.RunEvent) { stop() })))
	server.HandlerFunc("refund", func(_ context.Context, job *delayq.Job) error {
		return fmt.Errorf("bank says no, %d", job.Attempt)
	})

	_, err := client.Enqueue(ctx, "refund", "order-42", nil,
		delayq.Retry(2),
		// default: 2 s, doubled each time up to 4096 s
		delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}

	info, err := client.Get(context.Background(), "refund", "order-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.State)
	for _, e := range info.Errors {
		fmt.Println(e.Attempt, e.Kind, e.Message)
	}
	// Output:
	// dead
	// 1 error bank says no, 1
	// 2 error bank says no, 2
	// 3 error bank says no, 3
}

func ExamplePermanent() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb, delayq.Hooks(onBuried(func(event delayq.RunEvent) {
		fmt.Println("buried after attempt", event.Attempt, "-", event.Err)
		stop()
	})))
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error {
		return delayq.Permanent(errors.New("no such address"))
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: buried after attempt 1 - no such address
}

func ExampleSnooze() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	answers := []string{"pending", "pending", "settled"} // from the bank
	server.HandlerFunc("refund:poll", func(_ context.Context, job *delayq.Job) error {
		answer := answers[0]
		answers = answers[1:]
		fmt.Println(answer, "at attempt", job.Attempt)
		if answer == "pending" {
			return delayq.Snooze(10 * time.Millisecond)
		}
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "refund:poll", "order-42", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// pending at attempt 1
	// pending at attempt 1
	// settled at attempt 1
}

func ExampleRetention() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("report", func(context.Context, *delayq.Job) error {
		stop()
		return nil
	})
	if _, err := client.Enqueue(ctx, "report", "2050-01", nil, delayq.Retention(24*time.Hour)); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}

	// Without Retention it would be deleted by now.
	info, err := client.Get(context.Background(), "report", "2050-01")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.State, "at attempt", info.Attempt, "- kept a day:", info.KeptUntil.Sub(info.FinishedAt) >= 24*time.Hour)
	// Output: done at attempt 1 - kept a day: true
}

func ExampleExpireIn() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb, delayq.Concurrency(1), delayq.Hooks(onExpired(func(event delayq.RunEvent) {
		fmt.Println(event.ID, "has expired")
		stop()
	})))
	server.HandlerFunc("push", func(_ context.Context, job *delayq.Job) error {
		fmt.Println(job.ID, "is sent")
		<-time.After(20 * time.Millisecond) // a slow job
		return nil
	})

	for _, id := range []string{"news", "last minute offer"} {
		var opts []delayq.JobOption
		if id != "news" {
			opts = append(opts, delayq.ExpireIn(10*time.Millisecond))
		}
		if _, err := client.Enqueue(ctx, "push", id, nil, opts...); err != nil {
			log.Fatal(err)
		}
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// news is sent
	// last minute offer has expired
}

// onExpired is a hook that is a function.
type onExpired func(event delayq.RunEvent)

func (f onExpired) Expired(event delayq.RunEvent) { f(event) }

func ExampleTimeout() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("scan", func(ctx context.Context, job *delayq.Job) error {
		if job.Attempt == 2 {
			stop()
			return nil
		}
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return ctx.Err()
	})

	_, err := client.Enqueue(ctx, "scan", "upload-9", nil,
		delayq.Timeout(10*time.Millisecond), delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: delayq: job timeout: context deadline exceeded
}

func ExampleReplace() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	for _, text := range []string{"first draft", "second draft"} {
		if _, err := client.Enqueue(ctx, "publish", "post-1", []byte(text), delayq.ProcessIn(time.Hour), delayq.Replace()); err != nil {
			log.Fatal(err)
		}
	}

	info, err := client.Get(ctx, "publish", "post-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", info.Payload)
	// Output: second draft
}

func ExampleHeader() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
		fmt.Println(job.Headers["tenant"])
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", nil, delayq.Header("tenant", "acme")); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: acme
}

// It needs a Redis with replicas, so it is compiled but not executed.
func ExampleWaitReplicas() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb, delayq.WaitReplicas(1, 500*time.Millisecond))

	job, err := client.Enqueue(ctx, "refund", "order-42", nil)
	switch {
	case errors.Is(err, delayq.ErrNotReplicated):
		fmt.Println(job.ID, "is stored, but a failover may lose it")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(job.ID, "is on one replica at least")
	}
}

func ExamplePrefix() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	staging := delayq.NewClient(rdb, delayq.Prefix("staging"))
	production := delayq.NewClient(rdb, delayq.Prefix("production"))

	if _, err := staging.Enqueue(ctx, "mail", "welcome-7", nil); err != nil {
		log.Fatal(err)
	}
	_, err := production.Get(ctx, "mail", "welcome-7")
	fmt.Println(errors.Is(err, delayq.ErrNotFound))
	// Output: true
}

func ExampleDefaults() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb, delayq.Defaults(delayq.Retry(25), delayq.Timeout(time.Hour)))

	mail, err := client.Enqueue(ctx, "mail", "welcome-7", nil)
	if err != nil {
		log.Fatal(err)
	}
	// A late bell is useless.
	bell, err := client.Enqueue(ctx, "bell", "seven", nil, delayq.Retry(0))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(mail.Retries, bell.Retries)

	// For jobs of other programs too: a handler knows best how long it may run.
	server := delayq.NewServer(rdb)
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error { return nil },
		delayq.Defaults(delayq.Timeout(time.Minute)))
	// Output: 25 0
}

func ExampleRetryIn() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("webhook", func(_ context.Context, job *delayq.Job) error {
		busy := errors.New("503 Service Unavailable")
		after := 10 * time.Millisecond // from the header Retry-After of the reply
		fmt.Println("attempt", job.Attempt, "retries left", job.RetriesLeft())
		if job.LastAttempt() {
			stop() // tell the customer: this failure buries the job
		}
		return delayq.RetryIn(after, busy)
	})

	if _, err := client.Enqueue(ctx, "webhook", "order-42", nil, delayq.Retry(2)); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	job, err := client.Get(context.Background(), "webhook", "order-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.State)
	// Output:
	// attempt 1 retries left 2
	// attempt 2 retries left 1
	// attempt 3 retries left 0
	// dead
}
