package delayqtest_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

const day = 24 * time.Hour

// A hoster is the program under test: its mailboxes expire after thirty days, and it reminds their
// owners.
type hoster struct {
	client *delayq.Client
	send   func(mail string) error
}

// register sets the handlers of a server. The program calls it for its own server, the test for
// that of Serve.
func (h *hoster) register(server *delayq.Server) {
	server.HandlerFunc("remind", func(_ context.Context, job *delayq.Job) error { return h.send(job.ID) })
	server.HandlerFunc("expire", func(_ context.Context, job *delayq.Job) error { return h.send(job.ID + " is gone") })
}

// plan enqueues all jobs of a mailbox.
func (h *hoster) plan(ctx context.Context, mailbox string) error {
	for _, d := range []time.Duration{23, 28, 29} {
		_, err := h.client.Enqueue(ctx, "remind", fmt.Sprintf("%s/%d", mailbox, d), nil,
			delayq.ProcessIn(d*day), delayq.Backoff(time.Hour, 4*time.Hour))
		if err != nil {
			return err
		}
	}
	_, err := h.client.Enqueue(ctx, "expire", mailbox, nil, delayq.ProcessIn(30*day))
	return err
}

// A plan of thirty days with two retries in it, tested in a few milliseconds.
func Example() {
	t := newT() // in a test: the *testing.T
	defer t.end()

	q := delayqtest.Start(t)
	start, failures := q.Now(), 2
	h := &hoster{client: q.Client, send: func(mail string) error {
		past := q.Now().Sub(start).Truncate(time.Hour) // without the random part of the backoff
		if mail == "anna/28" && failures > 0 {
			failures--
			return errors.New("the mail server is down")
		}
		fmt.Printf("day %d, %v: %s\n", past/day, past%day, mail)
		return nil
	}}
	q.Serve(h.register)
	if err := h.plan(context.Background(), "anna"); err != nil {
		t.Fatalf("%v", err)
	}

	q.AssertScheduled("remind", "anna/23", start.Add(23*day))
	q.AssertScheduled("expire", "anna", start.Add(30*day))
	q.Advance(28 * day)
	fmt.Println("28 days are over, scheduled reminders:", len(q.Scheduled("remind")))
	q.Advance(2 * day)
	q.AssertNone("remind")
	q.AssertNone("expire")
	// Output:
	// day 23, 0s: anna/23
	// 28 days are over, scheduled reminders: 2
	// day 28, 3h0m0s: anna/28
	// day 29, 0s: anna/29
	// day 30, 0s: anna is gone
}

// Programs that are not tests check errors instead.
func ExampleOpen() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("hello", func(_ context.Context, job *delayq.Job) error {
			fmt.Println("hello", job.ID)
			return nil
		})
	})
	if err == nil {
		_, err = q.Client.Enqueue(ctx, "hello", "world", nil, delayq.ProcessIn(time.Hour))
	}
	if err == nil {
		err = q.Advance(ctx, time.Hour)
	}
	fmt.Println(err, q.Close())
	// Output:
	// hello world
	// <nil> <nil>
}

// A ledger is a table of the program that accepts only writes of the newest run of a job.
type ledger struct {
	fences map[string]int64
	sent   []string
}

func (l *ledger) remind(_ context.Context, job *delayq.Job) error {
	if job.Fence() < l.fences[job.ID] {
		return errors.New("stale: the job is another worker's by now")
	}
	l.fences[job.ID] = job.Fence()
	l.sent = append(l.sent, fmt.Sprintf("%s to %s at attempt %d", job.Payload, job.ID, job.Attempt))
	return nil
}

// A handler is a function: a unit test calls it with its own job, without a queue.
func ExampleNewJob() {
	t := newT() // in a test: the *testing.T
	defer t.end()

	l := &ledger{fences: map[string]int64{}}
	stale := delayqtest.NewJob(t, delayq.NewJob{Topic: "remind", ID: "anna", Payload: []byte("hello")})
	next := delayqtest.NextRun(stale) // the lease ran out, and another worker has the job
	fmt.Println(l.remind(context.Background(), next))
	fmt.Println(l.remind(context.Background(), stale))
	fmt.Println(l.sent)
	// Output:
	// <nil>
	// stale: the job is another worker's by now
	// [hello to anna at attempt 2]
}

// A flow runs to its end, with the delays and the retries of its steps, in no time.
func ExampleQueue_RunFlow() {
	ctx := context.Background()
	q, err := delayqtest.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer q.Close()
	_, err = q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("remind", func(context.Context, *delayq.Job) error { return nil })
		s.HandlerFunc("settle", func(_ context.Context, job *delayq.Job) error {
			fmt.Println("settle", job.ID)
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}

	f := delayq.NewFlow("settle", "invoice-3", nil).Deadline(30 * 24 * time.Hour)
	f.Add("remind", nil, delayq.ProcessIn(7*24*time.Hour))
	if _, err := q.Client.Start(ctx, f); err != nil {
		log.Fatal(err)
	}
	began := q.Now()
	if err := q.RunFlow(ctx, "settle", "invoice-3"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("after", q.Now().Sub(began).Round(time.Hour))
	// Output:
	// settle invoice-3
	// after 168h0m0s
}
