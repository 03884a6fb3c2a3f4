package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// (B12)
func TestLongHandlerKeepsItsLease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		for range 3 {
			b.Serve("a", rec.Then(func(ctx context.Context, _ *delayq.Job) error {
				select {
				case <-time.After(time.Minute):
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}), delayq.Lease(2*time.Second))
		}
		for i := range 20 {
			b.Enqueue("a", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*170*time.Millisecond))
		}
		b.Pass(50 * time.Second)
		require.Equal(b, delayq.StateRunning, b.State("a", "0"))
		b.Pass(50 * time.Second)
		require.Len(b, rec.All(), 20)
		require.EqualValues(b, 20, b.Counter("a", "acked"))
		require.Zero(b, b.Counter("a", "reclaimed"))
	})
}

// Handlers that end at the very moment of an extension run once, because no extension overtakes
// their outcomes.
func TestNoExtensionOvertakesAnOutcome(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const count, atOnce = 3000, 1000
		jobs := make([]delayq.NewJob, count)
		for i := range jobs {
			jobs[i] = delayq.NewJob{Topic: "a", ID: fmt.Sprint(i)}
		}
		_, err := b.Client.EnqueueBatch(b.Context(), jobs)
		require.NoError(b, err)
		var starts atomic.Int64
		b.Serve("a", func(context.Context, *delayq.Job) error {
			starts.Add(1)
			time.Sleep(10 * time.Second) // the interval of extensions
			return nil
		}, delayq.Concurrency(atOnce))
		b.Pass(2 * time.Minute)
		require.EqualValues(b, count, starts.Load())
	})
}

// A server that finished a job says so too late, for the network held it up until another server
// had the job. Whatever it says is refused, and what the other one does stands. (B7)
func TestFencingOfEveryVerb(t *testing.T) {
	for verb, result := range map[string]error{
		"ack":    nil,
		"retry":  queuetest.ErrTest,
		"bury":   delayq.Permanent(queuetest.ErrTest),
		"snooze": delayq.Snooze(time.Hour),
		"return": context.Canceled, // of a handler that is cut off by a stop
	} {
		t.Run(verb, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				const lease = 3 * time.Second
				var slow, fast queuetest.HookLog
				w := queuetest.NewWire(b.Redis)
				first := b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
					w.Freeze()
					if verb == "return" {
						<-ctx.Done()
					}
					return result
				}, delayq.Lease(lease), delayq.Hooks(&slow), delayq.Drain(0))
				b.Enqueue("a", "1")
				b.Enqueue("a", "other", delayq.ProcessIn(time.Hour))
				b.Pass(100 * time.Millisecond)
				if verb == "return" {
					require.NoError(b, first.Stop())
				}

				finish := make(chan struct{})
				var rec queuetest.Recorder
				b.Serve("a", rec.Then(func(context.Context, *delayq.Job) error { <-finish; return nil }),
					delayq.Lease(lease), delayq.Hooks(&fast))
				b.Pass(lease + time.Second) // the first one's wait may have caught the job: the tick lets go of it
				require.Len(b, rec.All(), 1)
				require.Equal(b, 2, rec.All()[0].Attempt)
				before := b.Get("a", "1")
				require.NotContains(b, slow.Kinds("1"), "Done")

				w.Thaw() // what was said is heard now
				b.Pass(7 * time.Second)
				after := b.Get("a", "1")
				require.Equal(b, delayq.StateRunning, after.State, "%s of a server without a lease", verb)
				require.Equal(b, before.Errors, after.Errors)
				require.Equal(b, before.Attempt, after.Attempt)
				for _, counter := range []delayq.Counter{"acked", "retried", "buried", "snoozed", "returned"} {
					require.Zero(b, b.Counter("a", counter), counter)
				}
				if verb != "return" { // by then that server is gone
					require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, slow.Kinds("1"))
					require.ErrorIs(b, slow.Of("LeaseLost")[0].Err, delayq.ErrLeaseLost)
				}
				close(finish)
				synctest.Wait()
				require.Empty(b, b.State("a", "1"))
				require.Equal(b, map[string]int{"Started": 1, "Done": 1}, fast.Kinds("1"))
			})
		})
	}
}

// Redis carries a call out and its answer is lost: the call is made again and nothing happens
// twice. (B6)
func TestLostAnswersChangeNothing(t *testing.T) {
	for _, name := range []string{"take", "ack", "retry", "bury", "snooze", "extend", "promote"} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				b.LoadScripts()
				var rec queuetest.Recorder
				var hooks queuetest.HookLog
				w := queuetest.NewWire(b.Redis)
				b.ServeOn(w, "a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
					switch {
					case job.ID == "retry" && job.Attempt == 1:
						return queuetest.ErrTest
					case job.ID == "bury":
						return delayq.Permanent(queuetest.ErrTest)
					case job.ID == "snooze" && len(rec.Of("snooze")) == 1:
						return delayq.Snooze(time.Second)
					case job.ID == "long":
						select {
						case <-time.After(10 * time.Second):
						case <-ctx.Done():
							return context.Cause(ctx)
						}
					}
					return nil
				}), delayq.Lease(6*time.Second), delayq.Hooks(&hooks))
				for range 3 {
					w.Lose(queuetest.Digest(name))
				}
				want := map[string]int{"ack": 1, "retry": 2, "bury": 1, "snooze": 2, "long": 1}
				b.Enqueue("a", "long")
				for id := range want {
					if id != "long" {
						b.Enqueue("a", id, delayq.ProcessIn(50*time.Millisecond))
					}
				}
				b.Pass(5 * time.Second)
				require.Equal(b, 3, w.Losses(), "the fault did not happen")
				require.Equal(b, want, rec.Times(), "without waiting for any lease to end")
				b.Pass(time.Minute)
				require.Equal(b, want, rec.Times())
				for _, id := range []string{"ack", "retry", "snooze", "long"} {
					require.Empty(b, b.State("a", id), id)
				}
				for counter, n := range map[delayq.Counter]int64{"acked": 4, "retried": 1, "buried": 1, "snoozed": 1, "reclaimed": 0, "taken": 7} {
					require.Equal(b, n, b.Counter("a", counter), counter)
				}
				require.Len(b, b.Get("a", "bury").Errors, 1)
				require.Len(b, hooks.Of("Done"), 4)
				require.Empty(b, hooks.Of("LeaseLost"))
				require.Empty(b, hooks.Of("Cancelled"))
			})
		})
	}
}

// A handler ends while it is not known which of two ends its lease has.
func TestExtensionWithoutAnswerIsNotALostLease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		w := queuetest.NewWire(b.Redis)
		var hooks queuetest.HookLog
		var cause error
		finish := make(chan struct{})
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-finish
			cause = context.Cause(ctx)
			return nil
		}, delayq.Lease(6*time.Second), delayq.Hooks(&hooks))
		b.Enqueue("a", "1")
		end := b.Get("a", "1").LeaseEnd
		for range 40 { // more than will be made
			w.Lose(queuetest.Digest("extend"))
		}
		b.Pass(2*time.Second + time.Millisecond)
		require.Positive(b, w.Losses())
		require.True(b, b.Get("a", "1").LeaseEnd.After(end), "the extension has been carried out")
		close(finish)
		synctest.Wait()
		require.NoError(b, cause)
		require.Empty(b, b.State("a", "1"))
		require.Equal(b, map[string]int{"Started": 1, "Done": 1}, hooks.Kinds("1"))
	})
}

// Whatever the handler of a cancelled job returns, the job is gone and the outcome is "cancelled".
// (D2, D4)
func TestDequeueOfARunningJob(t *testing.T) {
	for name, result := range map[string]error{
		"nil": nil, "error": queuetest.ErrTest, "ctx": context.Canceled, "cause": delayq.ErrCancelled, "permanent": delayq.Permanent(queuetest.ErrTest), "snooze": delayq.Snooze(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks queuetest.HookLog
				var rec queuetest.Recorder
				var cause error
				var at time.Duration
				b.Serve("a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
					if string(job.Payload) == "new" {
						return nil
					}
					<-ctx.Done()
					cause, at = context.Cause(ctx), b.At()
					time.Sleep(time.Second)
					return result
				}), delayq.Hooks(&hooks))
				b.Enqueue("a", "1")
				b.Pass(1500 * time.Millisecond)
				state, err := b.Client.Dequeue(b.Context(), "a", "1")
				require.NoError(b, err)
				require.Equal(b, delayq.StateRunning, state)
				want := b.At()
				synctest.Wait()
				require.ErrorIs(b, cause, delayq.ErrCancelled)
				require.Equal(b, want, at, "told at once")

				// The ID is free, and what the old handler returns is not about the new job.
				_, err = b.Client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.ProcessIn(10*time.Second))
				require.NoError(b, err)
				b.Pass(5 * time.Second)
				info := b.Get("a", "1")
				require.Equal(b, delayq.StateScheduled, info.State)
				require.Empty(b, info.Errors)
				require.Empty(b, info.DueReason)
				require.Equal(b, map[string]int{"Started": 1, "Cancelled": 1}, hooks.Kinds("1"))
				b.Pass(time.Minute)
				require.Len(b, rec.All(), 2)
				require.Equal(b, want+10*time.Second, rec.All()[1].At.Sub(b.Began))
				require.Empty(b, b.State("a", "1"))
			})
		})
	}
}

// With the control channel out of order a cancel is noticed with the next extension, also when no
// slot is free and nothing else happens. (D6)
func TestDequeueOfARunningJobWithoutTheControlChannel(t *testing.T) {
	queuetest.NeedsPop(t)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		w.Stall("subscribe")
		var hooks queuetest.HookLog
		var at time.Duration
		b.ServeOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrCancelled)
			at = b.At()
			return queuetest.ErrTest
		}, delayq.Lease(6*time.Second), delayq.Hooks(&hooks), delayq.Concurrency(1))
		b.Pass(time.Second)
		b.Enqueue("a", "1")
		b.Pass(200 * time.Millisecond)
		_, err := b.Client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		synctest.Wait()
		require.Zero(b, at, "the control channel works after all")
		b.Pass(time.Minute)
		require.Equal(b, 2*time.Second, at)
		require.Equal(b, map[string]int{"Started": 1, "Cancelled": 1}, hooks.Kinds("1"))
		require.Empty(b, b.State("a", "1"))
	})
}

// (D13)
func TestReplaceOfARunningJob(t *testing.T) {
	queuetest.NeedsPop(t)
	for _, nudged := range []bool{true, false} {
		t.Run(fmt.Sprintf("nudged=%v", nudged), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				w := queuetest.NewWire(b.Redis)
				if !nudged {
					w.Stall("subscribe")
				}
				var hooks queuetest.HookLog
				var rec queuetest.Recorder
				nonces := make(map[string]string)
				b.ServeOn(w, "a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
					nonces[string(job.Payload)] = job.Nonce()
					if string(job.Payload) != "of 1" {
						return nil
					}
					<-ctx.Done()
					require.ErrorIs(b, context.Cause(ctx), delayq.ErrLeaseLost)
					return delayq.Permanent(queuetest.ErrTest)
				}), delayq.Lease(3*time.Second), delayq.Hooks(&hooks))
				b.Enqueue("a", "1")
				b.Pass(300 * time.Millisecond)
				_, err := b.Client.Enqueue(b.Context(), "a", "1", []byte("refused"))
				require.ErrorIs(b, err, delayq.ErrDuplicate)
				job, err := b.Client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.Replace(), delayq.ProcessIn(5*time.Second))
				require.NoError(b, err)
				b.Pass(time.Minute)
				starts := rec.All()
				require.Len(b, starts, 2)
				require.Equal(b, "new", starts[1].Payload)
				require.Equal(b, 1, starts[1].Attempt)
				require.Equal(b, 5300*time.Millisecond, starts[1].At.Sub(b.Began))
				require.Equal(b, job.Nonce(), nonces["new"])
				require.NotEqual(b, nonces["of 1"], nonces["new"])
				hook, cause := "Replaced", delayq.ErrReplaced
				if !nudged { // what an extension finds out may be a lease that was over as well
					hook, cause = "LeaseLost", delayq.ErrLeaseLost
				}
				require.Len(b, hooks.Of(hook), 1)
				require.ErrorIs(b, hooks.Of(hook)[0].Err, cause)
				require.ErrorIs(b, hooks.Of(hook)[0].Err, queuetest.ErrTest)
				require.Equal(b, map[string]int{"Started": 2, hook: 1, "Done": 1}, hooks.Kinds("1"))
				require.Empty(b, b.State("a", "1"))
			})
		})
	}
}

func TestFenceGrows(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		var seen []int64
		b.Serve("a", func(_ context.Context, job *delayq.Job) error {
			for range 10 {
				mu.Lock()
				seen = append(seen, job.Fence())
				mu.Unlock()
				time.Sleep(time.Second)
			}
			return queuetest.ErrTest
		}, delayq.Lease(3*time.Second))
		all := func() []int64 {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(seen)
		}
		b.Enqueue("a", "1", delayq.Retry(2), delayq.Backoff(time.Millisecond, time.Millisecond))
		b.Pass(500 * time.Millisecond)
		info := b.Get("a", "1")
		fences := all()
		require.Len(b, fences, 1)
		require.Equal(b, fences[0], info.Fence())
		require.WithinDuration(b, info.LeaseEnd, time.UnixMicro(fences[0]), time.Millisecond)
		b.Pass(time.Minute)
		fences = all()
		require.Len(b, fences, 30)
		grown := 0
		for i := range fences[1:] {
			require.GreaterOrEqual(b, fences[i+1], fences[i])
			if fences[i+1] > fences[i] {
				grown++
			}
		}
		require.GreaterOrEqual(b, grown, 20) // an extension can come after the next look
		require.Greater(b, fences[10], fences[9], "another lease")
		require.Greater(b, fences[20], fences[19], "another lease")
	})
}

// A handler that does not heed its Timeout keeps the lease no longer, and the job is run elsewhere.
// (C9)
func TestHandlerPastItsTimeoutLosesTheJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		const lease, timeout = 3 * time.Second, 10 * time.Second
		var stuck queuetest.HookLog
		release := make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		first := b.Serve("a", func(context.Context, *delayq.Job) error {
			<-release
			return nil
		}, delayq.Lease(lease), delayq.Hooks(&stuck), delayq.Concurrency(1))
		b.Enqueue("a", "1", delayq.Timeout(timeout))
		synctest.Wait()
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil), delayq.Lease(lease))
		b.Pass(timeout)
		require.Empty(b, rec.All())
		b.Pass(lease + 10*time.Millisecond)
		require.Len(b, rec.All(), 1)
		require.Equal(b, 2, rec.All()[0].Attempt)
		b.Pass(lease) // the first one has noticed
		servers, err := b.Inspector.Servers(b.Context())
		require.NoError(b, err)
		for _, s := range servers {
			if s.ID == first.ID() {
				require.Equal(b, 1, s.Topics["a"].Running, "the slot of the stuck handler is in use, and shown to be")
			}
		}
		free()
		b.Pass(time.Minute)
		require.Len(b, rec.All(), 1)
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, stuck.Kinds("1"))
	})
}

// (C2, I2)
func TestUndecodableRecordIsBuried(t *testing.T) {
	spoilt := map[string]func(record string) string{
		"one byte":        func(string) string { return "x" },
		"version 0":       func(r string) string { return r[:8] + "\x00" + r[9:] },
		"no array":        func(r string) string { return r[:10] + "\xc0" + r[11:] },
		"no time":         func(r string) string { return r[:11] + "\xc0" + r[12:] },
		"odd time":        func(r string) string { return r[:12] + "not a number!" + r[25:] },
		"cut in half":     func(r string) string { return r[:len(r)/2] },
		"cut by a byte":   func(r string) string { return r[:len(r)-1] },
		"a byte too much": func(r string) string { return r + "\x00" },
		"garbage":         func(string) string { return "\xffgarbage\x01" + strings.Repeat("\xff\x00garbage", 20) },
	}
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var hooks queuetest.HookLog
		var log queuetest.Logbook
		b.Enqueue("a", "good-1")
		for name, spoil := range spoilt {
			b.Enqueue("a", name, delayq.ProcessIn(time.Second))
			whole, err := b.RDB.HGet(b.Context(), queuetest.PoolKey("a"), name).Result()
			require.NoError(b, err)
			require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("a"), name, spoil(whole)).Err())
			spoilt[name] = func(string) string { return spoil(whole) }
		}
		b.Enqueue("a", "good-2", delayq.ProcessIn(time.Second))
		b.Enqueue("b", "good-3", delayq.ProcessIn(time.Second))
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			s.HandlerFunc("a", rec.Then(nil))
			s.HandlerFunc("b", rec.Then(nil))
		}, delayq.Concurrency(2), delayq.Hooks(&hooks), log.To())
		b.Pass(5 * time.Second)
		require.ElementsMatch(b, []string{"good-1", "good-2", "good-3"}, rec.IDs())
		for name, raw := range spoilt {
			info := b.Get("a", name)
			require.Equal(b, delayq.StateDead, info.State, name)
			require.Error(b, info.Undecodable, name)
			require.Equal(b, raw(""), string(info.Raw), "the bytes of %q are kept", name)
			require.Len(b, info.Errors, 1)
			require.Equal(b, delayq.KindUndecodable, info.Errors[0].Kind)
			require.NotEmpty(b, info.Errors[0].Message)
			require.Len(b, hooks.Of("Buried", name), 1, name)
			require.Error(b, hooks.Of("Buried", name)[0].Err)
		}
		require.Len(b, log.With("level=ERROR", `msg="job buried"`, "topic=a"), len(spoilt))

		// A lease of one that ran out does not stop the others either.
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("a"), "lapsed", "garbage").Err())
		require.NoError(b, b.RDB.ZAdd(b.Context(), queuetest.Prefix+":{a}:leases",
			queuetest.ZMember("lapsed", time.Now()), queuetest.ZMember("no such job", time.Now())).Err())
		b.Enqueue("a", "good-4", delayq.ProcessIn(time.Second))
		b.Pass(5 * time.Second)
		require.Equal(b, delayq.StateDead, b.State("a", "lapsed"))
		require.Len(b, rec.Of("good-4"), 1)
		require.Zero(b, b.Counter("a", "taken")-b.Counter("a", "acked")-b.Counter("a", "buried"))
	})
}

// A record of a later release is left alone, for a server that can read it. (O2)
func TestNewerRecordIsLeftInPlace(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var log queuetest.Logbook
		b.Enqueue("a", "newer", delayq.Retry(0))
		old, err := b.RDB.HGet(b.Context(), queuetest.PoolKey("a"), "newer").Result()
		require.NoError(b, err)
		newer := old[:8] + "\x07" + "something else entirely"
		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("a"), "newer", newer).Err())
		b.Serve("a", rec.Then(nil), delayq.Concurrency(1), log.To())
		for i := range 10 {
			b.Enqueue("a", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*10*time.Second))
		}
		b.Pass(2 * time.Minute)
		require.Len(b, rec.All(), 10)
		now, err := b.RDB.HGet(b.Context(), queuetest.PoolKey("a"), "newer").Result()
		require.NoError(b, err)
		require.Equal(b, newer, now)
		info := b.Get("a", "newer")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, 1, info.Attempt)
		require.Empty(b, info.Errors)
		require.Equal(b, newer, string(info.Raw))
		require.Len(b, log.With("job=newer"), 1, "the log says it once")
		require.Len(b, log.With("level=ERROR", `msg="job of a later release"`, "topic=a", "job=newer", "format version 7", "delay=1s"), 1)
		early := b.Counter("a", "snoozed")
		require.InDelta(b, 20, early, 2, "at first every second, and then less often")
		b.Pass(5 * time.Minute)
		late := b.Counter("a", "snoozed")
		b.Pass(20 * time.Minute)
		require.InDelta(b, late+20, b.Counter("a", "snoozed"), 1, "once a minute")
		require.Len(b, log.With("job=newer"), 1)

		require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("a"), "newer", old).Err()) // as if this were the newer server
		b.Pass(time.Minute)
		require.Len(b, rec.Of("newer"), 1)
		require.Equal(b, 1, rec.Of("newer")[0].Attempt)
		require.Empty(b, b.State("a", "newer"))
	})
}

// A server puts off a job of a later release, and no job of its key overtakes it if these run in
// their order. What all releases store alike is shown. A server of that release runs both.
func TestServerPutsOffJobsOfALaterRelease(t *testing.T) {
	for name, ordered := range map[string]bool{"in order": true, "in any order": false} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var rec queuetest.Recorder
				require.NoError(b, b.Client.SetLimits(b.Context(), "a", delayq.Limits{RunningPerKey: 1, Ordered: ordered}))
				enqueued := time.Now()
				b.Enqueue("a", "first", delayq.Key("k"), delayq.Retry(0))
				b.Enqueue("a", "second", delayq.Key("k"))
				b.Enqueue("a", "plain")
				old := b.RDB.HGet(b.Context(), queuetest.PoolKey("a"), "first").Val()
				later := old[:8] + "\x08\x05" + old[10:] + "more" // with an expiry
				require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("a"), "first", later).Err())
				b.Serve("a", rec.Then(nil), delayq.Concurrency(1))
				b.Pass(10 * time.Minute)
				require.Len(b, rec.Of("plain"), 1)
				require.Equal(b, !ordered, len(rec.Of("second")) == 1)
				require.Empty(b, rec.Of("first"))

				info := b.Get("a", "first")
				require.Equal(b, later, string(info.Raw))
				require.ErrorContains(b, info.Undecodable, "format version 8")
				require.Equal(b, "k", info.Key)
				require.True(b, enqueued.Equal(info.EnqueuedAt))
				require.Equal(b, delayq.StateScheduled, info.State)
				require.Equal(b, 1, info.Attempt)
				require.Zero(b, info.Snoozes)
				require.ErrorContains(b, b.Client.Reschedule(b.Context(), "a", "first", delayq.ProcessIn(time.Hour)), "format version 8")

				require.NoError(b, b.RDB.HSet(b.Context(), queuetest.PoolKey("a"), "first", old).Err()) // as if this were the later server
				b.Pass(time.Minute + time.Second)
				require.Len(b, rec.Of("first"), 1)
				require.Equal(b, 1, rec.Of("first")[0].Attempt)
				require.Len(b, rec.Of("second"), 1)
				require.Equal(b, map[bool]string{true: "second", false: "first"}[ordered], rec.All()[2].ID, "the last one")
			})
		})
	}
}
