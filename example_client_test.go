package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
)

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
