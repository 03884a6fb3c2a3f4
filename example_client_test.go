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

func ExampleClient_List() {
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

	jobs, err := client.List(ctx, "mail", delayq.ListQuery{State: delayq.StateScheduled, Limit: 2})
	if err != nil {
		log.Fatal(err)
	}
	for _, info := range jobs {
		fmt.Println(info.ID)
	}
	// Output:
	// first
	// second
}

func ExampleClient_Inspect() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	_, err := client.EnqueueBatch(ctx, []delayq.NewJob{
		{Topic: "mail"},
		{Topic: "mail", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
		{Topic: "mail", Options: []delayq.JobOption{delayq.ProcessIn(time.Hour)}},
	})
	if err != nil {
		log.Fatal(err)
	}

	topics, err := client.Topics(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, topic := range topics {
		info, err := client.Inspect(ctx, topic)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(topic, "scheduled", info.Scheduled, "ready", info.Ready, "enqueued so far", info.Counters["enqueued"])
	}
	// Output: mail scheduled 2 ready 1 enqueued so far 3
}

func ExampleClient_Pause() {
	rdb, end := openRedis()
	defer end()
	ctx := context.Background()
	client := delayq.NewClient(rdb)

	if err := client.Pause(ctx, "mail", delayq.Pause{By: "on-call", Reason: "the mail relay is down", For: time.Hour}); err != nil {
		log.Fatal(err)
	}
	info, err := client.Inspect(ctx, "mail")
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range info.Pauses {
		fmt.Println(p.By, "-", p.Reason, "- for", p.Until.Sub(p.Since))
	}

	if err := client.Resume(ctx, "mail", "on-call"); err != nil {
		log.Fatal(err)
	}
	info, err = client.Inspect(ctx, "mail")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("paused:", info.Paused)
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

	jobs, err := client.List(ctx, Reminders.Name(), delayq.ListQuery{State: delayq.StateScheduled, Limit: 10, Payload: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, info := range jobs {
		r, err := Reminders.Decode(&info.Job)
		fmt.Println(info.ID, r.Day, err)
	}
	// Output:
	// ann-23 23 <nil>
	// ann-28 28 <nil>
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
