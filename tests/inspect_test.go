package tests

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// How often a job was snoozed is there in every state, also when it is done.
func TestSnoozesAreCounted(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x", delayq.Retention(time.Hour), delayq.Retry(5))
		require.Zero(t, f.Get("x").Snoozes)
		for range 2 {
			require.Equal(t, "o", f.Hand.Snooze(0, f.Hand.TakeOne("x")))
			f.Hand.Promote()
		}
		require.Equal(t, 2, f.Get("x").Snoozes)
		held := f.Hand.TakeOne("x")
		require.Equal(t, 2, f.Get("x").Snoozes)
		require.Equal(t, "o", f.Hand.Bury(held))
		require.Equal(t, 2, f.Get("x").Snoozes)
		require.Equal(t, 5, f.Get("x").RetriesLeft())
		require.NoError(t, f.Client.Revive(t.Context(), "topic", "x"))
		require.Equal(t, 5, f.Get("x").RetriesLeft())
		require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "x", delayq.ProcessIn(0)))
		held = f.Hand.TakeOne("x")
		require.Regexp(t, ` reschedule\.\d+ 1 2 1$`, held.Moved)
		require.Equal(t, "o", f.Hand.Ack(held))
		info := f.Get("x")
		require.Equal(t, delayq.StateDone, info.State)
		require.Equal(t, 2, info.Snoozes)
	})
}

func TestGetInEveryState(t *testing.T) {
	queuetest.EachLife(t, func(t *testing.T, f *queuetest.Fixture, state delayq.State, lease hand.Held) {
		before := f.Dump()
		info, err := f.Client.Get(t.Context(), "topic", "x")
		require.Equal(t, before, f.Dump(), "Get writes nothing")
		life := strings.SplitN(t.Name(), "/", 3)[2]
		if state == "" && life != "kept_as_done" {
			require.ErrorIs(t, err, delayq.ErrNotFound)
			require.Nil(t, info)
			return
		}
		require.NoError(t, err)
		if life == "kept_as_done" {
			state = delayq.StateDone
			require.InDelta(t, time.Hour, info.KeptUntil.Sub(info.EnqueuedAt), float64(time.Minute))
			require.Equal(t, 5*time.Millisecond, info.FinishedAt.Sub(info.StartedAt), "as the Hand says")
		}
		require.Equal(t, state, info.State)
		require.Equal(t, "topic", info.Topic)
		require.Equal(t, "x", info.ID)
		require.Equal(t, "payload of x", string(info.Payload))
		require.Equal(t, 12, info.PayloadSize)
		require.Equal(t, -1, info.Retries)
		require.Len(t, info.Nonce(), 8)
		require.NoError(t, info.Undecodable)
		require.Nil(t, info.Raw)
		require.Equal(t, state == delayq.StateRunning, !info.LeaseEnd.IsZero())
		require.Equal(t, state == delayq.StateRunning, info.Fence() != 0)
		require.Equal(t, state == delayq.StateDead, !info.BuriedAt.IsZero())
		require.Equal(t, state == delayq.StateDone, !info.KeptUntil.IsZero())
		if state == delayq.StateRunning {
			end, err := strconv.ParseFloat(lease.Fence, 64)
			require.NoError(t, err)
			require.InDelta(t, end*1000, info.Fence(), 1)
			require.Equal(t, info.Fence()/1000, info.LeaseEnd.UnixMilli())
		}
		type story struct {
			attempt, errors int
			moved           delayq.DueReason
			wait            time.Duration
		}
		want, ok := map[string]story{
			"scheduled":   {1, 0, "", time.Hour},
			"backing_off": {2, 1, delayq.DueRetry, time.Hour},
			"snoozed":     {1, 0, delayq.DueSnooze, time.Hour},
			"reclaimed":   {2, 1, "", 0},
			"dead":        {1, 1, "", 0},
			"revived":     {2, 1, delayq.DueRevive, 0},
			"rescheduled": {1, 0, delayq.DueReschedule, time.Hour},
		}[life]
		if !ok {
			want = story{attempt: 1}
		}
		require.Equal(t, want.attempt, info.Attempt)
		require.Len(t, info.Errors, want.errors)
		require.Equal(t, want.moved, info.DueReason)
		require.InDelta(t, want.wait, info.Due.Sub(info.EnqueuedAt), float64(time.Minute))
	})
}

// Of the errors of a job the first and the newest ten are kept.
func TestGetTellsTheErrors(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		for range 15 {
			require.Len(t, f.Hand.Take(1, 0), 1)
			f.Hand.Promote()
			f.Hand.Hasten(2 * time.Hour) // from the second time on it backs off
			f.Hand.Promote()
		}
		info := f.Get("x")
		require.Equal(t, 16, info.Attempt)
		var attempts []int
		for _, e := range info.Errors {
			require.Equal(t, delayq.KindLeaseLost, e.Kind)
			require.False(t, e.At.IsZero())
			attempts = append(attempts, e.Attempt)
		}
		require.Equal(t, []int{1, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, attempts)
	})
}

// A record that cannot be read is shown as it is: by Get, by Jobs, and nothing around it suffers.
func TestGetOfWhatCannotBeRead(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("good")
		f.Enqueue("bad")
		f.Enqueue("newer")
		newer, err := f.RDB.HGet(t.Context(), f.Key("pool"), "newer").Result()
		require.NoError(t, err)
		newer = newer[:8] + "\x63" + newer[9:]
		require.NoError(t, f.RDB.HSet(t.Context(), f.Key("pool"), "bad", "garbage\x00", "newer", newer).Err())
		for id, raw := range map[string]string{"bad": "garbage\x00", "newer": newer} {
			info := f.Get(id)
			require.Error(t, info.Undecodable)
			require.Equal(t, raw, string(info.Raw))
			require.Equal(t, delayq.StateReady, info.State)
			require.Equal(t, raw[:8], info.Nonce())
		}
		list := queuetest.JobsOf(t, f.Inspector, "topic", delayq.StateReady)
		require.Equal(t, []string{"good", "bad", "newer"}, queuetest.InfoIDs(list))
		require.Equal(t, "garbage\x00", string(list[1].Raw))
		require.Equal(t, delayq.StateReady, f.Dequeue("bad"))
		require.Equal(t, delayq.StateReady, f.Dequeue("newer"))
	})
}

// Each state has its order, and Latest reverses it.
func TestPagesInTheOrderOfTheState(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		check := func(state delayq.State, want ...string) {
			t.Helper()
			for _, latest := range []bool{false, true} {
				page, err := f.Inspector.Jobs(t.Context(), delayq.Query{Topic: "topic", State: state, Latest: latest})
				require.NoError(t, err)
				for _, info := range page.Jobs {
					require.Equal(t, state, info.State)
				}
				require.Equal(t, want, queuetest.InfoIDs(page.Jobs))
				require.EqualValues(t, len(want), page.Total)
				slices.Reverse(want)
			}
		}
		for _, state := range []delayq.State{
			delayq.StateScheduled, delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone,
		} {
			check(state)
		}
		// Ready, in the order in which they will be taken.
		for _, id := range []string{"c", "a", "b"} {
			f.Enqueue(id, delayq.Retention(time.Hour))
		}
		check(delayq.StateReady, "c", "a", "b")
		// Running, by ID.
		long := f.Hand.Take(1, 3*time.Hour)
		short := f.Hand.Take(2, time.Hour)
		check(delayq.StateRunning, "a", "b", "c")
		// Scheduled, by due time.
		f.Hand.Retry(2*time.Hour, short[0])
		f.Hand.Snooze(time.Hour, short[1])
		f.Enqueue("d", delayq.ProcessIn(90*time.Minute))
		check(delayq.StateScheduled, "b", "d", "a")
		// Done, by the time until which they are kept.
		require.Equal(t, "o", f.Hand.Ack(long...))
		f.Enqueue("e", delayq.Retention(time.Minute))
		require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne("e")))
		check(delayq.StateDone, "e", "c")
		// Dead, by the time of burial.
		for i, id := range []string{"z", "y", "x"} {
			f.Enqueue(id)
			f.Hand.Bury(f.Hand.TakeOne(id))
			require.NoError(t, f.RDB.ZIncrBy(t.Context(), f.Key("dead"), float64(i), id).Err())
		}
		check(delayq.StateDead, "z", "y", "x")
	})
}

// What a cancel, a reschedule or a second push leaves in ready is not a ready job.
func TestPagesLeaveOutLeftOvers(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, id := range []string{"cancelled", "moved", "ready"} {
			f.Enqueue(id)
		}
		f.Dequeue("cancelled")
		require.NoError(t, f.Client.Reschedule(t.Context(), "topic", "moved", delayq.ProcessIn(time.Hour)))
		require.NoError(t, f.RDB.RPush(t.Context(), f.Key("ready"), "", "ready", "nobody").Err())
		list := queuetest.JobsOf(t, f.Inspector, "topic", delayq.StateReady)
		require.Equal(t, []string{"ready"}, queuetest.InfoIDs(list))
		info := f.Stats()
		require.EqualValues(t, 1, info.Ready)
		require.EqualValues(t, 1, info.Scheduled)
	})
}

func TestInspectCounts(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		info := f.Stats()
		for name, n := range info.Counters {
			require.Zero(t, n, name)
		}
		require.Len(t, info.Counters, 28)
		info.Counters = nil
		info.At = time.Time{}
		require.Equal(t, delayq.TopicStats{Topic: "topic"}, info, "of a topic that was never used")

		for _, life := range queuetest.Lives {
			life.Lead(f, life.Name)
			// The next life wants ready for itself.
			require.NoError(t, f.RDB.Del(t.Context(), f.Key("ready")).Err())
		}
		info = f.Stats()
		require.Equal(t, []int64{4, 3, 1, 1, 1}, []int64{info.Scheduled, info.Ready, info.Running, info.Dead, info.Done})
		require.Equal(t, map[delayq.Counter]int64{
			"enqueued": 13, "taken": 9, "acked": 2, "again": 0, "retried": 1, "snoozed": 1, "buried": 2, "cancelled": 2, "reclaimed": 1, "revived": 1,
			"expired": 0, "returned": 0, "held": 0, "dropped": 0, "pruned_dead": 0, "pruned_done": 0, "deleted": 0, "mended": 0, "fired": 0, "skipped": 0, "missed": 0,
			"flows": 0, "flows_failed": 0, "flow_steps_failed": 0,
			"tombed": 0, "debounced": 0, "awaited": 0, "undelivered": 0,
		}, info.Counters)
		require.False(t, info.Paused)
	})
}

func TestInspectTellsTheNextDueTime(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, ms := range []int64{4_000_000_000_123, 3_999_999_999_999, 9_999_999_999_999} {
			f.Enqueue(fmt.Sprint(ms), delayq.ProcessAt(time.UnixMilli(ms)))
		}
		info := f.Stats()
		require.EqualValues(t, 3_999_999_999_999, info.NextDue.UnixMilli())
	})
}

func TestTopicsThatWereUsed(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		topics, err := f.Inspector.Topics(t.Context())
		require.NoError(t, err)
		require.Empty(t, topics)
		want := []string{"a:b", "topic", "ünï 🐢"}
		for i := range 300 {
			want = append(want, fmt.Sprintf("t%03d", i))
		}
		jobs := make([]delayq.NewJob, len(want))
		for i, topic := range want {
			jobs[i].Topic = topic
		}
		_, err = f.Client.EnqueueBatch(t.Context(), jobs)
		require.NoError(t, err)
		_, err = f.Client.Get(t.Context(), "only asked for", "x")
		require.ErrorIs(t, err, delayq.ErrNotFound)
		slices.Sort(want)
		topics, err = f.Inspector.Topics(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, topics)
	})
}

// A heartbeat that is still on its way to Redis when the server stops does not bring it back after
// its good-bye.
func TestLastHeartbeatComesBeforeTheGoodBye(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		beats := make(chan struct{}, 10)
		o := *rdb.Options()
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := rdb.Options().Dialer(ctx, network, addr)
			return &slowConn{Conn: conn, words: `"state":"running"`, by: 50 * time.Millisecond, met: beats}, err
		}
		slow := redis.NewClient(&o)
		defer func() { require.NoError(t, slow.Close()) }()
		server := delayq.NewServer(slow, delayq.Logger(slog.New(slog.DiscardHandler)))
		server.HandlerFunc("topic", func(context.Context, *delayq.Job) error { return nil })
		run, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(run) }()
		time.Sleep(3 * time.Second)
		for len(beats) > 0 {
			<-beats
		}
		<-beats
		stop()
		require.NoError(t, <-ended)
		time.Sleep(time.Second)
		list, err := delayq.NewInspector(rdb).Servers(t.Context())
		require.NoError(t, err)
		require.Empty(t, list)
	})
}

// A slowConn is a network that carries what contains some words a while later, also if the
// connection has been closed since.
type slowConn struct {
	net.Conn
	words string
	by    time.Duration
	met   chan<- struct{}
	under sync.WaitGroup // what is on its way
}

func (c *slowConn) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte(c.words)) {
		return c.Conn.Write(p)
	}
	c.met <- struct{}{}
	late := bytes.Clone(p)
	c.under.Go(func() {
		time.Sleep(c.by)
		_, _ = c.Conn.Write(late) // nobody is there to be told
	})
	return len(p), nil
}

func (c *slowConn) Close() error {
	go func() {
		c.under.Wait()
		_ = c.Conn.Close() // the same
	}()
	return nil
}

// A server tells of itself every five seconds, is missing 30 s after its last word, and goes at
// once when it stops.
func TestServersThatLive(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		ctx := t.Context()
		insp := delayq.NewInspector(rdb)
		list := func() []delayq.ServerInfo {
			t.Helper()
			list, err := insp.Servers(ctx)
			require.NoError(t, err)
			return list
		}
		require.Empty(t, list())
		server := delayq.NewServer(rdb, delayq.Concurrency(7), delayq.Logger(slog.New(slog.DiscardHandler)))
		server.HandlerFunc("topic", func(context.Context, *delayq.Job) error { return nil })
		run, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- server.Run(run) }()
		time.Sleep(12 * time.Second)
		got := list()
		require.Len(t, got, 1)
		require.Equal(t, server.ID(), got[0].ID)
		require.Equal(t, delayq.ServerRunning, got[0].State)
		require.Equal(t, 7, got[0].Topics["topic"].Workers)
		require.NotZero(t, got[0].PID)
		require.Equal(t, 12*time.Second, time.Since(got[0].StartedAt))
		require.Equal(t, 2*time.Second, time.Since(got[0].SeenAt))
		require.Contains(t, got[0].Topics["topic"].Loops, "promote")
		beat, err := rdb.HGet(ctx, "delayq:servers", server.ID()).Result()
		require.NoError(t, err)
		stop()
		require.NoError(t, <-ended)
		require.Empty(t, list(), "it said good-bye")

		// One that was killed is known by its silence. What is no heartbeat is no server that
		// lives.
		require.NoError(t, rdb.HSet(ctx, "delayq:servers", server.ID(), beat, "odd", "no heartbeat").Err())
		time.Sleep(27 * time.Second)
		require.Len(t, list(), 1)
		time.Sleep(2 * time.Second)
		require.Empty(t, list())
	})
}

func TestPauseAndResume(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		require.NoError(t, f.Client.Pause(ctx, "topic", delayq.Pause{By: "ann", Reason: "release 7: \x00{} 1 2 3 4 \xff"}))
		info := f.Stats()
		require.True(t, info.Paused)
		require.Len(t, info.Pauses, 1)
		ann := info.Pauses[0]
		require.Equal(t, []string{"ann", "release 7: \x00{} 1 2 3 4 \xff"}, []string{ann.By, ann.Reason})
		require.False(t, ann.Since.IsZero())
		require.True(t, ann.Until.IsZero())
		require.True(t, info.PausedUntil.IsZero())

		// Jobs still come in, fall due and can be cancelled, but none is taken.
		f.Enqueue("x")
		f.Enqueue("y", delayq.ProcessIn(time.Hour))
		f.Hand.Hasten(time.Hour)
		f.Hand.Promote()
		require.Empty(t, f.Hand.Take(10, time.Minute))
		require.Equal(t, delayq.StateReady, f.Dequeue("y"))

		// A new pause takes the place of that of the same name alone, and the end of one is not
		// that of the other.
		require.NoError(t, f.Client.Pause(ctx, "topic", delayq.Pause{By: "bob", For: time.Hour}))
		require.NoError(t, f.Client.Pause(ctx, "topic", delayq.Pause{By: "bob", For: 2 * time.Hour, Reason: "more"}))
		require.NoError(t, f.Client.Pause(ctx, "topic", delayq.Pause{}))
		info = f.Stats()
		require.Len(t, info.Pauses, 3)
		require.True(t, info.PausedUntil.IsZero(), "ann's has no end")
		i := slices.IndexFunc(info.Pauses, func(p delayq.PauseInfo) bool { return p.By == "bob" })
		require.Equal(t, "more", info.Pauses[i].Reason)
		require.Equal(t, 2*time.Hour, info.Pauses[i].Until.Sub(info.Pauses[i].Since))
		require.Contains(t, info.Pauses, ann)

		for _, by := range []string{"ann", "", "carl"} { // the last has none
			require.NoError(t, f.Client.Resume(ctx, "topic", by))
			require.Empty(t, f.Hand.Take(10, time.Minute))
		}
		info = f.Stats()
		require.Len(t, info.Pauses, 1)
		require.Equal(t, info.Pauses[0].Until, info.PausedUntil)
		require.NoError(t, f.Client.Resume(ctx, "topic", "bob"))
		info = f.Stats()
		require.False(t, info.Paused)
		require.Zero(t, info.PausedUntil)
		require.Empty(t, info.Pauses)
		require.Zero(t, f.RDB.Exists(ctx, f.Key("meta")).Val())
		f.Hand.TakeOne("x")
		require.NoError(t, f.Client.Resume(ctx, "topic", "bob"), "of a topic that is not paused")
	})
}

func TestResumeAllEndsEveryPause(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		f.Enqueue("x")
		for _, by := range []string{"", "ann", "bob"} {
			require.NoError(t, f.Client.Pause(t.Context(), "topic", delayq.Pause{By: by}))
		}
		require.NoError(t, f.Client.ResumeAll(t.Context(), "topic"))
		f.Hand.TakeOne("x")
		require.Zero(t, f.RDB.Exists(t.Context(), f.Key("meta")).Val())
	})
}

// A topic has 16 pauses at most, and one that is over makes room for another.
func TestPausesAreBounded(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		ctx, client := t.Context(), delayq.NewClient(rdb)
		insp := delayq.NewInspector(rdb)
		long := strings.Repeat("x", 1022)
		for i := range 16 {
			p := delayq.Pause{By: fmt.Sprintf("%02d", i) + long, Reason: long}
			if i == 7 {
				p.For = time.Minute
			}
			require.NoError(t, client.Pause(ctx, "topic", p))
		}
		err := client.Pause(ctx, "topic", delayq.Pause{By: "one more"})
		require.ErrorIs(t, err, delayq.ErrTooManyPauses)
		require.ErrorContains(t, err, `pause topic "topic": by "one more": `)
		require.NoError(t, client.Pause(ctx, "topic", delayq.Pause{By: "03" + long}), "instead of its own")
		time.Sleep(time.Minute)
		info := queuetest.StatsOf(t, insp, "topic")
		require.Len(t, info.Pauses, 15)
		require.NoError(t, client.Pause(ctx, "topic", delayq.Pause{By: "one more"}))
		info = queuetest.StatsOf(t, insp, "topic")
		require.Len(t, info.Pauses, 16)
		require.True(t, slices.IsSortedFunc(info.Pauses, func(a, b delayq.PauseInfo) int { return a.Since.Compare(b.Since) }))
		require.Equal(t, "one more", info.Pauses[15].By)
	})
}

func TestPauseEndsByItself(t *testing.T) {
	t.Parallel()
	redistest.Bubble(t, func(t *testing.T, _ *embedded.Redis, rdb *redis.Client) {
		ctx := t.Context()
		client := delayq.NewClient(rdb)
		insp := delayq.NewInspector(rdb)
		hand := hand.New(t, rdb, "delayq", "topic")
		_, err := client.Enqueue(ctx, "topic", "x", nil)
		require.NoError(t, err)
		require.NoError(t, client.Pause(ctx, "topic", delayq.Pause{For: 1500 * time.Microsecond})) // rounded up to 2 ms
		time.Sleep(2*time.Millisecond - 1)
		require.Empty(t, hand.Take(1, time.Minute))
		time.Sleep(time.Nanosecond)
		info := queuetest.StatsOf(t, insp, "topic")
		require.False(t, info.Paused)
		hand.TakeOne("x")
	})
}

func TestPauseOfOneTopicLeavesTheOthers(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		require.NoError(t, f.Client.Pause(t.Context(), "other", delayq.Pause{}))
		f.Enqueue("x")
		f.Hand.TakeOne("x")
	})
}

func TestScriptNames(t *testing.T) {
	t.Parallel()
	scripts := delayq.Scripts()
	for _, name := range []string{"enqueue", "replace", "take", "ack", "cancel"} {
		require.Regexp(t, `^[0-9a-f]{40}$`, scripts[name], name)
	}
}

// A page has everything that Get returns, except payloads.
func TestPagesHaveAllButPayloads(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var many []delayq.JobOption // a long head
		for i := range 3000 {
			many = append(many, delayq.Header(string([]byte{'a' + byte(i>>8), byte(i)}), ""))
		}
		jobs := 0
		for i, size := range []int{0, 10, 900, 1000, 1024, 5000, 16 << 10} {
			for name, opts := range map[string][]delayq.JobOption{"few": nil, "many": many} {
				payload := []byte(strings.Repeat("x", size))
				if name == "many" {
					payload = payload[:min(size, 2000)]
				}
				opts := append(opts, delayq.Retention(time.Hour), delayq.Retry(3), delayq.Header("-", "b"))
				_, err := f.Client.Enqueue(t.Context(), "topic", fmt.Sprint(name, i), payload, opts...)
				require.NoError(t, err)
				jobs++
			}
		}
		for id, raw := range map[string]string{"few0": "garbage", "few1": strings.Repeat("garbage", 1000)} {
			require.NoError(t, f.RDB.HSet(t.Context(), f.Key("pool"), id, raw).Err())
		}
		check := func(state delayq.State, n int) {
			t.Helper()
			list := queuetest.JobsOf(t, f.Inspector, "topic", state)
			require.Len(t, list, n)
			for _, info := range list {
				want := f.Get(info.ID)
				want.Payload = nil
				require.Equal(t, info.ID == "few6", info.Partial, "its record has more than 16 KiB")
				if info.Partial {
					require.InDelta(t, 16<<10, info.PayloadSize, 200)
					require.Nil(t, info.Headers)
					continue
				}
				if want.Undecodable != nil {
					require.Equal(t, want.Undecodable.Error(), info.Undecodable.Error())
					want.Undecodable, info.Undecodable = nil, nil
				}
				require.Equal(t, want, info)
			}
		}
		check(delayq.StateReady, jobs)
		held := f.Hand.Take(jobs, time.Hour)
		check(delayq.StateRunning, jobs)
		f.Hand.Ack(held...)
		check(delayq.StateDone, jobs-2) // what cannot be read is not kept
	})
}

// What is kept of done jobs counts in what one call reads, as records do.
func TestPagesOfDoneJobsReadAMebibyteAtATime(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		var calls queuetest.CountScripts
		inspector := delayq.NewInspector(f.RDB, delayq.Prefix(f.Prefix), delayq.Hooks(&calls))
		payload := make([]byte, 700<<10)
		for _, id := range []string{"1", "2", "3"} {
			_, err := f.Client.Enqueue(t.Context(), "topic", id, payload, delayq.Retention(time.Hour))
			require.NoError(t, err)
			require.Equal(t, "o", f.Hand.Ack(f.Hand.TakeOne(id)))
		}
		q := delayq.Query{Topic: "topic", State: delayq.StateDone}
		page, err := inspector.Jobs(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, page.Jobs, 3)
		require.Equal(t, 1, calls["page"], "it reads none of them")
		require.True(t, page.Jobs[0].Partial)
		clear(calls)
		q.Payload = []byte{0}
		page, err = inspector.Jobs(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, page.Jobs, 3)
		require.Equal(t, 3, calls["page"], "one in each")
		require.False(t, page.Jobs[0].Partial)
		require.Equal(t, 1, page.Jobs[0].Attempt)
	})
}
