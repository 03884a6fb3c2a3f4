// Cron runs two schedules: one every two seconds and one by a cron rule. It pauses the first one,
// runs the second one by hand, and prints what has become of them. Any number of servers may run
// this; each slot is still fired once.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

func main() {
	q, err := delayqtest.Open() // an embedded Redis, unless there is a real one
	check(err)
	rdb := redis.UniversalClient(q.Redis)
	if url := os.Getenv("REDIS_URL"); url != "" {
		o, err := redis.ParseURL(url)
		check(err)
		rdb = redis.NewClient(o)
	}
	client := delayq.NewClient(rdb, delayq.Prefix("cron"))
	insp := delayq.NewInspector(rdb, delayq.Prefix("cron"))
	ctx, stop := context.WithCancel(context.Background())

	ran := make(chan string)
	server := delayq.NewServer(rdb, delayq.Prefix("cron"), delayq.Logger(slog.New(slog.DiscardHandler)))
	server.HandlerFunc("chores", func(_ context.Context, job *delayq.Job) error {
		ran <- job.Schedule
		return nil
	})
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()

	check(client.Schedule(ctx, "chores", "poll", delayq.Every(2*time.Second), nil))
	check(client.Schedule(ctx, "chores", "report", delayq.Cron("0 9 * * 1-5", "Europe/Berlin"), nil, delayq.Retry(3), delayq.OverlapQueueOne))
	for range 2 {
		fmt.Println("run", <-ran)
	}
	check(client.PauseSchedule(ctx, "chores", "poll"))
	_, err = client.Trigger(ctx, "chores", "report")
	check(err)
	fmt.Println("run", <-ran, "by hand")
	list, err := insp.Schedules(ctx, "chores")
	check(err)
	for _, info := range list {
		fmt.Printf("%s is %s: %v, %d slots fired\n", info.Name, info.State, info.Spec, info.Fired)
	}
	check(client.ResumeSchedule(ctx, "chores", "poll"))
	fmt.Println("run", <-ran)

	stop()
	check(<-ended)
	for _, name := range []string{"poll", "report"} {
		runs, err := insp.Runs(context.Background(), "chores", name, 10)
		check(err)
		for i, run := range runs {
			fmt.Printf("%s, %d from the end: attempt %d %s\n", name, i, run.Attempt, run.Outcome)
		}
		check(client.Unschedule(context.Background(), "chores", name))
	}
	check(q.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
