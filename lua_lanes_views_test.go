package delayq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/script"
)

// lay puts a keyed job into Redis, as the protocol has it: its record and its place. Where it goes
// beside that is the test's.
func (h *Hand) lay(key, id string, due int64, number int) (place string) {
	h.t.Helper()
	ctx := context.Background()
	head, tail := h.keyedRecord("+0", key, 0)
	raw := record.Join(head, due, tail)
	place = string([]byte{byte(len(key))}) + key + fmt.Sprintf("%011x%010x80000000", due, number) + raw[:record.NonceLen]
	require.NoError(h.t, h.rdb.HSet(ctx, h.keys.Pool, id, raw).Err())
	require.NoError(h.t, h.rdb.HSet(ctx, h.keys.Keyed, id, place).Err())
	require.NoError(h.t, h.rdb.HSet(ctx, h.keys.Meta, "number", number).Err())
	return place
}

// layReady is lay of ready jobs.
func (h *Hand) layReady(key string, ids ...string) {
	h.t.Helper()
	now := time.Now().UnixMilli() - 60_000
	for i, id := range ids {
		place := h.lay(key, id, now+int64(i), i+1)
		require.NoError(h.t, h.rdb.ZAdd(context.Background(), h.keys.Lane, redis.Z{Member: place + id}).Err())
	}
	require.NoError(h.t, h.rdb.ZAddNX(context.Background(), h.keys.Turn, redis.Z{Score: 7, Member: key}).Err())
}

// layWard is a ward with keyed jobs in every state.
func layWard(h *Hand) (states map[string]State) {
	h.t.Helper()
	ctx, now := context.Background(), time.Now().UnixMilli()
	states = ward(h)
	h.layReady("a", "a-1", "a-2", "a-3")
	h.layReady("bb", "bb-1", "bb-2")
	for id, zset := range map[string]struct {
		key   string
		score int64
		state State
	}{
		"b-later": {h.keys.Bucket, now + 3_600_000, StateScheduled},
		"b-run":   {h.keys.Leases, now + 3_600_000, StateRunning},
		"b-dead":  {h.keys.Dead, now, StateDead},
	} {
		h.lay("b", id, now+3_600_000, 9)
		require.NoError(h.t, h.rdb.ZAdd(ctx, zset.key, redis.Z{Score: float64(zset.score), Member: id}).Err())
		states[id] = zset.state
	}
	require.NoError(h.t, h.rdb.HSet(ctx, h.keys.Errors, "b-dead", record.Netstring(byHand)).Err())
	require.NoError(h.t, h.rdb.HSet(ctx, h.keys.Attempts, "b-dead", "1").Err())
	for _, id := range []string{"a-1", "a-2", "a-3", "bb-1", "bb-2"} {
		states[id] = StateReady
	}
	require.NoError(h.t, h.rdb.HSet(ctx, h.keys.Rules, "a", "3").Err())
	return states
}

// lanesOf gives what a topic holds of lanes: its entries, the keys in turn, and the places of jobs.
func (h *Hand) lanesOf() (entries, turns []string, keyed map[string]string) {
	h.t.Helper()
	ctx := context.Background()
	entries, err := h.rdb.ZRange(ctx, h.keys.Lane, 0, -1).Result()
	require.NoError(h.t, err)
	turns, err = h.rdb.ZRange(ctx, h.keys.Turn, 0, -1).Result()
	require.NoError(h.t, err)
	keyed, err = h.rdb.HGetAll(ctx, h.keys.Keyed).Result()
	require.NoError(h.t, err)
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
		found map[FindingKind][]string
	}{
		"nothing": {},
		"lane":    {[]string{"lane"}, map[FindingKind][]string{FindingNoPlace: of("pool", waiting...)}},
		"turn":    {[]string{"turn"}, map[FindingKind][]string{FindingNoTurn: of("turn", "a", "bb")}},
		"keyed": {[]string{"keyed"}, map[FindingKind][]string{
			FindingNoLane: of("keyed", "a-1", "a-2", "a-3", "b-later", "b-run", "bb-1", "bb-2"),
		}},
		"rules":         {[]string{"rules"}, nil},
		"lane and turn": {[]string{"lane", "turn"}, map[FindingKind][]string{FindingNoPlace: of("pool", waiting...)}},
		"all": {[]string{"lane", "turn", "keyed"}, map[FindingKind][]string{
			FindingNoPlace: of("pool", waiting...), FindingNoLane: of("keyed", "b-later", "b-run"),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				states := layWard(h)
				entries, turns, keyed := h.lanesOf()
				for _, key := range want.lost {
					require.NoError(t, h.rdb.Del(t.Context(), h.Key(key)).Err())
				}
				if want.found == nil {
					want.found = map[FindingKind][]string{}
				}
				before := Dump(t, h.rdb, h.prefix())
				found, _ := h.look(false)
				require.Equal(t, want.found, found)
				require.Equal(t, before, Dump(t, h.rdb, h.prefix()), "without repair nothing is written")

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
		found map[FindingKind][]string
		left  int // findings that remain
	}{
		"an entry of no job": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.ZAdd(ctx, h.keys.Lane, redis.Z{Member: former + "gone"}).Err()
			},
			map[FindingKind][]string{FindingNoRecord: {"lane gone"}}, 0,
		},
		"an entry of a former job": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.ZAdd(ctx, h.keys.Lane, redis.Z{Member: former + "a-1"}).Err()
			},
			map[FindingKind][]string{FindingOrphan: {"lane a-1"}}, 0,
		},
		"an entry of a plain job": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.ZAdd(ctx, h.keys.Lane, redis.Z{Member: former + "ready"}).Err()
			},
			map[FindingKind][]string{FindingOrphan: {"lane ready"}}, 0,
		},
		"malformed entries": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.ZAdd(ctx, h.keys.Lane, redis.Z{Member: "x"}, redis.Z{Member: ""}, redis.Z{Member: "\xff" + former}).Err()
			},
			map[FindingKind][]string{FindingUnreadable: {"lane ", "lane x", "lane \xff" + former}}, 0,
		},
		"two entries of one job": {
			func(ctx context.Context, h *Hand) error {
				place := h.rdb.HGet(ctx, h.keys.Keyed, "a-1").Val()
				other := place[:2] + fmt.Sprintf("%011x%010x80000000", 5, 5) + place[len(place)-8:]
				return h.rdb.ZAdd(ctx, h.keys.Lane, redis.Z{Member: other + "a-1"}).Err()
			},
			map[FindingKind][]string{FindingTwoPlaces: {"lane a-1"}}, 0,
		},
		"an entry of a scheduled job": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.ZAdd(ctx, h.keys.Lane, redis.Z{Member: h.rdb.HGet(ctx, h.keys.Keyed, "b-later").Val() + "b-later"}).Err()
			},
			map[FindingKind][]string{FindingTwoPlaces: {"lane b-later"}, FindingNoTurn: {"turn b"}}, 0,
		},
		"a place of no job": {
			func(ctx context.Context, h *Hand) error { return h.rdb.HSet(ctx, h.keys.Keyed, "gone", former).Err() },
			map[FindingKind][]string{FindingOrphan: {"keyed gone"}}, 0,
		},
		"a place of a plain job": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.HSet(ctx, h.keys.Keyed, "scheduled", former).Err()
			},
			map[FindingKind][]string{FindingOrphan: {"keyed scheduled"}}, 0,
		},
		"a place of a former job": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.HSet(ctx, h.keys.Keyed, "b-later", former).Err()
			},
			map[FindingKind][]string{FindingNoLane: {"keyed b-later"}}, 0,
		},
		"a place of a former job of a dead one": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.HSet(ctx, h.keys.Keyed, "b-dead", former).Err()
			},
			map[FindingKind][]string{FindingNoLane: {"keyed b-dead"}}, 0,
		},
		"a malformed place": {
			func(ctx context.Context, h *Hand) error { return h.rdb.HSet(ctx, h.keys.Keyed, "a-2", "junk").Err() },
			map[FindingKind][]string{FindingUnreadable: {"keyed a-2"}, FindingNoLane: {"keyed a-2"}}, 0,
		},
		"an infinite pass": {
			func(ctx context.Context, h *Hand) error {
				return h.rdb.Do(ctx, "zadd", h.keys.Turn, "+inf", "a", "-inf", "bb").Err()
			},
			map[FindingKind][]string{FindingUnreadable: {"turn a", "turn bb"}, FindingNoTurn: {"turn a", "turn bb"}}, 0,
		},
		"a malformed rule": {
			func(ctx context.Context, h *Hand) error { return h.rdb.HSet(ctx, h.keys.Rules, "bb", "junk").Err() },
			map[FindingKind][]string{FindingUnreadable: {"rules bb"}}, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				states := layWard(h)
				entries, turns, keyed := h.lanesOf()
				require.NoError(t, c.harm(t.Context(), h))
				before := Dump(t, h.rdb, h.prefix())
				found, _ := h.look(false)
				want := maps.Clone(c.found)
				switch name {
				case "a malformed place": // the entry in lane repairs it, once it is removed
					want = map[FindingKind][]string{FindingUnreadable: {"keyed a-2"}, FindingNoLane: {"keyed a-2"}}
				case "an infinite pass":
					delete(want, FindingNoTurn) // it is there still
				}
				require.Equal(t, want, found)
				require.Equal(t, before, Dump(t, h.rdb, h.prefix()), "without repair nothing is written")
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
				h.deface(name)
				require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Attempts, "nobody", "1").Err())
				before := Dump(t, h.rdb, h.prefix())
				want := map[FindingKind][]string{FindingWrongType: {name + " "}, FindingOrphan: {"attempts nobody"}}
				found, _ := h.look(false)
				require.Equal(t, want, found)
				require.Equal(t, before, Dump(t, h.rdb, h.prefix()))
				found, mended := h.look(true)
				require.Equal(t, want, found)
				require.Equal(t, 1, mended)
			})
		})
	}
}

// prune counts the jobs of lanes as jobs with a place: a backlog of keyed jobs is no loss.
func TestPruneCountsLanes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.layReady("a", numbered("a", 300)...)
		h.layReady("b", numbered("b", 20)...)
		missing := func() int64 {
			r, err := h.tryPrune(100, time.Hour, 500)
			require.NoError(t, err)
			require.Equal(t, "-", h.sameMarks(script.Survey, h.keys).Text(2))
			return r.Number(4)
		}
		require.Zero(t, missing())
		require.NoError(t, h.rdb.ZRemRangeByRank(t.Context(), h.keys.Lane, 0, 2).Err())
		r, err := h.tryPrune(100, time.Hour, 500)
		require.NoError(t, err)
		require.EqualValues(t, 3, r.Number(4), "those are lost")
		require.Equal(t, "x", h.sameMarks(script.Survey, h.keys).Text(2))
	})
}

// Keys returns each key once, page by page, whatever bytes it has.
func TestInspectorKeys(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		insp := inspectorOf(h.client())
		list, err := insp.Keys(t.Context(), "topic", "", 10)
		require.NoError(t, err)
		require.Empty(t, list)
		want := map[string]int{}
		keys := []string{"a", "aa", "ab", "b", "\x00", "\xff", "g", strings.Repeat("k", 255), strings.Repeat("\xff", 255), "0000"}
		for i, key := range keys {
			want[key] = i + 1
			h.layReady(key, numbered("of "+strconv.Itoa(i), i+1)...)
		}
		require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Rules, "ab", "5").Err())
		require.NoError(t, h.rdb.ZAdd(t.Context(), h.keys.Lane, redis.Z{Member: "malformed"}).Err())
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
					require.Equal(t, numbered("of "+strconv.Itoa(i), 1)[0], k.First)
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
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, "must be from 1 to 1000")
		}
		_, err = insp.Keys(t.Context(), "topic", strings.Repeat("k", 256), 1)
		require.ErrorIs(t, err, ErrInvalid)
	})
}

// Pages of ready jobs have those of ready first and then those of lanes, each once, in both
// directions and with every size of a page.
func TestPagesOfLanes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		plain, a, bb := numbered("plain", 7), numbered("a", 5), numbered("bb", 6)
		h.put("+0", plain...)
		h.layReady("bb", bb...)
		h.layReady("a", a...)
		h.push(h.keys.Ready, a[0], a[3]) // a wake-up of an old server; they are listed once
		require.NoError(t, h.rdb.ZAdd(t.Context(), h.keys.Lane, redis.Z{Member: "\x01a" + strings.Repeat("0", 37) + a[1]}).Err())
		insp := inspectorOf(h.client())
		walk := func(q Query) (ids []string) {
			q.Topic, q.State = "topic", StateReady
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
			require.Equal(t, want, walk(Query{Limit: limit}), limit)
			back := walk(Query{Limit: limit, Latest: true})
			slices.Reverse(back)
			require.Equal(t, want, back, limit)
			require.Equal(t, a, walk(Query{Limit: limit, IDPrefix: "a0"}))
			require.Equal(t, bb, walk(Query{Limit: limit, Key: "bb"}))
			require.Empty(t, walk(Query{Limit: limit, Key: "b"}))
		}
	})
}
