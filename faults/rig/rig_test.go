package rig

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
)

func TestMain(m *testing.M) {
	WorkerMain()
	os.Exit(m.Run())
}

func proxied(t *testing.T, retries int) (*Proxy, *redis.Client, *redis.Client) {
	t.Helper()
	s := redistest.Start(t)
	p, err := NewProxy(s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	o := s.Options()
	o.Addr, o.MaxRetries, o.ReadTimeout, o.DialTimeout = p.Addr(), retries, 300*time.Millisecond, 300*time.Millisecond
	rdb := redis.NewClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return p, rdb, s.Client(t)
}

func TestDropReplyCarriesOutAndLosesTheReply(t *testing.T) {
	p, rdb, direct := proxied(t, -1)
	ctx := t.Context()
	require.NoError(t, rdb.Ping(ctx).Err())
	trap := p.DropReply(Command("incr"))
	require.Error(t, rdb.Incr(ctx, "n").Err())
	<-trap.Hit()
	require.Equal(t, "1", direct.Get(ctx, "n").Val())
	require.EqualValues(t, 2, rdb.Incr(ctx, "n").Val(), "the trap is gone")
	require.Equal(t, 1, trap.Count())
}

func TestDropReplyFindsTheRightOneInAPipeline(t *testing.T) {
	p, rdb, direct := proxied(t, -1)
	ctx := t.Context()
	p.DropReply(Command("incr"))
	cmds, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "a", "1", 0)
		pipe.Get(ctx, "a")
		pipe.Incr(ctx, "a")
		return nil
	})
	require.Error(t, err)
	require.Len(t, cmds, 3)
	require.Equal(t, "2", direct.Get(ctx, "a").Val())
}

func TestDropReplyLetsNoscriptPass(t *testing.T) {
	p, rdb, direct := proxied(t, 3)
	ctx := t.Context()
	client := delayq.NewClient(rdb)
	require.NoError(t, direct.ScriptFlush(ctx).Err())
	trap := p.DropReply(Script("enqueue"))
	_, err := client.Enqueue(ctx, "t", "j", nil)
	require.NoError(t, err, "NOSCRIPT, then the text, its reply lost, then again")
	require.Equal(t, 1, trap.Count())
	require.EqualValues(t, 1, direct.HLen(ctx, "delayq:{t}:pool").Val())
}

func TestHaltStopsEverythingAtARequest(t *testing.T) {
	for _, after := range []bool{false, true} {
		p, rdb, direct := proxied(t, -1)
		ctx := t.Context()
		client := delayq.NewClient(rdb)
		require.NoError(t, direct.ScriptFlush(ctx).Err())
		halt := map[bool]func(Match) *Trap{false: p.HaltBefore, true: p.HaltAfter}[after]
		trap := halt(Script("enqueue"))
		enqueued := make(chan error, 1)
		call, giveUp := context.WithCancel(ctx)
		go func() {
			_, err := client.Enqueue(call, "t", "j", nil)
			enqueued <- err
		}()
		<-trap.Hit()
		require.EqualValues(t, map[bool]int{true: 1}[after], direct.HLen(ctx, "delayq:{t}:pool").Val(), "after NOSCRIPT, too")
		require.Error(t, rdb.Set(ctx, "k", "v", 0).Err())
		giveUp()
		require.Error(t, <-enqueued)
		p.Reset()
		p.Heal()
		require.NoError(t, rdb.Ping(ctx).Err())
		require.Zero(t, direct.Exists(ctx, "k").Val(), "what was held is not sent")
	}
}

func TestMuteDropsMessagesAlone(t *testing.T) {
	p, rdb, direct := proxied(t, -1)
	ctx := t.Context()
	sub := rdb.Subscribe(ctx, "c")
	t.Cleanup(func() { _ = sub.Close() })
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	p.Mute()
	require.EqualValues(t, 1, direct.Publish(ctx, "c", "dropped").Val())
	require.Equal(t, "PONG", rdb.Ping(ctx).Val())
	require.NoError(t, sub.Ping(ctx))
	got, err := sub.Receive(ctx)
	require.NoError(t, err)
	require.IsType(t, &redis.Pong{}, got)
	require.Equal(t, 1, p.Dropped())
	p.Heal()
	require.EqualValues(t, 1, direct.Publish(ctx, "c", "heard").Val())
	message, err := sub.ReceiveMessage(ctx)
	require.NoError(t, err)
	require.Equal(t, "heard", message.Payload)
	require.Equal(t, 1, p.Dropped())
}

func TestCutFreezeStrandAndHeal(t *testing.T) {
	p, rdb, _ := proxied(t, -1)
	ctx := t.Context()
	require.NoError(t, rdb.Ping(ctx).Err())

	p.Cut()
	require.Error(t, rdb.Ping(ctx).Err())
	p.Heal()
	require.NoError(t, rdb.Ping(ctx).Err())

	p.Freeze()
	err := rdb.Ping(ctx).Err()
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	p.Heal()
	require.NoError(t, rdb.Ping(ctx).Err())

	require.Positive(t, p.Strand())
	require.ErrorAs(t, rdb.Ping(ctx).Err(), &timeout, "the old connection is half-open")
	require.NoError(t, rdb.Ping(ctx).Err(), "a new one works")

	begin := time.Now()
	p.Slow(100 * time.Millisecond)
	require.NoError(t, rdb.Ping(ctx).Err())
	require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
}

// A narrow link carries its bandwidth, shared by all connections, in each direction, and a small
// reply does not wait behind a large one.
func TestNarrowLinkCarriesItsBandwidth(t *testing.T) {
	p, hasty, direct := proxied(t, -1)
	o := *hasty.Options()
	o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute
	rdb := redis.NewClient(&o)
	defer func() { _ = rdb.Close() }()
	ctx := t.Context()
	const large = 1 << 20
	require.NoError(t, direct.Set(ctx, "large", make([]byte, large), 0).Err())
	require.NoError(t, rdb.Ping(ctx).Err())
	p.Narrow(10*large, 0)
	begin := time.Now()
	var got sync.WaitGroup
	for range 2 {
		got.Go(func() {
			if n := len(rdb.Get(ctx, "large").Val()); n != large {
				t.Errorf("%d bytes came", n)
			}
		})
	}
	got.Wait()
	require.Greater(t, time.Since(begin), 190*time.Millisecond, "two MiB at ten a second")

	begin = time.Now()
	require.NoError(t, rdb.Set(ctx, "large", make([]byte, large), 0).Err())
	require.Greater(t, time.Since(begin), 90*time.Millisecond)

	begin = time.Now()
	got.Go(func() { _ = rdb.Get(ctx, "large").Err() })
	require.NoError(t, rdb.Ping(ctx).Err())
	t.Logf("a ping beside a MiB took %v", time.Since(begin))
	got.Wait()

	p.Heal()
	p.Narrow(0, 30*time.Millisecond)
	begin = time.Now()
	require.NoError(t, rdb.Ping(ctx).Err())
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
}

func TestAnswerIsNotCarriedOut(t *testing.T) {
	p, rdb, direct := proxied(t, -1)
	ctx := t.Context()
	require.NoError(t, rdb.Ping(ctx).Err())
	p.Answer(Command("set"), "-READONLY You can't write against a read only replica.", 1)
	require.ErrorContains(t, rdb.Set(ctx, "k", "v", 0).Err(), "READONLY")
	require.ErrorIs(t, direct.Get(ctx, "k").Err(), redis.Nil)
	require.NoError(t, rdb.Set(ctx, "k", "v", 0).Err())
}

func TestSubscriptionsPass(t *testing.T) {
	_, rdb, direct := proxied(t, -1)
	sub := rdb.Subscribe(t.Context(), "c")
	defer func() { _ = sub.Close() }()
	_, err := sub.Receive(t.Context())
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, direct.Publish(t.Context(), "c", "m").Err())
		msg, err := sub.ReceiveMessage(t.Context())
		require.NoError(t, err)
		require.Equal(t, "m", msg.Payload)
	}
}

// TestHistorySurvivesAKill shows that what a worker has noted is there however it ended, and that
// its clock is ours.
func TestHistorySurvivesAKill(t *testing.T) {
	s := redistest.Start(t)
	h := NewHistory(t.TempDir())
	rec, err := NewRecorder(h.Dir(), "test")
	require.NoError(t, err)
	w, err := StartWorker(WorkerConfig{
		Name: "w", Dir: h.Dir(), Redis: Redis{Addr: s.Addr()}, Prefix: "p", Topics: []string{"t"}, Slots: 1,
	}, rec)
	require.NoError(t, err)
	t.Cleanup(func() { _ = w.Kill() })
	before := Mono()
	client := NewClient(s.Client(t), rec, delayq.Prefix("p"))
	require.NoError(t, client.Put(context.Background(), &Task{Topic: "t", ID: "j", Steps: []string{"hang:1m"}, Retries: -1}, false))
	started := func(events []Event) bool {
		for _, e := range events {
			if e.Op == OpStart && e.ID == "j" && e.Mono > before && e.Mono < Mono() {
				return true
			}
		}
		return false
	}
	ok, err := h.Await(20*time.Second, started)
	require.NoError(t, err)
	require.True(t, ok, w.Log())
	require.NoError(t, w.Kill())
	require.Equal(t, -1, w.Code())
	require.NoError(t, rec.Close())
	events, err := NewHistory(h.Dir()).Events()
	require.NoError(t, err)
	require.True(t, started(events))
	require.Empty(t, w.Crashes())
}

// A process that is killed within a line does not spoil the first line of the next one.
func TestRecorderRemovesThePartOfALine(t *testing.T) {
	for name, length := range map[string]int{"none": 0, "short": 7, "a page": 4096, "more": 10_000} {
		t.Run(name, func(t *testing.T) {
			h := NewHistory(t.TempDir())
			file := filepath.Join(h.Dir(), "test.jsonl")
			for run := range 2 {
				rec, err := NewRecorder(h.Dir(), "test")
				require.NoError(t, err)
				rec.Record(Event{Op: OpStart, ID: fmt.Sprint(run)})
				require.NoError(t, rec.Close())
				part, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0o600)
				require.NoError(t, err)
				_, err = part.WriteString(strings.Repeat("{", length))
				require.NoError(t, err)
				require.NoError(t, part.Close())
				events, err := h.Events()
				require.NoError(t, err)
				require.Len(t, events, run+1)
			}
			var ids []string
			require.NoError(t, h.Each(func(e Event) { ids = append(ids, e.ID) }))
			require.Equal(t, []string{"0", "1"}, ids)
		})
	}
	h := NewHistory(t.TempDir())
	require.NoError(t, os.WriteFile(filepath.Join(h.Dir(), "test.jsonl"), []byte(strings.Repeat("{", 10_000)), 0o600))
	rec, err := NewRecorder(h.Dir(), "test") // no line at all
	require.NoError(t, err)
	rec.Record(Event{Op: OpStart, ID: "0"})
	require.NoError(t, rec.Close())
	events, err := h.Events()
	require.NoError(t, err)
	require.Len(t, events, 1)
}
