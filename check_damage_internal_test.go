package delayq

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/doctor"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/redistest"
	"github.com/delayq/delayq/internal/script"
)

// A key of a wrong type is a finding, and what does not need it is looked at all the same. (J11)
func TestCheckGoesOnBesideAWrongType(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		var every []string
		for _, key := range append(h.keys.Checked(), h.keys.Ready, h.keys.Handoff, h.keys.Stats, h.keys.Idle) {
			every = append(every, h.keys.Name(key))
		}
		for _, name := range every {
			h := NewHand(t, h.rdb, redistest.Prefix(t), "topic")
			ward(h)
			require.NoError(t, h.rdb.ZRem(t.Context(), h.keys.Bucket, "asleep").Err())
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Results, "nobody", "x").Err())
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Attempts, "nobody", "1").Err())
			h.deface(name)
			before := Dump(t, h.rdb, h.prefix())
			want := map[FindingKind][]string{FindingWrongType: {name + " "}}
			if name != "done" && name != "results" {
				want[FindingOrphan] = append(want[FindingOrphan], "results nobody")
			}
			if name != "pool" && name != "leases" && name != "attempts" {
				want[FindingOrphan] = append([]string{"attempts nobody"}, want[FindingOrphan]...)
			}
			switch name {
			case "errors", "done", "results", "stats", "idle", "schedules", "slots", "waiting", "fired", "runs", "rules", "held",
				"parked", "holders", "rates":
				want[FindingNoPlace] = []string{"pool asleep"}
			}
			found, mended := h.look(false)
			require.Equal(t, want, found, name)
			require.Zero(t, mended)
			require.Equal(t, before, Dump(t, h.rdb, h.prefix()))
			found, mended = h.look(true)
			require.Equal(t, want, found, name)
			require.Equal(t, len(want[FindingOrphan])+len(want[FindingNoPlace]), mended)
			found, _ = h.look(true)
			require.Equal(t, map[FindingKind][]string{FindingWrongType: {name + " "}}, found, name)
		}
	})
}

// The pool alone is lost, and its IDs are enqueued anew: a new job that is delayed is not dead
// because the former one was.
func TestCheckForgetsAFormerJob(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "delayed", "due")
		require.Equal(t, "oo", h.Bury(h.Take(2, time.Hour)...))
		require.NoError(t, h.rdb.Del(t.Context(), h.keys.Pool).Err())
		h.put("+3600000", "delayed")
		h.put("+0", "due")
		require.NoError(t, h.rdb.ZIncrBy(t.Context(), h.keys.Dead, -5, "delayed").Err())
		require.Equal(t, StateDead, h.info("delayed").State)

		want := map[FindingKind][]string{FindingTwoPlaces: {"dead delayed"}}
		before := Dump(t, h.rdb, h.prefix())
		found, _ := h.look(false)
		require.Equal(t, want, found)
		require.Equal(t, before, Dump(t, h.rdb, h.prefix()))
		found, _ = h.look(true)
		require.Equal(t, want, found)
		require.Equal(t, StateScheduled, h.info("delayed").State)
		require.Equal(t, 1, h.info("delayed").Attempt)
		require.Empty(t, h.info("delayed").Errors)
		require.Equal(t, StateDead, h.info("due").State, "nothing tells that it is not")
		found, _ = h.look(true)
		require.Empty(t, found)
	})
}

// What was buried stays so, also if Redis's clock went back by minutes between the enqueueing and
// the burial, and keeps its errors.
func TestCheckBelievesBurialsWhenTheClockGoesBack(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		h.put("+0", "dead", "tried")
		held := h.Take(2, time.Hour)
		require.Equal(t, "o", h.Bury(held[0]))
		require.Equal(t, "o", h.Retry(time.Hour, held[1]))
		require.NoError(t, h.rdb.ZIncrBy(t.Context(), h.keys.Dead, -300_000, "dead").Err())
		for _, id := range []string{"dead", "tried"} {
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Errors, id, `31:{"at":1700000000000,"kind":"e"}`).Err())
		}
		before := Dump(t, h.rdb, h.prefix())
		found, _ := h.look(true)
		require.Empty(t, found)
		require.Equal(t, before, Dump(t, h.rdb, h.prefix()))
	})
}

// However many times are impossible, one check mends them all, in calls that are bounded.
func TestCheckOfManyImpossibleTimes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		h := NewHand(t, rdb, redistest.Prefix(t), "topic")
		const n = doctor.SliceLimit + 7
		impossible := func(key string, ids []string) {
			for chunk := range slices.Chunk(ids, 500) {
				list := make([]redis.Z, len(chunk))
				for i, id := range chunk {
					list[i] = redis.Z{Score: 1e14 + float64(i), Member: id}
				}
				require.NoError(t, h.rdb.ZAdd(t.Context(), key, list...).Err())
			}
		}
		h.put("+3600000", numbered("late", n)...)
		impossible(h.keys.Bucket, numbered("late", n))
		h.put("+0", numbered("held", n)...)
		for range n / 500 {
			require.NotContains(t, h.Bury(h.Take(500, time.Hour)...), "l")
		}
		impossible(h.keys.Dead, numbered("held", n-7))
		for _, repair := range []bool{false, true} {
			report, err := checkWith(t.Context(), h.client(), "topic", repair)
			require.NoError(t, err)
			require.Equal(t, map[FindingKind]int{FindingBadTime: n + n - 7}, report.Found)
		}
		found, _ := h.look(true)
		require.Empty(t, found)
		require.EqualValues(t, n, h.rdb.ZCount(t.Context(), h.keys.Bucket, "-inf", "9999999999999").Val())
	})
}

// A number that no job can have is no entry.
func TestCheckOfAbsurdBooks(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		ward(h)
		for key, value := range map[string]string{
			"asleep": "99999999999999 snooze 0 1 0", "alive": "12 revive 12345678901234 0 1", "alive-snoozed": "12 snooze 0 12345678901234 0",
		} {
			require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Moved, key, value).Err())
			_, ok := record.DecodeMoved(value)
			require.False(t, ok)
		}
		_, ok := record.DecodeMoved("9999999999999 snooze 0 1 0")
		require.True(t, ok)
		require.NoError(t, h.rdb.HSet(t.Context(), h.keys.Attempts, "dead", "12345678901234").Err())
		require.NoError(t, h.rdb.ZRem(t.Context(), h.keys.Bucket, "asleep").Err())
		found, mended := h.look(true)
		require.Equal(t, map[FindingKind][]string{
			FindingNoPlace: {"pool asleep"}, FindingUnreadable: {"attempts dead", "moved alive", "moved alive-snoozed", "moved asleep"},
		}, found)
		require.Equal(t, 5, mended)
		require.Equal(t, StateReady, h.info("asleep").State, "due as its record says")
	})
}

// heavy notes the size of the largest answer.
type heavy struct {
	redis.UniversalClient
	most, calls int
}

func (w *heavy) Process(ctx context.Context, cmd redis.Cmder) error {
	err := w.UniversalClient.Process(ctx, cmd)
	if c, ok := cmd.(*redis.Cmd); ok && err == nil {
		w.most = max(w.most, len(fmt.Sprint(c.Val())))
		w.calls++
	}
	return err
}

// Jobs that have lost their places are looked up by a few if they are large, whatever the others
// are.
func TestCheckLooksUpLargeStraysByTheBytes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const n = 40
		h.put("+3600000", numbered("small", 200)...)
		c := h.client()
		for _, id := range numbered("large", n) {
			_, err := c.Enqueue(t.Context(), "topic", id, make([]byte, 60<<10), ProcessIn(time.Hour))
			require.NoError(t, err)
			require.NoError(t, h.rdb.ZRem(t.Context(), h.keys.Bucket, id).Err())
		}
		w := &heavy{UniversalClient: redistest.As(t, h.rdb, "worker", h.prefix(), false)}
		d := doctor.New(script.Caller{RDB: w, Hooks: &hooks{}}, w, h.keys, true)
		d.Strays = append(numbered("large", n), numbered("small", 200)...)
		require.NoError(t, d.Resolve(t.Context()))
		require.Equal(t, n, d.Report.Mended)
		require.Less(t, w.most, doctor.SliceBytes*5/4)
		require.Greater(t, w.calls, 10)
	})
}

// A check looks through large records, results and error logs by the bytes, also where the first or
// most of them are small.
func TestCheckReadsLargeValuesByTheBytes(t *testing.T) {
	t.Parallel()
	redistest.Need(t)
	rdb := redistest.Shared(t)
	h := NewHand(t, rdb, redistest.Prefix(t), "topic")
	ctx, c := t.Context(), h.client()
	const n, size = 30, 200 << 10 // one and a half of them are as much as a call looks at
	h.put("+3600000", numbered("small", 2000)...)
	for _, id := range numbered("large", n) {
		_, err := c.Enqueue(ctx, "topic", id, make([]byte, size), ProcessIn(time.Hour))
		require.NoError(t, err)
		require.NoError(t, rdb.HSet(ctx, h.keys.Results, id, make([]byte, size)).Err())
		require.NoError(t, rdb.ZAdd(ctx, h.keys.Done, redis.Z{Score: 9e12, Member: id}).Err())
		require.NoError(t, rdb.HSet(ctx, h.keys.Errors, id, make([]byte, size)).Err())
	}
	// Redis returns all entries of a place of a hash together. Among many small ones, hardly any
	// place has several large ones.
	for _, id := range numbered("small", 2000) {
		require.NoError(t, rdb.HSet(ctx, h.keys.Results, id, "x").Err())
		require.NoError(t, rdb.ZAdd(ctx, h.keys.Done, redis.Z{Score: 9e12, Member: id}).Err())
		require.NoError(t, rdb.HSet(ctx, h.keys.Errors, id, "x").Err())
	}
	for _, key := range []string{h.keys.Pool, h.keys.Results, h.keys.Errors} {
		d := doctor.New(c.scripts, rdb, h.keys, false)
		seen, calls := int64(0), 0
		for cursor := "0"; calls == 0 || cursor != "0"; calls++ {
			r, err := d.Ask(ctx, 1, h.keys.Name(key), cursor, doctor.SliceLimit, doctor.SliceBytes, 0)
			require.NoError(t, err)
			cursor = r.Text(2)
			require.LessOrEqual(t, r.Number(3), int64(doctor.SliceLimit+doctor.SliceBytes/2000))
			seen += r.Number(3)
		}
		require.GreaterOrEqual(t, seen, int64(n))
		// Two of them are more than a call looks at, and a place of the hash can have some.
		require.GreaterOrEqual(t, calls, n/3, key)
	}
	report, err := c.Repair(ctx, "topic")
	require.NoError(t, err)
	require.Empty(t, report.Found)
	require.GreaterOrEqual(t, report.Jobs, int64(n+2000))
}

// IDs of ready are read by the bytes too, all of them, and in the right number.
func TestCheckReadsLongIDsByTheBytes(t *testing.T) {
	eachHand(t, func(t *testing.T, h *Hand) {
		const n = 3000
		ids := make([]string, n)
		for i := range ids {
			ids[i] = fmt.Sprintf("%01000d", i)
		}
		h.put("+0", ids...)
		w := &heavy{UniversalClient: redistest.As(t, h.rdb, "worker", h.prefix(), false)}
		d := doctor.New(script.Caller{RDB: w, Hooks: &hooks{}}, w, h.keys, false)
		var seen []string
		require.NoError(t, d.Walk(t.Context(), func(id string) { seen = append(seen, id) }))
		require.ElementsMatch(t, ids, seen)
		require.Less(t, w.most, script.CallBytes)
		require.GreaterOrEqual(t, w.calls, n/1000)
	})
}
