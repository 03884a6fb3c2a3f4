package tests

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/record"
)

// Slots that are close together are fired by one call, which reads the next ones: no slot is late
// by more than the few ms that this takes, and a slot alone is not late.
func TestSlotsAreFiredTogether(t *testing.T) {
	for name, c := range map[string]struct {
		step  time.Duration // between the slots of two schedules
		calls int           // most calls that fire, of 100 slots
		late  time.Duration
	}{
		"1 ms apart":   {time.Millisecond, 27, 3 * time.Millisecond},
		"2 ms apart":   {2 * time.Millisecond, 52, 2 * time.Millisecond},
		"4 ms apart":   {4 * time.Millisecond, 102, 0},
		"all together": {0, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var r queuetest.Recorder
				var calls counted
				b.Serve("t", r.Then(nil), delayq.Hooks(&calls))
				var list []delayq.NewSchedule
				for i := range 100 {
					at := b.Began.Add(time.Minute + time.Duration(i)*c.step)
					list = append(list, delayq.NewSchedule{Topic: "t", Name: fmt.Sprint(i), Spec: delayq.Every(time.Minute), Options: []delayq.ScheduleOption{delayq.StartAt(at)}})
				}
				_, err := b.Client.ScheduleBatch(b.Context(), list)
				require.NoError(b, err)
				b.Pass(30 * time.Second)
				calls.take()
				b.Pass(time.Minute)
				require.Len(b, r.All(), len(list))
				for _, run := range r.All() {
					id, ok := record.DecodeSlotID(run.ID)
					require.True(b, ok)
					late := run.Started.Sub(time.UnixMilli(id.Slot))
					require.LessOrEqual(b, late, c.late, run.ID)
					require.GreaterOrEqual(b, late, time.Duration(0), run.ID)
				}
				made := calls.take()
				require.LessOrEqual(b, made["schedule_fire"], c.calls)
				require.LessOrEqual(b, made["schedule_due"], 3)
			})
		})
	}
}

// gathering serves a topic with slots 1 ms apart in the second from a minute on, and a schedule "s"
// with a slot in the middle of it. Shortly before that, something happens to it.
func gathering(b *queuetest.Bubble, r *queuetest.Recorder, change func(), opts ...delayq.ScheduleOption) {
	b.Serve("t", r.Then(nil))
	var list []delayq.NewSchedule
	add := func(name string, at time.Duration, opts ...delayq.ScheduleOption) {
		opts = append(opts, delayq.StartAt(b.Began.Add(at)))
		list = append(list, delayq.NewSchedule{Topic: "t", Name: name, Spec: delayq.Every(time.Hour), Options: opts})
	}
	for i := range 900 {
		add(fmt.Sprint(i), time.Minute+time.Duration(i)*time.Millisecond)
	}
	add("s", time.Minute+501*time.Millisecond, opts...)
	_, err := b.Client.ScheduleBatch(b.Context(), list)
	require.NoError(b, err)
	b.Pass(time.Minute + 500*time.Millisecond) // "s" has been read
	change()
	b.Pass(time.Minute)
	require.Len(b, slices.DeleteFunc(r.IDs(), func(id string) bool { return strings.HasPrefix(id, "s") }), 900)
	for _, run := range r.All() {
		id, _ := record.DecodeSlotID(run.ID)
		require.LessOrEqual(b, run.Started.Sub(time.UnixMilli(id.Slot)), 5*time.Millisecond, run.ID)
	}
}

// What happens to a schedule between the call that reads it and the one that fires it counts.
func TestSlotsThatWereReadCanChange(t *testing.T) {
	const slot = time.Minute + 501*time.Millisecond
	for name, c := range map[string]struct {
		change func(b *queuetest.Bubble) error
		want   []time.Duration
	}{
		"nothing": {func(*queuetest.Bubble) error { return nil }, []time.Duration{slot}},
		"removed": {func(b *queuetest.Bubble) error { return b.Client.Unschedule(b.Context(), "t", "s") }, nil},
		"paused":  {func(b *queuetest.Bubble) error { return b.Client.PauseSchedule(b.Context(), "t", "s") }, nil},
		"replaced": {func(b *queuetest.Bubble) error {
			return b.Client.Schedule(b.Context(), "t", "s", delayq.Every(time.Hour), []byte("new"), delayq.StartAt(b.Began.Add(slot)))
		}, []time.Duration{slot}},
		"earlier": {func(b *queuetest.Bubble) error {
			return b.Client.Schedule(b.Context(), "t", "s 2", delayq.Every(time.Hour), nil, delayq.StartAt(b.Began.Add(slot)))
		}, []time.Duration{slot}},
	} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var r queuetest.Recorder
				gathering(b, &r, func() { require.NoError(b, c.change(b)) })
				var got []time.Duration
				for _, run := range r.All() {
					if id, _ := record.DecodeSlotID(run.ID); id.Schedule == "s" {
						got = append(got, time.UnixMilli(id.Slot).Sub(b.Began))
						require.Equal(b, name == "replaced", run.Payload == "new")
					}
				}
				require.Equal(b, c.want, got)
			})
		})
	}
}

// A slot that waits for a run is fired when that ends, also while others are fired all the time.
func TestSlotsThatWaitBesideOthers(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var ended atomic.Int64 // ns; 0: the slow run is not over, or on the other server
		var r, other queuetest.Recorder
		b.Serve("t", r.Then(func(_ context.Context, job *delayq.Job) error {
			if job.Schedule == "slow" && ended.Load() == 0 {
				time.Sleep(150 * time.Millisecond)
				ended.Store(int64(b.At()))
			}
			return nil
		}))
		b.Serve("t", other.Then(nil)) // it cannot know when the run ends
		var list []delayq.NewSchedule
		for i := range 400 {
			at := delayq.StartAt(b.Began.Add(time.Minute + time.Duration(i)*time.Millisecond))
			list = append(list, delayq.NewSchedule{Topic: "t", Name: fmt.Sprint(i), Spec: delayq.Every(time.Hour), Options: []delayq.ScheduleOption{at}})
		}
		at := delayq.StartAt(b.Began.Add(time.Minute))
		list = append(list, delayq.NewSchedule{Topic: "t", Name: "slow", Spec: delayq.Every(100 * time.Millisecond), Options: []delayq.ScheduleOption{at, delayq.OverlapQueueOne}})
		_, err := b.Client.ScheduleBatch(b.Context(), list)
		require.NoError(b, err)
		b.Pass(time.Minute + 300*time.Millisecond)
		var starts []time.Duration
		for _, run := range append(r.All(), other.All()...) {
			if strings.HasPrefix(run.ID, "slow@") {
				starts = append(starts, run.Started.Sub(b.Began)-time.Minute)
			}
		}
		slices.Sort(starts)
		require.GreaterOrEqual(b, len(starts), 2)
		if end := time.Duration(ended.Load()); end > 0 { // the slow run was on the first server
			require.LessOrEqual(b, starts[1]-(end-time.Minute), 5*time.Millisecond)
		}
	})
}

// Schedules that a server cannot fire do not make the others cost more calls, and are fired once a
// server can.
func TestSlotsBesideThoseThatCannotBeFired(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		var calls counted
		b.Serve("t", r.Then(nil), delayq.Hooks(&calls))
		var list []delayq.NewSchedule
		for i := range 400 {
			at := delayq.StartAt(b.Began.Add(time.Minute + time.Duration(i)*time.Millisecond))
			list = append(list, delayq.NewSchedule{Topic: "t", Name: fmt.Sprint(i), Spec: delayq.Every(time.Hour), Options: []delayq.ScheduleOption{at}})
		}
		for i := range 3 {
			at := delayq.StartAt(b.Began.Add(time.Minute + 10*time.Millisecond))
			list = append(list, delayq.NewSchedule{Topic: "t", Name: fmt.Sprint("unknown ", i), Spec: delayq.OnCalendar("unknown"), Options: []delayq.ScheduleOption{at}})
		}
		_, err := b.Client.ScheduleBatch(b.Context(), list)
		require.NoError(b, err)
		b.Pass(30 * time.Second)
		calls.take()
		b.Pass(time.Minute)
		require.Len(b, r.All(), 400)
		for _, run := range r.All() {
			id, _ := record.DecodeSlotID(run.ID)
			require.LessOrEqual(b, run.Started.Sub(time.UnixMilli(id.Slot)), 5*time.Millisecond, run.ID)
		}
		require.LessOrEqual(b, calls.take()["schedule_fire"], 120)
	})
}

// The job of a slot can be due later. It starts then, whether other slots are fired meanwhile or
// not.
func TestSlotsWithDelayedJobs(t *testing.T) {
	for name, others := range map[string]int{"alone": 0, "beside others": 900} {
		t.Run(name, func(t *testing.T) {
			queuetest.InBubble(t, func(b *queuetest.Bubble) {
				var r queuetest.Recorder
				b.Serve("t", r.Then(nil))
				var list []delayq.NewSchedule
				for i := range others {
					at := delayq.StartAt(b.Began.Add(10*time.Second + time.Duration(i)*time.Millisecond))
					list = append(list, delayq.NewSchedule{Topic: "t", Name: fmt.Sprint(i), Spec: delayq.Every(time.Hour), Options: []delayq.ScheduleOption{at}})
				}
				_, err := b.Client.ScheduleBatch(b.Context(), list)
				require.NoError(b, err)
				const delay = 200 * time.Millisecond
				b.AddSchedule("s", delayq.Every(1100*time.Millisecond), delayq.ProcessIn(delay))
				b.Pass(20 * time.Second)
				n := 0
				for _, run := range r.All() {
					if id, _ := record.DecodeSlotID(run.ID); id.Schedule == "s" {
						n++
						require.Equal(b, delay, run.Started.Sub(time.UnixMilli(id.Slot)), run.ID)
					}
				}
				require.GreaterOrEqual(b, n, 17)
			})
		})
	}
}

// A slot that waited is fired after the call that reads the next slots. The one that follows it can
// come before these.
func TestSlotsAfterOneThatWaited(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var r queuetest.Recorder
		b.Serve("t", r.Then(func(_ context.Context, job *delayq.Job) error {
			if job.Schedule == "slow" {
				time.Sleep(150 * time.Millisecond)
			}
			return nil
		}))
		at := delayq.StartAt(b.Began.Add(10 * time.Second))
		b.AddSchedule("slow", delayq.Every(100*time.Millisecond), at, delayq.OverlapQueueOne)
		b.AddSchedule("rare", delayq.Every(950*time.Millisecond), at)
		b.Pass(15 * time.Second)
		n := 0
		for _, run := range r.All() {
			if id, _ := record.DecodeSlotID(run.ID); id.Schedule == "slow" {
				n++
				require.LessOrEqual(b, run.Started.Sub(time.UnixMilli(id.Slot)), 150*time.Millisecond, run.ID)
			}
		}
		require.GreaterOrEqual(b, n, 33, "one run follows the other")
		require.Zero(b, b.ScheduleInfo("slow").Missed)
	})
}
