package delayqtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// joined serves the topics of the flows here: a handler of step, and one of the last step, which
// notes what it finds.
func joined(q *delayqtest.TestQueue, step delayq.HandlerFunc) (found *[]string) {
	found = new([]string)
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("step", step, delayq.Concurrency(1))
		s.HandlerFunc("last", func(ctx context.Context, job *delayq.Job) error {
			inputs, err := job.Inputs(ctx)
			for _, in := range inputs {
				*found = append(*found, in.ID+" "+string(in.State)+" "+string(in.Output))
			}
			return err
		}, delayq.Concurrency(1))
	})
	return found
}

// RunFlow takes no time for delays and retries, and stops when the last step has ended.
func TestRunFlow(t *testing.T) {
	t.Parallel()
	q := delayqtest.Start(t)
	began := q.Now()
	found := joined(q, func(_ context.Context, job *delayq.Job) error {
		if job.ID == "b" && job.Attempt < 3 {
			return errors.New("not yet")
		}
		return job.SetOutput([]byte("of " + job.ID))
	})
	f := delayq.NewFlow("last", "1", nil).Deadline(24 * time.Hour)
	a := f.AddJob("step", "a", nil, delayq.ProcessIn(time.Hour))
	f.AddJob("step", "b", nil, delayq.ProcessIn(2*time.Hour), delayq.Backoff(time.Minute, time.Minute)).After(a)
	_, err := q.Client.Start(t.Context(), f)
	require.NoError(t, err)
	enqueue(t, q, "step", "later", 10*time.Hour)
	q.RunFlow("last", "1")
	require.Equal(t, []string{"a done of a", "b done of b"}, *found)
	q.AssertNone("last")
	took := q.Now().Sub(began)
	require.GreaterOrEqual(t, took, 3*time.Hour+2*time.Minute)
	require.Less(t, took, 3*time.Hour+3*time.Minute)
	q.AssertState("step", "later", delayq.StateScheduled)
}

// A flow that fails ends with a last step that is dead, and so does one that comes to its deadline.
func TestRunFlowThatFails(t *testing.T) {
	t.Parallel()
	q := delayqtest.Start(t)
	joined(q, func(_ context.Context, job *delayq.Job) error {
		if job.ID == "x" {
			return delayq.Permanent(errors.New("broken"))
		}
		return errors.New("again and again")
	})
	for last, step := range map[string]string{"failed": "x", "late": "y"} {
		f := delayq.NewFlow("last", last, nil).Deadline(time.Hour)
		f.AddJob("step", step, nil)
		_, err := q.Client.Start(t.Context(), f)
		require.NoError(t, err)
		q.RunFlow("last", last)
		q.AssertState("last", last, delayq.StateDead)
	}
}

// A flow that cannot end, because nobody serves its home or a step that is due, is an error that
// says why.
func TestRunFlowThatStands(t *testing.T) {
	t.Parallel()
	q := delayqtest.Start(t)
	joined(q, func(context.Context, *delayq.Job) error { return nil })
	require.ErrorIs(t, q.Queue.RunFlow(t.Context(), "last", "none"), delayq.ErrNotFound)
	f := delayq.NewFlow("nobody", "1", nil).Deadline(time.Minute)
	f.AddJob("step", "a", nil)
	_, err := q.Client.Start(t.Context(), f)
	require.NoError(t, err)
	err = q.Queue.RunFlow(t.Context(), "nobody", "1")
	require.ErrorContains(t, err, `delayqtest: run flow: topic "nobody" job "1" does not end`)
	require.ErrorContains(t, err, "No live server handles the topic")
}

// A unit test of a handler gives it its inputs.
func TestSetInputs(t *testing.T) {
	t.Parallel()
	job := delayqtest.NewJob(t, delayq.NewJob{Topic: "last", ID: "1"})
	none, err := job.Inputs(t.Context())
	require.NoError(t, err)
	require.Empty(t, none)
	in := delayq.Input{FlowStepInfo: delayq.FlowStepInfo{ID: "a", State: delayq.StepDone}, Output: []byte("x")}
	delayqtest.SetInputs(job, in, in)
	got, err := job.Inputs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []delayq.Input{in, in}, got)
	again, err := delayqtest.NextRun(job).Inputs(t.Context())
	require.NoError(t, err)
	require.Equal(t, got, again)
	require.True(t, got[0].State.Ended())
	require.False(t, delayq.StepWaits.Ended())
}
