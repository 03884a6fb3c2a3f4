package delayqtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/delayqtest"
)

// A waited is how a wait has ended.
type waited struct {
	result *delayq.Result
	err    error
}

// calls is a hook of a client for the calls of scripts whose names begin so.
type calls struct {
	names string
	made  chan struct{}
}

func (c calls) Script(e delayq.ScriptEvent) {
	if strings.HasPrefix(e.Name, c.names) && e.Err == nil {
		select {
		case c.made <- struct{}{}:
		default:
		}
	}
}

// after returns a hook for the first of such calls.
func after(names string) calls { return calls{names, make(chan struct{}, 100)} }

// A test learns how its jobs have ended, however far Advance moves the clock, at once or in steps.
func TestWaitThroughAdvance(t *testing.T) {
	for name, steps := range map[string]struct {
		step time.Duration
		n    int
	}{
		"at once": {30 * 24 * time.Hour, 1}, "in hours": {time.Hour, 12}, "in seconds": {30 * time.Second, 8},
	} {
		t.Run(name, func(t *testing.T) {
			looked, stored := after("wait"), after("enqueue")
			q := delayqtest.Start(t, delayq.Hooks(looked, stored))
			q.Serve(func(s *delayq.Server) {
				s.HandlerFunc("a", func(_ context.Context, job *delayq.Job) error {
					if job.Attempt == 1 {
						return delayq.RetryIn(30*time.Second, errors.New("not yet"))
					}
					return job.SetOutput([]byte("of " + job.ID))
				})
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ends := map[string]chan waited{}
			wait := func(id string, call func() (*delayq.Result, error)) {
				end := make(chan waited, 1)
				ends[id] = end
				go func() {
					result, err := call()
					end <- waited{result, err}
				}()
				<-looked.made
			}
			due := q.Now().Add(time.Duration(steps.n)*steps.step - time.Minute)
			wait("called", func() (*delayq.Result, error) { return q.Client.Call(ctx, "a", "called", nil, delayq.ProcessAt(due)) })
			<-stored.made
			_, err := q.Client.Enqueue(t.Context(), "a", "waited", nil, delayq.ProcessAt(due))
			require.NoError(t, err)
			wait("waited", func() (*delayq.Result, error) { return q.Client.Wait(ctx, "a", "waited") })
			for range steps.n {
				q.Advance(steps.step)
			}
			for id, end := range ends {
				w := <-end
				require.NoError(t, w.err, id)
				require.Equal(t, "of "+id, string(w.result.Output))
				require.Equal(t, 2, w.result.Attempt)
				require.True(t, w.result.FinishedAt.Equal(due.Add(30*time.Second)), id)
			}
		})
	}
}

// A Call whose job is due needs no Advance: the servers of the test run it.
func TestCallOfAJobThatIsDue(t *testing.T) {
	q := delayqtest.Start(t)
	q.Serve(func(s *delayq.Server) {
		s.HandlerFunc("a", func(_ context.Context, job *delayq.Job) error {
			if job.ID == "bad" {
				return delayq.Permanent(errors.New("no"))
			}
			return job.SetOutput(append([]byte("of "), job.Payload...))
		})
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := q.Client.Call(ctx, "a", "x", []byte("payload"))
	require.NoError(t, err)
	require.Equal(t, "of payload", string(result.Output))
	_, err = q.Client.Call(ctx, "a", "bad", nil)
	var dead *delayq.DeadError
	require.ErrorAs(t, err, &dead)
	require.Equal(t, "no", dead.Errors[0].Message)
	_, err = q.Client.Wait(ctx, "a", "x")
	require.ErrorIs(t, err, delayq.ErrNotFound, "it is not kept")
}

// In a bubble, a wait and the jobs have one clock.
func TestCallInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := delayqtest.Start(t)
		q.Unfreeze()
		q.Serve(func(s *delayq.Server) {
			s.HandlerFunc("a", func(_ context.Context, job *delayq.Job) error {
				for page := range int64(3) {
					time.Sleep(2 * time.Second)
					if err := job.Progress(page+1, 3, ""); err != nil {
						return err
					}
				}
				time.Sleep(2 * time.Second)
				return job.SetOutput([]byte("done"))
			})
		})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var seen []string
		result, err := q.Client.Call(ctx, "a", "x", nil, delayq.ProcessIn(time.Minute), delayq.OnJobProgress(func(p delayq.Progress) {
			seen = append(seen, fmt.Sprintf("%v %d/%d", p.At.Sub(began).Round(time.Second), p.Done, p.Total))
		}))
		require.NoError(t, err)
		require.Equal(t, "done", string(result.Output))
		require.Equal(t, []string{"1m2s 1/3", "1m4s 2/3", "1m6s 3/3"}, seen)
		require.Equal(t, 68*time.Second, time.Since(began).Round(time.Second))
		_, err = q.Client.Enqueue(t.Context(), "none", "y", nil)
		require.NoError(t, err)
		limited, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		_, err = q.Client.Wait(limited, "none", "y")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		q.AssertState("none", "y", delayq.StateReady)
	})
}

// The handler of a unit test has progress and steps without a queue. The next run has the results
// of the steps that are over.
func TestProgressAndStepsOfANewJob(t *testing.T) {
	charged := 0
	handler := func(ctx context.Context, job *delayq.Job) error {
		if err := job.Progress(1, 2, "half"); err != nil {
			return err
		}
		first, err := delayq.Step(ctx, job, "charge", func(context.Context, string) (int, error) { charged++; return 42, nil })
		if err != nil {
			return err
		}
		if job.Attempt == 1 {
			return errors.New("no mail")
		}
		return job.SetOutput(fmt.Append(nil, first))
	}
	job := delayqtest.NewJob(t, delayq.NewJob{Topic: "a", ID: "x"})
	require.EqualError(t, handler(t.Context(), job), "no mail")
	next := delayqtest.NextRun(job)
	require.NoError(t, handler(t.Context(), next))
	require.Equal(t, "42", string(next.Output()))
	require.Equal(t, 1, charged)
	other := delayqtest.NewJob(t, delayq.NewJob{Topic: "a", ID: "x"})
	require.Error(t, handler(t.Context(), other))
	require.Equal(t, 2, charged, "another incarnation begins anew")
}
