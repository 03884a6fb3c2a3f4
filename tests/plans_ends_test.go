package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/queuetest"
)

// A plan never expires: Again cannot give it an expiry either, which would drop its later stages
// unseen.
func TestPlanDoesNotExpireByAgain(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		l := &planLog{b: b, does: func(job *delayq.Job) error {
			if job.Stage == 1 && job.Attempt < 3 {
				return delayq.Again(nil, []delayq.JobOption{delayq.ExpireIn(time.Minute), delayq.ExpireAt(b.Began.Add(planDay))}[job.Attempt-1])
			}
			return nil
		}}
		b.Serve("t", l.Handle, delayq.Hooks(&hooks))
		b.Enqueue("t", "a", delayq.ProcessAtEach(b.Began.Add(2*planDay), b.Began.Add(9*planDay)))
		b.Pass(10 * planDay)
		require.Len(b, l.runs(), 4)
		require.Equal(b, map[string]int{"Started": 4, "Retried": 2, "Again": 1, "Done": 1}, hooks.Kinds("a"))
		for _, e := range hooks.Of("Retried") {
			require.ErrorIs(b, e.Err, delayq.ErrInvalid)
			require.ErrorContains(b, e.Err, "ProcessAtEach: not with ExpireAt or ExpireIn")
		}
	})
}

// When a job with the ID was enqueued meanwhile, a run that has failed for good is not reported as
// done.
func TestFailedStageIsFollowedByAnotherJob(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		l := &planLog{b: b, does: func(job *delayq.Job) error {
			if job.Stage == 0 {
				return nil
			}
			b.Enqueue("t", job.ID, delayq.Latest())
			if job.ID == "bad" {
				return delayq.Permanent(queuetest.ErrTest)
			}
			return nil
		}}
		b.Serve("t", l.Handle, delayq.Hooks(&hooks))
		for _, id := range []string{"good", "bad"} {
			b.Enqueue("t", id, delayq.ProcessAtEach(b.Began.Add(planDay), b.Began.Add(2*planDay)))
		}
		b.Pass(3 * planDay)
		require.Len(b, l.runs(), 4, "the other job takes the place of the plan")
		require.Equal(b, map[string]int{"Started": 2, "Done": 2}, hooks.Kinds("good"))
		require.Equal(b, map[string]int{"Started": 2, "Buried": 1, "Done": 1}, hooks.Kinds("bad"))
		require.ErrorIs(b, hooks.Of("Buried")[0].Err, queuetest.ErrTest)
		require.EqualValues(b, 1, b.Counter("t", delayq.CounterBuried))
		require.EqualValues(b, 3, b.Counter("t", delayq.CounterAcked))
	})
}

// The stages that Revive runs are due at once, and the hooks say so.
func TestHooksKnowWhenTheRestOfAPlanIsDue(t *testing.T) {
	queuetest.InBubble(t, func(b *queuetest.Bubble) {
		var hooks queuetest.HookLog
		l := &planLog{b: b, does: func(job *delayq.Job) error {
			if job.Stage == 1 {
				return delayq.Permanent(queuetest.ErrTest)
			}
			return nil
		}}
		b.Serve("t", l.Handle, delayq.Hooks(&hooks))
		b.Enqueue("t", "a", delayq.ProcessAtEach(b.Began.Add(planDay), b.Began.Add(2*planDay)))
		b.Pass(3 * planDay)
		require.True(b, hooks.Of("Again")[0].NextDue.Equal(b.Began.Add(2*planDay)), "%v", hooks.Of("Again")[0].NextDue)
		require.Equal(b, delayq.StateDead, b.State("t", "a"))
	})
}
