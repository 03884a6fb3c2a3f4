// Reminders lets mailboxes expire after thirty days: reminders on days 23, 28 and 29, the end on
// day 30, and then an undo within 24 hours. Eight weeks pass in milliseconds, on the clock of
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

const day = 24 * time.Hour

var (
	remind = delayq.NewTopic[int]("mailbox:remind") // the day
	expire = delayq.NewTopic[int]("mailbox:expire")
	purge  = delayq.NewTopic[int]("mailbox:purge")
)

// plan enqueues all that is to happen to a mailbox.
func plan(ctx context.Context, client *delayq.Client, mailbox string) {
	for _, d := range []int{23, 28, 29} {
		_, err := remind.Enqueue(ctx, client, fmt.Sprintf("%s/%d", mailbox, d), d, delayq.ProcessIn(time.Duration(d)*day))
		check(err)
	}
	_, err := expire.Enqueue(ctx, client, mailbox, 30, delayq.ProcessIn(30*day))
	check(err)
}

func main() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	check(err)
	check(q.Advance(ctx, 0)) // from here on the clock stands still but for Advance
	begin := q.Now()
	say := func(text ...any) {
		past := q.Now().Sub(begin).Round(time.Second)
		fmt.Printf("day %d %-8v %s\n", past/day, past%day, fmt.Sprint(text...))
	}
	_, err = q.Serve(func(server *delayq.Server) {
		remind.Handle(server, func(_ context.Context, job *delayq.Job, d int) error {
			if d == 28 && job.Attempt == 1 {
				return errors.New("the mail server is down") // the job runs again in two seconds
			}
			say("remind ", job.ID, ", attempt ", job.Attempt)
			return nil
		})
		expire.Handle(server, func(ctx context.Context, job *delayq.Job, d int) error {
			say("expire ", job.ID)
			_, err := purge.Enqueue(ctx, q.Client, job.ID, d+1, delayq.ProcessIn(day), delayq.Replace())
			return err
		})
		purge.Handle(server, func(_ context.Context, job *delayq.Job, _ int) error { say("purge ", job.ID); return nil })
	}, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(err)

	plan(ctx, q.Client, "anna")
	check(q.Advance(ctx, time.Hour))
	plan(ctx, q.Client, "ben")
	check(q.Advance(ctx, 30*day+20*time.Hour))
	_, err = q.Client.Dequeue(ctx, purge.Name(), "anna")
	check(err) // ErrNotFound a few hours later: nothing to undo then
	say("undo anna")
	plan(ctx, q.Client, "anna")
	check(q.Advance(ctx, 24*day))
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
