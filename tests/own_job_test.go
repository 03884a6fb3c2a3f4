package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

var ownTopic = delayq.NewTopic[string]("a", delayq.JSON)

// anew are the ways in which a handler can put a new job in the place of its own.
var anew = map[string]func(ctx context.Context, c *delayq.Client, id string, opts ...delayq.JobOption) error{
	"Enqueue": func(ctx context.Context, c *delayq.Client, id string, opts ...delayq.JobOption) error {
		_, err := c.Enqueue(ctx, "a", id, []byte("new"), append(opts, delayq.Replace())...)
		return err
	},
	"EnqueueBatch": func(ctx context.Context, c *delayq.Client, id string, opts ...delayq.JobOption) error {
		_, err := c.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "a", ID: id, Options: append(opts, delayq.Replace())}, {Topic: "b", ID: id}})
		return err
	},
	"Topic.Enqueue": func(ctx context.Context, c *delayq.Client, id string, opts ...delayq.JobOption) error {
		_, err := ownTopic.Enqueue(ctx, c, id, "new", append(opts, delayq.Replace())...)
		return err
	},
}

// A handler that replaces its own job goes on: neither the announcement nor an extension ends its
// context, and what it enqueues with it afterwards is stored.
func TestHandlerReplacesItsOwnJob(t *testing.T) {
	for name, replace := range anew {
		for _, nudged := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/nudged=%v", name, nudged), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					const lease = 3 * time.Second
					w := queuetest.NewWire(b.Redis)
					if !nudged {
						w.Stall("subscribe")
					}
					var hooks queuetest.HookLog
					var log queuetest.Logbook
					b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
						if job.ID == "other" {
							return nil
						}
						inner, stop := context.WithTimeout(ctx, time.Hour)
						defer stop()
						require.NoError(b, replace(inner, b.Client, job.ID, delayq.ProcessIn(time.Hour)))
						time.Sleep(3 * lease)
						require.NoError(b, context.Cause(ctx))
						_, err := b.Client.Enqueue(ctx, "a", "other", nil)
						require.NoError(b, err)
						return queuetest.ErrTest
					}, delayq.Hooks(&hooks), delayq.Lease(lease), log.To())
					b.Enqueue("a", "1")
					b.Pass(4 * lease)
					require.Equal(b, map[string]int{"Started": 1, "Replaced": 1}, hooks.Kinds("1"))
					event := hooks.Of("Replaced")[0]
					require.Equal(b, delayq.OutcomeReplaced, event.Outcome)
					require.ErrorIs(b, event.Err, delayq.ErrReplaced)
					require.ErrorIs(b, event.Err, queuetest.ErrTest)
					require.Len(b, log.With("level=WARN", `msg="job replaced"`, "topic=a", "job=1", "attempt=1", queuetest.ErrTest.Error()), 1)
					require.Empty(b, log.With("lease"))
					require.Len(b, hooks.Of("Done", "other"), 1)
					info := b.Get("a", "1")
					require.Equal(b, delayq.StateScheduled, info.State)
					require.Equal(b, 1, info.Attempt)
					require.Empty(b, info.Errors)
				})
			})
		}
	}
}

// The new job is due at once and runs beside the handler that has enqueued it, on the same server.
// That ends well, and its end does not touch the new job.
func TestOwnJobReplacedByOneDueAtOnce(t *testing.T) {
	queuetest.NeedsPop(t)
	for _, nudged := range []bool{true, false} {
		t.Run(fmt.Sprintf("nudged=%v", nudged), func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				w := queuetest.NewWire(b.Redis)
				if !nudged {
					w.Stall("subscribe")
				}
				var hooks queuetest.HookLog
				var log queuetest.Logbook
				var rec queuetest.Recorder
				b.ServeOn(w, "a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
					time.Sleep(time.Millisecond) // the clock of a bubble stands still, and a lease is known by its end
					if string(job.Payload) == "of 1" {
						require.NoError(b, anew["Enqueue"](ctx, b.Client, job.ID))
					}
					time.Sleep(time.Second)
					return context.Cause(ctx)
				}), delayq.Hooks(&hooks), log.To())
				b.Enqueue("a", "1")
				b.Pass(500 * time.Millisecond)
				require.Len(b, rec.All(), 2, "both run")
				b.Pass(time.Minute)
				require.Equal(b, map[string]int{"Started": 2, "Replaced": 1, "Done": 1}, hooks.Kinds("1"))
				require.ErrorIs(b, hooks.Of("Replaced")[0].Err, delayq.ErrReplaced)
				require.Equal(b, "new", rec.All()[1].Payload)
				require.Len(b, log.With("level=INFO", `msg="job replaced"`, "job=1"), 1)
				require.Empty(b, log.With("job=1", "err="))
				require.Empty(b, b.State("a", "1"))
			})
		})
	}
}

// Only its own job is the handler's affair: one that replaces another running job ends the context
// of that one's handler, also if the other is of the same ID in another topic or under another
// prefix.
func TestHandlerReplacesAnothersJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var mu sync.Mutex
		causes := make(map[string]error)
		other := delayq.NewClient(b.RDB, delayq.Prefix("p"))
		wait := func(name string) delayq.HandlerFunc {
			return func(ctx context.Context, job *delayq.Job) error {
				if string(job.Payload) != "of "+job.ID {
					return nil
				}
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				causes[name] = context.Cause(ctx)
				return nil
			}
		}
		queuetest.Serve(b.T, b.RDB, "p", "a", wait("prefix"))
		b.Serve("b", wait("topic"))
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			if job.ID == "2" {
				return wait("ID")(ctx, job)
			}
			_, err := b.Client.EnqueueBatch(ctx, []delayq.NewJob{
				{Topic: "a", ID: "2", Options: []delayq.JobOption{delayq.Replace()}},
				{Topic: "b", ID: "1", Options: []delayq.JobOption{delayq.Replace()}},
			})
			require.NoError(b, err)
			_, err = other.Enqueue(ctx, "a", "1", nil, delayq.Replace())
			require.NoError(b, err)
			time.Sleep(time.Minute)
			return context.Cause(ctx)
		})
		_, err := other.Enqueue(b.Context(), "a", "1", []byte("of 1"))
		require.NoError(b, err)
		b.Enqueue("b", "1")
		b.Enqueue("a", "2")
		b.Pass(time.Second)
		b.Enqueue("a", "1")
		b.Pass(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Len(b, causes, 3)
		for name, cause := range causes {
			require.Equal(b, delayq.ErrReplaced, cause, name)
		}
		require.EqualValues(b, 2, b.Counter("a", "acked"))
	})
}

// The job of a handler whose own Replace surely failed is still its own. If somebody else replaces
// it then, its context ends.
func TestFailedReplaceOfTheOwnJobCountsForNothing(t *testing.T) {
	for name, replace := range anew {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var hooks queuetest.HookLog
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					if job.Attempt == 1 && job.Due.Equal(job.EnqueuedAt) && len(hooks.Of("Started")) == 1 {
						bucket := queuetest.Prefix + ":{a}:bucket"
						require.NoError(b, b.RDB.Set(b.Context(), bucket, "a slip", 0).Err())
						require.ErrorContains(b, replace(ctx, b.Client, job.ID, delayq.ProcessIn(time.Hour)), "WRONGTYPE")
						require.NoError(b, b.RDB.Del(b.Context(), bucket).Err())
						<-ctx.Done()
						require.Equal(b, delayq.ErrReplaced, context.Cause(ctx))
					}
					return nil
				}, delayq.Hooks(&hooks))
				b.Enqueue("a", "1")
				b.Pass(time.Second)
				b.Enqueue("a", "1", delayq.Replace())
				b.Pass(time.Second)
				require.Equal(b, map[string]int{"Started": 2, "Replaced": 1, "Done": 1}, hooks.Kinds("1"))
			})
		})
	}
}

// The answer to its own Replace is lost, and go-redis does not repeat it. Redis has carried it out:
// the handler goes on, and the outcome is that.
func TestReplaceOfTheOwnJobWithALostAnswer(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		const lease = 3 * time.Second
		var hooks queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		opts := w.Client(b.T).Options()
		opts.MaxRetries = -1
		rdb := redis.NewClient(opts)
		b.Cleanup(func() { _ = rdb.Close() })
		lossy := delayq.NewClient(rdb, delayq.Prefix(queuetest.Prefix))
		b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			w.Lose(queuetest.Digest("replace"))
			require.ErrorIs(b, anew["Enqueue"](ctx, lossy, job.ID, delayq.ProcessIn(time.Hour)), delayq.ErrUnknownOutcome)
			time.Sleep(3 * lease)
			return context.Cause(ctx)
		}, delayq.Hooks(&hooks), delayq.Lease(lease))
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Equal(b, 1, w.Losses())
		require.Equal(b, map[string]int{"Started": 1, "Replaced": 1}, hooks.Kinds("1"))
		require.Equal(b, delayq.ErrReplaced, hooks.Of("Replaced")[0].Err)
	})
}

// Nobody knows whether its own Replace was carried out, and then the lease is over by the server's
// clock: another server may have the job, so the handler is stopped.
func TestReplaceOfUnknownOutcomeKeepsNoLease(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		var hooks queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		lossy := delayq.NewClient(w.Client(b.T), delayq.Prefix(queuetest.Prefix))
		b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			w.Die(queuetest.Digest("replace"), true)
			require.ErrorIs(b, anew["Enqueue"](ctx, lossy, job.ID), delayq.ErrUnknownOutcome)
			<-ctx.Done()
			require.Equal(b, delayq.ErrLeaseLost, context.Cause(ctx))
			return nil
		}, delayq.Hooks(&hooks), delayq.Lease(3*time.Second))
		b.Enqueue("a", "1")
		b.Pass(time.Minute)
		require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, hooks.Kinds("1"))
	})
}

// A handler that has replaced its own job holds no lease any more, but the end of Drain stops it as
// it stops others.
func TestHandlerWithoutAJobIsStoppedByTheDrain(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		s := b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
			require.NoError(b, anew["Enqueue"](ctx, b.Client, job.ID, delayq.ProcessIn(time.Hour)))
			<-ctx.Done()
			require.Equal(b, delayq.ErrShutdown, context.Cause(ctx))
			require.Equal(b, 6*time.Second, b.At())
			return nil
		}, delayq.Hooks(&hooks), delayq.Drain(5*time.Second))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.NoError(b, s.Stop())
		synctest.Wait()
		require.Equal(b, map[string]int{"Started": 1, "Replaced": 1}, hooks.Kinds("1"))
	})
}

// A handler's context can be printed while its run goes on.
func TestHandlersContextHasAName(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var text string
		b.Serve("a", func(ctx context.Context, _ *delayq.Job) error {
			text = fmt.Sprintf("%v %+v", ctx, ctx)
			return nil
		})
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		require.Contains(b, text, "Handler")
		require.NotContains(b, text, "of 1")
	})
}

// A server takes the new job before it has heard that the old one, which it runs, was replaced: as
// the new one has another nonce, it knows.
func TestNewJobTellsThatTheOldOneWasReplaced(t *testing.T) {
	queuetest.NeedsPop(t)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		w := queuetest.NewWire(b.Redis)
		w.Stall("subscribe")
		b.ServeOn(w, "a", func(ctx context.Context, job *delayq.Job) error {
			if string(job.Payload) != "of 1" {
				return nil
			}
			<-ctx.Done()
			require.Equal(b, delayq.ErrReplaced, context.Cause(ctx))
			require.Equal(b, time.Second, b.At())
			return nil
		}, delayq.Hooks(&hooks), delayq.Lease(30*time.Second))
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		_, err := b.Client.Enqueue(b.Context(), "a", "1", []byte("new"), delayq.Replace())
		require.NoError(b, err)
		b.Pass(time.Second)
		require.Equal(b, map[string]int{"Started": 2, "Replaced": 1, "Done": 1}, hooks.Kinds("1"))
	})
}
