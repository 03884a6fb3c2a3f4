package tests

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
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
		info := queuetest.StatsOf(t, f.Inspector, topic)
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
	servers, err := f.Inspector.Servers(ctx)
	require.NoError(t, err)
	require.Len(t, servers, 1)
	require.Len(t, servers[0].Topics, 12)
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, map[string]int{"now": 12, "soon": 12, "fails": 24}, runs)
	for _, topic := range queuetest.TopicsOnAllNodes() {
		info := queuetest.StatsOf(t, f.Inspector, topic)
		require.Zero(t, info.Scheduled+info.Ready+info.Running+info.Dead)
		require.EqualValues(t, 3, info.Counters["acked"])
		require.EqualValues(t, 1, info.Counters["retried"])
	}
	servers, err = f.Inspector.Servers(ctx)
	require.NoError(t, err)
	require.Empty(t, servers)
}

// All transitions on a Redis Cluster of three masters, for topics on each of them.
func TestServerOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	rdb, prefix := cluster.Client(t), redistest.Prefix(t)
	ctx := t.Context()
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
	topics := topicsOnAllMasters(t, rdb, prefix)

	var hooks queuetest.HookLog
	var log queuetest.Logbook
	defer func() {
		if t.Failed() {
			t.Log(log.With("level="))
		}
	}()
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	defer free()
	handler := func(ctx context.Context, job *delayq.Job) error {
		switch {
		case job.ID == "retry" && job.Attempt < 3, job.ID == "dead":
			return queuetest.ErrTest
		case job.ID == "panic" && job.Attempt == 1:
			panic("at the disco")
		case job.ID == "snooze" && job.Due.Equal(job.EnqueuedAt):
			return delayq.Snooze(20 * time.Millisecond)
		case job.ID == "stuck" && job.Attempt == 1:
			<-release // past its Timeout, so that the lease runs out and another server has the job
		case job.ID == "cancel", job.ID == "replace" && len(job.Payload) == 0, job.ID == "return":
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	server := func() *queuetest.Running {
		return queuetest.ServeMany(t, rdb, prefix, func(s *delayq.Server) {
			for _, topic := range topics {
				s.HandlerFunc(topic, handler)
			}
		}, delayq.Hooks(&hooks), log.To(), delayq.Lease(10*time.Second), delayq.Drain(time.Second))
	}
	first := server()
	second := server()
	queuetest.Until(t, func() bool {
		servers, err := insp.Servers(ctx)
		return err == nil && len(servers) == 2
	})

	short := delayq.Backoff(10*time.Millisecond, 20*time.Millisecond)
	var batch []delayq.NewJob
	for _, topic := range topics {
		for i := range 20 {
			batch = append(batch, delayq.NewJob{Topic: topic, ID: fmt.Sprint("batch-", i), Payload: []byte(topic),
				Options: []delayq.JobOption{delayq.ProcessIn(time.Duration(i) * 20 * time.Millisecond)}})
		}
		for id, opts := range map[string][]delayq.JobOption{
			"now": nil, "retry": {short}, "panic": {short}, "snooze": nil, "dead": {short, delayq.Retry(1)}, "kept": {delayq.Retention(time.Hour)},
			"stuck": {delayq.Timeout(50 * time.Millisecond)}, "cancel": nil, "replace": nil, "return": nil,
			"moved": {delayq.ProcessIn(time.Hour)}, "never": {delayq.ProcessIn(time.Hour)},
		} {
			_, err := client.Enqueue(ctx, topic, id, nil, opts...)
			require.NoError(t, err)
		}
		require.NoError(t, client.Reschedule(ctx, topic, "moved", delayq.ProcessIn(50*time.Millisecond)))
		state, err := client.Dequeue(ctx, topic, "never")
		require.NoError(t, err)
		require.Equal(t, delayq.StateScheduled, state)
	}
	_, err := client.EnqueueBatch(ctx, batch)
	require.NoError(t, err)
	n := len(topics)
	queuetest.Until(t, func() bool { return len(hooks.Of("Started", "cancel", "replace", "return")) == 3*n })
	for _, topic := range topics {
		state, err := client.Dequeue(ctx, topic, "cancel") // told over the control channel, from whatever node
		require.NoError(t, err)
		require.Equal(t, delayq.StateRunning, state)
		_, err = client.Enqueue(ctx, topic, "replace", []byte("new"), delayq.Replace())
		require.NoError(t, err)
	}
	queuetest.Until(t, func() bool {
		return len(hooks.Of("Cancelled", "cancel")) == n && len(hooks.Of("Replaced", "replace"))+len(hooks.Of("LeaseLost", "replace")) == n
	})
	queuetest.Until(t, func() bool { return len(hooks.Of("Buried", "dead")) == n })
	for _, topic := range topics {
		require.NoError(t, client.Revive(ctx, topic, "dead"))
	}
	queuetest.Until(t, func() bool { return len(hooks.Of("Buried", "dead")) == 2*n })
	queuetest.Until(t, func() bool { return len(hooks.Of("Done")) == n*(20+8) }, "now, retry, panic, snooze, kept, stuck, replace, moved")
	free()
	// Its job may be gone by then, which looks like a cancel.
	queuetest.Until(t, func() bool { return len(hooks.Of("LeaseLost", "stuck"))+len(hooks.Of("Cancelled", "stuck")) == n })

	require.NoError(t, client.Pause(ctx, topics[0], delayq.Pause{}))
	_, err = client.Enqueue(ctx, topics[0], "paused", nil)
	require.NoError(t, err)
	require.NoError(t, client.Resume(ctx, topics[0], ""))
	queuetest.Until(t, func() bool { return len(hooks.Of("Done", "paused")) == 1 })

	require.NoError(t, first.Stop())
	require.NoError(t, second.Stop())
	require.Empty(t, log.With("CROSSSLOT"))
	require.Empty(t, log.With("MOVED"))
	require.Empty(t, log.With("level=ERROR", "WRONGTYPE"))
	// A stop has 0.2 s to record what it gives back. A node can be slower. Then the log says so.
	var late int64
	if len(log.With("jobs not settled")) > 0 {
		late = int64(n)
	}
	for _, topic := range topics {
		info := queuetest.StatsOf(t, insp, topic)
		require.EqualValues(t, 1, info.Dead)
		require.EqualValues(t, 1, info.Done)
		require.EqualValues(t, 1, info.Ready+info.Running, "the one that was given back")
		require.EqualValues(t, 1, info.Counters["reclaimed"])
		if late -= info.Running; info.Running == 0 {
			require.Equal(t, delayq.StateReady, queuetest.StateOf(t, client, topic, "return"))
		}
		require.GreaterOrEqual(t, late, int64(0))
		job, err := client.Get(ctx, topic, "dead")
		require.NoError(t, err)
		require.Equal(t, 4, job.Attempt)
		require.Len(t, job.Errors, 4)
	}
	servers, err := insp.Servers(ctx)
	require.NoError(t, err)
	require.Empty(t, servers)
}

// topicsOnAllMasters gives five topics, at least one for each master.
func topicsOnAllMasters(t *testing.T, rdb *redis.ClusterClient, prefix string) []string {
	t.Helper()
	var topics []string
	seen := make(map[string]bool)
	for i := 0; len(topics) < 5; i++ {
		topic := fmt.Sprint("topic-", i)
		node, err := rdb.MasterForKey(t.Context(), prefix+":{"+topic+"}:pool")
		require.NoError(t, err)
		if addr := node.Options().Addr; !seen[addr] || len(seen) == 3 {
			seen[addr] = true
			topics = append(topics, topic)
		}
	}
	require.Len(t, seen, 3)
	return topics
}

// One master of a cluster is frozen. Topics on the others go on as if nothing were, and those on it
// when it is back.
func TestFrozenMasterOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	opts := cluster.Options()
	opts.ReadTimeout, opts.MaxRetries = 500*time.Millisecond, 1
	rdb := redis.NewClusterClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	redistest.InRoles(t, rdb)
	prefix := redistest.Prefix(t)
	client := delayq.NewClient(rdb, delayq.Prefix(prefix))
	ctx := t.Context()
	topics := topicsOnAllMasters(t, rdb, prefix)
	frozen := func(topic string) bool {
		node, err := rdb.MasterForKey(ctx, prefix+":{"+topic+"}:pool")
		require.NoError(t, err)
		return node.Options().Addr == cluster.Nodes[0].Addr()
	}
	var hooks queuetest.HookLog
	finish := make(chan struct{})
	server := queuetest.ServeMany(t, rdb, prefix, func(s *delayq.Server) {
		for _, topic := range topics {
			s.HandlerFunc(topic, func(ctx context.Context, job *delayq.Job) error {
				if job.ID == "long" {
					select {
					case <-finish:
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
				return nil
			})
		}
	}, delayq.Hooks(&hooks), delayq.Lease(3*time.Second), delayq.Drain(time.Second))
	onFrozen := 0
	for _, topic := range topics {
		if frozen(topic) {
			onFrozen++
		}
		_, err := client.Enqueue(ctx, topic, "long", nil)
		require.NoError(t, err)
	}
	require.Positive(t, onFrozen)
	queuetest.Until(t, func() bool { return len(hooks.Of("Started", "long")) == len(topics) })
	var whole []string
	for _, topic := range topics {
		if !frozen(topic) {
			whole = append(whole, topic)
		}
	}
	require.NoError(t, rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		return node.ConfigSet(ctx, "cluster-require-full-coverage", "no").Err() // or they all stop when one is missed
	}))
	require.NoError(t, cluster.Nodes[0].Stop())
	count := func() map[string]int {
		hooks.Mu.Lock()
		defer hooks.Mu.Unlock()
		n := make(map[string]int)
		for _, e := range hooks.Scripts {
			if e.Name == "extend" && e.Err == nil {
				n[e.Topic]++
			}
		}
		return n
	}
	extended := count()
	for _, topic := range whole {
		for i := range 20 {
			_, err := client.Enqueue(ctx, topic, fmt.Sprint(i), nil)
			require.NoError(t, err)
		}
	}
	queuetest.Until(t, func() bool { return len(hooks.Of("Done")) == 20*len(whole) })
	queuetest.Until(t, func() bool { // more than a lease is over
		require.Empty(t, server.Health().Late)
		now := count()
		for _, topic := range whole {
			if now[topic]-extended[topic] < 4 {
				return false
			}
		}
		return true
	})
	for _, e := range append(hooks.Of("LeaseLost"), hooks.Of("Cancelled")...) {
		require.True(t, frozen(e.Topic), e.Topic)
	}
	require.NoError(t, cluster.Nodes[0].Cont())
	queuetest.Until(t, func() bool {
		for _, topic := range topics {
			if _, err := client.Enqueue(ctx, topic, "after", nil); err != nil && !errors.Is(err, delayq.ErrDuplicate) {
				return false
			}
		}
		return true
	})
	close(finish)
	queuetest.Until(t, func() bool {
		done := make(map[string]bool)
		for _, e := range hooks.Of("Done", "after", "long") {
			done[e.Topic+" "+e.ID] = true
		}
		return len(done) == 2*len(topics)
	})
}

// A node has as many connections of a server as a Redis without a cluster has, and gets no more
// calls at rest, however many topics it serves.
func TestConnectionsToEachNodeOfACluster(t *testing.T) {
	const topics, most = 1000, 24
	if testing.Short() || redistest.Size(topics) < topics {
		t.Skip("a server gives connections back at its heartbeats, which are five seconds apart: DELAYQ_FULL=1 has it")
	}
	t.Parallel()
	cluster := redistest.SharedCluster(t)
	opts := cluster.Options()
	var mu sync.Mutex
	open, peak := map[string]int{}, map[string]int{}
	count := func(addr string, d int) {
		mu.Lock()
		defer mu.Unlock()
		open[addr] += d
		peak[addr] = max(peak[addr], open[addr])
	}
	opts.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		count(addr, 1)
		return &countedConn{Conn: c, closed: sync.OnceFunc(func() { count(addr, -1) })}, nil
	}
	rdb := redis.NewClusterClient(opts)
	defer func() { require.NoError(t, rdb.Close()) }()
	redistest.InRoles(t, rdb)
	f := queuetest.NewFixture(t, cluster.Client(t))

	var calls atomic.Int64
	beats := make(chan int64, 100) // the number of calls at each heartbeat
	name := func(i int) string { return fmt.Sprint("topic ", i) }
	queuetest.ServeMany(t, rdb, f.Prefix, func(s *delayq.Server) {
		for i := range topics {
			require.NoError(t, s.HandlerFunc(name(i), queuetest.Nothing))
		}
	}, delayq.Hooks(queuetest.OnScript(func(e delayq.ScriptEvent) {
		if n := calls.Add(1); e.Name == "heartbeat" {
			beats <- n
		}
	})))
	<-beats
	var jobs []delayq.NewJob
	for i := range 4 * topics {
		jobs = append(jobs, delayq.NewJob{Topic: name(i % topics)})
	}
	_, err := f.Client.EnqueueBatch(t.Context(), jobs)
	require.NoError(t, err)
	for range 4 {
		<-beats
	}
	// On a busy machine the server is late, and its topics look for themselves. So a later period
	// counts, if there is one with few calls.
	const bound = 2 * 5 * 10 // ten calls a second for each node
	made := int64(math.MaxInt64)
	for range 12 {
		before := <-beats
		<-beats
		if made = <-beats - before; made <= bound*int64(len(opts.Addrs)) {
			break
		}
	}
	mu.Lock()
	defer mu.Unlock()
	require.LessOrEqual(t, made, bound*int64(len(opts.Addrs)))
	for _, addr := range opts.Addrs {
		t.Logf("%s: %d connections, at most %d; %d calls in 10 s on all nodes", addr, open[addr], peak[addr], made)
		require.LessOrEqual(t, open[addr], most, addr)
		require.LessOrEqual(t, peak[addr], 2*most, addr)
		require.Positive(t, open[addr], addr)
	}
	for i := range topics {
		require.EqualValues(t, 4, queuetest.StatsOf(t, f.Inspector, name(i)).Counters[delayq.CounterAcked], name(i))
	}
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
