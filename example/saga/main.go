// Saga books a trip of three parts, and undoes the first ones if a later one is refused. The answer
// to a booking gets lost, and so does that to an undo: both are asked again, with the same key.
// What was saved is not asked again.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

type request func(ctx context.Context, key string) (accepted bool, err error)

// A part of a trip is booked and undone.
type part struct {
	name       string
	book, undo request
}

// trip is the saga.
func trip(ctx context.Context, job *delayq.Job, parts []part) error {
	for i, p := range parts {
		booked, err := delayq.Step(ctx, job, p.name, p.book)
		for n := i; err == nil && !booked && n > 0; n-- {
			_, err = delayq.Step(ctx, job, "undo "+parts[n-1].name, parts[n-1].undo)
		}
		if err != nil || !booked {
			return cmp.Or(err, delayq.Permanent(errors.New(p.name+": refused")))
		}
	}
	return nil
}

// ask is a request to an agency that knows the keys that it was given. The first answers are lost.
func ask(what string, accept bool, lost int) request {
	known := map[string]bool{}
	return func(_ context.Context, key string) (bool, error) {
		fmt.Printf("  %s, known: %t\n", what, known[key])
		known[key] = true
		if lost--; lost >= 0 {
			return false, errors.New("no answer")
		}
		return accept, nil
	}
}

func main() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	check(err)
	check(q.Advance(ctx, 0)) // from here on the clock stands still but for Advance
	parts := map[string][]part{}
	for id, car := range map[string]bool{"anna": true, "ben": false} {
		parts[id] = []part{
			{"flight", ask("book a flight", true, 0), ask("undo the flight", true, 0)},
			{"room", ask("book a room", true, 1), ask("undo the room", true, 1)},
			{"car", ask("book a car", car, 0), nil},
		}
	}
	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("trip", func(ctx context.Context, job *delayq.Job) error {
			fmt.Printf("%s, attempt %d\n", job.ID, job.Attempt)
			return trip(ctx, job, parts[job.ID])
		})
	}, delayq.Logger(slog.New(slog.DiscardHandler)))
	check(err)
	for _, id := range []string{"anna", "ben"} {
		_, err := q.Client.Enqueue(ctx, "trip", id, nil, delayq.Retry(delayq.Unlimited))
		check(err)
		check(q.Advance(ctx, time.Hour))
	}
	info, err := q.Client.Get(ctx, "trip", "ben")
	check(err)
	fmt.Printf("ben is %s: %s, saved %q\n", info.State, info.Errors[len(info.Errors)-1].Message, info.Steps)
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
