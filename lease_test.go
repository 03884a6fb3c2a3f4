package delayq_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
)

// (B12)
func TestLongHandlerKeepsItsLease(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		for range 3 {
			b.serve("a", rec.then(func(ctx context.Context, _ *delayq.Job) error {
				select {
				case <-time.After(time.Minute):
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}), delayq.Lease(2*time.Second))
		}
		for i := range 20 {
			b.enqueue("a", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*170*time.Millisecond))
		}
		b.pass(50 * time.Second)
		require.Equal(b, delayq.StateRunning, b.state("a", "0"))
		b.pass(50 * time.Second)
		require.Len(b, rec.all(), 20)
		require.EqualValues(b, 20, b.counter("a", "acked"))
		require.Zero(b, b.counter("a", "reclaimed"))
	})
}

// A server that finished a job says so too late, for the network held it up until another server
// had the job. Whatever it says is refused, and what the other one does stands. (B7)
func TestFencingOfEveryVerb(t *testing.T) {
	for verb, result := range map[string]error{
		"ack":    nil,
		"retry":  errTest,
		"bury":   delayq.Permanent(errTest),
		"snooze": delayq.Snooze(time.Hour),
		"return": context.Canceled, // of a handler that is cut off by a stop
	} {
		t.Run(verb, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.loadScripts()
				const lease = 3 * time.Second
				var slow, fast told
				w := newWire(b.redis)
				first := b.serveOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
					w.freeze()
					if verb == "return" {
						<-ctx.Done()
					}
					return result
				}, delayq.Lease(lease), delayq.Hooks(&slow), delayq.Drain(0))
				b.enqueue("a", "1")
				b.enqueue("a", "other", delayq.ProcessIn(time.Hour))
				b.pass(100 * time.Millisecond)
				if verb == "return" {
					require.NoError(b, first.stop())
				}

				finish := make(chan struct{})
				var rec recorder
				b.serve("a", rec.then(func(context.Context, *delayq.Job) error { <-finish; return nil }),
					delayq.Lease(lease), delayq.Hooks(&fast))
				b.pass(lease + time.Second) // the first one's wait may have caught the job: the tick lets go of it
				require.Len(b, rec.all(), 1)
				require.Equal(b, 2, rec.all()[0].attempt)
				before := b.get("a", "1")
				require.NotContains(b, slow.kinds("1"), "Done")

				w.thaw() // what was said is heard now
				b.pass(7 * time.Second)
				after := b.get("a", "1")
				require.Equal(b, delayq.StateRunning, after.State, "%s of a server without a lease", verb)
				require.Equal(b, before.Errors, after.Errors)
				require.Equal(b, before.Attempt, after.Attempt)
				for _, counter := range []delayq.Counter{"acked", "retried", "buried", "snoozed", "returned"} {
					require.Zero(b, b.counter("a", counter), counter)
				}
				if verb != "return" { // by then that server is gone
					require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, slow.kinds("1"))
					require.ErrorIs(b, slow.of("LeaseLost")[0].Err, delayq.ErrLeaseLost)
				}
				close(finish)
				synctest.Wait()
				require.Empty(b, b.state("a", "1"))
				require.Equal(b, map[string]int{"Started": 1, "Done": 1}, fast.kinds("1"))
			})
		})
	}
}

// Redis carries a call out and its answer is lost: the call is made again and nothing happens
// twice. (B6)
func TestLostAnswersChangeNothing(t *testing.T) {
	for _, name := range []string{"take", "ack", "retry", "bury", "snooze", "extend", "promote"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.loadScripts()
				var rec recorder
				var hooks told
				w := newWire(b.redis)
				b.serveOn(w, "a", rec.then(func(ctx context.Context, job *delayq.Job) error {
					switch {
					case job.ID == "retry" && job.Attempt == 1:
						return errTest
					case job.ID == "bury":
						return delayq.Permanent(errTest)
					case job.ID == "snooze" && len(rec.of("snooze")) == 1:
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
					w.lose(script(name))
				}
				want := map[string]int{"ack": 1, "retry": 2, "bury": 1, "snooze": 2, "long": 1}
				b.enqueue("a", "long")
				for id := range want {
					if id != "long" {
						b.enqueue("a", id, delayq.ProcessIn(50*time.Millisecond))
					}
				}
				b.pass(5 * time.Second)
				require.Equal(b, 3, w.losses(), "the fault did not happen")
				require.Equal(b, want, rec.times(), "without waiting for any lease to end")
				b.pass(time.Minute)
				require.Equal(b, want, rec.times())
				for _, id := range []string{"ack", "retry", "snooze", "long"} {
					require.Empty(b, b.state("a", id), id)
				}
				for counter, n := range map[delayq.Counter]int64{"acked": 4, "retried": 1, "buried": 1, "snoozed": 1, "reclaimed": 0, "taken": 7} {
					require.Equal(b, n, b.counter("a", counter), counter)
				}
				require.Len(b, b.get("a", "bury").Errors, 1)
				require.Len(b, hooks.of("Done"), 4)
				require.Empty(b, hooks.of("LeaseLost"))
				require.Empty(b, hooks.of("Cancelled"))
			})
		})
	}
}

// A handler ends while it is not known which of two ends its lease has.
func TestExtensionWithoutAnswerIsNotALostLease(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		w := newWire(b.redis)
		var hooks told
		var cause error
		finish := make(chan struct{})
		b.serveOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-finish
			cause = context.Cause(ctx)
			return nil
		}, delayq.Lease(6*time.Second), delayq.Hooks(&hooks))
		b.enqueue("a", "1")
		end := b.get("a", "1").LeaseEnd
		for range 40 { // more than will be made
			w.lose(script("extend"))
		}
		b.pass(2*time.Second + time.Millisecond)
		require.Positive(b, w.losses())
		require.True(b, b.get("a", "1").LeaseEnd.After(end), "the extension has been carried out")
		close(finish)
		synctest.Wait()
		require.NoError(b, cause)
		require.Empty(b, b.state("a", "1"))
		require.Equal(b, map[string]int{"Started": 1, "Done": 1}, hooks.kinds("1"))
	})
}

// Whatever the handler of a cancelled job returns, the job is gone and the outcome is "cancelled".
// (D2, D4)
func TestDequeueOfARunningJob(t *testing.T) {
	for name, result := range map[string]error{
		"nil": nil, "error": errTest, "ctx": context.Canceled, "cause": delayq.ErrCancelled, "permanent": delayq.Permanent(errTest), "snooze": delayq.Snooze(time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				var hooks told
				var rec recorder
				var cause error
				var at time.Duration
				b.serve("a", rec.then(func(ctx context.Context, job *delayq.Job) error {
					if string(job.Payload) == "new" {
						return nil
					}
					<-ctx.Done()
					cause, at = context.Cause(ctx), b.at()
					time.Sleep(time.Second)
					return result
				}), delayq.Hooks(&hooks))
				b.enqueue("a", "1")
				b.pass(1500 * time.Millisecond)
				state, err := b.client.Dequeue(b.Context(), "a", "1")
				require.NoError(b, err)
				require.Equal(b, delayq.StateRunning, state)
				want := b.at()
				synctest.Wait()
				require.ErrorIs(b, cause, delayq.ErrCancelled)
				require.Equal(b, want, at, "told at once")

				// The ID is free, and what the old handler returns is not about the new job.
				_, err = b.client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.ProcessIn(10*time.Second))
				require.NoError(b, err)
				b.pass(5 * time.Second)
				info := b.get("a", "1")
				require.Equal(b, delayq.StateScheduled, info.State)
				require.Empty(b, info.Errors)
				require.Empty(b, info.DueReason)
				require.Equal(b, map[string]int{"Started": 1, "Cancelled": 1}, hooks.kinds("1"))
				b.pass(time.Minute)
				require.Len(b, rec.all(), 2)
				require.Equal(b, want+10*time.Second, rec.all()[1].at.Sub(b.began))
				require.Empty(b, b.state("a", "1"))
			})
		})
	}
}

// With the control channel out of order a cancel is noticed with the next extension, also when no
// slot is free and nothing else happens. (D6)
func TestDequeueOfARunningJobWithoutTheControlChannel(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		w.stall("subscribe")
		var hooks told
		var at time.Duration
		b.serveOn(w, "a", func(ctx context.Context, _ *delayq.Job) error {
			<-ctx.Done()
			require.ErrorIs(b, context.Cause(ctx), delayq.ErrCancelled)
			at = b.at()
			return errTest
		}, delayq.Lease(6*time.Second), delayq.Hooks(&hooks), delayq.Concurrency(1))
		b.pass(time.Second)
		b.enqueue("a", "1")
		b.pass(200 * time.Millisecond)
		_, err := b.client.Dequeue(b.Context(), "a", "1")
		require.NoError(b, err)
		synctest.Wait()
		require.Zero(b, at, "the control channel works after all")
		b.pass(time.Minute)
		require.Equal(b, 2*time.Second, at)
		require.Equal(b, map[string]int{"Started": 1, "Cancelled": 1}, hooks.kinds("1"))
		require.Empty(b, b.state("a", "1"))
	})
}

// (D13)
func TestReplaceOfARunningJob(t *testing.T) {
	for _, nudged := range []bool{true, false} {
		t.Run(fmt.Sprintf("nudged=%v", nudged), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				w := newWire(b.redis)
				if !nudged {
					w.stall("subscribe")
				}
				var hooks told
				var rec recorder
				nonces := make(map[string]string)
				b.serveOn(w, "a", rec.then(func(ctx context.Context, job *delayq.Job) error {
					nonces[string(job.Payload)] = job.Nonce()
					if string(job.Payload) != "of 1" {
						return nil
					}
					<-ctx.Done()
					require.ErrorIs(b, context.Cause(ctx), delayq.ErrLeaseLost)
					return delayq.Permanent(errTest)
				}), delayq.Lease(3*time.Second), delayq.Hooks(&hooks))
				b.enqueue("a", "1")
				b.pass(300 * time.Millisecond)
				_, err := b.client.Enqueue(b.Context(), "a", "1", []byte("refused"))
				require.ErrorIs(b, err, delayq.ErrDuplicate)
				job, err := b.client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.Replace(), delayq.ProcessIn(5*time.Second))
				require.NoError(b, err)
				b.pass(time.Minute)
				starts := rec.all()
				require.Len(b, starts, 2)
				require.Equal(b, "new", starts[1].payload)
				require.Equal(b, 1, starts[1].attempt)
				require.Equal(b, 5300*time.Millisecond, starts[1].at.Sub(b.began))
				require.Equal(b, job.Nonce(), nonces["new"])
				require.NotEqual(b, nonces["of 1"], nonces["new"])
				hook, cause := "Replaced", delayq.ErrReplaced
				if !nudged { // what an extension finds out may be a lease that was over as well
					hook, cause = "LeaseLost", delayq.ErrLeaseLost
				}
				require.Len(b, hooks.of(hook), 1)
				require.ErrorIs(b, hooks.of(hook)[0].Err, cause)
				require.ErrorIs(b, hooks.of(hook)[0].Err, errTest)
				require.Equal(b, map[string]int{"Started": 2, hook: 1, "Done": 1}, hooks.kinds("1"))
				require.Empty(b, b.state("a", "1"))
			})
		})
	}
}

func TestFenceGrows(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var mu sync.Mutex
		var seen []int64
		b.serve("a", func(_ context.Context, job *delayq.Job) error {
			for range 10 {
				mu.Lock()
				seen = append(seen, job.Fence())
				mu.Unlock()
				time.Sleep(time.Second)
			}
			return errTest
		}, delayq.Lease(3*time.Second))
		all := func() []int64 {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(seen)
		}
		b.enqueue("a", "1", delayq.Retry(2), delayq.Backoff(time.Millisecond, time.Millisecond))
		b.pass(500 * time.Millisecond)
		info := b.get("a", "1")
		fences := all()
		require.Len(b, fences, 1)
		require.Equal(b, fences[0], info.Fence())
		require.WithinDuration(b, info.LeaseEnd, time.UnixMicro(fences[0]), time.Millisecond)
		b.pass(time.Minute)
		fences = all()
		require.Len(b, fences, 30)
		grown := 0
		for i := range fences[1:] {
			require.GreaterOrEqual(b, fences[i+1], fences[i])
			if fences[i+1] > fences[i] {
				grown++
			}
		}
		require.GreaterOrEqual(b, grown, 25)
		require.Greater(b, fences[10], fences[9], "another lease")
		require.Greater(b, fences[20], fences[19], "another lease")
	})
}

// A handler that does not heed its Timeout keeps the lease no longer, and the job is run elsewhere.
// (C9)
func TestHandlerPastItsTimeoutLosesTheJob(t *testing.T) {
	inBubble(t, func(b *bubble) {
		const lease, timeout = 3 * time.Second, 10 * time.Second
		var stuck told
		release := make(chan struct{})
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		first := b.serve("a", func(context.Context, *delayq.Job) error {
			<-release
			return nil
		}, delayq.Lease(lease), delayq.Hooks(&stuck), delayq.Concurrency(1))
		b.enqueue("a", "1", delayq.Timeout(timeout))
		synctest.Wait()
		var rec recorder
		b.serve("a", rec.then(nil), delayq.Lease(lease))
		b.pass(timeout)
		require.Empty(b, rec.all())
		b.pass(lease + 10*time.Millisecond)
		require.Len(b, rec.all(), 1)
		require.Equal(b, 2, rec.all()[0].attempt)
		b.pass(lease) // the first one has noticed
		servers, err := b.client.Servers(b.Context())
		require.NoError(b, err)
		for _, s := range servers {
			if s.ID == first.ID() {
				require.Equal(b, 1, s.Topics["a"].Running, "the slot of the stuck handler is in use, and shown to be")
			}
		}
		free()
		b.pass(time.Minute)
		require.Len(b, rec.all(), 1)
		require.EqualValues(b, 1, b.counter("a", "acked"))
		require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, stuck.kinds("1"))
	})
}

// poolKey is where the records of a topic are: see docs/protocol.md.
func poolKey(topic string) string { return bubblePrefix + ":{" + topic + "}:pool" }

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
	inBubble(t, func(b *bubble) {
		var rec recorder
		var hooks told
		var log logbook
		b.enqueue("a", "good-1")
		for name, spoil := range spoilt {
			b.enqueue("a", name, delayq.ProcessIn(time.Second))
			whole, err := b.rdb.HGet(b.Context(), poolKey("a"), name).Result()
			require.NoError(b, err)
			require.NoError(b, b.rdb.HSet(b.Context(), poolKey("a"), name, spoil(whole)).Err())
			spoilt[name] = func(string) string { return spoil(whole) }
		}
		b.enqueue("a", "good-2", delayq.ProcessIn(time.Second))
		b.enqueue("b", "good-3", delayq.ProcessIn(time.Second))
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			s.HandlerFunc("a", rec.then(nil))
			s.HandlerFunc("b", rec.then(nil))
		}, delayq.Concurrency(2), delayq.Hooks(&hooks), log.to())
		b.pass(5 * time.Second)
		require.ElementsMatch(b, []string{"good-1", "good-2", "good-3"}, rec.ids())
		for name, raw := range spoilt {
			info := b.get("a", name)
			require.Equal(b, delayq.StateDead, info.State, name)
			require.Error(b, info.Undecodable, name)
			require.Equal(b, raw(""), string(info.Raw), "the bytes of %q are kept", name)
			require.Len(b, info.Errors, 1)
			require.Equal(b, delayq.KindUndecodable, info.Errors[0].Kind)
			require.NotEmpty(b, info.Errors[0].Message)
			require.Len(b, hooks.of("Buried", name), 1, name)
			require.Error(b, hooks.of("Buried", name)[0].Err)
		}
		require.Len(b, log.with("level=ERROR", `msg="job buried"`, "topic=a"), len(spoilt))

		// A lease of one that ran out does not stop the others either.
		require.NoError(b, b.rdb.HSet(b.Context(), poolKey("a"), "lapsed", "garbage").Err())
		require.NoError(b, b.rdb.ZAdd(b.Context(), bubblePrefix+":{a}:leases",
			zsetMember("lapsed", time.Now()), zsetMember("no such job", time.Now())).Err())
		b.enqueue("a", "good-4", delayq.ProcessIn(time.Second))
		b.pass(5 * time.Second)
		require.Equal(b, delayq.StateDead, b.state("a", "lapsed"))
		require.Len(b, rec.of("good-4"), 1)
		require.Zero(b, b.counter("a", "taken")-b.counter("a", "acked")-b.counter("a", "buried"))
	})
}

// A record of a later release is left alone, for a server that can read it. (O2)
func TestNewerRecordIsLeftInPlace(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var rec recorder
		var log logbook
		b.enqueue("a", "newer", delayq.Retry(0))
		old, err := b.rdb.HGet(b.Context(), poolKey("a"), "newer").Result()
		require.NoError(b, err)
		newer := old[:8] + "\x02" + "something else entirely"
		require.NoError(b, b.rdb.HSet(b.Context(), poolKey("a"), "newer", newer).Err())
		b.serve("a", rec.then(nil), delayq.Concurrency(1), log.to())
		for i := range 10 {
			b.enqueue("a", fmt.Sprint(i), delayq.ProcessIn(time.Duration(i)*10*time.Second))
		}
		b.pass(2 * time.Minute)
		require.Len(b, rec.all(), 10)
		now, err := b.rdb.HGet(b.Context(), poolKey("a"), "newer").Result()
		require.NoError(b, err)
		require.Equal(b, newer, now)
		info := b.get("a", "newer")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, 1, info.Attempt)
		require.Empty(b, info.Errors)
		require.Equal(b, newer, string(info.Raw))
		require.NotEmpty(b, log.with("level=ERROR", "job=newer", "version"))
		require.LessOrEqual(b, len(log.with("job=newer")), 5, "about every half minute")

		require.NoError(b, b.rdb.HSet(b.Context(), poolKey("a"), "newer", old).Err()) // as if this were the newer server
		b.pass(time.Minute)
		require.Len(b, rec.of("newer"), 1)
		require.Equal(b, 1, rec.of("newer")[0].attempt)
		require.Empty(b, b.state("a", "newer"))
	})
}
