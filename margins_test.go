package delayq_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
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
	inBubble(t, func(b *bubble) {
		hook := &enqueueHook{before: func(job *delayq.NewJob) {
			job.Options = append(job.Options, delayq.Header("hook", job.ID))
		}}
		client := delayq.NewClient(b.rdb, delayq.Prefix(bubblePrefix), delayq.Hooks(hook))
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
			require.Equal(b, map[string]string{"hook": id}, b.get("a", id).Headers)
		}
	})
}

// Of a job that is not stored the hooks learn the ID, also a generated one, and the size, and no
// due time.
func TestEnqueuedEventOfAFailure(t *testing.T) {
	inBubble(t, func(b *bubble) {
		w := newWire(b.redis)
		rdb := w.client(b.T)
		hook := &enqueueHook{}
		client := delayq.NewClient(rdb, delayq.Prefix(bubblePrefix), delayq.Hooks(hook))
		last := func() delayq.EnqueueEvent { return hook.events[len(hook.events)-1] }
		try := func(id string, opts ...delayq.JobOption) error {
			_, err := client.Enqueue(b.Context(), "a", id, []byte("four"), opts...)
			return err
		}
		require.NoError(b, try("1", delayq.ProcessIn(time.Hour)))
		require.Equal(b, b.began.Add(time.Hour).UTC(), last().Due.UTC())

		require.ErrorIs(b, try("1", delayq.ProcessIn(time.Hour)), delayq.ErrDuplicate)
		require.ErrorIs(b, last().Err, delayq.ErrDuplicate)
		require.Zero(b, last().Due)
		require.Equal(b, "1", last().ID)
		require.Equal(b, 4, last().PayloadSize)

		require.ErrorIs(b, try("2", delayq.Retry(-7)), delayq.ErrInvalid)
		require.ErrorIs(b, last().Err, delayq.ErrInvalid)
		require.Zero(b, last().Due)
		require.Equal(b, "2", last().ID)

		w.cut()
		require.Error(b, try("", delayq.ProcessAt(b.began.Add(time.Hour))))
		require.Error(b, last().Err)
		require.Zero(b, last().Due)
		require.Len(b, last().ID, 14)
		require.Len(b, hook.events, 4)
	})
}

// A laggard is a connection on which a request that contains some words takes its time.
type laggard struct {
	net.Conn
	words string
	by    time.Duration
}

func (c *laggard) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.words)) {
		time.Sleep(c.by)
	}
	return c.Conn.Write(p)
}

// lagging makes a client whose requests that contain some words take their time.
func (b *bubble) lagging(words string, by time.Duration) *redis.Client {
	opts := b.redis.Options()
	opts.Dialer = func(context.Context, string, string) (net.Conn, error) {
		conn, err := b.redis.Dial()
		return &laggard{conn, words, by}, err
	}
	rdb := redis.NewClient(opts)
	b.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// checkable fills the topic t, so that a check of it makes several calls and finds nothing.
func (b *bubble) checkable() {
	b.Helper()
	b.loadScripts()
	hand := delayq.NewHand(b, b.rdb, bubblePrefix, "t")
	b.enqueue("t", "dead")
	require.Equal(b, "o", hand.Bury(hand.TakeOne("dead")))
	b.enqueue("t", "running")
	require.Len(b, hand.Take(1, 10*time.Hour), 1)
	b.enqueue("t", "later", delayq.ProcessIn(10*time.Hour))
}

// A check that takes longer than its turn takes it anew: no other server begins to check the topic
// meanwhile.
func TestLongCheckKeepsItsTurn(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.checkable()
		rdb := b.lagging(script("check"), 2800*time.Millisecond)
		var mu sync.Mutex
		first, last := map[int]time.Duration{}, map[int]time.Duration{}
		for i := range 2 {
			serve(b.T, rdb, bubblePrefix, "t", nothing, delayq.Hooks(onScript(func(e delayq.ScriptEvent) {
				if e.Name != "check" {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if first[i] == 0 {
					first[i] = b.at()
				}
				last[i] = b.at()
			})))
			b.pass(7 * time.Second)
		}
		b.pass(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Greater(b, last[0]-first[0], 200*time.Second, "longer than a turn, or this shows nothing")
		require.Zero(b, first[1], "the second server waits")
	})
}

// A check spends a twentieth of its time at Redis: after each call it waits for twenty times as
// long as that took.
func TestCheckTakesATwentieth(t *testing.T) {
	for _, lag := range []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(lag.String(), func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				b.checkable()
				var mu sync.Mutex
				var calls []time.Time
				serve(b.T, b.lagging(script("check"), lag), bubblePrefix, "t", nothing,
					delayq.Hooks(onScript(func(e delayq.ScriptEvent) {
						if e.Name == "check" {
							mu.Lock()
							defer mu.Unlock()
							calls = append(calls, time.Now())
						}
					})))
				b.pass(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				require.GreaterOrEqual(b, len(calls), 4)
				for i, at := range calls[1:] {
					pause, least := at.Add(-lag).Sub(calls[i]), max(20*time.Millisecond, 20*lag)
					require.GreaterOrEqual(b, pause, least)
					require.LessOrEqual(b, pause, least+50*time.Millisecond)
				}
			})
		})
	}
}

// A handler that ends in the last moment of the drain is settled: there is time for Redis to be
// told.
func TestHandlerThatEndsAtTheEndOfDrainIsSettled(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		const drain = 5 * time.Second
		w := newWire(b.redis)
		var log logbook
		s := b.serveOn(w, "a", func(context.Context, *delayq.Job) error {
			time.Sleep(time.Minute)
			return nil
		}, delayq.Drain(drain), log.to())
		b.enqueue("a", "1")
		b.pass(time.Minute - drain + time.Millisecond)
		w.delay(script("ack"))
		s.end()
		b.pass(drain + 49*time.Millisecond) // 50 ms after the handler's end
		w.rush()
		<-s.done
		require.NoError(b, s.err)
		require.Empty(b, b.state("a", "1"))
		require.EqualValues(b, 1, b.counter("a", "acked"))
		require.Empty(b, log.with(`msg="job not settled"`))
		require.LessOrEqual(b, b.at(), time.Minute+60*time.Millisecond, "it waits no longer than it has to")
	})
}

// A run whose lease is over when Redis says that the job is gone has lost its lease: another server
// has ended the job, and nobody has cancelled it.
func TestJobThatAnotherServerEndedIsNotCancelled(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.loadScripts()
		const lease = 6 * time.Second
		w := newWire(b.redis)
		var hooks told
		b.serveOn(w, "a", func(context.Context, *delayq.Job) error {
			w.freeze()
			return nil
		}, delayq.Lease(lease), delayq.Hooks(&hooks))
		b.enqueue("a", "1")
		synctest.Wait()
		var rec recorder
		b.serve("a", rec.then(nil), delayq.Lease(lease))
		b.pass(lease + time.Second)
		require.Len(b, rec.of("1"), 1, "the other server has run it")
		require.Empty(b, b.state("a", "1"))
		require.Empty(b, hooks.kinds("1")["LeaseLost"])
		w.thaw()
		b.pass(10 * time.Second)
		require.Equal(b, map[string]int{"Started": 1, "LeaseLost": 1}, hooks.kinds("1"))
		require.ErrorIs(b, hooks.of("LeaseLost")[0].Err, delayq.ErrLeaseLost)
		require.EqualValues(b, 1, b.counter("a", "acked"))
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
	inBubble(t, func(b *bubble) {
		forgotten := make(chan struct{})
		opts := b.redis.Options()
		opts.Dialer = func(context.Context, string, string) (net.Conn, error) {
			conn, err := b.redis.Dial()
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
		var rec recorder
		serve(b.T, rdb, bubblePrefix, "a", rec.then(nil))
		b.pass(20*time.Second + 50*time.Millisecond)
		close(forgotten)
		since := b.at()
		b.enqueue("a", "1") // the ID goes to the pop whose answer is lost
		b.enqueue("a", "2")
		for len(rec.all()) < 2 && b.at() < time.Minute {
			b.pass(10 * time.Millisecond)
		}
		require.Len(b, rec.all(), 2)
		took := b.at() - since
		b.Logf("resumed after %v", took)
		require.Less(b, took, 5*time.Second)
	})
}

// What is kept of done jobs counts in what one call reads, as records do.
func TestListOfDoneJobsReadsAMebibyteAtATime(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		var calls countScripts
		client := delayq.NewClient(f.rdb, delayq.Prefix(f.prefix), delayq.Hooks(&calls))
		payload := make([]byte, 700<<10)
		for _, id := range []string{"1", "2", "3"} {
			_, err := client.Enqueue(t.Context(), "topic", id, payload, delayq.Retention(time.Hour))
			require.NoError(t, err)
			require.Equal(t, "o", f.hand.Ack(f.hand.TakeOne(id)))
		}
		list, err := client.List(t.Context(), "topic", delayq.ListQuery{State: delayq.StateDone, Limit: 10, Payload: true})
		require.NoError(t, err)
		require.Len(t, list, 3)
		require.Equal(t, 3, calls["get"], "one in each")
	})
}

// A handler that replaces a job of its own ID under another prefix, in another topic, or of another
// ID in its own topic has not replaced its own: whoever does that ends its context.
func TestReplaceOfANamesakeIsNotThatOfTheOwnJob(t *testing.T) {
	for name, elsewhere := range map[string]struct{ prefix, topic, id string }{
		"prefix": {"p", "a", "1"}, "topic": {bubblePrefix, "b", "1"}, "ID": {bubblePrefix, "a", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(b *bubble) {
				other := delayq.NewClient(b.rdb, delayq.Prefix(elsewhere.prefix))
				var cause error
				var ran atomic.Bool // the replacement may start before the first run has ended
				b.serve("a", func(ctx context.Context, job *delayq.Job) error {
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
				b.enqueue("a", "1")
				b.pass(time.Second)
				b.enqueue("a", "1", delayq.Replace())
				b.pass(2 * time.Minute)
				require.Equal(b, delayq.ErrReplaced, cause)
			})
		})
	}
}

// A server that takes a job again, of which it has a run still, has lost the lease of that: the job
// is the same one, and nobody has replaced it.
func TestSameJobTakenAgainIsNotReplaced(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var hooks told
		var rec recorder
		var cause error
		var over time.Duration
		b.serve("t", rec.then(func(ctx context.Context, job *delayq.Job) error {
			if len(rec.of("1")) > 1 {
				return nil
			}
			<-ctx.Done()
			cause, over = context.Cause(ctx), b.at()
			return nil
		}), delayq.Lease(10*time.Minute), delayq.Hooks(&hooks))
		b.enqueue("t", "1")
		b.pass(time.Second)
		ctx, key := b.Context(), bubblePrefix+":{t}:"
		require.NoError(b, b.rdb.Del(ctx, key+"leases").Err())
		require.NoError(b, b.rdb.RPush(ctx, key+"ready", "1").Err())
		b.pass(time.Second)
		require.Len(b, rec.of("1"), 2)
		require.Equal(b, time.Second, over, "before the server has looked at its leases")
		require.Equal(b, delayq.ErrLeaseLost, cause)
		require.Equal(b, map[string]int{"Started": 2, "LeaseLost": 1, "Done": 1}, hooks.kinds("1"))
	})
}

// What is edited twice is told once.
func TestEditedPartsAreNamedOnce(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.schedule("s", delayq.Every(time.Hour))
		for _, text := range []string{"one", "two"} {
			require.NoError(b, b.client.EditSchedule(b.Context(), "t", "s", func(def *delayq.ScheduleDefinition) error {
				def.EditedBy = "me"
				def.Payload = []byte(text)
				return nil
			}))
		}
		require.Equal(b, []string{"Payload"}, b.info("s").Edited)
		require.Equal(b, "two", string(b.info("s").Payload))
	})
}
