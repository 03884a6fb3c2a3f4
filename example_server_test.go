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

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
	"github.com/delayq/delayq/internal/queuetest"
)

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
