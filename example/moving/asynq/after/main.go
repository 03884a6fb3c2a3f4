// After is the shop of ../before on delayq. It does the same, and prints the same.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
)

// A mail is the payload of welcome mails and digests.
type mail struct {
	To string `json:"to"`
}

// The topics. JSON is what the tasks of asynq have as payload; the default is MsgPack.
const (
	topicCancel = "order:cancel"
	topicNote   = "note"
	topicReport = "report"
)

var (
	welcomes = delayq.NewTopic[mail]("mail:welcome", delayq.JSON)
	digests  = delayq.NewTopic[mail]("mail:digest", delayq.JSON)
)

// A shop is the program.
type shop struct {
	client    *delayq.Client
	inspector *delayq.Inspector
	open      sync.WaitGroup // what has yet to happen
	reported  sync.Once
}

// say prints that something has happened.
func (s *shop) say(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	s.open.Done()
}

// place enqueues the end of an order that is not paid in time.
func (s *shop) place(ctx context.Context, order string) error {
	_, err := s.client.Enqueue(ctx, topicCancel, order, nil,
		delayq.ProcessIn(2*time.Second), delayq.Retry(5), delayq.Timeout(10*time.Second))
	return err
}

// pay keeps an order.
func (s *shop) pay(ctx context.Context, order string) error {
	_, err := s.client.Dequeue(ctx, topicCancel, order)
	if errors.Is(err, delayq.ErrNotFound) {
		return fmt.Errorf("order %s is cancelled already", order)
	}
	return err
}

// welcome enqueues a mail to a new customer.
func (s *shop) welcome(ctx context.Context, to string) error {
	_, err := welcomes.Enqueue(ctx, s.client, "welcome-"+to, mail{to},
		delayq.Retention(time.Hour), delayq.ExpireIn(24*time.Hour))
	return err
}

// digest enqueues a digest. It is false if there is one already.
func (s *shop) digest(ctx context.Context, to string) (bool, error) {
	_, err := digests.Enqueue(ctx, s.client, to, mail{to})
	if errors.Is(err, delayq.ErrDuplicate) {
		return false, nil
	}
	return err == nil, err
}

// note enqueues a note, which is sent together with others to the same customer.
func (s *shop) note(ctx context.Context, to, text string) error {
	_, err := s.client.Enqueue(ctx, topicNote, "", []byte(text), delayq.Key(to))
	return err
}

// cancelOrder handles an order that is not paid.
func (s *shop) cancelOrder(_ context.Context, job *delayq.Job) error {
	s.say("%s is cancelled", job.ID)
	return nil
}

// sendWelcome handles a welcome mail. The server of anna is busy at first, and the mailbox of bob
// is missing until somebody runs the job again.
func (s *shop) sendWelcome(_ context.Context, job *delayq.Job, m mail) error {
	switch {
	case m.To == "anna" && job.Attempt == 1:
		return errors.New("smtp: busy")
	case m.To == "bob" && !mailboxOfBob.exists():
		return delayq.Permanent(errors.New("smtp: no mailbox"))
	}
	if err := job.SetOutput([]byte("250 Ok")); err != nil {
		return err
	}
	s.say("welcome, %s", m.To)
	return nil
}

// sendDigest handles a digest.
func (s *shop) sendDigest(_ context.Context, _ *delayq.Job, m mail) error {
	s.say("digest for %s", m.To)
	return nil
}

// sendNotes handles the notes to a customer.
func (s *shop) sendNotes(_ context.Context, jobs []*delayq.Job) error {
	s.say("%d notes for %s", len(jobs), jobs[0].Key)
	return nil
}

// report handles a tick.
func (s *shop) report(context.Context, *delayq.Job) error {
	s.reported.Do(func() { s.say("report") })
	return nil
}

// logged is middleware.
func (s *shop) logged(next delayq.Handler) delayq.Handler {
	return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
		err := next.Handle(ctx, job)
		if err != nil {
			s.say("failed: %s", job.Topic)
		}
		return err
	})
}

// reports is a hook of the server. It tells people of runs that have failed.
type reports struct{ *shop }

func (r reports) Retried(e delayq.RunEvent) { r.say("reported: %s", e.Topic) }
func (r reports) Buried(e delayq.RunEvent)  { r.say("reported: %s", e.Topic) }

// serve starts a server.
func (s *shop) serve(ctx context.Context, rdb redis.UniversalClient) (stop func() error, err error) {
	server := delayq.NewServer(rdb,
		delayq.Pool("shop", 10),
		delayq.Drain(8*time.Second),
		delayq.Hooks(reports{s}),
		delayq.Logger(slog.New(slog.DiscardHandler)))
	server.Use(s.logged)
	err = errors.Join(
		server.HandlerFunc(topicCancel, s.cancelOrder, delayq.InPool("shop"), delayq.Weight(6)),
		welcomes.Handle(server, s.sendWelcome, delayq.InPool("shop"), delayq.Weight(3),
			delayq.Defaults(delayq.Retry(25), delayq.Backoff(time.Second, time.Second))),
		digests.Handle(server, s.sendDigest, delayq.InPool("shop"), delayq.Weight(1)),
		server.HandlerFunc(topicReport, s.report, delayq.InPool("shop"), delayq.Weight(1)),
		server.HandleBatch(topicNote, s.sendNotes,
			delayq.Gather(delayq.GatherWindow{Size: 3, Wait: 2 * time.Second, ByKey: true})),
		s.client.Schedule(ctx, topicReport, "report", delayq.Every(time.Second), nil))
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(running) }()
	return func() error { end(); return <-ended }, nil
}

// operate does what operators do: it looks for the mail that was given up, and runs it again.
func (s *shop) operate(ctx context.Context) error {
	for {
		q := delayq.Query{Topic: welcomes.Name(), State: delayq.StateDead, Limit: 10}
		dead, err := s.inspector.Jobs(ctx, q)
		if err != nil {
			return err
		}
		for _, job := range dead.Jobs {
			s.say("given up: %s", job.ID)
			mailboxOfBob.create()
			return s.client.Revive(ctx, job.Topic, job.ID)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func run(ctx context.Context) error {
	opt, err := redis.ParseURL(os.Getenv("REDIS_URL"))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(opt)
	defer rdb.Close()
	client := delayq.NewClient(rdb, delayq.Defaults(delayq.Retry(25), delayq.Timeout(30*time.Minute)))
	s := &shop{client: client, inspector: delayq.NewInspector(rdb)}
	s.open.Add(12)

	first, err := s.digest(ctx, "anna")
	if err != nil {
		return err
	}
	second, err := s.digest(ctx, "anna")
	if err != nil {
		return err
	}
	s.say("digest stored: %t, %t", first, second)
	pause := delayq.Pause{By: "ops", Reason: "maintenance"}
	err = errors.Join(s.client.Pause(ctx, digests.Name(), pause), s.client.Resume(ctx, digests.Name(), "ops"))
	if err != nil {
		return err
	}
	err = errors.Join(s.place(ctx, "order-1"), s.place(ctx, "order-2"), s.pay(ctx, "order-2"),
		s.welcome(ctx, "anna"), s.welcome(ctx, "bob"))
	for _, text := range []string{"one", "two", "three"} {
		err = errors.Join(err, s.note(ctx, "anna", text))
	}
	if err != nil {
		return err
	}
	stop, err := s.serve(ctx, rdb)
	if err != nil {
		return err
	}
	if err := s.operate(ctx); err != nil {
		return err
	}
	s.open.Wait()
	return stop()
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// mailboxOfBob is on another server, which has no part in this.
var mailboxOfBob mailbox

type mailbox struct {
	mu    sync.Mutex
	there bool
}

func (m *mailbox) exists() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.there }
func (m *mailbox) create()      { m.mu.Lock(); defer m.mu.Unlock(); m.there = true }
