package delayq_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

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

	info, err := q.Client.ScheduleInfo(ctx, "report", "weekly")
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

	runs, err := q.Client.Runs(ctx, "backup", "nightly", 10)
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

	info, err := q.Client.ScheduleInfo(ctx, "report", "nightly")
	check(err)
	fmt.Println(info.Spec, "by", info.EditedBy, info.Edited)
	check(q.Close())
	// Output: cron 0 5 * * * by ops:anna [Spec]
}
