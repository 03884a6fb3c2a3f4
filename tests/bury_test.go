package tests

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
	"github.com/delayq/delayq/internal/redistest"
)

// A job that a client buries does not run until it is revived, and says why.
func TestBuryInEachState(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx, c := b.Context(), b.Client
		var mu sync.Mutex
		runs := map[string]int{}
		s := b.Serve("t", func(ctx context.Context, job *delayq.Job) error {
			mu.Lock()
			runs[job.ID]++
			mu.Unlock()
			switch {
			case job.ID == "running":
				<-ctx.Done()
			case job.ID == "back" && job.Attempt == 1:
				return errors.New("first")
			case job.ID == "dead":
				return delayq.Permanent(errors.New("no"))
			}
			return nil
		}, delayq.Drain(0))
		b.Enqueue("t", "running")
		b.Enqueue("t", "back", delayq.Backoff(10*time.Minute, 10*time.Minute))
		b.Enqueue("t", "dead")
		b.Enqueue("t", "done", delayq.Retention(24*time.Hour))
		b.Enqueue("t", "later", delayq.ProcessIn(time.Minute))
		b.Pass(time.Second)
		require.NoError(b, c.Pause(ctx, "t", delayq.Pause{}))
		b.Enqueue("t", "ready")
		b.Pass(time.Millisecond)

		before := redistest.Dump(b.T, b.RDB, queuetest.Prefix)
		for id, want := range map[string]error{
			"running": delayq.ErrRunning, "dead": delayq.ErrDead, "done": delayq.ErrNotFound, "none": delayq.ErrNotFound,
		} {
			err := c.Bury(ctx, "t", id, "why")
			require.ErrorIs(b, err, want)
			require.ErrorContains(b, err, `bury topic "t" job "`+id+`": `)
		}
		err := c.Bury(ctx, "t", "ready", strings.Repeat("x", 1025))
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.ErrorContains(b, err, "reason of 1025 bytes, at most 1024 are allowed")
		require.ErrorIs(b, c.Bury(ctx, "bad{", "ready", ""), delayq.ErrInvalid)
		require.Equal(b, before, redistest.Dump(b.T, b.RDB, queuetest.Prefix))

		due := map[string]time.Time{}
		reason := "the bank\xff is \"down\"\n" + strings.Repeat("ö", 500)
		for _, id := range []string{"ready", "later", "back"} {
			due[id] = b.Get("t", id).Due
			require.NoError(b, c.Bury(ctx, "t", id, reason), id)
			info := b.Get("t", id)
			require.Equal(b, delayq.StateDead, info.State)
			require.WithinDuration(b, time.Now(), info.BuriedAt, time.Millisecond)
			require.Equal(b, delayq.DueBury, info.DueReason)
			require.WithinDuration(b, due[id], info.Due, time.Second, "when it would have run")
			last := info.Errors[len(info.Errors)-1]
			require.Equal(b, delayq.KindBuried, last.Kind)
			require.Equal(b, strings.ToValidUTF8(reason, "\uFFFD"), last.Message)
			require.True(b, last.NextDue.IsZero())
			require.Equal(b, map[string]int{"ready": 1, "later": 1, "back": 2}[id], last.Attempt)
			require.ErrorIs(b, c.Bury(ctx, "t", id, ""), delayq.ErrDead)
		}
		require.EqualValues(b, 4, b.Counter("t", delayq.CounterBuried))
		require.NoError(b, c.ResumeAll(ctx, "t"))
		b.Pass(20 * time.Minute)
		require.Equal(b, map[string]int{"running": 1, "back": 1, "dead": 1, "done": 1}, runs)

		report, err := c.Repair(ctx, "t")
		require.NoError(b, err)
		require.Empty(b, report.Findings)
		require.NoError(b, b.RDB.Del(ctx, queuetest.Prefix+":{t}:dead").Err())
		_, err = c.Repair(ctx, "t")
		require.NoError(b, err)
		for _, id := range []string{"ready", "later", "back", "dead"} {
			require.Equal(b, delayq.StateDead, b.State("t", id), "repaired")
			require.NoError(b, c.Revive(ctx, "t", id))
		}
		b.Pass(time.Second)
		require.Equal(b, map[string]int{"running": 1, "back": 2, "dead": 2, "done": 1, "ready": 1, "later": 1}, runs)
		require.NoError(b, s.Stop())
	})
}

// The run of a schedule's job that is buried has ended: its history says so, and a slot that waits
// for it is fired.
func TestBuryOfAScheduledJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		ctx, c := b.Context(), b.Client
		b.AddSchedule("s", delayq.Every(time.Minute), delayq.OverlapQueueOne, delayq.ProcessIn(time.Hour))
		b.Serve("t", func(context.Context, *delayq.Job) error { return nil })
		b.Pass(150 * time.Second)
		info := b.ScheduleInfo("s")
		require.True(b, info.LastUnfinished)
		require.False(b, info.WaitingSlot.IsZero())
		require.EqualValues(b, 1, info.Fired)

		long := strings.Repeat("ö", 128) + "ö and more"
		require.NoError(b, c.Bury(ctx, "t", info.LastJobID, long))
		b.Pass(2 * time.Second)
		info = b.ScheduleInfo("s")
		require.EqualValues(b, 2, info.Fired, "the slot that waited")
		require.EqualValues(b, 1, info.Attempts)
		require.EqualValues(b, 1, info.Failures)
		require.Equal(b, delayq.OutcomeBuried, info.LastRun.Outcome)
		require.Equal(b, 1, info.LastRun.Attempt)
		require.Equal(b, strings.Repeat("ö", 127), info.LastRun.Error, "whole characters")
		require.Zero(b, info.LastRun.StartedAt)
	})
}

// Many ready jobs are buried at a bounded cost for each call, however deep they are.
func TestBuryOfReadyJobs(t *testing.T) {
	queuetest.EachClient(t, func(t *testing.T, f *queuetest.Fixture) {
		for _, id := range []string{"a", "b", "c"} {
			f.Enqueue(id)
		}
		require.NoError(t, f.Client.Bury(t.Context(), "topic", "b", ""))
		ready, err := f.RDB.LRange(t.Context(), f.Key("ready"), 0, -1).Result()
		require.NoError(t, err)
		require.Equal(t, []string{"a", "c"}, ready)
		require.Empty(t, f.Get("b").Errors[0].Message)
	})
}
