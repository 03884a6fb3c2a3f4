package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Many callers of one client ask for the same report at the same time. One of them is told of the
// end of its job at once, and the others are refused.
func TestManyCallsOfOneID(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			time.Sleep(50 * time.Millisecond)
			return job.SetOutput(job.Payload)
		})
		for round := range 3 {
			id := fmt.Sprint("report", round)
			began := time.Now()
			var all []*waiting
			for range 20 {
				all = append(all, call(b.T, b.Client, id))
			}
			done := 0
			for _, w := range all {
				end := w.get()
				if errors.Is(end.err, delayq.ErrDuplicate) {
					continue
				}
				done++
				require.NoError(b, end.err, "round %d", round)
				require.Less(b, end.at.Sub(began), time.Second, "round %d", round)
			}
			require.Equal(b, 1, done)
			b.Pass(2 * time.Minute)
		}
	})
}

// The same from twelve processes.
func TestCallsOfOneIDByManyClients(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			time.Sleep(50 * time.Millisecond)
			return job.SetOutput(job.Payload)
		})
		var clients []*delayq.Client
		for i := range 12 {
			w := queuetest.NewWire(b.Redis)
			enqueues := 0
			w.Jitter(func() time.Duration { enqueues++; return time.Duration(20-i) * time.Millisecond })
			clients = append(clients, delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix)))
		}
		var mu sync.Mutex
		var ends []waitEnd
		var group sync.WaitGroup
		began := time.Now()
		for i, c := range clients {
			group.Go(func() {
				// The last ones are the fastest, and begin a little later.
				time.Sleep(time.Duration(i) * 2500 * time.Microsecond)
				ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
				defer cancel()
				r, err := c.Call(ctx, "t", "report", nil)
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, waitEnd{r, err, time.Now()})
			})
		}
		group.Wait()
		for _, end := range ends {
			if errors.Is(end.err, delayq.ErrDuplicate) {
				continue
			}
			require.NoError(b, end.err)
			require.Less(b, end.at.Sub(began), 2*time.Second)
		}
	})
}

// Calls that are refused while another goroutine of their client waits for the job leave no
// waiters behind, so that later ones have their places.
func TestRefusedCallsBesideAWait(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		finish := make(chan bool, 1)
		defer close(finish)
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			if string(job.Payload) == "slow" {
				<-finish
			}
			return nil
		})
		_, err := b.Client.Enqueue(b.Context(), "t", "x", []byte("slow"))
		require.NoError(b, err)
		ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
		defer cancel()
		ended := make(chan error, 1)
		go func() { _, err := b.Client.Wait(ctx, "t", "x"); ended <- err }()
		b.Pass(time.Second)
		for range 8 {
			_, err := b.Client.Call(ctx, "t", "x", nil)
			require.ErrorIs(b, err, delayq.ErrDuplicate)
			b.Pass(time.Second)
		}
		waiters := b.RDB.HGet(b.Context(), queuetest.Prefix+":{t}:all:notes", "wx").Val()
		require.Equal(b, 1, strings.Count(waiters, "35:"), "only the wait is left")
		finish <- true
		require.NoError(b, <-ended)
		_, err = b.Client.Call(ctx, "t", "x", nil)
		require.NoError(b, err)
	})
}
