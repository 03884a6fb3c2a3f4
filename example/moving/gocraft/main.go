// Gocraft is the shop of ../after on gocraft/work.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"sync"

	"github.com/gocraft/work"
	"github.com/gomodule/redigo/redis"
)

// open counts what has yet to happen.
var open sync.WaitGroup

func say(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	open.Done()
}

// A shop remembers the jobs: their IDs and times are needed to delete them.
type shop struct {
	enqueuer *work.Enqueuer
	client   *work.Client
	jobs     map[string]*work.ScheduledJob
}

// place enqueues the end of an order that is not paid in time.
func (s *shop) place(order string) error {
	job, err := s.enqueuer.EnqueueIn("cancel", 2, work.Q{"order": order})
	s.jobs[order] = job
	return err
}

// pay keeps an order.
func (s *shop) pay(order string) error {
	job := s.jobs[order]
	err := s.client.DeleteScheduledJob(job.RunAt, job.ID)
	if errors.Is(err, work.ErrNotDeleted) {
		return fmt.Errorf("order %s is cancelled already", order)
	}
	say("%s is paid", order)
	return err
}

func cancelOrder(job *work.Job) error {
	order := job.ArgString("order")
	if err := job.ArgError(); err != nil {
		return err
	}
	say("%s is cancelled", order)
	return nil
}

func sendWelcome(job *work.Job) error {
	to := job.ArgString("to")
	if err := job.ArgError(); err != nil {
		return err
	}
	if job.Fails == 0 {
		say("the mail to %s failed", to)
		return errors.New("smtp: busy")
	}
	say("welcome, %s", to)
	return nil
}

func run() error {
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.DialURL(os.Getenv("REDIS_URL")) }}
	defer pool.Close()
	workers := work.NewWorkerPool(struct{}{}, 10, "shop", pool)
	workers.JobWithOptions("cancel", work.JobOptions{MaxFails: 6}, cancelOrder)
	workers.JobWithOptions("welcome", work.JobOptions{
		MaxFails: 4, Backoff: func(*work.Job) int64 { return 1 },
	}, sendWelcome)
	workers.Start()
	defer workers.Stop()

	s := &shop{work.NewEnqueuer("shop", pool), work.NewClient("shop", pool), map[string]*work.ScheduledJob{}}
	open.Add(4)
	_, err := s.enqueuer.Enqueue("welcome", work.Q{"to": "anna"})
	err = errors.Join(err, s.place("order-1"), s.place("order-2"), s.pay("order-2"))
	if err == nil {
		open.Wait()
	}
	return err
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
