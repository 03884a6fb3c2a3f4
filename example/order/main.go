// Order cancels orders that are not paid in time and puts their goods back into stock.
//
// This shop waits for 300 milliseconds. A real one waits for half an hour, and nothing else is
// different.
package main

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

const payWithin = 300 * time.Millisecond // stands for 30 minutes

type shop struct {
	client *delayq.Client
	cups   atomic.Int64 // in stock
	open   sync.Map     // orders that are neither paid nor cancelled: what comes first takes them out
}

func (s *shop) place(ctx context.Context, order string) {
	s.cups.Add(-1)
	s.open.Store(order, true)
	_, err := s.client.Enqueue(ctx, "order:cancel", order, nil, delayq.ProcessIn(payWithin))
	check(err)
	fmt.Println(order, "is placed, cups in stock:", s.cups.Load())
}

func (s *shop) pay(ctx context.Context, order string) {
	if _, open := s.open.LoadAndDelete(order); !open {
		fmt.Println(order, "cannot be paid any more")
		return
	}
	state, err := s.client.Dequeue(ctx, "order:cancel", order)
	check(err)
	fmt.Println(order, "is paid, its job was", state)
}

// cancel is the handler. A job can run twice, after a crash for example: the second run finds
// nothing to do.
func (s *shop) cancel(_ context.Context, job *delayq.Job) error {
	if _, open := s.open.LoadAndDelete(job.ID); open {
		fmt.Println(job.ID, "is cancelled, cups in stock:", s.cups.Add(1))
	}
	return nil
}

func main() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	s := &shop{client: q.Client}
	s.cups.Store(10)
	_, err = q.Serve(func(server *delayq.Server) { server.HandlerFunc("order:cancel", s.cancel) })
	check(err)

	ctx := context.Background()
	s.place(ctx, "order-1")
	s.place(ctx, "order-2")
	s.pay(ctx, "order-2")
	time.Sleep(2 * payWithin)
	s.pay(ctx, "order-1")
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
