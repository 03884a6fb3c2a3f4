package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

func TestClusterBatch(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.SharedCluster(t).Client(t))
	var jobs []delayq.NewJob
	for i := range 3000 {
		jobs = append(jobs, delayq.NewJob{Topic: queuetest.TopicsOnAllNodes()[i%12], ID: fmt.Sprint(i), Payload: fmt.Append(nil, i)})
	}
	results, err := f.Client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
	for i, r := range results {
		require.Equal(t, jobs[i].ID, r.Job.ID)
	}
	for _, topic := range queuetest.TopicsOnAllNodes() {
		info, err := f.Client.Inspect(t.Context(), topic)
		require.NoError(t, err)
		require.EqualValues(t, 250, info.Ready)
	}
}

// A cluster whose masters have no replicas confirms nothing; the WAIT goes to the node of the
// topic.
func TestClusterWaitReplicas(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.SharedCluster(t).Client(t), delayq.WaitReplicas(1, time.Millisecond))
	for _, topic := range queuetest.TopicsOnAllNodes() {
		job, err := f.Client.Enqueue(t.Context(), topic, "x", nil)
		require.ErrorIs(t, err, delayq.ErrNotReplicated)
		require.ErrorContains(t, err, "0 of 1")
		info, err := f.Client.Get(t.Context(), topic, "x")
		require.NoError(t, err)
		require.Equal(t, job.Nonce(), info.Nonce())
	}
}

// A server has topics on all nodes: jobs for now and for soon run, one that fails is retried, one
// that is cancelled does not run.
func TestClusterServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.SharedCluster(t).Client(t)
	f := queuetest.NewFixture(t, rdb)
	ctx := t.Context()
	beat := make(chan struct{}, 100)
	server := queuetest.NewServer(rdb, f.Prefix, delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
		if e.Name == "heartbeat" {
			beat <- struct{}{}
		}
	})))
	var mu sync.Mutex
	runs := map[string]int{}
	var left sync.WaitGroup
	for _, topic := range queuetest.TopicsOnAllNodes() {
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
			_, err := f.Client.Enqueue(ctx, topic, id, nil, opts...)
			require.NoError(t, err)
		}
		_, err := f.Client.Dequeue(ctx, topic, "cancelled")
		require.NoError(t, err)
	}
	run, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(run) }()
	left.Wait()
	<-beat
	servers, err := f.Client.Servers(ctx)
	require.NoError(t, err)
	require.Len(t, servers, 1)
	require.Len(t, servers[0].Topics, 12)
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, map[string]int{"now": 12, "soon": 12, "fails": 24}, runs)
	for _, topic := range queuetest.TopicsOnAllNodes() {
		info, err := f.Client.Inspect(ctx, topic)
		require.NoError(t, err)
		require.Zero(t, info.Scheduled+info.Ready+info.Running+info.Dead)
		require.EqualValues(t, 3, info.Counters["acked"])
		require.EqualValues(t, 1, info.Counters["retried"])
	}
	servers, err = f.Client.Servers(ctx)
	require.NoError(t, err)
	require.Empty(t, servers)
}
