package delayq_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

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
