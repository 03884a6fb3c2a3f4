package lua_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// What follows is about who waits in idle, and who is rung.

// A bell notes what is published to one channel.
type bell struct {
	t       testing.TB
	rdb     redis.UniversalClient
	channel string
	sub     *redis.PubSub
}

// listen hears the rings of a waiting server, or with an empty name the control channel.
func (h *Hand) listen(name string) *bell {
	h.T.Helper()
	b := &bell{t: h.T, rdb: h.RDB, channel: script.ControlChannel(h.Prefix())}
	if name != "" {
		b.channel += ":" + name
	}
	b.sub = h.RDB.Subscribe(context.Background(), b.channel)
	_, err := b.sub.Receive(context.Background())
	require.NoError(h.T, err)
	h.T.Cleanup(b.close)
	return b
}

func (b *bell) close() { _ = b.sub.Close() }

// heard gives the messages since the last time.
func (b *bell) heard() (list []string) {
	b.t.Helper()
	ctx := context.Background()
	require.NoError(b.t, b.rdb.Publish(ctx, b.channel, "that was all").Err())
	for {
		m, err := b.sub.ReceiveMessage(ctx)
		require.NoError(b.t, err)
		if m.Payload == "that was all" {
			return list
		}
		list = append(list, m.Payload)
	}
}

// wait puts names into idle, the first one waiting longest.
func (h *Hand) wait(names ...string) { h.waitFor(time.Minute, names...) }

// waitFor is wait, begun some time ago.
func (h *Hand) waitFor(ago time.Duration, names ...string) {
	h.T.Helper()
	ctx := context.Background()
	since := float64(h.RDB.Time(ctx).Val().Add(-ago).UnixMilli())
	if last := h.RDB.ZRangeWithScores(ctx, h.Keys.Idle, -1, -1).Val(); len(last) > 0 && last[0].Score < since+10_000 {
		since = max(since, last[0].Score+1) // of the same minute
	}
	for i, name := range names {
		require.NoError(h.T, h.RDB.ZAdd(ctx, h.Keys.Idle, redis.Z{Score: since + float64(i), Member: name}).Err())
	}
}

// waiting lists who is in idle.
func (h *Hand) waiting() []string {
	h.T.Helper()
	names, err := h.RDB.ZRange(context.Background(), h.Keys.Idle, 0, -1).Result()
	require.NoError(h.T, err)
	return names
}

// pushes are the calls that put jobs into ready, each on a stage, and how many they put there.
var pushes = map[string]struct {
	call func(h *Hand, running hand.Held) (script.Reply, error)
	jobs int
}{
	"enqueue": {func(h *Hand, _ hand.Held) (script.Reply, error) {
		return h.TryEnqueue(false, [2]string{"1", "+0"}, [2]string{"2", "+500"}, [2]string{"3", "+0"}, [2]string{"ready", "+0"})
	}, 2},
	"enqueue_now":             {breakable["enqueue_now"], 1},
	"enqueue_later":           {breakable["enqueue_later"], 0},
	"enqueue later":           {breakable["enqueue later"], 0},
	"replace running":         {breakable["replace running"], 1},
	"replace scheduled":       {breakable["replace scheduled"], 1},
	"replace ready":           {func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryEnqueue(true, [2]string{"ready", "+0"}) }, 0},
	"reschedule to now":       {breakable["reschedule to now"], 1},
	"reschedule ready":        {breakable["reschedule ready"], 0},
	"reschedule ready to now": {func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryReschedule("ready", "+0") }, 0},
	"revive":                  {breakable["revive"], 1},
	"revive later":            {breakable["revive later"], 0},
	"bury_waiting":            {breakable["bury_waiting"], 0},
	"revive none":             {func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryRevive("ready") }, 0},
	"give_back": {func(h *Hand, running hand.Held) (script.Reply, error) {
		return h.Settle([]hand.Held{running, {ID: "lapsed", Fence: "1"}}, settle.Row{Verb: settle.Return})
	}, 1},
	"again now":        {breakable["again now"], 1},
	"again later":      {breakable["again later"], 0},
	"promote and heal": {breakable["promote"], 3},
	"promote":          {func(h *Hand, _ hand.Held) (script.Reply, error) { return h.TryPromote(1000, 0) }, 2},
	"ack":              {breakable["ack"], 0},
	"retry":            {breakable["retry"], 0},
	"snooze":           {breakable["snooze"], 0},
	"bury":             {breakable["bury"], 0},
	"cancel":           {breakable["cancel running"], 0},
	"mend": {func(h *Hand, _ hand.Held) (script.Reply, error) {
		if err := h.RDB.LRem(context.Background(), h.Keys.Ready, 1, "ready").Err(); err != nil {
			return nil, err
		}
		_, err := h.client().Repair(context.Background(), h.Keys.Topic)
		return nil, err
	}, 1},
	"trigger": {func(h *Hand, _ hand.Held) (script.Reply, error) {
		if err := h.client().Schedule(context.Background(), h.Keys.Topic, "s", delayq.Every(rare), nil); err != nil {
			return nil, err
		}
		_, err := h.client().Trigger(context.Background(), h.Keys.Topic, "s")
		return nil, err
	}, 1},
}

// As many servers are woken as jobs become ready, those that wait longest, and no other.
func TestPushesRingOneServerForEachJob(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, push := range pushes {
			t.Run(name, func(t *testing.T) {
				h := NewHand(t, rdb, redistest.Prefix(t), "topic")
				running, _ := stage(h)
				names := []string{"first", "second", "third", "fourth"}
				var bells []*bell
				for _, name := range names {
					bells = append(bells, h.listen(name))
				}
				control := h.listen("")
				h.wait(names...)
				before := h.RDB.LLen(t.Context(), h.Keys.Ready).Val() // the oracle of jobs
				_, err := push.call(h, running)
				require.NoError(t, err)
				require.EqualValues(t, push.jobs, h.RDB.LLen(t.Context(), h.Keys.Ready).Val()-before+removed[name])
				require.Equal(t, names[push.jobs:], h.waiting())
				for i, bell := range bells {
					var want []string
					if i < push.jobs {
						want = []string{"topic"}
					}
					require.Equal(t, want, bell.heard(), names[i])
				}
				for _, text := range control.heard() {
					require.NotContains(t, text, "ring")
				}
			})
		}
	})
}

// removed is how many entries a call of pushes takes from ready.
var removed = map[string]int64{"reschedule ready": 1, "mend": 1}

func TestFireRingsOneServerForEachJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.NoError(t, h.client().Schedule(t.Context(), h.Keys.Topic, "s", delayq.Every(rare), nil))
		slot := h.RDB.Time(t.Context()).Val().UnixMilli() / rare.Milliseconds() * rare.Milliseconds()
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Slots, redis.Z{Score: float64(slot), Member: "s"}).Err())
		first, second := h.listen("first"), h.listen("second")
		h.wait("first", "second")
		hand.NewTimer(h.RDB, h.Keys, slog.New(slog.DiscardHandler)).Firer.Fire(t.Context(), 1, 0)
		require.EqualValues(t, 1, h.RDB.LLen(t.Context(), h.Keys.Ready).Val())
		require.Equal(t, []string{"topic"}, first.heard())
		require.Empty(t, second.heard())
		require.Equal(t, []string{"second"}, h.waiting())
	})
}

// A call that is sent twice rings once.
func TestPushSentTwiceRingsOnce(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		first, second := h.listen("first"), h.listen("second")
		h.wait("first", "second")
		_, err := h.TryEnqueue(false, [2]string{"a", "+0"})
		require.NoError(t, err)
		_, err = h.Last()
		require.NoError(t, err)
		require.Equal(t, []string{"topic"}, first.heard())
		require.Empty(t, second.heard())
	})
}

// Servers that died are passed over in the same call, up to a thousand of them.
func TestRingPassesOverTheDead(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		dead := hand.Numbered("dead", 1000)
		h.wait(dead...)
		h.wait("living", "second")
		living, second := h.listen("living"), h.listen("second")
		h.Put("+0", "a")
		require.Equal(t, []string{"living", "second"}, h.waiting(), "the dead are gone, and that was the bound")
		h.Put("+0", "b")
		require.Equal(t, []string{"topic"}, living.heard())
		require.Empty(t, second.heard())
		h.wait(dead[:3]...)
		h.Put("+0", "c", "d")
		require.Equal(t, []string{"topic"}, second.heard())
		require.Empty(t, h.waiting())
	})
}

// One call rings a hundred servers at most.
func TestRingIsBounded(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		names := hand.Numbered("server", 101)
		all := h.RDB.Subscribe(t.Context())
		defer func() { _ = all.Close() }()
		for _, name := range names {
			require.NoError(t, all.Subscribe(t.Context(), script.ControlChannel(h.Prefix())+":"+name))
			_, err := all.Receive(t.Context())
			require.NoError(t, err)
		}
		h.wait(names...)
		h.Put("+0", hand.Numbered("job", 300)...)
		require.Equal(t, names[100:], h.waiting())
	})
}

// A key of a wrong type keeps no job from being stored, and none from being taken.
func TestIdleOfAWrongTypeDecidesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, push := range pushes {
			if name == "mend" {
				continue // its check reports the key
			}
			t.Run(name, func(t *testing.T) {
				good, bad := NewHand(t, rdb, redistest.Prefix(t), "topic"), NewHand(t, rdb, redistest.Prefix(t), "topic")
				running, _ := stage(good)
				want, err := push.call(good, running)
				require.NoError(t, err)
				running, _ = stage(bad)
				bad.Deface("idle")
				got, err := push.call(bad, running)
				require.NoError(t, err)
				require.Equal(t, places(want), places(got))
				require.Equal(t, len(good.sketch()), len(bad.sketch()))
			})
		}
		t.Run("take", func(t *testing.T) {
			h := NewHand(t, rdb, redistest.Prefix(t), "topic")
			h.Waits, h.Listed = "me", 1
			h.Deface("idle")
			r, err := h.TryTake("", 10, time.Minute)
			require.NoError(t, err)
			require.Equal(t, script.Reply{"empty", r.Now(), int64(0)}, r)
			h.Put("+0", "a")
			held := h.TakeOne("a")
			require.Equal(t, "o", h.Ack(held))
		})
	})
}

// Without the right to publish on the server's channel, the ring goes to the control channel.
func TestRingWithoutTheRightToItsChannel(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t, redistest.NoRoles...)
	admin := rs.Client(t)
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "old", "on", ">old", "~*", "+@all", "resetchannels", "&delayq:control").Err())
	opt := rs.Options()
	opt.Username, opt.Password = "old", "old"
	rdb := redis.NewClient(opt)
	t.Cleanup(func() { _ = rdb.Close() })
	h := NewHand(t, admin, script.DefaultPrefix, "topic: a")
	own, control := h.listen("me"), h.listen("")
	h.wait("me", "another")
	_, err := newClient(rdb, script.DefaultPrefix).Enqueue(t.Context(), "topic: a", "id", nil)
	require.NoError(t, err)
	require.Empty(t, own.heard())
	heard := control.heard()
	require.Len(t, heard, 1)
	m, ok := record.DecodeMessage(heard[0])
	require.True(t, ok)
	require.Equal(t, record.Message{Verb: "ring", Fence: "0", Topic: "topic: a", Job: "me"}, m)
	require.Equal(t, []string{"another"}, h.waiting())
}

// A take adds its name when it leaves nothing and has a slot left, and else removes it.
func TestTakeRegistersItsServer(t *testing.T) {
	for name, c := range map[string]struct {
		jobs, limit, free int
		listed            int
		there             bool // before
		waits             bool
	}{
		"nothing":                       {0, 10, 10, 0, false, true},
		"nothing, and it is there":      {0, 10, 10, 1, true, true},
		"fewer than it has slots":       {3, 10, 10, 0, false, true},
		"all":                           {3, 3, 10, 0, false, false},
		"all, and it is there":          {3, 3, 10, 1, true, false},
		"more than it has slots":        {3, 10, 2, 0, false, false},
		"as many as slots, and listed":  {3, 10, 3, 1, true, false},
		"no slot":                       {0, 10, 0, 0, false, false},
		"no slot, and it is there":      {0, 10, 0, 1, true, false},
		"no slot, and it does not know": {0, 10, 0, 0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				if c.there {
					h.wait("me")
				}
				h.Waits, h.Listed = "me", c.listed
				h.Put("+0", hand.Numbered("job", c.jobs)...)
				r, err := h.TryTakeAhead("", c.limit, c.free, time.Minute)
				require.NoError(t, err)
				require.Len(t, hand.HeldOf(r), min(c.jobs, c.limit))
				last := 2
				if c.jobs > 0 {
					last = 8
				}
				require.Len(t, r, last+1)
				var want []string
				if c.waits {
					want = []string{"me"}
				}
				require.ElementsMatch(t, want, h.waiting())
				if name == "no slot, and it does not know" {
					return // nor does the take look
				}
				require.Equal(t, c.waits, r.Number(last) == 1)
				if c.waits {
					require.Equal(t, strconv.FormatInt(r.Now(), 10), strconv.FormatFloat(h.RDB.ZScore(t.Context(), h.Keys.Idle, "me").Val(), 'f', -1, 64))
				}
			})
		})
	}
}

// Left-overs alone are nothing: the server waits. Behind a job with limited retries it does not.
func TestTakeRegistersBehindLeftOvers(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Waits = "me"
		require.NoError(t, h.RDB.RPush(t.Context(), h.Keys.Handoff, "", "gone").Err())
		require.NoError(t, h.RDB.RPush(t.Context(), h.Keys.Ready, "gone", "gone").Err())
		r, err := h.TryTake("", 10, time.Minute)
		require.NoError(t, err)
		require.Equal(t, "ok", r.Status())
		require.Empty(t, hand.HeldOf(r))
		require.EqualValues(t, 1, r.Number(8))
		require.Equal(t, []string{"me"}, h.waiting())

		_, err = h.client().Enqueue(t.Context(), "topic", "limited", nil, delayq.Retry(1))
		require.NoError(t, err)
		require.Empty(t, h.waiting(), "nobody listens")
		r, err = h.TryTakeAhead("", 10, 0, time.Minute)
		require.NoError(t, err)
		require.Equal(t, script.Reply{"busy", r.Now(), int64(0)}, r)
		require.Empty(t, h.waiting())
	})
}

// A take that arrives twice says whether the server waits now. One that is late does nothing.
func TestTakeSentTwiceSaysWhoWaits(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Waits = "me"
		h.Put("+0", "a")
		r, err := h.TryTake("5", 10, time.Minute)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Number(8))
		send := h.Last
		again, err := send()
		require.NoError(t, err)
		require.Equal(t, r[2:], again[2:])
		h.Put("+0", "b") // which nobody hears, and so the name goes
		again, err = send()
		require.NoError(t, err)
		require.Equal(t, idsOf(hand.HeldOf(r)), idsOf(hand.HeldOf(again)))
		require.Zero(t, again.Number(8))
		require.Empty(t, h.waiting())

		late, err := h.TryTake("4", 10, time.Minute)
		require.NoError(t, err)
		require.Equal(t, script.Reply{"empty", late.Now(), int64(0)}, late)
		require.Empty(t, h.waiting())

		// Asked anew, because the reply to 6 was lost.
		_, err = h.TryTake("6", 10, time.Minute)
		require.NoError(t, err)
		require.Equal(t, []string{"me"}, h.waiting())
		r, err = h.TryTakeSince("7", "6", 10, script.CallBytes, 10, time.Minute, "head")
		require.NoError(t, err)
		require.Equal(t, []string{"b"}, idsOf(hand.HeldOf(r)))
		require.EqualValues(t, 1, r.Number(8))
	})
}

// A paused topic neither adds nor removes the server.
func TestPausedTakeLeavesIdleAlone(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.wait("me")
		_, err := h.TryPause("pause", "somebody", 0)
		require.NoError(t, err)
		for _, name := range []string{"me", "other"} {
			h.Waits, h.Listed = name, 1
			r, err := h.TryTake("", 10, time.Minute)
			require.NoError(t, err)
			require.Equal(t, "paused", r.Status())
		}
		require.Equal(t, []string{"me"}, h.waiting())
	})
}

// A server that would wait learns that Redis takes no writes, and one at maxmemory waits all the
// same.
func TestWaitWhereRedisTakesNoWrites(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t)
	rdb := rs.Client(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	h.Waits = "me"
	take := func() (script.Reply, error) { return h.TryTake("", 10, time.Minute) }
	r, err := take()
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Number(2))
	require.NoError(t, rdb.Del(t.Context(), h.Keys.Idle).Err())

	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
	r, err = take()
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Number(2))
	require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())

	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	_, err = take()
	require.ErrorContains(t, err, "NOREPLICAS")
	h.Waits = "" // as while it blocks, which fails there by itself
	r, err = take()
	require.NoError(t, err)
	require.Equal(t, "empty", r.Status())
}

// A name may have any bytes, also those that the message of the control channel separates by.
func TestRingHasTheNameAsItIs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		name := "a b:" + strings.Repeat("x", 200) + ".7"
		bell := h.listen(name)
		h.Waits = name
		r, err := h.TryTake("", 1, time.Minute)
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Number(2))
		h.Put("+0", "a")
		require.Equal(t, []string{"topic"}, bell.heard(), fmt.Sprint(h.waiting()))
	})
}

// On a Cluster a ring counts at the node that has the topic. A server that listens at another node
// counts as one that died: its name goes, and the next one is rung too.
func TestRingOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	rdb := c.Client(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	node, err := rdb.MasterForKey(t.Context(), h.Keys.Idle)
	require.NoError(t, err)
	listen := func(name, addr string) *bell {
		one := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = one.Close() })
		return NewHand(t, one, h.Prefix(), "topic").listen(name)
	}
	own := node.Options().Addr
	other := slices.DeleteFunc(c.Addrs(), func(addr string) bool { return addr == own })[0]
	listen("far", other)
	near, last := listen("near", own), listen("last", own)
	h.wait("far", "near", "last")
	h.Put("+0", "a")
	require.Equal(t, []string{"last"}, h.waiting())
	require.Equal(t, []string{"topic"}, near.heard())
	require.Empty(t, last.heard())
}
