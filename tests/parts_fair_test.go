package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// turnsOf runs 600 jobs of one key, and ten of each of 29 others, which arrive together. It returns
// how many of the first key had started when the last of the others did.
func turnsOf(t *testing.T, parts int) (large int) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		if parts > 0 {
			require.NoError(b, b.Client.Partition(b.Context(), "t", parts, delayq.ByKey()))
		}
		var list []delayq.NewJob
		add := func(key string, n int) {
			for i := range n {
				list = append(list, delayq.NewJob{Topic: "t", ID: fmt.Sprint(key, " ", i), Options: []delayq.JobOption{delayq.Key(key)}})
			}
		}
		add("large", 600)
		for i := range 29 {
			add(fmt.Sprint("small", i), 10)
		}
		_, err := b.Client.EnqueueBatch(b.Context(), list)
		require.NoError(b, err)
		var mu sync.Mutex
		started, total := 0, 0
		done := make(chan struct{})
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			if started++; job.Key != "large" {
				large = started
			}
			if total++; total == len(list) {
				close(done)
			}
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return nil
		}, delayq.Concurrency(8))
		<-done
		large -= 290
	})
	return large
}

// A key with many jobs does not push the others aside, whether the topic is divided or not. With
// turns of one job it has had about ten of 600 when the others have had ten each. While other
// partitions are empty it has a few more.
func TestTurnsOfKeysInPartitions(t *testing.T) {
	for _, parts := range []int{0, 1, 3, 7, 12} {
		t.Run(fmt.Sprint(parts), func(t *testing.T) {
			require.LessOrEqual(t, turnsOf(t, parts), 30)
		})
	}
}
