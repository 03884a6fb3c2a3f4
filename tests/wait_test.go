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

// A waitEnd is how a wait has ended.
type waitEnd struct {
	result *delayq.Result
	err    error
	at     time.Time
}

// A waiting is a wait in a goroutine of its own.
type waiting struct {
	done  chan struct{}
	ended waitEnd // once done is closed
	stop  context.CancelFunc
}

// begin calls f in a goroutine. Its context ends after a day.
func begin(t *testing.T, f func(ctx context.Context) (*delayq.Result, error)) *waiting {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 24*time.Hour)
	w := &waiting{done: make(chan struct{}), stop: stop}
	go func() {
		defer close(w.done)
		defer stop()
		result, err := f(ctx)
		w.ended = waitEnd{result, err, time.Now()}
	}()
	return w
}

// await begins a wait.
func await(t *testing.T, client *delayq.Client, topic, id string, opts ...delayq.WaitOption) *waiting {
	t.Helper()
	return begin(t, func(ctx context.Context) (*delayq.Result, error) { return client.Wait(ctx, topic, id, opts...) })
}

// over reports whether the wait has ended.
func (w *waiting) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// get waits for the end.
func (w *waiting) get() waitEnd {
	<-w.done
	return w.ended
}

// Each end of a job is told to whoever waits for it, at once.
func TestWaitForEachEnd(t *testing.T) {
	no := errors.New("no")
	for name, c := range map[string]struct {
		opts    []delayq.JobOption
		handler delayq.HandlerFunc
		act     func(b *queuetest.Bubble)
		after   time.Duration // from the beginning of the wait to its end
		check   func(b *queuetest.Bubble, end waitEnd)
	}{
		"done": {handler: queuetest.Nothing, check: func(b *queuetest.Bubble, end waitEnd) {
			require.NoError(b, end.err)
			require.Equal(b, 1, end.result.Attempt)
			require.Nil(b, end.result.Output)
			require.WithinDuration(b, end.at, end.result.FinishedAt, time.Millisecond)
		}},
		"output": {handler: func(_ context.Context, job *delayq.Job) error { return job.SetOutput([]byte("out of " + job.ID)) }, check: func(b *queuetest.Bubble, end waitEnd) {
			require.NoError(b, end.err)
			require.Equal(b, "out of x", string(end.result.Output))
			require.NotEmpty(b, end.result.Server)
			require.WithinDuration(b, end.at, end.result.StartedAt, time.Millisecond)
		}},
		"done after a retry": {handler: func(_ context.Context, job *delayq.Job) error {
			if job.Attempt == 1 {
				return delayq.RetryIn(time.Minute, no)
			}
			return nil
		}, after: time.Minute, check: func(b *queuetest.Bubble, end waitEnd) {
			require.NoError(b, end.err)
			require.Equal(b, 2, end.result.Attempt)
		}},
		"dead": {handler: func(context.Context, *delayq.Job) error { return delayq.Permanent(no) }, check: func(b *queuetest.Bubble, end waitEnd) {
			var dead *delayq.DeadError
			require.ErrorAs(b, end.err, &dead)
			require.ErrorIs(b, end.err, delayq.ErrDead)
			require.Equal(b, []any{"t", "x", 1, "no"}, []any{dead.Topic, dead.ID, len(dead.Errors), dead.Errors[0].Message})
			require.WithinDuration(b, end.at, dead.BuriedAt, time.Millisecond)
			require.ErrorContains(b, end.err, "wait topic \"t\" job \"x\": delayq: job is dead since 2000-01-01T00:00:01Z: no")
		}},
		"cancelled": {handler: untilCancelled, act: func(b *queuetest.Bubble) {
			require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
		}, check: failsWith(delayq.ErrCancelled)},
		"replaced": {handler: untilCancelled, act: func(b *queuetest.Bubble) { b.Enqueue("t", "x", delayq.Replace()) }, check: failsWith(delayq.ErrReplaced)},
		"expired": {opts: []delayq.JobOption{delayq.ExpireIn(2 * time.Second)}, handler: func(context.Context, *delayq.Job) error {
			return delayq.RetryIn(time.Minute, no)
		}, after: time.Minute, check: failsWith(delayq.ErrExpired)},
		"buried by a caller": {opts: []delayq.JobOption{delayq.ProcessIn(time.Hour)}, handler: queuetest.Nothing, act: func(b *queuetest.Bubble) {
			require.NoError(b, b.Client.Bury(b.Context(), "t", "x", "a reason"))
		}, check: failsWith(delayq.ErrDead)},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				opts := c.opts
				if c.act == nil {
					opts = append(opts, delayq.ProcessIn(time.Second))
				}
				b.Enqueue("t", "x", opts...)
				w := await(b.T, b.Client, "t", "x")
				began := time.Now()
				b.Serve("t", c.handler)
				if c.act != nil {
					b.Pass(time.Second)
					require.False(b, w.over())
					c.act(b)
				}
				end := w.get()
				require.InDelta(b, (c.after + time.Second).Seconds(), end.at.Sub(began).Seconds(), 0.3+c.after.Seconds()/5)
				if end.err != nil {
					require.Nil(b, end.result)
				}
				c.check(b, end)
			})
		})
	}
}

func untilCancelled(ctx context.Context, _ *delayq.Job) error {
	<-ctx.Done()
	return ctx.Err()
}

func failsWith(want error) func(*queuetest.Bubble, waitEnd) {
	return func(b *queuetest.Bubble, end waitEnd) {
		b.Helper()
		require.ErrorIs(b, end.err, want)
	}
}

// What has ended before the wait is told if it is kept.
func TestWaitAfterTheEnd(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			if job.ID == "dead" {
				return delayq.Permanent(errors.New("no"))
			}
			return job.SetOutput([]byte(job.ID))
		})
		b.Enqueue("t", "kept", delayq.Retention(time.Hour))
		b.Enqueue("t", "lost")
		b.Enqueue("t", "dead")
		b.Pass(time.Minute)
		end := await(b.T, b.Client, "t", "kept").get()
		require.NoError(b, end.err)
		require.Equal(b, "kept", string(end.result.Output))
		require.Equal(b, b.Get("t", "kept").FinishedAt, end.result.FinishedAt)
		require.ErrorIs(b, await(b.T, b.Client, "t", "dead").get().err, delayq.ErrDead)
		for _, id := range []string{"lost", "never"} {
			require.ErrorIs(b, await(b.T, b.Client, "t", id).get().err, delayq.ErrNotFound)
		}
	})
}

// A wait lasts until the end of what follows the job: a chain of Again, the stages of a plan, and a
// burst of calls that give the job another payload.
func TestWaitFollowsTheJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			switch n := len(job.Payload); {
			case job.ID == "chain" && n < 10:
				return delayq.Again(append(job.Payload, '+'), delayq.ProcessIn(time.Minute))
			case job.ID == "plan":
				return job.SetOutput(fmt.Append(nil, job.Stage))
			}
			return job.SetOutput(job.Payload)
		})
		b.Enqueue("t", "chain")
		b.Enqueue("t", "plan", delayq.ProcessAtEach(time.Now().Add(time.Minute), time.Now().Add(time.Hour)))
		b.Enqueue("t", "burst", delayq.Debounce(time.Minute, time.Hour))
		began := time.Now()
		ws := map[string]*waiting{}
		for _, id := range []string{"chain", "plan", "burst"} {
			ws[id] = await(b.T, b.Client, "t", id)
		}
		for range 3 {
			b.Pass(30 * time.Second)
			require.NoError(b, queuetest.ErrOf(b.Client.Enqueue(b.Context(), "t", "burst", []byte("last"), delayq.Debounce(time.Minute, time.Hour))))
		}
		for id, want := range map[string]struct {
			after  time.Duration
			output string
		}{"burst": {150 * time.Second, "last"}, "chain": {2 * time.Minute, "of chain++"}, "plan": {time.Hour, "2"}} {
			end := ws[id].get()
			require.NoError(b, end.err, id)
			require.Equal(b, want.output, string(end.result.Output), id)
			require.InDelta(b, want.after.Seconds(), end.at.Sub(began).Seconds(), 1, id)
		}
	})
}

// A wait is for the incarnation that it has found. The next job of the same ID is another one.
func TestWaitIsForOneIncarnation(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		first := await(b.T, b.Client, "t", "x")
		b.Pass(time.Second)
		b.Enqueue("t", "x", delayq.Replace(), delayq.ProcessIn(time.Minute))
		second := await(b.T, b.Client, "t", "x")
		b.Pass(time.Second)
		require.True(b, first.over())
		require.ErrorIs(b, first.get().err, delayq.ErrReplaced)
		require.False(b, second.over())
		require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
		b.Enqueue("t", "x")
		third := await(b.T, b.Client, "t", "x")
		b.Pass(time.Second)
		require.ErrorIs(b, second.get().err, delayq.ErrCancelled)
		b.Serve("t", queuetest.Nothing)
		require.NoError(b, third.get().err)
	})
}

// When the context ends, the job goes on, and Redis forgets the waiter.
func TestWaitEndsWithItsContext(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		ctx, cancel := context.WithTimeoutCause(b.Context(), time.Minute, errors.New("too slow"))
		defer cancel()
		began := time.Now()
		_, err := b.Client.Wait(ctx, "t", "x")
		require.ErrorIs(b, err, context.DeadlineExceeded)
		require.EqualError(b, err, `wait topic "t" job "x": context deadline exceeded: too slow: the job goes on, it is scheduled`)
		require.Equal(b, time.Minute, time.Since(began))
		b.Pass(time.Second)
		notes, err := b.RDB.HGetAll(b.Context(), notesKey("t")).Result()
		require.NoError(b, err)
		require.Empty(b, notes)
		require.Equal(b, delayq.StateScheduled, b.State("t", "x"))

		w := await(b.T, b.Client, "t", "x")
		b.Pass(time.Second)
		w.stop()
		require.ErrorIs(b, w.get().err, context.Canceled)
		b.Pass(time.Second)
		require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
		require.Empty(b, b.RDB.HGetAll(b.Context(), notesKey("t")).Val(), "no outcome is kept for nobody")
	})
}

// Several waits of a client for a job are one waiter in Redis. One that ends leaves the others.
func TestWaitsOfAClientShareTheirPlace(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Enqueue("t", "x", delayq.ProcessIn(time.Hour))
		var ws []*waiting
		for range 20 {
			ws = append(ws, await(b.T, b.Client, "t", "x"))
		}
		b.Pass(time.Second)
		require.Len(b, b.RDB.HGet(b.Context(), notesKey("t"), "wx").Val(), 35+3, "one entry")
		for _, w := range ws[:19] {
			w.stop()
		}
		b.Pass(time.Minute)
		require.NoError(b, queuetest.ErrOf(b.Client.Dequeue(b.Context(), "t", "x")))
		for i, w := range ws {
			if want := context.Canceled; i < 19 {
				require.ErrorIs(b, w.get().err, want)
				continue
			}
			synctest.Wait()
			require.True(b, w.over(), "the message has come")
			require.ErrorIs(b, w.get().err, delayq.ErrCancelled)
		}
	})
}

// Hundreds of jobs that end at once, each with eight clients that wait for it: none misses an end,
// and nothing waits for the next regular look.
func TestNoEndIsMissed(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		b.Serve("t", func(_ context.Context, job *delayq.Job) error { return job.SetOutput([]byte(job.ID)) }, delayq.Concurrency(100))
		const jobs, clients = 250, 8
		var mu sync.Mutex
		var late time.Duration
		outputs := 0
		var all sync.WaitGroup
		for c := range clients {
			client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix))
			for i := range jobs {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
					defer cancel()
					id := fmt.Sprint(i)
					began := time.Now()
					var result *delayq.Result
					var err error
					if c == 0 {
						result, err = client.Call(ctx, "t", id, nil, delayq.ProcessIn(time.Second))
					} else {
						for err = delayq.ErrNotFound; errors.Is(err, delayq.ErrNotFound); time.Sleep(time.Millisecond) {
							result, err = client.Wait(ctx, "t", id)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					if err == nil && string(result.Output) == id {
						outputs++
					} else {
						t.Errorf("job %s: %v", id, err)
					}
					late = max(late, time.Since(began))
				})
			}
		}
		all.Wait()
		require.Equal(b, jobs*clients, outputs)
		require.Less(b, late, 3*time.Second)
	})
}
