// Call is a page that shows a report as soon as a worker has made it. It enqueues a job, shows how
// far that has come, and returns its output. Somebody else asks for the same report meanwhile, and
// waits for the same job. A report that fails for good is an error of its callers. A job goes on
// when its caller gives up.
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

// report returns the report of a customer, and shows how far it has come.
func report(client *delayq.Client, customer string, show func(delayq.Progress)) string {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res, err := client.Call(ctx, "report", customer, nil, delayq.Retention(time.Minute), delayq.OnJobProgress(show))
	if errors.Is(err, delayq.ErrDuplicate) { // somebody else has asked
		res, err = client.Wait(ctx, "report", customer, delayq.OnJobProgress(show))
	}
	var dead *delayq.DeadError
	switch {
	case errors.As(err, &dead):
		return "failed: " + dead.Errors[len(dead.Errors)-1].Message
	case err != nil:
		return err.Error()
	}
	return fmt.Sprintf("%s, attempt %d", res.Output, res.Attempt)
}

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	bothSaw := make(chan bool)
	server := delayq.NewServer(q.Redis, delayq.Logger(slog.New(slog.DiscardHandler)))
	server.HandlerFunc("report", func(_ context.Context, job *delayq.Job) error {
		if job.ID == "nobody" {
			return delayq.Permanent(errors.New("no such customer"))
		}
		check(job.Progress(1, 2, "read the orders of "+job.ID))
		<-bothSaw // the report takes as long as it takes
		return job.SetOutput([]byte("2 pages about " + job.ID))
	})
	ended, other := make(chan error), make(chan string)
	go func() { ended <- server.Run(ctx) }()

	first := report(q.Client, "anna", func(p delayq.Progress) {
		fmt.Printf("first: %d of %d: %s\n", p.Done, p.Total, p.Text)
		go func() {
			other <- report(q.Client, "anna", func(p delayq.Progress) {
				fmt.Printf("second: %d of %d: %s\n", p.Done, p.Total, p.Text)
				close(bothSaw)
			})
		}()
	})
	fmt.Println("first:", first)
	fmt.Println("second:", <-other)
	fmt.Println(report(q.Client, "nobody", func(delayq.Progress) {}))

	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = q.Client.Call(short, "report", "ben", nil, delayq.ProcessIn(time.Hour))
	info, getErr := q.Client.Get(ctx, "report", "ben")
	check(getErr)
	fmt.Printf("the caller gave up: %t, the job is %s\n", errors.Is(err, context.DeadlineExceeded), info.State)
	stop()
	check(<-ended)
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
