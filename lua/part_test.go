package lua_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// answers gives the values of a reply that a call has made without an error, from the third one on.
func answers(t *testing.T, r script.Reply, err error) []any {
	t.Helper()
	require.NoError(t, err)
	require.Equal(t, "ok", r.Status())
	require.Positive(t, r.Now())
	return r[2:]
}

func TestPartitionSetsTheMap(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ask := func(r script.Reply, err error) []any { t.Helper(); return answers(t, r, err) }
		require.Equal(t, []any{"", "0", ""}, ask(h.TryMap()))
		bell := h.listen("")
		require.Equal(t, []any{"made", "0:1 1:12", "0", "1"}, ask(h.TryPartition("", "0:1 1:12", "0")))
		require.Equal(t, []string{"parts 0 5 topic"}, bell.heard())
		require.Equal(t, []any{"0:1 1:12", "1", ""}, ask(h.TryMap()))
		require.Equal(t, map[string]string{"map": "0:1 1:12", "last": "1"}, h.RDB.HGetAll(t.Context(), h.Keys.Parts).Val())

		require.Equal(t, []any{"other", "0:1 1:12", "0", "1"}, ask(h.TryPartition("", "0:1 1:6", "0")))
		require.Equal(t, []any{"other", "0:1 1:12", "0", "1"}, ask(h.TryPartition("0:1 1:1", "0:1 1:1 2:6", "")))
		require.Empty(t, bell.heard())
		require.Equal(t, []any{"made", "0:1 1:12 7:3k", "0", "7"}, ask(h.TryPartition("0:1 1:12", "0:1 1:12 7:3k", "")))
		require.Equal(t, []any{"made", "0:1", "0", "7"}, ask(h.TryPartition("0:1 1:12 7:3k", "0:1", "")), "numbers are never used again")
	})
}

// settings are the calls of operators that change what a topic is set to, and those that change
// nothing. A call of partition that has read the settings before is refused after the former.
var partSettings = map[string]func(h *Hand) error{
	"pause":          func(h *Hand) error { return just(h.TryPause("pause", "me", 0)) },
	"resume":         func(h *Hand) error { return just(h.TryPause("resume", "other", 0)) },
	"hold":           func(h *Hand) error { return just(h.TryHold(time.Hour)) },
	"end hold":       func(h *Hand) error { return just(h.TryHold(0)) },
	"limits":         func(h *Hand) error { return just(h.tryLimits(delayq.Limits{Running: 3})) },
	"key limits":     func(h *Hand) error { return just(h.tryRule("k", "3")) },
	"no key limits":  func(h *Hand) error { return just(h.tryRule("ruled", "")) },
	"key hold":       func(h *Hand) error { return just(h.TryKeyHold("k", 3600000, 10)) },
	"key resumed":    func(h *Hand) error { return just(h.TryKeyHold("held", 0, 10)) },
	"nothing resume": func(h *Hand) error { return just(h.TryKeyHold("k", 0, 10)) },
	"nothing full":   func(h *Hand) error { return just(h.TryKeyHold("k", 3600000, 1)) },
	"nothing ruled":  func(h *Hand) error { return just(h.tryRule("k", "")) },
	"nothing shared": func(h *Hand) error { return just(h.TryShare("9 0 0 0 0 0", "", "share")) },
}

func (h *Hand) tryRule(key, rule string) (script.Reply, error) {
	return h.Run(script.KeyLimits, h.Series.Next(), key, rule, 10, script.ControlChannel(h.Prefix()), h.Keys.Topic)
}

func TestPartitionNeedsTheSettingsThatWereRead(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		other := NewHand(t, h.RDB, h.Prefix(), "fresh")
		require.NoError(t, errorsOf(partSettings["nothing resume"](other), just(other.TryHold(0)), just(other.TryPause("resume all", "", 0))))
		require.Zero(t, h.RDB.Exists(t.Context(), other.Keys.Meta).Val(), "there was nothing to change")
		for name, set := range partSettings {
			h := NewHand(t, h.RDB, h.Prefix(), name)
			require.NoError(t, just(h.tryClaim("", 0)))
			require.NoError(t, errorsOf(just(h.TryPause("pause", "other", 0)), just(h.TryHold(time.Minute)), just(h.tryRule("ruled", "2")), just(h.TryKeyHold("held", 60000, 10))))
			r, err := h.TryPartition("none", "1:1", "")
			require.NoError(t, err)
			read := r.Text(4)
			require.Equal(t, "4", read, name)
			require.NoError(t, set(h), name)
			want := []any{"made", "0:1 1:2", read, "1"}
			if !strings.HasPrefix(name, "nothing") {
				want = []any{"changed", "", "5", "1"}
				require.NoError(t, just(h.Last()), "sent again, it counts once")
			}
			r, err = h.TryPartition("", "0:1 1:2", read)
			require.Equal(t, want, answers(t, r, err), name)
		}
	})
}

func errorsOf(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

// Handlers hold topics and keys too, and servers set shares. That is nothing that was set for the
// topic.
func TestPartitionMindsNoHandlers(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		row := settle.Row{Verb: settle.Hold, Delay: time.Hour, Err: errTest}
		require.NoError(t, just(h.Settle(h.Take(1, time.Hour), row)))
		require.Equal(t, map[string]string{"hold": "", "holdby": "", "holdwhy": ""}, blank(h.RDB.HGetAll(t.Context(), h.Keys.Meta).Val()))
	})
}

func blank(fields map[string]string) map[string]string {
	for name := range fields {
		fields[name] = ""
	}
	return fields
}

// A place gets its share of the limits of all. If the number of places changes, it gets another
// one, unless somebody has set the limits since they were read.
func TestPartSharesOfLimits(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.NoError(t, just(h.tryClaim("", 0))) // from now on, settings are counted
		const whole, half, third = "6 0 0 0 0 0", "3 0 0 0 0 0", "2 0 0 0 0 0"
		share := func(flow, shared, verb string) string {
			t.Helper()
			r, err := h.TryShare(flow, shared, verb)
			return answers(t, r, err)[0].(string)
		}
		is := func(flow, shared any) {
			t.Helper()
			require.Equal(t, []any{flow, shared}, h.RDB.HMGet(t.Context(), h.Keys.Meta, "flow", "shared").Val())
		}
		require.Empty(t, share(half, whole, "share"), "it has none yet")
		is(half, whole)
		require.Equal(t, whole, share(third, whole, "share"))
		is(third, whole)
		require.Equal(t, whole, share("4 0 0 0 0 0", "8 0 0 0 0 0", "share"), "they were set meanwhile")
		is(third, whole)
		require.Equal(t, whole, share(whole, "", "share"), "it is the only place")
		is(whole, nil)
		require.Equal(t, whole, share(half, whole, "share"))
		require.Equal(t, whole, share("4 0 0 0 0 0", "8 0 0 0 0 0", "set"))
		is("4 0 0 0 0 0", "8 0 0 0 0 0")
		require.Equal(t, "8 0 0 0 0 0", share("0 0 0 0 0 0", "", "set"))
		is("0 0 0 0 0 0", nil)
		require.Equal(t, "2", h.RDB.HGet(t.Context(), h.Keys.Meta, "changes").Val())
	})
}

// A server gives a place its share only if nobody has set limits since it has read them.
func TestPartShare(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		require.NoError(t, just(h.tryClaim("", 0))) // from now on, settings are counted
		const whole, half, third = "6 0 0 0 0 0", "3 0 0 0 0 0", "2 0 0 0 0 0"
		give := func(done int64, had ...string) {
			t.Helper()
			r, err := h.TryDivide(had[0], had[1], had[2], had[3])
			require.Equal(t, []any{done}, answers(t, r, err))
		}
		is := func(flow, shared any) {
			t.Helper()
			require.Equal(t, []any{flow, shared}, h.RDB.HMGet(t.Context(), h.Keys.Meta, "flow", "shared").Val())
		}
		bell := h.listen("")
		give(0, whole, "", half, whole)
		is(nil, nil)
		require.Empty(t, bell.heard())
		give(1, "", "", half, whole)
		is(half, whole)
		require.Equal(t, []string{"resume 0 5 topic"}, bell.heard())
		require.Equal(t, "1", h.RDB.HGet(t.Context(), h.Keys.Sizes, "limits").Val())
		give(0, "", "", third, whole)
		give(1, half, whole, third, whole)
		is(third, whole)
		give(1, third, whole, whole, "")
		is(whole, whole)

		require.NoError(t, just(h.TryShare("8 0 0 0 0 0", "", "set"))) // by a client that knows no partitions
		give(0, whole, whole, half, whole)
		is("8 0 0 0 0 0", nil)
		require.Equal(t, "1", h.RDB.HGet(t.Context(), h.Keys.Meta, "changes").Val(), "a server has set nothing")
	})
}

func TestPartClose(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.entomb("closed")
		before := h.RDB.ZScore(t.Context(), h.Keys.Tombs, "closed").Val()
		require.True(t, h.Close())
		r, err := h.Last()
		require.Equal(t, []any{int64(1)}, answers(t, r, err), "it was open when it was asked first")
		require.False(t, h.Close())
		require.Equal(t, []redis.Z{{Score: before, Member: "closed"}}, h.RDB.ZRangeByScoreWithScores(t.Context(), h.Keys.Tombs, &redis.ZRangeBy{Min: "-inf", Max: "9999999999999"}).Val())
		require.EqualValues(t, 2, h.RDB.ZCard(t.Context(), h.Keys.Tombs).Val())
	})
}

// Each of these keeps a place from being retired.
func TestPartEmpty(t *testing.T) {
	for what, lay := range map[string]func(h *Hand){
		"scheduled": func(h *Hand) { h.Put("+3600000", "a") },
		"ready":     func(h *Hand) { h.Put("+0", "a") },
		"dead": func(h *Hand) {
			h.Put("+0", "a")
			require.Equal(h.T, "o", h.Bury(h.Take(1, time.Minute)...))
		},
		"done": func(h *Hand) {
			head, tail := h.Record("+0", 3_600_000)
			require.NoError(h.T, just(h.TrySend(false, []any{"a", head, tail, "+0"})))
			require.Equal(h.T, "o", h.Ack(h.Take(1, time.Minute)...))
		},
		"tomb":      func(h *Hand) { h.entomb("a") },
		"successor": func(h *Hand) { h.layField(h.Keys.Next) },
		"parcel":    func(h *Hand) { h.RDB.ZAdd(h.T.Context(), h.Keys.Parcels, redis.Z{Member: "a"}) },
		"flow":      func(h *Hand) { h.layField(h.Keys.Flows) },
		"step":      func(h *Hand) { h.layField(h.Keys.Steps) },
		"note":      func(h *Hand) { h.layField(h.Keys.Notes) },
		"keys":      func(h *Hand) { h.RDB.ZAdd(h.T.Context(), h.Keys.Staying, redis.Z{Score: 1}) },
	} {
		t.Run(what, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				seen := func() []any { r, err := h.TryEmpty(); return answers(t, r, err)[:3] }
				require.Equal(t, []any{int64(0), int64(0), int64(0)}, seen())
				require.False(t, h.Empty(), "it is open")
				require.True(t, h.Close())
				require.Equal(t, []any{int64(1), int64(0), int64(0)}, seen())
				require.True(t, h.Empty())
				require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Tombs).Err())
				lay(h)
				unfinished := int64(0)
				if slices.Contains([]string{"scheduled", "ready", "dead"}, what) {
					unfinished = 1
				}
				require.Equal(t, []any{int64(0), unfinished, int64(1)}, seen())
				require.True(t, h.Close())
				require.Equal(t, []any{int64(1), unfinished, int64(1)}, seen())
				require.False(t, h.Empty())
			})
		})
	}
}

func (h *Hand) layField(hash string) {
	h.T.Helper()
	require.NoError(h.T, h.RDB.HSet(h.T.Context(), hash, "a", "b").Err())
}

// A running job counts with its lease, and the anchor does not.
func TestPartEmptyWithLeases(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a", "b")
		held := h.Take(2, time.Minute)
		r, err := h.TryEmpty()
		require.Equal(t, []any{int64(0), int64(2), int64(4), "", []any{}, int64(0)}, answers(t, r, err))
		require.Equal(t, "oo", h.Ack(held...))
		require.True(t, h.Close())
		require.True(t, h.Empty())
	})
}

func TestPartRetire(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const all = "0:1 1:3 2:4k 11:2"
		require.NoError(t, just(h.TryPartition("", all, "")))
		retire := func(known string, generation int, seen bool) string {
			t.Helper()
			r, err := h.TryRetire(known, generation, seen, time.Second)
			return answers(t, r, err)[0].(string)
		}
		field := func(g int) bool { return h.RDB.HExists(t.Context(), h.Keys.Parts, fmt.Sprint("empty:", g)).Val() }
		bell := h.listen("")
		require.Equal(t, all, retire(all, 1, true), "it is seen for the first time")
		require.Equal(t, all, retire(all, 1, true), "too early")
		require.True(t, field(1))
		h.HastenParts(time.Minute)
		require.Equal(t, all, retire("0:1 1:3", 1, true), "the caller knows another map")
		require.Equal(t, all, retire(all, 1, false), "something was there")
		require.False(t, field(1))
		require.Equal(t, all, retire(all, 1, true), "it begins anew")
		h.HastenParts(time.Second)
		require.Equal(t, "0:1 2:4k 11:2", retire(all, 1, true))
		require.Equal(t, []string{"parts 0 5 topic"}, bell.heard())
		require.False(t, field(1))
		r, err := h.Last()
		require.Equal(t, []any{"0:1 2:4k 11:2"}, answers(t, r, err))

		h.HastenParts(-time.Hour) // Redis's clock is set back
		for range 2 {
			require.Equal(t, "0:1 2:4k 11:2", retire("0:1 2:4k 11:2", 0, true))
			h.HastenParts(-time.Hour)
		}
		for _, gone := range []int{1, 7, 11} { // the last one stays
			require.Equal(t, "0:1 2:4k 11:2", retire("0:1 2:4k 11:2", gone, true))
			require.False(t, field(gone))
		}
		h.HastenParts(3 * time.Hour)
		require.Equal(t, "2:4k 11:2", retire("0:1 2:4k 11:2", 0, true))
		require.Equal(t, []any{"2:4k 11:2", "11"}, h.RDB.HMGet(t.Context(), h.Keys.Parts, "map", "last").Val())
		require.Len(t, bell.heard(), 1)
		require.Regexp(t, `^0:1@\d+ 1:3@\d+$`, h.past(), "by their numbers")
	})
}

func (h *Hand) past() string {
	h.T.Helper()
	r, err := h.TryMap()
	require.NoError(h.T, err)
	return r.Text(4)
}

// For 30 days, the generations that have left the map are known: at most 100.
func TestPartRetirePast(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		now := h.RDB.Time(t.Context()).Val()
		var before, want []string
		for i := range 120 {
			at := now.Add(-time.Duration(i%40) * 24 * time.Hour)
			before = append(before, fmt.Sprintf("%d:1@%d", i, at.UnixMilli()))
			if at.After(now.Add(-30 * 24 * time.Hour)) {
				want = append(want, before[i])
			}
		}
		retire := func() {
			t.Helper()
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Parts, "map", "200:3k 201:4", "empty:200", now.UnixMilli()-5000).Err())
			r, err := h.TryRetire("200:3k 201:4", 200, true, time.Second)
			require.Equal(t, []any{"201:4"}, answers(t, r, err))
		}
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Parts, "past", strings.Join(before, " ")).Err())
		retire()
		list := strings.Fields(h.past())
		require.Equal(t, want, list[:len(list)-1])
		require.Regexp(t, `^200:3k@\d{13}$`, list[len(list)-1])
		for i := range before {
			before[i] = fmt.Sprintf("%d:1@%d", i, now.UnixMilli())
		}
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Parts, "past", strings.Join(before, " ")).Err())
		retire()
		list = strings.Fields(h.past())
		require.Equal(t, before[21:], list[:99])
	})
}

// A failover can lose the latest map. Whoever knows a later one stores it again.
func TestPartRetireRestoresALostMap(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		bell := h.listen("")
		for _, lost := range []string{"", "0:1 1:3"} {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Parts, "map", lost, "last", "1").Err())
			r, err := h.TryRetire("1:3 2:4k", 1, true, 0)
			require.Equal(t, []any{"1:3 2:4k"}, answers(t, r, err))
			require.Equal(t, []any{"1:3 2:4k", "2"}, h.RDB.HMGet(t.Context(), h.Keys.Parts, "map", "last").Val())
			require.Len(t, bell.heard(), 1)
			if lost == "" {
				require.Empty(t, h.past())
			} else {
				require.Regexp(t, `^0:1@\d+$`, h.past(), "it must have left the map")
			}
			r, err = h.TryRetire("0:1 1:3", 1, true, 0)
			require.Equal(t, []any{"1:3 2:4k"}, answers(t, r, err), "that is an older one")
			require.Empty(t, bell.heard())
		}
	})
}

// tryClaim is one call of the partition script that claims a number.
func (h *Hand) tryClaim(expected string, floor int) (script.Reply, error) {
	return h.Run(script.Partition, h.Series.Next(), expected, expected, "", script.ControlChannel(h.Prefix()), h.Keys.Topic, "claim", floor)
}

// trySet is one call of the partition script by a caller that has claimed a number.
func (h *Hand) trySet(expected, next string, claimed int) (script.Reply, error) {
	return h.Run(script.Partition, h.Series.Next(), expected, next, "", script.ControlChannel(h.Prefix()), h.Keys.Topic, "set", claimed)
}

// A number is claimed once, and who has claimed one that is not the last any more sets no map.
func TestPartitionClaims(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ask := func(r script.Reply, err error) []any { t.Helper(); return answers(t, r, err) }
		bell := h.listen("")
		require.Equal(t, []any{"made", "", "0", "1"}, ask(h.tryClaim("", 0)))
		require.Equal(t, []any{"made", "", "0", "1"}, ask(h.Last()), "sent again")
		require.Equal(t, []any{"made", "", "0", "2"}, ask(h.tryClaim("", 0)))
		require.Equal(t, []any{"", "2", ""}, ask(h.TryMap()), "it has no partitions yet")
		require.Empty(t, bell.heard())
		require.Equal(t, []any{"other", "", "0", "2"}, ask(h.trySet("", "0:1 1:3", 1)))
		require.Equal(t, []any{"made", "0:1 2:3", "0", "2"}, ask(h.trySet("", "0:1 2:3", 2)))
		require.Len(t, bell.heard(), 1)
		require.Equal(t, []any{"other", "0:1 2:3", "0", "2"}, ask(h.tryClaim("", 0)))
		require.Equal(t, []any{"made", "0:1 2:3", "0", "8"}, ask(h.tryClaim("0:1 2:3", 7)))
		require.Equal(t, []any{"made", "0:1 2:3", "0", "9"}, ask(h.tryClaim("0:1 2:3", 7)))
	})
}

// A place tells its seal, the last one that it was given. If it is closed and empty, it tells its
// counters too.
func TestPartSeal(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "a")
		require.Equal(t, "o", h.Ack(h.Take(1, time.Minute)...))
		seen := func() []any { t.Helper(); r, err := h.TryEmpty(); return answers(t, r, err) }
		require.Equal(t, []any{int64(0), int64(0), int64(0), "", []any{}, int64(0)}, seen(), "it is open")
		r, err := h.TrySeal("x")
		require.Equal(t, []any{int64(1)}, answers(t, r, err), "it was open")
		got := seen()
		require.Equal(t, "x", got[3])
		require.ElementsMatch(t, []any{"enqueued", "1", "taken", "1", "acked", "1"}, got[4])
		r, err = h.TrySeal("y")
		require.Equal(t, []any{int64(0)}, answers(t, r, err))
		require.False(t, h.Close())
		require.Equal(t, "y", seen()[3])
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Tombs, redis.Z{Score: 9e12, Member: "a"}).Err())
		require.Equal(t, []any{int64(1), int64(0), int64(1), "y", []any{}, int64(0)}, seen(), "counters are told of empty places")
		require.Equal(t, map[string]string{"seal": "y"}, h.RDB.HGetAll(t.Context(), h.Keys.Parts).Val())
	})
}

// A generation whose seal is another one than at the first look has been open in between, and it
// begins anew. When it leaves the map, its counters are added to those of the home, once.
func TestPartRetireSealed(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const all = "0:1 1:3 2:4k"
		require.NoError(t, just(h.TryPartition("", all, "")))
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Stats, "acked", 5).Err())
		leave := func(expected, seal string) string {
			t.Helper()
			r, err := h.TryLeave(expected, 1, true, time.Second, seal, "acked 7 buried 2")
			return answers(t, r, err)[0].(string)
		}
		for _, seal := range []string{"a", "b", ""} {
			require.Equal(t, all, leave(all, seal), "%q is new", seal)
			h.HastenParts(time.Hour)
		}
		require.Equal(t, all, leave(all, "c"))
		require.Equal(t, map[string]string{"acked": "5"}, h.RDB.HGetAll(t.Context(), h.Keys.Stats).Val())
		h.HastenParts(time.Hour)
		require.Equal(t, "0:1 2:4k", leave(all, "c"))
		added := map[string]string{"acked": "12", "buried": "2"}
		require.Equal(t, added, h.RDB.HGetAll(t.Context(), h.Keys.Stats).Val())
		require.NoError(t, just(h.Last()), "the reply was lost")
		other := NewHand(t, h.RDB, h.Prefix(), "topic")
		for _, expected := range []string{all, "0:1 2:4k"} {
			for range 2 {
				r, err := other.TryLeave(expected, 1, true, time.Second, "c", "acked 7 buried 2")
				require.Equal(t, []any{"0:1 2:4k"}, answers(t, r, err))
				h.HastenParts(time.Hour)
			}
		}
		require.Equal(t, added, h.RDB.HGetAll(t.Context(), h.Keys.Stats).Val())
		require.ElementsMatch(t, []string{"map", "last", "past"}, h.RDB.HKeys(t.Context(), h.Keys.Parts).Val())
	})
}

// partCalls are the calls of the scripts about partitions.
var partCalls = map[string]func(h *Hand) (script.Reply, error){
	"partition":  func(h *Hand) (script.Reply, error) { return h.TryPartition("0:1 1:3", "0:1 1:3 2:2", "0") },
	"part_map":   func(h *Hand) (script.Reply, error) { return h.TryMap() },
	"part_close": func(h *Hand) (script.Reply, error) { return h.TryClose() },
	"part_empty": func(h *Hand) (script.Reply, error) { return h.TryEmpty() },
	"part_retire": func(h *Hand) (script.Reply, error) {
		return h.TryRetire("0:1 1:3", 0, true, 0)
	},
	"part_share": func(h *Hand) (script.Reply, error) { return h.TryDivide("", "", "3 0 0 0 0 0", "9 0 0 0 0 0") },
	"part_close by key": func(h *Hand) (script.Reply, error) {
		return h.Run(script.PartClose, h.Series.Next(), "", 1)
	},
	"part_keys":         func(h *Hand) (script.Reply, error) { return h.Run(script.PartKeys, 100) },
	"part_close sealed": func(h *Hand) (script.Reply, error) { return h.TrySeal("seal") },
	"partition claims":  func(h *Hand) (script.Reply, error) { return h.tryClaim("0:1 1:3", 7) },
}

func TestPartScriptsSentTwice(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, call := range partCalls {
			t.Run(name, func(t *testing.T) {
				name, _, _ := strings.Cut(name, " ")
				h := NewHand(t, rdb, redistest.Prefix(t), "topic")
				require.NoError(t, just(h.TryPartition("", "0:1 1:3", "")))
				first, err := call(h)
				require.NoError(t, err)
				again, other := h.Last, NewHand(t, rdb, h.Prefix(), "topic")
				for _, between := range []func(){
					func() {},
					func() {
						if !script.All[slices.IndexFunc(script.All, func(s *script.Script) bool { return s.Name == name })].Reads && name != "part_empty" && name != "part_share" && name != "part_keys" {
							other.Close()
							require.NoError(t, errorsOf(just(other.TryRetire(other.Map(), 0, true, 0)), just(other.TryRetire(other.Map(), 0, true, 0))))
						}
					},
				} {
					between()
					before := redistest.Dump(t, rdb, h.Prefix())
					got, err := again()
					require.NoError(t, err)
					require.Equal(t, first[2:], got[2:])
					require.Equal(t, before, redistest.Dump(t, rdb, h.Prefix()))
				}
			})
		}
	})
}

// A key of a wrong type causes an error before anything is written.
func TestPartScriptsMeetAWrongType(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		for name, call := range partCalls {
			file, _, _ := strings.Cut(name, " ")
			for _, key := range keysIn(t, file) {
				if key == "operator" {
					continue
				}
				t.Run(name+" "+key, func(t *testing.T) {
					h := NewHand(t, rdb, redistest.Prefix(t), "topic")
					require.NoError(t, just(h.TryPartition("", "0:1 1:3", "")))
					mend := h.Deface(key)
					before := redistest.Dump(t, rdb, h.Prefix())
					_, err := call(h)
					require.ErrorContains(t, err, "WRONGTYPE")
					require.ErrorContains(t, err, h.Key(key))
					require.Equal(t, before, redistest.Dump(t, rdb, h.Prefix()))
					mend()
					_, err = call(h)
					require.NoError(t, err)
				})
			}
		}
	})
}

// At maxmemory, a topic can be divided, closed and retired.
func TestPartScriptsAtMaxmemory(t *testing.T) {
	t.Parallel()
	rs := redistest.Start(t)
	rdb := rs.Client(t)
	for name, call := range partCalls {
		h := NewHand(t, rdb, redistest.Prefix(t), name)
		require.NoError(t, just(h.TryPartition("", "0:1 1:3", "")))
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
		require.NoError(t, just(call(h)), name)
		require.NoError(t, rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
	}
}
