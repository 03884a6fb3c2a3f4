package faults_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/check"
	"github.com/delayq/delayq/faults/rig"
)

// grace is how much longer than its drain timeout a server may take to stop (K1).
const grace = 500 * time.Millisecond

// TestStopKeepsItsDeadline (K1, K2, K3; machinery#206, bullmq#4656): whatever the state of the
// handlers and of Redis, Run returns within the drain timeout and half a second. (C9)
func TestStopKeepsItsDeadline(t *testing.T) {
	const drain = time.Second
	hang := func(ctx context.Context, _ *delayq.Job) error { <-ctx.Done(); return ctx.Err() }
	deaf := make(chan struct{})
	t.Cleanup(func() { close(deaf) })
	for name, c := range map[string]struct {
		handler delayq.HandlerFunc
		before  func(b *bench) // after the handlers have begun
		start   func(b *bench) // before Run
		idle    bool
	}{
		"idle":                   {idle: true},
		"busy":                   {handler: hang},
		"deaf handler":           {handler: func(context.Context, *delayq.Job) error { <-deaf; return nil }},
		"Redis cut":              {handler: hang, before: func(b *bench) { b.proxy.Cut() }},
		"Redis frozen":           {handler: hang, before: func(b *bench) { b.proxy.Freeze() }},
		"idle and Redis cut":     {idle: true, before: func(b *bench) { b.proxy.Cut() }},
		"idle and Redis frozen":  {idle: true, before: func(b *bench) { b.proxy.Freeze() }},
		"Redis stopped":          {handler: hang, before: func(b *bench) { require.NoError(b.t, b.server.Stop()) }},
		"connections half-open":  {handler: hang, before: func(b *bench) { b.proxy.Strand() }},
		"Redis never there":      {idle: true, start: func(b *bench) { b.proxy.Cut() }},
		"Redis never answers":    {idle: true, start: func(b *bench) { b.proxy.Freeze() }},
		"Redis loading for ever": {idle: true, start: func(b *bench) { b.proxy.Answer(func([][]byte) bool { return true }, "-LOADING", -1) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if c.start != nil {
				c.start(b)
			}
			begun := make(chan struct{}, 10)
			r := b.serve(b.through(b.proxy), func(s *delayq.Server) {
				s.HandlerFunc("t", func(ctx context.Context, job *delayq.Job) error {
					begun <- struct{}{}
					if job.ID == "first" {
						return nil
					}
					return c.handler(ctx, job)
				})
			}, delayq.Drain(drain), delayq.Lease(30*time.Second))
			switch {
			case c.start != nil:
				time.Sleep(200 * time.Millisecond) // somewhere in its attempts to reach Redis
			default:
				_, err := delayq.NewClient(b.direct, delayq.Prefix(b.prefix)).Enqueue(t.Context(), "t", "first", nil)
				require.NoError(t, err)
				<-begun
				if !c.idle {
					b.put(3, rig.Task{Retries: -1})
					for range 3 {
						<-begun
					}
				}
			}
			if c.before != nil {
				c.before(b)
				time.Sleep(300 * time.Millisecond) // so that calls are under way
			}
			took := r.end(t)
			_ = b.server.Cont()
			require.Less(t, took, drain+grace)
		})
	}
}

// TestTermGivesJobsBack (C6, K3, faktory#268): a worker is told to stop, its handlers need longer
// than the drain timeout. Their jobs are back in ready before the process is gone, run elsewhere at
// once, and no attempt is used up.
func TestTermGivesJobsBack(t *testing.T) {
	b := newBench(t)
	w1 := b.worker("w1", func(c *rig.WorkerConfig) { c.Lease = time.Minute })
	b.put(5, rig.Task{ID: "hears", Steps: []string{"hang:3s"}, Retries: -1})
	b.awaitN(5, "start", is(rig.OpStart, ""))
	b.put(2, rig.Task{ID: "deaf", Steps: []string{"deaf:3s"}, Retries: -1})
	b.awaitN(7, "start", is(rig.OpStart, ""))
	require.NoError(t, w1.Term())
	require.NoError(t, w1.AwaitEnd(patient))
	require.Zero(t, w1.Code())
	ended := rig.Mono()
	state, err := check.Read(t.Context(), b.direct, b.prefix)
	require.NoError(t, err)
	require.Len(t, state.Topics["t"].Ready, 7)
	b.worker("w2", func(c *rig.WorkerConfig) { c.Lease = time.Minute })
	for _, e := range b.awaitN(7, "start", by("w2", is(rig.OpStart, ""))) {
		require.Equal(t, 1, e.Attempt)
		require.Less(t, time.Duration(e.Mono-ended), 5*time.Second)
	}
	b.awaitN(7, "ack", by("w2", is(rig.OpSettled, "acked")))
	b.judge()
}

// TestStopUnderLoadLosesNoJob (A5, llm-d-async#128): a server with full slots and jobs taken ahead
// is stopped, 200 times. Every job has run or is back when Run returns.
func TestStopUnderLoadLosesNoJob(t *testing.T) {
	b := newBench(t)
	var done sync.Map
	const n, rounds = 60_000, 200
	var jobs []delayq.NewJob
	for i := range n {
		jobs = append(jobs, delayq.NewJob{Topic: "t", ID: fmt.Sprint(i)})
	}
	_, err := b.client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
	var ran atomic.Int64
	for round := range rounds {
		enough := make(chan struct{})
		var once sync.Once
		target := ran.Load() + 50
		r := b.serve(b.direct, func(s *delayq.Server) {
			s.HandlerFunc("t", func(_ context.Context, job *delayq.Job) error {
				if _, twice := done.LoadOrStore(job.ID, true); twice {
					t.Errorf("job %s ran twice", job.ID)
				}
				if ran.Add(1) >= target {
					once.Do(func() { close(enough) })
				}
				return nil
			})
		}, delayq.Lease(time.Minute))
		<-enough
		r.end(t)
		info, err := rig.StatsOf(t.Context(), b.client.Inspector, "t")
		require.NoError(t, err)
		require.Zero(t, info.Running+info.Scheduled, "round %d", round)
		require.EqualValues(t, n, ran.Load()+info.Ready, "round %d", round)
		if info.Ready < 1000 {
			t.Fatalf("only %d of %d stops while there was work", round+1, rounds)
		}
	}
	state, err := check.Read(t.Context(), b.direct, b.prefix)
	require.NoError(t, err)
	require.Len(t, state.Topics["t"].Pool, n-int(ran.Load()))
}

// TestServersCanBeStartedAndStoppedManyTimes (K4, HDT): 30 servers one after the other leave no
// goroutine and no connection behind.
func TestServersCanBeStartedAndStoppedManyTimes(t *testing.T) {
	b := newBench(t)
	cycle := func() {
		r := b.serve(b.direct, func(s *delayq.Server) {
			s.HandlerFunc("t", func(context.Context, *delayq.Job) error { return nil })
		})
		b.put(1, rig.Task{ID: fmt.Sprint(rig.Mono()), Retries: -1})
		b.drained(patient)
		r.end(t)
	}
	cycle()
	connections := func() int {
		list, err := b.direct.ClientList(context.Background()).Result()
		require.NoError(t, err)
		return strings.Count(list, "\n")
	}
	before := connections()
	for range 30 {
		cycle()
	}
	eventually(t, "connections closed", patient, func() bool { return connections() <= before+1 })
}

// TestSecondStopAndStopBeforeStart (K4, K5): a context that has ended already, Run twice. (K7)
func TestSecondStopAndStopBeforeStart(t *testing.T) {
	b := newBench(t)
	server := delayq.NewServer(b.direct, delayq.Prefix(b.prefix))
	server.HandlerFunc("t", func(context.Context, *delayq.Job) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, server.Run(ctx))
	require.ErrorIs(t, server.Run(ctx), delayq.ErrServerUsed)
	require.NoError(t, b.direct.Ping(t.Context()).Err(), "the client of the application is open still")
}

// usage is what a process uses once it is at rest.
func usage() (goroutines int, heap uint64, files int) {
	for range 3 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		files = len(fds)
	}
	return runtime.NumGoroutine(), m.HeapAlloc, files
}

// TestAThousandCutsLeakNothing (K9, L3, asynq PR#1104): 100,000 jobs while the connections are
// reset a thousand times: goroutines, heap, open files and Redis keys are what they were. It does
// not run in parallel: it looks at the whole process.
func TestAThousandCutsLeakNothing(t *testing.T) {
	jobs, cuts := 100_000, 1000
	if testing.Short() {
		jobs, cuts = 10_000, 100
	}
	b := newLoneBench(t)
	rdb := b.through(b.proxy, func(o *redis.Options) {
		o.MaxRetries = 10
		o.MinRetryBackoff = time.Millisecond
		o.MaxRetryBackoff = 20 * time.Millisecond
	})
	client := delayq.NewClient(rdb, delayq.Prefix(b.prefix))
	var ran atomic.Int64
	r := b.serve(rdb, func(s *delayq.Server) {
		s.HandlerFunc("t", func(context.Context, *delayq.Job) error { ran.Add(1); return nil }, delayq.Concurrency(50))
	}, delayq.Lease(30*time.Second))
	batch := func(from, n int) {
		for n > 0 {
			var list []delayq.NewJob
			for i := range min(n, 500) {
				list = append(list, delayq.NewJob{Topic: "t", ID: fmt.Sprint(from + i), Payload: []byte("payload")})
			}
			results, _ := client.EnqueueBatch(t.Context(), list) // the results have the errors
			for i := range results {                             // a cut at the wrong moment is an error to the caller, who asks again
				for err := results[i].Err; err != nil; {
					_, err = client.Enqueue(t.Context(), "t", list[i].ID, list[i].Payload, delayq.Replace())
				}
			}
			from, n = from+len(list), n-len(list)
		}
	}
	batch(0, 2000)
	b.drained(patient)
	rest := func() (goroutines int, heap uint64, files, keys int) {
		state, err := check.Read(t.Context(), b.direct, b.prefix)
		require.NoError(t, err)
		for _, topic := range state.Topics {
			keys += len(topic.Types)
		}
		goroutines, heap, files = usage()
		return goroutines, heap, files, keys + len(state.Other)
	}
	g0, h0, f0, k0 := rest()

	done := make(chan struct{})
	go func() {
		defer close(done)
		batch(2000, jobs)
	}()
	n := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(15 * time.Millisecond):
		}
		if n < cuts && b.proxy.Reset() > 0 {
			n++
		}
	}
	for ; n < cuts; n++ {
		b.proxy.Reset()
		time.Sleep(5 * time.Millisecond) // lets some connections come up again
	}
	healed := time.Now()
	eventually(t, "all jobs run", 2*time.Minute, func() bool { return ran.Load() >= int64(jobs+2000) })
	b.drained(patient)
	t.Logf("%d jobs, %d cuts, %d runs, done %v after the last cut", jobs, n, ran.Load(), time.Since(healed))
	eventually(t, "goroutines, files and keys as before", patient, func() bool {
		g, _, f, k := rest()
		return g <= g0+10 && f <= f0+10 && k <= k0
	})
	_, h1, _, _ := rest()
	require.Less(t, h1, h0+8<<20, "heap before %d", h0)
	state, err := check.Read(t.Context(), b.direct, b.prefix)
	require.NoError(t, err)
	found, _ := check.Census(state)
	require.Empty(t, found)
	r.end(t)
}

// TestBlackHole (K2): an address accepts connections and never answers. A new connection begins
// with a greeting, so the job itself is never sent, and its outcome is not unknown.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	rdb := redis.NewClient(&redis.Options{Addr: ln.Addr().String(), ReadTimeout: 200 * time.Millisecond, MaxRetries: 1})
	t.Cleanup(func() { _ = rdb.Close() })
	_, err = delayq.NewClient(rdb).Enqueue(t.Context(), "t", "j", nil)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
}
