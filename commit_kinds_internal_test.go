package delayq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// start starts a call and returns when it waits for something.
func (c *commitTest) start(call func() error, outcome func(error)) {
	c.wg.Go(func() { outcome(call()) })
	synctest.Wait()
}

// is returns a function that checks the outcome of a call; nil: none.
func (c *commitTest) is(want error) func(error) {
	return func(err error) {
		if !errors.Is(err, want) {
			c.t.Errorf("%v, want %v", err, want)
		}
	}
}

// calls returns the names of the scripts that were called, and about how many jobs.
func (l *scriptLog) calls() (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		list = append(list, fmt.Sprint(e.Name, " ", e.Jobs))
	}
	return list
}

// pipelines counts those of go-redis with scripts.
type pipelines struct {
	n    atomic.Int64
	with atomic.Pointer[func()] // called in the way of each
}

func (p *pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (p *pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == "evalsha" }) {
			p.n.Add(1)
			if f := p.with.Load(); f != nil {
				(*f)()
			}
		}
		return next(ctx, cmds)
	}
}

// Calls of all kinds that come meanwhile go together, in one round trip and in one call of each
// script.
func TestCommitGathersAllKinds(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		var pipes pipelines
		c.client.rdb.(*redis.Client).AddHook(&pipes)
		require.NoError(t, LoadScripts(t.Context(), c.client.rdb))
		ctx := t.Context()
		for i := range 2 {
			id := fmt.Sprint("job", i)
			c.start(func() error { _, err := c.client.Dequeue(ctx, "topic", id); return err }, c.is(ErrNotFound))
			c.start(func() error { return c.client.Delete(ctx, "topic", "done"+id) }, c.is(ErrNotFound))
			c.start(func() error { return c.client.Revive(ctx, "topic", "dead"+id) }, c.is(ErrNotFound))
			c.start(func() error { return c.client.Reschedule(ctx, "topic", "moved"+id, ProcessIn(0)) }, c.is(ErrNotFound))
			c.enqueue(ctx, c.stored, "new"+id, nil)
		}
		c.start(func() error {
			state, err := c.client.Dequeue(ctx, "topic", "zeroth")
			if state != StateReady {
				t.Error(state)
			}
			return err
		}, c.stored)
		c.start(func() error {
			info, err := c.client.Get(ctx, "topic", "gatekeeper")
			if err == nil && info.ID != "gatekeeper" {
				t.Error(info)
			}
			return err
		}, c.stored)
		c.release()
		require.Equal(t, []string{"enqueue 1", "enqueue 2", "cancel 3", "delete 2", "reschedule 2", "revive 2", "get 1"}, c.log.calls())
		require.EqualValues(t, 1, pipes.n.Load())
	})
}

// Calls about one ID keep their order, and others do not wait for them.
func TestCommitKeepsCallsAboutOneIDApart(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		ctx := t.Context()
		dequeue := func() error { _, err := c.client.Dequeue(ctx, "topic", "hot"); return err }
		c.start(dequeue, c.is(ErrNotFound))
		c.enqueue(ctx, c.stored, "hot", nil)
		c.start(dequeue, c.stored)
		c.start(dequeue, c.is(ErrNotFound))
		c.enqueue(ctx, c.stored, "hot", []byte("2"))
		c.start(func() error { return c.client.Reschedule(ctx, "topic", "hot", ProcessIn(time.Hour)) }, c.stored)
		c.enqueue(ctx, c.stored, "other", nil)
		c.release()
		require.Equal(t, []string{"enqueue 1", "enqueue 1", "cancel 1"}, c.log.calls()[:3], "other goes with the first")
		info, err := c.client.Get(ctx, "topic", "hot")
		require.NoError(t, err)
		require.Equal(t, StateScheduled, info.State)
	})
}

// A caller that goes before its call was sent gets its context's error, and nothing is done. One
// that goes later cannot know the outcome of what writes.
func TestCommitLeftByEachKind(t *testing.T) {
	for name, sent := range map[string]bool{"pending": false, "in flight": true} {
		t.Run(name, func(t *testing.T) {
			holding(t, func(t *testing.T, c *commitTest) {
				ctx, cancel := context.WithCancel(t.Context())
				dequeued, got := errors.New("none"), errors.New("none")
				c.start(func() error { _, err := c.client.Dequeue(ctx, "topic", "zeroth"); return err }, func(err error) { dequeued = err })
				c.start(func() error { _, err := c.client.Get(ctx, "topic", "gatekeeper"); return err }, func(err error) { got = err })
				second := make(chan struct{})
				if sent {
					c.fault.Again("zeroth", func() { <-second })
					c.release()
				}
				cancel()
				synctest.Wait()
				require.ErrorIs(t, dequeued, context.Canceled)
				require.Equal(t, sent, errors.Is(dequeued, ErrUnknownOutcome))
				require.ErrorIs(t, got, context.Canceled)
				require.NotErrorIs(t, got, ErrUnknownOutcome, "it writes nothing")
				close(second)
				c.release()
				require.Equal(t, !sent, c.has("zeroth"))
			})
		})
	}
}

// A hook crashes in a flight of several kinds: each caller hears of it, and the next ones are not
// in its way.
func TestCommitOfManyKindsCrashes(t *testing.T) {
	for what, with := range crashes {
		t.Run(what, func(t *testing.T) {
			holding(t, func(t *testing.T, c *commitTest) {
				var pipes pipelines
				c.client.rdb.(*redis.Client).AddHook(&pipes)
				var dequeued, got error
				c.start(func() error { _, err := c.client.Dequeue(t.Context(), "topic", "zeroth"); return err }, func(err error) { dequeued = err })
				c.start(func() error { _, err := c.client.Get(t.Context(), "topic", "zeroth2"); return err }, func(err error) { got = err })
				pipes.with.Store(&with)
				c.release()
				require.ErrorIs(t, dequeued, ErrUnknownOutcome)
				require.ErrorContains(t, dequeued, `cancel topic "topic" job "zeroth": `)
				require.ErrorContains(t, dequeued, what+": ")
				require.ErrorIs(t, got, script.ErrCut)
				require.NotErrorIs(t, got, ErrUnknownOutcome)
				pipes.with.Store(nil)
				c.start(func() error { _, err := c.client.Dequeue(t.Context(), "topic", "zeroth"); return err }, c.stored)
			})
		})
	}
}

// everyKind returns an operation of each kind that succeeds on a stage.
func everyKind(t *testing.T, c *Client) []*operation {
	fresh, _, err := c.prepare(t.Context(), &NewJob{Topic: "topic", ID: "new"})
	require.NoError(t, err)
	move := &operation{kind: rescheduleKind, topic: "topic", id: "ready"}
	move.move, err = moveTo(ProcessIn(time.Hour))
	require.NoError(t, err)
	return []*operation{
		fresh, move,
		{kind: cancelKind, topic: "topic", id: "scheduled"}, {kind: reviveKind, topic: "topic", id: "dead"},
		{kind: getKind, topic: "topic", id: "back"}, {kind: deleteKind, topic: "topic", id: "done"},
	}
}

// sendAll sends operations in one flight, and returns its error.
func sendAll(ctx context.Context, g *commit, list []*operation) error {
	failed, _ := g.send(ctx, &g.series, list)
	return failed
}

// stageDone is stage with a job that is done.
func stageDone(h *Hand) {
	h.t.Helper()
	_, err := h.client().Enqueue(context.Background(), "topic", "done", nil, Retention(time.Hour))
	require.NoError(h.t, err)
	require.Equal(h.t, "o", h.Ack(h.TakeOne("done")))
	stage(h)
}

func requireAllDone(t *testing.T, h *Hand, list []*operation) {
	t.Helper()
	for _, o := range list {
		require.True(t, o.settled, o.kind.name)
		require.NoError(t, o.err)
	}
	require.Equal(t, StateScheduled, states[list[2].letter])
	require.Equal(t, StateReady, h.info("new").State)
	require.Equal(t, StateScheduled, h.info("ready").State)
	require.Equal(t, StateReady, h.info("dead").State)
	require.Empty(t, h.Traces("scheduled"))
	require.Empty(t, h.Traces("done"))
}

// A flight whose replies are lost is sent again by go-redis, and has the outcomes of the first time
// whatever has happened in between.
func TestFlightOfAllKindsWithALostReply(t *testing.T) {
	eachLossy(t, func(t *testing.T, l *lossy) {
		stageDone(l.hand)
		l.next(script.Get, func() { l.hand.put("+0", "scheduled") })
		list := everyKind(t, l.client)
		g := l.client.commits.of("topic", cancelKind)
		defer g.done()
		require.NoError(t, sendAll(t.Context(), g, list))
		for _, o := range list {
			require.True(t, o.settled)
			require.NoError(t, o.err)
		}
		require.Equal(t, StateScheduled, states[list[2].letter])
		require.Equal(t, StateReady, l.hand.info("scheduled").State, "the new one is left alone")
		for counter, want := range map[Counter]int{CounterCancelled: 1, CounterRevived: 1, CounterDeleted: 1} {
			got, err := l.hand.rdb.HGet(t.Context(), l.hand.keys.Stats, string(counter)).Int()
			require.NoError(t, err)
			require.Equal(t, want, got, counter)
		}
		require.Len(t, g.series.Free, 5, "each call that writes has a receipt")
	})
}

// After NOSCRIPT only the scripts that Redis does not know are sent again.
func TestFlightOfAllKindsWithoutScripts(t *testing.T) {
	t.Parallel()
	own := redistest.Start(t)
	rdb := own.Client(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	stageDone(h)
	require.NoError(t, rdb.ScriptFlush(t.Context()).Err())
	require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(script.Revive.Text)).Err())
	c := h.client()
	list := everyKind(t, c)
	g := c.commits.of("topic", cancelKind)
	defer g.done()
	require.NoError(t, sendAll(t.Context(), g, list))
	requireAllDone(t, h, list)
	require.EqualValues(t, 1, must(rdb.HGet(t.Context(), h.keys.Stats, "revived").Int()))
}

// In a cluster each call of a flight has its own connection. A hook of a node that crashes ends
// only its own call.
func TestFlightOfAllKindsInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t).Client(t)
	h := NewHand(t, cluster, redistest.Prefix(t), "topic")
	stageDone(h)
	c := h.client()
	list := everyKind(t, c)
	g := c.commits.of("topic", cancelKind)
	defer g.done()
	require.NoError(t, sendAll(t.Context(), g, list))
	requireAllDone(t, h, list)

	if redistest.Roles() {
		return // then other clients make the calls
	}
	h.put("+3600000", "scheduled")
	broken := &crashing{with: func() { panic("oh no") }}
	cluster.AddHook(broken)
	broken.on.Store(true)
	list = everyKind(t, c)
	require.ErrorIs(t, sendAll(t.Context(), g, list), ErrUnknownOutcome)
	broken.on.Store(false)
	for _, o := range list {
		require.True(t, o.settled, o.kind.name)
		require.ErrorContains(t, o.err, "oh no")
	}
}

// Calls that have no room in one reply, or would make Redis read too much, go on in the next one.
func TestCommitOfLargeJobs(t *testing.T) {
	holding(t, func(t *testing.T, c *commitTest) {
		const jobs, bytes = 7, 400 << 10
		for i := range jobs {
			c.enqueue(t.Context(), c.stored, fmt.Sprint(i), make([]byte, bytes), ExpireIn(time.Hour))
		}
		c.release()
		second := make(chan struct{})
		c.fault.Again("again", func() { <-second })
		c.enqueue(t.Context(), c.stored, "again", nil)
		c.log.events = nil
		for i := range jobs {
			id := fmt.Sprint(i)
			c.start(func() error {
				info, err := c.client.Get(t.Context(), "topic", id)
				if err == nil && (info.ID != id || len(info.Payload) != bytes) {
					t.Error(info.ID, len(info.Payload))
				}
				return err
			}, c.stored)
		}
		for i := range jobs {
			id := fmt.Sprint(i)
			c.start(func() error { return c.client.Reschedule(t.Context(), "topic", id, ProcessIn(time.Minute)) }, c.stored)
		}
		close(second)
		synctest.Wait()
		require.Greater(t, len(c.log.calls()), 3+jobs/3, "about 1 MiB at a time")
		for i := range jobs {
			info, err := c.client.Get(t.Context(), "topic", fmt.Sprint(i))
			require.NoError(t, err)
			require.Equal(t, StateScheduled, info.State)
		}
	})
}

// A caller that has gone is not carried out when the rest of its flight is.
func TestCommitDropsWhatWasLeft(t *testing.T) {
	t.Parallel()
	g := &commit{pending: []*operation{{id: "c"}}}
	g.putBack([]*operation{{id: "settled", settled: true, sent: true}, {id: "a", sent: true}, {id: "left", left: true, sent: true}, {id: "b", sent: true}})
	var ids []string
	for _, o := range g.pending {
		ids = append(ids, o.id)
		require.False(t, o.sent)
	}
	require.Equal(t, []string{"a", "b", "c"}, ids)
}

// Calls that wait for replicas are in no other call's way, and have receipts of their own.
func TestCallsThatWaitForReplicasHaveTheirOwnLane(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{})
	defer func() { require.NoError(t, rdb.Close()) }()
	plain, waits := NewClient(rdb), NewClient(rdb, WaitReplicas(1, time.Second))
	require.Same(t, plain.commits.of("topic", enqueueKind), plain.commits.of("topic", cancelKind))
	stores, cancels := waits.commits.of("topic", enqueueKind), waits.commits.of("topic", cancelKind)
	require.NotSame(t, stores, cancels)
	require.Same(t, cancels, waits.commits.of("topic", getKind))
	require.NotEqual(t, stores.series.Get().ID, cancels.series.Get().ID)
}

// One call about many jobs leaves what one call for each of them leaves, and it answers in the
// letters of their states.
func TestCancelOfManyJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		stage(h)
		r, err := h.tryCancel("nobody", "ready", "scheduled", "running", "dead", "back")
		require.NoError(t, err)
		require.Equal(t, "grsuds", r.Text(2))
		for _, id := range []string{"ready", "scheduled", "running", "dead", "back"} {
			require.Empty(t, h.Traces(id))
		}
		again, err := h.last()
		require.NoError(t, err)
		require.Equal(t, r[2:], again[2:])
		cancelled, err := h.rdb.HGet(t.Context(), h.keys.Stats, "cancelled").Int()
		require.NoError(t, err)
		require.Equal(t, 5, cancelled)
	})
}

// A call removes at most a hundred entries of ready, and leaves the other jobs as they are.
func TestCancelOfManyReadyJobsIsBounded(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ids := numbered("job", 250)
		h.put("+0", ids...)
		r, err := h.tryCancel(ids...)
		require.NoError(t, err)
		require.Len(t, r.Text(2), 100)
		require.EqualValues(t, 150, h.rdb.LLen(t.Context(), h.keys.Ready).Val())
		require.EqualValues(t, 150, h.rdb.HLen(t.Context(), h.keys.Pool).Val())
	})
}

// An operation that the script keeps asking about ends with an error.
func TestRescheduleAsksTenTimes(t *testing.T) {
	t.Parallel()
	o := &operation{kind: rescheduleKind, topic: "topic", id: "x", move: &rescheduling{known: record.Job{}}}
	for range mostAsked {
		require.False(t, o.settled)
		readRescheduled(nil, []*operation{o}, script.Reply{"ok", int64(1), "p", []any{""}})
	}
	require.ErrorIs(t, o.err, script.ErrReply)
}
