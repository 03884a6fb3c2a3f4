package outbox

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/commit"
	"github.com/delayq/delayq/internal/redistest"
)

// A slow hook holds back the cancels about one topic while it is told to, so that Redis carries
// them out late. Their caller gets an error.
type slow struct {
	mu   sync.Mutex
	on   bool
	late []func() error
}

func (s *slow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s *slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !s.holds(fmt.Sprint(cmd.Args()...)) {
			return next(ctx, cmd)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		arrives(cmd)
		again := redis.NewCmd(context.WithoutCancel(ctx), cmd.Args()...)
		s.late = append(s.late, func() error {
			err := next(context.Background(), again)
			if err != nil && strings.Contains(err.Error(), "PASSED") {
				return nil
			}
			return err
		})
		err := errors.New("i/o timeout")
		cmd.SetErr(err)
		return err
	}
}

// arrives does what writing a command to a connection does to its words.
func arrives(cmd redis.Cmder) {
	for _, word := range cmd.Args() {
		if w, ok := word.(encoding.BinaryMarshaler); ok {
			_, _ = w.MarshalBinary()
		}
	}
}

func (s *slow) holds(words string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.on && strings.Contains(words, "{away}:runs")
}

// holdBack sets whether calls are held back.
func (s *slow) holdBack(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = on
}

// arrive lets Redis carry out what was held back.
func (s *slow) arrive(t *testing.T) (calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.late {
		require.NoError(t, call())
	}
	calls, s.late = len(s.late), nil
	return calls
}

// A call of a plan that was given up comes too late, although the plans after it have fewer calls
// of its topic, or use another series.
func TestLateCallsOfPlansThatWereGivenUp(t *testing.T) {
	for name, opts := range map[string][]RelayOption{"plain": nil, "keep": {Keep(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			h, rdb := newHolding(t, opts...)
			hook := &slow{}
			lossy := redis.NewClient(rdb.Options())
			defer lossy.Close()
			lossy.AddHook(hook)
			h.client = delayq.NewClient(lossy)
			ctx, direct := t.Context(), delayq.NewClient(rdb)
			_, err := direct.Enqueue(ctx, "away", "x", nil, delayq.ProcessIn(time.Hour))
			require.NoError(t, err)
			put := func(topic, id string) {
				_, err := h.box.Enqueue(ctx, Autocommit(h.db), topic, id, nil, delayq.ProcessIn(time.Hour))
				require.NoError(t, err)
			}
			put("away", "1")
			require.NoError(t, h.box.Dequeue(ctx, Autocommit(h.db), "away", "x")) // the second call of its topic
			put("here", "1")
			require.NoError(t, h.next(ctx, new(ending)))
			require.Len(t, h.plan, 3)

			hook.holdBack(true)
			h.stuck = time.Now().Add(-time.Hour) // the others have waited for a lease
			end, err := h.send(ctx)
			require.NoError(t, err)
			require.Len(t, end.open, 1)
			require.NoError(t, h.next(ctx, end))
			require.Len(t, h.lost["away"], 1)

			// Somebody else does what the row asks for, and makes the job once more.
			hook.holdBack(false)
			h.aside["away"].until = time.Time{}
			h.skip = nil
			_, err = h.db.Exec("DELETE FROM delayq_outbox")
			require.NoError(t, err)
			h.ahead = nil
			_, err = direct.Dequeue(ctx, "away", "x")
			require.NoError(t, err)
			put("away", "x")
			require.NoError(t, h.next(ctx, new(ending)))
			require.Len(t, h.plan, 1)
			end, err = h.send(ctx)
			require.NoError(t, err)
			require.Empty(t, end.refused)
			require.Empty(t, h.lost["away"])

			require.Equal(t, 1, hook.arrive(t))
			require.True(t, rdb.HExists(ctx, "delayq:{away}:pool", "x").Val(), "the late call has cancelled a later job")
		})
	}
}

// While Redis has no memory for a fence, a relay does not forget what it is for, and sends only
// cancels. Without that the call would be made late, or twice.
func TestFencesThatRedisDoesNotStore(t *testing.T) {
	redistest.Need(t)
	server := redistest.Start(t, redistest.NoRoles...)
	rdb, hook := server.Client(t), &slow{}
	h, _ := newHolding(t)
	lossy := redis.NewClient(server.Options())
	defer lossy.Close()
	lossy.AddHook(hook)
	h.client = delayq.NewClient(lossy)
	ctx, direct := t.Context(), delayq.NewClient(rdb)
	_, err := direct.Enqueue(ctx, "away", "x", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	memory := func(most string) { require.NoError(t, rdb.ConfigSet(ctx, "maxmemory", most).Err()) }
	again := func() {
		h.aside["away"].until, h.skip, h.ahead = time.Time{}, nil, nil
	}
	require.NoError(t, h.box.Dequeue(ctx, Autocommit(h.db), "away", "x"))
	_, err = h.box.Enqueue(ctx, Autocommit(h.db), "here", "1", nil)
	require.NoError(t, err)
	require.NoError(t, h.next(ctx, new(ending)))
	hook.holdBack(true)
	h.stuck = time.Now().Add(-h.o.lease) // the others have waited for a lease
	end, err := h.send(ctx)
	require.NoError(t, err)
	require.NoError(t, h.next(ctx, end))
	require.Len(t, h.lost["away"], 1)
	hook.holdBack(false)

	// Somebody else cancels the job, and the row makes another one.
	_, err = h.db.Exec("DELETE FROM delayq_outbox")
	require.NoError(t, err)
	_, err = direct.Dequeue(ctx, "away", "x")
	require.NoError(t, err)
	_, err = direct.Enqueue(ctx, "away", "cancelled", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	_, err = h.box.Enqueue(ctx, Autocommit(h.db), "away", "x", nil, delayq.ProcessIn(time.Hour))
	require.NoError(t, err)
	require.NoError(t, h.box.Dequeue(ctx, Autocommit(h.db), "away", "cancelled"))
	memory("1")
	again()
	require.NoError(t, h.next(ctx, new(ending)))
	require.Len(t, h.plan, 2)
	end, err = h.send(ctx)
	require.NoError(t, err)
	require.Len(t, end.open, 2)
	require.ErrorIs(t, end.err, errUnfenced)
	require.Len(t, h.lost["away"], 1)
	h.skip = h.waiting()
	require.NoError(t, h.next(ctx, end))
	require.Empty(t, h.plan)
	waits, err := h.waits(ctx)
	require.NoError(t, err)
	require.True(t, waits)
	require.NoError(t, h.next(ctx, new(ending)))
	require.Len(t, h.plan, 1, "the cancel passes")
	end, err = h.send(ctx)
	require.NoError(t, err)
	require.Empty(t, end.open)
	require.Len(t, h.lost["away"], 1, "nothing was fenced")
	require.Empty(t, rdb.HKeys(ctx, "delayq:{away}:pool").Val())

	memory("0")
	again()
	require.NoError(t, h.next(ctx, end))
	require.Len(t, h.plan, 1)
	end, err = h.send(ctx)
	require.NoError(t, err)
	require.Empty(t, end.open)
	require.Empty(t, h.lost["away"])
	require.Equal(t, 1, hook.arrive(t))
	require.Equal(t, []string{"x"}, rdb.HKeys(ctx, "delayq:{away}:pool").Val(), "the late call has cancelled a later job")
}

// A counter counts the events of jobs.
type counter struct{ enqueued, dequeued atomic.Int64 }

func (c *counter) Enqueued(context.Context, delayq.EnqueueEvent) { c.enqueued.Add(1) }
func (c *counter) Dequeued(context.Context, delayq.DequeueEvent) { c.dequeued.Add(1) }
func (c *counter) has() [2]int64                                 { return [2]int64{c.enqueued.Load(), c.dequeued.Load()} }

// Hooks hear once of each row, although a part of the plan is sent again, also after the relay has
// taken the shard anew.
func TestHooksHearOfARowOnce(t *testing.T) {
	h, rdb := newHolding(t)
	hook, events := &slow{}, &counter{}
	lossy := redis.NewClient(rdb.Options())
	defer lossy.Close()
	lossy.AddHook(hook)
	h.client = delayq.NewClient(lossy, delayq.Hooks(events))
	for _, topic := range []string{"away", "here"} {
		_, err := h.box.Enqueue(t.Context(), Autocommit(h.db), topic, "1", nil, delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
	}
	require.NoError(t, h.box.Dequeue(t.Context(), Autocommit(h.db), "away", "1"))
	require.NoError(t, h.next(t.Context(), new(ending)))
	hook.holdBack(true)
	for range 2 {
		_, err := h.send(t.Context())
		require.ErrorContains(t, err, "i/o timeout")
		require.Equal(t, [2]int64{2, 0}, events.has())
	}
	held, _, err := h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	hook.holdBack(false)
	end, err := h.send(t.Context())
	require.NoError(t, err)
	require.Empty(t, end.open)
	require.Equal(t, [2]int64{2, 1}, events.has())
	hook.arrive(t)

	// The plan has not ended, because the database is away.
	_, err = h.db.Exec("ALTER TABLE delayq_outbox_shards RENAME TO away")
	require.NoError(t, err)
	require.Error(t, h.lose(h.next(t.Context(), end)))
	_, err = h.db.Exec("ALTER TABLE away RENAME TO delayq_outbox_shards")
	require.NoError(t, err)
	held, _, err = h.acquire(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	end, err = h.send(t.Context())
	require.NoError(t, err)
	require.Equal(t, [2]int64{2, 1}, events.has())
	require.NoError(t, h.next(t.Context(), end))
	require.Empty(t, h.plan)

	// The next plan is about other rows.
	_, err = h.box.Enqueue(t.Context(), Autocommit(h.db), "here", "2", nil)
	require.NoError(t, err)
	require.NoError(t, h.next(t.Context(), new(ending)))
	_, err = h.send(t.Context())
	require.NoError(t, err)
	require.Equal(t, [2]int64{3, 1}, events.has())
}

// A node hook answers for the replicas of the node that has one topic.
type node struct {
	missing bool // replicas
	deaf    bool
	refuses redis.Error
	then    redis.Error // from the second call about the topic on
}

func (n *node) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (n *node) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (n *node) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		last := len(cmds) - 1
		if cmds[last].Name() != "wait" {
			return next(ctx, cmds)
		}
		away := strings.Contains(fmt.Sprint(cmds[0].Args()...), "{away}")
		if away && n.deaf {
			err := errors.New("i/o timeout")
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		if away && n.refuses != nil {
			for _, cmd := range cmds[:last] {
				arrives(cmd)
				cmd.SetErr(n.refuses)
			}
			cmds[last].(*redis.Cmd).SetVal(int64(0))
			return n.refuses
		}
		if away && n.then != nil {
			n.refuses, n.then = n.then, nil
		}
		err := next(ctx, cmds[:last])
		confirmed := int64(1)
		if away && n.missing {
			confirmed = 0
		}
		cmds[last].(*redis.Cmd).SetVal(confirmed)
		return err
	}
}

// newUnconfirmed returns a relay with a job in each of the topics here and away, whose replicas are
// those of the node.
func newUnconfirmed(t *testing.T) (*holding, *redis.Client, *node) {
	t.Helper()
	h, rdb := newHolding(t)
	n := &node{missing: true}
	waiting := redis.NewClient(rdb.Options())
	t.Cleanup(func() { _ = waiting.Close() })
	waiting.AddHook(n)
	h.client = delayq.NewClient(waiting, delayq.WaitReplicas(1, time.Second))
	for _, topic := range []string{"here", "away"} {
		_, err := h.box.Enqueue(t.Context(), Autocommit(h.db), topic, "1", nil)
		require.NoError(t, err)
	}
	return h, rdb, n
}

// A plan with a call that no replica confirms goes on until replicas do, however long the others
// wait and whatever becomes of its job. Another plan would make the call once more.
func TestTopicThatReplicasDoNotConfirm(t *testing.T) {
	h, rdb, n := newUnconfirmed(t)
	ctx, direct := t.Context(), delayq.NewClient(rdb)
	require.NoError(t, h.next(ctx, new(ending)))
	number := h.number
	_, err := h.send(ctx)
	require.ErrorIs(t, err, delayq.ErrNotReplicated)
	_, err = direct.Dequeue(ctx, "away", "1") // the job has finished
	require.NoError(t, err)
	n.deaf = true
	h.stuck = time.Now().Add(-h.o.lease)
	_, err = h.send(ctx)
	require.ErrorContains(t, err, "i/o timeout", "the call was carried out all the same")
	n.deaf = false
	for range 3 {
		h.stuck = time.Now().Add(-h.o.lease)
		_, err = h.send(ctx)
		require.ErrorIs(t, err, delayq.ErrNotReplicated)
	}
	n.deaf = true
	held, _, err := h.acquire(ctx)
	require.NoError(t, err)
	require.True(t, held)
	h.stuck = time.Now().Add(-h.o.lease)
	_, err = h.send(ctx)
	require.ErrorContains(t, err, "i/o timeout", "it is the same plan")
	n.deaf, n.missing = false, false
	end, err := h.send(ctx)
	require.NoError(t, err)
	require.Equal(t, number, h.number)
	require.Empty(t, end.open)
	require.NoError(t, h.next(ctx, end))
	require.Empty(t, h.plan)
	require.Nil(t, h.unconfirmed, "the next plan knows nothing of it")
	for _, topic := range []string{"here", "away"} {
		require.Equal(t, "1", rdb.HGet(ctx, "delayq:{"+topic+"}:stats", "enqueued").Val(), topic)
	}
	require.Empty(t, rdb.HKeys(ctx, "delayq:{away}:pool").Val())
}

// A replied error is one that Redis has replied.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}

// If Redis refuses a topic after it has carried out a call about it that replicas have not
// confirmed, the plan goes on too. Another plan would make the call once more. When the call is
// confirmed, rows after it that are refused wait as others do.
func TestTopicThatIsRefusedBeforeReplicasConfirmIt(t *testing.T) {
	for name, refusal := range map[string]replied{
		"right": "NOPERM User relay has no permissions to access one of the keys", "memory": "OOM command not allowed when used memory > 'maxmemory'.",
	} {
		t.Run(name, func(t *testing.T) {
			h, rdb, n := newUnconfirmed(t)
			ctx, direct := t.Context(), delayq.NewClient(rdb)
			require.NoError(t, h.box.Dequeue(ctx, Autocommit(h.db), "away", "2")) // the second call of its topic
			require.NoError(t, h.next(ctx, new(ending)))
			require.Len(t, h.plan, 3)
			number := h.number
			_, err := h.send(ctx)
			require.ErrorIs(t, err, delayq.ErrNotReplicated)
			_, err = direct.Dequeue(ctx, "away", "1") // the job has finished
			require.NoError(t, err)
			n.refuses = refusal
			for range 2 {
				h.stuck = time.Now().Add(-h.o.lease)
				_, err = h.send(ctx)
				require.ErrorContains(t, err, string(refusal), "the call was carried out all the same")
			}
			n.refuses, n.missing = nil, false
			end, err := h.send(ctx)
			require.NoError(t, err)
			require.Equal(t, number, h.number)
			require.Empty(t, end.open)
			require.NoError(t, h.next(ctx, end))
			require.Empty(t, h.plan)
			require.Equal(t, "1", rdb.HGet(ctx, "delayq:{away}:stats", "enqueued").Val())
			require.Empty(t, rdb.HKeys(ctx, "delayq:{away}:pool").Val())

			// The first call is confirmed at the second try, and the second one is refused.
			_, err = h.box.Enqueue(ctx, Autocommit(h.db), "away", "3", nil)
			require.NoError(t, err)
			require.NoError(t, h.box.Dequeue(ctx, Autocommit(h.db), "away", "2"))
			require.NoError(t, h.next(ctx, new(ending)))
			n.missing = true
			_, err = h.send(ctx)
			require.ErrorIs(t, err, delayq.ErrNotReplicated)
			n.missing = false
			n.then = refusal
			end, err = h.send(ctx)
			require.NoError(t, err, "nothing is known to be carried out but not confirmed")
			require.Equal(t, map[int]bool{1: true}, end.open)
			require.Contains(t, h.aside, "away")
		})
	}
}

// A relay to which Redis refuses everything is not ready, also after the rows are dead.
func TestRelayWhoseRowsAreAllDead(t *testing.T) {
	h, _ := newHolding(t)
	h.enqueue(t, "1", 1)
	require.NoError(t, h.next(t.Context(), new(ending)))
	h.setAside("topic", errDatabase, false)
	h.o.patience = 0
	h.aside["topic"].since = time.Now().Add(-time.Hour)
	_, err := h.db.Exec("UPDATE delayq_outbox SET made = made - 1000")
	require.NoError(t, err)
	h.plan[0].Age += 1000
	list := h.deliveries()
	list[0].outcomes, list[0].err, list[0].fate = []error{commit.ErrOpen}, errDatabase, commit.FateRefused
	end, err := h.judge(list, 0)
	require.NoError(t, err)
	require.Len(t, end.refused, 1)
	require.True(t, end.idle)
	require.ErrorIs(t, end.err, errDatabase)
}
