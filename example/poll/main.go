// Poll asks a bank about a refund until it is settled. To ask again is no failure, so the handler
// snoozes: that uses up no attempt and leaves no error behind, and it can go on for weeks, across
// restarts and crashes. Each snooze starts the count of failures anew.
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

const pollEvery = 200 * time.Millisecond // stands for an hour

var errDown = errors.New("the bank does not answer")

// answers is what the bank says when it is asked.
var answers = []struct {
	settled bool
	err     error
}{{}, {}, {err: errDown}, {}, {settled: true}}

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	server := delayq.NewServer(q.Redis, delayq.Logger(slog.New(slog.DiscardHandler)))
	server.HandlerFunc("refund:poll", func(_ context.Context, job *delayq.Job) error {
		answer := answers[0]
		answers = answers[1:]
		fmt.Printf("ask about %s, attempt %d: ", job.ID, job.Attempt)
		switch {
		case answer.err != nil:
			fmt.Println(answer.err)
			return answer.err // a failure: it is kept, and the job is retried after its backoff
		case !answer.settled:
			fmt.Println("pending")
			return delayq.Snooze(pollEvery) // no failure
		}
		fmt.Println("settled")
		stop()
		return nil
	})

	_, err = q.Client.Enqueue(ctx, "refund:poll", "refund-7", nil,
		delayq.ProcessIn(pollEvery),
		delayq.Backoff(pollEvery, time.Minute),
		delayq.Retry(10), // failures in a row: a snooze starts the count anew
		delayq.Retention(time.Minute))
	check(err)
	check(server.Run(ctx))

	job, err := q.Client.Get(context.Background(), "refund:poll", "refund-7")
	check(err)
	fmt.Printf("%s is %s after %d attempts\n", job.ID, job.State, job.Attempt)
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
