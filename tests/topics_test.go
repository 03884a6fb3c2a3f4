package tests

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A topic whose handler is set while the server runs is served from then on, with the server's
// middleware, and is among the topics of the prefix.
func TestHandleAfterRun(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		var wrapped atomic.Int64
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("first", queuetest.Nothing))
			s.Use(func(h delayq.Handler) delayq.Handler {
				return delayq.HandlerFunc(func(ctx context.Context, job *delayq.Job) error {
					wrapped.Add(1)
					return h.Handle(ctx, job)
				})
			})
		})
		b.Pass(time.Second)
		b.Enqueue("later", "before")
		require.NoError(b, s.HandlerFunc("later", rec.Then(nil)))
		require.ErrorIs(b, s.HandlerFunc("later", rec.Then(nil)), delayq.ErrInvalid)
		require.ErrorIs(b, s.HandlerFunc("bad{", rec.Then(nil)), delayq.ErrInvalid)
		b.Pass(time.Millisecond)
		b.Enqueue("later", "after")
		b.Enqueue("later", "due", delayq.ProcessIn(3*time.Second))
		b.Pass(4 * time.Second)
		require.ElementsMatch(b, []string{"before", "after", "due"}, rec.IDs())
		require.EqualValues(b, 3, wrapped.Load())
		topics, err := b.Inspector.Topics(b.Context())
		require.NoError(b, err)
		require.Equal(b, []string{"first", "later"}, topics)
		require.NoError(b, s.Stop())
		require.ErrorIs(b, s.HandlerFunc("too-late", queuetest.Nothing), delayq.ErrServerUsed)
	})
}

// A handler that removes its own topic would wait for itself. It is told so, whatever it has made
// of its context, and nothing is removed. In a goroutine of its own it can do that.
func TestRemoveByItsOwnHandler(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var s *delayq.Server
		var removed, left error
		batches := func(ctx context.Context, _ []*delayq.Job) error { return s.Remove(ctx, "batches") }
		running := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(server *delayq.Server) {
			s = server
			require.NoError(b, s.HandlerFunc("a", func(ctx context.Context, _ *delayq.Job) error {
				removed = s.Remove(context.WithoutCancel(ctx), "a")
				left = s.Remove(ctx, "other")
				return nil
			}))
			require.NoError(b, s.HandlerFunc("other", queuetest.Nothing))
			require.NoError(b, s.HandleBatch("batches", batches))
			require.NoError(b, s.HandlerFunc("goes", func(context.Context, *delayq.Job) error {
				go func() { removed = s.Remove(b.Context(), "goes") }()
				return nil
			}))
		})
		b.Enqueue("a", "x")
		b.Pass(10 * time.Second)
		require.ErrorIs(b, removed, delayq.ErrInvalid)
		require.ErrorContains(b, removed, "cannot wait for its own end")
		require.NoError(b, left, "another topic")
		b.Enqueue("a", "y")
		b.Pass(time.Second)
		require.EqualValues(b, 2, b.Counter("a", delayq.CounterAcked), "the topic is still served")

		b.Enqueue("batches", "x", delayq.Retry(0))
		b.Pass(time.Second)
		require.Equal(b, delayq.StateDead, b.State("batches", "x"))

		b.Enqueue("goes", "x")
		b.Pass(10 * time.Second)
		require.NoError(b, removed)
		b.Enqueue("goes", "y")
		b.Pass(10 * time.Second)
		require.Equal(b, delayq.StateReady, b.State("goes", "y"), "the topic is no longer served")
		require.NoError(b, running.Stop())
	})
}

// Remove lets running handlers finish, records their outcomes, and takes no other job. Other topics
// are not affected, and the topic can be handled anew.
func TestRemove(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec, other queuetest.Recorder
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("a", rec.Then(func(ctx context.Context, job *delayq.Job) error {
				time.Sleep(2 * time.Second)
				return ctx.Err()
			}), delayq.Concurrency(1)))
			require.NoError(b, s.HandlerFunc("b", other.Then(nil)))
		})
		for i := range 3 {
			b.Enqueue("a", fmt.Sprint(i))
		}
		b.Pass(time.Second)
		began := b.At()
		require.NoError(b, s.Remove(b.Context(), "a"))
		require.Equal(b, time.Second, (b.At() - began).Round(10*time.Millisecond))
		require.Equal(b, []string{"0"}, rec.IDs())
		require.Empty(b, b.State("a", "0"), "done")
		require.Equal(b, delayq.StateReady, b.State("a", "1"))
		require.Equal(b, delayq.StateReady, b.State("a", "2"))
		require.ErrorIs(b, s.Remove(b.Context(), "a"), delayq.ErrInvalid)
		b.Enqueue("b", "x")
		b.Pass(10 * time.Second)
		require.Equal(b, []string{"x"}, other.IDs())
		require.Equal(b, []string{"0"}, rec.IDs())

		require.NoError(b, s.HandlerFunc("a", rec.Then(nil)))
		b.Pass(time.Second)
		require.ElementsMatch(b, []string{"0", "1", "2"}, rec.IDs()) // two handlers run at the same time
	})
}

// When the context of Remove is done, handlers are cancelled and their jobs are put back without
// using up an attempt. A handler that ignores that is abandoned.
func TestRemoveCutsHandlersOff(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		release := make(chan struct{})
		causes := make(chan error, 1)
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("a", func(ctx context.Context, job *delayq.Job) error {
				if job.ID == "deaf" {
					<-release
					return nil
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return ctx.Err()
			}))
		})
		b.Enqueue("a", "deaf")
		b.Enqueue("a", "hears")
		b.Pass(time.Second)
		ctx, cancel := context.WithTimeoutCause(b.Context(), time.Second, errors.New("no patience"))
		defer cancel()
		require.ErrorContains(b, s.Remove(ctx, "a"), "no patience")
		require.ErrorIs(b, <-causes, delayq.ErrShutdown)
		for _, id := range []string{"deaf", "hears"} {
			require.Equal(b, delayq.StateReady, b.State("a", id))
			require.Equal(b, 1, b.Get("a", id).Attempt)
		}
		close(release)
		b.Pass(time.Second)
	})
}

// Handle and Remove do not panic with nonsense, and say what is wrong.
func TestRemoveMisuse(t *testing.T) {
	var none *delayq.Server
	require.ErrorIs(t, none.Remove(t.Context(), "a"), delayq.ErrInvalid)
	require.ErrorIs(t, none.Handle("a", nil), delayq.ErrInvalid)
	require.ErrorIs(t, new(delayq.Server).Remove(t.Context(), "a"), delayq.ErrInvalid)
	require.ErrorIs(t, new(delayq.Server).Handle("a", nil), delayq.ErrInvalid)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		s := delayq.NewServer(b.RDB)
		require.NoError(b, s.HandlerFunc("a", queuetest.Nothing))
		var nothing context.Context
		require.ErrorIs(b, s.Remove(nothing, "a"), delayq.ErrInvalid)
		require.NoError(b, s.Remove(b.Context(), "a"))
		require.ErrorIs(b, s.Remove(b.Context(), "a"), delayq.ErrInvalid)
		require.ErrorContains(b, s.Run(b.Context()), "no handlers")
	})
}

// A pattern serves the topics that match it, also those whose first job comes later, but neither
// more than its bound nor one with a handler of its own. The longest pattern counts.
func TestPattern(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var tenant, vip, own queuetest.Recorder
		var log queuetest.Logbook
		b.Enqueue("tenant.1", "1")
		b.Enqueue("other", "1")
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("tenant.*", tenant.Then(nil), delayq.MaxTopics(3)))
			require.NoError(b, s.HandlerFunc("tenant.vip.*", vip.Then(nil)))
			require.NoError(b, s.HandlerFunc("tenant.own", own.Then(nil)))
		}, log.To())
		b.Pass(0)
		require.ErrorIs(b, s.HandlerFunc("plain", queuetest.Nothing, delayq.MaxTopics(3)), delayq.ErrInvalid)
		require.ErrorIs(b, s.HandlerFunc("a*", queuetest.Nothing, delayq.MaxTopics(0)), delayq.ErrInvalid)
		require.ErrorContains(b, s.HandlerFunc("*", queuetest.Nothing), "before Run")
		b.Pass(time.Second)
		require.Equal(b, []string{"1"}, tenant.IDs())
		b.Enqueue("tenant.own", "own")
		b.Enqueue("tenant.vip.a", "vip")
		b.Enqueue("tenant.2", "2")
		b.Enqueue("tenant.3", "3")
		b.Pass(6 * time.Second)
		require.Equal(b, []string{"own"}, own.IDs())
		require.Equal(b, []string{"vip"}, vip.IDs())
		require.ElementsMatch(b, []string{"1", "2", "3"}, tenant.IDs())
		require.Empty(b, log.With("topics not served"))
		b.Enqueue("tenant.4", "4")
		b.Pass(2 * time.Minute)
		require.Equal(b, delayq.StateReady, b.State("tenant.4", "4"))
		require.Len(b, log.With("level=ERROR", `msg="topics not served"`, "count=1"), 1)

		// one that is no longer among the topics makes room
		require.NoError(b, b.RDB.SRem(b.Context(), queuetest.Prefix+":topics", "tenant.2").Err())
		b.Pass(2 * time.Minute)
		require.Contains(b, tenant.IDs(), "4")
		require.Equal(b, delayq.StateReady, b.State("other", "1"))
	})
}

// A topic whose handler the user sets instead of the pattern's keeps it, and one that the user only
// removes is found again.
func TestPatternLeavesOwnHandlersAlone(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var pattern, own queuetest.Recorder
		b.Enqueue("tenant.1", "1")
		s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("tenant.*", pattern.Then(nil)))
		})
		b.Pass(time.Second)
		require.Equal(b, []string{"1"}, pattern.IDs())
		require.NoError(b, s.Remove(b.Context(), "tenant.1"))
		require.NoError(b, s.HandlerFunc("tenant.1", own.Then(nil)))
		b.Pass(3 * time.Minute)
		b.Enqueue("tenant.1", "2")
		b.Pass(time.Second)
		require.Equal(b, []string{"2"}, own.IDs())
		require.NoError(b, s.Remove(b.Context(), "tenant.1"))
		b.Pass(2 * time.Minute)
		b.Enqueue("tenant.1", "3")
		b.Pass(time.Second)
		require.Equal(b, []string{"1", "3"}, pattern.IDs())
	})
}

// If Redis loses the set of topics, the topics of a pattern that have jobs are served on, and are
// in the set again.
func TestPatternOutlivesTheSetOfTopics(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var rec queuetest.Recorder
		b.Enqueue("tenant.1", "1", delayq.ProcessIn(5*time.Minute))
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("tenant.*", rec.Then(nil)))
		})
		b.Pass(time.Second)
		require.NoError(b, b.RDB.Del(b.Context(), queuetest.Prefix+":topics").Err())
		b.Pass(6 * time.Minute)
		require.Equal(b, []string{"1"}, rec.IDs())
		topics, err := b.Inspector.Topics(b.Context())
		require.NoError(b, err)
		require.Equal(b, []string{"tenant.1"}, topics)
	})
}

// A topic whose name was removed comes back with its next job, whichever way the name was removed
// and however soon the job comes.
func TestRemovedTopicComesBackWithItsNextJob(t *testing.T) {
	ways := map[string]func(b *queuetest.Bubble) error{
		"RemoveTopic": func(b *queuetest.Bubble) error { return b.Client.RemoveTopic(b.Context(), "tenant.1") },
		"SREM": func(b *queuetest.Bubble) error {
			return b.RDB.SRem(b.Context(), queuetest.Prefix+":topics", "tenant.1").Err()
		},
	}
	for name, remove := range ways {
		for _, after := range []time.Duration{0, 30 * time.Second, 2 * time.Minute} {
			t.Run(fmt.Sprint(name, " and ", after), func(t *testing.T) {
				queuetest.InBubble(t, func(b *queuetest.Bubble) {
					var rec queuetest.Recorder
					b.Enqueue("tenant.1", "1")
					s := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
						require.NoError(b, s.HandlerFunc("tenant.*", rec.Then(nil)))
					})
					b.Pass(30 * time.Second)
					require.Equal(b, []string{"1"}, rec.IDs())
					b.Enqueue("tenant.1", "2") // the client adds the name a minute after the first time
					b.Pass(31 * time.Second)
					b.Enqueue("tenant.1", "3")
					b.Pass(5 * time.Second)
					require.NoError(b, remove(b))
					b.Pass(after)
					if after > 0 {
						require.Empty(b, s.Health().Topics, "it is not served any more")
					}
					b.Enqueue("tenant.1", "4")
					b.Pass(2 * time.Minute)
					require.Equal(b, []string{"1", "2", "3", "4"}, rec.IDs())
				})
			})
		}
	}
}

// Remove returns when the server stops meanwhile, even if Redis never has the outcome. After that
// it is refused, as is Handle after a Run that ended before it began.
func TestRemoveAndHandleAtTheStop(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		s := queuetest.ServeMany(b.T, w.Client(b.T), queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandlerFunc("a", func(context.Context, *delayq.Job) error {
				time.Sleep(5 * time.Second)
				return nil
			}))
		})
		b.Enqueue("a", "1")
		b.Pass(time.Second)
		removed := make(chan struct{})
		go func() {
			defer close(removed)
			_ = s.Remove(b.Context(), "a") // its error depends on which comes first
		}()
		w.Cut()
		b.Pass(time.Second)
		require.NoError(b, s.Stop())
		<-removed
		require.ErrorIs(b, s.Remove(b.Context(), "a"), delayq.ErrServerUsed)

		done, cancel := context.WithCancel(b.Context())
		cancel()
		early := delayq.NewServer(b.RDB, queuetest.Quiet(queuetest.Prefix)...)
		require.NoError(b, early.HandlerFunc("a", queuetest.Nothing))
		require.NoError(b, early.Run(done))
		require.ErrorIs(b, early.HandlerFunc("b", queuetest.Nothing), delayq.ErrServerUsed)
	})
}
