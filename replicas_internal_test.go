package delayq

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
)

func TestWaitReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	rdb, copied := master.Client(t), replica.Client(t)
	ctx := t.Context()
	h := NewHand(t, rdb, "delayq", "topic")
	client := NewClient(rdb, WaitReplicas(1, 2*time.Second))
	onReplica := func(id string) bool { return copied.HExists(ctx, h.keys.pool, id).Val() }

	for i := range 20 {
		id := fmt.Sprint(i)
		_, err := client.Enqueue(ctx, "topic", id, nil, ProcessIn(time.Hour))
		require.NoError(t, err)
		require.True(t, onReplica(id), "at the moment when Enqueue returns")
	}
	_, err := client.Enqueue(ctx, "topic", "0", nil)
	require.ErrorIs(t, err, ErrDuplicate)
	require.NotErrorIs(t, err, ErrNotReplicated)
	job, err := client.Enqueue(ctx, "topic", "0", []byte("new"), Replace())
	require.NoError(t, err)
	require.Contains(t, copied.HGet(ctx, h.keys.pool, "0").Val(), job.Nonce())

	// The script is sent anew when Redis has forgotten it, with the waiting behind it.
	require.NoError(t, rdb.ScriptFlush(ctx).Err())
	_, err = client.Enqueue(ctx, "topic", "after the flush", nil)
	require.NoError(t, err)
	require.True(t, onReplica("after the flush"))

	// A replica that is behind confirms nothing. The job is stored all the same, and the caller
	// gets both.
	require.NoError(t, replica.Stop())
	hasty := NewClient(rdb, WaitReplicas(1, time.Millisecond))
	job, err = hasty.Enqueue(ctx, "topic", "unconfirmed", nil)
	require.ErrorIs(t, err, ErrNotReplicated)
	require.ErrorContains(t, err, "0 of 1 within 1ms")
	require.NotErrorIs(t, err, ErrUnknownOutcome)
	require.Equal(t, job.Nonce(), h.info("unconfirmed").Nonce())
	results, err := hasty.EnqueueBatch(ctx, []NewJob{{Topic: "topic", ID: "a"}, {Topic: "topic", ID: "unconfirmed"}, {Topic: ""}})
	require.ErrorIs(t, err, ErrNotReplicated)
	require.ErrorIs(t, results[0].Err, ErrNotReplicated)
	require.Equal(t, "a", results[0].Job.ID)
	require.ErrorIs(t, results[1].Err, ErrDuplicate)
	require.Nil(t, results[1].Job)
	require.ErrorIs(t, results[2].Err, ErrInvalid)
	require.NoError(t, replica.Cont())
	_, err = client.Enqueue(ctx, "topic", "back", nil)
	require.NoError(t, err)
	require.True(t, onReplica("back"))
}

func TestWaitForMoreReplicasThanThereAre(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.Replica(t, master)
	rdb := master.Client(t)
	job, err := NewClient(rdb, WaitReplicas(2, 50*time.Millisecond)).Enqueue(t.Context(), "topic", "x", nil)
	require.ErrorIs(t, err, ErrNotReplicated)
	require.Regexp(t, `[01] of 2 within 50ms`, err.Error())
	require.Equal(t, "x", job.ID)
}

// Asking which key has a wrong type waits for no replica. (J11)
func TestWaitReplicasAndAWrongType(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	require.NoError(t, rdb.Set(t.Context(), h.keys.bucket, "text", 0).Err())
	counted := redistest.As(t, rdb, "producer", h.prefix(), true)
	var waits waitCount
	counted.AddHook(&waits)
	_, err := NewClient(counted, Prefix(h.prefix()), WaitReplicas(1, time.Millisecond)).Enqueue(t.Context(), "topic", "x", nil, ProcessIn(time.Hour))
	require.ErrorContains(t, err, h.keys.bucket)
	require.LessOrEqual(t, waits.n, 2, "one for the digest and one for the text of the script")
}

// A waitCount counts the WAITs that are sent.
type waitCount struct{ n int }

func (*waitCount) DialHook(next redis.DialHook) redis.DialHook          { return next }
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

func TestWaitReplicasWithoutAny(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	var log scriptLog
	client := NewClient(rdb, Prefix(h.prefix()), WaitReplicas(1, time.Millisecond), Hooks(&log))
	for range 2 {
		_, err := client.Enqueue(t.Context(), "topic", "x", nil, Replace())
		require.ErrorIs(t, err, ErrNotReplicated)
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
	h := NewHand(t, rdb, "delayq", "topic")
	f := &fault{lose: true, what: "lossy-id", after: func() { require.Equal(t, "o", h.Ack(h.TakeOne("lossy-id"))) }}
	require.NoError(t, rdb.ScriptLoad(t.Context(), fmt.Sprint(enqueueScript.text)).Err())
	bad := redis.NewClient(faulty(rdb, f))
	defer func() { require.NoError(t, bad.Close()) }()
	redistest.InRoles(t, bad)
	_, err := NewClient(bad, WaitReplicas(1, 2*time.Second)).Enqueue(t.Context(), "topic", "lossy-id", nil)
	require.NoError(t, err)
	require.True(t, f.happened())
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
	job, err := NewClient(rdb, WaitReplicas(1, time.Millisecond)).Enqueue(ctx, "topic", "x", nil)
	require.ErrorIs(t, err, ErrNotReplicated)
	require.ErrorContains(t, err, "NOPERM")
	require.Equal(t, "x", job.ID)
}
