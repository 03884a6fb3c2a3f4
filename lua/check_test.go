package lua_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// ward has jobs in every state, with the books that servers write, and tells the state of each.
func ward(h *Hand) map[string]delayq.State {
	h.T.Helper()
	ctx := h.T.Context()
	c := h.client()
	failed := func(attempt int, next int64) string {
		return record.Failure{Attempt: attempt, At: time.Now().UnixMilli(), Kind: string(delayq.KindError), Message: "failed", NextDue: next}.Encode()
	}
	ended := func(like settle.Row, ids ...string) {
		h.T.Helper()
		for _, id := range ids {
			_, err := c.Enqueue(ctx, "topic", id, []byte(id), delayq.Retention(time.Hour))
			require.NoError(h.T, err)
			require.Equal(h.T, "o", h.Letters([]hand.Held{h.TakeOne(id)}, like))
		}
	}
	ended(settle.Row{Verb: settle.Bury, Attempts: 1, Failure: failed(1, 0)}, "dead", "alive", "alive-snoozed")
	require.NoError(h.T, c.Revive(ctx, "topic", "alive-snoozed"))
	held := h.Take(1, time.Hour)
	require.Equal(h.T, "o", h.Snooze(time.Hour, held...))
	ended(settle.Row{Verb: settle.Retry, Delay: time.Hour, Failure: failed(1, 2)}, "backing-off")
	ended(settle.Row{Verb: settle.Snooze, Delay: time.Hour}, "asleep")
	ended(settle.Row{Verb: settle.Ack}, "done")
	_, err := c.Enqueue(ctx, "topic", "out-of-retries", nil, delayq.Retry(0))
	require.NoError(h.T, err)
	h.Take(1, 0)
	h.Promote()
	require.Equal(h.T, "o", h.Letters(h.Take(1, time.Hour), settle.Row{Verb: settle.Bury}))
	_, err = c.Enqueue(ctx, "topic", "lapsed", nil)
	require.NoError(h.T, err)
	h.Take(1, 0)
	h.Promote()
	require.Len(h.T, h.Take(1, time.Hour), 1)
	h.Put("+0", "running")
	h.TakeOne("running")
	h.Put("+3600000", "scheduled", "rescheduled")
	require.NoError(h.T, c.Reschedule(ctx, "topic", "rescheduled", delayq.ProcessIn(2*time.Hour)))
	h.Put("+0", "handed", "ready")
	require.NoError(h.T, h.RDB.LMove(ctx, h.Keys.Ready, h.Keys.Handoff, "LEFT", "RIGHT").Err())
	require.NoError(h.T, c.Revive(ctx, "topic", "alive"))
	return map[string]delayq.State{
		"dead": delayq.StateDead, "out-of-retries": delayq.StateDead, "alive": delayq.StateReady, "ready": delayq.StateReady, "handed": delayq.StateReady,
		"alive-snoozed": delayq.StateScheduled, "backing-off": delayq.StateScheduled, "asleep": delayq.StateScheduled, "scheduled": delayq.StateScheduled,
		"rescheduled": delayq.StateScheduled, "running": delayq.StateRunning, "lapsed": delayq.StateRunning,
	}
}

// checkWith calls Repair or Check.
func checkWith(ctx context.Context, c *client, topic string, repair bool) (*delayq.CheckReport, error) {
	if repair {
		return c.Repair(ctx, topic)
	}
	return c.insp.Check(ctx, topic)
}

// look checks the topic and gives what was found: kind to IDs, each with its key.
func (h *Hand) look(repair bool) (found map[delayq.FindingKind][]string, mended int) {
	h.T.Helper()
	report, err := checkWith(h.T.Context(), h.client(), h.Keys.Topic, repair)
	require.NoError(h.T, err)
	found = map[delayq.FindingKind][]string{}
	for _, f := range report.Findings {
		found[f.Kind] = append(found[f.Kind], f.Key+" "+f.ID)
		require.True(h.T, repair || !f.Repaired, "%+v", f)
	}
	for what, ids := range found {
		slices.Sort(ids)
		require.Len(h.T, ids, report.Found[what])
	}
	require.Len(h.T, report.Found, len(found))
	return found, report.Repaired
}

// placed tells the state and the due time of jobs, and fails if one is nowhere.
func (h *Hand) placed(states map[string]delayq.State) (got map[string]delayq.State, due map[string]time.Time) {
	h.T.Helper()
	got, due = map[string]delayq.State{}, map[string]time.Time{}
	waiting := append(h.List(h.Keys.Ready), h.List(h.Keys.Handoff)...)
	for id := range states {
		info := h.info(id)
		if info.State == delayq.StateReady && !slices.Contains(waiting, id) {
			info.State = "nowhere"
		}
		got[id], due[id] = info.State, info.Due
	}
	return got, due
}

// Each key of a topic is deleted in turn. The check says what is wrong and writes nothing; with
// repair every job is back where it was, due when it was due; and then nothing is wrong.
func TestCheckAfterTheLossOfAKey(t *testing.T) {
	noPlace := func(ids ...string) map[delayq.FindingKind][]string {
		for i, id := range ids {
			ids[i] = "pool " + id
		}
		return map[delayq.FindingKind][]string{delayq.FindingNoPlace: ids}
	}
	for key, want := range map[string]struct {
		found  map[delayq.FindingKind][]string
		mended int
		now    map[string]delayq.State // states that are not those of before
	}{
		"nothing":  {},
		"bucket":   {noPlace("alive-snoozed", "asleep", "backing-off", "rescheduled", "scheduled"), 5, nil},
		"ready":    {noPlace("alive", "ready"), 2, nil},
		"handoff":  {noPlace("handed"), 1, nil},
		"leases":   {noPlace("lapsed", "running"), 2, map[string]delayq.State{"lapsed": delayq.StateReady, "running": delayq.StateReady}},
		"dead":     {noPlace("dead", "out-of-retries"), 2, nil},
		"attempts": {}, "errors": {}, "moved": {}, "stats": {}, // the jobs are where they were, and that they were tried before is forgotten
		"done":    {map[delayq.FindingKind][]string{delayq.FindingOrphan: {"results done"}}, 1, nil},
		"results": {map[delayq.FindingKind][]string{delayq.FindingNoRecord: {"done done"}}, 1, nil},
	} {
		t.Run(key, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				states := ward(h)
				_, due := h.placed(states)
				require.NoError(t, h.RDB.Del(t.Context(), h.Key(key)).Err())
				before := redistest.Dump(t, h.RDB, h.Prefix())
				if want.found == nil {
					want.found = map[delayq.FindingKind][]string{}
				}

				found, mended := h.look(false)
				require.Equal(t, want.found, found)
				require.Zero(t, mended)
				require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()), "without repair nothing is written")

				found, mended = h.look(true)
				require.Equal(t, want.found, found)
				require.Equal(t, want.mended, mended)
				maps.Copy(states, want.now)
				got, dueNow := h.placed(states)
				require.Equal(t, states, got)
				if key != "moved" {
					require.Equal(t, due, dueNow)
				}
				if key == "nothing" {
					require.Equal(t, before, redistest.Dump(t, h.RDB, h.Prefix()))
				}
				if key != "stats" {
					require.EqualValues(t, want.mended, queuetest.StatsOf(t, h.client().insp, "topic").Counters["mended"])
				}
				found, _ = h.look(true)
				require.Empty(t, found, "the second time")

				ids := h.finish()
				for id := range states {
					if states[id] != delayq.StateRunning {
						require.Contains(t, ids, id, "comes to its end")
					}
				}
			})
		})
	}
}

// Of jobs without a record nothing can be saved. All that speaks of them goes, but for what belongs
// to a running handler.
func TestCheckAfterTheLossOfRecords(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ward(h)
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Pool).Err())
		found, mended := h.look(true)
		require.Equal(t, []string{
			"bucket alive-snoozed", "bucket asleep", "bucket backing-off", "bucket rescheduled", "bucket scheduled",
			"dead dead", "dead out-of-retries", "leases lapsed", "leases running",
		}, found[delayq.FindingNoRecord])
		require.Equal(t, []string{
			"attempts alive", "attempts alive-snoozed", "attempts backing-off", "attempts dead", "attempts out-of-retries",
			"errors alive", "errors alive-snoozed", "errors backing-off", "errors dead", "errors out-of-retries",
			"moved alive", "moved alive-snoozed", "moved asleep", "moved backing-off", "moved rescheduled",
		}, found[delayq.FindingOrphan])
		require.Len(t, found, 2)
		require.Equal(t, 7+15, mended)
		require.Equal(t, []string{"attempts", "errors", "leases"}, h.Traces("lapsed"), "a handler runs")
		h.Hasten(2 * time.Hour)
		h.Promote()
		require.Empty(t, h.Take(10, time.Hour))
		found, _ = h.look(false)
		require.Empty(t, found)
		require.Equal(t, []string{"done", "results"}, h.Traces("done"))
		for _, key := range []string{"bucket", "ready", "handoff", "leases", "dead", "attempts", "errors", "moved"} {
			require.NotContains(t, redistest.Dump(t, h.RDB, h.Prefix()), h.Key(key))
		}
	})
}

func TestCheckAfterTheLossOfOneRecord(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		states := ward(h)
		for id, state := range states {
			require.NoError(t, h.RDB.HDel(t.Context(), h.Keys.Pool, id).Err())
			h.look(true)
			for _, key := range h.Traces(id) {
				require.True(t, key == "ready" || key == "handoff" || state == delayq.StateRunning, "%s of %s", key, id)
			}
			delete(states, id)
			got, _ := h.placed(states)
			require.Equal(t, states, got, "the others")
		}
	})
}

// What a hand can do to single entries.
func TestCheckOfSpoiltEntries(t *testing.T) {
	const inf = "+inf"
	for name, test := range map[string]struct {
		spoil  func(t *testing.T, h *Hand)
		found  map[delayq.FindingKind][]string
		mended int
		id     string // a job that is then in
		state  delayq.State
	}{
		"due time": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.Do(t.Context(), "ZADD", h.Keys.Bucket, inf, "asleep").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingBadTime: {"bucket asleep"}}, 1, "asleep", delayq.StateScheduled},
		"due time, and due long since": {func(t *testing.T, h *Hand) {
			h.Put("+0", "slow")
			require.NoError(t, h.RDB.Do(t.Context(), "ZADD", h.Keys.Bucket, "1e15", "slow").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingBadTime: {"bucket slow"}}, 1, "slow", delayq.StateReady},
		"lease end": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.Do(t.Context(), "ZADD", h.Keys.Leases, inf, "running").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingBadTime: {"leases running"}}, 1, "running", delayq.StateRunning},
		"time of burial": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.Do(t.Context(), "ZADD", h.Keys.Dead, inf, "dead").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingBadTime: {"dead dead"}}, 1, "dead", delayq.StateDead},
		"time of keeping": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.Do(t.Context(), "ZADD", h.Keys.Done, inf, "done").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingBadTime: {"done done"}}, 1, "ready", delayq.StateReady},
		"anchor alone": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Leases, "running", "lapsed").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingLoneAnchor: {"leases "}, delayq.FindingNoPlace: {"pool lapsed", "pool running"}}, 3, "running", delayq.StateReady},
		"dead and scheduled": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Bucket, redis.Z{Score: 5, Member: "dead"}).Err())
		}, map[delayq.FindingKind][]string{delayq.FindingTwoPlaces: {"bucket dead"}}, 1, "dead", delayq.StateDead},
		"running and scheduled": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Bucket, redis.Z{Score: 5, Member: "running"}).Err())
		}, map[delayq.FindingKind][]string{delayq.FindingTwoPlaces: {"leases running"}}, 0, "running", delayq.StateRunning},
		"running and dead": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.ZAdd(t.Context(), h.Keys.Dead, redis.Z{Score: 5, Member: "running"}).Err())
		}, map[delayq.FindingKind][]string{delayq.FindingTwoPlaces: {"leases running"}}, 0, "running", delayq.StateDead},
		"books": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Attempts, "dead", "many", "nobody", "1").Err())
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Moved, "asleep", "soon", "alive", "12 revive 1 2 1 3").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingOrphan: {"attempts nobody"}, delayq.FindingUnreadable: {"attempts dead", "moved alive", "moved asleep"}},
			4, "asleep", delayq.StateScheduled},
		"record, and no place": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Pool, "scheduled", "spoilt").Err())
			require.NoError(t, h.RDB.ZRem(t.Context(), h.Keys.Bucket, "scheduled").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingNoPlace: {"pool scheduled"}}, 1, "scheduled", delayq.StateReady},
		"record of a newer release, and no place": {func(t *testing.T, h *Hand) {
			newer := "nonce456" + string(rune(record.MaxVersion+1)) + strings.Repeat("x", 50)
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Pool, "newer", newer).Err())
		}, map[delayq.FindingKind][]string{delayq.FindingNoPlace: {"pool newer"}}, 0, "ready", delayq.StateReady},
	} {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				states := ward(h)
				_, due := h.placed(states)
				test.spoil(t, h)
				found, mended := h.look(false)
				require.Equal(t, test.found, found)
				require.Zero(t, mended)
				found, mended = h.look(true)
				require.Equal(t, test.found, found)
				require.Equal(t, test.mended, mended)
				got, dueNow := h.placed(map[string]delayq.State{test.id: ""})
				require.Equal(t, test.state, got[test.id])
				if test.id == "asleep" {
					require.Equal(t, due[test.id], dueNow[test.id])
				}
				found, again := h.look(true)
				require.Zero(t, again, found)
				require.Equal(t, test.mended == 0, len(found) > 0, "what could not be mended is found again")
				if name == "lease end" {
					_, reclaimed := h.Promote()
					require.Equal(t, 1, reclaimed, "it has lapsed")
				}
			})
		})
	}
}

// A check of many jobs: slices, strays by the thousand, and their order.
func TestCheckOfManyJobs(t *testing.T) {
	t.Parallel()
	h := NewHand(t, redistest.Shared(t), redistest.Prefix(t), "topic") // miniredis is slow with so many
	const n = 10_000 + 2500                                            // more than are resolved together
	ids := hand.Numbered("job", n)
	for i, chunk := range slices.Collect(slices.Chunk(ids, 500)) {
		h.Put("+"+strconv.Itoa(3_600_000+i), chunk...)
	}
	h.Put("+0", hand.Numbered("ready", 2500)...)
	h.Put("+7200000", "stays")
	require.NoError(t, h.RDB.ZRemRangeByScore(t.Context(), h.Keys.Bucket, "-inf", h.score("stays", -1)).Err())
	report, err := h.client().Repair(t.Context(), "topic")
	require.NoError(t, err)
	require.Equal(t, map[delayq.FindingKind]int{delayq.FindingNoPlace: n}, report.Found)
	require.Equal(t, n, report.Repaired)
	require.Len(t, report.Findings, 1000, "the first ones")
	require.GreaterOrEqual(t, report.Jobs, int64(n+2501))
	require.EqualValues(t, n+1, h.RDB.ZCard(t.Context(), h.Keys.Bucket).Val())
	require.EqualValues(t, 2500, h.RDB.LLen(t.Context(), h.Keys.Ready).Val())

	h.Hasten(3 * time.Hour)
	require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
	h.Promote()
	require.True(t, slices.Equal(append(ids, "stays"), h.List(h.Keys.Ready)), "the due times are those of before")
	report, err = h.client().Repair(t.Context(), "topic")
	require.NoError(t, err)
	require.Equal(t, 2500, report.Repaired)
	require.True(t, slices.Equal(ids, h.List(h.Keys.Ready)[:n]), "those that were there stand before them")
}

// score is the score of a job in the bucket, and something.
func (h *Hand) score(id string, and float64) string {
	h.T.Helper()
	at, err := h.RDB.ZScore(context.Background(), h.Keys.Bucket, id).Result()
	require.NoError(h.T, err)
	return strconv.FormatFloat(at+and, 'f', -1, 64)
}

// Jobs that were lost from ready come back in the order of their due times.
func TestCheckKeepsTheOrderOfDueTimes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		base := time.Now().Add(-time.Hour).UnixMilli()
		ids := hand.Numbered("job", 50)
		for _, i := range rand.Perm(len(ids)) {
			h.Put("+0", ids[i])
			// As if it had been rescheduled to an instant that is over by now.
			require.NoError(t, h.RDB.HSet(t.Context(), h.Keys.Moved, ids[i], fmt.Sprint(base+int64(i), " reschedule 0 0 0")).Err())
		}
		require.NoError(t, h.RDB.Del(t.Context(), h.Keys.Ready).Err())
		_, mended := h.look(true)
		require.Equal(t, 50, mended)
		require.Equal(t, ids, h.List(h.Keys.Ready))
	})
}

// One call does not look at more when records are large.
func TestCheckLooksAtFewLargeRecords(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t) // miniredis scans all at once
	prefix := redistest.Prefix(t)
	events := &slices0{}
	c := newClient(rdb, prefix, delayq.Hooks(events))
	for i := range 60 {
		_, err := c.Enqueue(t.Context(), "topic", strconv.Itoa(i), make([]byte, 100<<10), delayq.ProcessIn(time.Hour))
		require.NoError(t, err)
	}
	report, err := c.Repair(t.Context(), "topic")
	require.NoError(t, err)
	require.Empty(t, report.Found)
	require.GreaterOrEqual(t, report.Jobs, int64(60))
	require.GreaterOrEqual(t, events.calls, 10)
	require.NoError(t, rdb.Del(t.Context(), script.NewKeys(prefix, "topic").Pool).Err())
}

// slices0 counts the calls of the check script.
type slices0 struct {
	mu    sync.Mutex
	calls int
}

func (s *slices0) Script(event delayq.ScriptEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event.Name == "check" {
		s.calls++
	}
}

func TestCheckOfNothing(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		_, err := h.client().Repair(t.Context(), "{}")
		require.ErrorIs(t, err, delayq.ErrInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		report, err := h.client().Repair(ctx, "topic")
		require.ErrorIs(t, err, context.Canceled)
		require.NotNil(t, report)
	})
}

// A check with repair at any moment of any game changes nothing and finds nothing: play compares
// all that there is with the model.
func TestCheckOfAHealthyQueue(t *testing.T) {
	t.Parallel()
	for range 10 {
		seed := rand.Uint64()
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			playModel(t, gameOf(seed, 300), func(p *player) {
				report, err := p.hands[0].client().Repair(t.Context(), "model")
				require.NoError(t, err)
				require.Empty(t, report.Findings)
				require.EqualValues(t, len(p.m.jobs), report.Jobs)
			})
		})
	}
}
