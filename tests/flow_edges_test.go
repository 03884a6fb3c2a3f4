package tests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/delayq/delayq"
	"github.com/delayq/delayq/internal/script"
)

// A call with Latest or Debounce does not change a job of a flow: its record says that it is one.
func TestJobsOfFlowsKeepTheirPayloads(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		f.AddJob("a", "1", nil, delayq.ProcessIn(time.Minute))
		s.start(f)
		s.Pass(time.Second)
		for _, id := range []string{"last", "1"} {
			topic := map[string]string{"last": "home", "1": "a"}[id]
			for _, opt := range []delayq.JobOption{delayq.Latest(), delayq.Debounce(time.Second, time.Minute)} {
				_, err := s.Client.Enqueue(s.Context(), topic, id, []byte("other"), opt)
				require.ErrorIs(s, err, delayq.ErrDuplicate, "%s", id)
			}
		}
		s.Pass(30 * time.Second)
		require.Empty(s, s.ran.IDs())
		s.Pass(time.Minute)
		require.Equal(s, []string{"1", "last"}, s.ran.IDs())
		for _, run := range s.ran.All() {
			require.Empty(s, run.Payload)
		}
	})
}

// cutOff fails calls of a script as if the connection were gone.
type cutOff struct {
	digest any
	on     atomic.Bool
}

func (c *cutOff) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *cutOff) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); c.on.Load() && len(args) > 1 && fmt.Sprint(args[1]) == c.digest {
			err := &net.OpError{Op: "write", Err: errors.New("cut off")}
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (c *cutOff) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Who closes a group can die before the last step is released. A guard does that.
func TestLostReleaseIsMadeUpFor(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		cut := &cutOff{digest: script.FlowRelease.Digest}
		s.RDB.AddHook(cut)
		g, err := s.Client.OpenGroup(s.Context(), newLast().Deadline(24*time.Hour))
		require.NoError(s, err)
		require.NoError(s, g.Add(s.Context(), delayq.NewJob{Topic: "a", ID: "1"}))
		s.Pass(time.Second)
		cut.on.Store(true)
		ctx, stop := context.WithTimeout(s.Context(), time.Second)
		defer stop()
		require.Error(s, g.Close(ctx))
		cut.on.Store(false)
		require.Equal(s, []string{"1"}, s.ran.IDs())
		s.Pass(5 * time.Minute)
		require.Equal(s, []string{"1", "last"}, s.ran.IDs())
	})
}

// A last step that ignores failures begins at the deadline. The end of a step does not cut its
// backoff.
func TestReleaseLeavesALastStepThatHasBegun(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		s.on("last", func(_ context.Context, job *delayq.Job) error {
			if job.Attempt == 1 {
				return errors.New("once")
			}
			return nil
		})
		slow := make(chan struct{})
		s.on("1", func(context.Context, *delayq.Job) error { <-slow; return nil })
		f := delayq.NewFlow("home", "last", nil, delayq.Backoff(time.Hour, time.Hour)).Deadline(10 * time.Minute).IgnoreFailures()
		f.AddJob("a", "1", nil)
		s.start(f)
		s.Pass(11 * time.Minute)
		require.Equal(s, []string{"1", "last"}, s.ran.IDs())
		close(slow)
		s.Pass(30 * time.Minute)
		require.Equal(s, []string{"1", "last"}, s.ran.IDs())
		s.Pass(time.Hour)
		require.Equal(s, []string{"1", "last", "last"}, s.ran.IDs())
	})
}

// A flow is sent with Start or with OpenGroup, and not with both.
func TestFlowIsAGroupOrNot(t *testing.T) {
	onFlowStage(t, func(s *flowStage) {
		f := newLast()
		f.AddJob("a", "1", nil)
		s.start(f)
		_, err := s.Client.OpenGroup(s.Context(), f)
		require.ErrorIs(s, err, delayq.ErrInvalid)
		require.ErrorContains(s, err, "either a group or not")
	})
}
