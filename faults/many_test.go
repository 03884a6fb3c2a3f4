package faults_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
	"github.com/delayq/delayq/internal/redistest"
)

// A server of so many topics blocks for none of them: it is rung.

// serverTick is the default tick of a server. A job that only the tick finds starts within it, and
// a little later if the machine is busy: within resumeLimit.
const serverTick = time.Second

// manyTopics returns the names of 200 topics, with -short of 50.
func manyTopics() (topics []string) {
	n := 200
	if testing.Short() {
		n = 50
	}
	for i := range n {
		topics = append(topics, fmt.Sprintf("t%03d", i))
	}
	return topics
}

// serving makes a worker serve topics.
func serving(topics []string) func(*rig.WorkerConfig) {
	return func(c *rig.WorkerConfig) { c.Topics, c.Slots = topics, 2 }
}

// spread enqueues n tasks of one kind in each topic. within spreads their due times evenly.
func (b *bench) spread(topics []string, n int, t rig.Task, within time.Duration) {
	b.t.Helper()
	var wg sync.WaitGroup
	limit := make(chan struct{}, 64)
	for i := range n * len(topics) {
		task := t
		task.Topic, task.ID = topics[i%len(topics)], fmt.Sprint(t.ID, i)
		task.Delay += time.Duration(i) * within / time.Duration(n*len(topics))
		task.Retries = -1
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			if err := b.client.Put(context.Background(), &task, false); err != nil {
				b.t.Errorf("put: %v", err)
			}
		})
	}
	wg.Wait()
}

// acked waits until so many jobs whose IDs begin with id are done.
func (b *bench) acked(n int, id string) {
	b.t.Helper()
	b.awaitN(n, "ack of "+id, func(e rig.Event) bool { return is(rig.OpSettled, "acked")(e) && strings.HasPrefix(e.ID, id) })
}

// onTime requires that each job whose ID begins with id started at most limit after its due time.
func (b *bench) onTime(id string, limit time.Duration) {
	b.t.Helper()
	var late []time.Duration
	for _, e := range b.events(is(rig.OpStart, "")) {
		if strings.HasPrefix(e.ID, id) {
			late = append(late, time.Duration(e.Wall-e.Due)*time.Millisecond)
		}
	}
	require.NotEmpty(b.t, late)
	slices.Sort(late)
	b.t.Logf("%s: late p50 %v, p99 %v, max %v", id, late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
	require.LessOrEqual(b.t, late[len(late)-1], limit, id)
}

// wellAgain requires that after a fault a job in each topic starts on time.
func (b *bench) wellAgain(topics []string) {
	b.t.Helper()
	b.spread(topics, 1, rig.Task{ID: "after"}, 500*time.Millisecond)
	b.acked(len(topics), "after")
	b.onTime("after", resumeLimit)
}

// TestKilledWorkerOfManyTopics (A1, A19): one of two workers is killed with handlers running in
// most topics. The other one finishes all jobs. The names that the dead one has left in idle delay
// no later job.
func TestKilledWorkerOfManyTopics(t *testing.T) {
	b, topics := newBench(t), manyTopics()
	w1 := b.worker("w1", serving(topics))
	b.worker("w2", serving(topics))
	b.awaitN(2, "up", is(rig.OpUp, ""))
	b.spread(topics, 6, rig.Task{ID: "job", Steps: []string{"hang:300ms"}}, 2*time.Second)
	b.awaitN(len(topics)/2, "start", by("w1", is(rig.OpStart, "")))
	require.NoError(t, w1.Kill())
	b.drained(patient)
	b.wellAgain(topics)
	require.Equal(t, 7*len(topics), b.judge().Finished)
}

// TestCutConnectionsOfManyTopics (C13): all connections are reset several times and refused for a
// second, while jobs fall due in all topics.
func TestCutConnectionsOfManyTopics(t *testing.T) {
	b, topics := newBench(t), manyTopics()
	b.worker("w", serving(topics))
	b.spread(topics, 6, rig.Task{ID: "job", Steps: []string{"hang:50ms"}}, 4*time.Second)
	b.awaitN(len(topics)/2, "start", is(rig.OpStart, ""))
	heal := b.fault("cut")
	for range 3 {
		require.Eventually(t, func() bool { return b.proxy.Reset() > 0 }, patient, serverTick/10)
	}
	b.proxy.Cut()
	time.Sleep(serverTick) // the length of the fault
	b.proxy.Heal()
	b.drained(patient)
	heal()
	b.wellAgain(topics)
	require.Equal(t, 7*len(topics), b.judge().Finished)
}

// TestFrozenRedisOfManyTopics: Redis stands still for three leases, while jobs run and fall due in
// all topics.
func TestFrozenRedisOfManyTopics(t *testing.T) {
	b, topics := newBench(t), manyTopics()
	b.worker("w1", serving(topics))
	b.worker("w2", serving(topics))
	b.spread(topics, 4, rig.Task{ID: "job", Steps: []string{"hang:300ms"}}, 4*time.Second)
	b.awaitN(len(topics)/2, "start", is(rig.OpStart, ""))
	heal := b.fault("redis stop")
	require.NoError(t, b.server.Stop())
	time.Sleep(3 * lease) // the length of the fault
	require.NoError(t, b.server.Cont())
	b.drained(patient)
	heal()
	b.wellAgain(topics)
	require.Equal(t, 5*len(topics), b.judge().Finished)
}

// TestLostRepliesOfManyTopics: a tenth of the replies to every script that a server of many topics
// calls is lost.
func TestLostRepliesOfManyTopics(t *testing.T) {
	b, topics := newBench(t), manyTopics()
	heal := b.fault("drop all")
	var traps []*rig.Trap
	for i, name := range []string{"take", "ack", "promote", "extend", "retry", "watch", "ring", "heartbeat"} {
		traps = append(traps, b.proxy.DropReplies(rig.Sometimes(0.1, uint64(i), rig.Script(name)))) //nolint:gosec // small
	}
	b.worker("w1", serving(topics))
	b.worker("w2", serving(topics))
	b.spread(topics, 5, rig.Task{
		ID: "job", Steps: []string{"err", "hang:50ms"},
		Options: []delayq.JobOption{delayq.Backoff(100*time.Millisecond, 100*time.Millisecond)},
	}, 3*time.Second)
	b.acked(5*len(topics), "job")
	for _, trap := range traps[:3] {
		require.Positive(t, trap.Count())
	}
	for _, trap := range traps {
		trap.Remove()
	}
	heal()
	b.wellAgain(topics)
	require.Equal(t, 6*len(topics), b.judge().Finished)
}

// TestLostMessagesOfManyTopics: Redis rings, and no ring arrives. Every job starts within a tick
// and a little, because the watch finds it.
func TestLostMessagesOfManyTopics(t *testing.T) {
	b, topics := newBench(t), manyTopics()
	b.worker("w1", serving(topics))
	b.worker("w2", serving(topics))
	b.spread(topics, 2, rig.Task{ID: "before"}, 0)
	b.acked(2*len(topics), "before")
	b.proxy.Mute()
	b.spread(topics, 1, rig.Task{ID: "job"}, 0)
	b.acked(len(topics), "job")
	b.onTime("job", resumeLimit)
	require.Positive(t, b.proxy.Dropped())
	b.proxy.Heal()
	b.wellAgain(topics)
	report := b.judge()
	require.Equal(t, 4*len(topics), report.Runs)
}

// TestKilledSubscribersOfManyTopics: Redis closes the connections of all subscribers again and
// again. No job waits for longer than a tick and a little.
func TestKilledSubscribersOfManyTopics(t *testing.T) {
	b, topics := newBench(t), manyTopics()
	b.worker("w1", serving(topics))
	b.worker("w2", serving(topics))
	b.spread(topics, 1, rig.Task{ID: "before"}, 0)
	b.acked(len(topics), "before")
	end, killed := make(chan struct{}), make(chan int64)
	go func() {
		n := int64(0)
		for !ended(end, 50*time.Millisecond) {
			n += b.direct.ClientKillByFilter(context.Background(), "TYPE", "pubsub").Val()
		}
		killed <- n
	}()
	for i := range 3 {
		id := fmt.Sprintf("round%d-", i)
		b.spread(topics, 1, rig.Task{ID: id}, serverTick/2)
		b.acked(len(topics), id)
		b.onTime(id, resumeLimit)
	}
	close(end)
	require.Positive(t, <-killed)
	require.Equal(t, 4*len(topics), b.judge().Runs)
}

// TestFailoverOfManyTopics: the master dies with handlers running and jobs waiting in all topics. A
// Sentinel promotes the replica.
func TestFailoverOfManyTopics(t *testing.T) {
	b, replica, access := newReplicated(t)
	topics := manyTopics()
	b.worker("w", serving(topics), func(c *rig.WorkerConfig) { c.Redis = access })
	b.spread(topics, 3, rig.Task{ID: "job", Steps: []string{"hang:500ms"}}, 3*time.Second)
	b.awaitN(len(topics)/2, "start", is(rig.OpStart, ""))
	heal := b.fault("failover")
	require.NoError(t, b.server.Kill())
	b.newMaster(replica)
	b.drained(patientFailover)
	heal()
	b.client = b.newClient(b.direct) // the new master has no replica to wait for
	b.wellAgain(topics)
	report := b.judge()
	require.Equal(t, 4*len(topics), report.Finished)
	require.Zero(t, report.LostInFailover)
}

// TestSlotsMoveUnderManyTopics (J7): the slots of some topics of a Cluster are moved while jobs
// flow in all of them. The others are on time.
func TestSlotsMoveUnderManyTopics(t *testing.T) {
	b, topics := newBench(t), manyTopics()
	cluster := redistest.StartCluster(t, 3, 0)
	access := rig.Redis{Cluster: cluster.Addrs()}
	rdb := access.Client().(*redis.ClusterClient)
	t.Cleanup(func() { _ = rdb.Close() })
	b.client, b.cluster = b.newClient(rdb), rdb
	b.worker("w1", serving(topics), func(c *rig.WorkerConfig) { c.Redis = access })
	b.worker("w2", serving(topics), func(c *rig.WorkerConfig) { c.Redis = access })
	moving := topics[:5]
	var moves []func() *redis.Client
	for _, topic := range moving {
		moves = append(moves, b.slotMove(cluster, rdb, topic))
	}
	b.spread(moving, 100, rig.Task{ID: "moving", Steps: []string{"hang:5ms"}}, 4*time.Second)
	b.spread(topics[5:], 4, rig.Task{ID: "job", Steps: []string{"hang:50ms"}}, 4*time.Second)
	b.awaitN(len(topics)/2, "start", is(rig.OpStart, ""))
	heal := b.fault("reshard")
	for _, move := range moves {
		move()
	}
	b.drained(patientFailover)
	heal()
	b.onTime("job", resumeLimit)
	b.wellAgain(topics)
	require.Equal(t, 500+4*(len(topics)-5)+len(topics), b.judge().Finished)
}

// TestSlowTopicAmongMany (H1): the handlers of one topic block all its slots, and both that topic
// and another one have large payloads. The jobs of all other topics start on time and end before
// any of the blocked ones.
func TestSlowTopicAmongMany(t *testing.T) {
	b, topics := newBench(t, "--appendonly", "no"), manyTopics() // else Redis waits for the disk
	b.client = rig.NewClient(b.direct, b.rec, delayq.Prefix(b.prefix), delayq.MaxPayload(rig.MaxPayload))
	slow, large, others := topics[0], topics[1], topics[2:]
	b.worker("w1", serving(topics))
	b.worker("w2", serving(topics))
	b.spread(topics, 1, rig.Task{ID: "before"}, 0)
	b.acked(len(topics), "before")
	blocked := make([]*rig.Task, 10)
	for i := range blocked {
		blocked[i] = &rig.Task{Topic: slow, ID: fmt.Sprint("slow", i), Steps: []string{"hang:10m"}, Pad: 2 << 20, Retries: -1}
		require.NoError(t, b.client.Put(t.Context(), blocked[i], false))
	}
	isBlocked := func(e rig.Event) bool { return strings.HasPrefix(e.ID, "slow") }
	b.awaitN(4, "start", func(e rig.Event) bool { return e.Op == rig.OpStart && isBlocked(e) })
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 20 {
			task := rig.Task{ID: fmt.Sprintf("large%d-", i), Steps: []string{"hang:10ms"}, Pad: 2 << 20}
			b.spread([]string{large}, 1, task, 0)
		}
	})
	b.spread(others, 5, rig.Task{ID: "job", Steps: []string{"hang:10ms"}}, 3*time.Second)
	wg.Wait()
	b.acked(5*len(others), "job")
	b.acked(20, "large")
	b.onTime("job", resumeLimit)
	require.Empty(t, b.events(func(e rig.Event) bool { return e.Op == rig.OpEnd && isBlocked(e) }))
	for _, task := range blocked {
		_, err := b.client.Cancel(t.Context(), task)
		require.NoError(t, err)
	}
	report := b.judge()
	require.Equal(t, len(topics)+20+5*len(others), report.Finished)
}
