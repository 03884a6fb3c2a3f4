package delayq_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

// topicsOnAllNodes is more topics than a cluster of three masters can have on one of them, with any
// luck.
func topicsOnAllNodes() (topics []string) {
	for i := range 12 {
		topics = append(topics, fmt.Sprintf("topic %d", i))
	}
	return topics
}

// All calls of a client work on a cluster, whichever node a topic is on. (J7)
func TestClusterClient(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	rdb := cluster.Client(t)
	ctx := t.Context()
	f := newFixture(t, rdb)
	nodes := map[string]bool{}
	for _, topic := range topicsOnAllNodes() {
		node, err := rdb.MasterForKey(ctx, fmt.Sprintf("%s:{%s}:pool", f.prefix, topic))
		require.NoError(t, err)
		nodes[node.Options().Addr] = true

		hand := delayq.NewHand(t, rdb, f.prefix, topic)
		job, err := f.client.Enqueue(ctx, topic, "x", []byte(topic), delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.Equal(t, time.Hour, job.Due.Sub(job.EnqueuedAt))
		_, err = f.client.Enqueue(ctx, topic, "x", nil)
		require.ErrorIs(t, err, delayq.ErrDuplicate)
		_, err = f.client.Enqueue(ctx, topic, "x", []byte("new"), delayq.Replace(), delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.NoError(t, f.client.Reschedule(ctx, topic, "x", delayq.ProcessIn(0)))
		info, err := f.client.Get(ctx, topic, "x")
		require.NoError(t, err)
		require.Equal(t, "new", string(info.Payload))

		require.NoError(t, f.client.Pause(ctx, topic, delayq.Pause{By: "me", Reason: "why", For: time.Hour}))
		require.Empty(t, hand.Take(1, time.Minute))
		require.NoError(t, f.client.Resume(ctx, topic, "me"))
		held := hand.TakeOne("x")
		require.ErrorIs(t, f.client.Reschedule(ctx, topic, "x", delayq.ProcessIn(0)), delayq.ErrRunning)
		require.Equal(t, "o", hand.Bury(held))
		for _, state := range []delayq.State{
			delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone,
		} {
			list, err := f.client.List(ctx, topic, delayq.ListQuery{State: state, Limit: 10})
			require.NoError(t, err)
			require.Equal(t, state == delayq.StateDead, len(list) == 1, state)
		}
		require.NoError(t, f.client.Revive(ctx, topic, "x"))
		require.Equal(t, "o", hand.Retry(time.Hour, hand.TakeOne("x")))
		counts, err := f.client.Inspect(ctx, topic)
		require.NoError(t, err)
		require.EqualValues(t, 1, counts.Scheduled)
		state, err := f.client.Dequeue(ctx, topic, "x")
		require.NoError(t, err)
		require.Equal(t, delayq.StateScheduled, state)
		_, err = f.client.Dequeue(ctx, topic, "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
	}
	require.Len(t, nodes, 3, "the topics are not on all nodes: take more")
	topics, err := f.client.Topics(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, topicsOnAllNodes(), topics)
}

func TestClusterBatch(t *testing.T) {
	t.Parallel()
	f := newFixture(t, redistest.SharedCluster(t).Client(t))
	var jobs []delayq.NewJob
	for i := range 3000 {
		jobs = append(jobs, delayq.NewJob{Topic: topicsOnAllNodes()[i%12], ID: fmt.Sprint(i), Payload: fmt.Append(nil, i)})
	}
	results, err := f.client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
	for i, r := range results {
		require.Equal(t, jobs[i].ID, r.Job.ID)
	}
	for _, topic := range topicsOnAllNodes() {
		info, err := f.client.Inspect(t.Context(), topic)
		require.NoError(t, err)
		require.EqualValues(t, 250, info.Ready)
	}
}

// A cluster whose masters have no replicas confirms nothing; the WAIT goes to the node of the
// topic.
func TestClusterWaitReplicas(t *testing.T) {
	t.Parallel()
	f := newFixture(t, redistest.SharedCluster(t).Client(t), delayq.WaitReplicas(1, time.Millisecond))
	for _, topic := range topicsOnAllNodes() {
		job, err := f.client.Enqueue(t.Context(), topic, "x", nil)
		require.ErrorIs(t, err, delayq.ErrNotReplicated)
		require.ErrorContains(t, err, "0 of 1")
		info, err := f.client.Get(t.Context(), topic, "x")
		require.NoError(t, err)
		require.Equal(t, job.Nonce(), info.Nonce())
	}
}

type onScript func(delayq.ScriptEvent)

func (f onScript) Script(e delayq.ScriptEvent) { f(e) }

// A server has topics on all nodes: jobs for now and for soon run, one that fails is retried, one
// that is cancelled does not run.
func TestClusterServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	f := newFixture(t, rdb)
	ctx := t.Context()
	beat := make(chan struct{}, 100)
	server := delayq.AsWorker(delayq.NewServer(rdb, delayq.Prefix(f.prefix), delayq.Logger(slog.New(slog.DiscardHandler)),
		delayq.Hooks(onScript(func(e delayq.ScriptEvent) {
			if e.Name == "heartbeat" {
				beat <- struct{}{}
			}
		}))))
	var mu sync.Mutex
	runs := map[string]int{}
	var left sync.WaitGroup
	for _, topic := range topicsOnAllNodes() {
		left.Add(4) // now, soon, and fails twice
		server.HandlerFunc(topic, func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			runs[job.ID]++
			left.Done()
			if job.ID == "fails" && job.Attempt == 1 {
				return fmt.Errorf("attempt %d", job.Attempt)
			}
			return nil
		})
		for id, opts := range map[string][]delayq.JobOption{
			"now": nil, "soon": {delayq.ProcessIn(20 * time.Millisecond)},
			"fails": {delayq.Backoff(time.Millisecond, time.Millisecond)}, "cancelled": {delayq.ProcessIn(time.Hour)},
		} {
			_, err := f.client.Enqueue(ctx, topic, id, nil, opts...)
			require.NoError(t, err)
		}
		_, err := f.client.Dequeue(ctx, topic, "cancelled")
		require.NoError(t, err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	left.Wait()
	<-beat
	servers, err := f.client.Servers(ctx)
	require.NoError(t, err)
	require.Len(t, servers, 1)
	require.Len(t, servers[0].Topics, 12)
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, map[string]int{"now": 12, "soon": 12, "fails": 24}, runs)
	for _, topic := range topicsOnAllNodes() {
		info, err := f.client.Inspect(ctx, topic)
		require.NoError(t, err)
		require.Zero(t, info.Scheduled+info.Ready+info.Running+info.Dead)
		require.EqualValues(t, 3, info.Counters["acked"])
		require.EqualValues(t, 1, info.Counters["retried"])
	}
	servers, err = f.client.Servers(ctx)
	require.NoError(t, err)
	require.Empty(t, servers)
}
