package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	list []string
	does func(job *delayq.Job) error
}

func (l *planLog) Handle(_ context.Context, job *delayq.Job) error {
	l.list = append(l.list, fmt.Sprintf("%v: %s stage %d of %d attempt %d", l.b.At(), job.ID, job.Stage, job.Stages, job.Attempt))
	if l.does == nil {
		return nil
	}
	return l.does(job)
}

// runs returns them, and forgets them.
func (l *planLog) runs() (list []string) {
	list, l.list = l.list, nil
	return list
}

// overs returns a letter for each stage: o for one that has had its turn, f for one that has failed
// for good, and a dot for one that is left.
func overs(info *delayq.JobInfo) (letters string) {
	for _, s := range info.Plan {
		switch {
		case s.Failed != nil:
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
		require.Equal(b, "550 no such user", info.Plan[0].Failed.Message)
		require.Equal(b, delayq.KindError, info.Plan[0].Failed.Kind)
		require.True(b, info.Plan[0].Failed.At.Equal(b.Began.Add(23*planDay)))
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

		broken = false
		require.NoError(b, b.Client.Revive(b.Context(), "t", "anna"))
		b.Pass(10 * time.Second)
		require.Equal(b, []string{"31m0s: anna stage 1 of 4 attempt 1", "31m0s: anna stage 3 of 4 attempt 1"}, l.runs())
		require.Empty(b, b.State("t", "anna"))
	})
}
