package delayqtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/delayq/delayq"
)

// RunFlow runs a flow to its end: it moves Redis's clock from due time to due time, as
// [Queue.Advance] does, until the last step is done, dead or gone. topic and id are those of the
// last step. So retries, delays of steps and the deadline of the flow take no real time, and the
// clock stands at the end of the flow then. Other jobs that are due until then run too.
//
// The topics of the flow need servers of Serve with handlers. RunFlow returns an error if the flow
// cannot end, because nothing is left that can happen, and those of Advance. It returns
// [delayq.ErrNotFound] if there is no such job in the beginning.
func (q *Queue) RunFlow(ctx context.Context, topic, id string) error {
	if err := q.runFlow(ctx, topic, id); err != nil {
		return fmt.Errorf("delayqtest: run flow: %w", err)
	}
	return nil
}

func (q *Queue) runFlow(ctx context.Context, topic, id string) error {
	if !q.advancing.TryLock() {
		return errors.New("an Advance is in progress")
	}
	defer q.advancing.Unlock()
	now := q.freeze()
	if err := q.onlyServed(ctx); err != nil {
		return err
	}
	if _, err := q.Inspector.Job(ctx, topic, id); err != nil {
		return err
	}
	for {
		next, err := q.settle(ctx, now)
		if err != nil {
			return err
		}
		last, err := q.Inspector.Job(ctx, topic, id)
		switch {
		case errors.Is(err, delayq.ErrNotFound):
			return nil
		case err != nil:
			return err
		case last.State == delayq.StateDead || last.State == delayq.StateDone:
			return nil
		case next.IsZero() || isDue(last.Due, now):
			return q.stands(ctx, last, now)
		}
		if next = ceil(next); !next.After(now) {
			next = now.Add(time.Millisecond)
		}
		if err := q.advanceTo(ctx, now, next); err != nil {
			return err
		}
		now = next
	}
}

// stands returns the error for a flow whose last step does not end.
func (q *Queue) stands(ctx context.Context, last *delayq.JobInfo, now time.Time) error {
	why, err := q.Inspector.Explain(ctx, last.Topic, last.ID)
	if err != nil {
		return err
	}
	text := why.Verdict
	for _, r := range why.Reasons[min(1, len(why.Reasons)):] {
		text += " " + r.Text
	}
	return fmt.Errorf("topic %q job %q does not end at %v: %s", last.Topic, last.ID, now.Format(timeFormat), text)
}

// RunFlow is [Queue.RunFlow]; an error ends the test.
func (q *TestQueue) RunFlow(topic, id string) {
	q.t.Helper()
	if err := q.Queue.RunFlow(context.Background(), topic, id); err != nil {
		q.t.Fatalf("%v", err)
	}
}

// SetInputs sets what [delayq.Job.Inputs] of a job of [NewJob] or [NextRun] returns, for a unit
// test of the handler of a step. Without it, such a job has none.
//
//	job := delayqtest.NewJob(t, delayq.NewJob{Topic: "album:done", ID: "album-7"})
//	delayqtest.SetInputs(job, delayq.Input{
//		FlowStepInfo: delayq.FlowStepInfo{Topic: "thumbnail", ID: "1", State: delayq.StepDone},
//		Output:       []byte("1.webp"),
//	})
func SetInputs(job *delayq.Job, inputs ...delayq.Input) { library.SetInputs(job, inputs) }
