package tests

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// An orderLog notes the runs of jobs whose IDs are a key, a slash and a number, and fails the test
// if a key has two at a time.
type orderLog struct {
	t    testing.TB
	mu   sync.Mutex
	now  map[string]string
	runs map[string][]string // the IDs of each key, in the order of their starts
}

func newOrderLog(t testing.TB) *orderLog {
	return &orderLog{t: t, now: map[string]string{}, runs: map[string][]string{}}
}

// then returns a handler that notes its runs.
func (l *orderLog) then(h delayq.HandlerFunc) delayq.HandlerFunc {
	return func(ctx context.Context, job *delayq.Job) error {
		l.mu.Lock()
		if other := l.now[job.Key]; other != "" {
			l.t.Errorf("%s starts while %s runs", job.ID, other)
		}
		l.now[job.Key] = job.ID
		l.runs[job.Key] = append(l.runs[job.Key], job.ID)
		l.mu.Unlock()
		defer func() {
			l.mu.Lock()
			delete(l.now, job.Key)
			l.mu.Unlock()
		}()
		return h(ctx, job)
	}
}

// of returns the runs of a key so far.
func (l *orderLog) of(key string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.runs[key]...)
}

// ordered sets the limits of topic a.
func ordered(b *queuetest.Bubble, onDead delayq.OnDead) {
	b.Helper()
	require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{Ordered: true, OnDead: onDead}))
}

// The jobs of a key run one after the other on three servers, and each again until it succeeds.
func TestOrdered(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const keys, jobs, failing = 3, 12, 3
		ordered(b, delayq.ContinueKey)
		require.NoError(b, b.Client.SetKeyLimits(b.Context(), "a", "k0", delayq.KeyLimits{Running: 5}))
		l := newOrderLog(b)
		h := l.then(func(_ context.Context, job *delayq.Job) error {
			time.Sleep(7 * time.Millisecond)
			if n, _ := strconv.Atoi(job.ID[3:]); n%failing == 1 && job.Attempt < 3 {
				return errors.New("not yet")
			}
			return nil
		})
		for range 3 {
			b.Serve("a", h, delayq.Concurrency(5))
		}
		want := map[string][]string{}
		for i := range jobs {
			for k := range keys {
				key := fmt.Sprintf("k%d", k)
				id := fmt.Sprintf("%s/%d", key, i)
				b.Enqueue("a", id, delayq.Key(key), delayq.Backoff(50*time.Millisecond, time.Second))
				want[key] = append(want[key], id)
				if i%failing == 1 {
					want[key] = append(want[key], id, id)
				}
			}
		}
		b.Pass(20 * time.Second)
		for key, runs := range want {
			require.Equal(b, runs, l.of(key))
		}
	})
}

// After a crash, the job that ran is the first one of its key.
func TestOrderedAfterACrash(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ordered(b, delayq.ContinueKey)
		l := newOrderLog(b)
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Lease(10*time.Second), delayq.Concurrency(1))
		b.Enqueue("a", "k/1", delayq.Key("k"))
		b.Pass(time.Second)
		w.Freeze()
		b.Serve("a", l.then(func(context.Context, *delayq.Job) error { return nil }), delayq.Lease(10*time.Second))
		b.Enqueue("a", "k/2", delayq.Key("k"))
		b.Enqueue("a", "k/0", delayq.Key("k"), delayq.Priority(time.Hour)) // it comes too late
		b.Pass(5 * time.Second)
		require.Empty(b, l.of("k"))
		b.Pass(10 * time.Second)
		require.Equal(b, []string{"k/1", "k/0", "k/2"}, l.of("k"))
	})
}

// Whatever takes a job out of the way lets its key go on at once.
func TestKeyGoesOnWithoutItsFirstJob(t *testing.T) {
	for _, first := range []struct {
		name string
		dead bool // the first job is dead and halts its key; otherwise it has failed
		do   func(b *queuetest.Bubble) error
		want []string // the runs after that
	}{
		{"nothing, failed", false, func(*queuetest.Bubble) error { return nil }, nil},
		{"nothing, dead", true, func(*queuetest.Bubble) error { return nil }, nil},
		{"cancelled", false, cancelFirst, []string{"k/2", "k/3"}},
		{"cancelled, dead", true, cancelFirst, []string{"k/2", "k/3"}},
		{"rescheduled", false, func(b *queuetest.Bubble) error {
			return b.Client.Reschedule(b.Context(), "a", "k/1", delayq.ProcessIn(10*time.Minute))
		}, []string{"k/2", "k/3"}},
		{"rescheduled to now", false, func(b *queuetest.Bubble) error {
			return b.Client.Reschedule(b.Context(), "a", "k/1", delayq.ProcessIn(0))
		}, []string{"k/2", "k/3", "k/1"}}, // it gives up its turn
		{"replaced", false, func(b *queuetest.Bubble) error {
			b.Enqueue("a", "k/1", delayq.Key("k"), delayq.Replace(), delayq.ProcessIn(10*time.Minute))
			return nil
		}, []string{"k/2", "k/3"}},
		{"replaced, dead", true, func(b *queuetest.Bubble) error {
			b.Enqueue("a", "k/1", delayq.Key("k"), delayq.ReplaceDead())
			return nil
		}, []string{"k/2", "k/3", "k/1"}},
		{"revived", true, func(b *queuetest.Bubble) error {
			return b.Client.Revive(b.Context(), "a", "k/1")
		}, []string{"k/1", "k/2", "k/3"}},
		{"buried, halting", false, func(b *queuetest.Bubble) error {
			return b.Client.Bury(b.Context(), "a", "k/1", "why")
		}, nil},
		{"buried, continuing", false, func(b *queuetest.Bubble) error {
			ordered(b, delayq.ContinueKey)
			return b.Client.Bury(b.Context(), "a", "k/1", "why")
		}, []string{"k/2", "k/3"}},
		{"continuing", true, func(b *queuetest.Bubble) error {
			ordered(b, delayq.ContinueKey)
			return nil
		}, []string{"k/2", "k/3"}},
		{"without an order", false, func(b *queuetest.Bubble) error {
			return b.Client.SetLimits(b.Context(), "a", delayq.Limits{RunningPerKey: 1})
		}, []string{"k/2", "k/3"}},
	} {
		t.Run(first.name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				ordered(b, delayq.HaltKey)
				l := newOrderLog(b)
				failed := false
				b.Serve("a", l.then(func(context.Context, *delayq.Job) error {
					if !failed {
						failed = true
						return errors.New("no")
					}
					return nil
				}), delayq.Concurrency(5))
				retry := delayq.Retry(5)
				if first.dead {
					retry = delayq.Retry(0)
				}
				b.Enqueue("a", "k/1", delayq.Key("k"), retry, delayq.Backoff(time.Hour, time.Hour))
				b.Pass(time.Second)
				b.Enqueue("a", "k/2", delayq.Key("k"))
				b.Enqueue("a", "k/3", delayq.Key("k"))
				b.Enqueue("a", "other", delayq.Key("other"))
				b.Pass(time.Minute)
				require.Equal(b, []string{"k/1"}, l.of("k"))
				require.Equal(b, []string{"other"}, l.of("other"))
				key, err := b.Inspector.Key(b.Context(), "a", "k")
				require.NoError(b, err)
				require.Equal(b, "k/1", key.Blocker)
				require.Equal(b, first.dead, key.BlockedUntil.IsZero())

				require.NoError(b, first.do(b))
				b.Pass(50 * time.Millisecond)
				want := append([]string{"k/1"}, first.want...)
				require.Equal(b, want, l.of("k"))
				if len(first.want) > 0 {
					n, err := b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:blockers").Result()
					require.NoError(b, err)
					key, err = b.Inspector.Key(b.Context(), "a", "k")
					require.NoError(b, err)
					require.Equal(b, n > 0, key.Blocker != "")
				}
			})
		})
	}
}

func cancelFirst(b *queuetest.Bubble) error {
	_, err := b.Client.Dequeue(b.Context(), "a", "k/1")
	return err
}

// A key goes on when the dead job that halted it is pruned.
func TestPrunedJobHaltsNoKey(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ordered(b, delayq.HaltKey)
		l := newOrderLog(b)
		b.Serve("a", l.then(func(_ context.Context, job *delayq.Job) error {
			if job.ID == "k/1" {
				return delayq.Permanent(errors.New("no"))
			}
			return nil
		}), delayq.DeadLimit(100, 10*time.Minute))
		b.Enqueue("a", "k/1", delayq.Key("k"))
		b.Pass(time.Second)
		b.Enqueue("a", "k/2", delayq.Key("k"))
		b.Pass(9 * time.Minute)
		require.Equal(b, []string{"k/1"}, l.of("k"))
		b.Pass(2 * time.Minute)
		require.Equal(b, []string{"k/1", "k/2"}, l.of("k"))
	})
}

// Jobs that are given back when a server stops keep their order.
func TestOrderedJobsThatAreGivenBack(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ordered(b, delayq.ContinueKey)
		l := newOrderLog(b)
		for i := range 3 {
			b.Enqueue("a", fmt.Sprintf("k/%d", i), delayq.Key("k"))
		}
		first := b.Serve("a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Drain(time.Second))
		b.Pass(time.Second)
		require.NoError(b, first.Stop())
		b.Serve("a", l.then(func(context.Context, *delayq.Job) error { return nil }))
		b.Pass(time.Second)
		require.Equal(b, []string{"k/0", "k/1", "k/2"}, l.of("k"))
	})
}

// A job that gets a priority over the dead one runs within a tick.
func TestPriorityOverADeadJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ordered(b, delayq.HaltKey)
		l := newOrderLog(b)
		b.Enqueue("a", "k/1", delayq.Key("k"))
		require.NoError(b, b.Client.Bury(b.Context(), "a", "k/1", "why"))
		b.Pass(time.Second)
		b.Enqueue("a", "k/2", delayq.Key("k"))
		b.Serve("a", l.then(func(context.Context, *delayq.Job) error { return nil }))
		b.Pass(time.Second)
		require.Empty(b, l.of("k"))
		require.NoError(b, b.Client.SetPriority(b.Context(), "a", "k/2", time.Hour))
		b.Pass(1100 * time.Millisecond) // no ring is sent
		require.Equal(b, []string{"k/2"}, l.of("k"))
	})
}

// A job that a server gives back has begun, so what comes later is too late.
func TestOrderedJobThatIsGivenBackIsFirst(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ordered(b, delayq.ContinueKey)
		l := newOrderLog(b)
		first := b.Serve("a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return ctx.Err()
		}, delayq.Drain(time.Second))
		b.Enqueue("a", "k/1", delayq.Key("k"))
		b.Pass(time.Second)
		b.Enqueue("a", "k/0", delayq.Key("k"), delayq.Priority(time.Hour))
		require.NoError(b, first.Stop())
		b.Serve("a", l.then(func(context.Context, *delayq.Job) error { return nil }))
		b.Pass(time.Second)
		require.Equal(b, []string{"k/1", "k/0"}, l.of("k"))
	})
}
