package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/queuetest"
)

// payWithin is short here. A shop would use half an hour.
const payWithin = 30 * time.Millisecond

// shop cancels two orders unless they are paid in time. The first one is.
func shop(ctx context.Context, rdb *redis.Client, cancelOrder func(ctx context.Context, id string) error) error {
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	server.HandlerFunc("order:cancel", func(ctx context.Context, job *delayq.Job) error {
		return cancelOrder(ctx, job.ID) // after an error it runs again: in 2 s, 4 s, 8 s and so on
	})

	// Two orders arrive. Each is cancelled unless it is paid in time.
	for _, id := range []string{"order-1", "order-2"} {
		if _, err := client.Enqueue(ctx, "order:cancel", id, nil, delayq.ProcessIn(payWithin)); err != nil {
			return err
		}
	}

	// The first one is paid, so it is not cancelled.
	if _, err := client.Dequeue(ctx, "order:cancel", "order-1"); err != nil {
		return err
	}

	// until ctx is cancelled; start any number of servers, in any number of processes
	return server.Run(ctx)
}

func Example() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	err := shop(ctx, rdb, func(_ context.Context, id string) error {
		fmt.Println(id, "is cancelled")
		stop()
		return nil
	})
	fmt.Println("stopped:", err)
	// Output:
	// order-2 is cancelled
	// stopped: <nil>
}

func ExampleClient_Enqueue() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)

	job, err := client.Enqueue(ctx, "order:cancel", "order-42", []byte("unpaid"),
		delayq.ProcessIn(30*time.Minute), // default: due immediately
		delayq.Retry(6))                  // default: unlimited
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.ID, "is due in", job.Due.Sub(job.EnqueuedAt))

	// An ID is unique in its topic until the job finishes.
	_, err = client.Enqueue(ctx, "order:cancel", "order-42", nil)
	fmt.Println(errors.Is(err, delayq.ErrDuplicate))
	// Output:
	// order-42 is due in 30m0s
	// true
}

func ExampleClient_EnqueueBatch() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)

	results, err := client.EnqueueBatch(ctx, []delayq.NewJob{
		{Topic: "mail", ID: "welcome-7", Payload: []byte("Hello!")},
		{Topic: "mail", ID: "tips-7", Options: []delayq.JobOption{delayq.ProcessIn(24 * time.Hour)}},
		{Topic: "mail", ID: "welcome-7", Payload: []byte("Hello again!")},
	})
	for i, r := range results {
		fmt.Println(i, r.Job != nil, errors.Is(r.Err, delayq.ErrDuplicate))
	}
	fmt.Println(err != nil) // some job was not stored
	// Output:
	// 0 true false
	// 1 true false
	// 2 false true
	// true
}

func ExampleErrorsExcept() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)

	// A job that is gone already is cancelled enough. An invalid topic is a failure all the same.
	results, err := client.CancelBatch(ctx, []delayq.JobRef{{Topic: "mail", ID: "gone-1"}, {Topic: "mail", ID: "gone-2"}})
	fmt.Println(delayq.ErrorsExcept(results, err, delayq.ErrNotFound))

	results, err = client.CancelBatch(ctx, []delayq.JobRef{{Topic: "mail", ID: "gone-1"}, {Topic: "mail#", ID: "gone-2"}})
	fmt.Println(errors.Is(err, delayq.ErrNotFound))
	err = delayq.ErrorsExcept(results, err, delayq.ErrNotFound)
	fmt.Println(errors.Is(err, delayq.ErrNotFound), errors.Is(err, delayq.ErrInvalid))
	// Output:
	// <nil>
	// true
	// false true
}

func ExampleClient_CancelBatch() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	if _, err := client.Enqueue(ctx, "mail", "tips-7", nil, delayq.ProcessIn(24*time.Hour)); err != nil {
		log.Fatal(err)
	}

	results, err := client.CancelBatch(ctx, []delayq.JobRef{{Topic: "mail", ID: "tips-7"}, {Topic: "order:cancel", ID: "order-7"}})
	for _, r := range results {
		fmt.Printf("%q %v\n", r.State, errors.Is(r.Err, delayq.ErrNotFound))
	}
	fmt.Println(err != nil) // some job was not cancelled
	// Output:
	// "scheduled" false
	// "" true
	// true
}

func ExampleClient_RescheduleBatch() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	for _, id := range []string{"a", "b"} {
		if _, err := client.Enqueue(ctx, "mail", id, nil, delayq.ProcessIn(time.Hour)); err != nil {
			log.Fatal(err)
		}
	}

	_, err := client.RescheduleBatch(ctx, []delayq.NewDue{
		{Topic: "mail", ID: "a", Due: delayq.ProcessIn(0)},
		{Topic: "mail", ID: "b", Due: delayq.ProcessIn(2 * time.Hour)},
	})
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_ScheduleBatch() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)

	var reports []delayq.NewSchedule
	for _, tenant := range []string{"acme", "globex", "initech"} {
		reports = append(reports, delayq.NewSchedule{
			Topic: "report:weekly", Name: tenant, Spec: delayq.Cron("0 9 * * 1", "Europe/Berlin"),
			Options: []delayq.ScheduleOption{delayq.Jitter(time.Hour), delayq.Retry(3)},
		})
	}
	for range 2 { // at each start of the program: only the first time, something changes
		results, err := client.ScheduleBatch(ctx, reports)
		if err != nil {
			log.Fatal(err) // each result has its own error
		}
		for _, r := range results {
			fmt.Print(r.Changed, " ")
		}
	}
	// Output: true true true false false false
}

func ExampleClient_GetBatch() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	if _, err := client.Enqueue(ctx, "mail", "a", []byte("Hello!")); err != nil {
		log.Fatal(err)
	}

	results, _ := client.GetBatch(ctx, []delayq.JobRef{{Topic: "mail", ID: "a"}, {Topic: "mail", ID: "b"}})
	for _, r := range results {
		if r.Err != nil {
			fmt.Println(errors.Is(r.Err, delayq.ErrNotFound))
			continue
		}
		fmt.Println(r.Job.ID, r.Job.State, string(r.Job.Payload))
	}
	// Output:
	// a ready Hello!
	// true
}

func ExampleClient_Dequeue() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	if _, err := client.Enqueue(ctx, "order:cancel", "order-42", nil, delayq.ProcessIn(30*time.Minute)); err != nil {
		log.Fatal(err)
	}

	state, err := client.Dequeue(ctx, "order:cancel", "order-42")
	fmt.Println(state, err)

	_, err = client.Dequeue(ctx, "order:cancel", "order-42")
	fmt.Println(errors.Is(err, delayq.ErrNotFound))
	// Output:
	// scheduled <nil>
	// true
}

func ExampleClient_Reschedule() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	if _, err := client.Enqueue(ctx, "trial:end", "user-7", nil, delayq.ProcessIn(14*24*time.Hour)); err != nil {
		log.Fatal(err)
	}

	err := client.Reschedule(ctx, "trial:end", "user-7", delayq.ProcessAt(time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)))
	if err != nil {
		log.Fatal(err)
	}
	info, err := client.Get(ctx, "trial:end", "user-7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Due.UTC(), info.DueReason)
	// Output: 2050-01-01 00:00:00 +0000 UTC reschedule
}

func ExampleClient_Get() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	if _, err := client.Enqueue(ctx, "mail", "welcome-7", []byte("Hello!"), delayq.Header("lang", "en")); err != nil {
		log.Fatal(err)
	}

	info, err := client.Get(ctx, "mail", "welcome-7")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, attempt %d, %d bytes %q, lang %s\n", info.State, info.Attempt, info.PayloadSize, info.Payload, info.Headers["lang"])
	// Output: ready, attempt 1, 6 bytes "Hello!", lang en
}

func ExampleInspector_Jobs() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	for i, id := range []string{"third", "first", "second"} {
		in := []time.Duration{3 * time.Hour, 1 * time.Hour, 2 * time.Hour}[i]
		if _, err := client.Enqueue(ctx, "mail", id, nil, delayq.ProcessIn(in)); err != nil {
			log.Fatal(err)
		}
	}

	inspector := delayq.NewInspector(rdb)
	q := delayq.Query{Topic: "mail", State: delayq.StateScheduled, Limit: 2}
	for {
		page, err := inspector.Jobs(ctx, q)
		if err != nil {
			log.Fatal(err)
		}
		for _, info := range page.Jobs {
			fmt.Println(info.ID)
		}
		if page.Next == "" {
			break
		}
		fmt.Println("— next page —")
		q.Cursor = page.Next
	}
	// Output:
	// first
	// second
	// — next page —
	// third
}

// The third page of a list, however long it is.
func ExampleInspector_Jobs_number() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	for n := range 8 {
		if _, err := client.Enqueue(ctx, "mail", fmt.Sprint("mail-", n), nil); err != nil {
			log.Fatal(err)
		}
	}

	const rows, number = 3, 3
	page, err := delayq.NewInspector(rdb).Jobs(ctx, delayq.Query{
		Topic: "mail", State: delayq.StateReady, Limit: rows, Offset: (number - 1) * rows,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, info := range page.Jobs {
		fmt.Println(info.ID)
	}
	fmt.Println("page", number, "of", (page.Total+rows-1)/rows)
	// Output:
	// mail-6
	// mail-7
	// page 3 of 3
}

func ExampleInspector_All() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	for id, tenant := range map[string]string{"a-1": "acme", "b-1": "other"} {
		if _, err := client.Enqueue(ctx, "mail", id, nil, delayq.Header("tenant", tenant)); err != nil {
			log.Fatal(err)
		}
	}

	q := delayq.Query{Topic: "mail", State: delayq.StateReady, Headers: map[string]string{"tenant": "acme"}}
	for info, err := range delayq.NewInspector(rdb).All(ctx, q) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(info.ID)
	}
	// Output: a-1
}

func ExampleInspector_Failures() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()

	failures, err := delayq.NewInspector(rdb).Failures(ctx, "mail", delayq.StateDead, 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, group := range failures.Groups {
		fmt.Println(group.Count, group.Sample, group.IDs)
	}
	fmt.Printf("%d of %d dead jobs\n", failures.Examined, failures.Total)
	// Output: 0 of 0 dead jobs
}

func ExampleInspector_Stats() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	insp := delayq.NewInspector(rdb)
	_, err := client.EnqueueBatch(ctx, []delayq.NewJob{
		{Topic: "mail"},
		{Topic: "mail", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
		{Topic: "mail", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
	})
	if err != nil {
		log.Fatal(err)
	}

	topics, err := insp.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range topics {
		fmt.Println(t.Topic, "scheduled", t.Scheduled, "ready", t.Ready, "enqueued so far", t.Counters["enqueued"])
	}
	// Output: mail scheduled 2 ready 1 enqueued so far 3
}

// A topic is divided while it has jobs. They are found as before, and new ones go to the
// partitions.
func ExampleClient_Partition() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	insp := delayq.NewInspector(rdb)
	enqueue := func(id string) error {
		_, err := client.Enqueue(ctx, "mail", id, nil, delayq.ProcessIn(time.Hour))
		return err
	}

	if err := enqueue("before"); err != nil {
		log.Fatal(err)
	}
	if err := client.Partition(ctx, "mail", 12); err != nil {
		log.Fatal(err)
	}
	if err := enqueue("after"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("twice:", errors.Is(enqueue("before"), delayq.ErrDuplicate))

	topics, err := insp.Stats(ctx, "mail")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(topics[0].Scheduled, "jobs scheduled,", topics[0].Partitions.Count, "partitions")
	for _, c := range topics[0].Partitions.Closing {
		fmt.Println(c.Jobs, "left of generation", c.Generation)
	}
	for _, id := range []string{"before", "after"} {
		state, err := client.Dequeue(ctx, "mail", id)
		fmt.Println(id, "was", state, err)
	}
	// Output:
	// twice: true
	// 2 jobs scheduled, 12 partitions
	// 1 left of generation 0
	// before was scheduled <nil>
	// after was scheduled <nil>
}

func ExampleClient_Pause() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	insp := delayq.NewInspector(rdb)

	if err := client.Pause(ctx, "mail", delayq.Pause{By: "on-call", Reason: "the mail relay is down", For: time.Hour}); err != nil {
		log.Fatal(err)
	}
	mail, err := insp.Stats(ctx, "mail")
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range mail[0].Pauses {
		fmt.Println(p.By, "-", p.Reason, "- for", p.Until.Sub(p.Since))
	}

	if err := client.Resume(ctx, "mail", "on-call"); err != nil {
		log.Fatal(err)
	}
	mail, err = insp.Stats(ctx, "mail")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("paused:", mail[0].Paused)
	// Output:
	// on-call - the mail relay is down - for 1h0m0s
	// paused: false
}

func ExampleClient_Revive() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb, delayq.Hooks(onBuried(func(event delayq.RunEvent) {
		fmt.Println("buried after attempt", event.Attempt)
		if err := client.Revive(ctx, event.Topic, event.ID); err != nil {
			// An operator would fix the cause first.
			log.Fatal(err)
		}
	})))
	server.HandlerFunc("refund", func(_ context.Context, job *delayq.Job) error {
		if job.Attempt == 1 {
			return errors.New("bank is closed")
		}
		fmt.Println("done at attempt", job.Attempt)
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "refund", "order-42", nil, delayq.Retry(0)); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// buried after attempt 1
	// done at attempt 2
}

// onBuried is a hook that is a function.
type onBuried func(event delayq.RunEvent)

func (f onBuried) Buried(event delayq.RunEvent) { f(event) }

// A Job can be copied, for example to change a field for a helper: vet accepts it.
func ExampleJob_copied() {
	job := &delayq.Job{Topic: "mail", ID: "welcome-7", Payload: []byte("Hello")}
	quiet := *job
	quiet.Payload = nil
	log := func(job delayq.Job) { fmt.Println(job.Topic, job.ID, len(job.Payload)) }
	log(quiet)

	info := &delayq.JobInfo{Job: quiet, State: delayq.StateDead}
	kept := *info
	log(kept.Job)
	// Output:
	// mail welcome-7 0
	// mail welcome-7 0
}

type Reminder struct {
	User string
	Day  int
}

var Reminders = delayq.NewTopic[Reminder]("reminder")

func ExampleNewTopic() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	Reminders.Handle(server, func(_ context.Context, job *delayq.Job, r Reminder) error {
		fmt.Printf("%s: %+v\n", job.ID, r)
		stop()
		return nil
	})

	_, err := Reminders.Enqueue(ctx, client, "ann-23", Reminder{User: "Ann", Day: 23}, delayq.ProcessIn(time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: ann-23: {User:Ann Day:23}
}

func ExampleNewTopic_json() {
	rdb, end := openRedis()
	defer end()
	topic := delayq.NewTopic[Reminder]("reminder", delayq.JSON)
	job, err := topic.Enqueue(context.Background(), delayq.NewClient(rdb), "ann-23", Reminder{User: "Ann", Day: 23})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", job.Payload)
	// Output: {"User":"Ann","Day":23}
}

func ExampleTopic_Job() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)

	var plan []delayq.NewJob
	for _, day := range []int{23, 28, 30} {
		in := time.Duration(day) * 24 * time.Hour
		job, err := Reminders.Job(fmt.Sprintf("ann-%d", day), Reminder{User: "Ann", Day: day}, delayq.ProcessIn(in))
		if err != nil {
			log.Fatal(err)
		}
		plan = append(plan, job)
	}
	if _, err := client.EnqueueBatch(ctx, plan); err != nil {
		log.Fatal(err)
	}

	results, err := client.GetBatch(ctx, []delayq.JobRef{
		{Topic: Reminders.Name(), ID: "ann-23"}, {Topic: Reminders.Name(), ID: "ann-30"},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, result := range results {
		r, err := Reminders.Decode(&result.Job.Job)
		fmt.Println(result.Job.ID, r.Day, err)
	}
	// Output:
	// ann-23 23 <nil>
	// ann-30 30 <nil>
}

// openRedis stands for redis.NewClient(&redis.Options{Addr: "localhost:6379"}): a Redis inside the
// process, so that the examples run anywhere.
func openRedis() (rdb *redis.Client, end func()) {
	r := embedded.New()
	rdb = r.Client()
	return rdb, func() {
		_ = rdb.Close() // it holds nothing to lose
		r.Close()
	}
}

func ExampleProcessAt() {
	rdb, end := openRedis()
	defer end()
	client := delayq.NewClient(rdb)

	noon := time.Date(2050, 1, 1, 12, 0, 0, 0, time.UTC)
	job, err := client.Enqueue(context.Background(), "reminder", "user-7", nil, delayq.ProcessAt(noon))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Due.UTC())
	// Output: 2050-01-01 12:00:00 +0000 UTC
}

func ExampleRetry() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb, delayq.Hooks(onBuried(func(delayq.RunEvent) { stop() })))
	server.HandlerFunc("refund", func(_ context.Context, job *delayq.Job) error {
		return fmt.Errorf("bank says no, %d", job.Attempt)
	})

	_, err := client.Enqueue(ctx, "refund", "order-42", nil,
		delayq.Retry(2),
		// default: 2 s, doubled each time up to 4096 s
		delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}

	info, err := client.Get(context.Background(), "refund", "order-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.State)
	for _, e := range info.Errors {
		fmt.Println(e.Attempt, e.Kind, e.Message)
	}
	// Output:
	// dead
	// 1 error bank says no, 1
	// 2 error bank says no, 2
	// 3 error bank says no, 3
}

func ExamplePermanent() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb, delayq.Hooks(onBuried(func(event delayq.RunEvent) {
		fmt.Println("buried after attempt", event.Attempt, "-", event.Err)
		stop()
	})))
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error {
		return delayq.Permanent(errors.New("no such address"))
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: buried after attempt 1 - no such address
}

func ExampleSnooze() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	answers := []string{"pending", "pending", "settled"} // from the bank
	server.HandlerFunc("refund:poll", func(_ context.Context, job *delayq.Job) error {
		answer := answers[0]
		answers = answers[1:]
		fmt.Println(answer, "at attempt", job.Attempt)
		if answer == "pending" {
			return delayq.Snooze(10 * time.Millisecond)
		}
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "refund:poll", "order-42", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// pending at attempt 1
	// pending at attempt 1
	// settled at attempt 1
}

func ExampleRetention() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("report", func(context.Context, *delayq.Job) error {
		stop()
		return nil
	})
	if _, err := client.Enqueue(ctx, "report", "2050-01", nil, delayq.Retention(24*time.Hour)); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}

	// Without Retention it would be deleted by now.
	info, err := client.Get(context.Background(), "report", "2050-01")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.State, "at attempt", info.Attempt, "- kept a day:", info.KeptUntil.Sub(info.FinishedAt) >= 24*time.Hour)
	// Output: done at attempt 1 - kept a day: true
}

func ExampleJob_SetOutput() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("clean", func(_ context.Context, job *delayq.Job) error {
		defer stop()
		deleted := 3 // rows
		return job.SetOutput(fmt.Appendf(nil, "%d rows deleted", deleted))
	})
	if _, err := client.Enqueue(ctx, "clean", "zombies", nil, delayq.Retention(24*time.Hour)); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}

	info, err := client.Get(context.Background(), "clean", "zombies")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", info.State, info.Output())
	// Output: done: 3 rows deleted
}

func ExampleClient_Call() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second) // it bounds the calls
	defer stop()
	server := delayq.NewServer(rdb)
	server.HandlerFunc("thumbnail", func(_ context.Context, job *delayq.Job) error {
		if len(job.Payload) == 0 {
			return delayq.Permanent(errors.New("no image"))
		}
		return job.SetOutput(fmt.Append(nil, "small ", string(job.Payload)))
	})
	served := make(chan error)
	go func() { served <- server.Run(ctx) }()

	client := delayq.NewClient(rdb) // usually in another program
	result, err := client.Call(ctx, "thumbnail", "", []byte("cat.png"), delayq.Retry(3))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, at attempt %d\n", result.Output, result.Attempt)

	_, err = client.Call(ctx, "thumbnail", "empty", nil)
	var dead *delayq.DeadError
	if errors.As(err, &dead) {
		fmt.Println(dead.ID, "is dead:", dead.Errors[0].Message)
	}
	stop()
	fmt.Println(<-served)
	// Output:
	// small cat.png, at attempt 1
	// empty is dead: no image
	// <nil>
}

func ExampleClient_Wait() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("report", func(_ context.Context, job *delayq.Job) error {
		return job.SetOutput([]byte("12 pages"))
	})
	if _, err := client.Enqueue(ctx, "report", "2050-01", nil, delayq.ProcessIn(50*time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Run(ctx) }()

	// Whoever knows the ID can wait.
	result, err := client.Wait(ctx, "report", "2050-01", delayq.OnJobProgress(func(p delayq.Progress) {
		fmt.Println(p.Done, "of", p.Total, p.Text) // what the handler has said with job.Progress
	}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", result.Output)

	// Without Retention, it is not known any more.
	_, err = client.Wait(ctx, "report", "2050-01")
	fmt.Println(errors.Is(err, delayq.ErrNotFound))
	stop()
	fmt.Println(<-served)
	// Output:
	// 12 pages
	// true
	// <nil>
}

func ExampleCallTyped() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	defer stop()
	type order struct{ Net, Percent int }
	type invoice struct{ Total int }
	orders := delayq.NewTopic[order]("invoice")
	server := delayq.NewServer(rdb)
	orders.Handle(server, func(_ context.Context, job *delayq.Job, o order) error {
		return orders.SetOutput(job, invoice{Total: o.Net + o.Net*o.Percent/100})
	})
	served := make(chan error)
	go func() { served <- server.Run(ctx) }()

	client := delayq.NewClient(rdb)
	bill, err := delayq.CallTyped[invoice](ctx, client, orders, "order-42", order{Net: 200, Percent: 7})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(bill.Total)
	stop()
	fmt.Println(<-served)
	// Output:
	// 214
	// <nil>
}

func ExampleExpireIn() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb, delayq.Concurrency(1), delayq.Hooks(onExpired(func(event delayq.RunEvent) {
		fmt.Println(event.ID, "has expired")
		stop()
	})))
	server.HandlerFunc("push", func(_ context.Context, job *delayq.Job) error {
		fmt.Println(job.ID, "is sent")
		<-time.After(20 * time.Millisecond) // a slow job
		return nil
	})

	for _, id := range []string{"news", "last minute offer"} {
		var opts []delayq.JobOption
		if id != "news" {
			opts = append(opts, delayq.ExpireIn(10*time.Millisecond))
		}
		if _, err := client.Enqueue(ctx, "push", id, nil, opts...); err != nil {
			log.Fatal(err)
		}
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// news is sent
	// last minute offer has expired
}

// onExpired is a hook that is a function.
type onExpired func(event delayq.RunEvent)

func (f onExpired) Expired(event delayq.RunEvent) { f(event) }

func ExampleTimeout() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("scan", func(ctx context.Context, job *delayq.Job) error {
		if job.Attempt == 2 {
			stop()
			return nil
		}
		<-ctx.Done()
		fmt.Println(context.Cause(ctx))
		return ctx.Err()
	})

	_, err := client.Enqueue(ctx, "scan", "upload-9", nil,
		delayq.Timeout(10*time.Millisecond), delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: delayq: job timeout: context deadline exceeded
}

func ExampleReplace() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	for _, text := range []string{"first draft", "second draft"} {
		if _, err := client.Enqueue(ctx, "publish", "post-1", []byte(text), delayq.ProcessIn(time.Hour), delayq.Replace()); err != nil {
			log.Fatal(err)
		}
	}

	info, err := client.Get(ctx, "publish", "post-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", info.Payload)
	// Output: second draft
}

func ExampleUniqueFor() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	for range 2 {
		_, err := client.Enqueue(ctx, "digest", "user-7", nil, delayq.UniqueFor(24*time.Hour))
		switch {
		case errors.Is(err, delayq.ErrDuplicate):
			fmt.Println("there was one within 24 hours")
		case err != nil:
			log.Fatal(err)
		}
	}
	// Output: there was one within 24 hours
}

func ExampleIfUnchanged() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	if _, err := client.Enqueue(ctx, "reminder", "invoice-42", nil, delayq.ProcessIn(time.Hour)); err != nil {
		log.Fatal(err)
	}
	info, err := client.Get(ctx, "reminder", "invoice-42")
	if err != nil {
		log.Fatal(err)
	}

	// Two programs have read the job. The first one moves it, the second one wants to cancel it.
	err = client.Reschedule(ctx, "reminder", "invoice-42", delayq.ProcessIn(2*time.Hour), delayq.IfUnchanged(info))
	fmt.Println(err)
	_, err = client.Dequeue(ctx, "reminder", "invoice-42", delayq.IfUnchanged(info))
	fmt.Println(errors.Is(err, delayq.ErrChanged))
	// Output:
	// <nil>
	// true
}

func ExampleTombstone() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)

	// The order is paid before the job that would cancel it was enqueued.
	_, err := client.Dequeue(ctx, "order:cancel", "order-42", delayq.Tombstone(time.Hour))
	fmt.Println(errors.Is(err, delayq.ErrNotFound))

	_, err = client.Enqueue(ctx, "order:cancel", "order-42", nil, delayq.ProcessIn(30*time.Minute))
	var twin *delayq.DuplicateError
	fmt.Println(errors.As(err, &twin), twin.State)
	// Output:
	// true
	// true tomb
}

func ExampleHeader() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
		fmt.Println(job.Headers["tenant"])
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", nil, delayq.Header("tenant", "acme")); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: acme
}

// It needs a Redis with replicas, so it is compiled but not executed.
func ExampleWaitReplicas() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb, delayq.WaitReplicas(1, 500*time.Millisecond))

	job, err := client.Enqueue(ctx, "refund", "order-42", nil)
	switch {
	case errors.Is(err, delayq.ErrNotReplicated):
		fmt.Println(job.ID, "is stored, but a failover may lose it")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(job.ID, "is on one replica at least")
	}
}

func ExamplePrefix() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	staging := delayq.NewClient(rdb, delayq.Prefix("staging"))
	production := delayq.NewClient(rdb, delayq.Prefix("production"))

	if _, err := staging.Enqueue(ctx, "mail", "welcome-7", nil); err != nil {
		log.Fatal(err)
	}
	_, err := production.Get(ctx, "mail", "welcome-7")
	fmt.Println(errors.Is(err, delayq.ErrNotFound))
	// Output: true
}

func ExampleDefaults() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb, delayq.Defaults(delayq.Retry(25), delayq.Timeout(time.Hour)))

	mail, err := client.Enqueue(ctx, "mail", "welcome-7", nil)
	if err != nil {
		log.Fatal(err)
	}
	// A late bell is useless.
	bell, err := client.Enqueue(ctx, "bell", "seven", nil, delayq.Retry(0))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(mail.Retries, bell.Retries)

	// For jobs of other programs too: a handler knows best how long it may run.
	server := delayq.NewServer(rdb)
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error { return nil },
		delayq.Defaults(delayq.Timeout(time.Minute)))
	// Output: 25 0
}

func ExampleClient_Apply() {
	rdb, end := openRedis()
	defer end()
	ctx := delayq.WithActor(context.Background(), "alice") // for the audit
	client := delayq.NewClient(rdb)
	for _, id := range []string{"welcome-1", "welcome-2", "reminder-1"} {
		if _, err := client.Enqueue(ctx, "mail", id, nil, delayq.ProcessIn(time.Hour)); err != nil {
			log.Fatal(err)
		}
	}

	// All welcomes run within the next ten minutes.
	welcomes := delayq.Query{Topic: "mail", State: delayq.StateScheduled, IDPrefix: "welcome-"}
	would, err := client.Apply(ctx, welcomes, delayq.RunNow(), delayq.DryRun())
	if err != nil {
		log.Fatal(err)
	}
	sum, err := client.Apply(ctx, welcomes, delayq.RunNow(),
		delayq.AtMost(would.Matched), delayq.Spread(10*time.Minute), delayq.Pace(1000))
	if err != nil {
		log.Fatal(err) // sum says what was done, and sum.Next is where to continue
	}
	fmt.Println(sum.Matched, sum.Done, sum.Skipped, sum.Failed)
	// Output: 2 2 0 0
}

func ExampleRetryIn() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("webhook", func(_ context.Context, job *delayq.Job) error {
		busy := errors.New("503 Service Unavailable")
		after := 10 * time.Millisecond // from the header Retry-After of the reply
		fmt.Println("attempt", job.Attempt, "retries left", job.RetriesLeft())
		if job.LastAttempt() {
			stop() // tell the customer: this failure buries the job
		}
		return delayq.RetryIn(after, busy)
	})

	if _, err := client.Enqueue(ctx, "webhook", "order-42", nil, delayq.Retry(2)); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	job, err := client.Get(context.Background(), "webhook", "order-42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.State)
	// Output:
	// attempt 1 retries left 2
	// attempt 2 retries left 1
	// attempt 3 retries left 0
	// dead
}

func TestMain(m *testing.M) { queuetest.Main(m, func() error { return nil }) }

func ExampleServer_Run() {
	rdb, end := openRedis()
	defer end()
	// Cancelling the context stops the server; usually a signal does it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	client := delayq.NewClient(rdb)

	server := delayq.NewServer(rdb, delayq.Concurrency(64), delayq.Drain(10*time.Second))
	server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
		fmt.Printf("%s: %s\n", job.ID, job.Payload)
		stop() // the handler still finishes, and its job is acked
		return nil
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", []byte("Hello!")); err != nil {
		log.Fatal(err)
	}
	fmt.Println("run:", server.Run(ctx))
	// Output:
	// welcome-7: Hello!
	// run: <nil>
}

func ExampleServer_HandlerFunc() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	started, ended := make(chan struct{}), make(chan struct{})
	server := delayq.NewServer(rdb, delayq.Lease(time.Second))
	server.HandlerFunc("video", func(ctx context.Context, _ *delayq.Job) error {
		close(started)
		<-ctx.Done() // a long task must watch its context
		fmt.Println(context.Cause(ctx))
		close(ended)
		return ctx.Err() // ignored: the job no longer exists
	}, delayq.Concurrency(2)) // at most two videos simultaneously

	if _, err := client.Enqueue(ctx, "video", "clip-3", nil); err != nil {
		log.Fatal(err)
	}
	go func() {
		<-started
		state, err := client.Dequeue(ctx, "video", "clip-3")
		fmt.Println("was", state, err)
		<-ended
		stop()
	}()
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// was running <nil>
	// delayq: job cancelled
}

// One handler serves the topics of all tenants, those that come later too.
func ExampleServer_Handle_pattern() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("tenant.*", func(_ context.Context, job *delayq.Job) error {
		fmt.Println(job.ID, "of", job.Topic)
		stop()
		return nil
	}, delayq.Concurrency(2), delayq.MaxTopics(5000)) // two handlers for each tenant

	if _, err := client.Enqueue(ctx, "tenant.42", "invoice-7", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: invoice-7 of tenant.42
}

// Urgent mails go before those of a campaign, and one handler sends both. A mail is cancelled by
// its ID in whichever of the two topics it is.
func ExampleClass() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	for i := range 20 {
		client.Enqueue(ctx, "mail:bulk", fmt.Sprint("campaign-", i), nil, delayq.Key("tenant-1"))
	}
	client.Enqueue(ctx, "mail", "password-7", nil, delayq.Key("tenant-1"))
	cancel := []delayq.JobRef{{Topic: "mail", ID: "campaign-19"}, {Topic: "mail:bulk", ID: "campaign-19"}}
	results, err := client.CancelBatch(ctx, cancel)
	fmt.Println("cancelled:", results[1].State, delayq.ErrorsExcept(results, err, delayq.ErrNotFound))

	sent := map[string]int{}
	server := delayq.NewServer(rdb)
	server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
		if sent[job.Topic]++; sent["mail"]+sent["mail:bulk"] == 20 {
			stop()
		}
		return nil
	}, delayq.Concurrency(1), delayq.Class("mail:bulk"))
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("sent:", sent)
	// Output:
	// cancelled: ready <nil>
	// sent: map[mail:1 mail:bulk:19]
}

// A running server begins to serve a topic, and stops serving it. Other servers are not affected.
func ExampleServer_Remove() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error { return nil })
	stopped := make(chan error)
	go func() { stopped <- server.Run(ctx) }()

	imported := make(chan string)
	check(server.HandlerFunc("import", func(_ context.Context, job *delayq.Job) error {
		imported <- job.ID
		return nil
	}))
	_, err := client.Enqueue(ctx, "import", "file-1", nil)
	check(err)
	fmt.Println("imported", <-imported)
	check(server.Remove(ctx, "import")) // waits for its running handlers

	_, err = client.Enqueue(ctx, "import", "file-2", nil)
	check(err)
	job, err := client.Get(ctx, "import", "file-2")
	check(err)
	fmt.Println(job.ID, "is", job.State)
	stop()
	check(<-stopped)
	// Output:
	// imported file-1
	// file-2 is ready
}

// A crawler reads a site page by page. The job of each page enqueues the next one, under the same
// ID and with another payload.
func ExampleAgain() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.HandlerFunc("crawl", func(_ context.Context, job *delayq.Job) error {
		page := string(job.Payload)
		fmt.Println("read", page, "of", job.ID, "in attempt", job.Attempt)
		if page == "page-3" {
			stop()
			return nil
		}
		next := map[string]string{"page-1": "page-2", "page-2": "page-3"}[page]
		return delayq.Again([]byte(next), delayq.ProcessIn(10*time.Millisecond))
	})

	if _, err := client.Enqueue(ctx, "crawl", "example.org", []byte("page-1")); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// read page-1 of example.org in attempt 1
	// read page-2 of example.org in attempt 1
	// read page-3 of example.org in attempt 1
}

func ExampleServer_Use() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	server.Use(func(next delayq.Handler) delayq.Handler {
		return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
			fmt.Println("before", job.ID)
			err := next.Handle(ctx, job)
			fmt.Println("after", job.ID, err)
			return err
		})
	})
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error {
		fmt.Println("sending")
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// before welcome-7
	// sending
	// after welcome-7 <nil>
}

// metrics is a hook: it implements some of the hook interfaces.
type metrics struct{ end func() }

func (metrics) Enqueued(_ context.Context, event delayq.EnqueueEvent) {
	fmt.Println("enqueued", event.Topic, event.ID, event.PayloadSize, "bytes")
}

func (metrics) Started(event delayq.RunEvent) {
	fmt.Println("started", event.ID, "early:", event.Lateness() < 0)
}

func (metrics) Retried(event delayq.RunEvent) {
	fmt.Println("retried", event.ID, event.Err, "- due later:", event.NextDue.After(event.FinishedAt))
}

func (m metrics) Done(event delayq.RunEvent) {
	fmt.Println("done", event.ID, "attempt", event.Attempt)
	m.end()
}

func ExampleHooks() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	hooks := delayq.Hooks(metrics{end: stop})
	client := delayq.NewClient(rdb, hooks)
	server := delayq.NewServer(rdb, hooks)
	server.HandlerFunc("mail", func(_ context.Context, job *delayq.Job) error {
		if job.Attempt == 1 {
			return errors.New("relay is busy")
		}
		return nil
	})

	_, err := client.Enqueue(ctx, "mail", "welcome-7", []byte("Hello!"), delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// enqueued mail welcome-7 6 bytes
	// started welcome-7 early: false
	// retried welcome-7 relay is busy - due later: true
	// started welcome-7 early: false
	// done welcome-7 attempt 2
}

// tracing adds a header to every job.
type tracing struct{}

func (tracing) Enqueue(_ context.Context, job *delayq.NewJob) {
	job.Options = append(job.Options, delayq.Header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
}

func ExampleEnqueueHook() {
	rdb, end := openRedis()
	defer end()
	client := delayq.NewClient(rdb, delayq.Hooks(tracing{}))

	job, err := client.Enqueue(context.Background(), "mail", "welcome-7", nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(job.Headers["traceparent"])
	// Output: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
}

// timing says how long calls and runs take.
type timing struct{ say func(what string) }

func (t timing) Call(_ context.Context, call delayq.CallEvent) (context.Context, func(delayq.CallResult)) {
	began := time.Now()
	return nil, func(r delayq.CallResult) {
		t.say(fmt.Sprint(call.Name, " ", call.Topic, ", error: ", r.Err, ", took time: ", time.Since(began) > 0))
	}
}

func (t timing) Run(_ context.Context, run delayq.RunEvent) (context.Context, func(delayq.RunEvent)) {
	return nil, func(end delayq.RunEvent) {
		t.say(fmt.Sprint("run ", run.Topic, ", ", end.Outcome, " after 20ms: ", end.FinishedAt.Sub(end.StartedAt) >= 20*time.Millisecond))
	}
}

func ExampleRunHook() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	said := make(chan string, 10)
	hook := timing{func(what string) { said <- what }}
	client := delayq.NewClient(rdb, delayq.Hooks(hook))
	server := delayq.NewServer(rdb, delayq.Hooks(hook), quietly)
	server.HandlerFunc("mail", func(context.Context, *delayq.Job) error {
		time.Sleep(20 * time.Millisecond)
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "mail", "welcome-7", nil); err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-said)
	fmt.Println(<-said)
	// Output:
	// enqueue mail, error: <nil>, took time: true
	// run mail, acked after 20ms: true
}

func ExampleJob_Fence() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)
	var highest int64 // a column beside the row that the job writes
	server.HandlerFunc("invoice", func(_ context.Context, job *delayq.Job) error {
		fence := job.Fence()
		// if not, another worker has the job: do not write
		fmt.Println("newer than all before:", fence > highest)
		highest = fence
		if job.Attempt == 1 {
			return errors.New("once more")
		}
		stop()
		return nil
	})

	_, err := client.Enqueue(ctx, "invoice", "order-42", nil, delayq.Backoff(time.Millisecond, time.Second))
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// newer than all before: true
	// newer than all before: true
}

var quietly = delayq.Logger(slog.New(slog.DiscardHandler))

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A report every Monday at nine by the clocks of Berlin, three times.
func ExampleClient_Schedule() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	berlin, err := time.LoadLocation("Europe/Berlin")
	check(err)
	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("report", func(_ context.Context, job *delayq.Job) error {
			fmt.Println(job.Schedule, job.Slot.In(berlin).Format("15:04 Monday"))
			return nil
		})
	}, quietly)
	check(err)

	ctx := context.Background()
	check(q.Client.Schedule(ctx, "report", "weekly", delayq.Cron("0 9 * * 1", "Europe/Berlin"), nil, delayq.Retry(3), delayq.MaxRuns(3)))
	check(q.Advance(ctx, 30*24*time.Hour)) // a month in a few milliseconds

	info, err := q.Inspector.Schedule(ctx, "report", "weekly")
	check(err)
	fmt.Println(info.Fired, "fired,", info.Failures, "failed,", info.Missed, "missed")
	check(q.Close())
	// Output:
	// weekly 09:00 Monday
	// weekly 09:00 Monday
	// weekly 09:00 Monday
	// 3 fired, 0 failed, 0 missed
}

// No server ran for an hour: the last two slots are caught up.
func ExampleMissedCatchUp() {
	q, err := delayqtest.Open()
	check(err)
	ctx := context.Background()
	check(q.Advance(ctx, 0)) // from here on the clock only moves by Advance
	start := q.Now()
	check(q.Client.Schedule(ctx, "sync", "stock", delayq.Every(5*time.Minute), nil, delayq.StartAt(start.Add(5*time.Minute)), delayq.MissedCatchUp(2)))
	check(q.Advance(ctx, 62*time.Minute)) // no server

	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("sync", func(_ context.Context, job *delayq.Job) error {
			fmt.Println("slot at", job.Slot.Sub(start))
			return nil
		})
	}, quietly)
	check(err)
	check(q.Advance(ctx, 3*time.Minute))
	check(q.Close())
	// Output:
	// slot at 55m0s
	// slot at 1h0m0s
	// slot at 1h5m0s
}

// A manual run, outside the rule of the schedule, and the history.
func ExampleClient_Trigger() {
	q, err := delayqtest.Open()
	check(err)
	_, err = q.Serve(func(server *delayq.Server) {
		server.HandlerFunc("backup", func(context.Context, *delayq.Job) error { return nil })
	}, quietly)
	check(err)
	ctx := context.Background()
	check(q.Client.Schedule(ctx, "backup", "nightly", delayq.Cron("@daily", ""), nil, delayq.OverlapSkip))
	check(q.Client.PauseSchedule(ctx, "backup", "nightly"))
	_, err = q.Client.Trigger(ctx, "backup", "nightly")
	check(err)
	check(q.Advance(ctx, 0))

	runs, err := q.Inspector.Runs(ctx, "backup", "nightly", 10)
	check(err)
	for _, run := range runs {
		fmt.Println("triggered:", run.Triggered, "attempt:", run.Attempt, "outcome:", run.Outcome)
	}
	check(q.Close())
	// Output:
	// triggered: true attempt: 1 outcome: acked
}

// An operator moves a report from three to five in the morning. The next start of the program keeps
// that.
func ExampleClient_EditSchedule() {
	q, err := delayqtest.Open() // an embedded Redis
	check(err)
	ctx := context.Background()
	start := func() {
		check(q.Client.Schedule(ctx, "report", "nightly", delayq.Cron("0 3 * * *", ""), []byte("all"), delayq.Retry(3)))
	}
	start()

	check(q.Client.EditSchedule(ctx, "report", "nightly", func(def *delayq.ScheduleDefinition) error {
		def.EditedBy = "ops:anna"
		def.Spec = delayq.Cron("0 5 * * *", "")
		return nil
	}))
	start()

	info, err := q.Inspector.Schedule(ctx, "report", "nightly")
	check(err)
	fmt.Println(info.Spec, "by", info.EditedBy, info.Edited)
	check(q.Close())
	// Output: cron 0 5 * * * by ops:anna [Spec]
}

// Probes for Kubernetes, Docker or a load balancer.
func ExampleHealthHandler() {
	rdb, end := openRedis()
	defer end()
	server := delayq.NewServer(rdb)
	mux := http.NewServeMux()
	mux.Handle("/internal/", delayq.HealthHandler(server)) // /internal/livez, /internal/readyz, /internal/healthz
	go http.ListenAndServe(":8081", mux)
}

// A watchdog for systemd, with Type=notify and WatchdogSec=30.
func ExampleServer_Health() {
	notify := func(state string) {
		conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
		if err != nil {
			return // this is not systemd
		}
		defer conn.Close()
		_, _ = conn.Write([]byte(state))
	}
	watchdog := func(server *delayq.Server) {
		notify("READY=1")
		for h := server.Health(); h.State != delayq.ServerStopped; h = server.Health() {
			if len(h.Late) == 0 {
				notify("WATCHDOG=1")
			}
			time.Sleep(10 * time.Second)
		}
	}
	rdb, end := openRedis()
	defer end()
	server := delayq.NewServer(rdb)
	go watchdog(server)
}

// The jobs of an account run one after the other, although there are ten workers.
func ExampleLimits_ordered() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	limits := delayq.Limits{Ordered: true, OnDead: delayq.HaltKey}
	if err := client.SetLimits(ctx, "account", limits); err != nil {
		log.Fatal(err)
	}

	server := delayq.NewServer(rdb, delayq.Concurrency(10))
	server.HandlerFunc("account", func(_ context.Context, job *delayq.Job) error {
		if job.ID == "deposit" && job.Attempt == 1 {
			return errors.New("the bank does not answer") // the others wait for the retry
		}
		fmt.Println(job.ID)
		if job.ID == "close" {
			stop()
		}
		return nil
	})
	for _, id := range []string{"open", "deposit", "close"} {
		_, err := client.Enqueue(ctx, "account", id, nil,
			delayq.Key("account-7"), delayq.Backoff(10*time.Millisecond, time.Second))
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// open
	// deposit
	// close
}

// A mail to each customer has everything that happened within a minute, or the first three events.
func ExampleGather() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)

	server := delayq.NewServer(rdb)
	err := server.HandleBatch("event", func(_ context.Context, jobs []*delayq.Job) error {
		fmt.Printf("mail to %s about %d events\n", jobs[0].Key, len(jobs))
		stop()
		return nil
	}, delayq.Gather(delayq.GatherWindow{Size: 3, Wait: time.Minute, ByKey: true}))
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"paid", "packed", "sent"} {
		if _, err := client.Enqueue(ctx, "event", id, nil, delayq.Key("customer-7")); err != nil {
			log.Fatal(err)
		}
	}
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// mail to customer-7 about 3 events
}

func ExampleJob_Then() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	server.HandlerFunc("video:encode", func(_ context.Context, job *delayq.Job) error {
		// The viewers are told if, and only if, this run completes its job.
		if err := job.Then("video:announce", job.ID, job.Payload, delayq.ProcessIn(time.Millisecond)); err != nil {
			return err
		}
		fmt.Println("encoded", job.ID)
		return nil
	})
	server.HandlerFunc("video:announce", func(_ context.Context, job *delayq.Job) error {
		fmt.Println("announced", job.ID)
		stop()
		return nil
	})

	if _, err := client.Enqueue(ctx, "video:encode", "video-7", nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println(server.Run(ctx))
	// Output:
	// encoded video-7
	// announced video-7
	// <nil>
}

// A retry does not charge the card again.
func ExampleStep() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	server.HandlerFunc("order", func(ctx context.Context, job *delayq.Job) error {
		payment, err := delayq.Step(ctx, job, "pay", func(_ context.Context, key string) (string, error) {
			fmt.Println("charge the card, with an idempotency key of", len(key), "digits")
			return "payment-42", nil
		})
		if err != nil {
			return err
		}
		_, err = delayq.Step(ctx, job, "mail", func(context.Context, string) (struct{}, error) {
			if job.Attempt == 1 {
				return struct{}{}, errors.New("the mail server is down")
			}
			fmt.Println("mail the receipt of", payment)
			return struct{}{}, nil
		})
		if err == nil {
			stop()
		}
		return err
	})

	if _, err := client.Enqueue(ctx, "order", "order-7", nil, delayq.Backoff(time.Millisecond, time.Millisecond)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(server.Run(ctx))
	// Output:
	// charge the card, with an idempotency key of 32 digits
	// mail the receipt of payment-42
	// <nil>
}

func ExampleJob_Progress() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	seen := make(chan struct{})
	server.HandlerFunc("import", func(_ context.Context, job *delayq.Job) error {
		if err := job.Progress(40, 100, "reading customers.csv"); err != nil {
			return err
		}
		<-seen
		return nil
	})
	if _, err := client.Enqueue(ctx, "import", "customers", nil); err != nil {
		log.Fatal(err)
	}
	go func() {
		defer stop()
		waiting, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		_, err := client.Wait(waiting, "import", "customers", delayq.OnJobProgress(func(p delayq.Progress) {
			fmt.Printf("%d of %d: %s\n", p.Done, p.Total, p.Text)
			close(seen)
		}))
		if err != nil {
			log.Fatal(err)
		}
	}()
	if err := server.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 40 of 100: reading customers.csv
}

// A thousand images become thumbnails, and then the album is published, once.
func ExampleNewFlow() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	server.HandlerFunc("thumbnail", func(_ context.Context, job *delayq.Job) error {
		return job.SetOutput(append(job.Payload, ".webp"...))
	})
	server.HandlerFunc("album:publish", func(ctx context.Context, job *delayq.Job) error {
		images, err := job.Inputs(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("publish %s with %d images, the last one is %s\n", job.ID, len(images), images[len(images)-1].Output)
		stop()
		return nil
	})

	f := delayq.NewFlow("album:publish", "album-7", nil).Deadline(time.Hour)
	for i := range 1000 {
		f.Add("thumbnail", fmt.Appendf(nil, "image-%d", i), delayq.Retry(3))
	}
	if _, err := client.Start(ctx, f); err != nil {
		log.Fatal(err)
	}
	fmt.Println(server.Run(ctx))
	// Output:
	// publish album-7 with 1000 images, the last one is image-999.webp
	// <nil>
}

// A chain, of which each job reads the output of the one before.
func ExampleFlowStep_After() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	for _, topic := range []string{"fetch", "encode", "publish"} {
		server.HandlerFunc(topic, func(ctx context.Context, job *delayq.Job) error {
			before, err := job.Inputs(ctx)
			if err != nil {
				return err
			}
			text := string(job.Payload)
			if len(before) > 0 {
				text = job.Topic + " " + string(before[len(before)-1].Output)
			}
			fmt.Println(text)
			if job.Topic == "publish" {
				stop()
			}
			return job.SetOutput([]byte(text))
		})
	}

	f := delayq.NewFlow("publish", "video-7", nil).Deadline(time.Hour)
	fetched := f.Add("fetch", []byte("video-7"))
	f.Add("encode", nil).After(fetched)
	if _, err := client.Start(ctx, f); err != nil {
		log.Fatal(err)
	}
	fmt.Println(server.Run(ctx))
	// Output:
	// video-7
	// encode video-7
	// publish encode video-7
	// <nil>
}

// A batch whose jobs become known bit by bit, with a job that runs when all have ended.
func ExampleClient_OpenGroup() {
	rdb, end := openRedis()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	client := delayq.NewClient(rdb)
	server := delayq.NewServer(rdb)

	server.HandlerFunc("import:rows", func(context.Context, *delayq.Job) error { return nil })
	server.HandlerFunc("import:done", func(ctx context.Context, job *delayq.Job) error {
		pages, err := job.Inputs(ctx)
		fmt.Println(len(pages), "pages are imported", err)
		stop()
		return nil
	})

	g, err := client.OpenGroup(ctx, delayq.NewFlow("import:done", "import-9", nil).Deadline(time.Hour))
	if err != nil {
		log.Fatal(err)
	}
	for page := range 3 {
		if err := g.Add(ctx, delayq.NewJob{Topic: "import:rows", ID: fmt.Sprint("import-9/", page)}); err != nil {
			log.Fatal(err)
		}
	}
	if err := g.Close(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(server.Run(ctx))
	// Output:
	// 3 pages are imported <nil>
	// <nil>
}
