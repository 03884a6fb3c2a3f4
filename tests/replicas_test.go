package tests

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

func TestWaitReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	rdb, copied := master.Client(t), replica.Client(t)
	ctx := t.Context()
	h := hand.New(t, rdb, "delayq", "topic")
	client := delayq.NewClient(rdb, delayq.WaitReplicas(1, 2*time.Second))
	onReplica := func(id string) bool { return copied.HExists(ctx, h.Keys.Pool, id).Val() }

	for i := range 20 {
		id := fmt.Sprint(i)
		_, err := client.Enqueue(ctx, "topic", id, nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
		require.True(t, onReplica(id), "at the moment when Enqueue returns")
	}
	_, err := client.Enqueue(ctx, "topic", "0", nil)
	require.ErrorIs(t, err, delayq.ErrDuplicate)
	require.NotErrorIs(t, err, delayq.ErrNotReplicated)
	job, err := client.Enqueue(ctx, "topic", "0", []byte("new"), delayq.Replace())
	require.NoError(t, err)
	require.Contains(t, copied.HGet(ctx, h.Keys.Pool, "0").Val(), job.Nonce())

	// The script is sent anew when Redis has forgotten it, with the waiting behind it.
	require.NoError(t, rdb.ScriptFlush(ctx).Err())
	_, err = client.Enqueue(ctx, "topic", "after the flush", nil)
	require.NoError(t, err)
	require.True(t, onReplica("after the flush"))

	// A replica that is behind confirms nothing. The job is stored all the same, and the caller
	// gets both.
	require.NoError(t, replica.Stop())
	hasty := delayq.NewClient(rdb, delayq.WaitReplicas(1, time.Millisecond))
	job, err = hasty.Enqueue(ctx, "topic", "unconfirmed", nil)
	require.ErrorIs(t, err, delayq.ErrNotReplicated)
	require.ErrorContains(t, err, "0 of 1 within 1ms")
	require.NotErrorIs(t, err, delayq.ErrUnknownOutcome)
	info, err := client.Get(ctx, "topic", "unconfirmed")
	require.NoError(t, err)
	require.Equal(t, job.Nonce(), info.Nonce())
	results, err := hasty.EnqueueBatch(ctx, []delayq.NewJob{{Topic: "topic", ID: "a"}, {Topic: "topic", ID: "unconfirmed"}, {Topic: ""}})
	require.ErrorIs(t, err, delayq.ErrNotReplicated)
	require.ErrorIs(t, results[0].Err, delayq.ErrNotReplicated)
	require.Equal(t, "a", results[0].Job.ID)
	require.ErrorIs(t, results[1].Err, delayq.ErrDuplicate)
	require.Nil(t, results[1].Job)
	require.ErrorIs(t, results[2].Err, delayq.ErrInvalid)
	require.NoError(t, replica.Cont())
	_, err = client.Enqueue(ctx, "topic", "back", nil)
	require.NoError(t, err)
	require.True(t, onReplica("back"))
}

// A call that go-redis sends again, because the reply was lost, is confirmed by a write of its own.
// If Redis refuses that, the outcome is unknown.
func TestWaitReplicasAfterALostReply(t *testing.T) {
	t.Parallel()
	if redistest.Major(t) < 7 {
		t.Skip("Redis asks for replicas in scripts from 7.0 on")
	}
	rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
	refuse := func() {
		require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	}
	fault := &redistest.Fault{What: "$4\r\nWAIT", Lose: true, After: refuse}
	lossy := redis.NewClient(redistest.Faulty(rdb, fault))
	defer lossy.Close()
	_, err := delayq.NewClient(lossy).Enqueue(t.Context(), "topic", "first", nil) // Redis knows the script
	require.NoError(t, err)
	_, err = delayq.NewClient(lossy, delayq.WaitReplicas(1, time.Millisecond)).Enqueue(t.Context(), "topic", "x", nil)
	require.True(t, fault.Happened())
	require.ErrorIs(t, err, delayq.ErrUnknownOutcome)
	require.ErrorContains(t, err, "UNCONFIRMED NOREPLICAS")
	require.True(t, rdb.HExists(t.Context(), "delayq:{topic}:pool", "x").Val())
}

func TestWaitForMoreReplicasThanThereAre(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.Replica(t, master)
	rdb := master.Client(t)
	job, err := delayq.NewClient(rdb, delayq.WaitReplicas(2, 50*time.Millisecond)).Enqueue(t.Context(), "topic", "x", nil)
	require.ErrorIs(t, err, delayq.ErrNotReplicated)
	require.Regexp(t, `[01] of 2 within 50ms`, err.Error())
	require.Equal(t, "x", job.ID)
}

// Asking which key has a wrong type waits for no replica. (J11)
func TestWaitReplicasAndAWrongType(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := hand.New(t, rdb, redistest.Prefix(t), "topic")
	require.NoError(t, rdb.Set(t.Context(), h.Keys.Bucket, "text", 0).Err())
	counted := redistest.As(t, rdb, "producer", h.Prefix(), true)
	var waits waitCount
	counted.AddHook(&waits)
	_, err := delayq.NewClient(counted, delayq.Prefix(h.Prefix()), delayq.WaitReplicas(1, time.Millisecond)).Enqueue(t.Context(), "topic", "x", nil, delayq.ProcessIn(time.Hour))
	require.ErrorContains(t, err, h.Keys.Bucket)
	require.LessOrEqual(t, waits.n, 2, "one for the digest and one for the text of the script")
}

// A waitCount counts the WAITs that are sent.
type waitCount struct{ n int }

func (*waitCount) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*waitCount) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (w *waitCount) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "wait" {
				w.n++
			}
		}
		return next(ctx, cmds)
	}
}

// A scriptLog is a hook that notes the calls of scripts.
type scriptLog struct {
	mu     sync.Mutex
	events []delayq.ScriptEvent
}

func (l *scriptLog) Script(e delayq.ScriptEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// stored gives how many jobs each call of enqueue or replace was about.
func (l *scriptLog) stored() (list []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Name == script.Enqueue.Name || e.Name == script.Replace.Name {
			list = append(list, e.Jobs)
		}
	}
	return list
}

func TestWaitReplicasWithoutAny(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := hand.New(t, rdb, redistest.Prefix(t), "topic")
	var log scriptLog
	client := delayq.NewClient(rdb, delayq.Prefix(h.Prefix()), delayq.WaitReplicas(1, time.Millisecond), delayq.Hooks(&log))
	for range 2 {
		_, err := client.Enqueue(t.Context(), "topic", "x", nil, delayq.Replace())
		require.ErrorIs(t, err, delayq.ErrNotReplicated)
	}
	require.Equal(t, []int{1, 1}, log.stored(), "not sent again: it is stored")
	h.TakeOne("x")
}

// The reply is lost after the script and the waiting were done.
func TestWaitReplicasWithALostReply(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.Replica(t, master)
	rdb := master.Client(t)
	h := hand.New(t, rdb, "delayq", "topic")
	f := &redistest.Fault{Lose: true, What: "lossy-id", After: func() { require.Equal(t, "o", h.Ack(h.TakeOne("lossy-id"))) }}
	require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(script.Enqueue.Text)).Err())
	bad := redis.NewClient(redistest.Faulty(rdb, f))
	defer func() { require.NoError(t, bad.Close()) }()
	redistest.InRoles(t, bad)
	_, err := delayq.NewClient(bad, delayq.WaitReplicas(1, 2*time.Second)).Enqueue(t.Context(), "topic", "lossy-id", nil)
	require.NoError(t, err)
	require.True(t, f.Happened())
	require.Empty(t, h.Take(10, time.Minute), "it runs once")
}

// A Redis that does not let the client WAIT confirms nothing, and the error says why.
func TestWaitReplicasWithoutTheRight(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	admin := master.Client(t)
	ctx := t.Context()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-wait").Err())
	o := master.Options()
	o.Username, o.Password = "limited", "any"
	rdb := redis.NewClient(o)
	defer func() { require.NoError(t, rdb.Close()) }()
	job, err := delayq.NewClient(rdb, delayq.WaitReplicas(1, time.Millisecond)).Enqueue(ctx, "topic", "x", nil)
	require.ErrorIs(t, err, delayq.ErrNotReplicated)
	require.ErrorContains(t, err, "NOPERM")
	require.Equal(t, "x", job.ID)
}
