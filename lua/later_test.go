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
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/serve"
	"github.com/delayq/delayq/internal/settle"
)

// later makes all jobs of a topic those of a later release: with version 7, or with 8 if they have
// a key. It returns their records, by ID.
func (h *Hand) later() map[string]string {
	h.T.Helper()
	ctx := h.T.Context()
	records := h.RDB.HGetAll(ctx, h.Keys.Pool).Val()
	for id, raw := range records {
		records[id] = ofLater(raw)
		require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Pool, id, records[id]).Err())
	}
	for id, kept := range h.RDB.HGetAll(ctx, h.Keys.Results).Val() {
		about, raw, ok := record.CutNetstring(kept)
		require.True(h.T, ok)
		require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Results, id, record.Netstring(about)+ofLater(raw)).Err())
	}
	return records
}

// ofLater is a record as a later release may write it: with more values at its end.
func ofLater(raw string) string {
	return raw[:record.NonceLen] + string(rune(raw[record.NonceLen]+6)) + raw[record.NonceLen+1:] + "\x91\x07"
}

// tolls are the counters of calls that are meant to end a job.
var tolls = []string{"acked", "again", "expired", "cancelled"}

// tolled is how many jobs calls have ended.
func (h *Hand) tolled() (n int) {
	for _, name := range tolls {
		count, _ := h.RDB.HGet(h.T.Context(), h.Keys.Stats, name).Int()
		n += count
	}
	return n
}

// No call changes a record of a later release, but for those that are meant to end the job, nor
// loses its place. A repair finds nothing after it, and changes nothing.
func TestRecordsOfLaterReleasesAreLeftAlone(t *testing.T) {
	t.Parallel()
	eachOwn(t, func(t *testing.T, rdb *redis.Client) {
		for i, d := range slices.Concat(deeds, chores) {
			what := fmt.Sprintf("%s (%d)", d.call, i)
			if d.call == "Run" && i < len(deeds) {
				continue // it waits for runs: see TestServerPutsOffJobsOfALaterRelease
			}
			h := stageFor(t, rdb, script.DefaultPrefix, "topic", d.stage)
			before, ended := h.later(), h.tolled()
			err := d.play(t, rdb, script.DefaultPrefix, "topic")
			if d.call != "Repair" && d.call != "Inspector.Check" { // which want to repair a job
				require.NoError(t, err, what)
			}
			after := h.RDB.HGetAll(t.Context(), h.Keys.Pool).Val()
			for id, raw := range before {
				if after[id] != raw && after[id] != "" {
					require.NotEqual(t, record.NonceOf(raw), record.NonceOf(after[id]), "%s: %s: the record of the same job", what, id)
				}
				if after[id] == raw {
					delete(before, id)
				}
			}
			replaced := 0
			if d.call == "Enqueue" {
				replaced = 1
			}
			require.LessOrEqual(t, len(before), h.tolled()-ended+replaced, "%s: lost %v", what, before)
			h.staysAsItIs(t, what)
		}
	})
}

// eachOwn runs a test on both backends, with a Redis of its own.
func eachOwn(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) {
		r := embedded.New()
		t.Cleanup(r.Close)
		rdb := r.Client()
		t.Cleanup(func() { _ = rdb.Close() })
		test(t, rdb)
	})
	t.Run("redis", func(t *testing.T) {
		redistest.Need(t)
		test(t, redistest.Start(t, redistest.NoRoles...).Client(t))
	})
}

// staysAsItIs makes sure that a repair changes nothing of a topic.
func (h *Hand) staysAsItIs(t *testing.T, what string) {
	t.Helper()
	was := redistest.Dump(t, h.RDB, h.Prefix())
	for range 2 {
		report, err := h.client().Repair(t.Context(), h.Keys.Topic)
		require.NoError(t, err, what)
		require.Zero(t, report.Repaired, "%s: %+v", what, report.Findings)
	}
	require.Equal(t, was, redistest.Dump(t, h.RDB, h.Prefix()), what)
}

// A job of a later release keeps its place in every state, with a key and without one. If a key is
// lost, a repair puts the job back as any other one.
func TestJobsOfALaterReleaseKeepTheirPlaces(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		states := layWard(h)
		h.later()
		entries, turns, _ := h.lanesOf()
		h.staysAsItIs(t, "a ward")
		for id, state := range states {
			require.Equal(t, state, h.info(id).State, id)
		}
		for key, kind := range map[string]delayq.FindingKind{h.Keys.Keyed: delayq.FindingNoLane, h.Keys.Turn: delayq.FindingNoTurn} {
			require.NoError(t, h.RDB.Del(t.Context(), key).Err())
			report, err := h.client().Repair(t.Context(), "topic")
			require.NoError(t, err)
			require.Equal(t, report.Repaired, report.Found[kind], "without %s: %+v", key, report.Findings)
			require.NotZero(t, report.Repaired)
			gotEntries, gotTurns, _ := h.lanesOf()
			require.Equal(t, entries, gotEntries, "without %s", key)
			require.Equal(t, turns, gotTurns, "without %s", key)
		}
		// Only the later release knows when these are due.
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Lane).Err())
		found, mended := h.look(true)
		require.Zero(t, mended)
		require.Equal(t, map[delayq.FindingKind][]string{delayq.FindingNoPlace: {"pool a-1", "pool a-2", "pool a-3", "pool bb-1", "pool bb-2"}}, found)
	})
}

// A ready job of a later release that has a key and is in ready goes to its lane, and the jobs of a
// key are taken in their order, of whatever release they are.
func TestJobsOfALaterReleaseAreTakenInTurn(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.layReady("a", "a-1", "a-2")
		h.layReady("b", "b-1")
		h.later()
		h.layReady("b", "b-2")
		require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Lane, h.RDB.HGet(t.Context(), h.Keys.Keyed, "b-1").Val()+"b-1").Err())
		h.Push(h.Keys.Ready, "b-1")
		var order []string
		for range 6 {
			for _, one := range h.Take(1, time.Hour) {
				order = append(order, one.ID)
			}
		}
		require.ElementsMatch(t, []string{"a-1", "a-2", "b-1", "b-2"}, order)
		require.Less(t, slices.Index(order, "a-1"), slices.Index(order, "a-2"))
		require.Empty(t, h.List(h.Keys.Ready))
	})
}

// A server that cannot run a job puts it off: no attempt is used up, and what its entry in moved
// says beside the time stays. If the jobs of a key run in their order, none overtakes it.
func TestJobsAreLeftToALaterRelease(t *testing.T) {
	for name, limits := range map[string]delayq.Limits{"in order": {Ordered: true}, "in any order": {}} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				ctx := t.Context()
				h.setLimits(limits)
				for _, id := range []string{"first", "second"} {
					require.NoError(t, just(h.client().Enqueue(ctx, "topic", id, nil, delayq.Key("k"))))
				}
				raw := h.later()["first"]
				for _, old := range []string{"", "1 debounce:17 3 4 1"} {
					if old != "" {
						require.NoError(t, h.RDB.HSet(ctx, h.Keys.Moved, "first", old).Err())
					}
					held := h.TakeOne("first")
					require.Equal(t, raw, held.Record)
					require.Equal(t, "o", h.Letters([]hand.Held{held}, settle.Row{Verb: settle.Snooze, Delay: time.Hour, Later: true}))
					h.Promote()
					moved := h.RDB.HGet(ctx, h.Keys.Moved, "first").Val()
					_, rest, _ := strings.Cut(moved, " ")
					require.Equal(t, map[string]string{"": "snooze 0 0 0", "1 debounce:17 3 4 1": "debounce:17 3 4 1"}[old], rest)
					require.Equal(t, h.score("first", 0)+" ", moved[:14])
					require.Empty(t, h.RDB.HGetAll(ctx, h.Keys.Attempts).Val())
					others := h.Take(2, time.Hour)
					if limits.Ordered {
						require.Empty(t, others, "it is the turn of the first one")
					} else if old == "" {
						require.Len(t, others, 1)
						require.Equal(t, "second", others[0].ID)
						require.Equal(t, "o", h.Ack(others...))
					}
					found, mended := h.look(true)
					require.Zero(t, mended, found)
					h.Hasten(time.Hour)
					h.Promote()
				}
				held := h.Take(2, time.Hour)
				require.Equal(t, "first", held[0].ID)
				require.Equal(t, raw, held[0].Record)
			})
		})
	}
}

// A prune leaves dead jobs of a later release, and takes those behind them.
func TestPruneLeavesJobsOfALaterRelease(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.buryAll("a", "b", "c")
		records := h.later()
		h.Put("+0", "d", "e", "f")
		held := h.Take(3, time.Hour)
		require.Equal(t, "ooo", h.Bury(held...))
		require.Equal(t, []string{"a", "b", "c", "e", "f"}, h.prune(5, time.Hour, 500, 1), "the oldest one that this release knows")
		require.Equal(t, []string{"a", "b", "c"}, h.prune(0, time.Hour, 500, 2))
		require.Equal(t, []string{"a", "b", "c"}, h.prune(0, time.Hour, 500, 0))
		require.Equal(t, []string{"a", "b", "c"}, h.prune(9, 30*time.Second, 500, 0), "old ones")
		require.Equal(t, records, h.RDB.HGetAll(t.Context(), h.Keys.Pool).Val())
		require.Len(t, h.RDB.HGetAll(t.Context(), h.Keys.Errors).Val(), 3)
	})
}

// A prune reads 1 MiB of records, or one, and says that there is more.
func TestPruneOfLargeDeadJobs(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		for _, id := range []string{"a", "b", "c", "d"} {
			require.NoError(t, just(h.client().Enqueue(t.Context(), "topic", id, make([]byte, 600<<10))))
			require.Equal(t, "o", h.Bury(h.TakeOne(id)))
		}
		for _, want := range []struct{ dead, more int64 }{{1, 1}, {1, 1}, {1, 0}, {0, 0}} {
			r, err := h.TryPrune(1, time.Hour, 500)
			require.NoError(t, err)
			require.Equal(t, want.dead, r.Number(2))
			require.Equal(t, want.more, r.Number(7))
		}
	})
}

// A prune goes on where the last one has ended, past jobs of a later release that are too large or
// too many for one call. Here l is a small one of a later release, L a large one, o one of this
// release, and old ones are before the colon.
func TestPruneGoesOnPastJobsOfALaterRelease(t *testing.T) {
	some := func(what string, n int) string { return strings.Repeat(what, n) }
	for name, c := range map[string]struct {
		dead        string
		most, limit int
		want        [][3]int64 // dead, more, next
		left        string
	}{
		"too large": {"LL" + some("o", 10), 0, 500, [][3]int64{{0, 1, 1}, {10, 0, 0}, {0, 1, 1}, {0, 0, 0}}, "LL"},
		"too many": {
			some("l", serve.PruneLimit) + some("o", 10), 0, serve.PruneLimit,
			[][3]int64{{0, 1, serve.PruneLimit}, {10, 0, 0}, {0, 0, 0}}, some("l", serve.PruneLimit),
		},
		"a mix":           {"lolololo", 5, 3, [][3]int64{{1, 1, 2}, {2, 0, 0}, {0, 0, 0}}, "llllo"},
		"a mix in size":   {"oLoLoo", 3, 500, [][3]int64{{2, 1, 1}, {1, 0, 0}, {0, 0, 0}}, "LLo"},
		"by age":          {"llolo:lo", 9, 2, [][3]int64{{0, 1, 2}, {1, 1, 3}, {1, 0, 0}, {0, 1, 2}, {0, 0, 0}}, "lll:lo"},
		"by age, by rank": {"lo:loo", 2, 500, [][3]int64{{1, 1, 1}, {2, 0, 0}, {0, 0, 0}}, "l:l"},
		"all later":       {"lll", 1, 2, [][3]int64{{0, 1, 2}, {0, 0, 0}, {0, 1, 2}}, "lll"},
		"none too many":   {"llooo", 5, 2, [][3]int64{{0, 0, 0}}, "llooo"},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.layDead(c.dead)
				var from int64
				for i, want := range c.want {
					r, err := h.TryPruneFrom(from, c.most, time.Hour, c.limit)
					require.NoError(t, err)
					require.Equal(t, want, [3]int64{r.Number(2), r.Number(7), r.Number(8)}, "call %d", i)
					if from = r.Number(8); from == 0 { // the end of a walk
						require.Equal(t, c.left, h.laidDead(), "call %d", i)
					}
					again, err := h.Last()
					require.NoError(t, err)
					require.Equal(t, r[2:], again[2:], "call %d, after its reply was lost", i)
				}
			})
		})
	}
}

// layDead makes dead jobs: see TestPruneGoesOnPastJobsOfALaterRelease. Their IDs are in order, and
// young ones are behind those of the call before, even within the same millisecond.
func (h *Hand) layDead(kinds string) {
	h.T.Helper()
	ctx := h.T.Context()
	at := time.Now().UnixMilli()
	for _, last := range h.RDB.ZRangeWithScores(ctx, h.Keys.Dead, -1, -1).Val() {
		at = max(at, int64(last.Score)+1)
	}
	if strings.Contains(kinds, ":") {
		at -= 2 * time.Hour.Milliseconds()
	}
	var dead []redis.Z
	var records []string
	for i, kind := range kinds {
		raw, id := "12345678\x01", fmt.Sprintf("%c%04d", kind, i)
		switch kind {
		case ':':
			at = time.Now().UnixMilli()
			continue
		case 'l':
			raw = "12345678\x07"
		case 'L':
			raw = "12345678\x08" + strings.Repeat("x", 600<<10)
		}
		dead = append(dead, redis.Z{Score: float64(at + int64(i)), Member: id})
		records = append(records, id, raw)
	}
	require.NoError(h.T, h.RDB.HSet(ctx, h.Keys.Pool, records).Err())
	require.NoError(h.T, h.RDB.ZAdd(ctx, h.Keys.Dead, dead...).Err())
}

// laidDead is what is left of layDead, in the same form.
func (h *Hand) laidDead() (kinds string) {
	h.T.Helper()
	old := false
	for _, z := range h.RDB.ZRangeWithScores(h.T.Context(), h.Keys.Dead, 0, -1).Val() {
		if aged := z.Score < float64(time.Now().Add(-time.Hour).UnixMilli()); old && !aged {
			kinds += ":"
			old = false
		} else {
			old = aged
		}
		kinds += z.Member.(string)[:1]
	}
	return kinds
}

// When users or servers of the later release have removed jobs that a walk has looked at, it passes
// over others. The next walk finds these. A rank behind all dead jobs is the first one.
func TestPruneBeginsAnewAtTheEnd(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.layDead("lllloo")
		prune := func(from int64, want ...int64) {
			t.Helper()
			r, err := h.TryPruneFrom(from, 0, time.Hour, 2)
			require.NoError(t, err)
			require.Equal(t, want, []int64{r.Number(2), r.Number(7), r.Number(8)})
		}
		prune(0, 0, 1, 2)
		for _, id := range []string{"l0000", "l0001", "l0002"} {
			_, err := h.TryCancel(id)
			require.NoError(t, err)
		}
		require.Equal(t, "loo", h.laidDead())
		prune(2, 1, 0, 0)
		require.Equal(t, []string{"l0003", "o0004"}, h.RDB.ZRange(t.Context(), h.Keys.Dead, 0, -1).Val())
		prune(0, 1, 0, 0)
		require.Equal(t, "l", h.laidDead())
		h.layDead("ooo")
		prune(99, 1, 1, 1)
	})
}

// A call reads each record once, and none behind the last one that it deletes.
func TestPruneReadsNoMoreThanItNeeds(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Start(t, redistest.NoRoles...).Client(t)
	for dead, reads := range map[string]string{
		"L:ooo":     "3", // by age and by number
		"loo:ooooo": "3",
		"lololoooo": "4",
		"oooooo":    "2",
	} {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		h.layDead(dead)
		most := len(strings.ReplaceAll(dead, ":", "")) - 2
		_, err := h.TryPrune(100, 24*time.Hour, 500) // so that Redis knows the script
		require.NoError(t, err)
		require.NoError(t, rdb.ConfigResetStat(t.Context()).Err())
		r, err := h.TryPrune(most, time.Hour, 500)
		require.NoError(t, err)
		require.EqualValues(t, 2, r.Number(2), dead)
		require.Equal(t, reads, commandsOf(t, rdb)["hget"], dead)
	}
}

// A record that ends before its flags stops no take, also where the flags decide.
func TestShortRecordsAreTaken(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.Put("+0", "whole")
		records := []string{"", "12345678\x04\x00\x9f" + strings.Repeat("\xad", 30)}
		for _, long := range []string{"12345678\x02", "12345678\x04", "12345678\x01"} {
			long += strings.Repeat("\x00", 16) + "\xc4\x01k\xd2" + strings.Repeat("\x00", 8) // a key from byte 26 on
			for n := 8; n < 32; n++ {
				records = append(records, long[:n])
			}
		}
		for _, raw := range records {
			id := fmt.Sprintf("%x", raw)
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Pool, id, raw).Err())
			h.Push(h.Keys.Ready, id)
		}
		h.layReady("key", "keyed") // keys take turns
		got := 0
		for range 10 {
			r, err := h.TryTakeAhead("", 10, 1, time.Hour)
			require.NoError(t, err)
			got += len(r.List(3))
		}
		require.Equal(t, len(slices.Compact(slices.Sorted(slices.Values(records))))+2, got)
	})
}

// What later releases may write into other keys is left, and read as far as it is known.
func TestFormatsOfALaterReleaseAreLeft(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ctx := t.Context()
		h.setLimits(delayq.Limits{Ordered: true, OnDead: delayq.HaltKey})
		for _, id := range []string{"first", "second"} {
			require.NoError(t, just(h.client().Enqueue(ctx, "topic", id, nil, delayq.Key("k"))))
		}
		h.setKeyLimits("k", delayq.KeyLimits{Weight: 2, Rate: delayq.Per(1000, time.Second)})
		h.Put("+3600000", "moved")
		flow, rule := h.RDB.HGet(ctx, h.Keys.Meta, "flow").Val(), h.RDB.HGet(ctx, h.Keys.Rules, "k").Val()
		entry := h.score("moved", 0) + " later:1750000000000 1 2 1"
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Meta, "flow", flow+" 7 8", "of later", "x").Err())
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Rules, "k", rule+" 7 8").Err())
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Moved, "moved", entry).Err())
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Sizes, "of later", "x").Err())
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Stats, "of later", "7").Err())
		require.NoError(t, h.RDB.HSet(ctx, h.Keys.Hours, "1", "1 later_than 7").Err())
		h.staysAsItIs(t, "other formats")
		require.Equal(t, "later:1750000000000", string(h.info("moved").DueReason))
		stats, err := h.client().insp.Stats(ctx, "topic")
		require.NoError(t, err)
		require.Equal(t, delayq.Limits{RunningPerKey: 1, Ordered: true, OnDead: delayq.HaltKey}, stats[0].Limits)
		require.Equal(t, "o", h.Bury(h.TakeOne("first")))
		require.Empty(t, h.Take(1, time.Hour), "the dead job halts its key")
	})
}
