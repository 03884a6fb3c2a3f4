package tests

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// laneStarts records the order in which jobs start.
type laneStarts struct {
	mu  sync.Mutex
	ids []string
}

// taking is a handler that takes d.
func (s *laneStarts) taking(d time.Duration) delayq.HandlerFunc {
	return func(_ context.Context, job *delayq.Job) error {
		s.mu.Lock()
		s.ids = append(s.ids, job.ID)
		s.mu.Unlock()
		time.Sleep(d)
		return nil
	}
}

func (s *laneStarts) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.ids...)
}

// counts returns how many of the first n starts have IDs with each prefix.
func (s *laneStarts) counts(n int, prefixes ...string) []int {
	list := make([]int, len(prefixes))
	for _, id := range s.all()[:n] {
		for i, prefix := range prefixes {
			if strings.HasPrefix(id, prefix) {
				list[i]++
			}
		}
	}
	return list
}

// many stores numbered jobs with the same options.
func many(b *queuetest.Bubble, prefix string, n int, opts ...delayq.JobOption) {
	b.Helper()
	jobs := make([]delayq.NewJob, n)
	for i := range jobs {
		jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprintf("%s%d", prefix, i), Options: opts}
	}
	_, err := b.Client.EnqueueBatch(b.Context(), jobs)
	require.NoError(b, err)
}

// A few jobs of one key do not wait for a backlog of another.
func TestKeysTakeTurns(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var s laneStarts
		many(b, "whale-", 500, delayq.Key("whale"))
		b.Serve("a", s.taking(time.Second), delayq.Concurrency(2))
		b.Pass(time.Second)
		before := len(s.all())
		many(b, "small-", 10, delayq.Key("small"))
		b.Pass(15 * time.Second)
		require.Equal(b, []int{10}, s.counts(before+25, "small-"))
		b.Pass(5 * time.Minute)
		require.Len(b, s.all(), 510)
		require.Empty(b, b.Stats("a").Keyed)
		for _, key := range []string{"lane", "turn", "keyed"} {
			require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:"+key).Val(), key)
		}
	})
}

// Jobs without a key are one more key of the round, with many keys and in both orders.
func TestPlainJobsAreOneKeyMore(t *testing.T) {
	for _, plainFirst := range []bool{false, true} {
		t.Run(fmt.Sprint("plain first: ", plainFirst), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var s laneStarts
				if plainFirst {
					many(b, "plain-", 300)
				}
				for i := range 4 {
					many(b, fmt.Sprintf("k%d-", i), 300, delayq.Key(fmt.Sprint("key", i)))
				}
				if !plainFirst {
					many(b, "plain-", 300)
				}
				b.Serve("a", s.taking(time.Second), delayq.Concurrency(10))
				b.Pass(50 * time.Second)
				for i, n := range s.counts(500, "plain-", "k0-", "k1-", "k2-", "k3-") {
					require.InDelta(b, 100, n, 10, "the %dth", i)
				}
				b.Pass(3 * time.Minute)
				require.Len(b, s.all(), 1500)
			})
		})
	}
}

// A weight is a share of the starts.
func TestWeightOfAKey(t *testing.T) {
	for _, workers := range []int{1, 8, 64} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var s laneStarts
				require.NoError(b, b.Client.SetKeyLimits(b.Context(), "a", "large", delayq.KeyLimits{Weight: 3}))
				many(b, "large-", 1000, delayq.Key("large"))
				many(b, "small-", 1000, delayq.Key("small"))
				b.Serve("a", s.taking(time.Second), delayq.Concurrency(workers))
				b.Pass(time.Duration(400/workers+1) * time.Second)
				n := s.counts(400, "large-", "small-")
				require.InDelta(b, 300, n[0], 20)
				require.InDelta(b, 100, n[1], 20)
				keys, err := b.Inspector.Keys(b.Context(), "a", "", 10)
				require.NoError(b, err)
				require.Len(b, keys, 2)
				require.Equal(b, 3, keys[0].Weight)
				require.Equal(b, 1, keys[1].Weight)
			})
		})
	}
}

// Within a key the earliest due job starts first, with its head start.
func TestPriorityIsAHeadStart(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var s laneStarts
		key := delayq.Key("k")
		b.Enqueue("a", "first", key)
		b.Pass(time.Minute)
		b.Enqueue("a", "urgent", key, delayq.Priority(2*time.Minute))
		b.Enqueue("a", "idle", key, delayq.Priority(-time.Hour))
		b.Pass(30 * time.Minute)
		b.Enqueue("a", "last", key)
		b.Enqueue("a", "late", key, delayq.Priority(20*time.Minute))
		b.Serve("a", s.taking(time.Second), delayq.Concurrency(1))
		b.Pass(time.Minute)
		require.Equal(b, []string{"urgent", "first", "late", "last", "idle"}, s.all())
	})
}

// A handler sees the key of its job. So do the jobs of a schedule, the Inspector, and Again.
func TestKeyIsSeen(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		seen := map[string]int{}
		b.AddSchedule("s", delayq.Every(10*time.Second), delayq.Key("of the schedule"), delayq.Priority(time.Second))
		b.Enqueue("t", "x", delayq.Key("of x"), delayq.ProcessIn(time.Second), delayq.Retry(5))
		require.Equal(b, "of x", b.Get("t", "x").Key)
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			seen[job.Key]++
			if job.Key == "of x" {
				return delayq.Again(nil, delayq.Key("another"), delayq.ProcessIn(time.Second))
			}
			return nil
		})
		b.Pass(35 * time.Second)
		require.Equal(b, map[string]int{"of x": 1, "another": 1, "of the schedule": 3}, seen)
		_, err := b.Client.Trigger(b.Context(), "t", "s")
		require.NoError(b, err)
		b.Pass(time.Second)
		require.Equal(b, 4, seen["of the schedule"])
	})
}

// Each of the idle servers is woken for one of the jobs in lanes, whether it blocks or is rung.
func TestJobsInLanesWakeServers(t *testing.T) {
	for _, due := range []time.Duration{0, time.Minute} {
		t.Run(due.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var mu sync.Mutex
				ran := map[int]int{}
				for i := range 10 {
					b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
						mu.Lock()
						ran[i]++
						mu.Unlock()
						return block(ctx, job)
					}, delayq.Concurrency(1))
				}
				b.Pass(3300 * time.Millisecond)
				many(b, "job-", 100, delayq.Key("k"), delayq.ProcessIn(due))
				b.Pass(due)
				synctest.Wait()
				require.Len(b, ran, 10, "at once")
			})
		})
	}
}

// Ready gets no more than 64 empty IDs when nobody listens.
func TestEmptyIDsAreBounded(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		for i := range 5 {
			many(b, fmt.Sprintf("job-%d-", i), 500, delayq.Key(fmt.Sprint(i)))
		}
		require.LessOrEqual(b, b.RDB.LLen(b.Context(), queuetest.Prefix+":{a}:ready").Val(), int64(64))
		require.EqualValues(b, 2500, b.Stats("a").Keyed)
	})
}

// A handler that returns HoldKey makes the jobs of its key wait, and no others. No attempt is used
// up, and the key goes on by itself.
func TestHoldKey(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var s laneStarts
		limited := time.Now().Add(time.Minute)
		run := s.taking(time.Second)
		handler := func(ctx context.Context, job *delayq.Job) error {
			if job.Key == "limited" && time.Now().Before(limited) {
				return fmt.Errorf("429: %w", delayq.HoldKey(time.Until(limited)))
			}
			require.Equal(b, 1, job.Attempt)
			return run(ctx, job)
		}
		for range 2 {
			b.Serve("a", handler, delayq.Concurrency(1))
		}
		many(b, "limited-", 5, delayq.Key("limited"))
		many(b, "other-", 5, delayq.Key("other"))
		many(b, "plain-", 5)
		b.Pass(59 * time.Second)
		require.Len(b, s.all(), 10)
		require.Equal(b, []int{0, 5, 5}, s.counts(10, "limited-", "other-", "plain-"))
		keys, err := b.Inspector.Keys(b.Context(), "a", "", 10)
		require.NoError(b, err)
		require.Len(b, keys, 1)
		require.Equal(b, "limited", keys[0].Key)
		require.EqualValues(b, 5, keys[0].Waiting)
		require.True(b, keys[0].HeldUntil.Equal(limited), keys[0].HeldUntil)
		b.Pass(time.Second)
		require.Len(b, s.all(), 12, "both servers go on at the end of the hold")
		b.Pass(time.Minute)
		require.Len(b, s.all(), 15)
		require.Zero(b, b.RDB.Exists(b.Context(), queuetest.Prefix+":{a}:held").Val())
	})
}

// A short hold ends in time, whoever made it: servers need not wait for their tick.
func TestShortHoldsOfAKeyEndInTime(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var starts []time.Duration
		var began time.Time
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			starts = append(starts, time.Since(began))
			if job.ID == "holds" && len(starts) == 1 {
				return delayq.HoldKey(70 * time.Millisecond)
			}
			return nil
		})
		for _, id := range []string{"holds", "is held"} {
			b.Pass(10 * time.Second) // the timers rest
			began, starts = time.Now(), nil
			want := []time.Duration{0, 70 * time.Millisecond}
			if id == "is held" {
				require.NoError(b, b.Client.HoldKey(b.Context(), "a", "k", 70*time.Millisecond))
				want = want[1:]
			}
			b.Enqueue("a", id, delayq.Key("k"))
			b.Pass(100 * time.Millisecond)
			require.Equal(b, want, starts, id)
		}
	})
}

// A job without a key has nothing to hold. It fails, and is retried after that time.
func TestHoldKeyOfAJobWithoutAKey(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var attempts []time.Time
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			attempts = append(attempts, time.Now())
			if job.Attempt == 1 {
				return delayq.HoldKey(time.Minute)
			}
			return nil
		}, delayq.Concurrency(1))
		b.Enqueue("a", "x")
		b.Enqueue("a", "y")
		b.Pass(59 * time.Second)
		require.Len(b, attempts, 2)
		require.Equal(b, 2, b.Get("a", "x").Attempt)
		b.Pass(time.Second)
		require.Len(b, attempts, 4)
	})
}

// A key is paused and held from outside. Servers that wait are woken when it is resumed.
func TestPauseOfAKey(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx, c := b.Context(), b.Client
		var s laneStarts
		b.Serve("a", s.taking(0))
		require.NoError(b, c.PauseKey(ctx, "a", "k"))
		require.NoError(b, c.HoldKey(ctx, "a", "k", time.Second), "the pause stays")
		many(b, "k-", 3, delayq.Key("k"))
		many(b, "other-", 3, delayq.Key("other"))
		b.Pass(10 * time.Minute)
		require.Equal(b, []int{3}, s.counts(3, "other-"))
		require.Len(b, s.all(), 3)
		keys, err := b.Inspector.Keys(ctx, "a", "", 10)
		require.NoError(b, err)
		require.Equal(b, []delayq.KeyInfo{{Key: "k", Waiting: 3, Weight: 1, First: "k-0", Paused: true}}, keys)
		require.NoError(b, c.ResumeKey(ctx, "a", "k"))
		b.Pass(0)
		require.Len(b, s.all(), 6)

		require.NoError(b, c.HoldKey(ctx, "a", "k", time.Minute))
		many(b, "held-", 1, delayq.Key("k"))
		b.Pass(time.Minute - time.Millisecond)
		require.Len(b, s.all(), 6)
		b.Pass(time.Millisecond)
		require.Len(b, s.all(), 7)
	})
}

// Holds of keys that cannot be are refused, and nothing is written.
func TestInvalidHoldsOfKeys(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx, c := b.Context(), b.Client
		for want, err := range map[string]error{
			"key of 0 bytes: must have 1 to 255":   c.PauseKey(ctx, "a", ""),
			"key of 256 bytes: must have 1 to 255": c.HoldKey(ctx, "a", strings.Repeat("k", 256), time.Hour),
			"d(0s): must be from 1ms":              c.HoldKey(ctx, "a", "k", 0),
			"d(-1h0m0s): must be from 1ms":         c.HoldKey(ctx, "a", "k", -time.Hour),
			"empty topic":                          c.ResumeKey(ctx, "", "k"),
		} {
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, want)
		}
		require.Empty(b, b.RDB.Keys(ctx, "*").Val())
	})
}

// SetPriority changes which job of a key is the next one, and no due time. It counts after a retry
// too.
func TestSetPriority(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx, c := b.Context(), b.Client
		for i := range 4 {
			b.Enqueue("a", fmt.Sprint("k", i), delayq.Key("k"))
			b.Pass(time.Millisecond)
		}
		b.Enqueue("a", "later", delayq.Key("k"), delayq.ProcessIn(time.Minute))
		b.Enqueue("a", "plain")
		require.NoError(b, c.SetPriority(ctx, "a", "k2", time.Hour))
		require.NoError(b, c.SetPriority(ctx, "a", "k0", -time.Second))
		require.NoError(b, c.SetPriority(ctx, "a", "later", 24*time.Hour))
		keys, err := b.Inspector.Keys(ctx, "a", "", 10)
		require.NoError(b, err)
		require.Equal(b, "k2", keys[0].First)
		require.Equal(b, b.Began.Add(time.Minute+4*time.Millisecond).UTC(), b.Get("a", "later").Due.UTC())

		require.ErrorIs(b, c.SetPriority(ctx, "a", "none", 0), delayq.ErrNotFound)
		for want, err := range map[string]error{
			"the job has no Key":                    c.SetPriority(ctx, "a", "plain", time.Hour),
			"d(24h0m0.001s): must be from -24h0m0s": c.SetPriority(ctx, "a", "k1", 24*time.Hour+time.Millisecond),
		} {
			require.ErrorIs(b, err, delayq.ErrInvalid)
			require.ErrorContains(b, err, want)
		}
		_, err = c.Dequeue(ctx, "a", "plain")
		require.NoError(b, err)
		var s laneStarts
		b.Serve("a", s.taking(time.Second), delayq.Concurrency(1))
		b.Pass(4 * time.Second)
		require.Equal(b, []string{"k2", "k1", "k3", "k0"}, s.all())
		b.Pass(2 * time.Minute)
		require.Len(b, s.all(), 5)
	})
}

// A hold that is over when the job is back gives it back at once: a server that waits is woken.
func TestHoldOfAKeyUntilThePast(t *testing.T) {
	for name, held := range map[string]func() error{
		"of the past": func() error { return delayq.HoldKey(-time.Second) },
		"for 0":       func() error { return delayq.HoldKey(0) },
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var starts []time.Duration
				var began time.Time
				b.Serve("a", func(context.Context, *delayq.Job) error {
					starts = append(starts, time.Since(began))
					if len(starts) == 1 {
						return held()
					}
					return nil
				}, delayq.Concurrency(4))
				b.Pass(10 * time.Second)
				began = time.Now()
				b.Enqueue("a", "x", delayq.Key("k"))
				b.Pass(time.Millisecond)
				require.Equal(b, []time.Duration{0, 0}, starts)
			})
		})
	}
}

// A repair that gives a key its turn wakes servers.
func TestRepairOfAKeyWakesServers(t *testing.T) {
	for _, damaged := range []string{"held", "turn", "lane"} {
		t.Run(damaged, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var s laneStarts
				b.Serve("a", s.taking(0))
				require.NoError(b, b.Client.PauseKey(b.Context(), "a", "k"))
				b.Enqueue("a", "x", delayq.Key("k"))
				b.Pass(10 * time.Second)
				root := queuetest.Prefix + ":{a}:"
				if damaged == "held" {
					require.NoError(b, b.RDB.ZAdd(b.Context(), root+"held", redis.Z{Score: 1e15, Member: "k"}).Err())
				} else {
					require.NoError(b, b.RDB.Del(b.Context(), root+"held", root+damaged).Err())
				}
				_, err := b.Client.Repair(b.Context(), "a")
				require.NoError(b, err)
				b.Pass(time.Second)
				require.Equal(b, []string{"x"}, s.all())
			})
		})
	}
}

// The log names what is held. The statistics of a topic pass over held keys.
func TestHeldKeysInLogAndStats(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var out bytes.Buffer
		b.Serve("a", func(context.Context, *delayq.Job) error { return delayq.HoldKey(time.Hour) },
			delayq.Logger(slog.New(slog.NewTextHandler(&out, nil))))
		b.Enqueue("a", "x", delayq.Key("k"))
		b.Pass(time.Minute)
		require.Contains(b, out.String(), `level=INFO msg="key held"`)
		require.Contains(b, out.String(), "key=k delay=1h0m0s")
		for i := range 2 { // the second one gives the key a turn until the next take
			stats := b.Stats("a")
			require.EqualValues(b, stats.Overdue, stats.Keyed)
			require.Zero(b, stats.OldestOverdue)
			b.Enqueue("a", fmt.Sprint("y", i), delayq.Key("k"))
		}
	})
}
