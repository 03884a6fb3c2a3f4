package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// On a Cluster a run hands jobs over to topics on all nodes.
func TestThenOnACluster(t *testing.T) {
	t.Parallel()
	f := queuetest.NewFixture(t, redistest.SharedCluster(t).Client(t))
	topics := queuetest.TopicsOnAllNodes()
	queuetest.Serve(t, f.RDB, f.Prefix, "source", func(_ context.Context, job *delayq.Job) error {
		var errs []error
		for _, topic := range topics {
			errs = append(errs, job.Then(topic, "of "+job.ID, nil, delayq.Key("k")), job.Then(topic, "soon "+job.ID, nil, delayq.ProcessIn(time.Hour)))
		}
		return errors.Join(errs...)
	})
	const jobs = 20
	for i := range jobs {
		_, err := f.Client.Enqueue(t.Context(), "source", fmt.Sprint(i), nil)
		require.NoError(t, err)
	}
	queuetest.Until(t, func() bool {
		for _, topic := range topics {
			if s := queuetest.StatsOf(t, f.Inspector, topic); s.Ready < jobs || s.Scheduled < jobs {
				return false
			}
		}
		s := queuetest.StatsOf(t, f.Inspector, "source")
		return s.Parcels+s.Running == 0
	})
	for _, topic := range topics {
		s := queuetest.StatsOf(t, f.Inspector, topic)
		require.EqualValues(t, jobs, s.Ready)
		require.EqualValues(t, jobs, s.Scheduled)
		require.EqualValues(t, 2*jobs, s.Counters[delayq.CounterEnqueued])
	}
}

// A server without a right to the target says so, and the jobs wait until it has it.
func TestThenWithoutTheRight(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rs := redistest.Start(t, "--aclfile", redistest.Path(hand.ACLFile))
	admin, rdb := rs.Client(t), queuetest.ACLClient(t, rs, "worker")
	client := delayq.NewClient(admin)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "delayq-worker", "resetkeys", "~delayq:topics", "~delayq:servers", "~delayq:{a}:*").Err())
	var log queuetest.Logbook
	queuetest.Serve(t, rdb, script.DefaultPrefix, "a", func(_ context.Context, job *delayq.Job) error {
		return job.Then("b", "x", nil, delayq.Replace())
	}, log.To())
	_, err := client.Enqueue(t.Context(), "b", "x", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	_, err = client.Enqueue(t.Context(), "a", "1", nil)
	require.NoError(t, err)
	queuetest.Until(t, func() bool { return len(log.With("relay to b failed", "NOPERM")) == 1 })
	require.Equal(t, delayq.StateScheduled, queuetest.StateOf(t, client, "b", "x"))
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "delayq-worker", "~delayq:{b}:*").Err())
	queuetest.Until(t, func() bool { return queuetest.StateOf(t, client, "b", "x") == delayq.StateReady })
}
