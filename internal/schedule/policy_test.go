package schedule

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq/internal/record"
)

func scheduleOf(t testing.TB, d record.Definition) *Schedule {
	t.Helper()
	next, err := NewRhythm(&d, nil)
	require.NoError(t, err)
	return &Schedule{Definition: &d, Next: next}
}

const minute = 60_000

// Every minute has a slot. A case has n slots due, the last of which is late by that many ms. Slots
// are counted in minutes since the first that is due, which is 0.
func TestDecide(t *testing.T) {
	t.Parallel()
	const from, onTime, late = 1_000_000 * minute, 0, 30_000
	const skip, allow, queue, cancel = record.OverlapSkip, record.OverlapAllow, record.OverlapQueueOne, record.OverlapCancelPrevious
	once, none, two := record.MissedRunOnce, record.MissedSkip, record.MissedCatchUp(2)
	type want struct {
		slots, overlap  string // minutes; "" if the overlap is the schedule's
		missed, skipped int64
		after, rest     string
		gap             string
	}
	for _, c := range []struct {
		missed  []record.Missed
		overlap []record.Overlap
		every   int64 // minutes between slots; 3: the latest can be late
		n       int64
		delay   int64 // how late the latest one is
		want    want
	}{
		{[]record.Missed{once, none, two}, []record.Overlap{skip, allow, queue, cancel}, 1, 1, onTime, want{slots: "[0]", after: "1"}},
		{[]record.Missed{once, none, two}, []record.Overlap{skip, allow, queue, cancel}, 1, 1, late, want{slots: "[0]", after: "1"}},
		{[]record.Missed{once, none, two}, []record.Overlap{skip, allow, queue, cancel}, 3, 1, minute, want{slots: "[0]", after: "3"}},

		{[]record.Missed{once}, []record.Overlap{skip, allow, queue, cancel}, 3, 1, minute + 1, want{slots: "[0]", after: "3"}},
		{[]record.Missed{none}, []record.Overlap{skip, allow, queue, cancel}, 3, 1, minute + 1, want{slots: "[]", missed: 1, after: "3"}},
		{[]record.Missed{two}, []record.Overlap{allow, cancel}, 3, 1, minute + 1, want{slots: "[0]", after: "3"}},
		{[]record.Missed{two}, []record.Overlap{skip, queue}, 3, 1, minute + 1, want{slots: "[0]", overlap: "queue", after: "3", gap: "0"}},

		{[]record.Missed{once, none}, []record.Overlap{skip, allow, queue, cancel}, 1, 5, late, want{slots: "[4]", missed: 4, after: "5"}},
		{[]record.Missed{two}, []record.Overlap{allow}, 1, 5, late, want{slots: "[2 3 4]", missed: 2, after: "5"}},
		{[]record.Missed{two}, []record.Overlap{cancel}, 1, 5, late, want{slots: "[4]", missed: 4, after: "5"}},
		{[]record.Missed{two}, []record.Overlap{skip, queue}, 1, 5, late,
			want{slots: "[2]", overlap: "queue", missed: 2, after: "5", rest: "3", gap: "4"}},

		{[]record.Missed{once}, []record.Overlap{skip, allow, queue, cancel}, 3, 5, 2 * minute, want{slots: "[12]", missed: 4, after: "15"}},
		{[]record.Missed{none}, []record.Overlap{skip, allow, queue, cancel}, 3, 5, 2 * minute, want{slots: "[]", missed: 5, after: "15"}},
		{[]record.Missed{two}, []record.Overlap{allow}, 3, 5, 2 * minute, want{slots: "[9 12]", missed: 3, after: "15"}},
		{[]record.Missed{two}, []record.Overlap{cancel}, 3, 5, 2 * minute, want{slots: "[12]", missed: 4, after: "15"}},
		{[]record.Missed{two}, []record.Overlap{skip, queue}, 3, 5, 2 * minute,
			want{slots: "[9]", overlap: "queue", missed: 3, after: "15", rest: "12", gap: "12"}},
		{[]record.Missed{two}, []record.Overlap{skip, queue}, 3, 2, 2 * minute,
			want{slots: "[0]", overlap: "queue", after: "6", rest: "3", gap: "3"}},
		// most is more than there are
		{[]record.Missed{record.MissedCatchUp(1000)}, []record.Overlap{allow}, 1, 3, late, want{slots: "[0 1 2]", after: "3"}},
	} {
		for _, missed := range c.missed {
			for _, overlap := range c.overlap {
				for _, spec := range []record.Spec{every(time.Duration(c.every) * time.Minute), cronSpec(fmt.Sprintf("*/%d * * * *", c.every), "")} {
					from := int64(from)
					from -= from % (3 * minute)
					name := fmt.Sprintf("%v, %v, %v, %d slots, late by %d", spec, missed, overlap, c.n, c.delay)
					s := scheduleOf(t, record.Definition{Spec: spec, Overlap: overlap, Missed: missed})
					d, err := s.Decide(Look{
						Slot: from, Now: from + (c.n-1)*c.every*minute + c.delay, State: new(record.ScheduleState), Batch: 100,
					})
					require.NoError(t, err, name)
					in := func(ms int64) string {
						if ms == 0 {
							return ""
						}
						return fmt.Sprint((ms - from) / minute)
					}
					slots := []string{}
					for _, slot := range d.Slots {
						slots = append(slots, in(slot))
					}
					got := want{fmt.Sprint(slots), "", d.Missed, d.Skipped, in(d.After), in(d.Rest), in(d.Gap)}
					if d.Overlap != overlap || c.want.overlap != "" {
						got.overlap = map[record.Overlap]string{queue: "queue"}[d.Overlap]
					}
					require.Equal(t, c.want, got, name)
				}
			}
		}
	}
}

// A slot that waited is fired; those that came since then were skipped.
func TestDecideAboutASlotThatWaits(t *testing.T) {
	t.Parallel()
	for _, missed := range []record.Missed{record.MissedRunOnce, record.MissedSkip, record.MissedCatchUp(2)} {
		s := scheduleOf(t, record.Definition{Spec: every(time.Minute), Overlap: record.OverlapQueueOne, Missed: missed})
		d, err := s.Decide(Look{Slot: 10 * minute, Waits: true, Now: 13*minute + 1, State: new(record.ScheduleState), Batch: 100})
		require.NoError(t, err)
		require.Equal(t, Decision{Slots: []int64{10 * minute}, Overlap: record.OverlapQueueOne, Skipped: 3, After: 14 * minute, Walked: d.Walked}, d)
	}
}

// The slots of a gap are fired one by one. Those that come after it are for the overlap policy.
func TestDecideThroughAGap(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		overlap   record.Overlap
		slot, now int64 // minutes
		want      Decision
	}{
		{record.OverlapSkip, 10, 12, Decision{Rest: 11, Gap: 12}},
		{record.OverlapSkip, 12, 12, Decision{After: 13}},
		{record.OverlapSkip, 12, 15, Decision{Skipped: 3, After: 16}},
		{record.OverlapQueueOne, 11, 15, Decision{Rest: 12, Gap: 12}},
		{record.OverlapQueueOne, 12, 15, Decision{Rest: 13}},
		{record.OverlapQueueOne, 12, 12, Decision{After: 13}},
	} {
		s := scheduleOf(t, record.Definition{Spec: every(time.Minute), Overlap: c.overlap, Missed: record.MissedCatchUp(5)})
		d, err := s.Decide(Look{
			Slot: c.slot * minute, Waits: true, Now: c.now*minute + 1, State: &record.ScheduleState{Catching: 12 * minute}, Batch: 100,
		})
		require.NoError(t, err)
		c.want.Slots, c.want.Overlap = []int64{c.slot * minute}, record.OverlapQueueOne
		c.want.Rest, c.want.Gap, c.want.After, c.want.Walked = c.want.Rest*minute, c.want.Gap*minute, c.want.After*minute, d.Walked
		require.Equal(t, c.want, d, "%+v", c)
	}
}

func TestDecideWithinLimits(t *testing.T) {
	t.Parallel()
	d := record.Definition{Spec: every(time.Minute), Overlap: record.OverlapAllow, Missed: record.MissedCatchUp(5), Most: 4}
	look := Look{Slot: 10 * minute, Now: 15 * minute, State: &record.ScheduleState{Fired: 12, Since: 10}, Batch: 3}
	got, err := scheduleOf(t, d).Decide(look)
	require.NoError(t, err)
	require.Equal(t, []int64{10 * minute, 11 * minute}, got.Slots, "2 of 4 jobs are left")
	require.EqualValues(t, 13*minute, got.After, "the rest of what is caught up on, after a batch of 3")

	look.State.Fired = 20
	got, err = scheduleOf(t, d).Decide(look)
	require.NoError(t, err)
	require.Empty(t, got.Slots)

	look = Look{Slot: 0, Now: 15 * minute, State: &record.ScheduleState{From: 12*minute + 1}, Batch: 3}
	got, err = scheduleOf(t, d).Decide(look)
	require.NoError(t, err)
	require.Equal(t, Decision{Overlap: record.OverlapAllow, Slots: got.Slots, After: 13 * minute}, got, "the first slot since the change")
	require.Empty(t, got.Slots)

	look = Look{Slot: 15 * minute, Now: 14 * minute, State: new(record.ScheduleState), Batch: 3}
	got, err = scheduleOf(t, d).Decide(look)
	require.NoError(t, err)
	require.Equal(t, []int64{15 * minute}, got.Slots, "Redis's clock has been set back since it was due")
	require.EqualValues(t, 16*minute, got.After)
}

// A gap of any length is worked out in a moment, and what a policy asks for is the end of it.
func TestDueOfALongGap(t *testing.T) {
	t.Parallel()
	from := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	now := time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	for _, test := range []struct {
		spec  record.Spec
		step  int64 // between the last slots
		count int64
	}{
		{every(time.Millisecond), 1, now - from + 1},
		{every(7 * time.Second), 7000, (now-from)/7000 + 1},
		{cronSpec("* * * * *", "Europe/Berlin"), 60_000, MissedCount},
		{cronSpec("* * * * * *", "UTC"), 1000, MissedCount},
		{cronSpec("@monthly", "UTC"), 0, 361},
	} {
		s := scheduleOf(t, record.Definition{Spec: test.spec})
		first := must(s.Next(from - 1))
		g, err := s.gapFrom(first, now, record.MaxCatchUp+1)
		require.NoError(t, err)
		require.GreaterOrEqual(t, g.count+1, test.count, "%v", test.spec)
		if test.count != MissedCount { // then it is only the least
			require.InDelta(t, test.count, g.count, 1, "%v", test.spec)
		}
		require.LessOrEqual(t, s.walked, MissedCount+8*record.MaxCatchUp, "%v", test.spec)
		s.walked = 0
		one, err := s.gapFrom(first, now, 1)
		require.NoError(t, err)
		require.Equal(t, g.latest[len(g.latest)-1:], one.latest)
		require.Equal(t, g.next, one.next)
		require.LessOrEqual(t, s.walked, MissedCount+100, "%v", test.spec)
		require.Equal(t, g.next, must(s.Next(now)), "%v", test.spec)
		require.LessOrEqual(t, len(g.latest), record.MaxCatchUp+1)
		if test.step > 0 {
			require.Len(t, g.latest, record.MaxCatchUp+1, "%v", test.spec)
			for i, slot := range g.latest {
				require.Equal(t, g.latest[0]+int64(i)*test.step, slot)
			}
			require.Greater(t, g.latest[len(g.latest)-1]+test.step, now)
		}
	}
}

// The job of a slot is the same whoever makes it, and is due within the jitter.
func TestJobAt(t *testing.T) {
	t.Parallel()
	s := scheduleOf(t, record.Definition{
		Nonce: "0102030405060708", Spec: every(time.Minute), Jitter: 1000, Job: record.Options{Retry: 3, DueIn: 50}, Payload: []byte("p"),
	})
	seen, delays := map[string]bool{}, map[int64]bool{}
	for slot := int64(minute); slot <= 200*minute; slot += minute {
		job, err := s.JobAt("s", slot)
		require.NoError(t, err)
		again, err := s.JobAt("s", slot)
		require.NoError(t, err)
		require.Equal(t, job, again)
		require.False(t, seen[job.Nonce], "each has its own nonce")
		seen[job.Nonce] = true
		delay := job.Due - slot - 50
		require.True(t, 0 <= delay && delay <= 1000, "%d", delay)
		delays[delay] = true
		raw := record.Join(job.Head, 1_700_000_000_000, job.Tail)
		require.Equal(t, job.Nonce, record.HexNonceOf(raw))
		rec, err := record.Decode(raw)
		require.NoError(t, err)
		require.Equal(t, record.Options{DueAt: job.Due, Retry: 3, Scheduled: true}, rec.Options)
		require.Equal(t, "p", string(rec.Payload))
	}
	require.Greater(t, len(delays), 100, "they are spread")
	other, err := s.JobAt("t", minute)
	require.NoError(t, err)
	require.False(t, seen[other.Nonce])
}

// A manual edit can leave a slot that no rule has. It is computed again, like one that is missing:
// a schedule must not stop the others of its topic.
func TestDecideAboutAnImpossibleSlot(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000_000
	for name, d := range map[string]record.Definition{
		"a few slots":  {Spec: every(30 * 24 * time.Hour), Missed: record.MissedCatchUp(record.MaxCatchUp)},
		"many slots":   {Spec: every(time.Minute)},
		"not begun":    {Spec: cronSpec("@daily", ""), First: now + minute},
		"none follows": {Spec: cronSpec("@daily", ""), Last: 1},
	} {
		s := scheduleOf(t, d)
		for _, slot := range []int64{-1, -now, math.MinInt64} {
			for _, waits := range []bool{false, true} {
				got, err := s.Decide(Look{Slot: slot, Waits: waits, Now: now, State: &record.ScheduleState{From: now - 1}, Batch: 100})
				require.NoError(t, err)
				require.Equal(t, Decision{After: must(s.Next(now - 1))}, got, "%s, %d", name, slot)
			}
		}
	}
}
