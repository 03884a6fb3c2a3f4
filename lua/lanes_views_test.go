package lua_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/redistest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// lay puts a keyed job into Redis, as the protocol has it: its record and its place. Where it goes
// beside that is the test's.
func (h *Hand) lay(key, id string, due int64, number int) (place string) {
	h.T.Helper()
	ctx := context.Background()
	head, tail := h.keyedRecord("+0", key, 0)
	raw := record.Join(head, due, tail)
	place = string([]byte{byte(len(key))}) + key + fmt.Sprintf("%011x%010x80000000", due, number) + raw[:record.NonceLen]
	require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Pool, id, raw).Err())
	require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Keyed, id, place).Err())
	require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Meta, "number", number).Err())
	return place
}

// layReady is lay of ready jobs.
func (h *Hand) layReady(key string, ids ...string) {
	h.T.Helper()
	now := time.Now().UnixMilli() - 60_000
	for i, id := range ids {
		place := h.lay(key, id, now+int64(i), i+1)
		require.NoError(h.T, h.RDB.ZAdd(context.Background(), h.Keys.Lane, redis.Z{Member: place + id}).Err())
	}
	require.NoError(h.T, h.RDB.ZAddNX(context.Background(), h.Keys.Turn, redis.Z{Score: 7, Member: key}).Err())
}

// layWard is a ward with keyed jobs in every state.
func layWard(h *Hand) (states map[string]delayq.State) {
	h.T.Helper()
	ctx, now := context.Background(), time.Now().UnixMilli()
	states = ward(h)
	h.layReady("a", "a-1", "a-2", "a-3")
	h.layReady("bb", "bb-1", "bb-2")
	for id, zset := range map[string]struct {
		key   string
		score int64
		state delayq.State
	}{
		"b-later": {h.Keys.Bucket, now + 3_600_000, delayq.StateScheduled},
		"b-run":   {h.Keys.Leases, now + 3_600_000, delayq.StateRunning},
		"b-dead":  {h.Keys.Dead, now, delayq.StateDead},
	} {
		h.lay("b", id, now+3_600_000, 9)
		require.NoError(h.T, h.RDB.ZAdd(ctx, zset.key, redis.Z{Score: float64(zset.score), Member: id}).Err())
		states[id] = zset.state
	}
	require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Errors, "b-dead", record.Netstring(hand.Failed)).Err())
	require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Attempts, "b-dead", "1").Err())
	for _, id := range []string{"a-1", "a-2", "a-3", "bb-1", "bb-2"} {
		states[id] = delayq.StateReady
	}
	require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Rules, "a", "3").Err())
	return states
}

// lanesOf gives what a topic holds of lanes: its entries, the keys in turn, and the places of jobs.
func (h *Hand) lanesOf() (entries, turns []string, keyed map[string]string) {
	h.T.Helper()
	ctx := context.Background()
	entries, err := h.RDB.ZRange(ctx, h.Keys.Lane, 0, -1).Result()
	require.NoError(h.T, err)
	turns, err = h.RDB.ZRange(ctx, h.Keys.Turn, 0, -1).Result()
	require.NoError(h.T, err)
	keyed, err = h.RDB.HGetAll(ctx, h.Keys.Keyed).Result()
	require.NoError(h.T, err)
	slices.Sort(turns)
	return entries, turns, keyed
}

// Each key of lanes is deleted in turn. A check says what is wrong and writes nothing; with repair
// every job is in its lane again, each key has its turn, and then nothing is wrong.
func TestCheckAfterTheLossOfALane(t *testing.T) {
	waiting := []string{"a-1", "a-2", "a-3", "bb-1", "bb-2"}
	of := func(key string, ids ...string) (list []string) {
		for _, id := range ids {
			list = append(list, key+" "+id)
		}
		return list
	}
	for name, want := range map[string]struct {
		lost  []string
		found map[delayq.FindingKind][]string
	}{
		"nothing": {},
		"lane":    {[]string{"lane"}, map[delayq.FindingKind][]string{delayq.FindingNoPlace: of("pool", waiting...)}},
		"turn":    {[]string{"turn"}, map[delayq.FindingKind][]string{delayq.FindingNoTurn: of("turn", "a", "bb")}},
		"keyed": {[]string{"keyed"}, map[delayq.FindingKind][]string{
			delayq.FindingNoLane: of("keyed", "a-1", "a-2", "a-3", "b-later", "b-run", "bb-1", "bb-2"),
		}},
		"rules":         {[]string{"rules"}, nil},
		"lane and turn": {[]string{"lane", "turn"}, map[delayq.FindingKind][]string{delayq.FindingNoPlace: of("pool", waiting...)}},
		"all": {[]string{"lane", "turn", "keyed"}, map[delayq.FindingKind][]string{
			delayq.FindingNoPlace: of("pool", waiting...), delayq.FindingNoLane: of("keyed", "b-later", "b-run"),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				states := layWard(h)
				entries, turns, keyed := h.lanesOf()
				for _, key := range want.lost {
					require.NoError(t, h.RDB.Del(t.Context(), h.Key(key)).Err())
				}
				if want.found == nil {
					want.found = map[delayq.FindingKind][]string{}
				}
				before := redistest.Dump(t, h.RDB, h.Prefix())
				found, _ := h.look(false)
				require.Equal(t, want.found, found)
				require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), "without repair nothing is written")

				found, mended := h.look(true)
				require.Equal(t, want.found, found)
				total := 0
				for _, list := range found {
					total += len(list)
				}
				require.Equal(t, total, mended)
				found, _ = h.look(true)
				require.Empty(t, found, "the second time")

				nowEntries, nowTurns, nowKeyed := h.lanesOf()
				require.Equal(t, turns, nowTurns)
				if !slices.Contains(want.lost, "keyed") || !slices.Contains(want.lost, "lane") {
					require.Equal(t, entries, nowEntries)
				}
				order := func(entries []string) (ids []string) {
					for _, entry := range entries {
						_, _, _, id := cutPlace(t, entry)
						ids = append(ids, id)
					}
					return ids
				}
				require.ElementsMatch(t, order(entries), order(nowEntries))
				for id, place := range keyed {
					key, _, nonce, _ := cutPlace(t, place+id)
					if id == "b-dead" && slices.Contains(want.lost, "keyed") {
						continue
					}
					nowKey, _, nowNonce, _ := cutPlace(t, nowKeyed[id]+id)
					require.Equal(t, []string{key, nonce}, []string{nowKey, nowNonce}, id)
				}
				for id, state := range states {
					require.Equal(t, state, h.info(id).State, id)
				}
			})
		})
	}
}

// What is wrong in a key of lanes is found and removed, and the rest is left as it is.
func TestCheckOfDamagedLanes(t *testing.T) {
	former := "\x01a" + fmt.Sprintf("%011x%010x80000000", 1, 1) + "nonce--8"
	for name, c := range map[string]struct {
		harm  func(ctx context.Context, h *Hand) error
		found map[delayq.FindingKind][]string
		left  int // findings that remain
	}{
		"an entry of no job": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.ZAdd(ctx, h.Keys.Lane, redis.Z{Member: former + "gone"}).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingNoRecord: {"lane gone"}}, 0,
		},
		"an entry of a former job": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.ZAdd(ctx, h.Keys.Lane, redis.Z{Member: former + "a-1"}).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingOrphan: {"lane a-1"}}, 0,
		},
		"an entry of a plain job": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.ZAdd(ctx, h.Keys.Lane, redis.Z{Member: former + "ready"}).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingOrphan: {"lane ready"}}, 0,
		},
		"malformed entries": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.ZAdd(ctx, h.Keys.Lane, redis.Z{Member: "x"}, redis.Z{Member: ""}, redis.Z{Member: "\xff" + former}).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"lane ", "lane x", "lane \xff" + former}}, 0,
		},
		"two entries of one job": {
			func(ctx context.Context, h *Hand) error {
				place := h.RDB.HGet(ctx, h.Keys.Keyed, "a-1").Val()
				other := place[:2] + fmt.Sprintf("%011x%010x80000000", 5, 5) + place[len(place)-8:]
				return h.RDB.ZAdd(ctx, h.Keys.Lane, redis.Z{Member: other + "a-1"}).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingTwoPlaces: {"lane a-1"}}, 0,
		},
		"an entry of a scheduled job": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.ZAdd(ctx, h.Keys.Lane, redis.Z{Member: h.RDB.HGet(ctx, h.Keys.Keyed, "b-later").Val() + "b-later"}).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingTwoPlaces: {"lane b-later"}, delayq.FindingNoTurn: {"turn b"}}, 0,
		},
		"a place of no job": {
			func(ctx context.Context, h *Hand) error { return h.RDB.HSet(ctx, h.Keys.Keyed, "gone", former).Err() },
			map[delayq.FindingKind][]string{delayq.FindingOrphan: {"keyed gone"}}, 0,
		},
		"a place of a plain job": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.HSet(ctx, h.Keys.Keyed, "scheduled", former).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingOrphan: {"keyed scheduled"}}, 0,
		},
		"a place of a former job": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.HSet(ctx, h.Keys.Keyed, "b-later", former).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingNoLane: {"keyed b-later"}}, 0,
		},
		"a place of a former job of a dead one": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.HSet(ctx, h.Keys.Keyed, "b-dead", former).Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingNoLane: {"keyed b-dead"}}, 0,
		},
		"a malformed place": {
			func(ctx context.Context, h *Hand) error { return h.RDB.HSet(ctx, h.Keys.Keyed, "a-2", "junk").Err() },
			map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"keyed a-2"}, delayq.FindingNoLane: {"keyed a-2"}}, 0,
		},
		"an infinite pass": {
			func(ctx context.Context, h *Hand) error {
				return h.RDB.Do(ctx, "zadd", h.Keys.Turn, "+inf", "a", "-inf", "bb").Err()
			},
			map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"turn a", "turn bb"}, delayq.FindingNoTurn: {"turn a", "turn bb"}}, 0,
		},
		"a malformed rule": {
			func(ctx context.Context, h *Hand) error { return h.RDB.HSet(ctx, h.Keys.Rules, "bb", "junk").Err() },
			map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"rules bb"}}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				states := layWard(h)
				entries, turns, keyed := h.lanesOf()
				require.NoError(t, c.harm(t.Context(), h))
				before := redistest.Dump(t, h.RDB, h.Prefix())
				found, _ := h.look(false)
				want := maps.Clone(c.found)
				switch name {
				case "a malformed place": // the entry in lane repairs it, once it is removed
					want = map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"keyed a-2"}, delayq.FindingNoLane: {"keyed a-2"}}
				case "an infinite pass":
					delete(want, delayq.FindingNoTurn) // it is there still
				}
				require.Equal(t, want, found)
				require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), "without repair nothing is written")
				found, _ = h.look(true)
				require.Equal(t, c.found, found)
				found, _ = h.look(true)
				require.Empty(t, found, "the second time")
				nowEntries, nowTurns, nowKeyed := h.lanesOf()
				require.Equal(t, entries, nowEntries)
				require.Subset(t, nowTurns, turns)
				if !strings.HasPrefix(name, "a place of a former job") {
					require.Equal(t, keyed, nowKeyed)
				}
				for id, state := range states {
					require.Equal(t, state, h.info(id).State, id)
				}
			})
		})
	}
}

// A key of lanes of a wrong type is a finding, and what does not need it is looked at all the same.
func TestCheckBesideALaneOfAWrongType(t *testing.T) {
	for _, name := range []string{"keyed", "lane", "turn", "rules"} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				layWard(h)
				h.Deface(name)
				require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Attempts, "nobody", "1").Err())
				before := redistest.Dump(t, h.RDB, h.Prefix())
				want := map[delayq.FindingKind][]string{delayq.FindingWrongType: {name + " "}, delayq.FindingOrphan: {"attempts nobody"}}
				found, _ := h.look(false)
				require.Equal(t, want, found)
				require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
				found, mended := h.look(true)
				require.Equal(t, want, found)
				require.Equal(t, 1, mended)
			})
		})
	}
}

// When the last job without a key is gone, whatever has become of it, Explain no longer counts
// those jobs among the keys that take turns. That is so before the next take has noticed it.
func TestExplainCountsKeysThatHaveJobs(t *testing.T) {
	for name, end := range map[string]func(h *Hand) (script.Reply, error){
		"cancel":     func(h *Hand) (script.Reply, error) { return h.TryCancel("p2") },
		"bury":       func(h *Hand) (script.Reply, error) { return h.TryBury("p2") },
		"reschedule": func(h *Hand) (script.Reply, error) { return h.TryReschedule("p2", "+3600000") },
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.Put("+0", "p1", "p2")
				h.putKeyed("a", "a1", "a2")
				require.Len(t, h.Take(2, time.Minute), 2)
				keys := func() (n int64) {
					e, err := h.client().insp.Explain(t.Context(), "topic", "a2")
					require.NoError(t, err)
					for _, r := range e.Reasons {
						n += r.Keys
					}
					return n
				}
				require.EqualValues(t, 2, keys())
				_, err := end(h)
				require.NoError(t, err)
				require.Zero(t, keys(), "it is the next one")
			})
		})
	}
}

// prune counts the jobs of lanes as jobs with a place: a backlog of keyed jobs is no loss.
func TestPruneCountsLanes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.layReady("a", hand.Numbered("a", 300)...)
		h.layReady("b", hand.Numbered("b", 20)...)
		missing := func() int64 {
			r, err := h.TryPrune(100, time.Hour, 500)
			require.NoError(t, err)
			require.Equal(t, "-", h.sameMarks(script.Survey, h.Keys).Text(2))
			return r.Number(4)
		}
		require.Zero(t, missing())
		require.NoError(t, h.RDB.ZRemRangeByRank(t.Context(), h.Keys.Lane, 0, 2).Err())
		r, err := h.TryPrune(100, time.Hour, 500)
		require.NoError(t, err)
		require.EqualValues(t, 3, r.Number(4), "those are lost")
		require.Equal(t, "x", h.sameMarks(script.Survey, h.Keys).Text(2))
	})
}

// Keys returns each key once, page by page, whatever bytes it has.
func TestInspectorKeys(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		insp := h.client().insp
		list, err := insp.Keys(t.Context(), "topic", "", 10)
		require.NoError(t, err)
		require.Empty(t, list)
		want := map[string]int{}
		keys := []string{"a", "aa", "ab", "b", "\x00", "\xff", "g", strings.Repeat("k", 255), strings.Repeat("\xff", 255), "0000"}
		for i, key := range keys {
			want[key] = i + 1
			h.layReady(key, hand.Numbered("of "+strconv.Itoa(i), i+1)...)
		}
		require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Rules, "ab", "5").Err())
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Lane, redis.Z{Member: "malformed"}).Err())
		for _, limit := range []int{1, 3, 1000} {
			got, after := map[string]int{}, ""
			var order []string
			for {
				list, err := insp.Keys(t.Context(), "topic", after, limit)
				require.NoError(t, err)
				for _, k := range list {
					got[k.Key] += int(k.Waiting)
					order = append(order, k.Key)
					i := slices.Index(keys, k.Key)
					require.Equal(t, hand.Numbered("of "+strconv.Itoa(i), 1)[0], k.First)
					require.Equal(t, map[bool]int{true: 5, false: 1}[k.Key == "ab"], k.Weight)
					after = k.Key
				}
				if len(list) < limit {
					break
				}
			}
			require.Equal(t, want, got)
			require.True(t, slices.IsSortedFunc(order, func(a, b string) int {
				if len(a) != len(b) {
					return len(a) - len(b)
				}
				return strings.Compare(a, b)
			}))
		}
		for _, limit := range []int{0, -1, 1001} {
			_, err := insp.Keys(t.Context(), "topic", "", limit)
			require.ErrorIs(t, err, delayq.ErrInvalid)
			require.ErrorContains(t, err, "must be from 1 to 1000")
		}
		_, err = insp.Keys(t.Context(), "topic", strings.Repeat("k", 256), 1)
		require.ErrorIs(t, err, delayq.ErrInvalid)
	})
}

// Pages of ready jobs have those of ready first and then those of lanes, each once, in both
// directions and with every size of a page.
func TestPagesOfLanes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		plain, a, bb := hand.Numbered("plain", 7), hand.Numbered("a", 5), hand.Numbered("bb", 6)
		h.Put("+0", plain...)
		h.layReady("bb", bb...)
		h.layReady("a", a...)
		h.Push(h.Keys.Ready, a[0], a[3]) // a wake-up of an old server; they are listed once
		require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Lane, redis.Z{Member: "\x01a" + strings.Repeat("0", 37) + a[1]}).Err())
		insp := h.client().insp
		walk := func(q delayq.Query) (ids []string) {
			q.Topic, q.State = "topic", delayq.StateReady
			for {
				page, err := insp.Jobs(t.Context(), q)
				require.NoError(t, err)
				require.EqualValues(t, len(plain)+len(a)+len(bb), page.Total)
				for _, info := range page.Jobs {
					ids = append(ids, info.ID)
				}
				if q.Cursor = page.Next; q.Cursor == "" {
					return ids
				}
			}
		}
		want := slices.Concat(plain, a, bb)
		for _, limit := range []int{1, 2, 5, 7, 8, 100} {
			require.Equal(t, want, walk(delayq.Query{Limit: limit}), limit)
			back := walk(delayq.Query{Limit: limit, Latest: true})
			slices.Reverse(back)
			require.Equal(t, want, back, limit)
			require.Equal(t, a, walk(delayq.Query{Limit: limit, IDPrefix: "a0"}))
			require.Equal(t, bb, walk(delayq.Query{Limit: limit, Key: "bb"}))
			require.Empty(t, walk(delayq.Query{Limit: limit, Key: "b"}))
		}
	})
}
