package delayq_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/delayq/delayq"
)

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
