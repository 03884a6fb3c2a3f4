// Again sends a digest every day, until the trial is over. What it has sent so far travels in the
// payload: each day's job ends and enqueues the next one, in one step, so that no crash loses the
// thread or sends twice from the same place. Five days pass in milliseconds, on the clock of
// delayqtest.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

const day = 24 * time.Hour

// A state is what a day's job hands over to that of the next day.
type state struct {
	Sent int // how many of the news have been sent
	Left int // for how many days
}

var digest = delayq.NewTopic[state]("digest", delayq.JSON)

// news is what there is to read by the end of each day.
var news = [][]string{{"a new shop"}, {"a fair", "rain"}, {}, {"sun"}}

// unread lists what has come up to a day, but for the first few.
func unread(days, sent int) []string { return slices.Concat(news[:days]...)[sent:] }

func main() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	check(err)
	check(q.Advance(ctx, 0)) // from here on the clock stands still but for Advance
	begin := q.Now()

	_, err = q.Serve(func(server *delayq.Server) {
		digest.Handle(server, func(_ context.Context, job *delayq.Job, s state) error {
			today := int(q.Now().Sub(begin) / day)
			items := unread(today, s.Sent)
			fmt.Printf("day %d, attempt %d: ", today, job.Attempt)
			if today == 2 && job.Attempt == 1 {
				fmt.Println("the mail server is down")
				return errors.New("the mail server is down") // the same state again, in two seconds
			}
			fmt.Printf("%s gets [%s]\n", job.ID, strings.Join(items, ", "))
			if s.Left == 1 {
				return nil // the last one
			}
			next := begin.Add(time.Duration(today+1) * day) // not a day from now, which would drift
			return digest.Again(state{s.Sent + len(items), s.Left - 1}, delayq.ProcessAt(next))
		})
	}, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(err)

	_, err = digest.Enqueue(ctx, q.Client, "ann", state{Left: 4}, delayq.ProcessIn(day), delayq.Retry(10))
	check(err)
	check(q.Advance(ctx, 5*day))

	stats, err := q.Inspector.Stats(ctx, digest.Name())
	check(err)
	fmt.Printf("%d jobs were enqueued, %d of them by the one before\n",
		stats[0].Counters[delayq.CounterEnqueued], stats[0].Counters[delayq.CounterAgain])
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
