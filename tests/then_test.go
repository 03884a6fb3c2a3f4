package tests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// Each way in which a run can end: only a run that is acked has handed its job over.
func TestThenByHowARunEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(b *queuetest.Bubble, ctx context.Context, job *delayq.Job) error
		hands bool
	}{
		"nil": {func(*queuetest.Bubble, context.Context, *delayq.Job) error { return nil }, true},
		"again": {func(*queuetest.Bubble, context.Context, *delayq.Job) error {
			return delayq.Again(nil, delayq.ProcessIn(time.Hour))
		}, true},
		"an error": {func(*queuetest.Bubble, context.Context, *delayq.Job) error { return queuetest.ErrTest }, false},
		"retry in": {func(*queuetest.Bubble, context.Context, *delayq.Job) error {
			return delayq.RetryIn(time.Hour, queuetest.ErrTest)
		}, false},
		"permanent": {func(*queuetest.Bubble, context.Context, *delayq.Job) error {
			return delayq.Permanent(queuetest.ErrTest)
		}, false},
		"snooze":     {func(*queuetest.Bubble, context.Context, *delayq.Job) error { return delayq.Snooze(time.Hour) }, false},
		"hold":       {func(*queuetest.Bubble, context.Context, *delayq.Job) error { return delayq.Hold(time.Hour) }, false},
		"hold a key": {func(*queuetest.Bubble, context.Context, *delayq.Job) error { return delayq.HoldKey(time.Hour) }, false},
		"a panic":    {func(*queuetest.Bubble, context.Context, *delayq.Job) error { panic("x") }, false},
		"a cancel": {func(b *queuetest.Bubble, _ context.Context, job *delayq.Job) error {
			_, err := b.Client.Dequeue(b.Context(), job.Topic, job.ID)
			return err
		}, false},
		"a replacement": {func(b *queuetest.Bubble, ctx context.Context, job *delayq.Job) error {
			_, err := b.Client.Enqueue(ctx, job.Topic, job.ID, nil, delayq.Replace(), delayq.ProcessIn(time.Hour))
			return err
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					require.NoError(b, job.Then("b", "next", []byte("from "+job.ID), delayq.Header("x", "y"), delayq.ProcessIn(time.Minute)))
					return c.end(b, ctx, job)
				})
				b.Enqueue("a", "1", delayq.Backoff(time.Hour, time.Hour), delayq.Key("k"))
				synctest.Wait()
				if !c.hands {
					require.Empty(b, b.State("b", "next"))
					return
				}
				info := b.Get("b", "next")
				require.Equal(b, "from 1", string(info.Payload))
				require.Equal(b, "y", info.Headers["x"])
				require.Equal(b, delayq.StateScheduled, info.State)
				require.True(b, info.Due.Equal(b.Began.Add(time.Minute)), info.Due)
				exists, err := b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:all:parcels").Result()
				require.NoError(b, err)
				require.Zero(b, exists)
			})
		})
	}
}

// A chain through topics that one server has, each job handed over by the one before.
func TestThenChain(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var ran []string
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			for i := range 5 {
				topic := fmt.Sprint("t", i)
				require.NoError(b, s.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
					mu.Lock()
					defer mu.Unlock()
					ran = append(ran, job.Topic+"/"+job.ID)
					if i == 4 {
						return nil
					}
					return errors.Join(job.Then(fmt.Sprint("t", i+1), job.ID+"x", nil), job.Then(fmt.Sprint("t", i+1), job.ID+"y", nil))
				}))
			}
		})
		b.Enqueue("t0", "1")
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Len(b, ran, 1+2+4+8+16)
	})
}
