package tests

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// slotsOf returns the slots that the jobs of a schedule were started for, as times since the
// beginning. Each job must have started at the very ms.
func slotsOf(b *queuetest.Bubble, r *queuetest.Recorder, name string) (list []time.Duration) {
	b.Helper()
	for _, s := range r.All() {
		if strings.HasPrefix(s.ID, name+"@") && s.Attempt == 1 {
			list = append(list, s.Started.Sub(b.Began))
		}
	}
	return list
}

func seconds(list ...int) (all []time.Duration) {
	for _, n := range list {
		all = append(all, time.Duration(n)*time.Second)
	}
	return all
}

// Three servers, one job for each slot, at its very millisecond. (N1)
func TestScheduleFiresEachSlotOnce(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		for range 3 {
			b.Serve("t", r.Then(func(_ context.Context, job *delayq.Job) error {
				require.Equal(b, "tick", job.Schedule)
				require.Equal(b, job.ID, b.SlotID("tick", job.Slot.Sub(b.Began)))
				require.Equal(b, job.Slot, job.Due)
				return nil
			}))
		}
		b.AddSchedule("tick", delayq.Every(10*time.Second))
		info := b.ScheduleInfo("tick")
		require.Equal(b, delayq.ScheduleWaiting, info.State)
		require.Equal(b, "every 10s", info.Spec.String())
		require.True(b, b.Began.Add(10*time.Second).Equal(info.NextSlot))
		require.Zero(b, info.LastSlot)
		require.Nil(b, info.LastRun)

		b.Pass(35 * time.Second)
		require.Equal(b, seconds(10, 20, 30), slotsOf(b, &r, "tick"))
		require.Equal(b, []string{b.SlotID("tick", 10*time.Second), b.SlotID("tick", 20*time.Second), b.SlotID("tick", 30*time.Second)}, r.IDs())
		require.Equal(b, "of tick", r.All()[0].Payload)
		info = b.ScheduleInfo("tick")
		require.EqualValues(b, 3, info.Fired)
		require.EqualValues(b, 3, info.Attempts)
		require.Zero(b, info.Failures+info.Skipped+info.Missed)
		require.True(b, b.Began.Add(40*time.Second).Equal(info.NextSlot))
		require.True(b, b.Began.Add(30*time.Second).Equal(info.LastSlot))
		require.Equal(b, delayq.OutcomeAcked, info.LastRun.Outcome)
		require.EqualValues(b, 3, b.Counter("t", "fired"))
	})
}

// A second server, a client and Redis agree though the clock of the bubble is not theirs: Redis is
// a century ahead.
func TestScheduleFollowsTheClockOfRedis(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		b.Redis.SetTime(time.Date(2100, 3, 28, 0, 59, 59, 0, time.UTC))
		var r queuetest.Recorder
		b.Serve("t", r.Then(nil))
		b.AddSchedule("spring", delayq.Cron("30 2 * * *", "Europe/Berlin"))
		require.Equal(b, "2100-03-28 01:00:00", b.ScheduleInfo("spring").NextSlot.UTC().Format(time.DateTime))
		b.Redis.SetTime(time.Date(2100, 3, 28, 1, 0, 0, 0, time.UTC))
		b.Pass(time.Second) // the tick: it is the clock of the bubble that timers run by
		require.Equal(b, []string{fmt.Sprintf("spring@%d", time.Date(2100, 3, 28, 1, 0, 0, 0, time.UTC).UnixMilli())}, r.IDs())
	})
}

func TestSchedulePauseTriggerAndRemove(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		var r queuetest.Recorder
		b.Serve("t", r.Then(nil))
		b.AddSchedule("s", delayq.Every(10*time.Second))
		b.Pass(11 * time.Second)
		require.NoError(b, b.Client.PauseSchedule(ctx, "t", "s"))
		require.NoError(b, b.Client.PauseSchedule(ctx, "t", "s"))
		info := b.ScheduleInfo("s")
		require.Equal(b, delayq.SchedulePaused, info.State)
		require.True(b, b.Began.Add(11*time.Second).Equal(info.PausedSince))
		require.Zero(b, info.NextSlot)
		b.Pass(20 * time.Second)
		require.Len(b, r.IDs(), 1)

		id, err := b.Client.Trigger(ctx, "t", "s") // also while it is paused
		require.NoError(b, err)
		require.Equal(b, fmt.Sprintf("s!%d", time.Now().UnixMilli()), id)
		b.Pass(time.Millisecond) // the ID is the name and the time
		second, err := b.Client.Trigger(ctx, "t", "s")
		require.NoError(b, err)
		b.Pass(0)
		require.ElementsMatch(b, []string{b.SlotID("s", 10*time.Second), id, second}, r.IDs())
		require.NotEqual(b, id, second)

		// A change of a paused schedule leaves it paused.
		b.AddSchedule("s", delayq.Every(5*time.Second))
		require.Equal(b, delayq.SchedulePaused, b.ScheduleInfo("s").State)
		require.NoError(b, b.Client.ResumeSchedule(ctx, "t", "s"))
		require.NoError(b, b.Client.ResumeSchedule(ctx, "t", "s"))
		info = b.ScheduleInfo("s")
		require.True(b, b.Began.Add(35*time.Second).Equal(info.NextSlot))
		require.Zero(b, info.Missed+info.Skipped)
		b.Pass(4 * time.Second)
		require.Equal(b, seconds(10, 35), slotsOf(b, &r, "s"))
		runs, err := b.Inspector.Runs(ctx, "t", "s", 100)
		require.NoError(b, err)
		require.Len(b, runs, 4)
		require.True(b, runs[1].Triggered)

		require.NoError(b, b.Client.Unschedule(ctx, "t", "s"))
		require.ErrorIs(b, b.Client.Unschedule(ctx, "t", "s"), delayq.ErrNotFound)
		b.Pass(time.Minute)
		require.Len(b, r.IDs(), 4)
		_, err = b.Inspector.Schedule(ctx, "t", "s")
		require.ErrorIs(b, err, delayq.ErrNotFound)
	})
}

// A schedule that is removed takes the job of its last slot with it, in whatever state that is,
// unless it runs; a triggered one stays. (D16)
func TestRemovedScheduleLeavesNoJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx := b.Context()
		var r queuetest.Recorder
		finish := make(chan struct{})
		once := b.Serve("failing", r.Then(func(context.Context, *delayq.Job) error { return queuetest.ErrTest }))
		b.Serve("running", r.Then(func(context.Context, *delayq.Job) error {
			<-finish
			return nil
		}))
		for _, topic := range []string{"ready", "failing", "running", "delayed"} {
			opts := []delayq.ScheduleOption{}
			if topic == "delayed" {
				opts = append(opts, delayq.ProcessIn(time.Minute))
			}
			require.NoError(b, b.Client.Schedule(ctx, topic, "s", delayq.Every(10*time.Second), []byte("payload"), opts...))
		}
		stop := []*queuetest.Running{b.Serve("ready", r.Then(nil)), b.Serve("delayed", r.Then(nil))} // they fire
		require.NoError(b, b.Client.Pause(ctx, "ready", delayq.Pause{}))
		b.Pass(10*time.Second + time.Millisecond)
		id := fmt.Sprint("s@", b.Began.Add(10*time.Second).UnixMilli())
		for topic, state := range map[string]delayq.State{
			"ready": delayq.StateReady, "failing": delayq.StateScheduled, "running": delayq.StateRunning, "delayed": delayq.StateScheduled,
		} {
			require.Equal(b, state, b.State(topic, id), topic)
		}
		triggered, err := b.Client.Trigger(ctx, "ready", "s")
		require.NoError(b, err)
		for _, topic := range []string{"ready", "failing", "running", "delayed"} {
			require.NoError(b, b.Client.Unschedule(ctx, topic, "s"))
		}
		close(finish)
		require.NoError(b, b.Client.Resume(ctx, "ready", ""))
		b.Pass(2 * time.Minute)
		require.ElementsMatch(b, []string{id, id, triggered}, r.IDs(), "one failed once, one ran to its end")
		for _, topic := range []string{"ready", "failing", "running", "delayed"} {
			info := b.Stats(topic)
			require.Zero(b, info.Scheduled+info.Ready+info.Running+info.Dead, topic)
			require.Equal(b, topic != "running", info.Counters["cancelled"] == 1, topic)
		}
		for _, s := range append(stop, once) {
			require.NoError(b, s.Stop())
		}
	})
}

// The same schedule again changes nothing, another one takes its place, with the counts going on.
func TestScheduleAgain(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		b.Serve("t", r.Then(nil))
		headers := []delayq.ScheduleOption{delayq.Header("a", "1"), delayq.Header("b", "2"), delayq.Header("c", "3"), delayq.MaxRuns(2)}
		b.AddSchedule("s", delayq.Every(time.Minute), headers...)
		changed := b.ScheduleInfo("s").ChangedAt
		b.Pass(30 * time.Second)
		for range 20 { // maps have no order
			b.AddSchedule("s", delayq.Every(time.Minute), headers...)
		}
		require.Equal(b, changed, b.ScheduleInfo("s").ChangedAt)
		b.Pass(100 * time.Second)
		require.Equal(b, delayq.ScheduleEnded, b.ScheduleInfo("s").State)
		b.AddSchedule("s", delayq.Every(time.Minute), headers...) // the same: it stays ended
		b.Pass(time.Minute)
		require.Len(b, r.IDs(), 2)

		b.AddSchedule("s", delayq.Every(2*time.Minute), headers...)
		require.Equal(b, delayq.ScheduleWaiting, b.ScheduleInfo("s").State)
		b.Pass(10 * time.Minute)
		info := b.ScheduleInfo("s")
		require.Equal(b, delayq.ScheduleEnded, info.State)
		require.EqualValues(b, 4, info.Fired)
		require.EqualValues(b, 4, info.Attempts)
	})
}

func TestScheduleBounds(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		b.Serve("t", r.Then(nil))
		at := func(s int) time.Time { return b.Began.Add(time.Duration(s) * time.Second) }
		b.AddSchedule("span", delayq.Every(10*time.Second), delayq.StartAt(at(13)), delayq.EndAt(at(33)))
		b.AddSchedule("jitter", delayq.Every(10*time.Second), delayq.Jitter(3*time.Second), delayq.EndAt(at(40)), delayq.OverlapAllow)
		b.AddSchedule("later", delayq.Every(20*time.Second), delayq.ProcessIn(time.Second), delayq.EndAt(at(25)))
		b.Pass(time.Minute)
		require.Equal(b, seconds(13, 23, 33), slotsOf(b, &r, "span"))
		require.Equal(b, delayq.ScheduleEnded, b.ScheduleInfo("span").State)
		require.Equal(b, seconds(21), slotsOf(b, &r, "later"))
		late, jobs := map[time.Duration]bool{}, 0
		for _, s := range r.All() {
			if strings.HasPrefix(s.ID, "jitter@") {
				late[s.Started.Sub(b.Began)%(10*time.Second)] = true
				jobs++
			}
		}
		// None is late by more than the jitter. Two of them are equal to the millisecond once in
		// 500 tests, but never all four.
		require.Equal(b, 4, jobs)
		require.Greater(b, len(late), 1)
		for d := range late {
			require.LessOrEqual(b, d, 3*time.Second)
		}
	})
}

// Nothing is written, and the error says what is wrong.
func TestScheduleBadInput(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		long := strings.Repeat("x", 256)
		past := time.Now().Add(-time.Hour)
		hourly := delayq.Every(time.Hour)
		for _, test := range []struct {
			topic, name string
			spec        delayq.Spec
			payload     []byte
			opts        []delayq.ScheduleOption
			say         string
		}{
			{"", "n", hourly, nil, nil, "empty topic"},
			{"t", "", hourly, nil, nil, "empty schedule name"},
			{"t", long, hourly, nil, nil, "256 bytes, at most 255"},
			{"t", "a\nb", hourly, nil, nil, "control characters"},
			{"t", "n", delayq.Every(0), nil, nil, "at least 1ms"},
			{"t", "n", delayq.Every(time.Microsecond), nil, nil, "at least 1ms"},
			{"t", "n", delayq.Every(-time.Second), nil, nil, "at least 1ms"},
			{"t", "n", delayq.Every(1 << 62), nil, nil, "100 years"},
			{"t", "n", delayq.Spec{}, nil, nil, "use Every, Cron or OnCalendar"},
			{"t", "n", delayq.Cron("0 25 * * *", "UTC"), nil, nil, `hour "25" at byte 2`},
			{"t", "n", delayq.Cron("* * * * *", "Europe/Atlantis"), nil, nil, `zone "Europe/Atlantis"`},
			{"t", "n", delayq.Cron("0 0 30 2 *", "UTC"), nil, nil, "no future slots"},
			{"t", "n", delayq.OnCalendar(""), nil, nil, "empty calendar"},
			{"t", "n", hourly, make([]byte, 1<<20+1), nil, "payload of 1048577 bytes"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.EndAt(past)}, "no future slots"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.EndAt(past), delayq.StartAt(time.Now())}, "before StartAt"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.StartAt(time.Time{})}, "zero time"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.MaxRuns(0)}, "MaxRuns(0)"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.Jitter(-1)}, "Jitter"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.Jitter(time.Minute), delayq.ExpireIn(time.Minute)}, "Jitter(1m0s)"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.ExpireIn(time.Hour), delayq.ProcessIn(45 * time.Minute), delayq.Jitter(20 * time.Minute)},
				"must be below 15m0s"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.OverlapPolicy(4)}, "OverlapPolicy(4)"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.MissedCatchUp(0)}, "MissedCatchUp(0)"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.MissedCatchUp(-1)}, "MissedCatchUp(-1)"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.MissedCatchUp(1001)}, "MissedCatchUp(1001)"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.ProcessAt(time.Now())}, "ProcessAt"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.Replace()}, "Replace"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.Retry(-2)}, "Retry(-2)"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{nil}, "option is nil"},
			{"t", "n", hourly, nil, []delayq.ScheduleOption{delayq.JobOption(nil)}, "option is nil"},
		} {
			err := f.Client.Schedule(t.Context(), test.topic, test.name, test.spec, test.payload, test.opts...)
			require.ErrorIs(t, err, delayq.ErrInvalid, test.say)
			require.ErrorContains(t, err, test.say)
		}
		ctx := t.Context()
		_, err := f.Inspector.Runs(ctx, "t", "n", 0)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		for what, err := range map[string]error{
			"pause": f.Client.PauseSchedule(ctx, "t", "n"), "resume": f.Client.ResumeSchedule(ctx, "t", "n"),
			"remove": f.Client.Unschedule(ctx, "t", "n"), "trigger": queuetest.ErrOf(f.Client.Trigger(ctx, "t", "n")),
			"info": queuetest.ErrOf(f.Inspector.Schedule(ctx, "t", "n")), "runs": queuetest.ErrOf(f.Inspector.Runs(ctx, "t", "n", 1)),
		} {
			require.ErrorIs(t, err, delayq.ErrNotFound, what)
		}
		for what, err := range map[string]error{
			"pause": f.Client.PauseSchedule(ctx, "t", ""), "resume": f.Client.ResumeSchedule(ctx, "", "n"),
			"remove": f.Client.Unschedule(ctx, "t", ""), "trigger": queuetest.ErrOf(f.Client.Trigger(ctx, "t", "")),
			"info": queuetest.ErrOf(f.Inspector.Schedule(ctx, "t", "")), "list": queuetest.ErrOf(f.Inspector.Schedules(ctx, "")),
		} {
			require.ErrorIs(t, err, delayq.ErrInvalid, what)
		}
		list, err := f.Inspector.Schedules(ctx, "t")
		require.NoError(t, err)
		require.Empty(t, list)
		require.Empty(t, f.Dump())
		topics, err := f.Inspector.Topics(ctx)
		require.NoError(t, err)
		require.Subset(t, []string{"t"}, topics, "a name without anything else does no harm")
	})
}

// A jitter that is just below what would let a job expire is none too many, and ExpireAt is another
// matter.
func TestScheduleJitterBelowExpiry(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, opts := range [][]delayq.ScheduleOption{
			{delayq.ExpireIn(time.Hour), delayq.ProcessIn(45 * time.Minute), delayq.Jitter(15*time.Minute - time.Millisecond)},
			{delayq.ExpireAt(time.Now().Add(time.Hour)), delayq.Jitter(2 * time.Hour)},
			{delayq.ExpireIn(time.Hour), delayq.ProcessIn(time.Hour - time.Millisecond)},
		} {
			require.NoError(t, f.Client.Schedule(t.Context(), "t", "n", delayq.Every(time.Hour), nil, opts...))
		}
	})
}

// All that is known of a schedule, on both backends, with nobody to fire it.
func TestScheduleInfo(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		ctx := t.Context()
		start := time.Now().Add(100 * time.Hour).Truncate(time.Millisecond)
		require.NoError(t, f.Client.Schedule(ctx, "topic", "b", delayq.Cron("0 9 * * 1-5", "Europe/Berlin"), []byte("payload"), delayq.OverlapQueueOne,
			delayq.MissedCatchUp(3), delayq.StartAt(start), delayq.EndAt(start.AddDate(1, 0, 0)), delayq.MaxRuns(7), delayq.Jitter(time.Minute),
			delayq.Retry(3), delayq.Timeout(time.Second), delayq.Header("k", "v"), delayq.Retention(time.Hour)))
		require.NoError(t, f.Client.Schedule(ctx, "topic", "a", delayq.Every(time.Millisecond), nil))
		require.NoError(t, f.Client.Schedule(ctx, "topic", "c", delayq.OnCalendar("x"), nil))
		list, err := f.Inspector.Schedules(ctx, "topic")
		require.NoError(t, err)
		require.Len(t, list, 3)
		require.Equal(t, []string{"a", "b", "c"}, []string{list[0].Name, list[1].Name, list[2].Name})
		info, err := f.Inspector.Schedule(ctx, "topic", "b")
		require.NoError(t, err)
		require.Nil(t, list[1].Payload)
		require.Equal(t, "payload", string(info.Payload))
		require.NoError(t, info.Undecodable)
		bare := *info
		bare.Payload = nil
		require.Equal(t, exported(list[1]), exported(&bare))
		require.Equal(t, "cron 0 9 * * 1-5 Europe/Berlin", info.Spec.String())
		require.Equal(t, delayq.Cron("0 9 * * 1-5", "Europe/Berlin"), info.Spec)
		require.Equal(t, "Europe/Berlin", info.Zone)
		require.Equal(t, delayq.ScheduleWaiting, info.State)
		require.True(t, !info.NextSlot.Before(start))
		require.True(t, info.StartAt.Equal(start))
		require.Equal(t, 7, info.MaxRuns)
		require.Equal(t, time.Minute, info.Jitter)
		require.Equal(t, delayq.OverlapQueueOne, info.OnOverlap)
		require.Equal(t, delayq.MissedCatchUp(3), info.OnMissed)
		require.Equal(t, 7, info.PayloadSize)
		require.Equal(t, map[string]string{"k": "v"}, info.Headers)
		require.Equal(t, 3, info.Retries)
		require.Equal(t, 2*time.Second, info.BackoffFirst)
		require.Equal(t, 4096*time.Second, info.BackoffLimit)
		require.Equal(t, time.Second, info.Timeout)
		require.Equal(t, time.Hour, info.Retention)
		require.Zero(t, info.ProcessIn+info.ExpireIn)
		require.True(t, info.ExpireAt.IsZero())
		require.True(t, info.EditedAt.IsZero())
		require.Empty(t, info.Edited)
		require.False(t, info.CreatedAt.IsZero())
		topic := f.Stats()
		require.EqualValues(t, 3, topic.Schedules)
		topics, err := f.Inspector.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"topic"}, topics)

		for range 150 { // more than a page
			require.NoError(t, f.Client.Schedule(ctx, "topic", fmt.Sprint("n", len(list)), delayq.Every(time.Hour), nil))
			list = append(list, nil)
		}
		list, err = f.Inspector.Schedules(ctx, "topic")
		require.NoError(t, err)
		require.Len(t, list, 153)
		for _, info := range list {
			require.NoError(t, f.Client.Unschedule(ctx, "topic", info.Name))
		}
		require.Empty(t, f.Dump())
	})
}

// exported is what can be seen of a ScheduleInfo.
func exported(info *delayq.ScheduleInfo) map[string]any {
	fields := map[string]any{}
	for v, i := reflect.ValueOf(*info), 0; i < v.NumField(); i++ {
		if f := v.Type().Field(i); f.IsExported() {
			fields[f.Name] = v.Field(i).Interface()
		}
	}
	return fields
}

// Three servers on a clock that runs: thirty schedules with a thousand slots a second together, and
// every slot of each has its one job. (N1)
func TestScheduleOnThreeServers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb redis.UniversalClient) {
		prefix := redistest.Prefix(t)
		client := delayq.NewClient(rdb, delayq.Prefix(prefix))
		insp := delayq.NewInspector(rdb, delayq.Prefix(prefix))
		var r queuetest.Recorder
		for range 3 {
			queuetest.Serve(t, rdb, prefix, "t", r.Then(nil))
		}
		const every, schedules = 30 * time.Millisecond, 30
		for i := range schedules {
			// MissedCatchUp: on a machine that stands still for a moment all slots have their jobs
			// all the same.
			require.NoError(t, client.Schedule(t.Context(), "t", fmt.Sprint("s", i), delayq.Every(every), nil, delayq.OverlapAllow, delayq.MissedCatchUp(1000)))
		}
		queuetest.Until(t, func() bool { return len(r.All()) > 20*schedules })
		for i := range schedules {
			require.NoError(t, client.PauseSchedule(t.Context(), "t", fmt.Sprint("s", i)))
		}
		infos, err := insp.Schedules(t.Context(), "t")
		require.NoError(t, err)
		total := 0
		for _, info := range infos {
			total += int(info.Fired)
		}
		queuetest.Until(t, func() bool { return len(r.Times()) == total })
		state := queuetest.StatsOf(t, insp, "t")
		require.LessOrEqual(t, int64(len(r.All())-total), state.Counters["reclaimed"])
		times, firsts := r.Times(), map[string]int{}
		for _, s := range r.All() {
			if s.Attempt == 1 { // the second one is the same job, whose lease was lost while the machine stood still
				firsts[s.ID]++
			}
		}
		for _, info := range infos {
			require.Zero(t, info.Missed+info.Skipped+info.Failures)
			last := info.LastSlot.UnixMilli()
			for n := range info.Fired {
				id := fmt.Sprintf("%s@%d", info.Name, last-n*every.Milliseconds())
				require.Positive(t, times[id], id)
				require.LessOrEqual(t, firsts[id], 1, id)
			}
		}
	})
}

// A typed topic encodes the payload of a schedule as that of a job.
func TestScheduleOfATypedTopic(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		topic := delayq.NewTopic[[]string]("t", delayq.JSON)
		var got []string
		queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			topic.Handle(s, func(_ context.Context, job *delayq.Job, value []string) error {
				got = append(got, job.Schedule, value[0])
				return nil
			})
		})
		require.NoError(b, topic.Schedule(b.Context(), b.Client, "s", delayq.Every(time.Second), []string{"x"}))
		require.ErrorIs(b, delayq.NewTopic[func()]("t").Schedule(b.Context(), b.Client, "f", delayq.Every(time.Second), nil), delayq.ErrInvalid)
		b.Pass(time.Second)
		require.Equal(b, []string{"s", "x"}, got)
	})
}

// Thousands of schedules have a slot in the same millisecond: each has its one job, and all of them
// start in that millisecond. (F10, G7)
func TestManySchedulesAtOneSlot(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		schedules := redistest.Size(5000)
		for i := range schedules {
			b.AddSchedule(fmt.Sprint(i), delayq.Every(time.Minute))
		}
		var rec queuetest.Recorder
		b.Pass(50 * time.Second)
		for range 2 {
			b.Serve("t", rec.Then(nil))
		}
		b.Pass(10*time.Second - time.Millisecond)
		require.Empty(b, rec.All())
		b.Pass(time.Millisecond)
		require.Len(b, rec.Times(), schedules)
		require.Len(b, rec.All(), schedules)
		for _, s := range rec.All() {
			require.Equal(b, time.Minute, s.At.Sub(b.Began))
		}
	})
}
