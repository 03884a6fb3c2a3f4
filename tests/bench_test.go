package tests

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// The benchmarks of the hot paths, on a real redis-server. Redis is part of what they measure, so
// compare them with each other and with those of another commit in the same run, not with a number.
// bench/ compares with other queues.

var payload = make([]byte, 100)

func BenchmarkEnqueue(b *testing.B) {
	client := delayq.NewClient(redistest.Shared(b), delayq.Prefix(redistest.Prefix(b)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Enqueue(b.Context(), "bench", "", payload, delayq.ProcessIn(time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnqueueParallel(b *testing.B) {
	client := delayq.NewClient(redistest.Shared(b), delayq.Prefix(redistest.Prefix(b)))
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := client.Enqueue(b.Context(), "bench", "", payload, delayq.ProcessIn(time.Hour)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkEnqueueBatch(b *testing.B) {
	client := delayq.NewClient(redistest.Shared(b), delayq.Prefix(redistest.Prefix(b)))
	jobs := make([]delayq.NewJob, b.N)
	due := []delayq.JobOption{delayq.ProcessIn(time.Hour)}
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "bench", Payload: payload, Options: due}
	}
	b.ReportAllocs()
	b.ResetTimer()
	if _, err := client.EnqueueBatch(b.Context(), jobs); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkWork is the life of a job from ready to gone, with a handler that does nothing.
func BenchmarkWork(b *testing.B) {
	for _, concurrency := range []int{10, 64, 256} {
		b.Run(strconv.Itoa(concurrency), func(b *testing.B) {
			rdb, prefix := redistest.Shared(b), delayq.Prefix(redistest.Prefix(b))
			jobs := make([]delayq.NewJob, b.N)
			for i := range jobs {
				jobs[i] = delayq.NewJob{Topic: "bench", Payload: payload}
			}
			if _, err := delayq.NewClient(rdb, prefix).EnqueueBatch(b.Context(), jobs); err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			server := delayq.NewServer(rdb, prefix, delayq.Concurrency(concurrency))
			var left atomic.Int64
			left.Store(int64(b.N))
			server.HandlerFunc("bench", func(context.Context, *delayq.Job) error {
				if left.Add(-1) == 0 {
					stop()
				}
				return nil
			})
			b.ReportAllocs()
			b.ResetTimer()
			if err := server.Run(ctx); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkSchedulesDueAtOnce has 10,000 schedules, of which 1,000 are due at the same millisecond,
// again and again: every op is one such slot. It tells how late the jobs are made and started. Run
// it with -benchtime 10x.
func BenchmarkSchedulesDueAtOnce(b *testing.B) {
	for _, servers := range []int{1, 3} {
		b.Run(fmt.Sprint(servers, "servers"), func(b *testing.B) {
			rdb := redistest.Start(b).Client(b)
			const crowd, all, every = 1000, 10_000, 2 * time.Second
			fillSchedules(b, rdb, all-crowd, delayq.Every(1000*time.Hour))
			var mu sync.Mutex
			var fired, started []time.Duration
			slots := map[time.Time]int{}
			full := make(chan struct{}, b.N+10)
			for range servers {
				serveBench(b, rdb, func(_ context.Context, job *delayq.Job) error {
					mu.Lock()
					defer mu.Unlock()
					fired, started = append(fired, job.EnqueuedAt.Sub(job.Slot)), append(started, job.StartedAt.Sub(job.Slot))
					if slots[job.Slot]++; slots[job.Slot] == crowd {
						full <- struct{}{}
					}
					return nil
				})
			}
			start := delayq.StartAt(time.Now().Add(5 * time.Second)) // until all are there
			for n := range crowd {
				err := delayq.NewClient(rdb).Schedule(b.Context(), "bench", fmt.Sprint("crowd", n), delayq.Every(every), payload, start, delayq.OverlapAllow)
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ResetTimer()
			for range b.N {
				<-full
			}
			b.StopTimer()
			mu.Lock()
			defer mu.Unlock()
			for what, list := range map[string][]time.Duration{"fired": fired, "started": started} {
				slices.Sort(list)
				for name, at := range map[string]int{"p50": len(list) / 2, "p99": len(list) * 99 / 100, "max": len(list) - 1} {
					b.ReportMetric(float64(list[at].Microseconds())/1000, what+"-"+name+"-ms")
				}
			}
		})
	}
}

// BenchmarkIdleSchedules counts what an idle server asks of Redis in ten seconds, with no schedule
// and with 10,000 that are due in a month: calls, and all commands, those inside scripts too.
func BenchmarkIdleSchedules(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			rdb := redistest.Start(b).Client(b)
			fillSchedules(b, rdb, n, delayq.Every(1000*time.Hour))
			serveBench(b, rdb, func(context.Context, *delayq.Job) error { return nil })
			time.Sleep(time.Second) // until it has started
			calls, commands := 0, 0
			for b.Loop() {
				before, all := callsOf(b, rdb)
				time.Sleep(10 * time.Second)
				after, allAfter := callsOf(b, rdb)
				calls, commands = calls+after-before, commands+allAfter-all
			}
			b.ReportMetric(float64(calls)/float64(b.N)/10, "calls/s")
			b.ReportMetric(float64(commands)/float64(b.N)/10, "commands/s")
		})
	}
}

func fillSchedules(b *testing.B, rdb redis.UniversalClient, n int, spec delayq.Spec, opts ...delayq.ScheduleOption) {
	b.Helper()
	client := delayq.NewClient(rdb)
	var group sync.WaitGroup
	for part := range 10 {
		group.Go(func() {
			for i := part; i < n; i += 10 {
				if err := client.Schedule(b.Context(), "bench", fmt.Sprint("far", i), spec, payload, opts...); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

func serveBench(b *testing.B, rdb redis.UniversalClient, h delayq.HandlerFunc) {
	server := delayq.NewServer(rdb, delayq.Logger(slog.New(slog.DiscardHandler)), delayq.Concurrency(100))
	server.HandlerFunc("bench", h)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	})
}

var called = regexp.MustCompile(`(?m)^cmdstat_(\S+):calls=(\d+)`)

// callsOf is how many scripts and blocking pops Redis has been asked for, and how many commands it
// has carried out, without what this asks itself.
func callsOf(b *testing.B, rdb redis.UniversalClient) (calls, commands int) {
	b.Helper()
	text, err := rdb.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range called.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			b.Fatal(err)
		}
		switch m[1] {
		case "info":
			continue
		case "evalsha", "blmove":
			calls += n
		}
		commands += n
	}
	return calls, commands
}

// BenchmarkQueueOne has 5,000 schedules of which each has a slot that waits for the end of the last
// run, and then those runs end, one each millisecond. It tells how long it takes for each schedule
// until its slot has been released and run, and how much of that was Redis's time. Run it with
// -benchtime 1x.
func BenchmarkQueueOne(b *testing.B) {
	rdb := redistest.Start(b).Client(b)
	const schedules = 5000
	start, every := time.Now().Add(5*time.Second).Truncate(time.Second), 2*time.Second // until all are there
	fillSchedules(b, rdb, schedules, delayq.Every(every), delayq.StartAt(start), delayq.EndAt(start.Add(every)), delayq.OverlapQueueOne)
	var ran atomic.Int64
	var turn sync.Mutex
	release, done := make(chan struct{}), make(chan struct{})
	serveBench(b, rdb, func(context.Context, *delayq.Job) error {
		<-release
		turn.Lock()
		time.Sleep(time.Millisecond) // one run ends after the other
		turn.Unlock()
		if ran.Add(1) == 2*schedules {
			close(done)
		}
		return nil
	})
	for waiting := int64(0); waiting < schedules; time.Sleep(100 * time.Millisecond) {
		list, err := delayq.NewInspector(rdb).Stats(b.Context(), "bench")
		if err != nil {
			b.Fatal(err)
		}
		waiting = list[0].WaitingSlots
	}
	before := microsOf(b, rdb)
	b.ResetTimer()
	close(release)
	<-done
	b.ReportMetric(float64(b.Elapsed().Microseconds())/schedules, "µs/schedule")
	b.ReportMetric(float64(microsOf(b, rdb)-before)/schedules, "redis-µs/schedule")
}

// BenchmarkHistory runs jobs of one schedule whose history is full. It tells how much of Redis's
// time each takes, with its making.
func BenchmarkHistory(b *testing.B) {
	rdb := redistest.Start(b).Client(b)
	client := delayq.NewClient(rdb)
	fillSchedules(b, rdb, 1, delayq.Every(1000*time.Hour))
	ran := make(chan struct{}, 100)
	serveBench(b, rdb, func(context.Context, *delayq.Job) error {
		ran <- struct{}{}
		return nil
	})
	trigger := func() {
		if _, err := client.Trigger(b.Context(), "bench", "far0"); err != nil {
			b.Fatal(err)
		}
		<-ran
	}
	for range 120 {
		trigger()
	}
	before := microsOf(b, rdb)
	for b.Loop() {
		trigger()
	}
	b.ReportMetric(float64(microsOf(b, rdb)-before)/float64(b.N), "redis-µs/op")
}

var spent = regexp.MustCompile(`(?m)^cmdstat_evalsha:calls=\d+,usec=(\d+)`)

// microsOf is how long scripts have kept Redis busy.
func microsOf(b *testing.B, rdb redis.UniversalClient) int64 {
	b.Helper()
	text, err := rdb.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	m := spent.FindStringSubmatch(text)
	if m == nil {
		return 0
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
