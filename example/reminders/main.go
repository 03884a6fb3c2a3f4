// Reminders lets mailboxes expire after thirty days: reminders on days 23, 28 and 29, the end on
// day 30, and the deletion on day 31, unless somebody undoes it before. That is one job with five
// due times. Eight weeks pass in milliseconds, on the clock of delayqtest.
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

const (
	day   = 24 * time.Hour
	topic = "mailbox"
)

var stages = []string{"remind", "remind", "remind", "expire", "purge"}

// plan enqueues all that is to happen to a mailbox.
func plan(ctx context.Context, client *delayq.Client, mailbox string, now time.Time) {
	var times []time.Time
	for _, d := range []int{23, 28, 29, 30, 31} {
		times = append(times, now.Add(time.Duration(d)*day))
	}
	_, err := client.Enqueue(ctx, topic, mailbox, nil, delayq.ProcessAtEach(times...))
	check(err)
}

func main() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	check(err)
	check(q.Advance(ctx, 0)) // from here on the clock stands still but for Advance
	begin := q.Now()
	say := func(mailbox string, text ...any) {
		past := q.Now().Sub(begin).Round(time.Second)
		fmt.Printf("day %d %-8v %s: %s\n", past/day, past%day, mailbox, fmt.Sprint(text...))
	}
	_, err = q.Serve(func(server *delayq.Server) {
		check(server.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
			if job.Stage == 2 && job.Attempt == 1 {
				return errors.New("the mail server is down") // the stage runs again in two seconds
			}
			say(job.ID, stages[job.Stage-1], ", attempt ", job.Attempt)
			return nil
		}))
	}, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(err)

	plan(ctx, q.Client, "anna", q.Now())
	check(q.Advance(ctx, time.Hour))
	plan(ctx, q.Client, "ben", q.Now())
	check(q.Advance(ctx, 30*day+20*time.Hour))
	info, err := q.Client.Get(ctx, topic, "anna")
	check(err)
	say("anna", "undo at stage ", info.Stage, " of ", info.Stages)
	_, err = q.Client.Dequeue(ctx, topic, "anna")
	check(err) // ErrNotFound a few hours later: nothing to undo then
	plan(ctx, q.Client, "anna", q.Now())
	check(q.Advance(ctx, 24*day))
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
