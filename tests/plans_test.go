package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A planDay is short: on a fake clock too, a server looks at each tick.
const planDay = time.Minute

// mission returns the plan of a mailbox that expires, from the beginning of a bubble.
func mission(b *queuetest.Bubble) delayq.JobOption {
	var times []time.Time
	for _, day := range []int{23, 28, 29, 30} {
		times = append(times, b.Began.Add(time.Duration(day)*planDay))
	}
	return delayq.ProcessAtEach(times...)
}

// A planLog notes the runs of plans.
type planLog struct {
	b    *queuetest.Bubble
	mu   sync.Mutex
	list []string
	does func(job *delayq.Job) error // one at a time
}

func (l *planLog) Handle(_ context.Context, job *delayq.Job) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, fmt.Sprintf("%v: %s stage %d of %d attempt %d", l.b.At(), job.ID, job.Stage, job.Stages, job.Attempt))
	if l.does == nil {
		return nil
	}
	return l.does(job)
}

// runs returns them, and forgets them.
func (l *planLog) runs() (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, l.list = l.list, nil
	return list
}

// overs returns a letter for each stage: o for one that has had its turn, f for one that has failed
// for good, and a dot for one that is left.
func overs(info *delayq.JobInfo) (letters string) {
	for _, s := range info.Plan {
		switch {
		case !s.FailedAt.IsZero():
			letters += "f"
		case s.Over:
			letters += "o"
		default:
			letters += "."
		}
	}
	return letters
}

// The mission's case: each stage at its time, a stage that fails is retried as itself, with all its
// attempts, and one Dequeue undoes what is left.
func TestPlan(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		nonces := make(map[string]bool)
		l := &planLog{b: b}
		l.does = func(job *delayq.Job) error {
			require.Equal(b, "of "+job.ID, string(job.Payload))
			require.Equal(b, map[string]string{"x": "y"}, job.Headers)
			require.Equal(b, 3, job.Retries)
			require.Equal(b, "k", job.Key)
			require.Zero(b, job.Lateness()%(2*time.Second), "on time")
			nonces[job.Nonce()] = true
			clear(job.Payload)
			job.Headers["x"] = "z"
			if job.Stage == 2 && job.Attempt == 1 {
				return queuetest.ErrTest
			}
			require.NoError(b, job.SetOutput([]byte(fmt.Sprint(job.Stage))))
			return nil
		}
		b.Serve("t", l.Handle, delayq.Hooks(&hooks))
		opts := []delayq.JobOption{
			mission(b), delayq.Retry(3), delayq.Backoff(2*time.Second, 2*time.Second), delayq.Header("x", "y"), delayq.Key("k"),
			delayq.Retention(planDay),
		}
		job := b.Enqueue("t", "anna", opts...)
		require.Equal(b, []int{1, 4}, []int{job.Stage, job.Stages})
		require.True(b, job.Due.Equal(b.Began.Add(23*planDay)))
		b.Enqueue("t", "ben", opts...)
		require.Equal(b, "....", overs(b.Get("t", "anna")))

		b.Pass(28*planDay + 10*time.Second)
		info := b.Get("t", "anna")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, []int{3, 4, 1}, []int{info.Stage, info.Stages, info.Attempt})
		require.Equal(b, "oo..", overs(info))
		require.True(b, info.Due.Equal(b.Began.Add(29*planDay)))
		require.Empty(b, info.DueReason)
		require.Equal(b, map[string]int{"Started": 3, "Retried": 1, "Again": 2}, hooks.Kinds("anna"))
		_, err := b.Client.Dequeue(b.Context(), "t", "ben")
		require.NoError(b, err)

		b.Pass(2 * planDay)
		info = b.Get("t", "anna")
		require.Equal(b, delayq.StateDone, info.State, "of the last stage")
		require.Equal(b, "4", string(info.Output()))
		require.Equal(b, map[string]int{"Started": 5, "Retried": 1, "Again": 3, "Done": 1}, hooks.Kinds("anna"))
		require.NotContains(b, hooks.Kinds("ben"), "Done")
		var anna []string
		for _, line := range l.runs() {
			if strings.Contains(line, ": anna ") {
				anna = append(anna, line)
			}
		}
		require.Len(b, anna, 5)
		require.Contains(b, anna[0], "23m0s: anna stage 1 of 4 attempt 1")
		require.Contains(b, anna[2], "stage 2 of 4 attempt 2")
		require.Contains(b, anna[4], "30m0s: anna stage 4 of 4 attempt 1")
		require.Len(b, nonces, 6, "each stage has one")
		require.EqualValues(b, 6, b.Counter("t", delayq.CounterAcked))
	})
}

// A stage that fails for good does not stop those after it. When all have had their turn, the plan
// is dead, and Revive runs those that have failed.
func TestPlanGoesOn(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		var logbook queuetest.Logbook
		broken := true
		l := &planLog{b: b, does: func(job *delayq.Job) error {
			switch {
			case !broken || job.Stage%2 == 0:
				return nil
			case job.Stage == 1:
				return delayq.Permanent(errors.New("550 no such user"))
			}
			return queuetest.ErrTest
		}}
		b.Serve("t", l.Handle, delayq.Hooks(&hooks), logbook.To())
		b.Enqueue("t", "anna", mission(b), delayq.Retry(1), delayq.Backoff(5*time.Second, 5*time.Second))
		b.Pass(24 * planDay)
		info := b.Get("t", "anna")
		require.Equal(b, delayq.StateScheduled, info.State)
		require.Equal(b, "f...", overs(info))
		require.Equal(b, "550 no such user", info.Plan[0].Message)
		require.Equal(b, delayq.KindError, info.Plan[0].Kind)
		require.True(b, info.Plan[0].FailedAt.Equal(b.Began.Add(23*planDay)))
		require.NotEmpty(b, logbook.With("level=ERROR", "stage failed", "stage=1", "550 no such user"))
		require.True(b, hooks.Of("Retried")[0].NextDue.Equal(b.Began.Add(28*planDay)))

		b.Pass(7 * planDay)
		info = b.Get("t", "anna")
		require.Equal(b, delayq.StateDead, info.State, "the failure must be seen")
		require.Equal(b, "fofo", overs(info))
		require.Equal(b, 1, info.Stage, "which Revive runs")
		require.Len(b, info.Errors, 1)
		require.Equal(b, "550 no such user", info.Errors[0].Message)
		require.Len(b, l.runs(), 5)
		require.Equal(b, map[string]int{"Started": 5, "Retried": 3, "Again": 2, "Buried": 1}, hooks.Kinds("anna"))
		for name, want := range map[delayq.Counter]int64{
			delayq.CounterEnqueued: 3, delayq.CounterAcked: 2, delayq.CounterRetried: 3, delayq.CounterBuried: 1,
		} {
			require.Equal(b, want, b.Counter("t", name), name)
		}

		l.mu.Lock()
		broken = false
		l.mu.Unlock()
		require.NoError(b, b.Client.Revive(b.Context(), "t", "anna"))
		b.Pass(10 * time.Second)
		require.Equal(b, []string{"31m0s: anna stage 1 of 4 attempt 1", "31m0s: anna stage 3 of 4 attempt 1"}, l.runs())
		require.Empty(b, b.State("t", "anna"))
	})
}

// What the calls and results that move a job do to a plan.
func TestPlanAndOtherCalls(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		l := &planLog{b: b}
		asked := map[string]error{}
		l.does = func(job *delayq.Job) error {
			err := asked[job.ID]
			delete(asked, job.ID)
			return err
		}
		ask := func(id string, result error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			asked[id] = result
		}
		b.Serve("t", l.Handle)
		at := func(minutes ...int) delayq.JobOption {
			var times []time.Time
			for _, m := range minutes {
				times = append(times, b.Began.Add(time.Duration(m)*time.Minute))
			}
			return delayq.ProcessAtEach(times...)
		}
		says := func(id string, want ...string) {
			b.Helper()
			var got []string
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, line := range l.list {
				if when, rest, _ := strings.Cut(line, ": "); strings.HasPrefix(rest, id+" ") {
					got = append(got, when+strings.TrimPrefix(rest, id+" stage"))
				}
			}
			require.Equal(b, want, got, id)
		}
		ctx := b.Context()

		// What has passed runs at once, in order. The last stage waits for its time.
		b.Pass(3 * time.Minute)
		b.Enqueue("t", "late", at(1, 2, 4))
		// A stage that is snoozed beyond the next ones makes them late.
		b.Enqueue("t", "snoozed", at(4, 5, 6))
		ask("snoozed", delayq.Snooze(3*time.Minute))
		b.Enqueue("t", "delayed", at(4, 5, 6))
		ask("delayed", delayq.RetryIn(3*time.Minute, queuetest.ErrTest))
		// Again runs the stage again, with its payload.
		b.Enqueue("t", "again", at(4, 6))
		ask("again", delayq.Again([]byte("more"), delayq.ProcessIn(time.Minute)))
		b.Enqueue("t", "anew", at(4, 6))
		ask("anew", delayq.Again(nil, at(5, 7, 9)))
		// A job that had one due time becomes a plan.
		b.Enqueue("t", "became", delayq.ProcessAt(b.Began.Add(4*time.Minute)))
		ask("became", delayq.Again(nil, at(5, 7)))
		b.Enqueue("t", "moved", at(4, 5))
		require.NoError(b, b.Client.Reschedule(ctx, "t", "moved", delayq.ProcessAt(b.Began.Add(8*time.Minute))))
		b.Enqueue("t", "replaced", at(4, 5))
		b.Enqueue("t", "replaced", at(5), delayq.Replace())
		_, err := b.Client.Enqueue(ctx, "t", "replaced", nil, at(9))
		require.ErrorIs(b, err, delayq.ErrDuplicate)
		b.Enqueue("t", "buried", at(4, 5, 6))
		b.Enqueue("t", "copied", at(1, 60, 120))
		b.Pass(90 * time.Second)

		copied := b.Get("t", "copied")
		require.Equal(b, []int{2, 3}, []int{copied.Stage, copied.Stages})
		_, err = b.Client.Enqueue(ctx, "t", "copy", copied.Payload, copied.Options()...)
		require.NoError(b, err)
		copied, original := b.Get("t", "copy"), copied
		require.Equal(b, original.Plan, copied.Plan)
		require.Equal(b, original.Stage, copied.Stage)
		require.True(b, copied.Due.Equal(original.Due))

		require.NoError(b, b.Client.Bury(ctx, "t", "buried", "wait"))
		b.Pass(30 * time.Second)
		require.Equal(b, delayq.StateDead, b.State("t", "buried"))
		b.Pass(5 * time.Minute)
		require.NoError(b, b.Client.Revive(ctx, "t", "buried"))
		b.Pass(time.Minute)

		says("late", "3m0s 1 of 3 attempt 1", "3m0s 2 of 3 attempt 1", "4m0s 3 of 3 attempt 1")
		says("snoozed", "4m0s 1 of 3 attempt 1", "7m0s 1 of 3 attempt 1", "7m0s 2 of 3 attempt 1", "7m0s 3 of 3 attempt 1")
		says("delayed", "4m0s 1 of 3 attempt 1", "7m0s 1 of 3 attempt 2", "7m0s 2 of 3 attempt 1", "7m0s 3 of 3 attempt 1")
		says("again", "4m0s 1 of 2 attempt 1", "5m0s 1 of 2 attempt 1", "6m0s 2 of 2 attempt 1")
		says("anew", "4m0s 1 of 2 attempt 1", "5m0s 1 of 3 attempt 1", "7m0s 2 of 3 attempt 1", "9m0s 3 of 3 attempt 1")
		says("became", "4m0s 0 of 0 attempt 1", "5m0s 1 of 2 attempt 1", "7m0s 2 of 2 attempt 1")
		says("moved", "8m0s 1 of 2 attempt 1", "8m0s 2 of 2 attempt 1")
		says("replaced", "5m0s 1 of 1 attempt 1")
		says("buried", "4m0s 1 of 3 attempt 1", "10m0s 2 of 3 attempt 1", "10m0s 3 of 3 attempt 1")
		for _, state := range []delayq.State{delayq.StateReady, delayq.StateRunning, delayq.StateDead, delayq.StateDone} {
			require.Empty(b, queuetest.JobsOf(b, b.Inspector, "t", state))
		}
		report, err := b.Inspector.Check(ctx, "t")
		require.NoError(b, err)
		require.Empty(b, report.Found)
	})
}

// Batches, typed topics, headers and batch handlers know plans.
func TestPlansOfBatches(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		topic := delayq.NewTopic[int]("t")
		var mu sync.Mutex
		seen := map[string][]int{}
		server := queuetest.ServeMany(b.T, b.RDB, queuetest.Prefix, func(s *delayq.Server) {
			require.NoError(b, s.HandleBatch("t", func(_ context.Context, jobs []*delayq.Job) error {
				mu.Lock()
				defer mu.Unlock()
				for _, job := range jobs {
					seen[job.ID] = append(seen[job.ID], job.Stage)
					if job.Stage == 2 {
						require.NoError(b, job.Permanent(queuetest.ErrTest))
					}
				}
				return nil
			}))
		})
		at := func(n int) time.Time { return b.Began.Add(time.Duration(n) * time.Minute) }
		results, err := b.Client.EnqueueBatch(b.Context(), []delayq.NewJob{
			{Topic: "t", ID: "a", Options: []delayq.JobOption{delayq.ProcessAtEach(at(1), at(2), at(3))}},
			{Topic: "t", ID: "b", Options: []delayq.JobOption{delayq.ProcessAtEach(at(1), at(1))}},
		})
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.NoError(b, results[0].Err)
		require.ErrorIs(b, results[1].Err, delayq.ErrInvalid)
		_, err = topic.Enqueue(b.Context(), b.Client, "c", 7, delayq.ProcessAtEach(at(1), at(2)))
		require.NoError(b, err)
		b.Pass(4 * time.Minute)
		require.Equal(b, map[string][]int{"a": {1, 2, 3}, "c": {1, 2}}, seen)
		require.Equal(b, delayq.StateDead, b.State("t", "a"))
		require.Equal(b, delayq.StateDead, b.State("t", "c"))
		require.Equal(b, 2, b.Get("t", "c").Stage, "the last one failed")
		require.NoError(b, server.Stop())
	})
}

// A server that dies in the middle of a stage has used up an attempt of that stage only. One that
// dies with each attempt does not keep the next stage from running.
func TestPlanOverCrashes(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		l := &planLog{b: b}
		hang := make(chan struct{})
		defer close(hang)
		dies := func(stage int, attempts int) {
			w := queuetest.NewWire(b.Redis)
			b.ServeOn(w, "t", func(ctx context.Context, job *delayq.Job) error {
				_ = l.Handle(ctx, job)
				if job.Stage == stage && job.Attempt <= attempts {
					w.Cut()
					<-hang
				}
				return nil
			})
		}
		b.Enqueue("t", "anna", delayq.ProcessAtEach(b.Began.Add(time.Minute), b.Began.Add(2*time.Minute), b.Began.Add(10*time.Minute)), delayq.Retry(1))
		dies(1, 1)
		b.Pass(61 * time.Second)
		dies(2, 2)
		b.Pass(2 * time.Minute)
		dies(2, 2)
		b.Pass(2 * time.Minute)
		b.Serve("t", l.Handle)
		b.Pass(6 * time.Minute)
		info := b.Get("t", "anna")
		require.Equal(b, delayq.StateDead, info.State)
		require.Equal(b, "ofo", overs(info))
		require.Equal(b, delayq.KindLeaseLost, info.Plan[1].Kind)
		var stages []string
		for _, line := range l.runs() {
			stages = append(stages, line[strings.Index(line, "stage"):])
		}
		require.Equal(b, []string{
			"stage 1 of 3 attempt 1", "stage 1 of 3 attempt 2", "stage 2 of 3 attempt 1", "stage 2 of 3 attempt 2", "stage 3 of 3 attempt 1",
		}, stages)
	})
}

// What a plan cannot be. Nothing is stored.
func TestPlansThatAreRefused(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		at := func(n int) time.Time { return b.Began.Add(time.Duration(n) * time.Minute) }
		for want, opts := range map[string][]delayq.JobOption{
			"ProcessAtEach: 0 times, must be 1 to 100":                   {delayq.ProcessAtEach()},
			"ProcessAtEach: 101 times":                                   {delayq.ProcessAtEach(make([]time.Time, 101)...)},
			"ProcessAtEach: time 2: the zero time":                       {delayq.ProcessAtEach(at(1), time.Time{}, at(2))},
			"must be at least 1ms after time 1":                          {delayq.ProcessAtEach(at(1), at(1).Add(-time.Microsecond))},
			"time 3, ":                                                   {delayq.ProcessAtEach(at(1), at(3), at(2))},
			"ProcessAtEach: not with ProcessAt or ProcessIn":             {delayq.ProcessAtEach(at(1)), delayq.ProcessIn(time.Hour)},
			"not with ProcessAt or ProcessIn":                            {delayq.ProcessAt(at(1)), delayq.ProcessAtEach(at(1))},
			"not with ExpireAt or ExpireIn; Job.Lateness":                {delayq.ProcessAtEach(at(1)), delayq.ExpireIn(time.Hour)},
			"ProcessAtEach: not with ExpireAt or ExpireIn; Job.Lateness": {delayq.ProcessAtEach(at(1)), delayq.ExpireAt(at(9))},
		} {
			_, err := b.Client.Enqueue(b.Context(), "t", "x", nil, opts...)
			require.ErrorIs(b, err, delayq.ErrInvalid, want)
			require.ErrorContains(b, err, want)
		}
		require.Empty(b, b.State("t", "x"))
		plan := delayq.ProcessAtEach(at(1), at(2))
		err := b.Client.Schedule(b.Context(), "t", "s", delayq.Every(time.Minute), nil, plan)
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.ErrorContains(b, err, "ProcessAtEach: the jobs of a schedule are due at their slots")
		_, err = delayq.NewClient(b.RDB, delayq.Defaults(plan)).Enqueue(b.Context(), "t", "x", nil)
		require.ErrorIs(b, err, delayq.ErrInvalid)
		require.ErrorContains(b, err, "Defaults: ProcessAtEach: must be given with each job")

		var mu sync.Mutex
		var kinds []string
		b.Serve("t", func(_ context.Context, job *delayq.Job) error {
			mu.Lock()
			defer mu.Unlock()
			kinds = append(kinds, fmt.Sprint(job.Attempt))
			if job.Attempt == 1 {
				return delayq.Again(nil, plan)
			}
			return nil
		})
		b.AddSchedule("s", delayq.Every(time.Hour), delayq.MaxRuns(1), delayq.RunOnStart())
		b.Pass(time.Minute)
		require.Equal(b, []string{"1", "2"}, kinds, "the Again of a schedule's job cannot be a plan")
	})
}
