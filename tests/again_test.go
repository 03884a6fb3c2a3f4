package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A job that enqueues itself anew: each of its lives ends well, begins with the first attempt, has
// the payload that the one before gave it, and is due to the millisecond. The first two fail once.
func TestAgain(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		var nonces []string
		b.Serve("a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			n, _ := strconv.Atoi(string(job.Payload)) // 0 in the beginning
			switch {
			case job.Attempt == 1 && n < 2:
				return queuetest.ErrTest
			case n == 3:
				return nil
			}
			nonces = append(nonces, job.Nonce())
			require.Equal(b, "y", job.Headers["x"])
			require.Equal(b, 7, job.Retries)
			return delayq.Again([]byte(strconv.Itoa(n+1)), delayq.ProcessIn(5*time.Minute))
		}), delayq.Hooks(&hooks))
		b.Enqueue("a", "1", delayq.Retry(7), delayq.Backoff(time.Minute, time.Minute), delayq.Header("x", "y"), delayq.Retention(25*time.Minute))
		b.Pass(90 * time.Second)
		info := b.Get("a", "1")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, "1", string(info.Payload))
		require.Equal(b, 1, info.Attempt)
		require.Empty(b, info.Errors)
		require.Empty(b, info.DueReason)
		require.Equal(b, info.EnqueuedAt.Add(5*time.Minute), info.Due)
		b.Pass(20 * time.Minute)

		var story []string
		for _, s := range rec.All() {
			story = append(story, fmt.Sprint(s.Payload, " ", s.Attempt))
			require.True(b, s.Started.Equal(s.Due), "on time")
		}
		require.Equal(b, []string{"of 1 1", "of 1 2", "1 1", "1 2", "2 1", "3 1"}, story)
		require.Len(b, nonces, 3)
		slices.Sort(nonces)
		require.Len(b, slices.Compact(nonces), 3, "nonces")
		require.Equal(b, map[string]int{"Started": 6, "Retried": 2, "Again": 3, "Done": 1}, hooks.Kinds("1"))
		for i, e := range hooks.Of("Again") {
			require.Equal(b, delayq.OutcomeAgain, e.Outcome)
			require.True(b, delayq.IsAgain(e.Err))
			require.True(b, e.NextDue.Equal(e.FinishedAt.Add(5*time.Minute)))
			require.Equal(b, []int{2, 2, 1}[i], e.Attempt)
		}
		for name, want := range map[delayq.Counter]int64{
			delayq.CounterEnqueued: 4, delayq.CounterTaken: 6, delayq.CounterRetried: 2, delayq.CounterAcked: 4, delayq.CounterAgain: 3,
		} {
			require.Equal(b, want, b.Counter("a", name), name)
		}
		info = b.Get("a", "1")
		require.Equal(b, delayq.StateDone, info.State, "its last life; while a new one waits, Get tells of that")
		require.Equal(b, "3", string(info.Payload))
	})
}

// What several errors together ask for: a panic goes first, then Permanent, Again, Snooze, RetryIn,
// and any other error last.
func TestAgainAmongOtherErrors(t *testing.T) {
	again := func() error { return delayq.Again([]byte("new"), delayq.ProcessIn(time.Hour)) }
	for name, c := range map[string]struct {
		say     func() error
		isAgain bool
		hook    string
		log     string // level
	}{
		"alone":         {again, true, "Again", ""},
		"with a text":   {func() error { return fmt.Errorf("for tomorrow: %w", again()) }, true, "Again", "INFO"},
		"and an error":  {func() error { return errors.Join(queuetest.ErrTest, again()) }, true, "Again", "WARN"},
		"and a snooze":  {func() error { return errors.Join(delayq.Snooze(time.Minute), again()) }, true, "Again", "INFO"},
		"and RetryIn":   {func() error { return errors.Join(delayq.RetryIn(time.Minute, queuetest.ErrTest), again()) }, true, "Again", "WARN"},
		"and Permanent": {func() error { return errors.Join(again(), delayq.Permanent(queuetest.ErrTest)) }, false, "Buried", "ERROR"},
		"in Permanent":  {func() error { return delayq.Permanent(again()) }, false, "Buried", "ERROR"},
		"in a panic":    {func() error { panic(again()) }, false, "Retried", "WARN"},
		"a nil one":     {func() error { return nil }, false, "Done", ""},
		"another error": {func() error { return queuetest.ErrTest }, false, "Retried", "WARN"},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks queuetest.HookLog
				var log queuetest.Logbook
				is := func(next delayq.Handler) delayq.Handler {
					return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
						err := next.Handle(ctx, job)
						require.Equal(b, c.isAgain, delayq.IsAgain(err))
						return err
					})
				}
				queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
					s.Use(is)
					s.HandlerFunc("a", func(context.Context, *delayq.Job) error { return c.say() })
				}, delayq.Hooks(&hooks), log.To())
				b.Enqueue("a", "1", delayq.Backoff(time.Hour, time.Hour))
				b.Pass(time.Second)
				require.Equal(b, map[string]int{"Started": 1, c.hook: 1}, hooks.Kinds("1"))
				if c.log == "" {
					require.Empty(b, log.With("job=1"))
				} else {
					require.Len(b, log.With("job=1"), 1)
					require.Len(b, log.With("job=1", "level="+c.log, "err="), 1)
				}
				if c.hook == "Again" {
					require.Len(b, log.With("job=1", `msg="job enqueued again"`), len(log.With("job=1")))
					require.Equal(b, "new", string(b.Get("a", "1").Payload))
				}
			})
		})
	}
}

// An Again that cannot be is a failed attempt that says so, also with what was joined to it.
func TestAgainThatIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		texts []string
	}{
		"options": {
			delayq.Again(nil, delayq.Retry(-7), nil), []string{"Retry(-7)", "a job option is nil"},
		},
		"expiry": {
			delayq.Again(nil, delayq.ProcessIn(2*time.Hour)), []string{"ExpireIn(1h0m0s) must be longer than ProcessIn(2h0m0s)"},
		},
		"expiry at": {
			delayq.Again(nil, delayq.ProcessAt(time.Date(2000, 1, 1, 2, 0, 0, 0, time.UTC))), []string{"it could never run"},
		},
		"expired": {
			delayq.Again(nil, delayq.ExpireAt(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))), []string{"it could never run"},
		},
		"payload": {
			delayq.Again(make([]byte, 64<<20+1)), []string{"payload of 67108865 bytes, at most 67108864"},
		},
		"joined": {
			errors.Join(queuetest.ErrTest, delayq.Again(nil, delayq.Retry(-7))), []string{"Retry(-7)", queuetest.ErrTest.Error()},
		},
		"value": {
			delayq.NewTopic[chan int]("a", delayq.JSON).Again(nil), []string{"encode chan int"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks queuetest.HookLog
				var log queuetest.Logbook
				b.Serve("a", func(context.Context, *delayq.Job) error { return c.err }, delayq.Hooks(&hooks), log.To())
				b.Enqueue("a", "1", delayq.Retry(1), delayq.Backoff(time.Second, time.Second), delayq.ExpireIn(time.Hour))
				b.Pass(time.Minute)
				require.Equal(b, map[string]int{"Started": 2, "Retried": 1, "Buried": 1}, hooks.Kinds("1"))
				require.ErrorIs(b, hooks.Of("Retried")[0].Err, delayq.ErrInvalid)
				info := b.Get("a", "1")
				require.Equal(b, delayq.StateDead, info.State)
				require.Equal(b, "of 1", string(info.Payload))
				for _, text := range append(c.texts, "again: delayq: invalid: ") {
					require.Contains(b, info.Errors[0].Message, text)
					require.NotEmpty(b, log.With(`msg="job retried"`, "job=1"))
				}
				require.EqualValues(b, 1, b.Counter("a", "enqueued"))
			})
		})
	}
}

// A job that was taken from its handler before that returned Again is not enqueued by it.
func TestAgainOfALostJob(t *testing.T) {
	for name, c := range map[string]struct {
		hook string
		take func(b *queuetest.Bubble, w *queuetest.Wire)
		want delayq.State
	}{
		"cancelled": {"Cancelled", func(b *queuetest.Bubble, _ *queuetest.Wire) {
			_, err := b.Client.Dequeue(b.Context(), "a", "1")
			require.NoError(b, err)
		}, ""},
		"cancelled, unheard": {"Cancelled", func(b *queuetest.Bubble, w *queuetest.Wire) {
			w.Deafen()
			_, err := b.Client.Dequeue(b.Context(), "a", "1")
			require.NoError(b, err)
		}, ""},
		"replaced": {"Replaced", func(b *queuetest.Bubble, _ *queuetest.Wire) {
			b.Enqueue("a", "1", delayq.Replace(), delayq.ProcessIn(time.Hour))
		}, delayq.StateScheduled},
		"replaced, unheard": {"LeaseLost", func(b *queuetest.Bubble, w *queuetest.Wire) {
			w.Deafen()
			b.Enqueue("a", "1", delayq.Replace(), delayq.ProcessIn(time.Hour))
		}, delayq.StateScheduled},
		"lost": {"LeaseLost", func(b *queuetest.Bubble, _ *queuetest.Wire) {
			leases := queuetest.Prefix + ":{a}:leases"
			require.NoError(b, b.RDB.ZAdd(b.Context(), leases, queuetest.ZMember("1", time.Now().Add(time.Hour))).Err())
		}, delayq.StateRunning},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks queuetest.HookLog
				w := queuetest.NewWire(b.Redis)
				b.ServeOn(w, "a", func(context.Context, *delayq.Job) error {
					c.take(b, w)
					time.Sleep(100 * time.Millisecond)
					return delayq.Again([]byte("new"))
				}, delayq.Hooks(&hooks))
				b.Enqueue("a", "1")
				b.Pass(time.Second)
				require.Equal(b, map[string]int{"Started": 1, c.hook: 1}, hooks.Kinds("1"))
				require.Zero(b, b.Counter("a", "again"))
				require.Equal(b, c.want, b.State("a", "1"))
				if c.want != "" {
					require.Equal(b, "of 1", string(b.Get("a", "1").Payload))
				}
			})
		})
	}
}

// The answer is lost and the call made again, by go-redis or by the server: the new job is stored
// once.
func TestAgainWithALostAnswer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		b.ServeOn(w, "a", rec.Then(func(_ context.Context, job *delayq.Job) error {
			if string(job.Payload) == "new" {
				return nil
			}
			w.Lose(slices.Repeat([]string{queuetest.Digest("again")}, 6)...) // more often than go-redis repeats
			return delayq.Again([]byte("new"))
		}), delayq.Hooks(&hooks))
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Equal(b, 6, w.Losses())
		require.Len(b, rec.All(), 2)
		require.Equal(b, map[string]int{"Started": 2, "Again": 1, "Done": 1}, hooks.Kinds("1"))
		require.EqualValues(b, 2, b.Counter("a", "enqueued"))
		require.EqualValues(b, 1, b.Counter("a", "again"))
	})
}

// However many jobs carry on at once, a call stores about 1 MiB of payloads beyond the first.
func TestAgainIsBoundedInBytes(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const jobs, size = 20, 400 << 10
		var calls queuetest.HookLog
		release := make(chan struct{})
		b.Serve("a", func(context.Context, *delayq.Job) error {
			<-release
			return delayq.Again(make([]byte, size), delayq.ProcessIn(time.Hour))
		}, delayq.Hooks(&calls), delayq.Concurrency(jobs))
		for i := range jobs {
			b.Enqueue("a", fmt.Sprint(i))
		}
		synctest.Wait()
		close(release)
		synctest.Wait()
		stored := 0
		for _, e := range calls.Scripts {
			if e.Name == "again" {
				stored += e.Jobs
				require.LessOrEqual(b, e.Jobs, 1+(1<<20)/size)
			}
		}
		require.Equal(b, jobs, stored)
		require.Equal(b, size, b.Get("a", "7").PayloadSize)
	})
}

// A handler that the end of Drain has stopped may carry on all the same: what it returns is not an
// error.
func TestAgainAtTheEndOfDrain(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		s := b.Serve("a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			return delayq.Again([]byte("half way"))
		}, delayq.Hooks(&hooks), delayq.Drain(time.Second))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.NoError(b, s.Stop())
		require.Equal(b, map[string]int{"Started": 1, "Again": 1}, hooks.Kinds("1"))
		require.Equal(b, "half way", string(b.Get("a", "1").Payload))
		require.Equal(b, delayq.StateReady, b.State("a", "1"))
	})
}

// The first job of a schedule carries on five times, every 3 s: it keeps its slot, the history has
// each of its runs, and for the overlap policy it goes on until it ends without Again, at 25 s.
func TestAgainInASchedule(t *testing.T) {
	for _, test := range []struct {
		policy delayq.OverlapPolicy
		starts []time.Duration
		again  int
	}{
		{delayq.OverlapAllow, seconds(10, 13, 16, 19, 20, 22, 25, 30, 40), 5},
		{delayq.OverlapSkip, seconds(10, 13, 16, 19, 22, 25, 30, 40), 5},
		{delayq.OverlapQueueOne, seconds(10, 13, 16, 19, 22, 25, 25, 30, 40), 5},
		{delayq.OverlapCancelPrevious, seconds(10, 13, 16, 19, 20, 30, 40), 4},
	} {
		t.Run(test.policy.String(), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var rec queuetest.Recorder
				b.Serve("t", rec.Then(func(_ context.Context, job *delayq.Job) error {
					require.Equal(b, "s", job.Schedule)
					if !job.Slot.Equal(b.Began.Add(10 * time.Second)) {
						return nil
					}
					n, _ := strconv.Atoi(string(job.Payload))
					if n == 5 {
						return nil
					}
					return delayq.Again([]byte(strconv.Itoa(n+1)), delayq.ProcessIn(3*time.Second))
				}))
				b.AddSchedule("s", delayq.Every(10*time.Second), test.policy)
				b.Pass(44 * time.Second)
				var starts []time.Duration
				for _, s := range rec.All() {
					starts = append(starts, s.At.Sub(b.Began))
				}
				require.Equal(b, test.starts, starts)
				runs, err := b.Inspector.Runs(b.Context(), "t", "s", 100)
				require.NoError(b, err)
				ends := map[delayq.Outcome]int{}
				for _, run := range runs {
					ends[run.Outcome]++
					require.Empty(b, run.Error)
				}
				require.Equal(b, test.again, ends[delayq.OutcomeAgain])
				info := b.ScheduleInfo("s")
				require.Zero(b, info.Failures)
				require.EqualValues(b, len(runs), info.Attempts)
			})
		})
	}
}

// A typed topic encodes the payload.
func TestTypedAgain(t *testing.T) {
	type state struct{ Page int }
	crawl := delayq.NewTopic[state]("a")
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var pages []int
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			crawl.Handle(s, func(_ context.Context, _ *delayq.Job, at state) error {
				pages = append(pages, at.Page)
				if at.Page == 3 {
					return nil
				}
				return crawl.Again(state{at.Page + 1}, delayq.ProcessIn(time.Second))
			})
		})
		_, err := crawl.Enqueue(b.Context(), b.Client, "site", state{1})
		require.NoError(b, err)
		b.Pass(time.Minute)
		require.Equal(b, []int{1, 2, 3}, pages)
		require.Empty(b, b.State("a", "site"))
	})
}

// On a real Redis too, with many jobs at once.
func TestManyJobsThatCarryOn(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		const jobs, lives = 200, 5
		prefix := redistest.Prefix(t)
		var hooks queuetest.HookLog
		queuetest.Serve(t, rdb, prefix, "a", func(_ context.Context, job *delayq.Job) error {
			n, _ := strconv.Atoi(string(job.Payload))
			if n == lives-1 {
				return nil
			}
			return delayq.Again([]byte(strconv.Itoa(n+1)), delayq.ProcessIn(time.Duration(n)*time.Millisecond))
		}, delayq.Hooks(&hooks), delayq.Concurrency(50))
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
		list := make([]delayq.NewJob, jobs)
		for i := range list {
			list[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i)}
		}
		_, err := client.EnqueueBatch(t.Context(), list)
		require.NoError(t, err)
		queuetest.Until(t, func() bool { return hooks.Total("Done") == jobs })
		require.Equal(t, jobs*(lives-1), hooks.Total("Again"))
		require.EqualValues(t, jobs*lives, queuetest.CounterOf(t, insp, "a", "acked"))
		require.EqualValues(t, jobs*lives, queuetest.CounterOf(t, insp, "a", "enqueued"))
		info := queuetest.StatsOf(t, insp, "a")
		require.Zero(t, info.Scheduled+info.Ready+info.Running+info.Dead)
	})
}

// What a handler's Defaults say counts for each run and is not stored with the next one: another
// handler may have others.
func TestAgainLeavesDefaultsToTheHandler(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		first := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("a", func(_ context.Context, job *delayq.Job) error {
				require.Equal(b, 3, job.Retries)
				return delayq.Again([]byte("new"), delayq.ProcessIn(5*time.Minute))
			}, delayq.Defaults(delayq.Retry(3), delayq.Retention(time.Hour)))
		})
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.NoError(b, first.Stop())
		require.NotEmpty(b, b.Redis.HGet(queuetest.Prefix+":{a}:results", "1"), "kept, though Get tells of the new one")
		var retries []int
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			retries = append(retries, job.Retries)
			return nil
		})
		b.Pass(5 * time.Minute)
		require.Equal(b, []int{-1}, retries)
	})
}
