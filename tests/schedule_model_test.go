package tests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/embedded"
	"github.com/delayq/delayq/internal/fire"
	"github.com/delayq/delayq/internal/hand"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
	"github.com/delayq/delayq/internal/schedule"
	"github.com/delayq/delayq/internal/script"
)

// A scheduleModel is what one schedule is to do, written down as plainly as can be: slot by slot,
// in memory, on a clock that stands still.
type scheduleModel struct {
	exists, paused, ended bool
	every                 int64
	overlap               delayq.OverlapPolicy
	missedPolicy          delayq.MissedPolicy
	most                  int64
	edited                map[string]bool // names of parts

	next  int64           // 0: none
	waits int64           // 0: none
	gap   int64           // the last slot of the gap that the one that waits is of; 0: it is not
	last  string          // the job that was fired last
	jobs  map[string]bool // all that have not ended

	fired, since, skipped, missed int64
}

func (m *scheduleModel) after(now int64) int64 { return (now/m.every + 1) * m.every }

func (m *scheduleModel) fire(slot int64) {
	m.last = fmt.Sprint("s@", slot)
	m.jobs[m.last] = true
	m.fired++
	if m.most > 0 && m.fired-m.since == m.most {
		m.ended, m.next, m.waits, m.gap = true, 0, 0, 0
	}
}

// look is what servers do at a time until there is nothing more to do.
func (m *scheduleModel) look(now int64) {
	for m.exists && !m.paused && !m.ended {
		going := m.jobs[m.last]
		if m.waits == 0 && m.next > now || m.waits > 0 && going {
			return
		}
		var due []int64
		for slot := max(m.next, m.waits); slot <= now; slot = m.after(slot) {
			due = append(due, slot)
		}
		latest := due[len(due)-1]
		late := now-latest > time.Minute.Milliseconds()
		queued, gap := m.waits > 0 && m.gap == 0, m.gap
		most, catchUp := record.Missed(m.missedPolicy).CatchUp()
		catchingUp := m.waits == 0 && catchUp && (len(due) > 1 || late)
		first := due[0]
		m.next, m.waits, m.gap = m.after(now), 0, 0
		switch {
		case queued:
			m.skipped += int64(len(due) - 1)
			m.fire(first)
		case gap > 0 && len(due) > 1 && due[1] <= gap:
			if m.fire(first); !m.ended {
				m.next, m.waits, m.gap = 0, due[1], gap
			}
		case gap > 0:
			late := due[1:]
			if m.overlap == delayq.OverlapSkip {
				m.skipped += int64(len(late))
			}
			if m.fire(first); !m.ended && m.overlap == delayq.OverlapQueueOne && len(late) > 0 {
				m.next, m.waits = 0, late[0]
			}
		case catchingUp && m.overlap == delayq.OverlapCancelPrevious:
			m.missed += int64(len(due) - 1)
			delete(m.jobs, m.last)
			m.fire(latest)
		case catchingUp:
			for wanted := most + map[bool]int{false: 1}[late]; len(due) > wanted; due = due[1:] {
				m.missed++
			}
			for _, slot := range due {
				if m.ended {
					break
				}
				if m.overlap != delayq.OverlapAllow && m.jobs[m.last] {
					m.next, m.waits, m.gap = 0, slot, latest
					break
				}
				m.fire(slot)
			}
		case m.missedPolicy == delayq.MissedSkip && late:
			m.missed += int64(len(due))
		default:
			m.missed += int64(len(due) - 1)
			switch {
			case going && m.overlap == delayq.OverlapSkip:
				m.skipped++
			case going && m.overlap == delayq.OverlapQueueOne:
				m.next, m.waits = 0, latest
			case going && m.overlap == delayq.OverlapCancelPrevious:
				delete(m.jobs, m.last)
				m.fire(latest)
			default:
				m.fire(latest)
			}
		}
	}
}

func (m *scheduleModel) dropWaiting() {
	if m.waits > 0 {
		m.skipped++
	}
	m.waits, m.gap = 0, 0
}

// playSchedules does n random things to a schedule and to its model.
func playSchedules(t *testing.T, seed uint64, n int) {
	random := rand.New(rand.NewPCG(seed, 0))
	r := embedded.New()
	defer r.Close()
	rdb := r.Client()
	defer func() { require.NoError(t, rdb.Close()) }()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r.SetTime(now)
	ctx := context.Background()
	client := delayq.NewClient(rdb)
	ts := hand.NewTimer(rdb, script.NewKeys(script.DefaultPrefix, "t"), slog.New(slog.DiscardHandler))
	m := &scheduleModel{jobs: map[string]bool{}}

	var steps []string
	missing := func(err error) bool { return err != nil && errors.Is(err, delayq.ErrNotFound) }
	for range n {
		step := ""
		switch what := random.IntN(20); {
		case what < 10: // time goes by, and mostly somebody looks
			d := []time.Duration{0, time.Second, 7 * time.Second, 30 * time.Second, 5 * time.Minute}[random.IntN(5)]
			now = now.Add(d)
			r.SetTime(now)
			if step = fmt.Sprint("pass ", d); random.IntN(4) > 0 {
				step += " and look"
				m.look(now.UnixMilli())
				for again := true; again; {
					p, err := ts.Promote(ctx, false)
					require.NoError(t, err)
					ts.Firer.Idle, ts.Firer.Looked = 0, time.Time{} // as if a tick had passed
					ts.Firer.Forget()                               // only Redis's clock has moved
					again = ts.Firer.Fire(ctx, p.Due, p.Waiting)
					// Also when it is too early: the script knows.
					if _, known := ts.Firer.Next(); known && random.IntN(2) == 0 {
						again = ts.Firer.FireNext(ctx) || again
					}
				}
			}
		case what < 14: // some job ends
			var live []string
			for id := range m.jobs {
				live = append(live, id)
			}
			if slices.Sort(live); len(live) > 0 {
				id := live[random.IntN(len(live))]
				step = "end " + id
				delete(m.jobs, id)
				_, err := client.Dequeue(ctx, "t", id)
				require.NoError(t, err, "seed %d: %q", seed, append(steps, step))
			}
		case what == 14:
			step = "pause"
			require.Equal(t, !m.exists, missing(client.PauseSchedule(ctx, "t", "s")))
			if m.exists && !m.paused {
				m.paused = true
				m.next = 0
				m.dropWaiting()
			}
		case what == 15:
			step = "resume"
			require.Equal(t, !m.exists, missing(client.ResumeSchedule(ctx, "t", "s")))
			if m.exists && m.paused {
				if m.paused = false; !m.ended {
					m.next = m.after(now.UnixMilli())
				}
			}
		case what == 16 && m.exists:
			step = "trigger"
			id, err := client.Trigger(ctx, "t", "s")
			require.NoError(t, err)
			m.jobs[id] = true
		case what == 17 && random.IntN(3) == 0:
			step = "remove"
			require.Equal(t, !m.exists, missing(client.Unschedule(ctx, "t", "s")))
			if m.exists {
				delete(m.jobs, m.last)
			}
			*m = scheduleModel{jobs: m.jobs}
		default:
			given := []time.Duration{time.Second, 10 * time.Second, time.Minute}[random.IntN(3)]
			every := given
			overlap := delayq.OverlapPolicy(random.IntN(4))
			missed := []delayq.MissedPolicy{delayq.MissedRunOnce, delayq.MissedSkip, delayq.MissedCatchUp(1), delayq.MissedCatchUp(3), delayq.MissedCatchUp(500)}[random.IntN(5)]
			opts := []delayq.ScheduleOption{overlap, missed}
			most := int64(random.IntN(6))
			if most > 0 {
				opts = append(opts, delayq.MaxRuns(int(most)))
			}
			how := []string{"schedule", "schedule", "schedule", "schedule if absent", "overwrite", "edit"}[random.IntN(6)]
			step = fmt.Sprint(how, " ", every, " ", overlap, " ", missed, " ", most)
			keep := map[string]bool{}
			switch how {
			case "schedule":
				keep = m.edited
			case "schedule if absent":
				opts = append(opts, delayq.IfAbsent())
				if m.exists {
					keep = map[string]bool{"Spec": true, "OnOverlap": true, "OnMissed": true, "MaxRuns": true}
				}
			case "overwrite":
				opts = append(opts, delayq.DiscardEdits())
			}
			if keep["Spec"] {
				every = time.Duration(m.every) * time.Millisecond
			}
			if keep["OnOverlap"] {
				overlap = m.overlap
			}
			if keep["OnMissed"] {
				missed = m.missedPolicy
			}
			if keep["MaxRuns"] {
				most = m.most
			}
			if how != "edit" {
				require.NoError(t, client.Schedule(ctx, "t", "s", delayq.Every(given), nil, opts...))
			} else {
				err := client.EditSchedule(ctx, "t", "s", func(def *delayq.ScheduleDefinition) error {
					def.EditedBy = "me"
					def.Spec, def.Options = delayq.Every(every), opts
					return nil
				})
				if require.Equal(t, !m.exists, missing(err)); !m.exists {
					break
				}
				if m.edited == nil {
					m.edited = map[string]bool{}
				}
				for name, changed := range map[string]bool{
					"Spec": m.every != every.Milliseconds(), "OnOverlap": m.overlap != overlap, "OnMissed": m.missedPolicy != missed, "MaxRuns": m.most != most,
				} {
					m.edited[name] = m.edited[name] || changed
				}
			}
			same := m.exists && m.every == every.Milliseconds() && m.overlap == overlap && m.missedPolicy == missed && m.most == most
			if how == "overwrite" { // the mark of an edit is part of what is there
				same = same && !slices.Contains(slices.Collect(maps.Values(m.edited)), true)
				m.edited = nil
			}
			if !same {
				m.dropWaiting()
				m.exists, m.ended, m.every, m.overlap, m.missedPolicy, m.most = true, false, every.Milliseconds(), overlap, missed, most
				m.since = m.fired
				switch {
				case m.paused:
					m.next = 0
				case m.next == 0 || m.next > now.UnixMilli(): // else that slot is still fired
					m.next = m.after(now.UnixMilli())
				}
			}
		}
		steps = append(steps, step)
		m.compare(t, rdb, fmt.Sprintf("seed %d: %q", seed, steps))
	}
}

// slotAt is the time of a slot in Unix ms; 0 is none.
func slotAt(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// compare holds all that can be seen of the schedule against the model.
func (m *scheduleModel) compare(t *testing.T, rdb *redis.Client, story string) {
	t.Helper()
	ctx := context.Background()
	info, err := delayq.NewInspector(rdb).Schedule(ctx, "t", "s")
	require.Equal(t, !m.exists, errors.Is(err, delayq.ErrNotFound), story)
	if m.exists {
		require.NoError(t, err, story)
		require.Equal(t, []int64{m.fired, m.skipped, m.missed}, []int64{info.Fired, info.Skipped, info.Missed}, story)
		require.Equal(t, []time.Time{slotAt(m.next), slotAt(m.waits)}, []time.Time{info.NextSlot, info.WaitingSlot}, story)
		require.Equal(t, m.jobs[m.last], info.LastUnfinished, story)
		var edited []string
		for name, is := range m.edited {
			if is {
				edited = append(edited, name)
			}
		}
		require.ElementsMatch(t, edited, info.Edited, story)
		require.Equal(t, len(edited) == 0, info.EditedAt.IsZero(), story)
		require.Equal(t, m.paused, info.State == delayq.SchedulePaused, story)
		require.Equal(t, m.ended && !m.paused, info.State == delayq.ScheduleEnded, story)
	}
	ready, err := rdb.HKeys(ctx, script.NewKeys(script.DefaultPrefix, "t").Pool).Result()
	require.NoError(t, err)
	var want []string
	for id := range m.jobs {
		want = append(want, id)
	}
	require.ElementsMatch(t, want, ready, story)
}

func TestScheduleIsTheModel(t *testing.T) {
	t.Parallel()
	games := 25
	if testing.Short() {
		games = 20
	}
	begin := rand.Uint64N(1 << 40)
	for i := range games {
		playSchedules(t, begin+uint64(i), 60)
	}
}

func FuzzSchedule(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { playSchedules(t, seed, 100) })
}

// hold makes a slot of each of n schedules wait, with nobody's job going. Their names are the given
// one and a number.
func (b *fireBench) hold(name string, n int) {
	b.Helper()
	ctx, p := b.Context(), b.rdb.Pipeline()
	for _, key := range []string{b.keys.Schedules, b.keys.Fired, b.keys.Runs} {
		like := must(b.rdb.HGet(ctx, key, "s").Result())
		for i := range n {
			p.HSet(ctx, key, fmt.Sprint(name, i), like)
		}
	}
	for i := range n {
		p.ZAdd(ctx, b.keys.Waiting, redis.Z{Score: float64(b.slot), Member: fmt.Sprint(name, i)})
	}
	require.NoError(b, second(p.Exec(ctx)))
}

// busy makes the last jobs of schedules going.
func (b *fireBench) busy(name string, from, to int) {
	b.Helper()
	for i := from; i < to; i++ {
		name := fmt.Sprint(name, i)
		state := fmt.Sprintf(`{"nonce":%q,"job":%q,"fired":1,"since":0,"skipped":0,"missed":0}`, b.nonce(), name+"@1")
		require.NoError(b, b.rdb.HSet(b.Context(), b.keys.Fired, name, state).Err())
		require.NoError(b, b.rdb.HSet(b.Context(), b.keys.Pool, name+"@1", "record").Err())
	}
}

func (b *fireBench) nonce() string {
	raw := must(b.rdb.HGet(b.Context(), b.keys.Schedules, "s").Result())
	return must(record.DecodeDefinition(raw)).Nonce
}

func second[T any](_ T, err error) error { return err }

// When runs end, only their own schedules are looked at; all others that wait are looked at in
// turn, some in each tick. (G7)
func TestReleaseLooksAtWhatHasEnded(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		const all = 1500
		b.hold("q", all)
		require.NoError(b, b.rdb.ZRem(ctx, b.keys.Slots, "s").Err())
		ts := b.server()
		ts.Firer.Looked = time.Now().Add(time.Hour) // no tick
		ts.Firer.Remember([]string{"q7", "q9", "nobody", "s"})
		p, err := ts.Promote(ctx, false)
		require.NoError(b, err)
		require.Equal(b, []int{0, all}, []int{p.Due, p.Waiting})
		require.True(b, ts.Firer.Fire(ctx, p.Due, p.Waiting))
		require.ElementsMatch(b, []string{fmt.Sprint("q7@", b.slot), fmt.Sprint("q9@", b.slot)}, b.jobs())
		require.False(b, ts.Firer.Fire(ctx, p.Due, p.Waiting))
		require.Empty(b, ts.Firer.Ended)
		require.True(b, ts.Firer.Waits.Load())

		for _, want := range []int{1002, all} { // a thousand in a tick
			ts.Firer.Looked = time.Time{}
			require.True(b, ts.Firer.Fire(ctx, 0, all))
			require.Len(b, b.jobs(), want)
		}
		p, err = ts.Promote(ctx, false)
		require.NoError(b, err)
		require.Zero(b, p.Waiting)
		ts.Firer.Remember([]string{"q7"})
		require.False(b, ts.Firer.Fire(ctx, 0, 0))
		require.Empty(b, ts.Firer.Ended)
	}, delayq.OverlapQueueOne)
}

// The look at the tick comes round to all that wait, also if most of them go on waiting.
func TestReleaseComesRound(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		const all = 2200
		b.hold("q", all)
		ids := map[string]any{}
		for i := range all {
			ids[fmt.Sprintf("q%d@1", i)] = "record"
		}
		require.NoError(b, b.rdb.HSet(b.Context(), b.keys.Pool, ids).Err())
		b.busy("q", all-1, all) // one state is enough: all others have no job, and so none that is going
		ts := b.server()
		free := func() int { return len(b.jobs()) - all }
		for range 3 {
			ts.Firer.Looked = time.Time{}
			ts.Firer.Fire(b.Context(), 0, all)
		}
		require.Equal(b, all-1, free())
		require.NoError(b, b.rdb.HDel(b.Context(), b.keys.Pool, fmt.Sprintf("q%d@1", all-1)).Err())
		ts.Firer.Looked = time.Time{}
		require.True(b, ts.Firer.Fire(b.Context(), 0, 1))
		require.Equal(b, all-1, free(), "one has gone, one has come")
	}, delayq.OverlapQueueOne)
}

// Schedules with a long gap do not make those late whose slot is on time: the latest slot comes
// first, and a server works out a bounded number of slots before it looks again. (F10)
func TestFireIsNotHeldUpByGaps(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		const gaps, page = 40, (fire.PageSlots + schedule.MissedCount - 1) / schedule.MissedCount
		for i := range gaps {
			name := fmt.Sprint("gap", i)
			require.NoError(b, b.client.Schedule(ctx, "topic", name, delayq.Cron("* * * * * *", "UTC"), nil, delayq.MaxRuns(1)))
			require.NoError(b, b.rdb.ZAdd(ctx, b.keys.Slots, redis.Z{Score: float64(b.slot - 1000), Member: name}).Err())
		}
		ts := b.server()
		p, err := ts.Promote(ctx, false)
		require.NoError(b, err)
		require.Equal(b, gaps+1, p.Due)
		require.True(b, ts.Firer.Fire(ctx, p.Due, 0))
		require.Contains(b, b.jobs(), b.id)
		require.Len(b, b.jobs(), page+1)
		b.due() // another one falls due meanwhile
		require.NoError(b, b.rdb.HDel(ctx, b.keys.Pool, b.id).Err())
		require.True(b, ts.Firer.Fire(ctx, p.Due, 0))
		require.Contains(b, b.jobs(), b.id)
		require.Len(b, b.jobs(), 2*page+1)
		for looks := 2; p.Due > 0; looks++ {
			ts.Firer.Fire(ctx, p.Due, 0)
			p, err = ts.Promote(ctx, false)
			require.NoError(b, err)
			require.LessOrEqual(b, looks, gaps/(page-1)+2)
		}
		require.Len(b, b.jobs(), gaps+1)
	})
}

// Several runs of a schedule that end together ask for one look at it, for a call that names it
// twice would fire its slot twice.
func TestReleaseNamesAScheduleOnce(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		b.hold("q", 1)
		require.NoError(b, b.rdb.ZRem(ctx, b.keys.Slots, "s").Err())
		ts := b.server()
		ts.Firer.Looked = time.Now().Add(time.Hour) // no tick
		for range 2 {
			ts.Firer.Remember([]string{"q0", "s", "q0", "q0"})
		}
		require.Equal(b, []string{"q0", "s"}, ts.Firer.Ended)
		p, err := ts.Promote(ctx, false)
		require.NoError(b, err)
		require.True(b, ts.Firer.Fire(ctx, p.Due, p.Waiting))
		info := queuetest.StatsOf(b, b.inspector(), "topic")
		require.EqualValues(b, 1, info.Counters["fired"])
		require.EqualValues(b, 1, info.Ready)
	})
}

// The history is a book and no more: without it, too, a job that waits goes with its schedule.
func TestUnscheduleWithoutAHistory(t *testing.T) {
	eachFire(t, func(b *fireBench) {
		ctx := b.Context()
		ts := b.server()
		p, err := ts.Promote(ctx, false)
		require.NoError(b, err)
		require.True(b, ts.Firer.Fire(ctx, p.Due, p.Waiting))
		require.Equal(b, []string{b.id}, b.jobs())
		require.NoError(b, b.rdb.Del(ctx, b.keys.Runs).Err())
		require.NoError(b, b.client.Unschedule(ctx, "topic", "s"))
		require.Empty(b, b.jobs())
	})
}
