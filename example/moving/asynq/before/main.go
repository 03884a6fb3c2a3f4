// Before is a shop on asynq: orders that are cancelled unless they are paid, mails with retries, a
// digest that is unique, notes that are sent together, and a report that is made regularly. It does
// each of these once, prints what has happened, and ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// The types of tasks.
const (
	typeCancel  = "order:cancel"
	typeWelcome = "mail:welcome"
	typeDigest  = "mail:digest"
	typeNote    = "note"
	typeNotes   = "note:send"
	typeReport  = "report"
)

// A mail is the payload of welcome mails and digests.
type mail struct {
	To string `json:"to"`
}

// A shop is the program.
type shop struct {
	client    *asynq.Client
	inspector *asynq.Inspector
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
	_, err := s.client.EnqueueContext(ctx, asynq.NewTask(typeCancel, []byte(order)),
		asynq.TaskID(order), asynq.Queue("critical"), asynq.ProcessIn(2*time.Second),
		asynq.MaxRetry(5), asynq.Timeout(10*time.Second))
	return err
}

// pay keeps an order.
func (s *shop) pay(order string) error {
	err := s.inspector.DeleteTask("critical", order)
	if errors.Is(err, asynq.ErrTaskNotFound) {
		return fmt.Errorf("order %s is cancelled already", order)
	}
	return err
}

// welcome enqueues a mail to a new customer.
func (s *shop) welcome(ctx context.Context, to string) error {
	payload, err := json.Marshal(mail{to})
	if err != nil {
		return err
	}
	_, err = s.client.EnqueueContext(ctx, asynq.NewTask(typeWelcome, payload),
		asynq.TaskID("welcome-"+to), asynq.Retention(time.Hour),
		asynq.Deadline(time.Now().Add(24*time.Hour)))
	return err
}

// digest enqueues a digest. It is false if there is one already.
func (s *shop) digest(ctx context.Context, to string) (bool, error) {
	payload, err := json.Marshal(mail{to})
	if err != nil {
		return false, err
	}
	_, err = s.client.EnqueueContext(ctx, asynq.NewTask(typeDigest, payload),
		asynq.Queue("low"), asynq.Unique(time.Hour))
	if errors.Is(err, asynq.ErrDuplicateTask) {
		return false, nil
	}
	return err == nil, err
}

// note enqueues a note, which is sent together with others to the same customer.
func (s *shop) note(ctx context.Context, to, text string) error {
	_, err := s.client.EnqueueContext(ctx, asynq.NewTask(typeNote, []byte(text)), asynq.Group(to))
	return err
}

// cancelOrder handles an order that is not paid.
func (s *shop) cancelOrder(_ context.Context, task *asynq.Task) error {
	s.say("%s is cancelled", task.Payload())
	return nil
}

// sendWelcome handles a welcome mail. The server of anna is busy at first, and the mailbox of bob
// is missing until somebody runs the task again.
func (s *shop) sendWelcome(ctx context.Context, task *asynq.Task) error {
	var m mail
	if err := json.Unmarshal(task.Payload(), &m); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	retried, _ := asynq.GetRetryCount(ctx)
	switch {
	case m.To == "anna" && retried == 0:
		return errors.New("smtp: busy")
	case m.To == "bob" && !mailboxOfBob.exists():
		return fmt.Errorf("smtp: no mailbox: %w", asynq.SkipRetry)
	}
	if _, err := task.ResultWriter().Write([]byte("250 Ok")); err != nil {
		return err
	}
	s.say("welcome, %s", m.To)
	return nil
}

// sendDigest handles a digest.
func (s *shop) sendDigest(_ context.Context, task *asynq.Task) error {
	var m mail
	if err := json.Unmarshal(task.Payload(), &m); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	s.say("digest for %s", m.To)
	return nil
}

// aggregate makes one task of the notes to a customer.
func aggregate(group string, tasks []*asynq.Task) *asynq.Task {
	n := notes{To: group}
	for _, t := range tasks {
		n.Texts = append(n.Texts, string(t.Payload()))
	}
	payload, err := json.Marshal(n)
	if err != nil {
		log.Fatal(err) // strings can be encoded
	}
	return asynq.NewTask(typeNotes, payload)
}

type notes struct {
	To    string
	Texts []string
}

// sendNotes handles the notes to a customer.
func (s *shop) sendNotes(_ context.Context, task *asynq.Task) error {
	var n notes
	if err := json.Unmarshal(task.Payload(), &n); err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	s.say("%d notes for %s", len(n.Texts), n.To)
	return nil
}

// report handles a tick.
func (s *shop) report(context.Context, *asynq.Task) error {
	s.reported.Do(func() { s.say("report") })
	return nil
}

// logged is middleware.
func (s *shop) logged(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := next.ProcessTask(ctx, task)
		if err != nil {
			s.say("failed: %s", task.Type())
		}
		return err
	})
}

// reportError tells people of a run that has failed.
func (s *shop) reportError(_ context.Context, task *asynq.Task, _ error) {
	s.say("reported: %s", task.Type())
}

// serve starts a server and a scheduler.
func (s *shop) serve(opt asynq.RedisConnOpt) (stop func(), err error) {
	server := asynq.NewServer(opt, asynq.Config{
		Concurrency:              10,
		Queues:                   map[string]int{"critical": 6, "default": 3, "low": 1},
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Second },
		ErrorHandler:             asynq.ErrorHandlerFunc(s.reportError),
		DelayedTaskCheckInterval: time.Second,
		GroupAggregator:          asynq.GroupAggregatorFunc(aggregate),
		GroupMaxSize:             3,
		GroupGracePeriod:         2 * time.Second,
		ShutdownTimeout:          8 * time.Second,
		LogLevel:                 asynq.FatalLevel,
	})
	mux := asynq.NewServeMux()
	mux.Use(s.logged)
	mux.HandleFunc(typeCancel, s.cancelOrder)
	mux.HandleFunc(typeWelcome, s.sendWelcome)
	mux.HandleFunc(typeDigest, s.sendDigest)
	mux.HandleFunc(typeNotes, s.sendNotes)
	mux.HandleFunc(typeReport, s.report)
	if err := server.Start(mux); err != nil {
		return nil, err
	}
	scheduler := asynq.NewScheduler(opt, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
	if _, err := scheduler.Register("@every 1s", asynq.NewTask(typeReport, nil), asynq.Queue("low")); err != nil {
		return nil, err
	}
	if err := scheduler.Start(); err != nil {
		return nil, err
	}
	return func() { scheduler.Shutdown(); server.Shutdown() }, nil
}

// operate does what operators do: it looks for the mail that was given up, and runs it again.
func (s *shop) operate() error {
	for {
		archived, err := s.inspector.ListArchivedTasks("default", asynq.PageSize(10))
		if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
			return err
		}
		for _, t := range archived {
			s.say("given up: %s", t.ID)
			mailboxOfBob.create()
			return s.inspector.RunTask("default", t.ID)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func run(ctx context.Context) error {
	opt, err := asynq.ParseRedisURI(os.Getenv("REDIS_URL"))
	if err != nil {
		return err
	}
	s := &shop{client: asynq.NewClient(opt), inspector: asynq.NewInspector(opt)}
	defer s.client.Close()
	defer s.inspector.Close()
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
	if err := errors.Join(s.inspector.PauseQueue("low"), s.inspector.UnpauseQueue("low")); err != nil {
		return err
	}
	err = errors.Join(s.place(ctx, "order-1"), s.place(ctx, "order-2"), s.pay("order-2"),
		s.welcome(ctx, "anna"), s.welcome(ctx, "bob"))
	for _, text := range []string{"one", "two", "three"} {
		err = errors.Join(err, s.note(ctx, "anna", text))
	}
	if err != nil {
		return err
	}
	stop, err := s.serve(opt)
	if err != nil {
		return err
	}
	defer stop()
	if err := s.operate(); err != nil {
		return err
	}
	s.open.Wait()
	return nil
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
