package delayq_test

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
	"github.com/delayq/delayq/internal/redistest"
)

func (b *bubble) schedule(name string, spec delayq.Spec, opts ...delayq.ScheduleOption) {
	b.Helper()
	require.NoError(b, b.client.Schedule(b.Context(), "t", name, spec, []byte("of "+name), opts...))
}

func (b *bubble) info(name string) *delayq.ScheduleInfo {
	b.Helper()
	info, err := b.client.ScheduleInfo(b.Context(), "t", name)
	require.NoError(b, err)
	return info
}

// id is that of the job of a slot, which is given as the time since the beginning.
func (b *bubble) id(name string, slot time.Duration) string {
	return fmt.Sprintf("%s@%d", name, b.began.Add(slot).UnixMilli())
}

// slots are those that the jobs of a schedule were started for, as times since the beginning; each
// at the very ms.
func (b *bubble) slots(r *recorder, name string) (list []time.Duration) {
	b.Helper()
	for _, s := range r.all() {
		if strings.HasPrefix(s.id, name+"@") && s.attempt == 1 {
			list = append(list, s.started.Sub(b.began))
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
	inBubble(t, func(b *bubble) {
		var r recorder
		for range 3 {
			b.serve("t", r.then(func(_ context.Context, job *delayq.Job) error {
				require.Equal(b, "tick", job.Schedule)
				require.Equal(b, job.ID, b.id("tick", job.Slot.Sub(b.began)))
				require.Equal(b, job.Slot, job.Due)
				return nil
			}))
		}
		b.schedule("tick", delayq.Every(10*time.Second))
		info := b.info("tick")
		require.Equal(b, delayq.ScheduleWaiting, info.State)
		require.Equal(b, "every 10s", info.Spec.String())
		require.True(b, b.began.Add(10*time.Second).Equal(info.NextSlot))
		require.Zero(b, info.LastSlot)
		require.Nil(b, info.LastRun)

		b.pass(35 * time.Second)
		require.Equal(b, seconds(10, 20, 30), b.slots(&r, "tick"))
		require.Equal(b, []string{b.id("tick", 10*time.Second), b.id("tick", 20*time.Second), b.id("tick", 30*time.Second)}, r.ids())
		require.Equal(b, "of tick", r.all()[0].payload)
		info = b.info("tick")
		require.EqualValues(b, 3, info.Fired)
		require.EqualValues(b, 3, info.Attempts)
		require.Zero(b, info.Failures+info.Skipped+info.Missed)
		require.True(b, b.began.Add(40*time.Second).Equal(info.NextSlot))
		require.True(b, b.began.Add(30*time.Second).Equal(info.LastSlot))
		require.Equal(b, delayq.OutcomeAcked, info.LastRun.Outcome)
		require.EqualValues(b, 3, b.counter("t", "fired"))
	})
}

// A second server, a client and Redis agree though the clock of the bubble is not theirs: Redis is
// a century ahead.
func TestScheduleFollowsTheClockOfRedis(t *testing.T) {
	inBubble(t, func(b *bubble) {
		b.redis.SetTime(time.Date(2100, 3, 28, 0, 59, 59, 0, time.UTC))
		var r recorder
		b.serve("t", r.then(nil))
		b.schedule("spring", delayq.Cron("30 2 * * *", "Europe/Berlin"))
		require.Equal(b, "2100-03-28 01:00:00", b.info("spring").NextSlot.UTC().Format(time.DateTime))
		b.redis.SetTime(time.Date(2100, 3, 28, 1, 0, 0, 0, time.UTC))
		b.pass(time.Second) // the tick: it is the clock of the bubble that timers run by
		require.Equal(b, []string{fmt.Sprintf("spring@%d", time.Date(2100, 3, 28, 1, 0, 0, 0, time.UTC).UnixMilli())}, r.ids())
	})
}

func TestSchedulePauseTriggerAndRemove(t *testing.T) {
	inBubble(t, func(b *bubble) {
		ctx := b.Context()
		var r recorder
		b.serve("t", r.then(nil))
		b.schedule("s", delayq.Every(10*time.Second))
		b.pass(11 * time.Second)
		require.NoError(b, b.client.PauseSchedule(ctx, "t", "s"))
		require.NoError(b, b.client.PauseSchedule(ctx, "t", "s"))
		info := b.info("s")
		require.Equal(b, delayq.SchedulePaused, info.State)
		require.True(b, b.began.Add(11*time.Second).Equal(info.PausedSince))
		require.Zero(b, info.NextSlot)
		b.pass(20 * time.Second)
		require.Len(b, r.ids(), 1)

		id, err := b.client.Trigger(ctx, "t", "s") // also while it is paused
		require.NoError(b, err)
		require.Equal(b, fmt.Sprintf("s!%d", time.Now().UnixMilli()), id)
		b.pass(time.Millisecond) // the ID is the name and the time
		second, err := b.client.Trigger(ctx, "t", "s")
		require.NoError(b, err)
		b.pass(0)
		require.ElementsMatch(b, []string{b.id("s", 10*time.Second), id, second}, r.ids())
		require.NotEqual(b, id, second)

		// A change of a paused schedule leaves it paused.
		b.schedule("s", delayq.Every(5*time.Second))
		require.Equal(b, delayq.SchedulePaused, b.info("s").State)
		require.NoError(b, b.client.ResumeSchedule(ctx, "t", "s"))
		require.NoError(b, b.client.ResumeSchedule(ctx, "t", "s"))
		info = b.info("s")
		require.True(b, b.began.Add(35*time.Second).Equal(info.NextSlot))
		require.Zero(b, info.Missed+info.Skipped)
		b.pass(4 * time.Second)
		require.Equal(b, seconds(10, 35), b.slots(&r, "s"))
		runs, err := b.client.Runs(ctx, "t", "s", 100)
		require.NoError(b, err)
		require.Len(b, runs, 4)
		require.True(b, runs[1].Triggered)

		require.NoError(b, b.client.Unschedule(ctx, "t", "s"))
		require.ErrorIs(b, b.client.Unschedule(ctx, "t", "s"), delayq.ErrNotFound)
		b.pass(time.Minute)
		require.Len(b, r.ids(), 4)
		_, err = b.client.ScheduleInfo(ctx, "t", "s")
		require.ErrorIs(b, err, delayq.ErrNotFound)
	})
}

// A schedule that is removed takes the job of its last slot with it, in whatever state that is,
// unless it runs; a triggered one stays. (D16)
func TestRemovedScheduleLeavesNoJob(t *testing.T) {
	inBubble(t, func(b *bubble) {
		ctx := b.Context()
		var r recorder
		finish := make(chan struct{})
		once := b.serve("failing", r.then(func(context.Context, *delayq.Job) error { return errTest }))
		b.serve("running", r.then(func(context.Context, *delayq.Job) error {
			<-finish
			return nil
		}))
		for _, topic := range []string{"ready", "failing", "running", "delayed"} {
			opts := []delayq.ScheduleOption{}
			if topic == "delayed" {
				opts = append(opts, delayq.ProcessIn(time.Minute))
			}
			require.NoError(b, b.client.Schedule(ctx, topic, "s", delayq.Every(10*time.Second), []byte("payload"), opts...))
		}
		stop := []*served{b.serve("ready", r.then(nil)), b.serve("delayed", r.then(nil))} // they fire
		require.NoError(b, b.client.Pause(ctx, "ready", delayq.Pause{}))
		b.pass(10*time.Second + time.Millisecond)
		id := fmt.Sprint("s@", b.began.Add(10*time.Second).UnixMilli())
		for topic, state := range map[string]delayq.State{
			"ready": delayq.StateReady, "failing": delayq.StateScheduled, "running": delayq.StateRunning, "delayed": delayq.StateScheduled,
		} {
			require.Equal(b, state, b.state(topic, id), topic)
		}
		triggered, err := b.client.Trigger(ctx, "ready", "s")
		require.NoError(b, err)
		for _, topic := range []string{"ready", "failing", "running", "delayed"} {
			require.NoError(b, b.client.Unschedule(ctx, topic, "s"))
		}
		close(finish)
		require.NoError(b, b.client.Resume(ctx, "ready", ""))
		b.pass(2 * time.Minute)
		require.ElementsMatch(b, []string{id, id, triggered}, r.ids(), "one failed once, one ran to its end")
		for _, topic := range []string{"ready", "failing", "running", "delayed"} {
			info, err := b.client.Inspect(ctx, topic)
			require.NoError(b, err)
			require.Zero(b, info.Scheduled+info.Ready+info.Running+info.Dead, topic)
			require.Equal(b, topic != "running", info.Counters["cancelled"] == 1, topic)
		}
		for _, s := range append(stop, once) {
			require.NoError(b, s.stop())
		}
	})
}

// The same schedule again changes nothing, another one takes its place, with the counts going on.
func TestScheduleAgain(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var r recorder
		b.serve("t", r.then(nil))
		headers := []delayq.ScheduleOption{delayq.Header("a", "1"), delayq.Header("b", "2"), delayq.Header("c", "3"), delayq.MaxRuns(2)}
		b.schedule("s", delayq.Every(time.Minute), headers...)
		changed := b.info("s").ChangedAt
		b.pass(30 * time.Second)
		for range 20 { // maps have no order
			b.schedule("s", delayq.Every(time.Minute), headers...)
		}
		require.Equal(b, changed, b.info("s").ChangedAt)
		b.pass(100 * time.Second)
		require.Equal(b, delayq.ScheduleEnded, b.info("s").State)
		b.schedule("s", delayq.Every(time.Minute), headers...) // the same: it stays ended
		b.pass(time.Minute)
		require.Len(b, r.ids(), 2)

		b.schedule("s", delayq.Every(2*time.Minute), headers...)
		require.Equal(b, delayq.ScheduleWaiting, b.info("s").State)
		b.pass(10 * time.Minute)
		info := b.info("s")
		require.Equal(b, delayq.ScheduleEnded, info.State)
		require.EqualValues(b, 4, info.Fired)
		require.EqualValues(b, 4, info.Attempts)
	})
}

func TestScheduleBounds(t *testing.T) {
	inBubble(t, func(b *bubble) {
		var r recorder
		b.serve("t", r.then(nil))
		at := func(s int) time.Time { return b.began.Add(time.Duration(s) * time.Second) }
		b.schedule("span", delayq.Every(10*time.Second), delayq.StartAt(at(13)), delayq.EndAt(at(33)))
		b.schedule("jitter", delayq.Every(10*time.Second), delayq.Jitter(3*time.Second), delayq.EndAt(at(40)), delayq.OverlapAllow)
		b.schedule("later", delayq.Every(20*time.Second), delayq.ProcessIn(time.Second), delayq.EndAt(at(25)))
		b.pass(time.Minute)
		require.Equal(b, seconds(13, 23, 33), b.slots(&r, "span"))
		require.Equal(b, delayq.ScheduleEnded, b.info("span").State)
		require.Equal(b, seconds(21), b.slots(&r, "later"))
		late := map[time.Duration]bool{}
		for _, s := range r.all() {
			if strings.HasPrefix(s.id, "jitter@") {
				late[s.started.Sub(b.began)%(10*time.Second)] = true
			}
		}
		require.Len(b, late, 4) // none like another, none late by more than the jitter
		for d := range late {
			require.LessOrEqual(b, d, 3*time.Second)
		}
	})
}

// Nothing is written, and the error says what is wrong.
func TestScheduleBadInput(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
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
			err := f.client.Schedule(t.Context(), test.topic, test.name, test.spec, test.payload, test.opts...)
			require.ErrorIs(t, err, delayq.ErrInvalid, test.say)
			require.ErrorContains(t, err, test.say)
		}
		ctx := t.Context()
		_, err := f.client.Runs(ctx, "t", "n", 0)
		require.ErrorIs(t, err, delayq.ErrInvalid)
		for what, err := range map[string]error{
			"pause": f.client.PauseSchedule(ctx, "t", "n"), "resume": f.client.ResumeSchedule(ctx, "t", "n"),
			"remove": f.client.Unschedule(ctx, "t", "n"), "trigger": second(f.client.Trigger(ctx, "t", "n")),
			"info": second(f.client.ScheduleInfo(ctx, "t", "n")), "runs": second(f.client.Runs(ctx, "t", "n", 1)),
		} {
			require.ErrorIs(t, err, delayq.ErrNotFound, what)
		}
		for what, err := range map[string]error{
			"pause": f.client.PauseSchedule(ctx, "t", ""), "resume": f.client.ResumeSchedule(ctx, "", "n"),
			"remove": f.client.Unschedule(ctx, "t", ""), "trigger": second(f.client.Trigger(ctx, "t", "")),
			"info": second(f.client.ScheduleInfo(ctx, "t", "")), "list": second(f.client.Schedules(ctx, "")),
		} {
			require.ErrorIs(t, err, delayq.ErrInvalid, what)
		}
		list, err := f.client.Schedules(ctx, "t")
		require.NoError(t, err)
		require.Empty(t, list)
		require.Empty(t, f.dump())
		topics, err := f.client.Topics(ctx)
		require.NoError(t, err)
		require.Empty(t, topics)
	})
}

func second[T any](_ T, err error) error { return err }

// A jitter that is just below what would let a job expire is none too many, and ExpireAt is another
// matter.
func TestScheduleJitterBelowExpiry(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		for _, opts := range [][]delayq.ScheduleOption{
			{delayq.ExpireIn(time.Hour), delayq.ProcessIn(45 * time.Minute), delayq.Jitter(15*time.Minute - time.Millisecond)},
			{delayq.ExpireAt(time.Now().Add(time.Hour)), delayq.Jitter(2 * time.Hour)},
			{delayq.ExpireIn(time.Hour), delayq.ProcessIn(time.Hour - time.Millisecond)},
		} {
			require.NoError(t, f.client.Schedule(t.Context(), "t", "n", delayq.Every(time.Hour), nil, opts...))
		}
	})
}

// Each call triggers a job of its own, with nobody to fire the schedule. (On both backends.)
func TestTriggerAgainAndAgain(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		require.NoError(t, f.client.Schedule(ctx, "topic", "n", delayq.Every(time.Hour), []byte("payload")))
		ids := map[string]bool{}
		for range 3 {
			id, err := f.client.Trigger(ctx, "topic", "n")
			require.NoError(t, err)
			info := f.get(id)
			require.Equal(t, delayq.StateReady, info.State)
			require.Equal(t, "payload", string(info.Payload))
			ids[id] = true
		}
		require.Len(t, ids, 3)
		require.EqualValues(t, 3, counterOf(t, f.client, "topic", "enqueued"))
	})
}

// All that is known of a schedule, on both backends, with nobody to fire it.
func TestScheduleInfo(t *testing.T) {
	eachClient(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		start := time.Now().Add(100 * time.Hour).Truncate(time.Millisecond)
		require.NoError(t, f.client.Schedule(ctx, "topic", "b", delayq.Cron("0 9 * * 1-5", "Europe/Berlin"), []byte("payload"), delayq.OverlapQueueOne,
			delayq.MissedCatchUp(3), delayq.StartAt(start), delayq.EndAt(start.AddDate(1, 0, 0)), delayq.MaxRuns(7), delayq.Jitter(time.Minute),
			delayq.Retry(3), delayq.Timeout(time.Second), delayq.Header("k", "v"), delayq.Retention(time.Hour)))
		require.NoError(t, f.client.Schedule(ctx, "topic", "a", delayq.Every(time.Millisecond), nil))
		require.NoError(t, f.client.Schedule(ctx, "topic", "c", delayq.OnCalendar("x"), nil))
		list, err := f.client.Schedules(ctx, "topic")
		require.NoError(t, err)
		require.Len(t, list, 3)
		require.Equal(t, []string{"a", "b", "c"}, []string{list[0].Name, list[1].Name, list[2].Name})
		info, err := f.client.ScheduleInfo(ctx, "topic", "b")
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
		topic, err := f.client.Inspect(ctx, "topic")
		require.NoError(t, err)
		require.EqualValues(t, 3, topic.Schedules)
		topics, err := f.client.Topics(ctx)
		require.NoError(t, err)
		require.Equal(t, []string{"topic"}, topics)

		for range 150 { // more than a page
			require.NoError(t, f.client.Schedule(ctx, "topic", fmt.Sprint("n", len(list)), delayq.Every(time.Hour), nil))
			list = append(list, nil)
		}
		list, err = f.client.Schedules(ctx, "topic")
		require.NoError(t, err)
		require.Len(t, list, 153)
		for _, info := range list {
			require.NoError(t, f.client.Unschedule(ctx, "topic", info.Name))
		}
		require.Empty(t, f.dump())
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
		var r recorder
		for range 3 {
			serve(t, rdb, prefix, "t", r.then(nil))
		}
		const every, schedules = 30 * time.Millisecond, 30
		for i := range schedules {
			// MissedCatchUp: on a machine that stands still for a moment all slots have their jobs
			// all the same.
			require.NoError(t, client.Schedule(t.Context(), "t", fmt.Sprint("s", i), delayq.Every(every), nil, delayq.OverlapAllow, delayq.MissedCatchUp(1000)))
		}
		until(t, func() bool { return len(r.all()) > 20*schedules })
		for i := range schedules {
			require.NoError(t, client.PauseSchedule(t.Context(), "t", fmt.Sprint("s", i)))
		}
		infos, err := client.Schedules(t.Context(), "t")
		require.NoError(t, err)
		total := 0
		for _, info := range infos {
			total += int(info.Fired)
		}
		until(t, func() bool { return len(r.times()) == total })
		state, err := client.Inspect(t.Context(), "t")
		require.NoError(t, err)
		require.LessOrEqual(t, int64(len(r.all())-total), state.Counters["reclaimed"])
		times, firsts := r.times(), map[string]int{}
		for _, s := range r.all() {
			if s.attempt == 1 { // the second one is the same job, whose lease was lost while the machine stood still
				firsts[s.id]++
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
	inBubble(t, func(b *bubble) {
		topic := delayq.NewTopic[[]string]("t", delayq.JSON)
		var got []string
		serveMany(b.T, b.rdb, bubblePrefix, func(s *delayq.Server) {
			topic.Handle(s, func(_ context.Context, job *delayq.Job, value []string) error {
				got = append(got, job.Schedule, value[0])
				return nil
			})
		})
		require.NoError(b, topic.Schedule(b.Context(), b.client, "s", delayq.Every(time.Second), []string{"x"}))
		require.ErrorIs(b, delayq.NewTopic[func()]("t").Schedule(b.Context(), b.client, "f", delayq.Every(time.Second), nil), delayq.ErrInvalid)
		b.pass(time.Second)
		require.Equal(b, []string{"s", "x"}, got)
	})
}
