package tests

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// BenchmarkPool is BenchmarkWork with four topics: with workers of their own, and in a pool of as
// many.
func BenchmarkPool(b *testing.B) {
	for name, opts := range map[string][]delayq.ServerOption{
		"none": {delayq.Concurrency(16)},
		"pool": {delayq.Pool("p", 64), delayq.InPool("p")},
		"one":  {delayq.Pool("p", 1), delayq.InPool("p")},
	} {
		b.Run(name, func(b *testing.B) {
			rdb, prefix := redistest.Shared(b), delayq.Prefix(redistest.Prefix(b))
			jobs := make([]delayq.NewJob, b.N)
			for i := range jobs {
				jobs[i] = delayq.NewJob{Topic: fmt.Sprint("bench", i%4), Payload: make([]byte, 100)}
			}
			if _, err := delayq.NewClient(rdb, prefix).EnqueueBatch(b.Context(), jobs); err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			server := delayq.NewServer(rdb, append(opts, prefix)...)
			var left atomic.Int64
			left.Store(int64(b.N))
			for i := range 4 {
				server.HandlerFunc(fmt.Sprint("bench", i), func(context.Context, *delayq.Job) error {
					if left.Add(-1) == 0 {
						stop()
					}
					return nil
				})
			}
			b.ResetTimer()
			if err := server.Run(ctx); err != nil {
				b.Fatal(err)
			}
		})
	}
}
