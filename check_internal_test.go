package delayq

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

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
	"github.com/delayq/delayq/internal/settle"
)

// ward has jobs in every state, with the books that servers write, and tells the state of each.
func ward(h *Hand) map[string]State {
	h.t.Helper()
	ctx := h.t.Context()
	c := h.client()
	failed := func(attempt int, next int64) string {
		e := AttemptError{Attempt: attempt, At: time.Now(), Kind: KindError, Message: "failed"}
		if next > 0 {
			e.NextDue = time.UnixMilli(next)
		}
		return e.encode()
	}
	ended := func(like settle.Row, ids ...string) {
		h.t.Helper()
		for _, id := range ids {
			_, err := c.Enqueue(ctx, "topic", id, []byte(id), Retention(time.Hour))
			require.NoError(h.t, err)
			require.Equal(h.t, "o", h.letters([]Held{h.TakeOne(id)}, like))
		}
	}
	ended(settle.Row{Verb: settle.Bury, Attempts: 1, Failure: failed(1, 0)}, "dead", "alive", "alive-snoozed")
	require.NoError(h.t, c.Revive(ctx, "topic", "alive-snoozed"))
	held := h.Take(1, time.Hour)
	require.Equal(h.t, "o", h.Snooze(time.Hour, held...))
	ended(settle.Row{Verb: settle.Retry, Delay: time.Hour, Failure: failed(1, 2)}, "backing-off")
	ended(settle.Row{Verb: settle.Snooze, Delay: time.Hour}, "asleep")
	ended(settle.Row{Verb: settle.Ack}, "done")
	_, err := c.Enqueue(ctx, "topic", "out-of-retries", nil, Retry(0))
	require.NoError(h.t, err)
	h.Take(1, 0)
	h.Promote()
	require.Equal(h.t, "o", h.letters(h.Take(1, time.Hour), settle.Row{Verb: settle.Bury}))
	_, err = c.Enqueue(ctx, "topic", "lapsed", nil)
	require.NoError(h.t, err)
	h.Take(1, 0)
	h.Promote()
	require.Len(h.t, h.Take(1, time.Hour), 1)
	h.put("+0", "running")
	h.TakeOne("running")
	h.put("+3600000", "scheduled", "rescheduled")
	require.NoError(h.t, c.Reschedule(ctx, "topic", "rescheduled", ProcessIn(2*time.Hour)))
	h.put("+0", "handed", "ready")
	require.NoError(h.t, h.rdb.LMove(ctx, h.keys.Ready, h.keys.Handoff, "LEFT", "RIGHT").Err())
	require.NoError(h.t, c.Revive(ctx, "topic", "alive"))
	return map[string]State{
		"dead": StateDead, "out-of-retries": StateDead, "alive": StateReady, "ready": StateReady, "handed": StateReady,
		"alive-snoozed": StateScheduled, "backing-off": StateScheduled, "asleep": StateScheduled, "scheduled": StateScheduled,
		"rescheduled": StateScheduled, "running": StateRunning, "lapsed": StateRunning,
	}
}

// checkWith calls Repair or Check.
func checkWith(ctx context.Context, c *Client, topic string, repair bool) (*CheckReport, error) {
	if repair {
		return c.Repair(ctx, topic)
	}
	return inspectorOf(c).Check(ctx, topic)
}

// look checks the topic and gives what was found: kind to IDs, each with its key.
func (h *Hand) look(repair bool) (found map[FindingKind][]string, mended int) {
	h.t.Helper()
	report, err := checkWith(h.t.Context(), h.client(), h.keys.Topic, repair)
	require.NoError(h.t, err)
	found = map[FindingKind][]string{}
	for _, f := range report.Findings {
		found[f.Kind] = append(found[f.Kind], f.Key+" "+f.ID)
		require.True(h.t, repair || !f.Repaired, "%+v", f)
	}
	for what, ids := range found {
		slices.Sort(ids)
		require.Len(h.t, ids, report.Found[what])
	}
	require.Len(h.t, report.Found, len(found))
	return found, report.Repaired
}

// placed tells the state and the due time of jobs, and fails if one is nowhere.
func (h *Hand) placed(states map[string]State) (got map[string]State, due map[string]time.Time) {
	h.t.Helper()
	got, due = map[string]State{}, map[string]time.Time{}
	waiting := append(h.list(h.keys.Ready), h.list(h.keys.Handoff)...)
	for id := range states {
		info := h.info(id)
		if info.State == StateReady && !slices.Contains(waiting, id) {
			info.State = "nowhere"
		}
		got[id], due[id] = info.State, info.Due
	}
	return got, due
}

// Each key of a topic is deleted in turn. The check says what is wrong and writes nothing; with
// repair every job is back where it was, due when it was due; and then nothing is wrong.
func TestCheckAfterTheLossOfAKey(t *testing.T) {
	noPlace := func(ids ...string) map[FindingKind][]string {
		for i, id := range ids {
			ids[i] = "pool " + id
		}
		return map[FindingKind][]string{FindingNoPlace: ids}
	}
	for key, want := range map[string]struct {
		found  map[FindingKind][]string
		mended int
		now    map[string]State // states that are not those of before
	}{
		"nothing":  {},
		"bucket":   {noPlace("alive-snoozed", "asleep", "backing-off", "rescheduled", "scheduled"), 5, nil},
		"ready":    {noPlace("alive", "ready"), 2, nil},
		"handoff":  {noPlace("handed"), 1, nil},
		"leases":   {noPlace("lapsed", "running"), 2, map[string]State{"lapsed": StateReady, "running": StateReady}},
		"dead":     {noPlace("dead", "out-of-retries"), 2, nil},
		"attempts": {}, "errors": {}, "moved": {}, "stats": {}, // the jobs are where they were, and that they were tried before is forgotten
		"done":    {map[FindingKind][]string{FindingOrphan: {"results done"}}, 1, nil},
		"results": {map[FindingKind][]string{FindingNoRecord: {"done done"}}, 1, nil},
	} {
		t.Run(key, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				states := ward(h)
				_, due := h.placed(states)
				require.NoError(t, h.rdb.Del(t.Context(), h.Key(key)).Err())
				before := Dump(t, h.rdb, h.prefix())
				if want.found == nil {
					want.found = map[FindingKind][]string{}
				}

				found, mended := h.look(false)
				require.Equal(t, want.found, found)
				require.Zero(t, mended)
				require.Equal(t, before, Dump(t, h.rdb, h.prefix()), "without repair nothing is written")

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
					require.Equal(t, before, Dump(t, h.rdb, h.prefix()))
				}
				if key != "stats" {
					require.EqualValues(t, want.mended, statsOf(t, h.client(), "topic").Counters["mended"])
				}
				found, _ = h.look(true)
				require.Empty(t, found, "the second time")

				ids := h.finish()
				for id := range states {
					if states[id] != StateRunning {
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
		require.NoError(t, h.rdb.Del(t.Context(), h.keys.Pool).Err())
		found, mended := h.look(true)
		require.Equal(t, []string{
			"bucket alive-snoozed", "bucket asleep", "bucket backing-off", "bucket rescheduled", "bucket scheduled",
			"dead dead", "dead out-of-retries", "leases lapsed", "leases running",
		}, found[FindingNoRecord])
		require.Equal(t, []string{
			"attempts alive", "attempts alive-snoozed", "attempts backing-off", "attempts dead", "attempts out-of-retries",
			"errors alive", "errors alive-snoozed", "errors backing-off", "errors dead", "errors out-of-retries",
			"moved alive", "moved alive-snoozed", "moved asleep", "moved backing-off", "moved rescheduled",
		}, found[FindingOrphan])
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
			require.NotContains(t, Dump(t, h.rdb, h.prefix()), h.Key(key))
		}
	})
}

func TestCheckAfterTheLossOfOneRecord(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		states := ward(h)
		for id, state := range states {
			require.NoError(t, h.rdb.HDel(t.Context(), h.keys.Pool, id).Err())
			h.look(true)
			for _, key := range h.Traces(id) {
				require.True(t, key == "ready" || key == "handoff" || state == StateRunning, "%s of %s", key, id)
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
		found  map[FindingKind][]string
		mended int
		id     string // a job that is then in
		state  State
	}{
		"due time": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.Do(t.Context(), "ZADD", h.keys.Bucket, inf, "asleep").Err())
		}, map[FindingKind][]string{FindingBadTime: {"bucket asleep"}}, 1, "asleep", StateScheduled},
		"due time, and due long since": {func(t *testing.T, h *Hand) {
			h.put("+0", "slow")
			require.NoError(t, h.rdb.Do(t.Context(), "ZADD", h.keys.Bucket, "1e15", "slow").Err())
		}, map[FindingKind][]string{FindingBadTime: {"bucket slow"}}, 1, "slow", StateReady},
		"lease end": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.Do(t.Context(), "ZADD", h.keys.Leases, inf, "running").Err())
		}, map[FindingKind][]string{FindingBadTime: {"leases running"}}, 1, "running", StateRunning},
		"time of burial": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.Do(t.Context(), "ZADD", h.keys.Dead, inf, "dead").Err())
		}, map[FindingKind][]string{FindingBadTime: {"dead dead"}}, 1, "dead", StateDead},
		"time of keeping": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.Do(t.Context(), "ZADD", h.keys.Done, inf, "done").Err())
		}, map[FindingKind][]string{FindingBadTime: {"done done"}}, 1, "ready", StateReady},
		"anchor alone": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.ZRem(t.Context(), h.keys.Leases, "running", "lapsed").Err())
		}, map[FindingKind][]string{FindingLoneAnchor: {"leases "}, FindingNoPlace: {"pool lapsed", "pool running"}}, 3, "running", StateReady},
		"dead and scheduled": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.ZAdd(t.Context(), h.keys.Bucket, redis.Z{Score: 5, Member: "dead"}).Err())
		}, map[FindingKind][]string{FindingTwoPlaces: {"bucket dead"}}, 1, "dead", StateDead},
		"running and scheduled": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.ZAdd(t.Context(), h.keys.Bucket, redis.Z{Score: 5, Member: "running"}).Err())
		}, map[FindingKind][]string{FindingTwoPlaces: {"leases running"}}, 0, "running", StateRunning},
		"running and dead": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.ZAdd(t.Context(), h.keys.Dead, redis.Z{Score: 5, Member: "running"}).Err())
		}, map[FindingKind][]string{FindingTwoPlaces: {"leases running"}}, 0, "running", StateDead},
		"books": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Attempts, "dead", "many", "nobody", "1").Err())
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Moved, "asleep", "soon", "alive", "12 revive 1 2 1 3").Err())
		}, map[FindingKind][]string{FindingOrphan: {"attempts nobody"}, FindingUnreadable: {"attempts dead", "moved alive", "moved asleep"}},
			4, "asleep", StateScheduled},
		"record, and no place": {func(t *testing.T, h *Hand) {
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Pool, "scheduled", "spoilt").Err())
			require.NoError(t, h.rdb.ZRem(t.Context(), h.keys.Bucket, "scheduled").Err())
		}, map[FindingKind][]string{FindingNoPlace: {"pool scheduled"}}, 1, "scheduled", StateReady},
		"record of a newer release, and no place": {func(t *testing.T, h *Hand) {
			newer := "nonce456" + string(rune(record.VersionKeyed+1)) + strings.Repeat("x", 50)
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Pool, "newer", newer).Err())
		}, map[FindingKind][]string{FindingNoPlace: {"pool newer"}}, 0, "ready", StateReady},
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
				got, dueNow := h.placed(map[string]State{test.id: ""})
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

// The mend script has the last word: whatever has happened to a job since it was looked up, it is
// left alone.
func TestMendLeavesAloneWhatHasMoved(t *testing.T) {
	change := map[string]func(t *testing.T, h *Hand){
		"cancelled": func(t *testing.T, h *Hand) { _, err := h.tryCancel("x"); require.NoError(t, err) },
		"cancelled, enqueued anew": func(t *testing.T, h *Hand) {
			_, err := h.tryCancel("x")
			require.NoError(t, err)
			h.put("+0", "x")
			require.NoError(t, h.rdb.Del(t.Context(), h.keys.Ready).Err())
		},
		"taken": func(t *testing.T, h *Hand) { h.push(h.keys.Ready, "x"); h.TakeOne("x") },
		"buried": func(t *testing.T, h *Hand) {
			h.push(h.keys.Ready, "x")
			require.Equal(t, "o", h.Bury(h.TakeOne("x")))
		},
		"rescheduled": func(t *testing.T, h *Hand) { _, err := h.tryReschedule("x", "+1000"); require.NoError(t, err) },
		"rescheduled, and lost again": func(t *testing.T, h *Hand) {
			_, err := h.tryReschedule("x", "+1000")
			require.NoError(t, err)
			require.NoError(t, h.rdb.Del(t.Context(), h.keys.Bucket).Err())
		},
		"run, and back": func(t *testing.T, h *Hand) {
			h.push(h.keys.Ready, "x")
			require.Len(t, h.Take(1, 0), 1)
			h.Promote()
			require.NoError(t, h.rdb.Del(t.Context(), h.keys.Ready).Err())
		},
		"at the head of ready": func(t *testing.T, h *Hand) {
			h.push(h.keys.Ready, append(numbered("b", 999), "x")...)
			h.push(h.keys.Ready, numbered("a", 2000)...)
		},
		"at the tail of ready": func(t *testing.T, h *Hand) {
			h.push(h.keys.Ready, numbered("b", 2000)...)
			h.push(h.keys.Ready, append([]string{"x"}, numbered("a", 999)...)...)
		},
		"in handoff": func(t *testing.T, h *Hand) { h.push(h.keys.Handoff, "x") },
	}
	for name, change := range change {
		t.Run(name, func(t *testing.T) {
			eachHand(t, func(t *testing.T, h *Hand) {
				h.put("+0", "x", "y")
				require.NoError(t, h.rdb.Del(t.Context(), h.keys.Ready).Err())
				d := doctor.New(script.Caller{RDB: h.rdb, Hooks: &hooks{}}, h.rdb, h.keys, true)
				r, err := script.LookUp(t.Context(), d.Scripts, h.keys, script.CallBytes, -1, []string{"x", "y"})
				require.NoError(t, err)
				var list []*doctor.Stray
				for i, id := range []string{"x", "y"} {
					list = append(list, d.Diagnose(id, func(column int) string { return r.List(2 + column).Text(i) }))
				}
				change(t, h)
				before := h.Traces("x")
				require.NoError(t, d.Mend(t.Context(), list))
				require.Equal(t, before, h.Traces("x"))
				require.Len(t, d.Report.Findings, 1)
				require.Equal(t, "y", d.Report.Findings[0].ID)
				require.Contains(t, h.list(h.keys.Ready), "y")
			})
		})
	}
}

// A walk through ready meets every ID that stays there, whatever comes and goes meanwhile.
func TestWalkMissesNothingThatStays(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ids := numbered("id", 6*doctor.WalkLimit+500)
		h.push(h.keys.Ready, ids...)
		d := doctor.New(script.Caller{RDB: h.rdb, Hooks: &hooks{}}, h.rdb, h.keys, true)
		steps := 0
		d.Pause = func(ctx context.Context, _ time.Duration) error {
			steps++
			h.push(h.keys.Ready, numbered("new", 1500)...) // jobs fall due
			require.NoError(t, h.rdb.LTrim(ctx, h.keys.Ready, 1550, -1).Err())
			require.NoError(t, h.rdb.LPush(ctx, h.keys.Ready, "returned").Err())
			return nil
		}
		seen := map[string]bool{}
		require.NoError(t, d.Walk(t.Context(), func(id string) { seen[id] = true }))
		require.Greater(t, steps, 6)
		stay := 0
		for _, id := range h.list(h.keys.Ready) {
			if strings.HasPrefix(id, "id") {
				require.True(t, seen[id], id)
				stay++
			}
		}
		require.Greater(t, stay, 1000)
	})
}

// A walk that is outrun ends.
func TestWalkHasAnEnd(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	h.push(h.keys.Ready, numbered("id", 2*doctor.WalkLimit)...)
	d := doctor.New(script.Caller{RDB: rdb, Hooks: &hooks{}}, rdb, h.keys, true)
	more := numbered("more", 2*doctor.WalkLimit)
	d.Pause = func(context.Context, time.Duration) error {
		h.push(h.keys.Ready, more...)
		return nil
	}
	require.ErrorIs(t, d.Walk(t.Context(), func(string) {}), doctor.ErrGrowing)
	require.NoError(t, rdb.Del(t.Context(), h.keys.Ready).Err())
}

// A check of many jobs: slices, strays by the thousand, and their order.
func TestCheckOfManyJobs(t *testing.T) {
	t.Parallel()
	h := NewHand(t, redistest.Shared(t), redistest.Prefix(t), "topic") // miniredis is slow with so many
	const n = doctor.MostStrays + 2500
	ids := numbered("job", n)
	for i, chunk := range slices.Collect(slices.Chunk(ids, 500)) {
		h.put("+"+strconv.Itoa(3_600_000+i), chunk...)
	}
	h.put("+0", numbered("ready", 2500)...)
	h.put("+7200000", "stays")
	require.NoError(t, h.rdb.ZRemRangeByScore(t.Context(), h.keys.Bucket, "-inf", h.score("stays", -1)).Err())
	report, err := h.client().Repair(t.Context(), "topic")
	require.NoError(t, err)
	require.Equal(t, map[FindingKind]int{FindingNoPlace: n}, report.Found)
	require.Equal(t, n, report.Repaired)
	require.Len(t, report.Findings, doctor.MostFindings)
	require.GreaterOrEqual(t, report.Jobs, int64(n+2501))
	require.EqualValues(t, n+1, h.rdb.ZCard(t.Context(), h.keys.Bucket).Val())
	require.EqualValues(t, 2500, h.rdb.LLen(t.Context(), h.keys.Ready).Val())

	h.Hasten(3 * time.Hour)
	require.NoError(t, h.rdb.Del(t.Context(), h.keys.Ready).Err())
	h.Promote()
	require.True(t, slices.Equal(append(ids, "stays"), h.list(h.keys.Ready)), "the due times are those of before")
	report, err = h.client().Repair(t.Context(), "topic")
	require.NoError(t, err)
	require.Equal(t, 2500, report.Repaired)
	require.True(t, slices.Equal(ids, h.list(h.keys.Ready)[:n]), "those that were there stand before them")
}

// score is the score of a job in the bucket, and something.
func (h *Hand) score(id string, and float64) string {
	h.t.Helper()
	at, err := h.rdb.ZScore(context.Background(), h.keys.Bucket, id).Result()
	require.NoError(h.t, err)
	return strconv.FormatFloat(at+and, 'f', -1, 64)
}

// Jobs that were lost from ready come back in the order of their due times.
func TestCheckKeepsTheOrderOfDueTimes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		base := time.Now().Add(-time.Hour).UnixMilli()
		ids := numbered("job", 50)
		for _, i := range rand.Perm(len(ids)) {
			h.put("+0", ids[i])
			// As if it had been rescheduled to an instant that is over by now.
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Moved, ids[i], fmt.Sprint(base+int64(i), " reschedule 0 0 0")).Err())
		}
		require.NoError(t, h.rdb.Del(t.Context(), h.keys.Ready).Err())
		_, mended := h.look(true)
		require.Equal(t, 50, mended)
		require.Equal(t, ids, h.list(h.keys.Ready))
	})
}

// One call does not look at more when records are large.
func TestCheckLooksAtFewLargeRecords(t *testing.T) {
	t.Parallel()
	rdb := redistest.Shared(t) // miniredis scans all at once
	prefix := redistest.Prefix(t)
	events := &slices0{}
	c := NewClient(rdb, Prefix(prefix), Hooks(events))
	for i := range 60 {
		_, err := c.Enqueue(t.Context(), "topic", strconv.Itoa(i), make([]byte, 100<<10), ProcessIn(time.Hour))
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

func (s *slices0) Script(event ScriptEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event.Name == "check" {
		s.calls++
	}
}

func TestCheckOfNothing(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		_, err := h.client().Repair(t.Context(), "{}")
		require.ErrorIs(t, err, ErrInvalid)
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
