package delayqtest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

var nothing = handle(func(context.Context, *delayq.Job) error { return nil }, "mail")

func TestOpenNeedsNoTest(t *testing.T) {
	q, err := delayqtest.Open()
	require.NoError(t, err)
	ran := make(chan time.Time, 1)
	stop, err := q.Serve(handle(func(_ context.Context, job *delayq.Job) error { ran <- job.Due; return nil }, "mail"))
	require.NoError(t, err)

	// The clock runs.
	job, err := q.Client.Enqueue(t.Context(), "mail", "a", nil, delayq.ProcessIn(20*time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, job.Due, <-ran)
	require.WithinDuration(t, time.Now(), q.Now(), time.Second)

	// It stands still from the first Advance on.
	require.NoError(t, q.Advance(t.Context(), time.Hour))
	require.Equal(t, q.Now(), q.Now())
	require.Greater(t, time.Until(q.Now()), 50*time.Minute)
	require.ErrorContains(t, q.Unfreeze(), "ahead of time.Now")

	require.NoError(t, stop())
	require.NoError(t, stop())
	require.NoError(t, q.Close())
	require.NoError(t, q.Close())
	_, err = q.Serve(nothing)
	require.ErrorContains(t, err, "closed")
	_, err = q.Client.Enqueue(t.Context(), "mail", "b", nil)
	require.Error(t, err)
	require.Error(t, q.Advance(t.Context(), time.Hour))
}

func TestOpenRefuses(t *testing.T) {
	_, err := delayqtest.Open(delayq.MaxPayload(-1), delayq.Prefix("{"))
	require.ErrorIs(t, err, delayq.ErrInvalid)
	_, err = delayqtest.Open(nil)
	require.ErrorIs(t, err, delayq.ErrInvalid)
}

func TestServeRefuses(t *testing.T) {
	q := delayqtest.Start(t)
	_, err := q.Queue.Serve(nil)
	require.ErrorContains(t, err, "nil function")
	_, err = q.Queue.Serve(func(*delayq.Server) {})
	require.ErrorIs(t, err, delayq.ErrInvalid)
	_, err = q.Queue.Serve(nothing, delayq.Concurrency(-1))
	require.ErrorIs(t, err, delayq.ErrInvalid)
	q.Advance(time.Hour) // none of them is left
}

func TestPrefixes(t *testing.T) {
	plain := delayqtest.Start(t)
	_, err := delayq.NewClient(plain.Redis).Enqueue(t.Context(), "mail", "a", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	plain.AssertScheduled("mail", "a", plain.Now().Add(time.Hour))

	shop := delayqtest.Start(t, delayq.Prefix("shop"), delayq.MaxPayload(10))
	require.Equal(t, "shop", shop.Prefix)
	shop.Serve(nothing)
	enqueue(t, shop, "mail", "a", time.Hour)
	_, err = shop.Client.Enqueue(t.Context(), "mail", "b", make([]byte, 11))
	require.ErrorIs(t, err, delayq.ErrInvalid)
	shop.Advance(time.Hour)
	shop.AssertNone("mail")
	for _, key := range shop.Miniredis.Keys() {
		require.True(t, strings.HasPrefix(key, "shop:"), key)
	}
}

func TestServersShareTheWork(t *testing.T) {
	q := delayqtest.Start(t)
	var mu sync.Mutex
	ran := make(map[string]int)
	setup := func(name string) func(*delayq.Server) {
		return handle(func(context.Context, *delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			ran[name]++
			return nil
		}, "mail")
	}
	stopA := q.Serve(setup("a"))
	q.Serve(setup("b"), delayq.Concurrency(3))
	for i := range 20 {
		enqueue(t, q, "mail", fmt.Sprint(i), time.Duration(i)*time.Minute)
	}
	q.Advance(10 * time.Minute)
	require.Equal(t, 11, ran["a"]+ran["b"])
	stopA()
	before := ran["b"]
	q.Advance(10 * time.Minute)
	require.Equal(t, before+9, ran["b"])
	q.AssertNone("mail")
}

// In a bubble, time.Sleep is the time machine: timeouts of jobs and the waiting of handlers follow
// the same clock. A leaked goroutine fails the test by itself.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		q.Unfreeze()
		var start time.Time
		var lines []string
		q.Serve(handle(func(ctx context.Context, job *delayq.Job) error {
			lines = append(lines, fmt.Sprintf("%v start %s.%d", time.Since(start), job.ID, job.Attempt))
			if job.Attempt == 1 {
				<-ctx.Done() // the Timeout of a minute
				return context.Cause(ctx)
			}
			time.Sleep(time.Minute)
			lines = append(lines, fmt.Sprintf("%v end", time.Since(start)))
			return nil
		}, "report"))
		start = time.Now()
		enqueue(t, q, "report", "r", 5*time.Minute, delayq.Timeout(time.Minute))
		q.AssertScheduled("report", "r", start.Add(5*time.Minute))
		time.Sleep(8 * time.Minute)
		synctest.Wait()
		q.AssertNone("report")
		require.Len(t, lines, 3)
		require.Equal(t, "5m0s start r.1", lines[0])
		require.Regexp(t, `^6m2(\.\d+)?s start r.2$`, lines[1])
		require.Regexp(t, `^7m2(\.\d+)?s end$`, lines[2])
	})
}

// Advance works in a bubble too, on its own clock, and leaks no goroutine.
func TestAdvanceInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		d := newDiary(q)
		start := time.Now()
		q.Serve(handle(func(_ context.Context, job *delayq.Job) error {
			d.note(job)
			if job.Attempt == 1 {
				return errors.New("no")
			}
			return nil
		}, "mail"))
		enqueue(t, q, "mail", "a", time.Hour, delayq.Backoff(time.Millisecond, time.Millisecond))
		q.Advance(30 * 24 * time.Hour)
		require.Equal(t, []string{"1h0m0s a.1", "1h0m0.001s a.2"}, d.take())
		require.Less(t, time.Since(start), 500*time.Millisecond, "servers were not woken, but found out at the next tick")
	})
}

// Many queues opened and closed leave nothing behind.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			q, err := delayqtest.Open()
			if err == nil {
				_, err = q.Serve(nothing)
			}
			if err == nil {
				_, err = q.Client.Enqueue(context.Background(), "mail", "a", nil, delayq.ProcessIn(time.Hour))
			}
			if err == nil {
				err = q.Advance(context.Background(), time.Hour)
			}
			if err = errors.Join(err, q.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for range 10_000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
