package tests

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// An enqueueHook is both sides of an enqueueing.
type enqueueHook struct {
	before func(*delayq.NewJob)
	events []delayq.EnqueueEvent
}

func (h *enqueueHook) Enqueue(_ context.Context, job *delayq.NewJob) {
	if h.before != nil {
		h.before(job)
	}
}

func (h *enqueueHook) Enqueued(_ context.Context, event delayq.EnqueueEvent) {
	h.events = append(h.events, event)
}

// What a hook appends to the options of a job does not end up in the slice of the caller, which two
// calls may share.
func TestEnqueueHookLeavesTheCallersOptions(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		hook := &enqueueHook{before: func(job *delayq.NewJob) {
			job.Options = append(job.Options, delayq.Header("hook", job.ID))
		}}
		client := delayq.NewClient(b.RDB, delayq.Prefix(queuetest.Prefix), delayq.Hooks(hook))
		spare := make([]delayq.JobOption, 2)
		spare[0] = delayq.ProcessIn(time.Hour)
		_, err := client.Enqueue(b.Context(), "a", "1", nil, spare[:1]...)
		require.NoError(b, err)
		require.Nil(b, spare[1])
		_, err = client.EnqueueBatch(b.Context(), []delayq.NewJob{
			{Topic: "a", ID: "2", Options: spare[:1]}, {Topic: "a", ID: "3", Options: spare[:1]},
		})
		require.NoError(b, err)
		require.Nil(b, spare[1])
		for _, id := range []string{"1", "2", "3"} {
			require.Equal(b, map[string]string{"hook": id}, b.Get("a", id).Headers)
		}
	})
}

// Of a job that is not stored the hooks learn the ID, also a generated one, and the size, and no
// due time.
func TestEnqueuedEventOfAFailure(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		w := queuetest.NewWire(b.Redis)
		rdb := w.Client(b.T)
		hook := &enqueueHook{}
		client := delayq.NewClient(rdb, delayq.Prefix(queuetest.Prefix), delayq.Hooks(hook))
		last := func() delayq.EnqueueEvent { return hook.events[len(hook.events)-1] }
		try := func(id string, opts ...delayq.JobOption) error {
			_, err := client.Enqueue(b.Context(), "a", id, []byte("four"), opts...)
			return err
		}
		require.NoError(b, try("1", delayq.ProcessIn(time.Hour)))
		require.Equal(b, b.Began.Add(time.Hour).UTC(), last().Due.UTC())

		require.ErrorIs(b, try("1", delayq.ProcessIn(time.Hour)), delayq.ErrDuplicate)
		require.ErrorIs(b, last().Err, delayq.ErrDuplicate)
		require.Zero(b, last().Due)
		require.Equal(b, "1", last().ID)
		require.Equal(b, 4, last().PayloadSize)

		require.ErrorIs(b, try("2", delayq.Retry(-7)), delayq.ErrInvalid)
		require.ErrorIs(b, last().Err, delayq.ErrInvalid)
		require.Zero(b, last().Due)
		require.Equal(b, "2", last().ID)

		w.Cut()
		require.Error(b, try("", delayq.ProcessAt(b.Began.Add(time.Hour))))
		require.Error(b, last().Err)
		require.Zero(b, last().Due)
		require.Len(b, last().ID, 14)
		require.Len(b, hook.events, 4)
	})
}

// A handler that ends in the last moment of the drain is settled: there is time for Redis to be
// told.
func TestHandlerThatEndsAtTheEndOfDrainIsSettled(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		const drain = 5 * time.Second
		w := queuetest.NewWire(b.Redis)
		var log queuetest.Logbook
		s := b.ServeOn(w, "a", func(context.Context, *delayq.Job) error {
			time.Sleep(time.Minute)
			return nil
		}, delayq.Drain(drain), log.To())
		b.Enqueue("a", "1")
		b.Pass(time.Minute - drain + time.Millisecond)
		w.Delay(queuetest.Digest("ack"))
		s.End()
		b.Pass(drain + 49*time.Millisecond) // 50 ms after the handler's end
		w.Rush()
		<-s.Done
		require.NoError(b, s.Err)
		require.Empty(b, b.State("a", "1"))
		require.EqualValues(b, 1, b.Counter("a", "acked"))
		require.Empty(b, log.With(`msg="job not settled"`))
		require.LessOrEqual(b, b.At(), time.Minute+60*time.Millisecond, "it waits no longer than it has to")
	})
}

// A run whose lease is over when Redis says that the job is gone has lost its lease: another server
// has ended the job, and nobody has cancelled it.
func TestJobThatAnotherServerEndedIsNotCancelled(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.LoadScripts()
		const lease = 6 * time.Second
		w := queuetest.NewWire(b.Redis)
		var hooks queuetest.HookLog
		b.ServeOn(w, "a", func(context.Context, *delayq.Job) error {
			w.Freeze()
			return nil
		}, delayq.Lease(lease), delayq.Hooks(&hooks))
		b.Enqueue("a", "1")
		synctest.Wait()
		var rec queuetest.Recorder
		b.Serve("a", rec.Then(nil), delayq.Lease(lease))
		b.Pass(lease + time.Second)
		require.Len(b, rec.Of("1"), 1, "the other server has run it")
		require.Empty(b, b.State("a", "1"))
		require.Empty(b, hooks.Kinds("1")["LeaseLost"])
		w.Thaw()
		b.Pass(10 * time.Second)
		require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, hooks.Kinds("1"))
		require.ErrorIs(b, hooks.Of("LeaseLost")[0].Err, delayq.ErrLeaseLost)
		require.EqualValues(b, 1, b.Counter("a", "acked"))
	})
}

// A stranded is a connection that nothing goes through any more once the firewall has forgotten it.
type stranded struct {
	net.Conn
	forgotten <-chan struct{}
}

func (c *stranded) lost() bool {
	select {
	case <-c.forgotten:
		return true
	default:
		return false
	}
}

func (c *stranded) Write(p []byte) (int, error) {
	if c.lost() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *stranded) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for err == nil && c.lost() { // until the deadline
		n, err = c.Conn.Read(p)
	}
	return n, err
}

// A firewall forgets all connections, and new ones work. The first call that has no answer makes
// the server suspect all of them, also those of the blocking pops, which would be found dead later.
func TestBlockingPopsAreSuspectedToo(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		forgotten := make(chan struct{})
		opts := b.Redis.Options()
		opts.Dialer = func(context.Context, string, string) (net.Conn, error) {
			conn, err := b.Redis.Dial()
			gone := forgotten
			select {
			case <-forgotten:
				gone = nil // made after that
			default:
			}
			return &stranded{conn, gone}, err
		}
		rdb := redis.NewClient(opts)
		b.Cleanup(func() { _ = rdb.Close() })
		var rec queuetest.Recorder
		queuetest.Serve(b.T, rdb, queuetest.Prefix, "a", rec.Then(nil))
		b.Pass(20*time.Second + 50*time.Millisecond)
		close(forgotten)
		since := b.At()
		b.Enqueue("a", "1") // the ID goes to the pop whose answer is lost
		b.Enqueue("a", "2")
		for len(rec.All()) < 2 && b.At() < time.Minute {
			b.Pass(10 * time.Millisecond)
		}
		require.Len(b, rec.All(), 2)
		took := b.At() - since
		b.Logf("resumed after %v", took)
		require.Less(b, took, 5*time.Second)
	})
}

// A handler that replaces a job of its own ID under another prefix, in another topic, or of another
// ID in its own topic has not replaced its own: whoever does that ends its context.
func TestReplaceOfANamesakeIsNotThatOfTheOwnJob(t *testing.T) {
	for name, elsewhere := range map[string]struct{ prefix, topic, id string }{
		"prefix": {"p", "a", "1"}, "topic": {queuetest.Prefix, "b", "1"}, "ID": {queuetest.Prefix, "a", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				other := delayq.NewClient(b.RDB, delayq.Prefix(elsewhere.prefix))
				var cause error
				var ran atomic.Bool // the replacement may start before the first run has ended
				b.Serve("a", func(ctx context.Context, job *delayq.Job) error {
					if job.ID != "1" || ran.Swap(true) {
						return nil
					}
					_, err := other.Enqueue(ctx, elsewhere.topic, elsewhere.id, nil, delayq.Replace())
					require.NoError(b, err)
					select {
					case <-ctx.Done():
					case <-time.After(time.Minute):
					}
					cause = context.Cause(ctx)
					return cause
				})
				b.Enqueue("a", "1")
				b.Pass(time.Second)
				b.Enqueue("a", "1", delayq.Replace())
				b.Pass(2 * time.Minute)
				require.Equal(b, delayq.ErrReplaced, cause)
			})
		})
	}
}

// A server that takes a job again, of which it has a run still, has lost the lease of that: the job
// is the same one, and nobody has replaced it.
func TestSameJobTakenAgainIsNotReplaced(t *testing.T) {
	queuetest.NeedsPop(t)
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		var rec queuetest.Recorder
		var cause error
		var over time.Duration
		b.Serve("t", rec.Then(func(ctx context.Context, job *delayq.Job) error {
			if len(rec.Of("1")) > 1 {
				return nil
			}
			<-ctx.Done()
			cause, over = context.Cause(ctx), b.At()
			return nil
		}), delayq.Lease(10*time.Minute), delayq.Hooks(&hooks))
		b.Enqueue("t", "1")
		b.Pass(time.Second)
		ctx, key := b.Context(), queuetest.Prefix+":{t}:"
		require.NoError(b, b.RDB.Del(ctx, key+"leases").Err())
		require.NoError(b, b.RDB.RPush(ctx, key+"ready", "1").Err())
		b.Pass(time.Second)
		require.Len(b, rec.Of("1"), 2)
		require.Equal(b, time.Second, over, "before the server has looked at its leases")
		require.Equal(b, delayq.ErrLeaseLost, cause)
		require.Equal(b, map[string]int{"Started": 2, "LeaseLost": 1, "Done": 1}, hooks.Kinds("1"))
	})
}

// What is edited twice is told once.
func TestEditedPartsAreNamedOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.AddSchedule("s", delayq.Every(time.Hour))
		for _, text := range []string{"one", "two"} {
			require.NoError(b, b.Client.EditSchedule(b.Context(), "t", "s", func(def *delayq.ScheduleDefinition) error {
				def.EditedBy = "me"
				def.Payload = []byte(text)
				return nil
			}))
		}
		require.Equal(b, []string{"Payload"}, b.ScheduleInfo("s").Edited)
		require.Equal(b, "two", string(b.ScheduleInfo("s").Payload))
	})
}
