package lua_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq/internal/hand"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// Scripts about many topics, and the script by which a server ends its wait.

// anyOf are values as arguments.
func anyOf[T any](list []T, more ...any) []any {
	args := more
	for _, one := range list {
		args = append(args, one)
	}
	return args
}

// marks makes one call of watch, for the server me, or of survey, with the keys in KEYS or in ARGV.
func (h *Hand) marks(s *script.Script, declared bool, topics ...*script.Keys) (script.Reply, error) {
	h.T.Helper()
	t := h.T.(*testing.T)
	args := []any{"me"}
	if s == script.Survey {
		args = []any{2, time.Hour.Milliseconds()}
	}
	list := anyOf(rawTopics(t, s.Name, topics...))
	if declared {
		return h.Try(s, list, args...)
	}
	return h.Try(s, nil, append(args, list...)...)
}

// sameMarks is marks in both ways.
func (h *Hand) sameMarks(s *script.Script, topics ...*script.Keys) script.Reply {
	h.T.Helper()
	before := redistest.Dump(h.T, h.RDB, h.Prefix())
	declared, err := h.marks(s, true, topics...)
	require.NoError(h.T, err)
	listed, err := h.marks(s, false, topics...)
	require.NoError(h.T, err)
	require.Equal(h.T, declared.Text(len(declared)-1), listed.Text(len(listed)-1))
	require.Equal(h.T, before, redistest.Dump(h.T, h.RDB, h.Prefix()), "it only reads")
	return declared
}

// others makes Hands for more topics.
func (h *Hand) others(names ...string) (list []*Hand) {
	for _, name := range names {
		list = append(list, NewHand(h.T, h.RDB, h.Prefix(), name))
	}
	return list
}

func keysOfHands(list []*Hand) (all []*script.Keys) {
	for _, h := range list {
		all = append(all, h.Keys)
	}
	return all
}

// The watch says to take where ready exists and where the name is missing, and nowhere else.
func TestWatchTellsWhereToTake(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		states := []struct {
			want  string
			setUp func(h *Hand)
		}{
			{"t", func(*Hand) {}},
			{"-", func(h *Hand) { h.wait("me") }},
			{"t", func(h *Hand) { h.wait("another") }},
			{"-", func(h *Hand) { h.waitFor(29*time.Minute, "me") }},
			{"t", func(h *Hand) { h.waitFor(31*time.Minute, "me") }},
			{"-", func(h *Hand) { h.wait("me"); h.Put("+3600000", "later") }},
			{"t", func(h *Hand) { h.Put("+0", "a"); h.wait("me") }},
			{"t", func(h *Hand) { h.Put("+0", "a") }},
			{"p", func(h *Hand) { h.Put("+0", "a"); must(h.TryPause("pause", "x", 0)) }},
			{"p", func(h *Hand) { must(h.TryPause("pause", "x", time.Hour)) }},
			{"-", func(h *Hand) { h.wait("me"); must(h.TryPause("pause", "x", 0)) }},
			{"t", func(h *Hand) {
				require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Meta, "paused", 1, "until", 2).Err())
			}},
			{"-", func(h *Hand) { h.Deface("idle") }},
			{"t", func(h *Hand) { h.Deface("idle"); h.Put("+0", "a") }},
			{"t", func(h *Hand) { h.wait("me"); h.Deface("ready") }},
			{"t", func(h *Hand) { h.Put("+0", "a"); h.Deface("meta") }},
			{"-", func(h *Hand) { h.wait("me"); h.Deface("bucket") }},
		}
		var hands []*Hand
		want := ""
		for i, state := range states {
			one := h.others(fmt.Sprint("topic", i))[0]
			state.setUp(one)
			hands, want = append(hands, one), want+state.want
		}
		r := h.sameMarks(script.Watch, keysOfHands(hands)...)
		require.Equal(t, want, r.Text(3))
		require.Len(t, r.List(2), len(states))
		require.EqualValues(t, -1, r.List(2).Number(0))
		require.EqualValues(t, 0, r.List(2).Number(len(states)-1))

		all := anyOf(rawTopics(t, "watch", keysOfHands(hands)...))
		r, err := h.Try(script.Watch, all, "")
		require.NoError(t, err)
		require.Equal(t, strings.Repeat("-", len(states)), r.Text(3), "nobody waits")
	})
}

// Of the keys of a wrong type, those that a promote needs call for one. The others must not keep
// the timers busy: a promote does what it can beside them.
func TestWatchBesideAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		wants := map[string]int64{
			"bucket": 0, "leases": 0, "slots": 0, "handoff": 0, "waiting": 0, "parcels": 0,
			"ready": -1, "turn": -1, "idle": -1, "meta": -1, "held": -1, "parked": -1, "holders": -1,
		}
		names := slices.Sorted(maps.Keys(wants))
		hands := h.others(names...)
		require.Len(t, rawTopics(t, "watch", hands[0].Keys), len(names), "each key that the watch looks at")
		for i, name := range names {
			hands[i].Deface(name)
		}
		r := h.sameMarks(script.Watch, keysOfHands(hands)...)
		for i, name := range names {
			require.Equal(t, wants[name], r.List(2).Number(i), name)
		}
	})
}

// A ring can be passed on: one for one, or at a stop one for each job.
func TestRingIsPassedOn(t *testing.T) {
	for name, c := range map[string]struct {
		jobs, handed int
		paused       bool
		leave, rung  int
	}{
		"nothing is ready":         {0, 0, false, 0, 0},
		"nothing is ready at last": {0, 0, false, 1, 0},
		"one is woken":             {3, 0, false, 0, 1},
		"one for each job":         {2, 1, false, 1, 3},
		"for what is handed over":  {0, 1, false, 0, 1},
		"in a pause":               {3, 0, true, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.Put("+0", hand.Numbered("job", c.jobs+c.handed)...)
				for range c.handed {
					require.NoError(t, h.RDB.LMove(t.Context(), h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err())
				}
				if c.paused {
					must(h.TryPause("pause", "x", 0))
				}
				names := []string{"1", "2", "3", "4"}
				var bells []*bell
				for _, name := range names {
					bells = append(bells, h.listen(name))
				}
				h.wait(append(names, "me")...)
				own := h.listen("me")
				r, err := h.Run(script.Ring, script.ControlChannel(h.Prefix()), "topic", "me", c.leave)
				require.NoError(t, err)
				require.Equal(t, script.Reply{"ok", r.Now()}, r)
				want := slices.Clone(names[c.rung:])
				if c.leave == 0 { // the ring has removed it; then it is there by a later take
					want = append(want, "me")
				}
				require.Equal(t, want, h.waiting())
				require.Empty(t, own.heard())
				for i, bell := range bells {
					require.Equal(t, i < c.rung, len(bell.heard()) == 1)
				}
			})
		})
	}
}

// The survey names the topics in which prune would not be in vain, and prune leaves nothing of it.
func TestSurveyFindsWhatPruneHasToDo(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx, rdb := t.Context(), h.RDB
		now := rdb.Time(ctx).Val()
		bury := func(h *Hand, ids ...string) {
			h.Put("+0", ids...)
			require.NotContains(t, h.Bury(h.Take(len(ids), time.Hour)...), "l")
		}
		add := func(key string, at time.Time, member string) {
			require.NoError(t, rdb.ZAdd(ctx, key, redis.Z{Score: float64(at.UnixMilli()), Member: member}).Err())
		}
		states := map[string]struct {
			want  string
			setUp func(h *Hand)
			stays bool // prune only reports it
		}{
			"empty":           {"-", func(*Hand) {}, true},
			"jobs everywhere": {"-", func(h *Hand) { stage(h) }, true},
			"waiting":         {"-", func(h *Hand) { add(h.Keys.Idle, now.Add(-59*time.Minute), "me") }, true},
			"waiting long":    {"x", func(h *Hand) { add(h.Keys.Idle, now.Add(-61*time.Minute), "me") }, false},
			"dead":            {"-", func(h *Hand) { bury(h, "1", "2") }, true},
			"too many dead":   {"x", func(h *Hand) { bury(h, "1", "2", "3") }, false},
			"dead and old": {"x", func(h *Hand) {
				bury(h, "1")
				add(h.Keys.Dead, now.Add(-61*time.Minute), "1")
			}, false},
			"done": {"-", func(h *Hand) {
				add(h.Keys.Done, now.Add(time.Hour), "1")
				require.NoError(t, rdb.HSet(ctx, h.Keys.Results, "1", "x").Err())
			}, true},
			"done and over": {"x", func(h *Hand) {
				add(h.Keys.Done, now.Add(-time.Second), "1")
				require.NoError(t, rdb.HSet(ctx, h.Keys.Results, "1", "x").Err())
			}, false},
			"a place is missing": {"x", func(h *Hand) {
				h.Put("+0", "1")
				require.NoError(t, rdb.Del(ctx, h.Keys.Ready).Err())
			}, true},
			"a record is missing": {"x", func(h *Hand) {
				h.Put("+3600000", "1")
				require.NoError(t, rdb.Del(ctx, h.Keys.Pool).Err())
			}, true},
			"ready has left-overs": {"x", func(h *Hand) {
				h.Put("+0", "1")
				pushes := make([]any, 1010)
				for i := range pushes {
					pushes[i] = "gone"
				}
				require.NoError(t, rdb.RPush(ctx, h.Keys.Ready, pushes...).Err())
			}, false},
		}
		for _, key := range []string{"pool", "bucket", "leases", "ready", "handoff", "dead", "done", "idle", "results"} {
			states["a wrong type of "+key] = struct {
				want  string
				setUp func(h *Hand)
				stays bool
			}{"x", func(h *Hand) { h.Deface(key) }, true}
		}
		var hands []*Hand
		want, after := "", ""
		for name, state := range states {
			one := h.others(name)[0]
			state.setUp(one)
			hands, want = append(hands, one), want+state.want
			if state.stays {
				after += state.want
			} else {
				after += "-"
			}
		}
		r := h.sameMarks(script.Survey, keysOfHands(hands)...)
		require.Equal(t, want, r.Text(2), hands)
		for i, one := range hands {
			before := redistest.Dump(t, rdb, h.Prefix())
			r, err := one.TryPrune(2, time.Hour, 1000)
			require.NoError(t, err)
			if want[i] == '-' {
				require.Equal(t, before, redistest.Dump(t, rdb, h.Prefix()), "prune is in vain")
				require.Equal(t, []any{int64(0), int64(0), int64(0)}, []any(r[2:5]))
				require.Empty(t, r.List(5))
			}
		}
		require.Equal(t, after, h.sameMarks(script.Survey, keysOfHands(hands)...).Text(2))
	})
}

// Names of servers without a heartbeat are no damage.
func TestIdleNamesAreNoDamage(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.wait("nobody", "somebody")
		h.Put("+0", "a")
		h.wait("nobody", "somebody")
		found, mended := h.look(true)
		require.Empty(t, found)
		require.Zero(t, mended)
		require.Equal(t, []string{"nobody", "somebody"}, h.waiting())
	})
}

// Prune removes a bounded number of names that are older than an hour.
func TestPruneRemovesOldNames(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.waitFor(61*time.Minute, hand.Numbered("old", 5)...)
		h.waitFor(59*time.Minute, "young")
		_, err := h.TryPrune(1, time.Hour, 3)
		require.NoError(t, err)
		require.Len(t, h.waiting(), 3)
		_, err = h.TryPrune(1, time.Hour, 3)
		require.NoError(t, err)
		require.Equal(t, []string{"young"}, h.waiting())
	})
}

// Two hundred topics fit into one call.
func TestManyTopicsInACall(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		hands := h.others(hand.Numbered("topic", 200)...)
		hands[199].Put("+0", "a")
		hands[198].wait("me")
		r := h.sameMarks(script.Watch, keysOfHands(hands)...)
		require.Equal(t, strings.Repeat("t", 198)+"-t", r.Text(3))
		hands[198].waitFor(61*time.Minute, "gone")
		require.Equal(t, strings.Repeat("-", 198)+"x-", h.sameMarks(script.Survey, keysOfHands(hands)...).Text(2))
	})
}

// Each node of a Cluster answers for the topics of all its slots, and marks those of other nodes.
func TestManyTopicsOnACluster(t *testing.T) {
	t.Parallel()
	c := redistest.SharedCluster(t)
	rdb := c.Client(t)
	prefix := redistest.Prefix(t)
	hands := NewHand(t, rdb, prefix, "topic").others(hand.Numbered("topic", 30)...)
	owners := make([]string, len(hands))
	for i, h := range hands {
		h.Put("+3600000", "later")
		if i%2 == 0 {
			h.wait("me")
		}
		if i%5 == 0 {
			h.waitFor(61*time.Minute, "gone")
		}
		if i%3 == 0 {
			require.NoError(t, rdb.HSet(t.Context(), h.Keys.Pool, "lost", "x").Err())
		}
		node, err := rdb.MasterForKey(t.Context(), h.Keys.Pool)
		require.NoError(t, err)
		owners[i] = node.Options().Addr
	}
	seen := map[string]bool{}
	for _, owner := range owners {
		if seen[owner] {
			continue
		}
		seen[owner] = true
		node := redis.NewClient(&redis.Options{Addr: owner})
		t.Cleanup(func() { _ = node.Close() })
		redistest.InRoles(t, node)
		h := NewHand(t, node, prefix, "any")
		var watched, surveyed strings.Builder
		for i, of := range owners {
			mark, found := "t", "-"
			if i%2 == 0 {
				mark = "-"
			}
			if i%5 == 0 || i%3 == 0 { // a name of long ago, or a job without a place
				found = "x"
			}
			if of != owner {
				mark, found = "m", "m"
			}
			watched.WriteString(mark)
			surveyed.WriteString(found)
		}
		r, err := h.marks(script.Watch, false, keysOfHands(hands)...)
		require.NoError(t, err)
		require.Equal(t, watched.String(), r.Text(3))
		for i, of := range owners {
			require.Equal(t, of == owner, r.List(2).Number(i) > 0)
			require.Equal(t, of != owner, r.List(2).Number(i) == -1)
		}
		r, err = h.marks(script.Survey, false, keysOfHands(hands)...)
		require.NoError(t, err)
		require.Equal(t, surveyed.String(), r.Text(2))
		_, err = h.marks(script.Watch, true, keysOfHands(hands)...)
		require.Equal(t, script.CodeCrossSlot, script.Code(err), "declared, they must be of one slot: %v", err)
	}
	require.Len(t, seen, 3, "the topics are on all nodes")
}

// Where Redis takes no writes, the watch fails, and also with undeclared keys.
func TestWatchWhereRedisTakesNoWrites(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t)
	rdb := rs.Client(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	require.NoError(t, rdb.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err())
	for _, declared := range []bool{true, false} {
		_, err := h.marks(script.Watch, declared, h.Keys)
		require.ErrorContains(t, err, "NOREPLICAS")
	}
}
