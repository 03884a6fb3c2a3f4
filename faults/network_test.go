package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/faults/rig"
)

// resumeLimit is how soon after the end of a fault of the network a worker must run jobs again.
const resumeLimit = 5 * time.Second

// firstStart is how long after a time the first start of a job with a prefix came.
func (b *bench) resumed(id string, since int64) time.Duration {
	b.t.Helper()
	e := b.awaitN(1, "start of "+id, func(e rig.Event) bool { return e.Op == rig.OpStart && e.ID == id })[0]
	return time.Duration(e.Mono - since)
}

// TestFrozenConnectionThaws (C12, bullmq#1656, J14): nothing goes through for a while, then
// everything does. Jobs that came meanwhile run soon.
func TestFrozenConnectionThaws(t *testing.T) {
	for _, frozen := range []time.Duration{3 * time.Second, 12 * time.Second} {
		t.Run(frozen.String(), func(t *testing.T) {
			b := newBench(t)
			b.worker("w")
			b.put(1, rig.Task{ID: "before", Retries: -1})
			b.awaitN(1, "ack", is(rig.OpSettled, "acked"))
			heal := b.fault("freeze")
			b.proxy.Freeze()
			time.Sleep(frozen) // the length of the fault
			b.put(1, rig.Task{ID: "after", Retries: -1})
			b.proxy.Heal()
			since := rig.Mono()
			took := b.resumed("after", since)
			heal()
			t.Logf("resumed after %v", took)
			require.Less(t, took, resumeLimit)
			b.judge()
		})
	}
}

// TestHalfOpenConnectionsAreReplaced (C12, J14): a firewall forgets all connections; new ones work.
// A blocking pop on a dead one must not keep the worker from jobs for long.
func TestHalfOpenConnectionsAreReplaced(t *testing.T) {
	b := newBench(t)
	b.worker("w")
	b.put(30, rig.Task{ID: "before", Steps: []string{"hang:100ms"}, Retries: -1}) // opens connections
	b.awaitN(30, "ack", is(rig.OpSettled, "acked"))
	heal := b.fault("strand")
	require.Positive(t, b.proxy.Strand())
	since := rig.Mono()
	b.put(1, rig.Task{ID: "after", Retries: -1})
	took := b.resumed("after", since)
	heal()
	t.Logf("resumed after %v", took)
	require.Less(t, took, resumeLimit)
	b.judge()
}

// TestRedisRestartsBehindAFrozenConnection (C12): the old connections never hear of it.
func TestRedisRestartsBehindAFrozenConnection(t *testing.T) {
	b := newBench(t)
	b.worker("w")
	b.put(5, rig.Task{ID: "before", Retries: -1})
	b.awaitN(5, "ack", is(rig.OpSettled, "acked"))
	heal := b.fault("strand")
	b.proxy.Strand()
	require.NoError(t, b.server.Kill())
	require.NoError(t, b.server.Restart())
	since := rig.Mono()
	b.put(1, rig.Task{ID: "after", Retries: -1})
	took := b.resumed("after", since)
	heal()
	t.Logf("resumed after %v", took)
	require.Less(t, took, resumeLimit)
	b.judge()
}

// TestHandlersLearnOfAFrozenHeartbeat (B15): extensions do not get through for longer than the
// lease. The handlers' contexts end with ErrLeaseLost by the worker's own clock.
func TestHandlersLearnOfAFrozenHeartbeat(t *testing.T) {
	b := newBench(t)
	b.worker("w1")
	b.put(3, rig.Task{Steps: []string{"hang:1m", "ok"}, Retries: -1})
	b.awaitN(3, "start", is(rig.OpStart, ""))
	heal := b.fault("freeze")
	b.proxy.Freeze()
	since := rig.Mono()
	b.worker("w2", func(c *rig.WorkerConfig) { c.Redis.Addr = b.server.Addr() })
	lost := b.awaitN(3, "lost", by("w1", is(rig.OpLost, "lease_lost")))
	took := time.Duration(lost[2].Mono - since)
	t.Logf("told %v after the freeze, lease %v", took, lease)
	// A call that is under way is waited for, up to the read timeout of go-redis.
	require.Less(t, took, lease+lease/3+3*time.Second)
	b.awaitN(3, "ack", by("w2", is(rig.OpSettled, "acked")))
	b.proxy.Heal()
	heal()
	b.judge()
}

// TestWorkerResumesAfterEveryFault (C13, C15, J6; celery#8030, gocraft/work#166): 30 faults of the
// network of random kind and length (but half-open connections, which have tests of their own);
// after each one the worker runs jobs again within ten seconds, without a restart.
func TestWorkerResumesAfterEveryFault(t *testing.T) {
	b := newBench(t)
	b.worker("w")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 30 {
		kind := []string{"cut", "freeze", "slow", "reset"}[r.IntN(4)]
		heal := b.fault(kind)
		switch kind {
		case "cut":
			b.proxy.Cut()
		case "freeze":
			b.proxy.Freeze()
		case "slow":
			b.proxy.Slow(time.Duration(r.IntN(300)) * time.Millisecond)
		case "reset":
			b.proxy.Reset()
		}
		time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond) // the length of the fault
		b.proxy.Heal()
		id := fmt.Sprintf("%s-%d", kind, i)
		since := rig.Mono()
		b.put(1, rig.Task{ID: id, Retries: -1})
		require.Less(t, b.resumed(id, since), 10*time.Second, "after %s", id)
		heal()
	}
	b.judge()
}

// TestDemotedMaster (J6, go-redis#790, stormkit PR#533): the connections lead to a server that has
// become a replica, then the name leads to the new master. READONLY is no failure of a job.
func TestDemotedMaster(t *testing.T) {
	for name, answer := range map[string]string{
		"plain": "-READONLY You can't write against a read only replica.",
		"proxy": "-ERR READONLY You can't write against a read only replica.", // as some proxies put it
	} {
		t.Run(name, func(t *testing.T) { demote(t, answer) })
	}
}

func demote(t *testing.T, answer string) {
	b := newBench(t)
	w := b.worker("w")
	b.put(3, rig.Task{ID: "before", Retries: -1})
	b.awaitN(3, "ack", is(rig.OpSettled, "acked"))
	heal := b.fault("readonly")
	trap := b.proxy.Answer(func([][]byte) bool { return true }, answer, -1)
	<-trap.Hit()
	time.Sleep(lease) // the length of the fault
	trap.Remove()
	since := rig.Mono()
	b.put(3, rig.Task{ID: "after", Retries: -1})
	require.Less(t, b.resumed("after0", since), resumeLimit)
	b.awaitN(6, "ack", is(rig.OpSettled, "acked"))
	heal()
	require.Equal(t, 6, b.judge().Runs)
	require.Equal(t, 1, errorsIn(w.Log(), "redis away"))
}

// TestRedisThatIsLoading (J2, faktory 1.0.1): the worker starts while Redis reads its data, waits,
// and works; no attempt is burnt.
func TestRedisThatIsLoading(t *testing.T) {
	b := newBench(t)
	b.put(3, rig.Task{Retries: -1})
	trap := b.proxy.Answer(func([][]byte) bool { return true }, "-LOADING Redis is loading the dataset in memory", -1)
	heal := b.fault("loading")
	w := b.worker("w")
	<-trap.Hit()
	eventually(t, "log", patient, func() bool { return errorsIn(w.Log(), "redis away") == 1 })
	trap.Remove()
	for _, e := range b.awaitN(3, "ack", is(rig.OpSettled, "acked")) {
		require.Equal(t, 1, e.Attempt)
	}
	heal()
	b.judge()
}

// TestSmallPoolKeepsEveryLease (J8, go-redis#1798, asynq#243): the application's client has two
// connections, ten topics wait, fifty handlers run for three leases, and all the while the
// application enqueues with the same client.
func TestSmallPoolKeepsEveryLease(t *testing.T) {
	b := newBench(t)
	rdb := b.through(b.proxy, func(o *redis.Options) { o.PoolSize = 2 })
	c := b.config("test")
	c.Topics, c.Slots, c.Lease = nil, 50, 3*time.Second
	for i := range 10 {
		c.Topics = append(c.Topics, fmt.Sprintf("t%d", i))
	}
	server := c.Server(rdb, b.rec)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	for i := range 50 {
		b.put(1, rig.Task{Topic: "t0", ID: fmt.Sprint("long", i), Steps: []string{"hang:9s"}, Retries: -1})
	}
	b.awaitN(50, "start", is(rig.OpStart, ""))
	app := b.newClient(rdb)
	for i := range 200 {
		task := &rig.Task{Topic: c.Topics[1+i%9], ID: fmt.Sprint("short", i), Retries: -1}
		require.NoError(t, app.Put(t.Context(), task, false))
	}
	b.awaitN(250, "ack", is(rig.OpSettled, "acked"))
	require.Equal(t, 250, b.judge().Runs)
	stop()
	require.NoError(t, <-done)
}

// TestClientRetriesDoNotDouble (B2): the outage of a moment is bridged by go-redis; each of 2,000
// concurrent enqueueings makes one job.
func TestClientRetriesDoNotDouble(t *testing.T) {
	b := newBench(t)
	client := delayq.NewClient(b.through(b.proxy), delayq.Prefix(b.prefix))
	trap := b.proxy.DropReplies(rig.Every(3, rig.Script("enqueue")))
	const n = 2000
	errs := make(chan error, n)
	for i := range n {
		go func() {
			_, err := client.Enqueue(context.Background(), "t", fmt.Sprint(i), nil)
			errs <- err
		}()
	}
	for range n {
		require.NoError(t, <-errs)
	}
	require.Positive(t, trap.Count())
	info, err := rig.StatsOf(t.Context(), b.client.Inspector, "t")
	require.NoError(t, err)
	require.EqualValues(t, n, info.Ready)
}
