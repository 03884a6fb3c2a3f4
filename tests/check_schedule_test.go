package tests

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// everyMinute is a calendar.
type everyMinute struct{}

func (everyMinute) Next(after time.Time) time.Time {
	return after.Truncate(time.Minute).Add(time.Minute)
}

// lookForStrays checks the topic "t" and gives what was found: kind to names, each with its key.
func lookForStrays(b *queuetest.Bubble, repair bool) map[delayq.FindingKind][]string {
	b.Helper()
	check := b.Inspector.Check
	if repair {
		check = b.Client.Repair
	}
	report, err := check(b.Context(), "t")
	require.NoError(b, err)
	found := map[delayq.FindingKind][]string{}
	for _, f := range report.Findings {
		found[f.Kind] = append(found[f.Kind], f.Key+" "+f.ID)
		require.Equal(b, repair, f.Repaired, "%+v", f)
	}
	for _, list := range found {
		slices.Sort(list)
	}
	return found
}

// timetable has schedules of every kind and state, of which "s" has slots every ten seconds.
func timetable(b *queuetest.Bubble, r *queuetest.Recorder) {
	b.Helper()
	setup := func(s *delayq.Server) {
		s.Calendar("minutes", everyMinute{})
		s.HandlerFunc("t", r.Then(func(ctx context.Context, job *delayq.Job) error {
			if job.Schedule == "busy" {
				<-ctx.Done()
			}
			return ctx.Err()
		}))
	}
	b.AddSchedule("s", delayq.Every(10*time.Second))
	b.AddSchedule("calendar", delayq.OnCalendar("minutes"))
	b.AddSchedule("far", delayq.Every(1000*time.Hour))
	b.AddSchedule("paused", delayq.Every(time.Second))
	require.NoError(b, b.Client.PauseSchedule(b.Context(), "t", "paused"))
	b.AddSchedule("ended", delayq.Every(time.Second), delayq.EndAt(b.Began.Add(5*time.Second)))
	b.AddSchedule("all run", delayq.Every(time.Second), delayq.MaxRuns(2))
	b.AddSchedule("busy", delayq.Every(7*time.Second), delayq.OverlapQueueOne)
	queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, setup)
}

// jobsOf lists the IDs of the jobs of one schedule.
func jobsOf(r *queuetest.Recorder, name string) []string {
	return slices.DeleteFunc(r.IDs(), func(id string) bool { return !strings.HasPrefix(id, name+"@") })
}

// A schedule that has lost its place, its state or its history has them again after a check, fires
// on from its next slot, and none twice. In good health, whatever its state, it is left alone.
func TestCheckOfSchedules(t *testing.T) {
	key := func(name string) string { return queuetest.Prefix + ":{t}:" + name }
	state := func(b *queuetest.Bubble, change func(state map[string]any)) {
		b.Helper()
		text, err := b.RDB.HGet(b.Context(), key("fired"), "s").Bytes()
		require.NoError(b, err)
		var state map[string]any
		require.NoError(b, json.Unmarshal(text, &state))
		change(state)
		text, err = json.Marshal(state)
		require.NoError(b, err)
		require.NoError(b, b.RDB.HSet(b.Context(), key("fired"), "s", text).Err())
	}
	hdel := func(b *queuetest.Bubble, name string) {
		require.NoError(b, b.RDB.HDel(b.Context(), key(name), "s").Err())
	}
	zrem := func(b *queuetest.Bubble) { require.NoError(b, b.RDB.ZRem(b.Context(), key("slots"), "s").Err()) }
	for name, test := range map[string]struct {
		spoil func(b *queuetest.Bubble)
		found map[delayq.FindingKind][]string
		slots []int // fired in the end, the check being at 52 s
	}{
		"nothing": {func(*queuetest.Bubble) {}, map[delayq.FindingKind][]string{}, []int{10, 20, 30, 40, 50, 60, 70}},
		"place":   {zrem, map[delayq.FindingKind][]string{delayq.FindingNoSlot: {"slots s"}}, []int{10, 20, 60, 70}},
		"place of one that waits": {func(b *queuetest.Bubble) {
			require.NoError(b, b.RDB.Del(b.Context(), key("waiting")).Err())
		}, map[delayq.FindingKind][]string{delayq.FindingNoSlot: {"slots busy"}}, []int{10, 20, 30, 40, 50, 60, 70}},
		"all places": {func(b *queuetest.Bubble) {
			require.NoError(b, b.RDB.Del(b.Context(), key("slots")).Err())
		}, map[delayq.FindingKind][]string{delayq.FindingNoSlot: {"slots calendar", "slots far", "slots s"}}, []int{10, 20, 60, 70}},
		"a slot that cannot be": {func(b *queuetest.Bubble) {
			require.NoError(b, b.RDB.ZAdd(b.Context(), key("slots"), redis.Z{Score: 1e15, Member: "s"}).Err())
		}, map[delayq.FindingKind][]string{delayq.FindingBadTime: {"slots s"}}, []int{10, 20, 60, 70}},
		"state":   {func(b *queuetest.Bubble) { hdel(b, "fired") }, map[delayq.FindingKind][]string{delayq.FindingNoState: {"fired s"}}, []int{10, 20, 50, 60, 70}},
		"history": {func(b *queuetest.Bubble) { hdel(b, "runs") }, map[delayq.FindingKind][]string{delayq.FindingNoHistory: {"runs s"}}, []int{10, 20, 30, 40, 50, 60, 70}},
		"state and place": {func(b *queuetest.Bubble) {
			hdel(b, "fired")
			zrem(b)
		}, map[delayq.FindingKind][]string{delayq.FindingNoState: {"fired s"}, delayq.FindingNoSlot: {"slots s"}}, []int{10, 20, 60, 70}},
		"the state is none": {func(b *queuetest.Bubble) {
			require.NoError(b, b.RDB.HSet(b.Context(), key("fired"), "s", "nonsense").Err())
		}, map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"fired s"}}, []int{10, 20, 50, 60, 70}},
		"a field of the state is gone": {func(b *queuetest.Bubble) {
			state(b, func(state map[string]any) { delete(state, "skipped") })
		}, map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"fired s"}}, nil},
		"a field of the state is another thing": {func(b *queuetest.Bubble) {
			state(b, func(state map[string]any) { state["job"], state["fired"] = 7, "many" })
		}, map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"fired s"}}, []int{10, 20, 50, 60, 70}},
		"the state is of another definition": {func(b *queuetest.Bubble) {
			state(b, func(state map[string]any) { state["nonce"] = "0123456789abcdef" })
		}, map[delayq.FindingKind][]string{delayq.FindingUnreadable: {"fired s"}}, []int{10, 20, 30, 40, 50, 60, 70}},
		"definition": {func(b *queuetest.Bubble) { hdel(b, "schedules") },
			map[delayq.FindingKind][]string{delayq.FindingNoSchedule: {"fired s", "runs s", "runs s", "runs s", "slots s"}}, []int{10, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var r queuetest.Recorder
				timetable(b, &r)
				b.Pass(25 * time.Second)
				require.Empty(b, lookForStrays(b, false))
				test.spoil(b)
				wait := 27 * time.Second
				if name == "the state is of another definition" {
					wait = 0 // before its next slot
				}
				b.Pass(wait)
				require.Equal(b, test.found, lookForStrays(b, false))
				require.Equal(b, test.found, lookForStrays(b, true))
				require.Empty(b, lookForStrays(b, false))
				b.Pass(47*time.Second - wait)
				require.Empty(b, lookForStrays(b, false))
				var want []string
				for _, slot := range test.slots {
					want = append(want, b.SlotID("s", time.Duration(slot)*time.Second))
				}
				got := jobsOf(&r, "s")
				require.Len(b, slices.Compact(slices.Sorted(slices.Values(got))), len(got), "none twice")
				if want != nil {
					require.Equal(b, want, got)
				}
				require.Empty(b, jobsOf(&r, "paused"))
				require.Len(b, jobsOf(&r, "ended"), 5)
				require.Len(b, jobsOf(&r, "all run"), 2)
				require.Equal(b, []string{b.SlotID("calendar", time.Minute)}, jobsOf(&r, "calendar"))
			})
		})
	}
}

// A server finds a schedule that has stopped by itself.
func TestServerMendsASchedule(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		var log queuetest.Logbook
		b.AddSchedule("s", delayq.Every(10*time.Second))
		b.Serve("t", r.Then(nil), log.To())
		b.Pass(25 * time.Second)
		require.NoError(b, b.RDB.Del(b.Context(), queuetest.Prefix+":{t}:slots").Err())
		b.Pass(3 * time.Minute)
		require.Equal(b, []string{b.SlotID("s", 10*time.Second), b.SlotID("s", 20*time.Second), b.SlotID("s", 200*time.Second)}, jobsOf(&r, "s"))
		require.Len(b, log.With(`msg="topic repaired"`, "count=1", `found="no_slot: 1"`), 1)
	})
}
